//! Interest lists: for one filter, the offsets of the messages that match it, in order. However many sessions have the filter,
//! there is one list, so a publish costs the same for one offline session as for a hundred thousand.
//!
//! Offsets are kept as differences of one or two bytes each, in chunks of up to [`CHUNK_MAX`]. Full chunks are immutable: they
//! are written to the index partition, and then leave memory when there is need.

use std::collections::VecDeque;

/// The offset of a message in the message log.
pub type Offset = u64;

/// The most offsets of one chunk.
pub const CHUNK_MAX: u32 = 4096;

/// Some offsets of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterestChunk {
    pub first: Offset,
    pub last: Offset,
    pub count: u32,
    /// The differences behind the first one, as variable integers.
    deltas: Vec<u8>,
}

impl InterestChunk {
    fn of(first: Offset) -> InterestChunk {
        InterestChunk {
            first,
            last: first,
            count: 1,
            deltas: Vec::new(),
        }
    }

    fn push(&mut self, offset: Offset) {
        let mut delta = offset - self.last;
        while delta >= 0x80 {
            self.deltas.push(delta as u8 | 0x80);
            delta >>= 7;
        }
        self.deltas.push(delta as u8);
        (self.last, self.count) = (offset, self.count + 1);
    }

    /// All offsets in order.
    pub fn offsets(&self) -> impl Iterator<Item = Offset> {
        let mut at = self.first;
        let mut deltas = self.deltas.iter();
        let rest = std::iter::from_fn(move || {
            let (mut delta, mut shift) = (0, 0);
            loop {
                let byte = deltas.next()?;
                delta |= u64::from(byte & 0x7f) << shift;
                if byte & 0x80 == 0 {
                    break;
                }
                shift += 7;
                if shift > 63 {
                    return None;
                }
            }
            at = at.checked_add(delta)?;
            Some(at)
        });
        std::iter::once(self.first).chain(rest)
    }

    /// The chunk as bytes, which [`decode`](InterestChunk::decode) reads.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.first.to_be_bytes());
        out.extend_from_slice(&self.last.to_be_bytes());
        out.extend_from_slice(&self.count.to_be_bytes());
        out.extend_from_slice(&self.deltas);
    }

    /// `None`: these bytes are no chunk.
    pub fn decode(bytes: &[u8]) -> Option<InterestChunk> {
        let (first, rest) = bytes.split_first_chunk()?;
        let (last, rest) = rest.split_first_chunk()?;
        let (count, deltas) = rest.split_first_chunk()?;
        let chunk = InterestChunk {
            first: u64::from_be_bytes(*first),
            last: u64::from_be_bytes(*last),
            count: u32::from_be_bytes(*count),
            deltas: deltas.to_vec(),
        };
        let (mut count, mut last) = (0, None);
        for offset in chunk.offsets() {
            if last.is_some_and(|last| offset <= last) {
                return None;
            }
            (count, last) = (count + 1, Some(offset));
        }
        (count == chunk.count && last == Some(chunk.last) && count <= CHUNK_MAX).then_some(chunk)
    }

    fn bytes(&self) -> usize {
        self.deltas.capacity()
    }
}

/// A chunk of a list: in memory, in the index partition, or both.
#[derive(Clone, Debug)]
struct ListedChunk {
    first: Offset,
    last: Offset,
    count: u32,
    body: Option<InterestChunk>,
    /// Its offset in the index partition.
    stored_at: Option<u64>,
}

/// What a read of a list found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListRead {
    /// The offsets were appended. There are none behind them.
    End,
    /// The offsets were appended. There may be more.
    More,
    /// A chunk must be read from the index partition first, at this offset, and given to [`InterestList::loaded`].
    Load(u64),
}

/// The messages that match one filter.
#[derive(Clone, Debug, Default)]
pub struct InterestList {
    /// Oldest first. The last one grows until it is full or stored.
    chunks: VecDeque<ListedChunk>,
    /// The first chunks, this many, are in the index partition.
    stored: usize,
    /// The chunk that was read last from the index partition.
    loaded: Option<(u64, InterestChunk)>,
}

