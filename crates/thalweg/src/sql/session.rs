//! Questions to the lake: from the running process over HTTP, or from the files when nobody holds the folder. Either way rows come as
//! Arrow and become text here, so both look the same. Beside a process its files have only what it has committed, so they are read
//! then if somebody asks for that, and never because the process cannot be asked.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result, bail};
use thalweg_assemble::{DataDir, Holder, default_query_options, noted_lake};
use thalweg_delta::store::LakeUrl;
use thalweg_kit::{WorkFolder, files};
use thalweg_query::print::RowStream;
use thalweg_query::{Engine, Query, QueryMetrics, print};
use tokio::runtime::Runtime;

use super::process::SqlEndpoint;
use crate::lake_location::{by_url, scratch};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqlOutputFormat {
    /// Aligned columns, for people.
    Table,
    Csv,
    Json,
    Ndjson,
    Arrow,
}

/// Who answers.
#[derive(Clone, Debug, Default)]
pub struct SqlSource {
    pub data_dir: PathBuf,
    /// The lake itself, wherever it is; nobody else is asked then.
    pub lake: Option<String>,
    /// Where a process answers, whatever folder it has.
    pub url: Option<String>,
    /// The files, also beside a process, which has rows that they do not have.
    pub committed: bool,
    /// For a process that asks for one.
    pub token: Option<String>,
    /// Certificates to trust beside those of this machine.
    pub ca_file: Option<PathBuf>,
    /// Positions of the log that answers have to see.
    pub wait_for: Option<String>,
}

/// One question from the command line.
pub struct SqlRequest {
    pub source: SqlSource,
    pub query: String,
    pub format: SqlOutputFormat,
}

/// Writes the answer, as it comes. `Ok` also when the reader of `out` leaves early: `thalweg sql ... | head` has what it
/// wanted.
pub fn answer(runtime: &Runtime, question: &SqlRequest, out: &mut dyn Write) -> Result<()> {
    let session = SqlSession::new(question.source.clone());
    let answered = runtime.block_on(async {
        let rows = session.ask(&question.query).await?;
        write(rows, question.format, out).await
    });
    match answered {
        Err(error) if !is_broken_pipe(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Writes rows as they come, and returns how many there were.
pub async fn write(rows: RowStream, format: SqlOutputFormat, out: &mut dyn Write) -> Result<usize> {
    Ok(match format {
        SqlOutputFormat::Table => print::table(rows, out).await,
        SqlOutputFormat::Csv => print::csv(rows, out).await,
        SqlOutputFormat::Json => print::json(rows, out).await,
        SqlOutputFormat::Ndjson => print::ndjson(rows, out).await,
        SqlOutputFormat::Arrow => print::arrow(rows, out).await,
    }?)
}

/// Whether the reader of the output has left.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|error| match error.downcast_ref::<print::PrintError>() {
            Some(print::PrintError::Output(error)) => error.kind() == std::io::ErrorKind::BrokenPipe,
            _ => false,
        })
}

/// Questions to one lake, one after the other.
pub struct SqlSession {
    source: SqlSource,
    /// What reads the files, once it was needed.
    engine: OnceLock<Engine>,
    /// What does not fit into its memory, if there is no data folder to have it in. Goes after it.
    scratch: OnceLock<WorkFolder>,
}

/// Who answers at the moment.
enum SqlBackend {
    Process(SqlEndpoint),
    Files,
}

impl SqlSession {
    pub fn new(source: SqlSource) -> SqlSession {
        SqlSession {
            source,
            engine: OnceLock::new(),
            scratch: OnceLock::new(),
        }
    }

    /// An error if only the process that holds the folder knows all rows, and it cannot be asked.
    fn answers(&self) -> Result<SqlBackend> {
        let source = &self.source;
        if let Some(url) = &source.url {
            return Ok(SqlBackend::Process(SqlEndpoint::at(url, None)));
        }
        if source.committed {
            return Ok(SqlBackend::Files);
        }
        let Some((held, holder)) = self.holder() else {
            return Ok(SqlBackend::Files);
        };
        match holder.url() {
            Some(url) => Ok(SqlBackend::Process(SqlEndpoint::at(&url, Some(holder.process)))),
            // As an event store has none; the error of the files says so.
            None if !self.has_lake() => Ok(SqlBackend::Files),
            None => bail!(
                "process {} holds {} and has no HTTP listener to be asked at, or is still starting; set http.enabled: true in its \
                 configuration, or read what it has committed to files, without its newest rows, with --committed",
                holder.process,
                held.display()
            ),
        }
    }

