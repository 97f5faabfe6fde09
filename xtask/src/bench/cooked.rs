//! `bench lake --cooked [--rows N]`: a long run, not for continuous integration. Generated logs are sent over OTLP/HTTP to the
//! binary with its defaults, which concurrently makes rows, files and merged files. The results are the peak memory of the
//! process, whether every row is there, the time of a query for one service and hour, and the sizes of files once their hours
//! are over: records have future times, so compaction is requested.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::driver::{agent, post};
use super::environment;
use super::generator::{BEGIN_NANOS, Generator, Shape};
use super::lake::free_port;
use super::report::Row;
use super::under_test::UnderTest;
use crate::shell::binary_under_test;

const CLIENTS: usize = 8;
const RECORDS_PER_REQUEST: u64 = 1000;
/// Requests queued for a client.
const AHEAD: usize = 16;
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// Files that do not change for this long are considered final.
const QUIET: Duration = Duration::from_secs(40);
const ALL_COMMITTED_WITHIN: Duration = Duration::from_secs(600);
const ALL_MERGED_WITHIN: Duration = Duration::from_secs(1800);
const QUERIES: usize = 20;
const NANOS_PER_HOUR: u64 = 3_600_000_000_000;

pub fn run(rows: u64) -> Result<Row> {
    let folder = environment::bench_folder();
    if let Some(refused) = environment::refused(&folder) {
        bail!(refused);
    }
    std::fs::create_dir_all(&folder)?;
    let port = free_port()?;
    // Records are from one day of a future year, a millisecond apart.
    let config = format!(
        "ingest:\n  future_max: 438000h\n  otlp:\n    http: {{address: \"127.0.0.1:{port}\"}}\n    grpc: {{enabled: false}}\n"
    );
    let mut server = UnderTest::start_below(&folder, &binary_under_test()?, &config)?;
    server.wait_ready()?;
    let rows = rows.next_multiple_of(RECORDS_PER_REQUEST);
    println!("measuring cooked: {rows} logs, {CLIENTS} clients\n{HEAD}");
    let start = Instant::now();
    send(&server, &format!("http://127.0.0.1:{port}/v1/logs"), rows, start)?;
    let sent = start.elapsed();
    println!("all logs are acknowledged");
    wait_until(&server, start, ALL_COMMITTED_WITHIN, |now, _| now.committed >= rows)?;
    let committed = start.elapsed();
    println!("all logs are committed");
    let merged = wait_until(&server, start, ALL_MERGED_WITHIN, |_, same_for| same_for >= QUIET)?;
    let count = server.sql("select count(*) as rows from logs")?;
    let count = number(&count, "rows")?;
    ensure!(count == rows, "{rows} logs were sent, and {count} are in the table");
    let query_ms = filtered(&server, rows)?;
    println!("all merges are done");
    let asked = Instant::now();
    let url = server.url("/api/lake/upkeep")?;
    let did = post(
        &agent(),
        &url,
        "application/json",
        br#"{"task":"compact","table":"logs"}"#,
    )?;
    ensure!(!did.contains("\"error\""), "a merge failed: {did}");
    let took = asked.elapsed();
    let sizes = sizes(&server)?;
    let compacted_query_ms = filtered(&server, rows)?;
    let cost = server.costs()?;
    let peak = peak_bytes(server.id())?;
    println!(
        "\n{rows} logs: acknowledged {:.0}/s, committed {:.0}/s; peak {:.0} MB resident; {} files of {:.1} MB in the mean, {:.1} bytes a row; \
         one service and hour: {query_ms:.0} ms in the median of {QUERIES}\nmerged for {:.0} s: {} files, {:.1} MiB in the median, \
         {:.1} to {:.1}; the same query: {compacted_query_ms:.0} ms",
        rows as f64 / sent.as_secs_f64(),
        rows as f64 / committed.as_secs_f64(),
        peak / 1e6,
        merged.files,
        merged.bytes / merged.files.max(1.0) / 1e6,
        merged.bytes / rows as f64,
        took.as_secs_f64(),
        sizes.len(),
        mebibytes(&sizes, sizes.len() / 2),
        mebibytes(&sizes, 0),
        mebibytes(&sizes, sizes.len().saturating_sub(1)),
    );
    server.stop()?;
    let more = [
        ("peak_resident_bytes", peak),
        ("files", merged.files),
        ("file_bytes", merged.bytes),
        ("filtered_query_ms", query_ms),
        ("compacted_files", sizes.len() as f64),
        ("compacted_median_mib", mebibytes(&sizes, sizes.len() / 2)),
        ("compacted_query_ms", compacted_query_ms),
    ];
    Ok(Row {
        name: format!("cooked_{}m", rows / 1_000_000),
        ops_per_second: rows as f64 / committed.as_secs_f64(),
        wall_ns_per_op: committed.as_nanos() as f64 / rows as f64,
        cpu_ns_per_op: cost.cpu_seconds * 1e9 / rows as f64,
        bytes_per_op: cost.bytes / rows as f64,
        allocs_per_op: cost.allocations / rows as f64,
        more: more
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect(),
        ..Row::default()
    })
}

const HEAD: &str = "       s         sent    committed  resident MB   peak MB   files        MB";

