//! The process under a limit, and what is asserted of it.

use std::collections::BTreeMap;
use std::process::{Command, Output};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures::StreamExt as _;
use thalweg_query::http::router;
use thalweg_query::{Engine, QueryMetrics, QueryOptions};
use tower::ServiceExt as _;

const ROLE: &str = "THALWEG_FUNCTIONS_CHILD";
const MIB: usize = 1 << 20;
/// A quarter of `memory.limit: 600MiB`, as the program gives queries.
const QUERY_MEMORY: usize = 150 * MIB;
/// What the process may ever have. It is more than `memory.limit` yet: answers on their way and copies within a step are not all
/// reserved, and queries that follow each other at once take before the allocator has given back.
const RESIDENT_MAX: usize = 900 * MIB;
/// The kernel refuses more. Addresses that the allocator keeps for later count as well, and stacks of threads.
const DATA_MAX: usize = 4_096 * MIB;
/// What the process may keep of all that it did.
const KEPT_MAX: usize = 100 * MIB;
const TIMEOUT: Duration = Duration::from_secs(5);

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

/// Bytes of this process: now, and at most.
fn resident(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let kib: usize = line
        .trim_matches([':', '\t', ' '])
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib << 10
}

/// Queries, each of which may depend on what the one before it was told.
pub trait Queries {
    fn next(&mut self) -> Option<String>;
    fn was_planned(&mut self) {}
}

impl Queries for std::vec::IntoIter<String> {
    fn next(&mut self) -> Option<String> {
        Iterator::next(self)
    }
}

impl Queries for super::absurd::Calls {
    fn next(&mut self) -> Option<String> {
        self.next()
    }

    fn was_planned(&mut self) {
        self.was_planned();
    }
}

/// Runs queries one after the other, and tells each before it runs.
#[expect(clippy::print_stdout, reason = "the parent tells which one it was")]
pub fn answer(all: Vec<impl Queries>) {
    let folder = tempfile::tempdir().unwrap();
    // A lake without tables: there is a place for what does not fit into memory.
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
        let engine = Engine::open(folder.path(), options, QueryMetrics::new().unwrap()).unwrap();
        ask(&engine, "SELECT count(*) FROM (SELECT unnest(range(0, 100000)))").await;
        // Without the program's own pages, of which more are read as more of its functions are used.
        let before = resident("RssAnon");
        let mut codes = BTreeMap::new();
        for mut queries in all {
            while let Some(sql) = queries.next() {
                let code = ask_bounded(&engine, &sql).await;
                if !["sql.plan", "sql.parse"].contains(&code.as_str()) {
                    queries.was_planned();
                }
                *codes.entry(code).or_insert(0) += 1;
            }
        }
        settle(
            || engine.memory_used() == 0,
            || format!("{} bytes are reserved", engine.memory_used()),
        )
        .await;
        let kept = || resident("RssAnon").saturating_sub(before);
        settle(|| kept() < KEPT_MAX, || format!("{} MiB are kept", kept() / MIB)).await;
        println!(
            "all answered: at most {} MiB, {} MiB kept, {codes:?}",
            resident("VmHWM") / MIB,
            kept() / MIB
        );
    });
}

/// The code of the answer, which took no more memory than the process may have.
#[expect(clippy::print_stdout, reason = "the parent tells which one it was")]
async fn ask_bounded(engine: &Engine, sql: &str) -> String {
    println!("{sql:.1000}");
    let code = ask(engine, sql).await;
    // One that was broken off lets go a moment later; what two at once take is not what is asked here.
    settle(|| engine.memory_used() == 0, || format!("memory is held by {sql:.300}")).await;
    let peak = resident("VmHWM");
    assert!(peak < RESIDENT_MAX, "{} MiB were taken by {sql:.300}", peak / MIB);
    code
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

/// The code of the answer. All of its rows are read, and none is kept.
#[expect(
    clippy::print_stdout,
    reason = "what a query was told helps to read what comes after it"
)]
async fn ask(engine: &Engine, sql: &str) -> String {
    let request = Request::post("/api/sql").body(Body::from(sql.to_owned())).unwrap();
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
    assert!(!message.contains("fault of the program"), "{sql:.300}: {message:.300}");
    println!("  {code}: {message:.300}");
    code.to_owned()
}
