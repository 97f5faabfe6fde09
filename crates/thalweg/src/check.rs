//! `thalweg check`: reports every mistake of a configuration file, as lines for people or as one JSON document.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use thalweg_assemble::CheckedConfig;
use thalweg_config::{Diagnostic, LoadOptions, Pos, Severity};

use crate::cli::{CheckOptions, ConfigFileOptions};
use crate::out;

/// Reads and checks a file for a start, and prints its diagnostics to stderr. Returns `None` if it has errors.
pub fn load(options: &ConfigFileOptions) -> anyhow::Result<Option<CheckedConfig>> {
    let checked = read(options, false)?;
    checked.verify_start();
    Ok(without_errors(checked))
}

/// Like [`load`], for commands that start no listeners.
pub fn load_without_listeners(options: &ConfigFileOptions) -> anyhow::Result<Option<CheckedConfig>> {
    Ok(without_errors(read(options, false)?))
}

/// Prints the diagnostics. Returns `None` if there are errors.
fn without_errors(checked: CheckedConfig) -> Option<CheckedConfig> {
    for diagnostic in checked.diagnostics.sorted() {
        out::complain(diagnostic);
    }
    (!checked.diagnostics.has_errors()).then_some(checked)
}

fn read(options: &ConfigFileOptions, allows_absent: bool) -> anyhow::Result<CheckedConfig> {
    let path = options.path()?;
    let set = options.set.iter().map(|pair| match pair.split_once('=') {
        Some((path, value)) => Ok((path.to_owned(), value.to_owned())),
        None => anyhow::bail!(
            "-s takes a path and a value with '=' between, such as -s input.opcua.pollRate=500; got {pair:?}"
        ),
    });
    let options = LoadOptions {
        set: set.collect::<anyhow::Result<_>>()?,
        chilled: options.chilled,
        allows_absent,
        ..LoadOptions::default()
    };
    Ok(CheckedConfig::load(&path, &options))
}

pub fn main(options: &CheckOptions) -> anyhow::Result<ExitCode> {
    let path = options.file.path()?;
    let checked = read(&options.file, options.without_secrets)?;
    checked.verify_start();
    let notes = match options.explain {
        true => checked.diagnostics.notes(),
        false => Vec::new(),
    };
    if options.json {
        out::line(document(&path, &checked, &notes))?;
        return Ok(match checked.diagnostics.has_errors() {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        });
    }
    let Some(checked) = without_errors(checked) else {
        return Ok(ExitCode::FAILURE);
    };
    for note in notes {
        out::line(note)?;
    }
    let flows = checked.config.flows.len();
    out::line(format_args!(
        "{}: {flows} flow{} without errors",
        path.display(),
        if flows == 1 { "" } else { "s" }
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Everything that was found, in the order of the file.
fn document(path: &Path, checked: &CheckedConfig, notes: &[Diagnostic]) -> Value {
    let mut found = checked.diagnostics.sorted();
    found.extend_from_slice(notes);
    found.sort_by_key(|diagnostic| diagnostic.pos);
    json!({
        "file": path.display().to_string(),
        "valid": !checked.diagnostics.has_errors(),
        "flows": checked.config.flows.len(),
        "diagnostics": found.iter().map(diagnostic_json).collect::<Vec<_>>(),
    })
}

/// Lines and columns count from 1. What concerns no line has none.
fn diagnostic_json(diagnostic: &Diagnostic) -> Value {
    let severity = match diagnostic.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let (place, line, column) = match diagnostic.pos {
        Pos::COMMAND_LINE => ("command line", None, None),
        Pos::WHOLE_FILE => ("file", None, None),
        Pos { line, column } => ("line", Some(line), Some(column)),
    };
    json!({
        "severity": severity,
        "place": place,
        "line": line,
        "column": column,
        "message": diagnostic.message,
    })
}
