//! The binary under test as a process, and its metrics.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use super::Effort;
use super::report::Row;

/// CPUs and output of the process; `None`: any CPU, output to its log.
#[derive(Default)]
struct Start {
    processors: Option<String>,
    output: Option<Stdio>,
}

/// `thalweg run` with a configuration.
pub struct UnderTest {
    child: Child,
    folder: TempDir,
}

impl UnderTest {
    pub fn start(binary: &Path, yaml: &str) -> Result<UnderTest> {
        UnderTest::start_in(tempfile::tempdir()?, binary, yaml)
    }

    /// CPU list: `0`, `0,1`, `2-7`.
    pub fn start_on(processors: &str, binary: &Path, yaml: &str) -> Result<UnderTest> {
        let (folder, start) = (
            tempfile::tempdir()?,
            Start {
                processors: Some(processors.to_owned()),
                output: None,
            },
        );
        UnderTest::start_with(folder, binary, yaml, start)
    }

    /// Its standard output goes to the other end of a pipe; its log goes elsewhere.
    pub fn start_into(output: Stdio, folder: &Path, binary: &Path, yaml: &str) -> Result<UnderTest> {
        let (folder, start) = (
            tempfile::tempdir_in(folder)?,
            Start {
                processors: None,
                output: Some(output),
            },
        );
        UnderTest::start_with(folder, binary, yaml, start)
    }

    /// With its data below a folder, so that the file system is known.
    pub fn start_below(folder: &Path, binary: &Path, yaml: &str) -> Result<UnderTest> {
        UnderTest::start_in(tempfile::tempdir_in(folder)?, binary, yaml)
    }

    /// Sends SIGTERM, and checks a clean exit.
    pub fn stop(mut self) -> Result<()> {
        let id = self.child.id().to_string();
        let asked = Command::new("kill").args(["-TERM", &id]).status()?;
        anyhow::ensure!(asked.success(), "cannot send SIGTERM ({asked})");
        self.wait_for_end()
    }

