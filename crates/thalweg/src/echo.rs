//! `thalweg echo`: prints the effective configuration.

use std::process::ExitCode;

use crate::cli::ConfigFileOptions;
use crate::{check, out};

pub fn main(options: &ConfigFileOptions) -> anyhow::Result<ExitCode> {
    let Some(checked) = check::load_without_listeners(options)? else {
        return Ok(ExitCode::FAILURE);
    };
    out::text_as_is(checked.config.to_yaml())?;
    Ok(ExitCode::SUCCESS)
}
