//! The durable log of the real binary: its metrics add up, damage stops a start or is given up as configured, a failed write
//! ends the process, several disks are one log.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use thalweg_tests::thalweg::{RUN, binary, run};
use thalweg_tests::{Api, Process, Thalweg, eventually};

const LOG: &str = "log: {min_free: 16MiB, commit: {spare: 1}}\n";

/// One partition, with a group of each mode.
const JOBS: &str = "\
queues:
  list:
    - name: jobs
      partitions: 1
      max_depth: 0
      groups: [{name: work}, {name: stream, mode: stream}]
";

fn api(thalweg: &Thalweg) -> Api {
    Api::new(&thalweg.address().unwrap())
}

/// Messages with these texts, in one request.
fn produce(api: &Api, queue: &str, texts: impl Iterator<Item = String>) {
    let lines: String = texts.map(|text| format!("{}\n", json!({"text": text}))).collect();
    let path = format!("/queues/{queue}/messages:batch");
    let answer = api.send(
        "POST",
        &path,
        &[("content-type", "application/x-ndjson")],
        lines.as_bytes(),
    );
    assert!([200, 201].contains(&answer.status), "{} {}", answer.status, answer.text);
}

/// Receipts of a claim, and the response.
fn claim(api: &Api, group: &str, max: u32, wait: &str) -> (Vec<Value>, Value) {
    let path = format!("/queues/jobs/groups/{group}/claim");
    let answer = api.post(&path, &json!({"consumer": "c", "max": max, "wait": wait}));
    let messages = answer.json["messages"].as_array().cloned().unwrap_or_default();
    (messages, answer.json)
}

fn stop(thalweg: &mut Thalweg) {
    thalweg.process.signal("TERM").unwrap();
    let status = thalweg.process.wait().unwrap();
    assert!(status.success(), "{status}\n{}", thalweg.process.stderr());
}

