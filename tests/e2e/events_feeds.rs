//! Gap reports to subscribers, the metrics of the event store, and its behaviour when no more files can be opened: the real
//! binary.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_tests::{Thalweg, eventually, thalweg};

use crate::events_limits::first_answer;
use crate::events_server::{Events, Pokes, TOKEN};

const FLAGS: [&str; 6] = ["--data-dir", "data", "--token", TOKEN, "--min-free", "0"];

fn message() -> Value {
    json!({"type": "t", "data": {}})
}

fn append(events: &Events, stream: &str, count: usize) {
    events.call(json!(["stream.append", stream, vec![message(); count]]));
}

fn gap(from: u64, to: u64) -> String {
    format!("event: gap\ndata: {{\"from\":{from},\"to\":{to}}}\n\n")
}

/// Of a whole message: stream, position, global position.
fn place(chunk: &str) -> (String, u64, u64) {
    let data = chunk.lines().find_map(|line| line.strip_prefix("data: "));
    let row: Value = serde_json::from_str(data.unwrap_or_else(|| panic!("{chunk:?}"))).unwrap();
    let stream = row[1].as_str().unwrap_or_else(|| panic!("{chunk:?}")).to_owned();
    (stream, row[3].as_u64().unwrap(), row[4].as_u64().unwrap())
}

/// A metric with its labels.
pub(crate) fn metric(events: &Events, line: &str) -> f64 {
    let text = events.api.get("/metrics").text;
    let found = text
        .lines()
        .find_map(|other| other.strip_prefix(line)?.strip_prefix(' '));
    found
        .unwrap_or_else(|| panic!("{line} is missing in {text}"))
        .parse()
        .unwrap()
}

#[test]
fn what_retention_took_before_it_was_read_is_told_as_a_gap_also_after_scavenging_and_a_kill() {
    let mut events = Events::on_disk();
    // Global positions: r-1 has 1 to 10, other-1 has 11, r-1 has 12.
    append(&events, "r-1", 10);
    append(&events, "other-1", 1);
    append(&events, "r-1", 1);
    events.call(json!(["retention.set", "r-1", {"maxCount": 2}]));
    for step in ["hidden", "scavenged", "killed"] {
        match step {
            "scavenged" => assert_eq!(events.call(json!(["sys.scavenge"]))["messages"], 9),
            "killed" => events = events.again(),
            _ => {}
        }
        let mut stream = Pokes::open(&events, "stream=r-1&data=true");
        assert_eq!(stream.chunk(), gap(0, 8), "{step}");
        assert_eq!(place(&stream.chunk()), ("r-1".to_owned(), 9, 10), "{step}");
        assert_eq!(place(&stream.chunk()).1, 10);
        let mut category = Pokes::open(&events, "category=r&data=true&position=4");
        assert_eq!(category.chunk(), gap(4, 9), "{step}");
        assert_eq!(place(&category.chunk()).2, 10);
        // The message of another category between them makes no gap.
        assert_eq!(place(&category.chunk()).2, 12);
        let mut other = Pokes::open(&events, "category=other&data=true");
        assert_eq!(place(&other.chunk()).2, 11, "{step}");
        let mut all = Pokes::open(&events, "all=true&catchup=true&data=true");
        assert_eq!(all.chunk(), gap(1, 9), "{step}");
        for global in 10..=12 {
            assert_eq!(place(&all.chunk()).2, global, "{step}");
        }
        let mut read = Pokes::open(&events, "stream=r-1&data=true&lastEventId=10");
        assert_eq!(place(&read.chunk()).1, 10, "what is gone was read");
        let mut pokes = Pokes::open(&events, "stream=r-1");
        assert!(
            pokes.chunk().starts_with("event: poke\nid: 10\n"),
            "only who asks hears of gaps"
        );
    }
    // Removals while a client is subscribed.
    let mut stream = Pokes::open(&events, "stream=r-1&data=true&position=11");
    let mut category = Pokes::open(&events, "category=r&data=true&position=13");
    let mut all = Pokes::open(&events, "all=true&data=true");
    append(&events, "r-1", 5);
    append(&events, "r-1", 1);
    assert_eq!(told(&mut stream, 6, 11), (11..17).collect::<Vec<_>>());
    assert_eq!(told(&mut category, 6, 13), (13..19).collect::<Vec<_>>());
    assert_eq!(told(&mut all, 6, 13), (13..19).collect::<Vec<_>>());
}

