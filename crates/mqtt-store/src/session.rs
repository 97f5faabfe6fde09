//! What survives of a session, and its changes as records. A start replays the records of each client id in their order.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_kit::time::Micros;
use thalweg_kit::varint;
use thalweg_mqtt_wire::subscribe::RetainHandling;
use thalweg_mqtt_wire::{QoS, SubscribeOptions};

use crate::bytes_codec::{RecordFields, put_bytes};
use crate::incoming::IncomingMessages;
use crate::interest::Offset;
use crate::outgoing::{InflightMessage, OutgoingMessages};
use crate::routes::Subscription;

/// The first byte of each record. A newer format has a higher one.
pub const FORMAT: u8 = 1;
/// The most subscriptions of one record.
const SUBSCRIPTIONS_MAX: usize = 100;
/// A session that never expires.
pub const NEVER: u32 = u32::MAX;

/// A subscription, and the message from which on it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredSubscription {
    pub subscription: Subscription,
    pub since: Offset,
}

/// The message that a session publishes when its connection breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredWill {
    /// The stored form of the message.
    pub message: Vec<u8>,
    /// Seconds that it waits.
    pub delay: u32,
    /// Seconds of its Message Expiry Interval, which counts from when it is sent.
    pub expiry: Option<u32>,
}

/// A session as the log has it.
#[derive(Clone, Debug, Default)]
pub struct StoredSession {
    /// Who made it; empty without authentication.
    pub user: String,
    /// Seconds that it outlives its connection.
    pub expiry: u32,
    /// Wall-clock time at which its connection ended. `None`: it is connected, or was when the process ended.
    pub disconnected_at: Option<Micros>,
    pub subscriptions: BTreeMap<Box<str>, StoredSubscription>,
    pub will: Option<StoredWill>,
    /// All messages before this one were sent, or are not for this session.
    pub next: Offset,
    /// Messages from `next` on that were sent nevertheless: their identifiers were stored together with them.
    pub ahead: BTreeSet<Offset>,
    pub outgoing: OutgoingMessages,
    /// The shared subscriptions of messages in flight, by identifier. Those of other messages may be left over.
    pub shared: BTreeMap<u16, Box<str>>,
    pub incoming: IncomingMessages,
}

/// A change of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionChange {
    /// The session begins, in the place of one that may exist.
    Created {
        user: String,
        expiry: u32,
        next: Offset,
    },
    /// The session has ended.
    Removed,
    /// A client has connected to the session.
    Connected {
        expiry: u32,
    },
    Disconnected {
        at: Micros,
        expiry: u32,
    },
    Will(Option<StoredWill>),
    Subscribed(Vec<(Box<str>, StoredSubscription)>),
    Unsubscribed {
        filter: Box<str>,
    },
    /// A message of QoS 2 is about to be sent.
    Sending {
        offset: Offset,
        packet_id: u16,
    },
    /// The same for a message of a shared subscription.
    SendingShared {
        offset: Offset,
        packet_id: u16,
        filter: Box<str>,
    },
    /// The client has received a message of QoS 2.
    Received {
        packet_id: u16,
    },
    /// The client has published messages of QoS 2.
    Incoming(Vec<u16>),
    /// The client has released the identifier of its message.
    Released {
        packet_id: u16,
    },
    /// How far the client is. It replaces all that was stored of messages that are sent to it.
    Progress {
        next: Offset,
        ahead: Vec<Offset>,
        inflight: Vec<InflightMessage>,
        /// The identifiers of messages of shared subscriptions.
        shared: Vec<(u16, Box<str>)>,
    },
}

mod tag {
    pub const CREATED: u8 = 1;
    pub const REMOVED: u8 = 2;
    pub const CONNECTED: u8 = 3;
    pub const DISCONNECTED: u8 = 4;
    pub const WILL: u8 = 5;
    pub const SUBSCRIBED: u8 = 6;
    pub const UNSUBSCRIBED: u8 = 7;
    pub const SENDING: u8 = 8;
    pub const RECEIVED: u8 = 9;
    pub const INCOMING: u8 = 10;
    pub const RELEASED: u8 = 11;
    pub const PROGRESS: u8 = 12;
    pub const SENDING_SHARED: u8 = 13;
}

