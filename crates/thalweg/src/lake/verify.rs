//! `thalweg lake verify`: each finding is a line on the standard output, what was looked at goes to the standard error. Exit code 0: all
//! is as it should be, 1: it is not.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
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
            // Files are read where blocking does no harm.
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
            false => "all is as it should be",
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

/// What readers panic about in a damaged file is told as a finding.
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

/// On one line, for who looks at a terminal. The line is gone when it is dropped.
struct VerifyProgress {
    table: String,
    told: Instant,
    on_terminal: bool,
}

impl VerifyProgress {
    fn new(table: &str) -> VerifyProgress {
        VerifyProgress {
            table: table.to_owned(),
            told: Instant::now(),
            on_terminal: std::io::stderr().is_terminal(),
        }
    }

    fn tell(&mut self, done: u64, all: u64) {
        if self.on_terminal && self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            let percent = done.saturating_mul(100) / all.max(1);
            let (table, all) = (&self.table, text_table::bytes(all));
            // Who cannot read it misses nothing.
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
