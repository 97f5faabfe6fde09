//! What a log does for itself besides committing: it moves what is still needed out of old files so that they can be used
//! again, removes segments that nobody needs, and reads everything once in a while to see that it is whole. All of it within
//! one rate of bytes, and nothing that is appended or read waits for it.

mod scrub;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

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

/// Looks at its files this often even if nobody calls.
const LOOK: Duration = Duration::from_secs(300);

/// A file of which less than one part in so many is needed is moved out of, whatever the number of files.
const NEEDED_PART: u64 = 4;

/// But not out of the newest full files while there is room: most of what is in them is about to be settled.
const NEWEST: usize = 4;

/// So many small segments are made one.
const SMALL_SEGMENTS: usize = 16;

/// A rewrite looks so often for files that were made meanwhile.
const REWRITES_MAX: usize = 16;

/// A move that finds no room waits so long for files that are about to go.
const ROOM_MAX: Duration = Duration::from_secs(10);
const ROOM_LOOK: Duration = Duration::from_millis(10);

/// So many places of damage are known apart, and one in each file, since no file with any is moved; what is found beyond them is
/// neither told nor counted.
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
    shelf: Arc<FilePool>,
    partitions: PartitionMap,
    policy: MaintenancePolicy,
    state: Mutex<MaintenanceState>,
    changed: Condvar,
    /// One at a time reads and writes files: moving and rewriting must not take the same ranges.
    files: Mutex<()>,
    moved_bytes: AtomicU64,
    corrupt_frames: AtomicU64,
}

struct MaintenanceState {
    closing: bool,
    news: bool,
    trouble: Option<String>,
    /// Files and positions of what was found damaged.
    damaged: BTreeSet<(String, u64)>,
    /// Until when the bytes that were read and written so far have to last.
    paid_until: Instant,
}

impl MaintenanceState {
    fn has_damage_in(&self, file: &str) -> bool {
        let mut from = self.damaged.range((file.to_owned(), 0)..);
        from.next().is_some_and(|(name, _)| name == file)
    }
}

impl LogMaintenance {
    pub fn new(shelf: Arc<FilePool>, partitions: PartitionMap, policy: MaintenancePolicy) -> LogMaintenance {
        LogMaintenance {
            shelf,
            partitions,
            policy,
            state: Mutex::new(MaintenanceState {
                closing: false,
                news: true,
                trouble: None,
                damaged: BTreeSet::new(),
                paid_until: Instant::now(),
            }),
            changed: Condvar::new(),
            files: Mutex::new(()),
            moved_bytes: AtomicU64::new(0),
            corrupt_frames: AtomicU64::new(0),
        }
    }

    /// A file was sealed, or let go by a partition.
    pub fn wake(&self) {
        self.state.lock().news = true;
        self.changed.notify_all();
    }

    /// Nothing is moved, rewritten or removed any more once this returns: the folder may be somebody else's then.
    pub fn close(&self) {
        self.state.lock().closing = true;
        self.changed.notify_all();
        drop(self.files.lock());
    }

