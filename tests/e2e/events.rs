//! The event store as its clients see it: the real binary, HTTP, texts that existing clients parse.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use thalweg_tests::{Api, Process, eventually, thalweg};

/// Of `default`, for servers that ask for one.
pub(crate) const TOKEN: &str = "ns_ZGVmYXVsdA_0000000000000000000000000000000000000000000000000000000000000000";

pub(crate) struct Events {
    pub process: Process,
    pub address: String,
    pub api: Api,
    pub folder: TempDir,
}

impl Events {
    /// Keeps nothing, and lets everybody do everything.
    pub fn in_memory() -> Events {
        Events::start_in(tempfile::tempdir().unwrap(), &["--test-mode"])
    }

    pub fn on_disk() -> Events {
        Events::start_in(
            tempfile::tempdir().unwrap(),
            &["--data-dir", "data", "--token", TOKEN, "--min-free", "0"],
        )
    }

    pub fn start_in(folder: TempDir, flags: &[&str]) -> Events {
        Events::start_by(Command::new(thalweg::binary()), folder, flags)
    }

    /// With so many files open at most.
    pub fn limited(folder: TempDir, files: u32, flags: &[&str]) -> Events {
        let mut shell = Command::new("sh");
        let line = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
        shell.args(["-c", &line]).arg(thalweg::binary());
        Events::start_by(shell, folder, flags)
    }

    fn start_by(mut command: Command, folder: TempDir, flags: &[&str]) -> Events {
        command
            .args(["events", "serve", "--port", "0"])
            .args(flags)
            .current_dir(folder.path());
        let mut process = Process::start("events", folder.path(), &mut command).unwrap();
        let address = eventually(|| {
            process.check_running()?;
            let log = process.stderr();
            let port = log
                .split("address=")
                .nth(1)
                .and_then(|rest| rest.split_whitespace().next());
            let port = port.and_then(|address| address.rsplit(':').next()).map(str::to_owned);
            port.ok_or_else(|| anyhow::anyhow!("it does not say where it listens"))
        });
        let address = format!("127.0.0.1:{}", address.unwrap());
        Events {
            api: Api::at_root(&address),
            address,
            process,
            folder,
        }
    }

    pub fn again(mut self) -> Events {
        self.process.kill().unwrap();
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        Events::start_in(folder, &["--data-dir", "data", "--token", TOKEN, "--min-free", "0"])
    }

    /// Status and text, without the newline at its end.
    pub fn rpc(&self, call: &str) -> (u16, String) {
        let answer = self
            .api
            .send("POST", "/rpc", &[("authorization", &format!("Bearer {TOKEN}"))], call);
        let text = answer
            .text
            .strip_suffix('\n')
            .expect("a newline ends every answer")
            .to_owned();
        (answer.status, text)
    }

