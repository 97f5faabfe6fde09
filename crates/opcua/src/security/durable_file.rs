//! Small files, in the data folder's `keys/` and in `rejected/`, that a power loss leaves either old or new, but whole,
//! and that only the user of the process can read.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use parking_lot::Mutex;
use thalweg_kit::files;

/// One process locks the data folder, but several inputs may write the same file at once.
static WRITING: Mutex<()> = Mutex::new(());

/// When this returns, the file and all folders above it are durable.
pub(super) fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file name"));
    };
    let _one_at_a_time = WRITING.lock();
    create_folder(folder)?;
    let mut partial = name.to_owned();
    partial.push(".partial");
    let partial = folder.join(partial);
    // A file left by a crash may be readable by others.
    match std::fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = files::private().write(true).create_new(true).open(&partial)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&partial, path)?;
    sync_names(folder)
}

/// Creates a folder and its parents; each new name is synced.
fn create_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().filter(|above| !above.as_os_str().is_empty());
    if let Some(above) = above {
        create_folder(above)?;
    }
    match files::create_folder(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !folder.is_dir() => return Err(error),
        _ => {}
    }
    sync_names(above.unwrap_or(Path::new(".")))
}

fn sync_names(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hard link simulates an interrupted write: its content shows whether the file itself was written to.
    #[cfg(unix)]
    #[test]
    fn a_file_is_replaced_as_a_whole_and_never_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a/b/key");
        keep(&file, b"old").unwrap();
        let other_name = folder.path().join("other");
        std::fs::hard_link(&file, &other_name).unwrap();
        // Leftovers of an earlier attempt do no harm.
        std::fs::write(folder.path().join("a/b/key.partial"), b"torn and longer").unwrap();
        keep(&file, b"new").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert_eq!(std::fs::read(&other_name).unwrap(), b"old");
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        let left = std::fs::read_dir(folder.path().join("a/b")).unwrap().count();
        assert_eq!(left, 1, "nothing else is left");
    }

    #[test]
    fn a_folder_that_is_none_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), b"x").unwrap();
        assert!(keep(&folder.path().join("file/key"), b"x").is_err());
        assert!(keep(Path::new("/"), b"x").is_err());
    }
}
