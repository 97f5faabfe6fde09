//! Statistics of a queue: its contents, the progress of each group, and its consumers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use parking_lot::Mutex;
use serde_json::{Value, json};
use smol_str::SmolStr;
use thalweg_kit::blocking;
use thalweg_kit::histogram::HistogramSnapshot;
use thalweg_log::{Micros, Offset};

use crate::group::Group;
use crate::group_partition::{GroupState, NEVER};
use crate::latency::Latency;
use crate::machine::MessageCounts;
use crate::metrics::QueueCounters;
use crate::queue::Queue;
use crate::settings::GroupMode;
use crate::store::{Cursor, NextMessage};

/// A snapshot of a queue.
#[derive(Clone, Debug)]
pub struct QueueStats {
    pub name: SmolStr,
    pub depth: u64,
    pub bytes: u64,
    pub retained: u64,
    /// Age of the oldest retained message.
    pub oldest_seconds: f64,
    /// Since the process started.
    pub enqueued: u64,
    pub refused: u64,
    /// Messages per second that were produced, delivered and acked since the previous snapshot, which is at least a
    /// second old.
    pub rates: [f64; 3],
    pub produce_paused: bool,
    pub consume_paused: bool,
    /// First and next offset of each partition.
    pub partitions: Vec<(Offset, Offset)>,
    pub groups: Vec<GroupStats>,
}

/// A snapshot of a group.
#[derive(Clone, Debug)]
pub struct GroupStats {
    pub name: SmolStr,
    pub mode: &'static str,
    /// Not settled, or not committed.
    pub backlog: u64,
    pub counts: MessageCounts,
    pub delivered: u64,
    /// Settlements by consumers since the process started.
    pub acked: u64,
    pub nacked: u64,
    pub rejected: u64,
    pub expired: u64,
    pub paused: bool,
    pub declared: bool,
    /// First unsettled offset, or the committed one, by partition.
    pub positions: Vec<Offset>,
    pub generation: u64,
    /// Memory for the state of messages, and for frames cached for the next claims.
    pub state_bytes: u64,
    /// Each with its partitions and its number of leases.
    pub consumers: Vec<(SmolStr, std::ops::Range<u32>, u32)>,
}

/// Statistics of the dedup-ids of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupStats {
    pub ids: usize,
    /// Their memory.
    pub bytes: u64,
    /// Forgotten within the window since the process started.
    pub forgotten_early: u64,
}

/// What a queue counts and measures beside its groups.
#[derive(Debug, Default)]
pub(crate) struct QueueStatistics {
    counters: QueueCounters,
    latency: Latency,
    rates: Mutex<Rates>,
    /// Offset and append time of the first message of each partition that is on a disk.
    oldest: Mutex<HashMap<u32, (Offset, Micros)>>,
}

impl QueueStatistics {
    pub fn latency(&self) -> &Latency {
        &self.latency
    }

    /// Adds what the claims of a group have measured since the last call.
    pub fn join_waits(&self, group: &Group) {
        for (_, part) in group.parts() {
            self.latency.join(&mut part.inner.lock().waits);
        }
    }
}

impl Queue {
    pub fn counters(&self) -> &QueueCounters {
        &self.statistics.counters
    }

    /// How long messages waited for their first delivery, in microseconds.
    pub fn latency(&self) -> HistogramSnapshot {
        let groups = self.groups.now();
        groups.iter().for_each(|group| self.statistics.join_waits(group));
        self.statistics.latency.observed()
    }

    pub fn stats(self: &Arc<Queue>) -> QueueStats {
        let partitions: Vec<_> = self
            .stores()
            .iter()
            .map(|store| (store.first().unwrap_or_default(), store.next().unwrap_or_default()))
            .collect();
        let counters = self.counters();
        let (retained, bytes, enqueued) = {
            let admission = self.admission.lock();
            (admission.retained(), admission.bytes(), admission.enqueued())
        };
        QueueStats {
            name: self.name().clone(),
            depth: self.depth(),
            bytes,
            retained,
            oldest_seconds: self.oldest_seconds(),
            enqueued,
            refused: counters.refused().iter().map(|(_, count)| count).sum(),
            rates: self.rates(enqueued),
            produce_paused: self.is_producing_paused(),
            consume_paused: self.is_consuming_paused(),
            partitions,
            groups: self.groups().iter().map(|group| group.stats()).collect(),
        }
    }

