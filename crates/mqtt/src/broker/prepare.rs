//! Makes the records of a batch of actions. What they depend on is the state before the batch, for which all batches before it are
//! applied; an action that depends on one of the same batch waits for the next.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{LogStatus, Records, SUBMISSION_RECORDS_MAX, WriteBatch};
use thalweg_mqtt_store::session::GroupProgress;
use thalweg_mqtt_store::{Message, MessageParts, Offset, SessionChange, SessionId, StoredSubscription, StoredWill};
use thalweg_mqtt_wire::{QoS, ReasonCode};

use super::Broker;
use crate::action::{
    Action, ActionSource, CheckpointAction, ConnectAction, DisconnectAction, ProgressAction, PublishAction,
    SubscribeAction,
};
use crate::partitions::{MESSAGES, RETAINED, SESSIONS};
use crate::routing::TopicRoute;
use crate::session::{Session, SessionState};
use crate::shared::{self, SharedSubscription};

/// The most sessions whose identifiers are stored together with a message. The others get theirs in later submissions.
const RESERVED_MAX: usize = 5000;

type SharedGroups = Mutex<HashMap<Box<str>, Arc<SharedSubscription>>>;

/// Actions with their records.
pub(crate) struct PreparedBatch {
    pub actions: Vec<PreparedAction>,
    messages: Records,
    sessions: Records,
    retained: Records,
    /// The offset of the first message, and of the first retained one.
    base: Offset,
    retained_base: Offset,
    time: i64,
    /// The disk is full: only what helps to free space is stored. The log would take messages that come with such changes.
    is_full: bool,
    value: Vec<u8>,
    /// Sessions that begin or end in this batch.
    structural: HashSet<Box<str>>,
    /// Where subscriptions of this batch begin, by client id and filter.
    subscribed: HashMap<(Box<str>, Box<str>), Offset>,
    /// Shared subscriptions that begin in this batch.
    begun_groups: HashSet<Box<str>>,
}

pub(crate) struct PreparedAction {
    pub action: Action,
    pub outcome: PreparedOutcome,
}

/// What the records say.
#[derive(Debug)]
pub(crate) enum PreparedOutcome {
    /// There is nothing to store, or it says all.
    Plain,
    Message(PreparedMessage),
    /// The message, the connection or the subscriptions are not taken, for this reason.
    Refused(ReasonCode),
    /// The client gets a new session, or resumes the one that it has. The will is that of a connection that is taken over.
    Connect {
        resumes: bool,
        will: Option<PreparedMessage>,
    },
    /// The session ends with its connection, or the client may come back.
    Disconnect {
        ends: bool,
        expiry: u32,
        will: Option<PreparedMessage>,
    },
    /// Where each new subscription begins.
    Subscribe(Vec<Offset>),
    /// The connection is not the session's any more.
    Void,
}

/// A message that takes effect with its batch.
#[derive(Debug)]
pub(crate) struct PreparedMessage {
    pub message: Message,
    /// In the message log, if sessions wait for it.
    pub offset: Option<Offset>,
    /// In the retained partition, if it changes what is retained.
    pub retained: Option<Offset>,
}

impl PreparedBatch {
    fn new(base: Offset, retained_base: Offset, time: i64, is_full: bool) -> PreparedBatch {
        PreparedBatch {
            actions: Vec::new(),
            messages: Records::new(),
            sessions: Records::new(),
            retained: Records::new(),
            base,
            retained_base,
            time,
            is_full,
            value: Vec::new(),
            structural: HashSet::new(),
            subscribed: HashMap::new(),
            begun_groups: HashSet::new(),
        }
    }

    /// The records as one submission. `None`: nothing is stored.
    pub fn unit(&mut self) -> Option<WriteBatch> {
        let mut unit = WriteBatch::default();
        let mut is_empty = true;
        for (id, records, base) in [
            (MESSAGES, &mut self.messages, self.base),
            (RETAINED, &mut self.retained, self.retained_base),
        ] {
            if !records.is_empty() {
                unit = unit.and(id, std::mem::take(records).expecting(base));
                is_empty = false;
            }
        }
        if !self.sessions.is_empty() {
            unit = unit.and_of(FrameKind::State, SESSIONS, std::mem::take(&mut self.sessions));
            is_empty = false;
        }
        (!is_empty).then_some(unit)
    }

