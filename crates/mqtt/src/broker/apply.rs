//! What a batch of actions does once it is stored, or when it cannot be.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

use thalweg_kit::clock;
use thalweg_kit::time::Micros;
use thalweg_log::LogError;
use thalweg_mqtt_store::routes::SessionKind;
use thalweg_mqtt_store::{Offset, SessionId, StoredSession, StoredSubscription, session};
use thalweg_mqtt_wire::subscribe::RetainHandling;
use thalweg_mqtt_wire::{PacketKind, ProtocolVersion, QoS, ReasonCode, encode};

use super::prepare::{PreparedAction, PreparedBatch, PreparedMessage, PreparedOutcome};
use super::{Broker, code_of};
use crate::action::{
    ACTION_BYTES, Action, ActionSource, ConnectAction, ProgressAction, PublishAction, SendAction, SubscribeAction,
    UnsubscribeAction,
};
use crate::outbox::{ConnectionEnd, TouchedOutboxes};
use crate::session::{OutgoingPublish, RetainedRead, Session, SharedInflight};
use crate::shared;
use crate::timers::TimerKind;

impl Broker {
    /// Lets a stored batch take effect, in order.
    pub(super) fn apply(self: &Arc<Self>, batch: PreparedBatch, touched: &mut TouchedOutboxes) {
        for PreparedAction { action, outcome } in batch.actions {
            self.apply_action(action, outcome, touched);
        }
    }

    fn apply_action(self: &Arc<Self>, action: Action, outcome: PreparedOutcome, touched: &mut TouchedOutboxes) {
        match (action, outcome) {
            (Action::Publish(publish), PreparedOutcome::Message(prepared)) => {
                let code = self.apply_message(&prepared, Some(publish.source.session.id), touched);
                self.answer_publish(&publish, code, touched);
            }
            (Action::Publish(publish), PreparedOutcome::Void) => {
                publish.source.pending.remove(publish.qos, publish.message.bytes());
            }
            (Action::Publish(publish), PreparedOutcome::Refused(code)) => self.answer_publish(&publish, code, touched),
            (Action::Connect(connect), PreparedOutcome::Refused(code)) => {
                let _ = connect.reply.send(Err(code));
            }
            (Action::Connect(connect), PreparedOutcome::Connect { resumes, will }) => {
                self.apply_connect(*connect, resumes, will.as_ref(), touched);
            }
            (Action::Disconnect(disconnect), PreparedOutcome::Disconnect { ends, expiry, will }) => {
                self.apply_disconnect(&disconnect.source.session, ends, expiry, will.as_ref(), touched);
            }
            (Action::Expire(session), PreparedOutcome::Disconnect { ends, expiry, will }) => {
                self.apply_disconnect(&session, ends, expiry, will.as_ref(), touched);
            }
            (Action::SendWill(session), PreparedOutcome::Message(prepared)) => {
                session.lock().stored.will = None;
                self.send_will(&prepared, touched);
            }
            (Action::Subscribe(subscribe), PreparedOutcome::Refused(code)) => {
                refuse_subscriptions(&subscribe, code, touched)
            }
            (Action::Subscribe(subscribe), PreparedOutcome::Subscribe(begins)) => {
                self.apply_subscribe(&subscribe, &begins, touched);
            }
            (Action::Unsubscribe(unsubscribe), PreparedOutcome::Plain) => self.apply_unsubscribe(&unsubscribe, touched),
            (Action::Received { source, packet_id }, PreparedOutcome::Plain) => {
                answer(&source, PacketKind::PubRel, packet_id, ReasonCode::Success, touched);
            }
            (
                Action::Released {
                    source,
                    packet_id,
                    code,
                },
                PreparedOutcome::Plain,
            ) => {
                answer(&source, PacketKind::PubComp, packet_id, code, touched);
            }
            (Action::Send(send), _) => self.apply_send(&send, touched),
            (Action::Checkpoint(checkpoint), _) => self.checkpoint_ends(&checkpoint, true),
            (Action::Spill(session), _) => self.apply_spill(&session, touched),
            (Action::Unspill(session), _) => self.apply_unspill(&session),
            // The connection has lost its session meanwhile.
            (
                Action::Received { source, .. }
                | Action::Released { source, .. }
                | Action::Subscribe(SubscribeAction { source, .. })
                | Action::Unsubscribe(UnsubscribeAction { source, .. })
                | Action::Publish(PublishAction { source, .. }),
                _,
            ) => source.pending.remove(QoS::AtLeastOnce, ACTION_BYTES),
            (
                Action::Connect(_)
                | Action::Disconnect(_)
                | Action::Progress(_)
                | Action::SendWill(_)
                | Action::Expire(_),
                _,
            ) => {}
        }
    }

