//! Runs test binaries in parallel: many wait for clocks, disks and other processes, and leave a core to others meanwhile.

use std::io::Write as _;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::unoptimised;
use crate::shell::{cargo, describe};

/// Number of binaries that run at a time.
const LANES: usize = 3;
/// These start first, in this order: the longest, then those that wait most, so that they wait beside it. What needs the cores
/// comes after them. The names are those that are printed.
const FIRST: [&str; 7] = [
    LONGEST,
    "assemble: simulation",
    "kafka: suite",
    "opcua: suite",
    "events-postgres: suite",
    "query: functions",
    "script: unit",
];
/// Its tests wait for other processes half of their time, so more of them run at once than there are cores.
const LONGEST: &str = "tests: e2e";
const LONGEST_TESTS_PER_CORE: usize = 2;

/// One test program.
pub(super) struct TestBinary {
    name: String,
    /// The folder of the package, in which cargo starts its tests.
    folder: PathBuf,
    program: PathBuf,
}

/// Builds all test binaries of the workspace.
pub(super) fn build(binary: &Path) -> Result<Vec<TestBinary>> {
    let mut build = cargo();
    build
        // Without `--tests` cargo would build the examples, too; the lints compile them.
        .args(["test", "--release", "--workspace", "--tests", "--no-run"])
        .arg("--message-format=json-render-diagnostics")
        .env("THALWEG_BIN", binary);
    unoptimised::compile(&mut build);
    println!("\n$ {}", describe(&build));
    let start = Instant::now();
    let output = build.stdout(Stdio::piped()).stderr(Stdio::inherit()).output()?;
    println!("  ({:.0} s)", start.elapsed().as_secs_f64());
    if !output.status.success() {
        bail!("the tests cannot be built");
    }
    let mut all: Vec<TestBinary> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(of_message)
        .collect();
    if all.is_empty() {
        bail!("cargo built no tests");
    }
    all.sort_by_key(|test| (test.rank(), test.name.clone()));
    Ok(all)
}

/// Parses a line of cargo that announces a test binary.
fn of_message(line: &str) -> Option<TestBinary> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let program = message["executable"].as_str().filter(|_| is_test)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = folder.file_name()?.to_string_lossy();
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
    Some(TestBinary {
        name: match kind {
            "test" => format!("{package}: {target}"),
            _ => format!("{package}: unit tests of {target}"),
        },
        folder: folder.to_owned(),
        program: program.into(),
    })
}

/// Runs all of them, and passes each line of their output to `see`, grouped by binary. Returns whether all passed.
pub(super) fn run(
    tests: Vec<TestBinary>,
    filter: Option<&str>,
    prepare: impl Fn(&mut Command) + Sync,
    see: impl FnMut(&str) + Send,
) -> Result<bool> {
    let (total, start) = (tests.len(), Instant::now());
    let queue = Mutex::new(tests.into_iter());
    let told = Mutex::new((0, see));
    let lane = || -> Result<bool> {
        let mut all_passed = true;
        loop {
            // The lock is not held while the test runs.
            let next = queue
                .lock()
                .map_err(|_| anyhow::anyhow!("a test thread panicked"))?
                .next();
            let Some(test) = next else {
                return Ok(all_passed);
            };
            let (passed, output, seconds) = test.run(filter, &prepare)?;
            all_passed &= passed;
            let mut told = told.lock().map_err(|_| anyhow::anyhow!("a test thread panicked"))?;
            told.0 += 1;
            println!(
                "\n{} ({} of {total}, {seconds:.0} s, {:.0} s since the first){}",
                test.name,
                told.0,
                start.elapsed().as_secs_f64(),
                if passed { "" } else { ": FAILED" }
            );
            std::io::stdout().lock().write_all(output.as_bytes())?;
            output.lines().for_each(|line| (told.1)(line));
        }
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        let mut all_passed = true;
        for lane in lanes {
            all_passed &= lane.join().map_err(|_| anyhow::anyhow!("a test thread panicked"))??;
        }
        Ok(all_passed)
    })
}

impl TestBinary {
    fn is_longest(&self) -> bool {
        self.name == LONGEST
    }

    /// The position among those that start first, or the end.
    fn rank(&self) -> usize {
        let first = FIRST.iter().position(|first| self.name.starts_with(first));
        first.unwrap_or(FIRST.len())
    }

    fn run(&self, filter: Option<&str>, prepare: &impl Fn(&mut Command)) -> Result<(bool, String, f64)> {
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.folder)
            // As cargo does.
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .args(filter)
            .stdin(Stdio::null());
        if self.is_longest() {
            let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
            command.arg(format!("--test-threads={}", LONGEST_TESTS_PER_CORE * cores));
        }
        prepare(&mut command);
        let start = Instant::now();
        let output = command
            .output()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            text.push_str(&format!("{}: {}\n", self.name, output.status));
        }
        Ok((output.status.success(), text, start.elapsed().as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_says_of_test_binaries_is_read_and_all_else_is_passed_over() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/log/Cargo.toml",
            "target":{"kind":["test"],"name":"suite"},"profile":{"test":true},"executable":"/t/suite-1"}"#;
        let test = of_message(&line.replace('\n', "")).map(|test| (test.name, test.folder, test.program));
        assert_eq!(
            test,
            Some(("log: suite".to_owned(), "/w/crates/log".into(), "/t/suite-1".into()))
        );
        for other in [
            line.replace("\"test\":true", "\"test\":false"),
            line.replace("\"/t/suite-1\"", "null"),
            "warning: unused".to_owned(),
        ] {
            assert!(of_message(&other.replace('\n', "")).is_none(), "{other}");
        }
    }
}
