//! Files and folders that only the user of the process may read: modes 600 and 700, whatever the umask is.
//!
//! Files made for programs of other users (a lake in its own folder) follow the mode of their parent folder, with which
//! the operator controls who may read. Files that an operator asks for by name (an export, a file output) are not made
//! here.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

const FILE: u32 = 0o600;
const FOLDER: u32 = 0o700;
/// The mode bits of group and others.
const OTHERS: u32 = 0o077;
/// The deepest folder level that [`mend`] visits. The deepest folder that Thalweg makes is a partition of a table.
const DEPTH_MAX: usize = 32;

/// Options that create a file for its user alone.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE);
    options
}

/// Creates a folder and its missing parents for the user alone. Existing folders keep their mode.
pub fn create_folders(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER).create(path)
}

/// Creates one folder for the user alone. Fails if it exists.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FOLDER).create(path)
}

/// Creates one folder, readable for those who may read its parent. Fails if it exists.
pub fn create_folder_as_above(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FOLDER | readers_above(path)).create(path)
}

/// Options that create a file readable for those who may read its folder.
pub fn as_above(path: &Path) -> OpenOptions {
    let mut options = OpenOptions::new();
    // The mask drops the x bits: who may read a folder may also enter it.
    options.mode(FILE | readers_above(path) & 0o044);
    options
}

/// The read and enter bits of group and others on the parent folder; 0 if they are unknown.
fn readers_above(path: &Path) -> u32 {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let about = std::fs::metadata(above.unwrap_or(Path::new(".")));
    about.map_or(0, |about| about.mode() & 0o055)
}

/// Writes a file for the user alone and returns when it survives a power cut. Readers find all of the new bytes or all
/// of the old ones, even if the process is killed. A file that has these bytes already is not written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if !std::fs::read(path).is_ok_and(|known| known == bytes) {
        let new = beside(path);
        let written = write_new(&new, bytes).and_then(|()| std::fs::rename(&new, path));
        if let Err(error) = written {
            // The disk may be full: free the space.
            let _ = std::fs::remove_file(&new);
            return Err(error);
        }
    }
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Like [`write_whole`], for a file that an operator may have made: a link stays a link, and the file keeps its owner,
/// group and mode. If owner and group cannot be restored, nothing is written, because that would lock them out.
pub fn replace_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = match std::fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return write_whole(path, bytes),
        other => other?,
    };
    let about = std::fs::metadata(&path)?;
    let new = beside(&path);
    let written = write_new(&new, bytes)
        .and_then(|()| give_to(&new, &about))
        .and_then(|()| std::fs::rename(&new, &path));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&new);
        return Err(error);
    }
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Sets owner and group before the mode, because chown clears mode bits.
fn give_to(new: &Path, of: &std::fs::Metadata) -> io::Result<()> {
    let own = std::fs::metadata(new)?;
    if (own.uid(), own.gid()) != (of.uid(), of.gid()) {
        std::os::unix::fs::chown(new, Some(of.uid()), Some(of.gid())).map_err(|error| {
            let (owner, group) = (of.uid(), of.gid());
            io::Error::new(
                error.kind(),
                format!("it belongs to user {owner} and group {group}, and cannot be given to them ({error}); do this as that user or as root"),
            )
        })?;
    }
    std::fs::set_permissions(new, std::fs::Permissions::from_mode(of.mode() & 0o7777))?;
    File::open(new)?.sync_all()
}

fn write_new(new: &Path, bytes: &[u8]) -> io::Result<()> {
    // A file that a crash left here may be readable by others.
    match std::fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = private().write(true).create_new(true).open(new)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The temporary path of the file until it is complete.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(".new");
    path.with_file_name(name)
}

/// Ensures that the process can read and write its own files: a umask can deny that to the owner, too.
pub fn keep_own_rights() {
    let former = rustix::process::umask(Mode::from_raw_mode(OTHERS));
    rustix::process::umask(former & Mode::from_raw_mode(OTHERS));
}

