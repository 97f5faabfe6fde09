//! A file for the log of the process. It is appended to, and, if it rotates, renamed at a size and begun anew.
//!
//! A renamed file has the time of its end in its name, in UTC: `flow.log` becomes `flow-2026-11-30T14-26-57.123.log`. By
//! that time, and not by the file's own, it is deleted when it is too old: copies and restored files have other times.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_kit::time::{Decimals, TimeText, UnixTime, YearForm};
use thalweg_kit::{clock, files};

/// A file that rotates is renamed before it has more bytes.
const ROTATED_BYTES: u64 = 100 << 20;

/// Where the log goes, and what becomes of a long one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFileOptions {
    pub path: PathBuf,
    pub rotation: Option<LogRotation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRotation {
    /// Renamed files that ended longer ago are deleted; `None` keeps all.
    pub max_age: Option<Duration>,
}

/// The file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the log to {}: {why}; correct logger.file.path, or make the file writable", .path.display())]
pub struct LogFileError {
    path: PathBuf,
    why: io::Error,
}

/// An open file of the log. Clones write to the same one.
#[derive(Clone, Debug)]
pub struct LogFile(Arc<Mutex<OpenLogFile>>);

impl PartialEq for LogFile {
    fn eq(&self, other: &LogFile) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LogFile {}

#[derive(Debug)]
struct OpenLogFile {
    options: LogFileOptions,
    file: File,
    /// The size at which the file is renamed.
    rotated_bytes: u64,
    bytes: u64,
}

impl LogFile {
    /// Opens the file to append to it, and makes it and its folders if they are not there.
    pub fn open(options: LogFileOptions) -> Result<LogFile, LogFileError> {
        LogFile::open_with(options, ROTATED_BYTES)
    }

    fn open_with(options: LogFileOptions, rotated_bytes: u64) -> Result<LogFile, LogFileError> {
        let folder = folder_of(&options.path);
        let opened = files::create_folders(folder).and_then(|()| append(&options.path));
        let (file, bytes) = opened.map_err(|why| LogFileError {
            path: options.path.clone(),
            why,
        })?;
        let opened = OpenLogFile {
            options,
            file,
            rotated_bytes,
            bytes,
        };
        opened.delete_old();
        Ok(LogFile(Arc::new(Mutex::new(opened))))
    }

    /// Appends whole lines. Returns why the file could not be renamed, if it could not: then it goes on growing, and the
    /// next attempt is made after as many bytes.
    pub(crate) fn append(&self, lines: &str) -> io::Result<Option<String>> {
        let mut open = self.0.lock();
        let length = lines.len() as u64;
        let is_full = open.bytes > 0 && open.bytes + length > open.rotated_bytes;
        let mut complaint = None;
        if open.options.rotation.is_some() && is_full {
            if let Err(error) = open.rotate() {
                let path = open.options.path.display();
                complaint = Some(format!(
                    "the log file {path} cannot be renamed and goes on growing: {error}"
                ));
                open.bytes = 0;
            }
            open.delete_old();
        }
        open.file.write_all(lines.as_bytes())?;
        open.bytes += length;
        Ok(complaint)
    }
}

fn append(path: &Path) -> io::Result<(File, u64)> {
    // Whoever may read the folder, such as a log shipper, may read the file.
    let file = files::as_above(path).create(true).append(true).open(path)?;
    let bytes = file.metadata()?.len();
    Ok((file, bytes))
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// A point in time as it is in the names of renamed files, of which later ones sort behind.
fn stamp(since_1970: Duration) -> String {
    let time = UnixTime {
        seconds: i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX),
        nanos: since_1970.subsec_nanos(),
    };
    let text = TimeText::new(time, Decimals::Exactly(3), YearForm::Plain);
    text.as_str().trim_end_matches('Z').replace(':', "-")
}

const STAMP_FORM: &str = "0000-00-00T00-00-00.000";

fn is_stamp(text: &str) -> bool {
    let digits = |c: char| if c.is_ascii_digit() { '0' } else { c };
    text.chars().map(digits).eq(STAMP_FORM.chars())
}

impl OpenLogFile {
    /// The name before and after the time of renamed files.
    fn affixes(&self) -> (String, String) {
        let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
        let path = &self.options.path;
        let extension = match path.extension() {
            Some(extension) => format!(".{}", extension.to_string_lossy()),
            None => String::new(),
        };
        (format!("{}-", part(path.file_stem())), extension)
    }

