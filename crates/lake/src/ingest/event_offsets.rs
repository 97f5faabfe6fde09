//! The offsets of the event store's partitions, all of which one thread consumes.
//!
//! The thread counts what it consumes from all partitions; the memtable only has this count as its offset. The offsets
//! after each count are remembered since the last commit, so that a commit can record the offset of each partition.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use parking_lot::Mutex;
use thalweg_log::Offset;

use crate::commit::CommittedOffset;
use thalweg_delta::Snapshot;

/// The partition number in application names under which the count is stored. Namespaces have other numbers.
pub(super) const COUNT: u32 = 0;

pub(super) struct EventOffsets {
    /// The prefix of partition numbers in application names.
    application: String,
    state: Mutex<EventOffsetState>,
}

#[derive(Default)]
struct EventOffsetState {
    /// The next offset by number, as committed.
    committed: BTreeMap<u32, Offset>,
    /// The steps since the last commit: the count after the step, the number, and its next offset.
    steps: VecDeque<(u64, u32, Offset)>,
    /// The next offset by number, after the last step of each.
    newest: BTreeMap<u32, Offset>,
    /// Namespaces that are gone, with their committed offset. The next commit tells the table to forget them.
    left: Vec<(u32, Offset)>,
    /// How many of these are in the commit in progress.
    said: usize,
    /// Namespaces that the table was already told to forget.
    forgettable: BTreeSet<u32>,
}

impl EventOffsets {
    /// Restores the offsets and the count that a table has committed.
    pub fn of(application: String, table: Option<&Snapshot>) -> (EventOffsets, u64) {
        let number_of = |name: &String| name.strip_prefix(&application)?.parse().ok();
        let mut positions: BTreeMap<u32, Offset> = BTreeMap::new();
        for (name, position) in table.map(|table| &table.transactions).into_iter().flatten() {
            if let (Some(number), Ok(position)) = (number_of(name), Offset::try_from(*position)) {
                positions.insert(number, position);
            }
        }
        let forgettable = table.map(|table| &table.forgettable).into_iter().flatten();
        let forgettable = forgettable.filter_map(number_of).collect();
        let count = positions.remove(&COUNT).unwrap_or(0);
        let state = EventOffsetState {
            newest: positions.clone(),
            committed: positions,
            forgettable,
            ..EventOffsetState::default()
        };
        let journal = EventOffsets {
            application,
            state: Mutex::new(state),
        };
        (journal, count)
    }

    /// The next offset of a namespace; `None` if nothing of it was consumed yet.
    pub fn position(&self, number: u32) -> Option<Offset> {
        self.state.lock().newest.get(&number).copied()
    }

    /// The next offset of a namespace if the process crashed now.
    pub fn committed_position(&self, number: u32) -> Option<Offset> {
        self.state.lock().committed.get(&number).copied()
    }

    /// Records that the next offset of a namespace is `next` at the total `count`. A commit in progress covers `sealed`
    /// of the total; its offsets must not change.
    pub fn took(&self, sealed: u64, count: u64, number: u32, next: Offset) {
        let mut state = self.state.lock();
        state.newest.insert(number, next);
        match state.steps.back_mut() {
            Some(last) if last.1 == number && last.0 > sealed => *last = (count, number, next),
            _ => state.steps.push_back((count, number, next)),
        }
    }

    /// The offsets that a commit up to `count` must record.
    pub fn taken_of(&self, count: u64) -> Vec<CommittedOffset> {
        let mut state = self.state.lock();
        state.said = state.left.len();
        let mut positions = state.committed.clone();
        for (_, number, next) in state.steps.iter().take_while(|(at, ..)| *at <= count) {
            positions.insert(*number, *next);
        }
        let taken = |number: u32, offset: u64, is_last| CommittedOffset {
            application: format!("{}{number}", self.application),
            offset: i64::try_from(offset).unwrap_or(i64::MAX),
            is_last,
        };
        let needed = [(COUNT, count)].into_iter().chain(positions);
        let needed = needed.map(|(number, offset)| taken(number, offset, false));
        let left = state.left.iter().map(|(number, offset)| taken(*number, *offset, true));
        needed.chain(left).collect()
    }

