//! Errors of a simulator's start, as sentences an operator can act on.

use std::io;
use std::path::PathBuf;

/// A failed start.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorError {
    #[error("simulator option {option}: {cure}")]
    Option { option: &'static str, cure: &'static str },
    #[error("cannot listen on {address} for {purpose}: {source}; choose another port or stop the program that uses it")]
    Listen {
        address: String,
        purpose: &'static str,
        source: io::Error,
    },
    #[error("cannot create the certificate folder {}: {source}", path.display())]
    Pki { path: PathBuf, source: io::Error },
    #[error("the server has no certificate in {}; see the log for the reason, or switch the secured endpoints off", .0.display())]
    Certificate(PathBuf),
    #[error("the OPC UA server did not start: {0}")]
    Server(String),
}