    fn rotate(&mut self) -> io::Result<()> {
        let (before, after) = self.affixes();
        let folder = folder_of(&self.options.path);
        // Two files may end in one millisecond.
        let mut end = clock::since_1970();
        let renamed = loop {
            let name = folder.join(format!("{before}{}{after}", stamp(end)));
            if !name.exists() {
                break name;
            }
            end += Duration::from_millis(1);
        };
        std::fs::rename(&self.options.path, renamed)?;
        (self.file, self.bytes) = append(&self.options.path)?;
        Ok(())
    }

    /// What cannot be deleted is tried again with the next file.
    fn delete_old(&self) {
        let Some(max_age) = self.options.rotation.and_then(|rotation| rotation.max_age) else {
            return;
        };
        let oldest = stamp(clock::since_1970().saturating_sub(max_age));
        let (before, after) = self.affixes();
        let entries = std::fs::read_dir(folder_of(&self.options.path));
        for entry in entries.into_iter().flatten().flatten() {
            let name = entry.file_name();
            let ended = name
                .to_str()
                .and_then(|name| name.strip_prefix(&before)?.strip_suffix(&after));
            if ended.is_some_and(|ended| is_stamp(ended) && ended < oldest.as_str()) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    fn options(path: PathBuf, max_age: Option<Duration>) -> LogFileOptions {
        LogFileOptions {
            path,
            rotation: Some(LogRotation { max_age }),
        }
    }

    #[test]
    fn a_file_is_appended_to_and_its_folders_are_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/flow.log");
        for line in ["one\n", "two\n"] {
            let options = LogFileOptions {
                path: path.clone(),
                rotation: None,
            };
            let file = LogFile::open_with(options, 4).unwrap();
            assert_eq!(file.append(line).unwrap(), None);
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert_eq!(names(path.parent().unwrap()), ["flow.log"], "it does not rotate");
    }

    #[test]
    fn a_full_file_is_renamed_and_no_line_is_torn() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flow.log");
        let file = LogFile::open_with(options(path.clone(), None), 10).unwrap();
        for line in ["1234\n", "5678\n", "a line of its own\n", "9\n"] {
            assert_eq!(file.append(line).unwrap(), None);
        }
        let names = names(folder.path());
        let contents: Vec<String> = names
            .iter()
            .map(|name| std::fs::read_to_string(folder.path().join(name)).unwrap())
            .collect();
        assert_eq!(contents, ["1234\n5678\n", "a line of its own\n", "9\n"], "{names:?}");
        for renamed in &names[..2] {
            let ended = renamed.strip_prefix("flow-").and_then(|name| name.strip_suffix(".log"));
            assert!(ended.is_some_and(is_stamp), "{renamed}");
        }
    }

    #[test]
    fn renamed_files_are_deleted_by_the_time_in_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| std::fs::write(folder.path().join(name), "x\n").unwrap();
        let recent = format!("flow-{}.log", stamp(clock::since_1970().saturating_sub(DAY)));
        let kept = [
            "flow-notes.log",
            "flow-2001-01-01T00-00-00.000.log.gz",
            "other-2001-01-01T00-00-00.000.log",
            &recent,
        ];
        kept.iter().for_each(|name| write(name));
        write("flow-2001-01-01T00-00-00.000.log");
        let _file = LogFile::open(options(folder.path().join("flow.log"), Some(2 * DAY))).unwrap();
        let mut expected: Vec<&str> = kept.to_vec();
        expected.push("flow.log");
        expected.sort_unstable();
        assert_eq!(names(folder.path()), expected);
    }

    #[test]
    fn a_file_that_cannot_be_renamed_goes_on_and_says_so_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flow.log");
        let file = LogFile::open_with(options(path.clone(), None), 10).unwrap();
        file.append("123456\n").unwrap();
        std::fs::remove_file(&path).unwrap();
        let complaint = file.append("789012\n").unwrap().unwrap();
        assert!(
            complaint.contains("flow.log cannot be renamed and goes on growing"),
            "{complaint}"
        );
        assert_eq!(file.append("3\n").unwrap(), None);
    }

    #[test]
    fn what_cannot_be_opened_is_an_error_with_its_cure() {
        let folder = tempfile::tempdir().unwrap();
        let error = LogFile::open(options(folder.path().to_owned(), None))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("Is a directory") && error.contains("logger.file.path"),
            "{error}"
        );
    }

    #[test]
    fn stamps_sort_by_time() {
        assert_eq!(
            stamp(Duration::from_millis(1_700_000_000_045)),
            "2023-11-14T22-13-20.045"
        );
        assert!(is_stamp("2023-11-14T22-13-20.045") && !is_stamp("2023-11-14T22-13-20"));
    }
}
