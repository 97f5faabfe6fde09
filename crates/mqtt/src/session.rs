//! A session while the broker runs: what is stored of it, the connection that serves it, and how it gets messages.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use thalweg_kit::time::Micros;
use thalweg_mqtt_store::session::NOT_STORED;
use thalweg_mqtt_store::{FilterId, Message, Offset, RoutedDelivery, SessionId, StoredSession, Subscription};
use thalweg_mqtt_wire::encode::PublishHead;
use thalweg_mqtt_wire::{ProtocolVersion, QoS};

use crate::access::{ClientAccess, FilterAccess};
use crate::outbox::{Outbox, TouchedOutboxes};
use crate::shared::{self, SharedSubscription};

/// A session. Its number is its own while it exists.
pub(crate) struct Session {
    pub id: SessionId,
    pub client_id: Box<str>,
    state: Mutex<SessionState>,
}

/// What changes of a session.
pub(crate) struct SessionState {
    pub stored: StoredSession,
    /// It outlives its connection, so its changes are records.
    pub is_stored: bool,
    /// It ends with its connection, but has more waiting than memory takes: the log has its messages until it has caught up.
    pub is_spilled: bool,
    /// It will be spilled.
    asks_for_spill: bool,
    pub connection: Option<Attachment>,
    /// It reads its messages from the log, from `stored.next` on, until it has caught up.
    pub is_behind: bool,
    /// A task reads its messages.
    pub is_feeding: bool,
    /// What was in flight when it lost its connection must be sent again first.
    pub must_resend: bool,
    /// Identifiers of QoS 2 messages that are on their way into the log.
    pub reserved: HashMap<Offset, u16>,
    /// A message of QoS 2 got no identifier, and none of the later ones may overtake it.
    pub reserves_none: bool,
    /// Messages that wait for a session which ends with its connection.
    pub waiting: VecDeque<WaitingMessage>,
    waiting_bytes: usize,
    /// What the client has acknowledged is not stored yet.
    pub is_dirty: bool,
    pub has_ended: bool,
    /// The log has it: it is stored, or has a will.
    pub has_record: bool,
    /// Retained messages that it gets because it has subscribed.
    pub retained_reads: VecDeque<RetainedRead>,
    /// Messages of shared subscriptions in flight, by identifier.
    pub shared_inflight: HashMap<u16, SharedInflight>,
    /// The shared subscriptions that it is a member of, by text.
    pub groups: HashMap<Box<str>, Arc<SharedSubscription>>,
    /// How often it was taken over lately.
    pub takeovers: TakeoverCount,
    /// Messages that came while too many waited: from the first one up to the second one.
    pub skips: Option<(Offset, Offset)>,
    /// It may not read everything that its subscriptions match, so each message is checked.
    pub checks_reading: bool,
    /// The filters of its other subscriptions, by text.
    pub filters: HashMap<Box<str>, FilterId>,
}

/// The retained messages that match a subscription, and how far they are sent.
#[derive(Clone, Debug)]
pub(crate) struct RetainedRead {
    pub filter: Box<str>,
    pub subscription: Subscription,
    /// The topic to go on at.
    pub from: String,
}

impl RetainedRead {
    pub fn new(filter: &str, subscription: Subscription) -> RetainedRead {
        RetainedRead {
            filter: filter.into(),
            subscription,
            from: String::new(),
        }
    }
}

/// A message for a session that ends with its connection, which has no room for it now.
pub(crate) struct WaitingMessage {
    message: Message,
    delivery: RoutedDelivery,
}

/// Takeovers of a session within a while: clients that fight over an id.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TakeoverCount {
    since: Option<Instant>,
    count: u32,
}

/// From this takeover on within [`FIGHT_TIME`], the next client waits.
const FIGHT_TAKEOVERS: u32 = 4;
const FIGHT_TIME: Duration = Duration::from_secs(10);