    fn next_offset(&self) -> Offset {
        self.base + self.messages.len() as Offset
    }

    fn change(&mut self, client_id: &str, change: &SessionChange) {
        self.value.clear();
        change.encode(&mut self.value);
        let record = RecordRef {
            key: Some(client_id.as_bytes()),
            ..RecordRef::of(self.time, &self.value)
        };
        if let Err(error) = self.sessions.push(&record) {
            // Client ids and filters are shorter than any limit of records.
            tracing::error!("a change of the session {client_id:?} is not stored: {error}");
        }
    }

    fn group(&mut self, text: &str, progress: &GroupProgress) {
        self.value.clear();
        progress.encode(&mut self.value);
        let key = GroupProgress::key(text);
        let record = RecordRef {
            key: Some(&key),
            ..RecordRef::of(self.time, &self.value)
        };
        if let Err(error) = self.sessions.push(&record) {
            tracing::error!("how far the shared subscription {text:?} is is not stored: {error}");
        }
    }

    /// Whether one more action may need more records than a submission has.
    fn has_no_room(&self) -> bool {
        let records = self.sessions.len() + self.messages.len() + self.retained.len();
        records + RESERVED_MAX > SUBMISSION_RECORDS_MAX
    }

    /// Whether an action depends on one of this batch.
    fn must_end_before(&self, action: &Action) -> bool {
        let client_id = match action {
            Action::Connect(connect) => &connect.client_id,
            Action::Disconnect(disconnect) => &disconnect.source.session.client_id,
            Action::Send(send) => &send.session.client_id,
            Action::Expire(session) | Action::SendWill(session) => &session.client_id,
            // It says how its sessions are before the batch.
            Action::Checkpoint(_) => return !self.actions.is_empty(),
            _ => return false,
        };
        self.structural.contains(client_id)
    }

    /// Whether a connection still has its session when this batch is applied.
    fn is_live(&self, source: &ActionSource) -> bool {
        !self.structural.contains(&source.session.client_id)
            && source.session.lock().connection(source.number).is_some()
    }

    /// Stores the state of a packet identifier, if the session outlives its connection.
    fn identifier(&mut self, source: &ActionSource, change: &SessionChange) -> PreparedOutcome {
        if !self.is_live(source) {
            return PreparedOutcome::Void;
        }
        if source.session.lock().is_stored {
            self.change(&source.session.client_id, change);
        }
        PreparedOutcome::Plain
    }

    /// A group that has no stored member yet begins here.
    fn begin_group(&mut self, text: &str, groups: &SharedGroups, next: Offset) {
        let known = groups.lock().get(text).cloned();
        let is_stored = known.is_some_and(|group| group.lock().is_stored());
        if !is_stored && self.begun_groups.insert(text.into()) {
            let progress = GroupProgress {
                next,
                ..GroupProgress::default()
            };
            self.group(text, &progress);
        }
    }

    fn subscribe(&mut self, subscribe: &SubscribeAction, groups: &SharedGroups) -> PreparedOutcome {
        if !self.is_live(&subscribe.source) {
            return PreparedOutcome::Void;
        }
        let session = &subscribe.source.session;
        let next = self.next_offset();
        let mut begins = Vec::with_capacity(subscribe.filters.len());
        let mut stored = Vec::new();
        let state = session.lock();
        for filter in &subscribe.filters {
            let Ok((filter, subscription)) = filter else {
                begins.push(next);
                continue;
            };
            // A subscription that is replaced goes on where it was [MQTT-3.8.4-3].
            let existing = state.stored.subscriptions.get(filter).map(|existing| existing.since);
            let key = (session.client_id.clone(), filter.clone());
            let since = *self.subscribed.entry(key).or_insert(existing.unwrap_or(next));
            begins.push(since);
            stored.push((
                filter.clone(),
                StoredSubscription {
                    subscription: *subscription,
                    since,
                },
            ));
        }
        let is_stored = state.is_stored;
        drop(state);
        if is_stored && self.is_full {
            return PreparedOutcome::Refused(ReasonCode::QuotaExceeded);
        }
        if is_stored && !stored.is_empty() {
            for (filter, _) in stored.iter().filter(|(filter, _)| filter.starts_with(shared::PREFIX)) {
                self.begin_group(filter, groups, next);
            }
            self.change(&session.client_id, &SessionChange::Subscribed(stored));
        }
        PreparedOutcome::Subscribe(begins)
    }
}

