//! Queries a Python script; tests of several packages include this file.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Passes a list to a script, which reads JSON to its end and then writes a list of as many answers. `script` is relative to the
/// folder of the package.
pub fn ask(script: &str, questions: &[Value]) -> Vec<Value> {
    // Cargo passes the package's folder at each run; the value at build time may be another clone.
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let mut process = Command::new(python())
        .arg(own.join(script))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = process.stdin.take().unwrap();
    input.write_all(&serde_json::to_vec(questions).unwrap()).unwrap();
    drop(input);
    let output = process.wait_with_output().unwrap();
    assert!(output.status.success(), "its complaint stands above");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// With the packages of the tests.
fn python() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let python = std::env::var_os("THALWEG_TEST_PYTHON").map(PathBuf::from);
    let python = python.unwrap_or_else(|| cache.unwrap_or_default().join("thalweg/venv/bin/python"));
    assert!(
        python.exists(),
        "the test needs Python packages; install them with: cargo xtask tools"
    );
    python
}
