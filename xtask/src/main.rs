//! The project's own tasks. They are written in Rust so that a fresh machine needs only cargo to start; each task
//! installs what else it needs.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool prints to its user"
)]

mod bench;
mod build_time;
mod check;
mod dist;
mod docs;
mod shell;
mod soak;
mod test;
mod tools;

use std::process::ExitCode;

const USAGE: &str = "\
Tasks of the Thalweg project

usage: cargo xtask <task>

  check               formatting, lints, licences and structural rules
  test [FILTER]       everything: checks, installs and starts what the tests need, runs all tests; prints how many passed
                      with FILTER: only the Rust tests whose name contains it
  test-crate NAME [FILTER]
                      the tests of one crate, without building the binary: after a change in a leaf crate, within a minute
  tools               installs what the tests need (Python and Node packages, chromium, openssl, curl, gdb, shells, groff, postgresql, Kafka) and nothing else
  bench NAME [--quick] [--json FILE] [--only WORD]
                      NAME: collect, tags, queue, events, events-scale, lake
                      collect --steady [--minutes N]: long runs, every value checked
                      lake --input FILE, --cooked [--rows N]: with your own requests; with a table of many rows
                      THALWEG_BIN names the binary of rows that start one: two binaries are compared in one run
  soak [--for 1h] [--out FOLDER]
                      everything at once, with probes every second: all acknowledged data is there, memory is flat, no probe is slow;
                      THALWEG_BIN names an existing binary
  docs                writes docs/reference from the code
  build-time          builds the product from nothing, and prints what each group of crates costs
  dist [--out FOLDER] [--check]
                      the stripped binary, a .tar.gz and a .deb of it, below target/dist; --check unpacks and tests them;
                      THALWEG_BIN names an existing binary
";

fn main() -> ExitCode {
    if let Some(done) = test::as_compiler() {
        return done;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["check"] => check::run(),
        ["test"] => test::run_all(None),
        ["test", filter] => test::run_all(Some(filter)),
        ["test-crate", name] => test::run_crate(name, None),
        ["test-crate", name, filter] => test::run_crate(name, Some(filter)),
        ["tools"] => tools::install().map(drop),
        ["bench", rest @ ..] => bench::run(rest),
        ["soak", rest @ ..] => soak::run(rest),
        ["dist", rest @ ..] => dist::run(rest),
        ["docs"] => docs::write(),
        ["build-time"] => build_time::show(),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nxtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
