//! The latest value of each source, with a memory limit: the configuration may name any number of sources, and a value
//! may be as large as a message.

use thalweg_record::Value;

/// Approximate limit for all values together.
const BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct SourceValues {
    latest: Vec<Option<Value>>,
    bytes: usize,
    bytes_max: usize,
}

/// The values of all sources would take too much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the value takes {bytes} bytes, and the latest values of all sources may take {bytes_max} together, of which others \
     have {of_others}; send smaller values, or divide the sources between several processors"
)]
pub(super) struct ValuesTooLarge {
    bytes: usize,
    of_others: usize,
    bytes_max: usize,
}

impl SourceValues {
    pub fn of(sources: usize) -> SourceValues {
        SourceValues::within(sources, BYTES_MAX)
    }

    fn within(sources: usize, bytes_max: usize) -> SourceValues {
        SourceValues {
            latest: vec![None; sources],
            bytes: 0,
            bytes_max,
        }
    }

    pub fn get(&self, source: usize) -> Option<&Value> {
        self.latest.get(source)?.as_ref()
    }

    /// Number of sources that have a value.
    pub fn known(&self) -> usize {
        self.latest.iter().flatten().count()
    }

    /// Sets the value of all these sources, or of none, which then keep their old values.
    pub fn set(&mut self, sources: &[usize], value: &Value) -> Result<(), ValuesTooLarge> {
        let now = sources.iter().filter_map(|source| self.get(*source));
        let of_others = self.bytes - now.map(Value::heap_bytes).sum::<usize>();
        let bytes = value.heap_bytes() * sources.len();
        if of_others + bytes > self.bytes_max {
            let bytes_max = self.bytes_max;
            return Err(ValuesTooLarge {
                bytes,
                of_others,
                bytes_max,
            });
        }
        for source in sources {
            if let Some(place) = self.latest.get_mut(*source) {
                *place = Some(value.clone());
            }
        }
        self.bytes = of_others + bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_does_not_fit_changes_nothing_and_the_rest_is_the_latest(
            steps in prop::collection::vec((prop::sample::subsequence(vec![0usize, 1, 2, 3], 1..=4), 0usize..400), 0..60),
        ) {
            let mut values = SourceValues::within(4, 1000);
            let mut model: Vec<Option<Value>> = vec![None; 4];
            let taken = |model: &[Option<Value>]| model.iter().flatten().map(Value::heap_bytes).sum::<usize>();
            for (sources, length) in steps {
                let value = Value::text("x".repeat(length));
                let mut next = model.clone();
                for source in &sources {
                    next[*source] = Some(value.clone());
                }
                let fits = taken(&next) <= 1000;
                prop_assert_eq!(values.set(&sources, &value).is_ok(), fits);
                if fits {
                    model = next;
                }
                prop_assert_eq!(values.bytes, taken(&model));
                prop_assert_eq!(&values.latest, &model);
                prop_assert_eq!(values.known(), model.iter().flatten().count());
            }
        }
    }
}
