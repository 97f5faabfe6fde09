//! Which dedup-ids a queue must know, and which it may know.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_log::Micros;

pub type Place = (u32, u64);

/// The expected result of an id in a completed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Stored, and not as a duplicate.
    First,
    /// Not stored; the position is that of the first.
    Repeated(Place),
    /// Either: a client disconnected, or a crash lost some time.
    Either,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    place: Place,
    since: Micros,
}

pub struct Ids {
    window: Micros,
    known: BTreeMap<String, Known>,
    /// A message may have been stored under these since the queue was created.
    unsure: BTreeSet<String>,
    all_unsure: bool,
}

impl Ids {
    pub fn new(window: Micros) -> Ids {
        Ids {
            window,
            known: BTreeMap::new(),
            unsure: BTreeSet::new(),
            all_unsure: false,
        }
    }

    /// For a message that is produced now; `latest` is the highest log time so far.
    pub fn expected(&self, id: &str, now: Micros, latest: Micros) -> Expected {
        let unsure = self.all_unsure || self.unsure.contains(id);
        match self.known.get(id) {
            Some(known) if latest < known.since + self.window => Expected::Repeated(known.place),
            Some(known) if now < known.since + self.window => Expected::Either,
            _ if unsure => Expected::Either,
            _ => Expected::First,
        }
    }

    pub fn stored(&mut self, id: &str, place: Place, now: Micros) {
        self.unsure.remove(id);
        self.known.insert(id.to_owned(), Known { place, since: now });
    }

    /// It is unknown whether it was stored.
    pub fn may_be_stored(&mut self, id: &str) {
        self.unsure.insert(id.to_owned());
    }

    /// Files were damaged: known ids may be forgotten, and forgotten ones known.
    pub fn damaged(&mut self) {
        self.known.clear();
        self.all_unsure = true;
    }
}