    /// Records a commit up to `count`.
    pub fn committed(&self, count: u64) {
        let mut state = self.state.lock();
        while let Some((_, number, next)) = state.steps.pop_front_if(|(at, ..)| *at <= count) {
            state.committed.insert(number, next);
        }
        let said = std::mem::take(&mut state.said);
        state.left.drain(..said);
        // The commit recorded all existing namespaces as needed.
        state.forgettable.clear();
    }

    /// Keeps the existing namespaces only. The next commit tells the table to forget the others.
    pub fn keep_only(&self, is_there: &dyn Fn(u32) -> bool) {
        let mut state = self.state.lock();
        let EventOffsetState {
            committed,
            left,
            forgettable,
            ..
        } = &mut *state;
        let gone = committed.extract_if(.., |number, _| !is_there(*number));
        left.extend(gone.filter(|(number, _)| !forgettable.contains(number)));
        state.newest.retain(|number, _| is_there(*number));
        state.steps.retain(|(_, number, _)| is_there(*number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Said = Vec<(String, i64)>;

    /// The offsets that are kept, and those that the table may forget.
    fn all_said(journal: &EventOffsets, count: u64) -> (Said, Said) {
        let (last, needed): (Vec<CommittedOffset>, _) =
            journal.taken_of(count).into_iter().partition(|taken| taken.is_last);
        let plain =
            |all: Vec<CommittedOffset>| all.into_iter().map(|taken| (taken.application, taken.offset)).collect();
        (plain(needed), plain(last))
    }

    fn said(journal: &EventOffsets, count: u64) -> Said {
        all_said(journal, count).0
    }

    #[test]
    fn a_commit_says_what_was_taken_up_to_its_count() {
        let (journal, count) = EventOffsets::of("e/".to_owned(), None);
        assert_eq!((count, journal.position(1)), (0, None));
        // One step, because no other namespace came in between.
        journal.took(0, 2, 1, 7);
        journal.took(0, 3, 1, 8);
        journal.took(0, 5, 2, 2);
        journal.took(0, 9, 1, 12);
        assert_eq!((journal.position(1), journal.committed_position(1)), (Some(12), None));
        let position = |number, at: i64| (format!("e/{number}"), at);
        assert_eq!(said(&journal, 5), [position(0, 5), position(1, 8), position(2, 2)]);
        journal.committed(5);
        assert_eq!(
            (journal.position(1), journal.committed_position(1)),
            (Some(12), Some(8))
        );
        assert_eq!(said(&journal, 5), [position(0, 5), position(1, 8), position(2, 2)]);
        assert_eq!(said(&journal, 9), [position(0, 9), position(1, 12), position(2, 2)]);
        journal.keep_only(&|number| number == 2);
        assert_eq!(journal.position(1), None);
        // As committed. It is repeated until a commit has it, and then dropped.
        let left = (vec![position(0, 9), position(2, 2)], vec![position(1, 8)]);
        assert_eq!(all_said(&journal, 9), left);
        assert_eq!(all_said(&journal, 9), left);
        // The namespace leaves while a commit is in progress, so only the next one has it.
        journal.keep_only(&|_| false);
        journal.committed(9);
        assert_eq!(all_said(&journal, 9), (vec![position(0, 9)], vec![position(2, 2)]));
        journal.committed(9);
        assert_eq!(all_said(&journal, 9), (vec![position(0, 9)], Vec::new()));
    }

    /// Otherwise a start after that commit would consume rows again.
    #[test]
    fn what_is_taken_while_a_commit_is_on_its_way_leaves_its_positions_as_they_are() {
        let (journal, _) = EventOffsets::of("e/".to_owned(), None);
        journal.took(0, 1, 1, 7);
        journal.took(0, 2, 1, 9);
        // The commit of the earlier rows is in progress and asks for its offsets only now.
        journal.took(2, 3, 1, 20);
        journal.took(2, 4, 1, 30);
        let position = |number, at: i64| (format!("e/{number}"), at);
        assert_eq!(said(&journal, 2), [position(0, 2), position(1, 9)]);
        journal.committed(2);
        assert_eq!(journal.committed_position(1), Some(9));
        assert_eq!(said(&journal, 4), [position(0, 4), position(1, 30)]);
    }
}
