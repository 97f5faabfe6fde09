//! Limits, names, codes and figures that the API promises, on a real socket.

use crate::support::{Server, json_lines};
use serde_json::{Value, json};
use thalweg_log::Durability;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};

fn settings() -> QueueSettings {
    QueueSettings {
        partitions: 1,
        durability: Some(Durability::Memory),
        ..QueueSettings::default()
    }
}

#[test]
fn one_request_settles_thousands_of_messages_with_long_reasons() {
    let server = Server::start();
    let many = QueueSettings {
        max_in_flight: 10_000,
        ..settings()
    };
    server.create_with("q", many);
    let lines = vec![json!({"text": "x"}); 9000];
    let sent = server.send("POST", "/queues/q/messages:batch", &[], &json_lines(&lines));
    assert_eq!(sent.status, 201);
    let reason = "no such pump ".repeat(70);
    let nack = |receipt: &Value| json!({"r": receipt, "reason": reason});
    let nacks: Vec<Value> = server.claim_receipts("q", "g").iter().map(nack).collect();
    let settled = server.post("/queues/q/groups/g/settle", &json!({"nack": nacks}));
    assert_eq!((settled.status, &settled.json["settled"]), (200, &json!(9000)));
}

#[test]
fn a_name_that_no_queue_can_have_is_a_mistake_and_not_a_missing_queue() {
    let server = Server::with(true);
    for path in [
        "/queues/a%20b/messages",
        "/queues/%2E%2E/messages",
        "/queues/a%2Fb/groups/g/claim",
    ] {
        let answer = server.send("POST", path, &[], "{}");
        answer.is_problem(400, "invalid_config", &[]);
        assert!(answer.detail().starts_with("queue \""), "{}", answer.detail());
    }
}

#[test]
fn a_message_that_is_too_large_is_counted_wherever_it_is_refused() {
    let server = Server::start();
    let small = QueueSettings {
        max_message_size: 1000,
        ..settings()
    };
    server.create_with("q", small);
    let large = "x".repeat(1001);
    let line = json_lines(&[json!({"text": large})]);
    for (path, body) in [
        ("/queues/q/messages", &large),
        ("/queues/q/messages:batch", &line),
        ("/queues/q/messages:batch?atomic=false", &line),
    ] {
        server.send("POST", path, &[], body);
    }
    assert_eq!(server.get("/queues/q/stats").json["refused"], 3);
}

#[test]
fn a_queue_is_made_by_its_first_consumer_only_if_that_is_allowed() {
    let server = Server::with(true);
    let claimed = server.post("/queues/new/groups/g/claim", &json!({}));
    assert_eq!(claimed.status, 204, "{claimed:?}");
    assert_eq!(server.get("/queues/new/groups/g").status, 200);
    let closed = Server::start();
    closed
        .post("/queues/new/groups/g/claim", &json!({}))
        .is_problem(404, "queue_not_found", &[]);
}

#[test]
fn the_document_says_of_every_request_with_a_body_that_it_may_be_too_large() {
    let server = Server::start();
    let document = server.get("/openapi.json").json;
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.values().flat_map(|path| path.as_object().unwrap().values());
    let with_body: Vec<&Value> = operations
        .filter(|operation| operation.get("requestBody").is_some())
        .collect();
    assert!(with_body.len() > 10);
    for operation in with_body {
        assert!(
            operation["responses"].get("413").is_some(),
            "{}",
            operation["operationId"]
        );
    }
}

#[test]
fn figures_of_a_group_cover_what_nobody_has_claimed_yet_and_what_streams_did() {
    let server = Server::start();
    let stream = GroupSettings::new("s", GroupMode::Stream);
    let groups = vec![GroupSettings::new("g", GroupMode::Work), stream];
    server.create_with("q", QueueSettings { groups, ..settings() });
    for text in ["a", "b", "c", "d"] {
        server.produce("q", text);
    }
    server.post("/queues/q/groups/g/claim", &json!({"max": 1}));
    let claimed = server.post("/queues/q/groups/s/claim", &json!({"max": 3})).ok(200);
    let [done, bad] = [0_usize, 1].map(|n| claimed["messages"][n]["receipt"].clone());
    server.post("/queues/q/groups/s/settle", &json!({"ack": [done], "reject": [bad]}));
    let work = server.get("/queues/q/groups/g").json;
    assert_eq!(
        (&work["ready"], &work["leased"], work.get("lag")),
        (&json!(3), &json!(1), None)
    );
    let stream = server.get("/queues/q/groups/s").json;
    let figures = ["lag", "acked", "rejected"].map(|name| stream[name].clone());
    assert_eq!(figures, [json!(2), json!(1), json!(1)], "{stream}");
}

