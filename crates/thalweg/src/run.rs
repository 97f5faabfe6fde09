//! `thalweg run`: starts everything that a configuration file configures, and stops it in order.

use std::process::ExitCode;

use thalweg_assemble::{CheckedConfig, Process, ShutdownReport};
use thalweg_telemetry::logging;

use crate::cli::RunOptions;
use crate::signals::{SignalRequest, Signals};
use crate::{check, out};

pub fn main(options: &RunOptions) -> anyhow::Result<ExitCode> {
    let Some(checked) = check::load(&options.file)? else {
        return Ok(ExitCode::FAILURE);
    };
    start_logging(&checked, options)?;
    let runtime = crate::runtime()?;
    let stopped = runtime.block_on(async {
        let signals = Signals::install()?;
        let process = Process::start(checked, &crate::built()).await?;
        if let Some(address) = process.url() {
            tracing::info!("status page at {address}");
        }
        crate::events::say_token(process.new_events_token.as_ref());
        tokio::select! {
            () = until_stopped(signals, &process, options) => tracing::info!("stopping: delivering messages in flight"),
            () = process.ended() => {}
        }
        anyhow::Ok(process.stop().await)
    });
    // A read of the standard input may still block a thread; there is nothing left to wait for.
    runtime.shutdown_background();
    Ok(exit_code(&stopped?))
}

/// Reloads the file at each request. Returns when the process has to stop.
async fn until_stopped(mut signals: Signals, process: &Process, options: &RunOptions) {
    while signals.next().await == SignalRequest::Reload {
        // Logins are checked when they are replaced, and listeners do not change.
        let reloaded = match check::load_without_listeners(&options.file) {
            Ok(Some(checked)) => process.reload(&checked).await,
            Ok(None) => Err(anyhow::anyhow!("it has errors")),
            Err(error) => Err(error),
        };
        match reloaded {
            Ok(reloaded) => {
                if !reloaded.applied.is_empty() {
                    tracing::info!("the file was read again; in force: {}", reloaded.applied.join(", "));
                }
                if !reloaded.needs_restart.is_empty() {
                    let keys = reloaded.needs_restart.join(", ");
                    tracing::warn!("the file was read again; changes of these keys need a restart: {keys}");
                }
                if reloaded.applied.is_empty() && reloaded.needs_restart.is_empty() {
                    tracing::info!("the file was read again; nothing has changed");
                }
            }
            Err(error) => tracing::error!("the file was read again, but none of it is in force: {error:#}"),
        }
    }
    signals.stop_at_once();
}

/// Logs the balance of each flow. Returns 0 if every message was acknowledged.
pub fn exit_code(stopped: &ShutdownReport) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for report in &stopped.flows {
        tracing::info!(flow = report.flow, "{}", report.counts);
        if report.unacknowledged > 0 {
            let n = report.unacknowledged;
            out::complain(format_args!(
                "thalweg: flow {}: {n} messages were not acknowledged within shutdown_timeout",
                report.flow
            ));
            code = ExitCode::FAILURE;
        }
        if let Some(why) = &report.failure {
            out::complain(format_args!("thalweg: flow {} failed: {why}", report.flow));
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn start_logging(checked: &CheckedConfig, options: &RunOptions) -> anyhow::Result<()> {
    let mut logger = checked.logging();
    if let Some(name) = &options.log_level {
        logger.level = logging::level(name)
            .ok_or_else(|| anyhow::anyhow!("--log.level takes one of {}; got {name}", logging::LEVELS.join(", ")))?;
    }
    if let Some(file) = checked.log_file()? {
        logger.target = logging::LogTarget::File(file);
    }
    logging::start(logger);
    Ok(())
}
