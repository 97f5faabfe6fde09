//! The contract of [`Log`] as scenarios that every implementation must pass unchanged: the rules of [the
//! trait](crate::Log), each with the letter and number from the specification.
//!
//! ```ignore
//! let suite = ContractSuite::new(|| Box::pin(async { Arc::new(open_my_log().await) as Arc<dyn Log> }));
//! suite.run().await;
//! ```
//!
//! A suite opens the same storage repeatedly; a log closes when its last `Arc` is dropped. It panics with the rule that
//! was violated. L6 (recognising a retry after an unknown outcome) has no scenario, because this trait has no
//! producers: callers give messages an id and recognise retries themselves. L7 (a new owner of a partition excludes the
//! earlier one) has none either, because partitions have no owners. L8 is tested as far as it concerns a log: state
//! keeps its order and can be read back.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a contract that does not hold ends the test"
)]

mod append;
mod read;
mod retain;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::contract::{BoxFuture, Log, ReadOptions};
use crate::durability::Durability;
use crate::error::LogError;
use crate::format::record::{RecordRef, records};
use crate::ids::{Micros, Offset, PartitionId};
use crate::records::{Records, WriteBatch};

const ALL: [Durability; 4] = [
    Durability::Fsync,
    Durability::Interval,
    Durability::Os,
    Durability::Memory,
];

/// Longer than any wait in the suite takes.
const PATIENCE: Duration = Duration::from_secs(20);

type LogFactory = Box<dyn Fn() -> BoxFuture<'static, Arc<dyn Log>> + Send + Sync>;

/// The contract tests for one implementation, on storage that is empty at first.
pub struct ContractSuite {
    open: LogFactory,
    /// The next unused queue number for partition ids.
    queue: AtomicU32,
}

impl ContractSuite {
    /// `open` opens the log of this storage. The log is closed whenever it is called.
    pub fn new(open: impl Fn() -> BoxFuture<'static, Arc<dyn Log>> + Send + Sync + 'static) -> ContractSuite {
        ContractSuite {
            open: Box::new(open),
            queue: AtomicU32::new(100),
        }
    }

    /// Runs all scenarios one after the other.
    pub async fn run(&self) {
        append::run(self).await;
        read::run(self).await;
        retain::run(self).await;
    }

    async fn open(&self) -> Arc<dyn Log> {
        (self.open)().await
    }

    /// Closes the log and opens it again.
    async fn again(&self, log: Arc<dyn Log>) -> Arc<dyn Log> {
        drop(log);
        self.open().await
    }

    fn new_id(&self) -> PartitionId {
        PartitionId::new(self.queue.fetch_add(1, Ordering::Relaxed), 0)
    }

    async fn partition(&self, log: &Arc<dyn Log>, durability: Durability) -> PartitionId {
        let id = self.new_id();
        log.create(id, durability).await.unwrap();
        id
    }
}

/// The durabilities that a log offers.
fn offered(log: &Arc<dyn Log>) -> Vec<Durability> {
    log.caps().durabilities.to_vec()
}

/// The offered durabilities that survive closing and opening the log.
fn lasting(log: &Arc<dyn Log>) -> Vec<Durability> {
    let offered = offered(log).into_iter();
    offered.filter(|mode| *mode != Durability::Memory).collect()
}

fn of(values: impl IntoIterator<Item = impl AsRef<[u8]>>, time: Micros) -> Records {
    let mut records = Records::new();
    for value in values {
        records.push(&RecordRef::of(time, value.as_ref())).unwrap();
    }
    records
}

fn number(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

async fn append(log: &Arc<dyn Log>, id: PartitionId, records: Records) -> Offset {
    let appended = log.append(WriteBatch::of(id, records)).await.unwrap();
    assert_eq!(appended.offsets.len(), 1, "L2: one offset for each part");
    appended.offsets[0]
}

/// Records from an offset on, each with its offset. Gaps are skipped.
fn read_from(log: &Arc<dyn Log>, id: PartitionId, from: Offset, synced: bool) -> Vec<(Offset, Vec<u8>)> {
    let (mut found, mut at) = (Vec::new(), from);
    loop {
        let frames = match log.read(id, at, ReadOptions { bytes: 3000, synced }) {
            Err(LogError::Gap { to, .. }) => {
                assert!(to > at, "L4: a gap goes on after it");
                at = to;
                continue;
            }
            frames => frames.unwrap(),
        };
        let Some(last) = frames.last() else { return found };
        assert!(last.header.next() > at, "L4: a read that gives something goes on");
        for frame in &frames {
            let mut next = frame.header.base;
            for record in records(&frame.body) {
                let record = record.unwrap();
                let offset = record.delta.map_or(next, |delta| frame.header.base + u64::from(delta));
                next = offset + 1;
                if offset >= at {
                    found.push((offset, record.value.to_vec()));
                }
            }
        }
        at = last.header.next();
    }
}

fn read_all(log: &Arc<dyn Log>, id: PartitionId) -> Vec<(Offset, Vec<u8>)> {
    read_from(log, id, log.bounds(id).unwrap().first, false)
}

fn values(log: &Arc<dyn Log>, id: PartitionId) -> Vec<Vec<u8>> {
    read_all(log, id).into_iter().map(|(_, value)| value).collect()
}

async fn eventually(what: &str, is: impl Fn() -> bool) {
    let until = tokio::time::Instant::now() + PATIENCE;
    while !is() {
        assert!(tokio::time::Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[cfg(test)]
mod tests;
