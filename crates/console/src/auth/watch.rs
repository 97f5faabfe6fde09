//! Notices when files change, without asking the file system more than once per second.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

const LOOK_EVERY: Duration = Duration::from_secs(1);

type Stamp = Option<(SystemTime, u64)>;

pub struct Watch {
    files: Vec<PathBuf>,
    stamps: Vec<Stamp>,
    looked: Instant,
}

impl Watch {
    /// Call it before the files are read, so that a change in between is seen.
    pub fn new(files: Vec<PathBuf>) -> Watch {
        let stamps = stamps(&files);
        Watch {
            files,
            stamps,
            looked: Instant::now(),
        }
    }

    /// Whether a file has another length or time of change than at the last look.
    pub fn changed(&mut self) -> bool {
        self.looked.elapsed() >= LOOK_EVERY && self.look()
    }

    fn look(&mut self) -> bool {
        self.looked = Instant::now();
        let now = stamps(&self.files);
        let changed = now != self.stamps;
        self.stamps = now;
        changed
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let about = std::fs::metadata(file).ok()?;
        Some((about.modified().ok()?, about.len()))
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
        let mut watch = Watch::new(vec![file.clone()]);
        assert!(!watch.look());
        std::fs::write(&file, "ab").unwrap();
        assert!(watch.look());
        assert!(!watch.look());
        std::fs::remove_file(&file).unwrap();
        assert!(watch.look());
        std::fs::write(&file, "ab").unwrap();
        assert!(watch.look());
    }
}
