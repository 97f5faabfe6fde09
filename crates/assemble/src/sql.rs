//! Questions to the lake: from the running process over HTTP, or from the files when nobody holds the folder.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use thalweg_config::{Config, Diagnostics};
use thalweg_lake::LakeMetrics;
use thalweg_lake::live::LiveTables;
use thalweg_query::{Engine, Query, QueryMetrics, QueryOptions, print};
use thalweg_telemetry::{Access, HttpRoutes, Metrics, Mount};
use tokio::runtime::Runtime;

use crate::data_dir::{DataDir, Holder};
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
    pub query: String,
    pub format: Format,
    pub token: Option<String>,
    /// Positions of the log that the answer has to see.
    pub wait_for: Option<String>,
}

/// Writes the answer, as it comes. `Ok` also when the reader of `out` leaves early: `thalweg sql ... | head` has what it
/// wanted.
pub fn answer(runtime: &Runtime, question: &Question, out: &mut dyn Write) -> Result<()> {
    let answered = match DataDir::holder(&question.data_dir) {
        Some(Holder {
            http: Some((address, false)),
            ..
        }) => ask(&address, question, out),
        // A holder without HTTP cannot be asked, and one that speaks TLS shows a certificate that nothing here can judge.
        // What it has committed is in the files, and that is all that it would answer.
        _ => runtime.block_on(read(question, out)),
    };
    answered.or_else(|error| if is_broken_pipe(&error) { Ok(()) } else { Err(error) })
}

/// Whether the reader of the output has left.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |error: &(dyn std::error::Error + 'static)| match error.downcast_ref::<print::PrintError>() {
        Some(print::PrintError::Output(error)) => Some(error.kind()),
        _ => error.downcast_ref::<Unwritable>().map(|error| error.0.kind()),
    };
    error
        .chain()
        .filter_map(kind)
        .any(|kind| kind == std::io::ErrorKind::BrokenPipe)
}

/// The answer is there and cannot be written.
#[derive(Debug)]
struct Unwritable(std::io::Error);

impl std::fmt::Display for Unwritable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the answer cannot be written: {}", self.0)
    }
}

impl std::error::Error for Unwritable {}

/// Reads the committed files.
async fn read(question: &Question, out: &mut dyn Write) -> Result<()> {
    let lake = question.data_dir.join("lake");
    if !lake.exists() {
        bail!(
            "there is no lake in {}; name the data folder with --data-dir",
            question.data_dir.display()
        );
    }
    // No file says otherwise, so queries take their part of what a process may use on this machine.
    let settings = Settings::read(&Config::default(), Used::default(), &Diagnostics::new(""));
    let engine = Engine::open(&question.data_dir, settings.query, QueryMetrics::new()?)?;
    let query = Query::new(question.query.as_str());
    let query = match &question.wait_for {
        Some(positions) => query.waiting_for(positions)?,
        None => query,
    };
    let answer = engine.run(query).await?;
    match question.format {
        Format::Table => print::table(answer, out).await,
        Format::Csv => print::csv(answer, out).await,
        Format::Json => print::json(answer, out).await,
        Format::Ndjson => print::ndjson(answer, out).await,
        Format::Arrow => print::arrow(answer, out).await,
    }?;
    Ok(())
}

/// Asks the process that holds the folder.
fn ask(address: &str, question: &Question, out: &mut dyn Write) -> Result<()> {
    let format = match question.format {
        Format::Table | Format::Arrow => "arrow",
        Format::Csv => "csv",
        Format::Json => "json",
        Format::Ndjson => "ndjson",
    };
    // The process is on this machine, whatever HTTP_PROXY says.
    let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None);
    let agent: ureq::Agent = config.build().into();
    let mut request = agent
        .post(format!("http://{address}/api/sql"))
        .query("format", format)
        .header("content-type", "text/plain");
    if let Some(positions) = &question.wait_for {
        request = request.query("wait_for", positions);
    }
    if let Some(token) = &question.token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut response = request
        .send(&question.query)
        .with_context(|| format!("cannot ask the process at {address}"))?;
    let status = response.status();
    if !status.is_success() {
        let text = response.body_mut().read_to_string().unwrap_or_default();
        bail!("{}", error_text(&text, status.as_u16()));
    }
    let mut body = response.body_mut().as_reader();
    if question.format == Format::Table {
        print::table_from_arrow(body, out)?;
    } else {
        copy(&mut body, out)?;
    }
    Ok(())
}

/// As [`std::io::copy`], telling what cannot be read from what cannot be written.
fn copy(from: &mut impl Read, out: &mut dyn Write) -> Result<()> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error).context("the answer was cut off"),
        };
        out.write_all(buffer.get(..n).unwrap_or_default()).map_err(Unwritable)?;
    }
    out.flush().map_err(Unwritable)?;
    Ok(())
}

/// `code: message` of an error body, or what there is of it.
fn error_text(body: &str, status: u16) -> String {
    let json: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
    let error = if json["error"].is_object() {
        &json["error"]
    } else {
        &json
    };
    match (error["code"].as_str(), error["message"].as_str()) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        _ if status == 401 => "not authorized: give a token with --token".to_owned(),
        _ => format!("status {status}: {}", body.trim()),
    }
}

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
    data_dir: &Path,
    options: QueryOptions,
    metrics: &Metrics,
    lake: &LakeMetrics,
    live: Arc<dyn LiveTables>,
) -> Result<Arc<dyn HttpRoutes>> {
    let (memory, cache) = (options.memory_bytes as u64, options.cache_bytes as u64);
    let engine = Engine::open(data_dir, options, QueryMetrics::register(metrics.registry())?)?;
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
    fn a_reader_that_leaves_is_no_error_wherever_the_answer_comes_from() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lake")).unwrap();
        let runtime = Runtime::new().unwrap();
        answer(&runtime, &question(folder.path()), &mut Leaving).unwrap();
        let cut = copy(&mut &b"x\n1\n"[..], &mut Leaving).unwrap_err();
        assert!(is_broken_pipe(&cut), "{cut:#}");
        let other =
            anyhow::Error::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe)).context("the answer was cut off");
        assert!(
            !is_broken_pipe(&other),
            "a process that breaks off its answer is another matter"
        );
    }
}
