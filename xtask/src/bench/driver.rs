//! Shared by benchmarks: rows that a crate's own benchmark measures in one process, and load over HTTP from this process.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use ureq::Agent;

use super::Effort;
use super::report::Row;
use super::under_test::UnderTest;
use crate::shell::{cargo, describe};

/// The rows of a crate's benchmark, which prints its table itself.
pub fn in_process(package: &str, bench: &str, effort: Effort, only: Option<&str>, more: &[&str]) -> Result<Vec<Row>> {
    let mut command = cargo();
    // Includes the binary, so that dependencies have their usual features and are not rebuilt.
    command.args(["bench", "--profile", "release", "-p", "thalweg", "-p", package]);
    command.args(["--bench", bench, "--", "--json"]);
    if effort.is_quick() {
        command.arg("--quick");
    }
    command.args(more);
    command.args(only);
    println!("\n$ {}", describe(&command));
    // The table is on stderr while it grows.
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start cargo")?;
    let output = child.stdout.take().context("no output")?;
    let (mut rows, mut error) = (Vec::new(), None);
    for line in BufReader::new(output).lines() {
        let line = line?;
        let Ok(value) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        match value["error"].as_str() {
            Some(text) => error = Some(text.to_owned()),
            // The other lines are the head and the summary.
            None if value["name"].is_string() => rows.push(row(value)?),
            None => {}
        }
    }
    let status = child.wait()?;
    if let Some(error) = error {
        bail!(error);
    }
    ensure!(status.success(), "the benchmark failed ({status})");
    Ok(rows)
}

fn row(value: Value) -> Result<Row> {
    let number = |name: &str| value[name].as_f64();
    let needed = |name: &str| number(name).with_context(|| format!("a row without {name}: {value}"));
    Ok(Row {
        name: value["name"].as_str().unwrap_or_default().to_owned(),
        ops_per_second: needed("ops_per_second")?,
        wall_ns_per_op: needed("wall_ns_per_op")?,
        cpu_ns_per_op: needed("cpu_ns_per_op")?,
        bytes_per_op: needed("bytes_per_op")?,
        allocs_per_op: needed("allocs_per_op")?,
        p50_ns: number("p50_ns"),
        p99_ns: number("p99_ns"),
        more: value.as_object().cloned().unwrap_or_default(),
    })
}

pub fn agent() -> Agent {
    Agent::new_with_defaults()
}

/// Returns the text of the response.
pub fn post(agent: &Agent, url: &str, media_type: &str, body: &[u8]) -> Result<String> {
    let request = agent.post(url).header("content-type", media_type);
    let mut answer = request.send(body).with_context(|| format!("a request failed: {url}"))?;
    Ok(answer.body_mut().with_config().limit(u64::MAX).read_to_string()?)
}

/// Several clients that call `exchange` repeatedly, which returns the number of moved messages; none: there are no more, and
/// the row ends. Messages that complete within the time count, whenever they began.
pub fn load(
    server: &UnderTest,
    name: &str,
    clients: usize,
    effort: Effort,
    exchange: impl Fn(&Agent, usize) -> Result<usize> + Sync,
) -> Result<Row> {
    let (stop, counting, moved) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let client = |number: usize| -> Result<Vec<u64>> {
        // The row ends when it ends, in any way.
        let _ends = Ends(&stop);
        let (agent, mut times) = (agent(), Vec::new());
        while !stop.load(Relaxed) {
            let start = Instant::now();
            let count = exchange(&agent, number)?;
            if count == 0 {
                break;
            }
            moved.fetch_add(count as u64, Relaxed);
            if counting.load(Relaxed) {
                times.push(start.elapsed().as_nanos() as u64);
            }
        }
        Ok(times)
    };
    std::thread::scope(|scope| -> Result<Row> {
        let _ends = Ends(&stop);
        let client = &client;
        let clients: Vec<_> = (0..clients).map(|number| scope.spawn(move || client(number))).collect();
        std::thread::sleep(Duration::from_secs_f64(effort.warm_up_seconds));
        let before = (server.costs()?, moved.load(Relaxed), Instant::now());
        counting.store(true, Relaxed);
        while before.2.elapsed().as_secs_f64() < effort.seconds() && !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (seconds, messages) = (before.2.elapsed().as_secs_f64(), moved.load(Relaxed) - before.1);
        let (after, before) = (server.costs()?, before.0);
        stop.store(true, Relaxed);
        let mut times = Vec::new();
        for client in clients {
            let ended = client.join().map_err(|_| anyhow::anyhow!("a client thread panicked"))?;
            times.extend(ended?);
        }
        ensure!(messages > 0, "{name}: no message in the measured time");
        times.sort_unstable();
        let messages = messages as f64;
        let at = |part: f64| {
            let n = (times.len() as f64 * part) as usize;
            times
                .get(n.min(times.len().saturating_sub(1)))
                .map(|nanos| *nanos as f64)
        };
        let more = [
            ("p95_ns", at(0.95)),
            ("p999_ns", at(0.999)),
            ("max_ns", at(1.0)),
            ("seconds", Some(seconds)),
        ];
        let more = more.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
        Ok(Row {
            name: name.to_owned(),
            ops_per_second: messages / seconds,
            wall_ns_per_op: seconds * 1e9 / messages,
            cpu_ns_per_op: (after.cpu_seconds - before.cpu_seconds) * 1e9 / messages,
            bytes_per_op: (after.bytes - before.bytes) / messages,
            allocs_per_op: (after.allocations - before.allocations) / messages,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            more: more.chain([("durability".to_owned(), "fsync".into())]).collect(),
        })
    })
}

/// Ends the load when it goes out of scope.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
