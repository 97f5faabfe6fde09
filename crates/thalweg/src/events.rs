//! `thalweg events`: the event store as a server of its own.

pub mod args;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use thalweg_assemble::{EventsServer, ServeEvents};
use thalweg_log::Durability;
use thalweg_telemetry::logging;

use crate::events::args::{EventsCommand, EventsOptions, Format, Level, OnPoison, Recover, ServeOptions};
use crate::out;
use crate::signals::Signals;

pub fn main(options: &EventsOptions) -> Result<ExitCode> {
    match &options.command {
        EventsCommand::Serve(options) => serve(options),
        EventsCommand::Version => {
            out::line(env!("CARGO_PKG_VERSION"))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Flags with one dash, as the reference system's command line has them, with two; and `serve` where only flags are given.
pub fn long_flags(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    if args.get(1).is_none_or(|command| command != "events") {
        return args;
    }
    for arg in args.iter_mut().skip(2) {
        let long = arg
            .to_str()
            .filter(|text| text.len() > 2 && text.starts_with('-') && !text.starts_with("--"));
        if let Some(long) = long {
            *arg = format!("-{long}").into();
        }
    }
    let flags_only = args
        .get(2)
        .is_some_and(|first| first.as_encoded_bytes().starts_with(b"-"));
    let asks_help = args.get(2).is_some_and(|first| first == "-h" || first == "--help");
    if flags_only && !asks_help {
        args.insert(2, "serve".into());
    }
    args
}

fn serve(options: &ServeOptions) -> Result<ExitCode> {
    start_logging(options);
    let settings = settings(options)?;
    let runtime = crate::runtime()?;
    let stopped = runtime.block_on(async {
        let signals = Signals::install()?;
        let server = match EventsServer::start(&settings).await {
            Ok(server) => server,
            Err(error) => {
                out::complain(format_args!("Error: {error:#}"));
                let code = thalweg_assemble::exit_code(&error).map_or(ExitCode::FAILURE, ExitCode::from);
                return Ok(code);
            }
        };
        if let Some(token) = &server.new_token {
            out::complain(format_args!("DEFAULT NAMESPACE TOKEN:\n{token}"));
        }
        signals.stop().await;
        server.stop().await;
        anyhow::Ok(ExitCode::SUCCESS)
    });
    runtime.shutdown_background();
    stopped
}

fn settings(options: &ServeOptions) -> Result<ServeEvents> {
    let folder = match (&options.data_dir, &options.db_url) {
        (_, Some(url)) => Some(folder_of(url, options)?),
        (Some(folder), None) => Some(folder.clone()),
        (None, None) => None,
    };
    let folder = folder.filter(|_| !options.test_mode || options.db_url.is_some());
    if folder.is_none() && !options.test_mode {
        bail!("--data-dir or --db-url is required (use --test-mode for in-memory testing)");
    }
    if options.test_mode && folder.is_some() {
        tracing::warn!("--test-mode is ignored with --db-url: production rules apply");
    }
    let memory = options
        .memory_limit
        .unwrap_or_else(|| thalweg_config::memory_bytes() / 2);
    Ok(ServeEvents {
        port: options.port,
        data_dir: folder,
        token: options.token.clone().filter(|token| !token.is_empty()),
        durability: match options.durability {
            args::Durability::Fsync => Durability::Fsync,
            args::Durability::Interval => Durability::Interval,
            args::Durability::Os => Durability::Os,
        },
        sync_interval: options.sync_interval,
        recover_skip: options.recover == Recover::Skip,
        stay_when_poisoned: options.on_poison == OnPoison::Stay,
        min_free: options.min_free,
        memory,
        message_bytes_max: options.max_message_bytes as usize,
        open_admin: options.open_admin,
        insecure: options.insecure,
    })
}

fn folder_of(url: &str, options: &ServeOptions) -> Result<PathBuf> {
    if let Some(folder) = url.strip_prefix("log://").or_else(|| url.strip_prefix("pebble://")) {
        return Ok(folder.into());
    }
    match (url.starts_with("sqlite://"), &options.data_dir) {
        (true, Some(folder)) => Ok(folder.clone()),
        (true, None) => bail!("--db-url sqlite:// needs --data-dir"),
        (false, _) => bail!("--db-url {url} names no store that there is; it is log:///dir"),
    }
}

fn start_logging(options: &ServeOptions) {
    logging::start(logging::Options {
        level: match options.log_level {
            Level::Debug => logging::LevelFilter::DEBUG,
            Level::Info => logging::LevelFilter::INFO,
            Level::Warn => logging::LevelFilter::WARN,
            Level::Error => logging::LevelFilter::ERROR,
        },
        format: match options.log_format {
            Format::Console => logging::Format::Logfmt,
            Format::Json => logging::Format::Json,
        },
        target: logging::Target::Stderr,
        add_timestamp: true,
        static_fields: BTreeMap::new(),
        only_errors_of: &[],
    });
}
