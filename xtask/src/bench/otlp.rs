//! `bench lake`, from outside: export requests over real sockets to the binary, which syncs them, makes rows of them and
//! commits these beside it. First at full load, then at half of that rate.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytes::Bytes;
use serde_json::Value;
use tokio::runtime::Runtime;

use super::Effort;
use super::environment;
use super::export::{Export, Protocol};
use super::generator::{Generator, Shape};
use super::lake::free_port;
use super::report::Row;
use super::under_test::UnderTest;

const CONNECTIONS: usize = 8;
pub const RECORDS_PER_REQUEST: u64 = 1000;
/// Distinct ones, sent in turn.
const REQUESTS: usize = 64;
/// Interval of visibility checks for the latest acknowledged data.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The requirement for this kind of machine.
const LOGS_PER_SECOND: f64 = 100_000.0;
const ACK_P99: Duration = Duration::from_millis(50);
const VISIBLE_P99: Duration = Duration::from_secs(1);

pub fn measure(binary: &std::path::Path, protocol: Protocol, effort: Effort) -> Result<Row> {
    let folder = environment::bench_folder();
    if let Some(refused) = environment::refused(&folder) {
        bail!(refused);
    }
    std::fs::create_dir_all(&folder)?;
    let (http, grpc) = (free_port()?, free_port()?);
    // The generator's records are of a later year.
    let config = format!(
        "log: {{min_free: 0, durability: fsync}}\ningest:\n  future_max: 87660h\n  otlp:\n    \
         http: {{address: \"127.0.0.1:{http}\"}}\n    grpc: {{address: \"127.0.0.1:{grpc}\"}}\n"
    );
    let mut server = UnderTest::start_below(&folder, binary, &config)?;
    server.wait_ready()?;
    let mut generator = Generator::new(Shape::Logs, 1);
    let requests = (0..REQUESTS).map(|_| protocol.framed(&generator.request(RECORDS_PER_REQUEST)));
    let load = Arc::new(Load {
        protocol,
        port: protocol.choose(grpc, http),
        requests: requests.collect(),
        next: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        is_counted: AtomicBool::new(false),
        stored: AtomicU64::new(0),
        times: Mutex::default(),
        newest: Mutex::default(),
    });
    // One thread: the other processor is for the server.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let full = run(&load, &runtime, &server, effort, None)?;
    // Measurements at half the load must not wait behind the rest of the full load.
    let begun = Instant::now();
    all_there(&server, &load)?;
    println!(
        "  {}: every row was visible {:.1} s after the last acknowledgement of the full load",
        row_name(protocol),
        begun.elapsed().as_secs_f64()
    );
    let pause = Duration::from_secs_f64(full.seconds / full.requests as f64 * 2.0);
    let half = run(&load, &runtime, &server, effort, Some(pause))?;
    all_there(&server, &load)?;
    server.stop()?;
    Ok(row(protocol, &full, &half))
}

