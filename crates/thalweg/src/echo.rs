//! `thalweg echo`: the effective configuration.

use std::process::ExitCode;

use crate::check;
use crate::cli::FileOptions;

pub fn main(options: &FileOptions) -> anyhow::Result<ExitCode> {
    let Some(checked) = check::load(options)? else {
        return Ok(ExitCode::FAILURE);
    };
    print!("{}", checked.config.to_yaml());
    Ok(ExitCode::SUCCESS)
}
