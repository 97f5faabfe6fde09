//! Where messages are in the log: by stream, by category, by global position and by id. Derived from the log, and filled in
//! the order of the log.

use std::collections::BTreeSet;
use std::sync::Arc;

use hashbrown::HashMap;
use thalweg_log::{Micros, Offset};

use crate::event::EventRef;
use crate::id::MessageId;
use crate::json::Json;
use crate::names;
use crate::store::{CategoryInfo, Direction, StreamInfo};

/// What the index says of a message, made before it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub offset: Offset,
    pub stream: Arc<str>,
    pub position: u64,
    pub global: u64,
    pub id: MessageId,
    pub time: Micros,
    /// Hash of the category of `correlationStreamName`; 0: none.
    pub correlation: u32,
    /// Hash of the type.
    pub kind: u32,
}

/// A message of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InStream {
    pub position: u64,
    pub global: u64,
    pub offset: Offset,
    pub kind: u32,
}

/// A message of a category, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InCategory {
    pub global: u64,
    pub offset: Offset,
    /// What distributes streams among members; `None` for those that belong to none.
    pub group: Option<u64>,
    pub correlation: u32,
    pub kind: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    streams: HashMap<Arc<str>, Stream>,
    /// In their order.
    names: BTreeSet<Arc<str>>,
    categories: HashMap<Box<str>, Category>,
    all: Sorted,
    ids: HashMap<MessageId, Offset>,
    last_activity: Option<Micros>,
    /// Behind the last message that is indexed.
    pub next_offset: Offset,
    /// The largest that was ever given.
    pub last_global: u64,
}

#[derive(Debug)]
struct Stream {
    /// By position.
    messages: Vec<InStream>,
    group: Option<u64>,
    last_activity: Micros,
}

#[derive(Debug, Default)]
struct Category {
    messages: Sorted,
    streams: u64,
}

/// By global position. What comes in another order, as from an import, is put in its place when somebody looks.
#[derive(Debug, Default)]
struct Sorted {
    messages: Vec<InCategory>,
    disordered: bool,
}

/// As the index keeps names by which it filters: it says no for good, and yes for the message to be looked at.
pub(crate) fn hash(text: &str) -> u32 {
    let hash = xxhash_rust::xxh3::xxh3_64(text.as_bytes());
    // Zero says that there is none.
    (hash as u32).max(1)
}

/// The category of `correlationStreamName` in the metadata.
pub(crate) fn correlation(metadata: Option<&str>) -> Option<String> {
    let metadata = metadata.filter(|text| text.contains("correlationStreamName") || text.contains('\\'))?;
    let name = Json::new(metadata).get("correlationStreamName")?.string()?;
    Some(names::category(&name).to_owned())
}

impl Entry {
    pub fn of(event: &EventRef<'_>, stream: Arc<str>, offset: Offset) -> Entry {
        Entry {
            offset,
            stream,
            position: event.position,
            global: event.global,
            id: event.id.into(),
            time: event.time,
            correlation: correlation(event.metadata).map_or(0, |category| hash(&category)),
            kind: hash(event.kind),
        }
    }
}

impl Index {
    /// Of a partition whose next offset this is, and that has no messages.
    pub fn from_offset(next_offset: Offset) -> Index {
        Index {
            next_offset,
            ..Index::default()
        }
    }

    pub fn add(&mut self, entry: Entry) {
        let category = names::category(&entry.stream);
        if !self.categories.contains_key(category) {
            self.categories.insert(category.into(), Category::default());
        }
        let stream = self.streams.entry(entry.stream.clone()).or_insert_with(|| {
            self.names.insert(entry.stream.clone());
            if let Some(category) = self.categories.get_mut(category) {
                category.streams += 1;
            }
            Stream {
                messages: Vec::new(),
                group: names::group_hash(&entry.stream),
                last_activity: entry.time,
            }
        });
        let place = InStream {
            position: entry.position,
            global: entry.global,
            offset: entry.offset,
            kind: entry.kind,
        };
        match stream.messages.last().is_none_or(|last| last.position < entry.position) {
            true => stream.messages.push(place),
            false => {
                let at = stream.messages.partition_point(|other| other.position < entry.position);
                stream.messages.insert(at, place);
            }
        }
        stream.last_activity = stream.last_activity.max(entry.time);
        let place = InCategory {
            global: entry.global,
            offset: entry.offset,
            group: stream.group,
            correlation: entry.correlation,
            kind: entry.kind,
        };
        if let Some(category) = self.categories.get_mut(category) {
            category.messages.push(place);
        }
        self.all.push(place);
        self.ids.insert(entry.id, entry.offset);
        self.last_activity = self.last_activity.max(Some(entry.time));
        self.next_offset = self.next_offset.max(entry.offset + 1);
        self.last_global = self.last_global.max(entry.global);
    }

