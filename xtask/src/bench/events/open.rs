//! The cost of many open subscriptions: the memory of each, the time to notify all of them of one message, and the shutdown
//! time of a server while they are open.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Map;

use super::{Connection, Requests, Server, Subscriber};
use crate::bench::Effort;
use crate::bench::report::Row;

pub const IDLE: &str = "sse_idle_10000";
pub const EXIT: &str = "exit_1000_sse";

const SUBSCRIBERS: usize = 10_000;
const OPEN_AT_EXIT: usize = 1000;
/// Descriptors of this process and of the server, beside the subscriptions.
const OTHER_FILES: u64 = 1000;
/// Each thread reads its share of the subscriptions, one after another.
const READERS: usize = 4;
const ROUNDS_QUICK: usize = 5;
const ROUNDS: usize = 30;

fn rounds(effort: Effort) -> usize {
    if effort.is_quick() { ROUNDS_QUICK } else { ROUNDS }
}

/// Resident bytes of a waiting subscription, and the time from the response of a write to the last poke of it.
pub fn idle(binary: &Path, effort: Effort) -> Result<Row> {
    allow_files(SUBSCRIBERS as u64 + OTHER_FILES)?;
    let server = Server::start(binary, "fsync")?;
    let requests = Requests::new(1);
    let mut writer = Connection::open(server.port)?;
    let write = requests.writes.first().context("no request")?;
    // One-time allocations of the first subscriber are excluded.
    let first = Subscriber::open(server.port)?;
    writer.call(write)?;
    let before = resident(&server)?;
    let mut subscribers = (0..SUBSCRIBERS)
        .map(|_| Subscriber::open(server.port))
        .collect::<Result<Vec<_>>>()?;
    let per_connection = resident(&server)?.saturating_sub(before) / SUBSCRIBERS as u64;
    let (costs, begun) = (server.costs()?, Instant::now());
    let mut times = Vec::new();
    for _ in 0..rounds(effort) {
        times.push(tell_all(&mut writer, write, &mut subscribers)?);
    }
    let (after, seconds) = (server.costs()?, begun.elapsed().as_secs_f64());
    let told = resident(&server)?.saturating_sub(before) / SUBSCRIBERS as u64;
    drop(first);
    let ops = (times.len() * SUBSCRIBERS) as f64;
    let (p50, worst) = median_and_worst(times);
    println!(
        "  {per_connection} resident bytes of each of {SUBSCRIBERS} subscriptions before their first poke, {told} after \
         it; from the response of a write to the last poke: median {:.1} ms, worst {:.1} ms",
        p50 / 1e6,
        worst / 1e6
    );
    let more = [
        ("connections", SUBSCRIBERS as u64),
        ("resident_bytes_per_connection", per_connection),
        ("resident_bytes_per_connection_told", told),
    ];
    Ok(Row {
        name: IDLE.to_owned(),
        ops_per_second: ops / seconds,
        wall_ns_per_op: seconds * 1e9 / ops,
        cpu_ns_per_op: (after.cpu_seconds - costs.cpu_seconds) * 1e9 / ops,
        bytes_per_op: (after.bytes - costs.bytes) / ops,
        allocs_per_op: (after.allocations - costs.allocations) / ops,
        p50_ns: Some(p50),
        p99_ns: Some(worst),
        more: more
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect(),
    })
}

/// From SIGTERM to the end of the process, with many subscribers.
pub fn exit(binary: &Path, effort: Effort) -> Result<Row> {
    allow_files(OPEN_AT_EXIT as u64 + OTHER_FILES)?;
    let mut times = Vec::new();
    for _ in 0..rounds(effort) {
        let mut server = Server::start(binary, "fsync")?;
        let open = (0..OPEN_AT_EXIT)
            .map(|_| Subscriber::open(server.port))
            .collect::<Result<Vec<_>>>()?;
        let begun = Instant::now();
        let asked = Command::new("kill")
            .args(["-s", "TERM", &server.child.id().to_string()])
            .status()?;
        ensure!(asked.success(), "cannot send SIGTERM to the server");
        let ended = server.child.wait()?;
        times.push(begun.elapsed());
        ensure!(ended.success(), "the server ended ({ended})");
        drop(open);
    }
    let (p50, worst) = median_and_worst(times);
    println!(
        "  from SIGTERM to the end, with {OPEN_AT_EXIT} subscriptions open: median {:.1} ms, worst {:.1} ms",
        p50 / 1e6,
        worst / 1e6
    );
    Ok(Row {
        name: EXIT.to_owned(),
        ops_per_second: 1e9 / p50,
        wall_ns_per_op: p50,
        cpu_ns_per_op: f64::NAN,
        bytes_per_op: f64::NAN,
        allocs_per_op: f64::NAN,
        p50_ns: Some(p50),
        p99_ns: Some(worst),
        more: Map::from_iter([("connections".to_owned(), OPEN_AT_EXIT.into())]),
    })
}

/// From the response of a write until the last subscriber has read the poke.
fn tell_all(writer: &mut Connection, write: &[u8], subscribers: &mut [Subscriber]) -> Result<Duration> {
    let part = subscribers.len().div_ceil(READERS).max(1);
    std::thread::scope(|scope| {
        let readers: Vec<_> = subscribers
            .chunks_mut(part)
            .map(|own| {
                scope.spawn(move || -> Result<Instant> {
                    for subscriber in own {
                        while !subscriber.is_poked()? {}
                    }
                    Ok(Instant::now())
                })
            })
            .collect();
        writer.call(write)?;
        let (answered, mut last) = (Instant::now(), None);
        for reader in readers {
            let done = reader
                .join()
                .map_err(|_| anyhow::anyhow!("a reader thread panicked"))??;
            last = last.max(Some(done));
        }
        Ok(last.map_or(Duration::ZERO, |last| last.saturating_duration_since(answered)))
    })
}

fn median_and_worst(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort_unstable();
    let at = |n: usize| times.get(n).map_or(f64::NAN, |time| time.as_nanos() as f64);
    (at(times.len() / 2), at(times.len().saturating_sub(1)))
}

fn resident(server: &Server) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
    Ok(kilobytes
        .context("the server has no resident memory")?
        .trim()
        .parse::<u64>()?
        << 10)
}

/// Raises the limit of open files for this process and its children, as far as the system allows.
fn allow_files(wanted: u64) -> Result<()> {
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let mut words = line.context("no limit of open files")?.split_whitespace();
    let mut limit = || words.next().map(|word| word.parse().unwrap_or(u64::MAX)).unwrap_or(0);
    let (soft, hard) = (limit(), limit());
    if soft >= wanted {
        return Ok(());
    }
    ensure!(
        hard >= wanted,
        "{wanted} open files are needed and {hard} allowed; raise the limit: ulimit -Hn {wanted}"
    );
    let raised = Command::new("prlimit")
        .args([
            "--pid",
            &std::process::id().to_string(),
            &format!("--nofile={wanted}:{hard}"),
        ])
        .status()
        .context("prlimit is needed, of Debian's util-linux")?;
    ensure!(
        raised.success(),
        "the limit of open files could not be raised to {wanted}"
    );
    Ok(())
}
