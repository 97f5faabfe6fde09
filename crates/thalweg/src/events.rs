//! `thalweg events`: the event store as a separate server, and requests to one from the shell. Data goes to the
//! standard output, reports to the standard error. Exit code 0: done, 1: failed, 2: wrong usage, 65: something is
//! damaged.

mod append;
pub mod args;
mod backup;
mod client;
pub mod environment;
mod export;
mod files;
pub mod flags;
mod import;
mod json_array;
mod list;
mod maintain;
mod moment;
mod progress;
mod record;
mod sse;
mod tail;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::CommandFactory as _;
use thalweg_assemble::{EventsServer, EventsServerOptions, EventsStorage, GeneratedToken, TlsFiles, TlsNames};
use thalweg_log::Durability;
use thalweg_telemetry::logging;

use crate::cli::Cli;
use crate::events::args::{
    DbType, EventsCommand, EventsOptions, LogFormat, LogLevel, OnPoison, RecoverMode, ServeOptions,
};
use crate::signals::{SignalRequest, Signals};
use crate::{http, out};

pub fn main(options: &EventsOptions) -> Result<ExitCode> {
    let done = match &options.command {
        None => help(None),
        Some(EventsCommand::Help { command }) => return help_of(command.as_deref()),
        Some(EventsCommand::Serve(options)) => return serve(options),
        Some(EventsCommand::Append(options)) => append::run(options),
        Some(EventsCommand::Tail(options)) => return tail::run(options),
        Some(EventsCommand::Streams(options)) => list::streams(options),
        Some(EventsCommand::Categories(server)) => list::categories(server),
        Some(EventsCommand::Export(options)) => export::run(options),
        Some(EventsCommand::Import(options)) => return import::run(options),
        Some(EventsCommand::Backup(options)) => backup::backup(options),
        Some(EventsCommand::Restore(options)) => backup::restore(options),
        Some(EventsCommand::Verify(options)) => return maintain::verify(options),
        Some(EventsCommand::Scavenge(options)) => maintain::scavenge(options),
        Some(EventsCommand::Version) => out::line(env!("CARGO_PKG_VERSION")).map(drop),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Printed to the standard output, because the user asked for it.
fn help(name: Option<&str>) -> Result<()> {
    let mut command = Cli::command();
    command.build();
    let mut shown = command.find_subcommand_mut("events");
    if let Some(name) = name {
        shown = shown.and_then(|events| events.find_subcommand_mut(name));
    }
    if let Some(shown) = shown {
        out::text_as_is(shown.render_help())?;
    }
    Ok(())
}

fn help_of(name: Option<&str>) -> Result<ExitCode> {
    let mut command = Cli::command();
    let events = command.find_subcommand_mut("events");
    let is_known = |name: &str| events.is_some_and(|events| events.find_subcommand(name).is_some());
    if let Some(name) = name.filter(|name| !is_known(name)) {
        out::complain(format_args!(
            "thalweg: there is no command {name}; thalweg events help lists them"
        ));
        return Ok(ExitCode::from(2));
    }
    help(name)?;
    Ok(ExitCode::SUCCESS)
}

fn serve(options: &ServeOptions) -> Result<ExitCode> {
    start_logging(options);
    let settings = settings(options)?;
    let runtime = crate::runtime()?;
    let stopped = runtime.block_on(async {
        let mut signals = Signals::install()?;
        let server = match EventsServer::start(&settings).await {
            Ok(server) => server,
            Err(error) => {
                out::complain(format_args!("Error: {error:#}"));
                let code = thalweg_assemble::exit_code(&error).map_or(ExitCode::FAILURE, ExitCode::from);
                return Ok(code);
            }
        };
        say_token(server.new_token.as_ref());
        while signals.next().await == SignalRequest::Reload {
            server.reload();
        }
        signals.stop_at_once();
        server.stop().await;
        anyhow::Ok(ExitCode::SUCCESS)
    });
    runtime.shutdown_background();
    stopped
}

/// Reports where the token of a new store is.
pub fn say_token(made: Option<&GeneratedToken>) {
    match made {
        Some(GeneratedToken::Text(token)) => out::complain(format_args!("DEFAULT NAMESPACE TOKEN:\n{token}")),
        Some(GeneratedToken::Kept(path)) => tracing::info!(
            "the token of the namespace default was written to {}, which only this user can read",
            path.display()
        ),
        None => {}
    }
}

fn settings(options: &ServeOptions) -> Result<EventsServerOptions> {
    let test_mode = options.test_mode && options.db_url.is_none();
    if options.test_mode && !test_mode {
        tracing::warn!("--test-mode is ignored with --db-url: production rules apply");
    }
    if test_mode && options.data_dir.is_some() {
        tracing::warn!(
            "--test-mode keeps everything in memory: --data-dir is not used, and all messages end with this process"
        );
    }
    if options.db_type == Some(DbType::Timescale) {
        tracing::warn!("--db-type timescale is plain Postgres here");
    }
    let memory = options
        .memory_limit
        .unwrap_or_else(|| thalweg_config::memory_bytes() / 2);
    Ok(EventsServerOptions {
        port: options.port,
        address: options.address.clone().filter(|address| !address.is_empty()),
        allowed_origins: options.allow_origin.clone(),
        token_out: options.token_out.clone(),
        max_connections: options.max_connections,
        place: if test_mode {
            EventsStorage::Memory
        } else {
            place(options)?
        },
        test_mode,
        token: http::token(options.token.as_ref(), options.token_file.as_ref())?.filter(|token| !token.is_empty()),
        durability: match options.durability {
            args::DurabilityMode::Fsync => Durability::Fsync,
            args::DurabilityMode::Interval => Durability::Interval,
            args::DurabilityMode::Os => Durability::Os,
            args::DurabilityMode::Memory => Durability::Memory,
        },
        sync_interval: options.sync_interval,
        recover_skip: options.recover == RecoverMode::Skip,
        stay_when_poisoned: options.on_poison == OnPoison::Stay,
        min_free: options.min_free,
        memory,
        message_bytes_max: options.max_message_bytes as usize,
        open_admin: options.open_admin,
        metrics_per_namespace: options.metrics_per_namespace,
        insecure: options.insecure,
        tls: tls(options),
    })
}

fn tls(options: &ServeOptions) -> Option<TlsFiles> {
    Some(TlsFiles {
        cert: options.tls_cert.clone()?,
        key: options.tls_key.clone()?,
        client_ca: options.tls_client_ca.clone(),
        names: TlsNames {
            cert: "--tls-cert",
            key: "--tls-key",
            client_ca: "--tls-client-ca",
        },
    })
}

/// Where messages are stored, outside test mode.
fn place(options: &ServeOptions) -> Result<EventsStorage> {
    let place = match (&options.db_url, &options.data_dir) {
        (Some(url), _) => of_url(url, options)?,
        (None, Some(folder)) => EventsStorage::Folder(folder.clone()),
        (None, None) => bail!("--data-dir or --db-url is required (use --test-mode for in-memory testing)"),
    };
    let EventsStorage::Folder(folder) = place else {
        return Ok(place);
    };
    if options.durability != args::DurabilityMode::Memory {
        return Ok(EventsStorage::Folder(folder));
    }
    // A user who has stored messages there would not expect an empty store.
    if folder.join("log").exists() {
        let folder = folder.display();
        bail!("--durability memory stores nothing, but {folder} contains messages; use another folder or durability");
    }
    tracing::warn!("--durability memory: nothing is stored, and all messages end with this process");
    Ok(EventsStorage::Memory)
}

fn of_url(url: &str, options: &ServeOptions) -> Result<EventsStorage> {
    if let Some(folder) = url.strip_prefix("log://").or_else(|| url.strip_prefix("pebble://")) {
        anyhow::ensure!(
            !folder.is_empty(),
            "--db-url {url} names no folder; expected log:///dir"
        );
        return Ok(EventsStorage::Folder(folder.into()));
    }
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        if options.data_dir.is_some() {
            tracing::warn!("with --db-url postgres://, nothing is stored in --data-dir");
        }
        if options.durability != args::DurabilityMode::Fsync {
            tracing::warn!("with --db-url postgres://, --durability is not used: the database's guarantees apply");
        }
        return Ok(EventsStorage::Postgres(url.to_owned()));
    }
    match (url.starts_with("sqlite://"), &options.data_dir) {
        (true, Some(folder)) => Ok(EventsStorage::Folder(PathBuf::from(folder))),
        (true, None) => bail!("--db-url sqlite:// needs --data-dir"),
        (false, _) => {
            let kind = url.split("://").next().unwrap_or_default();
            bail!("--db-url {kind}://… names no known store; expected postgres://… or log:///dir")
        }
    }
}

fn start_logging(options: &ServeOptions) {
    logging::start(logging::LoggingOptions {
        level: match options.log_level {
            LogLevel::Debug => logging::LevelFilter::DEBUG,
            LogLevel::Info => logging::LevelFilter::INFO,
            LogLevel::Warn => logging::LevelFilter::WARN,
            LogLevel::Error => logging::LevelFilter::ERROR,
        },
        format: match options.log_format {
            LogFormat::Console => logging::LineFormat::Logfmt,
            LogFormat::Json => logging::LineFormat::Json,
        },
        target: logging::LogTarget::Stderr,
        add_timestamp: true,
        names: logging::LineNames::default(),
        static_fields: BTreeMap::new(),
        only_errors_of: &[],
    });
}