    /// Statistics of dedup-ids; `None` without a window.
    pub fn dedup(&self) -> Option<DedupStats> {
        if self.settings_now().dedup_window.is_zero() {
            return None;
        }
        Some(self.dedup.stats())
    }

    /// Whether producing is paused.
    pub fn is_producing_paused(&self) -> bool {
        self.paused.produce()
    }

    /// Whether consuming is paused for all groups.
    pub fn is_consuming_paused(&self) -> bool {
        self.paused.consume()
    }

    fn rates(&self, enqueued: u64) -> [f64; 3] {
        let (mut delivered, mut acked) = (0, 0);
        for group in self.groups.now().iter() {
            delivered += group.delivered();
            acked += group.acked();
        }
        let counts = [enqueued, delivered, acked];
        self.statistics.rates.lock().look(self.clock.now(), counts)
    }

    /// For messages on a disk it has the precision of frame headers, and may be as of the last call if the first
    /// message has just changed: statistics never wait for a disk.
    fn oldest_seconds(self: &Arc<Queue>) -> f64 {
        let now = self.clock.now();
        let (mut oldest, mut unknown) = (NEVER, false);
        for (partition, store) in (0..).zip(&self.stores()) {
            let Ok(first) = store.first() else { continue };
            let time = match store.at(&mut Cursor::default(), first) {
                Ok(NextMessage::Message(message, _)) => Some(message.time),
                Ok(NextMessage::Load) => {
                    let known = self.statistics.oldest.lock().get(&partition).copied();
                    unknown |= known.is_none_or(|(offset, _)| offset != first);
                    known.map(|(_, time)| time)
                }
                _ => None,
            };
            oldest = oldest.min(time.unwrap_or(NEVER));
        }
        if unknown {
            self.look_for_oldest();
        }
        match oldest {
            NEVER => 0.0,
            time => (now - time).max(0) as f64 / 1e6,
        }
    }

