//! How far each partition that this consumer holds was taken, and how far the flow has confirmed it. Batches may be settled in
//! any order; what may be committed is where the confirmed ones at the front end.
//!
//! | a batch | then, in each of its partitions |
//! |---|---|
//! | is sent | its span is open |
//! | is confirmed | its span closes; the floor rises over the closed ones at the front |
//! | is given back | its span and all behind it are forgotten and read again, so that their order stays |
//!
//! | a partition | then |
//! |---|---|
//! | is assigned | it is empty: where it begins is where its first record is |
//! | begins at its end | what is before that is not wanted, as if it were confirmed |
//! | is revoked | it is forgotten with its spans: whatever is heard of them later commits nothing |
//! | goes back behind what was read of it | it is another log by now, under the same name: as if it were assigned anew |

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use thalweg_record::Outcome;

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Partition {
    pub topic: Arc<str>,
    pub number: i32,
}

/// Records of one partition within a batch: `to` is behind the last of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub partition: Partition,
    pub from: i64,
    pub to: i64,
}

#[derive(Debug, Default)]
pub struct Tracker {
    held: BTreeMap<Partition, Held>,
    /// Of the batch that was sent last.
    number: u64,
    /// Changes when a partition is taken away: what was read before may be another's by now.
    epoch: u64,
}

#[derive(Debug, Default)]
struct Held {
    /// Behind what was read, or is not wanted; `None` before the first record.
    next: Option<i64>,
    /// All below is confirmed, or not wanted; `None` while nothing is.
    floor: Option<i64>,
    committed: Option<i64>,
    open: VecDeque<Sent>,
    /// It is to be read again from here; until that is done, what comes of it is not wanted.
    rewind: Option<i64>,
    /// Where it was to be read and cannot; told with the first record that comes instead.
    lost: Option<i64>,
}

/// Where a partition goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jump {
    /// Behind records that are not there any more.
    From(i64),
    /// Before what was read: nobody has told of it.
    Back(i64),
}

#[derive(Debug)]
struct Sent {
    number: u64,
    from: i64,
    to: i64,
    confirmed: bool,
}

impl Tracker {
    pub fn assigned(&mut self, partition: Partition) {
        self.held.insert(partition, Held::default());
    }

    /// The group has committed nothing of a partition, and wants nothing of it that is before this place.
    pub fn begins_at(&mut self, partition: &Partition, at: i64) {
        if let Some(held) = self.held.get_mut(partition) {
            held.next = Some(at);
            held.floor = Some(at);
        }
    }

    pub fn revoked(&mut self, partition: &Partition) {
        if self.held.remove(partition).is_some() {
            self.epoch += 1;
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether records of a partition are wanted now.
    pub fn wants(&self, partition: &Partition) -> bool {
        self.held.get(partition).is_some_and(|held| held.rewind.is_none())
    }

    /// A batch of these records goes to the flow; returns the number under which it is settled. Of a partition that is to be
    /// read again they come once more, so nothing is confirmed by them.
    pub fn sent(&mut self, spans: &[Span]) -> u64 {
        self.number += 1;
        for span in spans {
            let held = self.held.get_mut(&span.partition);
            let Some(held) = held.filter(|held| held.rewind.is_none()) else {
                continue;
            };
            if held.next.is_some_and(|next| span.from < next) {
                *held = Held::default();
            }
            let from = held.next.unwrap_or(span.from);
            let to = span.to;
            held.next = Some(to);
            held.open.push_back(Sent {
                number: self.number,
                from,
                to,
                confirmed: false,
            });
        }
        self.number
    }

    /// Where a partition was to be read there is nothing; it goes on elsewhere.
    pub fn lost(&mut self, partition: &Partition, at: i64) {
        if let Some(held) = self.held.get_mut(partition) {
            held.lost = Some(at);
        }
    }

    /// Whether a record of a partition comes from where it goes on after something else; told once.
    pub fn jump(&mut self, partition: &Partition, offset: i64) -> Option<Jump> {
        let held = self.held.get_mut(partition)?;
        let back = held.next.filter(|next| offset < *next);
        held.lost.take().map(Jump::From).or(back.map(Jump::Back))
    }

    /// Whether of some partition a record is still to come that tells where it goes on.
    pub fn is_any_lost(&self) -> bool {
        self.held.values().any(|held| held.lost.is_some())
    }

    /// Partitions with where they are read on, if that is known.
    pub fn places(&self) -> BTreeMap<Partition, Option<i64>> {
        let places = self.held.iter();
        places
            .map(|(partition, held)| (partition.clone(), held.rewind.or(held.next)))
            .collect()
    }

    /// All partitions of which something was read are read again from where that ended.
    pub fn read_on_again(&mut self) {
        for held in self.held.values_mut() {
            held.rewind = held.rewind.or(held.next);
        }
    }

    /// Records that were read are not sent: they are read again.
    pub fn unsent(&mut self, spans: &[Span]) {
        for span in spans {
            if let Some(held) = self.held.get_mut(&span.partition) {
                held.rewind.get_or_insert(held.next.unwrap_or(span.from));
            }
        }
    }

    /// What became of a batch. `true`: some of it is to be read again.
    pub fn settled(&mut self, number: u64, outcome: Outcome) -> bool {
        let mut again = false;
        for held in self.held.values_mut() {
            match outcome {
                Outcome::Acked => held.confirmed(number),
                Outcome::Nacked => again |= held.given_back(number),
            }
        }
        again
    }

    /// What may be committed and is not yet.
    pub fn due(&self) -> Vec<(Partition, i64)> {
        let due = self.held.iter().filter(|(_, held)| held.floor > held.committed);
        due.filter_map(|(partition, held)| Some((partition.clone(), held.floor?)))
            .collect()
    }

    /// A commit is under way.
    pub fn committing(&mut self, partition: &Partition, to: i64) {
        if let Some(held) = self.held.get_mut(partition) {
            held.committed = Some(to);
        }
    }

    /// A commit failed: it is due again.
    pub fn uncommitted(&mut self, partition: &Partition) {
        if let Some(held) = self.held.get_mut(partition) {
            held.committed = None;
        }
    }

    /// Where to read again.
    pub fn rewinds(&self) -> Vec<(Partition, i64)> {
        let rewinds = self.held.iter();
        rewinds
            .filter_map(|(partition, held)| Some((partition.clone(), held.rewind?)))
            .collect()
    }

    /// What comes of a partition from now on begins at this place. It may be meant to go back further by now: then it is not
    /// there yet.
    pub fn rewound(&mut self, partition: &Partition, at: i64) {
        let held = self.held.get_mut(partition);
        if let Some(held) = held.filter(|held| held.rewind == Some(at)) {
            held.next = held.rewind.take();
        }
    }
}

impl Held {
    fn confirmed(&mut self, number: u64) {
        // The numbers rise, and of each batch there is one span at most.
        if let Ok(at) = self.open.binary_search_by_key(&number, |sent| sent.number)
            && let Some(sent) = self.open.get_mut(at)
        {
            sent.confirmed = true;
        }
        while let Some(first) = self.open.front().filter(|first| first.confirmed) {
            self.floor = Some(first.to);
            self.open.pop_front();
        }
    }

    /// `false` for a batch that was forgotten already.
    fn given_back(&mut self, number: u64) -> bool {
        let Ok(at) = self.open.binary_search_by_key(&number, |sent| sent.number) else {
            return false;
        };
        let from = self.open.get(at).map(|sent| sent.from);
        self.open.truncate(at);
        // An earlier place than the one that waits already.
        self.rewind = from;
        self.next = from;
        true
    }
}

#[cfg(test)]
mod tests;
