//! Hands decoded requests and flow messages in memory from receivers to partition consumers, which need not read,
//! decompress and decode them from the log again.
//!
//! Receivers report each entry after its append, so in any order; consumers take them by offset. The log has every
//! entry, so a request beyond the budget only costs a read from the log, and nobody waits for space.

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

/// The content of an entry.
#[derive(Clone, Debug)]
pub enum Handoff {
    Request(RequestHandoff),
    Messages(MessagesHandoff),
}

/// A validated request with the data of its entry header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHandoff {
    pub signal: Signal,
    /// Nanoseconds since 1970.
    pub arrival: i64,
    /// The length at which values are cut.
    pub cut_values_at: Option<u32>,
    /// Indexes of rejected records, ascending.
    pub rejected: Vec<u32>,
    /// Protobuf or rows, uncompressed.
    pub request: Bytes,
    pub is_rows: bool,
}

/// The messages of a flow as appended. They share constant metadata maps with the earlier stages, so the maps need not
/// be matched again.
#[derive(Clone, Debug)]
pub struct MessagesHandoff {
    /// The entry has `part` of these.
    pub all: Arc<Vec<Message>>,
    pub part: Range<usize>,
    /// Indexes of refused messages within `all`, ascending.
    pub refused: Vec<usize>,
    /// The size of metadata maps that only one message has. Shared maps do not count.
    pub own_maps_bytes: usize,
    /// The source of messages that do not name their own.
    pub source: Arc<str>,
    /// Nanoseconds since 1970.
    pub arrival: i64,
}

impl MessagesHandoff {
    /// The memory usage, including refused messages.
    fn bytes(&self) -> usize {
        let part = self.all.get(self.part.clone()).unwrap_or_default();
        let messages: usize = part.iter().map(Message::memory_bytes).sum();
        messages + self.own_maps_bytes + self.refused.len() * size_of::<usize>()
    }

    /// The messages in the entry.
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
    /// The handoff for an entry with this header.
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

    /// `None` for messages.
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

/// The memory budget for the handoffs of all tables.
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

/// A handoff that occupies its budget until it is dropped.
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

/// The handoffs of one queue.
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
    /// Handoffs before this offset are ignored.
    log_only: Offset,
    /// Entries before this offset without a handoff must be read from the log: they were appended by an earlier process
    /// or exceeded the budget.
    from_log: Offset,
    is_closed: bool,
}

impl HandoffQueue {
    /// `next` is the current end of each partition. Entries before it are only in the log.
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

    /// Reports that the entry at an offset is durable in the log.
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

    /// Takes the handoff at an offset, if there is one. Earlier offsets will only be read from the log.
    pub(super) fn take(&self, partition: usize, offset: Offset) -> Option<ReservedHandoff> {
        let mut waiting = self.partitions.get(partition)?.waiting.lock();
        if offset < waiting.log_only {
            return None;
        }
        waiting.log_only = offset + 1;
        let kept = waiting.requests.remove(&offset);
        // Entries that were read from the log before they were reported.
        while let Some(late) = waiting.requests.first_entry().filter(|first| *first.key() < offset) {
            drop(late.remove());
        }
        kept
    }

    /// Bytes of the budget in use.
    pub fn room_used(&self) -> usize {
        self.room.used()
    }

    /// Whether there is a handoff at an offset.
    pub(super) fn has(&self, partition: usize, offset: Offset) -> bool {
        let partition = self.partitions.get(partition);
        partition.is_some_and(|partition| partition.waiting.lock().requests.contains_key(&offset))
    }

    /// Whether a missing handoff may still be reported.
    pub(super) fn may_come(&self, partition: usize, offset: Offset) -> bool {
        let Some(partition) = self.partitions.get(partition) else {
            return false;
        };
        let waiting = partition.waiting.lock();
        !waiting.is_closed && offset >= waiting.from_log.max(waiting.log_only)
    }

    /// Returns when something was reported since its last return. For one waiter.
    pub(super) async fn reported(&self, partition: usize) {
        match self.partitions.get(partition) {
            Some(partition) => partition.reported.notified().await,
            None => std::future::pending().await,
        }
    }

    /// Stops accepting handoffs of a partition.
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
