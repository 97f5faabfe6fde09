//! Key compaction keeps only the last record of each key. It handles one partition after the other.
//!
//! A run makes two passes over a partition, both at the rate of background work. The first notes the last offset of
//! each key; the second rewrites the full files without the earlier records. Only records older than `lag` are
//! considered. Records without a key and records that some group has not settled are kept.
//!
//! A record with an empty value is a tombstone. It is dropped `tombstone_age` after it was appended, but only once
//! nothing that it deletes can be left. It must lie in the range that an earlier run completed, so that a crash between
//! two files cannot resurrect a key. It must also precede the content of all retired files, so that damage cannot
//! resurrect a key.
//!
//! Files are rewritten when a tenth of a partition is new. The notes are bounded by [`KEYS_MAX`]; a run that reaches
//! this bound stops there, and the next run continues from that offset. Keys are identified by 128-bit hashes that
//! nobody outside can predict.

use std::hash::BuildHasher as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::{HashMap, HashSet};
use thalweg_kit::blocking;
use thalweg_kit::random::{self, HashState};
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Log, LogError, Micros, Offset, PartitionId};
use tokio::sync::{Mutex, OwnedMutexGuard, Semaphore};

use crate::error::Result;
use crate::group::Group;
use crate::group_partition::GroupState;
use crate::machine::DelayedMessageSet;
use crate::message_times::micros;
use crate::queue::Queue;
use crate::settings::{CompactionSettings, RetentionMode};

/// Keys per run; they take about 35 MiB.
const KEYS_MAX: usize = (1 << 20) / 8 * 7;

/// The runs of all queues share the rate limit of background work, so two runs at a time would only double the memory.
static ONE_RUN: Semaphore = Semaphore::const_new(1);

/// A rewrite pays off when one record in this many is new.
const ONE_IN: u64 = 10;

/// Which of a queue's records are compacted. One run at a time.
#[derive(Debug, Default)]
pub(crate) struct KeyCompaction {
    /// By partition; held during a run.
    progress: Arc<Mutex<Vec<CompactionProgress>>>,
}

/// The right to run.
pub(crate) type CompactionRun = OwnedMutexGuard<Vec<CompactionProgress>>;

impl KeyCompaction {
    /// Waits for a run in progress.
    async fn begin(&self) -> CompactionRun {
        self.progress.clone().lock_owned().await
    }

    /// `None` if a run is in progress.
    pub fn try_begin(&self) -> Option<CompactionRun> {
        self.progress.clone().try_lock_owned().ok()
    }
}

/// The progress of compaction in one partition since the process started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CompactionProgress {
    /// Before this offset every key occurs once.
    clean: Offset,
    rewritten_at: Micros,
}

/// The result of the first pass over new records.
struct LatestKeyOffsets {
    /// Last offset by the hash of the key.
    last: HashMap<u128, Offset>,
    /// Where the pass ended.
    end: Offset,
    /// Records with a key.
    records: u64,
}

/// Records of a partition that must be kept.
struct UnsettledOffsets {
    /// All records from this offset on.
    from: Offset,
    /// Single records before `from`.
    held: HashSet<Offset>,
    /// Long-delayed messages, one set per group. Millions of them take a few megabytes.
    asleep: Vec<DelayedMessageSet>,
}

/// Hashes a key to 128 bits.
struct KeyHasher([HashState; 2]);

impl KeyHasher {
    fn number(&self, key: &[u8]) -> u128 {
        let [one, other] = &self.0;
        u128::from(one.hash_one(key)) << 64 | u128::from(other.hash_one(key))
    }
}

impl Queue {
    /// Compacts now. Waits for a run in progress first.
    pub async fn compact_now(self: &Arc<Queue>) {
        if self.is_compacted() {
            let run = self.compaction.begin().await;
            self.compact(run).await;
        }
    }

    /// Compacts all partitions, each on a blocking thread for as long as the rate limit requires.
    pub(crate) async fn compact(self: &Arc<Queue>, mut run: CompactionRun) {
        run.resize(self.partition_count() as usize, CompactionProgress::default());
        for (partition, progress) in (0..).zip(run.iter_mut()) {
            let (queue, before) = (self.clone(), *progress);
            let _turn = ONE_RUN.acquire().await;
            let run = blocking::spawn(move || queue.compact_one(partition, before)).await;
            match run.unwrap_or(Err(LogError::Closed.into())) {
                Ok(after) => *progress = after,
                Err(error) => {
                    tracing::warn!(
                        queue = %self.name(), partition, %error,
                        "key compaction failed; it is retried later"
                    );
                }
            }
        }
        self.count_bytes().await;
    }

