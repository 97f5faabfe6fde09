//! Decides which stored messages are hidden: by retention rules or because their stream was deleted. Rules are
//! evaluated on each read or count, until scavenging removes the messages.

use std::sync::Arc;

use hashbrown::HashMap;
use serde::Serialize;
use thalweg_log::Micros;
use thalweg_log::clock::ClockJumps;

use super::index::{IndexReadError, IndexReadResult, Io, ListId, ListKind};
use super::namespace::{EmbeddedNamespace, again_if_moved};
use super::pages::PASSED_MAX;
use super::rules::{DELETED, OF_CATEGORY, OF_STREAM, OWN, StreamDeletion, VisibilityRules, weight};
use crate::admission;
use crate::error::{EventsError, Result};
use crate::event::EventRef;
use crate::limits;
use crate::store::{Direction, ExpectedVersion, Retention, RetentionTarget, StreamInfo};

/// A visibility check for one reader, which caches the result per stream.
pub(super) struct VisibilityFilter {
    /// `None` if nothing is hidden.
    rules: Option<Arc<VisibilityRules>>,
    /// The current log time and the clock jumps, because messages have wall-clock timestamps.
    now: Micros,
    jumps: Arc<ClockJumps>,
    floors: HashMap<String, u64>,
}

impl VisibilityFilter {
    /// The position before which a stream's messages are hidden.
    pub fn floor(&mut self, namespace: &EmbeddedNamespace, stream: &str, io: Io) -> IndexReadResult<u64> {
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

    /// Older messages of the stream are hidden.
    pub fn oldest(&self, stream: &str) -> Option<Micros> {
        let age = self.rules.as_ref()?.for_stream(stream)?.max_age?;
        Some(self.jumps.least_wall_since(self.now.saturating_sub(age), self.now))
    }

    pub fn hides(&mut self, namespace: &EmbeddedNamespace, event: &EventRef<'_>, io: Io) -> IndexReadResult<bool> {
        if self.rules.is_none() {
            return Ok(false);
        }
        let is_old = self.oldest(event.stream).is_some_and(|oldest| event.time < oldest);
        Ok(is_old || event.position < self.floor(namespace, event.stream, io)?)
    }

    /// Whether all messages of a stream are hidden. May block.
    fn hides_all(&self, namespace: &EmbeddedNamespace, stream: &str) -> IndexReadResult<bool> {
        let rule = self
            .rules
            .as_ref()
            .and_then(|rules| rules.for_stream(stream))
            .unwrap_or_default();
        let mut floor = self.rules.as_ref().map_or(0, |rules| rules.deleted_before(stream));
        floor = floor.max(rule.truncate_before.unwrap_or(0));
        if let Some(count) = rule.max_count {
            floor = floor.max(namespace.floor_of_newest(stream, count, Io::MayBlock)?);
        }
        let oldest = self.oldest(stream);
        let mixed = oldest.is_some_and(|oldest| self.is_mixed(oldest, namespace.index.read().state.has_imports));
        let (mut shown, list) = (false, ListId::Of(ListKind::Stream, stream.to_owned()));
        namespace.walk(&list, None, Direction::Backward, Io::MayBlock, &mut |row| {
            let is_old = match oldest {
                Some(oldest) => namespace
                    .time_at(row.offset, Io::MayBlock)?
                    .is_some_and(|time| time < oldest),
                None => false,
            };
            shown = !is_old && row.ordinal >= floor;
            // Earlier messages are older, unless they were imported or stamped by a clock that was set back.
            Ok(!shown && mixed && row.ordinal >= floor)
        })?;
        Ok(!shown)
    }

    /// Whether messages of a stream may be older than those before them.
    pub fn is_mixed(&self, oldest: Micros, has_imports: bool) -> bool {
        has_imports || self.jumps.may_fall_below(oldest)
    }
}

/// Number of documents in one step.
const DOCUMENTS: usize = 1000;

impl EmbeddedNamespace {
    /// The position of the oldest of the `count` newest messages of a stream.
    fn floor_of_newest(&self, stream: &str, count: u64, io: Io) -> IndexReadResult<u64> {
        let version = self.version_stored(stream, io)?;
        let floor = ((version + 1) as u64).saturating_sub(count);
        // Only imports leave gaps between positions; without them no counting is needed.
        if floor == 0 || count == 0 || !self.index.read().state.has_imports {
            return Ok(floor);
        }
        let (mut found, mut oldest) = (0, 0);
        let list = ListId::Of(ListKind::Stream, stream.to_owned());
        self.walk(&list, None, Direction::Backward, io, &mut |row| {
            (found, oldest) = (found + 1, row.ordinal);
            if found > PASSED_MAX as u64 && io == Io::MemoryOnly {
                return Err(IndexReadError::OnDisk);
            }
            Ok(found < count)
        })?;
        Ok(if found < count { 0 } else { oldest })
    }

    pub(super) fn hidden(&self) -> VisibilityFilter {
        self.hidden_by(self.rules())
    }

