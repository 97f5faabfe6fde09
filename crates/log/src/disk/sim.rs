//! A simulated disk in memory whose failures follow from one seed. A power cut keeps some unsynced pages, drops others
//! and tears one; unsynced names are lost from some point on; syncs fail, space runs out, bits flip.
//!
//! Killing a process is not a power cut: everything it wrote remains, see [`SimDisk::kill`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, DiskFile, DiskSpace};
use crate::format::PAGE;

pub use thalweg_kit::simulation::Random;

/// The largest unit that a disk writes atomically.
const SECTOR: usize = 512;

#[derive(Clone, Debug)]
pub struct SimDisk {
    state: Arc<Mutex<SimDiskState>>,
}

#[derive(Debug)]
struct SimDiskState {
    random: Random,
    files: BTreeMap<u64, SimContents>,
    next_file: u64,
    names: BTreeMap<String, u64>,
    /// The names after a power cut; `unsynced_names` has the later changes.
    durable_names: BTreeMap<String, u64>,
    unsynced_names: Vec<NameChange>,
    capacity: u64,
    faults: Faults,
    /// Incremented at each power cut and kill. Files that were opened before belong to a dead process.
    life: u64,
    syncs: u64,
    /// The largest number of bytes that any sync had to write.
    synced_bytes_max: u64,
    /// Number of changes until an automatic power cut.
    cut_in: Option<u64>,
}

/// The faults that are injected from now on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// One in this many syncs fails; 0: none.
    pub failing_syncs: u64,
    /// One in this many writes fails after writing a part; 0: none.
    pub failing_writes: u64,
    /// One in this many renames and syncs of names fails; 0: none.
    pub failing_names: u64,
    /// One in this many reads fails; 0: none.
    pub failing_reads: u64,
}

#[derive(Clone, Debug)]
enum NameChange {
    Set(String, u64),
    Rename(String, String),
    Remove(String),
}

#[derive(Clone, Debug, Default)]
struct SimContents {
    now: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
}

impl SimDisk {
    pub fn new(seed: u64, capacity: u64) -> SimDisk {
        SimDisk {
            state: Arc::new(Mutex::new(SimDiskState {
                random: Random::new(seed),
                files: BTreeMap::new(),
                next_file: 0,
                names: BTreeMap::new(),
                durable_names: BTreeMap::new(),
                unsynced_names: Vec::new(),
                capacity,
                faults: Faults::default(),
                life: 0,
                syncs: 0,
                synced_bytes_max: 0,
                cut_in: None,
            })),
        }
    }

    pub fn set_faults(&self, faults: Faults) {
        self.state.lock().faults = faults;
    }

    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity = bytes;
    }

    /// The largest number of bytes that any sync of one file had to write so far.
    pub fn synced_bytes_max(&self) -> u64 {
        self.state.lock().synced_bytes_max
    }

    /// Incremented when the process or the machine dies.
    pub fn life(&self) -> u64 {
        self.state.lock().life
    }

    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// Kills the process but not the machine: files opened before fail, all written data stays.
    pub fn kill(&self) {
        self.state.lock().life += 1;
    }

    /// Cuts the power of the machine.
    pub fn power_cut(&self) {
        self.state.lock().power_cut();
    }

    /// Cuts the power in the middle of the `n`th following change: a write, a sync, or a change of a name.
    pub fn cut_power_in(&self, n: u64) {
        self.state.lock().cut_in = Some(n);
    }

    /// Flips one random bit of one file, in memory and on the disk. Returns the file and the byte position.
    pub fn flip_bit(&self) -> Option<(String, u64)> {
        let mut state = self.state.lock();
        let SimDiskState {
            random, files, names, ..
        } = &mut *state;
        let nth = random.below(names.len() as u64) as usize;
        let (name, id) = names.iter().nth(nth)?;
        let contents = files.get_mut(id).filter(|contents| !contents.now.is_empty())?;
        let bit = random.below(contents.now.len() as u64 * 8);
        let (at, mask) = ((bit / 8) as usize, 1u8 << (bit % 8));
        for bytes in [&mut contents.now, &mut contents.durable] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= mask;
            }
        }
        Some((name.clone(), bit / 8))
    }

    fn file(&self, id: u64, life: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimFile {
            disk: self.clone(),
            id,
            life,
        })
    }
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Set(name, id) => drop(names.insert(name, id)),
            NameChange::Rename(from, to) => {
                if let Some(id) = names.remove(&from) {
                    names.insert(to, id);
                }
            }
            NameChange::Remove(name) => drop(names.remove(&name)),
        }
    }
}

