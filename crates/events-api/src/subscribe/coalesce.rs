//! Coalesces pokes: only the newest of each stream is sent.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

/// The most streams whose pokes are held back at a time.
const STREAMS_MAX: usize = 1000;

/// Pokes that wait for newer ones of the same streams that are already stored.
#[derive(Default)]
pub(super) struct PokeCoalescer {
    /// In sending order, by global position.
    pokes: BTreeMap<u64, Bytes>,
    streams: HashMap<Box<str>, u64>,
    /// Everything up to this global position is read before the pokes are sent. Later messages are not waited for: they
    /// may never end.
    until: u64,
}

impl PokeCoalescer {
    /// Adds the newest poke of its stream. `last` is the end of what is stored.
    pub fn add(&mut self, stream: &str, global: u64, poke: Bytes, last: u64) {
        if self.pokes.is_empty() {
            self.until = last;
        }
        match self.streams.get_mut(stream) {
            Some(older) => {
                self.pokes.remove(older);
                *older = global;
            }
            None => {
                self.streams.insert(stream.into(), global);
            }
        }
        self.pokes.insert(global, poke);
    }

    /// Whether the pokes are due, after everything up to `covered` has been read.
    pub fn are_due(&self, covered: u64) -> bool {
        covered >= self.until || self.pokes.len() >= STREAMS_MAX
    }

    /// Leaves the coalescer empty.
    pub fn take(&mut self) -> impl Iterator<Item = Bytes> + use<> {
        self.streams = HashMap::new();
        std::mem::take(&mut self.pokes).into_values()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_newest_of_each_stream_stays_in_its_place(streams in proptest::collection::vec("[a-d]", 0..40)) {
            let mut newest = PokeCoalescer::default();
            for (global, stream) in (1..).zip(&streams) {
                newest.add(stream, global, Bytes::from(global.to_string()), 40);
                prop_assert!(!newest.are_due(39) && newest.are_due(40));
            }
            let is_last = |(at, stream): &(usize, &String)| !streams[at + 1..].contains(stream);
            let expected = streams.iter().enumerate().filter(is_last);
            let expected: Vec<_> = expected.map(|(at, _)| Bytes::from((at + 1).to_string())).collect();
            prop_assert_eq!(newest.take().collect::<Vec<_>>(), expected);
            prop_assert_eq!(newest.take().count(), 0);
        }
    }

    #[test]
    fn no_more_wait_than_there_is_room_for() {
        let mut newest = PokeCoalescer::default();
        for global in 1..STREAMS_MAX as u64 {
            newest.add(&global.to_string(), global, Bytes::new(), u64::MAX);
        }
        assert!(!newest.are_due(1));
        newest.add("1", 5000, Bytes::new(), u64::MAX);
        assert!(!newest.are_due(1));
        newest.add("another", 5001, Bytes::new(), u64::MAX);
        assert!(newest.are_due(1));
    }
}
