//! A lake as those see it who look after it: its tables, their files and history, and whether all is as it should be.
//!
//! Only what is committed is looked at, and nothing is changed or held; a process may write the tables meanwhile.

mod history;
mod summary;
#[cfg(test)]
mod tests;
mod verify;

use std::path::{Path, PathBuf};

pub use history::{Commit, history};
pub(crate) use summary::date_of;
pub use summary::{FileSummary, TableSummary, files, table};
pub use verify::{Finding, VERIFY_THREAD, Verified, VerifyOptions, verify};

use crate::delta::{DeltaError, DeltaLog, Detail, Snapshot};
use crate::store::SyncedStore;

/// Why nothing can be said of a lake.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error("there is no lake in {0}; name the data folder with --data-dir")]
    NoLake(PathBuf),
    #[error("there is no table {name}; {}", tables_text(.known))]
    NoTable { name: String, known: Vec<String> },
    #[error(transparent)]
    Table(#[from] DeltaError),
}

fn tables_text(tables: &[String]) -> String {
    match tables {
        [] => "the lake has no tables yet".to_owned(),
        tables => format!("the tables are: {}", tables.join(", ")),
    }
}

/// The folder of a lake.
#[derive(Clone, Debug)]
pub struct Lake {
    folder: PathBuf,
    store: SyncedStore,
}

impl Lake {
    pub fn open(folder: &Path) -> Result<Lake, InspectError> {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        match folder.is_dir() {
            true => Ok(Lake {
                folder,
                store: SyncedStore::new(),
            }),
            false => Err(InspectError::NoLake(folder)),
        }
    }

    /// The tables, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let is_table = |entry: &std::fs::DirEntry| {
            let commits = std::fs::read_dir(entry.path().join("_delta_log"));
            commits.is_ok_and(|mut commits| commits.next().is_some())
        };
        let tables = entries.filter(is_table);
        let mut names: Vec<String> = tables
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// One table, or all of them.
    pub fn chosen(&self, table: Option<&str>) -> Result<Vec<String>, InspectError> {
        let known = self.names();
        match table {
            None => Ok(known),
            Some(name) if known.iter().any(|known| known == name) => Ok(vec![name.to_owned()]),
            Some(name) => Err(InspectError::NoTable {
                name: name.to_owned(),
                known,
            }),
        }
    }

    pub fn log(&self, table: &str) -> Result<DeltaLog, InspectError> {
        self.chosen(Some(table))?;
        Ok(DeltaLog::new(&self.folder.join(table), self.store.clone())?)
    }

    /// A table at its newest version.
    pub async fn newest(&self, table: &str, detail: Detail) -> Result<(DeltaLog, Snapshot), InspectError> {
        let log = self.log(table)?;
        match log.load(detail).await? {
            Some(snapshot) => Ok((log, snapshot)),
            None => Err(InspectError::NoTable {
                name: table.to_owned(),
                known: self.names(),
            }),
        }
    }
}