impl SessionChange {
    /// The value of its record; the key is the client id.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        match self {
            SessionChange::Created { user, expiry, next } => {
                out.push(tag::CREATED);
                put_bytes(out, user.as_bytes());
                varint::put(out, (*expiry).into());
                varint::put(out, *next);
            }
            SessionChange::Removed => out.push(tag::REMOVED),
            SessionChange::Connected { expiry } => {
                out.push(tag::CONNECTED);
                varint::put(out, (*expiry).into());
            }
            SessionChange::Disconnected { at, expiry } => {
                out.push(tag::DISCONNECTED);
                out.extend_from_slice(&at.to_be_bytes());
                varint::put(out, (*expiry).into());
            }
            SessionChange::Will(will) => {
                out.extend_from_slice(&[tag::WILL, will.is_some().into()]);
                if let Some(will) = will {
                    put_bytes(out, &will.message);
                    varint::put(out, will.delay.into());
                    varint::put(out, will.expiry.map_or(0, |expiry| u64::from(expiry) + 1));
                }
            }
            SessionChange::Subscribed(subscriptions) => put_subscriptions(out, subscriptions),
            SessionChange::Unsubscribed { filter } => {
                out.push(tag::UNSUBSCRIBED);
                put_bytes(out, filter.as_bytes());
            }
            SessionChange::Sending { offset, packet_id } => {
                out.push(tag::SENDING);
                varint::put(out, *offset);
                varint::put(out, (*packet_id).into());
            }
            SessionChange::Received { packet_id } => put_id(out, tag::RECEIVED, *packet_id),
            SessionChange::Incoming(packet_ids) => {
                out.push(tag::INCOMING);
                varint::put(out, packet_ids.len() as u64);
                packet_ids.iter().for_each(|id| varint::put(out, (*id).into()));
            }
            SessionChange::Released { packet_id } => put_id(out, tag::RELEASED, *packet_id),
            SessionChange::Progress {
                next,
                ahead,
                inflight,
                shared,
            } => put_progress(out, *next, (ahead, inflight, shared)),
            SessionChange::SendingShared {
                offset,
                packet_id,
                filter,
            } => {
                out.push(tag::SENDING_SHARED);
                varint::put(out, *offset);
                varint::put(out, (*packet_id).into());
                put_bytes(out, filter.as_bytes());
            }
        }
    }

    /// `None`: these bytes are no change of this format.
    pub fn decode(bytes: &[u8]) -> Option<SessionChange> {
        let mut fields = RecordFields::new(bytes);
        if fields.byte()? != FORMAT {
            return None;
        }
        let change = match fields.byte()? {
            tag::CREATED => SessionChange::Created {
                user: fields.text()?.to_owned(),
                expiry: fields.small()?,
                next: fields.number()?,
            },
            tag::REMOVED => SessionChange::Removed,
            tag::CONNECTED => SessionChange::Connected {
                expiry: fields.small()?,
            },
            tag::DISCONNECTED => SessionChange::Disconnected {
                at: fields.time()?,
                expiry: fields.small()?,
            },
            tag::WILL => SessionChange::Will(match fields.flag()? {
                true => Some(will(&mut fields)?),
                false => None,
            }),
            tag::SUBSCRIBED => SessionChange::Subscribed(list(&mut fields, |fields| {
                let filter = fields.text()?.into();
                let options = options(fields.byte()?)?;
                let id = fields.small()?;
                let subscription = Subscription { options, id };
                Some((
                    filter,
                    StoredSubscription {
                        subscription,
                        since: fields.number()?,
                    },
                ))
            })?),
            tag::UNSUBSCRIBED => SessionChange::Unsubscribed {
                filter: fields.text()?.into(),
            },
            tag::SENDING => SessionChange::Sending {
                offset: fields.number()?,
                packet_id: fields.small()?,
            },
            tag::RECEIVED => SessionChange::Received {
                packet_id: fields.small()?,
            },
            tag::INCOMING => SessionChange::Incoming(list(&mut fields, |fields| fields.small())?),
            tag::RELEASED => SessionChange::Released {
                packet_id: fields.small()?,
            },
            tag::PROGRESS => progress(&mut fields)?,
            tag::SENDING_SHARED => SessionChange::SendingShared {
                offset: fields.number()?,
                packet_id: fields.small()?,
                filter: fields.text()?.into(),
            },
            _ => return None,
        };
        fields.is_at_end().then_some(change)
    }
}

