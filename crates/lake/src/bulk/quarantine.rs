//! Stores the bad lines of a file with their numbers and reasons, one JSON object per line, so that they can be
//! corrected.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use thalweg_kit::files;

use super::error::BulkError;
use crate::opening;

/// How much of a line is kept.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// The bad lines of one file.
pub(super) struct Quarantine {
    max: u64,
    lines: u64,
    first: Option<(u64, String)>,
    /// The temporary path until the whole file is read.
    path: Option<PathBuf>,
    file: Option<BufWriter<File>>,
}

impl Quarantine {
    /// Fails at more than `max` bad lines. Without a folder they are only counted.
    pub fn new(folder: Option<&Path>, max: u64) -> Quarantine {
        Quarantine {
            max,
            lines: 0,
            first: None,
            path: folder.map(|folder| folder.join("bad-lines.jsonl")),
            file: None,
        }
    }

    /// `line` counts from 1.
    pub fn bad(&mut self, line: u64, why: &str, text: &[u8]) -> Result<(), BulkError> {
        self.lines += 1;
        self.first.get_or_insert_with(|| (line, why.to_owned()));
        if let Some(path) = &self.path {
            let failed = |source| BulkError::Folder {
                path: path.clone(),
                source,
            };
            if self.file.is_none() {
                self.file = Some(BufWriter::new(
                    files::private()
                        .write(true)
                        .create(true)
                        .truncate(true)
                        .open(path)
                        .map_err(failed)?,
                ));
            }
            if let Some(file) = &mut self.file {
                write(file, line, why, text).map_err(failed)?;
            }
        }
        match (&self.first, self.lines > self.max) {
            (Some((line, why)), true) => Err(BulkError::TooManyBad {
                max: self.max,
                line: *line,
                why: why.clone(),
                quarantine: None,
            }),
            _ => Ok(()),
        }
    }

    /// Keeps the lines durably. `name` is the file name, `id` distinguishes files of the same name.
    pub fn keep(self, lake: &Path, name: &str, id: &str) -> Result<Option<PathBuf>, BulkError> {
        let (Some(from), Some(file)) = (self.path, self.file) else {
            return Ok(None);
        };
        let folder = opening::quarantine(lake);
        let stem: String = name
            .chars()
            .map(|character| match character {
                kept if kept.is_alphanumeric() || matches!(kept, '.' | '-' | '_') => kept,
                _ => '_',
            })
            .take(NAME_CHARACTERS_MAX)
            .collect();
        let to = folder.join(format!("{stem}-{id}.jsonl"));
        let keep = || -> io::Result<()> {
            file.into_inner().map_err(|error| error.into_error())?.sync_all()?;
            files::create_folders(&folder)?;
            std::fs::rename(&from, &to)?;
            File::open(&folder)?.sync_all()
        };
        keep().map_err(|source| BulkError::Folder {
            path: folder.clone(),
            source,
        })?;
        Ok(Some(to))
    }
}

const NAME_CHARACTERS_MAX: usize = 100;

fn write(to: &mut impl io::Write, line: u64, why: &str, text: &[u8]) -> io::Result<()> {
    let kept = text.get(..TEXT_BYTES_MAX).unwrap_or(text);
    let mut shown = serde_json::json!({
        "line": line,
        "reason": why,
        "text": String::from_utf8_lossy(kept),
    });
    if kept.len() < text.len() {
        shown["bytes"] = text.len().into();
    }
    serde_json::to_writer(&mut *to, &shown)?;
    to.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kept_with_numbers_and_reasons_until_there_are_too_many() {
        let lake = tempfile::tempdir().unwrap();
        let mut quarantine = Quarantine::new(Some(lake.path()), 2);
        quarantine.bad(3, "no JSON", b"{\xff").unwrap();
        quarantine.bad(9, "too long", &vec![b'x'; 100_000]).unwrap();
        let error = quarantine.bad(11, "no JSON", b"").unwrap_err().to_string();
        assert!(error.starts_with("ingest.too_many_bad: more than 2 lines are bad, the first is line 3: no JSON"));
        let path = quarantine.keep(lake.path(), "a/b c.ndjson", "77").unwrap().unwrap();
        assert!(path.ends_with("_thalweg/quarantine/a_b_c.ndjson-77.jsonl"), "{path:?}");
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            lines[0],
            serde_json::json!({"line": 3, "reason": "no JSON", "text": "{\u{fffd}"})
        );
        assert_eq!(
            (&lines[1]["bytes"], lines[1]["text"].as_str().unwrap().len()),
            (&100_000.into(), TEXT_BYTES_MAX)
        );
        assert_eq!(lines.len(), 3);
        let none = Quarantine::new(Some(lake.path()), 0)
            .keep(lake.path(), "x", "1")
            .unwrap();
        assert_eq!(none, None);
        let mut counted = Quarantine::new(None, 0);
        assert!(counted.bad(1, "x", b"").is_err());
    }
}
