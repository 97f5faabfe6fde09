//! The thread that makes rows of the entries of one partition: from handoffs in memory, otherwise from the log. It
//! consumes only synced entries, because an offset that a table has committed must never be assigned again.
//!
//! A validated entry can be decoded. If one cannot nevertheless (its bytes were changed, or this program has a bug),
//! the whole entry is quarantined, and consumption continues with the next one.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use thalweg_kit::backoff::Backoff;
use thalweg_kit::{clock, threads};
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::records;
use thalweg_log::{Durability, Frame, LogError, Offset, PartitionId, ReadOptions};
use tokio::runtime::Handle;

use super::decode::EntryDecoder;
use super::handoff::HandoffQueue;
use super::queue_source::{OffsetGap, QueueSource};
use super::table_buffer::{Memtable, TableBuffer};
use crate::codes::LakeCode;
use crate::commit::HealthComponent;
use crate::entry;
use crate::error::AppendError;
use thalweg_delta::store::{LakeStorage, fault_text};

/// Bytes per read.
const READ: usize = 4 << 20;
/// Bytes of handoffs that are decoded before queries can see the rows.
const HANDED: usize = 1 << 20;
/// How often a sync is requested from a log that does not sync by itself.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// The pause while an entry is stored but not synced.
const UNSYNCED: Duration = Duration::from_millis(5);
/// An entry becomes visible in the log shortly before its handoff: it is not read from the log within this time.
const LATE: Duration = Duration::from_millis(20);
/// After this time without entries, a consumer frees its cache for others. A few entries refill it.
const IDLE: Duration = if cfg!(test) {
    Duration::from_millis(300)
} else {
    Duration::from_secs(60)
};
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

pub(super) struct PartitionConsumer {
    pub table: Arc<TableBuffer>,
    pub feed: Arc<QueueSource>,
    pub partition: usize,
    pub id: PartitionId,
    pub decoder: EntryDecoder,
    /// Its share of the memory for caches of earlier entries.
    pub remembered_bytes: usize,
    pub site: LakeStorage,
    /// Skips entries that the log lacks, with a warning.
    pub accept_gap: bool,
    pub runtime: Handle,
    /// Entries that cannot be decoded.
    pub poisoned: BTreeSet<Offset>,
    /// The entry whose handoff did not come in time.
    pub late: Option<Offset>,
    /// When the last sync was requested.
    pub asked: Option<Instant>,
}

/// Fails the table however the thread ends, so that nothing waits for it.
struct ConsumerEndGuard {
    table: Arc<TableBuffer>,
    handoffs: Option<Arc<HandoffQueue>>,
    partition: usize,
}

impl Drop for ConsumerEndGuard {
    fn drop(&mut self) {
        if let Some(handoffs) = &self.handoffs {
            handoffs.close(self.partition);
        }
        // After an orderly end this changes nothing.
        if !self.table.is_ending() {
            self.table.fail(AppendError::Stopped);
        }
    }
}

/// Why a consumer stops.
enum ConsumerHalt {
    /// Temporarily.
    Failed(String),
    Missing(OffsetGap),
    /// The memtable may be inconsistent, so its entries are consumed again.
    Again,
}

/// Why a waiting consumer wakes up.
enum ConsumerWakeup {
    /// The entry is in the log, but was not handed over.
    Late,
    Idle,
    ForOther,
}

fn unreadable(error: LogError) -> ConsumerHalt {
    ConsumerHalt::Failed(format!("the log cannot be read: {error}"))
}

impl PartitionConsumer {
    /// Runs until the table ends.
    pub fn run(mut self) {
        let _end = ConsumerEndGuard {
            table: self.table.clone(),
            handoffs: self.feed.handoffs.clone(),
            partition: self.partition,
        };
        let mut pauses = RETRY;
        while self.table.wait_for_room() {
            let taken = self.take();
            if taken.is_ok() && self.table.health.clear_trouble(HealthComponent::Log) {
                tracing::info!(table = self.table.spec.name, "the log can be read again");
            }
            match taken {
                Ok(true) => pauses.reset(),
                Ok(false) => self.wait(),
                Err(ConsumerHalt::Again) => {}
                Err(ConsumerHalt::Missing(missing)) if self.accept_gap => self.pass_over(missing),
                Err(ConsumerHalt::Missing(missing)) => {
                    let text = self.feed.gap_text(self.table.spec, self.partition, missing);
                    tracing::error!(table = self.table.spec.name, "{text}");
                    self.table.fail(AppendError::ReadOnly(text));
                }
                Err(ConsumerHalt::Failed(text)) => {
                    if self.table.health.set_trouble(HealthComponent::Log, &text) {
                        tracing::error!(table = self.table.spec.name, "{text}");
                    }
                    self.sleep(pauses.next_pause());
                }
            }
        }
    }