/// What [`mend`] changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermissionRepair {
    pub files: u64,
    pub folders: u64,
    /// The first few paths that others may still read, each with the reason.
    pub left: Vec<(PathBuf, String)>,
}

/// The number of failures that are reported by path.
const LEFT_MAX: usize = 8;

impl PermissionRepair {
    pub fn is_nothing(&self) -> bool {
        *self == PermissionRepair::default()
    }

    fn leave(&mut self, path: PathBuf, why: impl ToString) {
        if self.left.len() < LEFT_MAX {
            self.left.push((path, why.to_string()));
        }
    }
}

/// Removes the permissions of group and others from everything below `names` in a folder, and from the folder itself if
/// it contains nothing else. Links are followed only where an operator put one in place of the folder or of one of the
/// names. Other entries, files of other users and the parent folders stay as they are.
pub fn mend(root: &Path, names: &[&str]) -> io::Result<PermissionRepair> {
    let mut mended = PermissionRepair::default();
    let folder = open_folder(rustix::fs::CWD, root, OFlags::empty())?;
    if holds_only(root, names) {
        close_to_others(&folder, root, &mut mended);
    }
    for name in names {
        let path = root.join(name);
        match rustix::fs::statat(&folder, *name, AtFlags::empty()) {
            Ok(about) => mend_entry(&folder, &OsString::from(name), &path, &about, &mut mended, 0),
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => mended.leave(path, error),
        }
    }
    Ok(mended)
}

/// Whether a folder contains only these names; false if it cannot be read.
fn holds_only(folder: &Path, names: &[&str]) -> bool {
    let is_known = |entry: io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(|name| names.contains(&name)))
    };
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.all(is_known))
}

fn mend_entry(
    above: impl AsFd,
    name: &OsString,
    path: &Path,
    about: &Stat,
    mended: &mut PermissionRepair,
    depth: usize,
) {
    let is_open = about.st_mode & OTHERS != 0;
    let links = if depth == 0 { OFlags::empty() } else { OFlags::NOFOLLOW };
    match FileType::from_raw_mode(about.st_mode) {
        FileType::Directory if depth < DEPTH_MAX => match open_folder(above, Path::new(name), links) {
            Ok(folder) => {
                close_to_others(&folder, path, mended);
                mend_below(&folder, path, mended, depth + 1);
            }
            Err(error) => mended.leave(path.to_owned(), error),
        },
        FileType::RegularFile if is_open => {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | links;
            match rustix::fs::openat(above, name, flags, Mode::empty()) {
                Ok(file) => close_to_others(file, path, mended),
                Err(error) => mended.leave(path.to_owned(), error),
            }
        }
        _ => {}
    }
}

fn mend_below(folder: impl AsFd, path: &Path, mended: &mut PermissionRepair, depth: usize) {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) => return mended.leave(path.to_owned(), error),
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        // An entry that was removed meanwhile needs nothing.
        if let Ok(about) = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            mend_entry(&folder, &name, &path.join(&name), &about, mended, depth);
        }
    }
}

fn open_folder(above: impl AsFd, name: &Path, links: OFlags) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | links;
    rustix::fs::openat(above, name, flags, Mode::empty())
}

/// Works on the open descriptor, so that the path cannot be swapped for another file in between.
fn close_to_others(open: impl AsFd, path: &Path, mended: &mut PermissionRepair) {
    let closed = rustix::fs::fstat(&open).and_then(|about| {
        let (mode, is_own) = (
            about.st_mode & 0o7777,
            about.st_uid == rustix::process::geteuid().as_raw(),
        );
        if mode & OTHERS == 0 || !is_own {
            return Ok(None);
        }
        rustix::fs::fchmod(&open, Mode::from_raw_mode(mode & !OTHERS))?;
        Ok(Some(FileType::from_raw_mode(about.st_mode)))
    });
    match closed {
        Ok(Some(FileType::Directory)) => mended.folders += 1,
        Ok(Some(_)) => mended.files += 1,
        Ok(None) => {}
        Err(error) => mended.leave(path.to_owned(), error),
    }
}

#[cfg(test)]
mod tests;
