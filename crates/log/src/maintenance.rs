//! Background work of a log: it moves data that is still needed out of old files so that they can be reused, removes
//! dead segments, and periodically reads everything to detect damage (scrub). All of it shares one byte rate, and
//! appends and reads never wait for it.

mod scrub;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::clock::{Clock as _, LogClock};
use crate::error::{LogError, Result};
use crate::file::{LogFile, parse_name};
use crate::file_pool::FilePool;
use crate::format::footer::FileKind;
use crate::ids::{Offset, PartitionId};
use crate::partition::Partition;
use crate::segment::{self, MovePlan, RecordFilter, SHARED_BELOW};

use scrub::Scrubber;
pub(crate) use scrub::{SCRUBBED, ScrubProgressStore};
use thalweg_kit::threads::{self, Condvar};

/// How often the files are checked without a notification.
const LOOK: Duration = Duration::from_secs(300);

/// A file is moved out of if less than one part in this many is still needed, regardless of the number of files.
const NEEDED_PART: u64 = 4;

/// The newest full files are exempt while there is room, because most of their content is about to be settled.
const NEWEST: usize = 4;

/// This many small segments are merged.
const SMALL_SEGMENTS: usize = 16;

/// How often a rewrite looks for files that were created meanwhile.
const REWRITES_MAX: usize = 16;

/// How long a move without room waits for files that are about to be removed.
const ROOM_MAX: Duration = Duration::from_secs(10);
const ROOM_LOOK: Duration = Duration::from_millis(10);

/// Maximum number of damaged positions that are tracked individually, plus one in each file, because a file with damage
/// is never moved. Further damage is neither logged nor counted.
const DAMAGED_MAX: usize = 4096;

#[derive(Clone, Debug)]
pub(crate) struct MaintenancePolicy {
    pub files_max: usize,
    pub io_bytes_per_second: u64,
    /// Zero: never.
    pub scrub: Duration,
    pub clock: Arc<LogClock>,
}

type PartitionMap = Arc<RwLock<HashMap<PartitionId, Arc<Partition>>>>;

pub(crate) struct LogMaintenance {
    pool: Arc<FilePool>,
    partitions: PartitionMap,
    policy: MaintenancePolicy,
    state: Mutex<MaintenanceState>,
    changed: Condvar,
    /// Serialises work on files, because moving and rewriting must not take the same ranges.
    files: Mutex<()>,
    moved_bytes: AtomicU64,
    corrupt_frames: AtomicU64,
}

struct MaintenanceState {
    closing: bool,
    news: bool,
    trouble: Option<String>,
    /// File and position of each known damage.
    damaged: BTreeSet<(String, u64)>,
    /// The time until which the bytes read and written so far use up the rate.
    paid_until: Instant,
}

impl MaintenanceState {
    fn has_damage_in(&self, file: &str) -> bool {
        let mut from = self.damaged.range((file.to_owned(), 0)..);
        from.next().is_some_and(|(name, _)| name == file)
    }
}

impl LogMaintenance {
    pub fn new(pool: Arc<FilePool>, partitions: PartitionMap, policy: MaintenancePolicy) -> LogMaintenance {
        LogMaintenance {
            pool,
            partitions,
            policy,
            state: Mutex::new(MaintenanceState {
                closing: false,
                news: true,
                trouble: None,
                damaged: BTreeSet::new(),
                paid_until: thalweg_kit::clock::now(),
            }),
            changed: Condvar::new(),
            files: Mutex::new(()),
            moved_bytes: AtomicU64::new(0),
            corrupt_frames: AtomicU64::new(0),
        }
    }

    /// Signals that a file was sealed or released by a partition.
    pub fn wake(&self) {
        self.state.lock().news = true;
        self.changed.notify_all();
    }

    /// After this returns nothing is moved, rewritten or removed, because another process may own the folder then.
    pub fn close(&self) {
        self.state.lock().closing = true;
        self.changed.notify_all();
        drop(self.files.lock());
    }

