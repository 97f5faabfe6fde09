//! Server-sent events on a real socket: what is sent, when it stops, and what happens when the client disconnects.

use std::io::{BufRead as _, BufReader};

use crate::support::Server;
use serde_json::{Value, json};
use thalweg_queue::settings::QueueSettings;
use thalweg_tests::eventually;

/// A client that listens until it is dropped.
struct Events {
    reader: BufReader<ureq::BodyReader<'static>>,
}

#[derive(Debug)]
struct Event {
    name: String,
    id: String,
    data: Value,
}

impl Events {
    fn listen(server: &Server, path: &str, headers: &[(&str, &str)]) -> Events {
        let response = server.open("GET", path, headers, "").unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        assert_eq!(response.headers()["x-accel-buffering"], "no");
        let reader = BufReader::new(response.into_body().into_reader());
        Events { reader }
    }

    fn next(&mut self) -> Event {
        let mut idle = 0;
        let mut event = Event {
            name: String::new(),
            id: String::new(),
            data: Value::Null,
        };
        loop {
            let mut line = String::new();
            assert!(self.reader.read_line(&mut line).unwrap() > 0, "the stream ended");
            let line = line.trim_end();
            match line.split_once(": ") {
                Some(("event", name)) => event.name = name.to_owned(),
                Some(("id", id)) => event.id = id.to_owned(),
                Some(("data", data)) => event.data = serde_json::from_str(data).unwrap(),
                // A comment is sent after every 15 s without an event.
                Some(_) => {
                    idle += 1;
                    assert!(idle < 4, "nothing comes");
                }
                None if !event.name.is_empty() => return event,
                None => {}
            }
        }
    }

