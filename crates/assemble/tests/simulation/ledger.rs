//! What was sent, what was acknowledged, and what arrived at each end of the path.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::machine;

#[derive(Clone, Copy, Default, Debug)]
struct Reading {
    is_acknowledged: bool,
    /// Deliveries by the slow consumer that were confirmed to it.
    consumed: u32,
}

/// The readings that are dead letters of each group that reads the queue.
#[derive(Clone, Default, Debug)]
pub struct DeadReadings {
    pub archive: BTreeSet<u64>,
    pub slow: BTreeSet<u64>,
}

#[derive(Default)]
struct LedgerState {
    readings: BTreeMap<u64, Reading>,
    /// Sent in an earlier life, and not acknowledged then: a source sends them again.
    unanswered: Vec<u64>,
    trace: DefaultHasher,
    steps: u64,
    log: Vec<String>,
}

/// Clones share the ledger.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<LedgerState>>);

impl Ledger {
    /// Notes what happens, for the comparison of two runs and for the report of one that fails.
    pub fn note(&self, what: impl FnOnce() -> String) {
        let mut state = self.0.lock();
        let line = format!("{:?} {}", machine::elapsed(), what());
        line.hash(&mut state.trace);
        state.steps += 1;
        state.log.push(line);
    }

    /// The digest of all notes, and their number.
    pub fn trace(&self) -> (u64, u64) {
        let state = self.0.lock();
        (state.trace.finish(), state.steps)
    }

    pub fn log(&self) -> Vec<String> {
        self.0.lock().log.clone()
    }

    pub fn sent(&self, id: u64) {
        self.0.lock().readings.entry(id).or_default();
    }

    pub fn acknowledged(&self, id: u64) {
        self.0.lock().readings.entry(id).or_default().is_acknowledged = true;
    }

    pub fn consumed(&self, id: u64) {
        let mut state = self.0.lock();
        let reading = state.readings.get_mut(&id);
        reading
            .unwrap_or_else(|| panic!("reading {id} was never sent"))
            .consumed += 1;
    }

    /// The readings that their source has to send again after a restart.
    pub fn take_unanswered(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unanswered)
    }

    pub fn life_ends(&self) {
        let mut state = self.0.lock();
        let unanswered = state.readings.iter().filter(|(_, reading)| !reading.is_acknowledged);
        state.unanswered = unanswered.map(|(id, _)| *id).collect();
    }

    /// The number of readings that were sent and are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        let state = self.0.lock();
        let open = state.readings.values().filter(|reading| !reading.is_acknowledged);
        open.count()
    }

    /// Acknowledged readings that the slow consumer has not confirmed and that are no dead letters of it.
    pub fn unconsumed(&self, dead: &BTreeSet<u64>) -> Vec<u64> {
        let state = self.0.lock();
        let missing = state.readings.iter();
        let missing = missing.filter(|(_, reading)| reading.is_acknowledged && reading.consumed == 0);
        missing.map(|(id, _)| *id).filter(|id| !dead.contains(id)).collect()
    }

    /// Checks what an end of the path has: everything that was acknowledged and is no dead letter, and nothing that was
    /// never sent.
    pub fn check(&self, end: &str, found: &BTreeMap<u64, u64>, dead: &BTreeSet<u64>) {
        let state = self.0.lock();
        for id in found.keys() {
            assert!(
                state.readings.contains_key(id),
                "{end} has reading {id}, which was never sent"
            );
        }
        let missing = state.readings.iter();
        let missing = missing.filter(|(id, reading)| reading.is_acknowledged && !found.contains_key(id));
        let missing: Vec<u64> = missing.map(|(id, _)| *id).filter(|id| !dead.contains(id)).collect();
        assert!(
            missing.is_empty(),
            "{end} lacks readings that were acknowledged: {missing:?}"
        );
    }

    /// The numbers of readings, and of acknowledged ones.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.0.lock();
        let acknowledged = state.readings.values().filter(|reading| reading.is_acknowledged);
        (state.readings.len() as u64, acknowledged.count() as u64)
    }
}
