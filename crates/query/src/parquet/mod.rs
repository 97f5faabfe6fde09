//! Parquet files as they are, of this program or of others: their rows, their columns, and what they say of themselves.

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

/// Why a file has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ParquetFileError {
    #[error("{name} cannot be opened: {error}")]
    Open { name: String, error: io::Error },
    #[error("{0}: only files can be read here, no object stores")]
    Url(String),
    #[error("{name} is no Parquet file, or is damaged: {error}")]
    Parquet { name: String, error: ParquetError },
    #[error("there is no column {column}; the columns are: {}", known.join(", "))]
    NoColumn { column: String, known: Vec<String> },
    #[error("--where: {0}")]
    Filter(QueryError),
    #[error("a row cannot be written: {0}")]
    Row(QueryError),
    /// The reader of the output may simply have enough: `BrokenPipe`.
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
    /// `-` is the standard input, which is kept in a temporary file: a footer stands at the end. Blocks.
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

    /// A file that is open; `name` is for errors.
    pub fn of(name: &str, file: File) -> Result<ParquetFile, ParquetFileError> {
        let bytes = file.metadata().map_err(|error| ParquetFileError::Open {
            name: name.to_owned(),
            error,
        })?;
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
        let metadata = ArrowReaderMetadata::load(&file, options).map_err(|error| ParquetFileError::Parquet {
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

    /// The folder of the table that the file lies in, if it does.
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

/// Files lie so many folders below their table, at most.
const TABLE_DEPTH_MAX: usize = 4;

fn spooled(from: &mut impl io::Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(from, &mut file)?;
    file.rewind()?;
    Ok(file)
}
