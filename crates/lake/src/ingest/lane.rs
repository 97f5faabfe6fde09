//! The thread that takes the entries of one partition and makes them rows.
//!
//! An entry that passed its look when it was taken can be decoded; one that cannot all the same (its bytes were changed, or
//! this program has a fault) goes whole to the quarantine, and the next one is taken.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thalweg_log::format::frame::Kind;
use thalweg_log::format::record::records;
use thalweg_log::{Frame, LogError, Offset, PartitionId, ReadWant};
use tokio::runtime::Handle;

use super::decode::EntryDecoder;
use super::feed::{Feed, Missing};
use super::table::Table;
use crate::error::AppendError;

/// Bytes read at once.
const READ: usize = 4 << 20;
/// For how long an entry waits that is stored and not synced.
const UNSYNCED: Duration = Duration::from_millis(5);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);

pub(super) struct Lane {
    pub table: Arc<Table>,
    pub feed: Arc<Feed>,
    pub partition: usize,
    pub id: PartitionId,
    pub decoder: EntryDecoder,
    pub quarantine: PathBuf,
    /// What the log lacks is passed over, and said.
    pub accept_gap: bool,
    pub runtime: Handle,
    /// Entries that cannot be decoded.
    pub poisoned: BTreeSet<Offset>,
}

/// Why a lane takes nothing more.
enum Halt {
    /// For now.
    Failed(String),
    Missing(Missing),
    /// The rows that were growing are not to be trusted: they are made again.
    Again,
}

impl Lane {
    /// Runs until the table ends.
    pub fn run(mut self) {
        let mut pause = RETRY_FIRST;
        while self.table.wait_for_room() {
            let taken = self.take();
            match taken {
                Ok(true) => pause = RETRY_FIRST,
                Ok(false) => self.wait(),
                Err(Halt::Again) => {}
                Err(Halt::Missing(missing)) if self.accept_gap => self.pass_over(missing),
                Err(Halt::Missing(missing)) => {
                    let text = self.feed.gap_text(self.table.spec, self.partition, missing);
                    tracing::error!(table = self.table.spec.name, "{text}");
                    self.table.fail(AppendError::ReadOnly(text));
                }
                Err(Halt::Failed(text)) => {
                    if self.table.health.set_trouble(&text) {
                        tracing::error!(table = self.table.spec.name, "{text}");
                    }
                    self.sleep(pause);
                    pause = (pause * 2).min(RETRY_MAX);
                }
            }
        }
    }

    /// The next entries; `false` if there are none.
    fn take(&mut self) -> Result<bool, Halt> {
        let Some(from) = self.table.lane(self.partition).map(|growing| growing.next) else {
            return Ok(false);
        };
        let want = ReadWant {
            bytes: READ,
            synced: true,
        };
        let frames = match self.feed.log.read(self.id, from, want) {
            Ok(frames) => frames,
            Err(LogError::Gap { to, .. }) => return Err(Halt::Missing(Missing { from, to })),
            Err(error) => return Err(Halt::Failed(format!("the log cannot be read: {error}"))),
        };
        for frame in &frames {
            if !self.take_frame(frame)? {
                break;
            }
        }
        Ok(!frames.is_empty())
    }

    /// `false` when there is no room for the next one.
    fn take_frame(&mut self, frame: &Frame) -> Result<bool, Halt> {
        let table = self.table.clone();
        let Some(mut growing) = table.lane(self.partition) else {
            return Ok(false);
        };
        let (base, next) = (frame.header.base, frame.header.next());
        let mut arrivals = Vec::new();
        if frame.header.kind == Kind::Gap && growing.next < next {
            let from = growing.next.max(base);
            return Err(Halt::Missing(Missing { from, to: next }));
        }
        for (index, record) in (0..).zip(records(&frame.body)) {
            let record = record.map_err(|error| {
                let queue = &self.feed.queue;
                Halt::Failed(format!(
                    "a frame of {queue} at offset {base} is no list of records: {error:?}"
                ))
            })?;
            let offset = base + record.delta.map_or(index, u64::from);
            if offset < growing.next || frame.header.kind != Kind::Data {
                continue;
            }
            if !self.poisoned.contains(&offset) {
                let arrival = {
                    let chunk = table.chunk(&mut growing);
                    let decoder = &mut self.decoder;
                    catch_unwind(AssertUnwindSafe(|| decoder.decode(record.value, chunk)))
                };
                match arrival.unwrap_or_else(|_| Err("this program has a fault".to_owned())) {
                    Ok(arrival) => arrivals.push(arrival),
                    Err(why) => {
                        self.set_aside(offset, record.value, &why);
                        self.poisoned.insert(offset);
                        self.decoder.reset();
                        // Half of it may be in the rows.
                        growing.begin_again();
                        table.publish(self.partition, &mut growing);
                        return Err(Halt::Again);
                    }
                }
            }
            growing.next = offset + 1;
        }
        growing.next = growing.next.max(next);
        table.publish(self.partition, &mut growing);
        drop(growing);
        self.visible(&arrivals);
        Ok(table.has_room())
    }

    /// Queries see the rows of entries that arrived then.
    fn visible(&self, arrivals: &[i64]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
        let seconds = &self.table.metrics.visibility_seconds;
        let seconds = seconds.with_label_values(&[self.table.spec.name]);
        for arrival in arrivals {
            seconds.observe((now - arrival).max(0) as f64 / 1e9);
        }
    }

    fn set_aside(&self, offset: Offset, entry: &[u8], why: &str) {
        let table = self.table.spec.name;
        self.table.metrics.poison_entries.with_label_values(&[table]).inc();
        let name = format!("{table}-{}-{offset}.bin", self.partition);
        let path = self.quarantine.join(name);
        let written = std::fs::create_dir_all(&self.quarantine).and_then(|()| std::fs::write(&path, entry));
        let queue = &self.feed.queue;
        match written {
            Ok(()) => tracing::error!(
                table,
                "lake.poison: entry {offset} of {queue} cannot be decoded ({why}); it lies in {} now",
                path.display()
            ),
            Err(error) => tracing::error!(
                table,
                "lake.poison: entry {offset} of {queue} cannot be decoded ({why}), nor be written to {}: {error}",
                path.display()
            ),
        }
    }

    fn pass_over(&self, missing: Missing) {
        self.feed.passed_over(self.table.spec, self.partition, missing);
        if let Some(mut growing) = self.table.lane(self.partition) {
            growing.next = growing.next.max(missing.to);
            self.table.publish(self.partition, &mut growing);
        }
    }

    /// Until there may be more, or the table ends.
    fn wait(&self) {
        let Some(from) = self.table.lane(self.partition).map(|growing| growing.next) else {
            return;
        };
        let bounds = self.feed.log.bounds(self.id);
        if bounds.is_ok_and(|bounds| bounds.next > from) {
            return std::thread::sleep(UNSYNCED);
        }
        let mut ending = self.table.ending();
        self.runtime.block_on(async {
            tokio::select! {
                _ = self.feed.log.wait_for(self.id, from) => {}
                _ = ending.wait_for(|is_ending| *is_ending) => {}
            }
        });
    }

    fn sleep(&self, pause: Duration) {
        let mut ending = self.table.ending();
        let over = ending.wait_for(|is_ending| *is_ending);
        let _ = self
            .runtime
            .block_on(async { tokio::time::timeout(pause, over).await.map(drop) });
    }
}