impl SimContents {
    /// Each dirty page reaches the disk or not; one in eight only in part.
    fn cut(&mut self, random: &mut Random) {
        for page in std::mem::take(&mut self.dirty) {
            let start = page * PAGE;
            let end = (start + PAGE).min(self.now.len());
            let whole = end.saturating_sub(start);
            let keep = match random.below(16) {
                0..7 => whole,
                7..14 => 0,
                _ => (random.below((PAGE / SECTOR) as u64) as usize * SECTOR).min(whole),
            };
            if keep > 0 {
                if self.durable.len() < start + keep {
                    self.durable.resize(start + keep, 0);
                }
                if let (Some(to), Some(from)) = (
                    self.durable.get_mut(start..start + keep),
                    self.now.get(start..start + keep),
                ) {
                    to.copy_from_slice(from);
                }
            }
        }
        self.now.clone_from(&self.durable);
    }

    fn write(&mut self, bytes: &[u8], at: usize) {
        let end = at + bytes.len();
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        if let Some(place) = self.now.get_mut(at..end) {
            place.copy_from_slice(bytes);
        }
        if !bytes.is_empty() {
            self.dirty.extend(at / PAGE..=(end - 1) / PAGE);
        }
    }

    fn sync(&mut self) {
        self.sync_range(0, self.now.len());
    }

    /// Syncs the pages that contain the `len` bytes at `at`.
    fn sync_range(&mut self, at: usize, len: usize) {
        let pages = at / PAGE..(at + len).div_ceil(PAGE);
        let dirty: Vec<usize> = self.dirty.extract_if(pages, |_| true).collect();
        for page in dirty {
            let start = page * PAGE;
            let end = (start + PAGE).min(self.now.len());
            if self.durable.len() < end {
                self.durable.resize(end, 0);
            }
            if let (Some(to), Some(from)) = (self.durable.get_mut(start..end), self.now.get(start..end)) {
                to.copy_from_slice(from);
            }
        }
    }
}

impl SimDiskState {
    fn power_cut(&mut self) {
        let random = &mut self.random;
        self.life += 1;
        self.cut_in = None;
        // A file system keeps name changes in order.
        let kept = random.below(self.unsynced_names.len() as u64 + 1) as usize;
        let kept = self.unsynced_names.drain(..).take(kept);
        kept.for_each(|change| change.apply(&mut self.durable_names));
        self.names.clone_from(&self.durable_names);
        for contents in self.files.values_mut() {
            contents.cut(random);
        }
        let used: BTreeSet<u64> = self.names.values().copied().collect();
        self.files.retain(|id, _| used.contains(id));
    }

