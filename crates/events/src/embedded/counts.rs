//! Counts the visible messages and streams when rules hide some of the stored ones.
//!
//! A count is a snapshot: rows that were added later are skipped, so writers continue and are never blocked. Only
//! removals meanwhile (scavenging, clearing) restart it. Concurrent callers share the result of a count that started
//! after their call, and a result stays valid as long as nothing is written and no rule has an age.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use thalweg_kit::clock;
use thalweg_log::{Micros, Offset};
use tokio::sync::Semaphore;

use super::index::{CategoryValue, IndexReadResult, IndexState, IndexView, Io, ListId, ListKind};
use super::namespace::{EmbeddedNamespace, again_if_moved};
use super::pages::PageQuery;
use super::rules::VisibilityRules;
use super::visibility::VisibilityFilter;
use crate::error::Result;
use crate::names;
use crate::store::{CategoryInfo, CategoryRead, Direction};

/// Attempts during scavenging before scavenging has to wait.
const ATTEMPTS: u32 = 8;

/// Number of streams in one step.
const STREAMS: usize = 1000;

/// Limits the number of concurrent counts, because a count keeps a core and a disk busy, and only its callers wait for
/// it.
static COUNTING: Semaphore = Semaphore::const_new(2);

/// The visible content of a namespace.
#[derive(Debug)]
pub(super) struct VisibleCounts {
    began: Instant,
    /// The state that was counted: the end of the log, the clearing generation, and the rules.
    next_offset: Offset,
    cleared: u32,
    rules: Arc<VisibilityRules>,
    pub messages: u64,
    pub streams: u64,
    pub last_activity: Option<Micros>,
    /// Categories with messages, in order.
    pub categories: Vec<CategoryInfo>,
}

/// The state of an index at one moment.
struct CountSnapshot {
    state: IndexState,
    rules: Arc<VisibilityRules>,
    categories: BTreeMap<String, CategoryValue>,
    view: IndexView,
    /// The number of removals by then.
    removals: u64,
}

/// The hidden part of a category.
#[derive(Clone, Copy, Debug, Default)]
struct HiddenCounts {
    messages: u64,
    streams: u64,
}

/// The hidden part of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HiddenInStream {
    Some(u64),
    All(u64),
    /// The stream had no messages yet.
    New,
}

impl EmbeddedNamespace {
    pub(super) async fn counts(self: &Arc<Self>) -> Result<(u64, u64, Option<Micros>)> {
        if self.rules().is_empty() {
            let state = self.index.read().state;
            return Ok((state.messages, state.streams, state.last_activity));
        }
        let counted = self.counted().await?;
        Ok((counted.messages, counted.streams, counted.last_activity))
    }

    pub(super) async fn visible_categories(self: &Arc<Self>) -> Result<Vec<CategoryInfo>> {
        if self.rules().is_empty() {
            let mut all = self.in_background(|namespace| namespace.categories_stored()).await?;
            all.retain(|category| category.messages > 0);
            return Ok(all);
        }
        Ok(self.counted().await?.categories.clone())
    }

    /// A count that started after this call, or a cached one that is still valid.
    async fn counted(self: &Arc<Self>) -> Result<Arc<VisibleCounts>> {
        let asked = clock::now();
        let (next_offset, cleared) = {
            let index = self.index.read();
            (index.state.next_offset, index.state.cleared)
        };
        let mut kept = self.counted.clone().lock_owned().await;
        if let Some(counted) = &*kept {
            let is_of_now = counted.next_offset >= next_offset
                && counted.cleared == cleared
                && Arc::ptr_eq(&counted.rules, &self.rules())
                && !counted.rules.has_ages();
            if is_of_now || counted.began >= asked {
                return Ok(counted.clone());
            }
        }
        let turn = COUNTING.acquire().await;
        // Runs to completion even if the caller goes away, so that a client which reconnects does not start a second
        // count.
        self.in_background(move |namespace| {
            let _turn = turn;
            let counted = Arc::new(namespace.count()?);
            *kept = Some(counted.clone());
            Ok(counted)
        })
        .await
    }

