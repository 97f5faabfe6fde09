//! `thalweg sql`: queries the lake, once from the command line or repeatedly at a prompt. The process that holds the
//! data folder answers over HTTP, because it has the limits, the login, warm caches, and uncommitted rows. Without a
//! process, or with --committed, the files are read here.

mod process;
mod session;
mod shell;
mod statements;

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

use anyhow::Context as _;

use crate::cli::{SqlFormat, SqlOptions};
use crate::http::token;
use session::{SqlOutputFormat, SqlRequest, SqlSession, SqlSource, answer};

pub fn main(options: &SqlOptions) -> anyhow::Result<ExitCode> {
    let terminal = std::io::stdout().is_terminal();
    let query = match &options.query {
        Some(query) => query.clone(),
        None if terminal && std::io::stdin().is_terminal() => {
            let session = SqlSession::new(source(options)?);
            shell::run(&crate::runtime()?, session, shell::format(options.format)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        None => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("cannot read the query from the standard input")?;
            text
        }
    };
    let format = match options.format {
        Some(SqlFormat::Table) => SqlOutputFormat::Table,
        Some(SqlFormat::Csv) => SqlOutputFormat::Csv,
        Some(SqlFormat::Json) => SqlOutputFormat::Json,
        Some(SqlFormat::Ndjson) => SqlOutputFormat::Ndjson,
        Some(SqlFormat::Arrow) => SqlOutputFormat::Arrow,
        None if terminal => SqlOutputFormat::Table,
        None => SqlOutputFormat::Ndjson,
    };
    anyhow::ensure!(
        !(format == SqlOutputFormat::Arrow && terminal),
        "an Arrow stream is not for a terminal; redirect it: thalweg sql --format arrow \"...\" > result.arrows"
    );
    let question = SqlRequest {
        source: source(options)?,
        query,
        format,
    };
    let mut out = std::io::stdout().lock();
    answer(&crate::runtime()?, &question, &mut out)?;
    match out.flush() {
        // The reader has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        flushed => flushed.context("cannot write the result")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn source(options: &SqlOptions) -> anyhow::Result<SqlSource> {
    let who = &options.who;
    Ok(SqlSource {
        data_dir: options.data_dir.clone(),
        lake: options.lake.clone(),
        url: who.url.clone(),
        committed: options.committed,
        token: token(who.token.as_ref(), who.token_file.as_ref())?,
        ca_file: who.ca_file.clone(),
        wait_for: options.wait_for.clone(),
    })
}
