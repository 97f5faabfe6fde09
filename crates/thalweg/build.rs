//! Sets `THALWEG_BUILT` to the time of the current commit in seconds since 1970, which `/version` shows as a date. So two
//! builds of one commit report the same. Sources without a repository use `SOURCE_DATE_EPOCH`, or else the build time.
//!
//! It runs again only when the commit changes: Git writes the log of its HEAD at each commit, checkout and reset.

#![allow(clippy::print_stdout, reason = "this is how Cargo is told")]

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    // A path that does not exist would rerun it at every build.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])
        && std::path::Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let seconds: u64 = given
        .or_else(|| git(&["log", "-1", "--format=%ct"]))
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or_else(|| {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs())
        });
    println!("cargo::rustc-env=THALWEG_BUILT={seconds}");
}

/// The output of a Git command in this crate's folder, if Git and a repository exist.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
