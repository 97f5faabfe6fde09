//! Sends sessions what is in the log for them: when a client comes back, and when it has room again.

use std::sync::Arc;

use thalweg_kit::blocking;
use thalweg_log::{LogError, PartitionId, ReadOptions};
use thalweg_mqtt_store::routes::joined;
use thalweg_mqtt_store::session::{NOT_STORED, RETAINED as RETAINED_OFFSET};
use thalweg_mqtt_store::{InflightMessage, Message, Offset, RoutedDelivery};
use thalweg_mqtt_wire::{PacketKind, QoS, ReasonCode, encode};

use super::Broker;
use crate::action::{Action, SendAction};
use crate::outbox::TouchedOutboxes;
use crate::partitions::{MESSAGES, RETAINED, each_record};
use crate::session::{OutgoingPublish, RetainedRead, Session};

/// Messages that are read for a session at a time.
const STEP: usize = 64;
/// Topics of retained messages that are looked at for a session at a time.
const RETAINED_VISITS: usize = 256;
/// Bytes of one read of the log.
const READ_BYTES: usize = 64 << 10;

/// How a step of feeding has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeedStep {
    More,
    /// The session has caught up, has no room, or has lost its connection.
    Done,
    /// What comes next must be read from the disk.
    MustRead,
}

/// Where messages may be read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FeedSource {
    Memory,
    Disk,
}

impl Broker {
    /// Sends a session what it missed, if it is behind and has room: at once if it is in memory, else in a task.
    pub(crate) fn feed(self: &Arc<Self>, session: &Arc<Session>, touched: &mut TouchedOutboxes) {
        let mut state = session.lock();
        if state.is_feeding || !state.must_feed() {
            return;
        }
        state.is_feeding = true;
        drop(state);
        loop {
            match self.feed_step(session, FeedSource::Memory, touched) {
                Ok(FeedStep::More) => {}
                Ok(FeedStep::Done) => {
                    if self.feed_ends(session) {
                        return;
                    }
                }
                Ok(FeedStep::MustRead) | Err(_) => break,
            }
        }
        let (broker, session) = (self.clone(), session.clone());
        tokio::spawn(async move {
            let feeding = session.clone();
            let read = blocking::spawn(move || broker.feed_from_disk(&feeding)).await;
            if let Ok(Err(error)) = read {
                session.lock().is_feeding = false;
                tracing::error!(
                    "messages for the client {:?} cannot be read: {error}",
                    session.client_id
                );
            }
        });
    }

    /// Sends all that there is room for. Blocks.
    fn feed_from_disk(self: &Arc<Self>, session: &Arc<Session>) -> Result<(), LogError> {
        let mut touched = TouchedOutboxes::new(&self.counters);
        loop {
            let step = self.feed_step(session, FeedSource::Disk, &mut touched);
            touched.flush();
            if step? != FeedStep::More && self.feed_ends(session) {
                return Ok(());
            }
        }
    }

    /// Feeding ends, unless room has come while the last step ended. Returns whether it ends.
    fn feed_ends(&self, session: &Session) -> bool {
        let mut state = session.lock();
        state.is_feeding = state.must_feed();
        !state.is_feeding
    }

    fn feed_step(
        self: &Arc<Self>,
        session: &Arc<Session>,
        source: FeedSource,
        touched: &mut TouchedOutboxes,
    ) -> Result<FeedStep, LogError> {
        let mut state = session.lock();
        let Some(connection) = state.connection.clone() else {
            return Ok(FeedStep::Done);
        };
        if state.must_resend && state.is_behind {
            let inflight: Vec<InflightMessage> = state.stored.outgoing.iter().collect();
            drop(state);
            if source == FeedSource::Memory && !inflight.is_empty() {
                return Ok(FeedStep::MustRead);
            }
            return self.send_again(session, connection.number, &inflight, touched);
        }
        if !state.has_room() {
            return Ok(FeedStep::Done);
        }
        if let Some(read) = state.retained_reads.front().cloned() {
            drop(state);
            return self.send_retained(session, connection.number, read, source, touched);
        }
        state.send_waiting((self.wall)(), touched, |_| {});
        if !state.is_behind || !state.has_room() {
            return Ok(FeedStep::Done);
        }
        drop(state);
        self.send_listed(session, connection.number, source, touched)
    }

