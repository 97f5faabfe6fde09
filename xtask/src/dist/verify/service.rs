//! Runs the unpacked program with the packaged configuration, as the unit starts it: it must become ready, report its
//! version, and end cleanly at SIGTERM. With the symbols beside it, its CPU profiles must name functions.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use ureq::Agent;

use super::{PackageChecks, UnpackedPackage};
use crate::dist::binary::SYMBOLS;
use crate::dist::contents::{CONFIG, read};
use crate::dist::programs::{english, output_to};
use crate::dist::release::Release;

/// Longer than a start on an empty folder takes on a busy machine.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Longer than `shutdown_timeout`, and equal to the timeout of the unit.
const STOPPED_WITHIN: Duration = Duration::from_secs(60);
/// Longer than the look-up of names takes after a profile.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Other programs on this machine may use the default ports.
const ADDRESSES: [&str; 3] = ["http.address", "ingest.otlp.grpc.address", "ingest.otlp.http.address"];

/// Where a running service listens.
pub(super) struct ServiceAddress(String);

/// Ends when this value is dropped, whatever the result of the checks.
struct StartedService {
    child: Child,
    data: PathBuf,
    log: PathBuf,
}

pub fn runs(
    checks: &mut PackageChecks,
    name: &str,
    package: &UnpackedPackage,
    scratch: &Path,
    release: &Release,
) -> Result<()> {
    let what = format!("{name}: its program with its configuration");
    let mut service = StartedService::start(package, scratch)?;
    let address = service.wait_ready()?;
    checks.pass(format_args!("{what}: /ready"));
    address.has_version(release)?;
    checks.pass(format_args!("{what}: /version"));
    if package.below_prefix("bin/.debug").join(SYMBOLS).is_file() {
        address.profile_has_names(scratch)?;
        checks.pass(format_args!("{what}: a CPU profile with the names of functions"));
    }
    let status = service.stop()?;
    ensure!(
        status.success(),
        "after SIGTERM it ended with {status}:\n{}",
        service.said()
    );
    checks.pass(format_args!("{what}: SIGTERM, exit code 0"));
    Ok(())
}

impl ServiceAddress {
    /// Reads the lock file of a data folder.
    pub fn of_lock(text: &str) -> Result<ServiceAddress> {
        let lock: Value = serde_json::from_str(text)?;
        let address = lock["http"].as_str().context("no address in the lock file")?;
        Ok(ServiceAddress(address.to_owned()))
    }

    /// Waits until it is ready, or `still_runs` fails.
    pub fn wait_ready(&self, mut still_runs: impl FnMut() -> Result<()>) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        while let Err(why) = self.get("/ready") {
            still_runs()?;
            let seconds = READY_WITHIN.as_secs();
            ensure!(Instant::now() < deadline, "not ready after {seconds} s: {why:#}");
            std::thread::sleep(BETWEEN_LOOKS);
        }
        Ok(())
    }

    pub fn has_version(&self, release: &Release) -> Result<()> {
        let version: Value = serde_json::from_str(&self.get("/version")?).context("/version is no JSON")?;
        ensure!(
            version["version"] == release.version.as_str(),
            "/version says {version}, not {}",
            release.version
        );
        Ok(())
    }

    /// Takes a CPU profile of a second in which the service writes its metrics again and again.
    pub fn profile_has_names(&self, scratch: &Path) -> Result<()> {
        let is_done = AtomicBool::new(false);
        let profile = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    // What fails here fails for the profile too.
                    let _ = self.get("/metrics");
                }
            });
            let profile = self.bytes("/debug/pprof/profile?seconds=1");
            is_done.store(true, Ordering::Relaxed);
            profile
        })?;
        let file = scratch.join("profile.gz");
        std::fs::write(&file, profile)?;
        let plain = scratch.join("profile");
        output_to(english("gzip").args(["--decompress", "--stdout"]).arg(&file), &plain)?;
        let name = b"thalweg_telemetry::metrics::";
        let is_named = std::fs::read(&plain)?.windows(name.len()).any(|bytes| bytes == name);
        ensure!(
            is_named,
            "a CPU profile has no name of a function: the program does not find its symbols"
        );
        Ok(())
    }

    fn get(&self, path: &str) -> Result<String> {
        Ok(String::from_utf8(self.bytes(path)?)?)
    }

    fn bytes(&self, path: &str) -> Result<Vec<u8>> {
        let agent: Agent = Agent::config_builder()
            .timeout_global(Some(ANSWERED_WITHIN))
            .build()
            .into();
        let mut answer = agent.get(format!("http://{}{path}", self.0)).call()?;
        Ok(answer.body_mut().read_to_vec()?)
    }
}

impl StartedService {
    fn start(package: &UnpackedPackage, scratch: &Path) -> Result<StartedService> {
        let (data, log) = (scratch.join("data"), scratch.join("log"));
        if data.exists() {
            std::fs::remove_dir_all(&data)?;
        }
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
            .args(["-s", "log.commit.spare=1", "-s", "http.debug_endpoints=true"])
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

    fn wait_ready(&mut self) -> Result<ServiceAddress> {
        let deadline = Instant::now() + READY_WITHIN;
        // The address is known once it listens.
        let address = loop {
            if let Ok(address) = self.address() {
                break address;
            }
            self.still_runs()?;
            ensure!(Instant::now() < deadline, "it does not listen:\n{}", self.said());
            std::thread::sleep(BETWEEN_LOOKS);
        };
        address.wait_ready(|| self.still_runs())?;
        Ok(address)
    }

    fn still_runs(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the installed program ended ({status}):\n{}", self.said()),
            None => Ok(()),
        }
    }

    /// The address that the process records in its data folder.
    fn address(&self) -> Result<ServiceAddress> {
        ServiceAddress::of_lock(&read(&self.data.join("LOCK"))?)
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
