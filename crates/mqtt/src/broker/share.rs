//! Messages of shared subscriptions: who gets them, and what becomes of them when a member leaves.

use std::collections::hash_map::Entry;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use thalweg_kit::blocking;
use thalweg_log::LogError;
use thalweg_mqtt_store::groups::MessageHashes;
use thalweg_mqtt_store::session::NOT_STORED;
use thalweg_mqtt_store::{Message, Offset, RoutedDelivery, Subscription};
use thalweg_mqtt_wire::QoS;

use super::Broker;
use super::feed::{FeedSource, FeedStep};
use crate::action::{Action, SendAction};
use crate::outbox::TouchedOutboxes;
use crate::partitions::MESSAGES;
use crate::session::{Attachment, DropReason, OutgoingPublish, Session, SessionState, SharedInflight};
use crate::shared::{self, SharedState, SharedSubscription};

/// Messages that a group reads at a time.
const STEP: usize = 64;

impl Broker {
    /// A session becomes a member of a shared subscription, or changes its subscription.
    pub(super) fn join(
        &self,
        session: &Arc<Session>,
        text: &str,
        subscription: Subscription,
        since: Offset,
    ) -> Option<Arc<SharedSubscription>> {
        let (_, filter) = shared::parts(text)?;
        let mut all = self.shared.lock();
        let group = match all.entry(text.into()) {
            Entry::Occupied(known) => known.get().clone(),
            Entry::Vacant(new) => {
                let strategy = self.settings.shared_strategy;
                let group = self.routing.change(|inner| {
                    let filter = inner.router.share(filter);
                    let group = Arc::new(SharedSubscription::new(text, filter, strategy));
                    inner.groups.entry(filter).or_default().push(group.clone());
                    group
                });
                new.insert(group).clone()
            }
        };
        drop(all);
        let is_stored = session.lock().is_stored && subscription.options.qos != QoS::AtMostOnce;
        let change = group.lock().join(session, subscription, is_stored, since);
        self.group_storing(&group, change.begins_storing, change.ends_storing);
        session.lock().groups.insert(text.into(), group.clone());
        Some(group)
    }

    fn group_storing(&self, group: &SharedSubscription, begins: bool, ends: bool) {
        if begins || ends {
            let changes_list = self
                .routing
                .change(|inner| inner.router.set_group_stored(group.filter, begins));
            match (changes_list, begins) {
                (true, true) => self.lists.begin(group.filter),
                (true, false) => self.lists.end(group.filter),
                (false, _) => {}
            }
        }
    }

    /// A session leaves a shared subscription. Its messages of QoS 1 go to others [MQTT-4.8.2-4, -5].
    pub(super) fn leave_group(
        self: &Arc<Self>,
        session: &Session,
        group: &Arc<SharedSubscription>,
        touched: &mut TouchedOutboxes,
    ) {
        let mut state = group.lock();
        let Some(change) = state.leave(session.id) else {
            return;
        };
        if change.is_empty {
            state.homeless.clear();
        }
        drop(state);
        self.group_storing(group, false, change.ends_storing);
        if change.is_empty {
            self.shared.lock().remove(&group.text);
            self.routing.change(|inner| {
                if let Some(groups) = inner.groups.get_mut(&group.filter) {
                    groups.retain(|other| !Arc::ptr_eq(other, group));
                    if groups.is_empty() {
                        inner.groups.remove(&group.filter);
                    }
                }
                inner.router.unshare(group.filter);
            });
            return;
        }
        self.feed_group(group, touched);
    }

    /// The messages that a session has from a group and has not acknowledged are the group's again.
    pub(super) fn return_messages(&self, inflight: Vec<(SharedInflight, Offset, QoS)>) {
        for (SharedInflight { group, body }, offset, qos) in inflight {
            if qos != QoS::AtLeastOnce {
                continue;
            }
            let mut state = group.lock();
            match body {
                Some(body) if offset == NOT_STORED => state.homeless.push_back(body),
                _ => {
                    if state.progress.unacknowledged.remove(&offset) {
                        state.returned.insert(offset);
                    }
                }
            }
        }
    }

    /// A member has a message no more: it is acknowledged, or has ended for the group [MQTT-4.8.2-6].
    pub(crate) fn group_acknowledged(self: &Arc<Self>, group: &Arc<SharedSubscription>, offset: Offset) {
        let mut state = group.lock();
        if state.progress.unacknowledged.remove(&offset) {
            self.note_dirty_group(group, &mut state);
        }
    }

    /// A member has room: what waits for the group may go to it.
    pub(crate) fn feed_groups(self: &Arc<Self>, groups: &[Arc<SharedSubscription>], touched: &mut TouchedOutboxes) {
        groups.iter().for_each(|group| self.feed_group(group, touched));
    }

