//! The binary under test.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::disk::Disk;
use crate::process::Process;
use crate::wait::eventually;

/// Path of the binary: from the environment, otherwise beside this test's own folder.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("THALWEG_BIN") {
        return path.into();
    }
    let own = std::env::current_exe().unwrap_or_default();
    own.parent()
        .and_then(Path::parent)
        .map(|folder| folder.join("thalweg"))
        .unwrap_or_default()
}

/// A command line that is run to its end in an empty folder.
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// A command that has not ended by then never will, such as a start that should have been refused.
const RUN_PATIENCE: Duration = Duration::from_secs(300);

/// Runs `thalweg` with arguments in `folder` until it ends.
pub fn run(folder: &Path, arguments: &[&str]) -> Result<Finished> {
    let output = tempfile::tempdir()?;
    let command = &mut Command::new(binary());
    let mut process = Process::start("run", output.path(), command.args(arguments).current_dir(folder))
        .context("build it first: cargo build --release")?;
    process.close_stdin();
    let status = process.wait_within(RUN_PATIENCE)?;
    Ok(Finished {
        status,
        stdout: process.stdout(),
        stderr: process.stderr(),
    })
}

/// The arguments that run a configuration in its folder.
pub const RUN: [&str; 6] = [
    "run",
    "flow.yaml",
    "-s",
    "data_dir=data",
    "-s",
    "http.address=127.0.0.1:0",
];

/// `thalweg run` with a configuration, in its own folder.
pub struct Thalweg {
    pub process: Process,
    /// A small separate disk, if one was given.
    pub disk: Option<Disk>,
    pub folder: TempDir,
    starts: u32,
    /// A file of certificate authorities, instead of those of the machine.
    trusted: Option<PathBuf>,
}

impl Thalweg {
    /// Starts and waits until the status page responds.
    pub fn start(yaml: &str) -> Result<Thalweg> {
        let mut thalweg = Thalweg::spawn(yaml)?;
        thalweg.wait_for_http()?;
        Ok(thalweg)
    }

    /// The same, trusting only the certificate authorities in this file.
    pub fn start_trusting(yaml: &str, authorities: &Path) -> Result<Thalweg> {
        let mut thalweg = Thalweg::spawn_in(tempfile::tempdir()?, yaml, Some(authorities.to_owned()))?;
        thalweg.wait_for_http()?;
        Ok(thalweg)
    }

    /// The token of the event store's first start, which goes to a file when there is no terminal.
    pub fn first_token(&self) -> Result<String> {
        let path = self.data_dir().join("keys/default.token");
        let token = std::fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
        Ok(token.trim_end().to_owned())
    }

    /// Starts without waiting.
    pub fn spawn(yaml: &str) -> Result<Thalweg> {
        Thalweg::spawn_with(yaml, &[])
    }

    /// Starts with a wall clock that is off by this many seconds, see [`Thalweg::set_clock`].
    pub fn start_with_clock(yaml: &str, seconds: i64) -> Result<Thalweg> {
        let folder = tempfile::tempdir()?;
        set_wall_clock(folder.path(), seconds)?;
        let mut thalweg = Thalweg::spawn_in(folder, yaml, None)?;
        thalweg.wait_for_http()?;
        Ok(thalweg)
    }

