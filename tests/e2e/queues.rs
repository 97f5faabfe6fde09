//! Queues of a running Thalweg: over HTTP, between flows, and after `kill -9` at any moment.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use thalweg_tests::{Api, Thalweg, eventually};

const QUEUE: &str = "\
log: {min_free: 16MiB, commit: {spare: 1}}
queues:
  list:
    - {name: jobs, partitions: 4, max_depth: 0, visibility_timeout: 2s, retry: {initial_backoff: 10ms}, groups: [{name: g}]}
";

/// A request with a JSON body, and its answer.
fn post(base: &str, path: &str, body: &str) -> Result<(u16, Value)> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(Duration::from_secs(20)));
    let agent: ureq::Agent = config.build().into();
    let mut answer = agent
        .post(format!("http://{base}/api/v1/queues/{path}"))
        .header("content-type", "application/json")
        .send(body)?;
    let text = answer.body_mut().read_to_string()?;
    let value = if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text).context(text)?
    };
    Ok((answer.status().as_u16(), value))
}

#[test]
fn a_message_is_produced_claimed_and_acked_over_http() {
    let mut thalweg = Thalweg::start(QUEUE).unwrap();
    let base = thalweg.address().unwrap();
    let (status, produced) = post(&base, "jobs/messages", "hello").unwrap();
    assert_eq!((status, &produced["durability"]), (201, &json!("fsync")), "{produced}");
    let (status, claimed) = post(&base, "jobs/groups/g/claim", r#"{"consumer":"c","max":5,"wait":"5s"}"#).unwrap();
    assert_eq!(status, 200, "{claimed}");
    let receipt = &claimed["messages"][0]["receipt"];
    let (status, settled) = post(&base, "jobs/groups/g/settle", &json!({"ack": [receipt]}).to_string()).unwrap();
    assert_eq!((status, &settled["settled"]), (200, &json!(1)), "{settled}");
    let (status, missing) = post(&base, "nowhere/messages", "x").unwrap();
    assert_eq!((status, &missing["code"]), (404, &json!("queue_not_found")));
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}

#[test]
fn two_flows_read_what_a_third_has_queued_each_at_its_own_pace_over_a_restart() {
    let config = "\
log: {min_free: 16MiB, commit: {spare: 1}}
queues: {list: [{name: lines, max_depth: 0}]}
flows:
  - name: in
    input: {generate: {count: 2000, interval: '', mapping: 'root = count(\"n\").string()'}}
    output: {queue: {name: lines}}
  - name: a
    input: {queue: {name: lines, group: a}}
    output: {file: {path: a.txt, codec: lines}}
  - name: b
    input: {queue: {name: lines, group: b}}
    output: {file: {path: b.txt, codec: lines}}
";
    let mut thalweg = Thalweg::start(config).unwrap();
    let lines = |thalweg: &Thalweg, name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(thalweg.folder.path().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    eventually(|| {
        ensure!(lines(&thalweg, "a.txt").len() > 200);
        Ok(())
    })
    .unwrap();
    thalweg.process.kill().unwrap();
    // The generator begins anew: every number comes at least twice.
    thalweg.restart().unwrap();
    let all: HashSet<String> = (1..=2000).map(|n| n.to_string()).collect();
    for name in ["a.txt", "b.txt"] {
        eventually(|| {
            let found: HashSet<String> = lines(&thalweg, name).into_iter().collect();
            ensure!(found == all, "{name} has {} of {}", found.len(), all.len());
            Ok(())
        })
        .unwrap();
    }
    thalweg.stop().unwrap().check().unwrap();
}

#[test]
fn flows_go_on_with_the_queue_and_the_group_that_have_the_names_after_a_deletion_and_say_so_once() {
    let config = "\
log: {min_free: 16MiB, commit: {spare: 1}}
queues: {auto_create: false}
flows:
  - name: in
    input: {generate: {interval: 20ms, mapping: 'root = count(\"n\").string()'}}
    output: {queue: {name: lines}}
  - name: out
    input: {queue: {name: lines, group: a}}
    output: {file: {path: out.txt, codec: lines}}
";
    let mut thalweg = Thalweg::start(config).unwrap();
    let api = Api::new(&thalweg.address().unwrap());
    let path = thalweg.folder.path().join("out.txt");
    let last = || -> u64 {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.lines().last().and_then(|line| line.parse().ok()).unwrap_or(0)
    };
    let goes_on = || {
        let before = last();
        eventually(|| {
            ensure!(last() > before + 20, "{} after {before}", last());
            Ok(())
        })
        .unwrap();
    };
    let make = |partitions: &str| api.send("PUT", "/queues/lines", &[], partitions).ok(201);
    let delete = |path: &str| assert_eq!(api.send("DELETE", path, &[], "").status, 204, "{path}");
    make(r#"{"partitions": 2}"#);
    goes_on();
    delete("/queues/lines?force=true");
    make(r#"{"partitions": 1}"#);
    goes_on();
    delete("/queues/lines/groups/a");
    goes_on();
    let told = thalweg.process.stdout();
    for (what, wanted) in [("while a flow reads it", 2), ("deleted and made again; it goes on", 1)] {
        assert_eq!(told.matches(what).count(), wanted, "{what}: {told}");
    }
    thalweg.process.signal("TERM").unwrap();
    assert!(
        thalweg.process.wait().unwrap().success(),
        "{}",
        thalweg.process.stderr()
    );
}

/// What the clients know for sure.
#[derive(Default)]
struct Known {
    /// Messages whose producers were told that they are stored: key and number.
    stored: HashSet<(u32, u32)>,
    /// Messages whose consumers were told that their ack is stored.
    done: HashSet<(u32, u32)>,
    /// Messages whose ack got no answer: it may be stored, or they come again.
    unsure: HashSet<(u32, u32)>,
    /// How often a consumer saw each.
    seen: HashMap<(u32, u32), u32>,
    /// The highest number of each key that was acked.
    order: HashMap<u32, u32>,
    wrong: Vec<String>,
}

/// The same numbers for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

const KEYS: u32 = 16;

/// Produces batches of one key each, in the order of their numbers, until the process is gone. A batch without an answer
/// is not repeated: it is stored or not.
fn produce(
    base: &str,
    known: &Mutex<Known>,
    next: &Mutex<HashMap<u32, u32>>,
    keys: std::ops::Range<u32>,
    stop: &AtomicBool,
) {
    while !stop.load(Ordering::Relaxed) {
        for key in keys.clone() {
            let first = {
                let mut next = next.lock().unwrap();
                let first = *next.entry(key).or_default();
                next.insert(key, first + 5);
                first
            };
            let lines: String = (first..first + 5)
                .map(|n| format!("{}\n", json!({"key": key.to_string(), "text": format!("{key}:{n}")})))
                .collect();
            match post(base, "jobs/messages:batch", &lines) {
                Ok((201 | 200, _)) => known
                    .lock()
                    .unwrap()
                    .stored
                    .extend((first..first + 5).map(|n| (key, n))),
                Ok((status, answer)) => known.lock().unwrap().wrong.push(format!("produce: {status} {answer}")),
                Err(_) => return,
            }
        }
    }
}

/// Claims and acks until the process is gone, or nothing is left if `stop` is set.
fn consume(base: &str, name: &str, known: &Mutex<Known>, killed: u32, stop: &AtomicBool) {
    loop {
        let claim = json!({"consumer": name, "max": 20, "wait": "100ms"}).to_string();
        let messages = match post(base, "jobs/groups/g/claim", &claim) {
            Ok((200, answer)) => answer["messages"].as_array().cloned().unwrap_or_default(),
            Ok((204, _)) if stop.load(Ordering::Relaxed) => return,
            Ok((204, _)) => continue,
            Ok((status, answer)) => {
                known.lock().unwrap().wrong.push(format!("claim: {status} {answer}"));
                return;
            }
            Err(_) => return,
        };
        let mut acks = Vec::new();
        {
            let mut known = known.lock().unwrap();
            for message in &messages {
                let id = id_of(message);
                let delivery = message["delivery"].as_u64().unwrap_or(0) as u32;
                let seen = known.seen.entry(id).or_default();
                *seen += 1;
                let seen = *seen;
                // With each kill one answer may have been lost, which was a delivery too; and one number of the last block.
                if delivery == 0 || delivery > seen + killed || delivery + killed < seen {
                    known.wrong.push(format!(
                        "{id:?} has delivery {delivery}, seen {seen} times, {killed} kills"
                    ));
                }
                if known.done.contains(&id) {
                    known.wrong.push(format!("{id:?} came again after its ack"));
                }
                let last = known.order.get(&id.0).copied().unwrap_or_default();
                if id.1 < last {
                    known
                        .wrong
                        .push(format!("{id:?} came after {last} of its key was acked"));
                }
                acks.push(message["receipt"].clone());
            }
        }
        let settle = json!({"ack": acks}).to_string();
        match post(base, "jobs/groups/g/settle", &settle) {
            Ok((200, answer)) => {
                let failed: HashSet<&str> = answer["failed"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(receipt_of)
                    .collect();
                let mut known = known.lock().unwrap();
                for message in &messages {
                    if !failed.contains(message["receipt"].as_str().unwrap_or_default()) {
                        let id = id_of(message);
                        known.done.insert(id);
                        let last = known.order.entry(id.0).or_default();
                        *last = (*last).max(id.1);
                    }
                }
            }
            Ok((status, answer)) => known.lock().unwrap().wrong.push(format!("settle: {status} {answer}")),
            Err(_) => {
                known.lock().unwrap().unsure.extend(messages.iter().map(id_of));
                return;
            }
        }
    }
}

fn receipt_of(failed: &Value) -> Option<&str> {
    failed["r"].as_str().or_else(|| failed["receipt"].as_str())
}

fn id_of(message: &Value) -> (u32, u32) {
    let text = message["text"].as_str().unwrap_or_default();
    let (key, number) = text.split_once(':').unwrap_or_default();
    (key.parse().unwrap_or(u32::MAX), number.parse().unwrap_or(u32::MAX))
}

/// `THALWEG_KILL_ROUNDS` rounds of load and `kill -9` at a random moment, from the seed `THALWEG_KILL_SEED`.
#[test]
#[allow(clippy::print_stdout, reason = "what a long run came to is to be read")]
fn kill_nine_loses_nothing_repeats_nothing_that_was_acked_and_keeps_the_order() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (rounds, seed) = (number("THALWEG_KILL_ROUNDS", 6), number("THALWEG_KILL_SEED", 1));
    let mut random = Random(seed | 1 << 40);
    let (known, next) = (
        Arc::new(Mutex::new(Known::default())),
        Arc::new(Mutex::new(HashMap::new())),
    );
    let mut thalweg = Thalweg::start(QUEUE).unwrap();
    for round in 0..rounds {
        let base = thalweg.address().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for n in 0..2 {
                let (base, known, next, stop) = (&base, &known, &next, &stop);
                scope.spawn(move || produce(base, known, next, n * KEYS / 2..(n + 1) * KEYS / 2, stop));
                scope.spawn(move || consume(base, &format!("c{n}"), known, round as u32, stop));
            }
            std::thread::sleep(Duration::from_millis(100 + random.below(500)));
            thalweg.process.kill().unwrap();
            stop.store(true, Ordering::Relaxed);
        });
        thalweg.restart().unwrap();
        let wrong = known.lock().unwrap().wrong.clone();
        assert!(wrong.is_empty(), "round {round} of seed {seed}: {wrong:?}");
    }
    // What is left comes, once the leases of consumers that are gone have ended.
    let base = thalweg.address().unwrap();
    let stop = AtomicBool::new(true);
    eventually(|| {
        consume(&base, "last", &known, rounds as u32, &stop);
        let known = known.lock().unwrap();
        let missing = |id: &&(u32, u32)| !known.done.contains(id) && !known.unsure.contains(id);
        let missing = known.stored.iter().filter(missing).count();
        ensure!(missing == 0, "{missing} of {} messages are missing", known.stored.len());
        Ok(())
    })
    .unwrap();
    let known = known.lock().unwrap();
    assert!(known.wrong.is_empty(), "seed {seed}: {:?}", known.wrong);
    assert!(
        known.stored.len() as u64 > rounds * 20,
        "{} messages in {rounds} rounds",
        known.stored.len()
    );
    println!(
        "{rounds} rounds of kill -9, seed {seed}: {} messages stored, none lost, none after its ack; {} acks had no answer",
        known.stored.len(),
        known.unsure.len()
    );
}
