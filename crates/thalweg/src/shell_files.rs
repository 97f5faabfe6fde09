//! `thalweg completions` and `thalweg man`: generate shell completions and manual pages for packages from the command
//! line definition.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::cli::{Cli, CompletionsOptions, ManOptions};
use crate::out;

pub fn completions(options: &CompletionsOptions) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "thalweg", &mut text);
    out::text_as_is(String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

pub fn man(options: &ManOptions) -> anyhow::Result<ExitCode> {
    clap_mangen::generate_to(Cli::command(), &options.folder)
        .with_context(|| format!("cannot write manual pages to {}", options.folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
