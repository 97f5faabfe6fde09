//! Durations and sizes as users write them: `1h30m`, `10GiB`. Each text reads back as exactly the same value.

use std::fmt::Write as _;
use std::time::Duration;

/// Hours are the largest unit, as in the specification: `168h`.
const DURATION_UNITS: [(&str, u128); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

const SIZE_UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

pub(crate) fn duration_text(duration: Duration) -> String {
    let mut rest = duration.as_nanos();
    if rest == 0 {
        return "0s".to_owned();
    }
    let mut text = String::new();
    for (name, size) in DURATION_UNITS {
        let count = rest / size;
        rest %= size;
        if count > 0 {
            // Writing to a String does not fail.
            let _ = write!(text, "{count}{name}");
        }
    }
    text
}

/// In the largest binary unit that divides it.
pub(crate) fn size_text(bytes: u64) -> String {
    let unit = SIZE_UNITS
        .iter()
        .find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size));
    match unit {
        Some((name, size)) => format!("{}{name}", bytes / size),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use thalweg_config::{parse_duration, parse_size};

    use super::*;

    #[test]
    fn texts_are_those_of_the_specification() {
        let texts = [0, 30, 90, 300, 5400, 604_800].map(|s| duration_text(Duration::from_secs(s)));
        assert_eq!(texts, ["0s", "30s", "1m30s", "5m", "1h30m", "168h"]);
        assert_eq!(duration_text(Duration::from_micros(50_050)), "50ms50us");
        let texts = [0, 1, 1000, 1024, 1 << 30, 3 << 20, 5 << 40].map(size_text);
        assert_eq!(texts, ["0B", "1B", "1000B", "1KiB", "1GiB", "3MiB", "5TiB"]);
    }

    proptest! {
        #[test]
        fn texts_read_back_as_the_same_value(nanos in 0..=i64::MAX as u64, bytes in any::<u64>(), shift in 0..64_u32) {
            let duration = Duration::from_nanos(nanos >> shift);
            prop_assert_eq!(parse_duration(&duration_text(duration)), Ok(duration));
            let bytes = bytes << shift;
            prop_assert_eq!(parse_size(&size_text(bytes)), Ok(bytes));
        }
    }
}
