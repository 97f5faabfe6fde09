//! Queries the lake: through the running process over HTTP, or from the files when no process holds the folder. Both
//! return Arrow, which is formatted here, so that they look the same. Beside a process the files contain only committed
//! rows. They are then read only on request, never because the process cannot be reached.

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

/// Where answers come from.
#[derive(Clone, Debug, Default)]
pub struct SqlSource {
    pub data_dir: PathBuf,
    /// The URL or path of the lake itself.
    pub lake: Option<String>,
    /// The address of a process, whatever its folder is.
    pub url: Option<String>,
    /// Read the files even if a process has uncommitted rows.
    pub committed: bool,
    /// For a process that requires one.
    pub token: Option<String>,
    /// Certificates to trust in addition to the system's.
    pub ca_file: Option<PathBuf>,
    /// Log positions that answers have to include.
    pub wait_for: Option<String>,
}

/// One query from the command line.
pub struct SqlRequest {
    pub source: SqlSource,
    pub query: String,
    pub format: SqlOutputFormat,
}

/// Writes the answer while it arrives. It also returns `Ok` if the reader of `out` leaves early, as in
/// `thalweg sql ... | head`.
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

/// Writes rows as they arrive, and returns their number.
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

/// Runs queries against one lake, one after another.
pub struct SqlSession {
    source: SqlSource,
    /// Reads the files; created when it is needed.
    engine: OnceLock<Engine>,
    /// The folder for spill files if there is no data folder. Dropped after the engine.
    scratch: OnceLock<WorkFolder>,
}

/// Who answers now.
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

    /// Fails if only the process that holds the folder has all rows, and it cannot be asked.
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
            // An event store has none; the files then report that there is no lake.
            None if !self.has_lake() => Ok(SqlBackend::Files),
            None => bail!(
                "process {} holds {} and has no HTTP listener, or is still starting; set http.enabled: true in its \
                 configuration, or read what it has committed to files, without its newest rows, with --committed",
                holder.process,
                held.display()
            ),
        }
    }

    /// The process that may have uncommitted rows of this lake, and the folder that it holds. The holder of a lake on
    /// an object store is not known.
    fn holder(&self) -> Option<(PathBuf, Holder)> {
        let held = |path: &Path| DataDir::holder(path).map(|holder| (path.to_owned(), holder));
        let Some(lake) = &self.source.lake else {
            return held(&self.source.data_dir);
        };
        let Ok(LakeUrl::Folder(lake)) = LakeUrl::parse(lake) else {
            return None;
        };
        // A lake in a data folder has no lock of its own.
        held(&lake).or_else(|| {
            let lake = lake.canonicalize().ok()?;
            let data_dir = lake.parent()?;
            let is_its_own = thalweg_lake::folder(data_dir) == lake && noted_lake(data_dir).is_none();
            is_its_own.then(|| held(data_dir)).flatten()
        })
    }

    /// Describes who answers now.
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

    /// Returns once the columns are known. Dropping the future, or the rows, cancels the query wherever it runs.
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

    /// The engine that reads the committed files.
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
        // Without a configuration, queries get their default share of this machine's memory.
        let options = default_query_options();
        let engine = match &url {
            // Queries read directly from the store, so no copies are made.
            Some(url) => {
                let scratch = self.scratch()?;
                // The default data folder does not belong to this lake, and may belong to a process.
                let local: &Path = if lake.is_some() { scratch } else { data_dir };
                Engine::open_at(by_url(url, scratch)?, local, options, QueryMetrics::unregistered())?
            }
            None => Engine::open(data_dir, options, QueryMetrics::unregistered())?,
        };
        Ok(self.engine.get_or_init(|| engine))
    }

    /// A temporary folder with the layout of a data folder with a lake.
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
