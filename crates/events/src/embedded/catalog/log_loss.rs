//! What the indexes know and the log has lost, at a start. A table of an index is written only when the log has synced all that it
//! names, so a log that ends before a table has lost messages that were acknowledged: its newest file is gone, or it is an older
//! copy. Such a start is refused before anything is changed. Where the loss is accepted, the log goes on behind what the indexes
//! know, and these stay as they are: no offset, position or version is given twice, and readers are told of the gap.

use std::fmt;

use thalweg_log::{Log, Offset, raise_next};

use super::{CatalogLog, CatalogOptions, checked_partition};
use crate::error::{EventsError, Result};

const CURE: &str = "bring back the files of the log, or start once with --recover=skip (`log: {recover: skip}` in a \
                    configuration) to give up what is lost";

/// A namespace of which the log has less than the indexes.
struct NamespaceLoss<'a> {
    number: u32,
    /// Unless the catalogue has lost it, too.
    name: Option<&'a str>,
    /// Where the log goes on; `None` if it has no partition for it.
    next: Option<Offset>,
    indexed: Offset,
}

impl fmt::Display for NamespaceLoss<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NamespaceLoss { number, indexed, .. } = self;
        match self.name {
            Some(name) => write!(f, "of namespace '{name}' ")?,
            None => write!(f, "of namespace number {number}, which the catalogue does not name, ")?,
        }
        match (self.next, checked_partition(*number)) {
            (Some(next), Some(id)) => write!(
                f,
                "(partition {id}) the indexes have offsets up to {}, and the log ends before offset {next}",
                indexed.saturating_sub(1)
            ),
            _ => write!(
                f,
                "the indexes have offsets before {indexed}, and the log has no partition"
            ),
        }
    }
}

impl CatalogLog {
    /// Refuses what was lost, or goes on behind it. Returns the largest number of a namespace that only the indexes know: it must
    /// not be given again.
    pub(super) async fn settle_lost(&mut self, log: &dyn Log, options: &CatalogOptions) -> Result<Option<u32>> {
        let lost = self.lost(log, &options.indexed);
        let Some(first) = lost.first() else { return Ok(None) };
        if !options.accept_loss {
            let others = match lost.len() - 1 {
                0 => String::new(),
                others => format!(" (and of {others} more)"),
            };
            return Err(EventsError::Damaged(format!(
                "the log has lost messages that were acknowledged: {first}{others}; {CURE}"
            )));
        }
        let mut skipped_to = None;
        for lost in &lost {
            tracing::error!(
                namespace = lost.name,
                number = lost.number,
                log_end = lost.next,
                indexed = lost.indexed,
                "the log has lost messages that were acknowledged, and goes on behind them as was asked for: their offsets and \
                 positions are not given again"
            );
            match (lost.next, checked_partition(lost.number)) {
                (Some(_), Some(id)) => raise_next(log, id, lost.indexed).await?,
                _ => skipped_to = skipped_to.max(Some(lost.number)),
            }
        }
        self.last = self.last.max(skipped_to.unwrap_or_default());
        Ok(skipped_to)
    }

    fn lost(&self, log: &dyn Log, indexed: &[(u32, Offset)]) -> Vec<NamespaceLoss<'_>> {
        let there = log.partitions();
        let numbers = there.iter().filter_map(|id| id.queue.checked_sub(super::FIRST));
        let last = numbers.max().unwrap_or_default().max(self.last);
        let mut lost: Vec<NamespaceLoss<'_>> = Vec::new();
        for (number, indexed) in indexed {
            let next = checked_partition(*number).and_then(|id| log.bounds(id).ok());
            let next = next.map(|bounds| bounds.next);
            let is_lost = match next {
                Some(next) => next < *indexed && !self.known.removed.contains(number),
                // One that was deleted has no partition either, but its number was given.
                None => *number > last,
            };
            if is_lost {
                let name = self.known.there.get(number).map(|named| named.name.as_str());
                lost.push(NamespaceLoss {
                    number: *number,
                    name,
                    next,
                    indexed: *indexed,
                });
            }
        }
        lost.sort_by_key(|lost| lost.number);
        lost
    }
}
