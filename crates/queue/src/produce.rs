//! What becomes of the messages of a batch on their way into a queue, and how they look when they are stored.

use std::time::Duration;

use bytes::Bytes;
use thalweg_log::Micros;
use thalweg_log::format::record::{Properties, RecordRef};

use crate::dedup::{Dedup, Place, Seen, Ticket};
use crate::message::{DEDUP_ID, Message, NewMessage};
use crate::queue::Produced;
use crate::times::effective_ttl;

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
    pub fn ticket(&self) -> Option<Ticket> {
        match self {
            Answer::New(ticket) => *ticket,
            _ => None,
        }
    }

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

/// The id is stored with the message, so that a restart knows it.
pub(crate) fn with_dedup_id(message: &NewMessage) -> Properties {
    let Some(id) = &message.dedup_id else {
        return message.properties.clone();
    };
    let given = message.properties.as_ref();
    given
        .iter()
        .filter(|(name, _)| *name != DEDUP_ID)
        .chain([(DEDUP_ID, &**id)])
        .collect()
}

fn ttl_ms(message: &NewMessage, queue: Duration) -> Option<u64> {
    effective_ttl(queue, message.ttl).map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
}

pub(crate) fn record_of<'a>(
    message: &'a NewMessage,
    properties: &'a Properties,
    ttl: Duration,
    now: Micros,
) -> RecordRef<'a> {
    RecordRef {
        time: now,
        delta: None,
        key: message.key.as_deref(),
        properties: properties.as_ref(),
        ttl_ms: ttl_ms(message, ttl),
        not_before: message.not_before,
        value: &message.payload,
    }
}

pub(crate) fn message_of(message: NewMessage, ttl: Duration, now: Micros) -> Message {
    Message {
        offset: 0,
        time: now,
        ttl_ms: ttl_ms(&message, ttl),
        properties: match message.dedup_id {
            Some(_) => with_dedup_id(&message),
            None => message.properties,
        },
        payload: message.payload,
        key: message.key.filter(|key| *key != Bytes::new()),
        not_before: message.not_before,
    }
}
