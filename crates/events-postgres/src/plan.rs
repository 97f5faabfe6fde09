//! What a batch of appends becomes: which of them are done, with which places, and what is refused. Nothing here waits or
//! asks; what the database knows of the streams and ids that the batch names is given.

use std::collections::{BTreeMap, HashMap};

use thalweg_events::{Appended, EventsError, Expected, MessageId, POSITION_MAX, Result, Uuid, names};
use thalweg_log::Micros;

use crate::text;

/// Messages for one stream, with what they lie in.
pub(crate) struct Wanted {
    pub stream: String,
    pub expected: Expected,
    pub events: Vec<WantedEvent>,
}

pub(crate) struct WantedEvent {
    pub id: Option<MessageId>,
    pub kind: String,
    pub data: String,
    pub metadata: Option<String>,
}

/// The row of the namespace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub space: i64,
    pub last_global: i64,
    pub last_stream: i64,
    pub last_category: i64,
    pub change: i64,
    pub cleared: i64,
}

/// What is known of a stream, by its name.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// `None`: it has no row yet.
    pub stream: Option<i64>,
    pub category: Option<i64>,
    pub version: i64,
    pub messages: i64,
    pub is_tombstone: bool,
    pub has_rule: bool,
    pub ages: bool,
}

/// A message that has an id already.
#[derive(Clone, Debug)]
pub(crate) struct Same {
    pub stream: String,
    pub position: i64,
    pub global: i64,
    pub kind: String,
    pub data: String,
    pub metadata: Option<String>,
}

/// Columns of what is inserted and changed.
#[derive(Default)]
pub(crate) struct Rows<'a> {
    pub counters: Counters,
    pub messages: Vec<Message<'a>>,
    pub streams: BTreeMap<i64, Changed<'a>>,
    pub categories: BTreeMap<i64, Counted<'a>>,
    /// Streams that are seen now and were not.
    pub appeared: i64,
}

pub(crate) struct Message<'a> {
    pub id: Vec<u8>,
    pub stream: i64,
    pub category: i64,
    pub position: i64,
    pub global: i64,
    pub group: Option<i64>,
    pub ages: bool,
    pub event: &'a WantedEvent,
}

pub(crate) struct Changed<'a> {
    pub name: &'a str,
    pub category: i64,
    pub version: i64,
    pub messages: i64,
    pub has_rule: bool,
}

pub(crate) struct Counted<'a> {
    pub name: &'a str,
    pub is_new: bool,
    pub messages: i64,
    pub streams: i64,
}

pub(crate) struct Plan<'a> {
    pub rows: Rows<'a>,
    pub streams: HashMap<String, Known>,
    /// New ones of this batch; those of the database are in what is known of streams.
    categories: HashMap<&'a str, i64>,
    pub ids: HashMap<MessageId, Same>,
    pub now: Micros,
    /// Random bytes, ten for each message without an id.
    pub chance: Vec<[u8; 10]>,
}

