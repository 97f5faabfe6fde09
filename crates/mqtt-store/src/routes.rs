//! Who gets a message: subscriptions by filter, and the receivers of a topic.
//!
//! Only sessions that are online are receivers. Those that are not are one fact per filter, that somebody wants its messages
//! stored; a hundred thousand of them cost a publish nothing.

use std::collections::HashMap;

use smallvec::SmallVec;
use thalweg_mqtt_wire::{QoS, SubscribeOptions};

use crate::filters::{FilterId, FilterIndex};

/// A session, by a number that is its own while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u32);

/// A subscription of a session to one filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub options: SubscribeOptions,
    /// The Subscription Identifier; 0 is none.
    pub id: u32,
}

/// How a receiver gets a message: one copy, however many of its filters match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedDelivery {
    /// The highest QoS that was granted.
    pub qos: QoS,
    /// Of the subscription with that QoS.
    pub retain_as_published: bool,
    /// The identifiers of all subscriptions, in ascending order.
    pub ids: SmallVec<[u32; 2]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receiver {
    pub session: SessionId,
    /// `None`: all its subscriptions are for messages of others alone.
    pub own: Option<RoutedDelivery>,
    /// What it gets of messages of others.
    pub delivery: RoutedDelivery,
}

impl Receiver {
    /// What it gets of a message that `publisher` has sent.
    pub fn of(&self, publisher: Option<SessionId>) -> Option<&RoutedDelivery> {
        match publisher == Some(self.session) {
            true => self.own.as_ref(),
            false => Some(&self.delivery),
        }
    }
}

/// Everything that takes messages of one topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The sessions that are online, in ascending order.
    pub receivers: Vec<Receiver>,
    /// Filters with at least one session that outlives its connection and wants QoS 1 or 2, online or not. Their interest lists
    /// get the message.
    pub stored: Vec<FilterId>,
    /// Filters that somebody shares.
    pub shared: Vec<FilterId>,
}

impl Route {
    pub fn is_empty(&self) -> bool {
        self.receivers.is_empty() && self.stored.is_empty() && self.shared.is_empty()
    }
}

#[derive(Debug, Default)]
struct FilterUsers {
    online: HashMap<SessionId, Subscription>,
    offline: HashMap<SessionId, Subscription>,
    /// How many of both outlive their connection and want QoS 1 or 2.
    stored: usize,
    /// How many groups share the filter.
    groups: usize,
}

impl FilterUsers {
    fn is_unused(&self) -> bool {
        self.online.is_empty() && self.offline.is_empty() && self.groups == 0
    }
}

/// What a SUBSCRIBE has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscribed {
    pub filter: FilterId,
    /// The session had no subscription to the filter.
    pub is_new: bool,
    /// The filter has its first session whose messages are stored: its interest list begins now.
    pub begins_list: bool,
}

/// What the end of a subscription has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsubscribed {
    pub filter: FilterId,
    /// No session needs the filter's interest list any more.
    pub ends_list: bool,
}

/// Who uses a session's subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionKind {
    pub is_online: bool,
    /// It outlives its connection.
    pub is_stored: bool,
}

/// All subscriptions of a broker.
#[derive(Default)]
pub struct Router {
    filters: FilterIndex,
    /// By filter.
    users: Vec<FilterUsers>,
    version: u64,
}