    /// Counts. Blocks.
    fn count(&self) -> IndexReadResult<VisibleCounts> {
        let (mut attempts, mut ruling) = (0, None);
        loop {
            attempts += 1;
            if attempts > ATTEMPTS && ruling.is_none() {
                ruling = Some(self.ruling.blocking_lock());
            }
            let began = clock::now();
            let moment = self.moment();
            let less = self.less(&moment)?;
            // After this many failed attempts, accept a result that was true at some moment.
            if self.index.read().removals() == moment.removals || attempts > 2 * ATTEMPTS {
                return self.counted_at(moment, &less, began);
            }
        }
    }

    fn moment(&self) -> CountSnapshot {
        loop {
            let rules = self.rules();
            let index = self.index.read();
            let moment = CountSnapshot {
                state: index.state,
                rules,
                categories: index.categories_here(),
                view: index.view(),
                removals: index.removals(),
            };
            drop(index);
            if Arc::ptr_eq(&moment.rules, &self.rules()) {
                return moment;
            }
        }
    }

    fn counted_at(
        &self,
        moment: CountSnapshot,
        less: &BTreeMap<String, HiddenCounts>,
        began: Instant,
    ) -> IndexReadResult<VisibleCounts> {
        let CountSnapshot { state, rules, .. } = moment;
        let (messages, streams) = less.values().fold((0, 0), |(messages, streams), less| {
            (messages + less.messages, streams + less.streams)
        });
        let (messages, streams) = (
            state.messages.saturating_sub(messages),
            state.streams.saturating_sub(streams),
        );
        let mut categories = moment.view.categories(moment.categories)?;
        for category in &mut categories {
            if let Some(less) = less.get(&category.category) {
                category.messages = category.messages.saturating_sub(less.messages);
                category.streams = category.streams.saturating_sub(less.streams);
            }
        }
        categories.retain(|category| category.messages > 0);
        Ok(VisibleCounts {
            began,
            next_offset: state.next_offset,
            cleared: state.cleared,
            rules,
            messages,
            streams,
            last_activity: match messages {
                0 => None,
                _ => again_if_moved(|| self.time_of_newest())?,
            },
            categories,
        })
    }

    /// The hidden part of each category.
    fn less(&self, moment: &CountSnapshot) -> IndexReadResult<BTreeMap<String, HiddenCounts>> {
        let mut less: BTreeMap<String, HiddenCounts> = BTreeMap::new();
        let rules = &moment.rules;
        let hidden = self.hidden_by(rules.clone());
        let mut look = |stream: &str| {
            let (messages, all) = match again_if_moved(|| self.less_of(stream, &hidden, moment))? {
                HiddenInStream::New => return Ok(()),
                HiddenInStream::Some(messages) => (messages, false),
                HiddenInStream::All(messages) => (messages, true),
            };
            let own = less.entry(names::category(stream).to_owned()).or_default();
            own.messages += messages;
            // A tombstoned stream no longer counts once it is scavenged.
            own.streams += u64::from(all && (messages > 0 || !rules.is_tombstoned(stream)));
            IndexReadResult::Ok(())
        };
        for stream in rules.named() {
            // Streams of categories with rules are visited below.
            if !rules.has_rule(names::category(stream)) && self.has_messages(stream)? {
                look(stream)?;
            }
        }
        for category in rules.categories() {
            if self.has_messages(category)? {
                look(category)?;
            }
            let (prefix, mut cursor) = (format!("{category}-"), String::new());
            loop {
                let streams = self.streams_stored(&prefix, &cursor, STREAMS)?;
                let Some(last) = streams.last() else { break };
                cursor.clone_from(&last.stream);
                for stream in &streams {
                    look(&stream.stream)?;
                }
            }
        }
        Ok(less)
    }