    /// Lets a message take effect: it is retained, listed for who is away, and sent to who is there. Returns the code for its
    /// publisher.
    fn apply_message(
        self: &Arc<Self>,
        prepared: &PreparedMessage,
        publisher: Option<SessionId>,
        touched: &mut TouchedOutboxes,
    ) -> ReasonCode {
        let PreparedMessage {
            message,
            offset,
            retained,
        } = prepared;
        if let Some(retained) = *retained {
            match message.payload().is_empty() {
                true => self.retained.remove(message.topic(), retained),
                false => self.retained.set(message, retained),
            }
        }
        let route = self.routing.route(message.topic());
        if let Some(offset) = offset {
            self.lists.push(&route.stored, *offset, message);
        }
        self.deliver(message, &route, publisher, *offset, touched);
        if let Some(offset) = offset {
            self.delivered.store(offset + 1, Release);
        }
        match route.is_empty() && retained.is_none() {
            true => ReasonCode::NoMatchingSubscribers,
            false => ReasonCode::Success,
        }
    }

    /// Answers a PUBLISH with PUBACK or PUBREC.
    fn answer_publish(&self, publish: &PublishAction, code: ReasonCode, touched: &mut TouchedOutboxes) {
        let PublishAction {
            source,
            packet_id,
            message,
            qos,
        } = publish;
        source.pending.remove(*qos, message.bytes());
        let mut state = source.session.lock();
        if state.connection(source.number).is_none() && *qos != QoS::ExactlyOnce {
            return;
        }
        let kind = match qos {
            QoS::AtMostOnce => return,
            QoS::AtLeastOnce => {
                state.stored.incoming.acked(*packet_id);
                PacketKind::PubAck
            }
            QoS::ExactlyOnce => {
                state.stored.incoming.received(*packet_id, code.is_failure());
                PacketKind::PubRec
            }
        };
        if code.is_failure() && !source.version.is_5() {
            // 3.1.1 has no code: it is not acknowledged.
            let sentence = format!("the message cannot be stored: {}", code.name());
            drop(state);
            return source.outbox.end(ConnectionEnd::Code(code, sentence));
        }
        drop(state);
        touched.append(&source.outbox, |out| {
            encode::ack(out, source.version, kind, *packet_id, code, &[])
        });
    }

    fn apply_connect(
        self: &Arc<Self>,
        connect: ConnectAction,
        resumes: bool,
        will: Option<&PreparedMessage>,
        touched: &mut TouchedOutboxes,
    ) {
        let existing = self.sessions.lock().get(&connect.client_id).cloned();
        if let Some(session) = &existing {
            self.take_over(session);
        }
        let takeovers = existing.as_ref().map(|session| session.lock().takeovers);
        let session = match existing.filter(|_| resumes) {
            Some(session) => session,
            None => {
                self.end_session(&connect.client_id, touched);
                self.new_session(&connect)
            }
        };
        if let Some(will) = will {
            self.send_will(will, touched);
        }
        self.timers.cancel(session.id);
        let connection = &connect.connection;
        // Before anybody can send it a message.
        touched.append(&connection.outbox, |out| match connection.version.is_5() {
            true => encode::connack(out, resumes, ReasonCode::Success, &connect.answer),
            // Session Present is of 3.1.1.
            false => encode::connack_v3(out, resumes && connection.version == ProtocolVersion::V3_1_1, 0),
        });
        let mut state = session.lock();
        state.takeovers = takeovers.unwrap_or_default();
        state.stored.expiry = connect.expiry;
        state.stored.disconnected_at = None;
        if resumes && will.is_none() && state.stored.will.is_some() {
            self.counters.wills_cancelled.fetch_add(1, Relaxed);
        }
        state.stored.will = connect.will.clone();
        state.connection = Some(connection.clone());
        state.look_at_access();
        let filters: Vec<_> = state.filters.values().copied().collect();
        let groups: Vec<_> = state.groups.values().cloned().collect();
        drop(state);
        self.routing
            .change(|inner| inner.router.set_online(session.id, true, filters));
        self.feed(&session, touched);
        self.feed_groups(&groups, touched);
        // A connection that has ended meanwhile leaves its session by itself.
        let _ = connect.reply.send(Ok(session));
    }