    fn look_for_oldest(self: &Arc<Queue>) {
        let queue = self.clone();
        let look = move || {
            for (partition, store) in (0..).zip(&queue.stores()) {
                let first = store.first().ok();
                if let Some((first, time)) = first.and_then(|first| Some((first, store.time_of(first)?))) {
                    queue.statistics.oldest.lock().insert(partition, (first, time));
                }
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(blocking::spawn_on(&runtime, look)),
            Err(_) => look(),
        }
    }
}

impl Group {
    pub fn stats(&self) -> GroupStats {
        let mut counts = MessageCounts::default();
        let mut positions = Vec::new();
        let mut state_bytes = 0;
        for (_, part) in self.parts() {
            let inner = part.inner.lock();
            state_bytes += inner.bytes();
            match &inner.state {
                GroupState::Work(machine) => {
                    add(&mut counts, &machine.counts());
                    positions.push(machine.floor());
                }
                GroupState::Stream(machine) => positions.push(machine.committed()),
            }
        }
        let backlog = self.backlog();
        if self.is_work() {
            // Messages that the cursors have not passed are ready too.
            let others = counts.delayed + counts.leased + counts.waiting + counts.ending;
            counts.ready = backlog.saturating_sub(others);
        }
        let members = self.members.lock();
        GroupStats {
            name: self.name().clone(),
            mode: self.settings.mode.name(),
            backlog,
            counts,
            delivered: self.delivered(),
            acked: self.acked(),
            nacked: self.counters.nacked.load(Ordering::Relaxed),
            rejected: self.counters.rejected.load(Ordering::Relaxed),
            expired: self.counters.expired.load(Ordering::Relaxed),
            paused: self.is_paused(),
            declared: self.is_declared(),
            positions,
            generation: members.generation(),
            state_bytes,
            consumers: members
                .iter()
                .map(|member| (SmolStr::new(member.id), members.assigned(member.index), member.leases))
                .collect(),
        }
    }
}

/// The previous snapshot.
#[derive(Debug, Default)]
struct Rates {
    at: Micros,
    counts: [u64; 3],
    rates: [f64; 3],
}

/// A shorter interval makes rates meaningless, and two readers must not take it from each other.
const RATES_OVER: Micros = 1_000_000;

impl Rates {
    fn look(&mut self, now: Micros, counts: [u64; 3]) -> [f64; 3] {
        let passed = now - self.at;
        if passed >= RATES_OVER {
            let known = self.at > 0;
            for (rate, (new, old)) in self.rates.iter_mut().zip(counts.into_iter().zip(self.counts)) {
                // The counts of a removed group are gone.
                let more = new.saturating_sub(old) as f64;
                *rate = if known { more * 1e6 / passed as f64 } else { 0.0 };
            }
            (self.at, self.counts) = (now, counts);
        }
        self.rates
    }
}

fn add(sum: &mut MessageCounts, one: &MessageCounts) {
    sum.delayed += one.delayed;
    sum.ready += one.ready;
    sum.leased += one.leased;
    sum.waiting += one.waiting;
    sum.ending += one.ending;
    sum.held += one.held;
    sum.lanes += one.lanes;
    sum.acked += one.acked;
    sum.dead += one.dead;
    sum.expired += one.expired;
    sum.dropped += one.dropped;
    sum.skipped += one.skipped;
    sum.lost += one.lost;
    sum.redelivered += one.redelivered;
    sum.lease_timeouts += one.lease_timeouts;
    sum.stopped += one.stopped;
}

impl QueueStats {
    pub fn to_json(&self) -> Value {
        let partitions: Vec<Value> = (0u32..)
            .zip(&self.partitions)
            .map(|(partition, (first, next))| json!({"partition": partition, "first": first, "next": next}))
            .collect();
        json!({
            "name": self.name.as_str(),
            "depth": self.depth,
            "bytes": self.bytes,
            "retained": self.retained,
            "oldest_seconds": self.oldest_seconds,
            "enqueued": self.enqueued,
            "refused": self.refused,
            "rates": {"produced": self.rates[0], "delivered": self.rates[1], "acked": self.rates[2]},
            "paused": {"produce": self.produce_paused, "consume": self.consume_paused},
            "partitions": partitions,
            "groups": self.groups.iter().map(GroupStats::to_json).collect::<Vec<_>>(),
        })
    }
}

impl GroupStats {
    pub fn to_json(&self) -> Value {
        let consumers: Vec<Value> = self
            .consumers
            .iter()
            .map(|(id, partitions, leases)| {
                json!({"id": id.as_str(), "partitions": partitions.clone().collect::<Vec<u32>>(), "leases": leases})
            })
            .collect();
        let counts = &self.counts;
        let mut shown = json!({
            "name": self.name.as_str(),
            "mode": self.mode,
            "backlog": self.backlog,
            "delayed": counts.delayed,
            "ready": counts.ready,
            "leased": counts.leased,
            "waiting": counts.waiting,
            "leaving": counts.ending,
            "held": counts.held,
            "acked": self.acked,
            "nacked": self.nacked,
            "rejected": self.rejected,
            "dead": counts.dead,
            "expired": self.expired,
            "dropped": counts.dropped,
            "lost": counts.lost,
            "redelivered": counts.redelivered,
            "delivered": self.delivered,
            "paused": self.paused,
            "declared": self.declared,
            "positions": self.positions,
            "generation": self.generation,
            "consumers": consumers,
        });
        if self.mode == GroupMode::Stream.name() {
            shown["lag"] = self.backlog.into();
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_over_the_time_since_somebody_looked_but_not_over_less_than_a_second() {
        let mut rates = Rates::default();
        let start = 1_700_000_000_000_000;
        assert_eq!(rates.look(start, [1000, 0, 0]), [0.0; 3], "nobody looked before");
        assert_eq!(rates.look(start + 10, [2000, 0, 0]), [0.0; 3]);
        assert_eq!(rates.look(start + 2_000_000, [2000, 100, 50]), [500.0, 50.0, 25.0]);
        assert_eq!(rates.look(start + 2_500_000, [9000, 900, 90]), [500.0, 50.0, 25.0]);
        assert_eq!(rates.look(start + 4_000_000, [2000, 0, 50]), [0.0; 3]);
    }
}
