//! `bench queue`: the cost of queues. The in-process rows come from a benchmark of the crate itself, which counts allocations
//! and times calls, and prints its own table. The HTTP rows drive the binary through real sockets, with the load in this
//! process.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use ureq::Agent;

use super::Effort;
use super::driver::{agent, in_process, load, post};
use super::environment;
use super::report::{self, Row};
use super::under_test::UnderTest;
use crate::shell::binary_under_test;

/// A default queue without the limits that a benchmark would reach. An acknowledgement means synced.
const CONFIG: &str = "\
log: {min_free: 0, durability: fsync}
queues:
  list:
    - {name: bench, max_depth: 0, max_bytes: 0, groups: [{name: g}]}
";
const QUEUE: &str = "/api/v1/queues/bench";

/// Clients, each with one request at a time.
const CLIENTS: usize = 4;
const BATCH: usize = 1000;
const CLAIM: usize = 100;
const PAYLOAD: usize = 256;
const OCTETS: &str = "application/octet-stream";
/// Backlog for consumers; more than they can process in the time.
const PRELOADED_PER_SECOND: f64 = 100_000.0;

/// A row over HTTP, by its name.
type Load = fn(&Path, &str, Effort) -> Result<Row>;

pub fn run(effort: Effort, only: Option<&str>) -> Result<Vec<Row>> {
    let mut rows = in_process("thalweg-queue", "queue", effort, only, &[])?;
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
    let (binary, mut over_http) = (binary_under_test()?, Vec::new());
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

/// Sends messages one by one, or in NDJSON batches, each waiting for its response.
fn produce(binary: &Path, name: &str, batch: usize, effort: Effort) -> Result<Row> {
    let server = serve(binary)?;
    let row = load(&server, name, CLIENTS, effort, |agent, _| send(agent, &server, batch))?;
    server.stop()?;
    Ok(row)
}

/// Claims and settles existing messages, in separate requests.
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
    let row = load(&server, name, CLIENTS, effort, |agent, client| {
        // The shares of the consumers change when one joins: at first there may be nothing for a moment.
        let want = json!({"consumer": format!("c{client}"), "max": CLAIM, "wait": "1s"});
        let claimed: Value = match post(agent, &claim, OCTETS, want.to_string().as_bytes())? {
            text if text.is_empty() => return Ok(0),
            text => serde_json::from_str(&text)?,
        };
        let messages = claimed["messages"].as_array().context("a claim without messages")?;
        let receipts: Vec<&Value> = messages.iter().map(|message| &message["receipt"]).collect();
        let answer: Value = serde_json::from_str(&post(
            agent,
            &settle,
            OCTETS,
            json!({"ack": receipts}).to_string().as_bytes(),
        )?)?;
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

fn send(agent: &Agent, server: &UnderTest, batch: usize) -> Result<usize> {
    let payload = "x".repeat(PAYLOAD);
    let (path, body) = match batch {
        1 => ("messages", payload),
        _ => ("messages:batch", format!("{{\"text\":\"{payload}\"}}\n").repeat(batch)),
    };
    post(agent, &server.url(&format!("{QUEUE}/{path}"))?, OCTETS, body.as_bytes())?;
    Ok(batch)
}