impl Broker {
    /// Makes the records of as many actions as can be stored together. The others go back to the journal.
    pub(super) fn prepare(&self, actions: Vec<Action>) -> PreparedBatch {
        let retained = self.log.bounds(RETAINED).map_or(0, |bounds| bounds.next);
        let is_full = matches!(self.log.status(), LogStatus::DiskFull(_));
        let mut batch = PreparedBatch::new(self.next_message(), retained, self.log.clock().now(), is_full);
        let mut actions = actions.into_iter();
        while let Some(action) = actions.next() {
            if batch.has_no_room() || batch.must_end_before(&action) {
                let mut rest = vec![action];
                rest.extend(actions);
                self.journal.put_back(rest);
                break;
            }
            let outcome = self.prepare_action(&mut batch, &action);
            batch.actions.push(PreparedAction { action, outcome });
        }
        batch
    }

    fn prepare_action(&self, batch: &mut PreparedBatch, action: &Action) -> PreparedOutcome {
        match action {
            Action::Publish(publish) => self.prepare_publish(batch, publish),
            Action::Connect(connect) => self.prepare_connect(batch, connect),
            Action::Disconnect(disconnect) => self.prepare_disconnect(batch, disconnect),
            Action::Subscribe(subscribe) => batch.subscribe(subscribe, &self.shared),
            Action::Unsubscribe(unsubscribe) => {
                if !batch.is_live(&unsubscribe.source) {
                    return PreparedOutcome::Void;
                }
                let session = &unsubscribe.source.session;
                if session.lock().is_stored {
                    for filter in &unsubscribe.filters {
                        batch.subscribed.remove(&(session.client_id.clone(), filter.clone()));
                        batch.change(
                            &session.client_id,
                            &SessionChange::Unsubscribed { filter: filter.clone() },
                        );
                    }
                }
                PreparedOutcome::Plain
            }
            Action::Received { source, packet_id } => {
                batch.identifier(source, &SessionChange::Received { packet_id: *packet_id })
            }
            Action::Released { source, packet_id, .. } => {
                batch.identifier(source, &SessionChange::Released { packet_id: *packet_id })
            }
            Action::Send(send) => {
                let (offset, packet_id) = (send.offset, send.packet_id);
                let change = match send.shared.clone() {
                    None => SessionChange::Sending { offset, packet_id },
                    Some(filter) => SessionChange::SendingShared {
                        offset,
                        packet_id,
                        filter,
                    },
                };
                batch.change(&send.session.client_id, &change);
                PreparedOutcome::Plain
            }
            Action::Progress(ProgressAction { sessions, groups }) => {
                sessions
                    .iter()
                    .for_each(|session| self.prepare_progress(batch, session));
                groups.iter().for_each(|group| self.prepare_group(batch, group, true));
                PreparedOutcome::Plain
            }
            Action::Spill(_) | Action::Unspill(_) => PreparedOutcome::Plain,
            Action::SendWill(session) => self.prepare_will(batch, session),
            Action::Expire(session) => self.prepare_expiry(batch, session),
            Action::Checkpoint(checkpoint) => {
                self.prepare_checkpoint(batch, checkpoint);
                PreparedOutcome::Plain
            }
        }
    }

