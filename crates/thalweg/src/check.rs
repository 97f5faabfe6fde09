//! `thalweg check`: reports every mistake of a configuration file.

use std::process::ExitCode;

use thalweg_assemble::CheckedConfig;

use crate::cli::{CheckOptions, ConfigFileOptions};
use crate::out;

/// Reads and checks a file for a start, and prints its diagnostics to stderr. Returns `None` if it has errors.
pub fn load(options: &ConfigFileOptions) -> anyhow::Result<Option<CheckedConfig>> {
    read(options, CheckedConfig::verify_listeners)
}

/// Like [`load`], for commands that start no listeners.
pub fn load_without_listeners(options: &ConfigFileOptions) -> anyhow::Result<Option<CheckedConfig>> {
    read(options, |_| {})
}

fn read(options: &ConfigFileOptions, verify: fn(&CheckedConfig)) -> anyhow::Result<Option<CheckedConfig>> {
    let path = options.path()?;
    let set = options.set.iter().map(|pair| match pair.split_once('=') {
        Some((path, value)) => Ok((path.to_owned(), value.to_owned())),
        None => anyhow::bail!(
            "-s takes a path and a value with '=' between, such as -s input.opcua.pollRate=500; got {pair:?}"
        ),
    });
    let options = thalweg_config::LoadOptions {
        set: set.collect::<anyhow::Result<_>>()?,
        chilled: options.chilled,
        ..thalweg_config::LoadOptions::default()
    };
    let checked = CheckedConfig::load(&path, &options);
    verify(&checked);
    for diagnostic in checked.diagnostics.sorted() {
        out::complain(diagnostic);
    }
    Ok((!checked.diagnostics.has_errors()).then_some(checked))
}

pub fn main(options: &CheckOptions) -> anyhow::Result<ExitCode> {
    Ok(match load(&options.file)? {
        None => ExitCode::FAILURE,
        Some(checked) => {
            if options.explain {
                for note in checked.diagnostics.notes() {
                    out::line(format_args!("{note}"))?;
                }
            }
            let flows = checked.config.flows.len();
            out::line(format_args!(
                "{}: {flows} flow{} without errors",
                options.file.path()?.display(),
                if flows == 1 { "" } else { "s" }
            ))?;
            ExitCode::SUCCESS
        }
    })
}
