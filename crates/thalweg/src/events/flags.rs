//! Accepts flags of `thalweg events` like the reference system's command line: with one dash or two, and those of
//! `serve` also without that word. Errors show the usage.

use std::ffi::{OsStr, OsString};

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Gives flags two dashes, and adds `serve` if there are only flags. Other arguments, such as `-1`, `-` and whatever
/// follows `--`, stay as they are.
pub fn long(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    if !is_events(&args) {
        return args;
    }
    let given = args.iter_mut().skip(2).take_while(|arg| *arg != "--");
    for arg in given.filter(|arg| is_short(arg)) {
        let mut long = OsString::from("-");
        long.push(&*arg);
        *arg = long;
    }
    let first = args.get(2).map(OsString::as_os_str).unwrap_or_default();
    let asks_help = first == "-h" || first == "--help";
    if first.as_encoded_bytes().starts_with(b"-") && !asks_help {
        args.insert(2, "serve".into());
    }
    args
}

/// Matches `-port`, but not `-h`.
fn is_short(arg: &OsStr) -> bool {
    match arg.as_encoded_bytes() {
        [b'-', first, _, ..] => first.is_ascii_alphabetic(),
        _ => false,
    }
}

fn is_events(args: &[OsString]) -> bool {
    args.get(1).is_some_and(|command| command == "events")
}

/// Adds the usage to errors about values of `thalweg events`, as clap does for unknown flags.
pub fn with_usage(mut error: clap::Error, args: &[OsString], command: &mut Command) -> clap::Error {
    let about_value = matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue);
    if !is_events(args) || !about_value || error.get(ContextKind::Usage).is_some() {
        return error;
    }
    let name = args.get(2).and_then(|name| name.to_str()).unwrap_or_default();
    let within = command.find_subcommand_mut("events");
    if let Some(used) = within.and_then(|events| events.find_subcommand_mut(name)) {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(used.render_usage()));
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(args: &str) -> String {
        let all = std::iter::once("thalweg").chain(args.split_whitespace());
        let long: Vec<_> = long(all.map(OsString::from)).into_iter().skip(1).collect();
        long.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn one_dash_is_as_good_as_two_and_serve_may_be_left_out() {
        for (given, expected) in [
            ("events serve -port 1 --token=x", "events serve --port 1 --token=x"),
            ("events -test-mode", "events serve --test-mode"),
            ("events --port=1", "events serve --port=1"),
            ("events", "events"),
            ("events -h", "events -h"),
            ("events -help", "events --help"),
            ("events version", "events version"),
            (
                "events append s -expected-version -1 -input -",
                "events append s --expected-version -1 --input -",
            ),
            ("events append --type t -- -x-y", "events append --type t -- -x-y"),
            ("run -c f.yaml -set a", "run -c f.yaml -set a"),
        ] {
            assert_eq!(seen(given), expected, "{given}");
        }
    }
}
