//! A folder that becomes a package. Its files have fixed modes and times, independent of the umask and the clock of the
//! machine.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};

/// Mode of regular files.
pub const READ: u32 = 0o644;
/// Mode of programs and folders.
pub const EXECUTE: u32 = 0o755;

pub struct StagedTree {
    root: PathBuf,
    time: SystemTime,
}

impl StagedTree {
    /// `epoch` is in seconds since 1970.
    pub fn new(root: PathBuf, epoch: u64) -> StagedTree {
        StagedTree {
            root,
            time: SystemTime::UNIX_EPOCH + Duration::from_secs(epoch),
        }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn write(&self, path: &str, text: &str, mode: u32) -> Result<()> {
        let target = self.place(path)?;
        std::fs::write(&target, text).with_context(|| format!("cannot write {}", target.display()))?;
        set_mode(&target, mode)
    }

    pub fn copy(&self, from: &Path, path: &str, mode: u32) -> Result<()> {
        let target = self.place(path)?;
        std::fs::copy(from, &target)
            .with_context(|| format!("cannot copy {} to {}", from.display(), target.display()))?;
        set_mode(&target, mode)
    }

    /// The full path of an entry, after creating the folders above it.
    fn place(&self, path: &str) -> Result<PathBuf> {
        let target = self.root.join(path);
        if let Some(folder) = target.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        Ok(target)
    }

    /// All files, sorted, relative to the root.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let (_, files) = self.walk()?;
        let short = files
            .iter()
            .map(|file| file.strip_prefix(&self.root).unwrap_or(file).to_owned());
        Ok(short.collect())
    }

    /// Disk usage in KiB, each file rounded up, plus one per folder: the field `Installed-Size`.
    pub fn kibibytes(&self) -> Result<u64> {
        let (folders, files) = self.walk()?;
        let mut total = folders.len() as u64;
        for file in files {
            total += std::fs::metadata(file)?.len().div_ceil(1024);
        }
        Ok(total)
    }

    /// Sets the modes of folders and all times. Nothing may be added to the tree afterwards.
    pub fn seal(&self) -> Result<()> {
        let (folders, files) = self.walk()?;
        for folder in &folders {
            set_mode(folder, EXECUTE)?;
        }
        for path in files.iter().chain(&folders) {
            let set = File::open(path).and_then(|file| file.set_modified(self.time));
            set.with_context(|| format!("cannot set the time of {}", path.display()))?;
        }
        Ok(())
    }

    /// All folders, including the root, and all files, both sorted.
    fn walk(&self) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
        let (mut folders, mut files) = (Vec::new(), Vec::new());
        let mut open = vec![self.root.clone()];
        while let Some(folder) = open.pop() {
            for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
                let path = entry?.path();
                match path.is_dir() {
                    true => open.push(path),
                    false => files.push(path),
                }
            }
            folders.push(folder);
        }
        folders.sort();
        files.sort();
        Ok((folders, files))
    }
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    let set = std::fs::set_permissions(path, Permissions::from_mode(mode));
    set.with_context(|| format!("cannot set the mode of {}", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn all_of_a_tree_has_the_time_of_the_release_and_modes_that_no_umask_changes() {
        let folder = tempfile::tempdir().unwrap();
        let tree = StagedTree::new(folder.path().join("tree"), 1_700_000_000);
        tree.write("usr/share/doc/README", &"x".repeat(1025), READ).unwrap();
        tree.copy(&tree.root().join("usr/share/doc/README"), "usr/bin/program", EXECUTE)
            .unwrap();
        tree.seal().unwrap();
        let facts = |path: &str| {
            let about = std::fs::metadata(tree.root().join(path)).unwrap();
            (about.mode() & 0o7777, about.mtime())
        };
        assert_eq!(facts("usr/share/doc/README"), (0o644, 1_700_000_000));
        assert_eq!(facts("usr/bin/program"), (0o755, 1_700_000_000));
        for folder in ["", "usr", "usr/share/doc"] {
            assert_eq!(facts(folder), (0o755, 1_700_000_000), "{folder}");
        }
        let files = tree.files().unwrap();
        assert_eq!(files, ["usr/bin/program", "usr/share/doc/README"].map(PathBuf::from));
        // Two files of two, and the folders tree, usr, bin, share, doc.
        assert_eq!(tree.kibibytes().unwrap(), 4 + 5);
    }
}
