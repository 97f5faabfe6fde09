//! `kill -9` of queues under load, while the wall clock is set, clients disconnect in the middle of their calls and retry, a
//! queue is deleted and recreated, and rebuildable files are damaged: no acknowledged message is lost, nothing is stored twice
//! or redelivered after its ack, each key keeps its order, and deleted data stays deleted.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use thalweg_tests::{Thalweg, eventually};

use crate::queues::{call, post};
use crate::trouble::{WallClock, damage, leave, request};

/// Lifetimes are so long that nothing can expire, unless a clock change counts as elapsed time.
const QUEUE: &str = "\
log: {min_free: 16MiB, commit: {spare: 1}}
queues:
  list:
    - name: jobs
      partitions: 4
      max_depth: 0
      ttl: 12h
      dedup_window: 12h
      visibility_timeout: 2s
      retry: {initial_backoff: 10ms}
      groups: [{name: g}]
";

const KEYS: u32 = 16;
/// Messages per batch.
const EACH: u32 = 5;
/// Maximum backlog.
const WAITING_MAX: usize = 2_000;
/// One in this many calls is abandoned in the middle.
const LEFT: u32 = 23;

/// Key and number of a message.
type Id = (u32, u32);

/// State that the clients know for sure.
#[derive(Default)]
struct Known {
    /// Messages acknowledged to their producers.
    stored: HashSet<Id>,
    /// The next number of each key. A batch without a response is repeated.
    next: HashMap<u32, u32>,
    /// Messages whose ack was confirmed to their consumers.
    done: HashSet<Id>,
    /// Messages whose ack got no response: it may be stored, or they are redelivered.
    unsure: HashSet<Id>,
    /// Number of deliveries of each that a consumer received.
    seen: HashMap<Id, u32>,
    /// The highest acked number of each key.
    order: HashMap<u32, u32>,
    /// Kills and disconnects: each may have had a delivery that no consumer received.
    unseen: u32,
    calls: u32,
    left: u32,
    wrong: Vec<String>,
}

impl Known {
    fn leaves(&mut self) -> bool {
        self.calls += 1;
        let leaves = self.calls.is_multiple_of(LEFT);
        self.left += u32::from(leaves);
        self.unseen += u32::from(leaves);
        leaves
    }

    /// Consumers keep up, even when no producer runs any more.
    fn has_enough(&self) -> bool {
        self.stored.len() > self.done.len() + self.unsure.len() + WAITING_MAX
    }

    fn is_handed(&mut self, message: &Value) {
        let (id, delivery) = (id_of(message), message["delivery"].as_u64().unwrap_or(0) as u32);
        let seen = self.seen.entry(id).or_default();
        *seen += 1;
        let (seen, unseen) = (*seen, self.unseen);
        // With each kill one response may have been lost, which was a delivery too; and one number of the last block.
        if delivery == 0 || delivery > seen + unseen || delivery + unseen < seen {
            self.wrong.push(format!(
                "{id:?} has delivery {delivery}, seen {seen} times, {unseen} may have been unseen"
            ));
        }
        if self.done.contains(&id) {
            self.wrong.push(format!("{id:?} came again after its ack"));
        }
        let last = self.order.get(&id.0).copied().unwrap_or_default();
        if id.1 < last {
            self.wrong
                .push(format!("{id:?} came after {last} of its key was acked"));
        }
    }