fn put_subscriptions(out: &mut Vec<u8>, subscriptions: &[(Box<str>, StoredSubscription)]) {
    out.push(tag::SUBSCRIBED);
    varint::put(out, subscriptions.len() as u64);
    for (filter, StoredSubscription { subscription, since }) in subscriptions {
        put_bytes(out, filter.as_bytes());
        out.push(subscription.options.byte());
        varint::put(out, subscription.id.into());
        varint::put(out, *since);
    }
}

type ProgressParts<'a> = (&'a [Offset], &'a [InflightMessage], &'a [(u16, Box<str>)]);

fn put_progress(out: &mut Vec<u8>, next: Offset, (ahead, inflight, shared): ProgressParts<'_>) {
    out.push(tag::PROGRESS);
    varint::put(out, next);
    varint::put(out, ahead.len() as u64);
    ahead.iter().for_each(|offset| varint::put(out, *offset));
    varint::put(out, inflight.len() as u64);
    for message in inflight {
        varint::put(out, message.packet_id.into());
        varint::put(out, message.offset);
        out.push(message.qos.number() | if message.is_received { 4 } else { 0 });
    }
    varint::put(out, shared.len() as u64);
    for (packet_id, filter) in shared {
        varint::put(out, (*packet_id).into());
        put_bytes(out, filter.as_bytes());
    }
}

fn put_id(out: &mut Vec<u8>, tag: u8, packet_id: u16) {
    out.push(tag);
    varint::put(out, packet_id.into());
}

fn will(fields: &mut RecordFields<'_>) -> Option<StoredWill> {
    let message = fields.bytes()?.to_vec();
    let delay = fields.small()?;
    let expiry = match fields.number()? {
        0 => None,
        more => Some(u32::try_from(more - 1).ok()?),
    };
    Some(StoredWill { message, delay, expiry })
}

fn options(byte: u8) -> Option<SubscribeOptions> {
    Some(SubscribeOptions {
        qos: QoS::of(byte & 3)?,
        no_local: byte & 4 != 0,
        retain_as_published: byte & 8 != 0,
        retain_handling: match byte >> 4 {
            0 => RetainHandling::Always,
            1 => RetainHandling::IfNew,
            2 => RetainHandling::Never,
            _ => return None,
        },
    })
}

/// A list behind its length. Nothing is allocated by the length alone.
fn list<T>(fields: &mut RecordFields<'_>, mut item: impl FnMut(&mut RecordFields<'_>) -> Option<T>) -> Option<Vec<T>> {
    let len = fields.number()?;
    let mut items = Vec::new();
    for _ in 0..len {
        items.push(item(fields)?);
    }
    Some(items)
}

fn progress(fields: &mut RecordFields<'_>) -> Option<SessionChange> {
    let next = fields.number()?;
    let ahead = list(fields, |fields| fields.number())?;
    let inflight = list(fields, |fields| {
        let (packet_id, offset, state) = (fields.small()?, fields.number()?, fields.byte()?);
        Some(InflightMessage {
            packet_id,
            offset,
            qos: QoS::of(state & 3).filter(|_| state < 8)?,
            is_received: state & 4 != 0,
        })
    })?;
    let shared = list(fields, |fields| Some((fields.small()?, fields.text()?.into())))?;
    Some(SessionChange::Progress {
        next,
        ahead,
        inflight,
        shared,
    })
}