#[test]
fn receipts_of_deliveries_that_never_were_settle_nothing() {
    let server = Server::start();
    server.create_with("q", settings());
    let delayed = [("x-delay", "1h")];
    server.produce("q", "a");
    server.send("POST", "/queues/q/messages", &delayed, "b");
    let codes = |receipts: &[&str]| -> Vec<Value> {
        let settled = server.post("/queues/q/groups/g/settle", &json!({"ack": receipts}));
        let failed = settled.json["failed"].as_array().unwrap();
        failed.iter().map(|failed| failed["code"].clone()).collect()
    };
    let claimed = server.post("/queues/q/groups/g/claim", &json!({"max": 1})).ok(200);
    let once = claimed["messages"][0]["receipt"].as_str().unwrap().to_owned();
    let first = server.first("q");
    let tag = once.strip_prefix(&format!("q:0:{first}:1:")).unwrap();
    let (tagless, never) = (format!("q:0:{first}:1"), format!("q:0:{first}:9:{tag}"));
    let later = format!("q:0:{}:1:{tag}", first + 1);
    // Whether a claim has come to it or not.
    assert_eq!(codes(&[&later]), ["not_leased"]);
    assert!(server.claim_all("q", "g").is_empty());
    assert_eq!(codes(&[&later, &tagless]), ["not_leased", "gone"]);
    assert_eq!(codes(&[&once, &never, &once]), ["gone"]);
}

