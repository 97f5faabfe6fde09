//! `thalweg lake compact`, `retain` and `vacuum`: runs maintenance now that a process otherwise does by itself. The
//! process that holds the data folder does the work; without one, this command locks the folder and does it. Either way
//! each thing done is a line.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use thalweg_assemble::{CheckedConfig, DataDir, default_maintenance_options};
use thalweg_lake::LakeMetrics;
use thalweg_lake::inspect::Lake;
use thalweg_lake::maintenance::{MaintenanceReport, MaintenanceRequest, MaintenanceTask, by_hand_alone};
use thalweg_lake_api::{MAINTENANCE_PATH, MaintenanceLine};
use thalweg_telemetry::Metrics;
use tokio::runtime::Runtime;

use super::args::MaintainOptions;
use super::process::{HolderProcess, holder};
use crate::cli::ConfigFileOptions;
use crate::lake_location::LakeLocation;
use crate::{check, out, text_table};

pub fn run(task: MaintenanceTask, options: &MaintainOptions) -> Result<ExitCode> {
    let asked = MaintenanceRequest {
        task,
        table: options.table.clone(),
        date: options.date.clone(),
        dry_run: options.dry_run,
    };
    let Some(checked) = config(options)? else {
        return Ok(ExitCode::FAILURE);
    };
    let place = options
        .place
        .or(checked.as_ref().map(|checked| &checked.config.data_dir));
    let mut told = MaintenanceSummary::new(task, options.json);
    match holder(&place, &options.who) {
        Some(HolderProcess::Answers(http)) => {
            told.say(format_args!("the process at {} does the work", http.base()));
            let mut ended = false;
            http.post_for_lines(
                MAINTENANCE_PATH,
                &serde_json::to_value(&asked)?,
                &mut |text| match line_of(text)? {
                    MaintenanceLine::Did(did) => told.did(&did),
                    MaintenanceLine::Failed { failed } => bail!("{failed}"),
                    MaintenanceLine::End { .. } => {
                        ended = true;
                        Ok(())
                    }
                },
            )?;
            if !ended {
                bail!(
                    "the answer of the process ended early; everything reported above is done, and the process does \
                     the rest after its next start"
                );
            }
        }
        Some(HolderProcess::Silent(process)) => bail!(
            "process {process} holds {} and has no HTTP listener; set http.enabled: true in its \
             configuration, or stop it and try again",
            place.data_dir().display()
        ),
        None => {
            let (runtime, mut outcome) = (crate::runtime()?, Ok(()));
            alone(
                &runtime,
                &place.open_with(checked.as_ref())?,
                checked.as_ref(),
                &asked,
                &mut |did| {
                    if outcome.is_ok() {
                        outcome = told.did(&did);
                    }
                },
            )?;
            outcome?;
            if task == MaintenanceTask::Retain && checked.is_none() {
                told.say("without --config FILE all rows are kept, because lake.retention is not known");
            }
        }
    }
    told.end()
}

/// Loads the configuration, if one is given. Returns `None` if it has errors.
fn config(options: &MaintainOptions) -> Result<Option<Option<CheckedConfig>>> {
    let Some(file) = &options.config else {
        return Ok(Some(None));
    };
    let options = ConfigFileOptions {
        file: Some(file.clone()),
        config: None,
        set: Vec::new(),
        chilled: false,
    };
    Ok(check::load_without_listeners(&options)?.map(Some))
}

/// Works on a lake that no process holds, and locks it meanwhile. `checked` sets the maintenance options.
fn alone(
    runtime: &Runtime,
    place: &LakeLocation,
    checked: Option<&CheckedConfig>,
    asked: &MaintenanceRequest,
    told: &mut dyn FnMut(MaintenanceReport),
) -> Result<()> {
    // A mistyped folder must not become a data folder.
    runtime.block_on(Lake::open(place.site()))?;
    let _held = match place.data_dir() {
        Some(data_dir) => Some(DataDir::take(data_dir)?),
        None if place.site().is_remote() => None,
        None => Some(DataDir::take_lake(place.site().path())?),
    };
    let options = match checked {
        Some(checked) => checked.maintenance_options(),
        None => default_maintenance_options(),
    };
    let metrics = LakeMetrics::register(&Metrics::new(false));
    let done = by_hand_alone(
        place.site(),
        asked,
        &[],
        options,
        metrics,
        runtime.handle(),
        &mut |did| {
            told(did);
            true
        },
    );
    runtime.block_on(place.site().release());
    Ok(done?)
}

/// Parses a line of an answer of [`MAINTENANCE_PATH`].
fn line_of(text: &str) -> Result<MaintenanceLine> {
    serde_json::from_str(text).with_context(|| format!("unknown line in the answer of the process: {text}"))
}

