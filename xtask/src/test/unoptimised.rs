//! Compiles test programs without optimisation, which takes a fifth of the time, and with checks for overflow.
//!
//! A profile of cargo holds for a crate and for its tests alike, and the crates must be compiled only once. So this program is
//! cargo's compiler when tests are built: it passes everything on, and adds flags for what is a test program. Cargo does not
//! compile anything again for that.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

/// Set for this program as a compiler: the wrapper that the user has chosen, or nothing.
const WRAPPED: &str = "THALWEG_TESTS_RUSTC_WRAPPER";
/// Unit tests of these crates show that what is nested deeply fits into the stack, as the product is compiled.
const OPTIMISED: [&str; 2] = ["thalweg_otlp", "thalweg_query"];

/// Builds tests with this program as the compiler.
pub(super) fn compile(command: &mut Command) {
    let Ok(program) = std::env::current_exe() else { return };
    let before = std::env::var_os("RUSTC_WRAPPER").unwrap_or_default();
    command.env("RUSTC_WRAPPER", program).env(WRAPPED, before);
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

/// Of several levels the last counts.
fn more(arguments: &[OsString]) -> Vec<OsString> {
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let flags = match has("--test") {
        true if OPTIMISED.into_iter().any(has) => &["-C", "debuginfo=0", "-C", "debug-assertions=on"][..],
        true => &["-C", "debuginfo=0", "-C", "debug-assertions=on", "-C", "opt-level=0"],
        false => &[],
    };
    flags.iter().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_test_programs_are_compiled_without_optimisation() {
        let flags = |line: &str| {
            let more = more(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
            more.join(" ".as_ref()).into_string().unwrap_or_default()
        };
        let optimised = "-C debuginfo=0 -C debug-assertions=on";
        assert_eq!(
            flags("rustc --crate-name thalweg_log --test -C opt-level=3"),
            format!("{optimised} -C opt-level=0")
        );
        assert_eq!(flags("rustc --crate-name thalweg_query --test"), optimised);
        assert_eq!(flags("rustc --crate-name test -C opt-level=3"), "");
        assert_eq!(flags("rustc -vV"), "");
    }
}