impl TakeoverCount {
    pub fn add(&mut self, now: Instant) {
        match self.since.filter(|since| now.duration_since(*since) < FIGHT_TIME) {
            Some(_) => self.count += 1,
            None => (self.since, self.count) = (Some(now), 1),
        }
    }

    pub fn is_fight(&self, now: Instant) -> bool {
        let is_recent = self.since.is_some_and(|since| now.duration_since(since) < FIGHT_TIME);
        is_recent && self.count >= FIGHT_TAKEOVERS
    }
}

/// A message of a shared subscription that a member has not acknowledged.
pub(crate) struct SharedInflight {
    pub group: Arc<SharedSubscription>,
    /// If it is not in the log.
    pub body: Option<Message>,
}

/// The connection that serves a session.
#[derive(Clone)]
pub(crate) struct Attachment {
    /// Distinguishes the connections of a session.
    pub number: u64,
    pub outbox: Arc<Outbox>,
    pub version: ProtocolVersion,
    /// Messages of QoS 1 and 2 that may be unacknowledged.
    pub inflight_max: usize,
    /// Bytes of the largest packet that the client takes.
    pub packet_max: usize,
    pub access: Arc<ClientAccess>,
}

/// What became of a message for one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryOutcome {
    Sent,
    /// It waits in memory, or is read from the log later.
    Waits,
    /// It waits in memory, and later ones must wait in the log.
    MustSpill,
    /// The session has no connection, or has the message already.
    NotNow,
    Dropped(DropReason),
}

/// Messages that come before the log has the rest may take this many times the memory of a session.
const OVER_QUEUE: usize = 4;

/// Why a message does not reach a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// QoS 0, and the client does not read fast enough.
    SlowQos0,
    /// Too many messages wait for the session.
    SessionFull,
    /// Too many bytes wait for all sessions.
    StoreFull,
    Expired,
    /// Larger than the Maximum Packet Size of the client.
    TooLarge,
    /// The client may not read it.
    Acl,
}

impl DropReason {
    /// All reasons with their names in metrics.
    pub const ALL: [(DropReason, &str); 6] = [
        (DropReason::SlowQos0, "slow_qos0"),
        (DropReason::SessionFull, "session_full"),
        (DropReason::StoreFull, "store_full"),
        (DropReason::Expired, "expired"),
        (DropReason::TooLarge, "too_large"),
        (DropReason::Acl, "acl"),
    ];
}

impl Session {
    pub fn new(id: SessionId, client_id: &str, stored: StoredSession, is_stored: bool, has_record: bool) -> Session {
        Session {
            id,
            client_id: client_id.into(),
            state: Mutex::new(SessionState {
                is_behind: false,
                stored,
                is_stored,
                is_spilled: false,
                asks_for_spill: false,
                connection: None,
                is_feeding: false,
                must_resend: false,
                reserved: HashMap::new(),
                reserves_none: false,
                waiting: VecDeque::new(),
                waiting_bytes: 0,
                is_dirty: false,
                has_ended: false,
                has_record,
                retained_reads: VecDeque::new(),
                takeovers: TakeoverCount::default(),
                skips: None,
                checks_reading: false,
                shared_inflight: HashMap::new(),
                groups: HashMap::new(),
                filters: HashMap::new(),
            }),
        }
    }

    /// A session that the log has. It reads what came while it was away.
    pub fn restored(id: SessionId, client_id: &str, stored: StoredSession) -> Session {
        // Without an expiry it has ended, and only its will is left.
        let is_stored = stored.expiry > 0;
        let session = Session::new(id, client_id, stored, is_stored, true);
        let mut state = session.lock();
        state.is_behind = is_stored;
        state.must_resend = true;
        drop(state);
        session
    }

    pub fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock()
    }
}

/// A message with what differs from receiver to receiver.
#[derive(Clone, Copy)]
pub(crate) struct OutgoingPublish<'a> {
    pub message: &'a Message,
    pub delivery: &'a RoutedDelivery,
    /// Retained messages that a subscription finds have the flag always.
    pub retain: bool,
    pub expiry: Option<u32>,
}