    /// A filter for the given rules.
    pub(super) fn hidden_by(&self, rules: Arc<VisibilityRules>) -> VisibilityFilter {
        let clock = self.place.log.clock();
        if !rules.is_empty() {
            // Otherwise a message stamped since the clock was set would get a wrong age.
            clock.notice();
        }
        VisibilityFilter {
            rules: (!rules.is_empty()).then_some(rules),
            now: clock.now(),
            jumps: clock.jumps(),
            floors: HashMap::new(),
        }
    }

    /// Loads the stored rules. Blocks.
    pub(super) fn load_rules(&self) -> IndexReadResult<()> {
        let (mut rules, mut cursor) = (VisibilityRules::default(), String::new());
        let cleared_at = self.index.read().state.cleared_at;
        loop {
            let names = self.documents_stored(OWN, &cursor, DOCUMENTS)?;
            let Some(last) = names.last() else { break };
            cursor.clone_from(last);
            for name in names {
                let at = self.document_at(&name, Io::MayBlock)?;
                let lost = at.filter(|at| !name.starts_with(DELETED) || at.offset >= cleared_at);
                let record = match at {
                    // Deletions from before a clearing are forgotten with it.
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
                        "a retention rule or a deletion was lost to damage: hidden messages that were not scavenged \
                         are visible again"
                    );
                }
                rules.apply(&name, content.as_ref().map(|(content, _)| &content[..]))?;
            }
        }
        self.put_rules(Arc::new(rules));
        Ok(())
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
                let hidden = namespace.hidden();
                for stream in streams {
                    let concerned = hidden
                        .rules
                        .as_ref()
                        .is_some_and(|rules| rules.concerns(&stream.stream));
                    let is_hidden = || again_if_moved(|| hidden.hides_all(namespace, &stream.stream));
                    if found.len() < max && !(concerned && is_hidden()?) {
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

    pub(super) async fn hide_stream(
        self: &Arc<Self>,
        stream: &str,
        expected: ExpectedVersion,
        tombstone: bool,
    ) -> Result<()> {
        limits::check_stream(stream)?;
        admission::takes_messages(stream, self.rules().is_tombstoned(stream))?;
        let (namespace, stream) = (self.clone(), stream.to_owned());
        // Runs to completion even if the caller goes away.
        let hidden = tokio::spawn(async move {
            let _alone = namespace.importing.lock().await;
            // Any disk access happens before others have to wait; afterwards the data is cached.
            namespace.version_of(&stream).await?;
            let held = namespace.hold().await;
            let version = namespace.version_of(&stream).await?;
            let before = namespace.rules();
            admission::takes_messages(&stream, before.is_tombstoned(&stream))?;
            admission::has_version(&stream, expected, version)?;
            if version < 0 && !tombstone {
                return Ok(());
            }
            let deleted = StreamDeletion {
                before: if tombstone { u64::MAX } else { (version + 1) as u64 },
                tombstone,
            };
            if !before.is_deleted(&stream) {
                namespace.rule_room.has(weight(&stream))?;
            }
            if tombstone {
                // Effective before the next append.
                namespace.change_rules(|rules| {
                    rules.delete(&stream, deleted);
                    Ok(())
                })?;
            }
            drop(held);
            let stored = namespace
                .store_rule(&format!("{DELETED}{stream}"), Some(&deleted))
                .await;
            if stored.is_err() {
                namespace.put_rules(before);
            }
            stored
        });
        ended(hidden.await)
    }

    pub(super) async fn set_rule(self: &Arc<Self>, of: RetentionTarget<'_>, rule: Option<Retention>) -> Result<()> {
        let (RetentionTarget::Stream(name) | RetentionTarget::Category(name)) = of;
        limits::check_stream(name)?;
        let rule = rule.map(Retention::bounded);
        let name = match of {
            RetentionTarget::Stream(stream) => format!("{OF_STREAM}{stream}"),
            RetentionTarget::Category(category) => format!("{OF_CATEGORY}{category}"),
        };
        // Serves only the memory check: if two callers set a rule concurrently, there is still only one rule.
        let is_known = self.rules().has_rule_of(of);
        let namespace = self.clone();
        let set = tokio::spawn(async move {
            let _alone = namespace.importing.lock().await;
            let _ruling = namespace.ruling.lock().await;
            if rule.is_some() && !is_known {
                namespace.rule_room.has(weight(&name))?;
            }
            namespace.store_rule(&name, rule.as_ref()).await
        });
        ended(set.await)
    }

    /// Stores a rule. The caller ensures that nobody else changes rules.
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

    /// Forgets deletions after a clearing.
    pub(super) fn forget_deleted(&self) {
        let mut rules = self.rules.write();
        Arc::make_mut(&mut rules).forget_deleted();
        self.rule_room.set(rules.bytes());
    }

    fn put_rules(&self, rules: Arc<VisibilityRules>) {
        let mut own = self.rules.write();
        *own = rules;
        self.rule_room.set(own.bytes());
    }

    fn change_rules(&self, change: impl FnOnce(&mut VisibilityRules) -> Result<()>) -> Result<()> {
        let mut rules = self.rules.write();
        let changed = change(Arc::make_mut(&mut rules));
        self.rule_room.set(rules.bytes());
        changed
    }
}

fn ended<T>(done: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    done.unwrap_or_else(|_| Err(EventsError::Unavailable("it was interrupted".to_owned())))
}