    fn prepare_publish(&self, batch: &mut PreparedBatch, publish: &PublishAction) -> PreparedOutcome {
        let PublishAction {
            source,
            message,
            packet_id,
            qos,
        } = publish;
        // What a connection sent that was taken over meanwhile has no effect: its client sends it again.
        if !batch.is_live(source) {
            return PreparedOutcome::Void;
        }
        let outcome = match self.prepare_message(batch, message, Some(source.session.id)) {
            Ok(message) => PreparedOutcome::Message(message),
            Err(code) => return PreparedOutcome::Refused(code),
        };
        if *qos == QoS::ExactlyOnce && source.session.lock().is_stored {
            batch.change(&source.session.client_id, &SessionChange::Incoming(vec![*packet_id]));
        }
        outcome
    }

    /// Makes the records of a message that somebody publishes.
    fn prepare_message(
        &self,
        batch: &mut PreparedBatch,
        message: &Message,
        publisher: Option<SessionId>,
    ) -> Result<PreparedMessage, ReasonCode> {
        let retained = match message.retain() {
            true => self.prepare_retained(batch, message)?,
            false => None,
        };
        let route = self.routing.route(message.topic());
        let mut offset = None;
        if message.qos() != QoS::AtMostOnce && !route.stored.is_empty() {
            if batch.is_full {
                return Err(ReasonCode::QuotaExceeded);
            }
            let next = batch.next_offset();
            if let Err(error) = batch.messages.push(&RecordRef::of(batch.time, message.record())) {
                tracing::error!("a message of {} bytes is not stored: {error}", message.record().len());
                return Err(ReasonCode::ImplementationSpecificError);
            }
            if message.qos() == QoS::ExactlyOnce {
                reserve(batch, &route, publisher, next);
            }
            offset = Some(next);
        }
        Ok(PreparedMessage {
            message: message.clone(),
            offset,
            retained,
        })
    }

    /// Makes the record that sets or removes the retained message of a topic.
    fn prepare_retained(&self, batch: &mut PreparedBatch, message: &Message) -> Result<Option<Offset>, ReasonCode> {
        let (messages, bytes) = self.retained.size();
        let is_removed = message.payload().is_empty();
        let is_known = self.retained.has(message.topic());
        if is_removed && !is_known && batch.retained.is_empty() {
            return Ok(None);
        }
        let adds = batch.retained.len() + 1;
        let is_over = (!is_known && messages + adds > self.settings.retained_messages)
            || bytes + (batch.retained.bytes() + message.record().len()) as u64 > self.settings.retained_bytes;
        // A removal is always possible.
        if (is_over || batch.is_full) && !is_removed {
            return Err(ReasonCode::QuotaExceeded);
        }
        let value: &[u8] = if is_removed { &[] } else { message.record() };
        let record = RecordRef {
            key: Some(message.topic().as_bytes()),
            ..RecordRef::of(batch.time, value)
        };
        let offset = batch.retained_base + batch.retained.len() as Offset;
        match batch.retained.push(&record) {
            Ok(()) => Ok(Some(offset)),
            Err(error) => {
                tracing::error!("a retained message of {} bytes is not stored: {error}", value.len());
                Err(ReasonCode::ImplementationSpecificError)
            }
        }
    }

