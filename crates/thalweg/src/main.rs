//! The binary: parses the command line and calls one module per sub-command.
//!
//! It has no logic of its own beyond exit codes: 0 done, 1 failed (with one clear sentence on stderr), 2 wrong usage, 3
//! and 4 some records or some files of `lake ingest` were not added, 65 stored data is damaged, 74 the log failed.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod auth;
mod check;
mod cli;
mod demo;
mod echo;
mod events;
#[cfg(test)]
mod flag_names_tests;
mod http;
mod lake;
mod lake_location;
mod list;
mod log;
mod mqtt;
mod out;
mod parquet;
mod queue;
mod reference;
mod refusal;
mod run;
mod schema;
mod shell_files;
mod signals;
mod simulate;
mod sql;
mod text_table;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _};
use thalweg_kit::time::{Decimals, TimeText, UnixTime, YearForm};

use crate::cli::{Cli, Command};

#[global_allocator]
static ALLOCATOR: thalweg_telemetry::alloc::CountingAllocator<tikv_jemallocator::Jemalloc> =
    thalweg_telemetry::alloc::CountingAllocator(tikv_jemallocator::Jemalloc);

#[unsafe(export_name = "malloc_conf")]
pub static MALLOC_CONF: &[u8] = thalweg_telemetry::alloc::JEMALLOC_SETTINGS;

/// What this program was built from, as `/version` shows it: the time of the commit, or without a repository the build
/// time.
fn built() -> String {
    // The build script writes a number.
    let seconds = env!("THALWEG_BUILT").parse::<i64>().unwrap_or_default();
    let time = UnixTime { seconds, nanos: 0 };
    TimeText::new(time, Decimals::UpTo(0), YearForm::Plain).to_string()
}

fn main() -> ExitCode {
    thalweg_kit::files::keep_own_rights();
    let cli = match parse() {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let result = match cli.command {
        Command::Run(options) => run::main(&options),
        Command::Check(options) => check::main(&options),
        Command::Echo(options) => echo::main(&options),
        Command::List(options) => list::main(&options),
        Command::Demo(options) => demo::main(&options),
        Command::Simulate(options) => simulate::main(options),
        Command::Sql(options) => sql::main(&options),
        Command::Lake(command) => lake::main(&command),
        Command::Parquet(command) => parquet::main(&command),
        Command::Log(command) => log::main(&command),
        Command::Queue(options) => queue::main(&options),
        Command::Mqtt(command) => mqtt::main(&command),
        Command::Auth(command) => auth::main(&command),
        Command::Events(options) => events::main(&options),
        Command::Schema => schema::main(),
        Command::Reference(options) => reference::main(&options),
        Command::Completions(options) => shell_files::completions(&options),
        Command::Man(options) => shell_files::man(&options),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            out::complain(format_args!("thalweg: {error:#}"));
            thalweg_assemble::exit_code(&error).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

fn parse() -> Result<Cli, clap::Error> {
    let mut command = events::environment::of_both_names(Cli::command());
    let args = events::flags::long(std::env::args_os());
    let matches = command.try_get_matches_from_mut(&args);
    let parsed = matches.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches));
    parsed.map_err(|error| events::flags::with_usage(error, &args, &mut command))
}

/// The async runtime for all network I/O, with one thread less than there are processors. The free one is for the log
/// writer and the threads that make rows. With two processors and two I/O threads, half the cost of a small request
/// would be threads that wake each other.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    use anyhow::Context as _;
    let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder
        .worker_threads(processors.saturating_sub(1).max(1))
        .enable_all()
        .thread_name("io")
        .build()
        .context("cannot start the threads for network I/O")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_knows_when_it_was_built() {
        let built = built();
        let form: String = built
            .chars()
            .map(|c| if c.is_ascii_digit() { '0' } else { c })
            .collect();
        assert_eq!(form, "0000-00-00T00:00:00Z", "{built}");
        assert!(built.as_str() > "2020", "{built}");
    }
}
