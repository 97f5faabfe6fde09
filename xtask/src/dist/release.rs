//! Properties of a release: version, commit, time, and the crates in the binary.

use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::programs::{english, output};
use crate::shell::{cargo, root};

/// The target triple; dependencies of other systems are excluded.
const TARGET: &str = "x86_64-unknown-linux-gnu";

pub struct Release {
    pub version: String,
    /// Seconds since 1970, the time of every file in the packages.
    pub epoch: u64,
    pub commit: String,
    /// The output of `cargo metadata`.
    pub metadata: Value,
}

impl Release {
    pub fn read() -> Result<Release> {
        let metadata = output(cargo().args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--filter-platform",
            TARGET,
        ]))?;
        let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata printed no JSON")?;
        Ok(Release {
            version: version(&metadata)?,
            epoch: epoch()?,
            commit: git(&["rev-parse", "HEAD"])?,
            metadata,
        })
    }

    /// Debian's form: a pre-release sorts before its release only after a tilde.
    pub fn debian_version(&self) -> String {
        self.version.replacen('-', "~", 1)
    }

    /// The time of the commit, in a format of the program `date`: `-R` for mails, `+%F %T`.
    pub fn date(&self, form: &str) -> Result<String> {
        let at = format!("@{}", self.epoch);
        let text = output(english("date").args(["--utc", "--date", &at, form]))?;
        Ok(text.trim().to_owned())
    }
}

fn version(metadata: &Value) -> Result<String> {
    let packages = metadata["packages"].as_array();
    let own = packages
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "thalweg" && package["source"].is_null());
    let version = own.and_then(|package| package["version"].as_str());
    Ok(version
        .context("cargo metadata names no version of thalweg")?
        .to_owned())
}

/// `SOURCE_DATE_EPOCH`, as defined by reproducible-builds.org, or the time of the last commit.
fn epoch() -> Result<u64> {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let text = match given {
        Some(given) => given,
        None => git(&["log", "-1", "--format=%ct"])
            .context("without a repository, set SOURCE_DATE_EPOCH to the time of the release in seconds since 1970")?,
    };
    let seconds = text.trim().parse::<u64>();
    seconds.with_context(|| format!("SOURCE_DATE_EPOCH is {text:?}; give seconds since 1970"))
}

fn git(arguments: &[&str]) -> Result<String> {
    let text = output(Command::new("git").args(arguments).current_dir(root()))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_own_crate() {
        let metadata = serde_json::json!({"packages": [
            {"name": "thalweg", "version": "9.9.9", "source": "registry+https://example.org"},
            {"name": "thalweg", "version": "0.2.0-rc.1", "source": null},
        ]});
        let release = Release {
            version: version(&metadata).unwrap(),
            epoch: 0,
            commit: String::new(),
            metadata,
        };
        assert_eq!(release.version, "0.2.0-rc.1");
        assert_eq!(release.debian_version(), "0.2.0~rc.1");
        assert!(version(&serde_json::json!({})).is_err());
    }
}