    /// Ends the connection that a session has.
    fn take_over(&self, session: &Arc<Session>) {
        let mut state = session.lock();
        let Some(connection) = state.connection.take() else {
            return;
        };
        state.detach(self.lists.applied());
        self.counters.takeovers.fetch_add(1, Relaxed);
        state.takeovers.add(clock::now());
        let filters: Vec<_> = state.filters.values().copied().collect();
        drop(state);
        self.routing
            .change(|inner| inner.router.set_online(session.id, false, filters));
        let sentence = "another connection has taken over the session".to_owned();
        connection
            .outbox
            .end(ConnectionEnd::Code(ReasonCode::SessionTakenOver, sentence));
    }

    fn new_session(&self, connect: &ConnectAction) -> Arc<Session> {
        let stored = StoredSession::new(connect.user.clone(), connect.expiry, self.lists.applied());
        let is_stored = connect.expiry > 0;
        let has_record = is_stored || connect.will.is_some();
        let session = self
            .routing
            .change(|inner| inner.add(|id| Session::new(id, &connect.client_id, stored, is_stored, has_record)));
        self.sessions.lock().insert(connect.client_id.clone(), session.clone());
        session
    }

    fn apply_spill(self: &Arc<Self>, session: &Arc<Session>, touched: &mut TouchedOutboxes) {
        let mut state = session.lock();
        if state.connection.is_none() || state.has_ended || state.is_in_log() {
            return;
        }
        state.spill(self.lists.applied());
        let filters: Vec<_> = state.filters.values().copied().collect();
        let (begun, _) = self
            .routing
            .change(|inner| inner.router.set_stored(session.id, true, filters));
        begun.into_iter().for_each(|filter| self.lists.begin(filter));
        drop(state);
        self.feed(session, touched);
    }

    fn apply_unspill(&self, session: &Arc<Session>) {
        let mut state = session.lock();
        if state.has_ended || !state.is_spilled || state.is_behind || !state.waiting.is_empty() {
            return;
        }
        state.is_spilled = false;
        let filters: Vec<_> = state.filters.values().copied().collect();
        let (_, ended) = self
            .routing
            .change(|inner| inner.router.set_stored(session.id, false, filters));
        ended.into_iter().for_each(|filter| self.lists.end(filter));
    }

    /// Removes a session with its subscriptions.
    fn end_session(self: &Arc<Self>, client_id: &str, touched: &mut TouchedOutboxes) {
        let Some(session) = self.sessions.lock().remove(client_id) else {
            return;
        };
        let mut state = session.lock();
        state.has_ended = true;
        self.timers.cancel(session.id);
        state.connection = None;
        state.waiting.clear();
        let kind = SessionKind {
            is_online: false,
            is_stored: state.is_in_log(),
        };
        let filters: Vec<_> = state.filters.drain().map(|(_, filter)| filter).collect();
        let inflight = state.take_shared(|_| true);
        let groups: Vec<_> = state.groups.drain().map(|(_, group)| group).collect();
        drop(state);
        self.return_messages(inflight);
        groups
            .iter()
            .for_each(|group| self.leave_group(&session, group, touched));
        let ended: Vec<_> = self.routing.change(|inner| {
            let ended = filters
                .into_iter()
                .filter_map(|filter| inner.router.unsubscribe(session.id, kind, filter));
            let ended = ended
                .filter(|ended| ended.ends_list)
                .map(|ended| ended.filter)
                .collect();
            inner.remove(session.id);
            ended
        });
        ended.into_iter().for_each(|filter| self.lists.end(filter));
    }

