//! `thalweg lake`: tables by hand, beside a running process or without one.

pub mod args;
mod bar;
mod ingest;
mod look;
mod process;
mod status;
mod upkeep;
mod verify;

use std::process::ExitCode;

use args::LakeCommand;
use thalweg_lake::upkeep::Task;

pub fn main(command: &LakeCommand) -> anyhow::Result<ExitCode> {
    match command {
        LakeCommand::Ingest(options) => return ingest::run(options),
        LakeCommand::Status(options) => status::run(options)?,
        LakeCommand::Tables(options) => look::tables(options)?,
        LakeCommand::Files(options) => look::files(options)?,
        LakeCommand::History(options) => look::history(options)?,
        LakeCommand::Compact(options) => return upkeep::run(Task::Compact, options),
        LakeCommand::Retain(options) => return upkeep::run(Task::Retain, options),
        LakeCommand::Vacuum(options) => return upkeep::run(Task::Vacuum, options),
        LakeCommand::Verify(options) => return verify::run(options),
    }
    Ok(ExitCode::SUCCESS)
}
