//! Lists dead letters, and removes them from the middle of their partition (`dead_letters/removals.rs`) when they are
//! resent or discarded (`dead_letters/resend.rs`), also across disks (`dead_letters/cross_disk.rs`).

mod cross_disk;
mod removals;
mod resend;

use std::collections::BTreeSet;
use std::sync::Arc;

use smol_str::SmolStr;
use thalweg_kit::blocking;
use thalweg_log::clock::Clock;
use thalweg_log::{Micros, Offset};

use crate::admin::{LOOK_BYTES, read_from};
use crate::dead_letter_move::PREFIX;
use crate::error::{QueueError, Result};
use crate::ids::MessageId;
use crate::message::Message;
use crate::offset_ranges::OffsetRanges;
use crate::produce::AttachedRecord;
use crate::queue::Queue;
pub(crate) use cross_disk::{LetterArrival, ReceivedLetters, ResentLetters};
pub(crate) use removals::{LetterRemovals, dropped_record};
pub use resend::ResendResult;

/// Messages per read.
const LOOK: usize = 1000;
/// Approximate bytes of payloads, keys and properties in one page.
const PAGE_BYTES: usize = 24 << 20;

/// Selects dead letters. A field that is not set matches all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    pub group: Option<SmolStr>,
    pub reason: Option<SmolStr>,
    pub key: Option<Box<[u8]>>,
    /// Wall-clock time since when they died.
    pub since: Option<Micros>,
    pub until: Option<Micros>,
    pub property: Option<(String, String)>,
}

/// A page of dead letters, and the offset at which the next page begins.
#[derive(Debug, Default)]
pub struct DeadLetterPage {
    pub letters: Vec<Message>,
    pub next: Option<Offset>,
}

#[derive(Clone, Debug)]
pub enum DeadLetterSelection {
    /// Ids of the dead letters, not of the original messages.
    Ids(Vec<MessageId>),
    Filter(DeadLetterFilter),
}

#[derive(Clone, Debug)]
pub enum ResendTo {
    /// The source queue, and there only the group in which the message died.
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
    /// Dead letters of this queue from `after` on, oldest first, about 24 MiB at most.
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

    /// Like `dead_page`, on the queue that contains the dead letters.
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
                if filter.matches(&letter, self.clock.as_ref()) && !self.letters.contains(letter.offset) {
                    bytes += letter.bytes();
                    page.letters.push(letter);
                }
            }
            from = last + 1;
        }
    }

    /// Includes those that were resent or discarded.
    async fn letters_from(&self, from: Offset) -> Result<Vec<Message>> {
        let Some(store) = self.store(0).cloned() else {
            return Ok(Vec::new());
        };
        let from = from.max(store.first()?);
        let read = blocking::spawn(move || read_from(&store, from, LOOK, LOOK_BYTES)).await;
        Ok(read.unwrap_or(Err(thalweg_log::LogError::Closed))?)
    }

    /// One dead letter with the queue that contains it, unless it was resent or discarded.
    pub async fn dead_letter(&self, letter: Offset) -> Result<Option<(Arc<Queue>, Message)>> {
        let Some(dead) = self.known_dead_letters() else {
            return Ok(None);
        };
        let found = dead.find(0, letter).await?;
        Ok(found.map(|found| (dead, found)))
    }

    /// Selects the dead letters that exist now; `None` if there never were any. Fails if an id names no dead letter.
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

/// Iterates over the selected dead letters in small pages, because all of them may not fit into memory.
struct DeadLetterCursor<'a> {
    dead: Arc<Queue>,
    select: &'a DeadLetterSelection,
    /// Number of processed ids.
    done: usize,
    named: BTreeSet<Offset>,
    after: Option<Offset>,
    /// Later dead letters are not included, or the iteration might not end.
    end: Offset,
}

impl DeadLetterCursor<'_> {
    /// Empty at the end.
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
                    // A repeated id counts once. The dead letter may also be gone by now.
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

impl Queue {
    /// The log record of this removal; `None` for a queue in memory.
    fn dropped_fact(&self, letters: &OffsetRanges) -> Option<AttachedRecord> {
        (!self.is_in_memory()).then(|| (self.identity.state_id(0), dropped_record(letters)))
    }

    /// Marks dead letters as removed. [`Queue::let_go_of_letters`] trims those at the beginning.
    fn are_gone(&self, letters: &OffsetRanges) {
        if !self.is_in_memory() {
            self.letters.add_unsaved(1);
            self.checkpoint_by_and_by();
        }
        let Some(store) = self.store(0) else { return };
        // Under the lock, so that they are not trimmed meanwhile.
        let mut admission = self.admission.lock();
        let Ok(first) = store.first() else { return };
        let gone = self.letters.insert(letters, first);
        admission.gone(gone, 0);
    }

    /// Trims the oldest dead letters that are removed.
    async fn let_go_of_letters(self: &Arc<Queue>) {
        self.beside_the_disk(|queue| {
            if let Some(first) = queue.store(0).and_then(|store| store.first().ok()) {
                queue.trim_store(0, queue.letters.end_from(first));
            }
        })
        .await;
    }
}
