//! Questions to the lake: from the running process over HTTP, or from the files when nobody holds the folder.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use thalweg_config::Config;
use thalweg_query::{Engine, QueryMetrics, QueryOptions, print};
use thalweg_telemetry::{Access, HttpRoutes, Metrics, Mount};
use tokio::runtime::Runtime;

use crate::data_dir::{DataDir, Holder};

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
}

/// Writes the answer, as it comes.
pub fn answer(runtime: &Runtime, question: &Question, out: &mut dyn Write) -> Result<()> {
    match DataDir::holder(&question.data_dir) {
        Some(Holder {
            http: Some((address, tls)),
            ..
        }) => ask(&address, tls, question, out),
        // A holder without HTTP cannot be asked; what it has committed is in the files.
        _ => runtime.block_on(read(question, out)),
    }
}

/// Reads the committed files.
async fn read(question: &Question, out: &mut dyn Write) -> Result<()> {
    let lake = question.data_dir.join("lake");
    if !lake.exists() {
        bail!(
            "there is no lake in {}; name the data folder with --data-dir",
            question.data_dir.display()
        );
    }
    let engine = Engine::open(&question.data_dir, QueryOptions::default(), QueryMetrics::new()?)?;
    let answer = engine.execute(&question.query).await?;
    let printed = match question.format {
        Format::Table => print::table(answer, out).await,
        Format::Csv => print::csv(answer, out).await,
        Format::Json => print::json(answer, out).await,
        Format::Ndjson => print::ndjson(answer, out).await,
        Format::Arrow => print::arrow(answer, out).await,
    };
    match printed {
        // `thalweg sql ... | head` has what it wanted.
        Err(print::PrintError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map(drop).map_err(Into::into),
    }
}

/// Asks the process that holds the folder.
fn ask(address: &str, tls: bool, question: &Question, out: &mut dyn Write) -> Result<()> {
    if tls {
        bail!(
            "the process that holds {} speaks TLS; ask it with a client that trusts its certificate: https://{address}/api/sql",
            question.data_dir.display()
        );
    }
    let format = match question.format {
        Format::Table | Format::Arrow => "arrow",
        Format::Csv => "csv",
        Format::Json => "json",
        Format::Ndjson => "ndjson",
    };
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut request = agent
        .post(format!("http://{address}/api/sql?format={format}"))
        .header("content-type", "text/plain");
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
        std::io::copy(&mut body, out).context("the answer was cut off")?;
    }
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

pub(crate) fn routes(config: &Config, metrics: &Metrics) -> Result<Arc<dyn HttpRoutes>> {
    let engine = Engine::open(
        &config.data_dir,
        QueryOptions::default(),
        QueryMetrics::register(metrics.registry())?,
    )?;
    Ok(Arc::new(Routes(engine)))
}