#[test]
fn a_group_that_a_consumer_made_is_declared_by_put() {
    let server = Server::start();
    server.create_with("q", settings());
    server.claim_all("q", "g");
    assert_eq!(server.get("/queues/q/groups/g").json["declared"], false);
    let put = server.send("PUT", "/queues/q/groups/g", &[], "{}");
    assert_eq!((put.status, &put.json["declared"]), (200, &json!(true)));
    server
        .send("PUT", "/queues/q/groups/g", &[], r#"{"mode": "stream"}"#)
        .is_problem(409, "group_exists", &[]);
}

#[test]
fn sending_again_that_stops_half_way_is_told_with_its_number() {
    let server = Server::start();
    let settings = QueueSettings {
        max_depth: 3,
        ..settings()
    };
    server.create_with("q", settings);
    for text in ["a", "b", "c"] {
        server.produce("q", text);
    }
    let receipts = server.claim_receipts("q", "g");
    server.post("/queues/q/groups/g/settle", &json!({"reject": receipts}));
    server.produce("q", "x");
    let answer = server.post("/queues/q/dlq:resend", &json!({"filter": {}}));
    answer.is_problem(429, "queue_full", &[]);
    assert!(
        answer.detail().starts_with("2 dead letters were resent"),
        "{}",
        answer.detail()
    );
    server
        .send("PATCH", "/queues/dlq.q", &[], r#"{"dlq": {"enabled": true}}"#)
        .is_problem(400, "invalid_config", &[]);
}

/// A reader would see one of two values, and never know of the other.
#[test]
fn a_property_that_is_given_twice_is_refused_in_every_form() {
    let server = Server::start();
    server.create("q");
    let twice = [("X-Prop-A", "1"), ("X-Prop-A", "2")];
    let refused = server.send("POST", "/queues/q/messages", &twice, b"x");
    refused.is_problem(400, "invalid_config", &["\"a\"", "given twice"]);
    let line = br#"{"text":"x","properties":{"a":"1","b":"1","a":"2"}}"#;
    let refused = server.send("POST", "/queues/q/messages:batch", &[], line);
    refused.is_problem(400, "invalid_config", &["\"a\"", "given twice"]);
}

#[test]
fn json_that_not_every_reader_takes_is_refused_and_what_is_taken_comes_out_as_json() {
    let server = Server::start();
    server.create("q");
    for json in ["1e400".to_owned(), format!("{}1{}", "[".repeat(200), "]".repeat(200))] {
        let line = format!("{{\"json\":{json}}}");
        let refused = server.send("POST", "/queues/q/messages:batch", &[], line.as_bytes());
        refused.is_problem(400, "invalid_config", &["json", "send it as text"]);
    }
    let taken = server.send(
        "POST",
        "/queues/q/messages:batch",
        &[],
        br#"{"json":[1e300,-0,{"a":1,"a":2}]}"#,
    );
    assert_eq!(taken.status, 201, "{taken:?}");
}

/// A value up to the limit is accepted; a byte, a number or a second more is refused before anything is stored.
#[test]
fn every_limit_of_a_request_is_told_with_its_number() {
    let server = Server::start();
    server.create_with("q", settings());
    let batch = "/queues/q/messages:batch";
    let (settle, claim) = ("/queues/q/groups/g/settle", "/queues/q/groups/g/claim");
    server.claim_all("q", "g");
    let text = |len: usize| "x".repeat(len);
    let list = |levels: usize| format!("{{\"json\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    let nack = |len: usize| json!({"nack": [{"r": "q:0:0:1", "reason": text(len)}]}).to_string();
    for (path, fits, exceeds, status, told) in [
        (
            batch,
            json!({"text": "", "key": text(65_536)}).to_string(),
            json!({"text": "", "key": text(65_537)}).to_string(),
            413,
            "a key has at most 65536 bytes, this one has 65537",
        ),
        (
            batch,
            json!({"text": "", "properties": {"a": text(65_000)}}).to_string(),
            json!({"text": "", "properties": {"a": text(33_000), "b": text(33_000)}}).to_string(),
            413,
            "properties have at most 65536 bytes together",
        ),
        (
            batch,
            json!({"text": "", "dedup_id": text(1024)}).to_string(),
            json!({"text": "", "dedup_id": text(1025)}).to_string(),
            400,
            "expected 1 to 1024 bytes, got 1025",
        ),
        (
            batch,
            json!({"text": "", "delay": "8760h"}).to_string(),
            json!({"text": "", "delay": "8761h"}).to_string(),
            400,
            "delay",
        ),
        (batch, list(127), list(128), 400, "json"),
        (settle, nack(1024), nack(1025), 400, "at most 1024 bytes"),
        (
            claim,
            json!({"max": 10_000}).to_string(),
            json!({"max": 10_001}).to_string(),
            400,
            "10000",
        ),
        (
            claim,
            json!({"wait": 0}).to_string(),
            json!({"wait": "61s"}).to_string(),
            400,
            "wait",
        ),
        (
            claim,
            json!({"visibility": "12h"}).to_string(),
            json!({"visibility": "13h"}).to_string(),
            400,
            "visibility",
        ),
        (
            claim,
            json!({"consumer": text(256)}).to_string(),
            json!({"consumer": text(257)}).to_string(),
            400,
            "at most 256 bytes",
        ),
    ] {
        let taken = server.send("POST", path, &[], &fits);
        assert!(taken.status < 300, "{told}: {taken:?}");
        let code = if status == 413 {
            "message_too_large"
        } else {
            "invalid_config"
        };
        server
            .send("POST", path, &[], &exceeds)
            .is_problem(status, code, &[told]);
    }
    for path in ["messages", "dlq"] {
        assert_eq!(server.get(&format!("/queues/q/{path}?limit=1000")).status, 200);
        let refused = server.get(&format!("/queues/q/{path}?limit=1001"));
        refused.is_problem(400, "invalid_config", &["limit", "1000"]);
    }
    let refused = server.get("/queues/q/groups/g/events?max_in_flight=1000001");
    refused.is_problem(400, "invalid_config", &["max_in_flight", "1000000"]);
    for (path, bytes) in [("/queues", 4 << 20), (batch, 24 << 20), (settle, 24 << 20)] {
        let refused = server.send("POST", path, &[], &" ".repeat(bytes + 1));
        refused.is_problem(413, "message_too_large", &[&bytes.to_string()]);
    }
}
