//! Runs the installed program with the installed configuration, as the unit starts it: it must become ready, report its
//! version, and end cleanly at SIGTERM.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use ureq::Agent;

use super::{PackageChecks, UnpackedPackage};
use crate::dist::contents::{CONFIG, read};
use crate::dist::release::Release;

/// Longer than a start on an empty folder takes on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Longer than `shutdown_timeout`, and equal to the timeout of the unit.
const STOPPED_WITHIN: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Other programs on this machine may use the default ports.
const ADDRESSES: [&str; 3] = ["http.address", "ingest.otlp.grpc.address", "ingest.otlp.http.address"];

/// Ends when this value is dropped, whatever the result of the checks.
struct StartedService {
    child: Child,
    data: PathBuf,
    log: PathBuf,
}

pub fn runs(checks: &mut PackageChecks, deb: &UnpackedPackage, scratch: &Path, release: &Release) -> Result<()> {
    let mut service = StartedService::start(deb, scratch)?;
    service.wait_ready()?;
    checks.pass("the installed program with the installed configuration: /ready");
    let version: Value = serde_json::from_str(&service.get("/version")?).context("/version is no JSON")?;
    ensure!(
        version["version"] == release.version.as_str(),
        "/version says {version}, not {}",
        release.version
    );
    checks.pass("the same: /version");
    let status = service.stop()?;
    ensure!(
        status.success(),
        "after SIGTERM it ended with {status}:\n{}",
        service.said()
    );
    checks.pass("the same: SIGTERM, exit code 0");
    Ok(())
}

impl StartedService {
    fn start(package: &UnpackedPackage, scratch: &Path) -> Result<StartedService> {
        let (data, log) = (scratch.join("data"), scratch.join("log"));
        let file = std::fs::File::create(&log)?;
        let mut command = Command::new(package.program());
        command.arg("run").arg(package.root.join(CONFIG));
        for address in ADDRESSES {
            command.arg("-s").arg(format!("{address}=127.0.0.1:0"));
        }
        command
            .arg("-s")
            .arg(format!("data_dir={}", data.display()))
            // One prepared log file instead of four: 128 MiB each.
            .args(["-s", "log.commit.spare=1"])
            // Like systemd: without the caller's environment.
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir(scratch)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let child = command.spawn().context("cannot start the installed program")?;
        Ok(StartedService { child, data, log })
    }

    fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            let why = match self.get("/ready") {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            if let Some(status) = self.child.try_wait()? {
                bail!("the installed program ended ({status}):\n{}", self.said());
            }
            if Instant::now() >= deadline {
                let seconds = READY_WITHIN.as_secs();
                bail!("not ready after {seconds} s: {why:#}\n{}", self.said());
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
    }

    /// Requests the address that the process records in its data folder.
    fn get(&self, path: &str) -> Result<String> {
        let lock: Value = serde_json::from_str(&read(&self.data.join("LOCK"))?)?;
        let address = lock["http"].as_str().context("no address in the lock file")?;
        let agent: Agent = Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(5)))
            .build()
            .into();
        let mut answer = agent.get(format!("http://{address}{path}")).call()?;
        Ok(answer.body_mut().read_to_string()?)
    }

    fn stop(&mut self) -> Result<ExitStatus> {
        let id = self.child.id().to_string();
        let asked = Command::new("kill").args(["-TERM", &id]).status()?;
        ensure!(asked.success(), "cannot send SIGTERM ({asked})");
        let deadline = Instant::now() + STOPPED_WITHIN;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(BETWEEN_LOOKS);
        }
        bail!(
            "it still runs {} s after SIGTERM:\n{}",
            STOPPED_WITHIN.as_secs(),
            self.said()
        )
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for StartedService {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
