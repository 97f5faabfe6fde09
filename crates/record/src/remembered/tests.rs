use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;

use super::*;

const KEYS: usize = 12;

#[derive(Clone, Debug)]
enum Step {
    Insert(usize, usize),
    Get(usize),
    Grow(usize, usize),
    Remove(usize),
    /// Keeps the keys whose number this divides.
    Retain(usize),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let sized = || (0..KEYS, 0usize..400);
    prop_oneof![
        8 => sized().prop_map(|(key, bytes)| Step::Insert(key, bytes)),
        4 => (0..KEYS).prop_map(Step::Get),
        3 => sized().prop_map(|(key, bytes)| Step::Grow(key, bytes)),
        2 => (0..KEYS).prop_map(Step::Remove),
        1 => (1usize..4).prop_map(Step::Retain),
        1 => Just(Step::Clear),
    ]
}

/// What a cache has: the value of each key, and its bytes with those of the entry.
#[derive(Clone, Default)]
struct Model(BTreeMap<String, (usize, usize)>);

impl Model {
    fn bytes(&self) -> usize {
        self.0.values().map(|(_, bytes)| bytes).sum()
    }

    fn fits(&self, bytes: usize, limits: CacheLimits) -> bool {
        self.0.len() < limits.entries_max && self.bytes() + bytes <= limits.bytes_max
    }

    /// An entry comes, and those that the cache does not have any more went for it: no more than had to.
    fn put(
        &mut self,
        known: &Remembered<String, usize>,
        (key, value, bytes): (&str, usize, usize),
        limits: CacheLimits,
    ) -> Result<(), TestCaseError> {
        self.0.remove(key);
        if limits.entries_max == 0 || bytes > limits.bytes_max {
            return Ok(());
        }
        let mut rest = self.clone();
        rest.0.retain(|key, _| known.position(key.as_str()).is_some());
        let mut gone = self.0.iter().filter(|(key, _)| !rest.0.contains_key(*key)).peekable();
        if gone.peek().is_some() {
            let is_last = |(key, entry): (&String, &(usize, usize))| {
                let mut before = rest.clone();
                before.0.insert(key.clone(), *entry);
                !before.fits(bytes, limits)
            };
            prop_assert!(gone.any(is_last), "one went for nothing");
        }
        prop_assert!(rest.fits(bytes, limits));
        rest.0.insert(key.to_owned(), (value, bytes));
        *self = rest;
        Ok(())
    }
}

proptest! {
    #[test]
    fn it_is_never_over_its_bounds_and_what_fits_stays(
        steps in prop::collection::vec(step(), 0..100),
        entries_max in 0usize..10,
        bytes_max in 0usize..2500,
    ) {
        let limits = CacheLimits { entries_max, bytes_max };
        let mut known: Remembered<String, usize> = Remembered::within(limits);
        let mut model = Model::default();
        for (n, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert(key, bytes) => {
                    let key = key.to_string();
                    known.insert(key.clone(), n, bytes);
                    let all = bytes + Remembered::<String, usize>::ENTRY_BYTES;
                    model.put(&known, (key.as_str(), n, all), limits)?;
                }
                Step::Get(key) => {
                    let key = key.to_string();
                    let expected = model.0.get(&key).map(|(value, _)| value);
                    prop_assert_eq!(known.get(key.as_str()), expected);
                }
                Step::Grow(key, bytes) => {
                    let key = key.to_string();
                    let grown = known.grow(key.as_str(), bytes).map(|value| std::mem::replace(value, n));
                    let before = model.0.get(&key).copied();
                    let fits = before.filter(|(_, all)| all + bytes <= bytes_max);
                    prop_assert_eq!(grown, fits.map(|(value, _)| value));
                    if let Some((_, all)) = before {
                        model.put(&known, (key.as_str(), n, all + bytes), limits)?;
                    }
                }
                Step::Remove(key) => {
                    let key = key.to_string();
                    let expected = model.0.remove(&key).map(|(value, _)| value);
                    prop_assert_eq!(known.remove(key.as_str()), expected);
                }
                Step::Retain(divisor) => {
                    let is_kept = |key: &String| key.parse::<usize>().is_ok_and(|key| key.is_multiple_of(divisor));
                    known.retain(|key, _| is_kept(key));
                    model.0.retain(|key, _| is_kept(key));
                }
                Step::Clear => {
                    known.clear();
                    model.0.clear();
                }
            }
            prop_assert!(known.len() <= entries_max && known.bytes() <= bytes_max);
            prop_assert_eq!((known.len(), known.bytes()), (model.0.len(), model.bytes()));
            for key in (0..KEYS).map(|key| key.to_string()) {
                let value = known.position(key.as_str()).map(|position| known.entries[position].value);
                prop_assert_eq!(value, model.0.get(&key).map(|(value, _)| *value));
            }
        }
    }
}