#[test]
fn the_metrics_of_queues_and_of_the_log_add_up() {
    let config = format!(
        "{LOG}{JOBS}    - {{name: small, partitions: 1, max_depth: 3, groups: [{{name: g}}]}}\n    - {{name: gone, partitions: 1}}\n"
    );
    let mut thalweg = Thalweg::start(&config).unwrap();
    let api = api(&thalweg);
    produce(&api, "jobs", (0..30).map(|n| n.to_string()));
    for n in 0..5 {
        let stored = api.send("POST", "/queues/small/messages", &[], b"x").status;
        assert_eq!(stored, if n < 3 { 201 } else { 429 });
    }
    let (messages, _) = claim(&api, "work", 10, "5s");
    let receipts: Vec<&Value> = messages.iter().map(|message| &message["receipt"]).collect();
    assert_eq!(receipts.len(), 10);
    let nacked: Vec<Value> = receipts[5..7].iter().map(|r| json!({"r": r, "delay": "1h"})).collect();
    let rejected: Vec<Value> = receipts[7..9]
        .iter()
        .map(|r| json!({"r": r, "reason": "bad"}))
        .collect();
    let settled = api.post(
        "/queues/jobs/groups/work/settle",
        &json!({"ack": &receipts[..5], "nack": nacked, "reject": rejected}),
    );
    assert_eq!(settled.json["settled"], 9, "{}", settled.text);
    let (messages, _) = claim(&api, "stream", 4, "5s");
    assert_eq!(messages.len(), 4);
    eventually(|| {
        let dead = thalweg.metric("mqtt_queue_dlq_total", "reason=\"rejected\"")?;
        ensure!(dead == 2.0, "{dead} dead letters");
        Ok(())
    })
    .unwrap();
    let of = |name: &str, label: &str| thalweg.metric(name, label).unwrap_or_else(|error| panic!("{error}"));
    let (jobs, work, stream) = ("{queue=\"jobs\"}", "group=\"work\"", "group=\"stream\"");
    for (name, label, expected) in [
        ("mqtt_queue_enqueue_total", jobs, 30.0),
        // Acked and rejected messages are gone.
        ("mqtt_queue_depth", jobs, 23.0),
        ("mqtt_queue_dequeue_total", work, 10.0),
        ("mqtt_queue_dequeue_total", stream, 4.0),
        ("mqtt_queue_ack_total", work, 5.0),
        ("mqtt_queue_nack_total", work, 2.0),
        ("mqtt_queue_reject_total", work, 2.0),
        ("mqtt_queue_inflight", work, 1.0),
        ("mqtt_queue_waiting", work, 2.0),
        ("mqtt_queue_delayed", work, 0.0),
        ("mqtt_queue_lag", stream, 30.0),
        ("mqtt_queue_redelivered_total", work, 0.0),
        ("mqtt_queue_expired_total", work, 0.0),
        ("mqtt_queue_active_consumers", work, 1.0),
        ("mqtt_queue_dlq_total", "queue=\"jobs\"", 2.0),
        ("mqtt_queue_enqueue_total", "dlq.jobs", 2.0),
        ("mqtt_queue_dropped_total", "queue=\"jobs\"", 0.0),
        ("mqtt_queue_delivery_latency_seconds_count", jobs, 14.0),
        ("mqtt_queue_delivery_latency_seconds_bucket", "le=\"+Inf\"", 14.0),
        ("mqtt_queue_enqueue_total", "{queue=\"small\"}", 3.0),
        ("mqtt_queue_refused_total", "queue_full", 2.0),
        ("mqtt_queue_refused_total", "queue=\"jobs\"", 0.0),
        ("mqtt_queue_paused", "queue=\"jobs\"", 0.0),
        ("thalweg_log_recovery_seconds_count", "", 1.0),
        ("thalweg_log_poisoned", "", 0.0),
        ("thalweg_log_torn_bytes_total", "", 0.0),
        ("thalweg_log_corrupt_frames_total", "", 0.0),
        ("thalweg_log_distributed_bytes_total", "", 0.0),
        ("thalweg_log_commit_files", "", 1.0),
    ] {
        assert_eq!(of(name, label), expected, "{name} {label}");
    }
    assert!(of("mqtt_queue_bytes", jobs) > 0.0 && of("mqtt_queue_oldest_seconds", jobs) > 0.0);
    assert!(of("mqtt_queue_delivery_latency_seconds_sum", jobs) > 0.0);
    assert!(of("thalweg_log_free_bytes", "") > 1e6);
    let blocks = of("thalweg_log_commit_bytes_count", "");
    assert_eq!(blocks, of("thalweg_log_commit_records_count", ""));
    assert!(of("thalweg_log_commit_bytes_sum", "") >= 4096.0 * blocks);
    // Messages, dead letters, and the queue catalogue.
    assert!(of("thalweg_log_commit_records_sum", "") > 35.0);
    let (syncs, commits) = (
        of("thalweg_log_sync_seconds_count", ""),
        of("thalweg_log_commit_seconds_count", ""),
    );
    assert!(syncs > 0.0 && commits >= 5.0 && of("thalweg_log_admission_wait_seconds_count", "") >= 5.0);
    let paused = api.post("/queues/jobs:pause", &json!({"what": "consume"}));
    assert!(paused.status < 300, "{}", paused.text);
    assert_eq!(of("mqtt_queue_paused", "what=\"consume\""), 1.0);
    // Removed groups are not reported any more.
    assert_eq!(of("mqtt_queue_depth", "gone"), 0.0);
    let removed = api.send("DELETE", "/queues/gone", &[], b"");
    assert!(removed.status < 300, "{}", removed.text);
    assert!(!thalweg.get("/metrics").unwrap().contains("\"gone\""));
    stop(&mut thalweg);
}

/// The first commit file.
pub fn commit_file(folder: &Path) -> PathBuf {
    folder.join("commit-0000000000000000.log")
}

