//! Records acknowledged and received messages. Messages have numbers, and a set uses one bit per number: an hour of messages
//! needs some hundred kilobytes.

use std::sync::Mutex;

use super::lock;

/// A set of numbers.
#[derive(Default)]
pub struct Numbers(Mutex<Bits>);

#[derive(Default)]
struct Bits {
    words: Vec<u64>,
    count: u64,
}

impl Numbers {
    pub fn add(&self, numbers: impl IntoIterator<Item = u64>) {
        let mut bits = lock(&self.0);
        for number in numbers {
            let at = (number / 64) as usize;
            if bits.words.len() <= at {
                bits.words.resize(at + 1, 0);
            }
            if let Some(word) = bits.words.get_mut(at) {
                let bit = 1 << (number % 64);
                let is_new = *word & bit == 0;
                *word |= bit;
                bits.count += u64::from(is_new);
            }
        }
    }

    pub fn count(&self) -> u64 {
        lock(&self.0).count
    }

    /// The numbers that are not in the other set, in order.
    pub fn without(&self, other: &Numbers) -> Vec<u64> {
        let own = lock(&self.0).words.clone();
        let others = lock(&other.0);
        let mut left = Vec::new();
        for (at, word) in own.into_iter().enumerate() {
            let missing = word & !others.words.get(at).copied().unwrap_or_default();
            left.extend(
                (0..64)
                    .filter(|bit| missing >> bit & 1 == 1)
                    .map(|bit| at as u64 * 64 + bit),
            );
        }
        left
    }
}

/// The acknowledged numbers of a writer and the received ones of a reader.
pub struct Account {
    pub name: String,
    pub acknowledged: u64,
    pub came: u64,
    /// Acknowledged but not received.
    pub missing: u64,
    /// Their numbers, or other details.
    pub note: String,
}

impl Account {
    pub fn of(name: &str, stored: &Numbers, came: &Numbers, note: String) -> Account {
        let missing = stored.without(came);
        let first: Vec<u64> = missing.iter().take(10).copied().collect();
        Account {
            name: name.to_owned(),
            acknowledged: stored.count(),
            came: came.count(),
            missing: missing.len() as u64,
            note: match first.is_empty() {
                true => note,
                false => format!("missing are {first:?}; {note}"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_and_did_not_come_is_missing() {
        let (stored, came) = (Numbers::default(), Numbers::default());
        stored.add(0..200);
        stored.add(190..200);
        came.add((0..200).filter(|n| ![0, 63, 64, 199].contains(n)));
        // The message arrived but its response was lost.
        came.add([1000]);
        assert_eq!(stored.without(&came), [0, 63, 64, 199]);
        let account = Account::of("a", &stored, &came, String::new());
        assert_eq!((account.acknowledged, account.came, account.missing), (200, 197, 4));
    }
}
