//! Runs all tests of the project, with their tools, and prints one line at the end with the number of passed tests.

mod binaries;
mod source_times;
mod total;
mod unoptimised;

use std::path::PathBuf;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Result, bail};

pub(crate) use unoptimised::as_compiler;

use crate::shell::{build_binary, cargo, exists, root, run, run_watching};
use crate::{check, dist, docs, tools};
use total::TestTotal;

pub fn run_all(filter: Option<&str>) -> Result<()> {
    let tools = tools::install()?;
    source_times::restore()?;
    let begin = SystemTime::now();
    if filter.is_none() {
        check::run()?;
    }
    let binary = build_binary()?;
    if filter.is_none() {
        docs::check(&binary)?;
    }
    let mut total = TestTotal::default();

    // Unit and crate tests, and those of the whole binary.
    let tests = binaries::build(&binary)?;
    source_times::note(begin)?;
    let prepare = |command: &mut Command| {
        command.env("THALWEG_BIN", &binary);
        tools.apply(command);
    };
    let mut all_passed = binaries::run(tests, filter, prepare, |line| total.add_cargo(line))?;
    let mut examples = cargo();
    examples
        .args(["test", "--release", "--workspace", "--doc", "--no-fail-fast"])
        .env("THALWEG_BIN", &binary);
    if let Some(filter) = filter {
        examples.args(["--", filter]);
    }
    tools.apply(&mut examples);
    all_passed &= run_watching(&mut examples, |line| total.add_cargo(line))?;

    if filter.is_none() {
        if !exists("node") {
            bail!("node is not installed; on Debian: apt-get install nodejs npm");
        }
        let mut web = Command::new("node");
        // By name: the runner's handling of a folder depends on the version of Node.js.
        web.args(["--test", "--test-reporter=tap"])
            .args(web_tests()?)
            .current_dir(root());
        all_passed &= run_watching(&mut web, |line| total.add_tap(line))?;
    }
    if filter.is_none() {
        match dist::test(&binary) {
            Ok(passed) => total.passed += passed,
            Err(error) => {
                println!("the packages: FAILED: {error:#}");
                total.add_failure(&format!("the packages: {error:#}"));
            }
        }
    }
    // Last, because a log of this length is often read from its end, or kept in part.
    println!("{}\n{} passed, {} failed", total.failures(), total.passed, total.failed);
    if !all_passed || total.failed > 0 {
        bail!("tests failed");
    }
    if total.passed == 0 {
        bail!("no test ran");
    }
    Ok(())
}

/// Runs the tests of one crate, with their tools. Nothing else is built.
pub fn run_crate(name: &str, filter: Option<&str>) -> Result<()> {
    let folder = root().join("crates").join(name);
    if !folder.join("Cargo.toml").exists() {
        bail!("there is no crates/{name}; name a folder of crates");
    }
    let tools = tools::install()?;
    let mut tests = cargo();
    // The binary's package is named for the features that it turns on in dependencies: without it they would be compiled
    // anew. It has no library and no test of its own kind, so nothing of it is built.
    tests
        .args(["test", "--release", "--package", "thalweg"])
        .args(["--package", &format!("thalweg-{name}"), "--lib"]);
    if folder.join("tests").exists() {
        tests.args(["--test", "*"]);
    }
    tests.args(["--", "--quiet"]).args(filter);
    unoptimised::compile(&mut tests);
    tools.apply(&mut tests);
    run(&mut tests)
}

/// The tests of the status page.
fn web_tests() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(root().join("web"))? {
        let path = entry?.path();
        if path.to_str().is_some_and(|path| path.ends_with(".test.js")) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
