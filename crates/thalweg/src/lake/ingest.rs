//! `thalweg lake ingest`: ingests files. Results go to the standard error, or as JSON to the standard output.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_assemble::CheckedConfig;
use thalweg_kit::clock;
use thalweg_lake::Signal;
use thalweg_lake::bulk::{
    BulkError, BulkFormat, BulkProgress, BulkReport, BulkRequest, BulkSource, TableReport, check_format,
};

use super::args::{FileKindName, IngestOptions, SignalName};
use super::bulk;
use super::progress_bar::{ProgressBar, size_text};
use crate::cli::ConfigFileOptions;
use crate::lake_location::download;
use crate::{check, out};

const USAGE: u8 = 2;
const SOME_REJECTED: u8 = 3;
const SOME_FAILED: u8 = 4;

pub fn run(options: &IngestOptions) -> anyhow::Result<ExitCode> {
    let wanted = match wanted(options) {
        Ok(wanted) => wanted,
        Err(error) => {
            out::complain(format_args!("thalweg: {error:#}"));
            return Ok(ExitCode::from(USAGE));
        }
    };
    let checked = match &options.config {
        None => None,
        Some(config) => match checked(config)? {
            None => return Ok(ExitCode::FAILURE),
            checked => checked,
        },
    };
    let configured = checked.as_ref().map(|checked| &checked.config.data_dir);
    let place = options.place.or(configured).open_with(checked.as_ref())?;
    let runtime = crate::runtime()?;
    let mut bulk = bulk::open(&place, checked.as_ref(), wanted, &runtime)?;
    let mut told = IngestSummary::default();
    let begun = clock::now();
    for path in &options.files {
        let name = path.display().to_string();
        let mut copy = None;
        let source = match name.as_str() {
            "-" => Ok(BulkSource::Stream(Box::new(std::io::stdin()))),
            url if url.contains("://") => runtime.block_on(download(url)).map(|copied| {
                let path = copied.path().to_owned();
                copy = Some(copied);
                BulkSource::File(path)
            }),
            _ => Ok(BulkSource::File(path.clone())),
        };
        let watched = BulkProgress::default();
        let bar = ProgressBar::begin(&name, &watched);
        let ingested = match source {
            Ok(source) => bulk.ingest(&name, source, &watched),
            Err(error) => Err(BulkError::Read(std::io::Error::other(error.to_string()))),
        };
        drop((bar, copy));
        let goes_on = told.file(&name, ingested, options);
        if !goes_on {
            break;
        }
    }
    bulk.close();
    told.end(begun.elapsed(), options)
}

fn wanted(options: &IngestOptions) -> anyhow::Result<BulkRequest> {
    let stdin = options.files.iter().filter(|path| path.as_os_str() == "-").count();
    anyhow::ensure!(stdin <= 1, "the standard input can be read once; name - once");
    if let Some(format) = &options.time_format {
        check_format(format).map_err(|why| anyhow::anyhow!("--time-format {format:?}: {why}"))?;
    }
    Ok(BulkRequest {
        kind: options.kind.map(|kind| match kind {
            FileKindName::Binpb => BulkFormat::Otlp,
            FileKindName::Json => BulkFormat::Json,
            FileKindName::Csv => BulkFormat::Csv,
            FileKindName::Parquet => BulkFormat::Parquet,
        }),
        signal: options.signal.map(|signal| match signal {
            SignalName::Logs => Signal::Logs,
            SignalName::Metrics => Signal::Metrics,
            SignalName::Traces => Signal::Traces,
        }),
        table: options.table.as_deref().map(bulk::table).transpose()?,
        renamed: options.map.clone(),
        time_format: options.time_format.clone(),
        bad_max: options.max_bad,
        again: options.again,
        dry_run: options.dry_run,
        accept_missing: options.accept_missing,
    })
}

/// Loads the configuration and prints its diagnostics. Returns `None` if it has errors.
fn checked(path: &Path) -> anyhow::Result<Option<CheckedConfig>> {
    check::load_without_listeners(&ConfigFileOptions {
        file: Some(path.to_owned()),
        config: None,
        set: Vec::new(),
        chilled: false,
    })
}

/// The results so far.
#[derive(Default)]
struct IngestSummary {
    rows: u64,
    rejected: u64,
    bytes: u64,
    done: u64,
    failed: u64,
    /// Files whose columns are not known; they count as failed, too.
    unknown: u64,
    is_of_lake: bool,
    files: Vec<Value>,
}