    fn texts(&mut self, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| self.next().data["text"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The receipts of the next messages, which must have these texts.
    #[track_caller]
    fn receipts_of(&mut self, texts: &[&str]) -> Vec<Value> {
        let mut receipts = Vec::new();
        for text in texts {
            let event = self.next();
            assert_eq!(event.data["text"], *text);
            receipts.push(event.data["receipt"].clone());
        }
        receipts
    }
}

/// The queue `q` with these messages and a stream group `s`.
fn stream_of(server: &Server, texts: &[&str]) {
    server.create_of("q", texts);
    server
        .send("PUT", "/queues/q/groups/s", &[], r#"{"mode": "stream"}"#)
        .ok(201);
}

#[test]
fn a_work_group_sends_leases_up_to_the_limit_and_goes_on_when_they_are_settled() {
    let server = Server::start();
    server.create_of("q", &["a", "b", "c"]);
    let mut events = Events::listen(&server, "/queues/q/groups/g/events?consumer=c&max_in_flight=2", &[]);
    let (first, second) = (events.next(), events.next());
    assert_eq!(first.name, "message");
    assert_eq!(first.id, first.data["receipt"].as_str().unwrap());
    assert_eq!((&first.data["text"], &second.data["text"]), (&json!("a"), &json!("b")));
    let stats = server.get("/queues/q/groups/g").json;
    assert_eq!((&stats["leased"], &stats["delivered"]), (&json!(2), &json!(2)));
    let settled = server.post("/queues/q/groups/g/settle", &json!({"ack": [first.id]}));
    assert_eq!(settled.json["settled"], 1);
    assert_eq!(events.texts(1), ["c"]);
    // A message produced while it listens is sent at once.
    server.post("/queues/q/groups/g/settle", &json!({"ack": [second.id]}));
    server.produce("q", "d");
    assert_eq!(events.texts(1), ["d"]);
}

#[test]
fn a_stream_goes_on_after_the_last_event_that_the_client_has() {
    let server = Server::start();
    stream_of(&server, &["a", "b", "c", "d"]);
    let path = "/queues/q/groups/s/events?consumer=c";
    let mut events = Events::listen(&server, path, &[]);
    let (first, second) = (events.next(), events.next());
    assert_eq!((first.id.as_str(), second.id.as_str()), ("0:0", "0:1"));
    drop(events);
    let mut events = Events::listen(&server, path, &[("last-event-id", &second.id)]);
    assert_eq!(events.texts(2), ["c", "d"]);
    let answer = server.send("GET", path, &[("last-event-id", "x")], "");
    answer.is_problem(400, "invalid_config", &[]);
}

#[test]
fn what_a_client_has_but_did_not_ack_is_not_committed_by_its_coming_back() {
    let server = Server::start();
    stream_of(&server, &["a", "b", "c", "d", "e"]);
    let path = "/queues/q/groups/s/events?consumer=c";
    let mut events = Events::listen(&server, path, &[]);
    assert_eq!(events.texts(4), ["a", "b", "c", "d"]);
    drop(events);
    let mut events = Events::listen(&server, path, &[("last-event-id", "0:3")]);
    assert_eq!(events.texts(1), ["e"]);
    assert_eq!(server.get("/queues/q/groups/s").json["positions"], json!([0]));
    assert_eq!(server.get("/queues/q/messages").json["messages"][0]["text"], "a");
}

#[test]
fn a_listener_cannot_ask_for_more_than_the_queue_allows_a_consumer() {
    let server = Server::start();
    let settings = QueueSettings {
        partitions: 1,
        max_in_flight: 2,
        ..QueueSettings::default()
    };
    server.create_with("q", settings);
    ["a", "b", "c"].iter().for_each(|text| drop(server.produce("q", text)));
    let mut events = Events::listen(&server, "/queues/q/groups/g/events?max_in_flight=100", &[]);
    assert_eq!(events.texts(2), ["a", "b"]);
    assert_eq!(server.get("/queues/q/groups/g").json["leased"], 2);
}

#[test]
fn a_stream_that_acks_nothing_stops_at_its_limit_until_something_is_committed() {
    let server = Server::start();
    stream_of(&server, &["a", "b", "c", "d"]);
    let mut events = Events::listen(&server, "/queues/q/groups/s/events?max_in_flight=2", &[]);
    let receipts = events.receipts_of(&["a", "b"]);
    assert_eq!(server.get("/queues/q/groups/s").json["delivered"], 2);
    server.post("/queues/q/groups/s/settle", &json!({"ack": receipts}));
    assert_eq!(events.texts(2), ["c", "d"]);
}

#[test]
fn what_a_stream_sent_and_nobody_acked_is_read_again_when_the_client_left() {
    let server = Server::start();
    stream_of(&server, &["a", "b"]);
    let mut events = Events::listen(&server, "/queues/q/groups/s/events?consumer=c", &[]);
    let receipts = events.receipts_of(&["a", "b"]);
    server.post("/queues/q/groups/s/settle", &json!({"ack": [receipts[0]]}));
    drop(events);
    eventually(|| {
        let again = server.post("/queues/q/groups/s/claim", &json!({"consumer": "c"}));
        anyhow::ensure!(again.json["messages"][0]["text"] == "b", "{again:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn asking_for_the_head_of_a_stream_takes_nothing() {
    let server = Server::start();
    server.create("q");
    let head = server.open("HEAD", "/queues/q/groups/g/events", &[], "").unwrap();
    assert_eq!(head.status(), 405);
    assert_eq!(server.get("/queues/q/groups").json["groups"], json!([]));
}

#[test]
fn a_paused_group_has_no_events() {
    let server = Server::start();
    server.create("q");
    server.claim_all("q", "g");
    assert_eq!(server.post("/queues/q/groups/g:pause", &json!({})).status, 200);
    server.get("/queues/q/groups/g/events").is_problem(503, "paused", &[]);
    server
        .get("/queues/q/groups/g/events?max_in_flight=0")
        .is_problem(400, "invalid_config", &[]);
    server
        .get("/queues/nowhere/groups/g/events")
        .is_problem(404, "queue_not_found", &[]);
}

#[test]
fn what_a_client_of_a_stream_nacks_at_its_limit_comes_again_and_all_after_it() {
    for limit in [1, 3] {
        // A separate server for each limit, because the disconnect of the previous client is noticed with a delay.
        let server = Server::start();
        stream_of(&server, &["a", "b", "c", "d"]);
        let path = format!("/queues/q/groups/s/events?consumer=c&max_in_flight={limit}");
        let mut events = Events::listen(&server, &path, &[]);
        let all = ["a", "b", "c"];
        let sent = &all[..limit];
        for _ in 0..3 {
            let receipts = events.receipts_of(sent);
            let nacked = server.post(
                "/queues/q/groups/s/settle",
                &json!({"nack": [{"r": receipts[0], "delay": 0}]}),
            );
            assert_eq!(nacked.json["settled"], 1, "{nacked:?}");
        }
        assert_eq!(events.texts(limit), sent);
    }
}

#[test]
fn a_stream_at_its_limit_reads_on_from_where_somebody_set_it_back_to_and_counts_nothing_twice() {
    let server = Server::start();
    stream_of(&server, &["a", "b", "c", "d", "e"]);
    let mut events = Events::listen(&server, "/queues/q/groups/s/events?max_in_flight=2", &[]);
    let receipts = events.receipts_of(&["a", "b"]);
    server.post("/queues/q/groups/s/settle", &json!({"ack": [receipts[0]]}));
    assert_eq!(events.texts(1), ["c"]);
    let seek = |to: &str| server.post("/queues/q/groups/s:seek", &json!({ "to": to }));
    assert_eq!(seek("earliest").status, 200);
    assert_eq!(events.texts(2), ["a", "b"]);
    assert_eq!(seek("offset:1").status, 200);
    // Receipts from before a seek are stale.
    let receipts = events.receipts_of(&["b", "c"]);
    server.post("/queues/q/groups/s/settle", &json!({"ack": receipts}));
    assert_eq!(events.texts(2), ["d", "e"]);
}
