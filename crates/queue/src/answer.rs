//! What becomes of each message of a batch on its way into a queue, with its dedup-id or without.

use crate::dedup::{Dedup, Place, Seen, Ticket};
use crate::produce::Produced;

/// What becomes of one message of a batch.
pub(crate) enum Answer {
    /// To be stored, under a dedup-id or without.
    New(Option<Ticket>),
    Repeated(Place),
    /// As an earlier one of the same batch.
    SameAs(Ticket),
    Done(Place, bool),
}

impl Answer {
    pub fn settle(&mut self, places: &mut impl Iterator<Item = Place>, dedup: &mut Dedup) {
        let fallback = Place {
            partition: 0,
            offset: 0,
        };
        *self = match self {
            Answer::New(ticket) => {
                let place = places.next().unwrap_or(fallback);
                if let Some(ticket) = ticket {
                    dedup.stored(*ticket, place);
                }
                Answer::Done(place, false)
            }
            Answer::Repeated(place) => Answer::Done(*place, true),
            Answer::SameAs(ticket) => match dedup.outcome(*ticket) {
                Some(Seen::Stored(place)) => Answer::Done(place, true),
                _ => Answer::Done(fallback, true),
            },
            Answer::Done(place, repeated) => Answer::Done(*place, *repeated),
        };
    }

    pub fn produced(self) -> Produced {
        let (place, repeated) = match self {
            Answer::Done(place, repeated) => (place, repeated),
            Answer::Repeated(place) => (place, true),
            Answer::New(_) | Answer::SameAs(_) => (
                Place {
                    partition: 0,
                    offset: 0,
                },
                false,
            ),
        };
        Produced {
            partition: place.partition,
            offset: place.offset,
            repeated,
        }
    }
}
