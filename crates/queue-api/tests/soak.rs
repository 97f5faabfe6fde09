//! Queues, groups, consumers, messages and dead letters are created, used and removed repeatedly, and none of them
//! remains in memory. It is a test binary of its own, because it counts live bytes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

#[path = "suite/support/mod.rs"]
#[allow(dead_code, reason = "the suite uses the rest")]
mod support;

use std::alloc::System;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use support::{Server, json_lines};
use thalweg_log::LogOptions;
use thalweg_log::disk::FolderDisk;
use thalweg_telemetry::alloc::{CountingAllocator, live};
use thalweg_tests::soak::{Kind, covers, soak};

#[global_allocator]
static ALLOCATOR: CountingAllocator<System> = CountingAllocator(System);

/// A queue that always exists.
const KEPT: &str = "/queues/kept";

const KINDS: &[Kind<Server>] = &[
    Kind {
        name: "a queue with its dead letters",
        requests: &["createQueue", "putQueue", "patchQueue", "deleteQueue", "purgeQueue"],
        leaves_bytes: 0,
        round: queue,
    },
    Kind {
        name: "a queue in memory",
        requests: &["createQueue", "deleteQueue"],
        leaves_bytes: 0,
        round: queue_in_memory,
    },
    Kind {
        name: "a group",
        requests: &["putGroup", "deleteGroup", "pauseGroup", "resumeGroup"],
        leaves_bytes: 0,
        round: group,
    },
    Kind {
        name: "messages",
        requests: &["produce", "produceBatch", "claim", "settle"],
        leaves_bytes: 0,
        round: messages,
    },
    Kind {
        name: "dead letters",
        requests: &["resendDeadLetters", "purgeDeadLetters"],
        // For ten dead letters: the ends of the newest 4,096 messages of a partition are remembered for late receipts.
        leaves_bytes: 1024,
        round: dead_letters,
    },
    Kind {
        name: "a consumer that listens and leaves",
        requests: &["events"],
        leaves_bytes: 0,
        round: listener,
    },
];

const MAKES_NOTHING: [&str; 13] = [
    "browse",
    "message",
    "listQueues",
    "showQueue",
    "queueStats",
    "listGroups",
    "showGroup",
    "listDeadLetters",
    "openapi",
    "pauseQueue",
    "resumeQueue",
    "commit",
    "seek",
];

fn done(server: &Server, method: &str, path: &str, body: &str, statuses: &[u16]) -> Value {
    let answer = server.send(method, path, &[("content-type", "application/json")], body);
    assert!(statuses.contains(&answer.status), "{method} {path}: {answer:?}");
    answer.json
}

fn produce(server: &Server, queue: &str, count: u64) {
    let line = |n: u64| json!({"key": n.to_string(), "text": "x".repeat(500), "dedup_id": format!("{n}")});
    let lines: Vec<Value> = (0..count).map(line).collect();
    let path = format!("{queue}/messages:batch?atomic=false");
    done(server, "POST", &path, &json_lines(&lines), &[200, 201]);
    let key = [("x-key", "k")];
    let one = server.send("POST", &format!("{queue}/messages"), &key, "a payload");
    assert_eq!(one.status, 201, "{one:?}");
}

/// Up to `max` messages. Those on disk come partition by partition, and those that another consumer just had come
/// later, to a claim that waits.
fn claim(server: &Server, queue: &str, group: &str, consumer: &str, max: u64) -> Vec<Value> {
    let mut all = Vec::new();
    while (all.len() as u64) < max {
        let more = claim_once(server, queue, group, (consumer, "0s"), max - all.len() as u64);
        if more.is_empty() {
            break;
        }
        all.extend(more);
    }
    all
}

fn claim_once(server: &Server, queue: &str, group: &str, (consumer, wait): (&str, &str), max: u64) -> Vec<Value> {
    let body = json!({"consumer": consumer, "max": max, "wait": wait}).to_string();
    let claimed = done(
        server,
        "POST",
        &format!("{queue}/groups/{group}/claim"),
        &body,
        // A later stream group is told once that messages settled by all groups are gone.
        &[200, 204, 410],
    );
    let messages = claimed["messages"].as_array().cloned().unwrap_or_default();
    messages.iter().map(|message| message["receipt"].clone()).collect()
}

fn settle(server: &Server, queue: &str, group: &str, verdicts: &Value) {
    done(
        server,
        "POST",
        &format!("{queue}/groups/{group}/settle"),
        &verdicts.to_string(),
        &[200],
    );
}

fn reject(receipts: &[Value]) -> Value {
    let all: Vec<Value> = receipts
        .iter()
        .map(|receipt| json!({"r": receipt, "reason": "soak"}))
        .collect();
    json!({"reject": all})
}

/// Acks everything in the only group of a queue.
fn ack_all(server: &Server, queue: &str, group: &str) {
    while server.get(&format!("{queue}/stats")).json["depth"] != 0 {
        let receipts = claim_once(server, queue, group, ("rest", "2s"), 1000);
        if !receipts.is_empty() {
            settle(server, queue, group, &json!({"ack": receipts}));
        }
    }
}

