//! What is stored and not shown any more: messages that a rule of retention hides, and those of deleted streams. The rules are
//! documents, and all in memory; what they hide is looked at when it is read or counted, until scavenging removes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};
use thalweg_log::clock::Jumps;
use thalweg_log::{Micros, Offset};

use super::append::as_expected;
use super::index::{Index, Io, List, Listed, Read, State, Unread};
use super::namespace::EmbeddedNamespace;
use super::pages::{PASSED_MAX, Wanted};
use crate::error::{EventsError, Result};
use crate::event::EventRef;
use crate::names;
use crate::store::{CategoryInfo, CategoryRead, Direction, Expected, Retention, RetentionOf, StreamInfo};

/// How the names of documents begin that are the engine's own.
pub(super) const OWN: &str = "~";
const OF_STREAM: &str = "~stream/";
const OF_CATEGORY: &str = "~category/";
pub(super) const DELETED: &str = "~deleted/";

/// To count what is stored and what of it is hidden, before others have to wait for it.
const ATTEMPTS: u32 = 8;

/// Of a stream that was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Deleted {
    /// Messages at lower positions are hidden.
    pub before: u64,
    /// Nothing is stored in it any more.
    pub tombstone: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    streams: HashMap<String, Retention>,
    categories: HashMap<String, Retention>,
    deleted: HashMap<String, Deleted>,
}

impl Rules {
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.categories.is_empty() && self.deleted.is_empty()
    }

    pub fn is_tombstoned(&self, stream: &str) -> bool {
        !self.deleted.is_empty() && self.deleted.get(stream).is_some_and(|deleted| deleted.tombstone)
    }

    /// Messages of a stream at lower positions were deleted.
    pub fn deleted_before(&self, stream: &str) -> u64 {
        self.deleted.get(stream).map_or(0, |deleted| deleted.before)
    }

    pub fn of(&self, of: RetentionOf<'_>) -> Option<Retention> {
        match of {
            RetentionOf::Stream(stream) => self.streams.get(stream).copied(),
            RetentionOf::Category(category) => self.categories.get(category).copied(),
        }
    }

    /// Whether the same rule hides messages of a stream. A deletion is not one: it only ever hides more.
    pub fn rule_alike(&self, other: &Rules, stream: &str) -> bool {
        self.for_stream(stream) == other.for_stream(stream)
    }

    /// Streams that go on behind a deletion, and the version that they had then.
    pub fn deleted_versions(&self) -> impl Iterator<Item = (&str, u64)> {
        let going_on = self.deleted.iter().filter(|(_, deleted)| !deleted.tombstone);
        going_on.filter_map(|(stream, deleted)| Some((stream.as_str(), deleted.before.checked_sub(1)?)))
    }

    /// That of the stream, else that of its category.
    fn for_stream(&self, stream: &str) -> Option<Retention> {
        let own = self.streams.get(stream);
        own.or_else(|| self.categories.get(names::category(stream))).copied()
    }

    pub fn concerns(&self, stream: &str) -> bool {
        self.deleted.contains_key(stream) || self.for_stream(stream).is_some()
    }

    /// Whether one of them is of the category, or of a stream of it.
    pub fn concern_some_of(&self, category: &str) -> bool {
        let is_own = |stream: &String| names::category(stream) == category;
        self.categories.contains_key(category) || self.streams.keys().any(is_own) || self.deleted.keys().any(is_own)
    }

    /// As a document of this name says it; `false` for one that is none of these.
    fn apply(&mut self, name: &str, content: Option<&[u8]>) -> Result<()> {
        if let Some(stream) = name.strip_prefix(OF_STREAM) {
            put(&mut self.streams, stream, content)
        } else if let Some(category) = name.strip_prefix(OF_CATEGORY) {
            put(&mut self.categories, category, content)
        } else if let Some(stream) = name.strip_prefix(DELETED) {
            put(&mut self.deleted, stream, content)
        } else {
            Ok(())
        }
    }
}

fn put<T: for<'a> Deserialize<'a>>(map: &mut HashMap<String, T>, name: &str, content: Option<&[u8]>) -> Result<()> {
    match content {
        Some(content) => {
            let value = serde_json::from_slice(content).map_err(|error| {
                EventsError::Damaged(format!(
                    "the rule of {name} is in no form that this version knows: {error}"
                ))
            })?;
            map.insert(name.to_owned(), value);
        }
        None => {
            map.remove(name);
        }
    }
    Ok(())
}

/// What is hidden, as somebody who reads asks again and again.
pub(super) struct Hidden {
    /// `None`: nothing is.
    rules: Option<Arc<Rules>>,
    /// Log time, and what the wall clock showed at it: messages are stamped by that.
    now: Micros,
    jumps: Arc<Jumps>,
    floors: HashMap<String, u64>,
}

