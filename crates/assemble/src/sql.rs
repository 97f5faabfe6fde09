//! Questions to the lake: from the running process over HTTP, or from the files when nobody holds the folder. Either way rows come as
//! Arrow and become text here, so both look the same.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail};
use axum::body::Body;
use axum::http::{Request, header};
use futures::StreamExt as _;
use hyper_util::rt::TokioIo;
use thalweg_config::{Config, Diagnostics};
use thalweg_lake::LakeMetrics;
use thalweg_lake::live::LiveTables;
use thalweg_lake::store::Site;
use thalweg_query::print::Rows;
use thalweg_query::{Engine, Query, QueryMetrics, QueryOptions, print, received};
use thalweg_telemetry::{Access, HttpRoutes, Metrics, Mount};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::data_dir::{DataDir, Holder};
use crate::lake_site::{by_url, noted};
use crate::refusal::refusal;
use crate::settings::{Settings, Used};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Aligned columns, for people.
    Table,
    Csv,
    Json,
    Ndjson,
    Arrow,
}

/// One question from the command line.
pub struct Question {
    pub data_dir: PathBuf,
    /// The lake itself, wherever it is; nobody else is asked then.
    pub lake: Option<String>,
    pub query: String,
    pub format: Format,
    pub token: Option<String>,
    /// Positions of the log that the answer has to see.
    pub wait_for: Option<String>,
}