    /// Consumes the next entries; returns false if there are none.
    fn take(&mut self) -> Result<bool, ConsumerHalt> {
        let Some(from) = self.table.memtable(self.partition).map(|memtable| memtable.next) else {
            return Ok(false);
        };
        let may_remember = self.table.may_remember(self.partition, self.remembered_bytes);
        self.decoder.may_remember(may_remember);
        let bounds = self.feed.log.bounds(self.id).map_err(unreadable)?;
        if let Some(handoffs) = self.feed.handoffs.clone().filter(|_| from < bounds.synced) {
            if handoffs.has(self.partition, from) {
                return self.take_handed(&handoffs, bounds.synced).map(|()| true);
            }
            if self.late != Some(from) && handoffs.may_come(self.partition, from) {
                return Ok(false);
            }
        }
        if bounds.synced <= from && from < bounds.next && !self.asks_for_sync() {
            return Ok(false);
        }
        let want = ReadOptions {
            bytes: READ,
            synced: true,
        };
        let frames = match self.feed.log.read(self.id, from, want) {
            Ok(frames) => frames,
            Err(LogError::Gap { to, .. }) => return Err(ConsumerHalt::Missing(OffsetGap { from, to })),
            Err(error) => return Err(unreadable(error)),
        };
        for frame in &frames {
            if !self.take_frame(frame)? {
                break;
            }
        }
        Ok(!frames.is_empty())
    }

