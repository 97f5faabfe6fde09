//! `thalweg lake verify`: prints each finding to the standard output, and the checked tables to the standard error.
//! Exit code 0: no findings, 1: findings.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
use thalweg_kit::clock;
use thalweg_lake::inspect::{self, Lake, VERIFY_THREAD, VerifyReport};

use super::args::VerifyOptions;
use crate::{out, text_table};

const TELL_EVERY: Duration = Duration::from_millis(200);

pub fn run(options: &VerifyOptions) -> Result<ExitCode> {
    let (runtime, place) = (crate::runtime()?, options.place.open()?);
    let lake = runtime.block_on(Lake::open(place.site()))?;
    quietly();
    let mut all = Vec::new();
    for name in lake.chosen(options.table.as_deref())? {
        let mut progress = VerifyProgress::new(&name);
        let wanted = inspect::VerifyOptions { deep: options.deep };
        let verified = runtime.block_on(async {
            // File reads block, so they run on a thread where that does no harm.
            let (lake, name) = (lake.clone(), name.clone());
            let look =
                async move { inspect::verify(&lake, &name, wanted, &mut |done, all| progress.tell(done, all)).await };
            tokio::spawn(look).await
        })??;
        if !options.json {
            tell(&verified, options.deep)?;
        }
        all.push(verified);
    }
    let findings: usize = all.iter().map(|verified| verified.findings.len()).sum();
    if options.json {
        out::line(json!({"deep": options.deep, "findings": findings, "tables": all}))?;
    } else if findings == 0 {
        out::complain(match all.is_empty() {
            true => "there are no tables yet",
            false => "no problem was found",
        });
    } else {
        out::complain(format_args!(
            "{findings} {}",
            if findings == 1 { "finding" } else { "findings" }
        ));
    }
    Ok(match findings {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Readers may panic on a damaged file; that becomes a finding instead of a panic message.
fn quietly() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some(VERIFY_THREAD) {
            usual(panic);
        }
    }));
}

fn tell(verified: &VerifyReport, deep: bool) -> Result<()> {
    for finding in &verified.findings {
        out::line(finding)?;
    }
    let (table, files, rows, bytes) = (
        &verified.table,
        verified.files,
        verified.rows,
        text_table::bytes(verified.bytes),
    );
    let how = if deep { ", all pages read" } else { "" };
    let version = text_table::or_dash(verified.version);
    out::complain(format_args!(
        "{table}: version {version}, {files} files, {rows} rows, {bytes}{how}"
    ));
    Ok(())
}

/// Progress in one line on a terminal. Dropping it clears the line.
struct VerifyProgress {
    table: String,
    told: Instant,
    on_terminal: bool,
}

impl VerifyProgress {
    fn new(table: &str) -> VerifyProgress {
        VerifyProgress {
            table: table.to_owned(),
            told: clock::now(),
            on_terminal: std::io::stderr().is_terminal(),
        }
    }

    fn tell(&mut self, done: u64, all: u64) {
        if self.on_terminal && self.told.elapsed() >= TELL_EVERY {
            self.told = clock::now();
            let percent = done.saturating_mul(100) / all.max(1);
            let (table, all) = (&self.table, text_table::bytes(all));
            // A failed write only loses progress output.
            let _ = write!(std::io::stderr(), "\r\x1b[K{table}: {percent} % of {all}");
        }
    }
}

impl Drop for VerifyProgress {
    fn drop(&mut self) {
        if self.on_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
