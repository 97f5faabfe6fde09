//! `thalweg lake`: tables by hand, beside a running process or without one.

pub mod args;
mod bar;
mod ingest;

use std::process::ExitCode;

use args::LakeCommand;

pub fn main(command: &LakeCommand) -> anyhow::Result<ExitCode> {
    match command {
        LakeCommand::Ingest(options) => ingest::run(options),
    }
}