impl StoredSession {
    pub fn new(user: String, expiry: u32, next: Offset) -> StoredSession {
        StoredSession {
            user,
            expiry,
            next,
            ..StoredSession::default()
        }
    }

    /// Repeats a change that was stored. A session begins and ends elsewhere: with `Created` and `Removed`.
    pub fn replay(&mut self, change: SessionChange) {
        match change {
            SessionChange::Created { user, expiry, next } => *self = StoredSession::new(user, expiry, next),
            SessionChange::Removed => {}
            SessionChange::Connected { expiry } => (self.expiry, self.disconnected_at) = (expiry, None),
            SessionChange::Disconnected { at, expiry } => (self.expiry, self.disconnected_at) = (expiry, Some(at)),
            SessionChange::Will(will) => self.will = will,
            SessionChange::Subscribed(subscriptions) => self.subscriptions.extend(subscriptions),
            SessionChange::Unsubscribed { filter } => {
                self.subscriptions.remove(&filter);
            }
            SessionChange::Sending { offset, packet_id } => {
                self.outgoing.sent_as(packet_id, offset, QoS::ExactlyOnce);
                self.went_ahead(offset);
            }
            SessionChange::Received { packet_id } => {
                let _ = self.outgoing.pubrec(packet_id, false);
            }
            SessionChange::Incoming(packet_ids) => packet_ids.into_iter().for_each(|id| self.incoming.restore(id)),
            SessionChange::Released { packet_id } => {
                self.incoming.release(packet_id);
            }
            SessionChange::SendingShared {
                offset,
                packet_id,
                filter,
            } => {
                self.outgoing.sent_as(packet_id, offset, QoS::ExactlyOnce);
                self.shared.insert(packet_id, filter);
            }
            SessionChange::Progress {
                next,
                ahead,
                inflight,
                shared,
            } => {
                self.next = next;
                self.ahead = ahead.into_iter().collect();
                self.outgoing = OutgoingMessages::restored(inflight);
                self.shared = shared.into_iter().collect();
            }
        }
    }

    /// A message from `next` on is sent.
    pub fn went_ahead(&mut self, offset: Offset) {
        if (self.next..RETAINED).contains(&offset) {
            self.ahead.insert(offset);
        }
    }

    /// All messages before this one are done with.
    pub fn advance(&mut self, next: Offset) {
        if next > self.next {
            self.next = next;
            if !self.ahead.is_empty() {
                self.ahead = self.ahead.split_off(&next);
            }
        }
    }

    /// How far the client is, as a record.
    pub fn progress(&self) -> SessionChange {
        let kept = self.outgoing.iter().filter(|message| message.offset != NOT_STORED);
        let inflight: Vec<InflightMessage> = kept.collect();
        let shared = inflight
            .iter()
            .filter_map(|sent| Some((sent.packet_id, self.shared.get(&sent.packet_id)?.clone())));
        SessionChange::Progress {
            next: self.next,
            ahead: self.ahead.iter().copied().collect(),
            shared: shared.collect(),
            inflight,
        }
    }

    /// Changes that make this session of nothing. Many subscriptions are in few of them.
    pub fn snapshot(&self) -> Vec<SessionChange> {
        let mut changes = vec![SessionChange::Created {
            user: self.user.clone(),
            expiry: self.expiry,
            next: self.next,
        }];
        let subscriptions: Vec<_> = self
            .subscriptions
            .iter()
            .map(|(filter, of)| (filter.clone(), *of))
            .collect();
        changes.extend(
            subscriptions
                .chunks(SUBSCRIPTIONS_MAX)
                .map(|some| SessionChange::Subscribed(some.to_vec())),
        );
        if self.will.is_some() {
            changes.push(SessionChange::Will(self.will.clone()));
        }
        let waiting = self.incoming.waiting();
        if !waiting.is_empty() {
            changes.push(SessionChange::Incoming(waiting));
        }
        if !self.outgoing.is_empty() || !self.ahead.is_empty() {
            changes.push(self.progress());
        }
        if let Some(at) = self.disconnected_at {
            changes.push(SessionChange::Disconnected {
                at,
                expiry: self.expiry,
            });
        }
        changes
    }