/// Every position from `first` on is reported once, as a message or as a part of a gap.
fn told(pokes: &mut Pokes, count: usize, first: u64) -> Vec<u64> {
    let mut places = Vec::new();
    while places.len() < count {
        let chunk = pokes.chunk();
        if chunk.starts_with(": hb") {
            continue;
        }
        match chunk.strip_prefix("event: gap\ndata: ") {
            Some(data) => {
                let gap: Value = serde_json::from_str(data.trim()).unwrap();
                places.extend(gap["from"].as_u64().unwrap()..=gap["to"].as_u64().unwrap());
            }
            None => {
                let (_, position, global) = place(&chunk);
                places.push(if first == 11 { position } else { global });
            }
        }
    }
    places
}

#[test]
fn what_a_recovery_skipped_is_told_as_a_gap_and_what_an_import_left_out_is_not() {
    let mut events = Events::on_disk();
    for n in 0..30 {
        let data = json!({"text": format!("text-{n}.")});
        events.call(json!(["stream.write", "s-1", {"type": "t", "data": data}]));
    }
    events.process.kill().unwrap();
    let file = crate::log::commit_file(&events.folder.path().join("data/log"));
    crate::log::damage(&file, "text-12.");
    let folder = std::mem::replace(&mut events.folder, tempfile::tempdir().unwrap());
    std::fs::remove_dir_all(folder.path().join("data/events")).unwrap();
    let skipping: Vec<&str> = FLAGS.into_iter().chain(["--recover", "skip"]).collect();
    let events = Events::start_in(folder, &skipping);
    for (query, of_stream) in [
        ("stream=s-1", true),
        ("all=true&catchup=true", false),
        ("category=s", false),
    ] {
        let mut pokes = Pokes::open(&events, &format!("{query}&data=true"));
        let first = u64::from(!of_stream);
        for n in 0..29 {
            let chunk = match n {
                12 => {
                    assert_eq!(pokes.chunk(), gap(12 + first, 12 + first), "{query}");
                    pokes.chunk()
                }
                _ => pokes.chunk(),
            };
            let expected = n + u64::from(n >= 12);
            assert_eq!(place(&chunk).1, expected, "{query}");
        }
    }
    let events = Events::on_disk();
    let record = |position: u64, global: u64| {
        json!({"id": "", "stream": "i-1", "type": "t", "pos": position, "gpos": global, "data": {}, "meta": null,
            "time": "2026-01-15T10:00:00Z"})
    };
    let body = format!("{}\n{}\n", record(3, 10), record(7, 90));
    let bearer = format!("Bearer {TOKEN}");
    let imported = events.api.send("POST", "/import", &[("authorization", &bearer)], &body);
    assert!(imported.text.contains("\"done\":true"), "{imported:?}");
    for query in ["stream=i-1", "all=true&catchup=true", "category=i"] {
        let mut pokes = Pokes::open(&events, &format!("{query}&data=true"));
        assert_eq!(place(&pokes.chunk()).1, 3, "{query}");
        assert_eq!(place(&pokes.chunk()).1, 7, "{query}");
    }
}

