//! Runs the process under a limit and asserts its behaviour.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures::StreamExt as _;
use thalweg_query::http::router;
use thalweg_query::{Engine, QueryMetrics, QueryOptions};
use tower::ServiceExt as _;

use super::asked::{Asked, Queries};
use super::memory;

const ROLE: &str = "THALWEG_FUNCTIONS_CHILD";
const MIB: usize = 1 << 20;
/// A quarter of `memory.limit: 600MiB`, as the binary gives to queries.
const QUERY_MEMORY: usize = 150 * MIB;
/// The most memory that the process may use: `memory.limit`.
const RESIDENT_MAX: usize = 600 * MIB;
/// The kernel refuses more. Address space that the allocator retains and thread stacks count as well.
const DATA_MAX: usize = 4_096 * MIB;
/// Memory that may stay allocated after a query: caches of threads and of the library, never rows.
const LIVE_MAX: usize = 32 * MIB;
/// Growth of resident pages that is allowed, checked after this many queries.
const KEPT_MAX: usize = 48 * MIB;
const QUERIES_PER_LOOK: usize = 20;
const TIMEOUT: Duration = Duration::from_secs(1);

pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// How a process ended.
pub struct Child {
    role: String,
    output: Output,
}

impl Child {
    pub fn run(role: &str) -> Child {
        let test = std::env::current_exe().unwrap();
        let output = Command::new(test)
            .args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            // Symbol names read for a backtrace would stay in memory.
            .env("RUST_BACKTRACE", "0")
            .output();
        Child {
            role: role.to_owned(),
            output: output.unwrap(),
        }
    }

    pub fn assert_lives(&self) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&self.output.stdout), text(&self.output.stderr));
        let last: String = out
            .lines()
            .rev()
            .take(4)
            .map(|line| format!("{:.400}\n", line))
            .collect();
        let why: Vec<&str> = err.lines().rev().take(12).collect();
        assert!(
            self.output.status.success(),
            "{}: {}; the last queries, newest first:\n{last}{}",
            self.role,
            self.output.status,
            why.into_iter().rev().collect::<Vec<_>>().join("\n")
        );
        assert!(out.contains("all answered"), "{}: {out:.2000}", self.role);
    }
}

pub struct Limits;

impl Limits {
    pub fn set() {
        let limit = rustix::process::Rlimit {
            current: Some(DATA_MAX as u64),
            maximum: Some(DATA_MAX as u64),
        };
        rustix::process::setrlimit(rustix::process::Resource::Data, limit).unwrap();
    }
}

/// Runs queries one after the other and prints each before it runs.
#[expect(clippy::print_stdout, reason = "the parent tells which one it was")]
pub fn answer(all: Vec<impl Queries>) {
    let folder = tempfile::tempdir().unwrap();
    // A lake without tables, so that there is a place for spill files.
    std::fs::create_dir_all(thalweg_lake::folder(folder.path())).unwrap();
    let options = QueryOptions {
        timeout: TIMEOUT,
        memory_bytes: QUERY_MEMORY,
        cache_bytes: 30 * MIB,
        ..QueryOptions::default()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let engine = Engine::open(folder.path(), options, QueryMetrics::unregistered()).unwrap();
        let first = "select count(*) from (select unnest(range(0, 100000)))";
        ask(&engine, &Asked::from(first.to_owned())).await;
        let before = Before {
            live: memory::live(),
            anonymous: memory::anonymous(),
        };
        let (mut codes, mut peak, mut asked) = (BTreeMap::new(), 0, 0);
        for mut queries in all {
            while let Some(query) = queries.next() {
                let (code, taken) = ask_bounded(&engine, &query, &before).await;
                if !["sql.plan", "sql.parse"].contains(&code.as_str()) {
                    queries.was_planned();
                }
                *codes.entry(code).or_insert(0) += 1;
                (peak, asked) = (taken.max(peak), asked + 1);
                if asked % QUERIES_PER_LOOK == 0 {
                    before.is_given_back().await;
                }
            }
        }
        before.is_given_back().await;
        println!(
            "all answered: {asked} queries, at most {} MiB, {} MiB kept, {codes:?}",
            peak / MIB,
            before.kept() / MIB
        );
    });
}

/// The memory of the process before the first query.
struct Before {
    live: usize,
    anonymous: usize,
}

impl Before {
    fn lives(&self) -> usize {
        memory::live().saturating_sub(self.live)
    }

    fn kept(&self) -> usize {
        memory::anonymous().saturating_sub(self.anonymous)
    }

    async fn is_given_back(&self) {
        let kept = || format!("{} MiB of pages are kept", self.kept() / MIB);
        settle(|| self.kept() < KEPT_MAX, kept).await;
    }
}

/// Returns the code of the answer and the peak of memory, which must be within the limit.
#[expect(clippy::print_stdout, reason = "the parent tells which one it was")]
async fn ask_bounded(engine: &Engine, asked: &Asked, before: &Before) -> (String, usize) {
    let Asked { sql, format } = asked;
    println!("{format}: {sql:.1000}");
    memory::forget_peak();
    let code = ask(engine, asked).await;
    // An aborted query releases its memory a moment later; the test does not measure two queries at once.
    let held = || format!("{} MiB are reserved by {sql:.300}", engine.memory_used() / MIB);
    settle(|| engine.memory_used() == 0, held).await;
    let lives = || format!("{} MiB live of {sql:.300}", before.lives() / MIB);
    settle(|| before.lives() < LIVE_MAX, lives).await;
    let peak = memory::peak();
    println!("  {code}: at most {} MiB, {} MiB kept", peak / MIB, before.kept() / MIB);
    assert!(peak < RESIDENT_MAX, "{} MiB were taken by {sql:.300}", peak / MIB);
    (code, peak)
}

async fn settle(is_so: impl Fn() -> bool, otherwise: impl Fn() -> String) {
    for _ in 0..1_200 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{}", otherwise());
}

/// The code of the answer. Reads all rows and discards them.
#[expect(
    clippy::print_stdout,
    reason = "what a query was told helps to read what comes after it"
)]
async fn ask(engine: &Engine, Asked { sql, format }: &Asked) -> String {
    let request = Request::post(format!("/api/sql?format={format}"))
        .body(Body::from(sql.to_owned()))
        .unwrap();
    let response = router(engine.clone()).oneshot(request).await.unwrap();
    let status = response.status();
    let mut body = response.into_body().into_data_stream();
    let (mut start, mut is_whole) = (Vec::new(), true);
    while let Some(part) = body.next().await {
        match part {
            Ok(part) if start.len() < MIB => start.extend_from_slice(&part),
            Ok(_) => {}
            Err(_) => is_whole = false,
        }
    }
    if status == StatusCode::OK {
        return if is_whole {
            "rows".to_owned()
        } else {
            "broken off".to_owned()
        };
    }
    let error: serde_json::Value = serde_json::from_slice(&start).unwrap_or_default();
    let (code, message) = (error["error"]["code"].as_str(), error["error"]["message"].as_str());
    let (Some(code), Some(message)) = (code, message) else {
        panic!(
            "{sql:.300}: {status} without an error: {}",
            String::from_utf8_lossy(&start)
        );
    };
    assert!(!message.contains("this is a bug"), "{sql:.300}: {message:.300}");
    println!("  {code}: {message:.300}");
    code.to_owned()
}
