//! Deadbands: requested from the server as a filter of the monitored item, or applied here if a server refuses filters.
//!
//! The rule is the server's: a value passes if none passed before, if the status changed, or if it differs by more than
//! the deadband from the last value that passed.

use opcua::types::{DataChangeFilter, DataChangeTrigger, ExtensionObject};
use thalweg_record::{Number, Value};

/// The configured deadband.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Deadband {
    None,
    Absolute(f64),
    /// Percentage of the span of the node's EURange.
    Percent(f64),
}

impl Deadband {
    /// Suppresses repeated values.
    pub const DEFAULT: Deadband = Deadband::Absolute(0.0);

    pub fn from_parts(kind: &str, value: f64) -> Option<Deadband> {
        Some(match kind {
            "none" => Deadband::None,
            "absolute" => Deadband::Absolute(value),
            "percent" => Deadband::Percent(value),
            _ => return None,
        })
    }

    pub fn value(self) -> f64 {
        match self {
            Deadband::None => 0.0,
            Deadband::Absolute(value) | Deadband::Percent(value) => value,
        }
    }

    pub fn with_value(self, value: f64) -> Deadband {
        match self {
            Deadband::None => Deadband::None,
            Deadband::Absolute(_) => Deadband::Absolute(value),
            Deadband::Percent(_) => Deadband::Percent(value),
        }
    }

    /// The filter of a monitored item; a null object for none.
    pub fn to_filter(self) -> ExtensionObject {
        let (deadband_type, deadband_value) = match self {
            Deadband::None => return ExtensionObject::null(),
            Deadband::Absolute(value) => (1, value),
            Deadband::Percent(value) => (2, value),
        };
        ExtensionObject::from_message(DataChangeFilter {
            trigger: DataChangeTrigger::StatusValue,
            deadband_type,
            deadband_value,
        })
    }
}

/// A deadband applied here, with the last value that passed. 32 bytes per item that needs it.
#[derive(Clone, Debug)]
pub(crate) struct ClientDeadband {
    /// In the unit of the value.
    threshold: f64,
    last: Option<(Number, u32)>,
}

impl ClientDeadband {
    /// `span` is that of the node's EURange: without one, percent becomes absolute 0.0. Returns `None` if nothing is to
    /// be filtered.
    pub fn new(deadband: Deadband, span: Option<f64>) -> Option<ClientDeadband> {
        let threshold = match deadband {
            Deadband::None => return None,
            Deadband::Absolute(value) => value,
            Deadband::Percent(value) => span.map_or(0.0, |span| value / 100.0 * span),
        };
        Some(ClientDeadband { threshold, last: None })
    }

    /// The tag has lost its value, so the next one passes, whatever it is.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// Whether a value passes; values that are not numbers always pass.
    pub fn passes(&mut self, value: &Value, status: u32) -> bool {
        let Some(number) = Number::of(value) else { return true };
        let passes = self
            .last
            .is_none_or(|(last, last_status)| status != last_status || number.is_beyond(self.threshold, last));
        if passes {
            self.last = Some((number, status));
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_value_passes_first_on_change_of_status_and_beyond_the_band() {
        let mut band = ClientDeadband::new(Deadband::Absolute(1.0), None).unwrap();
        let seen: Vec<bool> = [
            (10.0, 0),
            (11.0, 0),
            (11.1, 0),
            (10.2, 0),
            (10.2, 0x4000_0000),
            (10.2, 0x4000_0000),
        ]
        .map(|(v, s)| band.passes(&Value::F64(v), s))
        .to_vec();
        assert_eq!(seen, [true, false, true, false, true, false]);
    }

    #[test]
    fn zero_suppresses_repeats_and_percent_needs_a_range() {
        let mut zero = ClientDeadband::new(Deadband::DEFAULT, None).unwrap();
        assert!(zero.passes(&Value::U32(1), 0) && !zero.passes(&Value::U32(1), 0) && zero.passes(&Value::U32(2), 0));
        let mut percent = ClientDeadband::new(Deadband::Percent(10.0), Some(50.0)).unwrap();
        assert!(
            percent.passes(&Value::I16(0), 0)
                && !percent.passes(&Value::I16(5), 0)
                && percent.passes(&Value::I16(6), 0)
        );
        let mut without = ClientDeadband::new(Deadband::Percent(10.0), None).unwrap();
        assert!(without.passes(&Value::F32(0.0), 0) && without.passes(&Value::F32(0.1), 0));
        assert!(ClientDeadband::new(Deadband::None, None).is_none());
    }

    #[test]
    fn not_a_number_and_text_are_not_lost() {
        let mut band = ClientDeadband::new(Deadband::Absolute(5.0), None).unwrap();
        assert!(band.passes(&Value::F64(1.0), 0) && band.passes(&Value::F64(f64::NAN), 0));
        assert!(!band.passes(&Value::F64(f64::NAN), 0) && band.passes(&Value::F64(1.0), 0));
        assert!(band.passes(&Value::text("a"), 0) && band.passes(&Value::text("a"), 0));
    }

    #[test]
    fn large_integers_differ_by_one_and_infinite_values_repeat() {
        for (a, b) in [
            (Value::U64(u64::MAX - 1), Value::U64(u64::MAX)),
            (Value::I64(i64::MIN), Value::I64(i64::MIN + 1)),
            (Value::I64((1 << 53) + 1), Value::I64(1 << 53)),
        ] {
            let mut band = ClientDeadband::new(Deadband::DEFAULT, None).unwrap();
            assert!(band.passes(&a, 0) && !band.passes(&a, 0) && band.passes(&b, 0), "{a:?}");
        }
        let mut band = ClientDeadband::new(Deadband::Absolute(2.5), None).unwrap();
        let passed = [0u64, 2, 3].map(|n| band.passes(&Value::U64((1 << 60) + n), 0));
        assert_eq!(passed, [true, false, true]);
        // The distance between the two ends exceeds any 64-bit number.
        assert!(band.passes(&Value::U64(u64::MAX), 0) && band.passes(&Value::I64(i64::MIN), 0));
        let mut zero = ClientDeadband::new(Deadband::DEFAULT, None).unwrap();
        let infinite = Value::F64(f64::INFINITY);
        assert!(zero.passes(&infinite, 0) && !zero.passes(&infinite, 0));
    }

    proptest! {
        /// The last value that passed is never further from the latest value than the band.
        #[test]
        fn the_latest_value_is_known_within_the_band(values in prop::collection::vec(-100i32..100, 1..50), band in 0.0f64..20.0) {
            let mut filter = ClientDeadband::new(Deadband::Absolute(band), None).unwrap();
            let mut passed = None;
            for value in values {
                if filter.passes(&Value::I32(value), 0) { passed = Some(value); }
                prop_assert!((f64::from(value) - f64::from(passed.unwrap())).abs() <= band);
            }
        }
    }
}