    /// Starts through a program that runs the command line at the end of its own, such as a debugger.
    pub fn start_through(mut program: Command, yaml: &str) -> Result<Thalweg> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("flow.yaml"), yaml)?;
        program.arg(binary()).args(RUN).current_dir(folder.path());
        let mut thalweg = Thalweg {
            process: Process::start("thalweg-0", folder.path(), &mut program)?,
            disk: None,
            folder,
            starts: 0,
            trusted: None,
        };
        thalweg.wait_for_http()?;
        Ok(thalweg)
    }

    /// Sets the wall clock of the process, running or not yet started, to this many seconds from the real time.
    pub fn set_clock(&self, seconds: i64) -> Result<()> {
        set_wall_clock(self.folder.path(), seconds)
    }

    /// Starts without waiting, with files (name, content) in its folder.
    pub fn spawn_with(yaml: &str, files: &[(&str, &str)]) -> Result<Thalweg> {
        let folder = tempfile::tempdir()?;
        for (name, content) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap_or(folder.path()))?;
            std::fs::write(path, content)?;
        }
        Thalweg::spawn_in(folder, yaml, None)
    }

    fn spawn_in(folder: TempDir, yaml: &str, trusted: Option<PathBuf>) -> Result<Thalweg> {
        std::fs::write(folder.path().join("flow.yaml"), yaml)?;
        let process = spawn(folder.path(), None, trusted.as_deref(), 0)?;
        Ok(Thalweg {
            process,
            disk: None,
            folder,
            starts: 0,
            trusted,
        })
    }

    /// Starts with a separate disk, mounted at the folder `mounted` within its folder and prepared before the start.
    pub fn start_with_disk(yaml: &str, mounted: &str, prepare: impl FnOnce(&Disk) -> Result<()>) -> Result<Thalweg> {
        Thalweg::start_with_disk_of(yaml, mounted, 8, prepare)
    }

    /// The same with a disk of this many megabytes.
    pub fn start_with_disk_of(
        yaml: &str,
        mounted: &str,
        megabytes: u32,
        prepare: impl FnOnce(&Disk) -> Result<()>,
    ) -> Result<Thalweg> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("flow.yaml"), yaml)?;
        let disk = Disk::mount(folder.path(), mounted, megabytes)?;
        prepare(&disk)?;
        let process = spawn(folder.path(), Some(&disk), None, 0)?;
        let mut thalweg = Thalweg {
            process,
            disk: Some(disk),
            folder,
            starts: 0,
            trusted: None,
        };
        thalweg.wait_for_http()?;
        Ok(thalweg)
    }

    /// Starts again in the same folder, after the process has ended.
    pub fn restart(&mut self) -> Result<()> {
        self.respawn()?;
        self.wait_for_http()
    }

    /// The same without waiting for a response.
    pub fn respawn(&mut self) -> Result<()> {
        self.starts += 1;
        let (disk, trusted) = (self.disk.as_ref(), self.trusted.as_deref());
        self.process = spawn(self.folder.path(), disk, trusted, self.starts)?;
        Ok(())
    }

    /// Its data folder, seen from outside.
    pub fn data_dir(&self) -> PathBuf {
        let data = self.folder.path().join("data");
        match &self.disk {
            Some(disk) if disk.mount_point() == data => disk.path(),
            _ => data,
        }
    }

    fn wait_for_http(&mut self) -> Result<()> {
        eventually(|| {
            self.process.check_running()?;
            self.get("/ping").map(drop)
        })
    }

    /// `host:port` of the HTTP listener, from the lock file.
    pub fn address(&self) -> Result<String> {
        let lock = std::fs::read_to_string(self.data_dir().join("LOCK")).context("no lock file yet")?;
        let lock: Value = serde_json::from_str(&lock).context("the lock file is not complete yet")?;
        Ok(lock["http"]
            .as_str()
            .context("the lock file names no HTTP address")?
            .to_owned())
    }

    /// Status code and body.
    pub fn request(&self, path: &str) -> Result<(u16, String)> {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut response = agent.get(format!("http://{}{path}", self.address()?)).call()?;
        Ok((response.status().as_u16(), response.body_mut().read_to_string()?))
    }

    pub fn get(&self, path: &str) -> Result<String> {
        let (status, body) = self.request(path)?;
        ensure!(status == 200, "GET {path}: {status} {body}");
        Ok(body)
    }

    pub fn json(&self, path: &str) -> Result<Value> {
        Ok(serde_json::from_str(&self.get(path)?)?)
    }

    /// Waits until `/ready` answers 200.
    pub fn wait_ready(&mut self) -> Result<()> {
        eventually(|| {
            self.process.check_running()?;
            let (status, body) = self.request("/ready")?;
            ensure!(status == 200, "not ready: {body}");
            Ok(())
        })
    }

    /// The sum of a metric over its label sets; with `label`, only over lines that contain it.
    pub fn metric(&self, name: &str, label: &str) -> Result<f64> {
        let text = self.get("/metrics")?;
        let lines = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(label)
        });
        let mut sum = None;
        for line in lines {
            let value: f64 = line
                .rsplit(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .context("a metric without a number")?;
            sum = Some(sum.unwrap_or(0.0) + value);
        }
        sum.with_context(|| format!("no metric {name} with {label}"))
    }

    /// The balance of all flows together, after checking that the balance of each adds up.
    pub fn balance(&self) -> Result<Balance> {
        let status = self.json("/api/v1/status")?;
        let mut total = Balance::default();
        for flow in status["flows"].as_array().context("no flows in the status")? {
            let balance = &flow["balance"];
            let field = |name: &str| {
                balance[name]
                    .as_u64()
                    .with_context(|| format!("no {name} in {balance}"))
            };
            let one = Balance {
                entered: field("in")?,
                out: field("out")?,
                filtered: field("filtered")?,
                dropped: field("dropped")?,
                in_flight: field("in_flight")?,
            };
            one.check()?;
            total = total.plus(&one);
        }
        Ok(total)
    }

    /// The first component of a kind in the graph.
    pub fn node(&self, kind: &str) -> Result<Value> {
        let status = self.json("/api/v1/status")?;
        let nodes = status["flows"][0]["nodes"].as_array().context("no nodes")?.clone();
        nodes
            .into_iter()
            .find(|node| node["kind"] == kind)
            .with_context(|| format!("no {kind} in {status}"))
    }

    /// Rows of a query, answered by the running process.
    pub fn sql(&self, query: &str) -> Result<Vec<Value>> {
        let address = self.address()?;
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut response = agent
            .post(format!("http://{address}/api/sql?format=json"))
            .header("content-type", "text/plain")
            .send(query)?;
        let (status, body) = (response.status().as_u16(), response.body_mut().read_to_string()?);
        ensure!(status == 200, "{query}: {status} {body}");
        Ok(serde_json::from_str(&body)?)
    }

    /// For a process that received data on an empty lake: every received record must be a row, rejected, or in the quarantine.
    /// Waits for records on their way to their table.
    pub fn records_are_accounted_for(&self) -> Result<()> {
        eventually(|| {
            let sum = |name: &str, label: &str| self.metric(name, label).unwrap_or(0.0) as u64;
            let (mut received, mut rows) = (Vec::new(), Vec::new());
            for signal in ["logs", "metrics", "traces"] {
                let counted = self.sql(&format!("select count(*) as rows from {signal}"))?;
                rows.push(counted[0]["rows"].as_u64().context("no count")?);
                let label = format!("signal=\"{signal}\"");
                let rejected = sum("thalweg_lake_rejected_records_total", &label);
                received.push(sum("thalweg_lake_records_total", &label).saturating_sub(rejected));
            }
            let poison = sum("thalweg_lake_poison_records_total", "");
            let known = rows.iter().sum::<u64>() + poison;
            ensure!(
                known == received.iter().sum::<u64>(),
                "{rows:?} rows and {poison} of {received:?}"
            );
            ensure!(poison > 0 || rows == received, "{rows:?} rows of {received:?}");
            Ok(())
        })
    }

    /// SIGTERM; the process drains and exits 0, and its last balance adds up with nothing in flight.
    pub fn stop(&mut self) -> Result<Balance> {
        self.process.signal("TERM")?;
        self.finish()
    }

    /// Waits for a process that ends by itself, with 0; its last balance adds up with nothing in flight.
    pub fn finish(&mut self) -> Result<Balance> {
        let status = self.process.wait()?;
        ensure!(status.success(), "{status}\nstderr: {}", self.process.stderr());
        let balance = self.last_balance()?;
        ensure!(balance.in_flight == 0, "left in flight: {balance:?}");
        Ok(balance)
    }

    /// The sum of the final balances of all flows in the log.
    pub fn last_balance(&self) -> Result<Balance> {
        // The output may contain that of a flow beside the log.
        let log = self.process.stdout() + &self.process.stderr();
        let mut total = None;
        for line in log.lines() {
            let Some(balance) = Balance::parse(line) else {
                continue;
            };
            balance.check()?;
            total = Some(balance.plus(&total.unwrap_or_default()));
        }
        total.with_context(|| format!("no balance in the log:\n{log}"))
    }
}