    /// The oldest message of the message log that the session may still need.
    pub fn needs_from(&self) -> Offset {
        let inflight = self
            .outgoing
            .iter()
            .filter(|sent| !sent.is_received)
            .map(|sent| sent.offset);
        let oldest = inflight.filter(|offset| *offset < RETAINED).min();
        oldest.map_or(self.next, |oldest| oldest.min(self.next))
    }
}

/// Added to the offset of a retained message, which is in a log of its own.
pub const RETAINED: Offset = 1 << 63;
/// How far a shared subscription is: the value of a record whose key is U+0000 and the filter, which no client id begins with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupProgress {
    /// All messages before this one were given to a member.
    pub next: Offset,
    /// Messages of QoS 1 before it that no member has acknowledged.
    pub unacknowledged: BTreeSet<Offset>,
    /// Messages of QoS 2 from it on that were given to a member.
    pub ahead: BTreeSet<Offset>,
}

impl GroupProgress {
    /// The key of the record of a shared subscription.
    pub fn key(filter: &str) -> Vec<u8> {
        [b"\0", filter.as_bytes()].concat()
    }

    /// The shared subscription that a record with this key belongs to. `None`: it belongs to a session.
    pub fn filter_of(key: &[u8]) -> Option<&str> {
        std::str::from_utf8(key.strip_prefix(b"\0")?).ok()
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORMAT);
        varint::put(out, self.next);
        for offsets in [&self.unacknowledged, &self.ahead] {
            varint::put(out, offsets.len() as u64);
            offsets.iter().for_each(|offset| varint::put(out, *offset));
        }
    }

    /// `None`: these bytes are no progress of this format.
    pub fn decode(bytes: &[u8]) -> Option<GroupProgress> {
        let mut fields = RecordFields::new(bytes);
        if fields.byte()? != FORMAT {
            return None;
        }
        let next = fields.number()?;
        let mut offsets = || Some(list(&mut fields, |fields| fields.number())?.into_iter().collect());
        let (unacknowledged, ahead) = (offsets()?, offsets()?);
        fields.is_at_end().then_some(GroupProgress {
            next,
            unacknowledged,
            ahead,
        })
    }
}