/// Removes a queue, and its dead-letter queue if it has one.
fn remove(server: &Server, name: &str) {
    done(server, "DELETE", &format!("/queues/{name}?force=true"), "", &[204]);
    let dead_letters = format!("/queues/dlq.{name}?force=true");
    done(server, "DELETE", &dead_letters, "", &[204, 404]);
}

fn queue(server: &Server, number: u64) {
    let (name, settings) = (
        format!("q-{}", number % 3),
        json!({"partitions": 1 + number % 5, "groups": [{"name": "g"}, {"name": "s", "mode": "stream"}], "dedup_window": "1h"}),
    );
    let path = format!("/queues/{name}");
    if number.is_multiple_of(2) {
        done(server, "PUT", &path, &settings.to_string(), &[201]);
    } else {
        let mut named = settings.clone();
        named["name"] = json!(name);
        done(server, "POST", "/queues", &named.to_string(), &[201]);
    }
    done(server, "PATCH", &path, r#"{"visibility_timeout": "1m"}"#, &[200]);
    produce(server, &path, 20);
    let receipts = claim(server, &path, "g", "c", 12);
    settle(server, &path, "g", &json!({"ack": receipts[..4]}));
    settle(server, &path, "g", &reject(&receipts[4..8]));
    claim(server, &path, "s", "reader", 5);
    if number.is_multiple_of(3) {
        done(server, "POST", &format!("{path}:purge"), "{}", &[200]);
    }
    remove(server, &name);
}

fn queue_in_memory(server: &Server, number: u64) {
    let (name, settings) = (
        format!("m-{}", number % 3),
        json!({"partitions": 2, "durability": "memory", "groups": [{"name": "g"}]}),
    );
    let path = format!("/queues/{name}");
    done(server, "PUT", &path, &settings.to_string(), &[201]);
    produce(server, &path, 20);
    claim(server, &path, "g", "c", 12);
    remove(server, &name);
}

fn group(server: &Server, number: u64) {
    let (name, mode) = (
        format!("group-{}", number % 4),
        if number.is_multiple_of(2) { "work" } else { "stream" },
    );
    let path = format!("{KEPT}/groups/{name}");
    done(server, "PUT", &path, &json!({"mode": mode}).to_string(), &[201]);
    produce(server, KEPT, 5);
    claim(server, KEPT, &name, &format!("consumer-{number}"), 3);
    done(server, "POST", &format!("{path}:pause"), "", &[200]);
    done(server, "POST", &format!("{path}:resume"), "", &[200]);
    done(server, "DELETE", &path, "", &[204]);
    ack_all(server, KEPT, "g");
}

fn messages(server: &Server, number: u64) {
    produce(server, KEPT, 50);
    // Each consumer has its own name.
    let receipts = claim(server, KEPT, "g", &format!("consumer-{number}"), 40);
    if !receipts.is_empty() {
        settle(server, KEPT, "g", &json!({"ack": receipts}));
    }
    ack_all(server, KEPT, "g");
}

fn dead_letters(server: &Server, number: u64) {
    produce(server, KEPT, 10);
    let receipts = claim_once(server, KEPT, "g", ("rest", "3s"), 10);
    settle(server, KEPT, "g", &reject(&receipts));
    let how = if number.is_multiple_of(2) { "resend" } else { "purge" };
    done(
        server,
        "POST",
        &format!("{KEPT}/dlq:{how}"),
        r#"{"filter": {}}"#,
        &[200],
    );
    ack_all(server, KEPT, "g");
}

fn listener(server: &Server, number: u64) {
    produce(server, KEPT, 3);
    let path = format!("{KEPT}/groups/g/events?consumer=screen-{number}&max_in_flight=2");
    let mut response = server.open("GET", &path, &[], "").unwrap();
    assert_eq!(response.status(), 200);
    let mut first = [0; 64];
    assert!(response.body_mut().as_reader().read(&mut first).unwrap() > 0);
    drop(response);
    ack_all(server, KEPT, "g");
}

fn server(folder: &Path) -> Server {
    let options = LogOptions {
        // The index of the file being written is in memory until the file is full.
        file_bytes: 512 << 10,
        first_file_bytes: 512 << 10,
        min_free_bytes: Some(0),
        spare: 1,
        // What is cached for readers grows up to this limit whatever is removed.
        tail_bytes_max: 0,
        index_bytes_max: 16 << 10,
        ..LogOptions::default()
    };
    // On a real disk: data removed from a disk in memory would be counted until its space is reused.
    let server = Server::on_log(Arc::new(FolderDisk::open(folder).unwrap()), false, options);
    let kept =
        json!({"partitions": 2, "groups": [{"name": "g"}], "consumer_timeout": "1s", "visibility_timeout": "1s"});
    done(&server, "PUT", KEPT, &kept.to_string(), &[201]);
    server
}

/// The only test of this binary, because a concurrent one would be counted too.
#[test]
fn every_request_has_its_soak_and_nothing_is_left_in_memory_of_what_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    let document = server.get("/openapi.json").ok(200);
    let paths = document["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|path| path.as_object().unwrap().values());
    let ids: Vec<&str> = operations
        .filter_map(|operation| operation["operationId"].as_str())
        .collect();
    covers(KINDS, &MAKES_NOTHING, ids);
    soak(&server, KINDS, live);
}
