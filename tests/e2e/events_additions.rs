//! Additions to the reference, on every kind of storage: batches, safe retries, waiting reads, persistent subscriptions,
//! snapshots, retention, and metrics for the operator.

use std::time::Duration;

use serde_json::{Value, json};
use thalweg_tests::{Api, eventually};

use crate::events_server::{Events, Pokes, TOKEN, for_every_backend, invalid, poke};

for_every_backend!(
    a_batch_is_stored_wholly_or_not_at_all_and_in_one_row,
    a_retry_finds_what_it_has_stored_already,
    a_read_that_waits_is_answered_by_the_first_message_or_when_time_is_up,
    a_message_is_handed_out_until_it_is_acknowledged_or_parked,
    the_newest_snapshot_of_a_stream_is_kept,
    rules_are_read_as_they_were_set_and_cleared_one_by_one,
    figures_are_told_to_the_operator,
);

fn message(kind: &str) -> Value {
    json!({"type": kind, "data": {"of": kind}})
}

fn a_batch_is_stored_wholly_or_not_at_all_and_in_one_row(events: Events) {
    let range = |count: u64, position: u64, global: u64| {
        json!({"count": count, "firstPosition": position, "lastPosition": position + count - 1,
            "firstGlobalPosition": global, "lastGlobalPosition": global + count - 1})
    };
    let two = [message("a"), message("b")];
    assert_eq!(
        events.call(json!(["stream.append", "s-1", two, {"expectedVersion": "noStream"}])),
        range(2, 0, 1)
    );
    assert_eq!(
        events.call(json!(["stream.append", "s-1", two, {"expectedVersion": "exists"}])),
        range(2, 2, 3)
    );
    assert_eq!(
        events.call(json!(["stream.append", "s-1", two, {"expectedVersion": "any"}])),
        range(2, 4, 5)
    );
    // Results have the order of the call, and positions are one range over all streams.
    let many = json!(["stream.appendMany", [
        {"stream": "z-1", "messages": two, "expectedVersion": -1},
        {"stream": "s-1", "messages": [message("c")], "expectedVersion": 5},
        {"stream": "a-1", "messages": two},
    ]]);
    assert_eq!(
        events.call(many.clone()),
        json!([range(2, 0, 7), range(1, 6, 9), range(2, 0, 10)])
    );
    let (status, text) = events.rpc(&many.to_string());
    let error = serde_json::from_str::<Value>(&text).unwrap()["error"].clone();
    assert_eq!((status, &error["code"]), (409, &json!("STREAM_VERSION_CONFLICT")));
    assert_eq!(error["details"], json!({"actual": 1, "expected": -1, "stream": "z-1"}));
    assert_eq!(
        events.call(json!(["stream.version", "s-1"])),
        6,
        "nothing of it is stored"
    );
    invalid(
        &events,
        &[
            (
                json!(["stream.append", "s-1", [message("a"), {"type": "b"}]]),
                "message.data must be an object",
            ),
            (
                json!(["stream.append", "s-1", [message("a"), {"type": "b", "data": {}, "metadata": 1}]]),
                "message.metadata must be an object",
            ),
            (
                json!(["stream.append", "s-1", [message("a")], null]),
                "options must be an object",
            ),
            (
                json!(["stream.append", "s-1", [message("a")], {"expectedVersion": "none"}]),
                "options.expectedVersion must be a number",
            ),
            (
                json!(["stream.appendMany", [{"stream": "t", "messages": two}, {"stream": "t", "messages": two}]]),
                "append.stream 't' occurs more than once",
            ),
            (
                json!(["stream.appendMany", [{"stream": "t", "messages": two, "expectedVersion": []}]]),
                "append.expectedVersion must be a number",
            ),
            (json!(["stream.appendMany", []]), "appends must not be empty"),
        ],
    );
    let next = events.call(json!(["stream.write", "s-1", message("d")]));
    assert_eq!(
        next,
        json!({"globalPosition": 12, "position": 7}),
        "what is refused takes no position"
    );
}