    /// Sends the next messages of the message log.
    fn send_listed(
        self: &Arc<Self>,
        session: &Arc<Session>,
        number: u64,
        source: FeedSource,
        touched: &mut TouchedOutboxes,
    ) -> Result<FeedStep, LogError> {
        let mut state = session.lock();
        if let Some((from, to)) = state.skips
            && state.stored.next >= from
        {
            state.stored.advance(to);
            state.skips = None;
        }
        let filters = state.listed_filters();
        let next = state.stored.next;
        let skips = state.skips;
        let ahead = state.stored.ahead.clone();
        drop(state);
        let mut listed = self.lists.read(&filters, next, STEP);
        if let Some((from, _)) = skips {
            listed.messages.retain(|(offset, _)| *offset < from);
            listed.next = listed.next.min(from);
            listed.is_end = false;
        }
        listed.messages.retain(|(offset, _)| !ahead.contains(offset));
        let lacking: Vec<Offset> = listed
            .messages
            .iter()
            .filter(|(_, body)| body.is_none())
            .map(|(offset, _)| *offset)
            .collect();
        if source == FeedSource::Memory && !lacking.is_empty() {
            return Ok(FeedStep::MustRead);
        }
        let mut read = self.read_messages(MESSAGES, &lacking)?.into_iter().peekable();
        for (offset, body) in listed.messages {
            let body = body.or_else(|| read.next_if(|(at, _)| *at == offset).map(|(_, message)| message));
            // One that the log has no more is skipped.
            let is_done = body.is_none_or(|message| self.send_read(session, number, offset, &message, touched));
            if !is_done {
                return Ok(FeedStep::Done);
            }
        }
        let mut state = session.lock();
        if state.connection(number).is_none() {
            return Ok(FeedStep::Done);
        }
        state.stored.advance(listed.next);
        // Whatever is stored from now on comes by itself.
        if listed.is_end && self.lists.applied() == listed.next {
            state.is_behind = false;
            state.reserves_none = false;
            if state.is_spilled {
                self.journal.push(Action::Unspill(session.clone()));
            }
            return Ok(FeedStep::Done);
        }
        Ok(FeedStep::More)
    }

    /// Sends what was in flight when the session lost its connection [MQTT-4.4.0-1].
    fn send_again(
        self: &Arc<Self>,
        session: &Arc<Session>,
        number: u64,
        inflight: &[InflightMessage],
        touched: &mut TouchedOutboxes,
    ) -> Result<FeedStep, LogError> {
        let unreceived = inflight
            .iter()
            .filter(|sent| !sent.is_received && sent.offset != NOT_STORED);
        let mut offsets: Vec<Offset> = unreceived.map(|sent| sent.offset).collect();
        offsets.sort_unstable();
        let (stored, retained) = offsets.split_at(offsets.partition_point(|offset| *offset < RETAINED_OFFSET));
        let retained: Vec<Offset> = retained.iter().map(|offset| offset - RETAINED_OFFSET).collect();
        let mut messages = self.read_messages(MESSAGES, stored)?;
        let retained = self.read_messages(RETAINED, &retained)?.into_iter();
        messages.extend(retained.map(|(offset, message)| (offset + RETAINED_OFFSET, message)));
        let now = (self.wall)();
        let mut state = session.lock();
        let Some(connection) = state.connection(number).cloned() else {
            return Ok(FeedStep::Done);
        };
        for sent in inflight {
            if sent.is_received {
                touched.append(&connection.outbox, |out| {
                    encode::ack(
                        out,
                        connection.version,
                        PacketKind::PubRel,
                        sent.packet_id,
                        ReasonCode::Success,
                        &[],
                    );
                });
                continue;
            }
            let found = messages.binary_search_by_key(&sent.offset, |(offset, _)| *offset).ok();
            let message = found.and_then(|at| messages.get(at)).map(|(_, message)| message);
            // It is in the log no more, or the subscription has gone: then its identifier must be completed all the same.
            let Some(message) = message else {
                state.stored.outgoing.give_up(sent.packet_id);
                continue;
            };
            let delivery = self
                .delivery_of(&state, session, message, sent.offset)
                .unwrap_or(RoutedDelivery {
                    qos: sent.qos,
                    retain_as_published: false,
                    ids: Default::default(),
                });
            let delivery = RoutedDelivery {
                qos: sent.qos,
                ..delivery
            };
            let expiry = message.remaining_expiry(now).unwrap_or(Some(1));
            let publish = OutgoingPublish {
                message,
                retain: message.retain() && delivery.retain_as_published,
                delivery: &delivery,
                expiry,
            };
            touched.append(&connection.outbox, |out| {
                publish.write(out, connection.version, sent.packet_id, true)
            });
        }
        state.must_resend = false;
        self.limit_queue(session, &mut state);
        Ok(FeedStep::More)
    }

