//! How an output collects messages before it writes them: `batching: {count, byte_size, period}`.

use std::time::Duration;

use thalweg_config::{BATCH_BYTES_MAX, BatchPolicy, Fields};
use thalweg_telemetry::IntCounter;

use crate::component::Component;
use crate::metrics::BATCH_CREATED;
use crate::parse::ParseContext;

/// A batch is written when any limit is reached; a limit that is not set does not delay it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Maximum number of messages; 0 means no limit.
    pub count: usize,
    /// Maximum size; 0 means no limit.
    pub byte_size: usize,
    /// Maximum time since the first message of the batch.
    pub period: Option<Duration>,
}

impl From<BatchPolicy> for Batching {
    fn from(policy: BatchPolicy) -> Batching {
        Batching {
            count: policy.count,
            byte_size: policy.byte_size,
            period: policy.period,
        }
    }
}

impl Batching {
    /// Reads the field `batching` of an output; `None` if it is absent or has no effect.
    pub fn read(fields: &mut Fields<'_>, _: &ParseContext<'_>) -> Option<Batching> {
        let policy = fields.opt_fields("batching").and_then(BatchPolicy::read);
        policy.map(Batching::from)
    }

    /// Returns the limit that these amounts have reached.
    pub(crate) fn enough(&self, messages: usize, bytes: usize) -> Option<BatchTrigger> {
        let reached = |limit: usize, value: usize| limit > 0 && value >= limit;
        if reached(self.count, messages) {
            Some(BatchTrigger::Count)
        } else if reached(self.byte_size, bytes) || bytes >= BATCH_BYTES_MAX {
            Some(BatchTrigger::Size)
        } else {
            None
        }
    }

    /// Combines the policies of two outputs that are written together: the tighter of each limit applies.
    pub(crate) fn both(a: Option<Batching>, b: Option<Batching>) -> Option<Batching> {
        let (Some(a), Some(b)) = (a, b) else {
            return a.or(b);
        };
        let less = |a: usize, b: usize| match (a, b) {
            (0, limit) | (limit, 0) => limit,
            (a, b) => a.min(b),
        };
        Some(Batching {
            count: less(a.count, b.count),
            byte_size: less(a.byte_size, b.byte_size),
            period: [a.period, b.period].into_iter().flatten().min(),
        })
    }
}

/// Why collecting a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchTrigger {
    Count,
    Size,
    Period,
    /// Someone waits for it, or no more messages come.
    Flush,
}

/// `batch_created`: the batches collected in front of an output.
pub(crate) struct BatchMetrics([(BatchTrigger, IntCounter); 4]);

impl BatchMetrics {
    pub fn new(component: &Component) -> BatchMetrics {
        let counter = |mechanism: BatchTrigger, label| {
            let labels = [("mechanism", label)];
            let counter = component.metrics.counter_with(&component.id, &BATCH_CREATED, &labels);
            (mechanism, counter)
        };
        BatchMetrics([
            counter(BatchTrigger::Count, "count"),
            counter(BatchTrigger::Size, "size"),
            counter(BatchTrigger::Period, "period"),
            counter(BatchTrigger::Flush, "flush"),
        ])
    }

    pub fn created(&self, mechanism: BatchTrigger) {
        let counters = self.0.iter().filter(|(known, _)| *known == mechanism);
        counters.for_each(|(_, counter)| counter.inc());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_either_limit_calls_enough_is_enough() {
        let policy = |count, byte_size| Batching {
            count,
            byte_size,
            period: None,
        };
        assert_eq!(policy(3, 0).enough(2, 1000), None);
        assert_eq!(policy(3, 0).enough(3, 0), Some(BatchTrigger::Count));
        assert_eq!(policy(0, 100).enough(5, 99), None);
        assert_eq!(policy(3, 100).enough(1, 100), Some(BatchTrigger::Size));
        assert_eq!(policy(0, 0).enough(1_000_000, 1000), None);
        assert_eq!(policy(0, 0).enough(1, BATCH_BYTES_MAX), Some(BatchTrigger::Size));
        let both = Batching::both(Some(policy(3, 0)), Some(policy(9, 50)));
        assert_eq!(both, Some(policy(3, 50)));
        assert_eq!(Batching::both(None, Some(policy(9, 50))), Some(policy(9, 50)));
    }
}
