//! Requests as their receivers have read them, and messages as they left their flow, in memory for the threads that make rows of
//! them: what is here is neither read from the log nor decompressed, converted or recognised again.
//!
//! Receivers report every entry that they appended, after its commit and so in any order; rows are made by offset. The log has it
//! all, so a request that finds no room here costs a look into the log and nothing else, and nobody waits for room.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_log::Offset;
use thalweg_record::Message;
use tokio::sync::Notify;

use crate::entry::{EntryForm, EntryHead, RejectedRecords};
use crate::signal::Signal;

/// What an entry stands for.
#[derive(Clone, Debug)]
pub enum Handoff {
    Request(RequestHandoff),
    Messages(MessagesHandoff),
}

/// A request that was looked over, with all that its entry says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHandoff {
    pub signal: Signal,
    /// Nanoseconds since 1970.
    pub arrival: i64,
    /// Values are cut at so many bytes.
    pub cut_values_at: Option<u32>,
    /// Places of records that are left out, ascending.
    pub rejected: Vec<u32>,
    /// As protobuf, or rows; not compressed.
    pub request: Bytes,
    pub is_rows: bool,
}

/// Messages of a flow as they were written. They share their constant metadata with the stages before, so that nobody has
/// to recognise it again.
#[derive(Clone, Debug)]
pub struct MessagesHandoff {
    /// Of which the entry has a part.
    pub all: Arc<Vec<Message>>,
    pub part: Range<usize>,
    /// Places within all of those that are left out, ascending.
    pub refused: Vec<usize>,
    /// Of the maps of metadata that only one message has: what others share is no memory of these.
    pub own_maps_bytes: usize,
    /// Of messages that do not name their own.
    pub source: Arc<str>,
    /// Nanoseconds since 1970.
    pub arrival: i64,
}

impl MessagesHandoff {
    /// Memory, that of refused ones included.
    fn bytes(&self) -> usize {
        let part = self.all.get(self.part.clone()).unwrap_or_default();
        let messages: usize = part.iter().map(Message::memory_bytes).sum();
        messages + self.own_maps_bytes + self.refused.len() * size_of::<usize>()
    }

    /// Those that are in the entry.
    pub fn iter(&self) -> impl Iterator<Item = &Message> {
        let part = self.all.get(self.part.clone()).unwrap_or_default();
        let mut refused = self.refused.iter().copied().peekable();
        (self.part.start..)
            .zip(part)
            .filter(move |(index, _)| refused.next_if_eq(index).is_none())
            .map(|(_, message)| message)
    }
}

impl Handoff {
    /// Of an entry that has this head.
    pub fn of(head: &EntryHead<'_>, request: Bytes) -> Handoff {
        Handoff::Request(RequestHandoff {
            signal: head.signal,
            arrival: head.arrival,
            cut_values_at: head.cut_values_at,
            rejected: match head.rejected {
                RejectedRecords::Listed(places) => places.to_vec(),
                encoded => encoded.iter().collect(),
            },
            request,
            is_rows: head.form == EntryForm::Rows,
        })
    }

    /// Unless it is messages.
    pub fn request(&self) -> Option<&RequestHandoff> {
        match self {
            Handoff::Request(request) => Some(request),
            Handoff::Messages(_) => None,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let own = match self {
            Handoff::Request(request) => request.rejected.len() * size_of::<u32>() + request.request.len(),
            Handoff::Messages(messages) => messages.bytes(),
        };
        size_of::<Handoff>() + own
    }
}

/// What the requests of all tables may take here.
#[derive(Debug)]
pub struct HandoffBudget {
    bytes_max: usize,
    used: AtomicUsize,
}

impl HandoffBudget {
    pub fn new(bytes_max: usize) -> Arc<HandoffBudget> {
        Arc::new(HandoffBudget {
            bytes_max,
            used: AtomicUsize::new(0),
        })
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn keep(self: &Arc<HandoffBudget>, handoff: Handoff) -> Option<ReservedHandoff> {
        let bytes = handoff.bytes();
        let more = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.bytes_max);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| ReservedHandoff {
            handoff,
            bytes,
            room: self.clone(),
        })
    }
}

