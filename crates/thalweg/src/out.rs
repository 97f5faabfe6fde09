//! Output for people, whose pipes may close at any time, as in `thalweg list | head -1`. The `print` macros would panic
//! then.

use std::fmt::Display;
use std::io::{BufRead as _, ErrorKind, IsTerminal as _, Write as _};

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

/// Whether to go on with what cannot be undone: asks whoever sits at a terminal, unless `yes` says so already. A script is
/// not asked, because nobody would answer.
pub fn is_meant(what: impl Display, yes: bool) -> anyhow::Result<bool> {
    match yes || !std::io::stdin().is_terminal() {
        true => Ok(true),
        false => ask(what),
    }
}

/// Asks in any case. `y` and `yes` are a yes.
pub fn ask(what: impl Display) -> anyhow::Result<bool> {
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "{what} Continue? [y/N] ");
    let _ = stderr.flush();
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.context("cannot read the answer")?;
    let is_yes = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    if !is_yes {
        let _ = writeln!(stderr, "nothing was changed");
    }
    Ok(is_yes)
}
