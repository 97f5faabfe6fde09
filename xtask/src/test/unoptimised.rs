//! Compiles test programs without optimisation, which takes a fifth of the time, and with checks for overflow.
//!
//! A profile of cargo holds for a crate and for its tests alike, and the crates must be compiled only once. So this program is
//! cargo's compiler when tests are built: it passes everything on, and adds a flag for what is a test program. Cargo does not
//! compile anything again for that.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// Set for this program as a compiler: the wrapper that the user has chosen, or nothing.
const WRAPPED: &str = "THALWEG_TESTS_RUSTC_WRAPPER";
/// Without optimisation a call takes several times as much of the stack. Threads of a program have 2 MiB.
const STACK: &str = "16777216";

/// Builds tests with this program as the compiler.
pub(super) fn compile(command: &mut Command) {
    let Ok(program) = std::env::current_exe() else { return };
    let before = std::env::var_os("RUSTC_WRAPPER").unwrap_or_default();
    command.env("RUSTC_WRAPPER", program).env(WRAPPED, before);
}

/// Runs unit tests, in which the code of the crate itself is not optimised.
pub(super) fn run(command: &mut Command) {
    command.env("RUST_MIN_STACK", STACK);
}

/// If cargo has started this program as the compiler: the arguments are the compiler and its arguments.
pub(crate) fn as_compiler() -> Option<ExitCode> {
    let wrapper = std::env::var_os(WRAPPED)?;
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if !wrapper.is_empty() {
        words.insert(0, wrapper);
    }
    words.extend(more(&words));
    let (compiler, arguments) = words.split_first()?;
    let error = Command::new(compiler).args(arguments).env_remove(WRAPPED).exec();
    eprintln!("cannot start {}: {error}", compiler.display());
    Some(ExitCode::FAILURE)
}

/// The last level counts.
fn more(arguments: &[OsString]) -> Vec<OsString> {
    let is_test = arguments.iter().any(|argument| argument == "--test");
    let flags = if is_test { &["-C", "opt-level=0"][..] } else { &[] };
    flags.iter().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_programs_are_compiled_without_optimisation() {
        let flags = |line: &str| more(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(
            flags("rustc --crate-name a --test -C opt-level=3"),
            ["-C", "opt-level=0"]
        );
        assert!(flags("rustc --crate-name test -C opt-level=3").is_empty());
        assert!(flags("rustc -vV").is_empty());
    }
}
