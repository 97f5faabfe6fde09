//! Randomness: ids, secrets, and what must differ from run to run.

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

#[cfg(test)]
mod tests {
    use super::*;

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
