//! `cargo xtask soak [--for 1h] [--out FOLDER]`: one `thalweg run` with every feature at once, observed from outside.
//!
//! Tags of a simulated plant, OTLP over both protocols, queues and events with clients that come and go, queries, scripts, and
//! probes every second. Every writer counts acknowledged messages and every reader received ones. At the end nothing may be
//! missing, no probe too slow, and memory must be flat.

mod chart;
mod client;
mod events;
mod flows;
mod ledger;
mod memory;
mod otlp;
mod probes;
mod queries;
mod queues;
mod report;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::bench::environment;
use crate::bench::under_test::{Plant, UnderTest};
use crate::shell::binary_under_test;
use client::Client;

/// Maximum number of printed failures; all of them are counted.
const FAULTS_MAX: usize = 100;
/// The plant's tags, which change once a second.
const TAGS: u64 = 1000;
const TOLD_EVERY: Duration = Duration::from_secs(30);

const CONFIG: &str = r#"
log: {min_free: 64MiB, commit: {spare: 1}}
memory: {limit: 768MiB}
# Full before memory is measured.
query: {cache: 4MiB}
http: {debug_endpoints: true}
scripting: {timeout: 300ms}
events: {open_admin: true}
ingest:
  otlp:
    http: {address: "127.0.0.1:HTTP_PORT"}
    grpc: {address: "127.0.0.1:GRPC_PORT"}
queues:
  list:
    - name: orders
      partitions: 4
      max_depth: 0
      visibility_timeout: 3s
      consumer_timeout: 5s
      retry: {initial_backoff: 50ms, max_retries: 20}
      groups: [{name: work}]
flows:
  - name: plant
    input:
      opcua:
        endpoint: ENDPOINT
        nodeIDs: ["ns=3;s=OpcPlc"]
        subscribeEnabled: true
    pipeline:
      processors:
        - tag_processor:
            defaults: |
              msg.meta.location_path = "enterprise.site.area";
              msg.meta.data_contract = "_raw";
              msg.meta.tag_name = msg.meta.opcua_tag_name;
              return msg;
    output:
      lake: {table: tags}
  - name: scripts
    input:
      generate:
        interval: 20ms
        mapping: 'root.n = count("soak")'
    pipeline:
      processors:
        - nodered_js:
            code: |
              // A script that only QuickJS can run, with an occasional endless loop.
              const seen = new Map([[msg.payload.n % 7, "x".repeat(1000)]]);
              if (msg.payload.n % 1000 === 999) { for (;;) {} }
              msg.payload = {n: msg.payload.n, seen: seen.size, text: [...seen.values()].join("")};
              return msg;
    output:
      drop: {}
"#;

/// State shared by all parts of a soak.
pub(crate) struct Soak {
    /// `host:port` of the HTTP listener.
    pub address: String,
    /// Token of the event store.
    pub token: String,
    pub begun: Instant,
    is_over: AtomicBool,
    faults: Mutex<Faults>,
}

/// Failures that no client may see.
#[derive(Default)]
pub(crate) struct Faults {
    pub count: u64,
    /// The first failures.
    pub told: Vec<String>,
}

impl Soak {
    /// Whether new work may begin.
    pub fn goes_on(&self) -> bool {
        !self.is_over.load(Relaxed)
    }

    pub fn client(&self) -> Client {
        Client::new(&self.address)
    }

    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Sleeps, but not beyond the end.
    pub fn pause(&self, length: Duration) {
        const STEP: Duration = Duration::from_millis(100);
        let until = Instant::now() + length;
        while self.goes_on() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(STEP));
        }
    }

    pub fn fault(&self, who: &str, what: impl std::fmt::Display) {
        let mut faults = lock(&self.faults);
        faults.count += 1;
        if faults.told.len() < FAULTS_MAX {
            let told = format!("{:8.1} s  {who}: {what}", self.seconds());
            faults.told.push(told.chars().take(600).collect());
        }
    }
}