/// Offset of the process's wall clock in seconds; see `tests/clocks/wall_clock.c`.
const WALL_CLOCK: &str = "wall-clock";

/// Sets the wall clock of the process that runs in a folder; a process without such a clock gets it at its next start.
pub fn set_wall_clock(folder: &Path, seconds: i64) -> Result<()> {
    // Written in place, because the process has it mapped.
    let mut options = std::fs::OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .truncate(false)
        .open(folder.join(WALL_CLOCK))?;
    Ok(file.write_all_at(&seconds.to_ne_bytes(), 0)?)
}

/// Makes a process in a folder use the clock that was set there, if any.
pub fn with_wall_clock(command: &mut Command, folder: &Path) -> Result<()> {
    if !folder.join(WALL_CLOCK).exists() {
        return Ok(());
    }
    let library = std::env::var_os("THALWEG_TEST_WALL_CLOCK");
    let library = library.context("THALWEG_TEST_WALL_CLOCK is not set: run the tests with `cargo xtask test`")?;
    command
        .env("LD_PRELOAD", library)
        .env("WALL_CLOCK", folder.join(WALL_CLOCK));
    Ok(())
}

fn spawn(folder: &Path, disk: Option<&Disk>, trusted: Option<&Path>, number: u32) -> Result<Process> {
    let mut command = match disk {
        Some(disk) => disk.enter(folder, &binary()),
        None => Command::new(binary()),
    };
    command.args(RUN).current_dir(folder);
    with_wall_clock(&mut command, folder)?;
    if let Some(trusted) = trusted {
        command.env("SSL_CERT_FILE", trusted).env_remove("SSL_CERT_DIR");
    }
    Process::start(&format!("thalweg-{number}"), folder, &mut command)
}