    /// Whether a read is due, which syncs the log. Logs that sync at an interval are waited for.
    fn asks_for_sync(&mut self) -> bool {
        let is_left_alone = matches!(self.feed.log.durability(self.id), Ok(Durability::Os));
        let is_due = is_left_alone && self.asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY);
        if is_due {
            self.asked = Some(clock::now());
        }
        is_due
    }

    /// Consumes handoffs up to a missing one, the synced offset, or the size of a read.
    fn take_handed(&mut self, handoffs: &HandoffQueue, synced: Offset) -> Result<(), ConsumerHalt> {
        let table = self.table.clone();
        let Some(mut memtable) = table.memtable(self.partition) else {
            return Ok(());
        };
        let (mut arrivals, mut bytes) = (Vec::new(), 0);
        while memtable.next < synced
            && bytes < HANDED
            && let Some(kept) = handoffs.take(self.partition, memtable.next)
        {
            bytes += kept.bytes;
            let (decoder, chunk) = (&mut self.decoder, table.chunk(&mut memtable));
            let decoded = catch_unwind(AssertUnwindSafe(|| decoder.decode_handed(&kept.handoff, chunk)));
            let Ok(Ok(arrival)) = decoded else {
                // The log has the entry as received, and decoding it from there shows the cause.
                return Err(self.again(&mut memtable));
            };
            arrivals.push(arrival);
            memtable.next += 1;
        }
        table.remembers(self.partition, self.decoder.remembered_bytes());
        table.publish(self.partition, &mut memtable);
        drop(memtable);
        table
            .metrics
            .entries
            .with_label_values(&["handoff"])
            .inc_by(arrivals.len() as u64);
        self.visible(&arrivals);
        Ok(())
    }

    /// Discards the memtable, which may have a part of an entry, and restarts it.
    fn again(&mut self, memtable: &mut Memtable) -> ConsumerHalt {
        self.decoder.reset();
        memtable.begin_again();
        self.table.publish(self.partition, memtable);
        ConsumerHalt::Again
    }

    /// Returns false if there is no room for the next frame.
    fn take_frame(&mut self, frame: &Frame) -> Result<bool, ConsumerHalt> {
        let table = self.table.clone();
        let Some(mut memtable) = table.memtable(self.partition) else {
            return Ok(false);
        };
        let (base, next) = (frame.header.base, frame.header.next());
        let mut arrivals = Vec::new();
        if frame.header.kind == FrameKind::Gap && memtable.next < next {
            let from = memtable.next.max(base);
            return Err(ConsumerHalt::Missing(OffsetGap { from, to: next }));
        }
        for (index, record) in (0..).zip(records(&frame.body)) {
            let record = record.map_err(|error| {
                let queue = &self.feed.queue;
                ConsumerHalt::Failed(format!(
                    "a frame of {queue} at offset {base} is not a list of records: {error:?}"
                ))
            })?;
            let offset = base + record.delta.map_or(index, u64::from);
            if offset < memtable.next || frame.header.kind != FrameKind::Data {
                continue;
            }
            if !self.poisoned.contains(&offset) {
                let decoded = {
                    let chunk = table.chunk(&mut memtable);
                    let decoder = &mut self.decoder;
                    catch_unwind(AssertUnwindSafe(|| decoder.decode(record.value, chunk)))
                };
                match decoded.unwrap_or_else(|_| Err("the decoder panicked, which is a bug".to_owned())) {
                    Ok(arrival) => arrivals.push(arrival),
                    Err(why) => {
                        self.set_aside(offset, record.value, &why);
                        self.poisoned.insert(offset);
                        return Err(self.again(&mut memtable));
                    }
                }
            }
            if let Some(handoffs) = &self.feed.handoffs {
                // The handoff is not needed any more.
                drop(handoffs.take(self.partition, offset));
            }
            memtable.next = offset + 1;
        }
        memtable.next = memtable.next.max(next);
        table.remembers(self.partition, self.decoder.remembered_bytes());
        table.publish(self.partition, &mut memtable);
        drop(memtable);
        table
            .metrics
            .entries
            .with_label_values(&["log"])
            .inc_by(arrivals.len() as u64);
        self.visible(&arrivals);
        Ok(table.has_room())
    }

    /// Observes the delay until these entries are visible to queries.
    fn visible(&self, arrivals: &[i64]) {
        let now = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
        let seconds = &self.table.metrics.visibility_seconds;
        let seconds = seconds.with_label_values(&[self.table.spec.name]);
        for arrival in arrivals {
            seconds.observe((now - arrival).max(0) as f64 / 1e9);
        }
    }

    fn set_aside(&self, offset: Offset, entry: &[u8], why: &str) {
        let (table, metrics) = (self.table.spec.name, &self.table.metrics);
        metrics.poison_entries.inc();
        metrics.quarantined.with_label_values(&["log"]).inc();
        if let Ok((head, _)) = entry::decode(entry) {
            let rejected = head.rejected.iter().count() as u64;
            metrics
                .poison_records
                .inc_by(u64::from(head.records).saturating_sub(rejected));
        }
        let name = format!("{table}-{}-{offset}.bin", self.partition);
        let entry = bytes::Bytes::copy_from_slice(entry);
        let (code, queue) = (LakeCode::Poison, &self.feed.queue);
        match threads::block_on(&self.runtime, self.site.set_aside(&name, entry)) {
            Ok(path) => tracing::error!(
                table,
                "{code}: entry {offset} of {queue} cannot be decoded ({why}); it is now in {}",
                path.display()
            ),
            Err(error) => tracing::error!(
                table,
                "{code}: entry {offset} of {queue} cannot be decoded ({why}), and cannot be quarantined as {name}: {}",
                fault_text(&error)
            ),
        }
    }

    fn pass_over(&self, missing: OffsetGap) {
        self.feed.passed_over(self.table.spec, self.partition, missing);
        if let Some(mut memtable) = self.table.memtable(self.partition) {
            memtable.next = memtable.next.max(missing.to);
            self.table.publish(self.partition, &mut memtable);
        }
    }

    /// Waits until there may be more, or the table ends.
    fn wait(&mut self) {
        let Some(from) = self.table.memtable(self.partition).map(|memtable| memtable.next) else {
            return;
        };
        let (log, handoffs) = (&self.feed.log, &self.feed.handoffs);
        let may_come = handoffs
            .as_ref()
            .is_some_and(|handoffs| handoffs.may_come(self.partition, from));
        if log
            .bounds(self.id)
            .is_ok_and(|bounds| bounds.next > from && (!may_come || bounds.synced <= from))
        {
            return threads::sleep(UNSYNCED);
        }
        let mut ending = self.table.ending();
        let is_late = async {
            // A removal of the partition ends the wait, too.
            let _ = log.wait_for(self.id, from).await;
            if may_come {
                tokio::time::sleep(LATE).await;
            }
        };
        let reported = async {
            match handoffs {
                Some(handoffs) => handoffs.reported(self.partition).await,
                None => std::future::pending().await,
            }
        };
        let woken = threads::block_on(&self.runtime, async {
            tokio::select! {
                () = is_late => ConsumerWakeup::Late,
                () = reported => ConsumerWakeup::ForOther,
                _ = ending.wait_for(|is_ending| *is_ending) => ConsumerWakeup::ForOther,
                () = tokio::time::sleep(IDLE) => ConsumerWakeup::Idle,
            }
        });
        match woken {
            ConsumerWakeup::Late => self.late = Some(from),
            ConsumerWakeup::ForOther => {}
            ConsumerWakeup::Idle => {
                self.decoder.forget();
                if let Some(mut memtable) = self.table.memtable(self.partition) {
                    memtable.forget_heir();
                    self.table.publish(self.partition, &mut memtable);
                }
                self.table.remembers(self.partition, self.decoder.remembered_bytes());
            }
        }
    }

    fn sleep(&self, pause: Duration) {
        let mut ending = self.table.ending();
        let over = ending.wait_for(|is_ending| *is_ending);
        let _ = threads::block_on(&self.runtime, async {
            tokio::time::timeout(pause, over).await.map(drop)
        });
    }
}
