//! Shared subscriptions (standard 4.8.2): each message goes to one member of the group.

use smallvec::SmallVec;

use crate::routes::{SessionId, Subscription};

/// How the member is chosen among those that can take a message.
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
        match self.members.iter_mut().find(|known| known.session == member.session) {
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

    /// Returns the subscription of a member that leaves.
    pub fn leave(&mut self, session: SessionId) -> Option<Subscription> {
        let at = self.members.iter().position(|member| member.session == session)?;
        let member = self.members.remove(at);
        if at < self.last {
            self.last -= 1;
        }
        Some(member.subscription)
    }

    /// Offers a message to the members, the first one by the strategy. `inflight` tells how many messages a member has in flight;
    /// `None`: it is not there. `take` tells whether a member has taken it. Returns whether one has.
    pub fn offer(
        &mut self,
        hashes: MessageHashes,
        inflight: impl Fn(SessionId) -> Option<usize>,
        mut take: impl FnMut(&GroupMember) -> bool,
    ) -> bool {
        let count = self.members.len();
        if count == 0 {
            return false;
        }
        let first = match self.strategy {
            SharedStrategy::RoundRobin | SharedStrategy::LeastInflight => (self.last + 1) % count,
            SharedStrategy::Sticky => self.last % count,
            SharedStrategy::HashClient => (hashes.client % count as u64) as usize,
            SharedStrategy::HashTopic => (hashes.topic % count as u64) as usize,
        };
        let in_turn = (0..count).map(|step| (first + step) % count);
        let mut order: SmallVec<[usize; 16]> = SmallVec::new();
        match self.strategy {
            SharedStrategy::LeastInflight => {
                let mut able: Vec<(usize, usize)> = in_turn
                    .filter_map(|at| Some((inflight(self.members.get(at)?.session)?, at)))
                    .collect();
                able.sort_by_key(|(inflight, _)| *inflight);
                order.extend(able.into_iter().map(|(_, at)| at));
            }
            _ => order.extend(in_turn),
        }
        let taken = order
            .into_iter()
            .find(|at| self.members.get(*at).is_some_and(&mut take));
        self.last = taken.unwrap_or(self.last);
        taken.is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use thalweg_mqtt_wire::SubscribeOptions;

    use super::*;

    fn group(strategy: SharedStrategy) -> SharedGroup {
        let mut group = SharedGroup::new(strategy);
        let options = SubscribeOptions::default();
        let member = |session| GroupMember {
            session: SessionId(session),
            subscription: Subscription { options, id: 0 },
        };
        assert!((0..4).all(|session| group.join(member(session))));
        assert!(!group.join(member(1)), "it is a member already");
        group
    }

    /// Offers messages to members, of which only those from `from` on take any; returns how many each has.
    fn offered(group: &mut SharedGroup, messages: u64, from: u32) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::<u32, usize>::new();
        for n in 0..messages {
            let hashes = MessageHashes {
                client: n % 2,
                topic: n % 3,
            };
            let before = counts.clone();
            let is_taken = group.offer(
                hashes,
                |session| (session.0 >= from).then(|| before.get(&session.0).copied().unwrap_or(0)),
                |member| {
                    let takes = member.session.0 >= from;
                    *counts.entry(member.session.0).or_default() += usize::from(takes);
                    takes
                },
            );
            assert_eq!(is_taken, from < 4);
        }
        counts.retain(|_, count| *count > 0);
        counts
    }

    #[test]
    fn each_strategy_spreads_messages_in_its_way() {
        for (name, strategy) in SharedStrategy::ALL {
            let counts = offered(&mut group(strategy), 600, 0);
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
    fn who_takes_nothing_is_passed_over() {
        for (name, strategy) in SharedStrategy::ALL {
            let counts = offered(&mut group(strategy), 60, 2);
            assert_eq!(counts.values().sum::<usize>(), 60, "{name}");
            assert!(counts.keys().all(|session| *session >= 2), "{name} {counts:?}");
            assert!(offered(&mut group(strategy), 6, 4).is_empty(), "{name}");
        }
        assert!(!SharedGroup::default().offer(MessageHashes::default(), |_| Some(0), |_| true));
    }

    #[test]
    fn a_member_that_leaves_does_not_change_whose_turn_it_is() {
        let mut group = group(SharedStrategy::RoundRobin);
        let turn = |group: &mut SharedGroup| {
            let mut chosen = 0;
            assert!(group.offer(
                MessageHashes::default(),
                |_| Some(0),
                |member| {
                    chosen = member.session.0;
                    true
                }
            ));
            chosen
        };
        assert_eq!([turn(&mut group), turn(&mut group)], [1, 2]);
        assert!(group.leave(SessionId(0)).is_some() && group.leave(SessionId(0)).is_none());
        assert_eq!([turn(&mut group), turn(&mut group), turn(&mut group)], [3, 1, 2]);
    }
}
