//! Key compaction: of each key only the last record stays. Runs over one partition after the other.
//!
//! Two looks at a partition, both at the pace of what goes on behind: the first notes where each key was last seen, the
//! second rewrites the full files without what came before that. Looked at is what is older than `lag`. What some group
//! has not settled stays, and so do records without a key.
//!
//! A record with an empty value says that its key is deleted. It goes `tombstone_age` after it was appended, but only once
//! nothing that it deletes can be left: it must lie where an earlier run has been to its end, so that a crash between two
//! files brings nothing back; and before all that files have which went out of use, so that damage brings nothing back.
//!
//! Files are rewritten when a tenth of a partition is new. The notes are bounded ([`KEYS_MAX`]); a run that has seen more
//! keys ends there, and the next begins where it ended. Keys are told apart by 128 bits that nobody outside can foresee.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::{HashMap, HashSet};
use thalweg_log::format::record::RecordRef;
use thalweg_log::{LogError, Micros, Offset};
use tokio::sync::{OwnedMutexGuard, Semaphore};

use crate::error::Result;
use crate::group_partition::GroupState;
use crate::machine::DelayedMessageSet;
use crate::queue::Queue;
use crate::settings::{CompactionSettings, RetentionMode};
use crate::times::micros;

/// Keys of one run, in about 35 MiB.
const KEYS_MAX: usize = (1 << 20) / 8 * 7;

/// The runs of all queues share the rate of what goes on behind, so two at a time would only take twice the memory.
static ONE_RUN: Semaphore = Semaphore::const_new(1);

/// Rewriting pays when one record in so many is new.
const ONE_IN: u64 = 10;

/// How far the runs of a partition have come, since the start of the process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CompactionProgress {
    /// Before it every key stands once.
    clean: Offset,
    rewritten_at: Micros,
}

/// What a look at what is new has found.
struct LatestKeyOffsets {
    /// By the numbers of keys.
    last: HashMap<u128, Offset>,
    /// It came so far.
    end: Offset,
    /// With a key.
    records: u64,
}

/// Which records of a partition may not go yet.
struct UnsettledOffsets {
    /// From here on.
    from: Offset,
    /// And these before it.
    held: HashSet<Offset>,
    /// By group: those that are delayed for long. Millions take a few megabytes so.
    asleep: Vec<DelayedMessageSet>,
}

/// A key as a number.
struct KeyHasher([RandomState; 2]);

impl KeyHasher {
    fn number(&self, key: &[u8]) -> u128 {
        let [one, other] = &self.0;
        u128::from(one.hash_one(key)) << 64 | u128::from(other.hash_one(key))
    }
}

impl Queue {
    /// Compacts what can be, now. A run that is at it already is waited for.
    pub async fn compact_now(self: &Arc<Queue>) {
        if self.is_compacted() {
            let progress = self.compacted.clone().lock_owned().await;
            self.compact(progress).await;
        }
    }

    /// Runs over all partitions. Each takes as long as the pace allows, on a thread for that.
    pub(crate) async fn compact(self: &Arc<Queue>, mut progress: OwnedMutexGuard<Vec<CompactionProgress>>) {
        progress.resize(self.partition_count() as usize, CompactionProgress::default());
        for (partition, progress) in (0..).zip(progress.iter_mut()) {
            let (queue, before) = (self.clone(), *progress);
            let _turn = ONE_RUN.acquire().await;
            let run = tokio::task::spawn_blocking(move || queue.compact_one(partition, before)).await;
            match run.unwrap_or(Err(LogError::Closed.into())) {
                Ok(after) => *progress = after,
                Err(error) => {
                    tracing::warn!(queue = %self.name(), partition, %error, "keys cannot be compacted; tried again later");
                }
            }
        }
        self.count_bytes().await;
    }

    fn compact_one(&self, partition: u32, progress: CompactionProgress) -> Result<CompactionProgress> {
        let settings = self.settings_now().compaction;
        let now = self.clock.now();
        let id = self.data_id(partition);
        let (bounds, unsettled) = (self.log.bounds(id)?, self.unsettled(partition));
        let end = self.log.offset_at(id, now - micros(settings.lag))?.min(bounds.next);
        let from = progress.clean.max(bounds.first);
        let keys = KeyHasher([RandomState::new(), RandomState::new()]);
        // A file that has gone out of use stands in if the one that took its place is lost: what it has must stay deleted.
        let oldest = self.log.oldest_leftover(id)?.unwrap_or(Offset::MAX);
        let notes = self.note_keys(partition, from, end, &keys)?;
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
            // The next run finds them gone.
            self.log.release_leftovers(id, held_back)?;
        }
        let clean = reached.min(end).min(unsettled.first());
        tracing::debug!(queue = %self.name(), partition, records = notes.records, from, clean, "keys were compacted");
        Ok(CompactionProgress {
            clean: clean.max(progress.clean),
            rewritten_at: now,
        })
    }

    /// Where each key was last seen.
    fn note_keys(&self, partition: u32, from: Offset, to: Offset, keys: &KeyHasher) -> Result<LatestKeyOffsets> {
        let mut notes = LatestKeyOffsets {
            last: HashMap::new(),
            end: to,
            records: 0,
        };
        self.log
            .scan(self.data_id(partition), from, to, &mut |offset, record| {
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

    /// What must stay because somebody has still to do with it.
    fn unsettled(&self, partition: u32) -> UnsettledOffsets {
        let mut unsettled = UnsettledOffsets {
            from: Offset::MAX,
            held: HashSet::new(),
            asleep: Vec::new(),
        };
        let protect = self.settings_now().retention.protect_streams;
        for group in self.groups_now().iter() {
            let Some(part) = group.part(partition) else {
                continue;
            };
            match &part.inner.lock().state {
                GroupState::Work(machine) => {
                    unsettled.from = unsettled.from.min(machine.floor());
                    unsettled.held.extend(machine.held());
                    unsettled.asleep.push(machine.sleepers().clone());
                }
                GroupState::Stream(machine) if protect => unsettled.from = unsettled.from.min(machine.committed()),
                GroupState::Stream(_) => {}
            }
        }
        unsettled
    }

    /// Whether keys of this queue are compacted.
    pub(crate) fn is_compacted(&self) -> bool {
        let settings = self.settings_now();
        settings.compaction.enabled && settings.retention.mode == RetentionMode::Policy && !self.is_in_memory()
    }
}

impl UnsettledOffsets {
    fn holds(&self, offset: Offset) -> bool {
        offset >= self.from || self.held.contains(&offset) || self.asleep.iter().any(|asleep| asleep.contains(offset))
    }

    fn first(&self) -> Offset {
        let asleep = self.asleep.iter().filter_map(DelayedMessageSet::first);
        self.held.iter().copied().chain(asleep).fold(self.from, Offset::min)
    }
}

/// Whether a record says that its key is deleted, and has done so for long enough.
fn is_over(record: &RecordRef<'_>, settings: &CompactionSettings, now: Micros) -> bool {
    record.value.is_empty() && record.time <= now - micros(settings.tombstone_age)
}
