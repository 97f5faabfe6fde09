//! Plans a batch of appends: which succeed, at which positions, and which are refused. Nothing here performs I/O; the
//! caller provides what the database knows of the streams and ids in the batch.

use std::collections::{BTreeMap, HashMap};

use thalweg_events::admission::{self, MessageContent};
use thalweg_events::event::{EventRef, IdRef};
use thalweg_events::{AppendOutcome, ExpectedVersion, MessageId, Result, Uuid, names};
use thalweg_kit::time::Micros;

use crate::columns;

/// Owned messages for one stream.
pub(crate) struct AppendRequest {
    pub stream: String,
    pub expected: ExpectedVersion,
    pub events: Vec<AppendEvent>,
}

pub(crate) struct AppendEvent {
    pub id: Option<MessageId>,
    pub kind: String,
    pub data: String,
    pub metadata: Option<String>,
}

impl AppendRequest {
    /// The size of its messages, each with the name of the stream.
    pub fn bytes(&self) -> usize {
        let of =
            |event: &AppendEvent| event.kind.len() + event.data.len() + event.metadata.as_ref().map_or(0, String::len);
        self.events.iter().map(|event| self.stream.len() + of(event)).sum()
    }
}

impl AppendEvent {
    fn content(&self) -> MessageContent<'_> {
        MessageContent {
            id: self.id.as_ref(),
            kind: &self.kind,
            data: &self.data,
            metadata: self.metadata.as_deref(),
        }
    }
}

/// The counters in the row of the namespace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NamespaceCounters {
    pub space: i64,
    pub last_global: i64,
    pub last_stream: i64,
    pub last_category: i64,
    pub change: i64,
    pub cleared: i64,
}

/// The state of a stream.
#[derive(Clone, Debug)]
pub(crate) struct StreamRow {
    /// `None`: it has no row yet.
    pub stream: Option<i64>,
    pub category: Option<i64>,
    pub version: i64,
    pub messages: i64,
    pub is_tombstone: bool,
    pub has_rule: bool,
    pub ages: bool,
}

/// A stored message that has one of the batch's ids.
#[derive(Clone, Debug)]
pub(crate) struct ExistingMessage {
    pub stream: String,
    pub position: i64,
    pub global: i64,
    pub kind: String,
    pub data: String,
    pub metadata: Option<String>,
}

impl ExistingMessage {
    fn event<'e>(&'e self, id: &'e MessageId) -> EventRef<'e> {
        EventRef {
            id: IdRef::from(id),
            own_id: false,
            stream: &self.stream,
            position: columns::unsigned(self.position),
            global: columns::unsigned(self.global),
            kind: &self.kind,
            data: &self.data,
            metadata: self.metadata.as_deref(),
            time: 0,
            is_first: false,
            is_imported: false,
        }
    }
}

/// The rows to insert and to update.
#[derive(Default)]
pub(crate) struct PlannedRows<'a> {
    pub counters: NamespaceCounters,
    pub messages: Vec<MessageRow<'a>>,
    pub streams: BTreeMap<i64, StreamUpdate<'a>>,
    pub categories: BTreeMap<i64, CategoryUpdate<'a>>,
    /// The number of streams that become visible.
    pub appeared: i64,
}

pub(crate) struct MessageRow<'a> {
    pub id: Vec<u8>,
    pub stream: i64,
    pub category: i64,
    pub position: i64,
    pub global: i64,
    pub group: Option<i64>,
    pub ages: bool,
    pub event: &'a AppendEvent,
}

pub(crate) struct StreamUpdate<'a> {
    pub name: &'a str,
    pub category: i64,
    pub version: i64,
    pub messages: i64,
    pub has_rule: bool,
}

pub(crate) struct CategoryUpdate<'a> {
    pub name: &'a str,
    pub is_new: bool,
    pub messages: i64,
    pub streams: i64,
}

