//! Shared subscriptions while the broker runs: which member gets a message, and what waits for the group.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use thalweg_mqtt_store::groups::{GroupMember, SharedGroup, SharedStrategy};
use thalweg_mqtt_store::session::GroupProgress;
use thalweg_mqtt_store::{FilterId, Message, Offset, SessionId, Subscription};

use crate::session::Session;

/// A shared subscription: a group of sessions, of which each message reaches one.
pub(crate) struct SharedSubscription {
    /// As it is subscribed to: `$share/<name>/<filter>`.
    pub text: Box<str>,
    pub filter: FilterId,
    /// Lock order: before the state of a session.
    state: Mutex<SharedState>,
}

pub(crate) struct SharedState {
    pub group: SharedGroup,
    pub sessions: HashMap<SessionId, Arc<Session>>,
    /// Members that outlive their connections and want QoS 1 or 2. While there is one, the log has the messages of the group.
    stored: HashSet<SessionId>,
    pub progress: GroupProgress,
    /// Messages of the log whose member has gone.
    pub returned: BTreeSet<Offset>,
    /// Messages that are not in the log, and whose member has gone.
    pub homeless: VecDeque<Message>,
    /// No member could take a message: the group reads the log from `progress.next` on.
    pub is_behind: bool,
    pub is_feeding: bool,
    /// A member may have got room while the group is fed.
    pub feeds_again: bool,
    pub is_dirty: bool,
}

/// `$share/<name>/<filter>` in its two parts. `None`: the name is empty or has a wildcard, or there is no filter.
pub(crate) fn parts(text: &str) -> Option<(&str, &str)> {
    let (name, filter) = text.strip_prefix(PREFIX)?.split_once('/')?;
    let is_valid = !name.is_empty() && !name.contains(['+', '#']) && !filter.is_empty();
    is_valid.then_some((name, filter))
}

pub(crate) const PREFIX: &str = "$share/";

impl SharedSubscription {
    pub fn new(text: &str, filter: FilterId, strategy: SharedStrategy) -> SharedSubscription {
        SharedSubscription {
            text: text.into(),
            filter,
            state: Mutex::new(SharedState {
                group: SharedGroup::new(strategy),
                sessions: HashMap::new(),
                stored: HashSet::new(),
                progress: GroupProgress::default(),
                returned: BTreeSet::new(),
                homeless: VecDeque::new(),
                is_behind: false,
                is_feeding: false,
                feeds_again: false,
                is_dirty: false,
            }),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock()
    }
}

/// What the change of a member has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberChange {
    pub begins_storing: bool,
    pub ends_storing: bool,
    pub is_empty: bool,
}

impl SharedState {
    /// Whether the log has the messages of the group.
    pub fn is_stored(&self) -> bool {
        !self.stored.is_empty()
    }

    /// Adds a member, or changes its subscription. Messages from `since` on are the group's if it is new in the log.
    pub fn join(
        &mut self,
        session: &Arc<Session>,
        subscription: Subscription,
        is_stored: bool,
        since: Offset,
    ) -> MemberChange {
        let was_stored = self.is_stored();
        self.group.join(GroupMember {
            session: session.id,
            subscription,
        });
        self.sessions.insert(session.id, session.clone());
        match is_stored {
            true => self.stored.insert(session.id),
            false => self.stored.remove(&session.id),
        };
        let change = self.change(was_stored);
        if change.begins_storing {
            self.progress = GroupProgress {
                next: since,
                ..GroupProgress::default()
            };
            (self.is_behind, self.is_dirty) = (false, false);
        }
        change
    }

    /// Removes a member. `None`: it was none.
    pub fn leave(&mut self, session: SessionId) -> Option<MemberChange> {
        let was_stored = self.is_stored();
        self.group.leave(session)?;
        self.sessions.remove(&session);
        self.stored.remove(&session);
        Some(self.change(was_stored))
    }

    fn change(&self, was_stored: bool) -> MemberChange {
        MemberChange {
            begins_storing: self.is_stored() && !was_stored,
            ends_storing: !self.is_stored() && was_stored,
            is_empty: self.group.is_empty(),
        }
    }

    /// Feeding ends, unless somebody has asked for it meanwhile. Returns whether it ends.
    pub fn feed_ends(&mut self) -> bool {
        self.is_feeding = std::mem::take(&mut self.feeds_again);
        !self.is_feeding
    }

    /// Something waits for a member that can take it.
    pub fn has_waiting(&self) -> bool {
        self.is_behind || !self.returned.is_empty() || !self.homeless.is_empty()
    }

    /// The oldest message of the log that the group may still need.
    pub fn needs_from(&self, applied: Offset) -> Option<Offset> {
        if !self.is_stored() {
            return None;
        }
        let next = if self.is_behind { self.progress.next } else { applied };
        let first = |offsets: &BTreeSet<Offset>| offsets.first().copied();
        let oldest = [first(&self.progress.unacknowledged), first(&self.returned)];
        oldest
            .into_iter()
            .flatten()
            .min()
            .map_or(Some(next), |oldest| Some(oldest.min(next)))
    }

    /// How far the group is, as a record says it.
    pub fn recorded(&mut self, applied: Offset) -> GroupProgress {
        if !self.is_behind {
            self.progress.next = self.progress.next.max(applied);
        }
        let next = self.progress.next;
        self.progress.ahead = self.progress.ahead.split_off(&next);
        let mut recorded = self.progress.clone();
        recorded.unacknowledged.extend(&self.returned);
        recorded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_filter_has_a_name_without_wildcards_and_a_filter() {
        assert_eq!(parts("$share/g/a/b"), Some(("g", "a/b")));
        assert_eq!(parts("$share/g//"), Some(("g", "/")));
        for wrong in [
            "$share",
            "$share/",
            "$share/g",
            "$share/g/",
            "$share//a",
            "$share/g+/a",
            "$share/#/a",
            "share/g/a",
        ] {
            assert_eq!(parts(wrong), None, "{wrong}");
        }
    }
}
