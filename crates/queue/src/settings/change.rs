//! Which settings of an existing queue may become which others.
//!
//! A change is refused when messages that are there already would not get what was promised for them, or would get it only
//! by chance. What only holds for messages to come, or only loosens a promise, may always change.

use thalweg_log::Durability;

use super::{Overflow, QueueOrdering, QueueSettings};
use crate::error::{QueueError, Result};
use crate::names::{NameKind, dead_letter_name};

impl QueueSettings {
    /// Whether a queue with these settings, of that durability and with so many messages not settled may take the new ones.
    ///
    /// - `partitions` only grows; under an order only when the queue is empty, since a key would move to another partition
    ///   and overtake its own messages.
    /// - A stricter `ordering` needs an empty queue: what is there may be leased out of order by now. A looser one is free.
    /// - `durability` stays as it is, since the partitions of the log were made with it; settings that name none keep it.
    /// - A declared group keeps its `mode`: leases and offsets are different states. Groups come and go freely.
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
        // Of the order that was: a looser one that comes with the same change does not undo what was promised.
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
    /// Whether a queue of that name can have its dead letters where these settings say.
    pub fn check_dead_letters(&self, queue: &str) -> Result<()> {
        // What a request does not name has its default.
        let default = QueueSettings::default();
        let limits = [
            ("max_depth", ![0, default.max_depth].contains(&self.max_depth)),
            ("max_bytes", ![0, default.max_bytes].contains(&self.max_bytes)),
            ("overflow", self.overflow != Overflow::Reject),
        ];
        let limit = limits.into_iter().find(|(_, is_set)| *is_set);
        if let Some((key, _)) = limit.filter(|_| NameKind::of(queue) == NameKind::DeadLetter) {
            let why = "dead letters come whatever it says, or what is dead could not leave its queue; set retention.max_age, \
                       retention.max_messages or retention.max_bytes instead, and 0 or the default here";
            return Err(QueueError::invalid(format!("{key}: {why}")));
        }
        if !self.dlq.enabled {
            return Ok(());
        }
        let rule = match dead_letter_name(queue) {
            Ok(Some(_)) => return Ok(()),
            Ok(None) => "queues of dead letters have none of their own; set dlq.enabled: false".to_owned(),
            Err(error) => format!("{error}, because dlq.<name> is one too; shorten it or set dlq.enabled: false"),
        };
        Err(QueueError::invalid(format!("name: {rule}")))
    }

    /// A key that nothing in this version acts upon, and why.
    pub fn without_effect(&self) -> Option<(&'static str, String)> {
        if !self.topics.is_empty() {
            let why = "nothing is published to topics before there is the MQTT broker; remove it";
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
    /// Whether messages that are handed out under these settings may be out of the order of the new ones.
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