    fn prepare_connect(&self, batch: &mut PreparedBatch, connect: &ConnectAction) -> PreparedOutcome {
        let client_id = &connect.client_id;
        let existing = self.sessions.lock().get(client_id).cloned();
        let state = existing.as_ref().map(|session| session.lock());
        // A session belongs to the user that made it.
        let is_bound = self.settings.client_id_binding && self.logins.has_logins();
        if is_bound && state.as_ref().is_some_and(|state| state.stored.user != connect.user) {
            return PreparedOutcome::Refused(ReasonCode::NotAuthorized);
        }
        let (was_stored, has_record) = state
            .as_ref()
            .map_or((false, false), |state| (state.is_stored, state.has_record));
        let resumes = was_stored && !connect.clean_start;
        if batch.is_full && !resumes && connect.expiry > 0 {
            return PreparedOutcome::Refused(ReasonCode::QuotaExceeded);
        }
        let will = state.as_ref().and_then(|state| {
            let will = state.stored.will.as_ref()?;
            let is_sent = match state.connection.is_some() {
                // The connection that is taken over ends.
                true => !resumes || will.delay == 0 || state.stored.expiry == 0,
                // A session that has lost its connection ends, unless it ended with it and the broker was away meanwhile.
                false => !resumes && was_stored,
            };
            is_sent.then(|| will_message(will, (self.wall)()))?
        });
        drop(state);
        batch.structural.insert(client_id.clone());
        let will = will.and_then(|message| self.prepare_message(batch, &message, None).ok());
        if resumes {
            batch.change(client_id, &SessionChange::Connected { expiry: connect.expiry });
            batch.change(client_id, &SessionChange::Will(connect.will.clone()));
        } else if connect.expiry > 0 || connect.will.is_some() {
            let created = SessionChange::Created {
                user: connect.user.clone(),
                expiry: connect.expiry,
                next: batch.next_offset(),
            };
            batch.change(client_id, &created);
            if connect.will.is_some() {
                batch.change(client_id, &SessionChange::Will(connect.will.clone()));
            }
        } else if has_record {
            batch.change(client_id, &SessionChange::Removed);
        }
        PreparedOutcome::Connect { resumes, will }
    }

    fn prepare_disconnect(&self, batch: &mut PreparedBatch, disconnect: &DisconnectAction) -> PreparedOutcome {
        let source = &disconnect.source;
        let client_id = &source.session.client_id;
        let mut state = source.session.lock();
        if state.connection(source.number).is_none() {
            return PreparedOutcome::Void;
        }
        let now = (self.wall)();
        let expiry = disconnect.expiry.unwrap_or(state.stored.expiry);
        let (ends, has_record) = (expiry == 0 || !state.is_stored, state.has_record);
        if disconnect.discards_will {
            state.stored.will = None;
        }
        let will = state.stored.will.as_ref().filter(|will| ends || will.delay == 0);
        let will = will.and_then(|will| will_message(will, now));
        let keeps_will = will.is_none() && state.stored.will.is_some();
        // What the client has acknowledged need not wait: there is a record now.
        let progress = (!ends && std::mem::take(&mut state.is_dirty)).then(|| {
            self.advance_live(&mut state);
            state.stored.progress()
        });
        drop(state);
        batch.structural.insert(client_id.clone());
        let will = will.and_then(|message| self.prepare_message(batch, &message, None).ok());
        if has_record {
            match ends {
                true => batch.change(client_id, &SessionChange::Removed),
                false => {
                    if let Some(progress) = progress {
                        batch.change(client_id, &progress);
                    }
                    batch.change(client_id, &SessionChange::Disconnected { at: now, expiry });
                    if !keeps_will {
                        batch.change(client_id, &SessionChange::Will(None));
                    }
                }
            }
        }
        PreparedOutcome::Disconnect { ends, expiry, will }
    }

    /// The will of a session that has lost its connection is due.
    fn prepare_will(&self, batch: &mut PreparedBatch, session: &Arc<Session>) -> PreparedOutcome {
        let state = session.lock();
        let will = state
            .stored
            .will
            .as_ref()
            .filter(|_| state.connection.is_none() && !state.has_ended);
        let Some(message) = will.and_then(|will| will_message(will, (self.wall)())) else {
            return PreparedOutcome::Void;
        };
        drop(state);
        batch.structural.insert(session.client_id.clone());
        batch.change(&session.client_id, &SessionChange::Will(None));
        match self.prepare_message(batch, &message, None) {
            Ok(message) => PreparedOutcome::Message(message),
            Err(code) => PreparedOutcome::Refused(code),
        }
    }

