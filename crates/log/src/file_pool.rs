//! The files of a log that are not being written: spare commit files, full ones, and segments. Space is allocated here
//! long before it is needed, so that the writer never meets a full disk in the middle of a block. A file that is
//! neither needed nor being read is reused under a new number. The first spare file is made only when the writer has
//! used a part of its own file, so that a log that stores little writes little.
//!
//! A file is needed as long as a partition refers to it. The pool therefore does not count references: a file is free
//! when no other `Arc` exists.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use thalweg_kit::threads::Condvar;

use crate::cache::IndexCache;
use crate::disk::{Disk, DiskSpace};
use crate::error::{LogError, Result};
use crate::file::LogFile;

/// How often free space is checked and failed work is retried.
const LOOK: Duration = Duration::from_secs(1);

/// New messages are accepted again once the free space is this percentage of the minimum.
const RESUME_PERCENT: u64 = 125;

/// One for messages, one for settles.
const SPARE_LEAST: usize = 2;

#[derive(Clone, Debug)]
pub(crate) struct FilePoolPolicy {
    /// Number of spare files to keep ready.
    pub spare: usize,
    pub file_bytes: u64,
    /// Bytes of the disk that the log leaves free. `None`: the larger of 2 GiB and 5 % of the disk.
    pub min_free_bytes: Option<u64>,
    /// Maximum rate of filling new files while spare files are available. Zero: unlimited.
    pub io_bytes_per_second: u64,
    /// Named in errors.
    pub folder: String,
    /// Written into segments.
    pub log_id: u64,
}

pub(crate) struct FilePool {
    pub disk: Arc<dyn Disk>,
    pub cache: Arc<IndexCache>,
    policy: FilePoolPolicy,
    state: Mutex<FilePoolState>,
    changed: Condvar,
    /// Mirrors `FilePoolState::full`, so that a check needs no lock.
    full: AtomicBool,
    /// Free bytes of the disk at the last check.
    free_bytes: AtomicU64,
    hooks: OnceLock<FilePoolHooks>,
    on_roll: Mutex<Vec<Arc<RollListener>>>,
    /// Files with lower numbers are neither written nor reused, because they contain data to erase.
    retired: AtomicU64,
}

/// Called by the commit thread whenever a commit file is full, so it must return at once.
pub type RollListener = dyn Fn() + Send + Sync;

/// Returns true when everything written or journaled so far survives a power cut, or false when its argument asks it to
/// give up.
pub(crate) type Barrier = dyn Fn(&dyn Fn() -> bool) -> Result<bool> + Send + Sync;

pub(crate) type Poison = dyn Fn(&Arc<str>) + Send + Sync;

/// Callbacks of a pool whose log runs background threads.
pub(crate) struct FilePoolHooks {
    pub barrier: Box<Barrier>,
    /// Poisons the log with this cause.
    pub poison: Box<Poison>,
    /// Something has changed that may free files.
    pub news: Box<dyn Fn() + Send + Sync>,
}

struct FilePoolState {
    ready: VecDeque<LogFile>,
    /// Full commit files, in order.
    sealed: Vec<Arc<LogFile>>,
    segments: Vec<Arc<LogFile>>,
    next_number: u64,
    next_segment: u64,
    /// Why new messages are refused.
    full: Option<LogError>,
    /// Why files cannot be created or renamed, other than for lack of space.
    broken: Option<LogError>,
    /// The writer has needed another file, or has come so far that it may soon need one.
    needs_spares: bool,
    /// A thread creates files. Otherwise they are created on demand.
    attended: bool,
    /// The writer is blocked until it gets a file.
    awaited: bool,
    closing: bool,
    /// Something has changed that may free files or require new ones.
    news: bool,
}

/// What a new file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilePurpose {
    /// New messages, which are refused while the disk is full.
    Messages,
    /// Settles and other records that help to free space. They may use the last spare file.
    State,
    /// Like `State`, and if there is no file, the reserve that every file has for partition changes.
    Freeing,
}