/// A panicked thread has reported its error; its results are checked all the same.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Random numbers, reproducible by seed (splitmix64).
pub(crate) struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end.max(1)
    }

    /// True once in this many calls on average.
    pub fn one_of(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

struct Options {
    length: Duration,
    out: PathBuf,
}

pub fn run(arguments: &[&str]) -> Result<()> {
    let options = Options::read(arguments)?;
    std::fs::create_dir_all(&options.out)?;
    let folder = environment::bench_folder();
    if let Some(refused) = environment::refused(&folder) {
        bail!(refused);
    }
    std::fs::create_dir_all(&folder)?;
    let binary = binary_under_test()?;
    soak(&binary, &folder, &options)
}

impl Options {
    fn read(arguments: &[&str]) -> Result<Options> {
        let mut options = Options {
            length: Duration::from_secs(3600),
            out: environment::bench_folder().join("soak"),
        };
        let mut words = arguments.iter().copied();
        while let Some(word) = words.next() {
            match (word, words.next()) {
                ("--for", Some(text)) => options.length = length(text)?,
                ("--out", Some(folder)) => options.out = PathBuf::from(folder),
                _ => bail!("unknown or incomplete option {word}; valid: --for 1h, --out FOLDER"),
            }
        }
        Ok(options)
    }
}

/// `90s`, `10m`, `1h`.
fn length(text: &str) -> Result<Duration> {
    let wrong = || format!("--for {text}: give a number with s, m or h, such as 90s, 10m or 1h");
    let (number, seconds) = match text.char_indices().next_back() {
        Some((at, 's')) => (text.get(..at), 1),
        Some((at, 'm')) => (text.get(..at), 60),
        Some((at, 'h')) => (text.get(..at), 3600),
        _ => bail!(wrong()),
    };
    let number: u64 = number.and_then(|number| number.parse().ok()).with_context(wrong)?;
    let length = number
        .checked_mul(seconds)
        .map(Duration::from_secs)
        .with_context(wrong)?;
    ensure!(
        length >= Duration::from_secs(60),
        "--for {text}: a soak needs at least a minute"
    );
    Ok(length)
}

fn soak(binary: &Path, folder: &Path, options: &Options) -> Result<()> {
    let arguments = [
        "--slow-nodes",
        "0",
        "--fast-nodes",
        &TAGS.to_string(),
        "--fast-rate",
        "1",
    ];
    let plant = Plant::start(binary, &arguments)?;
    let ports = otlp::Ports::free()?;
    let config = CONFIG
        .replace("ENDPOINT", &plant.endpoint)
        .replace("HTTP_PORT", &ports.http.to_string())
        .replace("GRPC_PORT", &ports.grpc.to_string());
    let mut server = UnderTest::start_below(folder, binary, &config)?;
    server.wait_until("thalweg_opcua_items_monitored", TAGS as f64)?;
    let address = server.url("")?;
    let token = server.data_dir().join("keys/default.token");
    let token = std::fs::read_to_string(&token).with_context(|| format!("no {}", token.display()))?;
    let soak = Soak {
        address: address.trim_start_matches("http://").to_owned(),
        token: token.trim_end().to_owned(),
        begun: Instant::now(),
        is_over: AtomicBool::new(false),
        faults: Mutex::default(),
    };
    println!(
        "a soak of {} s; results and the chart go to {}",
        options.length.as_secs(),
        options.out.display()
    );
    let parts = Parts::default();
    let watched = Watched {
        probes: probes::Probes::of(server.id()),
        memory: memory::Memory::of(server.id()),
    };
    let otlp = otlp::Otlp::new(ports);
    let ended = std::thread::scope(|scope| -> Result<()> {
        let _over = Over(&soak);
        let (soak, parts, watched, otlp) = (&soak, &parts, &watched, &otlp);
        watched.probes.start(scope, soak);
        scope.spawn(move || watched.memory.watch(soak));
        parts.queues.start(scope, soak);
        parts.events.start(scope, soak);
        parts.queries.start(scope, soak);
        scope.spawn(move || {
            if let Err(error) = otlp.send(soak) {
                soak.fault("otlp", format!("{error:#}"));
            }
        });
        while soak.begun.elapsed() < options.length {
            soak.pause(TOLD_EVERY.min(options.length.saturating_sub(soak.begun.elapsed())));
            server.check_running()?;
            println!("{}", watched.line(soak, parts, otlp));
        }
        Ok(())
    });
    let log = std::fs::read_to_string(server.log_path()).unwrap_or_default();
    std::fs::write(options.out.join("thalweg.log"), log)?;
    ended?;
    // The load has ended and every reader has read to the end: now check each account.
    let mut accounts = parts.queues.close(&soak);
    accounts.extend(parts.events.close());
    accounts.extend(otlp.close(&soak, &server));
    accounts.extend(flows::close(&soak, &server, plant));
    let faults = lock(&soak.faults);
    let verdict = report::Verdict::of(&watched.probes, &watched.memory, &accounts, &faults);
    let text = verdict.text(&parts.queries, &accounts);
    println!("{text}");
    std::fs::write(options.out.join("soak.txt"), &text)?;
    std::fs::write(
        options.out.join("soak.svg"),
        chart::svg(&watched.memory.samples(), &watched.probes.all()),
    )?;
    server.stop()?;
    verdict.judge(&parts.queries)
}

/// Ends the load when it goes out of scope.
struct Over<'a>(&'a Soak);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Relaxed);
    }
}

#[derive(Default)]
struct Parts {
    queues: queues::Queues,
    events: events::Events,
    queries: queries::Queries,
}

struct Watched {
    probes: probes::Probes,
    memory: memory::Memory,
}

impl Watched {
    /// Prints the progress.
    fn line(&self, soak: &Soak, parts: &Parts, otlp: &otlp::Otlp) -> String {
        let probes = self.probes.all();
        let longest = probes.iter().map(|probe| probe.took).max().unwrap_or_default();
        format!(
            "{:6.0} s  RSS {:6.1} MB  {}  {}  {} records  {} queries  longest of {} probes {:.0} ms  {} faults",
            soak.seconds(),
            self.memory.last_resident() as f64 / 1e6,
            parts.queues.line(),
            parts.events.line(),
            otlp.acknowledged(),
            parts.queries.count(),
            probes.len(),
            longest.as_secs_f64() * 1e3,
            lock(&soak.faults).count
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_soak_has_a_unit() {
        assert_eq!(length("90s").ok(), Some(Duration::from_secs(90)));
        assert_eq!(length("10m").ok(), Some(Duration::from_secs(600)));
        assert_eq!(length("1h").ok(), Some(Duration::from_secs(3600)));
        for wrong in ["", "1", "h", "10 m", "1d", "5s", "99999999999999999999h"] {
            assert!(length(wrong).is_err(), "{wrong}");
        }
    }
}
