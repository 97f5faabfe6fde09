//! What a mapping reads from the machine: the clock, randomness, environment and host name. All access goes through
//! [`Host`], so that tests control it.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use thalweg_kit::{clock, random};
use thalweg_record::Text;

use crate::error::{EvalResult, Fault};

/// The environment of a mapping.
pub trait Host: Send + Sync {
    /// Nanoseconds since 1970-01-01T00:00:00Z.
    fn unix_nanos(&self) -> i64;

    /// 64 random bits.
    fn random(&self) -> u64;

    /// The random bits of a UUID.
    fn random_uuid(&self) -> u128 {
        u128::from(self.random()) << 64 | u128::from(self.random())
    }

    fn env(&self, name: &str) -> Option<String>;

    fn hostname(&self) -> Option<String>;
}

/// Returns the host of the machine that the program runs on.
pub fn system() -> Arc<dyn Host> {
    static SYSTEM: LazyLock<Arc<dyn Host>> = LazyLock::new(|| Arc::new(SystemHost::default()));
    SYSTEM.clone()
}

#[derive(Default)]
struct SystemHost {
    hostname: OnceLock<Option<String>>,
}

impl Host for SystemHost {
    fn unix_nanos(&self) -> i64 {
        match clock::wall().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
        }
    }

    fn random(&self) -> u64 {
        thread_local! {
            static STATE: Cell<[u64; 4]> = Cell::new(seed());
        }
        STATE.with(|state| {
            let (next, value) = xoshiro256(state.get());
            state.set(next);
            value
        })
    }

    /// Reads from the operating system each time, because UUIDs are used where they must be unpredictable.
    fn random_uuid(&self) -> u128 {
        random::uuid().as_u128()
    }

    fn env(&self, name: &str) -> Option<String> {
        // Do not look up a name with '=' or NUL: the standard library may panic on it.
        if name.is_empty() || name.contains(['=', '\0']) {
            return None;
        }
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }

    fn hostname(&self) -> Option<String> {
        let read = |path| std::fs::read_to_string(path).ok();
        let find = || {
            let found = read("/proc/sys/kernel/hostname")
                .or_else(|| read("/etc/hostname"))
                .or_else(|| self.env("HOSTNAME"))
                .or_else(|| self.env("COMPUTERNAME"))?;
            Some(found.trim().to_owned()).filter(|name| !name.is_empty())
        };
        self.hostname.get_or_init(find).clone()
    }
}

fn seed() -> [u64; 4] {
    let [a, b] = [random::uuid(), random::uuid()].map(|uuid| uuid.as_u64_pair());
    // The multiplication spreads the six fixed bits of a UUID. The state cannot be zero, because its lowest bit is set.
    [a.0, a.1, b.0, b.1].map(|bits| bits.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
}

/// One step of xoshiro256++ (Blackman and Vigna): returns 64 bits and the next state.
fn xoshiro256(mut s: [u64; 4]) -> ([u64; 4], u64) {
    let value = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
    let t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = s[3].rotate_left(45);
    (s, value)
}

/// The counters of `count("name")`, shared by all mappings that were compiled with them.
#[derive(Debug, Default)]
pub struct NamedCounters {
    named: Mutex<HashMap<Text, Arc<AtomicI64>>>,
}

impl NamedCounters {
    /// Bounds memory, because names can be computed from messages.
    const NAMES_MAX: usize = 100_000;

    /// The counters of the process, which all mappings of a configuration share by default.
    pub fn process() -> Arc<NamedCounters> {
        static PROCESS: LazyLock<Arc<NamedCounters>> = LazyLock::new(Arc::default);
        PROCESS.clone()
    }

    pub(crate) fn named(&self, name: &str) -> EvalResult<Arc<AtomicI64>> {
        let mut named = self.named.lock();
        if let Some(counter) = named.get(name) {
            return Ok(counter.clone());
        }
        if named.len() >= NamedCounters::NAMES_MAX {
            let max = NamedCounters::NAMES_MAX;
            return Err(Fault::text(format!(
                "count: more than the limit of {max} names are in use"
            )));
        }
        Ok(named.entry(name.into()).or_default().clone())
    }
}

/// Returns the next number of a counter that starts at 1.
pub(crate) fn next(counter: &AtomicI64) -> i64 {
    counter.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_counters_have_a_limit_and_those_that_are_there_go_on() {
        let counts = NamedCounters::default();
        for n in 0..NamedCounters::NAMES_MAX {
            assert_eq!(next(&counts.named(&format!("n{n}")).unwrap()), 1);
        }
        let Err(fault) = counts.named("one more") else {
            panic!("it has a counter")
        };
        assert!(
            fault.to_string().contains("more than the limit of 100000 names"),
            "{fault}"
        );
        assert_eq!(next(&counts.named("n7").unwrap()), 2);
    }
}