/// The files that were found at the start, except for the current one.
pub(crate) struct ExistingFiles {
    pub ready: Vec<LogFile>,
    pub sealed: Vec<Arc<LogFile>>,
    pub segments: Vec<Arc<LogFile>>,
    pub next_number: u64,
    pub next_segment: u64,
}

impl FilePool {
    pub fn new(disk: Arc<dyn Disk>, cache: Arc<IndexCache>, policy: FilePoolPolicy, found: ExistingFiles) -> FilePool {
        FilePool {
            disk,
            cache,
            policy,
            state: Mutex::new(FilePoolState {
                needs_spares: !found.sealed.is_empty(),
                ready: found.ready.into(),
                sealed: found.sealed,
                segments: found.segments,
                next_number: found.next_number,
                next_segment: found.next_segment,
                full: None,
                broken: None,
                attended: false,
                awaited: false,
                closing: false,
                news: false,
            }),
            changed: Condvar::new(),
            full: AtomicBool::new(false),
            free_bytes: AtomicU64::new(0),
            hooks: OnceLock::new(),
            on_roll: Mutex::default(),
            retired: AtomicU64::new(0),
        }
    }

    /// Registers the callbacks of the background thread.
    pub fn attend_with(&self, hooks: FilePoolHooks) {
        let _ = self.hooks.set(hooks);
        self.state.lock().attended = true;
    }

    /// Looks at the disk before the first write. Otherwise a log that opens on a full disk would take new messages until
    /// the background thread has looked for the first time.
    pub fn look_first(&self) {
        let lacks_files = {
            let state = self.state.lock();
            let older = state.sealed.len().saturating_sub(1);
            let reusable = state.sealed[..older]
                .iter()
                .filter(|file| Arc::strong_count(file) == 1)
                .count();
            state.needs_spares && state.ready.len() + reusable < self.policy.spare.max(SPARE_LEAST)
        };
        // The background thread meets the same error and reports it.
        let _ = self.look_at_space(if lacks_files { self.policy.file_bytes } else { 0 });
    }

