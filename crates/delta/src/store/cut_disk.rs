//! A real folder with simulated power cuts. A power cut keeps what was synced: name changes in an unsynced folder are
//! lost from some point on, and unsynced files keep part of their bytes. A process from before a kill or a cut cannot
//! change the folder any more.
#![allow(clippy::unwrap_used, reason = "a test fails where this disk does")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use object_store::ObjectStore;
use parking_lot::Mutex;
use thalweg_kit::simulation::Random;

use super::{Disk, RealDisk};

/// The faults from now on.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFaults {
    /// One in this many steps other than syncs fails; 0: none.
    pub failing_steps: u64,
    /// The next sync fails.
    pub failing_sync: bool,
}

/// The wall clock of the machine, for file timestamps.
pub type FileClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

struct CutDiskState {
    random: Random,
    clock: FileClock,
    /// Incremented when the process or the machine dies.
    life: u64,
    /// Steps until the process is killed.
    dies_in: Option<u64>,
    faults: DiskFaults,
    next_file: u64,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    /// Names that gained or lost a file since the last sync, in that order.
    unsynced_names: Vec<(PathBuf, Option<u64>)>,
    /// The synced content of each file.
    synced: BTreeMap<u64, Vec<u8>>,
}

/// The disk as one process sees it.
#[derive(Clone)]
pub struct CutDisk {
    state: Arc<Mutex<CutDiskState>>,
    life: u64,
    reads: Option<Arc<dyn ObjectStore>>,
}

impl std::fmt::Debug for CutDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CutDisk(life {})", self.life)
    }
}

impl CutDisk {
    pub fn new(seed: u64, clock: FileClock) -> CutDisk {
        CutDisk {
            state: Arc::new(Mutex::new(CutDiskState {
                random: Random::new(seed),
                clock,
                life: 0,
                dies_in: None,
                faults: DiskFaults::default(),
                next_file: 1,
                names: BTreeMap::new(),
                durable_names: BTreeMap::new(),
                unsynced_names: Vec::new(),
                synced: BTreeMap::new(),
            })),
            life: 0,
            reads: None,
        }
    }

    /// Reads and lists files through this store.
    #[must_use]
    pub fn with_reads(self, reads: Arc<dyn ObjectStore>) -> CutDisk {
        CutDisk {
            reads: Some(reads),
            ..self
        }
    }

    /// The disk of the next process.
    pub fn next_life(&self) -> CutDisk {
        let mut state = self.state.lock();
        state.dies_in = None;
        state.faults = DiskFaults::default();
        CutDisk {
            state: self.state.clone(),
            life: state.life,
            reads: self.reads.clone(),
        }
    }

    pub fn set_faults(&self, faults: DiskFaults) {
        self.state.lock().faults = faults;
    }

    /// Kills the process in the middle of the `n`th change from now on.
    pub fn kill_in(&self, n: u64) {
        self.state.lock().dies_in = Some(n);
    }

    pub fn is_dead(&self) -> bool {
        self.state.lock().life != self.life
    }

    pub fn kill(&self) {
        self.state.lock().life += 1;
    }

    pub fn power_cut(&self) {
        self.state.lock().power_cut();
    }

    /// Changes a file as another program, durably. Returns the previous content.
    pub fn damage(&self, path: &Path, damaged: Option<Vec<u8>>) -> Vec<u8> {
        let before = std::fs::read(path).unwrap();
        self.put(path, damaged);
        before
    }

    /// Creates or removes a file as another program, durably.
    pub fn put(&self, path: &Path, content: Option<Vec<u8>>) {
        let mut state = self.state.lock();
        match content {
            Some(content) => {
                std::fs::write(path, &content).unwrap();
                let file = state.new_file(path);
                state.sync_names(&|name| name == path);
                state.synced.insert(file, content);
                let time = (state.clock)();
                File::options()
                    .write(true)
                    .open(path)
                    .unwrap()
                    .set_modified(time)
                    .unwrap();
            }
            None => {
                std::fs::remove_file(path).unwrap();
                state.name(path, None);
                state.sync_names(&|name| name == path);
            }
        }
    }