fn a_retry_finds_what_it_has_stored_already(events: Events) {
    let id = |n: u8| format!("0190b5c2-7a00-7c1f-a2b3-c4d5e6f708{n:02x}");
    let with = |n: u8, kind: &str| json!({"id": id(n), "type": kind, "data": {"n": 1.0}, "metadata": {"m": [n]}});
    let write = |stream: &str, kind: &str, n: u8, expected: Value| {
        let mut message = with(n, kind);
        message.as_object_mut().unwrap().remove("id");
        json!(["stream.write", stream, message, {"id": id(n), "expectedVersion": expected}])
    };
    assert_eq!(
        events.call(write("s-1", "a", 0, json!(-1))),
        json!({"globalPosition": 1, "position": 0})
    );
    let again = json!({"globalPosition": 1, "position": 0, "duplicate": true});
    assert_eq!(
        events.call(write("s-1", "a", 0, json!(-1))),
        again,
        "its version is not looked at"
    );
    assert_eq!(events.call(write("s-1", "a", 0, json!(77))), again);
    let conflict = |call: Value, n: u8, stream: &str, position: u64| {
        let (status, text) = events.rpc(&call.to_string());
        let error = serde_json::from_str::<Value>(&text).unwrap()["error"].clone();
        assert_eq!((status, &error["code"]), (409, &json!("MESSAGE_ID_CONFLICT")), "{call}");
        assert_eq!(error["message"], format!("Message id '{}' already exists", id(n)));
        assert_eq!(error["details"], json!({"stream": stream, "position": position}));
    };
    conflict(write("s-1", "b", 0, json!("any")), 0, "s-1", 0);
    conflict(write("s-2", "a", 0, json!("any")), 0, "s-1", 0);
    let other_data =
        json!(["stream.write", "s-1", {"type": "a", "data": {"n": 1}, "metadata": {"m": [0]}}, {"id": id(0)}]);
    conflict(other_data, 0, "s-1", 0);
    let other_metadata = json!(["stream.write", "s-1", {"type": "a", "data": {"n": 1.0}}, {"id": id(0)}]);
    conflict(other_metadata, 0, "s-1", 0);
    // A batch is recognised as a whole.
    let batch = json!(["stream.append", "b-1", [with(1, "a"), with(2, "b"), with(3, "c")], {"expectedVersion": -1}]);
    let stored = events.call(batch.clone());
    let mut found = stored.clone();
    found["duplicate"] = json!(true);
    assert_eq!(events.call(batch), found);
    for messages in [
        vec![with(1, "a"), with(2, "b")],
        vec![with(2, "b"), with(1, "a"), with(3, "c")],
        vec![with(1, "a"), with(2, "b"), with(3, "c"), with(4, "d")],
        vec![with(4, "d"), with(1, "a")],
    ] {
        let call = json!(["stream.append", "b-1", messages]);
        let (status, code, text) = events.refusal(&call.to_string());
        // An ordered part of a batch is also a duplicate.
        let is_part = messages.len() == 2 && messages[0]["type"] == "a";
        assert!(
            is_part && status == 200 || code == "MESSAGE_ID_CONFLICT",
            "{call}: {status} {text}"
        );
    }
    assert_eq!(events.call(json!(["stream.version", "b-1"])), 2);
    let twice = json!(["stream.append", "c-1", [with(9, "a"), with(9, "a")]]);
    assert_eq!(events.refusal(&twice.to_string()).1, "MESSAGE_ID_CONFLICT");
    assert_eq!(events.call(json!(["stream.version", "c-1"])), Value::Null);
    // While its message is retained.
    events.call(json!(["stream.delete", "s-1"]));
    assert_eq!(events.call(json!(["message.get", id(0)])), Value::Null);
    assert_eq!(events.call(write("s-1", "b", 0, json!(0)))["position"], 1);
    assert_eq!(events.call(json!(["message.get", id(0).to_uppercase()]))[3], 1);
    assert_eq!(events.call(json!(["message.get", id(8)])), Value::Null);
}

fn a_read_that_waits_is_answered_by_the_first_message_or_when_time_is_up(events: Events) {
    assert_eq!(events.call(json!(["stream.get", "s-1", {"waitMs": 20}])), json!([]));
    let waits = [
        json!(["stream.get", "s-1", {"waitMs": 30000}]),
        json!(["category.get", "s", {"waitMs": 30000}]),
        json!(["category.get", "", {"waitMs": 30000, "types": ["b"]}]),
        json!(["category.get", "s", {"waitMs": 30000, "position": 2}]),
        json!(["stream.get", "s-1", {"waitMs": 30000, "position": 1}]),
    ];
    std::thread::scope(|scope| {
        let asking: Vec<_> = waits
            .iter()
            .map(|call| {
                let api = Api::at_root(&events.address);
                scope.spawn(move || api.send("POST", &format!("/rpc?token={TOKEN}"), &[], &call.to_string()))
            })
            .collect();
        // The result is the same whether it comes before or after they wait.
        std::thread::sleep(Duration::from_millis(50));
        events.call(json!(["stream.write", "s-1", message("a")]));
        events.call(json!(["stream.write", "s-1", message("b")]));
        for ((asked, call), first) in asking.into_iter().zip(&waits).zip([1, 1, 2, 2, 2]) {
            let answer = asked.join().unwrap();
            let row = &answer.json[0];
            let global = row.as_array().map(|row| row[row.len() - 4].clone());
            assert_eq!(
                (answer.status, global),
                (200, Some(json!(first))),
                "{call}: {}",
                answer.text
            );
        }
    });
    let last = events.call(json!(["stream.get", "s-1", {"waitMs": 30000, "direction": "backward", "batchSize": 1}]));
    assert_eq!(last[0][1], "b");
}