fn of(entries_max: usize) -> Remembered<u64, u64> {
    Remembered::within(CacheLimits::entries(entries_max))
}

/// Looks each key up and inserts it if it is missing. Returns how many were found.
fn turn(known: &mut Remembered<u64, u64>, keys: Range<u64>) -> usize {
    let mut found = 0;
    for key in keys {
        match known.get(&key) {
            Some(value) => {
                assert_eq!(*value, key);
                found += 1;
            }
            None => known.insert(key, key, 0),
        }
    }
    found
}

#[test]
fn of_keys_that_come_in_turns_and_do_not_all_fit_many_are_found() {
    for (keys, found_min) in [(1050, 800), (1500, 600), (2000, 500), (4000, 300)] {
        let mut known = of(1000);
        let found = (0..30).fold(0, |_, _| turn(&mut known, 0..keys));
        assert!(found >= found_min, "{found} of {keys}");
    }
    let mut known = of(1000);
    turn(&mut known, 0..1000);
    assert_eq!(turn(&mut known, 0..1000), 1000, "all fit");
}

#[test]
fn keys_in_use_outlive_those_that_come_once() {
    let mut known = of(1000);
    let mut stranger = 1_000_000;
    let mut round = || {
        let keys = (0..500).map(|key| {
            stranger += 1;
            let found = turn(&mut known, key..key + 1);
            found + turn(&mut known, stranger..stranger + 1)
        });
        keys.sum::<usize>()
    };
    let found = (0..20).fold(0, |_, _| round());
    assert!(found >= 475, "{found}");
}

#[test]
fn it_follows_when_other_keys_come_into_use() {
    let mut known = of(1000);
    for _ in 0..5 {
        turn(&mut known, 0..900);
    }
    let found: Vec<usize> = (0..20).map(|_| turn(&mut known, 10_000..10_900)).collect();
    assert!(found[1] >= 200 && found[5] >= 700 && found[19] >= 880, "{found:?}");
}

#[test]
fn one_entry_goes_for_each_that_comes() {
    let mut known = of(100);
    for key in 0..10_000 {
        turn(&mut known, key..key + 1);
        assert_eq!(known.len(), (key as usize + 1).min(100));
        assert_eq!(known.get(&key), Some(&key), "it was just inserted");
    }
    assert_eq!(known.bytes(), 100 * Remembered::<u64, u64>::ENTRY_BYTES);
}

#[test]
fn a_value_is_made_once_while_it_is_remembered() {
    let mut known: Remembered<String, usize> = Remembered::within(CacheLimits::entries(2));
    let mut made = 0;
    let mut ask = |key: &str| {
        known.get_or_insert_with(key, || {
            made += 1;
            (key.to_owned(), made, key.len())
        })
    };
    assert_eq!(["a", "b", "a", "b"].map(&mut ask), [1, 2, 1, 2]);
    assert_eq!(ask("c"), 3);
    assert_eq!(made, 3);
    let mut none: Remembered<String, usize> = Remembered::within(CacheLimits::entries(0));
    assert_eq!(none.get_or_insert_with("a", || ("a".to_owned(), 7, 0)), 7);
    assert!(none.is_empty());
}

#[test]
fn a_value_that_is_replaced_by_one_too_large_is_gone() {
    let mut known: Remembered<u64, u64> = Remembered::within(CacheLimits {
        entries_max: 10,
        bytes_max: 1000,
    });
    let [a, b, c] = [1_u64, 2, 3];
    known.insert(a, 1, 0);
    known.insert(b, 2, 0);
    known.insert(a, 10, 2000);
    assert_eq!((known.get(&a), known.get(&b)), (None, Some(&2)));
    assert!(known.grow(&b, usize::MAX).is_none() && known.is_empty());
    assert_eq!(known.bytes(), 0);
    known.insert(c, 3, 0);
    *known.get_mut(&c).unwrap() += 1;
    assert_eq!(known.remove(&c), Some(4));
}
