//! How messages are collected to batches: the fields `count`, `byte_size` and `period` of `batching` and
//! `batch_policy`.

use std::time::Duration;

use crate::fields::Fields;
use crate::kind;
use crate::node::Node;

/// A batch is complete when any limit is reached; a limit that is not set does not delay it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPolicy {
    /// Messages; 0 means no limit.
    pub count: usize,
    /// 0 means no limit.
    pub byte_size: usize,
    /// The longest time since the first message of the batch.
    pub period: Option<Duration>,
}

/// A batch is written at this size whatever the policy says, because collected messages wait outside of the flow's
/// queue limits.
pub const BATCH_BYTES_MAX: usize = 16 << 20;
const COUNT_MAX: i64 = 100_000;

impl BatchPolicy {
    /// Reads the fields of a policy; `None` if it has no effect.
    pub fn read(mut fields: Fields<'_>) -> Option<BatchPolicy> {
        let policy = BatchPolicy::of(&mut fields);
        fields.finish();
        policy
    }

    /// As [`BatchPolicy::read`], with the field `enabled`, which is false by default.
    pub(crate) fn read_switched(mut fields: Fields<'_>) -> Option<BatchPolicy> {
        let enabled = fields.bool("enabled", false);
        let policy = BatchPolicy::of(&mut fields);
        if policy.is_some() && !enabled {
            let message = "has no effect: add enabled: true, or remove it";
            fields.diags().warn(fields.mapping(), message);
        }
        fields.finish();
        policy.filter(|_| enabled)
    }

    fn of(fields: &mut Fields<'_>) -> Option<BatchPolicy> {
        let count = usize::try_from(fields.int_in("count", 0, 0..=COUNT_MAX)).unwrap_or_default();
        let byte_size = usize::try_from(fields.size("byte_size", "0")).unwrap_or(usize::MAX);
        let period = fields.duration_or_empty("period", None);
        if byte_size > BATCH_BYTES_MAX {
            fields.error(
                "byte_size",
                format!("a batch has at most {} MiB", BATCH_BYTES_MAX >> 20),
            );
        }
        for later in ["check", "processors"] {
            let given = fields.node(later, kind::EMPTY);
            let empty = |node: &Node| {
                node.scalar_text().is_some_and(|text| text.trim().is_empty())
                    || node.as_seq().is_some_and(<[_]>::is_empty)
            };
            if given.is_some_and(|node| !empty(&node)) {
                let instead = "remove it; processors of the pipeline or of the output do the same";
                fields.error(later, format!("not in this version; {instead}"));
            }
        }
        let period = period.filter(|period| !period.is_zero());
        // With a count of 1, each message is a batch immediately.
        let holds_back = count > 1 || (count == 0 && (byte_size > 0 || period.is_some()));
        holds_back.then_some(BatchPolicy {
            count,
            byte_size,
            period,
        })
    }
}
