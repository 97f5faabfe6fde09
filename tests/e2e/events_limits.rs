//! Every limit of the event store, at its edge and one beyond, on every kind of storage; and a server without room.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::events_server::{Backend, Events, TOKEN, as_token, for_every_backend, invalid, record, token};

for_every_backend!(
    every_limit_is_told_with_its_number,
    what_is_as_large_as_may_be_is_taken,
    a_line_of_an_import_may_be_a_megabyte_longer_than_a_message,
);

fn every_limit_is_told_with_its_number(events: Events) {
    let message = json!({"type": "t", "data": {}});
    let many: Vec<Value> = (0..1001)
        .map(|n| json!({"stream": format!("s-{n}"), "messages": [message]}))
        .collect();
    let near = json!({"type": "t", "data": {"x": "x".repeat(13 << 20)}});
    let over = json!({"type": "t", "data": {"x": "x".repeat(16 << 20)}});
    let size = "message size 16777225 exceeds the limit of 16777216 bytes";
    invalid(
        &events,
        &[
            (json!(["stream.write", "s", over]), size),
            (
                json!(["stream.write", "é".repeat(513), message]),
                "streamName exceeds 1024 bytes",
            ),
            (
                json!(["stream.write", "a\0b", message]),
                "streamName must not contain U+0000",
            ),
            (
                json!(["stream.write", "s", {"type": "t".repeat(256), "data": {}}]),
                "message.type exceeds 255 bytes",
            ),
            (
                json!(["stream.write", "s", {"type": "\0", "data": {}}]),
                "message.type must not contain U+0000",
            ),
            (
                json!(["stream.append", "s", vec![message.clone(); 10_001]]),
                "append exceeds 10000 messages",
            ),
            (json!(["stream.append", "s", [near, near]]), "append exceeds 24 MiB"),
            (json!(["stream.appendMany", many]), "append exceeds 1000 streams"),
            (
                json!(["ns.create", "x", {"description": "d".repeat((1 << 20) + 1)}]),
                "options.description exceeds 1048576 bytes",
            ),
        ],
    );
    let fits = json!({"type": "t", "data": {"x": "x".repeat((16 << 20) - 9)}});
    assert_eq!(
        events.call(json!(["stream.write", "s".repeat(1024), fits]))["position"],
        0
    );
    let all = events.call(json!(["stream.append", "s", vec![message; 10_000]]));
    assert_eq!((&all["count"], &all["lastPosition"]), (&json!(10_000), &json!(9_999)));

    let long = format!("POST /rpc HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "x".repeat(70_000));
    let answer = events.api.raw(long.as_bytes()).unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let told = "{\"error\":{\"code\":\"INVALID_REQUEST\",\"message\":\"Request header too large\"}}\n";
    assert!(answer.ends_with(told), "{answer}");
    assert_eq!(events.rpc(r#"["sys.version"]"#).0, 200, "nothing of it ends the server");
}

/// Head and body of a response with a length.
pub(crate) fn first_answer(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (mut answer, mut byte) = (Vec::new(), [0]);
    while !answer.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    let head = String::from_utf8(answer.clone()).unwrap();
    let len = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; len.unwrap().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    head + &String::from_utf8(body).unwrap()
}

/// A message of this many bytes, ten of which are type and data.
fn of_bytes(bytes: usize) -> Value {
    json!({"type": "t", "data": {"x": "x".repeat(bytes - 9)}})
}

fn what_is_as_large_as_may_be_is_taken(events: Events) {
    const MIB: usize = 1 << 20;
    let message = json!({"type": "t", "data": {}});
    assert_eq!(
        events.call(json!(["stream.write", "w", of_bytes(16 * MIB)]))["position"],
        0
    );
    // Metadata counts.
    let with_metadata = |bytes: usize| json!({"type": "t", "data": {}, "metadata": {"x": "x".repeat(bytes - 11)}});
    assert_eq!(
        events.call(json!(["stream.write", "w", with_metadata(16 * MIB)]))["position"],
        1
    );
    let size = "message size 16777217 exceeds the limit of 16777216 bytes";
    invalid(
        &events,
        &[
            (json!(["stream.write", "w", of_bytes(16 * MIB + 1)]), size),
            (json!(["stream.write", "w", with_metadata(16 * MIB + 1)]), size),
            (json!(["stream.append", "w", [message, of_bytes(16 * MIB + 1)]]), size),
        ],
    );
    let read = events.call(json!(["stream.get", "w"]));
    assert_eq!(read[0][4]["x"].as_str().map(str::len), Some(16 * MIB - 9));
    assert_eq!(read[1][5]["x"].as_str().map(str::len), Some(16 * MIB - 11));
    // A batch counts the name of its stream with each message.
    let batch = |bytes: usize| {
        json!([
            "stream.append",
            "b",
            [of_bytes(12 * MIB - 1), of_bytes(bytes - 12 * MIB - 1)]
        ])
    };
    assert_eq!(events.call(batch(24 * MIB))["lastPosition"], 1);
    invalid(&events, &[(batch(24 * MIB + 1), "append exceeds 24 MiB")]);
    assert_eq!(events.call(json!(["stream.version", "b"])), 1);
    let read = events.call(json!(["category.get", "b", {"batchSize": -1}]));
    assert_eq!(read[1][5]["x"].as_str().map(str::len), Some(12 * MIB - 10));

    let many = |streams: usize, each: usize| {
        let appends: Vec<Value> = (0..streams)
            .map(|n| json!({"stream": format!("m-{n}"), "messages": vec![message.clone(); each]}))
            .collect();
        json!(["stream.appendMany", appends])
    };
    assert_eq!(events.call(many(1000, 10)).as_array().map(Vec::len), Some(1000));
    invalid(&events, &[(many(910, 11), "append exceeds 10000 messages")]);
    let (name, kind) = ("é".repeat(512), "t".repeat(255));
    assert_eq!(
        events.call(json!(["stream.write", name, {"type": kind, "data": {}}]))["position"],
        0
    );
    assert_eq!(events.call(json!(["stream.last", name]))[1], json!(kind));
    assert_eq!(
        events.call(json!(["ns.streams", {"prefix": "é"}]))[0]["stream"],
        json!(name)
    );
    let pages = |size: i64| {
        events
            .call(json!(["category.get", "m", {"batchSize": size}]))
            .as_array()
            .map(Vec::len)
    };
    assert_eq!(
        (pages(10_000), pages(-1), pages(9_999)),
        (Some(10_000), Some(10_000), Some(9_999))
    );
    let limit = events.call(json!(["ns.streams", {"prefix": "m", "limit": 1000}]));
    assert_eq!(limit.as_array().map(Vec::len), Some(1000));
    let id = "ü".repeat(127) + "n";
    let own = token(&id, '7');
    events.call(json!(["ns.create", id, {"token": own}]));
    let written = as_token(&events, &own, &json!(["stream.write", "s", message]));
    assert_eq!(
        written,
        (200, json!({"globalPosition": 1, "position": 0})),
        "an id of 255 bytes"
    );
    let head = format!(
        "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: {}\r\n\r\n",
        "x".repeat(60_000)
    );
    assert!(events.api.raw(head.as_bytes()).unwrap().starts_with("HTTP/1.1 200 "));
}

fn a_line_of_an_import_may_be_a_megabyte_longer_than_a_message(events: Events) {
    let longest = (17 << 20) + 1;
    let line = |record: String, bytes: usize| {
        let rest = record.trim_end().strip_prefix('{').unwrap().to_owned();
        format!("{{{}{rest}\n", " ".repeat(bytes - rest.len() - 2))
    };
    let fits = line(record("l-1", 0, 1), longest);
    assert_eq!(fits.len(), longest);
    let told = events.import("", &(fits + &record("l-1", 1, 2)));
    assert_eq!((&told[0]["done"], &told[0]["imported"]), (&json!(true), &json!(2)));
    let over = "\n".to_owned() + &line(record("l-1", 2, 3), longest + 1);
    let told = events.import("", &over);
    assert_eq!(
        (&told[0]["error"], &told[0]["line"]),
        (&json!("READ_ERROR"), &json!(2)),
        "{told:?}"
    );
    let large = json!({"stream": "l-2", "type": "t", "pos": 0, "gpos": 9, "data": {"x": "x".repeat((16 << 20) - 8)},
        "time": "2026-01-15T10:00:00Z"});
    let told = events.import("", &large.to_string());
    let message = "invalid record at line 1: message size 16777217 exceeds the limit of 16777216 bytes";
    assert_eq!(
        (&told[0]["error"], &told[0]["message"]),
        (&json!("INVALID_RECORD"), &json!(message))
    );
    assert_eq!(events.call(json!(["stream.version", "l-1"])), 1);
}

/// The API reads the request, before any engine is involved.
#[test]
fn a_request_may_have_a_hundred_megabytes() {
    let events = Events::in_memory();
    let mut request = json!(["stream.version", "w"]).to_string();
    request += &" ".repeat((100 << 20) - request.len());
    assert_eq!(events.rpc(&request), (200, "null".to_owned()));
    drop(request);
    let mut stream = TcpStream::connect(&events.address).unwrap();
    let head = format!(
        "POST /rpc HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {}\r\n\r\n",
        (100 << 20) + 1
    );
    stream.write_all(head.as_bytes()).unwrap();
    let piece = vec![b' '; 1 << 20];
    for _ in 0..100 {
        stream.write_all(&piece).unwrap();
    }
    stream.write_all(b" ").unwrap();
    let answer = first_answer(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    let told = "{\"error\":{\"code\":\"PAYLOAD_TOO_LARGE\",\"message\":\"Request body exceeds 104857600 bytes\"}}\n";
    assert!(answer.ends_with(told), "{answer}");
    assert_eq!(events.rpc(r#"["sys.version"]"#).0, 200, "nothing of it ends the server");
}

/// On one engine of each kind: the API checks the flag, and the store has room for the accepted messages.
#[test]
fn the_limit_of_a_message_can_be_moved() {
    for backend in [Backend::TestMode, Backend::Fsync, Backend::Postgres] {
        let events = Events::with(backend, &["--max-message-bytes", "25165824"]);
        assert_eq!(
            events.call(json!(["stream.write", "s", of_bytes(24 << 20)]))["position"],
            0
        );
        let read = events.call(json!(["stream.last", "s"]));
        assert_eq!(read[4]["x"].as_str().map(str::len), Some((24 << 20) - 9));
        let size = "message size 25165825 exceeds the limit of 25165824 bytes";
        invalid(
            &events,
            &[(json!(["stream.write", "s", of_bytes((24 << 20) + 1)]), size)],
        );
    }
    let events = Events::with(Backend::TestMode, &["-max-message-bytes=20"]);
    events.call(json!(["stream.write", "s", of_bytes(20)]));
    let size = "message size 21 exceeds the limit of 20 bytes";
    invalid(&events, &[(json!(["stream.write", "s", of_bytes(21)]), size)]);
}

/// Peak memory of the server.
fn peak(events: &Events) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", events.process.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().strip_suffix(" kB").unwrap().trim().parse::<u64>().unwrap() << 10
}

/// The API alone decides, whatever the engine.
#[test]
fn clients_that_take_nothing_of_large_answers_have_no_more_memory_than_there_is() {
    let events = Events::with(Backend::Fsync, &["--memory-limit", "512MiB"]);
    events.call(json!(["stream.write", "l-1", of_bytes(15 << 20)]));
    let page = vec![of_bytes(1000); 300];
    events.call(json!(["stream.append", "p-1", page]));
    events.call(json!(["sub.create", "large", {"category": "l", "from": "start"}]));
    let ask = |line: &str, body: &str| {
        let mut stream = TcpStream::connect(&events.address).unwrap();
        let len = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {len}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let mut stalled = Vec::new();
    for _ in 0..30 {
        stalled.push(ask("POST /rpc", r#"["stream.last","l-1"]"#));
        stalled.push(ask("POST /rpc", r#"["category.get","l"]"#));
        stalled.push(ask("POST /rpc", r#"["sub.fetch","large"]"#));
        stalled.push(ask("GET /subscribe?stream=l-1&data=true", ""));
        stalled.push(ask("GET /subscribe?subscription=large", ""));
    }
    // Others are answered meanwhile, including those that want more than is buffered anyway.
    for _ in 0..100 {
        let read = events.call(json!(["category.get", "p", {"batchSize": 300}]));
        assert_eq!(read.as_array().map(Vec::len), Some(300));
    }
    assert!(peak(&events) < 512 << 20, "{} bytes", peak(&events));
    drop(stalled);
    let read = events.call(json!(["stream.last", "l-1"]));
    assert_eq!(read[4]["x"].as_str().map(str::len), Some((15 << 20) - 9));
    assert!(peak(&events) < 512 << 20, "{} bytes", peak(&events));
}

/// More than the limit of a request, and more than the available memory.
#[test]
fn an_import_of_any_size_is_stored_as_it_comes() {
    const RECORDS: u64 = 300;
    let events = Events::with(Backend::Fsync, &["--memory-limit", "256MiB"]);
    let text = "x".repeat(1 << 20);
    let mut lines = String::new();
    for n in 0..RECORDS {
        let record = json!({"stream": "i-1", "type": "t", "pos": n, "gpos": n + 1, "data": {"x": text}, "meta": null,
            "time": "2026-01-15T10:00:00Z"});
        lines.push_str(&record.to_string());
        lines.push('\n');
    }
    assert!(lines.len() > 256 << 20);
    let told = events.import("", &lines);
    assert_eq!(told.last().unwrap()["imported"], RECORDS, "{told:?}");
    assert!(peak(&events) < 256 << 20, "{} bytes", peak(&events));
    assert_eq!(events.call(json!(["stream.version", "i-1"])), RECORDS - 1);
}

/// For messages in memory: no other engine keeps them there.
#[test]
fn a_store_in_memory_that_is_full_refuses_and_neither_grows_nor_ends() {
    let events = Events::with(Backend::TestMode, &["--memory-limit", "512MiB"]);
    let resident = || peak(&events);
    let half = of_bytes((12 << 20) - 8);
    let batch = |n: usize| json!(["stream.append", format!("b-{n}"), [half, half]]).to_string();
    let stored = (0..100).take_while(|n| events.rpc(&batch(*n)).0 == 200).count();
    // The share of messages is most of the limit, and memory of reads and responses is bounded too.
    assert!((8..22).contains(&stored), "{stored} batches of 24 MiB");
    assert!(resident() < 768 << 20, "{} bytes", resident());
    let (status, code, message) = events.refusal(&batch(0).replace("b-0", "c"));
    assert_eq!((status, code.as_str()), (503, "UNAVAILABLE"), "{message}");
    let answer = events.api.send("POST", "/rpc", &[], &batch(0).replace("b-0", "c"));
    assert_eq!(answer.headers["retry-after"], "1");
    for _ in 0..5 {
        assert_eq!(events.rpc(&batch(0).replace("b-0", "c")).0, 503);
    }
    assert!(resident() < 768 << 20, "{} bytes", resident());
    assert_eq!(events.call(json!(["sys.health"]))["status"], "degraded");
    assert_eq!(events.api.get("/ready").status, 503);
    assert_eq!(
        events.call(json!(["stream.get", "b-0"])).as_array().map(Vec::len),
        Some(2),
        "it is read all the same"
    );
    assert_eq!(events.call(json!(["ns.info", "default"]))["messageCount"], 2 * stored);
}

/// For the embedded engine: the disk of another is not under our control.
#[test]
fn a_disk_without_room_refuses_writes_and_is_read_all_the_same() {
    let mut events = Events::on_disk();
    events.call(json!(["stream.write", "s", {"type": "t", "data": {}}]));
    events.process.kill().unwrap();
    let folder = std::mem::replace(&mut events.folder, tempfile::tempdir().unwrap());
    let events = Events::start_in(folder, &["--data-dir", "data", "--min-free", "4194304GiB"]);
    let (status, code, message) = events.refusal(r#"["stream.write","s",{"type":"t","data":{}}]"#);
    assert_eq!((status, code.as_str()), (503, "UNAVAILABLE"), "{message}");
    assert_eq!(events.call(json!(["stream.version", "s"])), 0);
    assert_eq!(events.call(json!(["sys.health"]))["status"], "degraded");
    assert_eq!(events.api.get("/ready").status, 503);
    assert_eq!(events.api.get("/health").status, 200);
}
