//! Converts OPC UA times (100 ns steps since 1601) to [`Ticks`] (since 1970) without loss.

use thalweg_record::Ticks;

/// 1970-01-01 in OPC UA steps.
const UNIX_EPOCH: i64 = 116_444_736_000_000_000;

/// 9999-12-31T23:59:59Z, which stands for every later time.
const END_OF_TIME: i64 = 2_650_467_743_990_000_000;

/// The start of 1601 and everything before it mean "no time".
pub(crate) fn from_opcua(steps: i64) -> Ticks {
    match steps {
        ..=0 => Ticks::MISSING,
        END_OF_TIME.. => Ticks(END_OF_TIME - UNIX_EPOCH),
        _ => Ticks(steps - UNIX_EPOCH),
    }
}

/// Returns `None` for times that OPC UA cannot represent, including the start of 1601, which means "no time".
pub(crate) fn to_opcua(time: Ticks) -> Option<i64> {
    let steps = time.0.checked_add(UNIX_EPOCH)?;
    (1..=END_OF_TIME).contains(&steps).then_some(steps)
}

/// Returns a time as text for metadata: `2031-05-06T07:08:09.123456Z`.
pub(crate) fn micros_text(time: Ticks) -> String {
    let mut text = String::with_capacity(27);
    time.write_micros(&mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_time_are_kept() {
        assert_eq!(micros_text(from_opcua(0)), "0001-01-01T00:00:00.000000Z");
        assert_eq!(micros_text(from_opcua(i64::MIN)), "0001-01-01T00:00:00.000000Z");
        assert_eq!(from_opcua(1).to_string(), "1601-01-01T00:00:00.0000001Z");
        assert_eq!(from_opcua(UNIX_EPOCH), Ticks(0));
        assert_eq!(from_opcua(i64::MAX).to_string(), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn what_opcua_knows_goes_back_as_it_came() {
        for steps in [1, UNIX_EPOCH - 1, UNIX_EPOCH, END_OF_TIME] {
            assert_eq!(to_opcua(from_opcua(steps)), Some(steps));
        }
        for unknown in [
            Ticks::MISSING,
            Ticks(-UNIX_EPOCH),
            Ticks(END_OF_TIME - UNIX_EPOCH + 1),
            Ticks(i64::MAX),
        ] {
            assert_eq!(to_opcua(unknown), None);
        }
    }
}
