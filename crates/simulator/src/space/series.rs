//! A numbered run of nodes of one type, such as `FastUInt1` to `FastUInt100000`. Names, identifiers and values are
//! computed from the number and the count of changes, so a node costs no memory: value = first value (from the seed) +
//! changes.

use opcua::types::{DataTypeId, Variant};

use crate::ValueType;

/// First values are below this, so that an unsigned 32-bit counter runs for years before it wraps.
const FIRST_VALUE_LIMIT: u64 = 1_000;

/// One run of nodes.
pub(crate) struct Series {
    prefix: String,
    value_type: ValueType,
    count: u32,
    salt: u64,
    description: String,
}

impl Series {
    pub(crate) fn new(group: &str, value_type: ValueType, count: u32, seed: u64, description: String) -> Series {
        let salt = group.bytes().fold(seed, |salt, byte| mix(salt ^ u64::from(byte)));
        Series {
            prefix: format!("{group}{}", value_type.name()),
            value_type,
            count,
            salt,
            description,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn value_type(&self) -> ValueType {
        self.value_type
    }

    pub(crate) fn description(&self) -> &str {
        &self.description
    }

    pub(crate) fn data_type(&self) -> DataTypeId {
        match self.value_type {
            ValueType::UInt => DataTypeId::UInt32,
            ValueType::Double => DataTypeId::Double,
            ValueType::Bool => DataTypeId::Boolean,
            ValueType::String => DataTypeId::String,
        }
    }

    /// Returns the name of the node with this index, which counts from 0 while names count from 1.
    pub(crate) fn name(&self, index: u32) -> String {
        let mut name = String::with_capacity(self.prefix.len() + 10);
        name.push_str(&self.prefix);
        push_decimal(&mut name, u64::from(index) + 1);
        name
    }

    /// Returns the index of the node with exactly this name; the inverse of `name`.
    pub(crate) fn index(&self, name: &str) -> Option<u32> {
        let digits = name.strip_prefix(self.prefix.as_str())?;
        if digits.starts_with('0') || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number: u32 = digits.parse().ok()?;
        (number <= self.count).then(|| number.checked_sub(1)).flatten()
    }

    /// The node's value after this many changes.
    pub(crate) fn value(&self, index: u32, changes: u64) -> Variant {
        let first = self.first(index);
        match self.value_type {
            ValueType::UInt => Variant::UInt32((first + changes) as u32),
            ValueType::Double => Variant::Double(self.double(first, changes)),
            ValueType::Bool => Variant::Boolean((first + changes) % 2 == 1),
            ValueType::String => {
                let mut text = String::with_capacity(12);
                push_decimal(&mut text, first + changes);
                Variant::String(text.into())
            }
        }
    }

    /// The value as the number that a deadband compares.
    pub(crate) fn number(&self, index: u32, changes: u64) -> f64 {
        let first = self.first(index);
        match self.value_type {
            ValueType::UInt => f64::from((first + changes) as u32),
            ValueType::Double => self.double(first, changes),
            ValueType::Bool => ((first + changes) % 2) as f64,
            ValueType::String => (first + changes) as f64,
        }
    }

    /// Eighths are exact in binary, so adding 1 stays exact and a gap in the count can be seen.
    fn double(&self, first: u64, changes: u64) -> f64 {
        first as f64 / 8.0 + changes as f64
    }

    fn first(&self, index: u32) -> u64 {
        mix(self.salt ^ u64::from(index)) % FIRST_VALUE_LIMIT
    }
}

/// The finalizer of splitmix64: every input bit affects every output bit.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Faster than `write!`, because a browsing client causes millions of names.
fn push_decimal(text: &mut String, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.extend(digits[at..].iter().map(|digit| char::from(*digit)));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn series(value_type: ValueType) -> Series {
        Series::new("Fast", value_type, 1_000_000, 1, String::new())
    }

    #[test]
    fn only_the_exact_name_of_an_existing_node_is_one() {
        let series = series(ValueType::UInt);
        assert_eq!(series.name(0), "FastUInt1");
        assert_eq!(series.index("FastUInt1000000"), Some(999_999));
        for name in [
            "FastUInt0",
            "FastUInt01",
            "FastUInt+1",
            "FastUInt",
            "FastUInt1000001",
            "SlowUInt1",
            "FastUInt1 ",
        ] {
            assert_eq!(series.index(name), None, "{name}");
        }
    }

    #[test]
    fn each_change_adds_one_in_every_type() {
        for value_type in [ValueType::UInt, ValueType::Double, ValueType::String] {
            let series = series(value_type);
            assert_eq!(series.number(7, 41) + 1.0, series.number(7, 42));
        }
        let toggling = series(ValueType::Bool);
        assert_ne!(toggling.value(7, 41), toggling.value(7, 42));
        assert_eq!(toggling.value(7, 41), toggling.value(7, 43));
        let text = series(ValueType::String);
        assert_eq!(text.value(3, 9), Variant::String(text.number(3, 9).to_string().into()));
    }

    #[test]
    fn the_seed_repeats_values_and_another_seed_changes_them() {
        let values = |seed| {
            let series = Series::new("Slow", ValueType::UInt, 100, seed, String::new());
            (0..100).map(|index| series.number(index, 0)).collect::<Vec<_>>()
        };
        assert_eq!(values(1), values(1));
        assert_ne!(values(1), values(2));
    }

    proptest! {
        #[test]
        fn a_name_leads_back_to_its_index(index in 0u32..1_000_000) {
            let series = series(ValueType::Double);
            prop_assert_eq!(series.index(&series.name(index)), Some(index));
        }
    }
}