/// Damages only a message's text, below the synced position: no start of the log reads there, with or without the indexes.
#[test]
fn damage_that_is_met_later_is_told_once_and_passed_over_where_that_was_asked_for() {
    let mut events = Events::on_disk();
    for n in 0..30 {
        let data = json!({"text": format!("text-{n}.")});
        events.call(json!(["stream.write", "s-1", {"type": "t", "data": data}]));
    }
    events.call(json!(["sub.create", "every", {"category": "s", "from": "start", "strategy": "roundRobin"}]));
    // Writes the indexes.
    events.call(json!(["sys.scavenge"]));
    events = events.again();
    events.process.kill().unwrap();
    let file = crate::log::commit_file(&events.folder.path().join("data/log"));
    crate::log::damage_text(&file, "text-12.");
    let mut folder = std::mem::replace(&mut events.folder, tempfile::tempdir().unwrap());
    let skipping: Vec<&str> = FLAGS.into_iter().chain(["--recover", "skip"]).collect();
    for has_indexes in [true, false] {
        if !has_indexes {
            std::fs::remove_dir_all(folder.path().join("data/events")).unwrap();
            let output = thalweg::run(folder.path(), &[&["events", "serve", "--port=0"], &FLAGS[..]].concat()).unwrap();
            assert_eq!(output.status.code(), Some(65), "{}", output.stderr);
            assert!(
                output.stderr.contains("commit-0000000000000000.log"),
                "{}",
                output.stderr
            );
        }
        let mut events = Events::start_in(folder, &skipping);
        let read = events.call(json!(["category.get", "s", {"batchSize": 100}]));
        let positions: Vec<u64> = read
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|row| row[3].as_u64())
            .collect();
        let stored = 30 + u64::from(!has_indexes);
        let expected: Vec<u64> = (0..stored).filter(|n| *n != 12).collect();
        assert_eq!(positions, expected, "with indexes: {has_indexes}");
        let mut pokes = Pokes::open(&events, "stream=s-1&data=true");
        for n in 0..12 {
            assert_eq!(place(&pokes.chunk()).1, n);
        }
        assert_eq!(pokes.chunk(), gap(12, 12), "with indexes: {has_indexes}");
        assert_eq!(place(&pokes.chunk()).1, 13);
        let fetched = events.call(json!(["sub.fetch", "every", {"max": 100}]));
        assert_eq!(fetched.as_array().unwrap().len(), expected.len(), "{fetched}");
        let leases: Vec<&Value> = fetched.as_array().unwrap().iter().map(|one| &one["lease"]).collect();
        events.call(json!(["sub.nack", "every", leases, {"action": "retry"}]));
        let next = events.call(json!(["stream.write", "s-1", {"type": "t", "data": {}}]));
        assert_eq!(next["position"], stored);
        events.process.kill().unwrap();
        folder = std::mem::replace(&mut events.folder, tempfile::tempdir().unwrap());
    }
}

#[test]
fn the_metrics_tell_what_the_store_is_and_does_and_its_subscriptions_also_after_a_restart() {
    let events = Events::on_disk();
    assert_eq!(
        metric(&events, "thalweg_events_info{backend=\"log\",durability=\"fsync\"}"),
        1.0
    );
    append(&events, "m-1", 10);
    events.call(json!(["sub.create", "s", {"category": "m", "from": "start", "strategy": "roundRobin"}]));
    let fetched = events.call(json!(["sub.fetch", "s", {"consumer": "c", "max": 3}]));
    let lease = &fetched[0]["lease"];
    events.call(json!(["sub.nack", "s", [lease], {"action": "park", "reason": "no"}]));
    let of = |name: &str| format!("thalweg_events_subscription_{name}{{subscription=\"s\"}}");
    assert_eq!(metric(&events, &of("lag")), 9.0);
    assert_eq!(metric(&events, &of("in_flight")), 2.0);
    assert_eq!(metric(&events, &of("parked")), 1.0);
    assert_eq!(metric(&events, &of("redelivered_total")), 0.0);
    assert!(metric(&events, "thalweg_events_index_lag_bytes") > 0.0);
    assert!(metric(&events, "thalweg_events_index_memory_bytes") > 0.0);
    assert_eq!(metric(&events, "thalweg_events_appends_total"), 1.0);
    assert_eq!(metric(&events, "thalweg_events_appended_messages_total"), 10.0);
    // No fetch is needed for that.
    let events = events.again();
    let lag = eventually(|| {
        let text = events.api.get("/metrics").text;
        let found = text
            .lines()
            .find_map(|line| line.strip_prefix(&of("lag")).map(str::to_owned));
        found.ok_or_else(|| anyhow::anyhow!("not yet"))
    });
    assert_eq!(lag.unwrap().trim(), "9");
    assert!(metric(&events, "thalweg_events_recovery_seconds") > 0.0);
    assert!(metric(&events, "thalweg_events_recovery_bytes") > 0.0);
    // And the report in the log.
    assert_eq!(metric(&events, "thalweg_log_poisoned"), 0.0);
    assert!(metric(&events, "thalweg_log_free_bytes") > 0.0);
}