    fn apply_disconnect(
        self: &Arc<Self>,
        session: &Arc<Session>,
        ends: bool,
        expiry: u32,
        will: Option<&PreparedMessage>,
        touched: &mut TouchedOutboxes,
    ) {
        if ends {
            self.end_session(&session.client_id, touched);
        } else {
            let now = (self.wall)();
            let mut state = session.lock();
            state.detach(self.lists.applied());
            state.stored.expiry = expiry;
            state.stored.disconnected_at = Some(now);
            if will.is_some() {
                state.stored.will = None;
            }
            self.set_timers(session.id, &state.stored, now, 0);
            let filters: Vec<_> = state.filters.values().copied().collect();
            drop(state);
            self.routing
                .change(|inner| inner.router.set_online(session.id, false, filters));
        }
        if let Some(will) = will {
            self.send_will(will, touched);
        }
    }

    fn send_will(self: &Arc<Self>, will: &PreparedMessage, touched: &mut TouchedOutboxes) {
        self.counters.wills_sent.fetch_add(1, Relaxed);
        self.apply_message(will, None, touched);
    }

    /// Sets when a session without connection ends and sends its will: not before `least`.
    pub(super) fn set_timers(&self, id: SessionId, stored: &StoredSession, disconnected_at: Micros, least: Micros) {
        let after = |seconds: u32| (disconnected_at + i64::from(seconds) * 1_000_000).max(least);
        if stored.expiry != session::NEVER {
            self.timers.set(id, TimerKind::Expiry, after(stored.expiry));
        }
        if let Some(will) = &stored.will {
            self.timers.set(id, TimerKind::Will, after(will.delay));
        }
    }

    fn apply_subscribe(
        self: &Arc<Self>,
        subscribe: &SubscribeAction,
        begins: &[Offset],
        touched: &mut TouchedOutboxes,
    ) {
        let source = &subscribe.source;
        let session = &source.session;
        let mut state = session.lock();
        let kind = SessionKind {
            is_online: true,
            is_stored: state.is_in_log(),
        };
        let mut shared = Vec::new();
        let codes: Vec<ReasonCode> = self.routing.change(|inner| {
            let filters = subscribe.filters.iter().zip(begins);
            let codes = filters.map(|(filter, since)| {
                let (filter, subscription) = match filter {
                    Ok((filter, subscription)) => (filter, *subscription),
                    Err(code) => return *code,
                };
                let stored = StoredSubscription {
                    subscription,
                    since: *since,
                };
                state.stored.subscriptions.insert(filter.clone(), stored);
                if filter.starts_with(shared::PREFIX) {
                    shared.push((filter, subscription, *since));
                    return granted(subscription.options.qos);
                }
                let done = inner.router.subscribe(session.id, kind, filter, subscription);
                state.filters.insert(filter.clone(), done.filter);
                let gets_retained = match subscription.options.retain_handling {
                    RetainHandling::Always => true,
                    RetainHandling::IfNew => done.is_new,
                    RetainHandling::Never => false,
                };
                if gets_retained {
                    state.retained_reads.push_back(RetainedRead::new(filter, subscription));
                }
                if done.begins_list {
                    self.lists.begin(done.filter);
                }
                granted(subscription.options.qos)
            });
            codes.collect()
        });
        state.look_at_access();
        drop(state);
        let joined = shared
            .into_iter()
            .filter_map(|(text, subscription, since)| self.join(session, text, subscription, since));
        let groups: Vec<_> = joined.collect();
        source.pending.remove(QoS::AtLeastOnce, ACTION_BYTES);
        touched.append(&source.outbox, |out| {
            encode::suback(out, source.version, subscribe.packet_id, &[], &codes)
        });
        self.feed(session, touched);
        self.feed_groups(&groups, touched);
    }