impl Hidden {
    /// The position before which a stream's messages are hidden.
    pub fn floor(&mut self, namespace: &EmbeddedNamespace, stream: &str, io: Io) -> Read<u64> {
        let Some(rules) = &self.rules else { return Ok(0) };
        if let Some(floor) = self.floors.get(stream) {
            return Ok(*floor);
        }
        let deleted = rules.deleted_before(stream);
        let rule = rules.for_stream(stream).unwrap_or_default();
        let of_count = match rule.max_count {
            Some(count) => namespace.floor_of_newest(stream, count, io)?,
            None => 0,
        };
        let floor = deleted.max(rule.truncate_before.unwrap_or(0)).max(of_count);
        self.floors.insert(stream.to_owned(), floor);
        Ok(floor)
    }

    /// Messages of a stream that are older are hidden.
    fn oldest(&self, stream: &str) -> Option<Micros> {
        let age = self.rules.as_ref()?.for_stream(stream)?.max_age?;
        Some(self.jumps.least_wall_since(self.now.saturating_sub(age), self.now))
    }

    pub fn hides(&mut self, namespace: &EmbeddedNamespace, event: &EventRef<'_>, io: Io) -> Read<bool> {
        if self.rules.is_none() {
            return Ok(false);
        }
        let is_old = self.oldest(event.stream).is_some_and(|oldest| event.time < oldest);
        Ok(is_old || event.position < self.floor(namespace, event.stream, io)?)
    }

    /// Messages of a stream that are stored and hidden, and whether those are all. May block.
    fn count(&mut self, namespace: &EmbeddedNamespace, stream: &str) -> Read<(u64, bool)> {
        let floor = self.floor(namespace, stream, Io::MayBlock)?;
        let oldest = self.oldest(stream);
        // Everything before it is older.
        let young: Offset = match oldest {
            Some(oldest) => namespace.place.log.offset_at(namespace.partition, oldest).unwrap_or(0),
            None => 0,
        };
        let has_imports = namespace.index.read().state.has_imports;
        let mixed = oldest.is_some_and(|oldest| has_imports || self.jumps.may_fall_below(oldest));
        let (mut hidden, mut shown) = (0, false);
        let list = Listed::Of(List::Stream, stream.to_owned());
        namespace.walk(&list, None, Direction::Forward, Io::MayBlock, &mut |row| {
            let is_old = match oldest {
                Some(_) if row.offset < young => true,
                Some(oldest) => namespace
                    .time_at(row.offset, Io::MayBlock)?
                    .is_some_and(|time| time < oldest),
                None => false,
            };
            if is_old || row.ordinal < floor {
                hidden += 1;
                return Ok(true);
            }
            shown = true;
            // What comes later is younger, unless it was imported or stamped by a clock that was set back.
            Ok(mixed)
        })?;
        Ok((hidden, !shown))
    }
}

/// What is hidden of a category.
#[derive(Clone, Copy, Debug, Default)]
struct Less {
    messages: u64,
    streams: u64,
}

/// Streams looked at together.
const STREAMS: usize = 1000;

impl EmbeddedNamespace {
    /// The position of the oldest of so many newest messages of a stream.
    fn floor_of_newest(&self, stream: &str, count: u64, io: Io) -> Read<u64> {
        let version = self.version_stored(stream, io)?;
        let floor = ((version + 1) as u64).saturating_sub(count);
        // Only what is imported leaves out positions, so that nothing else has to be counted.
        if floor == 0 || count == 0 || !self.index.read().state.has_imports {
            return Ok(floor);
        }
        let (mut found, mut oldest) = (0, 0);
        let list = Listed::Of(List::Stream, stream.to_owned());
        self.walk(&list, None, Direction::Backward, io, &mut |row| {
            (found, oldest) = (found + 1, row.ordinal);
            if found > PASSED_MAX as u64 && io == Io::MemoryOnly {
                return Err(Unread::OnDisk);
            }
            Ok(found < count)
        })?;
        Ok(if found < count { 0 } else { oldest })
    }

    pub(super) fn hidden(&self) -> Hidden {
        let (rules, clock) = (self.rules(), self.place.log.clock());
        if !rules.is_empty() {
            // A message that was stamped since the clock was set is as young as it is.
            clock.notice();
        }
        Hidden {
            rules: (!rules.is_empty()).then_some(rules),
            now: clock.now(),
            jumps: clock.jumps(),
            floors: HashMap::new(),
        }
    }

