//! The dedup-ids of one queue under their lock: its producers reserve ids, and its maintenance forgets old ones. Ids
//! are released when their reservation is dropped before it is settled.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_log::Micros;
use thalweg_log::clock::Clock;

use super::storage::NewestIds;
use super::{Dedup, DedupLookup, DedupTicket, MessagePosition};
use crate::batch_entry::BatchEntry;
use crate::budget::Budget;
use crate::message::NewMessage;
use crate::stats::DedupStats;

/// Ids that are forgotten under one lock.
const AT_ONCE: usize = 4_096;

pub(crate) struct SharedDedup(Mutex<Dedup>);

/// Ids reserved for messages that are not stored yet; released if they never are.
pub(crate) struct DedupReservations<'a> {
    dedup: &'a SharedDedup,
    tickets: Vec<DedupTicket>,
}

impl Drop for DedupReservations<'_> {
    fn drop(&mut self) {
        if !self.tickets.is_empty() {
            let mut dedup = self.dedup.0.lock();
            self.tickets.drain(..).for_each(|ticket| dedup.failed(ticket));
        }
    }
}

impl DedupReservations<'_> {
    pub fn add(&mut self, ticket: DedupTicket) {
        self.tickets.push(ticket);
    }

    /// Passes the reservations on; whoever gets them must settle or release them.
    pub fn take(&mut self) -> Vec<DedupTicket> {
        std::mem::take(&mut self.tickets)
    }

    /// The messages are stored at these positions: completes the answers.
    pub fn settle(
        mut self,
        answers: &mut [BatchEntry],
        places: impl Iterator<Item = MessagePosition>,
        clock: &dyn Clock,
    ) {
        self.tickets.clear();
        BatchEntry::settle(answers, places, &mut self.dedup.0.lock(), clock.now());
    }
}

impl SharedDedup {
    pub fn new(window: Duration, memory: Arc<Budget>) -> SharedDedup {
        SharedDedup(Mutex::new(Dedup::new(window, memory)))
    }

    pub fn set_window(&self, window: Duration) {
        self.0.lock().set_window(window);
    }

    pub fn reservations(&self, tickets: Vec<DedupTicket>) -> DedupReservations<'_> {
        DedupReservations { dedup: self, tickets }
    }

    /// Reserves the dedup-ids of a batch, all at once. Returns the index of each id in the batch, and its lookup. While
    /// another batch is storing one of the ids, it waits without reserving any.
    pub async fn reserve(&self, messages: &[NewMessage], clock: &dyn Clock) -> (Vec<usize>, Vec<DedupLookup>) {
        let with_ids = messages.iter().enumerate();
        let with_ids = with_ids.filter_map(|(at, message)| Some((at, message.dedup_id.as_deref()?)));
        let (places, ids): (Vec<usize>, Vec<&str>) = with_ids.unzip();
        let mut from = 0;
        loop {
            let reserved = self.0.lock().reserve(clock.now(), &ids, from);
            match reserved {
                Ok(seen) => return (places, seen),
                Err(busy) => {
                    from = busy.at;
                    busy.is_over().await;
                }
            }
        }
    }

    /// Forgets ids whose window has passed. The lock is released between the steps, so that producers can proceed.
    pub fn forget(&self, now: Micros) {
        while self.0.lock().forget_some(now, AT_ONCE) {}
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// When the next id leaves the window.
    pub fn next_due(&self) -> Option<Micros> {
        self.0.lock().next_due()
    }

    /// The most bytes that this queue can keep, whatever other queues use.
    pub(super) fn bytes_max(&self) -> u64 {
        self.0.lock().bytes_max()
    }

    /// Adds the ids that a start has found.
    pub(super) fn restore(&self, newest: NewestIds) {
        let ids = newest.in_time_order();
        let mut dedup = self.0.lock();
        for (time, id, place) in ids {
            dedup.restore(time, &id, place);
        }
    }

    pub fn stats(&self) -> DedupStats {
        let dedup = self.0.lock();
        DedupStats {
            ids: dedup.len(),
            bytes: dedup.bytes(),
            forgotten_early: dedup.forgotten_early(),
        }
    }
}