    pub fn call(&self, call: Value) -> Value {
        let (status, text) = self.rpc(&call.to_string());
        assert_eq!(status, 200, "{call}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// The code of what is wrong, and the message.
    pub fn refusal(&self, call: &str) -> (u16, String, String) {
        let (status, text) = self.rpc(call);
        let json: Value = serde_json::from_str(&text).unwrap();
        let of = |name: &str| json["error"][name].as_str().unwrap_or_default().to_owned();
        (status, of("code"), of("message"))
    }
}

/// What `/subscribe` sends, piece by piece.
pub(crate) struct Pokes(pub BufReader<TcpStream>);

impl Pokes {
    pub fn open(events: &Events, query: &str) -> Pokes {
        let mut stream = TcpStream::connect(&events.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        write!(
            stream,
            "GET /subscribe?{query} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
        )
        .unwrap();
        let mut pokes = Pokes(BufReader::new(stream));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(pokes.0.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(head.contains("content-type: text/event-stream\r\n"), "{head}");
        assert_eq!(pokes.chunk(), ": ready\n\n");
        pokes
    }

    pub fn chunk(&mut self) -> String {
        let mut size = String::new();
        self.0.read_line(&mut size).unwrap();
        let len = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = vec![0; len + 2];
        std::io::Read::read_exact(&mut self.0, &mut chunk).unwrap();
        chunk.truncate(len);
        String::from_utf8(chunk).unwrap()
    }
}

pub(crate) fn poke(stream: &str, position: u64, global: u64) -> String {
    format!(
        "event: poke\nid: {global}\ndata: {{\"stream\":\"{stream}\",\"position\":{position},\"globalPosition\":{global}}}\n\n"
    )
}

#[test]
fn what_is_written_is_read_with_its_very_text() {
    for events in [Events::in_memory(), Events::on_disk()] {
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
        // The same again was done already; another message with that id is none.
        let again = r#"{"globalPosition":1,"position":0,"duplicate":true}"#;
        assert_eq!(events.rpc(&write), (200, again.to_owned()));
        let other = write.replace("Created", "Changed");
        let conflict = r#"{"error":{"code":"MESSAGE_ID_CONFLICT","message":"Message id '0190b5c2-7a00-7c1f-a2b3-c4d5e6f70819' already exists","details":{"stream":"order-7","position":0}}}"#;
        assert_eq!(events.rpc(&other), (409, conflict.to_owned()));
    }
}

#[test]
fn mistakes_are_told_in_their_order_and_wording() {
    let events = Events::in_memory();
    for (call, message) in [
        (
            r#"["stream.write"]"#,
            "stream.write requires at least 2 arguments: streamName and message",
        ),
        (r#"["stream.write","",{}]"#, "streamName must be a non-empty string"),
        (r#"["stream.write",5,{}]"#, "streamName must be a non-empty string"),
        (r#"["stream.write","s",[]]"#, "message must be an object"),
        (
            r#"["stream.write","s",{"data":{}}]"#,
            "message.type must be a non-empty string",
        ),
        (
            r#"["stream.write","s",{"type":"","data":{}}]"#,
            "message.type must be a non-empty string",
        ),
        (r#"["stream.write","s",{"type":"t"}]"#, "message.data must be an object"),
        (
            r#"["stream.write","s",{"type":"t","data":null}]"#,
            "message.data must be an object",
        ),
        (
            r#"["stream.write","s",{"type":"t","data":[1]}]"#,
            "message.data must be an object",
        ),
        (
            r#"["stream.write","s",{"type":"t","data":{},"metadata":"m"}]"#,
            "message.metadata must be an object",
        ),
        (
            r#"["stream.write","s",{"type":"t","data":{}},null]"#,
            "options must be an object",
        ),
        (
            r#"["stream.write","s",{"type":"t","data":{}},{"id":null}]"#,
            "options.id must be a string",
        ),
        (
            r#"["stream.write","s",{"type":"t","data":{}},{"id":"x"}]"#,
            "options.id must be a valid UUID",
        ),
        (
            r#"["stream.write","s",{"type":"t","data":{}},{"expectedVersion":null}]"#,
            "options.expectedVersion must be a number",
        ),
        (
            r#"["stream.write","s",{"type":"t","data":{}},{"expectedVersion":"none"}]"#,
            "options.expectedVersion must be a number",
        ),
        (
            r#"["stream.get"]"#,
            "stream.get requires at least 1 argument: streamName",
        ),
        (
            r#"["stream.get","s",{"position":"1"}]"#,
            "options.position must be a number",
        ),
        (
            r#"["stream.get","s",{"globalPosition":true}]"#,
            "options.globalPosition must be a number",
        ),
        (
            r#"["stream.get","s",{"batchSize":{}}]"#,
            "options.batchSize must be a number",
        ),
        (
            r#"["stream.get","s",{"batchSize":10001}]"#,
            "options.batchSize must be <= 10000 or -1 for unlimited",
        ),
        (r#"["stream.last","s",{"type":1}]"#, "options.type must be a string"),
        (
            r#"["stream.version"]"#,
            "stream.version requires 1 argument: streamName",
        ),
        (
            r#"["category.get"]"#,
            "category.get requires at least 1 argument: categoryName",
        ),
        (r#"["category.get",null]"#, "categoryName must be a string"),
        (
            r#"["category.get","c",{"correlation":1}]"#,
            "options.correlation must be a string",
        ),
        (
            r#"["category.get","c",{"consumerGroup":1}]"#,
            "options.consumerGroup must be an object",
        ),
        (
            r#"["category.get","c",{"consumerGroup":{"member":"a"}}]"#,
            "options.consumerGroup.member must be a number",
        ),
        (
            r#"["category.get","c",{"consumerGroup":{"member":0,"size":"a"}}]"#,
            "options.consumerGroup.size must be a number",
        ),
        (
            r#"["category.get","c",{"consumerGroup":{"member":-1,"size":0}}]"#,
            "options.consumerGroup.member must be non-negative",
        ),
        (
            r#"["category.get","c",{"consumerGroup":{"member":0,"size":0}}]"#,
            "options.consumerGroup.size must be positive",
        ),
        (
            r#"["category.get","c",{"consumerGroup":{"member":2,"size":2}}]"#,
            "options.consumerGroup.member must be < size",
        ),
        (
            r#"["category.get","c",{"consumerGroup":{"member":2}}]"#,
            "options.consumerGroup requires both member and size",
        ),
        (
            r#"["ns.create"]"#,
            "ns.create requires at least 1 argument: namespace ID",
        ),
        (r#"["ns.create",""]"#, "namespace ID must be a non-empty string"),
        (r#"["ns.create","a/b"]"#, "namespace ID contains invalid characters"),
        (
            r#"["ns.create","a",{"description":1}]"#,
            "options.description must be a string",
        ),
        (
            r#"["ns.create","a",{"token":""}]"#,
            "Invalid token format: invalid token format: missing 'ns_' prefix",
        ),
        (
            r#"["ns.create","a",{"metadata":[]}]"#,
            "options.metadata must be an object",
        ),
        (r#"["ns.delete","default"]"#, "Namespace 'default' cannot be deleted"),
        (r#"["ns.streams",{"limit":0}]"#, "limit must be between 1 and 1000"),
        (r#"["ns.streams",{"prefix":1}]"#, "prefix must be a string"),
        ("[]", "Missing method name"),
        ("null", "Missing method name"),
        ("[1]", "Method name must be a string"),
        ("{}", "Malformed JSON request"),
        ("", "Malformed JSON request"),
        ("[] x", "Malformed JSON request"),
    ] {
        let expected = (400, "INVALID_REQUEST".to_owned(), message.to_owned());
        assert_eq!(events.refusal(call), expected, "{call}");
    }
    let long = "s".repeat(1025);
    let write = |stream: &str, kind: &str| json!(["stream.write", stream, {"type": kind, "data": {}}]).to_string();
    for (call, message) in [
        (write(&long, "t"), "streamName exceeds 1024 bytes"),
        (write("a\0b", "t"), "streamName must not contain U+0000"),
        (write("s", &"t".repeat(256)), "message.type exceeds 255 bytes"),
        (write("s", "a\0"), "message.type must not contain U+0000"),
    ] {
        assert_eq!(events.refusal(&call).2, message);
    }
    let unknown = (
        404,
        "METHOD_NOT_FOUND".to_owned(),
        "Unknown method: stream.no".to_owned(),
    );
    assert_eq!(events.refusal(r#"["stream.no"]"#), unknown);
    let get = events.api.get("/rpc");
    assert_eq!(
        (get.status, get.json["error"]["message"].as_str()),
        (405, Some("Only POST method allowed"))
    );
    let nowhere = events.api.get("/nowhere");
    assert_eq!(
        nowhere.text,
        "{\"error\":{\"code\":\"NOT_FOUND\",\"message\":\"Endpoint not found\"}}\n"
    );
}

#[test]
fn who_has_no_valid_token_is_told_why() {
    let events = Events::on_disk();
    let ask = |header: Option<&str>, query: &str| {
        let headers: Vec<_> = header.map(|value| ("authorization", value)).into_iter().collect();
        let answer = events
            .api
            .send("POST", &format!("/rpc{query}"), &headers, r#"["sys.version"]"#);
        (answer.status, answer.json["error"].clone())
    };
    let required = |message: &str| (401, json!({"code": "AUTH_REQUIRED", "message": message}));
    assert_eq!(ask(None, ""), required("Authorization header required"));
    assert_eq!(
        ask(Some("Basic x"), ""),
        required("Authorization header must use Bearer scheme")
    );
    let bad = json!({"code": "AUTH_INVALID_TOKEN", "message": "Invalid token format",
        "details": {"error": "invalid token format: missing 'ns_' prefix"}});
    assert_eq!(ask(Some("Bearer x"), ""), (401, bad.clone()));
    let wrong = TOKEN.replace("0000", "1111");
    let refused = json!({"code": "AUTH_UNAUTHORIZED", "message": "Token not authorized for namespace",
        "details": {"namespace": "default"}});
    assert_eq!(ask(Some(&format!("Bearer {wrong}")), ""), (403, refused));
    assert_eq!(ask(None, &format!("?token={TOKEN}")), (200, Value::Null));
    assert_eq!(
        ask(Some(&format!("Bearer {TOKEN}")), "?token=x").1,
        bad,
        "the address wins"
    );

    // A token of one namespace sees nothing of another and makes none.
    let own = events.call(json!(["ns.create", "a-b", {"metadata": {"x": 1}}]))["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let as_own = |call: Value| {
        let answer = events
            .api
            .send("POST", &format!("/rpc?token={own}"), &[], &call.to_string());
        (answer.status, answer.json)
    };
    assert_eq!(as_own(json!(["stream.write", "s", {"type": "t", "data": {}}])).0, 200);
    assert_eq!(events.call(json!(["stream.get", "s"])), json!([]));
    assert_eq!(as_own(json!(["ns.list"])).1.as_array().unwrap().len(), 1);
    let (status, info) = as_own(json!(["ns.info", "a-b"]));
    assert_eq!(
        (status, &info["messageCount"], &info["metadata"]),
        (200, &json!(1), &json!({"x": 1}))
    );
    for call in [
        json!(["ns.create", "c"]),
        json!(["ns.delete", "a-b"]),
        json!(["ns.info", "default"]),
    ] {
        let (status, refused) = as_own(call);
        assert_eq!(
            (status, refused["error"]["message"].as_str()),
            (403, Some("Token lacks scope 'admin'"))
        );
    }
    let deleted = events.call(json!(["ns.delete", "a-b"]));
    assert_eq!(deleted["messagesDeleted"], 1);
    assert_eq!(as_own(json!(["sys.version"])).0, 403);
}

#[test]
fn a_subscriber_hears_of_history_and_of_what_comes_in_one_sequence() {
    let events = Events::on_disk();
    for n in 0..3 {
        events.call(json!(["stream.write", format!("c-{}", n % 2), {"type": "t", "data": {}}]));
    }
    let mut stream = Pokes::open(&events, "stream=c-0");
    let mut category = Pokes::open(&events, "category=c&position=2");
    let mut all = Pokes::open(&events, "all=true&position=0");
    let mut resumed = Pokes::open(&events, "all=true&lastEventId=2");
    assert_eq!(stream.chunk(), poke("c-0", 0, 1));
    assert_eq!(stream.chunk(), poke("c-0", 1, 3));
    assert_eq!(category.chunk(), poke("c-1", 0, 2));
    assert_eq!(category.chunk(), poke("c-0", 1, 3));
    assert_eq!(resumed.chunk(), poke("c-0", 1, 3));
    events.call(json!(["stream.write", "d-0", {"type": "t", "data": {}}]));
    events.call(json!(["stream.write", "c-0", {"type": "t", "data": {}}]));
    assert_eq!(stream.chunk(), poke("c-0", 2, 5));
    assert_eq!(category.chunk(), poke("c-0", 2, 5));
    for subscriber in [&mut all, &mut resumed] {
        assert_eq!(subscriber.chunk(), poke("d-0", 0, 4));
        assert_eq!(subscriber.chunk(), poke("c-0", 2, 5));
    }
    for (query, message) in [
        ("", "Either 'stream', 'category', or 'all=true' parameter required"),
        ("all=true&stream=a", "Cannot combine 'all' with 'stream' or 'category'"),
        ("stream=a&category=b", "Cannot specify both 'stream' and 'category'"),
        ("stream=a&position=x", "Invalid position parameter"),
        ("category=a&consumer=-1&size=2", "Invalid consumer parameter"),
        ("category=a&size=-2", "Invalid size parameter"),
        (
            "category=a&consumer=2&size=2",
            "Invalid consumer group: member must be < size",
        ),
    ] {
        let refused = events.api.get(&format!("/subscribe?{query}&token={TOKEN}"));
        assert_eq!((refused.status, refused.text.as_str()), (400, message), "{query}");
    }
}

/// Global positions 1 to the last, streams without gaps, and everything that was acknowledged where it was said to be.
#[test]
fn kill_nine_loses_nothing_that_was_acknowledged_and_leaves_no_gap() {
    let mut events = Events::on_disk();
    let mut acknowledged: Vec<(String, u64, u64, u64)> = Vec::new();
    for round in 0..3u64 {
        let (stop, found) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let writers: Vec<_> = (0..6u64)
            .map(|writer| {
                let (stop, found, api) = (stop.clone(), found.clone(), Api::at_root(&events.address));
                std::thread::spawn(move || {
                    for n in 0.. {
                        let stream = format!("s-{}", (writer + n) % 4);
                        let mark = round << 40 | writer << 32 | n;
                        let call = json!(["stream.write", stream, {"type": "t", "data": {"mark": mark}}]).to_string();
                        let answer = api.try_send("POST", &format!("/rpc?token={TOKEN}"), &[], &call);
                        match answer {
                            Ok(answer) if answer.status == 200 => {
                                let at = |name: &str| answer.json[name].as_u64().unwrap();
                                let place = (stream, at("position"), at("globalPosition"), mark);
                                found.lock().unwrap().push(place);
                            }
                            _ if stop.load(Ordering::SeqCst) => return,
                            other => panic!("{other:?}"),
                        }
                    }
                })
            })
            .collect();
        let begun = Instant::now();
        while found.lock().unwrap().len() < 300 && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::SeqCst);
        events = events.again();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let more = std::mem::take(&mut *found.lock().unwrap());
        assert!(more.len() >= 300);
        acknowledged.extend(more);
        let rows = events.call(json!(["category.get", "s", {"batchSize": -1}]));
        let rows = rows.as_array().unwrap();
        let mut versions = std::collections::HashMap::new();
        for (row, global) in rows.iter().zip(1u64..) {
            assert_eq!(row[4], global, "a gap, or a message twice");
            let next = versions.entry(row[1].as_str().unwrap()).or_insert(0u64);
            assert_eq!(row[3], *next, "of stream {}", row[1]);
            *next += 1;
        }
        for (stream, position, global, mark) in &acknowledged {
            let row = &rows[*global as usize - 1];
            assert_eq!(
                (row[1].as_str(), row[3].as_u64()),
                (Some(stream.as_str()), Some(*position))
            );
            assert_eq!(row[5]["mark"].as_u64(), Some(*mark));
        }
    }
}

#[test]
fn of_writers_with_one_expected_version_exactly_one_succeeds() {
    let events = Events::on_disk();
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

#[test]
fn a_taken_port_and_a_folder_in_use_are_told_and_a_signal_ends_it_at_once() {
    let mut events = Events::on_disk();
    let port = events.address.rsplit(':').next().unwrap().to_owned();
    let other = thalweg::run(
        events.folder.path(),
        &["events", "serve", "-port", &port, "-data-dir=other"],
    )
    .unwrap();
    let expected = format!("Error: cannot listen on port {port}: address already in use\n");
    assert_eq!(
        (other.status.code(), other.stderr.as_str()),
        (Some(1), expected.as_str())
    );
    assert!(!events.folder.path().join("other").exists(), "nothing is touched");
    let other = thalweg::run(
        events.folder.path(),
        &["events", "serve", "--port=0", "--data-dir=data"],
    )
    .unwrap();
    assert_eq!(other.status.code(), Some(1));
    assert!(other.stderr.contains("data directory is in use"), "{}", other.stderr);
    let neither = thalweg::run(events.folder.path(), &["events", "serve"]).unwrap();
    assert_eq!(neither.status.code(), Some(1));
    let cure = "--data-dir or --db-url is required (use --test-mode for in-memory testing)";
    assert!(neither.stderr.contains(cure), "{}", neither.stderr);
    let usage = thalweg::run(events.folder.path(), &["events", "-port", "70000"]).unwrap();
    assert_eq!(usage.status.code(), Some(2));
    let _open = Pokes::open(&events, "all=true");
    events.process.signal("TERM").unwrap();
    assert!(events.process.wait().unwrap().success());
}

fn record(stream: &str, position: u64, global: u64) -> String {
    json!({"stream": stream, "type": "t", "pos": position, "gpos": global, "data": {"n": global},
        "meta": null, "time": "2026-01-15T10:00:00.5Z"})
    .to_string()
        + "\n"
}

#[test]
fn an_import_keeps_places_and_tells_how_far_it_is() {
    let events = Events::on_disk();
    let import = |query: &str, lines: &str| {
        let answer = events
            .api
            .send("POST", &format!("/import?token={TOKEN}{query}"), &[], lines);
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert_eq!(answer.headers["content-type"], "text/event-stream");
        let last = answer.text.trim_end().rsplit("data: ").next().unwrap_or_default();
        serde_json::from_str::<Value>(last).unwrap()
    };
    let done = |answer: &Value| (answer["done"] == true).then(|| answer["imported"].as_u64().unwrap());
    assert_eq!(done(&import("", "")), Some(0));
    // From the end to the start, every third, in two streams.
    let lines: String = (0..2500u64)
        .rev()
        .map(|n| record(&format!("i-{}", n % 2), n / 2 * 2, 3 * n + 1))
        .collect();
    assert_eq!(done(&import("", &lines)), Some(2500));
    let globals = |call: Value| -> Vec<u64> {
        let rows = events.call(call);
        rows.as_array()
            .unwrap()
            .iter()
            .map(|row| row[4].as_u64().unwrap())
            .collect()
    };
    let all: Vec<u64> = (0..2500).map(|n| 3 * n + 1).collect();
    assert_eq!(globals(json!(["category.get", "i", {"batchSize": -1}])), all);
    assert_eq!(
        globals(json!(["category.get", "", {"position": 7000, "batchSize": 3}])),
        [7000, 7003, 7006]
    );
    assert_eq!(events.call(json!(["stream.version", "i-1"])), 2498);
    let row = events.call(json!(["stream.last", "i-1"]));
    assert_eq!(
        (&row[4], &row[6]),
        (&json!({"n": 7498}), &json!("2026-01-15T10:00:00.5Z"))
    );
    let next = events.call(json!(["stream.write", "i-1", {"type": "t", "data": {}}]));
    assert_eq!(next, json!({"globalPosition": 7499, "position": 2499}));

    // What is taken is told with its line, and nothing of its batch is stored.
    let lines = record("j-1", 0, 9000) + "\n" + &record("j-1", 1, 4);
    let error = json!({"error": "POSITION_EXISTS", "message": "global position already exists: 4", "line": 3});
    assert_eq!(import("", &lines), error);
    assert_eq!(events.call(json!(["stream.get", "j-1"])), json!([]));
    for (lines, code, start) in [
        ("{\"a\":}\n", "INVALID_JSON", "malformed JSON at line 1: "),
        ("[]\n", "INVALID_RECORD", "invalid record at line 1: "),
        (
            "\n{\"stream\":\"s\",\"type\":\"t\",\"pos\":0,\"gpos\":9}\n",
            "INVALID_RECORD",
            "invalid record at line 2: time",
        ),
    ] {
        let answer = import("", lines);
        let message = answer["message"].as_str().unwrap();
        assert!(answer["error"] == code && message.starts_with(start), "{answer}");
    }
    let free = record("j-1", 0, 5);
    assert_eq!(done(&import("", &free)), Some(1), "a free place below the end");
    assert_eq!(globals(json!(["category.get", "", {"batchSize": 4}])), [1, 4, 5, 7]);

    // Over a restart, and anew.
    let events = events.again();
    assert_eq!(events.call(json!(["ns.info", "default"]))["messageCount"], 2502);
    let next = events.call(json!(["stream.write", "k", {"type": "t", "data": {}}]));
    assert_eq!(next["globalPosition"], 7500);
    let answer = events.api.send(
        "POST",
        &format!("/import?force=true&token={TOKEN}"),
        &[],
        &record("z", 0, 1),
    );
    assert!(answer.text.contains("\"done\":true,\"imported\":1,"), "{}", answer.text);
    let events = events.again();
    assert_eq!(events.call(json!(["ns.info", "default"]))["messageCount"], 1);
    assert_eq!(
        events.call(json!(["stream.write", "z", {"type": "t", "data": {}}]))["globalPosition"],
        2
    );
}