/// Writes the answer, as it comes. `Ok` also when the reader of `out` leaves early: `thalweg sql ... | head` has what it
/// wanted.
pub fn answer(runtime: &Runtime, question: &Question, out: &mut dyn Write) -> Result<()> {
    let session = Session {
        lake: question.lake.clone(),
        wait_for: question.wait_for.clone(),
        ..Session::new(&question.data_dir, question.token.as_deref())
    };
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
pub async fn write(rows: Rows, format: Format, out: &mut dyn Write) -> Result<usize> {
    Ok(match format {
        Format::Table => print::table(rows, out).await,
        Format::Csv => print::csv(rows, out).await,
        Format::Json => print::json(rows, out).await,
        Format::Ndjson => print::ndjson(rows, out).await,
        Format::Arrow => print::arrow(rows, out).await,
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

/// Questions to one data folder, one after the other.
pub struct Session {
    data_dir: PathBuf,
    /// The lake itself, wherever it is; nobody else is asked then.
    lake: Option<String>,
    token: Option<String>,
    /// Positions of the log that answers have to see.
    wait_for: Option<String>,
    /// What reads the files, once it was needed.
    engine: OnceLock<Engine>,
}

impl Session {
    pub fn new(data_dir: &Path, token: Option<&str>) -> Session {
        Session {
            data_dir: data_dir.to_owned(),
            lake: None,
            token: token.map(str::to_owned),
            wait_for: None,
            engine: OnceLock::new(),
        }
    }

    /// The same with a lake that is named itself.
    pub fn of_lake(self, lake: Option<String>) -> Session {
        Session { lake, ..self }
    }

    /// Of the data folder, if that is asked.
    fn holder(&self) -> Option<Holder> {
        match &self.lake {
            Some(_) => None,
            None => DataDir::holder(&self.data_dir),
        }
    }

    /// Who is asked at the moment, in words.
    pub fn whom(&self) -> String {
        if let Some(lake) = &self.lake {
            return format!("the files in {lake}");
        }
        match DataDir::holder(&self.data_dir) {
            Some(Holder {
                process,
                http: Some((address, false)),
            }) => format!("process {process} at {address}"),
            Some(Holder { process, .. }) => {
                format!(
                    "the committed files in {} beside process {process}",
                    self.data_dir.display()
                )
            }
            None => format!("the files in {}", self.data_dir.display()),
        }
    }

    /// Returns once the columns are known. Dropping the future, or the rows, ends the query, wherever it runs.
    pub async fn ask(&self, query: &str) -> Result<Rows> {
        match self.holder() {
            Some(Holder {
                http: Some((address, false)),
                ..
            }) => self.ask_process(&address, query).await,
            // A holder without HTTP cannot be asked, and one that speaks TLS shows a certificate that nothing here can judge.
            // What it has committed is in the files, and that is all that it would answer.
            _ => {
                let query = Query::new(query);
                let query = match &self.wait_for {
                    Some(positions) => query.waiting_for(positions)?,
                    None => query,
                };
                Ok(self.engine()?.run(query).await?.into())
            }
        }
    }

    /// Reads the committed files.
    fn engine(&self) -> Result<&Engine> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let lake = self.lake.clone().or_else(|| noted(&self.data_dir));
        if lake.is_none() && !self.data_dir.join("lake").exists() {
            bail!(
                "there is no lake in {}; name the data folder with --data-dir",
                self.data_dir.display()
            );
        }
        // No file says otherwise, so queries take their part of what a process may use on this machine.
        let settings = Settings::read(&Config::default(), Used::default(), &Diagnostics::new(""));
        let engine = match &lake {
            // Queries read from the store, so there are no copies.
            Some(url) => Engine::open_at(
                by_url(url, &std::env::temp_dir().join("thalweg-sql"))?,
                &self.data_dir,
                settings.query,
                QueryMetrics::new()?,
            )?,
            None => Engine::open(&self.data_dir, settings.query, QueryMetrics::new()?)?,
        };
        Ok(self.engine.get_or_init(|| engine))
    }

    /// Asks the process that holds the folder, over a connection of its own: closing it ends the query there.
    async fn ask_process(&self, address: &str, query: &str) -> Result<Rows> {
        let cannot_ask = || format!("cannot ask the process at {address}");
        let stream = TcpStream::connect(address).await.with_context(cannot_ask)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .with_context(cannot_ask)?;
        let driver = Driver(tokio::spawn(async move {
            // Whoever reads the answer hears of an error.
            let _ = connection.await;
        }));
        let mut asked = serde_json::json!({"sql": query, "format": "arrow"});
        if let Some(positions) = &self.wait_for {
            asked["wait_for"] = positions.as_str().into();
        }
        let mut request = Request::post(thalweg_query::http::PATH)
            .header(header::HOST, address)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request
            .body(Body::from(asked.to_string()))
            .context("the token cannot be sent")?;
        let response = sender.send_request(request).await.with_context(cannot_ask)?;
        let status = response.status();
        let body = Body::new(response.into_body());
        if !status.is_success() {
            let text = axum::body::to_bytes(body, ERROR_BYTES_MAX).await.unwrap_or_default();
            bail!("{}", refusal(&String::from_utf8_lossy(&text), status.as_u16()));
        }
        let bytes = body.into_data_stream().map(move |bytes| {
            let _driven_until_it_is_read = &driver;
            bytes.map_err(|error| error.to_string())
        });
        // Dropping the sender lets the connection end with the answer.
        Ok(received::rows(bytes.boxed()).await?)
    }
}

/// Ends what drives a connection, and so the connection, when nobody reads from it any more.
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An error is a sentence.
const ERROR_BYTES_MAX: usize = 1 << 20;

/// `/api/sql` of the process.
struct Routes(Engine);

impl HttpRoutes for Routes {
    fn mounts(&self) -> Vec<Mount> {
        vec![Mount {
            router: thalweg_query::http::router(self.0.clone()),
            access: Access::Read,
            under_root_path: false,
        }]
    }

    fn endpoints(&self) -> Vec<(String, String)> {
        vec![(
            thalweg_query::http::PATH.to_owned(),
            "SQL over the lake: POST a query, or GET ?q=".to_owned(),
        )]
    }
}

pub(crate) fn routes(
    (site, data_dir, options): (Site, &Path, QueryOptions),
    metrics: &Metrics,
    lake: &LakeMetrics,
    live: Arc<dyn LiveTables>,
) -> Result<Arc<dyn HttpRoutes>> {
    let (memory, cache) = (options.memory_bytes as u64, options.cache_bytes as u64);
    let engine = Engine::open_at(site, data_dir, options, QueryMetrics::register(metrics.registry())?)?;
    engine.set_live(live);
    let watched = engine.clone();
    lake.watch_share("query.memory", memory, move || watched.memory_used() as u64);
    let watched = engine.clone();
    lake.watch_share("query.cache", cache, move || watched.cache_used() as u64);
    Ok(Arc::new(Routes(engine)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(data_dir: &Path) -> Question {
        Question {
            data_dir: data_dir.to_owned(),
            lake: None,
            query: "select 1 as x".to_owned(),
            format: Format::Csv,
            token: None,
            wait_for: None,
        }
    }

    /// Takes a few bytes and leaves.
    struct Leaving;

    impl Write for Leaving {
        fn write(&mut self, _bytes: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_files_are_read_beside_a_process_whose_certificate_nobody_can_judge() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lake")).unwrap();
        let held = DataDir::take(folder.path()).unwrap();
        held.announce(Some(("127.0.0.1:1".to_owned(), true))).unwrap();
        let runtime = Runtime::new().unwrap();
        let mut out = Vec::new();
        answer(&runtime, &question(folder.path()), &mut out).unwrap();
        assert_eq!(out, b"x\n1\n");
    }

    #[test]
    fn a_reader_that_leaves_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lake")).unwrap();
        let runtime = Runtime::new().unwrap();
        answer(&runtime, &question(folder.path()), &mut Leaving).unwrap();
        let other = anyhow::Error::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe)).context("cut off");
        assert!(
            !is_broken_pipe(&other),
            "a process that breaks off its answer is another matter"
        );
    }
}