fn a_message_is_handed_out_until_it_is_acknowledged_or_parked(events: Events) {
    for stream in ["p-1", "p-2", "p-1"] {
        events.call(json!(["stream.write", stream, message("a")]));
    }
    let about = events.call(json!(["sub.create", "bills", {"category": "p", "maxAttempts": 2}]));
    assert_eq!(
        (&about["name"], &about["strategy"]),
        (&json!("bills"), &json!("byStream")),
        "{about}"
    );
    let exists = events.refusal(r#"["sub.create","bills",{"category":"p"}]"#);
    assert_eq!((exists.0, exists.1.as_str()), (409, "SUBSCRIPTION_EXISTS"));
    assert_eq!(exists.2, "Subscription 'bills' already exists");
    for call in [
        json!(["sub.info", "none"]),
        json!(["sub.fetch", "none"]),
        json!(["sub.ack", "none", []]),
    ] {
        let expected = (
            404,
            "SUBSCRIPTION_NOT_FOUND".to_owned(),
            "Subscription 'none' not found".to_owned(),
        );
        assert_eq!(events.refusal(&call.to_string()), expected, "{call}");
    }
    let fetch = || events.call(json!(["sub.fetch", "bills", {"consumer": "c", "max": 10}]));
    let first = fetch();
    let globals: Vec<&Value> = first.as_array().unwrap().iter().map(|one| &one["message"][4]).collect();
    assert_eq!(globals, [&json!(1), &json!(2)], "one of a stream at a time");
    let row = &events.call(json!(["category.get", "p", {"batchSize": 1}]))[0];
    assert_eq!((&first[0]["attempt"], &first[0]["message"]), (&json!(1), row));
    let acked = events.call(json!(["sub.ack", "bills", [first[0]["lease"]]]));
    assert_eq!(acked, json!({"acked": 1, "stale": []}));
    assert_eq!(
        events.call(json!(["sub.ack", "bills", [first[0]["lease"]]]))["stale"],
        json!([first[0]["lease"]])
    );
    events.call(json!(["sub.nack", "bills", [first[1]["lease"]], {"action": "retry", "reason": "not now"}]));
    let second = fetch();
    assert_eq!(
        (&second[0]["message"][4], &second[0]["attempt"]),
        (&json!(2), &json!(2)),
        "{second}"
    );
    assert_eq!(second[1]["message"][4], 3);
    // The nack of its last attempt: it is parked, and delivered again on request.
    events.call(json!(["sub.nack", "bills", [second[0]["lease"]], {"action": "retry", "reason": "never"}]));
    let parked = events.call(json!(["sub.parked", "bills"]));
    assert_eq!(
        (&parked[0]["globalPosition"], &parked[0]["reason"]),
        (&json!(2), &json!("never")),
        "{parked}"
    );
    assert_eq!(events.call(json!(["sub.replay", "bills"])), json!({"replayed": 1}));
    assert_eq!(fetch()[0]["message"][4], 2);
    events.call(json!(["sub.nack", "bills", [second[1]["lease"]], {"action": "skip"}]));
    let listed = events.call(json!(["sub.list"]));
    assert_eq!(
        (listed.as_array().map(Vec::len), &listed[0]["name"]),
        (Some(1), &json!("bills"))
    );
    assert_eq!(events.call(json!(["sub.reset", "bills", {"from": 3}]))["from"], 3);
    // Pushed instead of fetched.
    let mut pushed = Pokes::open(&events, "subscription=bills&consumer=d");
    let event = pushed.event();
    assert!(
        event.starts_with("event: message\nid: 3\ndata: {\"lease\":\""),
        "{event}"
    );
    let data: Value = serde_json::from_str(event.lines().nth(2).unwrap().strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(data["message"][1], "p-1");
    assert_eq!(events.call(json!(["sub.ack", "bills", [data["lease"]]]))["acked"], 1);
    events.call(json!(["stream.write", "p-2", message("b")]));
    assert!(pushed.event().starts_with("event: message\nid: 4\n"));
    events.call(json!(["sub.delete", "bills"]));
    assert_eq!(events.refusal(r#"["sub.info","bills"]"#).0, 404);
}

fn the_newest_snapshot_of_a_stream_is_kept(events: Events) {
    assert_eq!(events.call(json!(["snapshot.get", "s-1"])), Value::Null);
    for version in [3, 9] {
        let data = format!(r#"{{"b":{version}.0,"a":[]}}"#);
        let put = format!(r#"["snapshot.put","s-1",{{"version":{version},"type":"Sum","data":{data}}}]"#);
        assert_eq!(events.rpc(&put).0, 200);
        let text = events.rpc(r#"["snapshot.get","s-1"]"#).1;
        let expected = format!(r#"{{"version":{version},"type":"Sum","data":{data},"time":""#);
        assert!(text.starts_with(&expected), "{text}");
    }
    // It is stored beside the stream, not in it.
    assert_eq!(events.call(json!(["stream.version", "s-1"])), Value::Null);
    assert_eq!(events.call(json!(["ns.info", "default"]))["messageCount"], 0);
}

fn rules_are_read_as_they_were_set_and_cleared_one_by_one(events: Events) {
    events.call(json!(["stream.append", "r-1", vec![message("a"); 10]]));
    assert_eq!(events.call(json!(["retention.get", "r-1"])), Value::Null);
    let rule =
        |age: Value, count: Value, before: Value| json!({"maxAge": age, "maxCount": count, "truncateBefore": before});
    let null = Value::Null;
    let set = events.call(json!(["retention.set", "r-1", {"$maxAge": 3600, "$maxCount": 5, "$tb": 2}]));
    assert_eq!(set, rule(json!(3600), json!(5), json!(2)));
    assert_eq!(events.call(json!(["retention.get", "r-1"])), set);
    let read = || -> Vec<u64> {
        let rows = events.call(json!(["stream.get", "r-1"]));
        rows.as_array()
            .unwrap()
            .iter()
            .map(|row| row[2].as_u64().unwrap())
            .collect()
    };
    assert_eq!(read(), [5, 6, 7, 8, 9]);
    assert_eq!(
        events.call(json!(["ns.info", "default"]))["messageCount"],
        5,
        "counts obey at once"
    );
    assert_eq!(events.call(json!(["ns.categories"]))[0]["messageCount"], 5);
    let mut pokes = Pokes::open(&events, "stream=r-1");
    assert_eq!(pokes.chunk(), poke("r-1", 5, 6));
    events.call(json!(["retention.set", "r-1", {"truncateBefore": 10}]));
    assert_eq!(read(), [0_u64; 0]);
    assert_eq!(events.call(json!(["stream.last", "r-1"])), null);
    assert_eq!(
        events.call(json!(["stream.version", "r-1"])),
        9,
        "no position is used again"
    );
    events.call(json!(["stream.append", "r-1", [message("b")], {"expectedVersion": 9}]));
    assert_eq!(read(), [10]);
    events.call(json!(["sys.scavenge"]));
    assert_eq!(read(), [10]);
    assert_eq!(events.call(json!(["sys.verify"]))["faults"], json!([]));
    events.call(json!(["retention.set", {"category": "r"}, {"maxCount": 1}]));
    assert_eq!(
        events.call(json!(["retention.get", {"category": "r"}])),
        rule(null.clone(), json!(1), null.clone())
    );
    events.call(json!(["retention.set", {"category": "r"}, null]));
    assert_eq!(events.call(json!(["retention.get", {"category": "r"}])), null);
}

fn figures_are_told_to_the_operator(events: Events) {
    events.call(json!(["stream.append", "s-1", [message("a"), message("b")]]));
    events.call(json!(["stream.get", "s-1"]));
    events.refusal(r#"["stream.get"]"#);
    let _open = Pokes::open(&events, "all=true");
    eventually(|| {
        let text = events.api.get("/metrics").text;
        for line in [
            "thalweg_events_append_messages_sum 2",
            "thalweg_events_read_messages_total 2",
            "thalweg_events_subscribers 1",
        ] {
            anyhow::ensure!(text.lines().any(|found| found == line), "no {line} in {text}");
        }
        for name in [
            "thalweg_events_errors_total{code=\"INVALID_REQUEST\"} 1",
            "thalweg_events_append_seconds_bucket",
        ] {
            anyhow::ensure!(text.contains(name), "no {name} in {text}");
        }
        Ok(())
    })
    .unwrap();
}