    /// Counts a change. Fails if the power goes during it, after `partial` was applied or not.
    fn step(&mut self, partial: impl FnOnce(&mut SimDiskState)) -> io::Result<()> {
        match self.cut_in {
            Some(0) => {
                if self.random.one_in(2) {
                    partial(self);
                }
                self.power_cut();
                Err(io::Error::other("the power is gone"))
            }
            Some(n) => {
                self.cut_in = Some(n - 1);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Injects faults into name changes. Unsynced changes stay unsynced: a power cut leaves some of them.
    fn fail_names(&mut self) -> io::Result<()> {
        let one_in = self.faults.failing_names;
        match one_in > 0 && self.random.one_in(one_in) {
            true => Err(io::Error::other("simulated error of the folder")),
            false => Ok(()),
        }
    }

    fn change(&mut self, change: NameChange) {
        self.unsynced_names.push(change.clone());
        change.apply(&mut self.names);
    }

    fn id_of(&self, name: &str) -> io::Result<u64> {
        self.names
            .get(name)
            .copied()
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn used(&self) -> u64 {
        self.files.values().map(|contents| contents.now.len() as u64).sum()
    }
}

impl Disk for SimDisk {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.state.lock().names.keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let state = self.state.lock();
        Ok(self.file(state.id_of(name)?, state.life))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state.lock();
        state.step(|_| {})?;
        if state.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let id = state.next_file;
        state.next_file += 1;
        state.files.insert(id, SimContents::default());
        state.change(NameChange::Set(name.to_owned(), id));
        Ok(self.file(id, state.life))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        state.step(|_| {})?;
        state.id_of(from)?;
        state.fail_names()?;
        state.change(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state.lock();
        state.step(|_| {})?;
        state.id_of(name)?;
        state.change(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.step(|_| {})?;
        state.fail_names()?;
        let SimDiskState {
            durable_names,
            unsynced_names,
            ..
        } = &mut *state;
        unsynced_names.drain(..).for_each(|change| change.apply(durable_names));
        Ok(())
    }

    fn space(&self) -> io::Result<DiskSpace> {
        let state = self.state.lock();
        Ok(DiskSpace {
            total_bytes: state.capacity,
            free_bytes: state.capacity.saturating_sub(state.used()),
        })
    }
}

struct SimFile {
    disk: SimDisk,
    id: u64,
    life: u64,
}

impl SimFile {
    fn with<T>(&self, work: impl FnOnce(&mut SimDiskState) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.disk.state.lock();
        if state.life != self.life || !state.files.contains_key(&self.id) {
            return Err(io::Error::other("the process that opened this file is gone"));
        }
        work(&mut state)
    }

    fn sync_with(&self, sync: impl Fn(&mut SimContents)) -> io::Result<()> {
        self.with(|state| {
            state.syncs += 1;
            let dirty = state
                .files
                .get(&self.id)
                .map_or(0, |contents| contents.dirty.len() * PAGE);
            state.synced_bytes_max = state.synced_bytes_max.max(dirty as u64);
            state.step(|state| sync(state.files.entry(self.id).or_default()))?;
            let faults = state.faults;
            if faults.failing_syncs > 0 && state.random.one_in(faults.failing_syncs) {
                // The kernel drops pages that it could not write.
                let SimDiskState { random, files, .. } = state;
                files.entry(self.id).or_default().cut(random);
                return Err(io::Error::other("simulated sync error"));
            }
            sync(state.files.entry(self.id).or_default());
            Ok(())
        })
    }

    fn contents<T>(&self, work: impl FnOnce(&mut SimContents) -> T) -> io::Result<T> {
        self.with(|state| Ok(work(state.files.entry(self.id).or_default())))
    }
}

impl DiskFile for SimFile {
    fn len(&self) -> io::Result<u64> {
        self.contents(|contents| contents.now.len() as u64)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.with(|state| {
            state.step(|state| state.files.entry(self.id).or_default().write(bytes, at as usize))?;
            let faults = state.faults;
            let failed = faults.failing_writes > 0 && state.random.one_in(faults.failing_writes);
            let written = if failed {
                state.random.below(bytes.len() as u64 + 1) as usize
            } else {
                bytes.len()
            };
            let len = state
                .files
                .get(&self.id)
                .map_or(0, |contents| contents.now.len() as u64);
            let grown = (at + bytes.len() as u64).saturating_sub(len);
            if state.used() + grown > state.capacity {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let part = bytes.get(..written).unwrap_or_default();
            state.files.entry(self.id).or_default().write(part, at as usize);
            if failed {
                return Err(io::Error::other("simulated write error"));
            }
            Ok(())
        })
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.with(|state| {
            let failing = state.faults.failing_reads;
            if failing > 0 && state.random.one_in(failing) {
                return Err(io::Error::other("simulated read error"));
            }
            let contents = state.files.entry(self.id).or_default();
            let rest = contents.now.get(at as usize..).unwrap_or_default();
            let n = rest.len().min(buf.len());
            if let (Some(to), Some(from)) = (buf.get_mut(..n), rest.get(..n)) {
                to.copy_from_slice(from);
            }
            Ok(n)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_with(SimContents::sync)
    }

    /// A write and a sync that can fail independently. The sync covers only these bytes.
    fn write_and_sync(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_at(bytes, at)?;
        self.sync_with(|contents| contents.sync_range(at as usize, bytes.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_synced_survives_every_cut_and_what_was_not_is_kept_dropped_or_torn() {
        let (mut kept, mut dropped, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let disk = SimDisk::new(seed, 1 << 20);
            let file = disk.create("a").unwrap();
            file.write_at(&[1; PAGE], 0).unwrap();
            file.sync().unwrap();
            disk.sync_names().unwrap();
            file.write_at(&[2; PAGE], PAGE as u64).unwrap();
            disk.power_cut();
            assert!(file.write_at(&[3], 0).is_err(), "the process is gone");
            let file = disk.open("a").unwrap();
            let mut bytes = vec![0; 2 * PAGE];
            let n = file.read_at(&mut bytes, 0).unwrap();
            assert_eq!(bytes[..PAGE], [1; PAGE]);
            match n - PAGE {
                0 => dropped += 1,
                PAGE => kept += 1,
                _ => torn += 1,
            }
            assert!(bytes[PAGE..n].iter().all(|byte| *byte == 2));
        }
        assert!(kept > 50 && dropped > 50 && torn > 5, "{kept} {dropped} {torn}");
    }

    #[test]
    fn names_are_lost_from_some_moment_on() {
        let mut seen = BTreeSet::new();
        for seed in 0..50 {
            let disk = SimDisk::new(seed, 1 << 20);
            disk.create("spare").unwrap();
            disk.sync_names().unwrap();
            disk.create("other").unwrap();
            disk.rename("spare", "commit").unwrap();
            disk.power_cut();
            seen.insert(disk.names().unwrap());
        }
        let expected = [&["spare"][..], &["other", "spare"], &["commit", "other"]];
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(seen, expected.into_iter().map(owned).collect::<BTreeSet<Vec<String>>>());
    }

    #[test]
    fn a_killed_process_leaves_all_it_wrote() {
        let disk = SimDisk::new(1, 1 << 20);
        let file = disk.create("a").unwrap();
        file.write_at(b"abc", 0).unwrap();
        disk.kill();
        assert!(file.sync().is_err());
        let mut bytes = [0; 3];
        disk.open("a").unwrap().read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, *b"abc");
    }

    #[test]
    fn space_ends() {
        let disk = SimDisk::new(1, 10);
        let file = disk.create("a").unwrap();
        file.write_at(b"0123456789", 0).unwrap();
        assert_eq!(file.write_at(b"x", 10).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.space().unwrap().free_bytes, 0);
    }
}