/// The results so far.
struct MaintenanceSummary {
    task: MaintenanceTask,
    json: bool,
    lines: Vec<Value>,
    files: u64,
    has_failed: bool,
}

impl MaintenanceSummary {
    fn new(task: MaintenanceTask, json: bool) -> MaintenanceSummary {
        MaintenanceSummary {
            task,
            json,
            lines: Vec::new(),
            files: 0,
            has_failed: false,
        }
    }

    fn say(&self, what: impl std::fmt::Display) {
        if !self.json {
            out::complain(what);
        }
    }

    fn did(&mut self, did: &MaintenanceReport) -> Result<()> {
        self.files += did.files;
        self.has_failed |= did.error.is_some();
        match self.json {
            true => self.lines.push(json!(did)),
            false => {
                out::line(text(did))?;
            }
        }
        Ok(())
    }

    fn end(self) -> Result<ExitCode> {
        if self.json {
            out::line(json!({"task": self.task, "files": self.files, "done": self.lines}))?;
        }
        Ok(match self.has_failed {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }
}

fn text(did: &MaintenanceReport) -> String {
    let table = &did.table;
    if let Some(error) = &did.error {
        return format!("{table}: {error}");
    }
    let (files, rows, bytes) = (files(did.files), did.rows, text_table::bytes(did.bytes));
    let would = if did.dry_run { "would be " } else { "" };
    match (did.task, &did.merged) {
        (_, _) if did.files == 0 => format!("{table}: nothing to do"),
        (MaintenanceTask::Compact, Some(into)) => {
            let sealed = if into.sealed { ", final" } else { "" };
            let made = match did.dry_run {
                true => String::new(),
                false => format!(" into {} ({})", self::files(into.files), text_table::bytes(into.bytes)),
            };
            let folder = &into.folder;
            format!(
                "{table}/{folder}: {files} with {rows} rows ({bytes}) {would}merged{made}, level {}{sealed}",
                into.level
            )
        }
        (MaintenanceTask::Compact, None) => format!("{table}: {files} {would}merged"),
        (MaintenanceTask::Retain, _) => {
            format!("{table}: {files} with {rows} rows ({bytes}) {would}removed: they exceed lake.retention")
        }
        (MaintenanceTask::Vacuum, _) => format!("{table}: {files} ({bytes}) that nobody needs {would}deleted"),
    }
}

fn files(count: u64) -> String {
    match count {
        1 => "1 file".to_owned(),
        count => format!("{count} files"),
    }
}

#[cfg(test)]
mod tests {
    use thalweg_lake::maintenance::MaintenanceMerge;

    use super::*;

    fn did(task: MaintenanceTask, dry_run: bool, merged: bool) -> MaintenanceReport {
        MaintenanceReport {
            task,
            table: "logs".to_owned(),
            dry_run,
            files: 3,
            rows: 30,
            bytes: 3 << 20,
            merged: merged.then(|| MaintenanceMerge {
                folder: "date=2031-05-06".to_owned(),
                level: 1,
                sealed: true,
                files: u64::from(!dry_run),
                bytes: if dry_run { 0 } else { 2 << 20 },
            }),
            error: None,
        }
    }

    #[test]
    fn each_line_says_what_was_done_or_would_be() {
        assert_eq!(
            text(&did(MaintenanceTask::Compact, false, true)),
            "logs/date=2031-05-06: 3 files with 30 rows (3.0 MiB) merged into 1 file (2.0 MiB), level 1, final"
        );
        assert_eq!(
            text(&did(MaintenanceTask::Compact, true, true)),
            "logs/date=2031-05-06: 3 files with 30 rows (3.0 MiB) would be merged, level 1, final"
        );
        assert_eq!(
            text(&did(MaintenanceTask::Vacuum, true, false)),
            "logs: 3 files (3.0 MiB) that nobody needs would be deleted"
        );
        let nothing = MaintenanceReport {
            files: 0,
            ..did(MaintenanceTask::Retain, false, false)
        };
        assert_eq!(text(&nothing), "logs: nothing to do");
    }

    #[test]
    fn lines_are_told_apart() {
        let did = r#"{"task":"vacuum","table":"logs","dry_run":false,"files":2,"rows":0,"bytes":7}"#;
        assert!(matches!(line_of(did).unwrap(), MaintenanceLine::Did(did) if did.files == 2));
        assert_eq!(
            line_of(r#"{"done":true}"#).unwrap(),
            MaintenanceLine::End { done: true }
        );
        assert!(matches!(
            line_of(r#"{"failed":"x"}"#).unwrap(),
            MaintenanceLine::Failed { .. }
        ));
        assert!(line_of("{}").is_err());
    }
}
