//! `thalweg lake`: works on tables, beside a running process or without one.

pub mod args;
mod bulk;
mod ingest;
mod inspect;
mod maintenance;
mod process;
mod progress_bar;
mod status;
mod verify;

use std::process::ExitCode;

use args::LakeCommand;
use thalweg_lake::maintenance::MaintenanceTask;

pub fn main(command: &LakeCommand) -> anyhow::Result<ExitCode> {
    match command {
        LakeCommand::Ingest(options) => return ingest::run(options),
        LakeCommand::Status(options) => status::run(options)?,
        LakeCommand::Tables(options) => inspect::tables(options)?,
        LakeCommand::Files(options) => inspect::files(options)?,
        LakeCommand::History(options) => inspect::history(options)?,
        LakeCommand::Compact(options) => return maintenance::run(MaintenanceTask::Compact, options),
        LakeCommand::Retain(options) => return maintenance::run(MaintenanceTask::Retain, options),
        LakeCommand::Vacuum(options) => return maintenance::run(MaintenanceTask::Vacuum, options),
        LakeCommand::Verify(options) => return verify::run(options),
    }
    Ok(ExitCode::SUCCESS)
}