#[test]
fn namespaces_are_told_apart_in_metrics_only_if_that_is_asked_for() {
    let calls = |events: &Events| {
        events.call(json!(["ns.create", "tenant"]));
        append(events, "a-1", 2);
        events.api.get("/metrics").text
    };
    assert!(!calls(&Events::on_disk()).contains("namespace=\""));
    let flags: Vec<&str> = FLAGS.into_iter().chain(["--metrics-per-namespace"]).collect();
    let events = Events::start_in(tempfile::tempdir().unwrap(), &flags);
    let text = calls(&events);
    let line = "thalweg_events_appended_messages_total{namespace=\"default\"} 2\n";
    assert!(text.contains(line), "{text}");
}

/// A connection with a completed request; `None` if it was refused.
fn open(events: &Events) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(&events.address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(stream, "GET /health HTTP/1.1\r\nhost: x\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"{\"status\":\"ok\"}\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        answer.extend(byte);
    }
    Some(stream)
}

/// A stream of pokes; `None` if it was refused.
fn listen(events: &Events) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(&events.address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(
        stream,
        "GET /subscribe?all=true&token={TOKEN} HTTP/1.1\r\nhost: x\r\n\r\n"
    )
    .ok()?;
    let mut head = [0; 12];
    stream.read_exact(&mut head).ok()?;
    (&head == b"HTTP/1.1 200").then_some(stream)
}

#[test]
fn connections_leave_files_to_the_log_and_one_too_many_is_refused() {
    let events = Events::limited(tempfile::tempdir().unwrap(), 256, &FLAGS);
    append(&events, "kept-1", 1);
    let mut writer = Pokes::open(&events, "all=true&data=true");
    let (mut held, mut refused) = (Vec::new(), 0);
    while refused < 20 {
        match listen(&events) {
            Some(stream) => held.push(stream),
            None => refused += 1,
        }
        assert!(held.len() < 256);
    }
    assert!(held.len() > 100, "{} streams", held.len());
    // Request connections make room for each other, and one of them keeps writing, while files are created and released.
    let mut idle: Vec<TcpStream> = (0..300).map(|_| open(&events).unwrap()).collect();
    let mut stream = idle.pop().unwrap();
    let body = json!(["stream.append", "kept-1", vec![message(); 100]]).to_string();
    for n in 0..50_u64 {
        write!(
            stream,
            "POST /rpc HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let answer = first_answer(&mut stream);
        assert!(
            answer.contains(&format!("\"firstPosition\":{}", 1 + 100 * n)),
            "{answer}"
        );
    }
    assert_eq!(place(&writer.chunk()).1, 1);
    drop((held, idle, stream));
    eventually(|| {
        listen(&events)
            .map(drop)
            .ok_or_else(|| anyhow::anyhow!("still refused"))
    })
    .unwrap();
    assert!(metric(&events, "thalweg_http_connections_refused_total") >= 20.0);
    let made_room = "thalweg_http_connections_closed_for_others_total{why=\"idle\"}";
    assert!(metric(&events, made_room) >= 100.0);
    let stored = |events: &Events| events.call(json!(["stream.get", "kept-1", {"batchSize": -1}]));
    assert_eq!(stored(&events).as_array().unwrap().len(), 5001);
    let again = events.again();
    assert_eq!(stored(&again).as_array().unwrap().len(), 5001);
    assert_eq!(again.call(json!(["sys.verify"]))["faults"], json!([]));
}

const WITHIN: &str = "\
memory: {limit: 2GiB}
flows:
  - name: waits
    input: {generate: {interval: 1h, count: 0, mapping: 'root = {}'}}
    output: {drop: {}}
";

#[test]
fn the_whole_process_keeps_events_in_memory_alone_if_it_is_told_to() {
    let yaml = format!("{WITHIN}events: {{durability: memory, token: {TOKEN}, metrics_per_namespace: true}}\n");
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    let call = |thalweg: &Thalweg, call: Value| {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", bearer.as_str())];
        thalweg_tests::Api::at_root(&thalweg.address().unwrap()).send("POST", "/rpc", &headers, &call.to_string())
    };
    let health = call(&thalweg, json!(["sys.health"])).json;
    assert_eq!(
        (&health["backend"], &health["durability"]),
        (&json!("memory"), &json!("memory"))
    );
    let written = call(&thalweg, json!(["stream.write", "a-1", message()]));
    assert_eq!(written.json["position"], 0, "{written:?}");
    let metrics = thalweg_tests::Api::at_root(&thalweg.address().unwrap())
        .get("/metrics")
        .text;
    for line in [
        "thalweg_events_info{backend=\"memory\",durability=\"memory\"} 1",
        "thalweg_events_appends_total{namespace=\"default\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    assert!(!thalweg.data_dir().join("log").exists());
    let jobs = call(&thalweg, json!(["sub.create", "jobs", {"category": "none"}]));
    assert_eq!(jobs.status, 200, "{jobs:?}");
    // The listener's own responses have the format of the store's.
    let mut stream = TcpStream::connect(thalweg.address().unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(
        stream,
        "POST /rpc HTTP/1.1\r\nhost: x\r\nlong: {}\r\n\r\n",
        "x".repeat(70_000)
    )
    .unwrap();
    let refused = first_answer(&mut stream);
    assert!(
        refused.starts_with("HTTP/1.1 431 ")
            && refused.to_lowercase().contains("\r\nserver: thalweg/")
            && refused.contains(r#""message":"Request header too large""#),
        "{refused}"
    );
    let asked = thalweg.metric("thalweg_events_requests_total", "").unwrap();
    // Open subscriptions and waiting reads are answered before the process ends.
    let mut open = ["/subscribe?all=true", "/rpc"].map(|path| {
        let mut stream = TcpStream::connect(thalweg.address().unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (method, body) = match path {
            "/rpc" => ("POST", r#"["sub.fetch","jobs",{"waitMs":30000}]"#),
            _ => ("GET", ""),
        };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        stream
    });
    eventually(|| {
        let calls = thalweg.metric("thalweg_events_requests_total", "")? - asked;
        let subscribers = thalweg.metric("thalweg_events_subscribers", "")?;
        anyhow::ensure!(
            calls == 1.0 && subscribers == 1.0,
            "{calls} calls, {subscribers} subscribers"
        );
        Ok(())
    })
    .unwrap();
    let health = call(&thalweg, json!(["sys.health"])).json;
    assert!(health["connections"].as_u64() >= Some(3), "{health}");
    thalweg.process.signal("TERM").unwrap();
    let [told, waited] = open.each_mut().map(|stream| {
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        all
    });
    assert!(told.ends_with("\r\n0\r\n\r\n"), "{told}");
    assert!(
        waited.starts_with("HTTP/1.1 503 ") && waited.contains("UNAVAILABLE"),
        "{waited}"
    );
    assert!(
        thalweg.process.wait().unwrap().success(),
        "{}",
        thalweg.process.stderr()
    );
    thalweg.restart().unwrap();
    assert_eq!(call(&thalweg, json!(["stream.version", "a-1"])).text, "null\n");
}
