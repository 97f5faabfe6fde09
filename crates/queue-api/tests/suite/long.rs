//! Large requests and answers do not block others: while they are read and written, the other tasks of the thread move
//! to another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use thalweg_kit::blocking::LONG_BYTES;
use thalweg_log::Durability;
use thalweg_log::disk::RamDisk;
use thalweg_queue::NewMessage;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};

use crate::support::Server;

/// A listener with one thread, and how often a task that yields all the time has found itself on another thread than
/// before, because long work had handed the thread over.
fn watched() -> (Server, Arc<AtomicU64>) {
    let server = Server::on_one_thread(Arc::new(RamDisk::new(1 << 30)));
    let moves: Arc<AtomicU64> = Arc::default();
    let counted = moves.clone();
    server.runtime.spawn(async move {
        let mut last = std::thread::current().id();
        loop {
            tokio::task::yield_now().await;
            let now = std::thread::current().id();
            if std::mem::replace(&mut last, now) != now {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    (server, moves)
}

/// A queue in memory, so that only the text of requests and answers takes long.
fn filled(server: &Server, messages: usize, bytes: usize) {
    let settings = QueueSettings {
        partitions: 1,
        durability: Some(Durability::Memory),
        max_bytes: 0,
        max_message_size: (1 << 20).max(bytes as u64),
        max_in_flight: 100_000,
        groups: vec![GroupSettings::new("g", GroupMode::Work)],
        ..QueueSettings::default()
    };
    server.create_with("q", settings);
    let queue = server.queues.get("q").unwrap();
    server.runtime.block_on(async {
        for _ in 0..messages {
            queue.produce(NewMessage::of(vec![b'"'; bytes])).await.unwrap();
        }
    });
}

/// Whether other tasks moved to another thread. A busy machine may not get to them before the work is done, so it is
/// retried; work that is done in place never moves them.
fn others_go_on(moves: &AtomicU64, request: impl FnMut()) -> bool {
    others_go_on_within(50, moves, request)
}

fn others_go_on_within(tries: u32, moves: &AtomicU64, mut request: impl FnMut()) -> bool {
    (0..tries).any(|_| {
        let before = moves.load(Ordering::SeqCst);
        request();
        moves.load(Ordering::SeqCst) > before
    })
}

#[test]
fn others_go_on_while_a_large_answer_is_written_and_are_left_where_they_are_by_a_small_one() {
    for (messages, bytes) in [(10, 100), (400, 50_000), (1, 20 << 20)] {
        let (server, moves) = watched();
        filled(&server, messages, bytes);
        let is_large = messages * bytes > 1 << 20;
        let what = format!("{messages} messages of {bytes} bytes");
        let first = server.first("q");
        let page = || assert_eq!(server.get("/queues/q/messages?limit=1000").status, 200);
        assert_eq!(others_go_on(&moves, page), is_large, "a page, {what}");
        if messages == 1 {
            let one = || assert_eq!(server.get(&format!("/queues/q/messages/q:0:{first}")).status, 200);
            assert!(others_go_on(&moves, one), "one, {what}");
        }
        let claim = || {
            let claimed = server.claim_receipts("q", "g");
            assert!(!claimed.is_empty());
            let back: Vec<_> = claimed
                .iter()
                .map(|receipt| json!({"r": receipt, "delay": "0s"}))
                .collect();
            let path = "/queues/q/groups/g/settle";
            assert_eq!(server.post(path, &json!({"nack": back})).status, 200);
        };
        // With more retries the messages would be dead.
        let moved = others_go_on_within(5, &moves, claim);
        assert_eq!(moved, is_large, "a claim, {what}");
    }
}

#[test]
fn others_go_on_while_a_large_batch_is_read() {
    for query in ["", "?atomic=false"] {
        let (server, moves) = watched();
        filled(&server, 0, 0);
        let line = format!("{{\"text\": \"{}\"}}\n", "\\u0041".repeat(400));
        for (lines, is_large) in [(20, false), (9000, true)] {
            let batch = line.repeat(lines);
            let produce = || {
                let path = format!("/queues/q/messages:batch{query}");
                let produced = server.send("POST", &path, &[], &batch);
                assert!([200, 201].contains(&produced.status), "{}", produced.status);
            };
            assert_eq!(others_go_on(&moves, produce), is_large, "{lines} lines {query}");
        }
    }
}

/// Their text is short enough to be parsed in place, so it is the settling that moves the others.
#[test]
fn others_go_on_while_many_receipts_are_settled_and_told_of() {
    for (messages, is_long) in [(100, false), (5000, true)] {
        let (server, moves) = watched();
        filled(&server, messages, 10);
        let receipts = server.claim_receipts("q", "g");
        assert_eq!(receipts.len(), messages);
        let settle = |verdicts: &Value| {
            let text = verdicts.to_string();
            assert!(text.len() < LONG_BYTES, "{} bytes", text.len());
            let settled = server.send("POST", "/queues/q/groups/g/settle", &[], &text);
            assert_eq!(settled.status, 200, "{settled:?}");
            settled.json
        };
        let extend = || assert_eq!(settle(&json!({"extend": receipts}))["settled"], messages);
        assert_eq!(others_go_on(&moves, extend), is_long, "{messages} receipts");
        assert_eq!(settle(&json!({"reject": receipts}))["settled"], messages);
        let fail = || {
            let failed = settle(&json!({"extend": receipts}))["failed"].as_array().map(Vec::len);
            assert_eq!(failed, Some(messages));
        };
        assert_eq!(
            others_go_on(&moves, fail),
            is_long,
            "{messages} receipts that do not hold"
        );
    }
}

#[test]
fn others_go_on_while_settings_and_ids_of_dead_letters_are_read() {
    for (bytes, is_long) in [(1000, false), (LONG_BYTES, true)] {
        let (server, moves) = watched();
        filled(&server, 0, 0);
        let wrong = format!("{{\"filter\": {{\"group\": \"{}\"}}}}", "x".repeat(bytes));
        for (method, path) in [
            ("POST", "/queues/q/dlq:purge"),
            ("POST", "/queues/q/dlq:resend"),
            ("PATCH", "/queues/q"),
            ("PUT", "/queues/q"),
        ] {
            let read = || {
                let status = server.send(method, path, &[], &wrong).status;
                assert!([200, 400].contains(&status), "{method} {path}: {status}");
            };
            assert_eq!(others_go_on(&moves, read), is_long, "{method} {path}, {bytes} bytes");
        }
    }
}

#[test]
fn others_go_on_while_many_queues_are_listed() {
    for (queues, is_long) in [(10, false), (1100, true)] {
        let (server, moves) = watched();
        let settings = QueueSettings {
            partitions: 1,
            durability: Some(Durability::Memory),
            ..QueueSettings::default()
        };
        for n in 0..queues {
            server.create_with(&format!("q{n}"), settings.clone());
        }
        let list = || {
            let listed = server.get("/queues").json["queues"].as_array().map(Vec::len);
            assert_eq!(listed, Some(queues));
        };
        assert_eq!(others_go_on(&moves, list), is_long, "{queues} queues");
    }
}

#[test]
fn others_go_on_while_a_queue_of_many_partitions_and_groups_tells_of_itself() {
    for (partitions, groups, is_long) in [(1, 1, false), (1000, 40, true)] {
        let (server, moves) = watched();
        let names = (0..groups).map(|n| GroupSettings::new(&format!("g{n}"), GroupMode::Work));
        let settings = QueueSettings {
            partitions,
            durability: Some(Durability::Memory),
            groups: names.collect(),
            ..QueueSettings::default()
        };
        server.create_with("q", settings);
        for path in ["/queues/q/stats", "/queues/q/groups"] {
            let tell = || assert_eq!(server.get(path).status, 200);
            assert_eq!(others_go_on(&moves, tell), is_long, "{path}, {partitions} partitions");
        }
    }
}
