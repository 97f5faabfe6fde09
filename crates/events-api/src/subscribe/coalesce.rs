//! Pokes of which only the newest of each stream goes out.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

/// So many streams are held back for newer ones at a time.
const STREAMS_MAX: usize = 1000;

/// Pokes that wait for those of the same streams that are stored already.
#[derive(Default)]
pub(super) struct PokeCoalescer {
    /// In the order in which they go out, by global position.
    pokes: BTreeMap<u64, Bytes>,
    streams: HashMap<Box<str>, u64>,
    /// Everything up to here is looked at first, and nothing of what comes meanwhile: there may be no end to that.
    until: u64,
}

impl PokeCoalescer {
    /// The newest one of its stream, while everything up to `last` is stored.
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

    /// Whether they wait no longer, everything up to `covered` having been looked at.
    pub fn are_due(&self, covered: u64) -> bool {
        covered >= self.until || self.pokes.len() >= STREAMS_MAX
    }

    /// Leaves none.
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
