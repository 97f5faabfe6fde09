//! SIGINT and SIGTERM: the first asks for an orderly stop, the second ends the process at once.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::out;

/// The handlers, in place from the moment this is made: before anything runs that a signal must not cut off.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    pub fn install() -> Result<StopSignals> {
        let install = |kind| signal(kind).context("cannot handle signals");
        Ok(StopSignals {
            interrupt: install(SignalKind::interrupt())?,
            terminate: install(SignalKind::terminate())?,
        })
    }

    /// Returns at the first signal. From then on another one exits with code 1.
    pub async fn stop(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            out::complain(
                "thalweg: stopped at once by a second signal; what was not acknowledged will be sent again by its source",
            );
            std::process::exit(1);
        });
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
