//! Writes and reads of clients, on every kind of storage: the real binary, HTTP, texts that existing clients parse.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use thalweg_tests::Api;

use crate::events_server::{Events, TOKEN, for_every_backend, for_lasting_backends, record};

for_every_backend!(
    what_is_written_is_read_with_its_very_text,
    of_writers_with_one_expected_version_exactly_one_succeeds,
    conflicts_have_their_codes_and_details,
    a_rule_hides_messages_at_once,
    a_stream_is_read_from_a_place_and_in_pages,
    a_category_is_read_with_its_filters_and_in_full_pages,
    members_of_a_group_share_a_category_as_the_reference_does,
    names_are_divided_at_the_first_dash_and_compared_as_bytes,
    namespaces_are_counted_and_listed,
    a_time_is_rounded_down_and_has_no_more_digits_than_it_needs,
);
for_lasting_backends!(a_stop_beside_writers_keeps_all_that_was_answered,);

fn what_is_written_is_read_with_its_very_text(events: Events) {
    let data = r#"{"b" : 12345678901234567890.10, "a": "\u00e9\/", "a": [ 1, {} ]}"#;
    let kept = r#"{"b":12345678901234567890.10,"a":"\u00e9\/","a":[1,{}]}"#;
    let id = "0190B5C27A007C1FA2B3C4D5E6F70819";
    let write =
        format!(r#"["stream.write","order-7",{{"type":"Created","data":{data},"id":"ignored"}},{{"id":"{id}"}}]"#);
    assert_eq!(
        events.rpc(&write),
        (200, r#"{"globalPosition":1,"position":0}"#.to_owned())
    );
    let (_, rows) = events.rpc(r#"["stream.get","order-7"]"#);
    let time = rows.rsplit('"').nth(1).unwrap();
    let row = format!(r#"["0190b5c2-7a00-7c1f-a2b3-c4d5e6f70819","Created",0,1,{kept},null,"{time}"]"#);
    assert_eq!(rows, format!("[{row}]"));
    assert_eq!(events.rpc(r#"["stream.last","order-7"]"#).1, row);
    let in_category = row.replacen(r#"","Created""#, r#"","order-7","Created""#, 1);
    assert_eq!(events.rpc(r#"["category.get","order"]"#).1, format!("[{in_category}]"));
    assert_eq!(events.rpc(r#"["category.get",""]"#).1, format!("[{in_category}]"));
    assert_eq!(events.rpc(&format!(r#"["message.get","{id}"]"#)).1, in_category);
    assert_eq!(events.rpc(r#"["category.get","order-7"]"#).1, "[]");
    assert_eq!(events.rpc(r#"["stream.version","order-7"]"#).1, "0");
    assert_eq!(events.rpc(r#"["stream.version","order-8"]"#).1, "null");
    assert_eq!(events.rpc(r#"["stream.get","order-8"]"#).1, "[]");
    // The same message is a duplicate; another one with that id is not.
    let again = r#"{"globalPosition":1,"position":0,"duplicate":true}"#;
    assert_eq!(events.rpc(&write), (200, again.to_owned()));
    let other = write.replace("Created", "Changed");
    let conflict = r#"{"error":{"code":"MESSAGE_ID_CONFLICT","message":"Message id '0190b5c2-7a00-7c1f-a2b3-c4d5e6f70819' already exists","details":{"stream":"order-7","position":0}}}"#;
    assert_eq!(events.rpc(&other), (409, conflict.to_owned()));
}

fn of_writers_with_one_expected_version_exactly_one_succeeds(events: Events) {
    for version in -1..20 {
        let write = json!(["stream.write", "s", {"type": "t", "data": {}}, {"expectedVersion": version}]).to_string();
        let answers: Vec<u16> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4).map(|_| scope.spawn(|| events.rpc(&write).0)).collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).collect()
        });
        let of = |status: u16| answers.iter().filter(|answer| **answer == status).count();
        assert_eq!((of(200), of(409)), (1, 3), "{answers:?}");
    }
}

fn conflicts_have_their_codes_and_details(events: Events) {
    let message = json!({"type": "t", "data": {}});
    events.call(json!(["stream.append", "s", [message, message]]));
    for (expected, shown) in [
        (json!(5), json!(5)),
        (json!(-1), json!(-1)),
        (json!(-7), json!(-7)),
        (json!("noStream"), json!("noStream")),
    ] {
        let (status, text) =
            events.rpc(&json!(["stream.write", "s", message, {"expectedVersion": expected}]).to_string());
        let error = &serde_json::from_str::<Value>(&text).unwrap()["error"];
        assert_eq!((status, &error["code"]), (409, &json!("STREAM_VERSION_CONFLICT")));
        assert_eq!(error["details"], json!({"actual": 1, "expected": shown}));
    }
    let exists = json!(["stream.write", "t", message, {"expectedVersion": "exists"}]).to_string();
    let text = events.rpc(&exists).1;
    assert!(
        text.contains(r#""details":{"actual":-1,"expected":"exists"}"#),
        "{text}"
    );
    let many = json!(["stream.appendMany", [{"stream": "u", "messages": [message]}, {"stream": "s", "messages": [message], "expectedVersion": 0}]]);
    let (status, text) = events.rpc(&many.to_string());
    assert!(
        status == 409 && text.contains(r#""details":{"actual":1,"expected":0,"stream":"s"}"#),
        "{text}"
    );
    assert_eq!(
        events.call(json!(["stream.version", "u"])),
        Value::Null,
        "nothing of it is written"
    );
    let done = events.call(json!(["stream.delete", "s", {"expectedVersion": 1}]));
    assert_eq!(done, json!({"stream": "s", "tombstone": false}));
    assert_eq!(events.call(json!(["stream.get", "s"])), json!([]));
    assert_eq!(
        events.call(json!(["stream.write", "s", message]))["position"],
        2,
        "it goes on after what is hidden"
    );
    events.call(json!(["stream.delete", "s", {"tombstone": true}]));
    assert_eq!(events.call(json!(["stream.version", "s"])), Value::Null);
    let dead = (409, "STREAM_DELETED".to_owned(), "Stream 's' is deleted".to_owned());
    assert_eq!(events.refusal(&json!(["stream.write", "s", message]).to_string()), dead);
}

fn a_rule_hides_messages_at_once(events: Events) {
    let message = json!({"type": "t", "data": {}});
    events.call(json!(["stream.append", "r-1", vec![message.clone(); 10]]));
    events.call(json!(["stream.append", "r-2", vec![message; 10]]));
    let rule = events.call(json!(["retention.set", {"category": "r"}, {"maxCount": 4}]));
    assert_eq!(rule, json!({"maxAge": null, "maxCount": 4, "truncateBefore": null}));
    events.call(json!(["retention.set", "r-2", {"$tb": 9}]));
    let count = |stream: &str| events.call(json!(["stream.get", stream])).as_array().unwrap().len();
    assert_eq!(
        (count("r-1"), count("r-2")),
        (4, 1),
        "that of a stream stands in place of its category's"
    );
    assert_eq!(events.call(json!(["retention.get", "r-2"]))["truncateBefore"], 9);
    assert_eq!(events.call(json!(["retention.get", "r-1"])), Value::Null);
    assert!(
        events.call(json!(["sys.verify"]))["faults"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    events.call(json!(["sys.scavenge"]));
    assert_eq!(events.call(json!(["stream.version", "r-1"])), 9);
    assert_eq!(events.call(json!(["retention.set", "r-2", null])), Value::Null);
}

/// Appends messages to an empty stream.
fn fill(events: &Events, stream: &str, count: usize) {
    let messages: Vec<Value> = (0..count)
        .map(|n| json!({"type": if n % 2 == 0 { "even" } else { "odd" }, "data": {"n": n}}))
        .collect();
    events.call(json!(["stream.append", stream, messages, {"expectedVersion": -1}]));
}

/// One column of a call's result.
fn column(events: &Events, call: &Value, at: usize) -> Vec<Value> {
    let rows = events.call(call.clone());
    let rows = rows.as_array().unwrap().iter();
    rows.map(|row| row[at].clone()).collect()
}

fn numbers(range: std::ops::Range<u64>) -> Vec<Value> {
    range.map(Value::from).collect()
}

fn a_stream_is_read_from_a_place_and_in_pages(events: Events) {
    fill(&events, "other-1", 10);
    fill(&events, "s-1", 2500);
    let positions = |options: Value| column(&events, &json!(["stream.get", "s-1", options]), 2);
    for (options, expected) in [
        (json!({}), 0..1000),
        (json!({"batchSize": 0}), 0..1000),
        (json!({"batchSize": -2}), 0..1000),
        (json!({"batchSize": -1}), 0..2500),
        (json!({"batchSize": 10000}), 0..2500),
        (json!({"batchSize": 3.9}), 0..3),
        (json!({"position": -5, "batchSize": 2}), 0..2),
        (json!({"position": 7.9, "batchSize": 2}), 7..9),
        (json!({"position": 2499}), 2499..2500),
        (json!({"position": 2500}), 0..0),
        (json!({"position": 9e300}), 0..0),
        (json!({"globalPosition": 11, "batchSize": 2}), 0..2),
        (json!({"globalPosition": 15, "position": 2000, "batchSize": 2}), 4..6),
        (json!({"globalPosition": -1, "batchSize": 2}), 0..2),
        (json!({"globalPosition": 2511}), 0..0),
    ] {
        assert_eq!(positions(options.clone()), numbers(expected), "{options}");
    }
    let backward = |options: Value| {
        let mut found = positions(options);
        found.reverse();
        found
    };
    for (options, expected) in [
        (json!({"direction": "backward", "batchSize": 3}), 2497..2500),
        (json!({"direction": "backward", "position": 4}), 0..5),
        (json!({"direction": "backward", "batchSize": -1}), 0..2500),
    ] {
        assert_eq!(backward(options.clone()), numbers(expected), "{options}");
    }
    let odd: Vec<Value> = [1, 3, 5].map(Value::from).into();
    assert_eq!(positions(json!({"types": ["odd", "none"], "batchSize": 3})), odd);
    assert_eq!(positions(json!({"types": ["none"]})), numbers(0..0));
    for (kind, expected) in [("", 2499), ("odd", 2499), ("even", 2498)] {
        assert_eq!(events.call(json!(["stream.last", "s-1", {"type": kind}]))[2], expected);
    }
    assert_eq!(
        events.call(json!(["stream.last", "s-1", {"type": "none"}])),
        Value::Null
    );
    assert_eq!(events.call(json!(["stream.last", "nobody"])), Value::Null);
    assert_eq!(events.call(json!(["stream.version", "s-1"])), 2499);
}

fn a_category_is_read_with_its_filters_and_in_full_pages(events: Events) {
    let about = |n: usize| match n % 4 {
        0 => json!({"correlationStreamName": "cart-1"}),
        1 => json!({"correlationStreamName": "cart"}),
        2 => json!({"correlationStreamName": "carts-1"}),
        _ => json!({"correlationStreamName": 5}),
    };
    let write = |stream: &str, range: std::ops::Range<usize>| {
        let messages: Vec<Value> = range
            .map(|n| json!({"type": format!("t{}", n % 3), "data": {}, "metadata": about(n)}))
            .collect();
        events.call(json!(["stream.append", stream, messages]));
    };
    // Global positions from 1 on: 600 of the category, 300 of another, 600 more.
    write("c-1", 0..600);
    write("d-1", 600..900);
    write("c-2", 900..1500);
    let globals = |category: &str, options: Value| column(&events, &json!(["category.get", category, options]), 4);
    assert_eq!(globals("c", json!({"batchSize": -1})).len(), 1200);
    assert_eq!(globals("c", json!({})).len(), 1000);
    assert_eq!(
        globals("c", json!({"position": 600, "batchSize": 3})),
        [600, 901, 902].map(Value::from)
    );
    assert_eq!(
        globals("c", json!({"position": 1500, "globalPosition": 599, "batchSize": 2})),
        numbers(599..601)
    );
    assert_eq!(globals("", json!({"position": -4, "batchSize": 2})), numbers(1..3));
    assert_eq!(globals("", json!({"position": 1500.7})), numbers(1500..1501));
    assert_eq!(globals("", json!({"batchSize": -1})), numbers(1..1501));
    assert_eq!(
        globals("c", json!({"direction": "backward", "position": 901, "batchSize": 2})),
        [901, 600].map(Value::from)
    );
    // A page is counted after its filters.
    let correlated: Vec<Value> = (1..=1500_u64)
        .filter(|global| !(601..=900).contains(global) && matches!((global - 1) % 4, 0 | 1))
        .map(Value::from)
        .collect();
    assert_eq!(
        globals("c", json!({"correlation": "cart", "batchSize": 500})),
        correlated[..500]
    );
    assert_eq!(
        globals("c", json!({"correlation": "cart", "batchSize": -1})),
        correlated
    );
    assert_eq!(globals("c", json!({"correlation": ""})).len(), 1000);
    for nothing in ["cart-1", "car", "cart%", "c_rt", "Cart"] {
        assert_eq!(
            globals("c", json!({"correlation": nothing})),
            numbers(0..0),
            "{nothing}"
        );
    }
    let both = json!({"correlation": "cart", "types": ["t1"], "position": 800, "batchSize": 2});
    assert_eq!(globals("", both), [806, 809].map(Value::from));
    for nothing in ["c-1", "C", "c_", "%", "nobody"] {
        assert_eq!(globals(nothing, json!({})), numbers(0..0), "{nothing}");
    }
    // Filters also apply to the whole namespace: both streams of the cardinal id 1 belong to the first member.
    let group = json!({"consumerGroup": {"member": 0, "size": 2}, "batchSize": -1});
    let all = column(&events, &json!(["category.get", "", group]), 1);
    assert_eq!(all.len(), 900);
    assert!(all.iter().all(|stream| stream == "c-1" || stream == "d-1"), "{all:?}");
}

/// Cardinal id, and its member among two, three and four.
pub(crate) const MEMBERS: [(&str, [u64; 3]); 8] = [
    ("0", [1, 1, 1]),
    ("1", [0, 0, 2]),
    ("2", [1, 1, 1]),
    ("3", [0, 2, 2]),
    ("123", [1, 1, 3]),
    ("abc", [0, 2, 0]),
    ("profile-456", [1, 2, 1]),
    ("é", [0, 2, 2]),
];

fn members_of_a_group_share_a_category_as_the_reference_does(events: Events) {
    for (id, _) in MEMBERS {
        events.call(json!(["stream.write", format!("g-{id}+more"), {"type": "t", "data": {}}]));
    }
    // Of no member: without an id, or with an empty one.
    for stream in ["g", "g-", "g-+x"] {
        events.call(json!(["stream.write", stream, {"type": "t", "data": {}}]));
    }
    for size in [2, 3, 4] {
        for member in 0..size {
            let group = json!({"consumerGroup": {"member": member, "size": size}});
            let expected: Vec<Value> = MEMBERS
                .iter()
                .filter(|(_, members)| members[size - 2] == member as u64)
                .map(|(id, _)| json!(format!("g-{id}+more")))
                .collect();
            assert_eq!(
                column(&events, &json!(["category.get", "g", group]), 1),
                expected,
                "{member} of {size}"
            );
        }
    }
    let alone = json!({"consumerGroup": {"member": 0, "size": 1}});
    assert_eq!(column(&events, &json!(["category.get", "g", alone]), 1).len(), 8);
    assert_eq!(
        column(&events, &json!(["category.get", "g", {"consumerGroup": {}}]), 1).len(),
        11
    );
}

fn names_are_divided_at_the_first_dash_and_compared_as_bytes(events: Events) {
    let streams = [
        "account-123+bob",
        "Account-1",
        "user-profile-456",
        "-x",
        "a:b-1",
        "plain",
        "é-1",
        "a_b-1",
        "axb-1",
        "a%b-1",
        "' OR 1=1 --",
        " -1",
        "\n-1",
    ];
    for stream in streams {
        events.call(json!(["stream.write", stream, {"type": "t", "data": {}}]));
    }
    let category = |name: &str| column(&events, &json!(["category.get", name]), 1);
    for (name, stream) in [
        ("account", "account-123+bob"),
        ("Account", "Account-1"),
        ("user", "user-profile-456"),
        ("a:b", "a:b-1"),
        ("plain", "plain"),
        ("é", "é-1"),
        ("a_b", "a_b-1"),
        ("a%b", "a%b-1"),
        ("' OR 1=1 ", "' OR 1=1 --"),
        (" ", " -1"),
        ("\n", "\n-1"),
    ] {
        assert_eq!(category(name), [json!(stream)], "{name:?}");
    }
    assert_eq!(category("").len(), streams.len());
    let mut sorted = streams.to_vec();
    sorted.sort_unstable();
    let listed = |options: Value| -> Vec<Value> {
        let all = events.call(json!(["ns.streams", options]));
        all.as_array()
            .unwrap()
            .iter()
            .map(|row| row["stream"].clone())
            .collect()
    };
    assert_eq!(
        listed(json!({})),
        sorted.iter().map(|name| json!(name)).collect::<Vec<_>>()
    );
    assert_eq!(listed(json!({"prefix": "a_"})), [json!("a_b-1")]);
    assert_eq!(listed(json!({"prefix": "a%"})), [json!("a%b-1")]);
    assert_eq!(listed(json!({"prefix": "A"})), [json!("Account-1")]);
    assert_eq!(listed(json!({"prefix": "é"})), [json!("é-1")]);
    let mut categories: Vec<&str> = streams
        .iter()
        .map(|name| name.split('-').next().unwrap_or(name))
        .collect();
    categories.sort_unstable();
    let found = events.call(json!(["ns.categories"]));
    let expected: Vec<Value> = categories
        .iter()
        .map(|name| json!({"category": name, "messageCount": 1, "streamCount": 1}))
        .collect();
    assert_eq!(found, json!(expected));
}

fn namespaces_are_counted_and_listed(events: Events) {
    let empty = events.call(json!(["ns.info", "default"]));
    assert_eq!(
        (&empty["messageCount"], &empty["streamCount"], &empty["lastActivity"]),
        (&json!(0), &json!(0), &Value::Null)
    );
    for id in ["a-b", "a_b"] {
        let made = events.call(json!(["ns.create", id, {"description": id, "metadata": {"b": 1, "a": [1.50]}}]));
        let info = events.call(json!(["ns.info", id]));
        assert_eq!(made["createdAt"], info["createdAt"], "one time is stored");
        assert_eq!(
            (&info["description"], &info["metadata"]),
            (&json!(id), &json!({"b": 1, "a": [1.5]}))
        );
        let token = made["token"].as_str().unwrap();
        assert!(token.len() == 3 + 4 + 1 + 64 && token.starts_with("ns_"), "{token}");
        let write = json!(["stream.write", id, {"type": "t", "data": {}}]).to_string();
        let answer = events.api.send("POST", &format!("/rpc?token={token}"), &[], &write);
        assert_eq!(
            answer.json,
            json!({"globalPosition": 1, "position": 0}),
            "its positions are its own"
        );
    }
    let listed = events.call(json!(["ns.list"]));
    let names: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["namespace"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["a_b", "a-b", "default"], "newest first");
    assert_eq!(listed[0]["messageCount"], 1);
    fill(&events, "s-1", 3);
    // A refused write uses no position.
    let refused = json!(["stream.write", "s-1", {"type": "t", "data": {}}, {"expectedVersion": 9}]);
    assert_eq!(events.rpc(&refused.to_string()).0, 409);
    for n in 0..104 {
        let written = events.call(json!(["stream.write", format!("n-{n:03}"), {"type": "t", "data": {}}]));
        assert_eq!(written["globalPosition"], 4 + n);
    }
    let info = events.call(json!(["ns.info", "default"]));
    let last = events.call(json!(["stream.last", "n-103"]));
    assert_eq!(
        (&info["messageCount"], &info["streamCount"], &info["lastActivity"]),
        (&json!(107), &json!(105), &last[6])
    );
    let streams = |options: Value| events.call(json!(["ns.streams", options]));
    assert_eq!(streams(json!({})).as_array().unwrap().len(), 100);
    assert_eq!(streams(json!({"limit": 1000})).as_array().unwrap().len(), 105);
    let page = streams(json!({"cursor": "n-100", "limit": 3.9}));
    assert_eq!(
        page[0],
        json!({"lastActivity": events.call(json!(["stream.last", "n-101"]))[6], "stream": "n-101", "version": 0})
    );
    assert_eq!(
        (page.as_array().unwrap().len(), &page[2]["stream"]),
        (3, &json!("n-103"))
    );
    assert_eq!(streams(json!({"cursor": "n-103", "prefix": "n-"})), json!([]));
    assert_eq!(streams(json!({"prefix": "s"}))[0]["version"], 2);
    let categories = json!([
        {"category": "n", "messageCount": 104, "streamCount": 104},
        {"category": "s", "messageCount": 3, "streamCount": 1},
    ]);
    assert_eq!(events.call(json!(["ns.categories"])), categories);
    let deleted = events.call(json!(["ns.delete", "a-b"]));
    assert_eq!(
        (&deleted["namespace"], &deleted["messagesDeleted"]),
        (&json!("a-b"), &json!(1))
    );
    assert_eq!(events.refusal(r#"["ns.info","a-b"]"#).0, 404);
    assert_eq!(
        events.call(json!(["ns.info", "a_b"]))["messageCount"],
        1,
        "the other is another"
    );
}

/// Microseconds of a UTC time.
fn micros(time: &str) -> i64 {
    let (whole, fraction) = time
        .strip_suffix('Z')
        .unwrap()
        .split_once('.')
        .unwrap_or((&time[..19], ""));
    let number = |range: std::ops::Range<usize>| whole[range].parse::<i64>().unwrap();
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    // Days since 1970 of the proleptic Gregorian calendar, with years that begin in March.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 719_469;
    let seconds = days * 86_400 + number(11..13) * 3600 + number(14..16) * 60 + number(17..19);
    seconds * 1_000_000 + format!("{fraction:0<6}").parse::<i64>().unwrap()
}

fn a_time_is_rounded_down_and_has_no_more_digits_than_it_needs(events: Events) {
    assert_eq!(micros("1970-01-01T00:00:00Z"), 0);
    assert_eq!(micros("2026-01-15T10:00:00.25Z"), 1_768_471_200_250_000);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as i64;
    let mut before = now();
    for n in 0..50 {
        events.call(json!(["stream.write", "s-1", {"type": "t", "data": {}}]));
        let row = events.call(json!(["stream.last", "s-1"]));
        let time = row[6].as_str().unwrap();
        let digits = time.split_once('.').map_or(0, |(_, fraction)| fraction.len() - 1);
        assert!(digits <= 6 && (digits == 0 || !time.ends_with("0Z")), "{time}");
        assert!((before..=now()).contains(&micros(time)), "message {n} is of {time}");
        before = micros(time);
    }
    for (n, (given, kept)) in [
        ("2026-01-15T10:00:00.000000Z", "2026-01-15T10:00:00Z"),
        ("2026-01-15T10:00:00.250Z", "2026-01-15T10:00:00.25Z"),
        ("2026-01-15T10:00:00.123456999Z", "2026-01-15T10:00:00.123456Z"),
        ("2026-01-15T12:00:00+02:00", "2026-01-15T10:00:00Z"),
    ]
    .into_iter()
    .enumerate()
    {
        let line = record(&format!("i-{n}"), 0, 100 + n as u64).replace("2026-01-15T10:00:00.5Z", given);
        assert_eq!(events.import("", &line)[0]["imported"], 1);
        assert_eq!(events.call(json!(["stream.last", format!("i-{n}")]))[6], kept);
    }
}

fn a_stop_beside_writers_keeps_all_that_was_answered(mut events: Events) {
    let (answered, address) = (Mutex::new(0_u64), events.address.clone());
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (answered, address) = (&answered, &address);
            scope.spawn(move || {
                let api = Api::at_root(address);
                let call = json!(["stream.write", format!("s-{writer}"), {"type": "t", "data": {}}]).to_string();
                loop {
                    match api.try_send("POST", &format!("/rpc?token={TOKEN}"), &[], &call) {
                        Ok(answer) if answer.status == 200 => *answered.lock().unwrap() += 1,
                        Ok(answer) => {
                            assert_eq!(answer.status, 503, "{answer:?}");
                            assert_eq!(answer.json["error"]["code"], "UNAVAILABLE", "{answer:?}");
                            assert_eq!(answer.headers["retry-after"], "1");
                        }
                        // It no longer listens.
                        Err(_) => return,
                    }
                }
            });
        }
        let begun = Instant::now();
        while *answered.lock().unwrap() < 100 && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(5));
        }
        events.process.signal("TERM").unwrap();
        assert!(events.process.wait().unwrap().success());
    });
    let answered = answered.into_inner().unwrap();
    assert!(answered >= 100);
    let events = events.again();
    let kept = events.call(json!(["ns.info", "default"]))["messageCount"]
        .as_u64()
        .unwrap();
    // At most one write of each writer was stored although its response was lost.
    assert!(
        (answered..=answered + 4).contains(&kept),
        "{answered} answered, {kept} kept"
    );
}
