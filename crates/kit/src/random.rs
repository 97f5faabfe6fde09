//! Randomness: ids, secrets, and what must differ from run to run.

use std::hash::{BuildHasher, DefaultHasher, Hasher as _};

use uuid::Uuid;

use crate::simulation;

/// The system gives no random numbers, such as early in the start of a machine, or within a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRandomness;

impl std::fmt::Display for NoRandomness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the system provides no random numbers")
    }
}

impl std::error::Error for NoRandomness {}

/// Fills the bytes from the system's generator, which is good enough for secrets.
#[allow(clippy::disallowed_methods, reason = "this is the replacement")]
pub fn fill(bytes: &mut [u8]) -> Result<(), NoRandomness> {
    if let Some(machine) = simulation::machine() {
        machine.fill(bytes);
        return Ok(());
    }
    getrandom::fill(bytes).map_err(|_| NoRandomness)
}

/// Any number.
pub fn number() -> Result<u64, NoRandomness> {
    let mut bytes = [0; 8];
    fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// An id that nobody else has.
///
/// # Panics
///
/// If the system gives no random numbers.
pub fn uuid() -> Uuid {
    let mut bytes = [0; 16];
    fill(&mut bytes).expect("ids need random numbers");
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

/// A hash function with secret keys: nobody outside can predict a hash, or find two inputs with the same one.
pub struct HashState(DefaultHasher);

impl BuildHasher for HashState {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        self.0.clone()
    }
}

/// A hash function that nobody else has.
///
/// # Panics
///
/// If the system gives no random numbers.
pub fn hash_state() -> HashState {
    let mut keys = [0; 32];
    fill(&mut keys).expect("secret hashes need random numbers");
    // The library's keyed hash function takes no keys from outside. What it reads first has the same effect.
    let mut keyed = DefaultHasher::new();
    keyed.write(&keys);
    HashState(keyed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_repeats_in_its_state_and_differs_in_another() {
        let (one, other) = (hash_state(), hash_state());
        assert_eq!(one.hash_one("key"), one.hash_one("key"));
        assert_ne!(one.hash_one("key"), one.hash_one("kez"));
        assert_ne!(one.hash_one("key"), other.hash_one("key"));
    }

    #[test]
    fn what_is_filled_differs_and_ids_are_random_ones() {
        let (mut a, mut b) = ([0; 100], [0; 100]);
        fill(&mut a).unwrap();
        fill(&mut b).unwrap();
        assert_ne!(a, b);
        assert_ne!(number().unwrap(), number().unwrap());
        assert_ne!(uuid(), uuid());
        assert_eq!(uuid().get_version(), Some(uuid::Version::Random));
    }
}
