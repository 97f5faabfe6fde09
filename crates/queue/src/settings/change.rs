//! Which settings of an existing queue may change.
//!
//! A change is refused if it would break a promise for existing messages, or keep it only by chance. What only affects
//! later messages, or only loosens a promise, may always change.

use thalweg_log::Durability;

use super::{Overflow, QueueOrdering, QueueSettings};
use crate::error::{QueueError, Result};
use crate::names::{NameKind, dead_letter_name};

impl QueueSettings {
    /// Checks whether a queue with these settings, this durability and this many unsettled messages may take the new
    /// settings.
    ///
    /// - `partitions` only grows. Under an order it grows only while the queue is empty, because a key would move to
    ///   another partition and overtake its own messages.
    /// - A stricter `ordering` needs an empty queue, because existing messages may be leased out of order. A looser one
    ///   is always allowed.
    /// - `durability` is fixed, because the log partitions were created with it; settings without it keep it.
    /// - A declared group keeps its `mode`, because leases and offsets are different states. Groups may be added and
    ///   removed freely.
    pub fn may_become(&self, new: &QueueSettings, depth: u64, durability: Durability) -> Result<()> {
        self.partitions_may_become(new, depth)?;
        if self.becomes_stricter(new) && depth > 0 {
            return Err(QueueError::invalid(format!(
                "ordering: {} may become {} only while the queue is empty, it has {depth} messages; let it drain or purge it",
                self.ordering.name(),
                new.ordering.name(),
            )));
        }
        if let Some(wanted) = new.durability.filter(|wanted| *wanted != durability) {
            return Err(QueueError::invalid(format!(
                "durability: {} cannot become {}, since the queue is stored with it; leave it out, or delete the queue and \
                 create it anew",
                durability.name(),
                wanted.name(),
            )));
        }
        let changed = |old: &&super::GroupSettings| {
            new.groups
                .iter()
                .any(|group| group.is_same_group(old) && group.mode != old.mode)
        };
        if let Some(group) = self.groups.iter().find(changed) {
            return Err(QueueError::invalid(format!(
                "groups: group {} has mode {}, which cannot change; delete the group first, or declare another name",
                group.name,
                group.mode.name(),
            )));
        }
        Ok(())
    }

    fn partitions_may_become(&self, new: &QueueSettings, depth: u64) -> Result<()> {
        let (old, wanted) = (self.partitions, new.partitions);
        if wanted < old {
            return Err(QueueError::invalid(format!(
                "partitions: {old} cannot become {wanted}, since partitions are only added; create another queue"
            )));
        }
        // The old order counts too: a looser order in the same change does not undo the promise.
        let ordered = self.ordering != QueueOrdering::None || new.ordering != QueueOrdering::None;
        if wanted > old && ordered && depth > 0 {
            return Err(QueueError::invalid(format!(
                "partitions: {old} may become {wanted} only while the queue is empty, since it keeps an order and has {depth} \
                 messages; let it drain or purge it"
            )));
        }
        Ok(())
    }
}

impl QueueSettings {
    /// Checks whether a queue of this name can have its dead letters where these settings say.
    pub fn check_dead_letters(&self, queue: &str) -> Result<()> {
        // A field missing from a request has its default.
        let default = QueueSettings::default();
        let limits = [
            ("max_depth", ![0, default.max_depth].contains(&self.max_depth)),
            ("max_bytes", ![0, default.max_bytes].contains(&self.max_bytes)),
            ("overflow", self.overflow != Overflow::Reject),
        ];
        let limit = limits.into_iter().find(|(_, is_set)| *is_set);
        if let Some((key, _)) = limit.filter(|_| NameKind::of(queue) == NameKind::DeadLetter) {
            let why = "dead letters arrive despite a limit, or dead messages could not leave their queue; set \
                       retention.max_age, retention.max_messages or retention.max_bytes instead, and 0 or the default \
                       here";
            return Err(QueueError::invalid(format!("{key}: {why}")));
        }
        if !self.dlq.enabled {
            return Ok(());
        }
        let rule = match dead_letter_name(queue) {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => "dead-letter queues have no dead letters of their own; set dlq.enabled: false".to_owned(),
            Err(error) => format!("{error}, because dlq.<name> is one too; shorten it or set dlq.enabled: false"),
        };
        Err(QueueError::invalid(format!("name: {rule}")))
    }

    /// A key that this version does not support, and why.
    pub fn without_effect(&self) -> Option<(&'static str, String)> {
        if !self.topics.is_empty() {
            let why = "topics need the MQTT broker, which this version does not have; remove it";
            return Some(("topics", why.to_owned()));
        }
        let mut names = std::collections::BTreeSet::new();
        let twice = self.groups.iter().find(|group| !names.insert(&group.name))?;
        let why = format!(
            "group {:?} is declared with two filters, and groups are found by their names; give each a name of its own",
            twice.name
        );
        Some(("groups", why))
    }
}

impl QueueSettings {
    /// Whether leases under these settings may violate the order of the new ones.
    pub(crate) fn becomes_stricter(&self, new: &QueueSettings) -> bool {
        new.ordering.strictness() > self.ordering.strictness()
    }
}

impl QueueOrdering {
    fn strictness(self) -> u8 {
        match self {
            QueueOrdering::None => 0,
            QueueOrdering::Partition => 1,
            QueueOrdering::Strict => 2,
        }
    }
}
