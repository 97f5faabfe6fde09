//! What becomes of each message of a batch on its way into a queue, with its dedup-id or without.

use thalweg_log::Micros;

use crate::dedup::{Dedup, Place, Seen, Ticket};
use crate::produce::Produced;

/// What becomes of one message of a batch.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// To be stored, under a dedup-id or without.
    New(Option<Ticket>),
    Repeated(Place),
    /// As the one at this place of the batch.
    SameAs(usize),
    Done(Place, bool),
}

impl Answer {
    /// `places` are those of the ids in the batch.
    pub fn of(seen: Seen, places: &[usize]) -> Answer {
        match seen {
            Seen::First(ticket) => Answer::New(Some(ticket)),
            Seen::Stored(place) => Answer::Repeated(place),
            Seen::SameAs(id) => Answer::SameAs(places.get(id).copied().unwrap_or_default()),
        }
    }

    /// Those that are new were stored there, in their order.
    pub fn settle(all: &mut [Answer], mut places: impl Iterator<Item = Place>, dedup: &mut Dedup, now: Micros) {
        let mut fallback = Place {
            partition: 0,
            offset: 0,
        };
        for at in 0..all.len() {
            let Some(answer) = all.get(at).copied() else { return };
            let done = match answer {
                Answer::New(ticket) => {
                    fallback = places.next().unwrap_or(fallback);
                    if let Some(ticket) = ticket {
                        dedup.stored(now, ticket, fallback);
                    }
                    Answer::Done(fallback, false)
                }
                Answer::Repeated(place) => Answer::Done(place, true),
                // An earlier one, which is done by now.
                Answer::SameAs(first) => Answer::Done(all.get(first).map_or(fallback, Answer::place), true),
                Answer::Done(place, repeated) => Answer::Done(place, repeated),
            };
            if let Some(answer) = all.get_mut(at) {
                *answer = done;
            }
        }
    }

    fn place(&self) -> Place {
        match self {
            Answer::Done(place, _) | Answer::Repeated(place) => *place,
            Answer::New(_) | Answer::SameAs(_) => Place {
                partition: 0,
                offset: 0,
            },
        }
    }

    pub fn produced(self) -> Produced {
        let place = self.place();
        Produced {
            partition: place.partition,
            offset: place.offset,
            repeated: matches!(self, Answer::Repeated(_) | Answer::Done(_, true)),
        }
    }
}
