//! The wall clock of the process is set while it runs and while it is stopped: durations follow elapsed time, and times
//! specified by the clock follow the clock.

use anyhow::{Result, ensure};
use serde_json::Value;
use thalweg_tests::wait::eventually;
use thalweg_tests::{Api, Thalweg};

const DAY: i64 = 86_400;

const QUEUE: &str = "\
log: {min_free: 16MiB, commit: {spare: 1}}
queues:
  list:
    - {name: jobs, partitions: 1, ttl: 1h, visibility_timeout: 60s, groups: [{name: g}]}
";

fn api(thalweg: &Thalweg) -> Api {
    Api::new(&thalweg.address().unwrap())
}

fn depth(thalweg: &Thalweg) -> u64 {
    api(thalweg).get("/queues/jobs").ok(200)["depth"].as_u64().unwrap()
}

fn put(thalweg: &Thalweg, headers: &[(&str, &str)], text: &str) {
    api(thalweg)
        .send("POST", "/queues/jobs/messages", headers, text)
        .ok(201);
}

/// The texts of a consumer's messages, which it keeps; empty if there are none.
fn claim(thalweg: &Thalweg) -> Vec<String> {
    let claimed = api(thalweg).post("/queues/jobs/groups/g/claim", &serde_json::json!({"max": 10}));
    if claimed.status == 204 {
        return Vec::new();
    }
    let claimed = claimed.ok(200);
    let messages = claimed["messages"].as_array().cloned().unwrap_or_default();
    let texts = messages
        .iter()
        .map(|message| message["text"].as_str().unwrap_or_default().to_owned());
    texts.collect()
}

/// Waits until the process has detected this many jumps.
fn saw(thalweg: &Thalweg, direction: &str, count: f64) {
    let label = format!("direction=\"{direction}\"");
    eventually(|| -> Result<()> {
        let seen = thalweg.metric("thalweg_clock_jump_seconds_count", &label)?;
        ensure!(seen >= count, "{seen} jumps {direction}");
        Ok(())
    })
    .unwrap();
}

fn shown(thalweg: &Thalweg) -> Vec<Value> {
    let page = api(thalweg).get("/queues/jobs/messages").ok(200);
    page["messages"].as_array().cloned().unwrap_or_default()
}

#[test]
fn a_clock_that_is_set_days_ahead_and_back_expires_nothing_and_keeps_no_lease() {
    let mut thalweg = Thalweg::start_with_clock(QUEUE, 0).unwrap();
    put(&thalweg, &[], "waits");
    assert_eq!(claim(&thalweg), ["waits"]);
    thalweg.set_clock(8 * DAY).unwrap();
    saw(&thalweg, "forward", 1.0);
    assert_eq!(depth(&thalweg), 1);
    assert_eq!(claim(&thalweg), [""; 0], "its lease has not run out");
    put(&thalweg, &[], "ahead");
    thalweg.set_clock(0).unwrap();
    saw(&thalweg, "back", 1.0);
    assert_eq!(depth(&thalweg), 2);
    assert_eq!(claim(&thalweg), ["ahead"]);
    let said = thalweg.process.stdout() + &thalweg.process.stderr();
    assert!(said.contains("the wall clock was set"), "{said}");
    let times: Vec<String> = shown(&thalweg)
        .iter()
        .map(|message| message["enqueued_at"].to_string())
        .collect();
    assert!(
        times.first() < times.last(),
        "each shows what the clock did when it came: {times:?}"
    );
    // A start knows which data was stored while the clock was wrong.
    for clean in [true, false] {
        thalweg.process.signal(if clean { "TERM" } else { "KILL" }).unwrap();
        let _ = thalweg.process.wait().unwrap();
        thalweg.restart().unwrap();
        assert_eq!(depth(&thalweg), 2);
    }
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}

#[test]
fn a_gateway_without_a_battery_keeps_its_messages_over_every_boot() {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let in_1970 = 100 - i64::try_from(now.as_secs()).unwrap();
    let mut thalweg = Thalweg::start_with_clock(QUEUE, in_1970).unwrap();
    put(&thalweg, &[], "first");
    thalweg.set_clock(0).unwrap();
    saw(&thalweg, "forward", 1.0);
    put(&thalweg, &[], "second");
    assert_eq!(depth(&thalweg), 2);
    for signal in ["KILL", "TERM"] {
        thalweg.process.signal(signal).unwrap();
        let _ = thalweg.process.wait().unwrap();
        thalweg.set_clock(in_1970).unwrap();
        thalweg.restart().unwrap();
        assert_eq!(depth(&thalweg), 2, "{signal}: it is 1970 again");
        thalweg.set_clock(0).unwrap();
        saw(&thalweg, "forward", 1.0);
        assert_eq!(depth(&thalweg), 2, "{signal}: it was set right");
    }
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}

#[test]
fn a_message_for_a_time_is_handed_out_when_the_clock_comes_to_show_it() {
    let mut thalweg = Thalweg::start_with_clock(&QUEUE.replace("ttl: 1h, ", ""), 0).unwrap();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let tomorrow = (now.as_secs() + 86_400) * 1000;
    put(&thalweg, &[("x-deliver-at", &tomorrow.to_string())], "at");
    put(&thalweg, &[("x-delay", "24h")], "in");
    assert_eq!(claim(&thalweg), [""; 0]);
    thalweg.set_clock(2 * DAY).unwrap();
    saw(&thalweg, "forward", 1.0);
    let mut taken = Vec::new();
    eventually(|| -> Result<()> {
        taken.extend(claim(&thalweg));
        ensure!(!taken.is_empty(), "nothing yet");
        Ok(())
    })
    .unwrap();
    assert_eq!(taken, ["at"]);
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}
