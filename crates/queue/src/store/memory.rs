//! The messages of a partition in memory, stored in chunks, so that growth moves nothing and the memory of settled
//! messages is released.
//!
//! The cost of storing a message is mainly the memory that is touched. So a slot contains only what every message has;
//! optional parts are stored once per chunk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_log::clock::Clock;
use thalweg_log::format::record::Properties;
use thalweg_log::{Micros, Offset};

use super::{NextMessage, StoredSpan};
use crate::message::{Message, NewMessage, not_before};
use crate::produce::ttl_ms;

/// Messages per chunk.
const PIECE: usize = 256;

pub(crate) struct MemoryStore {
    inner: Mutex<MemoryStoreInner>,
    /// Copies of the inner values, for lock-free checks whether a scan is worth it.
    first: AtomicU64,
    next: AtomicU64,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct MemoryStoreInner {
    /// Offset of the first message of the first chunk.
    base: Offset,
    first: Offset,
    next: Offset,
    pieces: VecDeque<SlotChunk>,
    /// An unused chunk, kept for reuse.
    spare: Option<SlotChunk>,
    bytes: u64,
}

#[derive(Default)]
struct SlotChunk {
    slots: Vec<MessageSlot>,
    extras: Vec<Extra>,
}

struct MessageSlot {
    payload: Bytes,
    time: Micros,
    /// [`FOREVER`] if it never expires.
    ttl_ms: u64,
    /// Index into the extras of its chunk, from 1; 0 if it has none.
    extra: u16,
}

const FOREVER: u64 = u64::MAX;

struct Extra {
    key: Option<Bytes>,
    properties: Properties,
    not_before: Option<Micros>,
    deliver_at: Option<Micros>,
}

impl MemoryStore {
    /// The first message gets this offset. A receipt of an earlier store must not name a message of this one.
    pub fn starting_at(offset: Offset, clock: Arc<dyn Clock>) -> MemoryStore {
        let inner = MemoryStoreInner {
            base: offset,
            first: offset,
            next: offset,
            ..MemoryStoreInner::default()
        };
        MemoryStore {
            inner: Mutex::new(inner),
            first: AtomicU64::new(offset),
            next: AtomicU64::new(offset),
            clock,
        }
    }

    /// First and next offset.
    pub fn bounds(&self) -> (Offset, Offset) {
        let inner = self.inner.lock();
        (inner.first, inner.next)
    }

    pub fn bytes(&self) -> u64 {
        self.inner.lock().bytes
    }

    /// Nothing below it is retained; everything at or above it may be.
    pub fn first_hint(&self) -> Offset {
        self.first.load(Ordering::Relaxed)
    }

    /// Never above the next offset, but possibly below it.
    pub fn next_hint(&self) -> Offset {
        self.next.load(Ordering::Acquire)
    }

    /// Appends the message and returns its offset.
    pub fn append(&self, message: NewMessage, ttl: Duration, now: Micros) -> Offset {
        let mut inner = self.inner.lock();
        let offset = inner.next;
        let bytes = inner.open_piece().map_or(0, |piece| piece.push(message, ttl, now));
        inner.next += 1;
        inner.bytes += bytes as u64;
        self.next.store(offset + 1, Ordering::Release);
        offset
    }

    #[inline]
    pub fn at<M>(&self, from: Offset, take: impl FnMut(Message) -> M) -> NextMessage<M> {
        let inner = self.inner.lock();
        if from >= inner.next {
            return NextMessage::End;
        }
        if from < inner.first {
            let to = inner.first;
            return NextMessage::Gap { to, lost: false };
        }
        match inner.get(from, self.clock.as_ref()).map(take) {
            Some(message) => NextMessage::Message(message, 0),
            None => NextMessage::End,
        }
    }

    /// Offset of the first message that was appended at `time` or later.
    pub fn offset_at(&self, time: Micros) -> Offset {
        let inner = self.inner.lock();
        let later = |offset: &Offset| inner.slot(*offset).is_some_and(|(_, slot)| slot.time >= time);
        (inner.first..inner.next).find(later).unwrap_or(inner.next)
    }