impl Router {
    /// Changes with every change: routes that were made before may be out of date.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn filters(&self) -> &FilterIndex {
        &self.filters
    }

    /// Adds a subscription, or replaces its options and identifier.
    pub fn subscribe(
        &mut self,
        session: SessionId,
        kind: SessionKind,
        filter: &str,
        subscription: Subscription,
    ) -> Subscribed {
        self.version += 1;
        let known = self.filters.find(filter);
        let is_known = known.is_some_and(|filter| self.subscription(session, filter).is_some());
        let filter = match (known, is_known) {
            (Some(filter), true) => filter,
            _ => self.filters.add(filter).0,
        };
        let users = self.users_of(filter);
        let had_list = users.stored > 0;
        let replaced = users.online.remove(&session).or_else(|| users.offline.remove(&session));
        users.stored -= usize::from(replaced.is_some_and(|replaced| is_stored(kind, replaced)));
        users.stored += usize::from(is_stored(kind, subscription));
        let place = if kind.is_online {
            &mut users.online
        } else {
            &mut users.offline
        };
        place.insert(session, subscription);
        Subscribed {
            filter,
            is_new: !is_known,
            begins_list: users.stored > 0 && !had_list,
        }
    }

    /// Ends a subscription. `None`: there is none.
    pub fn unsubscribe(&mut self, session: SessionId, kind: SessionKind, filter: FilterId) -> Option<Unsubscribed> {
        self.subscription(session, filter)?;
        self.version += 1;
        let users = self.users_of(filter);
        let had_list = users.stored > 0;
        let removed = users
            .online
            .remove(&session)
            .or_else(|| users.offline.remove(&session))?;
        users.stored -= usize::from(is_stored(kind, removed));
        let ends_list = had_list && users.stored == 0;
        self.release(filter);
        Some(Unsubscribed { filter, ends_list })
    }

    /// The session has connected or disconnected. `filters` are those of its subscriptions.
    pub fn set_online(&mut self, session: SessionId, is_online: bool, filters: impl IntoIterator<Item = FilterId>) {
        self.version += 1;
        for filter in filters {
            let users = self.users_of(filter);
            let (from, to) = match is_online {
                true => (&mut users.offline, &mut users.online),
                false => (&mut users.online, &mut users.offline),
            };
            if let Some(subscription) = from.remove(&session) {
                to.insert(session, subscription);
            }
        }
    }

    /// Whether a session outlives its connection has changed. Returns the filters whose interest lists begin, and those whose
    /// lists end.
    pub fn set_stored(
        &mut self,
        session: SessionId,
        stored: bool,
        filters: impl IntoIterator<Item = FilterId>,
    ) -> (Vec<FilterId>, Vec<FilterId>) {
        self.version += 1;
        let (mut begin, mut end) = (Vec::new(), Vec::new());
        for filter in filters {
            let wants = self
                .subscription(session, filter)
                .is_some_and(|subscription| wants_storing(*subscription));
            if !wants {
                continue;
            }
            let users = self.users_of(filter);
            match stored {
                true => {
                    users.stored += 1;
                    begin.extend((users.stored == 1).then_some(filter));
                }
                false => {
                    users.stored = users.stored.saturating_sub(1);
                    end.extend((users.stored == 0).then_some(filter));
                }
            }
        }
        (begin, end)
    }

    /// A group shares a filter from now on.
    pub fn share(&mut self, filter: &str) -> FilterId {
        self.version += 1;
        let filter = self.filters.add(filter).0;
        self.users_of(filter).groups += 1;
        filter
    }

    /// A group shares a filter no more.
    pub fn unshare(&mut self, filter: FilterId) {
        self.version += 1;
        let users = self.users_of(filter);
        users.groups = users.groups.saturating_sub(1);
        self.release(filter);
    }

    /// A group has its first member that outlives its connection and wants QoS 1 or 2, or has lost its last one. Returns whether the
    /// interest list of the filter begins or ends with that.
    pub fn set_group_stored(&mut self, filter: FilterId, stored: bool) -> bool {
        self.version += 1;
        let users = self.users_of(filter);
        match stored {
            true => users.stored += 1,
            false => users.stored = users.stored.saturating_sub(1),
        }
        users.stored == usize::from(stored)
    }

    /// The subscription of a session to a filter.
    pub fn subscription(&self, session: SessionId, filter: FilterId) -> Option<&Subscription> {
        let users = self.users.get(filter.0 as usize)?;
        users.online.get(&session).or_else(|| users.offline.get(&session))
    }

    /// Everything that takes messages of a topic.
    pub fn route(&self, topic: &str) -> Route {
        let mut matched = Vec::new();
        self.filters.matches(topic, &mut matched);
        matched.sort_unstable();
        let mut route = Route::default();
        let mut found: Vec<(SessionId, Subscription)> = Vec::new();
        for filter in matched {
            let Some(users) = self.users.get(filter.0 as usize) else {
                continue;
            };
            route.stored.extend((users.stored > 0).then_some(filter));
            route.shared.extend((users.groups > 0).then_some(filter));
            found.extend(
                users
                    .online
                    .iter()
                    .map(|(session, subscription)| (*session, *subscription)),
            );
        }
        found.sort_by_key(|(session, _)| *session);
        let by_session = found.chunk_by(|(one, _), (other, _)| one == other);
        route.receivers.extend(by_session.filter_map(receiver));
        route
    }

    fn users_of(&mut self, filter: FilterId) -> &mut FilterUsers {
        let index = filter.0 as usize;
        if index >= self.users.len() {
            self.users.resize_with(index + 1, FilterUsers::default);
        }
        &mut self.users[index]
    }

    /// A user of the filter has gone.
    fn release(&mut self, filter: FilterId) {
        if self.filters.remove(filter) {
            let users = self.users_of(filter);
            debug_assert!(users.is_unused());
            *users = FilterUsers::default();
        }
    }
}