/// Flips a bit of the header of the block that contains a text, and one of the text itself. Returns the block's position.
pub fn damage(file: &Path, text: &str) -> u64 {
    let mut bytes = std::fs::read(file).unwrap();
    let at = bytes
        .windows(text.len())
        .position(|window| window == text.as_bytes())
        .unwrap();
    let pages = (0..=at / 4096).rev();
    let block = pages
        .map(|page| page * 4096)
        .find(|at| bytes[*at..].starts_with(b"TWB1"))
        .unwrap();
    bytes[at] ^= 1;
    bytes[block + 16] ^= 1;
    std::fs::write(file, bytes).unwrap();
    block as u64
}

/// A stopped Thalweg, with 50 batches of 10 messages of which the 25th is damaged. Returns the position.
pub fn damaged() -> (Thalweg, u64) {
    let mut thalweg = Thalweg::start(&format!("{LOG}{JOBS}")).unwrap();
    let api = api(&thalweg);
    for batch in 0..50 {
        produce(&api, "jobs", (0..10).map(|n| format!("text-{batch}-{n}.")));
    }
    stop(&mut thalweg);
    let block = damage(&commit_file(&thalweg.data_dir().join("log")), "text-25-3.");
    (thalweg, block)
}

#[test]
fn damage_stops_a_strict_start_and_is_given_up_by_one_that_skips_it() {
    let (mut thalweg, block) = damaged();
    let strict = run(thalweg.folder.path(), &RUN).unwrap();
    assert_eq!(strict.status.code(), Some(65), "{}", strict.stderr);
    for words in [
        "commit-0000000000000000.log",
        &format!("byte {block}"),
        "thalweg log repair",
    ] {
        assert!(
            strict.stderr.contains(words),
            "{words:?} is missing in {}",
            strict.stderr
        );
    }
    let skipping = format!(
        "{}{JOBS}",
        LOG.replace('{', "{recover: skip, ")
            .replacen("{recover: skip, spare", "{spare", 1)
    );
    std::fs::write(thalweg.folder.path().join("flow.yaml"), skipping).unwrap();
    thalweg.restart().unwrap();
    let log = thalweg.process.stdout() + &thalweg.process.stderr();
    assert!(log.contains("damaged records were skipped"), "{log}");
    let api = api(&thalweg);
    // A stream gets one error, and continues after it.
    let (mut seen, mut gaps) = (0, Vec::new());
    loop {
        let (messages, answer) = claim(&api, "stream", 1000, "0s");
        if answer["code"] == "offset_gap" {
            gaps.push(answer);
        } else if messages.is_empty() {
            break;
        }
        seen += messages.len();
    }
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    let lost = 500 - seen;
    assert!((1..=10).contains(&lost), "{seen} of 500 were read");
    // A work group counts them.
    let mut worked = 0;
    loop {
        let (messages, answer) = claim(&api, "work", 1000, "0s");
        if messages.is_empty() {
            assert!(answer["code"].is_null(), "{answer}");
            break;
        }
        worked += messages.len();
        let receipts: Vec<&Value> = messages.iter().map(|message| &message["receipt"]).collect();
        assert!(!receipts.is_empty());
        api.post("/queues/jobs/groups/work/settle", &json!({"ack": receipts}));
    }
    assert_eq!(worked, seen);
    let stats = api.get("/queues/jobs/stats").json;
    let groups = stats["groups"].as_array().unwrap();
    let work = groups.iter().find(|group| group["name"] == "work").unwrap();
    assert_eq!(work["lost"], lost, "{work}");
    stop(&mut thalweg);
    let dump = run(thalweg.folder.path(), &["log", "dump", "--data-dir", "data"]).unwrap();
    assert!(dump.stdout.contains("  gap  "), "no gap frame in the dump");
    // No damage is left.
    std::fs::write(thalweg.folder.path().join("flow.yaml"), format!("{LOG}{JOBS}")).unwrap();
    thalweg.restart().unwrap();
    stop(&mut thalweg);
}