/// A request that takes its room until it is dropped.
#[derive(Debug)]
pub(super) struct ReservedHandoff {
    pub handoff: Handoff,
    pub bytes: usize,
    room: Arc<HandoffBudget>,
}

impl Drop for ReservedHandoff {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The requests of one queue that wait to become rows.
#[derive(Debug)]
pub struct HandoffQueue {
    room: Arc<HandoffBudget>,
    partitions: Vec<HandoffPartition>,
}

#[derive(Debug, Default)]
struct HandoffPartition {
    waiting: Mutex<PendingHandoffs>,
    reported: Notify,
}

#[derive(Debug, Default)]
struct PendingHandoffs {
    requests: BTreeMap<Offset, ReservedHandoff>,
    /// Nobody reports what is before it any more.
    log_only: Offset,
    /// Before it, what is not here has to be read from the log: it was appended by an earlier process, or found no room.
    from_log: Offset,
    is_closed: bool,
}

impl HandoffQueue {
    /// `next` is where each partition of the queue ends now: what is before that is in the log alone.
    pub fn new(room: Arc<HandoffBudget>, next: &[Offset]) -> Arc<HandoffQueue> {
        let partition = |next: &Offset| HandoffPartition {
            waiting: Mutex::new(PendingHandoffs {
                log_only: *next,
                from_log: *next,
                ..PendingHandoffs::default()
            }),
            reported: Notify::new(),
        };
        Arc::new(HandoffQueue {
            room,
            partitions: next.iter().map(partition).collect(),
        })
    }

    /// What was appended at an offset is in the log for good, and this is it.
    pub fn report(&self, partition: u32, offset: Offset, handoff: Handoff) {
        let Some(partition) = self.partitions.get(partition as usize) else {
            return;
        };
        let mut waiting = partition.waiting.lock();
        if waiting.is_closed || offset < waiting.log_only {
            return;
        }
        match self.room.keep(handoff) {
            Some(kept) => drop(waiting.requests.insert(offset, kept)),
            None => waiting.from_log = waiting.from_log.max(offset + 1),
        }
        drop(waiting);
        partition.reported.notify_one();
    }

    /// The request at an offset, if it is here. What is before it is not asked for again, unless from the log.
    pub(super) fn take(&self, partition: usize, offset: Offset) -> Option<ReservedHandoff> {
        let mut waiting = self.partitions.get(partition)?.waiting.lock();
        if offset < waiting.log_only {
            return None;
        }
        waiting.log_only = offset + 1;
        let kept = waiting.requests.remove(&offset);
        // Those that were read from the log before they were reported.
        while let Some(late) = waiting.requests.first_entry().filter(|first| *first.key() < offset) {
            drop(late.remove());
        }
        kept
    }

    /// Bytes of the requests that wait here.
    pub fn room_used(&self) -> usize {
        self.room.used()
    }

    /// Whether the request at an offset is here.
    pub(super) fn has(&self, partition: usize, offset: Offset) -> bool {
        let partition = self.partitions.get(partition);
        partition.is_some_and(|partition| partition.waiting.lock().requests.contains_key(&offset))
    }

    /// Whether what is not here now may still be reported.
    pub(super) fn may_come(&self, partition: usize, offset: Offset) -> bool {
        let Some(partition) = self.partitions.get(partition) else {
            return false;
        };
        let waiting = partition.waiting.lock();
        !waiting.is_closed && offset >= waiting.from_log.max(waiting.log_only)
    }

