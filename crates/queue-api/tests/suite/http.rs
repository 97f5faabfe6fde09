//! The router on a real socket, with queues on a real log in a folder: statuses, codes, headers, and what a client
//! sees.

use std::io::Write as _;

use crate::support::{Server, json_lines};
use serde_json::{Value, json};
use thalweg_queue::settings::QueueSettings;

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

    let claimed = server.post("/queues/pumps/groups/g/claim", &json!({"consumer": "c", "max": 10}));
    assert_eq!(claimed.status, 200);
    let message = &claimed.json["messages"][0];
    assert_eq!(message["id"], id);
    let receipt = message["receipt"].as_str().unwrap();
    assert!(receipt.starts_with(&format!("{id}:1:")), "{receipt}");
    assert_eq!(message["delivery"], 1);
    assert_eq!(message["key"], "a");
    assert_eq!(message["text"], "12");
    assert_eq!(message["properties"], json!({"unit": "bar"}));

    let settled = server.post("/queues/pumps/groups/g/settle", &json!({"ack": [message["receipt"]]}));
    assert_eq!(
        (settled.status, &settled.json),
        (200, &json!({"settled": 1, "failed": []}))
    );
    assert_eq!(server.post("/queues/pumps/groups/g/claim", &json!({})).status, 204);
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
    refused.is_problem(400, "invalid_config", &[]);
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