/// Flips a bit of the last occurrence of a text, and nothing else.
pub fn damage_text(file: &Path, text: &str) {
    let mut bytes = std::fs::read(file).unwrap();
    let at = bytes
        .windows(text.len())
        .rposition(|window| window == text.as_bytes())
        .unwrap();
    bytes[at] ^= 1;
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn a_damaged_frame_is_not_served_and_everything_else_is() {
    let mut thalweg = Thalweg::start(&format!("{LOG}{}", JOBS.replace("partitions: 1", "partitions: 2"))).unwrap();
    let before = api(&thalweg);
    for n in 0..40 {
        let text = format!("text-{n}.");
        let key = if n % 2 == 0 { "even" } else { "odd" };
        let stored = before.send("POST", "/queues/jobs/messages", &[("x-key", key)], text.as_bytes());
        assert_eq!(stored.status, 201, "{}", stored.text);
    }
    let ids = |api: &Api| -> Vec<(String, String)> {
        let page = api.get("/queues/jobs/messages?limit=100").json;
        let messages = page["messages"].as_array().unwrap().iter();
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        messages.map(|one| (word(&one["text"]), word(&one["id"]))).collect()
    };
    let all = ids(&before);
    assert_eq!(all.len(), 40);
    stop(&mut thalweg);
    damage_text(&commit_file(&thalweg.data_dir().join("log")), "text-20.");
    thalweg.restart().unwrap();
    let api = api(&thalweg);
    // By its id every message is there except this one.
    for (text, id) in &all {
        let found = api.get(&format!("/queues/jobs/messages/{id}"));
        match text.as_str() {
            "text-20." => assert_eq!((found.status, &found.json["code"]), (500, &json!("corrupt"))),
            _ => assert_eq!(
                (found.status, &found.json["text"]),
                (200, &json!(text)),
                "{}",
                found.text
            ),
        }
    }
    // A group gets the messages before it, and all of the other partition; then it gets an error.
    let (mut seen, mut last) = (0, Value::Null);
    for _ in 0..40 {
        let (messages, answer) = claim(&api, "stream", 100, "0s");
        seen += messages.len();
        last = answer;
    }
    assert_eq!((seen, &last["code"]), (30, &json!("corrupt")), "{last}");
    let (status, ready) = thalweg.request("/ready").unwrap();
    assert!(
        status == 200 && ready.contains("degraded") && ready.contains("is damaged at byte"),
        "{status} {ready}"
    );
    let look = thalweg.json("/api/v1/status").unwrap();
    assert_eq!(look["degraded"].as_array().map(Vec::len), Some(1), "{look}");
    for (name, expected) in [("thalweg_log_corrupt_frames_total", 1.0), ("thalweg_log_degraded", 1.0)] {
        assert_eq!(thalweg.metric(name, "").unwrap(), expected, "{name}");
    }
    stop(&mut thalweg);
    let log = thalweg.process.stdout() + &thalweg.process.stderr();
    assert_eq!(log.matches("cannot be read; the rest can").count(), 1, "{log}");
}

#[test]
fn damaged_state_of_a_group_stops_a_strict_start_and_is_given_up_by_one_that_skips_it() {
    let mut thalweg = Thalweg::start(&format!("{LOG}{JOBS}")).unwrap();
    let before = api(&thalweg);
    produce(&before, "jobs", (0..10).map(|n| n.to_string()));
    let claimed = before.post(
        "/queues/jobs/groups/work/claim",
        &json!({"consumer": "the-only-consumer", "max": 3}),
    );
    assert_eq!(
        claimed.json["messages"].as_array().map(Vec::len),
        Some(3),
        "{}",
        claimed.text
    );
    stop(&mut thalweg);
    damage_text(&commit_file(&thalweg.data_dir().join("log")), "the-only-consumer");
    let strict = run(thalweg.folder.path(), &RUN).unwrap();
    assert_eq!(strict.status.code(), Some(65), "{}", strict.stderr);
    let skipping = LOG.replacen('{', "{recover: skip, ", 1);
    std::fs::write(thalweg.folder.path().join("flow.yaml"), format!("{skipping}{JOBS}")).unwrap();
    thalweg.restart().unwrap();
    let log = thalweg.process.stdout() + &thalweg.process.stderr();
    assert!(log.contains("damaged records were skipped"), "{log}");
    let page = api(&thalweg).get("/queues/jobs/messages?limit=100").json;
    assert_eq!(page["messages"].as_array().map(Vec::len), Some(10), "{page}");
    stop(&mut thalweg);
    // No damage is left.
    std::fs::write(thalweg.folder.path().join("flow.yaml"), format!("{LOG}{JOBS}")).unwrap();
    thalweg.restart().unwrap();
    stop(&mut thalweg);
}

/// Starts a Thalweg whose writes beyond a size can be made to fail: a write over the limit is an error and no signal.
fn limited(config: &str) -> (tempfile::TempDir, Process, Api) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("flow.yaml"), config).unwrap();
    let mut command = Command::new(binary());
    command.args(RUN).current_dir(folder.path());
    let mut process = Process::start("thalweg", folder.path(), &mut command).unwrap();
    let lock = folder.path().join("data/LOCK");
    let mut address = String::new();
    eventually(|| {
        process.check_running()?;
        let lock: Value = serde_json::from_str(&std::fs::read_to_string(&lock)?)?;
        address = lock["http"].as_str().context("no address yet")?.to_owned();
        let answer = ureq::get(format!("http://{address}/ready")).call()?;
        ensure!(answer.status() == 200);
        Ok(())
    })
    .unwrap();
    (folder, process, Api::new(&address))
}

