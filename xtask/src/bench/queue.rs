//! `bench queue`: what queues cost. The rows in one process come from a benchmark of the crate itself, which counts
//! allocations and times calls; those over HTTP drive the binary.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::Effort;
use super::report::Row;
use super::under_test::UnderTest;
use crate::shell::{build_binary, cargo, describe};

const CONFIG: &str = "\
log: {min_free: 0}
queues:
  list:
    - {name: bench, max_depth: 0, max_bytes: 0, groups: [{name: g}]}
";

/// Producers over HTTP, each with one request at a time.
const CLIENTS: usize = 4;
const BATCH: usize = 1000;
const PAYLOAD: usize = 256;

pub fn run(effort: Effort) -> Result<Vec<Row>> {
    let mut rows = in_process(effort)?;
    let binary = build_binary()?;
    println!("measuring http_produce_batch");
    rows.push(over_http(&binary, "http_produce_batch", BATCH, effort)?);
    println!("measuring http_produce_1");
    rows.push(over_http(&binary, "http_produce_1", 1, effort)?);
    Ok(rows)
}

fn in_process(effort: Effort) -> Result<Vec<Row>> {
    let mut command = cargo();
    // The binary too, so that dependencies have the features, and so the build, that they have anyway.
    command.args(["bench", "--profile", "release", "-p", "thalweg", "-p", "thalweg-queue"]);
    command.args(["--bench", "queue", "--", "--json"]);
    if effort.windows < 9 {
        command.arg("--quick");
    }
    println!("\n$ {}", describe(&command));
    let output = command.stderr(Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the benchmark failed ({})", output.status);
    let text = String::from_utf8(output.stdout)?;
    text.lines().filter(|line| line.starts_with('{')).map(parse).collect()
}

fn parse(line: &str) -> Result<Row> {
    let value: Value = serde_json::from_str(line).with_context(|| format!("this is no row: {line}"))?;
    let number = |name: &str| value[name].as_f64();
    let needed = |name: &str| number(name).with_context(|| format!("a row without {name}: {line}"));
    Ok(Row {
        name: value["name"].as_str().unwrap_or_default().to_owned(),
        ops_per_second: needed("ops_per_second")?,
        wall_ns_per_op: needed("wall_ns_per_op")?,
        cpu_ns_per_op: needed("cpu_ns_per_op")?,
        bytes_per_op: needed("bytes_per_op")?,
        allocs_per_op: needed("allocs_per_op")?,
        p50_ns: number("p50_ns"),
        p99_ns: number("p99_ns"),
    })
}

/// Messages that several clients produce, in batches of NDJSON or one by one, each waiting for its answer.
fn over_http(binary: &Path, name: &str, batch: usize, effort: Effort) -> Result<Row> {
    let mut server = UnderTest::start(binary, CONFIG)?;
    server.wait_ready()?;
    let payload = "x".repeat(PAYLOAD);
    let (path, body) = match batch {
        1 => ("/api/v1/queues/bench/messages", payload),
        _ => {
            let line = format!("{{\"text\":\"{payload}\"}}\n");
            ("/api/v1/queues/bench/messages:batch", line.repeat(batch))
        }
    };
    let url = server.url(path)?;
    let seconds = effort.window_seconds * effort.windows as f64;
    let from = Instant::now() + Duration::from_secs_f64(effort.warm_up_seconds);
    let until = from + Duration::from_secs_f64(seconds);
    let (counted, before) = std::thread::scope(|scope| -> Result<_> {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| produce(&url, &body, from, until)))
            .collect();
        std::thread::sleep(from.saturating_duration_since(Instant::now()));
        let before = server.costs()?;
        let mut times = Vec::new();
        for client in clients {
            let client = client.join().map_err(|_| anyhow::anyhow!("a client has died"))?;
            times.extend(client?);
        }
        Ok((times, before))
    })?;
    let after = server.costs()?;
    let mut times = counted;
    times.sort_unstable();
    let messages = (times.len() * batch) as f64;
    let at = |part: f64| {
        times
            .get((times.len() as f64 * part) as usize)
            .map(|nanos| *nanos as f64)
    };
    Ok(Row {
        name: name.to_owned(),
        ops_per_second: messages / seconds,
        wall_ns_per_op: seconds * 1e9 / messages.max(1.0),
        cpu_ns_per_op: (after.cpu_seconds - before.cpu_seconds) * 1e9 / messages.max(1.0),
        bytes_per_op: (after.bytes - before.bytes) / messages.max(1.0),
        allocs_per_op: (after.allocations - before.allocations) / messages.max(1.0),
        p50_ns: at(0.5),
        p99_ns: at(0.99),
    })
}

/// The time of each request that began between the two moments.
fn produce(url: &str, body: &str, from: Instant, until: Instant) -> Result<Vec<u64>> {
    let agent = ureq::Agent::new_with_defaults();
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        if start >= until {
            return Ok(times);
        }
        let request = agent.post(url).header("content-type", "application/octet-stream");
        let mut answer = request.send(body).context("a request to produce failed")?;
        answer.body_mut().read_to_vec()?;
        if start >= from {
            times.push(start.elapsed().as_nanos() as u64);
        }
    }
}
