//! Which queues and groups there are, kept in a partition of the log: a record for each change, with the queue's name as its
//! key and all there is to say of it as JSON; an empty value for a queue that is gone. Now and then all of it is written anew
//! as a checkpoint, whose records hold many queues each.
//!
//! A number is kept as given before the first partition of a queue is made under it, and with a mark until the queue is
//! there or its last partition is removed: so what a crash leaves half made or half removed is found and removed, and no
//! number is ever given twice.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use smol_str::SmolStr;
use thalweg_config::{Diagnostics, Node};
use thalweg_log::format::frame::Kind;
use thalweg_log::format::record::{RecordRef, records};
use thalweg_log::{Durability, Log, LogError, Micros, PartitionId, ReadWant, Records, Unit};
use tokio::sync::Mutex;

use crate::error::{QueueError, Result};
use crate::queue::IDS;
use crate::settings::{GroupSettings, QueueSettings};

/// The partition of the catalogue.
pub(crate) const CATALOG: PartitionId = PartitionId::new(1, 0);
/// Queues have numbers from here on.
pub(crate) const FIRST_ID: u32 = 16;
/// Less than this: the bits above tell kinds of partitions apart.
const NUMBERS: u32 = IDS;

/// The record that says which number the next queue gets.
const NEXT_ID: &str = "";
/// The key of many queues in one record: an object of names.
const MANY: &str = "/";
/// Keys of numbers whose partitions are not those of a queue: no name begins so.
const UNFINISHED: char = '/';
/// It is written anew when it has so many records more than queues.
const SURPLUS: usize = 1000;
/// Queues of one record of a checkpoint.
const TOGETHER: usize = 100;
/// A checkpoint that would be larger is not written, as it does not fit into a frame; the records of all changes stay.
const WHOLE_MAX: usize = 24 << 20;

/// What is kept of a queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub id: u32,
    pub settings: QueueSettings,
    /// What the log gave it when it was made.
    pub durability: Durability,
    pub groups: Vec<GroupEntry>,
    pub next_group: u32,
    pub produce_paused: bool,
    pub consume_paused: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GroupEntry {
    pub id: u32,
    pub settings: GroupSettings,
    pub declared: bool,
    pub paused: bool,
    /// Since when it has had no member; `None` while it has one.
    pub unused_since: Option<Micros>,
}

pub(crate) struct Catalog {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<SmolStr, Entry>,
    unfinished: BTreeSet<u32>,
    next_id: u32,
    records: usize,
}

impl Catalog {
    /// Reads it, or makes an empty one.
    pub async fn open(log: &dyn Log) -> Result<Catalog> {
        let mut state = State {
            next_id: FIRST_ID,
            ..State::default()
        };
        if !log.partitions().contains(&CATALOG) {
            log.create(CATALOG, Durability::Fsync).await?;
        }
        let mut from = log.last_checkpoint(CATALOG)?.unwrap_or(log.bounds(CATALOG)?.first);
        loop {
            let want = ReadWant {
                bytes: 1 << 20,
                synced: false,
            };
            let frames = log.read(CATALOG, from, want)?;
            let Some(last) = frames.last() else {
                break;
            };
            from = last.header.next();
            for record in frames.iter().flat_map(|frame| records(&frame.body)) {
                let record = record.map_err(|_| damaged("a record of the catalogue of queues cannot be read"))?;
                state.apply(record.key.unwrap_or_default(), record.value)?;
            }
        }
        Ok(Catalog {
            state: Mutex::new(state),
        })
    }

    pub async fn all(&self) -> Vec<(SmolStr, Entry)> {
        let state = self.state.lock().await;
        state
            .queues
            .iter()
            .map(|(name, entry)| (name.clone(), entry.clone()))
            .collect()
    }

    /// Numbers under which partitions may be left that no queue has.
    pub async fn unfinished(&self) -> BTreeSet<u32> {
        self.state.lock().await.unfinished.clone()
    }

    /// Gives no number up to this one: partitions have it.
    pub async fn skip(&self, id: u32) {
        let mut state = self.state.lock().await;
        state.next_id = state.next_id.max(id.saturating_add(1));
    }

    /// The number of a new queue, never given before. Unfinished until the queue is put. Durable when it returns.
    pub async fn begin(&self, log: &dyn Log, now: Micros) -> Result<u32> {
        let mut state = self.state.lock().await;
        let id = state.next_id;
        if id >= NUMBERS {
            return Err(QueueError::QuotaExceeded {
                what: "queues that were ever made",
                limit: u64::from(NUMBERS),
            });
        }
        let changes = [(NEXT_ID.to_owned(), (id + 1).to_string()), mark(id, true)];
        state.change(log, &changes, now).await?;
        state.next_id = id + 1;
        state.unfinished.insert(id);
        Ok(id)
    }

    /// No partition is left under the number of a queue that is not there. Durable when it returns.
    pub async fn finish(&self, log: &dyn Log, id: u32, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        state.change(log, &[mark(id, false)], now).await?;
        state.unfinished.remove(&id);
        Ok(())
    }

    /// Keeps what is said of a queue. Durable when it returns.
    pub async fn put(&self, log: &dyn Log, name: &SmolStr, entry: Entry, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        let mut changes = vec![(name.to_string(), entry.to_json().to_string())];
        changes.extend(state.unfinished.contains(&entry.id).then(|| mark(entry.id, false)));
        state.change(log, &changes, now).await?;
        state.unfinished.remove(&entry.id);
        state.queues.insert(name.clone(), entry);
        state.write_all_by_and_by(log, now).await;
        Ok(())
    }