fn wants_storing(subscription: Subscription) -> bool {
    subscription.options.qos != QoS::AtMostOnce
}

fn is_stored(kind: SessionKind, subscription: Subscription) -> bool {
    kind.is_stored && wants_storing(subscription)
}

/// Joins the subscriptions of one session.
fn receiver(subscriptions: &[(SessionId, Subscription)]) -> Option<Receiver> {
    let (session, _) = subscriptions.first()?;
    let all = subscriptions.iter().map(|(_, subscription)| *subscription);
    Some(Receiver {
        session: *session,
        own: joined(all.clone().filter(|subscription| !subscription.options.no_local)),
        delivery: joined(all)?,
    })
}

/// What a session gets by these subscriptions, all of which match.
pub fn joined(subscriptions: impl Iterator<Item = Subscription>) -> Option<RoutedDelivery> {
    let mut joined: Option<RoutedDelivery> = None;
    for Subscription { options, id } in subscriptions {
        let delivery = joined.get_or_insert_with(|| RoutedDelivery {
            qos: options.qos,
            retain_as_published: options.retain_as_published,
            ids: SmallVec::new(),
        });
        if options.qos > delivery.qos {
            (delivery.qos, delivery.retain_as_published) = (options.qos, options.retain_as_published);
        } else if options.qos == delivery.qos {
            delivery.retain_as_published |= options.retain_as_published;
        }
        if id > 0 && !delivery.ids.contains(&id) {
            delivery.ids.push(id);
        }
    }
    if let Some(delivery) = &mut joined {
        delivery.ids.sort_unstable();
    }
    joined
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;
    use thalweg_mqtt_wire::topic;

    use super::*;

    const FILTERS: [&str; 8] = ["a", "a/b", "+", "a/+", "#", "a/#", "+/b", "b"];

    #[derive(Clone, Debug)]
    enum Step {
        Subscribe(u32, usize, u8, bool, bool, u32),
        Unsubscribe(u32, usize),
        Online(u32, bool),
        Stored(u32, bool),
        Share(usize),
        Unshare(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let (session, filter) = (0..4_u32, 0..FILTERS.len());
        prop_oneof![
            6 => (session.clone(), filter.clone(), 0..3_u8, any::<bool>(), any::<bool>(), 0..4_u32)
                .prop_map(|(session, filter, qos, no_local, keep, id)| Step::Subscribe(session, filter, qos, no_local, keep, id)),
            3 => (session.clone(), filter.clone()).prop_map(|(session, filter)| Step::Unsubscribe(session, filter)),
            3 => (session.clone(), any::<bool>()).prop_map(|(session, online)| Step::Online(session, online)),
            2 => (session, any::<bool>()).prop_map(|(session, stored)| Step::Stored(session, stored)),
            1 => filter.clone().prop_map(Step::Share),
            1 => filter.prop_map(Step::Unshare),
        ]
    }

    #[derive(Clone, Debug, Default)]
    struct Model {
        subscriptions: BTreeMap<(u32, usize), Subscription>,
        online: BTreeSet<u32>,
        stored: BTreeSet<u32>,
        groups: [usize; 8],
    }

    impl Model {
        fn kind(&self, session: u32) -> SessionKind {
            SessionKind {
                is_online: self.online.contains(&session),
                is_stored: self.stored.contains(&session),
            }
        }

        fn has_list(&self, filter: usize) -> bool {
            self.subscriptions.iter().any(|((session, of), subscription)| {
                *of == filter && self.stored.contains(session) && subscription.options.qos > QoS::AtMostOnce
            })
        }
    }

    proptest! {
        /// Against the definition.
        #[test]
        fn a_message_goes_to_those_who_subscribed(steps in prop::collection::vec(step(), 1..80)) {
            let (mut router, mut model) = (Router::default(), Model::default());
            for step in steps {
                let lists: Vec<bool> = (0..FILTERS.len()).map(|filter| model.has_list(filter)).collect();
                let filters_of = |router: &Router, model: &Model, session: u32| -> Vec<FilterId> {
                    let own = model.subscriptions.keys().filter(|(of, _)| *of == session);
                    own.map(|(_, filter)| router.filters().find(FILTERS[*filter]).unwrap()).collect()
                };
                match step {
                    Step::Subscribe(session, filter, qos, no_local, retain_as_published, id) => {
                        let options = SubscribeOptions {
                            qos: QoS::of(qos).unwrap(), no_local, retain_as_published, ..SubscribeOptions::default()
                        };
                        let subscription = Subscription { options, id };
                        let done = router.subscribe(SessionId(session), model.kind(session), FILTERS[filter], subscription);
                        let replaced = model.subscriptions.insert((session, filter), subscription);
                        prop_assert_eq!(done.is_new, replaced.is_none());
                        prop_assert_eq!(done.begins_list, model.has_list(filter) && !lists[filter]);
                    }
                    Step::Unsubscribe(session, filter) => {
                        let is_known = model.subscriptions.remove(&(session, filter)).is_some();
                        let done = router.filters().find(FILTERS[filter])
                            .and_then(|filter| router.unsubscribe(SessionId(session), model.kind(session), filter));
                        prop_assert_eq!(done.is_some(), is_known);
                        prop_assert_eq!(done.is_some_and(|done| done.ends_list), lists[filter] && !model.has_list(filter));
                    }
                    Step::Online(session, online) => {
                        let filters = filters_of(&router, &model, session);
                        router.set_online(SessionId(session), online, filters);
                        if online { model.online.insert(session) } else { model.online.remove(&session) };
                    }
                    Step::Stored(session, stored) if model.stored.contains(&session) != stored => {
                        let filters = filters_of(&router, &model, session);
                        let (begin, end) = router.set_stored(SessionId(session), stored, filters);
                        if stored { model.stored.insert(session) } else { model.stored.remove(&session) };
                        for (filter, text) in FILTERS.iter().enumerate() {
                            let id = router.filters().find(text);
                            let is_in = |list: &[FilterId]| id.is_some_and(|id| list.contains(&id));
                            prop_assert_eq!(is_in(&begin), model.has_list(filter) && !lists[filter]);
                            prop_assert_eq!(is_in(&end), !model.has_list(filter) && lists[filter]);
                        }
                    }
                    Step::Stored(..) => {}
                    Step::Share(filter) => {
                        router.share(FILTERS[filter]);
                        model.groups[filter] += 1;
                    }
                    Step::Unshare(filter) if model.groups[filter] > 0 => {
                        let id = router.filters().find(FILTERS[filter]).unwrap();
                        router.unshare(id);
                        model.groups[filter] -= 1;
                    }
                    Step::Unshare(_) => {}
                }
                for topic in ["a", "a/b", "b", "a/b/c", "c/b"] {
                    let route = router.route(topic);
                    let matching: Vec<usize> = (0..FILTERS.len()).filter(|at| topic::matches(FILTERS[*at], topic)).collect();
                    let ids = |is_wanted: &dyn Fn(usize) -> bool| {
                        let wanted = matching.iter().filter(|at| is_wanted(**at));
                        let mut ids: Vec<FilterId> = wanted.map(|at| router.filters().find(FILTERS[*at]).unwrap()).collect();
                        ids.sort_unstable();
                        ids
                    };
                    prop_assert_eq!(&route.stored, &ids(&|at| model.has_list(at)));
                    prop_assert_eq!(&route.shared, &ids(&|at| model.groups[at] > 0));
                    let of = |session: u32, own: bool| {
                        let mut mine: Vec<Subscription> = model.subscriptions.iter()
                            .filter(|((of, filter), found)| *of == session && matching.contains(filter) && !(own && found.options.no_local))
                            .map(|(_, found)| *found).collect();
                        mine.sort_by_key(|found| std::cmp::Reverse(found.options.qos));
                        let best = mine.first()?.options.qos;
                        let keeps = mine.iter().any(|found| found.options.qos == best && found.options.retain_as_published);
                        let ids: BTreeSet<u32> = mine.iter().map(|found| found.id).filter(|id| *id > 0).collect();
                        Some(RoutedDelivery { qos: best, retain_as_published: keeps, ids: ids.into_iter().collect() })
                    };
                    let expected: Vec<Receiver> = model.online.iter().filter_map(|session| {
                        Some(Receiver { session: SessionId(*session), own: of(*session, true), delivery: of(*session, false)? })
                    }).collect();
                    for receiver in &route.receivers {
                        prop_assert_eq!(receiver.of(Some(receiver.session)), receiver.own.as_ref());
                        prop_assert_eq!(receiver.of(None), Some(&receiver.delivery));
                    }
                    prop_assert_eq!(route.receivers, expected, "{}", topic);
                }
            }
        }
    }
}