pub(crate) struct AppendPlan<'a> {
    pub rows: PlannedRows<'a>,
    pub streams: HashMap<String, StreamRow>,
    /// The new categories of this batch; existing ones are in `streams`.
    categories: HashMap<&'a str, i64>,
    pub ids: HashMap<MessageId, ExistingMessage>,
    pub now: Micros,
    /// Ten random bytes for each message without an id.
    pub chance: Vec<[u8; 10]>,
}

impl<'a> AppendPlan<'a> {
    pub fn new(
        counters: NamespaceCounters,
        streams: HashMap<String, StreamRow>,
        ids: HashMap<MessageId, ExistingMessage>,
    ) -> AppendPlan<'a> {
        AppendPlan {
            rows: PlannedRows {
                counters,
                ..PlannedRows::default()
            },
            streams,
            categories: HashMap::new(),
            ids,
            now: 0,
            chance: Vec::new(),
        }
    }

    /// Plans one append of the batch, completely or not at all.
    pub fn add(&mut self, appends: &'a [AppendRequest]) -> Result<Vec<AppendOutcome>> {
        if let Some(places) = self.repeated(appends)? {
            return Ok(places);
        }
        for append in appends {
            let is_tombstoned = self.streams.get(&append.stream).is_some_and(|known| known.is_tombstone);
            admission::takes_messages(&append.stream, is_tombstoned)?;
            admission::has_version(&append.stream, append.expected, self.version(append))?;
        }
        let counts = appends.iter();
        let counts = counts.map(|append| (append.stream.as_str(), self.version(append), append.events.len()));
        admission::have_positions(counts, columns::unsigned(self.rows.counters.last_global))?;
        Ok(appends.iter().map(|append| self.number(append)).collect())
    }

    /// The version of its stream.
    fn version(&self, append: &AppendRequest) -> i64 {
        self.streams.get(&append.stream).map_or(-1, |known| known.version)
    }

    /// The positions of the append if all of its messages are already stored.
    fn repeated(&self, appends: &[AppendRequest]) -> Result<Option<Vec<AppendOutcome>>> {
        if self.ids.is_empty() {
            return Ok(None);
        }
        let appends = appends.iter();
        let appends = appends.map(|append| (append.stream.as_str(), append.events.iter().map(AppendEvent::content)));
        let stored = |id: &MessageId| self.ids.get_key_value(id).map(|(id, found)| found.event(id));
        admission::repeated(appends, stored)
    }

    fn number(&mut self, append: &'a AppendRequest) -> AppendOutcome {
        let count = append.events.len() as i64;
        let mut known = self
            .streams
            .get(&append.stream)
            .cloned()
            .unwrap_or(StreamRow::nothing());
        let first_global = self.rows.counters.last_global + 1;
        let places = AppendOutcome {
            count: append.events.len() as u64,
            first_position: columns::unsigned(known.version + 1),
            first_global: columns::unsigned(first_global),
            duplicate: false,
        };
        if count == 0 {
            return places;
        }
        let category = self.category(&append.stream, &known);
        let stream = known.stream.unwrap_or_else(|| {
            self.rows.counters.last_stream += 1;
            self.rows.counters.last_stream
        });
        let group = columns::group(&append.stream);
        for (event, n) in append.events.iter().zip(0..) {
            let (position, global) = (known.version + 1 + n, first_global + n);
            let id = self.id(event, &append.stream, position, global);
            self.rows.messages.push(MessageRow {
                id,
                stream,
                category,
                position,
                global,
                group,
                ages: known.ages,
                event,
            });
        }
        self.rows.counters.last_global += count;
        self.count(&append.stream, category, count, i64::from(known.messages == 0));
        known.stream = Some(stream);
        known.category = Some(category);
        known.version += count;
        known.messages += count;
        self.rows.streams.insert(
            stream,
            StreamUpdate {
                name: &append.stream,
                category,
                version: known.version,
                messages: known.messages,
                has_rule: known.has_rule,
            },
        );
        self.streams.insert(append.stream.clone(), known);
        places
    }

    fn id(&mut self, event: &AppendEvent, stream: &str, position: i64, global: i64) -> Vec<u8> {
        let Some(id) = &event.id else {
            let chance = self.chance.pop().unwrap_or_default();
            let made = Uuid::new_at((self.now / 1000).unsigned_abs(), chance);
            return columns::id_bytes(&MessageId::Uuid(made));
        };
        let same = ExistingMessage {
            stream: stream.to_owned(),
            position,
            global,
            kind: event.kind.clone(),
            data: event.data.clone(),
            metadata: event.metadata.clone(),
        };
        self.ids.insert(id.clone(), same);
        columns::id_bytes(id)
    }

    fn category(&mut self, stream: &'a str, known: &StreamRow) -> i64 {
        let name = names::category(stream);
        if let Some(number) = known.category.or_else(|| self.categories.get(name).copied()) {
            return number;
        }
        self.rows.counters.last_category += 1;
        let number = self.rows.counters.last_category;
        self.categories.insert(name, number);
        number
    }

    fn count(&mut self, stream: &'a str, category: i64, messages: i64, streams: i64) {
        let name = names::category(stream);
        let is_new = self.categories.contains_key(name);
        let counted = self.rows.categories.entry(category).or_insert(CategoryUpdate {
            name,
            is_new,
            messages: 0,
            streams: 0,
        });
        counted.messages += messages;
        counted.streams += streams;
        self.rows.appeared += streams;
    }
}

