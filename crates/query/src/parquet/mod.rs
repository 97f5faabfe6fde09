//! Reads single Parquet files, of Thalweg or of other programs: their rows, columns and statistics.

mod cat;
mod schema;
mod stats;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Seek as _};
use std::path::Path;

use datafusion::parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use datafusion::parquet::errors::ParquetError;
use datafusion::parquet::file::metadata::PageIndexPolicy;

pub use cat::{Cat, cat};
pub use schema::{ColumnInfo, SchemaInfo, schema};
pub use stats::{ChunkInfo, ColumnStatistics, FileInfo, GroupInfo, stats};

use crate::error::QueryError;

/// Why a file cannot be read or printed.
#[derive(Debug, thiserror::Error)]
pub enum ParquetFileError {
    #[error("{name} cannot be opened: {error}")]
    Open { name: String, error: io::Error },
    #[error("{0}: only files can be read here, not object stores")]
    Url(String),
    #[error("{name} is not a Parquet file, or is damaged: {error}")]
    Parquet { name: String, error: ParquetError },
    #[error("there is no column {column}; the columns are: {}", known.join(", "))]
    NoColumn { column: String, known: Vec<String> },
    #[error("--where: {0}")]
    Filter(QueryError),
    #[error("a row cannot be written: {0}")]
    Row(QueryError),
    /// `BrokenPipe` may only mean that the reader has read enough.
    #[error("the rows cannot be written: {0}")]
    Output(#[from] io::Error),
}

/// A file whose footer was read.
pub struct ParquetFile {
    name: String,
    file: File,
    bytes: u64,
    metadata: ArrowReaderMetadata,
}

impl ParquetFile {
    /// `-` is the standard input. It is copied to a temporary file, because the footer is at the end. Blocks.
    pub fn open(name: &str) -> Result<ParquetFile, ParquetFileError> {
        let failed = |error| ParquetFileError::Open {
            name: name.to_owned(),
            error,
        };
        let file = match name {
            "-" => spooled(&mut io::stdin().lock()).map_err(failed)?,
            name => match name.split_once("://") {
                None => File::open(name).map_err(failed)?,
                Some(("file", path)) => File::open(path).map_err(failed)?,
                Some(_) => return Err(ParquetFileError::Url(name.to_owned())),
            },
        };
        ParquetFile::of(name, file)
    }

    /// Reads the footer of an open file; `name` is for errors.
    pub fn of(name: &str, file: File) -> Result<ParquetFile, ParquetFileError> {
        let bytes = file.metadata().map_err(|error| ParquetFileError::Open {
            name: name.to_owned(),
            error,
        })?;
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
        let metadata =
            thalweg_columns::file::footer::load(&file, options).map_err(|error| ParquetFileError::Parquet {
                name: name.to_owned(),
                error,
            })?;
        Ok(ParquetFile {
            name: name.to_owned(),
            file,
            bytes: bytes.len(),
            metadata,
        })
    }

    /// The folder of the table that contains the file, if there is one.
    pub fn table_folder(&self) -> Option<std::path::PathBuf> {
        let path = std::path::absolute(Path::new(&self.name)).ok()?;
        let above = path.ancestors().skip(1).take(TABLE_DEPTH_MAX);
        above
            .filter(|folder| folder.join("_delta_log").is_dir())
            .map(Path::to_owned)
            .next()
    }

    fn broken(&self, error: ParquetError) -> ParquetFileError {
        ParquetFileError::Parquet {
            name: self.name.clone(),
            error,
        }
    }
}

/// Files are at most this many folders below their table.
const TABLE_DEPTH_MAX: usize = 4;

fn spooled(from: &mut impl io::Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(from, &mut file)?;
    file.rewind()?;
    Ok(file)
}
