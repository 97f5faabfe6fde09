//! Inspects a lake for its operators: its tables, their files and history, and their integrity.
//!
//! It only reads committed data, changes nothing and takes no lease or lock. A process may write the tables meanwhile.

mod history;
mod summary;
#[cfg(test)]
mod tests;
mod verify;

use std::path::PathBuf;

pub use history::{CommitSummary, history};
pub(crate) use summary::date_of;
pub use summary::{FileSummary, TableSummary, files, table};
pub use verify::{Finding, VERIFY_THREAD, VerifyOptions, VerifyReport, verify};

use thalweg_delta::store::LakeStorage;
use thalweg_delta::{DeltaError, DeltaLog, Snapshot, SnapshotDetail};

/// Why a lake cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error("there is no lake in {0}; name the data folder with --data-dir, or the lake with --lake")]
    NoLake(PathBuf),
    #[error("there is no table {name}; {}", tables_text(.known))]
    NoTable { name: String, known: Vec<String> },
    #[error(transparent)]
    Table(#[from] DeltaError),
    #[error("{lake} cannot be read: {why}")]
    Store { lake: String, why: String },
}

fn tables_text(tables: &[String]) -> String {
    match tables {
        [] => "the lake has no tables yet".to_owned(),
        tables => format!("the tables are: {}", tables.join(", ")),
    }
}

/// A lake in a folder or an object store.
#[derive(Clone, Debug)]
pub struct Lake {
    site: LakeStorage,
    names: Vec<String>,
}

impl Lake {
    pub async fn open(site: &LakeStorage) -> Result<Lake, InspectError> {
        if !site.is_remote() && !site.path().is_dir() {
            return Err(InspectError::NoLake(site.path().to_owned()));
        }
        let names = site.tables().await.map_err(|error| InspectError::Store {
            lake: site.path().display().to_string(),
            why: error.to_string(),
        })?;
        Ok(Lake {
            site: site.clone(),
            names,
        })
    }

    /// The tables, sorted, at the time when the lake was opened.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// One table, or all of them.
    pub fn chosen(&self, table: Option<&str>) -> Result<Vec<String>, InspectError> {
        match table {
            None => Ok(self.names.clone()),
            Some(name) if self.names.iter().any(|known| known == name) => Ok(vec![name.to_owned()]),
            Some(name) => Err(InspectError::NoTable {
                name: name.to_owned(),
                known: self.names.clone(),
            }),
        }
    }

    pub fn log(&self, table: &str) -> Result<DeltaLog, InspectError> {
        self.chosen(Some(table))?;
        Ok(self.site.log(table)?)
    }

    /// A table at its newest version.
    pub async fn newest(&self, table: &str, detail: SnapshotDetail) -> Result<(DeltaLog, Snapshot), InspectError> {
        let log = self.log(table)?;
        match log.load(detail).await? {
            Some(snapshot) => Ok((log, snapshot)),
            None => Err(InspectError::NoTable {
                name: table.to_owned(),
                known: self.names.clone(),
            }),
        }
    }
}