    /// The message at `offset` or the first after it.
    pub fn span_at(&self, offset: Offset) -> Option<StoredSpan> {
        let inner = self.inner.lock();
        let first = offset.max(inner.first);
        let (piece, slot) = inner.slot(first)?;
        Some(StoredSpan {
            first,
            next: first + 1,
            bytes: piece.bytes(slot) as u64,
            time: slot.time,
            last_time: slot.time,
        })
    }

    /// Returns the number of removed messages and their bytes.
    pub fn trim(&self, below: Offset) -> (u64, u64) {
        let mut inner = self.inner.lock();
        let (first, bytes) = (inner.first, inner.bytes);
        let below = below.min(inner.next);
        while inner.first < below {
            let at = inner.first;
            let freed = inner.slot(at).map_or(0, |(piece, slot)| piece.bytes(slot) as u64);
            inner.bytes -= freed;
            inner.first += 1;
            if inner.first - inner.base == PIECE as u64 {
                inner.base = inner.first;
                let mut piece = inner.pieces.pop_front().unwrap_or_default();
                piece.slots.clear();
                piece.extras.clear();
                inner.spare = Some(piece);
            }
        }
        self.first.store(inner.first, Ordering::Relaxed);
        (inner.first - first, bytes - inner.bytes)
    }
}

impl MemoryStoreInner {
    /// The last chunk, or a new one if it is full.
    fn open_piece(&mut self) -> Option<&mut SlotChunk> {
        if self.pieces.back().is_none_or(|piece| piece.slots.len() == PIECE) {
            let new = || SlotChunk {
                slots: Vec::with_capacity(PIECE),
                extras: Vec::new(),
            };
            let piece = self.spare.take().unwrap_or_else(new);
            self.pieces.push_back(piece);
        }
        self.pieces.back_mut()
    }

    fn slot(&self, offset: Offset) -> Option<(&SlotChunk, &MessageSlot)> {
        let at = (offset - self.base) as usize;
        let piece = self.pieces.get(at / PIECE)?;
        Some((piece, piece.slots.get(at % PIECE)?))
    }

    // It is part of the loop of a claim: a call would write the message twice.
    #[inline(always)]
    fn get(&self, offset: Offset, clock: &dyn Clock) -> Option<Message> {
        let (piece, slot) = self.slot(offset)?;
        let payload = slot.payload.clone();
        let ttl_ms = (slot.ttl_ms != FOREVER).then_some(slot.ttl_ms);
        let time = slot.time;
        // Most messages have no extras, so theirs is built from constants in place, without branches per field.
        Some(match piece.extra(slot) {
            None => Message {
                offset,
                time,
                payload,
                key: None,
                properties: Properties::default(),
                ttl_ms,
                not_before: None,
                deliver_at: None,
            },
            Some(extra) => Message {
                offset,
                time,
                payload,
                key: extra.key.clone(),
                properties: extra.properties.clone(),
                ttl_ms,
                not_before: not_before(extra.not_before, extra.deliver_at, clock),
                deliver_at: extra.deliver_at,
            },
        })
    }
}

impl SlotChunk {
    /// Returns the bytes of payload, key and properties.
    fn push(&mut self, message: NewMessage, ttl: Duration, now: Micros) -> usize {
        let mut slot = MessageSlot {
            time: now,
            ttl_ms: ttl_ms(&message, ttl).unwrap_or(FOREVER),
            extra: 0,
            payload: message.payload,
        };
        let key = message.key.filter(|key| !key.is_empty());
        let properties = message.properties;
        if key.is_some() || !properties.is_empty() || message.not_before.or(message.deliver_at).is_some() {
            if self.extras.capacity() == 0 {
                self.extras.reserve_exact(PIECE);
            }
            self.extras.push(Extra {
                key,
                properties,
                not_before: message.not_before,
                deliver_at: message.deliver_at,
            });
            slot.extra = self.extras.len() as u16;
        }
        let bytes = self.bytes(&slot);
        self.slots.push(slot);
        bytes
    }

