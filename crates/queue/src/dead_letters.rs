//! Dead letters: found, and taken out of the middle when they were sent again or thrown away (`dead_letters/resend.rs`),
//! on several disks, too (`dead_letters/cross_disk.rs`).

mod cross_disk;
mod resend;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smol_str::SmolStr;
use thalweg_log::clock::Clock;
use thalweg_log::{Micros, Offset};

use crate::admin::{LOOK_BYTES, read_from};
use crate::dead_letter_move::PREFIX;
use crate::error::{QueueError, Result};
use crate::group_partition::DROPPED;
use crate::ids::MessageId;
use crate::message::Message;
use crate::offset_ranges::OffsetRanges;
use crate::produce::AttachedRecord;
use crate::queue::Queue;
pub(crate) use cross_disk::{LetterArrival, ReceivedLetters, ResentLetters};
pub use resend::ResendResult;

/// Looked at in one go.
const LOOK: usize = 1000;
/// Payloads, keys and properties of one page, about.
const PAGE_BYTES: usize = 24 << 20;

/// Which dead letters; what is not given matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    pub group: Option<SmolStr>,
    pub reason: Option<SmolStr>,
    pub key: Option<Box<[u8]>>,
    /// When they died, by the wall clock.
    pub since: Option<Micros>,
    pub until: Option<Micros>,
    pub property: Option<(String, String)>,
}

/// Some dead letters, and where the next begin.
#[derive(Debug, Default)]
pub struct DeadLetterPage {
    pub letters: Vec<Message>,
    pub next: Option<Offset>,
}

#[derive(Clone, Debug)]
pub enum DeadLetterSelection {
    /// Of the dead letters, not of what they were.
    Ids(Vec<MessageId>),
    Filter(DeadLetterFilter),
}

#[derive(Clone, Debug)]
pub enum ResendTo {
    /// The queue they come from, for the group in which they died alone.
    Source,
    Queue(SmolStr),
}

impl DeadLetterFilter {
    fn matches(&self, letter: &Message, clock: &dyn Clock) -> bool {
        let died = clock.wall_at(letter.time);
        let properties = letter.properties.as_ref();
        let is = |name: &str, wanted: &Option<SmolStr>| {
            wanted.as_ref().is_none_or(|wanted| {
                let found = properties
                    .iter()
                    .find(|(known, _)| known.strip_prefix(PREFIX) == Some(name));
                found.is_some_and(|(_, value)| value == wanted.as_str())
            })
        };
        is("group", &self.group)
            && is("reason", &self.reason)
            && self
                .key
                .as_ref()
                .is_none_or(|key| letter.key.as_deref() == Some(&**key))
            && self.since.is_none_or(|since| died >= since)
            && self.until.is_none_or(|until| died < until)
            && self
                .property
                .as_ref()
                .is_none_or(|(name, value)| properties.get(name) == Some(value.as_str()))
    }
}

impl Queue {
    /// Dead letters of this queue from `after` on, oldest first; some 24 MiB at most.
    pub async fn dead_page(
        &self,
        filter: &DeadLetterFilter,
        after: Option<Offset>,
        limit: usize,
    ) -> Result<DeadLetterPage> {
        match self.known_dead_letters() {
            Some(dead) => dead.letters_page(filter, after, limit).await,
            None => Ok(DeadLetterPage::default()),
        }
    }

    /// The same of the queue in which they are.
    async fn letters_page(
        &self,
        filter: &DeadLetterFilter,
        after: Option<Offset>,
        limit: usize,
    ) -> Result<DeadLetterPage> {
        let (mut page, mut bytes) = (DeadLetterPage::default(), 0);
        let mut from = after.map_or(0, |after| after + 1);
        loop {
            let letters = self.letters_from(from).await?;
            let Some(last) = letters.last().map(|letter| letter.offset) else {
                return Ok(page);
            };
            for letter in letters {
                if page.letters.len() == limit || bytes >= PAGE_BYTES {
                    page.next = page.letters.last().map(|letter| letter.offset);
                    return Ok(page);
                }
                if filter.matches(&letter, self.clock.as_ref()) && !self.is_dropped(letter.offset) {
                    bytes += letter.bytes();
                    page.letters.push(letter);
                }
            }
            from = last + 1;
        }
    }

    /// Also those that were sent again or thrown away.
    async fn letters_from(&self, from: Offset) -> Result<Vec<Message>> {
        let Some(store) = self.store(0).cloned() else {
            return Ok(Vec::new());
        };
        let from = from.max(store.first()?);
        let read = tokio::task::spawn_blocking(move || read_from(&store, from, LOOK, LOOK_BYTES)).await;
        Ok(read.unwrap_or(Err(thalweg_log::LogError::Closed))?)
    }

    /// One dead letter with the queue in which it is, unless it was sent again or thrown away.
    pub async fn dead_letter(&self, letter: Offset) -> Result<Option<(Arc<Queue>, Message)>> {
        let Some(dead) = self.known_dead_letters() else {
            return Ok(None);
        };
        let found = dead.find(0, letter).await?;
        Ok(found.map(|found| (dead, found)))
    }