    /// The rules that are stored. Blocks.
    pub(super) fn load_rules(&self) -> Read<()> {
        let (mut rules, mut cursor) = (Rules::default(), String::new());
        let cleared_at = self.index.read().state.cleared_at;
        loop {
            let names = self.documents_stored(OWN, &cursor, STREAMS)?;
            let Some(last) = names.last() else { break };
            cursor.clone_from(last);
            for name in names {
                let at = self.document_at(&name, Io::MayBlock)?;
                let lost = at.filter(|at| !name.starts_with(DELETED) || at.offset >= cleared_at);
                let record = match at {
                    // What was deleted before everything was removed is forgotten with it.
                    Some(at) if name.starts_with(DELETED) && at.offset < cleared_at => None,
                    Some(at) => self.reading(Io::MayBlock).record(at.offset)?,
                    None => None,
                };
                let content = record.and_then(|(value, _)| super::record::content(&value));
                if let Some(at) = lost.filter(|_| content.is_none()) {
                    tracing::error!(
                        namespace = self.about().name,
                        rule = name,
                        offset = at.offset,
                        "a rule of retention or a deletion was lost with damage: what it hid and was not scavenged is shown again"
                    );
                }
                rules.apply(&name, content.as_ref().map(|(content, _)| &content[..]))?;
            }
        }
        *self.rules.write() = Arc::new(rules);
        Ok(())
    }

    /// What is hidden, by category. May block.
    fn less(&self) -> Read<BTreeMap<String, Less>> {
        let mut less: BTreeMap<String, Less> = BTreeMap::new();
        let mut hidden = self.hidden();
        let Some(rules) = hidden.rules.clone() else {
            return Ok(less);
        };
        let mut look = |stream: &str, less: &mut BTreeMap<String, Less>| {
            let (messages, all) = hidden.count(self, stream)?;
            let own = less.entry(names::category(stream).to_owned()).or_default();
            own.messages += messages;
            // Of one that nothing is stored in any more nothing is counted once it is scavenged.
            own.streams += u64::from(all && (messages > 0 || !rules.is_tombstoned(stream)));
            Read::Ok(())
        };
        let mut named: Vec<&String> = rules.streams.keys().chain(rules.deleted.keys()).collect();
        named.sort();
        named.dedup();
        for stream in named {
            // Those of categories with rules are met below.
            if !rules.categories.contains_key(names::category(stream)) && self.has_messages(stream)? {
                look(stream, &mut less)?;
            }
        }
        for category in rules.categories.keys() {
            if self.has_messages(category)? {
                look(category, &mut less)?;
            }
            let (prefix, mut cursor) = (format!("{category}-"), String::new());
            loop {
                let streams = self.streams_stored(&prefix, &cursor, STREAMS)?;
                let Some(last) = streams.last() else { break };
                cursor.clone_from(&last.stream);
                for stream in &streams {
                    look(&stream.stream, &mut less)?;
                }
            }
        }
        Ok(less)
    }

    /// What is counted while nothing goes and nothing comes. Blocks.
    fn together<T>(self: &Arc<Self>, count: impl Fn(State) -> Read<T>) -> Read<T> {
        let (mut attempts, mut held) = (0, None);
        loop {
            attempts += 1;
            if attempts > ATTEMPTS && held.is_none() {
                // Somebody writes all the time, and waits for a moment.
                held = Some(tokio::runtime::Handle::current().block_on(self.hold()));
            }
            let seen = |index: &Index| (index.state.next_offset, index.moves());
            let (state, before) = {
                let index = self.index.read();
                (index.state, seen(&index))
            };
            let counted = count(state)?;
            if seen(&self.index.read()) == before {
                return Ok(counted);
            }
        }
    }

    /// Of those that are shown.
    fn time_of_newest(&self) -> Read<Option<Micros>> {
        let read = CategoryRead {
            category: None,
            from: None,
            direction: Direction::Backward,
            max: 1,
            types: &[],
            correlation: None,
            member: None,
        };
        let page = self.page(&Wanted::of_category(read), Io::MayBlock, &mut None)?;
        Ok(page.events.first().map(|newest| newest.event().time))
    }

    fn has_messages(&self, stream: &str) -> Read<bool> {
        Ok(self.version_stored(stream, Io::MayBlock)? >= 0)
    }

    pub(super) async fn counts(self: &Arc<Self>) -> Result<(u64, u64, Option<Micros>)> {
        if self.rules().is_empty() {
            let state = self.index.read().state;
            return Ok((state.messages, state.streams, state.last_activity));
        }
        self.in_background(|namespace| {
            let (state, less) = namespace.together(|state| Ok((state, namespace.less()?)))?;
            let (messages, streams) = less.values().fold((0, 0), |(messages, streams), less| {
                (messages + less.messages, streams + less.streams)
            });
            let (messages, streams) = (
                state.messages.saturating_sub(messages),
                state.streams.saturating_sub(streams),
            );
            let last_activity = match messages {
                0 => None,
                _ => namespace.time_of_newest()?,
            };
            Ok((messages, streams, last_activity))
        })
        .await
    }

