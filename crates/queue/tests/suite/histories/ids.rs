//! Which dedup-ids a queue must know, and which it may.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_log::Micros;

pub type Place = (u32, u64);

/// What an id came to, of a call that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Stored, and not as a repetition.
    First,
    /// Not stored; the place is that of the first.
    Repeated(Place),
    /// One or the other: somebody has left, or a crash has taken time back.
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
    /// Under these somebody may have stored something since the queue was made.
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

    /// Of a message that is produced now; `latest` is the latest that the time has been.
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

    /// Nobody knows whether it was.
    pub fn may_be_stored(&mut self, id: &str) {
        self.unsure.insert(id.to_owned());
    }

    /// Files were damaged: what is known may be forgotten, and what was forgotten known.
    pub fn damaged(&mut self) {
        self.known.clear();
        self.all_unsure = true;
    }
}