    /// Sends retained messages that match a new subscription, a page of them.
    fn send_retained(
        self: &Arc<Self>,
        session: &Arc<Session>,
        number: u64,
        mut read: RetainedRead,
        source: FeedSource,
        touched: &mut TouchedOutboxes,
    ) -> Result<FeedStep, LogError> {
        let page = self.retained.find(&read.filter, &read.from, RETAINED_VISITS);
        let lacking = page.found.iter().filter(|(_, entry)| entry.body.is_none());
        let mut lacking: Vec<Offset> = lacking.map(|(_, entry)| entry.offset).collect();
        lacking.sort_unstable();
        if source == FeedSource::Memory && !lacking.is_empty() {
            return Ok(FeedStep::MustRead);
        }
        let bodies = self.read_messages(RETAINED, &lacking)?;
        let ids = match read.subscription.id {
            0 => Default::default(),
            id => std::iter::once(id).collect(),
        };
        let delivery = RoutedDelivery {
            qos: read.subscription.options.qos,
            retain_as_published: true,
            ids,
        };
        for (topic, entry) in page.found {
            let found = bodies.binary_search_by_key(&entry.offset, |(offset, _)| *offset).ok();
            let body = entry.body.as_ref().or_else(|| Some(&bodies.get(found?)?.1));
            // One that was replaced meanwhile comes as a live message.
            let publish = body.and_then(|message| OutgoingPublish::new(message, &delivery, (self.wall)()));
            let Some(publish) = publish else {
                continue;
            };
            let is_sent = self.send_one(session, number, entry.offset + RETAINED_OFFSET, &publish, touched);
            if !is_sent {
                read.from = topic.to_string();
                self.keep_reading(session, number, read);
                return Ok(FeedStep::Done);
            }
        }
        match page.next {
            Some(next) => {
                read.from = next;
                self.keep_reading(session, number, read);
            }
            None => {
                let mut state = session.lock();
                if state.connection(number).is_some() {
                    state.retained_reads.pop_front();
                }
            }
        }
        Ok(FeedStep::More)
    }

    fn keep_reading(&self, session: &Session, number: u64, read: RetainedRead) {
        let mut state = session.lock();
        if state.connection(number).is_some()
            && let Some(front) = state.retained_reads.front_mut()
        {
            *front = read;
        }
    }