impl IngestSummary {
    /// Returns `false` if no other file can be stored either.
    fn file(&mut self, name: &str, ingested: Result<BulkReport, BulkError>, options: &IngestOptions) -> bool {
        match ingested {
            Ok(report) => {
                self.rows += report.rows();
                self.rejected += report.rejected();
                self.bytes += report.bytes;
                self.done += 1;
                if !options.json {
                    out::complain(format_args!("{name}: {}", sentence(&report, options.dry_run)));
                }
                self.files.push(as_json(name, &report));
                true
            }
            Err(error) => {
                self.failed += 1;
                self.unknown += u64::from(error.is_of_columns());
                self.is_of_lake = error.is_of_lake();
                out::complain(format_args!("thalweg: {name}: {error}"));
                self.files.push(json!({"file": name, "error": error.to_string()}));
                !self.is_of_lake
            }
        }
    }

    fn end(&self, took: Duration, options: &IngestOptions) -> anyhow::Result<ExitCode> {
        let per_second = (self.rows as f64 / took.as_secs_f64().max(0.001)).round();
        if options.json {
            out::line(json!({
                "files": self.files,
                "rows": self.rows,
                "rejected": self.rejected,
                "bytes": self.bytes,
                "failed_files": self.failed,
                "seconds": took.as_secs_f64(),
                "rows_per_second": per_second,
                "dry_run": options.dry_run,
            }))?;
        } else {
            let (rows, rejected, bytes) = (self.rows, self.rejected, size_text(self.bytes));
            let (done, of) = (self.done, options.files.len());
            let would = if options.dry_run { "; nothing was written" } else { "" };
            out::complain(format_args!(
                "{rows} rows, {rejected} rejected, {bytes}, {done} of {of} files, {per_second} rows/s{would}"
            ));
        }
        Ok(
            match (
                self.is_of_lake,
                self.failed - self.unknown,
                self.rejected + self.unknown,
            ) {
                (true, ..) => ExitCode::FAILURE,
                (_, 1.., _) => ExitCode::from(SOME_FAILED),
                (_, _, 1..) => ExitCode::from(SOME_REJECTED),
                _ => ExitCode::SUCCESS,
            },
        )
    }
}

fn sentence(report: &BulkReport, is_dry: bool) -> String {
    if report.is_known() {
        return "the tables have this file already, and nothing was changed; --again adds it once more".to_owned();
    }
    let of_table = |(name, table): (&&str, &TableReport)| match (table.is_known, table.version) {
        (true, _) => format!("{name} has it already"),
        (_, None) => format!("{} rows for {name}", table.rows),
        (_, Some(version)) => {
            let files = if table.files == 1 { "file" } else { "files" };
            format!(
                "{} rows in {} {files} of {name}, version {version}",
                table.rows, table.files
            )
        }
    };
    let mut text = match report.tables.is_empty() {
        true => "it has no rows".to_owned(),
        false => report.tables.iter().map(of_table).collect::<Vec<_>>().join(", "),
    };
    if is_dry {
        text = format!("would be added: {text}");
    }
    let listed = |counts: &std::collections::BTreeMap<&str, u64>| {
        let each = counts.iter().map(|(reason, count)| format!("{reason} {count}"));
        each.collect::<Vec<_>>().join(", ")
    };
    if report.rejected() > 0 {
        text.push_str(&format!("; rejected: {}", listed(&report.rejected)));
    }
    if !report.changed.is_empty() {
        text.push_str(&format!("; changed: {}", listed(&report.changed)));
    }
    if let Some(path) = &report.quarantine {
        text.push_str(&format!("; bad lines are in {}", path.display()));
    }
    text
}

fn as_json(name: &str, report: &BulkReport) -> Value {
    let table = |table: &TableReport| {
        json!({
            "rows": table.rows,
            "files": table.files,
            "version": table.version,
            "known": table.is_known,
        })
    };
    let tables: serde_json::Map<String, Value> = report
        .tables
        .iter()
        .map(|(name, of)| ((*name).to_owned(), table(of)))
        .collect();
    json!({
        "file": name,
        "id": report.application,
        "tables": tables,
        "rows": report.rows(),
        "rejected": report.rejected,
        "changed": report.changed,
        "bytes": report.bytes,
        "seconds": report.took.as_secs_f64(),
        "quarantine": report.quarantine,
    })
}
