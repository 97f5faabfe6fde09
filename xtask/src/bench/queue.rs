//! `bench queue`: what queues cost. The rows in one process come from a benchmark of the crate itself, which counts
//! allocations and times calls, and prints its own table; those over HTTP drive the binary through real sockets, with the
//! load in this process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use ureq::Agent;

use super::Effort;
use super::environment;
use super::report::{self, Row};
use super::under_test::UnderTest;
use crate::shell::{build_binary, cargo, describe};

/// A queue as it is by default, but without the limits that a benchmark runs into. Acknowledged is what is synced.
const CONFIG: &str = "\
log: {min_free: 0, durability: fsync}
queues:
  list:
    - {name: bench, max_depth: 0, max_bytes: 0, groups: [{name: g}]}
";
const QUEUE: &str = "/api/v1/queues/bench";

/// Each with one request at a time.
const CLIENTS: usize = 4;
const BATCH: usize = 1000;
const CLAIM: usize = 100;
const PAYLOAD: usize = 256;
/// For consumers to work off; more than they can in the time.
const PRELOADED_PER_SECOND: f64 = 100_000.0;

/// A row over HTTP, by its name.
type Load = fn(&Path, &str, Effort) -> Result<Row>;

pub fn run(effort: Effort, only: Option<&str>) -> Result<Vec<Row>> {
    let mut rows = in_process(effort, only)?;
    let loads: [(&str, Load); 3] = [
        ("http_produce_1", |binary, name, effort| {
            produce(binary, name, 1, effort)
        }),
        ("http_produce_batch", |binary, name, effort| {
            produce(binary, name, BATCH, effort)
        }),
        ("http_claim_settle", claim_and_settle),
    ];
    let loads = loads
        .into_iter()
        .filter(|(name, _)| only.is_none_or(|word| name.contains(word)));
    let (binary, mut over_http) = (build_binary()?, Vec::new());
    for (name, measure) in loads {
        println!("measuring {name}");
        over_http.push(measure(&binary, name, effort)?);
    }
    if over_http.is_empty() {
        return Ok(rows);
    }
    println!(
        "\nover HTTP: {CLIENTS} clients, each with one request at a time, messages of {PAYLOAD} bytes, acknowledged when \
         synced (fsync), {:.0} s each; batches of {BATCH}, claims of {CLAIM}; CPU, bytes and allocs are the server's",
        effort.seconds()
    );
    report::print("queue", &over_http, &environment::bench_folder());
    rows.extend(over_http);
    Ok(rows)
}

fn in_process(effort: Effort, only: Option<&str>) -> Result<Vec<Row>> {
    let mut command = cargo();
    // The binary too, so that dependencies have the features, and so the build, that they have anyway.
    command.args(["bench", "--profile", "release", "-p", "thalweg", "-p", "thalweg-queue"]);
    command.args(["--bench", "queue", "--", "--json"]);
    if effort.is_quick() {
        command.arg("--quick");
    }
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
            // Others are the head and what rows say together.
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

/// Messages one by one, or in batches of NDJSON, each waiting for its answer.
fn produce(binary: &Path, name: &str, batch: usize, effort: Effort) -> Result<Row> {
    let server = serve(binary)?;
    let row = load(&server, name, effort, |agent, _| send(agent, &server, batch))?;
    server.stop()?;
    Ok(row)
}

/// Messages that are there are claimed and settled, both in requests of their own.
fn claim_and_settle(binary: &Path, name: &str, effort: Effort) -> Result<Row> {
    let server = serve(binary)?;
    let wanted = (effort.seconds() + effort.warm_up_seconds) * PRELOADED_PER_SECOND;
    let agent = agent();
    for _ in 0..(wanted / BATCH as f64).ceil() as usize {
        send(&agent, &server, BATCH)?;
    }
    let (claim, settle) = (
        server.url(&format!("{QUEUE}/groups/g/claim"))?,
        server.url(&format!("{QUEUE}/groups/g/settle"))?,
    );
    let row = load(&server, name, effort, |agent, client| {
        // The shares of the consumers change when one joins: at first there may be nothing for a moment.
        let want = json!({"consumer": format!("c{client}"), "max": CLAIM, "wait": "1s"});
        let claimed: Value = match post(agent, &claim, want.to_string())? {
            text if text.is_empty() => return Ok(0),
            text => serde_json::from_str(&text)?,
        };
        let messages = claimed["messages"].as_array().context("a claim without messages")?;
        let receipts: Vec<&Value> = messages.iter().map(|message| &message["receipt"]).collect();
        let answer: Value = serde_json::from_str(&post(agent, &settle, json!({"ack": receipts}).to_string())?)?;
        ensure!(answer["settled"] == receipts.len(), "not all acks count: {answer}");
        Ok(receipts.len())
    })?;
    server.stop()?;
    Ok(row)
}

/// On the file system of the benchmark: that of temporary files may be memory.
fn serve(binary: &Path) -> Result<UnderTest> {
    let folder = environment::bench_folder();
    if let Some(refused) = environment::refused(&folder) {
        bail!(refused);
    }
    std::fs::create_dir_all(&folder)?;
    let mut server = UnderTest::start_below(&folder, binary, CONFIG)?;
    server.wait_ready()?;
    Ok(server)
}

fn agent() -> Agent {
    Agent::new_with_defaults()
}

fn send(agent: &Agent, server: &UnderTest, batch: usize) -> Result<usize> {
    let payload = "x".repeat(PAYLOAD);
    let (path, body) = match batch {
        1 => ("messages", payload),
        _ => ("messages:batch", format!("{{\"text\":\"{payload}\"}}\n").repeat(batch)),
    };
    post(agent, &server.url(&format!("{QUEUE}/{path}"))?, body)?;
    Ok(batch)
}

fn post(agent: &Agent, url: &str, body: String) -> Result<String> {
    let request = agent.post(url).header("content-type", "application/octet-stream");
    let mut answer = request.send(body).with_context(|| format!("a request failed: {url}"))?;
    Ok(answer.body_mut().with_config().limit(u64::MAX).read_to_string()?)
}

/// Several clients that do `exchange` again and again, which says how many messages moved; none: there are no more, and the
/// row ends. What is done in the time counts, whenever it began.
fn load(
    server: &UnderTest,
    name: &str,
    effort: Effort,
    exchange: impl Fn(&Agent, usize) -> Result<usize> + Sync,
) -> Result<Row> {
    let (stop, counting, moved) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let client = |number: usize| -> Result<Vec<u64>> {
        // However it ends, so does the row.
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
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || client(number))).collect();
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
            let ended = client.join().map_err(|_| anyhow::anyhow!("a client has died"))?;
            times.extend(ended?);
        }
        ensure!(messages > 0, "{name}: no message in the time");
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
