//! Files and folders that only the user of the process may read: mode 600 and 700, whatever the umask allows others.
//!
//! What is made for programs of other users (a lake in a folder of its own) follows the folder that it stands in: the operator
//! says there who may read. What an operator asks for by name (an export, a file output) is not made here.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

const FILE: u32 = 0o600;
const FOLDER: u32 = 0o700;
/// Group and others.
const OTHERS: u32 = 0o077;
/// Levels of folders that are looked at. The deepest that Thalweg makes is a partition of a table.
const DEPTH_MAX: usize = 32;

/// Options with which a new file is its user's alone.
pub fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE);
    options
}

/// A folder with those above it that are missing, all of them the user's alone. One that is there stays as it is.
pub fn create_folders(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER).create(path)
}

/// One folder, the user's alone. An error if it is there.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FOLDER).create(path)
}

/// One folder, for those who may read the one that it is in. An error if it is there.
pub fn create_folder_as_above(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(FOLDER | readers_above(path)).create(path)
}

/// Options with which a new file is for those who may read the folder that it is in.
pub fn as_above(path: &Path) -> OpenOptions {
    let mut options = OpenOptions::new();
    // Whoever may read a folder may also go into it.
    options.mode(FILE | readers_above(path) & 0o044);
    options
}

/// What group and others may do with the folder of a path, but for writing. Nothing, if that is not known.
fn readers_above(path: &Path) -> u32 {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let about = std::fs::metadata(above.unwrap_or(Path::new(".")));
    about.map_or(0, |about| about.mode() & 0o055)
}

/// Makes a file have these bytes; it is the user's alone. Returns when that survives a power cut. Whoever reads it finds all of
/// the new bytes or all of those before, whatever ended the process that wrote. One that has them already is left as it is.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if !std::fs::read(path).is_ok_and(|known| known == bytes) {
        let new = beside(path);
        let written = write_new(&new, bytes).and_then(|()| std::fs::rename(&new, path));
        if let Err(error) = written {
            // Its space is needed, if there is so little.
            let _ = std::fs::remove_file(&new);
            return Err(error);
        }
    }
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// As [`write_whole`], of a file that an operator may have made: a link stays one, and the file keeps its owner, its group and
/// its mode. One that cannot be given back to its owner and group is not written: they would be locked out.
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

/// Owner and group first: a change of them takes bits of the mode away.
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
    // What a crash has left there may be readable by others.
    match std::fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = private().write(true).create_new(true).open(new)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Where it is until it is whole.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(".new");
    path.with_file_name(name)
}

/// Lets the process read and write what it makes: a umask may take that from the owner, too.
pub fn keep_own_rights() {
    let former = rustix::process::umask(Mode::from_raw_mode(OTHERS));
    rustix::process::umask(former & Mode::from_raw_mode(OTHERS));
}

/// What [`mend`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PermissionRepair {
    pub files: u64,
    pub folders: u64,
    /// What others may still read, with the reason. The first few.
    pub left: Vec<(PathBuf, String)>,
}

/// Failures that are told by their names.
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

/// Takes from group and others what they may do with what is below these names in a folder; with the folder itself, too, if nothing
/// else is in it. Of links only those that an operator has put in the place of the folder or of one of the names are followed. What
/// is beside them or belongs to somebody else is left as it is, and so are the ways to it.
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

/// Whether nothing is in a folder but these. Not, if that is not known.
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
        // What was removed meanwhile needs nothing.
        if let Ok(about) = rustix::fs::statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
            mend_entry(&folder, &name, &path.join(&name), &about, mended, depth);
        }
    }
}

fn open_folder(above: impl AsFd, name: &Path, links: OFlags) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | links;
    rustix::fs::openat(above, name, flags, Mode::empty())
}

/// By what is open, so that it is not another file by then.
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