    /// Begins a step of this process.
    fn step(&self) -> io::Result<parking_lot::MutexGuard<'_, CutDiskState>> {
        let mut state = self.state.lock();
        if state.life != self.life {
            return Err(io::Error::other("the process is gone"));
        }
        if let Some(left) = state.dies_in {
            state.dies_in = left.checked_sub(1);
            if left == 0 {
                state.life += 1;
                return Err(io::Error::other("the process is killed"));
            }
        }
        Ok(state)
    }

    /// Begins a step that can fail and be retried.
    fn fallible(&self) -> io::Result<parking_lot::MutexGuard<'_, CutDiskState>> {
        let mut state = self.step()?;
        let one_in = state.faults.failing_steps;
        if one_in > 0 && state.random.one_in(one_in) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(state)
    }
}

impl CutDiskState {
    fn new_file(&mut self, path: &Path) -> u64 {
        let file = self.next_file;
        self.next_file += 1;
        self.name(path, Some(file));
        file
    }

    fn name(&mut self, path: &Path, file: Option<u64>) {
        match file {
            Some(file) => drop(self.names.insert(path.to_owned(), file)),
            None => drop(self.names.remove(path)),
        }
        self.unsynced_names.push((path.to_owned(), file));
    }

    fn sync_names(&mut self, are_synced: &dyn Fn(&Path) -> bool) {
        let synced = self.unsynced_names.extract_if(.., |(name, _)| are_synced(name));
        for (name, file) in synced {
            match file {
                Some(file) => drop(self.durable_names.insert(name, file)),
                None => drop(self.durable_names.remove(&name)),
            }
        }
    }

    fn power_cut(&mut self) {
        self.life += 1;
        let kept = self.random.below(self.unsynced_names.len() as u64 + 1);
        self.unsynced_names.truncate(usize::try_from(kept).unwrap());
        self.sync_names(&|_| true);
        let before = std::mem::replace(&mut self.names, self.durable_names.clone());
        let paths: BTreeSet<PathBuf> = before.keys().chain(self.names.keys()).cloned().collect();
        for path in paths {
            let (was, is) = (before.get(&path), self.names.get(&path).copied());
            let Some(file) = is else {
                std::fs::remove_file(&path).unwrap();
                continue;
            };
            let synced = self.synced.get(&file).cloned();
            if was == Some(&file) && synced.is_some() {
                continue;
            }
            let content = synced.unwrap_or_else(|| {
                let mut content = std::fs::read(&path).unwrap_or_default();
                let left = self.random.below(content.len() as u64 + 1);
                content.truncate(usize::try_from(left).unwrap());
                content
            });
            // A new inode: a hard link may still refer to the old one.
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, &content).unwrap();
            let time = (self.clock)();
            let opened = File::options().write(true).open(&path);
            opened.and_then(|opened| opened.set_modified(time)).unwrap();
            self.synced.insert(file, content);
        }
    }
}

impl Disk for CutDisk {
    /// Folders are durable at once: only the files in them matter.
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        let _state = self.fallible()?;
        RealDisk.create_directory(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<File> {
        let mut state = self.fallible()?;
        let file = RealDisk.create_file(path)?;
        state.new_file(path);
        Ok(file)
    }

    fn write(&self, file: &mut File, path: &Path, bytes: &[u8]) -> io::Result<()> {
        match self.fallible() {
            Ok(_state) => RealDisk.write(file, path, bytes),
            Err(error) => {
                // Part of it may be written.
                let half = bytes.get(..bytes.len() / 2).unwrap_or_default();
                RealDisk.write(file, path, half)?;
                Err(error)
            }
        }
    }

    fn sync_file(&self, file: &File, path: &Path) -> io::Result<()> {
        let mut state = self.step()?;
        if std::mem::take(&mut state.faults.failing_sync) {
            return Err(io::Error::other("the disk does not sync"));
        }
        file.set_modified((state.clock)())?;
        let content = std::fs::read(path)?;
        if let Some(id) = state.names.get(path).copied() {
            state.synced.insert(id, content);
        }
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.fallible()?;
        RealDisk.link(from, to)?;
        let file = state.names.get(from).copied();
        state.name(to, file);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.fallible()?;
        RealDisk.rename(from, to)?;
        let file = state.names.get(from).copied();
        state.name(from, None);
        state.name(to, file);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.fallible()?;
        RealDisk.remove_file(path)?;
        state.name(path, None);
        Ok(())
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let mut state = self.step()?;
        state.sync_names(&|name| name.parent() == Some(path));
        Ok(())
    }

    fn reads(&self) -> Arc<dyn ObjectStore> {
        let reads = self.reads.clone();
        reads.unwrap_or_else(|| RealDisk.reads())
    }
}