/// One thread generates requests, others send them.
fn send(server: &UnderTest, url: &str, rows: u64, start: Instant) -> Result<()> {
    let (sender, receiver) = sync_channel::<Vec<u8>>(AHEAD);
    let (receiver, sent) = (Mutex::new(receiver), AtomicU64::new(0));
    let client = || -> Result<()> {
        let agent = agent();
        loop {
            let next = receiver
                .lock()
                .map_err(|_| anyhow::anyhow!("a client thread panicked"))?
                .recv();
            let Ok(request) = next else { return Ok(()) };
            let answer = post(&agent, url, "application/x-protobuf", &request)?;
            ensure!(answer.is_empty(), "not all records were taken: {answer:?}");
            sent.fetch_add(RECORDS_PER_REQUEST, Relaxed);
        }
    };
    std::thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let mut generator = Generator::new(Shape::Logs, 1);
        let mut told = Instant::now();
        for _ in 0..rows / RECORDS_PER_REQUEST {
            // Without a client the reason is reported below.
            if sender.send(generator.request(RECORDS_PER_REQUEST)).is_err() {
                break;
            }
            if told.elapsed() >= TOLD_EVERY {
                told = Instant::now();
                tell(start, sent.load(Relaxed), &look(server)?, server.id())?;
            }
        }
        drop(sender);
        for client in clients {
            client
                .join()
                .map_err(|_| anyhow::anyhow!("a client thread panicked"))??;
        }
        Ok(())
    })
}

/// The content of the table `logs`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Now {
    committed: u64,
    files: f64,
    bytes: f64,
}

fn look(server: &UnderTest) -> Result<Now> {
    let text = server.metrics()?;
    let sum = |name: &str| -> f64 {
        let of_logs = |line: &&str| line.starts_with(name) && line.contains("table=\"logs\"");
        let value = |line: &str| line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok());
        text.lines().filter(of_logs).filter_map(value).sum()
    };
    Ok(Now {
        committed: sum("thalweg_lake_rows{") as u64,
        files: sum("thalweg_lake_files{"),
        bytes: sum("thalweg_lake_bytes{"),
    })
}

fn tell(start: Instant, sent: u64, now: &Now, process: u32) -> Result<()> {
    println!(
        "{:>8.0} {sent:>12} {:>12} {:>12.0} {:>9.0} {:>7} {:>9.0}",
        start.elapsed().as_secs_f64(),
        now.committed,
        status(process, "VmRSS:")? / 1e6,
        peak_bytes(process)? / 1e6,
        now.files,
        now.bytes / 1e6,
    );
    Ok(())
}

/// Waits until the table has the rows, or has not changed for a while.
fn wait_until(
    server: &UnderTest,
    start: Instant,
    within: Duration,
    is_reached: impl Fn(&Now, Duration) -> bool,
) -> Result<Now> {
    let (begin, mut told) = (Instant::now(), Instant::now());
    let (mut last, mut since) = (look(server)?, Instant::now());
    loop {
        let now = look(server)?;
        if now != last {
            (last, since) = (now, Instant::now());
        }
        if is_reached(&now, since.elapsed()) {
            return Ok(now);
        }
        ensure!(
            begin.elapsed() < within,
            "after {} s the table has {now:?}",
            within.as_secs()
        );
        if told.elapsed() >= TOLD_EVERY {
            told = Instant::now();
            tell(start, 0, &now, server.id())?;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Milliseconds of a query for a service in an hour in the middle, median of several.
fn filtered(server: &UnderTest, rows: u64) -> Result<f64> {
    let begin = BEGIN_NANOS + rows * 1_000_000 / 2;
    let query = format!(
        "select severity_text, count(*) as rows from logs where resource_service_name = 'checkout' and time_unix_nano >= {begin} and \
         time_unix_nano < {} group by severity_text",
        begin + NANOS_PER_HOUR
    );
    server.sql(&query)?;
    let mut took = Vec::with_capacity(QUERIES);
    for _ in 0..QUERIES {
        let start = Instant::now();
        let found = server.sql(&query)?;
        ensure!(
            found.as_array().is_some_and(|rows| !rows.is_empty()),
            "no row of the hour was found"
        );
        took.push(start.elapsed().as_secs_f64() * 1e3);
    }
    took.sort_by(f64::total_cmp);
    took.get(QUERIES / 2).copied().context("no query was asked")
}

/// Bytes of the table's live files, ascending, from its commits.
fn sizes(server: &UnderTest) -> Result<Vec<u64>> {
    let folder = server.data_dir().join("lake/logs/_delta_log");
    let entries = std::fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))?;
    let mut commits: Vec<_> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    commits.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    commits.sort();
    let mut files = BTreeMap::new();
    for commit in commits {
        for line in std::fs::read_to_string(&commit)?.lines() {
            let action: Value = serde_json::from_str(line)?;
            let path = |kind: &str| action[kind]["path"].as_str().map(str::to_owned);
            if let Some(path) = path("add") {
                files.insert(path, action["add"]["size"].as_u64().context("a file without a size")?);
            }
            if let Some(path) = path("remove") {
                files.remove(&path);
            }
        }
    }
    let mut sizes: Vec<u64> = files.into_values().collect();
    sizes.sort_unstable();
    Ok(sizes)
}

fn mebibytes(sizes: &[u64], at: usize) -> f64 {
    sizes
        .get(at)
        .map_or(f64::NAN, |bytes| *bytes as f64 / f64::from(1 << 20))
}

fn number(rows: &Value, name: &str) -> Result<u64> {
    let found = rows.get(0).and_then(|row| row[name].as_u64());
    found.with_context(|| format!("no {name} in {rows}"))
}

fn peak_bytes(process: u32) -> Result<f64> {
    status(process, "VmHWM:")
}

/// Bytes, as reported by the system.
fn status(process: u32, name: &str) -> Result<f64> {
    let path = Path::new("/proc").join(process.to_string()).join("status");
    let text = std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kilobytes
        .map(|kilobytes| kilobytes * 1024.0)
        .with_context(|| format!("no {name} in {}", path.display()))
}