    /// A queue is gone; its number is unfinished until its partitions are. Durable when it returns.
    pub async fn remove(&self, log: &dyn Log, name: &SmolStr, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        let Some(id) = state.queues.get(name).map(|entry| entry.id) else {
            return Ok(());
        };
        state
            .change(log, &[(name.to_string(), String::new()), mark(id, true)], now)
            .await?;
        state.queues.remove(name);
        state.unfinished.insert(id);
        state.write_all_by_and_by(log, now).await;
        Ok(())
    }
}

fn mark(id: u32, unfinished: bool) -> (String, String) {
    let value = if unfinished { "1" } else { "" };
    (format!("{UNFINISHED}{id}"), value.to_owned())
}

fn push(records: &mut Records, key: &str, value: &str, now: Micros) -> Result<()> {
    records.push(&RecordRef {
        key: Some(key.as_bytes()),
        ..RecordRef::of(now, value.as_bytes())
    })?;
    Ok(())
}

impl State {
    fn apply(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.records += 1;
        let name = std::str::from_utf8(key).map_err(|_| damaged("a queue has a name that is no text"))?;
        let text = std::str::from_utf8(value).map_err(|_| damaged("what is kept of a queue is no text"))?;
        if name == NEXT_ID {
            let next: u32 = text
                .parse()
                .map_err(|_| damaged("the number of the next queue is none"))?;
            self.next_id = self.next_id.max(next);
            return Ok(());
        }
        if name == MANY {
            let many: serde_json::Map<String, Value> =
                serde_json::from_str(text).map_err(|_| damaged("what is kept of many queues cannot be read"))?;
            for (name, entry) in many {
                self.apply(name.as_bytes(), entry.to_string().as_bytes())?;
            }
            return Ok(());
        }
        if let Some(id) = name.strip_prefix(UNFINISHED) {
            let id = id
                .parse()
                .map_err(|_| damaged("an unfinished queue has a number that is none"))?;
            match text.is_empty() {
                true => self.unfinished.remove(&id),
                false => self.unfinished.insert(id),
            };
            return Ok(());
        }
        if text.is_empty() {
            self.queues.remove(name);
            return Ok(());
        }
        let entry = Entry::from_json(text).ok_or_else(|| damaged("what is kept of a queue cannot be read"))?;
        self.next_id = self.next_id.max(entry.id + 1);
        self.queues.insert(SmolStr::new(name), entry);
        Ok(())
    }

    async fn change(&mut self, log: &dyn Log, changes: &[(String, String)], now: Micros) -> Result<()> {
        let mut records = Records::new();
        for (key, value) in changes {
            push(&mut records, key, value, now)?;
        }
        log.append(Unit::default().and_of(Kind::State, CATALOG, records), None)
            .await?;
        self.records += changes.len();
        Ok(())
    }

    /// What has changed is kept already, so an error is only told.
    async fn write_all_by_and_by(&mut self, log: &dyn Log, now: Micros) {
        if self.records <= self.queues.len() + SURPLUS {
            return;
        }
        if let Err(error) = self.write_all(log, now).await {
            tracing::warn!(%error, "the catalogue of queues cannot be written as a whole");
        }
        self.records = 0;
    }

    async fn write_all(&self, log: &dyn Log, now: Micros) -> Result<()> {
        let mut all = Records::new();
        let mut bytes = 0;
        push(&mut all, NEXT_ID, &self.next_id.to_string(), now)?;
        for id in &self.unfinished {
            let (key, value) = mark(*id, true);
            push(&mut all, &key, &value, now)?;
        }
        let queues: Vec<(&SmolStr, &Entry)> = self.queues.iter().collect();
        for some in queues.chunks(TOGETHER) {
            let many = some.iter().map(|(name, entry)| (name.to_string(), entry.to_json()));
            let text = Value::Object(many.collect()).to_string();
            bytes += text.len();
            if bytes > WHOLE_MAX {
                return Ok(());
            }
            push(&mut all, MANY, &text, now)?;
        }
        log.append(Unit::default().and_of(Kind::Checkpoint, CATALOG, all), None)
            .await?;
        Ok(())
    }
}

fn damaged(found: &str) -> QueueError {
    QueueError::Log(LogError::Corrupt {
        file: "the catalogue of queues".to_owned(),
        position: 0,
        expected: None,
        found: found.to_owned(),
    })
}

impl Entry {
    fn to_json(&self) -> Value {
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
        })
    }

    fn from_json(text: &str) -> Option<Entry> {
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
                // Not in what earlier versions wrote.
                unused_since: group.get("unused_since").and_then(Value::as_i64),
            });
        }
        let entry = Entry {
            id: number(value.get("id")?)?,
            durability: value.get("durability")?.as_str()?.parse().ok()?,
            settings,
            groups,
            next_group: number(value.get("next_group")?)?,
            produce_paused: value.get("produce_paused")?.as_bool()?,
            consume_paused: value.get("consume_paused")?.as_bool()?,
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
        let entry = Entry {
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
        };
        let text = entry.to_json().to_string();
        let earlier = text.replace(",\"unused_since\":1700000000000000", "");
        assert_ne!(earlier, text);
        assert_eq!(Entry::from_json(&text), Some(entry.clone()));
        let mut without = entry;
        without.groups[0].unused_since = None;
        assert_eq!(
            Entry::from_json(&earlier),
            Some(without),
            "as an earlier version wrote it"
        );
        assert_eq!(Entry::from_json("{}"), None);
        assert_eq!(Entry::from_json("no json"), None);
    }
}