fn limit_writes(process: &Process, bytes: u64) {
    let pid = process.id().to_string();
    let status = Command::new("prlimit")
        .args(["--pid", &pid, &format!("--fsize={bytes}")])
        .status()
        .unwrap();
    assert!(status.success(), "prlimit: {status}");
}

#[test]
fn a_failed_write_of_the_log_ends_the_process_with_74_whoever_writes() {
    // Over HTTP, by a flow, and without a caller: leases are written although nothing waits for them.
    let flow = "input: {generate: {interval: 5ms, mapping: root = counter()}}\noutput: {queue: {name: jobs}}\n";
    for (config, writer) in [("", "http"), (flow, "flow"), ("", "claim")] {
        let (_folder, mut process, api) = limited(&format!("{LOG}{JOBS}{config}"));
        produce(&api, "jobs", (0..400).map(|n| format!("{n}{}", "x".repeat(1000))));
        limit_writes(&process, 256 << 10);
        match writer {
            "http" => {
                // The response may not come any more: the process ends.
                let _ = api.open("POST", "/queues/jobs/messages", &[], b"x").map(|answer| {
                    assert_eq!(answer.status(), 503);
                });
            }
            "claim" => drop(api.open("POST", "/queues/jobs/groups/work/claim", &[], br#"{"consumer":"c"}"#)),
            _ => {}
        }
        let status = process.wait().unwrap();
        assert_eq!(status.code(), Some(74), "{writer}: {}", process.stderr());
        let log = process.stdout() + &process.stderr();
        assert!(
            log.contains("cannot write") && log.contains("commit-"),
            "{writer}: {log}"
        );
    }
}

#[test]
fn a_process_that_is_to_stay_with_a_poisoned_log_reads_and_takes_nothing() {
    let config = format!("{}{JOBS}", LOG.replacen('{', "{on_poison: stay, ", 1));
    let (folder, mut process, api) = limited(&config);
    produce(&api, "jobs", (0..400).map(|n| format!("{n}{}", "x".repeat(1000))));
    limit_writes(&process, 256 << 10);
    for _ in 0..2 {
        let refused = api.send("POST", "/queues/jobs/messages", &[], b"x");
        assert_eq!(
            (refused.status, &refused.json["code"]),
            (503, &json!("log_poisoned")),
            "{}",
            refused.text
        );
        assert!(refused.headers.contains_key("retry-after"));
    }
    let page = api.get("/queues/jobs/messages?limit=3").json;
    assert_eq!(page["messages"].as_array().map(Vec::len), Some(3), "{page}");
    let address = std::fs::read_to_string(folder.path().join("data/LOCK")).unwrap();
    let address: Value = serde_json::from_str(&address).unwrap();
    let get = |path: &str| -> Result<(u16, String)> {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let mut answer = agent
            .get(format!("http://{}{path}", address["http"].as_str().unwrap_or_default()))
            .call()?;
        Ok((answer.status().as_u16(), answer.body_mut().read_to_string()?))
    };
    let (status, why) = get("/ready").unwrap();
    assert!(status == 503 && why.contains("cannot write"), "{status} {why}");
    let (_, metrics) = get("/metrics").unwrap();
    assert!(metrics.contains("thalweg_log_poisoned 1"));
    process.signal("TERM").unwrap();
    process.wait().unwrap();
}

#[test]
fn a_log_on_several_disks_is_one_log() {
    let config = "\
log: {dirs: [one, two, three], min_free: 16MiB, commit: {spare: 1}}
queues: {list: [{name: jobs, partitions: 6, max_depth: 0, groups: [{name: work}]}]}
";
    let mut thalweg = Thalweg::start(config).unwrap();
    let folder = thalweg.folder.path().to_owned();
    let api = api(&thalweg);
    for batch in 0..6 {
        produce(&api, "jobs", (0..10).map(|n| format!("{batch}-{n}")));
    }
    for name in ["one", "two", "three"] {
        let used = std::fs::read(commit_file(&folder.join(name))).unwrap();
        let found = used.windows(2).filter(|bytes| bytes == b"-7").count();
        assert_eq!(found, 2, "{name} has two partitions, each with a batch");
    }
    // Their folders are private.
    let other = tempfile::tempdir().unwrap();
    let text = format!("log: {{dirs: [{}]}}\n{JOBS}", folder.join("two").display());
    std::fs::write(other.path().join("flow.yaml"), text).unwrap();
    let refused = run(other.path(), &RUN).unwrap();
    let pid = thalweg.process.id().to_string();
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert!(
        refused.stderr.contains(&pid) && refused.stderr.contains("two"),
        "{}",
        refused.stderr
    );
    thalweg.process.kill().unwrap();
    // A missing disk is not treated as a new one.
    std::fs::rename(folder.join("two"), folder.join("unmounted")).unwrap();
    let missing = run(&folder, &RUN).unwrap();
    assert_eq!(missing.status.code(), Some(1), "{}", missing.stderr);
    assert!(
        missing.stderr.contains("disk 2 of the 3") && missing.stderr.contains("mount it"),
        "{}",
        missing.stderr
    );
    std::fs::remove_dir_all(folder.join("two")).unwrap();
    std::fs::rename(folder.join("unmounted"), folder.join("two")).unwrap();
    // One of them alone is not the log.
    let alone = run(other.path(), &RUN).unwrap();
    assert!(alone.stderr.contains("disk 1 of the 3"), "{}", alone.stderr);
    thalweg.restart().unwrap();
    let api = Api::new(&thalweg.address().unwrap());
    let mut settled = 0;
    while settled < 60 {
        let (messages, answer) = claim(&api, "work", 100, "5s");
        assert!(!messages.is_empty(), "{settled} of 60: {answer}");
        let receipts: Vec<&Value> = messages.iter().map(|message| &message["receipt"]).collect();
        let answer = api.post("/queues/jobs/groups/work/settle", &json!({"ack": receipts}));
        settled += answer.json["settled"].as_u64().unwrap();
    }
    let disks = thalweg.get("/metrics").unwrap();
    assert_eq!(disks.matches("\nthalweg_log_poisoned{dir=").count(), 3, "{disks}");
    stop(&mut thalweg);
}