impl StreamRow {
    fn nothing() -> StreamRow {
        StreamRow {
            stream: None,
            category: None,
            version: -1,
            messages: 0,
            is_tombstone: false,
            has_rule: false,
            ages: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_events::EventsError;

    use super::*;

    fn wanted(stream: &str, expected: ExpectedVersion, ids: &[&str]) -> Vec<AppendRequest> {
        let events = ids.iter().map(|id| AppendEvent {
            id: (!id.is_empty()).then(|| MessageId::of(id)),
            kind: "T".to_owned(),
            data: "{}".to_owned(),
            metadata: None,
        });
        vec![AppendRequest {
            stream: stream.to_owned(),
            expected,
            events: events.collect(),
        }]
    }

    #[test]
    fn what_comes_later_in_a_batch_sees_what_came_before_and_a_refused_append_takes_no_place() {
        let batch = [
            wanted("a-1", ExpectedVersion::NoStream, &["x", ""]),
            wanted("a-1", ExpectedVersion::Version(0), &[""]),
            wanted("a-1", ExpectedVersion::Version(1), &[""]),
            wanted("a-1", ExpectedVersion::Any, &["x"]),
            wanted("b", ExpectedVersion::NoStream, &[""]),
            wanted("a-2", ExpectedVersion::Any, &["", "x"]),
        ];
        let mut plan = AppendPlan::new(NamespaceCounters::default(), HashMap::new(), HashMap::new());
        let mut done = batch.iter().map(|appends| plan.add(appends));
        let place = |done: Option<Result<Vec<AppendOutcome>>>| {
            let places = done.unwrap().unwrap();
            (places[0].first_position, places[0].first_global)
        };
        assert_eq!(place(done.next()), (0, 1));
        let refused = done.next().unwrap();
        assert!(
            matches!(refused, Err(EventsError::VersionConflict { actual: 1, .. })),
            "{refused:?}"
        );
        assert_eq!(place(done.next()), (2, 3));
        let refused = done.next().unwrap();
        assert!(refused.is_ok_and(|places| places[0].duplicate && places[0].first_global == 1));
        assert_eq!(place(done.next()), (0, 4));
        let refused = done.next().unwrap();
        assert!(
            matches!(refused, Err(EventsError::IdConflict { position: 0, .. })),
            "{refused:?}"
        );
        drop(done);
        assert_eq!(plan.rows.messages.len(), 4);
        assert_eq!(
            (plan.rows.streams.len(), plan.rows.categories.len(), plan.rows.appeared),
            (2, 2, 2)
        );
        assert_eq!(plan.rows.counters.last_global, 4);
    }
}