    /// Gives a message to a member of each group.
    pub(super) fn deliver_shared(
        self: &Arc<Self>,
        groups: &[Arc<SharedSubscription>],
        message: &Message,
        offset: Option<Offset>,
        touched: &mut TouchedOutboxes,
    ) {
        for group in groups {
            let mut state = group.lock();
            let offset = offset.filter(|_| state.is_stored());
            if offset.is_some_and(|offset| state.is_behind || offset < state.progress.next) {
                continue;
            }
            if self.offer(group, &mut state, message, offset, touched) {
                continue;
            }
            match offset {
                Some(offset) => {
                    state.is_behind = true;
                    state.progress.next = offset;
                }
                None => self.wait_with_member(&state, message),
            }
        }
    }

    /// Gives a message to the member that can take it and whose turn it is. Returns whether there is one.
    fn offer(
        &self,
        group: &Arc<SharedSubscription>,
        state: &mut SharedState,
        message: &Message,
        offset: Option<Offset>,
        touched: &mut TouchedOutboxes,
    ) -> bool {
        let hash = |text: &str| BuildHasherDefault::<DefaultHasher>::default().hash_one(text);
        let hashes = MessageHashes {
            client: hash(message.publisher()),
            topic: hash(message.topic()),
        };
        let SharedState {
            group: members,
            sessions,
            progress,
            ..
        } = state;
        let (mut may_come, mut is_unfit) = (false, None);
        let is_given = members.offer(
            hashes,
            |id| {
                let state = sessions.get(&id)?.lock();
                state.connection.as_ref().map(|_| state.stored.outgoing.len())
            },
            |member| {
                let Some(session) = sessions.get(&member.session) else {
                    return false;
                };
                match self.give(group, session, member.subscription, message, offset, touched) {
                    GivenMessage::Sent(qos) => {
                        if let (QoS::AtLeastOnce, Some(offset)) = (qos, offset) {
                            progress.unacknowledged.insert(offset);
                        }
                        true
                    }
                    GivenMessage::NoRoom => {
                        may_come = true;
                        false
                    }
                    GivenMessage::Away => false,
                    GivenMessage::Unfit(reason) => {
                        is_unfit = Some(reason);
                        false
                    }
                }
            },
        );
        // It is for none of those who are there: it does not hold up the others.
        match is_unfit.filter(|_| !is_given && !may_come) {
            Some(reason) => {
                self.note_dropped(reason);
                true
            }
            None => is_given,
        }
    }

    /// Sends a message to a member, if it can take it.
    fn give(
        &self,
        group: &Arc<SharedSubscription>,
        session: &Arc<Session>,
        subscription: Subscription,
        message: &Message,
        offset: Option<Offset>,
        touched: &mut TouchedOutboxes,
    ) -> GivenMessage {
        let delivery = delivery_by(subscription);
        let Some(publish) = OutgoingPublish::new(message, &delivery, (self.wall)()) else {
            // It has expired for everybody.
            self.note_dropped(DropReason::Expired);
            return GivenMessage::Sent(QoS::AtMostOnce);
        };
        let mut state = session.lock();
        let Some(connection) = state.connection.clone() else {
            return GivenMessage::Away;
        };
        if let Some(refusal) = refusal(&state, &publish, &connection) {
            return refusal;
        }
        let qos = publish.qos();
        if qos == QoS::AtMostOnce {
            let write = |out: &mut Vec<u8>| publish.write(out, connection.version, 0, false);
            return match touched.append_if_room(&connection.outbox, write) {
                true => {
                    touched.sent(qos);
                    GivenMessage::Sent(qos)
                }
                false => GivenMessage::NoRoom,
            };
        }
        let kept_at = offset.unwrap_or(NOT_STORED);
        let Some(packet_id) = state.stored.outgoing.send(kept_at, qos) else {
            return GivenMessage::NoRoom;
        };
        state.stored.shared.insert(packet_id, group.text.clone());
        let body = offset.is_none().then(|| message.clone());
        state.shared_inflight.insert(
            packet_id,
            SharedInflight {
                group: group.clone(),
                body,
            },
        );
        if qos == QoS::AtLeastOnce || !state.is_stored || offset.is_none() {
            touched.append(&connection.outbox, |out| {
                publish.write(out, connection.version, packet_id, false)
            });
            touched.sent(qos);
            return GivenMessage::Sent(qos);
        }
        drop(state);
        // Its identifier is stored before it is sent.
        self.journal.push(Action::Send(Box::new(SendAction {
            session: session.clone(),
            number: connection.number,
            offset: kept_at,
            packet_id,
            message: message.clone(),
            delivery,
            shared: Some(group.text.clone()),
        })));
        GivenMessage::Sent(qos)
    }

    /// Nobody has room, and the log has nothing of the group: the message waits in the memory of a member that is there.
    fn wait_with_member(&self, state: &SharedState, message: &Message) {
        for member in state.group.members() {
            let Some(session) = state.sessions.get(&member.session) else {
                continue;
            };
            let mut session = session.lock();
            if session.connection.is_none() {
                continue;
            }
            let delivery = delivery_by(member.subscription);
            let publish = OutgoingPublish {
                message,
                delivery: &delivery,
                retain: false,
                expiry: None,
            };
            if publish.qos() == QoS::AtMostOnce || session.wait_shared(&publish, self.settings.memory_queue) {
                return;
            }
        }
        self.note_dropped(DropReason::SessionFull);
    }

