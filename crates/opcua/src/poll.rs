//! Polling: chunked reads on a fixed period, several in flight; each chunk's values are delivered as soon as they
//! arrive. A cycle that is due while the last one runs is skipped and counted.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use opcua::types::{AttributeId, NodeId, ReadRequest, ReadValueId, TimestampsToReturn};
use thalweg_record::Ticks;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::call_size::CallSize;
use crate::channel::{AnswerBody, CallError, CallFailureKind};
use crate::concurrency_limit::ConcurrencyLimit;
use crate::session::{REQUEST_TIMEOUT, Session, read_id};

/// Maximum reads in flight.
pub(crate) const IN_FLIGHT_MAX: usize = 4;

/// An item that is read alone and fails this often counts as failed.
const IN_VAIN_MAX: u8 = 3;

/// Maximum age of a value from the server's cache.
const MAX_AGE_MS: f64 = 2000.0;

/// One part of a cycle: positions in the item table.
pub(crate) type PollBatch = Vec<u32>;

pub(crate) struct Poller {
    interval: Interval,
    period: Duration,
    last_start: Option<(Instant, Ticks)>,
    previous_start: Option<Ticks>,
    waiting: VecDeque<PollBatch>,
    in_flight: usize,
    pace: ConcurrencyLimit,
    chunk: CallSize,
    /// Consecutive failures of items that are read alone.
    in_vain: HashMap<u32, u8>,
}

/// What happens to a part whose read failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollFailureAction {
    /// Read again in this cycle, in halves.
    ReadAgain,
    /// Read again in the next cycle.
    Lost,
    /// It is a single item that cannot be read for now.
    Failed,
}

/// The meaning of a tick of the clock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tick {
    Start,
    /// Cycles skipped since the last one began at `since`.
    Skipped {
        cycles: u64,
        since: Ticks,
    },
}

impl Poller {
    pub fn new(period: Duration, chunk: CallSize) -> Poller {
        let mut interval = tokio::time::interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Poller {
            interval,
            period,
            last_start: None,
            previous_start: None,
            waiting: VecDeque::new(),
            in_flight: 0,
            pace: ConcurrencyLimit::of(IN_FLIGHT_MAX),
            chunk,
            in_vain: HashMap::new(),
        }
    }

    pub fn set_chunk(&mut self, chunk: CallSize) {
        self.chunk = chunk;
    }

    /// Waits until the next cycle is due. Cancel safe.
    pub async fn tick(&mut self) -> Vec<Tick> {
        let now = self.interval.tick().await;
        self.ticked(now)
    }

    fn ticked(&mut self, now: Instant) -> Vec<Tick> {
        let running = !self.waiting.is_empty() || self.in_flight > 0;
        let mut ticks = Vec::new();
        if let Some((last, since)) = self.last_start {
            // Missed ticks (the flow was full) count as well as those during a running cycle.
            let periods = now.duration_since(last).as_nanos() / self.period.as_nanos().max(1);
            let missed = u64::try_from(periods)
                .unwrap_or(u64::MAX)
                .saturating_sub(u64::from(!running));
            if missed > 0 {
                ticks.push(Tick::Skipped { cycles: missed, since });
            }
        }
        if running {
            // The skipped cycle is accounted for; the next one is measured from here.
            self.last_start = self.last_start.map(|(_, since)| (now, since));
        } else {
            let start = Ticks::now();
            self.previous_start = Some(self.last_start.map_or(start, |(_, since)| since));
            self.last_start = Some((now, start));
            ticks.push(Tick::Start);
        }
        ticks
    }

    /// Begins a cycle over these items.
    pub fn start(&mut self, items: &[u32]) {
        self.waiting.extend(items.chunks(self.chunk.get()).map(<[u32]>::to_vec));
    }

    /// Returns the next part, if another may be in flight.
    pub fn next_part(&mut self) -> Option<PollBatch> {
        if self.in_flight >= self.pace.get() {
            return None;
        }
        let mut part = self.waiting.pop_front()?;
        // Calls may have become smaller since the cycle began.
        let size = self.chunk.get();
        if part.len() > size {
            self.waiting.push_front(part.split_off(size));
        }
        self.in_flight += 1;
        Some(part)
    }

    /// A part was read in this time.
    pub fn answered(&mut self, part: &PollBatch, lasted: Duration) {
        self.in_flight -= 1;
        self.chunk.succeeded();
        self.pace.answered(lasted, part.len());
        if !self.in_vain.is_empty() {
            for item in part {
                self.in_vain.remove(item);
            }
        }
    }

