//! SIGINT and SIGTERM: the first requests an orderly stop, the second ends the process at once. SIGHUP requests a
//! reload. SIGXFSZ: a write exceeds the file size limit, and fails like on a full disk.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::out;

/// The signal handlers. Install them before anything starts that a signal must not cut off.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    /// Never awaited; without a handler the signal would end the process.
    _file_size: Signal,
}

/// What a signal requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SignalRequest {
    Stop,
    Reload,
}

impl Signals {
    pub fn install() -> Result<Signals> {
        let install = |kind| signal(kind).context("cannot handle signals");
        Ok(Signals {
            interrupt: install(SignalKind::interrupt())?,
            terminate: install(SignalKind::terminate())?,
            hangup: install(SignalKind::hangup())?,
            _file_size: install(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?,
        })
    }

    pub async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.interrupt.recv() => SignalRequest::Stop,
            _ = self.terminate.recv() => SignalRequest::Stop,
            _ = self.hangup.recv() => SignalRequest::Reload,
        }
    }

    /// Returns at the first signal to stop.
    pub async fn stop(mut self) {
        while self.next().await != SignalRequest::Stop {}
        self.stop_at_once();
    }

    /// From now on another signal to stop exits with code 1.
    pub fn stop_at_once(mut self) {
        tokio::spawn(async move {
            while self.next().await != SignalRequest::Stop {}
            out::complain(
                "thalweg: stopped at once by a second signal; the sources send unacknowledged messages again",
            );
            std::process::exit(1);
        });
    }
}