    pub(super) async fn visible_streams(
        self: &Arc<Self>,
        prefix: &str,
        cursor: &str,
        max: usize,
    ) -> Result<Vec<StreamInfo>> {
        let (prefix, mut cursor) = (prefix.to_owned(), cursor.to_owned());
        self.in_background(move |namespace| {
            let mut found = Vec::new();
            loop {
                let streams = namespace.streams_stored(&prefix, &cursor, max)?;
                let is_last = streams.len() < max;
                if let Some(last) = streams.last() {
                    cursor.clone_from(&last.stream);
                }
                let mut hidden = namespace.hidden();
                for stream in streams {
                    let concerned = hidden
                        .rules
                        .as_ref()
                        .is_some_and(|rules| rules.concerns(&stream.stream));
                    if found.len() < max && !(concerned && hidden.count(namespace, &stream.stream)?.1) {
                        found.push(stream);
                    }
                }
                if is_last || found.len() == max {
                    return Ok(found);
                }
            }
        })
        .await
    }

    pub(super) async fn visible_categories(self: &Arc<Self>) -> Result<Vec<CategoryInfo>> {
        self.in_background(|namespace| {
            let (mut all, less) = namespace.together(|_| Ok((namespace.categories_stored()?, namespace.less()?)))?;
            for category in &mut all {
                if let Some(less) = less.get(&category.category) {
                    category.messages = category.messages.saturating_sub(less.messages);
                    category.streams = category.streams.saturating_sub(less.streams);
                }
            }
            all.retain(|category| category.messages > 0);
            Ok(all)
        })
        .await
    }

    pub(super) async fn hide_stream(self: &Arc<Self>, stream: &str, expected: Expected, tombstone: bool) -> Result<()> {
        if self.rules().is_tombstoned(stream) {
            return Err(EventsError::StreamDeleted(stream.to_owned()));
        }
        let (namespace, stream) = (self.clone(), stream.to_owned());
        // It is brought to its end, whoever waits.
        let hidden = tokio::spawn(async move {
            let _alone = namespace.importing.lock().await;
            let held = namespace.hold().await;
            let version = namespace.version_of(&stream).await?;
            as_expected(&stream, expected, version)?;
            if version < 0 && !tombstone {
                return Ok(());
            }
            let deleted = Deleted {
                before: if tombstone { u64::MAX } else { (version + 1) as u64 },
                tombstone,
            };
            let before = namespace.rules();
            if tombstone {
                // Nothing comes in between.
                namespace.change_rules(|rules| {
                    rules.deleted.insert(stream.clone(), deleted);
                    Ok(())
                })?;
            }
            drop(held);
            let stored = namespace
                .store_rule(&format!("{DELETED}{stream}"), Some(&deleted))
                .await;
            if stored.is_err() {
                *namespace.rules.write() = before;
            }
            stored
        });
        ended(hidden.await)
    }

    pub(super) async fn set_rule(self: &Arc<Self>, of: RetentionOf<'_>, rule: Option<Retention>) -> Result<()> {
        let name = match of {
            RetentionOf::Stream(stream) => format!("{OF_STREAM}{stream}"),
            RetentionOf::Category(category) => format!("{OF_CATEGORY}{category}"),
        };
        let namespace = self.clone();
        let set = tokio::spawn(async move {
            let _alone = namespace.importing.lock().await;
            let _ruling = namespace.ruling.lock().await;
            namespace.store_rule(&name, rule.as_ref()).await
        });
        ended(set.await)
    }

    /// Nobody else changes rules meanwhile.
    async fn store_rule<T: Serialize>(self: &Arc<Self>, name: &str, rule: Option<&T>) -> Result<()> {
        let content = rule.map(serde_json::to_vec).transpose();
        let content = content.map_err(|error| EventsError::Damaged(error.to_string()))?;
        let own = name.to_owned();
        let at = self.ask(move |namespace, io| namespace.document_at(&own, io)).await?;
        let revision = at.filter(|at| !at.removed).map_or(0, |at| at.revision);
        if content.is_none() && revision == 0 {
            return Ok(());
        }
        self.store_document(name, content.as_deref(), revision).await?;
        self.change_rules(|rules| rules.apply(name, content.as_deref()))?;
        self.tell(&self.index.write());
        Ok(())
    }

    /// Everything was removed.
    pub(super) fn forget_deleted(&self) {
        Arc::make_mut(&mut self.rules.write()).deleted.clear();
    }

    fn change_rules(&self, change: impl FnOnce(&mut Rules) -> Result<()>) -> Result<()> {
        change(Arc::make_mut(&mut self.rules.write()))
    }
}

fn ended<T>(done: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    done.unwrap_or_else(|_| Err(EventsError::Unavailable("it was given up".to_owned())))
}
