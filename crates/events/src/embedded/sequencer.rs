//! Gives messages their places before they are stored. One submission after the other goes to the log without waiting for
//! the one before it; each expects the offset that it was numbered for, so if one is refused, all behind it are, and are
//! numbered again.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use thalweg_log::Offset;

use super::index::{Entry, Index};
use crate::error::{EventsError, Result};
use crate::id::{MessageId, Uuid};

#[derive(Debug, Default)]
pub(crate) struct Sequencer {
    pub next_offset: Offset,
    pub next_global: u64,
    /// Numbered and not indexed yet, in their order.
    pending: VecDeque<Pending>,
    /// Streams with pending messages.
    heads: HashMap<Arc<str>, Head>,
    /// That clients gave to pending messages.
    ids: HashSet<MessageId>,
    /// Submissions of which it is not known yet what became of them.
    outstanding: usize,
    /// One was refused: nothing is numbered before it is known of all.
    refused: bool,
    /// Somebody waits for what is on its way, and wants nothing to follow it.
    holds: usize,
    chance: Chance,
}

#[derive(Debug)]
struct Pending {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Head {
    version: i64,
    /// Submissions that are pending.
    pending: usize,
}

/// Random bytes, taken from the system many at a time.
#[derive(Debug, Default)]
struct Chance {
    left: Vec<[u8; 10]>,
}

impl Sequencer {
    pub fn new(index: &Index) -> Sequencer {
        Sequencer {
            next_offset: index.next_offset,
            next_global: index.last_global + 1,
            ..Sequencer::default()
        }
    }

    /// Whether messages may be numbered now.
    pub fn is_open(&self) -> bool {
        !self.refused && self.holds == 0
    }

    /// Nothing is numbered until that is released.
    pub fn hold(&mut self) {
        self.holds += 1;
    }

    pub fn release(&mut self) {
        self.holds -= 1;
    }

    /// Whether it is known of all what became of it, and all that is stored is indexed.
    pub fn is_settled(&self) -> bool {
        self.outstanding == 0 && self.pending.is_empty()
    }

    /// Messages with places of their own are on their way, while nothing else is.
    pub fn submitted_import(&mut self, entries: Vec<Entry>) {
        let last = entries.iter().map(|entry| entry.global).max().unwrap_or(0);
        self.next_offset += entries.len() as u64;
        self.next_global = self.next_global.max(last + 1);
        self.pending.push_back(Pending { entries });
        self.outstanding += 1;
    }

    /// Nothing is left, and what comes begins anew.
    pub fn cleared(&mut self) {
        self.next_global = 1;
    }

    /// The version with what is pending, and whether something is.
    pub fn version(&self, stream: &str, index: &Index) -> (i64, bool) {
        match self.heads.get(stream) {
            Some(head) => (head.version, true),
            None => (index.version(stream), false),
        }
    }

    pub fn has_pending_id(&self, id: &MessageId) -> bool {
        !self.ids.is_empty() && self.ids.contains(id)
    }

    pub fn name(&self, stream: &str, index: &Index) -> Arc<str> {
        let known = self.heads.get_key_value(stream).map(|(name, _)| name.clone());
        known.or_else(|| index.name(stream)).unwrap_or_else(|| stream.into())
    }

    pub fn new_id(&mut self, unix_ms: u64) -> Result<Uuid> {
        Ok(Uuid::new_at(unix_ms, self.chance.take()?))
    }

    /// What was numbered is on its way. `streams` have these versions then.
    pub fn submitted(&mut self, entries: Vec<Entry>, streams: Vec<(Arc<str>, i64)>, ids: Vec<MessageId>) {
        for (stream, version) in streams {
            let head = self.heads.entry(stream).or_insert(Head { version, pending: 0 });
            head.version = version;
            head.pending += 1;
        }
        self.ids.extend(ids);
        self.next_offset += entries.len() as u64;
        self.next_global += entries.len() as u64;
        self.pending.push_back(Pending { entries });
        self.outstanding += 1;
    }

    /// Indexes what is stored by now: everything before `next`.
    pub fn stored(&mut self, next: Offset, index: &mut Index) {
        while let Some(pending) = self.pending.pop_front() {
            if pending.entries.last().is_some_and(|last| last.offset >= next) {
                self.pending.push_front(pending);
                return;
            }
            self.forget(&pending);
            pending.entries.into_iter().for_each(|entry| index.add(entry));
        }
    }

    fn forget(&mut self, pending: &Pending) {
        let mut last: Option<&Arc<str>> = None;
        for entry in &pending.entries {
            if !self.ids.is_empty() {
                self.ids.remove(&entry.id);
            }
            // Messages of one stream follow each other.
            if last.is_some_and(|last| Arc::ptr_eq(last, &entry.stream)) {
                continue;
            }
            last = Some(&entry.stream);
            if let Some(head) = self.heads.get_mut(&entry.stream) {
                head.pending -= 1;
                if head.pending == 0 {
                    self.heads.remove(&entry.stream);
                }
            }
        }
    }

    /// It is known what became of a submission.
    pub fn ended(&mut self, is_stored: bool, next: Offset, index: &mut Index) {
        self.stored(next, index);
        self.outstanding -= 1;
        self.refused |= !is_stored;
        if self.refused && self.outstanding == 0 {
            self.pending.clear();
            self.heads.clear();
            self.ids.clear();
            self.refused = false;
            self.next_offset = next;
            self.next_global = index.last_global + 1;
        }
    }
}

impl Chance {
    fn take(&mut self) -> Result<[u8; 10]> {
        if self.left.is_empty() {
            let mut bytes = [0; 1000];
            getrandom::fill(&mut bytes)
                .map_err(|error| EventsError::Unavailable(format!("no random numbers for ids: {error}")))?;
            self.left.extend(bytes.as_chunks().0);
        }
        Ok(self.left.pop().unwrap_or_default())
    }
}