    fn is_done(&mut self, id: Id) {
        self.done.insert(id);
        let last = self.order.entry(id.0).or_default();
        *last = (*last).max(id.1);
    }
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

/// Produces batches of one key each, in the order of their numbers, until the process is gone.
fn produce(base: &str, known: &Mutex<Known>, keys: std::ops::Range<u32>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if known.lock().unwrap().has_enough() {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        for key in keys.clone() {
            let first = known.lock().unwrap().next.get(&key).copied().unwrap_or_default();
            let line = |n: u32| {
                let text = format!("{key}:{n}");
                format!("{}\n", json!({"key": key.to_string(), "text": text, "dedup_id": text}))
            };
            let lines: String = (first..first + EACH).map(line).collect();
            if known.lock().unwrap().leaves() {
                let whole = request("POST", "/api/v1/queues/jobs/messages:batch", &lines);
                // At its end, or somewhere within.
                leave(base, &whole, if first % 2 == 0 { whole.len() } else { whole.len() - 9 });
            }
            match post(base, "jobs/messages:batch", &lines) {
                Ok((201 | 200, _)) => {
                    let mut known = known.lock().unwrap();
                    known.stored.extend((first..first + EACH).map(|n| (key, n)));
                    known.next.insert(key, first + EACH);
                }
                Ok((status, answer)) => known.lock().unwrap().wrong.push(format!("produce: {status} {answer}")),
                Err(_) => return,
            }
        }
    }
}

/// Claims and acks until the process is gone, or nothing is left if `stop` is set.
fn consume(base: &str, name: &str, known: &Mutex<Known>, stop: &AtomicBool) {
    loop {
        let claim = json!({"consumer": name, "max": 20, "wait": "100ms"}).to_string();
        if !stop.load(Ordering::Relaxed) && known.lock().unwrap().leaves() {
            leave(
                base,
                &request("POST", "/api/v1/queues/jobs/groups/g/claim", &claim),
                usize::MAX,
            );
        }
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
        let acks: Vec<&Value> = messages.iter().map(|message| &message["receipt"]).collect();
        let settle = json!({"ack": acks}).to_string();
        let leaves = {
            let mut known = known.lock().unwrap();
            messages.iter().for_each(|message| known.is_handed(message));
            known.leaves()
        };
        if leaves {
            known.lock().unwrap().unsure.extend(messages.iter().map(id_of));
            leave(
                base,
                &request("POST", "/api/v1/queues/jobs/groups/g/settle", &settle),
                usize::MAX,
            );
            continue;
        }
        match post(base, "jobs/groups/g/settle", &settle) {
            Ok((200, answer)) => {
                let failed = answer["failed"].as_array().into_iter().flatten();
                let failed: HashSet<&str> = failed.filter_map(receipt_of).collect();
                let mut known = known.lock().unwrap();
                for message in &messages {
                    if !failed.contains(message["receipt"].as_str().unwrap_or_default()) {
                        known.is_done(id_of(message));
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

fn id_of(message: &Value) -> Id {
    let text = message["text"].as_str().unwrap_or_default();
    let (key, number) = text.split_once(':').unwrap_or_default();
    (key.parse().unwrap_or(u32::MAX), number.parse().unwrap_or(u32::MAX))
}

/// A queue that is deleted and recreated all the time, and its last state that its owner was told.
#[derive(Default)]
struct Remade {
    /// Counts the creations.
    life: u32,
    /// Acknowledged messages of this life; `None` once its deletion was acknowledged.
    stored: Option<u32>,
    /// Its creation or deletion has no response.
    unsure: bool,
    deletions: u32,
}

impl Remade {
    fn text(&self) -> String {
        format!("life {}", self.life)
    }

    /// Runs until the process is gone.
    fn go_on(&mut self, base: &str, wrong: &Mutex<Known>, stop: &AtomicBool) {
        let note = |what: String| wrong.lock().unwrap().wrong.push(what);
        while !stop.load(Ordering::Relaxed) {
            (self.unsure, self.stored) = (true, None);
            self.life += 1;
            match call(base, "PUT", "remade", r#"{"partitions": 2, "groups": [{"name": "g"}]}"#) {
                Ok((201, _)) => (self.unsure, self.stored) = (false, Some(0)),
                Ok((status, answer)) => note(format!("make: {status} {answer}")),
                Err(_) => return,
            }
            for _ in 0..3 {
                match post(base, "remade/messages", &self.text()) {
                    Ok((201, _)) => self.stored = self.stored.map(|stored| stored + 1),
                    Ok((status, answer)) => note(format!("produce: {status} {answer}")),
                    Err(_) => return,
                }
            }
            self.unsure = true;
            match call(base, "DELETE", "remade?force=true", "") {
                Ok((204, _)) => (self.unsure, self.stored, self.deletions) = (false, None, self.deletions + 1),
                Ok((status, answer)) => note(format!("delete: {status} {answer}")),
                Err(_) => return,
            }
        }
    }

    /// Checks after a start that it exists or not, as last acknowledged, with messages of its last life only. It is deleted for
    /// the next one.
    fn is_as_told(&mut self, base: &str) {
        let (status, answer) = call(base, "GET", "remade/messages", "").unwrap();
        let texts = answer["messages"].as_array().cloned().unwrap_or_default();
        let text = self.text();
        assert!(
            texts.iter().all(|message| message["text"] == *text),
            "of an earlier life: {answer}"
        );
        let has = |stored| status == 200 && texts.len() as u32 >= stored;
        let is_as_told = match (self.stored, self.unsure) {
            (Some(stored), false) => has(stored),
            // Its deletion has no response.
            (Some(stored), true) => status == 404 || has(stored),
            (None, false) => status == 404,
            (None, true) => [200, 404].contains(&status),
        };
        assert!(is_as_told, "{:?} were stored: {status} {answer}", self.stored);
        let (status, answer) = call(base, "DELETE", "remade?force=true", "").unwrap();
        assert!([204, 404].contains(&status), "{status} {answer}");
        (self.unsure, self.stored) = (false, None);
    }
}

/// `THALWEG_KILL_ROUNDS` rounds of load and `kill -9` at a random moment, from the seed `THALWEG_KILL_SEED`.
#[test]
#[allow(clippy::print_stdout, reason = "a long run prints its result")]
fn kill_nine_loses_nothing_repeats_nothing_that_was_acked_and_keeps_the_order() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let (rounds, seed) = (number("THALWEG_KILL_ROUNDS", 8), number("THALWEG_KILL_SEED", 1));
    let mut random = Random(seed | 1 << 40);
    let known = Mutex::new(Known::default());
    let (mut remade, mut clock) = (Remade::default(), WallClock::default());
    let mut thalweg = Thalweg::start_with_clock(QUEUE, 0).unwrap();
    let (folder, data) = (thalweg.folder.path().to_owned(), thalweg.data_dir());
    for round in 0..rounds {
        let base = thalweg.address().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (base, known, stop) = (&base, &known, &stop);
            for n in 0..2 {
                scope.spawn(move || produce(base, known, n * KEYS / 2..(n + 1) * KEYS / 2, stop));
                scope.spawn(move || consume(base, &format!("c{n}"), known, stop));
            }
            let remade = &mut remade;
            scope.spawn(move || remade.go_on(base, known, stop));
            if random.below(3) == 0 {
                clock.set(&folder, &thalweg.process, random.below(64));
            }
            std::thread::sleep(Duration::from_millis(100 + random.below(500)));
            thalweg.process.kill().unwrap();
            stop.store(true, Ordering::Relaxed);
        });
        known.lock().unwrap().unseen += 1;
        if random.below(3) == 0 {
            clock.set_back(&folder, random.below(64));
        }
        if random.below(3) == 0 {
            damage(&data, random.below(1 << 20));
        }
        thalweg.restart().unwrap();
        remade.is_as_told(&thalweg.address().unwrap());
        let wrong = known.lock().unwrap().wrong.clone();
        assert!(wrong.is_empty(), "round {round} of seed {seed}: {wrong:?}");
    }
    // The rest is delivered once the leases of dead consumers have ended.
    let base = thalweg.address().unwrap();
    let stop = AtomicBool::new(true);
    eventually(|| {
        consume(&base, "last", &known, &stop);
        let known = known.lock().unwrap();
        let missing = |id: &&Id| !known.done.contains(id) && !known.unsure.contains(id);
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
        "{rounds} rounds of kill -9, seed {seed}: {} messages stored, none lost, none twice, none after its ack; {} acks had no \
         answer; {} clients left; a queue was deleted {} times",
        known.stored.len(),
        known.unsure.len(),
        known.left,
        remade.deletions
    );
}