/// The result of a run is invalid without its rows.
fn all_there(server: &UnderTest, load: &Load) -> Result<()> {
    let stored = load.stored.load(Relaxed) * RECORDS_PER_REQUEST;
    let newest = load.newest.lock().map_err(died)?.clone();
    let (newest, _) = newest.context("nothing was stored")?;
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let rows = server.sql("select count(*) as rows from logs")?[0]["rows"].as_u64();
        match rows {
            Some(rows) if rows == stored => return Ok(()),
            _ if Instant::now() > until => bail!("{rows:?} rows of {stored} records, up to {newest}"),
            _ => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// State shared by all connections.
struct Load {
    protocol: Protocol,
    port: u16,
    requests: Vec<Bytes>,
    next: AtomicU64,
    is_over: AtomicBool,
    is_counted: AtomicBool,
    /// Acknowledged requests since the start of the server.
    stored: AtomicU64,
    /// Nanoseconds of acknowledgements.
    times: Mutex<Vec<u64>>,
    /// Position of the newest one, and the time of its acknowledgement.
    newest: Mutex<Option<(String, Instant)>>,
}

/// The result of a load.
struct Outcome {
    seconds: f64,
    requests: u64,
    cpu_seconds: f64,
    bytes: f64,
    allocations: f64,
    /// Nanoseconds, ascending: until acknowledgement, and from there until rows were visible.
    times: Vec<u64>,
    visible: Vec<u64>,
}

/// With a fixed interval between request starts, or as fast as possible.
fn run(
    load: &Arc<Load>,
    runtime: &Runtime,
    server: &UnderTest,
    effort: Effort,
    pause: Option<Duration>,
) -> Result<Outcome> {
    load.is_over.store(false, Relaxed);
    let begin = Instant::now();
    let pace = Arc::new(Pace {
        begin,
        pause,
        turn: AtomicU64::new(0),
    });
    let send = |_| runtime.spawn(load.clone().send(pace.clone()));
    let senders: Vec<_> = (0..CONNECTIONS).map(send).collect();
    let looking = match pause {
        Some(_) => Some(runtime.spawn(load.clone().look(server.port()?))),
        None => None,
    };
    std::thread::sleep(Duration::from_secs_f64(effort.warm_up_seconds));
    let (before, begun, stored) = (server.costs()?, Instant::now(), load.stored.load(Relaxed));
    load.is_counted.store(true, Relaxed);
    std::thread::sleep(Duration::from_secs_f64(effort.seconds()));
    load.is_counted.store(false, Relaxed);
    let (seconds, requests) = (begun.elapsed().as_secs_f64(), load.stored.load(Relaxed) - stored);
    let after = server.costs()?;
    load.is_over.store(true, Relaxed);
    let mut visible = runtime.block_on(async {
        for sender in senders {
            sender.await??;
        }
        match looking {
            Some(looking) => looking.await?,
            None => Ok(Vec::new()),
        }
    })?;
    let mut times = std::mem::take(&mut *load.times.lock().map_err(died)?);
    times.sort_unstable();
    visible.sort_unstable();
    ensure!(
        requests > 0 && !times.is_empty(),
        "nothing was acknowledged in the measured time"
    );
    Ok(Outcome {
        seconds,
        requests,
        cpu_seconds: after.cpu_seconds - before.cpu_seconds,
        bytes: after.bytes - before.bytes,
        allocations: after.allocations - before.allocations,
        times,
        visible,
    })
}

/// The schedule of requests.
struct Pace {
    begin: Instant,
    pause: Option<Duration>,
    turn: AtomicU64,
}

impl Pace {
    /// Returns at the time of the next request, with that time: a late request also counts its delay.
    async fn next(&self) -> Instant {
        let Some(pause) = self.pause else {
            return Instant::now();
        };
        let turn = self.turn.fetch_add(1, Relaxed);
        let due = self.begin + pause.mul_f64(turn as f64);
        tokio::time::sleep_until(due.into()).await;
        due
    }
}

impl Load {
    /// One connection with one request at a time.
    async fn send(self: Arc<Load>, pace: Arc<Pace>) -> Result<()> {
        let mut export = Export::open(self.protocol, self.port).await?;
        while !self.is_over.load(Relaxed) {
            let began = pace.next().await;
            let turn = self.next.fetch_add(1, Relaxed) as usize % self.requests.len();
            let request = self.requests.get(turn).context("no request")?.clone();
            let position = export.send(request).await?;
            let now = Instant::now();
            self.stored.fetch_add(1, Relaxed);
            if self.is_counted.load(Relaxed) {
                let took = u64::try_from(now.duration_since(began).as_nanos())?;
                self.times.lock().map_err(died)?.push(took);
            }
            *self.newest.lock().map_err(died)? = Some((position, now));
        }
        Ok(())
    }

    /// Nanoseconds from acknowledgements until queries see the acknowledged data.
    async fn look(self: Arc<Load>, port: u16) -> Result<Vec<u64>> {
        let (mut asking, mut times) = (Export::open(Protocol::Http, port).await?, Vec::new());
        while !self.is_over.load(Relaxed) {
            tokio::time::sleep(LOOK_EVERY).await;
            let newest = self.newest.lock().map_err(died)?.clone();
            let Some((position, stored)) = newest else { continue };
            let query = format!("/api/sql?q=select%201&wait_for={position}");
            while let Err(error) = asking.get(&query).await {
                // If it exceeds the server's wait limit, the result still counts.
                ensure!(error.to_string().contains("lake.wait_timeout"), error);
            }
            if self.is_counted.load(Relaxed) {
                times.push(u64::try_from(stored.elapsed().as_nanos())?);
            }
        }
        Ok(times)
    }
}

fn row_name(protocol: Protocol) -> &'static str {
    protocol.choose("otlp_grpc_fsync", "otlp_http_fsync")
}

fn row(protocol: Protocol, full: &Outcome, half: &Outcome) -> Row {
    let logs = |of: &Outcome| (of.requests * RECORDS_PER_REQUEST) as f64;
    let (all, at) = (logs(full), |times: &[u64], part: f64| {
        let n = (times.len() as f64 * part) as usize;
        times
            .get(n.min(times.len().saturating_sub(1)))
            .map(|nanos| *nanos as f64)
    });
    let name = row_name(protocol);
    let told = |times: &[u64]| {
        let millis = |part| at(times, part).map_or(f64::NAN, |nanos| nanos / 1e6);
        format!(
            "p50 {:.1} ms, p99 {:.1} ms, p99.9 {:.1} ms",
            millis(0.5),
            millis(0.99),
            millis(0.999)
        )
    };
    println!(
        "  {name}: {:.0} logs/s acknowledged (required: {LOGS_PER_SECOND:.0}), {:.0} ns of CPU for each; acknowledgement {}",
        all / full.seconds,
        full.cpu_seconds * 1e9 / all,
        told(&full.times)
    );
    println!(
        "  {name}, half of that: {:.0} logs/s, {:.0} ns of CPU for each; acknowledgement {} (required: p99 {ACK_P99:?}); visible after \
         it {} (required: p99 {VISIBLE_P99:?}, {} looks)",
        logs(half) / half.seconds,
        half.cpu_seconds * 1e9 / logs(half),
        told(&half.times),
        told(&half.visible),
        half.visible.len()
    );
    let more = [
        ("p999_ns", at(&full.times, 0.999)),
        ("seconds", Some(full.seconds)),
        ("half_ops_per_second", Some(logs(half) / half.seconds)),
        ("half_cpu_ns_per_op", Some(half.cpu_seconds * 1e9 / logs(half))),
        ("half_p50_ns", at(&half.times, 0.5)),
        ("half_p99_ns", at(&half.times, 0.99)),
        ("half_p999_ns", at(&half.times, 0.999)),
        ("half_visible_p50_ns", at(&half.visible, 0.5)),
        ("half_visible_p99_ns", at(&half.visible, 0.99)),
    ];
    let more = more.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    Row {
        name: name.to_owned(),
        ops_per_second: all / full.seconds,
        wall_ns_per_op: full.seconds * 1e9 / all,
        cpu_ns_per_op: full.cpu_seconds * 1e9 / all,
        bytes_per_op: full.bytes / all,
        allocs_per_op: full.allocations / all,
        p50_ns: at(&full.times, 0.5),
        p99_ns: at(&full.times, 0.99),
        more: more.chain([("durability".to_owned(), Value::from("fsync"))]).collect(),
    }
}

fn died<T>(_: std::sync::PoisonError<T>) -> anyhow::Error {
    anyhow!("a connection thread panicked")
}