    fn compact_one(&self, partition: u32, progress: CompactionProgress) -> Result<CompactionProgress> {
        let settings = self.settings_now().compaction;
        let now = self.clock.now();
        let id = self.identity.data_id(partition);
        let bounds = self.log.bounds(id)?;
        let protect = self.settings_now().retention.protect_streams;
        let unsettled = UnsettledOffsets::of(&self.groups.now(), partition, protect);
        let end = self.log.offset_at(id, now - micros(settings.lag))?.min(bounds.next);
        let from = progress.clean.max(bounds.first);
        let keys = KeyHasher([random::hash_state(), random::hash_state()]);
        // A retired file takes over if the file that replaced it is lost, so what it contains must stay deleted.
        let oldest = self.log.oldest_leftover(id)?.unwrap_or(Offset::MAX);
        let notes = LatestKeyOffsets::read(self.log.as_ref(), id, from..end, &keys)?;
        let end = notes.end;
        let due = now >= progress.rewritten_at.saturating_add(micros(settings.tombstone_age));
        if !due && notes.records * ONE_IN < end.saturating_sub(bounds.first) {
            return Ok(progress);
        }
        let held_back = AtomicU64::new(0);
        let keep = |offset: Offset, record: &RecordRef<'_>| {
            let Some(key) = record.key.filter(|_| offset < end && !unsettled.holds(offset)) else {
                return true;
            };
            match notes.last.get(&keys.number(key)) {
                Some(last) if *last > offset => false,
                _ if !is_over(record, &settings, now) => true,
                _ if offset < progress.clean => {
                    let stays = offset >= oldest;
                    held_back.fetch_max(if stays { offset + 1 } else { 0 }, Ordering::Relaxed);
                    stays
                }
                _ => true,
            }
        };
        let reached = self.log.rewrite(id, &keep)?;
        let held_back = held_back.into_inner();
        if held_back > 0 {
            // The next run finds them released.
            self.log.release_leftovers(id, held_back)?;
        }
        let clean = reached.min(end).min(unsettled.first());
        tracing::debug!(queue = %self.name(), partition, records = notes.records, from, clean, "keys were compacted");
        Ok(CompactionProgress {
            clean: clean.max(progress.clean),
            rewritten_at: now,
        })
    }

    /// Whether this queue compacts keys.
    pub(crate) fn is_compacted(&self) -> bool {
        let settings = self.settings_now();
        settings.compaction.enabled && settings.retention.mode == RetentionMode::Policy && !self.is_in_memory()
    }
}

impl LatestKeyOffsets {
    fn read(log: &dyn Log, id: PartitionId, new: Range<Offset>, keys: &KeyHasher) -> Result<LatestKeyOffsets> {
        let mut notes = LatestKeyOffsets {
            last: HashMap::new(),
            end: new.end,
            records: 0,
        };
        log.scan(id, new.start, new.end, &mut |offset, record| {
            let Some(key) = record.key else {
                return true;
            };
            let number = keys.number(key);
            if notes.last.len() == KEYS_MAX && !notes.last.contains_key(&number) {
                notes.end = offset;
                return false;
            }
            notes.records += 1;
            notes.last.insert(number, offset);
            true
        })?;
        Ok(notes)
    }
}

impl UnsettledOffsets {
    /// What the groups have not settled; of stream groups only if they protect it.
    fn of(groups: &[Arc<Group>], partition: u32, protect_streams: bool) -> UnsettledOffsets {
        let mut unsettled = UnsettledOffsets {
            from: Offset::MAX,
            held: HashSet::new(),
            asleep: Vec::new(),
        };
        for part in groups.iter().filter_map(|group| group.part(partition)) {
            match &part.inner.lock().state {
                GroupState::Work(machine) => {
                    unsettled.from = unsettled.from.min(machine.floor());
                    unsettled.held.extend(machine.held());
                    unsettled.asleep.push(machine.delayed_set().clone());
                }
                GroupState::Stream(machine) if protect_streams => {
                    unsettled.from = unsettled.from.min(machine.committed());
                }
                GroupState::Stream(_) => {}
            }
        }
        unsettled
    }

    fn holds(&self, offset: Offset) -> bool {
        offset >= self.from || self.held.contains(&offset) || self.asleep.iter().any(|asleep| asleep.contains(offset))
    }

    fn first(&self) -> Offset {
        let asleep = self.asleep.iter().filter_map(DelayedMessageSet::first);
        self.held.iter().copied().chain(asleep).fold(self.from, Offset::min)
    }
}

/// Whether a record is a tombstone that is old enough.
fn is_over(record: &RecordRef<'_>, settings: &CompactionSettings, now: Micros) -> bool {
    record.value.is_empty() && record.time <= now - micros(settings.tombstone_age)
}