    /// A read failed after this time. If it was too large or answered incompletely, its halves are read instead. If it
    /// timed out or was refused for a reason that may concern one item, later reads are smaller, until that item is
    /// alone. Those are not repeated in this cycle, because the server may have a temporary problem.
    pub fn failed(&mut self, part: &PollBatch, error: &CallError, lasted: Duration) -> PollFailureAction {
        self.in_flight -= 1;
        let failure = error.failure();
        if matches!(
            failure,
            CallFailureKind::TimedOut | CallFailureKind::Later | CallFailureKind::TooMany
        ) {
            self.pace.slow_down(lasted);
        }
        match failure {
            CallFailureKind::Lost | CallFailureKind::Later => return PollFailureAction::Lost,
            CallFailureKind::TimedOut => self.chunk.timed_out(part.len()),
            CallFailureKind::Other => {
                self.chunk.answer_too_large(part.len());
            }
            CallFailureKind::TooMany | CallFailureKind::TooLarge => {
                if !self.chunk.failed(part.len(), error) {
                    return PollFailureAction::Failed;
                }
                for half in part.chunks(part.len().div_ceil(2)) {
                    self.waiting.push_front(half.to_vec());
                }
                return PollFailureAction::ReadAgain;
            }
        }
        match part.as_slice() {
            [item] => self.alone_in_vain(*item),
            _ => PollFailureAction::Lost,
        }
    }

    fn alone_in_vain(&mut self, item: u32) -> PollFailureAction {
        let times = self.in_vain.entry(item).or_insert(0);
        *times += 1;
        if *times < IN_VAIN_MAX {
            return PollFailureAction::Lost;
        }
        self.in_vain.remove(&item);
        PollFailureAction::Failed
    }

    /// When the previous cycle began: an item that is not read now was read then, or its gap began even earlier.
    pub fn previous_start(&self) -> Ticks {
        self.previous_start.unwrap_or_else(Ticks::now)
    }

    /// The connection is lost, and this cycle with it.
    pub fn connection_lost(&mut self) {
        self.waiting.clear();
        self.in_flight = 0;
        self.in_vain.clear();
    }
}

pub(crate) async fn read(session: Session, nodes: Vec<NodeId>) -> Result<AnswerBody, CallError> {
    let nodes: Vec<ReadValueId> = nodes
        .into_iter()
        .map(|node| read_id(node, AttributeId::Value))
        .collect();
    let request = ReadRequest {
        request_header: Default::default(),
        max_age: MAX_AGE_MS,
        timestamps_to_return: TimestampsToReturn::Both,
        nodes_to_read: Some(nodes),
    };
    session.call_raw(request, REQUEST_TIMEOUT).await
}

#[cfg(test)]
mod tests {
    use thalweg_kit::clock;

    use super::*;

    const SOON: Duration = Duration::from_millis(5);

    fn poller(items: u32) -> Poller {
        let mut poller = Poller::new(Duration::from_secs(1), CallSize::new(0, 8, false));
        poller.start(&(0..items).collect::<Vec<_>>());
        poller
    }

    #[tokio::test]
    async fn a_large_answer_is_read_in_halves_and_a_single_one_has_failed() {
        let mut poller = poller(8);
        let mut read = Vec::new();
        let mut alone = Vec::new();
        // Item 5 is too large in any combination.
        while let Some(part) = poller.next_part() {
            if !part.contains(&5) {
                poller.answered(&part, SOON);
                read.extend(part);
            } else if poller.failed(&part, &CallError::TooLarge, SOON) == PollFailureAction::Failed {
                alone.push(part);
            }
        }
        read.sort_unstable();
        assert_eq!(read, [0, 1, 2, 3, 4, 6, 7]);
        assert_eq!(alone, [vec![5]]);
        // Later cycles read many items at a time again.
        (0..1000).for_each(|_| poller.chunk.succeeded());
        assert_eq!(poller.chunk.get(), 8);
    }

    #[tokio::test]
    async fn a_server_that_takes_few_nodes_is_not_asked_for_many_again() {
        let mut poller = poller(8);
        let part = poller.next_part().unwrap();
        let refused = CallError::Refused(opcua::types::StatusCode::BadTooManyOperations.bits());
        assert_eq!(poller.pace.get(), IN_FLIGHT_MAX);
        assert_eq!(poller.failed(&part, &refused, SOON), PollFailureAction::ReadAgain);
        assert_eq!(poller.pace.get(), IN_FLIGHT_MAX / 2);
        for _ in 0..1000 {
            poller.in_flight += 1;
            poller.answered(&vec![0; 4], SOON);
        }
        // The reduction is temporary.
        assert_eq!((poller.chunk.get(), poller.pace.get()), (4, IN_FLIGHT_MAX));
    }