    fn extra(&self, slot: &MessageSlot) -> Option<&Extra> {
        self.extras.get(usize::from(slot.extra).checked_sub(1)?)
    }

    /// Bytes of payload, key and properties.
    fn bytes(&self, slot: &MessageSlot) -> usize {
        let extra = self.extra(slot).map_or(0, |extra| {
            extra.key.as_ref().map_or(0, Bytes::len) + extra.properties.as_ref().as_bytes().len()
        });
        slot.payload.len() + extra
    }
}

#[cfg(test)]
mod tests {
    use thalweg_log::clock::SystemClock;

    use super::*;

    fn put(store: &MemoryStore, range: std::ops::Range<u64>) -> Vec<Offset> {
        let message = |n: u64| NewMessage::of(Bytes::copy_from_slice(&n.to_le_bytes()));
        range.map(|n| store.append(message(n), Duration::ZERO, 0)).collect()
    }

    fn find(store: &MemoryStore, offset: Offset) -> NextMessage {
        store.at(offset, |message| message)
    }

    #[test]
    fn messages_are_found_by_their_offsets_until_they_are_trimmed() {
        let store = MemoryStore::starting_at(0, Arc::new(SystemClock));
        assert_eq!(put(&store, 0..1003), (0..1003).collect::<Vec<_>>());
        assert_eq!((store.bounds(), store.bytes()), ((0, 1003), 8024));
        for offset in [0, 255, 256, 999, 1002] {
            match find(&store, offset) {
                NextMessage::Message(found, _) => {
                    assert_eq!((found.offset, &found.payload[..]), (offset, &offset.to_le_bytes()[..]))
                }
                _ => panic!("{offset} is not there"),
            }
        }
        assert!(matches!(find(&store, 1003), NextMessage::End));
        assert_eq!(store.trim(700), (700, 5600));
        assert_eq!((store.first_hint(), store.next_hint()), (700, 1003));
        assert_eq!((store.bounds(), store.bytes()), ((700, 1003), 8 * 303));
        assert!(matches!(find(&store, 699), NextMessage::Gap { to: 700, lost: false }));
        assert!(matches!(find(&store, 700), NextMessage::Message(found, _) if found.offset == 700));
        store.trim(5000);
        assert_eq!((store.bounds(), store.bytes()), ((1003, 1003), 0));
        assert_eq!(put(&store, 1003..1004), [1003]);
        assert!(matches!(find(&store, 1003), NextMessage::Message(..)));
    }

    #[test]
    fn what_only_some_messages_have_comes_back_with_them() {
        let store = MemoryStore::starting_at(0, Arc::new(SystemClock));
        let plain = NewMessage::of("plain");
        let rich = |n: u64| NewMessage {
            key: Some(Bytes::from(format!("key-{n}"))),
            properties: [("n", n.to_string())].into_iter().collect(),
            not_before: Some(n as Micros),
            ..NewMessage::of("rich")
        };
        let mut bytes = 0;
        for n in 0..600 {
            let message = if n % 3 == 0 { rich(n) } else { plain.clone() };
            store.append(message, Duration::from_secs(60), 7);
        }
        for n in 0..600 {
            let NextMessage::Message(found, _) = find(&store, n) else {
                panic!("{n} is not there");
            };
            bytes += found.bytes() as u64;
            assert_eq!((found.offset, found.time, found.ttl_ms), (n, 7, Some(60_000)));
            if n % 3 == 0 {
                assert_eq!(found.key, rich(n).key);
                assert_eq!(found.properties.as_ref().get("n"), Some(&*n.to_string()));
                assert_eq!(
                    (found.not_before, &found.payload[..]),
                    (Some(n as Micros), &b"rich"[..])
                );
            } else {
                assert_eq!((found.key, found.not_before), (None, None));
                assert_eq!((found.properties.is_empty(), &found.payload[..]), (true, &b"plain"[..]));
            }
        }
        assert_eq!(store.bytes(), bytes);
        assert_eq!(store.trim(600).0, 600);
        assert_eq!(store.bytes(), 0);
    }
}
