//! Measures the start with much stored data: after `kill -9`, with none of it in memory.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::json;
use thalweg_tests::{Api, Thalweg};

const LINES: usize = 10_000;
const TEXT: usize = 1000;

/// Drops the files from the kernel's page cache.
fn forget(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let input = format!("if={}", entry.path().display());
        let status = Command::new("dd")
            .args([&input, "iflag=nocache", "count=0", "status=none"])
            .status()
            .unwrap();
        assert!(status.success(), "dd: {status}");
    }
}

/// Stores `THALWEG_RESTART_MIB` first (64); prints the time, and checks that everything is there.
#[test]
#[allow(clippy::print_stdout, reason = "a long run prints its result")]
fn a_start_with_much_stored_finds_all_of_it() {
    let given = std::env::var("THALWEG_RESTART_MIB");
    let mib: u64 = given.ok().and_then(|mib| mib.parse().ok()).unwrap_or(64);
    let config = "\
log: {min_free: 16MiB}
queues:
  list:
    - {name: much, partitions: 4, max_depth: 0, max_bytes: 0, durability: os, groups: [{name: g}]}
";
    let mut thalweg = Thalweg::start(config).unwrap();
    let address = thalweg.address().unwrap();
    let batches = (mib << 20).div_ceil((LINES * TEXT) as u64);
    let lines = format!("{}\n", json!({"text": "x".repeat(TEXT)})).repeat(LINES);
    let next = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let api = Api::new(&address);
                let ndjson = [("content-type", "application/x-ndjson")];
                while next.fetch_add(1, Ordering::Relaxed) < batches {
                    let answer = api.send("POST", "/queues/much/messages:batch", &ndjson, lines.as_bytes());
                    assert!(answer.status < 300, "{} {}", answer.status, answer.text);
                }
            });
        }
    });
    println!("{mib} MiB stored over HTTP in {:.1} s", began.elapsed().as_secs_f64());
    thalweg.process.kill().unwrap();
    // The kernel cannot drop unwritten pages.
    let synced = Command::new("sync").status().unwrap();
    assert!(synced.success());
    forget(&thalweg.data_dir().join("log"));
    let began = Instant::now();
    thalweg.restart().unwrap();
    thalweg.wait_ready().unwrap();
    println!("ready {:.2} s after the start", began.elapsed().as_secs_f64());
    let api = Api::new(&thalweg.address().unwrap());
    let stats = api.get("/queues/much/stats").json;
    assert_eq!(stats["depth"], batches * LINES as u64, "{stats}");
    let claim = api.post(
        "/queues/much/groups/g/claim",
        &json!({"consumer": "c", "max": 1, "wait": "20s"}),
    );
    assert_eq!(claim.json["messages"][0]["offset"], 0, "{}", claim.text);
    let recovery = thalweg.metric("thalweg_log_recovery_seconds_sum", "").unwrap();
    println!("of that {recovery:.2} s in the log");
    thalweg.process.kill().unwrap();
}