impl<'a> Plan<'a> {
    pub fn new(counters: Counters, streams: HashMap<String, Known>, ids: HashMap<MessageId, Same>) -> Plan<'a> {
        Plan {
            rows: Rows {
                counters,
                ..Rows::default()
            },
            streams,
            categories: HashMap::new(),
            ids,
            now: 0,
            chance: Vec::new(),
        }
    }

    /// One append of the batch: all of it, or nothing.
    pub fn add(&mut self, appends: &'a [Wanted]) -> Result<Vec<Appended>> {
        if let Some(places) = self.known(appends)? {
            return Ok(places);
        }
        let mut last_global = self.rows.counters.last_global;
        for append in appends {
            self.allows(append)?;
            last_global += append.events.len() as i64;
        }
        if last_global > POSITION_MAX.cast_signed() {
            let of = "the namespace".to_owned();
            return Err(EventsError::NoPositions { of });
        }
        Ok(appends.iter().map(|append| self.number(append)).collect())
    }

    fn allows(&self, append: &Wanted) -> Result<()> {
        let known = self.streams.get(&append.stream);
        if known.is_some_and(|known| known.is_tombstone) {
            return Err(EventsError::StreamDeleted(append.stream.clone()));
        }
        let version = known.map_or(-1, |known| known.version);
        if !append.expected.allows(version) {
            return Err(EventsError::VersionConflict {
                stream: append.stream.clone(),
                expected: append.expected,
                actual: version,
            });
        }
        if version + append.events.len() as i64 > POSITION_MAX.cast_signed() {
            let of = format!("stream '{}'", append.stream);
            return Err(EventsError::NoPositions { of });
        }
        Ok(())
    }

    /// Where its messages are, if they are all there already; an error if only some are, or others have their ids.
    fn known(&self, appends: &[Wanted]) -> Result<Option<Vec<Appended>>> {
        let mut places = Vec::with_capacity(appends.len());
        let (mut all, mut conflict) = (true, None);
        for append in appends {
            let mut first = None;
            for (event, n) in append.events.iter().zip(0..) {
                let found = event.id.as_ref().and_then(|id| Some((id, self.ids.get(id)?)));
                let Some((id, found)) = found else {
                    all = false;
                    continue;
                };
                let (position, global) = *first.get_or_insert((found.position, found.global));
                all &= found.stream == append.stream
                    && (&found.kind, &found.data, &found.metadata) == (&event.kind, &event.data, &event.metadata)
                    && (found.position, found.global) == (position + n, global + n);
                conflict.get_or_insert_with(|| EventsError::IdConflict {
                    id: id.to_string(),
                    stream: found.stream.clone(),
                    position: text::unsigned(found.position),
                });
            }
            let (position, global) = first.unwrap_or_default();
            places.push(Appended {
                count: append.events.len() as u64,
                first_position: text::unsigned(position),
                first_global: text::unsigned(global),
                duplicate: true,
            });
        }
        match conflict {
            Some(conflict) if !all => Err(conflict),
            Some(_) => Ok(Some(places)),
            None => Ok(None),
        }
    }

    fn number(&mut self, append: &'a Wanted) -> Appended {
        let count = append.events.len() as i64;
        let mut known = self.streams.get(&append.stream).cloned().unwrap_or(Known::nothing());
        let first_global = self.rows.counters.last_global + 1;
        let places = Appended {
            count: append.events.len() as u64,
            first_position: text::unsigned(known.version + 1),
            first_global: text::unsigned(first_global),
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
        let group = text::group(&append.stream);
        for (event, n) in append.events.iter().zip(0..) {
            let (position, global) = (known.version + 1 + n, first_global + n);
            let id = self.id(event, &append.stream, position, global);
            self.rows.messages.push(Message {
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
            Changed {
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

    fn id(&mut self, event: &WantedEvent, stream: &str, position: i64, global: i64) -> Vec<u8> {
        let Some(id) = &event.id else {
            let chance = self.chance.pop().unwrap_or_default();
            let made = Uuid::new_at((self.now / 1000).unsigned_abs(), chance);
            return text::id_bytes(&MessageId::Uuid(made));
        };
        let same = Same {
            stream: stream.to_owned(),
            position,
            global,
            kind: event.kind.clone(),
            data: event.data.clone(),
            metadata: event.metadata.clone(),
        };
        self.ids.insert(id.clone(), same);
        text::id_bytes(id)
    }

    fn category(&mut self, stream: &'a str, known: &Known) -> i64 {
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
        let counted = self.rows.categories.entry(category).or_insert(Counted {
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

impl Known {
    fn nothing() -> Known {
        Known {
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
    use super::*;

    fn wanted(stream: &str, expected: Expected, ids: &[&str]) -> Vec<Wanted> {
        let events = ids.iter().map(|id| WantedEvent {
            id: (!id.is_empty()).then(|| MessageId::of(id)),
            kind: "T".to_owned(),
            data: "{}".to_owned(),
            metadata: None,
        });
        vec![Wanted {
            stream: stream.to_owned(),
            expected,
            events: events.collect(),
        }]
    }

    #[test]
    fn what_comes_later_in_a_batch_sees_what_came_before_and_a_refused_append_takes_no_place() {
        let batch = [
            wanted("a-1", Expected::NoStream, &["x", ""]),
            wanted("a-1", Expected::Version(0), &[""]),
            wanted("a-1", Expected::Version(1), &[""]),
            wanted("a-1", Expected::Any, &["x"]),
            wanted("b", Expected::NoStream, &[""]),
            wanted("a-2", Expected::Any, &["", "x"]),
        ];
        let mut plan = Plan::new(Counters::default(), HashMap::new(), HashMap::new());
        let mut done = batch.iter().map(|appends| plan.add(appends));
        let place = |done: Option<Result<Vec<Appended>>>| {
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