    fn apply_unsubscribe(self: &Arc<Self>, unsubscribe: &UnsubscribeAction, touched: &mut TouchedOutboxes) {
        let source = &unsubscribe.source;
        let session = &source.session;
        let mut state = session.lock();
        let kind = SessionKind {
            is_online: true,
            is_stored: state.is_in_log(),
        };
        let mut left = Vec::new();
        let codes: Vec<ReasonCode> = self.routing.change(|inner| {
            let codes = unsubscribe.filters.iter().map(|filter| {
                state.stored.subscriptions.remove(filter);
                if let Some(group) = state.groups.remove(filter) {
                    left.push(group);
                    return ReasonCode::Success;
                }
                let known = state.filters.remove(filter);
                let done = known.and_then(|filter| inner.router.unsubscribe(session.id, kind, filter));
                match done {
                    None => ReasonCode::NoSubscriptionExisted,
                    Some(done) => {
                        if done.ends_list {
                            self.lists.end(done.filter);
                        }
                        ReasonCode::Success
                    }
                }
            });
            codes.collect()
        });
        drop(state);
        // What it has of the group already stays with it.
        left.iter().for_each(|group| self.leave_group(session, group, touched));
        source.pending.remove(QoS::AtLeastOnce, ACTION_BYTES);
        touched.append(&source.outbox, |out| {
            encode::unsuback(out, source.version, unsubscribe.packet_id, &[], &codes)
        });
    }

    fn apply_send(self: &Arc<Self>, send: &SendAction, touched: &mut TouchedOutboxes) {
        let mut state = send.session.lock();
        let is_wanted = match &send.shared {
            None => state.reserved.remove(&send.offset) == Some(send.packet_id),
            Some(_) => state.shared_inflight.contains_key(&send.packet_id),
        };
        // The client has left meanwhile: the message is sent when it is back.
        let Some(connection) = state.connection(send.number).cloned().filter(|_| is_wanted) else {
            return;
        };
        let Some(publish) = OutgoingPublish::new(&send.message, &send.delivery, (self.wall)()) else {
            state.stored.outgoing.give_up(send.packet_id);
            state.finished(send.packet_id);
            return;
        };
        state.send_as(&publish, send.packet_id, &connection, touched);
    }

    /// Takes back a batch that the log did not take.
    pub(super) fn refuse(self: &Arc<Self>, batch: PreparedBatch, error: &LogError, touched: &mut TouchedOutboxes) {
        let code = code_of(error);
        tracing::warn!(
            "{} actions of MQTT clients are not stored: {error}",
            batch.actions.len()
        );
        for PreparedAction { action, outcome } in batch.actions {
            self.refuse_action(action, outcome, code, touched);
        }
    }