impl<'a> OutgoingPublish<'a> {
    /// `None`: it has expired.
    pub fn new(message: &'a Message, delivery: &'a RoutedDelivery, now: Micros) -> Option<OutgoingPublish<'a>> {
        let expiry = message.remaining_expiry(now).ok()?;
        Some(OutgoingPublish {
            message,
            delivery,
            retain: message.retain() && delivery.retain_as_published,
            expiry,
        })
    }

    pub fn qos(&self) -> QoS {
        self.message.qos().min(self.delivery.qos)
    }

    fn head(&self, packet_id: u16, dup: bool) -> PublishHead<'_> {
        PublishHead {
            qos: self.qos(),
            dup,
            retain: self.retain,
            packet_id,
            topic: self.message.topic(),
            topic_alias: 0,
            expiry: self.expiry,
            forwarded: self.message.properties(),
            subscription_ids: &self.delivery.ids,
        }
    }

    pub fn fits(&self, connection: &Attachment) -> bool {
        let head = self.head(1, false);
        head.packet_len(connection.version, self.message.payload().len()) <= connection.packet_max
    }

    pub fn write(&self, out: &mut Vec<u8>, version: ProtocolVersion, packet_id: u16, dup: bool) {
        let payload = self.message.payload();
        self.head(packet_id, dup).write(out, version, payload.len());
        out.extend_from_slice(payload);
    }
}

impl SessionState {
    /// The connection with this number, if it still serves the session.
    pub fn connection(&self, number: u64) -> Option<&Attachment> {
        self.connection
            .as_ref()
            .filter(|connection| connection.number == number)
    }

    /// Whether the client may not get a message, although its subscription matches.
    pub fn is_denied(&self, topic: &str) -> bool {
        let access = || self.connection.as_ref().map(|connection| &connection.access);
        self.checks_reading && access().is_some_and(|access| !access.may_read(topic))
    }

    /// Subscriptions were made, or another client may have them now.
    pub fn look_at_access(&mut self) {
        let Some(connection) = &self.connection else { return };
        let filters = self.stored.subscriptions.keys();
        let mut filters = filters.map(|text| shared::parts(text).map_or(&**text, |(_, filter)| filter));
        self.checks_reading = filters.any(|filter| connection.access.filter(filter) != FilterAccess::Everything);
    }

    /// Whether its connection would be taken over once more within a short time.
    pub fn is_fought_over(&self, now: Instant) -> bool {
        self.connection.is_some() && self.takeovers.is_fight(now)
    }

    /// Whether a task must read messages for it.
    pub fn must_feed(&self) -> bool {
        match self.must_resend {
            true => self.connection.is_some() && self.is_behind,
            false => (self.is_behind || !self.retained_reads.is_empty() || !self.waiting.is_empty()) && self.has_room(),
        }
    }

