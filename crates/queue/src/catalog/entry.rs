//! The catalogue entry of one queue and its groups, and its JSON encoding.

use serde_json::{Value, json};
use thalweg_config::{Diagnostics, Node};
use thalweg_log::{Durability, Micros};

use crate::settings::{GroupSettings, QueueSettings};

/// The stored description of a queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct QueueEntry {
    pub id: u32,
    pub settings: QueueSettings,
    /// The durability that the log applied when the queue was created.
    pub durability: Durability,
    pub groups: Vec<GroupEntry>,
    pub next_group: u32,
    pub produce_paused: bool,
    pub consume_paused: bool,
    /// Messages may expire before messages that were stored earlier. Earlier versions did not store this.
    pub expires_early: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GroupEntry {
    pub id: u32,
    pub settings: GroupSettings,
    pub declared: bool,
    pub paused: bool,
    /// When its last member left; `None` while it has members.
    pub unused_since: Option<Micros>,
}

impl QueueEntry {
    /// The groups with this number: one or none.
    pub fn groups_of(&mut self, id: u32) -> impl Iterator<Item = &mut GroupEntry> {
        self.groups.iter_mut().filter(move |group| group.id == id)
    }

    pub fn to_json(&self) -> Value {
        let groups: Vec<Value> = self
            .groups
            .iter()
            .map(|group| {
                json!({
                    "id": group.id,
                    "settings": group.settings.to_json(),
                    "declared": group.declared,
                    "paused": group.paused,
                    "unused_since": group.unused_since,
                })
            })
            .collect();
        json!({
            "id": self.id,
            "durability": self.durability.name(),
            "settings": self.settings.to_json(),
            "groups": groups,
            "next_group": self.next_group,
            "produce_paused": self.produce_paused,
            "consume_paused": self.consume_paused,
            "expires_early": self.expires_early,
        })
    }

    pub fn from_json(text: &str) -> Option<QueueEntry> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |value: &Value| u32::try_from(value.as_u64()?).ok();
        let diags = Diagnostics::new("the catalogue of queues");
        let node = |value: &Value| Node::parse(&value.to_string()).ok();
        let settings = QueueSettings::stored(&node(value.get("settings")?)?, &diags);
        let mut groups = Vec::new();
        for group in value.get("groups")?.as_array()? {
            groups.push(GroupEntry {
                id: number(group.get("id")?)?,
                settings: GroupSettings::read(&node(group.get("settings")?)?, &diags),
                declared: group.get("declared")?.as_bool()?,
                paused: group.get("paused")?.as_bool()?,
                // Earlier versions did not write this.
                unused_since: group.get("unused_since").and_then(Value::as_i64),
            });
        }
        let entry = QueueEntry {
            id: number(value.get("id")?)?,
            durability: value.get("durability")?.as_str()?.parse().ok()?,
            settings,
            groups,
            next_group: number(value.get("next_group")?)?,
            produce_paused: value.get("produce_paused")?.as_bool()?,
            consume_paused: value.get("consume_paused")?.as_bool()?,
            expires_early: value.get("expires_early").and_then(Value::as_bool).unwrap_or(true),
        };
        (!diags.has_errors()).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::GroupMode;

    #[test]
    fn what_is_kept_of_a_queue_reads_as_it_was() {
        let settings = QueueSettings {
            partitions: 3,
            groups: vec![GroupSettings::new("alarms", GroupMode::Work)],
            ..QueueSettings::default()
        };
        let entry = QueueEntry {
            id: 17,
            settings,
            durability: Durability::Os,
            groups: vec![GroupEntry {
                id: 4,
                settings: GroupSettings::new("live", GroupMode::Stream),
                declared: true,
                paused: false,
                unused_since: Some(1_700_000_000_000_000),
            }],
            next_group: 5,
            produce_paused: false,
            consume_paused: true,
            expires_early: true,
        };
        let text = entry.to_json().to_string();
        let earlier = text
            .replace(",\"unused_since\":1700000000000000", "")
            .replace(",\"expires_early\":true", "")
            .replace("\"expires_early\":true,", "");
        assert_ne!(earlier, text);
        assert_eq!(QueueEntry::from_json(&text), Some(entry.clone()));
        let mut without = entry;
        without.groups[0].unused_since = None;
        assert_eq!(
            QueueEntry::from_json(&earlier),
            Some(without),
            "as an earlier version wrote it"
        );
        assert_eq!(QueueEntry::from_json("{}"), None);
        assert_eq!(QueueEntry::from_json("no json"), None);
    }
}