impl InterestList {
    /// Adds a message, which must be behind all others. One that is not is there already.
    pub fn push(&mut self, offset: Offset) {
        if let Some(newest) = self.chunks.back_mut() {
            if newest.last >= offset {
                return;
            }
            if let (Some(body), None, ..CHUNK_MAX) = (&mut newest.body, newest.stored_at, newest.count) {
                body.push(offset);
                (newest.last, newest.count) = (offset, newest.count + 1);
                return;
            }
        }
        self.chunks.push_back(ListedChunk {
            first: offset,
            last: offset,
            count: 1,
            body: Some(InterestChunk::of(offset)),
            stored_at: None,
        });
    }

    /// Adds a chunk that is in the index partition, at `at`. It must be behind all others.
    pub fn push_stored(&mut self, chunk: &InterestChunk, at: u64) {
        let is_behind = self.last().is_none_or(|last| last < chunk.first);
        if is_behind && self.stored == self.chunks.len() {
            self.chunks.push_back(ListedChunk {
                first: chunk.first,
                last: chunk.last,
                count: chunk.count,
                body: None,
                stored_at: Some(at),
            });
            self.stored += 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The newest message.
    pub fn last(&self) -> Option<Offset> {
        self.chunks.back().map(|chunk| chunk.last)
    }

    /// The oldest message.
    pub fn first(&self) -> Option<Offset> {
        self.chunks.front().map(|chunk| chunk.first)
    }

    /// Where the oldest chunk is in the index partition, which is not needed before it.
    pub fn first_stored_at(&self) -> Option<u64> {
        self.chunks.front().and_then(|chunk| chunk.stored_at)
    }

    /// Removes chunks that have only messages before `below`.
    pub fn trim(&mut self, below: Offset) {
        while self.chunks.front().is_some_and(|chunk| chunk.last < below) {
            self.chunks.pop_front();
            self.stored = self.stored.saturating_sub(1);
        }
    }

    /// How many messages there are from `from` on. Those of the chunk that `from` lies in are counted as a share of it.
    pub fn count_from(&self, from: Offset) -> u64 {
        let counts = self.chunks.iter().skip(self.chunk_of(from)).map(|chunk| {
            if from <= chunk.first {
                return u64::from(chunk.count);
            }
            let share = (chunk.last - from + 1) as f64 / (chunk.last - chunk.first + 1) as f64;
            ((f64::from(chunk.count) * share) as u64).max(1)
        });
        counts.sum()
    }

    /// Appends up to `max` messages from `from` on.
    pub fn read(&self, from: Offset, max: usize, out: &mut Vec<Offset>) -> ListRead {
        let (start, end) = (out.len(), out.len() + max);
        for chunk in self.chunks.iter().skip(self.chunk_of(from)) {
            let loaded = self.loaded.as_ref();
            let loaded = loaded
                .filter(|(at, _)| chunk.stored_at == Some(*at))
                .map(|(_, body)| body);
            let Some(body) = chunk.body.as_ref().or(loaded) else {
                return match chunk.stored_at {
                    // What was found is enough for now.
                    Some(_) if out.len() > start => ListRead::More,
                    Some(at) => ListRead::Load(at),
                    None => ListRead::End,
                };
            };
            for offset in body.offsets().skip_while(|offset| *offset < from) {
                if out.len() == end {
                    return ListRead::More;
                }
                out.push(offset);
            }
        }
        ListRead::End
    }

    /// A chunk that [`read`](InterestList::read) wanted. It is kept until another one is wanted.
    pub fn loaded(&mut self, at: u64, chunk: InterestChunk) {
        self.loaded = Some((at, chunk));
    }

    /// The first chunk that is not in the index partition yet.
    pub fn unstored(&self) -> Option<&InterestChunk> {
        self.chunks.get(self.stored).and_then(|chunk| chunk.body.as_ref())
    }

    /// The first chunk that was not stored is in the index partition now, at `at`. What comes later is in new chunks.
    pub fn was_stored(&mut self, at: u64) {
        if let Some(chunk) = self.chunks.get_mut(self.stored) {
            chunk.stored_at = Some(at);
            self.stored += 1;
        }
    }

    /// Frees what the index partition has.
    pub fn leave_memory(&mut self) {
        self.loaded = None;
        for chunk in self.chunks.iter_mut().take(self.stored) {
            chunk.body = None;
        }
    }

    /// Approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        let bodies = self.chunks.iter().filter_map(|chunk| chunk.body.as_ref());
        let loaded = self.loaded.iter().map(|(_, body)| body);
        self.chunks.capacity() * size_of::<ListedChunk>()
            + bodies.chain(loaded).map(InterestChunk::bytes).sum::<usize>()
    }

    /// The first chunk that has a message at or behind `from`.
    fn chunk_of(&self, from: Offset) -> usize {
        self.chunks.partition_point(|chunk| chunk.last < from)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u64),
        Trim(u64),
        Store(bool),
        /// Behind the start of a list.
        Read(u64, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (1..200_u64).prop_map(Step::Push),
            2 => (0..100_000_u64).prop_map(Step::Push),
            1 => (0..5_000_u64).prop_map(Step::Trim),
            2 => any::<bool>().prop_map(Step::Store),
            3 => (0..9_000_u64, 1..50_usize).prop_map(|(from, max)| Step::Read(from, max)),
        ]
    }

