//! A test disk that simulates power loss: it works on a real folder without syncing and remembers what was synced. It
//! can fail a step, be full, or let the process die before a step.
#![allow(clippy::unwrap_used, reason = "a test fails where this disk does")]

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::{Disk, RealDisk};

/// A kind of step that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    Write,
    SyncFile,
    SyncDirectory,
    Link,
    Create,
}

#[derive(Debug, Default)]
struct State {
    steps: u64,
    /// The process is dead from this step on.
    dies_at: Option<u64>,
    fails: Option<(StepKind, io::ErrorKind)>,
    /// The content of synced inodes.
    content: HashMap<u64, Vec<u8>>,
    /// Names whose directory was synced, with their inodes (0: a directory).
    names: HashMap<PathBuf, u64>,
}

/// See the module. Clones share the disk.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
}

impl SimulatedDisk {
    pub fn dies_at(step: u64) -> SimulatedDisk {
        let disk = SimulatedDisk::default();
        disk.state.lock().dies_at = Some(step);
        disk
    }

    /// Every step of a kind fails until `heal`.
    pub fn fail(&self, kind: StepKind, error: io::ErrorKind) {
        self.state.lock().fails = Some((kind, error));
    }

    pub fn heal(&self) {
        self.state.lock().fails = None;
    }

    pub fn steps(&self) -> u64 {
        self.state.lock().steps
    }

    /// Whether the process has died.
    pub fn is_dead(&self) -> bool {
        let state = self.state.lock();
        state.dies_at.is_some_and(|at| state.steps >= at)
    }

    fn step(&self, kind: Option<StepKind>) -> io::Result<()> {
        let mut state = self.state.lock();
        state.steps += 1;
        if state.dies_at.is_some_and(|at| state.steps >= at) {
            return Err(io::Error::other("the process has died"));
        }
        match state.fails {
            Some((failing, error)) if Some(failing) == kind => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn died_now(&self) -> bool {
        let state = self.state.lock();
        state.dies_at == Some(state.steps)
    }

    /// Leaves what a power loss leaves: synced content under synced names; `keep` decides about the rest. A file that
    /// keeps its name without its content is truncated at a point that `keep` chooses.
    pub fn lose_power(&self, root: &Path, mut keep: impl FnMut() -> u64) {
        let state = self.state.lock();
        let mut files = Vec::new();
        list(root, &mut files);
        files.sort();
        for path in &files {
            let inode = std::fs::metadata(path).unwrap().ino();
            if state.names.get(path) != Some(&inode) && keep().is_multiple_of(2) {
                std::fs::remove_file(path).unwrap();
                continue;
            }
            let now = std::fs::read(path).unwrap();
            let durable = match state.content.get(&inode) {
                Some(content) => content.clone(),
                None => now[..keep() as usize % (now.len() + 1)].to_vec(),
            };
            // A new inode, since several names may share the old one.
            std::fs::remove_file(path).unwrap();
            std::fs::write(path, durable).unwrap();
        }
        // Names whose removal was not synced come back.
        for (path, inode) in state
            .names
            .iter()
            .filter(|(path, _)| path.starts_with(root) && !path.exists())
        {
            if let Some(content) = state.content.get(inode)
                && path.parent().is_some_and(Path::is_dir)
                && keep().is_multiple_of(2)
            {
                std::fs::write(path, content).unwrap();
            }
        }
    }
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        match entry.path().is_dir() {
            true => list(&entry.path(), files),
            false => files.push(entry.path()),
        }
    }
}

impl Disk for SimulatedDisk {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.step(Some(StepKind::Create))?;
        RealDisk.create_directory(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<File> {
        self.step(Some(StepKind::Create))?;
        RealDisk.create_file(path)
    }

    fn write(&self, file: &mut File, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let step = self.step(Some(StepKind::Write));
        if step.is_err() && (self.died_now() || self.state.lock().fails.is_some()) {
            // A write that fails or is interrupted leaves a part behind.
            RealDisk.write(file, path, &bytes[..bytes.len() / 2])?;
        }
        step?;
        RealDisk.write(file, path, bytes)
    }

    fn sync_file(&self, _file: &File, path: &Path) -> io::Result<()> {
        self.step(Some(StepKind::SyncFile))?;
        let content = std::fs::read(path)?;
        self.state
            .lock()
            .content
            .insert(std::fs::metadata(path)?.ino(), content);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(Some(StepKind::Link))?;
        RealDisk.link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(Some(StepKind::Link))?;
        RealDisk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.step(None)?;
        RealDisk.remove_file(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.step(Some(StepKind::SyncDirectory))?;
        let mut state = self.state.lock();
        state.names.retain(|name, _| name.parent() != Some(path));
        for entry in std::fs::read_dir(path)?.flatten() {
            let inode = match entry.metadata() {
                Ok(found) if found.is_dir() => 0,
                Ok(found) => found.ino(),
                // Removed meanwhile, as the temporary name of a checkpoint is.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            state.names.insert(entry.path(), inode);
        }
        Ok(())
    }
}
