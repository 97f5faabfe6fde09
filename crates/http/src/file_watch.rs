//! Detects changes of files. [`FileWatch::changed`] checks the file system at most once per second.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use thalweg_kit::clock;

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Identity of a file and its change times, so that a replacement in the same moment with the same length is detected
/// too.
type FileStamp = Option<(u64, u64, u64, (i64, i64), (i64, i64))>;

/// Files, and what they were at the last check.
pub struct FileWatch {
    files: Vec<PathBuf>,
    stamps: Vec<FileStamp>,
    looked: Instant,
}

impl FileWatch {
    /// Call it before the files are read, so that a change in between is detected.
    pub fn new(files: Vec<PathBuf>) -> FileWatch {
        let stamps = stamps(&files);
        FileWatch {
            files,
            stamps,
            looked: clock::now(),
        }
    }

    /// Whether a file has changed since the last check.
    pub fn changed(&mut self) -> bool {
        self.looked.elapsed() >= LOOK_EVERY && self.look()
    }

    /// Like `changed` for these files, without the time limit.
    pub fn look_at(&mut self, files: Vec<PathBuf>) -> bool {
        if files == self.files {
            return self.look();
        }
        *self = FileWatch::new(files);
        true
    }

    fn look(&mut self) -> bool {
        self.looked = clock::now();
        let now = stamps(&self.files);
        let changed = now != self.stamps;
        self.stamps = now;
        changed
    }
}

fn stamps(files: &[PathBuf]) -> Vec<FileStamp> {
    let stamp = |file: &PathBuf| {
        let about = std::fs::metadata(file).ok()?;
        let (written, changed) = ((about.mtime(), about.mtime_nsec()), (about.ctime(), about.ctime_nsec()));
        Some((about.dev(), about.ino(), about.len(), written, changed))
    };
    files.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_a_vanished_and_a_new_file_are_noticed_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "a").unwrap();
        let mut watch = FileWatch::new(vec![file.clone()]);
        assert!(!watch.look());
        std::fs::write(&file, "ab").unwrap();
        assert!(watch.look());
        assert!(!watch.look());
        std::fs::remove_file(&file).unwrap();
        assert!(watch.look());
        std::fs::write(&file, "ab").unwrap();
        assert!(watch.look());
    }

    #[test]
    fn a_file_of_the_same_length_and_time_is_another_one() {
        let folder = tempfile::tempdir().unwrap();
        let (file, new) = (folder.path().join("file"), folder.path().join("new"));
        std::fs::write(&file, "a").unwrap();
        let time = std::fs::metadata(&file).unwrap().modified().unwrap();
        let mut watch = FileWatch::new(vec![file.clone()]);
        std::fs::write(&new, "b").unwrap();
        std::fs::File::open(&new).unwrap().set_modified(time).unwrap();
        std::fs::rename(&new, &file).unwrap();
        assert!(watch.look());
        assert!(watch.look_at(vec![new.clone()]), "other files");
        assert!(!watch.look_at(vec![new]));
    }
}