    /// A session is over, and its will is due with it.
    fn prepare_expiry(&self, batch: &mut PreparedBatch, session: &Arc<Session>) -> PreparedOutcome {
        let state = session.lock();
        if state.connection.is_some() || state.has_ended {
            return PreparedOutcome::Void;
        }
        let will = state
            .stored
            .will
            .as_ref()
            .and_then(|will| will_message(will, (self.wall)()));
        drop(state);
        batch.structural.insert(session.client_id.clone());
        batch.change(&session.client_id, &SessionChange::Removed);
        let will = will.and_then(|message| self.prepare_message(batch, &message, None).ok());
        PreparedOutcome::Disconnect {
            ends: true,
            expiry: 0,
            will,
        }
    }

    fn prepare_progress(&self, batch: &mut PreparedBatch, session: &Arc<Session>) {
        let mut state = session.lock();
        if !std::mem::take(&mut state.is_dirty) || !state.is_stored || state.has_ended {
            return;
        }
        self.advance_live(&mut state);
        let progress = state.stored.progress();
        drop(state);
        if !batch.structural.contains(&session.client_id) {
            batch.change(&session.client_id, &progress);
        }
    }

    /// Stores how far a group is. `if_dirty`: only if somebody has acknowledged something since the last time.
    fn prepare_group(&self, batch: &mut PreparedBatch, group: &SharedSubscription, if_dirty: bool) {
        let mut state = group.lock();
        let is_dirty = std::mem::take(&mut state.is_dirty);
        if state.is_stored() && (is_dirty || !if_dirty) {
            let progress = state.recorded(self.lists.applied());
            drop(state);
            batch.group(&group.text, &progress);
        }
    }

    /// Who gets messages as they come has all of them so far.
    fn advance_live(&self, state: &mut SessionState) {
        if !state.is_behind && state.connection.is_some() {
            state.stored.advance(self.lists.applied());
        }
    }

    fn prepare_checkpoint(&self, batch: &mut PreparedBatch, checkpoint: &CheckpointAction) {
        self.checkpoint_begins(checkpoint);
        if checkpoint.is_first {
            self.push_checkpoint();
            let groups: Vec<_> = self.shared.lock().values().cloned().collect();
            groups.iter().for_each(|group| self.prepare_group(batch, group, false));
        }
        for session in &checkpoint.sessions {
            let mut state = session.lock();
            if !state.has_record || state.has_ended {
                continue;
            }
            self.advance_live(&mut state);
            let snapshot = state.stored.snapshot();
            drop(state);
            snapshot
                .iter()
                .for_each(|change| batch.change(&session.client_id, change));
        }
    }
}

/// Gives a message of QoS 2 its identifiers, which are stored together with it, for each stored session that is there.
fn reserve(batch: &mut PreparedBatch, route: &TopicRoute, publisher: Option<SessionId>, offset: Offset) {
    let mut reserved = 0;
    for (session, receiver) in &route.receivers {
        let delivery = receiver.of(publisher);
        if delivery.is_none_or(|delivery| delivery.qos != QoS::ExactlyOnce)
            || batch.structural.contains(&session.client_id)
        {
            continue;
        }
        let mut state = session.lock();
        if !state.is_stored {
            continue;
        }
        if reserved >= RESERVED_MAX {
            // It reads the message from the log.
            state.reserves_none = true;
            continue;
        }
        reserved += 1;
        let packet_id = state.reserve(offset);
        drop(state);
        if let Some(packet_id) = packet_id {
            batch.change(&session.client_id, &SessionChange::Sending { offset, packet_id });
        }
    }
}

/// The message of a will that is sent now. `None`: it was damaged.
fn will_message(will: &StoredWill, now: i64) -> Option<Message> {
    let message = Message::decode(will.message.clone().into())?;
    let Some(expiry) = will.expiry else {
        return Some(message);
    };
    Some(Message::new(&MessageParts {
        topic: message.topic(),
        qos: message.qos(),
        retain: message.retain(),
        publisher: message.publisher(),
        expires: Some(now + i64::from(expiry) * 1_000_000),
        properties: message.properties(),
        payload: message.payload(),
    }))
}