    /// Gives members what waits for the group: at once if it is in memory, else in a task.
    pub(crate) fn feed_group(self: &Arc<Self>, group: &Arc<SharedSubscription>, touched: &mut TouchedOutboxes) {
        let mut state = group.lock();
        if state.is_feeding {
            state.feeds_again = true;
            return;
        }
        if !state.has_waiting() {
            return;
        }
        state.is_feeding = true;
        drop(state);
        loop {
            match self.group_step(group, FeedSource::Memory, touched) {
                Ok(FeedStep::More) => {}
                Ok(FeedStep::Done) => {
                    if group.lock().feed_ends() {
                        return;
                    }
                }
                Ok(FeedStep::MustRead) | Err(_) => break,
            }
        }
        let (broker, group) = (self.clone(), group.clone());
        tokio::spawn(async move {
            let feeding = group.clone();
            let read = blocking::spawn(move || {
                let mut touched = TouchedOutboxes::new(&broker.counters);
                loop {
                    let step = broker.group_step(&feeding, FeedSource::Disk, &mut touched);
                    touched.flush();
                    if step? != FeedStep::More && feeding.lock().feed_ends() {
                        return Ok::<_, LogError>(());
                    }
                }
            })
            .await;
            if let Ok(Err(error)) = read {
                group.lock().is_feeding = false;
                tracing::error!(
                    "messages for the shared subscription {:?} cannot be read: {error}",
                    group.text
                );
            }
        });
    }

    fn group_step(
        self: &Arc<Self>,
        group: &Arc<SharedSubscription>,
        source: FeedSource,
        touched: &mut TouchedOutboxes,
    ) -> Result<FeedStep, LogError> {
        let mut state = group.lock();
        if let Some(message) = state.homeless.front().cloned() {
            if !self.offer(group, &mut state, &message, None, touched) {
                return Ok(FeedStep::Done);
            }
            state.homeless.pop_front();
            return Ok(FeedStep::More);
        }
        let (offsets, listed) = match state.returned.is_empty() {
            false => (state.returned.iter().copied().take(STEP).collect(), None),
            true if !state.is_behind => return Ok(FeedStep::Done),
            true => {
                let listed = self.lists.read(&[(group.filter, 0)], state.progress.next, STEP);
                let offsets: Vec<Offset> = listed.messages.iter().map(|(offset, _)| *offset).collect();
                (offsets, Some(listed))
            }
        };
        drop(state);
        let mut bodies = self.lists.recent(&offsets);
        let lacking: Vec<Offset> = offsets
            .iter()
            .copied()
            .filter(|offset| !bodies.contains_key(offset))
            .collect();
        if source == FeedSource::Memory && !lacking.is_empty() {
            return Ok(FeedStep::MustRead);
        }
        bodies.extend(self.read_messages(MESSAGES, &lacking)?);
        let mut state = group.lock();
        for offset in offsets {
            let is_returned = listed.is_none();
            let is_wanted = match is_returned {
                true => state.returned.contains(&offset),
                false => offset >= state.progress.next && !state.progress.ahead.contains(&offset),
            };
            // One that the log has no more is skipped.
            if let Some(message) = bodies.get(&offset).filter(|_| is_wanted)
                && !self.offer(group, &mut state, message, Some(offset), touched)
            {
                return Ok(FeedStep::Done);
            }
            match is_returned {
                true => {
                    state.returned.remove(&offset);
                }
                false => state.progress.next = state.progress.next.max(offset + 1),
            }
        }
        if let Some(listed) = listed {
            state.progress.next = state.progress.next.max(listed.next);
            // Whatever is stored from now on comes by itself.
            if listed.is_end && self.lists.applied() == listed.next {
                state.is_behind = false;
            }
        }
        self.note_dirty_group(group, &mut state);
        Ok(FeedStep::More)
    }
}

/// Why a member cannot take a message now, or ever.
fn refusal(state: &SessionState, publish: &OutgoingPublish<'_>, connection: &Attachment) -> Option<GivenMessage> {
    if state.is_denied(publish.message.topic()) {
        return Some(GivenMessage::Unfit(DropReason::Acl));
    }
    if !publish.fits(connection) {
        return Some(GivenMessage::Unfit(DropReason::TooLarge));
    }
    (!state.has_room()).then_some(GivenMessage::NoRoom)
}

/// What a member has done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenMessage {
    /// It got it with this QoS.
    Sent(QoS),
    NoRoom,
    /// It is not connected.
    Away,
    /// It may not get it, or cannot.
    Unfit(DropReason),
}

fn delivery_by(subscription: Subscription) -> RoutedDelivery {
    RoutedDelivery {
        qos: subscription.options.qos,
        retain_as_published: subscription.options.retain_as_published,
        ids: match subscription.id {
            0 => Default::default(),
            id => std::iter::once(id).collect(),
        },
    }
}
