//! Shared subscriptions (standard 4.8.2): each message goes to one member of the group.

use crate::routes::{SessionId, Subscription};

/// How the member is chosen among those that are online and have room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedStrategy {
    #[default]
    RoundRobin,
    /// The member with the fewest messages in flight.
    LeastInflight,
    /// The same member as before, as long as it can.
    Sticky,
    /// The messages of one publisher go to one member.
    HashClient,
    /// The messages of one topic go to one member.
    HashTopic,
}

impl SharedStrategy {
    /// All strategies by their names in the configuration.
    pub const ALL: [(&str, SharedStrategy); 5] = [
        ("round-robin", SharedStrategy::RoundRobin),
        ("least-inflight", SharedStrategy::LeastInflight),
        ("sticky", SharedStrategy::Sticky),
        ("hash-client", SharedStrategy::HashClient),
        ("hash-topic", SharedStrategy::HashTopic),
    ];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMember {
    pub session: SessionId,
    pub subscription: Subscription,
    pub is_online: bool,
    /// Messages in flight to it.
    pub inflight: u32,
    /// It can take one more.
    pub has_room: bool,
}

/// The hashes of a message that strategies use.
#[derive(Clone, Copy, Debug, Default)]
pub struct MessageHashes {
    pub client: u64,
    pub topic: u64,
}

/// The members of one group, in the order in which they joined.
#[derive(Clone, Debug, Default)]
pub struct SharedGroup {
    members: Vec<GroupMember>,
    strategy: SharedStrategy,
    /// Of the member that got the last message.
    last: usize,
}

impl SharedGroup {
    pub fn new(strategy: SharedStrategy) -> SharedGroup {
        SharedGroup {
            strategy,
            ..SharedGroup::default()
        }
    }

    pub fn members(&self) -> &[GroupMember] {
        &self.members
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds a member, or changes its subscription. Returns whether it is new.
    pub fn join(&mut self, member: GroupMember) -> bool {
        match self.member_mut(member.session) {
            Some(known) => {
                known.subscription = member.subscription;
                false
            }
            None => {
                self.members.push(member);
                true
            }
        }
    }

    /// Returns whether it was a member.
    pub fn leave(&mut self, session: SessionId) -> bool {
        let Some(at) = self.members.iter().position(|member| member.session == session) else {
            return false;
        };
        self.members.remove(at);
        if at < self.last {
            self.last -= 1;
        }
        true
    }

    /// What is known of a member changes.
    pub fn member_mut(&mut self, session: SessionId) -> Option<&mut GroupMember> {
        self.members.iter_mut().find(|member| member.session == session)
    }

    /// Chooses the member that gets a message. `None`: nobody can take it now, and it waits for the group.
    pub fn choose(&mut self, hashes: MessageHashes) -> Option<GroupMember> {
        let able = |at: &usize| {
            self.members
                .get(*at)
                .is_some_and(|member| member.is_online && member.has_room)
        };
        let count = self.members.len();
        // From this one on, in the order of the members.
        let from = |start: u64| (0..count).map(move |step| (start as usize + step) % count).find(able);
        if count == 0 {
            return None;
        }
        let chosen = match self.strategy {
            SharedStrategy::RoundRobin => from(self.last as u64 + 1),
            SharedStrategy::Sticky => from(self.last as u64),
            SharedStrategy::HashClient => from(hashes.client % count as u64),
            SharedStrategy::HashTopic => from(hashes.topic % count as u64),
            SharedStrategy::LeastInflight => {
                let in_turn = (1..=count).map(|step| (self.last + step) % count);
                let all = in_turn.filter(able);
                all.min_by_key(|at| self.members.get(*at).map_or(u32::MAX, |member| member.inflight))
            }
        }?;
        self.last = chosen;
        self.members.get(chosen).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use thalweg_mqtt_wire::SubscribeOptions;

    use super::*;

    fn member(session: u32) -> GroupMember {
        let options = SubscribeOptions::default();
        GroupMember {
            session: SessionId(session),
            subscription: Subscription { options, id: 0 },
            is_online: true,
            inflight: 0,
            has_room: true,
        }
    }

    fn group(strategy: SharedStrategy) -> SharedGroup {
        let mut group = SharedGroup::new(strategy);
        assert!((0..4).all(|session| group.join(member(session))));
        group
    }

    fn chosen(group: &mut SharedGroup, messages: u64) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for n in 0..messages {
            let hashes = MessageHashes {
                client: n % 2,
                topic: n % 3,
            };
            let session = group.choose(hashes).unwrap().session.0;
            *counts.entry(session).or_default() += 1;
        }
        counts
    }

    #[test]
    fn each_strategy_spreads_messages_in_its_way() {
        for (name, strategy) in SharedStrategy::ALL {
            let counts = chosen(&mut group(strategy), 600);
            let expected: &[(u32, usize)] = match name {
                "sticky" => &[(0, 600)],
                "hash-client" => &[(0, 300), (1, 300)],
                "hash-topic" => &[(0, 200), (1, 200), (2, 200)],
                _ => &[(0, 150), (1, 150), (2, 150), (3, 150)],
            };
            assert_eq!(counts.into_iter().collect::<Vec<_>>(), expected, "{name}");
        }
    }

    #[test]
    fn who_is_offline_or_has_no_room_gets_nothing() {
        for (name, strategy) in SharedStrategy::ALL {
            let mut group = group(strategy);
            group.member_mut(SessionId(0)).unwrap().is_online = false;
            group.member_mut(SessionId(1)).unwrap().has_room = false;
            let counts = chosen(&mut group, 60);
            assert!(counts.keys().all(|session| *session >= 2), "{name} {counts:?}");
            for session in [2, 3] {
                group.member_mut(SessionId(session)).unwrap().is_online = false;
            }
            assert_eq!(group.choose(MessageHashes::default()), None, "{name}");
        }
        assert_eq!(SharedGroup::default().choose(MessageHashes::default()), None);
    }

    #[test]
    fn least_inflight_fills_up_who_has_less() {
        let mut group = group(SharedStrategy::LeastInflight);
        group.member_mut(SessionId(3)).unwrap().inflight = 5;
        for n in 0..20 {
            let session = group.choose(MessageHashes::default()).unwrap().session;
            group.member_mut(session).unwrap().inflight += 1;
            let least = group.members().iter().map(|member| member.inflight).min().unwrap();
            let most = group.members().iter().map(|member| member.inflight).max().unwrap();
            assert!(n < 15 || most - least <= 1);
        }
    }

    #[test]
    fn a_member_that_leaves_does_not_change_whose_turn_it_is() {
        let mut group = group(SharedStrategy::RoundRobin);
        let turn = |group: &mut SharedGroup| group.choose(MessageHashes::default()).unwrap().session.0;
        assert_eq!([turn(&mut group), turn(&mut group)], [1, 2]);
        assert!(group.leave(SessionId(0)) && !group.leave(SessionId(0)));
        assert_eq!([turn(&mut group), turn(&mut group), turn(&mut group)], [3, 1, 2]);
        assert!(!group.join(member(1)), "it is a member already");
    }
}
