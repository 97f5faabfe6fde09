//! Predicts which changes of an item the server library will queue, by repeating the library's rule, so that queued
//! values can be counted. The rule is read from the library's Debug output, the only place that exposes it.

use opcua::types::DataChangeTrigger;

use crate::ValueType;

/// A data change filter as the library parsed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Filter {
    trigger: DataChangeTrigger,
    deadband: Deadband,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Deadband {
    None,
    Absolute(f64),
    /// The node's EURange, and the share of it that counts as a change.
    Percent {
        low: f64,
        range: f64,
        trigger: f64,
    },
}

impl Filter {
    /// Finds a filter in the Debug output of the library's filter or of a monitored item; `None` if there is none.
    pub(crate) fn parse(text: &str) -> Option<Filter> {
        let text = text.split_once("DataChangeFilter(ParsedDataChangeFilter {")?.1;
        let trigger = match word_after(text, "trigger: ") {
            "Status" => DataChangeTrigger::Status,
            "StatusValueTimestamp" => DataChangeTrigger::StatusValueTimestamp,
            _ => DataChangeTrigger::StatusValue,
        };
        let deadband = text.split_once("deadband: ").map_or("", |(_, deadband)| deadband);
        let deadband = match word_after(deadband, "") {
            "Absolute" => Deadband::Absolute(number_after(deadband, "Absolute(")),
            "Percent" => Deadband::Percent {
                low: number_after(deadband, "low: "),
                range: number_after(deadband, "range: "),
                trigger: number_after(deadband, "trigger: "),
            },
            _ => Deadband::None,
        };
        Some(Filter { trigger, deadband })
    }

    pub(crate) fn has_deadband(self) -> bool {
        self.deadband != Deadband::None
    }
}

fn word_after<'a>(text: &'a str, key: &str) -> &'a str {
    let rest = text.split_once(key).map_or("", |(_, rest)| rest);
    rest.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or("")
}

fn number_after(text: &str, key: &str) -> f64 {
    let rest = text.split_once(key).map_or("", |(_, rest)| rest);
    let end = rest
        .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+')))
        .unwrap_or(rest.len());
    rest[..end].parse().unwrap_or(0.0)
}

/// The filter state of one item. It is absent while every change passes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilterState {
    filter: Option<Filter>,
    numeric: bool,
    /// The last value that passed.
    last: f64,
}

impl FilterState {
    /// Returns `None` if every value of this item passes; `stride` is the number of changes between two values.
    pub(crate) fn new(filter: Option<Filter>, value_type: ValueType, stride: u64, first: f64) -> Option<FilterState> {
        let numeric = matches!(value_type, ValueType::UInt | ValueType::Double);
        let differs = value_type != ValueType::Bool || stride % 2 == 1;
        let gate = FilterState {
            filter,
            numeric,
            last: first,
        };
        let passes_all = match filter {
            None => differs,
            Some(Filter {
                trigger: DataChangeTrigger::Status,
                ..
            }) => false,
            Some(Filter {
                trigger: DataChangeTrigger::StatusValueTimestamp,
                ..
            }) => true,
            Some(Filter {
                deadband: Deadband::None,
                ..
            }) => differs,
            Some(Filter {
                deadband: Deadband::Absolute(value),
                ..
            }) => !numeric || value == 0.0,
            Some(Filter {
                deadband: Deadband::Percent { trigger, .. },
                ..
            }) => !numeric || trigger == 0.0,
        };
        (!passes_all).then_some(gate)
    }

    /// Returns the same rule with another last value.
    pub(crate) fn after(&self, last: f64) -> FilterState {
        FilterState { last, ..*self }
    }

    /// Whether the library queues this value.
    pub(crate) fn passes(&mut self, value: f64) -> bool {
        let passes = match self.filter {
            None => value != self.last,
            Some(filter) => match filter.trigger {
                DataChangeTrigger::Status => false,
                DataChangeTrigger::StatusValueTimestamp => true,
                DataChangeTrigger::StatusValue => self.exceeds(filter.deadband, value),
            },
        };
        if passes {
            self.last = value;
        }
        passes
    }

    fn exceeds(&self, deadband: Deadband, value: f64) -> bool {
        match deadband {
            Deadband::None => value != self.last,
            // A value that is not a number has no distance, and the library lets it pass.
            Deadband::Absolute(_) | Deadband::Percent { .. } if !self.numeric => true,
            Deadband::Absolute(limit) => (value - self.last).abs() > limit,
            Deadband::Percent { low, range, trigger } => {
                ((value - low) / range - (self.last - low) / range).abs() > trigger
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use opcua::types::{DataChangeFilter, DataValue, DeadbandType, ParsedDataChangeFilter, Variant};
    use proptest::prelude::*;

    use super::*;

    /// The Debug output of the library's private filter type for a filter.
    fn shown(trigger: DataChangeTrigger, kind: DeadbandType, value: f64) -> (ParsedDataChangeFilter, String) {
        let filter = DataChangeFilter {
            trigger,
            deadband_type: kind as u32,
            deadband_value: value,
        };
        let parsed = ParsedDataChangeFilter::parse(filter, Some((-5.0, 95.0))).unwrap();
        let text = format!("DataChangeFilter({parsed:?})");
        (parsed, text)
    }

    #[test]
    fn no_filter_is_no_filter() {
        assert_eq!(Filter::parse("None"), None);
        assert_eq!(Filter::parse("EventFilter(ParsedEventFilter { .. })"), None);
    }

    #[test]
    fn the_usual_filters_need_no_state() {
        let zero = Filter::parse(&shown(DataChangeTrigger::StatusValue, DeadbandType::Absolute, 0.0).1);
        assert!(zero.is_some());
        for value_type in [ValueType::UInt, ValueType::Double, ValueType::Bool, ValueType::String] {
            assert!(FilterState::new(zero, value_type, 1, 0.0).is_none());
            assert!(FilterState::new(None, value_type, 1, 0.0).is_none());
        }
        assert!(
            FilterState::new(None, ValueType::Bool, 2, 0.0).is_some(),
            "a bool sampled every other change stays the same"
        );
    }

    proptest! {
        #[test]
        fn the_gate_decides_as_the_library_does(
            trigger in prop_oneof![
                Just(DataChangeTrigger::Status),
                Just(DataChangeTrigger::StatusValue),
                Just(DataChangeTrigger::StatusValueTimestamp),
            ],
            kind in prop_oneof![Just(DeadbandType::None), Just(DeadbandType::Absolute), Just(DeadbandType::Percent)],
            limit in 0.0f64..12.0,
            values in proptest::collection::vec(0u32..40, 1..60),
        ) {
            let (library, text) = shown(trigger, kind, limit);
            let first = f64::from(values[0]);
            let mut gate = FilterState { filter: Filter::parse(&text), numeric: true, last: first };
            let data = |value: u32, time: usize| DataValue {
                value: Some(Variant::UInt32(value)),
                source_timestamp: Some((time as i64).into()),
                ..DataValue::default()
            };
            let mut last = data(values[0], 0);
            for (time, value) in values.iter().enumerate().skip(1) {
                let next = data(*value, time);
                let changed = library.is_changed(&next, &last);
                prop_assert_eq!(gate.passes(f64::from(*value)), changed);
                if changed {
                    last = next;
                }
            }
        }
    }
}