/// The balance of the flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    pub entered: u64,
    pub out: u64,
    pub filtered: u64,
    pub dropped: u64,
    pub in_flight: u64,
}

impl Balance {
    /// Parses the sentence `in 5 = out 3 + filtered 1 + dropped 1 + in flight 0` within a line.
    fn parse(line: &str) -> Option<Balance> {
        let (before, after) = line.split_once(" = out ")?;
        let mut parts = after.split(" + ");
        let mut part = |name: &str| {
            let digits = parts.next()?.strip_prefix(name)?;
            let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            digits.get(..end)?.parse().ok()
        };
        Some(Balance {
            entered: before.rsplit("in ").next()?.parse().ok()?,
            out: part("")?,
            filtered: part("filtered ")?,
            dropped: part("dropped ")?,
            in_flight: part("in flight ")?,
        })
    }

    pub fn check(&self) -> Result<()> {
        if self.entered != self.out + self.filtered + self.dropped + self.in_flight {
            bail!("the balance does not add up: {self:?}");
        }
        Ok(())
    }

    fn plus(&self, other: &Balance) -> Balance {
        Balance {
            entered: self.entered + other.entered,
            out: self.out + other.out,
            filtered: self.filtered + other.filtered,
            dropped: self.dropped + other.dropped,
            in_flight: self.in_flight + other.in_flight,
        }
    }
}
