//! Small files of notes, which are there whole or as they were: whoever reads one never finds a part of it, whatever ended the
//! process that wrote it, and a full disk takes nothing away.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Makes a file have these bytes. Returns when that survives a power cut. One that has them already is left as it is.
pub fn write_whole_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    if !std::fs::read(path).is_ok_and(|known| known == bytes) {
        let new = beside(path);
        let written = written(&new, bytes).and_then(|()| std::fs::rename(&new, path));
        if let Err(error) = written {
            // Its space is needed, if there is so little.
            let _ = std::fs::remove_file(&new);
            return Err(error);
        }
    }
    File::open(folder)?.sync_all()
}

fn written(new: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(new)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Where it is until it is whole.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
    name.push(".new");
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_file_has_all_of_its_new_bytes_or_those_of_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("note");
        write_whole_file(&path, b"first").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        // A process was killed while it wrote.
        std::fs::write(beside(&path), "seco").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        write_whole_file(&path, b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        // There is no room for another.
        std::fs::create_dir(beside(&path)).unwrap();
        assert!(write_whole_file(&path, b"third").is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        write_whole_file(&path, b"second").unwrap();
    }

    #[test]
    fn one_that_is_as_it_should_be_is_not_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("note");
        write_whole_file(&path, b"same").unwrap();
        let written = std::fs::metadata(&path).unwrap().ino();
        write_whole_file(&path, b"same").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), written);
    }
}