    proptest! {
        /// Against a set, with a partition that holds what was stored.
        #[test]
        fn a_list_is_the_ordered_set_of_its_messages(steps in prop::collection::vec(step(), 1..200)) {
            let (mut list, mut model, mut partition) = (InterestList::default(), BTreeSet::new(), BTreeMap::new());
            let (mut last, mut trimmed) = (0, 0);
            for step in steps {
                match step {
                    Step::Push(delta) => {
                        last += delta;
                        list.push(last);
                        model.insert(last);
                        // A message that is there already.
                        list.push(last);
                    }
                    Step::Trim(by) => {
                        trimmed += by;
                        list.trim(trimmed);
                    }
                    Step::Store(leaves) => {
                        if let Some(chunk) = list.unstored() {
                            let mut bytes = Vec::new();
                            chunk.encode(&mut bytes);
                            let at = partition.len() as u64;
                            partition.insert(at, bytes);
                            list.was_stored(at);
                        }
                        if leaves {
                            list.leave_memory();
                        }
                    }
                    Step::Read(behind, max) => {
                        let from = trimmed + behind;
                        let mut found = Vec::new();
                        let end = loop {
                            match list.read(from, max, &mut found) {
                                ListRead::Load(at) => list.loaded(at, InterestChunk::decode(&partition[&at]).unwrap()),
                                end => break end,
                            }
                        };
                        let expected: Vec<u64> = model.range(from..).copied().take(found.len()).collect();
                        prop_assert_eq!(&found, &expected);
                        let all = model.range(from..).count();
                        prop_assert!(found.len() == all.min(max) || (end == ListRead::More && !found.is_empty()));
                        prop_assert!(end != ListRead::End || found.len() == all);
                        prop_assert_eq!(list.count_from(from) == 0, all == 0);
                    }
                }
            }
            // A restart finds the same from what was stored.
            let mut again = InterestList::default();
            for (at, bytes) in &partition {
                again.push_stored(&InterestChunk::decode(bytes).unwrap(), *at);
            }
            let needed: Vec<u64> = model.range(trimmed..).copied().collect();
            needed.iter().for_each(|offset| again.push(*offset));
            let (mut found, mut from) = (Vec::new(), trimmed);
            loop {
                match again.read(from, 100, &mut found) {
                    ListRead::Load(at) => again.loaded(at, InterestChunk::decode(&partition[&at]).unwrap()),
                    ListRead::End => break,
                    ListRead::More => {}
                }
                from = found.last().map_or(from, |last| last + 1);
            }
            prop_assert_eq!(found, needed);
        }

        #[test]
        fn bytes_of_any_kind_are_no_chunk_or_a_right_one(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Some(chunk) = InterestChunk::decode(&bytes) {
                let mut again = Vec::new();
                chunk.encode(&mut again);
                prop_assert_eq!(InterestChunk::decode(&again), Some(chunk));
            }
        }
    }

    #[test]
    fn an_offset_takes_about_two_bytes() {
        let mut list = InterestList::default();
        for n in 0..1_000_000 {
            list.push(n * 100);
        }
        assert!(list.bytes() < 2_500_000, "{}", list.bytes());
        assert_eq!(list.count_from(0), 1_000_000);
        assert!(list.count_from(50_000_000).abs_diff(500_000) < 50);
    }
}
