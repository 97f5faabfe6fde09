//! The router on a real socket, with queues on a real log in a folder: statuses, codes, headers, what a client sees.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use support::{Server, json_lines};

#[test]
fn a_message_is_produced_claimed_and_settled_once() {
    let server = Server::start();
    server.create("pumps");
    let sent = server.send(
        "POST",
        "/queues/pumps/messages",
        &[("x-key", "a"), ("x-prop-unit", "bar")],
        "12",
    );
    assert_eq!(sent.status, 201);
    assert_eq!(sent.json["durability"], "fsync");
    let id = sent.json["id"].as_str().unwrap();
    assert_eq!(id, format!("pumps:{}:{}", sent.json["partition"], sent.json["offset"]));

    let claimed = server.post("/queues/pumps/groups/g/claim", json!({"consumer": "c", "max": 10}));
    assert_eq!(claimed.status, 200);
    let message = &claimed.json["messages"][0];
    assert_eq!(message["id"], id);
    assert_eq!(message["receipt"], format!("{id}:1"));
    assert_eq!(message["delivery"], 1);
    assert_eq!(message["key"], "a");
    assert_eq!(message["text"], "12");
    assert_eq!(message["properties"], json!({"unit": "bar"}));

    let settled = server.post("/queues/pumps/groups/g/settle", json!({"ack": [message["receipt"]]}));
    assert_eq!(
        (settled.status, &settled.json),
        (200, &json!({"settled": 1, "failed": []}))
    );
    assert_eq!(server.post("/queues/pumps/groups/g/claim", json!({})).status, 204);
}

#[test]
fn a_batch_is_stored_as_a_whole_or_told_line_by_line() {
    let server = Server::start();
    server.create("q");
    let good = json_lines(&[
        json!({"text": "a"}),
        json!({"json": {"v": 1}}),
        json!({"base64": "/w=="}),
    ]);
    let stored = server.send("POST", "/queues/q/messages:batch", &[], &good);
    assert_eq!(stored.status, 201);
    assert_eq!(stored.json["messages"].as_array().unwrap().len(), 3);

    let bad = json_lines(&[json!({"text": "a"}), json!({"txt": "b"}), json!({"text": "c"})]);
    let refused = server.send("POST", "/queues/q/messages:batch?atomic=true", &[], &bad);
    refused.is_problem(400, "invalid_config");
    assert!(
        refused.detail().starts_with("line 2: txt: unknown field"),
        "{}",
        refused.detail()
    );

    let each = server.send("POST", "/queues/q/messages:batch?atomic=false", &[], &bad);
    assert_eq!(each.status, 200);
    let results = each.json["results"].as_array().unwrap();
    let lines: Vec<&Value> = results.iter().map(|result| &result["line"]).collect();
    assert_eq!(lines, [&json!(1), &json!(2), &json!(3)]);
    assert_eq!(results[1]["code"], "invalid_config");
    assert!(results[0]["id"].is_string() && results[2]["id"].is_string());

    // Three of the first batch, two of the last.
    assert_eq!(server.claim_all("q", "g").len(), 5);
}