#[test]
fn a_queue_is_made_shown_changed_paused_emptied_and_removed() {
    let server = Server::start();
    let made = server.post(
        "/queues",
        &json!({"name": "q", "partitions": 2, "retry": {"max_retries": 3}}),
    );
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(made.headers["location"], "/api/v1/queues/q");
    assert_eq!(made.json["settings"]["retry"]["max_retries"], 3);
    server
        .post("/queues", &json!({"name": "q"}))
        .is_problem(409, "queue_exists", &[]);

    let changed = server.send("PATCH", "/queues/q", &[], r#"{"max_depth": 2}"#);
    assert_eq!(
        (changed.status, &changed.json["settings"]["max_depth"]),
        (200, &json!(2))
    );
    assert_eq!(changed.json["settings"]["retry"]["max_retries"], 3);
    let replaced = server.send("PUT", "/queues/q", &[], r#"{"partitions": 2, "max_depth": 2}"#);
    assert_eq!(
        (replaced.status, &replaced.json["settings"]["retry"]["max_retries"]),
        (200, &json!(10))
    );
    assert_eq!(server.send("PUT", "/queues/r", &[], "").status, 201);
    let names = server.get("/queues").json["queues"].clone();
    assert_eq!(
        names
            .as_array()
            .unwrap()
            .iter()
            .map(|queue| &queue["name"])
            .collect::<Vec<_>>(),
        ["q", "r"]
    );

    server.produce("q", "a");
    server.produce("q", "b");
    server
        .send("POST", "/queues/q/messages", &[], "c")
        .is_problem(429, "queue_full", &[]);
    assert_eq!(server.get("/queues/q").json["depth"], 2);
    assert_eq!(server.get("/queues/q/stats").json["depth"], 2);

    let paused = server.post("/queues/q:pause", &json!({"what": "consume"}));
    assert_eq!(paused.json, json!({"paused": {"produce": false, "consume": true}}));
    server
        .post("/queues/q/groups/g/claim", &json!({}))
        .is_problem(503, "paused", &[]);
    assert_eq!(
        server.post("/queues/q:resume", &json!({})).json["paused"]["consume"],
        false
    );
    server
        .post("/queues/q:pause", &json!({"what": "all"}))
        .is_problem(400, "invalid_config", &[]);

    server
        .send("DELETE", "/queues/q", &[], "")
        .is_problem(400, "invalid_config", &[]);
    assert_eq!(
        server.send("POST", "/queues/q:purge", &[], "").json,
        json!({"purged": 2})
    );
    assert_eq!(server.send("DELETE", "/queues/q", &[], "").status, 204);
    server.get("/queues/q").is_problem(404, "queue_not_found", &[]);
    server.produce("r", "a");
    assert_eq!(server.send("DELETE", "/queues/r?force=true", &[], "").status, 204);
}

#[test]
fn null_takes_a_setting_back_to_its_default_and_unknown_names_stay_mistakes() {
    let server = Server::start();
    let made = json!({"name": "q", "durability": "os", "max_depth": 5, "retry": {"max_retries": 3, "jitter": 0.5},
        "groups": [{"name": "g"}]});
    assert_eq!(server.post("/queues", &made).status, 201);
    let body = json!({"durability": null, "max_depth": null, "retry": {"max_retries": null}, "groups": null,
        "dlq": {"webhook": null}});
    let changed = server.send("PATCH", "/queues/q", &[], &body.to_string());
    assert_eq!(changed.status, 200, "{changed:?}");
    let settings = &changed.json["settings"];
    assert_eq!(settings.get("durability"), None);
    assert_eq!(
        [
            &settings["max_depth"],
            &settings["retry"]["max_retries"],
            &settings["retry"]["jitter"],
            &settings["groups"]
        ],
        [&json!(100_000), &json!(10), &json!(0.5), &json!([])]
    );
    assert_eq!(
        server.send("PATCH", "/queues/q", &[], r#"{"retry": null}"#).json["settings"]["retry"]["jitter"],
        0.1
    );
    for (body, expected) in [
        (r#"{"max_deptt": null}"#, "did you mean"),
        (r#"{"retry": {"max_retry": null}}"#, "did you mean"),
        (r#"{"retry": 3}"#, "retry"),
        (
            r#"{"partitions": 2, "ordering": "strict"}"#,
            "strict needs partitions: 1",
        ),
    ] {
        let refused = server.send("PATCH", "/queues/q", &[], body);
        refused.is_problem(400, "invalid_config", &[]);
        assert!(refused.detail().contains(expected), "{body}: {}", refused.detail());
    }
}

#[test]
fn mistakes_in_settings_are_all_told_with_the_nearest_field() {
    let server = Server::start();
    let refused = server.post(
        "/queues",
        &json!({"name": "q", "partition": 3, "ttl": "soon", "retry": {"jitters": 1}}),
    );
    refused.is_problem(400, "invalid_config", &[]);
    for expected in ["did you mean \"partitions\"?", "ttl", "did you mean \"jitter\"?"] {
        assert!(refused.detail().contains(expected), "{expected}: {}", refused.detail());
    }
    server
        .post("/queues", &json!({"name": "a/b"}))
        .is_problem(400, "invalid_config", &[]);
    server
        .send("POST", "/queues", &[], "name: q")
        .is_problem(400, "invalid_config", &[]);
    assert_eq!(server.get("/queues").json["queues"], json!([]));
}

#[test]
fn messages_are_seen_without_being_claimed() {
    let server = Server::start();
    server.create("q");
    let ids: Vec<Value> = ["a", "b", "c"]
        .iter()
        .map(|text| server.produce("q", text)["id"].clone())
        .collect();
    let page = server.get("/queues/q/messages?partition=0&limit=2");
    assert_eq!(page.status, 200);
    let texts = |page: &Value| -> Vec<Value> {
        page["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["text"].clone())
            .collect()
    };
    assert_eq!(texts(&page.json), ["a", "b"]);
    let rest = server.get(&format!("/queues/q/messages?partition=0&from={}", page.json["next"]));
    assert_eq!(
        (texts(&rest.json), &rest.json["next"]),
        (vec![json!("c")], &Value::Null)
    );
    let one = server.get(&format!("/queues/q/messages/{}", ids[1].as_str().unwrap()));
    assert_eq!(
        (one.status, &one.json["text"], &one.json["id"]),
        (200, &json!("b"), &ids[1])
    );
    server
        .get("/queues/q/messages/q:0:999")
        .is_problem(404, "message_not_found", &[]);
    server
        .get("/queues/q/messages/q:7:0")
        .is_problem(404, "message_not_found", &[]);
    server
        .get("/queues/q/messages/other:0:0")
        .is_problem(404, "message_not_found", &[]);
    server
        .get("/queues/q/messages/x")
        .is_problem(400, "invalid_config", &[]);
    server
        .get("/queues/q/messages?partition=9")
        .is_problem(400, "invalid_config", &[]);
    server
        .get("/queues/q/messages?limits=9")
        .is_problem(400, "invalid_config", &[]);
    assert_eq!(server.claim_all("q", "g").len(), 3);
}

#[test]
fn settling_says_which_receipts_no_longer_hold() {
    let server = Server::start();
    server.create_of("q", &["a", "b", "c"]);
    server
        .post("/queues/q/groups/g/settle", &json!({"ack": ["q:0:0:1"]}))
        .is_problem(404, "group_not_found", &[]);
    let receipts = server.claim_receipts("q", "g");
    let elsewhere = receipts[0].as_str().unwrap().replacen(":0:", ":9:", 1);
    // As an earlier version wrote it.
    let tagless = "q:9:0:1";
    let body = json!({
        "ack": [receipts[0], elsewhere, tagless],
        "nack": [{"r": receipts[1], "delay": 0}],
        "extend": [{"r": receipts[2], "visibility": "1m"}],
    });
    let settled = server.post("/queues/q/groups/g/settle", &body);
    assert_eq!((settled.status, &settled.json["settled"]), (200, &json!(3)));
    let failed = settled.json["failed"].as_array().unwrap();
    let codes: Vec<(&Value, &Value)> = failed.iter().map(|failed| (&failed["r"], &failed["code"])).collect();
    assert_eq!(
        codes,
        [
            (&json!(elsewhere), &json!("message_not_found")),
            (&json!(tagless), &json!("gone"))
        ]
    );
    // Redelivered after the nack, with the next delivery number.
    let again = server.post("/queues/q/groups/g/claim", &json!({"wait": "5s"}));
    assert_eq!(again.json["messages"][0]["delivery"], 2);
    let late = server.post("/queues/q/groups/g/settle?wait=false", &json!({"ack": [receipts[1]]}));
    assert_eq!(late.json["failed"][0]["code"], "lease_lost");
}

#[test]
fn a_claim_waits_until_a_message_comes_or_its_time_is_over() {
    let server = Server::start();
    server.create("q");
    assert_eq!(
        server.post("/queues/q/groups/g/claim", &json!({"wait": 10})).status,
        204
    );
    std::thread::scope(|threads| {
        let claim = threads.spawn(|| server.post("/queues/q/groups/g/claim", &json!({"wait": "30s"})));
        // It gets the message whether it is already waiting or not.
        server.produce("q", "a");
        assert_eq!(claim.join().unwrap().json["messages"][0]["text"], "a");
    });
    server
        .post("/queues/q/groups/g/claim", &json!({"wait": "61s"}))
        .is_problem(400, "invalid_config", &[]);
    server
        .post("/queues/q/groups/g/claim", &json!({"max": 0}))
        .is_problem(400, "invalid_config", &[]);
    server
        .post("/queues/q/groups/a:b/claim", &json!({}))
        .is_problem(400, "invalid_config", &[]);
}

#[test]
fn a_group_is_declared_committed_set_back_paused_and_removed() {
    let server = Server::start();
    server.create_of("q", &["a", "b", "c"]);
    // Committed messages must still exist when the group seeks back.
    let kept = server.send("PATCH", "/queues/q", &[], r#"{"retention": {"mode": "policy"}}"#);
    assert_eq!(kept.status, 200, "{kept:?}");
    let group = "/queues/q/groups/live";
    let made = server.send("PUT", group, &[], r#"{"mode": "stream"}"#);
    assert_eq!(
        (made.status, &made.json["mode"], &made.json["declared"]),
        (201, &json!("stream"), &json!(true))
    );
    assert_eq!(server.send("PUT", group, &[], r#"{"mode": "stream"}"#).status, 200);
    server
        .send("PUT", group, &[], r#"{"mode": "work"}"#)
        .is_problem(409, "group_exists", &[]);
    assert_eq!(server.claim_all("q", "live").len(), 3);
    let first = server.first("q");
    let third = json!({"partition": 0, "offset": first + 2});
    let committed = server.post(&format!("{group}:commit"), &third);
    assert_eq!(
        (committed.status, &committed.json["positions"]),
        (200, &json!([first + 2]))
    );
    server
        .post(&format!("{group}:commit"), &json!({"offset": 2}))
        .is_problem(400, "invalid_config", &[]);
    assert_eq!(
        server.post(&format!("{group}:seek"), &json!({"to": "earliest"})).status,
        200
    );
    assert_eq!(server.claim_all("q", "live").len(), 3);
    server
        .post(&format!("{group}:seek"), &json!({"to": "latest", "partition": 0}))
        .is_problem(400, "invalid_config", &[]);
    assert_eq!(
        server
            .post(
                &format!("{group}:seek"),
                &json!({"to": format!("offset:{}", first + 1), "partition": 0})
            )
            .status,
        200
    );
    assert_eq!(server.claim_all("q", "live").len(), 2);
    assert_eq!(server.post(&format!("{group}:pause"), &json!({})).json["paused"], true);
    server
        .post(&format!("{group}/claim"), &json!({}))
        .is_problem(503, "paused", &[]);
    assert_eq!(
        server.post(&format!("{group}:resume"), &json!({})).json["paused"],
        false
    );
    assert_eq!(server.get("/queues/q/groups").json["groups"][0]["name"], "live");
    assert_eq!(server.get(group).status, 200);
    assert_eq!(server.send("DELETE", group, &[], "").status, 204);
    server.get(group).is_problem(404, "group_not_found", &[]);
    server
        .send("DELETE", group, &[], "")
        .is_problem(404, "group_not_found", &[]);
    server
        .post(&format!("{group}:purge"), &json!({}))
        .is_problem(404, "not_found", &[]);
}

#[test]
fn dead_letters_are_found_sent_again_and_thrown_away() {
    let server = Server::start();
    server.create_of("q", &["a", "b", "c"]);
    let receipts = server.claim_receipts("q", "g");
    let reject: Vec<Value> = receipts.iter().map(|r| json!({"r": r, "reason": "bad"})).collect();
    assert_eq!(
        server
            .post("/queues/q/groups/g/settle", &json!({"reject": reject}))
            .json["settled"],
        3
    );
    let page = server.get("/queues/q/dlq?group=g&reason=rejected&limit=2");
    let letters = page.json["messages"].as_array().unwrap();
    assert_eq!((letters.len(), &letters[0]["text"]), (2, &json!("a")));
    assert_eq!(letters[0]["properties"]["x-dlq-detail"], "bad");
    let rest = server.get(&format!("/queues/q/dlq?after={}", page.json["next"]));
    assert_eq!(rest.json["messages"].as_array().unwrap().len(), 1);
    assert_eq!(
        server.get("/queues/q/dlq?property=x-dlq-detail=good").json["messages"],
        json!([])
    );
    assert_eq!(
        server.get("/queues/q/dlq?since=2999-01-01T00:00:00Z").json["messages"],
        json!([])
    );
    server
        .get("/queues/q/dlq?since=soon")
        .is_problem(400, "invalid_config", &[]);

    server
        .post("/queues/q/dlq:resend", &json!({}))
        .is_problem(400, "invalid_config", &[]);
    server
        .post("/queues/q/dlq:resend", &json!({"filter": {}, "to": "nowhere"}))
        .is_problem(404, "queue_not_found", &[]);
    server
        .post("/queues/q/dlq:resend", &json!({"filter": {}, "to": "lake.tags"}))
        .is_problem(403, "not_authorized", &[]);
    server
        .post("/queues/q/dlq:purge", &json!({"ids": ["dlq.q:0:99"]}))
        .is_problem(404, "message_not_found", &[]);
    let resent = server.post("/queues/q/dlq:resend", &json!({"ids": [letters[0]["id"]]}));
    assert_eq!((resent.status, &resent.json), (200, &json!({"resent": 1})));
    assert_eq!(server.claim_all("q", "g")[0]["text"], "a");
    assert_eq!(
        server
            .post("/queues/q/dlq:purge", &json!({"filter": {"group": "g"}}))
            .json,
        json!({"purged": 2})
    );
    assert_eq!(server.get("/queues/q/dlq").json["messages"], json!([]));
}

#[test]
fn a_message_is_delayed_and_repeated_only_as_its_headers_say() {
    let server = Server::start();
    assert_eq!(
        server
            .post("/queues", &json!({"name": "q", "dedup_window": "1m"}))
            .status,
        201
    );
    let sent = |headers: &[(&str, &str)]| server.send("POST", "/queues/q/messages", headers, "a");
    let first = sent(&[("x-dedup-id", "1"), ("x-ttl", "1h")]);
    let second = sent(&[("x-dedup-id", "1")]);
    assert_eq!((first.status, second.status), (201, 200));
    assert_eq!(
        (&second.json["id"], &second.json["repeated"]),
        (&first.json["id"], &json!(true))
    );
    assert_eq!(sent(&[("x-delay", "1h")]).status, 201);
    assert_eq!(sent(&[("x-deliver-at", "2999")]).status, 201);
    assert_eq!(server.claim_all("q", "g").len(), 2, "one is delayed");
    for headers in [
        &[("x-delay", "soon")][..],
        &[("x-delay", "1s"), ("x-deliver-at", "1")],
        &[("x-ttl", "0")],
        &[("x-prop-x-dlq-queue", "a")],
        &[("x-prop-delay", "1s")],
    ] {
        sent(headers).is_problem(400, "invalid_config", &[]);
    }
    let json = server.send(
        "POST",
        "/queues/q/messages",
        &[("content-type", "application/json")],
        r#"{"v": 1.10}"#,
    );
    let shown = server.get(&format!("/queues/q/messages/{}", json.json["id"].as_str().unwrap()));
    assert!(shown.text.contains(r#""json":{"v": 1.10}"#), "{}", shown.text);
}

#[test]
fn queues_of_the_lake_are_seen_and_not_touched() {
    let server = Server::start();
    server.create_with("lake.tags", thalweg_queue::settings::QueueSettings::of_lake());
    assert_eq!(server.get("/queues/lake.tags").status, 200);
    assert_eq!(server.get("/queues/lake.tags/messages").status, 200);
    for (method, path, body) in [
        ("POST", "/queues", r#"{"name": "lake.x"}"#),
        ("PUT", "/queues/lake.tags", "{}"),
        ("PATCH", "/queues/lake.tags", "{}"),
        ("DELETE", "/queues/lake.tags?force=true", ""),
        ("POST", "/queues/lake.tags:purge", ""),
        ("POST", "/queues/lake.tags:pause", ""),
        ("POST", "/queues/lake.tags/messages", "a"),
        ("POST", "/queues/lake.tags/messages:batch", r#"{"text": "a"}"#),
        ("POST", "/queues/lake.tags/groups/g/claim", ""),
        ("GET", "/queues/lake.tags/groups/g/events", ""),
        (
            "POST",
            "/queues/lake.tags/groups/lake/settle",
            r#"{"ack": ["lake.tags:0:0:1"]}"#,
        ),
        (
            "POST",
            "/queues/lake.tags/groups/lake:commit",
            r#"{"partition": 0, "offset": 1}"#,
        ),
        ("POST", "/queues/lake.tags/groups/lake:seek", r#"{"to": "latest"}"#),
        ("PUT", "/queues/lake.tags/groups/g", ""),
        ("DELETE", "/queues/lake.tags/groups/lake", ""),
    ] {
        let refused = server.send(method, path, &[], body);
        assert_eq!(refused.json["code"], "not_authorized", "{method} {path}: {refused:?}");
        refused.is_problem(403, "not_authorized", &[]);
    }
}

#[test]
fn bodies_over_their_limits_are_refused_and_the_server_goes_on() {
    let server = Server::start();
    assert_eq!(
        server
            .post("/queues", &json!({"name": "q", "max_message_size": "1KiB"}))
            .status,
        201
    );
    let large = vec![b'x'; 1025];
    server
        .send("POST", "/queues/q/messages", &[], &large)
        .is_problem(413, "message_too_large", &[]);
    assert_eq!(server.send("POST", "/queues/q/messages", &[], &large[1..]).status, 201);
    let line = json!({"text": "x".repeat(1025)}).to_string();
    server
        .send("POST", "/queues/q/messages:batch", &[], &line)
        .is_problem(413, "message_too_large", &[]);
    let each = server.send("POST", "/queues/q/messages:batch?atomic=false", &[], &line);
    assert_eq!(each.json["results"][0]["code"], "message_too_large");
    let lines = "{\"text\":\"\"}\n".repeat(10_001);
    server
        .send("POST", "/queues/q/messages:batch", &[], &lines)
        .is_problem(413, "message_too_large", &[]);
    let lines = "{\"text\":\"\"}\n".repeat(10_000);
    assert_eq!(server.send("POST", "/queues/q/messages:batch", &[], &lines).status, 201);
    let nested = format!("{{\"ack\": {}", "[".repeat(100_000));
    server
        .send("POST", "/queues/q/groups/g/claim", &[], &nested)
        .is_problem(400, "invalid_config", &[]);
    server
        .send("POST", "/queues", &[], &nested)
        .is_problem(400, "invalid_config", &[]);
    server.get("/queues/%ff").is_problem(404, "not_found", &[]);
    server.get("/queues/..%2f").is_problem(400, "invalid_config", &[]);
}

/// The body as gzip and as zstd.
fn packed(body: &[u8]) -> [(&'static str, Vec<u8>); 2] {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(body).unwrap();
    [
        ("gzip", gzip.finish().unwrap()),
        ("zstd", zstd::bulk::compress(body, 3).unwrap()),
    ]
}

#[test]
fn a_compressed_body_is_the_body_within_the_same_limits() {
    let server = Server::start();
    let settings = QueueSettings {
        partitions: 1,
        max_message_size: 100_000,
        ..QueueSettings::default()
    };
    server.create_with("q", settings);
    let send = |path: &str, coding: &str, body: &[u8]| server.send("POST", path, &[("content-encoding", coding)], body);
    let numbers: String = (0..10_000).map(|n| format!("{n} ")).collect();
    let lines = json_lines(&[json!({"text": "a"}), json!({"text": "b"})]);
    for (coding, body) in packed(numbers.as_bytes()) {
        assert_eq!(send("/queues/q/messages", coding, &body).status, 201);
    }
    for (coding, body) in packed(lines.as_bytes()) {
        assert_eq!(send("/queues/q/messages:batch", coding, &body).status, 201);
    }
    let texts: Vec<Value> = server
        .claim_all("q", "g")
        .iter()
        .map(|message| message["text"].clone())
        .collect();
    assert_eq!(texts, [numbers.as_str(), &numbers, "a", "b", "a", "b"]);
    for (coding, body) in packed(&[numbers.as_bytes(), numbers.as_bytes(), numbers.as_bytes()].concat()) {
        let refused = send("/queues/q/messages", coding, &body);
        refused.is_problem(413, "message_too_large", &[]);
        assert!(
            refused.detail().contains("100000 bytes after decompression"),
            "{}",
            refused.detail()
        );
        let cut = send("/queues/q/messages", coding, &body[..body.len() / 2]);
        cut.is_problem(400, "invalid_config", &[]);
        assert!(
            cut.detail().starts_with(&format!("the body is no {coding} after ")),
            "{}",
            cut.detail()
        );
    }
    let unread = send("/queues/q/messages", "br", b"abc");
    unread.is_problem(415, "unsupported_encoding", &[]);
    assert_eq!(unread.headers["accept-encoding"], "gzip, zstd");
}

#[test]
fn a_queue_is_made_by_its_first_message_only_if_that_is_allowed() {
    Server::start()
        .send("POST", "/queues/new/messages", &[], "a")
        .is_problem(404, "queue_not_found", &[]);
    let server = Server::with(true);
    assert_eq!(server.send("POST", "/queues/new/messages", &[], "a").status, 201);
    server
        .send("POST", "/queues/dlq.new/messages", &[], "a")
        .is_problem(403, "not_authorized", &[]);
}

#[test]
fn every_request_of_the_document_is_served_and_no_other() {
    let server = Server::start();
    let document = server.get("/openapi.json");
    assert_eq!((document.status, &document.json["openapi"]), (200, &json!("3.1.0")));
    let paths = document.json["paths"].as_object().unwrap();
    assert!(paths.len() > 15);
    for (path, operations) in paths {
        let path = path
            .replace("{queue}", "nowhere")
            .replace("{group}", "g")
            .replace("{id}", "nowhere:0:0");
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let answer = server.send(method, &path, &[], "");
            let code = answer.json["code"].as_str().unwrap_or_default();
            if operations.get(method.to_ascii_lowercase()).is_some() {
                assert!(
                    answer.status < 500 && answer.status != 405 && code != "not_found",
                    "{method} {path}: {answer:?}"
                );
                continue;
            }
            // For other methods an action is a name, and vice versa.
            let refused = answer.status == 405 || code == "not_found" || (path.contains(':') && answer.status == 404);
            let of_a_name = path.contains(":") && method != "POST";
            assert!(refused || of_a_name, "{method} {path}: {answer:?}");
        }
    }
}

#[test]
fn the_examples_of_the_document_are_understood() {
    let server = Server::start();
    let document = server.get("/openapi.json").json;
    server.create("pumps");
    assert_eq!(server.send("PUT", "/queues/pumps/groups/alarms", &[], "").status, 201);
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let Some(content) = operation["requestBody"]["content"].as_object() else {
                continue;
            };
            let (media_type, content) = content.iter().next().unwrap();
            let example = &content["example"];
            let body = example.as_str().map_or_else(|| example.to_string(), str::to_owned);
            let path = path.replace("{queue}", "pumps").replace("{group}", "alarms");
            let answer = server.send(&method.to_uppercase(), &path, &[("content-type", media_type)], &body);
            // The names in an example need not exist, but it must be valid. Only a stream can commit.
            let known = answer.status != 400 || answer.detail().contains("mode work");
            assert!(known, "{method} {path} {body}: {answer:?}");
        }
    }
}
