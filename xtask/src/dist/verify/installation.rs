//! Installs the .deb for real, on a copy of this machine that exists only for the test (`install.sh`): the package's scripts
//! make the user, the command of the unit runs as that user, and removal keeps what it must keep. The symbols are installed
//! from their own package.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::PackageChecks;
use super::service::ServiceAddress;
use crate::dist::Packages;
use crate::dist::programs::{english, output};
use crate::dist::release::Release;
use crate::shell::exists;

const WHAT: &str = "the .deb, installed";
/// The namespaces of the copy. The service ends with the script, whatever happens to it.
const NAMESPACES: [&str; 5] = ["unshare", "--mount", "--pid", "--fork", "--kill-child"];

pub fn works(checks: &mut PackageChecks, made: &Packages, scratch: &Path, release: &Release) -> Result<()> {
    for (program, package) in [("adduser", "adduser"), ("setpriv", "util-linux")] {
        if !checks.can(program, package, WHAT) {
            return Ok(());
        }
    }
    let Some(words) = namespaces() else {
        let why = "this user may not make file systems of its own, nor call sudo without a password";
        checks.undone.push(format!("{WHAT}: {why}"));
        return Ok(());
    };
    let (script, folder) = (scratch.join("install.sh"), scratch.join("machine"));
    std::fs::write(&script, include_str!("install.sh"))?;
    std::fs::create_dir(&folder)?;
    let mut command = english(&words[0]);
    command.args(&words[1..]).arg("sh").arg(&script).arg(&folder);
    command.args([&made.deb, &made.symbols_deb]);
    let log = scratch.join("install.log");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(File::create(&log)?);
    let mut child = command.spawn().context("cannot start the installation")?;
    let followed = follow(checks, &mut child, scratch, release);
    // Without its input the script does not wait any more.
    drop(child.stdin.take());
    let status = child.wait()?;
    let said = || {
        format!(
            "{WHAT}:\n{}",
            std::fs::read_to_string(&log).unwrap_or_default().trim_end()
        )
    };
    followed.with_context(said)?;
    ensure!(status.success(), "{} ({status})", said());
    Ok(())
}

/// The words before a command that give it namespaces of its own, if this user can have them.
fn namespaces() -> Option<Vec<String>> {
    let with = |before: &[&str]| {
        let words: Vec<String> = before.iter().chain(&NAMESPACES).map(|&word| word.to_owned()).collect();
        let tried = Command::new(&words[0])
            .args(&words[1..])
            .args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        tried.is_ok_and(|status| status.success()).then_some(words)
    };
    let as_root = output(english("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    match as_root {
        true => with(&[]),
        false if exists("sudo") => with(&["sudo", "-n"]),
        false => None,
    }
}

/// Reads what the script says, and asks the service while it runs.
fn follow(checks: &mut PackageChecks, child: &mut Child, scratch: &Path, release: &Release) -> Result<()> {
    let said = child.stdout.take().context("the script has no output")?;
    let mut steps = 0;
    for line in BufReader::new(said).lines() {
        let line = line?;
        match line.split_once(' ') {
            Some(("ok", what)) => {
                checks.pass(format_args!("{WHAT}: {what}"));
                steps += 1;
            }
            Some(("lock", lock)) => {
                let service = ServiceAddress::of_lock(lock)?;
                service.wait_ready(|| Ok(()))?;
                service.has_version(release)?;
                service.profile_has_names(scratch)?;
                checks.pass(format_args!("{WHAT}: /ready, /version, a CPU profile with names"));
                let stdin = child.stdin.as_mut().context("the script has no input")?;
                writeln!(stdin)?;
            }
            _ => bail!("the script said {line:?}"),
        }
    }
    ensure!(steps == 3, "{WHAT}: {steps} of 3 steps were made");
    Ok(())
}