    /// Restarts on the same data, with another configuration, after the process has ended.
    pub fn start_again(mut self, binary: &Path, yaml: &str) -> Result<UnderTest> {
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir()?);
        let mut again = UnderTest::start_in(folder, binary, yaml)?;
        again.wait_ready()?;
        Ok(again)
    }

    fn start_in(folder: TempDir, binary: &Path, yaml: &str) -> Result<UnderTest> {
        UnderTest::start_with(folder, binary, yaml, Start::default())
    }

    fn start_with(folder: TempDir, binary: &Path, yaml: &str, start: Start) -> Result<UnderTest> {
        std::fs::write(folder.path().join("bench.yaml"), yaml)?;
        let log = std::fs::File::create(folder.path().join("log"))?;
        let output = match start.output {
            Some(output) => output,
            None => log.try_clone()?.into(),
        };
        let child = pinned(start.processors.as_deref(), binary)
            .args([
                "run",
                "bench.yaml",
                "--log.level",
                "WARN",
                "-s",
                "data_dir=data",
                "-s",
                "http.address=127.0.0.1:0",
            ])
            .current_dir(folder.path())
            .stdout(output)
            .stderr(log)
            .spawn()
            .context("cannot start the binary")?;
        Ok(UnderTest { child, folder })
    }

    pub fn data_dir(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The log of the process.
    pub fn log_path(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// An error with the end of its log if it has ended.
    pub fn check_running(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = std::fs::read_to_string(self.log_path()).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(40).collect();
            let last: Vec<&str> = last.into_iter().rev().collect();
            bail!("the binary ended ({status}):\n{}", last.join("\n"));
        }
        Ok(())
    }

    pub fn url(&self, path: &str) -> Result<String> {
        let lock = std::fs::read_to_string(self.data_dir().join("LOCK"))?;
        let lock: serde_json::Value = serde_json::from_str(&lock)?;
        let address = lock["http"].as_str().context("no address in the lock file")?;
        Ok(format!("http://{address}{path}"))
    }

    /// Of the HTTP listener.
    pub fn port(&self) -> Result<u16> {
        let url = self.url("")?;
        let (_, port) = url.rsplit_once(':').context("no port in the address")?;
        Ok(port.parse()?)
    }

    fn get(&self, path: &str) -> Result<String> {
        Ok(ureq::get(self.url(path)?).call()?.body_mut().read_to_string()?)
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its metrics, as text.
    pub fn metrics(&self) -> Result<String> {
        self.get("/metrics")
    }

    /// A metric, over all its series.
    pub fn total(&self, metric: &str) -> Result<f64> {
        Ok(self.look()?.sum(metric))
    }

    /// Current memory.
    pub fn resident_bytes(&self) -> Result<f64> {
        Ok(self.look()?.sum("process_resident_memory_bytes"))
    }

    /// The rows of a query as JSON.
    pub fn sql(&self, query: &str) -> Result<serde_json::Value> {
        let answer = ureq::post(self.url("/api/sql?format=json")?)
            .header("content-type", "text/plain")
            .send(query)
            .with_context(|| query.to_owned())?
            .body_mut()
            .read_to_string()?;
        Ok(serde_json::from_str(&answer)?)
    }

    /// Waits for a flow that ends by itself.
    pub fn wait_for_end(&mut self) -> Result<()> {
        let status = self.child.wait()?;
        let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        anyhow::ensure!(status.success(), "the binary ended ({status}):\n{log}");
        Ok(())
    }

    /// Sends one request repeatedly, one at a time, for the duration of a measurement.
    pub fn measure_query(&self, name: &str, query: &str, effort: Effort) -> Result<Row> {
        self.sql(query)?;
        let (before, mut took) = (self.look()?, Vec::new());
        while before.at.elapsed().as_secs_f64() < effort.seconds() {
            let start = Instant::now();
            self.sql(query)?;
            took.push(start.elapsed().as_nanos() as f64);
        }
        let (after, ops) = (self.look()?, took.len() as f64);
        took.sort_by(f64::total_cmp);
        let quantile = |q: f64| took.get((ops * q) as usize).copied();
        let p50 = quantile(0.5).context("no query was answered")?;
        let per_op = |metric: &str| (after.sum(metric) - before.sum(metric)) / ops;
        Ok(Row {
            name: name.to_owned(),
            ops_per_second: 1e9 / p50,
            wall_ns_per_op: p50,
            cpu_ns_per_op: per_op("process_cpu_seconds_total") * 1e9,
            bytes_per_op: per_op("thalweg_process_allocated_bytes_total"),
            allocs_per_op: per_op("thalweg_process_allocations_total"),
            p50_ns: Some(p50),
            p99_ns: quantile(0.99),
            more: serde_json::Map::default(),
        })
    }

    /// Waits until data can flow.
    pub fn wait_ready(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            if let Ok(_body) = self.get("/ready") {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                bail!("the binary ended ({status}):\n{log}");
            }
            if start.elapsed() > Duration::from_secs(60) {
                bail!("the flow is not ready after 60 s");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn look(&self) -> Result<Look> {
        let text = self.metrics()?;
        let mut sums: HashMap<String, f64> = HashMap::new();
        let (mut quantiles, mut ages) = (HashMap::new(), Vec::new());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let value: f64 = value.parse().unwrap_or(0.0);
            let name = series.split('{').next().unwrap_or_default();
            if let Some(bound) = series.split_once("le=\"").filter(|_| name == AGE_BUCKETS) {
                let bound = bound.1.split('"').next().and_then(|text| text.parse().ok());
                ages.extend(bound.map(|bound: f64| (bound, value)));
            } else if let Some((_, rest)) = series.split_once("quantile=\"") {
                let quantile = rest.split('"').next().unwrap_or_default();
                quantiles.insert(format!("{name}:{quantile}"), value);
            } else {
                *sums.entry(name.to_owned()).or_default() += value;
            }
        }
        Ok(Look {
            at: Instant::now(),
            sums,
            quantiles,
            ages,
        })
    }

    /// The cost of the process so far.
    pub fn costs(&self) -> Result<Costs> {
        let look = self.look()?;
        Ok(Costs {
            cpu_seconds: look.sum("process_cpu_seconds_total"),
            bytes: look.sum("thalweg_process_allocated_bytes_total"),
            allocations: look.sum("thalweg_process_allocations_total"),
        })
    }

    /// Waits until the metrics show a steady state.
    pub fn wait_until(&mut self, metric: &str, value: f64) -> Result<()> {
        self.wait_ready()?;
        self.watch_until(metric, value, Duration::from_millis(50))
    }

    /// The same for a process that may not be ready, polled at an interval.
    pub fn watch_until(&mut self, metric: &str, value: f64, every: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let now = self.look().map_or(0.0, |look| look.sum(metric));
            if now >= value {
                return Ok(());
            }
            if start.elapsed() > Duration::from_secs(60) {
                bail!("{metric} is {now} after 60 s, not {value}");
            }
            std::thread::sleep(every);
        }
    }

    /// Measures a running flow: the median of several windows. One op is one output message.
    pub fn measure(&mut self, name: &str, effort: Effort) -> Result<Row> {
        self.measure_by("thalweg_flow_out_total", name, effort)
    }

    /// The same with another counter of ops.
    pub fn measure_by(&mut self, counter: &str, name: &str, effort: Effort) -> Result<Row> {
        self.wait_ready()?;
        std::thread::sleep(Duration::from_secs_f64(effort.warm_up_seconds));
        let mut windows = Vec::new();
        let first = self.look()?;
        let mut before = first.clone();
        for _ in 0..effort.windows {
            std::thread::sleep(Duration::from_secs_f64(effort.window_seconds));
            let after = self.look()?;
            windows.push(window(counter, &before, &after)?);
            before = after;
        }
        for metric in [
            "thalweg_flow_dropped_total",
            "thalweg_opcua_gaps_total",
            "thalweg_opcua_overflows_total",
            "thalweg_opcua_reconnects_total",
        ] {
            let lost = before.sum(metric);
            if lost > 0.0 {
                bail!("{name}: {metric} is {lost}; the result would be meaningless");
            }
        }
        let median = |field: fn(&Row) -> f64| {
            let mut values: Vec<f64> = windows.iter().map(field).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        Ok(Row {
            name: name.to_owned(),
            ops_per_second: median(|row| row.ops_per_second),
            wall_ns_per_op: median(|row| row.wall_ns_per_op),
            cpu_ns_per_op: median(|row| row.cpu_ns_per_op),
            bytes_per_op: median(|row| row.bytes_per_op),
            allocs_per_op: median(|row| row.allocs_per_op),
            p50_ns: before.age_since(&first, 0.5).or(before.latency("0.5")),
            p99_ns: before.age_since(&first, 0.99).or(before.latency("0.99")),
            more: serde_json::Map::default(),
        })
    }
}

impl Drop for UnderTest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Of all threads, since the start of the process.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    pub cpu_seconds: f64,
    pub bytes: f64,
    pub allocations: f64,
}

/// Ages of values at the acknowledgement by the output. With `use_histogram_timing` only.
const AGE_BUCKETS: &str = "thalweg_opcua_settled_age_ns_bucket";

#[derive(Clone)]
struct Look {
    at: Instant,
    sums: HashMap<String, f64>,
    quantiles: HashMap<String, f64>,
    /// Upper bounds in nanoseconds, and the number of values below.
    ages: Vec<(f64, f64)>,
}

impl Look {
    fn sum(&self, name: &str) -> f64 {
        self.sums.get(name).copied().unwrap_or(0.0)
    }

    /// A quantile, since the start, of the time from arrival to acknowledgement.
    fn latency(&self, quantile: &str) -> Option<f64> {
        let name = format!("thalweg_flow_latency_ns:{quantile}");
        self.quantiles.get(&name).copied()
    }

    /// A quantile of the ages of the values between two samples.
    fn age_since(&self, before: &Look, quantile: f64) -> Option<f64> {
        let below = |look: &Look, bound: f64| {
            let at_most = look.ages.iter().filter(|(of, _)| *of <= bound);
            at_most.map(|(_, count)| *count).fold(0.0, f64::max)
        };
        let all = below(self, f64::INFINITY) - below(before, f64::INFINITY);
        let enough = |(bound, _): &&(f64, f64)| below(self, *bound) - below(before, *bound) >= all * quantile;
        let found = self.ages.iter().filter(|_| all > 0.0).find(enough);
        found.map(|(bound, _)| *bound)
    }
}

fn window(counter: &str, before: &Look, after: &Look) -> Result<Row> {
    let change = |name: &str| after.sum(name) - before.sum(name);
    let ops = change(counter);
    if ops < 1.0 {
        bail!("{counter} does not change");
    }
    let wall = after.at.duration_since(before.at).as_secs_f64();
    Ok(Row {
        ops_per_second: ops / wall,
        wall_ns_per_op: wall * 1e9 / ops,
        cpu_ns_per_op: change("process_cpu_seconds_total") * 1e9 / ops,
        bytes_per_op: change("thalweg_process_allocated_bytes_total") / ops,
        allocs_per_op: change("thalweg_process_allocations_total") / ops,
        ..Row::default()
    })
}

/// The simulator as a separate process.
pub struct Plant {
    child: Child,
    pub endpoint: String,
    stats: String,
    _folder: TempDir,
}

/// The simulator's statistics of changing nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Values put into notifications.
    pub published: u64,
    /// In queues.
    pub pending: u64,
    pub lost: u64,
    /// Late changes: the simulator is saturated.
    pub late: u64,
}