    /// The process that has rows of this lake which are in no file yet, and the folder that it holds. Who holds a lake on an
    /// object store is written down nowhere.
    fn holder(&self) -> Option<(PathBuf, Holder)> {
        let held = |path: &Path| DataDir::holder(path).map(|holder| (path.to_owned(), holder));
        let Some(lake) = &self.source.lake else {
            return held(&self.source.data_dir);
        };
        let Ok(LakeUrl::Folder(lake)) = LakeUrl::parse(lake) else {
            return None;
        };
        // One in a data folder has no lock of its own.
        held(&lake).or_else(|| {
            let lake = lake.canonicalize().ok()?;
            let data_dir = lake.parent()?;
            let is_its_own = thalweg_lake::folder(data_dir) == lake && noted_lake(data_dir).is_none();
            is_its_own.then(|| held(data_dir)).flatten()
        })
    }

    /// Who is asked at the moment, in words.
    pub fn whom(&self) -> Result<String> {
        let source = &self.source;
        Ok(match self.answers()? {
            SqlBackend::Process(process) => process.to_string(),
            SqlBackend::Files => {
                let place = source
                    .lake
                    .clone()
                    .unwrap_or_else(|| source.data_dir.display().to_string());
                match self.holder() {
                    Some((_, holder)) => format!("the committed files in {place} beside process {}", holder.process),
                    None => format!("the files in {place}"),
                }
            }
        })
    }

    /// Returns once the columns are known. Dropping the future, or the rows, ends the query, wherever it runs.
    pub async fn ask(&self, query: &str) -> Result<RowStream> {
        match self.answers()? {
            SqlBackend::Process(process) => process.ask(query, &self.source).await,
            SqlBackend::Files => {
                let query = Query::new(query);
                let query = match &self.source.wait_for {
                    Some(positions) => query.waiting_for(positions)?,
                    None => query,
                };
                Ok(self.engine()?.run(query).await?.into())
            }
        }
    }

    fn has_lake(&self) -> bool {
        let SqlSource { data_dir, lake, .. } = &self.source;
        lake.is_some() || noted_lake(data_dir).is_some() || data_dir.join("lake").exists()
    }

    /// Reads the committed files.
    fn engine(&self) -> Result<&Engine> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let SqlSource { data_dir, lake, .. } = &self.source;
        if !self.has_lake() {
            bail!(
                "there is no lake in {}; name the data folder with --data-dir",
                data_dir.display()
            );
        }
        let url = lake.clone().or_else(|| noted_lake(data_dir));
        // No file says otherwise, so queries take their part of what a process may use on this machine.
        let options = default_query_options();
        let engine = match &url {
            // Queries read from the store, so there are no copies.
            Some(url) => {
                let scratch = self.scratch()?;
                // The data folder that is the default is not this lake's, and may be that of a process.
                let local: &Path = if lake.is_some() { scratch } else { data_dir };
                Engine::open_at(by_url(url, scratch)?, local, options, QueryMetrics::new()?)?
            }
            None => Engine::open(data_dir, options, QueryMetrics::new()?)?,
        };
        Ok(self.engine.get_or_init(|| engine))
    }

    /// A folder for temporary files that is like a data folder with a lake.
    fn scratch(&self) -> Result<&Path> {
        if self.scratch.get().is_none() {
            let made = scratch()?;
            files::create_folders(&thalweg_lake::folder(made.path())).context("cannot create a temporary folder")?;
            let _ = self.scratch.set(made);
        }
        Ok(self
            .scratch
            .get()
            .map_or(self.source.data_dir.as_path(), WorkFolder::path))
    }
}

#[cfg(test)]
mod tests;
