//! Polling: chunked reads on a fixed period, several in flight; each chunk's values leave as soon as they arrive. A cycle
//! that would begin while the last one runs is skipped and counted.

use std::collections::VecDeque;
use std::time::Duration;

use opcua::types::{AttributeId, NodeId, ReadRequest, ReadValueId, TimestampsToReturn};
use thalweg_record::Ticks;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::channel::{Body, CallError};
use crate::chunk::ChunkSize;
use crate::session::{REQUEST_TIMEOUT, Session, read_id};

/// Reads in flight.
pub(crate) const IN_FLIGHT_MAX: usize = 4;

/// A value that is at most this old may come from the server's cache.
const MAX_AGE_MS: f64 = 2000.0;

/// One part of a cycle: positions in the item table.
pub(crate) type Part = Vec<u32>;

pub(crate) struct Poller {
    interval: Interval,
    period: Duration,
    last_start: Option<(Instant, Ticks)>,
    waiting: VecDeque<Part>,
    in_flight: usize,
    chunk: ChunkSize,
}

/// What a tick of the clock means.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tick {
    Start,
    /// Cycles that did not take place since the last one began, at this time.
    Skipped {
        cycles: u64,
        since: Ticks,
    },
}

impl Poller {
    pub fn new(period: Duration, chunk: ChunkSize) -> Poller {
        let mut interval = tokio::time::interval(period);
        interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Poller {
            interval,
            period,
            last_start: None,
            waiting: VecDeque::new(),
            in_flight: 0,
            chunk,
        }
    }

    pub fn set_chunk(&mut self, chunk: ChunkSize) {
        self.chunk = chunk;
    }

    /// Waits for the next cycle's time. Cancelling loses nothing.
    pub async fn tick(&mut self) -> Vec<Tick> {
        let now = self.interval.tick().await;
        self.ticked(now)
    }

    fn ticked(&mut self, now: Instant) -> Vec<Tick> {
        let running = !self.waiting.is_empty() || self.in_flight > 0;
        let mut ticks = Vec::new();
        if let Some((last, since)) = self.last_start {
            // Ticks that nobody waited for (the flow was full) count as well as those that found a cycle running.
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
            self.last_start = Some((now, Ticks::now()));
            ticks.push(Tick::Start);
        }
        ticks
    }

    /// Begins a cycle over these items.
    pub fn start(&mut self, items: &[u32]) {
        self.waiting.extend(items.chunks(self.chunk.get()).map(<[u32]>::to_vec));
    }

    /// The next part, if another may be in flight.
    pub fn next_part(&mut self) -> Option<Part> {
        if self.in_flight >= IN_FLIGHT_MAX {
            return None;
        }
        let part = self.waiting.pop_front()?;
        self.in_flight += 1;
        Some(part)
    }

    pub fn answered(&mut self) {
        self.in_flight -= 1;
        self.chunk.succeeded();
    }

    /// A read failed. Too large: its halves are read instead.
    pub fn failed(&mut self, part: Part, error: &CallError) {
        self.in_flight -= 1;
        if error.is_too_large() && self.chunk.too_large(part.len()) {
            for half in part.chunks(part.len().div_ceil(2)) {
                self.waiting.push_front(half.to_vec());
            }
        }
    }

    /// The connection is gone, and this cycle with it.
    pub fn connection_lost(&mut self) {
        self.waiting.clear();
        self.in_flight = 0;
    }
}

pub(crate) async fn read(session: Session, nodes: Vec<NodeId>) -> Result<Body, CallError> {
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