impl Plant {
    pub fn start(binary: &Path, arguments: &[&str]) -> Result<Plant> {
        Plant::start_on(None, binary, arguments)
    }

    /// On some processors, if given.
    pub fn start_on(processors: Option<&str>, binary: &Path, arguments: &[&str]) -> Result<Plant> {
        let folder = tempfile::tempdir()?;
        let mut child = pinned(processors, binary)
            .args(["simulate", "opcua", "--port", "0", "--secure", "false"])
            .args(arguments)
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let word = |n: usize| line.split_whitespace().nth(n).map(str::to_owned);
        Ok(Plant {
            child,
            endpoint: word(1).context("the simulator did not start")?,
            stats: word(3).context("the simulator did not print the address of its statistics")?,
            _folder: folder,
        })
    }

    /// CPU time of all threads of the simulator so far.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        cpu_seconds(&text).with_context(|| format!("no times in {path}: {text}"))
    }

    /// Starts the value changes of a simulator that was started with `--hold`.
    pub fn let_go(&self) -> Result<()> {
        ureq::post(self.stats.replace("/sim/stats", "/sim/start")).send_empty()?;
        Ok(())
    }

    pub fn fast(&self) -> Result<Changes> {
        self.of_groups(&["fast"])
    }

    /// Numbers of fast and slow nodes.
    pub fn changes(&self) -> Result<Changes> {
        self.of_groups(&["fast", "slow"])
    }

    fn of_groups(&self, names: &[&str]) -> Result<Changes> {
        let text = ureq::get(&self.stats).call()?.body_mut().read_to_string()?;
        let stats: serde_json::Value = serde_json::from_str(&text)?;
        let mut all = Changes::default();
        for name in names {
            let group = &stats["groups"][name];
            let number = |field: &str| {
                let number = group[field].as_u64();
                number.with_context(|| format!("no {field} of {name} in {text}"))
            };
            all.published += number("published")?;
            all.pending += number("pending")?;
            all.lost += number("lost_overflow")? + number("discarded")?;
            all.late += number("late_changes")?;
        }
        Ok(all)
    }
}

/// A program on some processors, or on all.
fn pinned(processors: Option<&str>, binary: &Path) -> Command {
    match processors {
        None => Command::new(binary),
        Some(processors) => {
            let mut command = Command::new("taskset");
            command.args(["--cpu-list", processors]).arg(binary);
            command
        }
    }
}

/// User and system time in `/proc/<pid>/stat`. The name of the program comes before them and may contain spaces.
fn cpu_seconds(stat: &str) -> Option<f64> {
    /// `USER_HZ`, which programs see as 100 on every Linux, whatever the kernel's own is.
    const TICKS_PER_SECOND: f64 = 100.0;
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut times = after_name.split_whitespace().skip(11).map(str::parse::<f64>);
    let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some((user + system) / TICKS_PER_SECOND)
}

impl Drop for Plant {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_after_any_name() {
        let stat = "4711 (a) b (c) S 1 4711 4711 0 -1 4194560 100 0 0 0 250 150 7 8 20 0 3 0 99 1000 10";
        assert_eq!(cpu_seconds(stat), Some(4.0));
        assert_eq!(cpu_seconds("4711 (a"), None);
    }
}