    /// From now on spare files are kept ready.
    pub fn need_spares(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.needs_spares, true) {
            state.news = true;
            self.changed.notify_all();
        }
    }

    /// Returns the next commit file in the order of numbers, waiting while it is being created.
    pub fn take(&self, purpose: FilePurpose) -> Result<LogFile> {
        // The last file is reserved for records that free space.
        let least = if purpose == FilePurpose::Messages { 2 } else { 1 };
        loop {
            let mut state = self.wait_for_ready(least, purpose)?;
            if let Some(file) = state.ready.pop_front() {
                state.news = true;
                self.changed.notify_all();
                return Ok(file);
            }
        }
    }

    /// Waits until a spare file is ready. It stays so until the writer takes it or the current file is retired.
    pub fn wait_for_spare(&self, purpose: FilePurpose) -> Result<()> {
        self.wait_for_ready(1, purpose).map(drop)
    }

    fn wait_for_ready(&self, least: usize, purpose: FilePurpose) -> Result<MutexGuard<'_, FilePoolState>> {
        self.need_spares();
        loop {
            let mut state = self.state.lock();
            if let Some(full) = state.full.as_ref().filter(|_| purpose == FilePurpose::Messages) {
                return Err(full.clone());
            }
            if state.ready.len() >= least {
                return Ok(state);
            }
            if let Some(error) = state.broken.as_ref().or(state.full.as_ref()) {
                return Err(error.clone());
            }
            if state.attended {
                state.awaited = true;
                self.changed.notify_all();
                self.changed.wait(&mut state);
                state.awaited = false;
                continue;
            }
            drop(state);
            self.make_ready(&|_| true)?;
        }
    }

    /// Creates the first file of a log. It may be smaller, so that the first start is fast.
    pub fn first(&self, size: u64) -> Result<LogFile> {
        self.look_at_space(size)?;
        self.make(size, &|_| true)
    }

    /// Retires all existing files. Spare files are removed, because they may have been used before, and are replaced by
    /// new ones. Returns the number of the first new file.
    pub fn retire(&self) -> Result<u64> {
        if let Some(full) = self.refuses() {
            return Err(full);
        }
        self.may_take(2 * self.policy.file_bytes)?;
        let mut state = self.state.lock();
        let new = state.next_number;
        self.retired.store(new, Ordering::Release);
        let ready = std::mem::take(&mut state.ready);
        state.news = true;
        self.changed.notify_all();
        // Before the next file gets its name: an empty file between files in use would hide those after it.
        let disk = self.disk.as_ref();
        let gone = ready.into_iter().try_for_each(|file| file.remove(disk)).and_then(|()| {
            disk.sync_names()
                .map_err(LogError::io("cannot sync the names in", &self.policy.folder))
        });
        drop(state);
        gone.map(|()| new).map_err(|error| {
            let cause = error.to_string().into();
            let poisoned = LogError::Poisoned { cause };
            self.tell_poison(&poisoned);
            poisoned
        })
    }

    pub fn is_retired(&self, number: u64) -> bool {
        number < self.retired.load(Ordering::Acquire)
    }

    /// Adds a full commit file.
    pub fn seal(&self, file: Arc<LogFile>) {
        self.state.lock().sealed.push(file);
        self.wake();
        self.on_roll.lock().iter().for_each(|told| told());
    }

    /// Adds a listener for full commit files.
    pub fn on_roll(&self, told: Arc<RollListener>) {
        self.on_roll.lock().push(told);
    }

    /// Signals that a file may have become free.
    pub fn wake(&self) {
        self.state.lock().news = true;
        self.changed.notify_all();
        if let Some(hooks) = self.hooks.get() {
            (hooks.news)();
        }
    }

    /// Signals that maintenance may have freed files.
    pub fn called(&self) {
        self.state.lock().news = true;
        self.changed.notify_all();
    }

    pub fn add_segment(&self, segment: Arc<LogFile>) {
        self.state.lock().segments.push(segment);
    }

    pub fn next_segment(&self) -> u64 {
        let mut state = self.state.lock();
        state.next_segment += 1;
        state.next_segment - 1
    }

    /// Full commit files, the oldest first.
    pub fn sealed(&self) -> Vec<Arc<LogFile>> {
        self.state.lock().sealed.clone()
    }

    pub fn segments(&self) -> Vec<Arc<LogFile>> {
        self.state.lock().segments.clone()
    }

    /// The size of the full files and segments.
    pub fn stored_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.sealed.iter().chain(&state.segments).map(|file| file.size).sum()
    }

    /// The names of all files on the disk.
    pub fn names(&self) -> Result<Vec<String>> {
        let names = self.disk.names();
        names.map_err(LogError::io("cannot list", &self.policy.folder))
    }

    /// Why files cannot be created, renamed or removed.
    pub fn broken(&self) -> Option<LogError> {
        self.state.lock().broken.clone()
    }

    pub fn log_id(&self) -> u64 {
        self.policy.log_id
    }

    /// The number of spare files, full files and segments.
    pub fn counts(&self) -> (usize, usize, usize) {
        let state = self.state.lock();
        (state.ready.len(), state.sealed.len(), state.segments.len())
    }

    /// Free bytes of the disk at the last check, which runs every second.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Ordering::Relaxed)
    }

    /// Why new messages are refused, if they are.
    pub fn refuses(&self) -> Option<LogError> {
        if !self.full.load(Ordering::Relaxed) {
            return None;
        }
        self.state.lock().full.clone()
    }

    /// Reuses, creates or removes one file if necessary. Returns whether there may be more to do.
    pub fn prepare(&self, spare: usize) -> Result<bool> {
        if let Some(file) = self.dead() {
            // The records that made the file free must be durable before the file is overwritten.
            match self.barrier(&|| self.state.lock().awaited) {
                Ok(true) => self.use_again(file, spare)?,
                // The writer would have to sync them, but is itself waiting for a file. It gets a new one.
                Ok(false) => {
                    self.put_back(file);
                    self.make_ready(&|_| true)?;
                    self.state.lock().news = true;
                }
                Err(error) => {
                    self.put_back(file);
                    return Err(error);
                }
            }
            return Ok(true);
        }
        let lacking = {
            let state = self.state.lock();
            state.needs_spares && state.ready.len() < spare
        };
        if lacking {
            self.make_ready(&|bytes| self.pace(bytes))?;
        }
        Ok(lacking)
    }

    /// Turns a free file into a spare file, or removes it.
    fn use_again(&self, file: LogFile, spare: usize) -> Result<()> {
        // Up to twice as many spare files are kept: a file often becomes free just after one was taken, and filling a
        // new one with zeros would cost as much disk bandwidth as all commits. Not while the disk is full, because the
        // space is needed to accept messages again.
        let most = if self.refuses().is_some() { spare } else { 2 * spare };
        let ready = self.state.lock().ready.len();
        let is_usable = file.size == self.policy.file_bytes && ready < most && !file.may_deceive();
        if is_usable && let Some(number) = self.number_for(&file) {
            let file = file.recycle(self.disk.as_ref(), number)?;
            self.put_ready(file);
            return Ok(());
        }
        let removed = file.remove(self.disk.as_ref());
        if removed.is_err() {
            self.put_back(file);
        }
        removed
    }

    fn make_ready(&self, paced: &dyn Fn(usize) -> bool) -> Result<()> {
        self.look_at_space(self.policy.file_bytes)?;
        let file = self.make(self.policy.file_bytes, paced)?;
        self.put_ready(file);
        Ok(())
    }

    /// Throttles filling while enough spare files exist. Returns false if the log closes.
    fn pace(&self, bytes: usize) -> bool {
        let rate = self.policy.io_bytes_per_second;
        let mut state = self.state.lock();
        if state.attended && !state.closing && state.ready.len() >= SPARE_LEAST && rate > 0 {
            let nap = Duration::from_secs_f64(bytes as f64 / rate as f64);
            // A wakeup means that a file was taken or that the log closes, so the rest of the pause is skipped.
            self.changed.wait_for(&mut state, nap);
        }
        !state.closing
    }

    fn barrier(&self, give_up: &dyn Fn() -> bool) -> Result<bool> {
        self.hooks.get().map_or(Ok(true), |hooks| (hooks.barrier)(give_up))
    }

    /// Keeps a free file for now.
    fn put_back(&self, file: LogFile) {
        let mut state = self.state.lock();
        let at = state.sealed.partition_point(|sealed| sealed.number < file.number);
        state.sealed.insert(at, Arc::new(file));
    }

    /// Removes segments that are not needed any more.
    pub fn remove_dead_segments(&self) -> Result<()> {
        let mut dead = Vec::new();
        {
            let mut state = self.state.lock();
            let all = std::mem::take(&mut state.segments);
            for segment in all {
                match Arc::try_unwrap(segment) {
                    Ok(segment) => dead.push(segment),
                    Err(needed) => state.segments.push(needed),
                }
            }
        }
        if dead.is_empty() {
            return Ok(());
        }
        let mut outcome = self.barrier(&|| false).map(drop);
        while outcome.is_ok()
            && let Some(segment) = dead.last()
        {
            outcome = segment.remove(self.disk.as_ref());
            if outcome.is_ok() {
                dead.pop();
            }
        }
        // Keep the segments that were not removed.
        self.state.lock().segments.extend(dead.into_iter().map(Arc::new));
        outcome
    }

    /// Takes a free commit file out of the list. The newest full file stays: the start of the current file may not be
    /// on disk yet, and then the end of the log is found from the full one.
    fn dead(&self) -> Option<LogFile> {
        let mut state = self.state.lock();
        let older = state.sealed.len().saturating_sub(1);
        let at = state
            .sealed
            .iter()
            .take(older)
            .position(|file| Arc::strong_count(file) == 1)?;
        let file = state.sealed.remove(at);
        match Arc::try_unwrap(file) {
            Ok(file) => Some(file),
            Err(needed) => {
                state.sealed.insert(at, needed);
                None
            }
        }
    }

    /// A new number for a file to be reused; `None` if the file is retired.
    fn number_for(&self, file: &LogFile) -> Option<u64> {
        let mut state = self.state.lock();
        if self.is_retired(file.number) {
            return None;
        }
        state.next_number += 1;
        Some(state.next_number - 1)
    }

    fn number(&self) -> u64 {
        let mut state = self.state.lock();
        state.next_number += 1;
        state.next_number - 1
    }

    fn make(&self, size: u64, paced: &dyn Fn(usize) -> bool) -> Result<LogFile> {
        let number = self.number();
        LogFile::make(self.disk.as_ref(), number, size, &self.cache, paced).map_err(|error| match &error {
            LogError::Io { error: io, .. } if is_full(io) => {
                let full = self.disk_full(0, size);
                self.set_full(Some(full.clone()));
                full
            }
            _ => error,
        })
    }

    /// Whether an operation that frees more than it takes may allocate this many bytes. It does not ask the writer to
    /// wait.
    pub fn may_take(&self, more: u64) -> Result<()> {
        let space = self.space()?;
        let needed = more + self.min_free_bytes(space);
        match space.free_bytes < needed {
            true => Err(self.disk_full(space.free_bytes, needed)),
            false => Ok(()),
        }
    }

    /// The error for a disk that became full during an operation.
    pub fn ran_out(&self, needed: u64) -> LogError {
        self.disk_full(0, needed)
    }

    fn space(&self) -> Result<DiskSpace> {
        let folder = &self.policy.folder;
        let space = self.disk.space();
        space.map_err(LogError::io("cannot ask for the free space of", folder))
    }

    /// Poisons the log if the state of the disk is unknown after this error.
    pub fn tell_poison(&self, error: &LogError) {
        if let (LogError::Poisoned { cause }, Some(hooks)) = (error, self.hooks.get()) {
            (hooks.poison)(cause);
        }
    }

    fn put_ready(&self, file: LogFile) {
        let mut state = self.state.lock();
        state.ready.push_back(file);
        state.broken = None;
        self.changed.notify_all();
    }

    /// Checks the free space. If it is too low, new messages are refused until clearly more is free.
    fn look_at_space(&self, more: u64) -> Result<()> {
        let space = self.space()?;
        self.free_bytes.store(space.free_bytes, Ordering::Relaxed);
        let least = self.min_free_bytes(space);
        let was_full = self.full.load(Ordering::Relaxed);
        let needed = more + if was_full { least / 100 * RESUME_PERCENT } else { least };
        if space.free_bytes < needed {
            let full = self.disk_full(space.free_bytes, needed);
            self.set_full(Some(full.clone()));
            return Err(full);
        }
        if was_full {
            self.set_full(None);
        }
        Ok(())
    }

    fn min_free_bytes(&self, space: DiskSpace) -> u64 {
        self.policy
            .min_free_bytes
            .unwrap_or_else(|| (space.total_bytes / 20).max(2 << 30))
    }

    fn disk_full(&self, free_bytes: u64, needed_bytes: u64) -> LogError {
        LogError::DiskFull {
            folder: self.policy.folder.clone(),
            free_bytes,
            needed_bytes,
        }
    }

    fn set_full(&self, full: Option<LogError>) {
        self.full.store(full.is_some(), Ordering::Relaxed);
        let mut state = self.state.lock();
        state.full = full;
        self.changed.notify_all();
    }

    /// The loop of the thread that prepares files. It returns when the log closes.
    pub fn attend(&self) {
        loop {
            let outcome = loop {
                match self.prepare(self.policy.spare.max(SPARE_LEAST)) {
                    Ok(true) if !self.state.lock().closing => {}
                    Ok(_) => break self.look_at_space(0),
                    Err(error) => break Err(error),
                }
            };
            let poisoned = matches!(outcome, Err(LogError::Poisoned { .. }));
            if let Err(error) = &outcome {
                self.tell_poison(error);
            }
            let mut state = self.state.lock();
            // Neither a full disk nor closing is a failure of the log.
            state.broken = outcome
                .err()
                .filter(|error| !matches!(error, LogError::DiskFull { .. } | LogError::Closed));
            self.changed.notify_all();
            // After poisoning nothing is retried: only a restart can determine what is on the disk.
            while poisoned && !state.closing {
                self.changed.wait(&mut state);
            }
            if state.closing {
                return;
            }
            if !state.news {
                self.changed.wait_for(&mut state, LOOK);
            }
            state.news = false;
        }
    }

    pub fn close(&self) {
        let mut state = self.state.lock();
        (state.closing, state.attended) = (true, false);
        self.changed.notify_all();
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;

    const MIB: u64 = 1 << 20;

    fn pool(disk: &SimDisk) -> Arc<FilePool> {
        let policy = FilePoolPolicy {
            spare: 2,
            file_bytes: MIB,
            min_free_bytes: Some(2 * MIB),
            io_bytes_per_second: 0,
            folder: "log".to_owned(),
            log_id: 7,
        };
        let found = ExistingFiles {
            ready: Vec::new(),
            sealed: Vec::new(),
            segments: Vec::new(),
            next_number: 5,
            next_segment: 0,
        };
        Arc::new(FilePool::new(
            Arc::new(disk.clone()),
            IndexCache::new(1 << 20),
            policy,
            found,
        ))
    }

    fn attended(pool: &Arc<FilePool>) -> std::thread::JoinHandle<()> {
        pool.attend_with(FilePoolHooks {
            barrier: Box::new(|_| Ok(true)),
            poison: Box::new(|_| {}),
            news: Box::new(|| {}),
        });
        let own = pool.clone();
        std::thread::spawn(move || own.attend())
    }

    #[test]
    fn a_writer_that_waits_for_a_file_is_not_waited_for_to_use_one_again() {
        let disk = SimDisk::new(1, 100 * MIB);
        let pool = pool(&disk);
        let answers = Arc::new(AtomicBool::new(false));
        let writer = answers.clone();
        // The writer does not answer while it waits for a file itself.
        pool.attend_with(FilePoolHooks {
            barrier: Box::new(move |give_up| {
                while !writer.load(Ordering::SeqCst) {
                    if give_up() {
                        return Ok(false);
                    }
                    std::thread::yield_now();
                }
                Ok(true)
            }),
            poison: Box::new(|_| {}),
            news: Box::new(|| {}),
        });
        let own = pool.clone();
        let thread = std::thread::spawn(move || own.attend());
        // Each file is full and free at once.
        let numbers: Vec<u64> = (0..8)
            .map(|_| {
                let file = pool.take(FilePurpose::Messages).unwrap();
                let number = file.number;
                pool.seal(Arc::new(file));
                number
            })
            .collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
        answers.store(true, Ordering::SeqCst);
        pool.close();
        thread.join().unwrap();
    }

    #[test]
    fn files_come_in_the_order_of_their_numbers() {
        let disk = SimDisk::new(1, 100 * MIB);
        let pool = pool(&disk);
        let thread = attended(&pool);
        let numbers: Vec<u64> = (0..6)
            .map(|_| pool.take(FilePurpose::Messages).unwrap().number)
            .collect();
        assert_eq!(numbers, [5, 6, 7, 8, 9, 10]);
        pool.close();
        thread.join().unwrap();
    }

    #[test]
    fn a_full_disk_refuses_messages_keeps_a_file_for_settles_and_takes_messages_again_when_there_is_room() {
        let disk = SimDisk::new(1, 5 * MIB);
        let pool = pool(&disk);
        let thread = attended(&pool);
        pool.take(FilePurpose::Messages).unwrap();
        let error = std::iter::repeat_with(|| pool.take(FilePurpose::Messages))
            .find_map(Result::err)
            .unwrap();
        assert!(matches!(error, LogError::DiskFull { .. }), "{error}");
        assert!(pool.refuses().is_some());
        pool.take(FilePurpose::State).unwrap();
        disk.set_capacity(100 * MIB);
        // Refused until the thread has checked again.
        std::iter::repeat_with(|| pool.take(FilePurpose::Messages))
            .find_map(Result::ok)
            .unwrap();
        assert!(pool.refuses().is_none());
        pool.close();
        thread.join().unwrap();
    }

    #[test]
    fn messages_are_taken_again_when_a_quarter_more_than_the_least_is_free() {
        let disk = SimDisk::new(1, 100 * MIB);
        // The minimum is 2 MiB, and no file is to be created.
        let pool = pool(&disk);
        let free = |bytes| {
            let space = disk.space().unwrap();
            disk.set_capacity(space.total_bytes - space.free_bytes + bytes);
            pool.look_at_space(0).is_ok() && pool.refuses().is_none()
        };
        assert!(free(2 * MIB) && !free(2 * MIB - 1));
        assert!(!free(2 * MIB) && !free(2 * MIB * 5 / 4 - 200));
        assert!(free(2 * MIB * 5 / 4) && free(2 * MIB));
    }

    #[test]
    fn a_file_that_cannot_be_used_again_yet_stays_and_is_tried_again() {
        let disk = SimDisk::new(1, 100 * MIB);
        let pool = pool(&disk);
        let refuses = Arc::new(AtomicBool::new(true));
        let full = refuses.clone();
        pool.attend_with(FilePoolHooks {
            barrier: Box::new(move |_| match full.load(Ordering::SeqCst) {
                true => Err(LogError::Closed),
                false => Ok(true),
            }),
            poison: Box::new(|_| {}),
            news: Box::new(|| {}),
        });
        (0..2).for_each(|_| pool.make_ready(&|_| true).unwrap());
        let file = pool.take(FilePurpose::State).unwrap();
        let newer = pool.take(FilePurpose::State).unwrap();
        [file, newer].into_iter().for_each(|file| pool.seal(Arc::new(file)));
        assert!(pool.prepare(0).is_err() && pool.prepare(0).is_err());
        assert_eq!(pool.counts(), (0, 2, 0));
        refuses.store(false, Ordering::SeqCst);
        assert!(pool.prepare(1).unwrap());
        assert_eq!(pool.counts(), (1, 1, 0));
    }

    #[test]
    fn a_file_that_nobody_needs_comes_back_under_a_new_number_but_for_the_newest() {
        let disk = SimDisk::new(1, 100 * MIB);
        let pool = pool(&disk);
        let files: Vec<Arc<LogFile>> = (0..3)
            .map(|_| Arc::new(pool.take(FilePurpose::Messages).unwrap()))
            .collect();
        let reader = files[1].clone();
        files.into_iter().for_each(|file| pool.seal(file));
        while pool.prepare(3).unwrap() {}
        // 5 was reused; 6 is being read and 7 is the newest, so others were created.
        let numbers: Vec<u64> = (0..3).map(|_| pool.take(FilePurpose::State).unwrap().number).collect();
        assert_eq!(numbers, [8, 9, 10]);
        let names = disk.names().unwrap();
        assert!(!names.contains(&"commit-0000000000000005.log".to_owned()));
        drop(reader);
        while pool.prepare(1).unwrap() {}
        assert_eq!(pool.take(FilePurpose::State).unwrap().number, 11);
        assert_eq!(pool.counts(), (0, 1, 0));
    }
}