    fn refuse_action(
        self: &Arc<Self>,
        action: Action,
        outcome: PreparedOutcome,
        code: ReasonCode,
        touched: &mut TouchedOutboxes,
    ) {
        let lost = || ConnectionEnd::Code(code, "the log does not take the state of the session".to_owned());
        match action {
            Action::Publish(publish) => {
                if let PreparedOutcome::Message(PreparedMessage {
                    offset: Some(offset), ..
                }) = outcome
                {
                    self.unreserve(&publish, offset);
                }
                self.answer_publish(&publish, code, touched);
            }
            Action::Connect(connect) => {
                let _ = connect.reply.send(Err(code));
            }
            // The end of a connection takes effect nevertheless; the log hears of it with the session's next change.
            Action::Disconnect(disconnect) => {
                if let PreparedOutcome::Disconnect { ends, expiry, .. } = outcome {
                    disconnect.source.session.lock().is_dirty = true;
                    self.note_dirty(&disconnect.source.session);
                    self.apply_disconnect(&disconnect.source.session, ends, expiry, None, touched);
                }
            }
            // They are tried again.
            Action::Expire(session) => self
                .timers
                .set(session.id, TimerKind::Expiry, (self.wall)() + RETRY_MICROS),
            Action::SendWill(session) => self
                .timers
                .set(session.id, TimerKind::Will, (self.wall)() + RETRY_MICROS),
            Action::Progress(ProgressAction { sessions, groups }) => {
                for session in sessions {
                    session.lock().is_dirty = true;
                    self.note_dirty(&session);
                }
                groups
                    .iter()
                    .for_each(|group| self.note_dirty_group(group, &mut group.lock()));
            }
            Action::Checkpoint(checkpoint) => self.checkpoint_ends(&checkpoint, false),
            Action::Spill(session) => self.apply_spill(&session, touched),
            Action::Unspill(session) => self.apply_unspill(&session),
            Action::Subscribe(subscribe) => refuse_subscriptions(&subscribe, code, touched),
            Action::Unsubscribe(UnsubscribeAction {
                source,
                packet_id,
                filters,
            }) => {
                source.pending.remove(QoS::AtLeastOnce, ACTION_BYTES);
                let codes = vec![ReasonCode::UnspecifiedError; filters.len()];
                touched.append(&source.outbox, |out| {
                    encode::unsuback(out, source.version, packet_id, &[], &codes)
                });
            }
            Action::Received { source, .. } | Action::Released { source, .. } => {
                source.pending.remove(QoS::AtLeastOnce, ACTION_BYTES);
                source.outbox.end(lost());
            }
            Action::Send(send) => self.refuse_send(&send, lost()),
        }
    }

    /// Takes back a message whose identifier is not stored.
    fn refuse_send(&self, send: &SendAction, end: ConnectionEnd) {
        let mut state = send.session.lock();
        let mut returned = None;
        match send.shared {
            None => state.unreserve(send.offset),
            Some(_) => {
                state.stored.outgoing.give_up(send.packet_id);
                returned = state.finished(send.packet_id);
            }
        }
        if let Some(connection) = state.connection(send.number) {
            connection.outbox.end(end);
        }
        drop(state);
        if let Some(SharedInflight { group, .. }) = returned {
            group.lock().returned.insert(send.offset);
        }
    }

    fn unreserve(&self, publish: &PublishAction, offset: Offset) {
        if publish.qos == QoS::ExactlyOnce {
            let route = self.routing.route(publish.message.topic());
            for (session, _) in &route.receivers {
                session.lock().unreserve(offset);
            }
        }
    }
}

/// How long the log is left alone before a timer's action is tried again.
const RETRY_MICROS: Micros = 10_000_000;

/// Answers a SUBSCRIBE of which nothing is taken.
fn refuse_subscriptions(subscribe: &SubscribeAction, code: ReasonCode, touched: &mut TouchedOutboxes) {
    let source = &subscribe.source;
    source.pending.remove(QoS::AtLeastOnce, ACTION_BYTES);
    let codes: Vec<ReasonCode> = subscribe
        .filters
        .iter()
        .map(|filter| filter.as_ref().err().copied().unwrap_or(code))
        .collect();
    touched.append(&source.outbox, |out| {
        encode::suback(out, source.version, subscribe.packet_id, &[], &codes)
    });
}

fn granted(qos: QoS) -> ReasonCode {
    match qos {
        QoS::AtMostOnce => ReasonCode::Success,
        QoS::AtLeastOnce => ReasonCode::GrantedQoS1,
        QoS::ExactlyOnce => ReasonCode::GrantedQoS2,
    }
}

fn answer(source: &ActionSource, kind: PacketKind, packet_id: u16, code: ReasonCode, touched: &mut TouchedOutboxes) {
    source.pending.remove(QoS::AtLeastOnce, ACTION_BYTES);
    touched.append(&source.outbox, |out| {
        encode::ack(out, source.version, kind, packet_id, code, &[])
    });
}