    /// -1 without messages.
    pub fn version(&self, stream: &str) -> i64 {
        let last = self.streams.get(stream).and_then(|stream| stream.messages.last());
        last.map_or(-1, |last| last.position as i64)
    }

    /// The name of a stream that has messages.
    pub fn name(&self, stream: &str) -> Option<Arc<str>> {
        self.streams.get_key_value(stream).map(|(name, _)| name.clone())
    }

    pub fn id(&self, id: &MessageId) -> Option<Offset> {
        self.ids.get(id).copied()
    }

    /// Messages of a stream that pass the filter, from a position on in a direction.
    pub fn stream(
        &self,
        stream: &str,
        from: Option<u64>,
        direction: Direction,
        wanted: impl Fn(&InStream) -> bool,
        max: usize,
    ) -> Vec<InStream> {
        let all = self.streams.get(stream).map_or(&[][..], |stream| &stream.messages);
        let wanted = |message: &&InStream| wanted(message);
        match direction {
            Direction::Forward => {
                let start = from.map_or(0, |from| all.partition_point(|message| message.position < from));
                all.iter().skip(start).filter(wanted).take(max).copied().collect()
            }
            Direction::Backward => {
                let end = from.map_or(all.len(), |from| {
                    all.partition_point(|message| message.position <= from)
                });
                all.iter().take(end).rev().filter(wanted).take(max).copied().collect()
            }
        }
    }

    /// Messages of a category, or of all, that pass the filter. `None` if they have to be brought into order first.
    pub fn category(
        &self,
        category: Option<&str>,
        from: Option<u64>,
        direction: Direction,
        wanted: impl Fn(&InCategory) -> bool,
        max: usize,
    ) -> Option<Vec<InCategory>> {
        let sorted = match category {
            Some(category) => match self.categories.get(category) {
                Some(category) => &category.messages,
                None => return Some(Vec::new()),
            },
            None => &self.all,
        };
        if sorted.disordered {
            return None;
        }
        let all = &sorted.messages;
        let wanted = |message: &&InCategory| wanted(message);
        Some(match direction {
            Direction::Forward => {
                let start = from.map_or(0, |from| all.partition_point(|message| message.global < from));
                all.iter().skip(start).filter(wanted).take(max).copied().collect()
            }
            Direction::Backward => {
                let end = from.map_or(all.len(), |from| all.partition_point(|message| message.global <= from));
                all.iter().take(end).rev().filter(wanted).take(max).copied().collect()
            }
        })
    }

    pub fn sort(&mut self) {
        self.all.sort();
        self.categories
            .values_mut()
            .for_each(|category| category.messages.sort());
    }

    /// Whether some message has this global position. In order, as after [`Index::sort`].
    pub fn has_global(&self, global: u64) -> bool {
        let all = &self.all.messages;
        all.binary_search_by_key(&global, |message| message.global).is_ok()
    }

    pub fn has_position(&self, stream: &str, position: u64) -> bool {
        let stream = self.streams.get(stream);
        stream.is_some_and(|stream| {
            let messages = &stream.messages;
            messages
                .binary_search_by_key(&position, |message| message.position)
                .is_ok()
        })
    }

    pub fn counts(&self) -> (u64, u64, Option<Micros>) {
        (
            self.all.messages.len() as u64,
            self.streams.len() as u64,
            self.last_activity,
        )
    }

    pub fn streams(&self, prefix: &str, cursor: &str, max: usize) -> Vec<StreamInfo> {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let from = match cursor >= prefix && !cursor.is_empty() {
            true => Excluded(cursor),
            false => Included(prefix),
        };
        let named = self.names.range::<str, _>((from, Unbounded));
        named
            .take_while(|name| name.starts_with(prefix))
            .filter_map(|name| {
                let stream = self.streams.get(name)?;
                Some(StreamInfo {
                    stream: name.to_string(),
                    version: stream.messages.last()?.position,
                    last_activity: stream.last_activity,
                })
            })
            .take(max)
            .collect()
    }

    pub fn categories(&self) -> Vec<CategoryInfo> {
        let mut all: Vec<CategoryInfo> = self
            .categories
            .iter()
            .map(|(name, category)| CategoryInfo {
                category: name.to_string(),
                messages: category.messages.messages.len() as u64,
                streams: category.streams,
            })
            .collect();
        all.sort_by(|one, other| one.category.cmp(&other.category));
        all
    }
}

impl Sorted {
    fn push(&mut self, message: InCategory) {
        self.disordered |= self.messages.last().is_some_and(|last| last.global > message.global);
        self.messages.push(message);
    }

    fn sort(&mut self) {
        if std::mem::take(&mut self.disordered) {
            self.messages.sort_by_key(|message| message.global);
        }
    }
}