    /// The letters that are there now and are meant; `None` if there have never been any. Each id is that of a letter.
    async fn choose<'a>(&self, select: &'a DeadLetterSelection) -> Result<Option<DeadLetterCursor<'a>>> {
        let dead = self.known_dead_letters();
        if let DeadLetterSelection::Ids(ids) = select {
            for id in ids {
                let found = match &dead {
                    Some(dead) if id.queue == *dead.name() => dead.find(id.partition, id.offset).await?,
                    _ => None,
                };
                found.ok_or_else(|| QueueError::MessageNotFound { id: id.clone() })?;
            }
        }
        let Some(dead) = dead else { return Ok(None) };
        let end = dead.store(0).map_or(Ok(0), |store| store.next())?;
        Ok(Some(DeadLetterCursor {
            dead,
            select,
            done: 0,
            named: BTreeSet::new(),
            after: None,
            end,
        }))
    }
}

/// A way through the letters that are meant, few at a time: all of them need not fit into memory.
struct DeadLetterCursor<'a> {
    dead: Arc<Queue>,
    select: &'a DeadLetterSelection,
    /// Ids.
    done: usize,
    named: BTreeSet<Offset>,
    after: Option<Offset>,
    /// Those that die while it goes on are not meant, or it might not end.
    end: Offset,
}

impl DeadLetterCursor<'_> {
    /// None at the end.
    async fn next(&mut self) -> Result<Vec<Message>> {
        match self.select {
            DeadLetterSelection::Filter(filter) => {
                let mut page = self.dead.letters_page(filter, self.after, LOOK).await?;
                page.letters.retain(|letter| letter.offset < self.end);
                self.after = page.letters.last().map(|letter| letter.offset).or(self.after);
                Ok(page.letters)
            }
            DeadLetterSelection::Ids(ids) => {
                let (mut letters, mut bytes) = (Vec::new(), 0);
                while let Some(id) = ids.get(self.done) {
                    if letters.len() == LOOK || bytes >= PAGE_BYTES {
                        break;
                    }
                    self.done += 1;
                    // One that is named twice is there once, or gone by now.
                    let is_new = self.named.insert(id.offset);
                    let found = self.dead.find(id.partition, id.offset).await?.filter(|_| is_new);
                    bytes += found.as_ref().map_or(0, Message::bytes);
                    letters.extend(found);
                }
                Ok(letters)
            }
        }
    }
}

/// That letters are gone is being stored. A checkpoint that does not know of them yet must not come behind that, or a restart
/// would find them again.
pub(super) struct LetterRemovalGuard(Arc<Queue>);

impl LetterRemovalGuard {
    fn begin(queue: &Arc<Queue>) -> LetterRemovalGuard {
        let _no_checkpoint = queue.dropped.lock();
        queue.drops_under_way.fetch_add(1, Ordering::Relaxed);
        LetterRemovalGuard(queue.clone())
    }
}

impl Drop for LetterRemovalGuard {
    fn drop(&mut self) {
        self.0.drops_under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Queue {
    /// Whether a letter was sent again or thrown away.
    pub(crate) fn is_dropped(&self, offset: Offset) -> bool {
        self.has_letters && self.dropped.lock().contains(offset)
    }

    /// The record that says so, for the log; none in memory.
    fn dropped_fact(&self, letters: &OffsetRanges) -> Option<AttachedRecord> {
        (!self.is_in_memory()).then(|| (self.state_id(0), dropped_record(letters)))
    }

    /// Letters are gone. Those at the beginning are let go by [`Queue::let_go_of_letters`].
    fn are_gone(&self, letters: &OffsetRanges) {
        if !self.is_in_memory() {
            self.unsaved_drops.fetch_add(1, Ordering::Relaxed);
            self.checkpoint_by_and_by();
        }
        let Some(store) = self.store(0) else { return };
        // Under both, so that nobody lets go of them meanwhile.
        let mut admission = self.admission.lock();
        let mut dropped = self.dropped.lock();
        let Ok(first) = store.first() else { return };
        let there = letters.iter().filter(|letter| *letter >= first);
        let gone = there.filter(|letter| dropped.insert(*letter)).count();
        admission.gone(gone as u64, 0);
    }

    /// Lets go of the oldest letters, if they are gone.
    async fn let_go_of_letters(self: &Arc<Queue>) {
        self.beside_the_disk(|queue| {
            if let Some(first) = queue.store(0).and_then(|store| store.first().ok()) {
                let below = queue.dropped.lock().end_from(first);
                queue.trim_store(0, below);
            }
        })
        .await;
    }
}

/// Says that letters are sent again or thrown away. Of all of them for a checkpoint; also of none, so that what came before it
/// need not be read.
pub(crate) fn dropped_record(ranges: &OffsetRanges) -> Vec<u8> {
    // Of no group.
    let mut value = vec![0, DROPPED];
    ranges.encode(&mut value);
    value
}
