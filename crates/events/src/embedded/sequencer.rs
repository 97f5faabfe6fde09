//! Assigns positions to messages before they are stored. Submissions go to the log without waiting for earlier ones.
//! Each expects the offset for which it was numbered, so if one is refused, all later ones are refused too and numbered
//! again.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use thalweg_kit::random;
use thalweg_log::Offset;

use super::index::{IndexEntry, NamespaceIndex};
use crate::error::{EventsError, Result};
use crate::id::MessageId;

#[derive(Debug, Default)]
pub(crate) struct Sequencer {
    pub next_offset: Offset,
    pub next_global: u64,
    /// Numbered but not yet indexed, in order.
    pending: VecDeque<PendingEntries>,
    /// Streams with pending messages.
    heads: HashMap<Arc<str>, StreamHead>,
    /// Ids that clients gave to pending messages.
    ids: HashSet<MessageId>,
    /// Names of pending documents.
    documents: HashSet<Arc<str>>,
    /// Number of submissions without a known outcome.
    outstanding: usize,
    /// A submission was refused: nothing is numbered until all outcomes are known.
    refused: bool,
    /// Number of holders that wait for pending submissions and keep the sequencer closed.
    holds: usize,
    chance: RandomBuffer,
}

/// A numbered submission that is in progress.
#[derive(Debug, Default)]
pub(crate) struct PendingEntries {
    pub entries: Vec<IndexEntry>,
    /// Streams and their new versions.
    pub streams: Vec<(Arc<str>, i64)>,
    /// Ids that clients gave.
    pub ids: Vec<MessageId>,
    /// Size in the log.
    pub bytes: u64,
}

#[derive(Debug)]
struct StreamHead {
    version: i64,
    /// Number of pending submissions.
    pending: usize,
}

/// Random bytes, fetched from the system in bulk.
#[derive(Debug, Default)]
struct RandomBuffer {
    left: Vec<[u8; 4]>,
}

impl Sequencer {
    pub fn new(index: &NamespaceIndex) -> Sequencer {
        Sequencer {
            next_offset: index.state.next_offset,
            next_global: index.state.last_global + 1,
            ..Sequencer::default()
        }
    }

    /// A random number for an id.
    pub fn chance(&mut self) -> Result<u32> {
        self.chance.take()
    }

    pub fn is_open(&self) -> bool {
        !self.refused && self.holds == 0
    }

    /// Stops numbering until `release`.
    pub fn hold(&mut self) {
        self.holds += 1;
    }

    pub fn release(&mut self) {
        self.holds -= 1;
    }

    /// Whether the outcome of all submissions is known and everything stored is indexed.
    pub fn is_settled(&self) -> bool {
        self.outstanding == 0 && self.pending.is_empty()
    }

    /// The version of a stream including pending messages, if it has any.
    pub fn pending_version(&self, stream: &str) -> Option<i64> {
        self.heads.get(stream).map(|head| head.version)
    }

    pub fn has_pending_document(&self, name: &str) -> bool {
        self.documents.contains(name)
    }

    pub fn has_pending_id(&self, id: &MessageId) -> bool {
        !self.ids.is_empty() && self.ids.contains(id)
    }

    pub fn name(&self, stream: &str, index: &NamespaceIndex) -> Arc<str> {
        let known = self.heads.get_key_value(stream).map(|(name, _)| name.clone());
        known.or_else(|| index.name(stream)).unwrap_or_else(|| stream.into())
    }

    /// Records a numbered submission.
    pub fn submitted(&mut self, pending: PendingEntries) {
        for (stream, version) in &pending.streams {
            let version = *version;
            let head = match self.heads.get_mut(stream) {
                Some(head) => head,
                None => self
                    .heads
                    .entry(stream.clone())
                    .or_insert(StreamHead { version, pending: 0 }),
            };
            head.version = version;
            head.pending += 1;
        }
        self.ids.extend(pending.ids.iter().cloned());
        self.next_offset += pending.entries.len() as u64;
        for entry in &pending.entries {
            match entry {
                IndexEntry::Event(event) => self.next_global = self.next_global.max(event.global + 1),
                IndexEntry::Document { name, .. } => {
                    self.documents.insert(name.clone());
                }
                IndexEntry::Cleared { .. } => self.next_global = 1,
            }
        }
        self.pending.push_back(pending);
        self.outstanding += 1;
    }

    /// Indexes what has been stored: everything before `next`.
    pub fn stored(&mut self, next: Offset, index: &mut NamespaceIndex) {
        while let Some(pending) = self.pending.pop_front() {
            if pending.entries.last().is_some_and(|last| last.offset() >= next) {
                self.pending.push_front(pending);
                return;
            }
            self.forget(&pending);
            let bytes = pending.bytes / (pending.entries.len() as u64).max(1);
            pending.entries.iter().for_each(|entry| index.add(entry, bytes));
        }
    }

    fn forget(&mut self, pending: &PendingEntries) {
        for id in &pending.ids {
            self.ids.remove(id);
        }
        for (stream, _) in &pending.streams {
            if let Some(head) = self.heads.get_mut(stream) {
                head.pending -= 1;
                if head.pending == 0 {
                    self.heads.remove(stream);
                }
            }
        }
        if !self.documents.is_empty() {
            for entry in &pending.entries {
                if let IndexEntry::Document { name, .. } = entry {
                    self.documents.remove(name);
                }
            }
        }
    }

    /// Handles the outcome of a submission.
    pub fn ended(&mut self, is_stored: bool, next: Offset, index: &mut NamespaceIndex) {
        self.stored(next, index);
        self.outstanding -= 1;
        self.refused |= !is_stored;
        if self.refused && self.outstanding == 0 {
            self.pending.clear();
            self.heads.clear();
            self.ids.clear();
            self.documents.clear();
            self.refused = false;
            self.next_offset = next;
            self.next_global = index.state.last_global + 1;
        }
    }
}

impl RandomBuffer {
    fn take(&mut self) -> Result<u32> {
        if self.left.is_empty() {
            let mut bytes = [0; 1024];
            random::fill(&mut bytes)
                .map_err(|error| EventsError::Unavailable(format!("no random numbers for ids: {error}")))?;
            self.left.extend(bytes.as_chunks().0);
        }
        Ok(self.left.pop().map_or(0, u32::from_le_bytes))
    }
}
