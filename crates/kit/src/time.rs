//! Wall clock times as integers.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 by the wall clock; 0 before 1970.
pub fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Nanoseconds since 1970 by the wall clock; 0 before 1970.
pub fn unix_nanos() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
