//! Output for people, whose pipes may close at any time, as in `thalweg list | head -1`. The `print` macros would panic
//! then.

use std::fmt::Display;
use std::io::{ErrorKind, Write as _};

use anyhow::Context as _;

/// Writes a line to the standard output. Returns `false` once its reader has left, which is not an error.
pub fn line(text: impl Display) -> anyhow::Result<bool> {
    text_as_is(format_args!("{text}\n"))
}

/// Writes without a line end.
pub fn text_as_is(text: impl Display) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to the standard output"),
    }
}

/// Writes a line to the standard error. A failure cannot be reported to anyone.
pub fn complain(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
