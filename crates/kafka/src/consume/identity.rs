//! The identities of the topics behind the names that an input reads. A name may refer to another topic at any time;
//! and until all brokers agree, one of them may still return the predecessor.

use std::collections::{BTreeMap, VecDeque};

use crate::admin::{TopicDescription, TopicId};

/// Maximum predecessors remembered per name. None of them comes back.
const PREDECESSORS_MAX: usize = 16;

#[derive(Clone, Debug, Default)]
pub struct TopicIdentities {
    topics: BTreeMap<String, TopicIdentity>,
}

#[derive(Clone, Debug, Default)]
struct TopicIdentity {
    now: Option<TopicId>,
    /// The topic whose replacement of another was logged.
    told: Option<TopicId>,
    predecessors: VecDeque<TopicId>,
    was_missing: bool,
}

/// What a description says about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityMatch {
    /// The known topic, or the first one, or one without an id.
    Same,
    /// Another topic than before.
    Recreated,
    /// A predecessor: the broker's metadata is stale.
    Outdated,
}

impl TopicIdentities {
    /// Records that no topic of this name existed.
    pub fn missing(&mut self, topic: &str) {
        self.of(topic).was_missing = true;
    }

    /// Forgets a name that nothing is read of any more.
    pub fn forget(&mut self, topic: &str) {
        self.topics.remove(topic);
    }

    pub fn seen(&mut self, topic: &str, description: &TopicDescription) -> IdentityMatch {
        let seen = self.compare(topic, description);
        let identity = self.of(topic);
        if let (IdentityMatch::Recreated, Some(before)) = (seen, identity.now) {
            identity.predecessors.push_back(before);
            if identity.predecessors.len() > PREDECESSORS_MAX {
                identity.predecessors.pop_front();
            }
        }
        if seen != IdentityMatch::Outdated {
            identity.now = description.id.or(identity.now);
        }
        seen
    }

    /// As [`TopicIdentities::seen`], without recording it.
    pub fn compare(&self, topic: &str, description: &TopicDescription) -> IdentityMatch {
        let (Some(identity), Some(id)) = (self.topics.get(topic), description.id) else {
            return IdentityMatch::Same;
        };
        match identity.now {
            Some(now) if now != id && identity.predecessors.contains(&id) => IdentityMatch::Outdated,
            Some(now) if now != id => IdentityMatch::Recreated,
            _ => IdentityMatch::Same,
        }
    }

    /// Whether the replacement of a topic has not been logged yet; true once per topic.
    pub fn is_news(&mut self, topic: &str, id: Option<TopicId>) -> bool {
        let told = &mut self.of(topic).told;
        std::mem::replace(told, id) != id
    }

    /// Whether the topic was created after the input started, so that all its records are new.
    pub fn appeared(&self, topic: &str, description: &TopicDescription) -> bool {
        let was_missing = self.topics.get(topic).is_some_and(|identity| identity.was_missing);
        was_missing || self.has_predecessors(topic) || self.compare(topic, description) == IdentityMatch::Recreated
    }

    fn has_predecessors(&self, topic: &str) -> bool {
        let identity = self.topics.get(topic);
        identity.is_some_and(|identity| !identity.predecessors.is_empty())
    }

    fn of(&mut self, topic: &str) -> &mut TopicIdentity {
        self.topics.entry(topic.to_owned()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(id: u128) -> TopicDescription {
        TopicDescription {
            id: (id > 0).then(|| TopicId::of(id)),
            partitions: 1,
        }
    }

    #[test]
    fn another_id_is_another_topic_and_a_former_one_is_an_outdated_answer() {
        let mut identities = TopicIdentities::default();
        assert_eq!(identities.seen("t", &description(1)), IdentityMatch::Same);
        assert!(!identities.appeared("t", &description(1)));
        assert!(identities.appeared("t", &description(2)));
        assert_eq!(identities.seen("t", &description(2)), IdentityMatch::Recreated);
        let id = description(2).id;
        assert!(identities.is_news("t", id) && !identities.is_news("t", id));
        assert_eq!(identities.seen("t", &description(1)), IdentityMatch::Outdated);
        assert_eq!(identities.seen("t", &description(2)), IdentityMatch::Same);
        assert_eq!(
            identities.seen("t", &description(0)),
            IdentityMatch::Same,
            "a broker without ids"
        );
        assert!(identities.appeared("t", &description(2)));
        assert_eq!(identities.seen("u", &description(1)), IdentityMatch::Same);
    }

    #[test]
    fn what_was_missing_has_appeared_and_predecessors_are_bounded() {
        let mut identities = TopicIdentities::default();
        identities.missing("t");
        assert!(identities.appeared("t", &description(1)));
        for id in 1..100 {
            identities.seen("t", &description(id));
        }
        assert_eq!(identities.of("t").predecessors.len(), PREDECESSORS_MAX);
        assert_eq!(identities.seen("t", &description(98)), IdentityMatch::Outdated);
        identities.forget("t");
        assert!(identities.topics.is_empty());
    }
}