    #[tokio::test]
    async fn reads_that_are_not_answered_become_smaller_and_are_not_read_again_in_this_cycle() {
        let timeout = CallError::Timeout(REQUEST_TIMEOUT);
        let mut poller = poller(40);
        let parts: Vec<PollBatch> = std::iter::from_fn(|| poller.next_part()).collect();
        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [8; IN_FLIGHT_MAX]);
        for part in &parts {
            assert_eq!(poller.failed(part, &timeout, REQUEST_TIMEOUT), PollFailureAction::Lost);
        }
        assert_eq!(poller.pace.get(), IN_FLIGHT_MAX / 2, "halved once for all of them");
        // Waiting parts of this cycle are split as well.
        assert_eq!(poller.next_part().unwrap(), [32, 33, 34, 35]);
        assert_eq!(poller.next_part().unwrap(), [36, 37, 38, 39]);
        assert_eq!(poller.next_part(), None);
        (0..2).for_each(|_| poller.answered(&vec![0; 4], SOON));
        // A server that needs more than the timeout for eight nodes does not get eight again after every few responses.
        let mut in_vain = 0;
        for _ in 0..2000 {
            poller.start(&(0..8).collect::<Vec<_>>());
            while let Some(part) = poller.next_part() {
                if part.len() < 8 {
                    poller.answered(&part, SOON);
                } else {
                    in_vain += 1;
                    assert_eq!(poller.failed(&part, &timeout, REQUEST_TIMEOUT), PollFailureAction::Lost);
                }
            }
        }
        assert!((1..=6).contains(&in_vain), "{in_vain} reads in vain");
    }

    /// Item 5 fails every read, and the server does not say why. All others are read in the end.
    #[tokio::test]
    async fn an_item_that_spoils_every_read_is_found_over_the_cycles_and_fails_alone() {
        for error in [
            CallError::Refused(opcua::types::StatusCode::BadInternalError.bits()),
            CallError::Unreadable("what is this".to_owned()),
            CallError::Timeout(REQUEST_TIMEOUT),
        ] {
            let mut poller = poller(0);
            let mut failed = Vec::new();
            for _ in 0..6 {
                poller.start(&(0..8).collect::<Vec<_>>());
                while let Some(part) = poller.next_part() {
                    match part.contains(&5) {
                        true => match poller.failed(&part, &error, SOON) {
                            PollFailureAction::Failed => failed.push(part),
                            verdict => assert_eq!(verdict, PollFailureAction::Lost),
                        },
                        false => poller.answered(&part, SOON),
                    }
                }
            }
            // The reads become smaller in three cycles; in three more the item is read alone.
            assert_eq!(failed, [vec![5]], "{error}");
        }
        // A temporary problem makes no item fail.
        let mut poller = poller(0);
        for cycle in 0..20 {
            poller.start(&[0]);
            while let Some(part) = poller.next_part() {
                match cycle % 3 {
                    2 => poller.answered(&part, SOON),
                    _ => {
                        let error = CallError::Refused(opcua::types::StatusCode::BadInternalError.bits());
                        assert_eq!(poller.failed(&part, &error, SOON), PollFailureAction::Lost);
                    }
                }
            }
        }
    }

    #[tokio::test]
    async fn a_read_that_is_not_answered_in_full_is_repeated_in_halves_at_once() {
        let mut poller = poller(8);
        let mut read = Vec::new();
        // The server returns at most three results, whatever it reports.
        while let Some(part) = poller.next_part() {
            let error = CallError::WrongCount {
                answered: 3,
                asked: part.len(),
                what: "reads",
            };
            match part.len() {
                ..=3 => {
                    poller.answered(&part, SOON);
                    read.extend(part);
                }
                _ => assert_eq!(poller.failed(&part, &error, SOON), PollFailureAction::ReadAgain),
            }
        }
        read.sort_unstable();
        assert_eq!(read, (0..8).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn what_a_failed_part_missed_began_with_the_cycle_before() {
        let mut poller = Poller::new(Duration::from_secs(1), CallSize::new(0, 8, false));
        let start = clock::tokio_now();
        poller.ticked(start);
        let (_, first) = poller.last_start.unwrap();
        poller.ticked(start + Duration::from_secs(1));
        assert_eq!(poller.previous_start(), first);
    }
}
