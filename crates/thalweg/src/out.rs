//! Writing for people, whose pipes may close at any time: `thalweg list | head -1`. The `print` macros panic then.

use std::fmt::Display;
use std::io::{ErrorKind, Write as _};

use anyhow::Context as _;

/// Writes a line to the standard output. `false` once its reader has left: then there is nobody to write for, which is no
/// mistake.
pub fn line(text: impl Display) -> anyhow::Result<bool> {
    text_as_is(format_args!("{text}\n"))
}

/// The same without an end of line.
pub fn text_as_is(text: impl Display) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("cannot write to the standard output"),
    }
}

/// Writes a line to the standard error. If nobody can read it, nobody can be told.
pub fn complain(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