    /// To be held by whoever changes files. None is given when the log has closed.
    fn may_change_files(&self) -> Result<MutexGuard<'_, ()>> {
        let files = self.files.lock();
        match self.state.lock().closing {
            true => Err(LogError::Closed),
            false => Ok(files),
        }
    }

    /// What was found damaged, the first time.
    pub fn trouble(&self) -> Option<String> {
        self.state.lock().trouble.clone()
    }

    /// What a step came to, if something stored cannot be read. All else is no damage: a full disk has room again some time,
    /// and what must not be tried again is told to the writer.
    pub fn note_outcome(&self, error: &LogError) {
        match error {
            LogError::Corrupt { .. } | LogError::NewerFormat { .. } => self.note(error),
            LogError::DiskFull { .. } | LogError::Closed => {}
            error => {
                tracing::warn!(%error, "files of the log cannot be moved; tried again later");
                self.shelf.tell_poison(error);
            }
        }
    }

    /// Something that is stored cannot be read. Damage is told and counted once, however often it is met.
    pub fn note(&self, error: &LogError) {
        let mut state = self.state.lock();
        // What a newer program wrote is not damaged.
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
        // The writer takes this lock, and whoever reads the lines of the program may be slow.
        drop(state);
        if is_damage {
            self.corrupt_frames.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%error, "a part of what is stored cannot be read; the rest can");
        }
    }

    /// Whether something in a file is known to be damaged.
    fn is_damaged(&self, file: &LogFile) -> bool {
        self.state.lock().has_damage_in(&file.name)
    }

    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    pub fn corrupt_frames(&self) -> u64 {
        self.corrupt_frames.load(Ordering::Relaxed)
    }

    /// The work of the thread; returns when the log closes.
    pub fn run(&self, book: &ScrubProgressStore) {
        let mut scrub = Scrubber::new(book);
        loop {
            let outcome = self.step();
            if let Err(error) = &outcome {
                self.note_outcome(error);
            }
            // After a failed write or sync nothing is tried again.
            if matches!(outcome, Err(LogError::Poisoned { .. })) || !self.rest(&mut scrub) {
                return;
            }
        }
    }

    /// Checks what is to be checked, in pieces, until there is news or it is time to look again. False when the log closes.
    fn rest(&self, scrub: &mut Scrubber<'_>) -> bool {
        let until = Instant::now() + LOOK;
        loop {
            let idle = scrub.due_in(self, self.policy.clock.now());
            let mut state = self.state.lock();
            if !state.closing && !state.news && !idle.is_zero() {
                self.changed.wait_until(&mut state, until.min(Instant::now() + idle));
            }
            if state.closing {
                return false;
            }
            if std::mem::take(&mut state.news) || Instant::now() >= until {
                return true;
            }
            drop(state);
            scrub.piece(self, self.policy.clock.now());
        }
    }

    /// Frees what can be freed, and returns the first error after it has tried all. What was moved is not moved again before
    /// that is worth it: a small segment is left alone, however little of it is needed, until there are many.
    pub fn step(&self) -> Result<()> {
        let needed = self.needed();
        let needed = |file: &Arc<LogFile>| needed.get(&Arc::as_ptr(file)).copied().unwrap_or_default();
        let mostly_free = |file: &Arc<LogFile>| needed(file) > 0 && needed(file) < file.size / NEEDED_PART;
        let sealed = self.shelf.sealed();
        let surplus = sealed.len().saturating_sub(self.policy.files_max);
        // The newest is not used again anyway, see the shelf.
        let newest = if self.shelf.refuses().is_some() { 1 } else { NEWEST };
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
        let segments = self.shelf.segments();
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
        try_next(self.shelf.remove_dead_segments());
        self.shelf.called();
        outcome
    }

    /// How many bytes of each file are needed.
    fn needed(&self) -> HashMap<*const LogFile, u64> {
        let mut needed = HashMap::new();
        for partition in self.partitions.read().values() {
            partition.each_range(|range| *needed.entry(Arc::as_ptr(&range.file)).or_default() += range.bytes);
        }
        needed
    }

    /// Moves what is needed out of files that are whole. What is damaged stays where it is, and the other files go their way.
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

    /// Moves what is needed out of files, unless that would make about as many.
    fn move_out(&self, files: &[Arc<LogFile>]) -> Result<()> {
        let _files = self.may_change_files()?;
        let partitions: Vec<Arc<Partition>> = self.partitions.read().values().cloned().collect();
        let planned = MovePlan::of(files, &partitions)?;
        if files.len() > 1 && planned.segments() > files.len() / 2 {
            return Ok(());
        }
        let moved = planned.run(&self.shelf, &|bytes| self.pace(bytes))?;
        self.moved_bytes.fetch_add(moved, Ordering::Relaxed);
        Ok(())
    }

    /// Writes all full files of a partition anew without what `keep` does not want. Returns the offset before which no
    /// record was left out of sight.
    pub fn rewrite(&self, partition: &Arc<Partition>, keep: &RecordFilter<'_>) -> Result<Offset> {
        let (mut seen, mut leaves_out) = (Vec::new(), false);
        // What is moved meanwhile, from a file that was to come, is in one that nobody knew.
        for _ in 0..REWRITES_MAX {
            let files = self.full_files_of(partition, &seen);
            if files.is_empty() {
                break;
            }
            for file in files {
                let _files = self.may_change_files()?;
                let made = match segment::rewrite(&self.shelf, &file, partition, keep, &|bytes| self.pace(bytes)) {
                    // It stays as it is, unseen.
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
        // Whoever holds a file keeps it from going.
        drop(seen);
        let files = self.may_change_files()?;
        self.shelf.remove_dead_segments()?;
        drop(files);
        let unseen = unseen.unwrap_or_else(|| partition.bounds().next);
        // The newest frames are read from memory, where they are as they came.
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
        let newest = self.shelf.sealed().pop();
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
        self.shelf.called();
        Ok(())
    }

    /// Commit files that are full, and segments.
    fn whole_files(&self) -> Vec<Arc<LogFile>> {
        let mut files = self.shelf.sealed();
        files.extend(self.shelf.segments());
        files
    }

    /// Files that are full and whole and have something of a partition, but those that were seen.
    fn full_files_of(&self, partition: &Partition, seen: &[Arc<LogFile>]) -> Vec<Arc<LogFile>> {
        let mut files = self.whole_files();
        files.retain(|file| {
            let is_new = !seen.iter().any(|other| Arc::ptr_eq(other, file));
            is_new && !self.is_damaged(file) && !partition.ranges_in(file).is_empty()
        });
        files
    }

    /// Moves all that is needed out of commit files before `number` and out of all segments that there are. Returns the names of
    /// these, as they are on the disk: also of a file that somebody is about to remove, and that the shelf knows no more.
    pub fn move_all_out(&self, number: u64) -> Result<Vec<String>> {
        let (names, files) = {
            let _files = self.may_change_files()?;
            let sealed = self.shelf.sealed().into_iter();
            let mut files: Vec<_> = sealed.filter(|file| file.number < number).collect();
            files.extend(self.shelf.segments());
            (self.shelf.names()?, files)
        };
        let goes = |name: &String| match parse_name(name) {
            Some((FileKind::Commit, own)) => own < number,
            Some((FileKind::Segment, _)) => true,
            None => false,
        };
        let left: Vec<String> = names.into_iter().filter(goes).collect();
        // Whoever holds a file keeps it from going.
        for file in files {
            if self.is_damaged(&file) {
                return Err(LogError::NotErased {
                    file: file.name.clone(),
                    why: "it is damaged; give the damaged records up with `thalweg log repair --accept-loss`",
                });
            }
            while let Err(error) = self.move_out(std::slice::from_ref(&file)) {
                // What was moved before takes its room twice until it is gone.
                let may_wait = matches!(error, LogError::DiskFull { .. });
                if !may_wait || !self.wait_for_room(&left, &file.name)? {
                    return Err(error);
                }
            }
            drop(file);
            self.remove_dead_segments()?;
        }
        self.shelf.called();
        Ok(left)
    }

    /// Waits until one of the files before `name` is gone. False if none is there that could go.
    fn wait_for_room(&self, names: &[String], name: &str) -> Result<bool> {
        let before: Vec<&String> = names.iter().take_while(|one| *one != name).collect();
        let there = || -> Result<usize> {
            let names = self.shelf.names()?;
            Ok(before.iter().filter(|one| names.contains(one)).count())
        };
        let (began, first) = (Instant::now(), there()?);
        while first > 0 && began.elapsed() < ROOM_MAX {
            self.shelf.called();
            std::thread::sleep(ROOM_LOOK);
            self.remove_dead_segments()?;
            if there()? < first {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes segments that nobody needs.
    pub fn remove_dead_segments(&self) -> Result<()> {
        let _files = self.may_change_files()?;
        self.shelf.remove_dead_segments()
    }

    /// Waits until so many bytes fit into the rate for what goes on behind.
    pub fn pace_reading(&self, bytes: usize) -> Result<()> {
        self.pace(bytes);
        match self.state.lock().closing {
            true => Err(LogError::Closed),
            false => Ok(()),
        }
    }

    /// Waits until so many more bytes fit into the rate. A log that closes waits no more.
    fn pace(&self, bytes: usize) {
        let rate = self.policy.io_bytes_per_second;
        if rate == 0 {
            return;
        }
        let cost = Duration::from_secs_f64(bytes as f64 / rate as f64);
        let mut state = self.state.lock();
        let now = Instant::now();
        state.paid_until = state.paid_until.max(now) + cost;
        // Naps that are too short are not slept but added up.
        let until = state.paid_until;
        while !state.closing && until > Instant::now() + Duration::from_millis(5) {
            self.changed.wait_until(&mut state, until);
        }
    }
}

/// The lowest offset of a partition that a file has, and that is not read from there: it is in another file now, or was left out.
fn left_over_in(file: &Arc<LogFile>, partition: &Partition) -> Result<Option<Offset>> {
    let mut from = partition.bounds().first;
    let mut ranges = partition.ranges_in(file);
    ranges.sort_by_key(|range| range.first);
    let needed = ranges.iter().map(|range| (range.first, range.next));
    for (first, next) in needed.chain([(Offset::MAX, Offset::MAX)]) {
        let entries = match file.entries(partition.id, from, 1) {
            // Nobody knows what it has.
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

    /// One message each of sixty partitions that nobody settles, in as many files of a busy one that is settled at once.
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
        log.upkeep.note_outcome(&log.upkeep.shelf.ran_out(1));
        log.upkeep.note_outcome(&LogError::Closed);
        assert_eq!((log.upkeep.corrupt_frames(), log.upkeep.trouble()), (0, None));
        let damaged = LogError::Corrupt {
            file: "a".to_owned(),
            position: 1,
            expected: None,
            found: "nothing".to_owned(),
        };
        log.upkeep.note_outcome(&damaged);
        assert_eq!((log.upkeep.corrupt_frames(), log.upkeep.trouble().is_some()), (1, true));
    }

    #[tokio::test]
    async fn damage_without_an_end_is_told_and_counted_up_to_its_limit() {
        let log = open(&SimDisk::new(1, 256 << 20));
        let note = |position| {
            log.upkeep.note(&LogError::Corrupt {
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
        assert_eq!(log.upkeep.corrupt_frames(), DAMAGED_MAX as u64);
        // No file with damage is taken for a whole one.
        for position in 0..3 {
            log.upkeep.note(&LogError::Corrupt {
                file: "b".to_owned(),
                position,
                expected: None,
                found: "nothing".to_owned(),
            });
        }
        assert_eq!(log.upkeep.corrupt_frames(), DAMAGED_MAX as u64 + 1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_moved_rests_and_many_small_segments_become_few() {
        let disk = SimDisk::new(1, 256 << 20);
        let log = open(&disk);
        let quiet = many_small_remains(&log).await;
        let mut before = u64::MAX;
        let mut steps = 0;
        while before != log.upkeep.moved_bytes() {
            before = log.upkeep.moved_bytes();
            log.upkeep.step().unwrap();
            steps += 1;
            assert!(steps < 20, "the upkeep finds no end");
        }
        let moved = log.upkeep.moved_bytes();
        assert!(moved > 0 && moved < 1 << 20, "{moved}");
        // The files that these messages were in are used again, by another thread: only the newest are kept.
        let is_tidy = |counters: &LogCounters| {
            counters.full_files <= NEWEST + 2 && (1..SMALL_SEGMENTS).contains(&counters.segments)
        };
        until(&log, "few files and segments are left", || {
            log.upkeep.step().unwrap();
            is_tidy(&log.counters())
        })
        .await;
        assert_eq!(log.upkeep.moved_bytes(), moved);
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
        let file = log.upkeep.shelf.sealed().swap_remove(3);
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
            log.upkeep.step().unwrap();
            log.counters().full_files <= 4
        })
        .await;
        assert_eq!(log.counters().corrupt_frames, 1);
        assert!(matches!(log.read(BUSY, damaged, 1000), Err(LogError::Corrupt { .. })));
    }
}
