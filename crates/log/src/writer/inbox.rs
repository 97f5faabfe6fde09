//! The queue of the commit thread: submissions up to a number of bytes, and after them a wait queue of those that did
//! not fit. Invariant: while the wait queue is not empty, no submission with bytes overtakes it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::core::Submission;
use super::group::Slot;
use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::ids::PartitionId;
use crate::partition::Partition;
use crate::wait_queue::{WaitQueue, WaitTicket};

#[derive(Default)]
pub(super) struct Inbox {
    pub waiting: VecDeque<Submission>,
    pub bytes: usize,
    /// Submissions that did not fit, in the order of arrival.
    pub line: WaitQueue<Submission>,
    /// Partitions created and removed since the last block, in this order.
    pub partitions: Vec<Arc<Partition>>,
    pub removed: Vec<(Slot, PartitionId)>,
    /// Changes of durability that take effect with the next block.
    pub promises: Vec<(Arc<Partition>, Durability)>,
    /// Partitions with journaled records, and since when there are any.
    pub dirty: Vec<Arc<Partition>>,
    pub dirty_since: Option<Instant>,
    pub closing: bool,
    pub closed: bool,
    pub poison: Option<Arc<str>>,
    /// Number of submissions that did not have to wait.
    pub admitted: u64,
    /// The writer sleeps until this many submissions are waiting.
    pub wake_at: usize,
}

impl Inbox {
    /// Why submissions are refused, if they are.
    pub fn refuses(&self) -> Option<LogError> {
        if let Some(cause) = &self.poison {
            return Some(LogError::Poisoned { cause: cause.clone() });
        }
        self.closing.then_some(LogError::Closed)
    }

    /// Accepts a submission or queues it. A submission without bytes never waits, because it only requests the
    /// completion of earlier ones.
    pub fn push(&mut self, submission: Submission, most: usize) -> Option<WaitTicket> {
        let bytes = submission.bytes;
        if bytes > 0 && !(self.line.is_empty() && self.has_room(bytes, most)) {
            return Some(self.line.join(submission));
        }
        self.admitted += u64::from(bytes > 0);
        self.take_in(submission);
        None
    }

    /// Accepts queued submissions, in order, as far as they fit now.
    pub fn serve(&mut self, most: usize) {
        while self.line.first().is_some_and(|first| self.has_room(first.bytes, most))
            && let Some(submission) = self.line.serve()
        {
            self.take_in(submission);
        }
    }

    /// The first submission is accepted whatever its size, so that one larger than the limit can be stored.
    fn has_room(&self, bytes: usize, most: usize) -> bool {
        self.waiting.is_empty() || self.bytes + bytes <= most
    }

    fn take_in(&mut self, submission: Submission) {
        self.bytes += submission.bytes;
        self.waiting.push_back(submission);
    }
}

/// A queued submission. Dropping it removes it from the queue without accepting it.
pub(super) struct QueuedSubmission<'a> {
    inbox: &'a Mutex<Inbox>,
    place: WaitTicket,
    /// Maximum number of waiting bytes.
    most: usize,
}

impl<'a> QueuedSubmission<'a> {
    pub fn new(inbox: &'a Mutex<Inbox>, place: WaitTicket, most: usize) -> QueuedSubmission<'a> {
        QueuedSubmission { inbox, place, most }
    }

    /// Whether it was accepted. Fails if the log refuses writes.
    pub fn is_over(&self) -> Result<bool> {
        let inbox = self.inbox.lock();
        match inbox.line.holds(&self.place) {
            true => inbox.refuses().map_or(Ok(false), Err),
            false => Ok(true),
        }
    }

    pub async fn called(&self) {
        self.place.called().await;
    }
}

impl Drop for QueuedSubmission<'_> {
    fn drop(&mut self) {
        let mut inbox = self.inbox.lock();
        let left = inbox.line.leave(&self.place);
        if left.is_some() && inbox.refuses().is_none() {
            // Those after it may fit now.
            inbox.serve(self.most);
        }
        drop(inbox);
        // Free its memory without the lock.
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::writer::core::SubmissionParts;

    const MOST: usize = 10;
    /// Sizes are multiples of this; the remainder identifies the submission.
    const UNIT: usize = 1 << 12;

    fn submission(bytes: usize) -> Submission {
        Submission {
            parts: SubmissionParts::new(),
            durability: Durability::Fsync,
            bytes,
            done: None,
            for_files: false,
            frees: false,
        }
    }

    #[test]
    fn what_is_large_is_not_passed_by_what_is_small() {
        let mut inbox = Inbox::default();
        assert!(inbox.push(submission(6), MOST).is_none());
        let large = inbox.push(submission(9), MOST);
        let small = inbox.push(submission(1), MOST);
        // Before the wait queue existed, small submissions were accepted here and overtook the large one.
        assert!(large.is_some() && small.is_some());
        assert!(inbox.push(submission(0), MOST).is_none(), "a sync waits for nobody");
        inbox.waiting.clear();
        inbox.bytes = 0;
        inbox.serve(MOST);
        let taken: Vec<usize> = inbox.waiting.iter().map(|one| one.bytes).collect();
        assert_eq!(taken, [9, 1]);
    }

    proptest! {
        /// For every sequence of arrivals, writer rounds and departures: submissions are accepted in the order of
        /// arrival, the accepted ones never exceed the limit except for a single one, and none waits that would fit.
        #[test]
        fn taken_is_in_the_order_of_arrival(steps in prop::collection::vec((0..8u8, 1..15usize), 1..200)) {
            let (inbox, most) = (Mutex::new(Inbox::default()), MOST * UNIT);
            let (mut arrived, mut left, mut standing, mut taken) = (0, Vec::new(), Vec::new(), Vec::new());
            for (step, size) in steps {
                match step {
                    0..5 => {
                        let place = inbox.lock().push(submission(size * UNIT + arrived), most);
                        standing.extend(place.map(|place| (arrived, QueuedSubmission::new(&inbox, place, most))));
                        arrived += 1;
                    }
                    5 if !standing.is_empty() => {
                        let (number, waiting) = standing.remove(size % standing.len());
                        if !waiting.is_over().unwrap() {
                            left.push(number);
                        }
                    }
                    _ => round(&inbox, &mut taken),
                }
                let inbox = inbox.lock();
                prop_assert!(inbox.line.first().is_none_or(|first| !inbox.has_room(first.bytes, most)));
            }
            while !inbox.lock().waiting.is_empty() {
                round(&inbox, &mut taken);
            }
            let expected: Vec<usize> = (0..arrived).filter(|number| !left.contains(number)).collect();
            prop_assert_eq!(taken, expected);
            for (_, waiting) in &standing {
                prop_assert!(waiting.is_over().unwrap());
            }
        }
    }

    /// What the writer does before each block.
    fn round(inbox: &Mutex<Inbox>, taken: &mut Vec<usize>) {
        let mut inbox = inbox.lock();
        let bytes: usize = inbox.waiting.iter().map(|one| one.bytes / UNIT).sum();
        assert!(inbox.waiting.len() <= 1 || bytes <= MOST);
        taken.extend(inbox.waiting.drain(..).map(|one| one.bytes % UNIT));
        inbox.bytes = 0;
        inbox.serve(MOST * UNIT);
    }
}