    /// The part of a stream that was hidden at the moment of the snapshot.
    fn less_of(
        &self,
        stream: &str,
        hidden: &VisibilityFilter,
        moment: &CountSnapshot,
    ) -> IndexReadResult<HiddenInStream> {
        let (rules, state) = (&moment.rules, &moment.state);
        let list = ListId::Of(ListKind::Stream, stream.to_owned());
        let (mut newest, mut later) = (None, None);
        self.walk(&list, None, Direction::Backward, Io::MayBlock, &mut |row| {
            match row.offset < state.next_offset {
                true => newest = Some(row.ordinal),
                false => later = Some(row.ordinal),
            }
            Ok(newest.is_none())
        })?;
        let Some(newest) = newest else {
            // A stream that continued after a deletion or after scavenging does not begin at its first position.
            let is_new = later == Some(0) && !rules.is_deleted(stream);
            return Ok(if is_new {
                HiddenInStream::New
            } else {
                HiddenInStream::All(0)
            });
        };
        let rule = rules.for_stream(stream).unwrap_or_default();
        let of_count = match rule.max_count {
            Some(count) => self.floor_at(&list, count, newest, state)?,
            None => 0,
        };
        let floor = rules
            .deleted_before(stream)
            .max(rule.truncate_before.unwrap_or(0))
            .max(of_count);
        let oldest = hidden.oldest(stream);
        // All messages before this offset are older.
        let young: Offset = match oldest {
            Some(oldest) => self.place.log.offset_at(self.partition, oldest).unwrap_or(0),
            None => 0,
        };
        let mixed = oldest.is_some_and(|oldest| hidden.is_mixed(oldest, state.has_imports));
        let (mut messages, mut shown) = (0, false);
        self.walk(&list, None, Direction::Forward, Io::MayBlock, &mut |row| {
            if row.offset >= state.next_offset {
                return Ok(true);
            }
            let is_old = match oldest {
                Some(_) if row.offset < young => true,
                Some(oldest) => self
                    .time_at(row.offset, Io::MayBlock)?
                    .is_some_and(|time| time < oldest),
                None => false,
            };
            if is_old || row.ordinal < floor {
                messages += 1;
                return Ok(true);
            }
            shown = true;
            // Later messages are younger, unless they were imported or stamped by a clock that was set back.
            Ok(mixed)
        })?;
        Ok(if shown {
            HiddenInStream::Some(messages)
        } else {
            HiddenInStream::All(messages)
        })
    }

    /// The position of the oldest of the `count` newest messages of a stream, given the position of the newest.
    fn floor_at(&self, list: &ListId, count: u64, newest: u64, state: &IndexState) -> IndexReadResult<u64> {
        let floor = (newest + 1).saturating_sub(count);
        // Only imports leave gaps between positions; without them no counting is needed.
        if floor == 0 || count == 0 || !state.has_imports {
            return Ok(floor);
        }
        let (mut found, mut oldest) = (0, 0);
        self.walk(list, None, Direction::Backward, Io::MayBlock, &mut |row| {
            if row.offset < state.next_offset {
                (found, oldest) = (found + 1, row.ordinal);
            }
            Ok(found < count)
        })?;
        Ok(if found < count { 0 } else { oldest })
    }

    /// The time of the newest visible message.
    fn time_of_newest(&self) -> IndexReadResult<Option<Micros>> {
        let read = CategoryRead {
            category: None,
            from: None,
            direction: Direction::Backward,
            max: 1,
            types: &[],
            correlation: None,
            member: None,
        };
        let page = self.page(&PageQuery::of_category(read), Io::MayBlock, &mut None)?;
        Ok(page.events.first().map(|newest| newest.event().time))
    }

    fn has_messages(&self, stream: &str) -> IndexReadResult<bool> {
        Ok(self.version_stored(stream, Io::MayBlock)? >= 0)
    }
}

#[cfg(test)]
mod tests;