    /// Sends one message that was read. Returns whether there was room for it.
    fn send_one(
        self: &Arc<Self>,
        session: &Arc<Session>,
        number: u64,
        offset: Offset,
        publish: &OutgoingPublish<'_>,
        touched: &mut TouchedOutboxes,
    ) -> bool {
        let mut state = session.lock();
        let Some(connection) = state.connection(number).cloned().filter(|_| state.has_room()) else {
            return false;
        };
        if !publish.fits(&connection) || state.is_denied(publish.message.topic()) {
            return true;
        }
        if publish.qos() == QoS::AtMostOnce {
            touched.append(&connection.outbox, |out| {
                publish.write(out, connection.version, 0, false)
            });
            touched.sent(QoS::AtMostOnce);
            return true;
        }
        let kept_at = if state.is_stored { offset } else { NOT_STORED };
        let Some(packet_id) = state.stored.outgoing.send(kept_at, publish.qos()) else {
            return false;
        };
        if publish.qos() == QoS::AtLeastOnce || !state.is_stored {
            touched.append(&connection.outbox, |out| {
                publish.write(out, connection.version, packet_id, false)
            });
            touched.sent(publish.qos());
            // A message of the message log is found again by where the session is; a retained one only by its identifier.
            let becomes_dirty =
                kept_at >= RETAINED_OFFSET && state.is_stored && !std::mem::replace(&mut state.is_dirty, true);
            drop(state);
            if becomes_dirty {
                self.note_dirty(session);
            }
            return true;
        }
        // Its identifier is stored before it is sent.
        state.reserved.insert(offset, packet_id);
        drop(state);
        self.journal.push(Action::Send(Box::new(SendAction {
            session: session.clone(),
            number,
            offset,
            packet_id,
            message: publish.message.clone(),
            delivery: publish.delivery.clone(),
            shared: None,
        })));
        true
    }

    /// Sends one message of the message log. Returns whether there may be room for another one.
    fn send_read(
        self: &Arc<Self>,
        session: &Arc<Session>,
        number: u64,
        offset: Offset,
        message: &Message,
        touched: &mut TouchedOutboxes,
    ) -> bool {
        let state = session.lock();
        let delivery = self.delivery_of(&state, session, message, offset);
        drop(state);
        let publish = delivery
            .as_ref()
            .and_then(|delivery| OutgoingPublish::new(message, delivery, (self.wall)()));
        let is_done = publish.is_none_or(|publish| self.send_one(session, number, offset, &publish, touched));
        let mut state = session.lock();
        if state.connection(number).is_some() {
            state.stored.advance(if is_done { offset + 1 } else { offset });
        }
        is_done
    }

    /// How a session gets a message of the log by the subscriptions that it has now. `None`: by none of them.
    fn delivery_of(
        &self,
        state: &crate::session::SessionState,
        session: &Session,
        message: &Message,
        offset: Offset,
    ) -> Option<RoutedDelivery> {
        let is_own = &*session.client_id == message.publisher();
        self.routing
            .read(|inner| {
                let mut matched = Vec::new();
                inner.router.filters().matches(message.topic(), &mut matched);
                let subscriptions = matched.into_iter().filter_map(|filter| {
                    let subscription = inner.router.subscription(session.id, filter)?;
                    let since = state
                        .stored
                        .subscriptions
                        .get(inner.router.filters().text(filter))?
                        .since;
                    let is_for_it = since <= offset && !(is_own && subscription.options.no_local);
                    is_for_it.then_some(*subscription)
                });
                joined(subscriptions)
            })
            .filter(|delivery| delivery.qos != QoS::AtMostOnce)
    }

    /// The messages at these offsets, which ascend, as far as the log has them.
    pub(super) fn read_messages(
        &self,
        id: PartitionId,
        offsets: &[Offset],
    ) -> Result<Vec<(Offset, Message)>, LogError> {
        let mut messages = Vec::with_capacity(offsets.len());
        let mut rest = offsets;
        while let Some(first) = rest.first() {
            let first = (*first).max(self.log.bounds(id)?.first);
            let want = ReadOptions {
                bytes: READ_BYTES,
                synced: false,
            };
            let frames = self.log.read(id, first, want)?;
            let Some(end) = frames.last().map(|frame| frame.header.next()) else {
                break;
            };
            for frame in &frames {
                each_record(frame, |record| {
                    while rest.first().is_some_and(|offset| *offset < record.offset) {
                        rest = rest.get(1..).unwrap_or_default();
                    }
                    if rest.first() == Some(&record.offset) {
                        rest = rest.get(1..).unwrap_or_default();
                        messages.extend(Message::decode(record.value).map(|message| (record.offset, message)));
                    }
                });
            }
            while rest.first().is_some_and(|offset| *offset < end) {
                rest = rest.get(1..).unwrap_or_default();
            }
        }
        Ok(messages)
    }
}
