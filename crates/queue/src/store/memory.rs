//! The messages of a partition that lives in memory: in pieces, so that growing moves nothing and what is settled is given
//! back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_log::{Micros, Offset};

use super::Next;
use crate::message::{Message, NewMessage};
use crate::produce::message_of;

/// Messages of a piece.
const PIECE: usize = 256;

#[derive(Default)]
pub(crate) struct MemoryStore {
    inner: Mutex<Inner>,
    /// As inside, for who only wants to know whether it is worth looking.
    first: AtomicU64,
    next: AtomicU64,
}

#[derive(Default)]
struct Inner {
    /// Of the first message of the first piece.
    base: Offset,
    first: Offset,
    next: Offset,
    pieces: VecDeque<Vec<Message>>,
    /// One that is not needed any more, for the next.
    spare: Option<Vec<Message>>,
    bytes: u64,
}

impl MemoryStore {
    /// First and next offset.
    pub fn bounds(&self) -> (Offset, Offset) {
        let inner = self.inner.lock();
        (inner.first, inner.next)
    }

    pub fn bytes(&self) -> u64 {
        self.inner.lock().bytes
    }

    /// Below it nothing is kept, and at least down to it everything.
    pub fn first_hint(&self) -> Offset {
        self.first.load(Ordering::Relaxed)
    }

    /// There may be more already, but never less.
    pub fn next_hint(&self) -> Offset {
        self.next.load(Ordering::Acquire)
    }

    /// Gives the message its offset, which is returned.
    pub fn append(&self, message: NewMessage, ttl: Duration, now: Micros) -> Offset {
        let bytes = message.bytes() as u64;
        let mut inner = self.inner.lock();
        let offset = inner.next;
        inner.next += 1;
        inner.bytes += bytes;
        inner.push(message_of(message, offset, ttl, now));
        self.next.store(offset + 1, Ordering::Release);
        offset
    }

    pub fn at(&self, from: Offset) -> Next {
        let inner = self.inner.lock();
        if from >= inner.next {
            return Next::End;
        }
        if from < inner.first {
            let to = inner.first;
            return Next::Gap { to, lost: false };
        }
        match inner.get(from) {
            Some(message) => Next::Message(message.clone(), 0),
            None => Next::End,
        }
    }

    /// Of the first message that was appended at `time` or later.
    pub fn offset_at(&self, time: Micros) -> Offset {
        let inner = self.inner.lock();
        let later = |offset: &Offset| inner.get(*offset).is_some_and(|message| message.time >= time);
        (inner.first..inner.next).find(later).unwrap_or(inner.next)
    }

    /// Returns how many messages are gone, and their bytes.
    pub fn trim(&self, below: Offset) -> (u64, u64) {
        let mut inner = self.inner.lock();
        let (first, bytes) = (inner.first, inner.bytes);
        let below = below.min(inner.next);
        while inner.first < below {
            let at = inner.first;
            let freed = inner.get(at).map_or(0, |message| message.bytes() as u64);
            inner.bytes -= freed;
            inner.first += 1;
            if inner.first - inner.base == PIECE as u64 {
                inner.base = inner.first;
                let mut piece = inner.pieces.pop_front().unwrap_or_default();
                piece.clear();
                inner.spare = Some(piece);
            }
        }
        self.first.store(inner.first, Ordering::Relaxed);
        (inner.first - first, bytes - inner.bytes)
    }
}

impl Inner {
    fn push(&mut self, message: Message) {
        if self.pieces.back().is_none_or(|piece| piece.len() == PIECE) {
            let piece = self.spare.take().unwrap_or_else(|| Vec::with_capacity(PIECE));
            self.pieces.push_back(piece);
        }
        if let Some(piece) = self.pieces.back_mut() {
            piece.push(message);
        }
    }

    fn get(&self, offset: Offset) -> Option<&Message> {
        let at = (offset - self.base) as usize;
        self.pieces.get(at / PIECE)?.get(at % PIECE)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn put(store: &MemoryStore, range: std::ops::Range<u64>) -> Vec<Offset> {
        let message = |n: u64| NewMessage::of(Bytes::copy_from_slice(&n.to_le_bytes()));
        range.map(|n| store.append(message(n), Duration::ZERO, 0)).collect()
    }

    #[test]
    fn messages_are_found_by_their_offsets_until_they_are_trimmed() {
        let store = MemoryStore::default();
        assert_eq!(put(&store, 0..1003), (0..1003).collect::<Vec<_>>());
        assert_eq!((store.bounds(), store.bytes()), ((0, 1003), 8024));
        for offset in [0, 255, 256, 999, 1002] {
            match store.at(offset) {
                Next::Message(found, _) => {
                    assert_eq!((found.offset, &found.payload[..]), (offset, &offset.to_le_bytes()[..]))
                }
                _ => panic!("{offset} is not there"),
            }
        }
        assert!(matches!(store.at(1003), Next::End));
        assert_eq!(store.trim(700), (700, 5600));
        assert_eq!((store.first_hint(), store.next_hint()), (700, 1003));
        assert_eq!((store.bounds(), store.bytes()), ((700, 1003), 8 * 303));
        assert!(matches!(store.at(699), Next::Gap { to: 700, lost: false }));
        assert!(matches!(store.at(700), Next::Message(found, _) if found.offset == 700));
        store.trim(5000);
        assert_eq!((store.bounds(), store.bytes()), ((1003, 1003), 0));
        assert_eq!(put(&store, 1003..1004), [1003]);
        assert!(matches!(store.at(1003), Next::Message(..)));
    }
}