    /// The lock for changing files. Fails if the log has closed.
    fn may_change_files(&self) -> Result<MutexGuard<'_, ()>> {
        let files = self.files.lock();
        match self.state.lock().closing {
            true => Err(LogError::Closed),
            false => Ok(files),
        }
    }

    /// The first damage that was found.
    pub fn trouble(&self) -> Option<String> {
        self.state.lock().trouble.clone()
    }

    /// Records the error of a step. Only unreadable data counts as damage: a full disk will have room again, and a
    /// poisoning error is passed to the writer.
    pub fn note_outcome(&self, error: &LogError) {
        match error {
            LogError::Corrupt { .. } | LogError::NewerFormat { .. } => self.note(error),
            LogError::DiskFull { .. } | LogError::Closed => {}
            error => {
                tracing::warn!(%error, "files of the log cannot be moved; retrying later");
                self.pool.tell_poison(error);
            }
        }
    }

    /// Records that stored data cannot be read. Each damage is logged and counted once.
    pub fn note(&self, error: &LogError) {
        let mut state = self.state.lock();
        // Data of a newer program is not damage.
        let is_damage = if let LogError::Corrupt { file, position, .. } = error {
            let is_full = state.damaged.len() >= DAMAGED_MAX && state.has_damage_in(file);
            if is_full || !state.damaged.insert((file.clone(), *position)) {
                return;
            }
            true
        } else {
            false
        };
        state.trouble.get_or_insert_with(|| error.to_string());
        // The writer takes this lock, and logging may block on a slow reader of the output.
        drop(state);
        if is_damage {
            self.corrupt_frames.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%error, "some of the stored data cannot be read; the rest can");
        }
    }

    /// Whether a file is known to contain damage.
    fn is_damaged(&self, file: &LogFile) -> bool {
        self.state.lock().has_damage_in(&file.name)
    }

    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    pub fn corrupt_frames(&self) -> u64 {
        self.corrupt_frames.load(Ordering::Relaxed)
    }

    /// The loop of the maintenance thread. It returns when the log closes.
    pub fn run(&self, book: &ScrubProgressStore) {
        let mut scrub = Scrubber::new(book);
        loop {
            let outcome = self.step();
            if let Err(error) = &outcome {
                self.note_outcome(error);
            }
            // After a failed write or sync nothing is retried.
            if matches!(outcome, Err(LogError::Poisoned { .. })) || !self.rest(&mut scrub) {
                return;
            }
        }
    }

    /// Scrubs in pieces until there is a notification or it is time to check the files. Returns false when the log
    /// closes.
    fn rest(&self, scrub: &mut Scrubber<'_>) -> bool {
        let until = thalweg_kit::clock::now() + LOOK;
        loop {
            let idle = scrub.due_in(self, self.policy.clock.now());
            let mut state = self.state.lock();
            if !state.closing && !state.news && !idle.is_zero() {
                self.changed
                    .wait_until(&mut state, until.min(thalweg_kit::clock::now() + idle));
            }
            if state.closing {
                return false;
            }
            if std::mem::take(&mut state.news) || thalweg_kit::clock::now() >= until {
                return true;
            }
            drop(state);
            scrub.piece(self, self.policy.clock.now());
        }
    }

    /// Frees what can be freed and returns the first error after trying everything. Moved data is not moved again until
    /// it is worthwhile: a small segment stays, however little of it is needed, until there are many.
    pub fn step(&self) -> Result<()> {
        let needed = self.needed();
        let needed = |file: &Arc<LogFile>| needed.get(&Arc::as_ptr(file)).copied().unwrap_or_default();
        let mostly_free = |file: &Arc<LogFile>| needed(file) > 0 && needed(file) < file.size / NEEDED_PART;
        let sealed = self.pool.sealed();
        let surplus = sealed.len().saturating_sub(self.policy.files_max);
        // The file pool never reuses the newest full file.
        let newest = if self.pool.refuses().is_some() { 1 } else { NEWEST };
        let rested = sealed.len().saturating_sub(newest);
        let mut outcome = Ok(());
        let mut try_next = |done: Result<()>| {
            let fatal = matches!(done, Err(LogError::Poisoned { .. } | LogError::Closed));
            outcome = std::mem::replace(&mut outcome, Ok(())).and(done);
            !fatal
        };
        for (n, file) in sealed.iter().take(sealed.len().saturating_sub(1)).enumerate() {
            let moves = n < surplus || (n < rested && mostly_free(file));
            if moves && !try_next(self.move_whole(std::slice::from_ref(file))) {
                return outcome;
            }
        }
        drop(sealed);
        let segments = self.pool.segments();
        let (mut small, large): (Vec<_>, Vec<_>) = segments.into_iter().partition(|file| file.size < SHARED_BELOW);
        for file in large.iter().filter(|file| mostly_free(file)) {
            if !try_next(self.move_whole(std::slice::from_ref(file))) {
                return outcome;
            }
        }
        small.retain(|file| !self.is_damaged(file));
        if small.len() >= SMALL_SEGMENTS {
            try_next(self.move_whole(&small));
        }
        drop((small, large));
        try_next(self.pool.remove_dead_segments());
        self.pool.called();
        outcome
    }

    /// The number of needed bytes in each file.
    fn needed(&self) -> HashMap<*const LogFile, u64> {
        let mut needed = HashMap::new();
        for partition in self.partitions.read().values() {
            partition.each_range(|range| *needed.entry(Arc::as_ptr(&range.file)).or_default() += range.bytes);
        }
        needed
    }

    /// Moves needed data out of undamaged files. A damaged file stays, without blocking the others.
    fn move_whole(&self, files: &[Arc<LogFile>]) -> Result<()> {
        if files.iter().any(|file| self.is_damaged(file)) {
            return Ok(());
        }
        match self.move_out(files) {
            Err(error @ LogError::Corrupt { .. }) => {
                self.note(&error);
                Ok(())
            }
            moved => moved,
        }
    }

    /// Moves needed data out of files, unless that would create about as many new ones.
    fn move_out(&self, files: &[Arc<LogFile>]) -> Result<()> {
        let _files = self.may_change_files()?;
        let partitions: Vec<Arc<Partition>> = self.partitions.read().values().cloned().collect();
        let planned = MovePlan::of(files, &partitions)?;
        if files.len() > 1 && planned.segments() > files.len() / 2 {
            return Ok(());
        }
        let moved = planned.run(&self.pool, &|bytes| self.pace(bytes))?;
        self.moved_bytes.fetch_add(moved, Ordering::Relaxed);
        Ok(())
    }

    /// Rewrites all full files of a partition without the records that `keep` rejects. Returns the offset up to which
    /// all records were passed to `keep`.
    pub fn rewrite(&self, partition: &Arc<Partition>, keep: &RecordFilter<'_>) -> Result<Offset> {
        let (mut seen, mut leaves_out) = (Vec::new(), false);
        // A concurrent move may put data into a file that was not listed, so the list is read again.
        for _ in 0..REWRITES_MAX {
            let files = self.full_files_of(partition, &seen);
            if files.is_empty() {
                break;
            }
            for file in files {
                let _files = self.may_change_files()?;
                let made = match segment::rewrite(&self.pool, &file, partition, keep, &|bytes| self.pace(bytes)) {
                    // The damaged file stays as it is, without being passed to `keep`.
                    Err(error @ LogError::Corrupt { .. }) => {
                        self.note(&error);
                        continue;
                    }
                    made => made?,
                };
                self.moved_bytes.fetch_add(made.bytes, Ordering::Relaxed);
                leaves_out |= !made.files.is_empty();
                seen.extend(made.files);
                seen.push(file);
            }
        }
        let mut unseen = None;
        partition.each_range(|range| {
            if unseen.is_none() && !seen.iter().any(|file| Arc::ptr_eq(file, &range.file)) {
                unseen = Some(range.first);
            }
        });
        // A reference to a file prevents its removal.
        drop(seen);
        let files = self.may_change_files()?;
        self.pool.remove_dead_segments()?;
        drop(files);
        let unseen = unseen.unwrap_or_else(|| partition.bounds().next);
        // The newest frames are in memory, still unfiltered.
        if leaves_out {
            partition.forget_before(unseen);
        }
        Ok(unseen)
    }

    /// See [`EmbeddedLog::oldest_leftover`].
    pub fn oldest_leftover(&self, partition: &Arc<Partition>) -> Result<Option<Offset>> {
        // Files that are being removed are in no list.
        let _files = self.may_change_files()?;
        let mut oldest: Option<Offset> = None;
        for file in self.whole_files() {
            if let Some(first) = left_over_in(&file, partition)? {
                oldest = Some(oldest.map_or(first, |oldest| oldest.min(first)));
            }
        }
        Ok(oldest)
    }

    /// See [`EmbeddedLog::release_leftovers`].
    pub fn release_leftovers(&self, partition: &Arc<Partition>, below: Offset) -> Result<()> {
        let newest = self.pool.sealed().pop();
        for file in self.whole_files() {
            if newest.as_ref().is_some_and(|newest| Arc::ptr_eq(newest, &file)) {
                continue;
            }
            let is_left = left_over_in(&file, partition)?.is_some_and(|first| first < below);
            if is_left && partition.ranges_in(&file).is_empty() {
                self.move_whole(std::slice::from_ref(&file))?;
            }
        }
        self.remove_dead_segments()?;
        self.pool.called();
        Ok(())
    }

    /// Full commit files, and segments.
    fn whole_files(&self) -> Vec<Arc<LogFile>> {
        let mut files = self.pool.sealed();
        files.extend(self.pool.segments());
        files
    }

    /// Full, undamaged files with data of a partition, except for those in `seen`.
    fn full_files_of(&self, partition: &Partition, seen: &[Arc<LogFile>]) -> Vec<Arc<LogFile>> {
        let mut files = self.whole_files();
        files.retain(|file| {
            let is_new = !seen.iter().any(|other| Arc::ptr_eq(other, file));
            is_new && !self.is_damaged(file) && !partition.ranges_in(file).is_empty()
        });
        files
    }

    /// Moves all needed data out of commit files before `number` and out of all existing segments. Returns the names of
    /// these files as listed on the disk, including a file that is about to be removed and that the pool no longer
    /// lists.
    pub fn move_all_out(&self, number: u64) -> Result<Vec<String>> {
        let (names, files) = {
            let _files = self.may_change_files()?;
            let sealed = self.pool.sealed().into_iter();
            let mut files: Vec<_> = sealed.filter(|file| file.number < number).collect();
            files.extend(self.pool.segments());
            (self.pool.names()?, files)
        };
        let goes = |name: &String| match parse_name(name) {
            Some((FileKind::Commit, own)) => own < number,
            Some((FileKind::Segment, _)) => true,
            None => false,
        };
        let left: Vec<String> = names.into_iter().filter(goes).collect();
        // A reference to a file prevents its removal.
        for file in files {
            if self.is_damaged(&file) {
                return Err(LogError::NotErased {
                    file: file.name.clone(),
                    why: "it is damaged; give up the damaged records with `thalweg log repair --accept-loss`",
                });
            }
            while let Err(error) = self.move_out(std::slice::from_ref(&file)) {
                // Moved data occupies its space twice until the old file is removed.
                let may_wait = matches!(error, LogError::DiskFull { .. });
                if !may_wait || !self.wait_for_room(&left, &file.name)? {
                    return Err(error);
                }
            }
            drop(file);
            self.remove_dead_segments()?;
        }
        self.pool.called();
        Ok(left)
    }

    /// Waits until one of the files before `name` is removed. Returns false if none of them exists or the wait times
    /// out.
    fn wait_for_room(&self, names: &[String], name: &str) -> Result<bool> {
        let before: Vec<&String> = names.iter().take_while(|one| *one != name).collect();
        let there = || -> Result<usize> {
            let names = self.pool.names()?;
            Ok(before.iter().filter(|one| names.contains(one)).count())
        };
        let (began, first) = (thalweg_kit::clock::now(), there()?);
        while first > 0 && began.elapsed() < ROOM_MAX {
            self.pool.called();
            threads::sleep(ROOM_LOOK);
            self.remove_dead_segments()?;
            if there()? < first {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes segments that are not needed.
    pub fn remove_dead_segments(&self) -> Result<()> {
        let _files = self.may_change_files()?;
        self.pool.remove_dead_segments()
    }

    /// Throttles a read to the background rate. Fails when the log closes.
    pub fn pace_reading(&self, bytes: usize) -> Result<()> {
        self.pace(bytes);
        match self.state.lock().closing {
            true => Err(LogError::Closed),
            false => Ok(()),
        }
    }

    /// Waits until the rate allows this many more bytes, or until the log closes.
    fn pace(&self, bytes: usize) {
        let rate = self.policy.io_bytes_per_second;
        if rate == 0 {
            return;
        }
        let cost = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let mut state = self.state.lock();
        let now = thalweg_kit::clock::now();
        state.paid_until = state.paid_until.max(now) + cost;
        // Very short pauses are accumulated instead of slept.
        let until = state.paid_until;
        while !state.closing && until > thalweg_kit::clock::now() + Duration::from_millis(5) {
            self.changed.wait_until(&mut state, until);
        }
    }
}

/// The lowest offset of a partition that a file contains but does not serve: the record is served from another file or
/// was removed.
fn left_over_in(file: &Arc<LogFile>, partition: &Partition) -> Result<Option<Offset>> {
    let mut from = partition.bounds().first;
    let mut ranges = partition.ranges_in(file);
    ranges.sort_by_key(|range| range.first);
    let needed = ranges.iter().map(|range| (range.first, range.next));
    for (first, next) in needed.chain([(Offset::MAX, Offset::MAX)]) {
        let entries = match file.entries(partition.id, from, 1) {
            // The content of the file is unknown.
            Err(LogError::Corrupt { .. }) => return Ok(Some(from)),
            entries => entries?,
        };
        let Some(entry) = entries.first() else { return Ok(None) };
        let base = entry.header.base.max(from);
        if base < first {
            return Ok(Some(base));
        }
        from = from.max(next);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;
    use crate::durability::Durability;
    use crate::embedded::EmbeddedLog;
    use crate::options::LogOptions;
    use crate::status::LogCounters;
    use crate::test_support::{FILE, append, open, open_with, small_files, until, values};

    const BUSY: PartitionId = PartitionId::new(1, 0);

    /// One message in each of sixty partitions that is never settled, spread over as many files of a busy partition
    /// whose messages are settled at once.
    async fn many_small_remains(log: &EmbeddedLog) -> Vec<PartitionId> {
        log.create(BUSY, Durability::Os).await.unwrap();
        let quiet: Vec<_> = (1..=60).map(|n| PartitionId::new(1, n)).collect();
        for id in &quiet {
            log.create(*id, Durability::Os).await.unwrap();
            append(log, *id, &[id.partition as u8]).await;
            for _ in 0..FILE / (16 << 10) {
                let offset = append(log, BUSY, &[0; 16 << 10]).await;
                log.trim(BUSY, offset + 1).unwrap();
            }
        }
        quiet
    }

    #[tokio::test]
    async fn a_full_disk_is_no_damage_and_what_cannot_be_read_is() {
        let log = open(&SimDisk::new(1, 256 << 20));
        log.maintenance.note_outcome(&log.maintenance.pool.ran_out(1));
        log.maintenance.note_outcome(&LogError::Closed);
        assert_eq!((log.maintenance.corrupt_frames(), log.maintenance.trouble()), (0, None));
        let damaged = LogError::Corrupt {
            file: "a".to_owned(),
            position: 1,
            expected: None,
            found: "nothing".to_owned(),
        };
        log.maintenance.note_outcome(&damaged);
        assert_eq!(
            (log.maintenance.corrupt_frames(), log.maintenance.trouble().is_some()),
            (1, true)
        );
    }

    #[tokio::test]
    async fn damage_without_an_end_is_told_and_counted_up_to_its_limit() {
        let log = open(&SimDisk::new(1, 256 << 20));
        let note = |position| {
            log.maintenance.note(&LogError::Corrupt {
                file: "a".to_owned(),
                position,
                expected: None,
                found: "nothing".to_owned(),
            });
        };
        for position in 0..DAMAGED_MAX as u64 + 5 {
            note(position);
        }
        note(0);
        assert_eq!(log.maintenance.corrupt_frames(), DAMAGED_MAX as u64);
        // A file with damage never counts as undamaged.
        for position in 0..3 {
            log.maintenance.note(&LogError::Corrupt {
                file: "b".to_owned(),
                position,
                expected: None,
                found: "nothing".to_owned(),
            });
        }
        assert_eq!(log.maintenance.corrupt_frames(), DAMAGED_MAX as u64 + 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_moved_rests_and_many_small_segments_become_few() {
        let disk = SimDisk::new(1, 256 << 20);
        let log = open(&disk);
        let quiet = many_small_remains(&log).await;
        let mut before = u64::MAX;
        let mut steps = 0;
        while before != log.maintenance.moved_bytes() {
            before = log.maintenance.moved_bytes();
            log.maintenance.step().unwrap();
            steps += 1;
            assert!(steps < 20, "maintenance finds no end");
        }
        let moved = log.maintenance.moved_bytes();
        assert!(moved > 0 && moved < 1 << 20, "{moved}");
        // Another thread reuses the files of these messages, so only the newest remain.
        let is_tidy = |counters: &LogCounters| {
            counters.full_files <= NEWEST + 2 && (1..SMALL_SEGMENTS).contains(&counters.segments)
        };
        until(&log, "few files and segments are left", || {
            log.maintenance.step().unwrap();
            is_tidy(&log.counters())
        })
        .await;
        assert_eq!(log.maintenance.moved_bytes(), moved);
        drop(log);
        let log = open(&disk);
        for id in quiet {
            assert_eq!(values(&log, id), [[id.partition as u8]]);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_damaged_file_stays_and_keeps_no_other_from_being_moved() {
        let disk = SimDisk::new(5, 256 << 20);
        let log = open(&disk);
        log.create(BUSY, Durability::Os).await.unwrap();
        for _ in 0..300 {
            append(&log, BUSY, &[7; 16 << 10]).await;
        }
        let file = log.maintenance.pool.sealed().swap_remove(3);
        let entries = file.entries(BUSY, 0, usize::MAX).unwrap();
        let entry = entries.first().unwrap();
        file.write(&[0xff], entry.body_at).unwrap();
        let damaged = entry.header.base;
        drop(file);
        drop(log);
        let fewer = LogOptions {
            files_max: 2,
            ..small_files()
        };
        let log = open_with(&disk, &fewer);
        until(&log, "the others are moved", || {
            log.maintenance.step().unwrap();
            log.counters().full_files <= 4
        })
        .await;
        assert_eq!(log.counters().corrupt_frames, 1);
        assert!(matches!(log.read(BUSY, damaged, 1000), Err(LogError::Corrupt { .. })));
    }
}