    /// Whether one more message of QoS 1 or 2 may be sent.
    pub fn has_room(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|connection| {
            self.stored.outgoing.len() < connection.inflight_max && connection.outbox.has_room()
        })
    }

    /// Gives a message of QoS 2 an identifier before it is stored, so that both are stored together. `None`: it gets one later.
    pub fn reserve(&mut self, offset: Offset) -> Option<u16> {
        if self.is_behind || self.reserves_none || self.connection.is_none() {
            return None;
        }
        let packet_id = self
            .has_room()
            .then(|| self.stored.outgoing.send(offset, QoS::ExactlyOnce))
            .flatten();
        match packet_id {
            Some(packet_id) => {
                self.reserved.insert(offset, packet_id);
                self.stored.went_ahead(offset);
            }
            None => self.reserves_none = true,
        }
        packet_id
    }

    /// Takes back an identifier whose message was not stored.
    pub fn unreserve(&mut self, offset: Offset) {
        if let Some(packet_id) = self.reserved.remove(&offset) {
            self.stored.outgoing.give_up(packet_id);
            self.stored.ahead.remove(&offset);
        }
    }

    /// Sends a message, or sees to it that it is sent later. `offset`: it is in the log.
    pub fn deliver(
        &mut self,
        publish: &OutgoingPublish<'_>,
        offset: Option<Offset>,
        memory_queue: usize,
        touched: &mut TouchedOutboxes,
    ) -> DeliveryOutcome {
        let Some(connection) = self.connection.clone() else {
            return DeliveryOutcome::NotNow;
        };
        if self.is_denied(publish.message.topic()) {
            return DeliveryOutcome::Dropped(DropReason::Acl);
        }
        if publish.qos() == QoS::AtMostOnce {
            return self.send_at_most_once(publish, &connection, touched);
        }
        if let Some(offset) = offset {
            if let Some(packet_id) = self.reserved.remove(&offset) {
                return self.send_as(publish, packet_id, &connection, touched);
            }
            // A session that does not need the log takes what others have in it as any other message.
            if self.is_in_log() {
                if self.is_behind || offset < self.stored.next {
                    return DeliveryOutcome::NotNow;
                }
                let lacks_id = self.is_stored && publish.qos() == QoS::ExactlyOnce;
                if lacks_id || !self.has_room() || !self.waiting.is_empty() {
                    self.falls_behind(offset);
                    return DeliveryOutcome::Waits;
                }
            }
        }
        let kept_at = offset.filter(|_| self.is_stored).unwrap_or(NOT_STORED);
        if !publish.fits(&connection) {
            return DeliveryOutcome::Dropped(DropReason::TooLarge);
        }
        if kept_at == NOT_STORED && (!self.waiting.is_empty() || !self.has_room()) {
            return self.wait(publish, memory_queue);
        }
        match self.stored.outgoing.send(kept_at, publish.qos()) {
            Some(packet_id) => self.send_as(publish, packet_id, &connection, touched),
            None => self.wait(publish, memory_queue),
        }
    }

    fn falls_behind(&mut self, offset: Offset) {
        self.is_behind = true;
        self.stored.advance(offset);
    }

    fn send_at_most_once(
        &mut self,
        publish: &OutgoingPublish<'_>,
        connection: &Attachment,
        touched: &mut TouchedOutboxes,
    ) -> DeliveryOutcome {
        if !publish.fits(connection) {
            return DeliveryOutcome::Dropped(DropReason::TooLarge);
        }
        let write = |out: &mut Vec<u8>| publish.write(out, connection.version, 0, false);
        match touched.append_if_room(&connection.outbox, write) {
            true => {
                touched.sent(QoS::AtMostOnce);
                DeliveryOutcome::Sent
            }
            false => DeliveryOutcome::Dropped(DropReason::SlowQos0),
        }
    }

    /// Sends a message that has its identifier.
    pub fn send_as(
        &mut self,
        publish: &OutgoingPublish<'_>,
        packet_id: u16,
        connection: &Attachment,
        touched: &mut TouchedOutboxes,
    ) -> DeliveryOutcome {
        if !publish.fits(connection) {
            // It counts as delivered.
            self.stored.outgoing.give_up(packet_id);
            return DeliveryOutcome::Dropped(DropReason::TooLarge);
        }
        touched.append(&connection.outbox, |out| {
            publish.write(out, connection.version, packet_id, false)
        });
        touched.sent(publish.qos());
        DeliveryOutcome::Sent
    }

    /// Keeps a message in memory for a session that ends with its connection.
    fn wait(&mut self, publish: &OutgoingPublish<'_>, memory_queue: usize) -> DeliveryOutcome {
        let bytes = publish.message.bytes();
        if self.waiting_bytes + bytes > memory_queue * OVER_QUEUE {
            return DeliveryOutcome::Dropped(DropReason::SessionFull);
        }
        self.waiting_bytes += bytes;
        self.waiting.push_back(WaitingMessage {
            message: publish.message.clone(),
            delivery: publish.delivery.clone(),
        });
        let is_full = self.waiting_bytes > memory_queue && !self.is_spilled;
        match is_full && !std::mem::replace(&mut self.asks_for_spill, true) {
            true => DeliveryOutcome::MustSpill,
            false => DeliveryOutcome::Waits,
        }
    }

    /// Keeps a message of a shared subscription in memory, for which the member has no room. Returns whether it does.
    pub fn wait_shared(&mut self, publish: &OutgoingPublish<'_>, memory_queue: usize) -> bool {
        self.waiting_bytes < memory_queue && !matches!(self.wait(publish, memory_queue), DeliveryOutcome::Dropped(_))
    }

    /// A message has ended for the client. Returns what it was of a shared subscription.
    pub fn finished(&mut self, packet_id: u16) -> Option<SharedInflight> {
        if self.stored.shared.is_empty() {
            return None;
        }
        self.stored.shared.remove(&packet_id);
        self.shared_inflight.remove(&packet_id)
    }

    /// Takes all messages of shared subscriptions that are in flight.
    pub fn take_shared(&mut self, wanted: impl Fn(&SharedSubscription) -> bool) -> Vec<(SharedInflight, Offset, QoS)> {
        let mut taken = Vec::new();
        let inflight: Vec<_> = self.stored.outgoing.iter().filter(|sent| !sent.is_received).collect();
        for sent in inflight {
            if self
                .shared_inflight
                .get(&sent.packet_id)
                .is_some_and(|shared| wanted(&shared.group))
                && let Some(shared) = self.finished(sent.packet_id)
            {
                taken.push((shared, sent.offset, sent.qos));
            }
        }
        taken
    }

    /// From this message on the log has what the session gets.
    pub fn spill(&mut self, from: Offset) {
        self.asks_for_spill = false;
        self.is_spilled = true;
        self.is_behind = true;
        self.stored.next = from;
        self.stored.ahead.clear();
    }

    /// Whether the log has its messages.
    pub fn is_in_log(&self) -> bool {
        self.is_stored || self.is_spilled
    }

    /// Sends what waits in memory, as far as there is room. Calls `dropped` for each message that is not sent.
    pub fn send_waiting(&mut self, now: Micros, touched: &mut TouchedOutboxes, mut dropped: impl FnMut(DropReason)) {
        while let Some(connection) = self.connection.clone().filter(|_| self.has_room())
            && let Some(WaitingMessage { message, delivery }) = self.waiting.pop_front()
        {
            self.waiting_bytes -= message.bytes();
            let Some(publish) = OutgoingPublish::new(&message, &delivery, now) else {
                dropped(DropReason::Expired);
                continue;
            };
            let Some(packet_id) = self.stored.outgoing.send(NOT_STORED, publish.qos()) else {
                return;
            };
            if let DeliveryOutcome::Dropped(reason) = self.send_as(&publish, packet_id, &connection, touched) {
                dropped(reason);
            }
        }
    }

    /// The connection is gone. What only it had goes with it.
    pub fn detach(&mut self, applied: Offset) {
        self.connection = None;
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.retained_reads.clear();
        if self.is_stored && !self.is_behind {
            // From here on it reads what it is for.
            self.is_behind = true;
            self.stored.advance(applied);
        }
        self.must_resend = true;
        // What is on its way into the log is in flight, too, and is sent again.
        self.reserved.clear();
        self.stored.incoming.disconnected();
        // A session that is not stored ends, and what it has of shared subscriptions goes to others then.
        let unlogged = self
            .stored
            .outgoing
            .iter()
            .filter(|sent| self.is_stored && sent.offset == NOT_STORED);
        let lost: Vec<u16> = unlogged.map(|sent| sent.packet_id).collect();
        for packet_id in lost {
            self.stored.outgoing.give_up(packet_id);
            self.finished(packet_id);
        }
    }
}
