//! How many messages and streams are shown, while rules hide some of those that are stored.
//!
//! Counted is what there was at one moment: rows that came later in the log are passed over, so writers need not stand still, and are
//! never held. Only what goes meanwhile (scavenged, cleared) has it begin anew. Whoever asks while others count gets what they find,
//! if they began after he asked; and as long as nothing is written and no rule has an age, what was found is good.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

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

/// Attempts while something is scavenged, before scavenging waits.
const ATTEMPTS: u32 = 8;

/// Streams looked at together.
const STREAMS: usize = 1000;

/// Namespaces that are counted at a time: it is work for a core and for a disk, and nobody waits for it but those who ask.
static COUNTING: Semaphore = Semaphore::const_new(2);

/// What is shown of a namespace.
#[derive(Debug)]
pub(super) struct VisibleCounts {
    began: Instant,
    /// Up to where in the log, since which clearing, and by which rules.
    next_offset: Offset,
    cleared: u32,
    rules: Arc<VisibilityRules>,
    pub messages: u64,
    pub streams: u64,
    pub last_activity: Option<Micros>,
    /// Those with messages, in their order.
    pub categories: Vec<CategoryInfo>,
}

/// An index at one moment.
struct CountSnapshot {
    state: IndexState,
    rules: Arc<VisibilityRules>,
    categories: BTreeMap<String, CategoryValue>,
    view: IndexView,
    /// How often something had gone by then.
    removals: u64,
}

/// What is hidden of a category.
#[derive(Clone, Copy, Debug, Default)]
struct HiddenCounts {
    messages: u64,
    streams: u64,
}

/// What is hidden of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HiddenInStream {
    Some(u64),
    All(u64),
    /// It had no message yet.
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

    /// What was counted since it was asked for.
    async fn counted(self: &Arc<Self>) -> Result<Arc<VisibleCounts>> {
        let asked = Instant::now();
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
        // It is brought to its end, whoever waits: a client that goes away and comes again begins no second one beside it.
        self.in_background(move |namespace| {
            let _turn = turn;
            let counted = Arc::new(namespace.count()?);
            *kept = Some(counted.clone());
            Ok(counted)
        })
        .await
    }

    /// Blocks.
    fn count(&self) -> IndexReadResult<VisibleCounts> {
        let (mut attempts, mut ruling) = (0, None);
        loop {
            attempts += 1;
            if attempts > ATTEMPTS && ruling.is_none() {
                ruling = Some(self.ruling.blocking_lock());
            }
            let began = Instant::now();
            let moment = self.moment();
            let less = self.less(&moment)?;
            // What was cleared in vain so often has at least been there at some time.
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

    /// What is hidden, by category.
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
            // Of one that nothing is stored in any more nothing is counted once it is scavenged.
            own.streams += u64::from(all && (messages > 0 || !rules.is_tombstoned(stream)));
            IndexReadResult::Ok(())
        };
        for stream in rules.named() {
            // Those of categories with rules are met below.
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

    /// What was hidden of a stream at that moment.
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
            // One that went on behind a deletion, or behind what was scavenged, does not begin at its first position.
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
        // Everything before it is older.
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
            // What comes later is younger, unless it was imported or stamped by a clock that was set back.
            Ok(mixed)
        })?;
        Ok(if shown {
            HiddenInStream::Some(messages)
        } else {
            HiddenInStream::All(messages)
        })
    }

    /// The position of the oldest of so many newest messages of a stream, the newest of which is known.
    fn floor_at(&self, list: &ListId, count: u64, newest: u64, state: &IndexState) -> IndexReadResult<u64> {
        let floor = (newest + 1).saturating_sub(count);
        // Only what is imported leaves out positions, so that nothing else has to be counted.
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

    /// Of those that are shown.
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
