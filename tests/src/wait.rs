//! Waiting for a state instead of for a time.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Long enough for a loaded machine; a passing test never waits that long.
pub const PATIENCE: Duration = Duration::from_secs(90);

const PAUSE: Duration = Duration::from_millis(50);
/// A request that waits for an answer costs nothing, and what comes after it may be over soon.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Polls until the result is `Ok`; returns the last error if it never is.
pub fn eventually<T>(ask: impl FnMut() -> Result<T>) -> Result<T> {
    eventually_within(PATIENCE, ask)
}

pub fn eventually_within<T>(patience: Duration, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        let asked = Instant::now();
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(error) if start.elapsed() > patience => {
                return Err(error.context(format!("not reached within {} s", patience.as_secs())));
            }
            // A question that takes long, such as all values so far, must not keep a core busy.
            Err(_) => std::thread::sleep(PAUSE.max(2 * asked.elapsed()).min(PAUSE_MAX)),
        }
    }
}