/// The offset of a message that is in no log.
pub const NOT_STORED: Offset = Offset::MAX;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn inflight() -> impl Strategy<Value = InflightMessage> {
        (1..=u16::MAX, any::<u64>(), 1..=2_u8, any::<bool>()).prop_map(|(packet_id, offset, qos, is_received)| {
            InflightMessage {
                packet_id,
                offset,
                qos: QoS::of(qos).unwrap(),
                is_received,
            }
        })
    }

    fn change() -> impl Strategy<Value = SessionChange> {
        let filter = || "[a-z+/]{1,20}".prop_map(Box::<str>::from);
        let id = 1..=u16::MAX;
        let subscription = (0..3_u8, any::<u8>(), any::<u32>(), any::<u64>()).prop_map(|(qos, bits, id, since)| {
            let options = options(qos | (bits & 0x0c) | (((bits >> 4) % 3) << 4)).unwrap();
            StoredSubscription {
                subscription: Subscription { options, id },
                since,
            }
        });
        let will = (
            prop::collection::vec(any::<u8>(), 0..50),
            any::<u32>(),
            prop::option::of(any::<u32>()),
        )
            .prop_map(|(message, delay, expiry)| StoredWill { message, delay, expiry });
        prop_oneof![
            ("[a-z]{0,10}", any::<u32>(), any::<u64>()).prop_map(|(user, expiry, next)| SessionChange::Created {
                user,
                expiry,
                next
            }),
            Just(SessionChange::Removed),
            any::<u32>().prop_map(|expiry| SessionChange::Connected { expiry }),
            (any::<i64>(), any::<u32>()).prop_map(|(at, expiry)| SessionChange::Disconnected { at, expiry }),
            prop::option::of(will).prop_map(SessionChange::Will),
            (filter(), subscription).prop_map(|(filter, subscription)| SessionChange::Subscribed(vec![
                (
                    filter,
                    subscription
                );
                3
            ])),
            filter().prop_map(|filter| SessionChange::Unsubscribed { filter }),
            (any::<u64>(), id.clone()).prop_map(|(offset, packet_id)| SessionChange::Sending { offset, packet_id }),
            id.clone().prop_map(|packet_id| SessionChange::Received { packet_id }),
            id.clone()
                .prop_map(|packet_id| SessionChange::Incoming(vec![packet_id, 7])),
            id.prop_map(|packet_id| SessionChange::Released { packet_id }),
            (
                any::<u64>(),
                prop::collection::vec(any::<u64>(), 0..5),
                prop::collection::vec(inflight(), 0..5),
                prop::collection::vec((1..9_u16, filter()), 0..5),
            )
                .prop_map(|(next, ahead, inflight, shared)| SessionChange::Progress {
                    next,
                    ahead,
                    inflight,
                    shared
                }),
            (any::<u64>(), 1..9_u16, filter()).prop_map(|(offset, packet_id, filter)| SessionChange::SendingShared {
                offset,
                packet_id,
                filter
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_change_is_read_as_it_was_written_and_damage_is_none(change in change(), cut in 0..200_usize) {
            let mut bytes = Vec::new();
            change.encode(&mut bytes);
            prop_assert_eq!(SessionChange::decode(&bytes), Some(change));
            if cut < bytes.len() {
                prop_assert_eq!(SessionChange::decode(&bytes[..cut]), None);
            }
            bytes.push(0);
            prop_assert_eq!(SessionChange::decode(&bytes), None);
        }

        #[test]
        fn a_snapshot_makes_the_same_session(changes in prop::collection::vec(change(), 0..40)) {
            let mut session = StoredSession::default();
            changes.into_iter().for_each(|change| session.replay(change));
            let mut again = StoredSession::default();
            session.snapshot().into_iter().for_each(|change| again.replay(change));
            prop_assert_eq!((&again.user, again.expiry, again.disconnected_at), (&session.user, session.expiry, session.disconnected_at));
            prop_assert_eq!((&again.subscriptions, &again.will), (&session.subscriptions, &session.will));
            prop_assert_eq!(again.incoming.waiting(), session.incoming.waiting());
            prop_assert_eq!(again.progress(), session.progress());
            prop_assert_eq!(again.needs_from(), session.needs_from());
        }
    }

    #[test]
    fn the_progress_of_a_group_is_read_as_it_was_written() {
        let progress = GroupProgress {
            next: 700,
            unacknowledged: [5, 600].into(),
            ahead: [701, 1 << 40].into(),
        };
        let mut bytes = Vec::new();
        progress.encode(&mut bytes);
        assert_eq!(GroupProgress::decode(&bytes), Some(progress));
        for cut in 0..bytes.len() {
            assert_eq!(GroupProgress::decode(&bytes[..cut]), None);
        }
        assert_eq!(
            GroupProgress::filter_of(&GroupProgress::key("$share/a/b")),
            Some("$share/a/b")
        );
        assert_eq!(GroupProgress::filter_of(b"client"), None);
    }

    #[test]
    fn what_was_sent_ahead_is_known_until_the_session_is_past_it() {
        let mut session = StoredSession::new(String::new(), 60, 10);
        for (offset, packet_id) in [(12, 1), (15, 2), (9, 3)] {
            session.replay(SessionChange::Sending { offset, packet_id });
        }
        assert_eq!(session.ahead, BTreeSet::from([12, 15]));
        assert_eq!(session.needs_from(), 9);
        session.advance(13);
        session.advance(11);
        assert_eq!((session.next, &session.ahead), (13, &BTreeSet::from([15])));
    }
}
