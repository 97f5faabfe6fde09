//! The outcome of each message of a batch that is produced to a queue, with or without a dedup-id.

use thalweg_log::Micros;

use crate::dedup::{Dedup, DedupLookup, DedupTicket, MessagePosition};
use crate::produce::ProduceResult;

/// The outcome of one message of a batch.
#[derive(Clone, Copy)]
pub(crate) enum BatchEntry {
    /// To be stored, with or without a dedup-id.
    New(Option<DedupTicket>),
    Repeated(MessagePosition),
    /// A duplicate of the message at this index of the batch.
    SameAs(usize),
    Done(MessagePosition, bool),
}

impl BatchEntry {
    /// `places` maps ids to their indexes in the batch.
    pub fn of(seen: DedupLookup, places: &[usize]) -> BatchEntry {
        match seen {
            DedupLookup::First(ticket) => BatchEntry::New(Some(ticket)),
            DedupLookup::Stored(place) => BatchEntry::Repeated(place),
            DedupLookup::SameAs(id) => BatchEntry::SameAs(places.get(id).copied().unwrap_or_default()),
        }
    }

    /// Assigns the stored positions to the new messages, in order.
    pub fn settle(
        all: &mut [BatchEntry],
        mut places: impl Iterator<Item = MessagePosition>,
        dedup: &mut Dedup,
        now: Micros,
    ) {
        let mut fallback = MessagePosition {
            partition: 0,
            offset: 0,
        };
        for at in 0..all.len() {
            let Some(answer) = all.get(at).copied() else { return };
            let done = match answer {
                BatchEntry::New(ticket) => {
                    fallback = places.next().unwrap_or(fallback);
                    if let Some(ticket) = ticket {
                        dedup.stored(now, ticket, fallback);
                    }
                    BatchEntry::Done(fallback, false)
                }
                BatchEntry::Repeated(place) => BatchEntry::Done(place, true),
                // It refers to an earlier entry, which is done by now.
                BatchEntry::SameAs(first) => BatchEntry::Done(all.get(first).map_or(fallback, BatchEntry::place), true),
                BatchEntry::Done(place, repeated) => BatchEntry::Done(place, repeated),
            };
            if let Some(answer) = all.get_mut(at) {
                *answer = done;
            }
        }
    }

    fn place(&self) -> MessagePosition {
        match self {
            BatchEntry::Done(place, _) | BatchEntry::Repeated(place) => *place,
            BatchEntry::New(_) | BatchEntry::SameAs(_) => MessagePosition {
                partition: 0,
                offset: 0,
            },
        }
    }

    pub fn produced(self) -> ProduceResult {
        let place = self.place();
        ProduceResult {
            partition: place.partition,
            offset: place.offset,
            repeated: matches!(self, BatchEntry::Repeated(_) | BatchEntry::Done(_, true)),
        }
    }
}
