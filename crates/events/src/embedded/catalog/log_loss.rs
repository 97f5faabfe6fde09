//! Detects at the start what the indexes know but the log has lost. An index table is written only after the log has
//! synced everything in it, so a log that ends before a table has lost acknowledged messages: its newest file is
//! missing, or it is an older copy. Such a start is refused before anything is changed. If the loss is accepted, the
//! log continues after what the indexes know, and the indexes stay unchanged: no offset, position or version is
//! assigned twice, and readers get the gap.

use std::fmt;

use thalweg_log::{Log, Offset, raise_next};

use super::{CatalogLog, CatalogOptions, checked_partition};
use crate::error::{EventsError, Result};

const CURE: &str = "restore the files of the log, or start once with --recover=skip (`log: {recover: skip}` in a \
                    configuration) to give up what is lost";

/// A namespace of which the log has less than the indexes.
struct NamespaceLoss<'a> {
    number: u32,
    /// `None` if the catalog has lost the name too.
    name: Option<&'a str>,
    /// The end of the log; `None` if it has no partition for the namespace.
    next: Option<Offset>,
    indexed: Offset,
}

impl fmt::Display for NamespaceLoss<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NamespaceLoss { number, indexed, .. } = self;
        match self.name {
            Some(name) => write!(f, "in namespace '{name}' ")?,
            None => write!(f, "in namespace number {number}, which the catalogue does not name, ")?,
        }
        match (self.next, checked_partition(*number)) {
            (Some(next), Some(id)) => write!(
                f,
                "(partition {id}) the indexes have offsets up to {}, but the log ends before offset {next}",
                indexed.saturating_sub(1)
            ),
            _ => write!(
                f,
                "the indexes have offsets before {indexed}, but the log has no partition"
            ),
        }
    }
}

impl CatalogLog {
    /// Refuses the start, or continues after the loss. Returns the largest namespace number that only the indexes
    /// know, which must not be assigned again.
    pub(super) async fn settle_lost(&mut self, log: &dyn Log, options: &CatalogOptions) -> Result<Option<u32>> {
        let lost = self.lost(log, &options.indexed);
        let Some(first) = lost.first() else { return Ok(None) };
        if !options.accept_loss {
            let others = match lost.len() - 1 {
                0 => String::new(),
                others => format!(" (and in {others} more)"),
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
                "the log has lost messages that were acknowledged, and continues after them as requested: their \
                 offsets and positions are not reused"
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
        let numbers = there.iter().filter_map(|id| super::number_of(*id));
        let last = numbers.max().unwrap_or_default().max(self.last);
        let mut lost: Vec<NamespaceLoss<'_>> = Vec::new();
        for (number, indexed) in indexed {
            let next = checked_partition(*number).and_then(|id| log.bounds(id).ok());
            let next = next.map(|bounds| bounds.next);
            let is_lost = match next {
                Some(next) => next < *indexed && !self.known.removed.contains(number),
                // A deleted namespace has no partition either, but its number is in the catalog.
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