    /// Returns when something was reported since it returned the last time. For one that waits.
    pub(super) async fn reported(&self, partition: usize) {
        match self.partitions.get(partition) {
            Some(partition) => partition.reported.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Nothing of a partition becomes rows any more.
    pub(super) fn close(&self, partition: usize) {
        if let Some(partition) = self.partitions.get(partition) {
            let mut waiting = partition.waiting.lock();
            waiting.is_closed = true;
            waiting.requests.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_record::{Metadata, Payload, Value};

    use super::*;

    fn handoff(bytes: usize) -> Handoff {
        Handoff::Request(RequestHandoff {
            signal: Signal::Logs,
            arrival: 1,
            cut_values_at: None,
            rejected: Vec::new(),
            request: Bytes::from(vec![0; bytes]),
            is_rows: false,
        })
    }

    fn taken(handoffs: &HandoffQueue, offset: Offset) -> Option<usize> {
        Some(handoffs.take(0, offset)?.handoff.request()?.request.len())
    }

    #[test]
    fn messages_are_those_of_the_part_that_are_not_refused() {
        let number = |n: i64| Message::new(Payload::Value(Value::I64(n)), Metadata::default());
        let messages = MessagesHandoff {
            all: Arc::new((0..10).map(number).collect()),
            part: 2..8,
            refused: vec![2, 5, 6],
            own_maps_bytes: 700,
            source: "here".into(),
            arrival: 1,
        };
        let found: Vec<Payload> = messages.iter().map(|message| message.payload.clone()).collect();
        assert_eq!(found, [3, 4, 7].map(|n| number(n).payload));
        let bytes = Handoff::Messages(messages).bytes();
        assert!(bytes >= 6 * size_of::<Message>() + 700, "{bytes}");
    }

    #[test]
    fn requests_are_reported_in_any_order_and_taken_by_offset() {
        let handoffs = HandoffQueue::new(HandoffBudget::new(1 << 20), &[5]);
        assert!(!handoffs.may_come(0, 4), "an earlier process appended it");
        for offset in [7, 5, 6] {
            handoffs.report(0, offset, handoff(offset as usize));
        }
        assert!(handoffs.has(0, 5) && !handoffs.has(0, 8));
        assert_eq!(taken(&handoffs, 5), Some(5));
        assert_eq!(taken(&handoffs, 6), Some(6));
        assert_eq!(taken(&handoffs, 7), Some(7));
        assert!(handoffs.may_come(0, 8));
        assert_eq!(taken(&handoffs, 8), None);
        handoffs.report(0, 8, handoff(8));
        assert_eq!(taken(&handoffs, 8), None, "it was read from the log meanwhile");
        assert!(!handoffs.may_come(0, 8));
        assert_eq!(handoffs.room.used(), 0);
    }

    #[test]
    fn what_finds_no_room_is_for_the_log_and_what_comes_later_is_not() {
        let of_one = handoff(1000).bytes();
        let room = HandoffBudget::new(2 * of_one);
        let handoffs = HandoffQueue::new(room.clone(), &[0]);
        for offset in 0..3 {
            handoffs.report(0, offset, handoff(1000));
        }
        assert_eq!(room.used(), 2 * of_one);
        assert!(!handoffs.may_come(0, 2) && handoffs.may_come(0, 3));
        assert_eq!(taken(&handoffs, 0), Some(1000));
        handoffs.report(0, 3, handoff(1000));
        assert_eq!(
            [1, 2, 3].map(|offset| taken(&handoffs, offset)),
            [Some(1000), None, Some(1000)]
        );
        assert_eq!(room.used(), 0);
    }

    #[test]
    fn a_partition_that_is_closed_keeps_nothing() {
        let room = HandoffBudget::new(1 << 20);
        let handoffs = HandoffQueue::new(room.clone(), &[0, 0]);
        handoffs.report(0, 0, handoff(10));
        handoffs.report(1, 0, handoff(10));
        handoffs.close(0);
        handoffs.report(0, 1, handoff(10));
        assert!(!handoffs.has(0, 0) && !handoffs.may_come(0, 1) && handoffs.has(1, 0));
        handoffs.close(1);
        assert_eq!(room.used(), 0);
    }
}
