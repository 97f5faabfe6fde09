//! Imports: what is stored, which progress is sent, and what a client may do meanwhile.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use serde_json::json;
use thalweg_events_api::EventsApiOptions;

use crate::face::{Face, TOKEN};

fn header() -> String {
    format!("authorization: Bearer {TOKEN}\r\n")
}

fn line(global: u64, bytes: usize) -> String {
    json!({"stream": "s", "type": "t", "pos": global - 1, "gpos": global, "data": {"x": "x".repeat(bytes)},
        "time": "2026-01-15T10:00:00Z"})
    .to_string()
        + "\n"
}

/// The events of a response.
fn told(text: &str) -> Vec<&str> {
    let events = text.split("\n\n").filter(|event| !event.is_empty());
    events.map(|event| event.strip_prefix("data: ").unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_told_at_each_thousand_also_where_batches_are_cut_by_their_bytes() {
    let face = Face::start().await;
    // 2500 records of 20 kB each: 1200 of them have about 24 MB.
    let lines: String = (1..=2500).map(|n| line(n, 20_000)).collect();
    let answer = face.send("POST", "/import", &header(), lines.as_bytes()).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert_eq!(
        (
            answer.headers["cache-control"].as_str(),
            answer.headers["x-accel-buffering"].as_str()
        ),
        ("no-cache", "no")
    );
    let events = told(&answer.text);
    let (last, progress) = events.split_last().unwrap();
    assert!(
        last.starts_with("{\"done\":true,\"imported\":2500,\"elapsed\":\""),
        "{last}"
    );
    let all = ["{\"imported\":1000,\"gpos\":1000}", "{\"imported\":2000,\"gpos\":2000}"];
    assert!(progress.iter().all(|event| all.contains(event)), "{progress:?}");
    assert_eq!(face.call(json!(["ns.info", "default"])).await["messageCount"], 2500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_mistake_the_rest_is_read_and_the_mistake_is_told_to_who_reads_at_the_end() {
    let face = Face::with(EventsApiOptions {
        message_bytes_max: 1 << 20,
        ..EventsApiOptions::default()
    })
    .await;
    let rest: String = (3..=400).map(|n| line(n, 100_000)).collect();
    for (bad, code, message) in [
        ("{\"a\":}\n".to_owned(), "INVALID_JSON", "malformed JSON at line 2: "),
        (
            "[]\n".to_owned(),
            "INVALID_RECORD",
            "invalid record at line 2: it is not an object",
        ),
        (
            line(2, 1 << 20),
            "INVALID_RECORD",
            "invalid record at line 2: message size ",
        ),
        (line(2, 3 << 20), "READ_ERROR", "line 2 exceeds 2097152 bytes"),
    ] {
        let body = format!("\n{bad}{rest}");
        // Everything is sent before anything is read.
        let answer = face.send("POST", "/import", &header(), body.as_bytes()).await;
        let events = told(&answer.text);
        let start = format!("{{\"error\":\"{code}\",\"message\":\"{message}");
        assert_eq!(events.len(), 1, "{events:?}");
        assert!(
            events[0].starts_with(&start) && events[0].ends_with(",\"line\":2}"),
            "{events:?}"
        );
    }
    assert_eq!(face.call(json!(["ns.info", "default"])).await["messageCount"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_stored_before_a_mistake_stays() {
    let face = Face::start().await;
    let mut lines: String = (1..=1500).map(|n| line(n, 1)).collect();
    lines.push_str(&line(7, 1));
    let answer = face.send("POST", "/import", &header(), lines.as_bytes()).await;
    let error = "{\"error\":\"POSITION_EXISTS\",\"message\":\"global position already exists: 7\",\"imported\":1000,\"read\":1501,\"line\":1501}";
    assert_eq!(told(&answer.text).last(), Some(&error));
    assert_eq!(face.call(json!(["ns.info", "default"])).await["messageCount"], 1000);
}

/// The client reads the first progress and leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_lines_of_a_client_that_leaves_are_stored() {
    let face = Face::start().await;
    let lines: String = (1..=1700).map(|n| line(n, 10)).collect();
    let cut = lines.len() - 5;
    let mut client = face.client().await;
    let head = format!(
        "POST /import HTTP/1.1\r\nhost: x\r\n{}content-length: 1000000\r\n\r\n",
        header()
    );
    client.write(head.as_bytes()).await;
    client.write(&lines.as_bytes()[..cut]).await;
    // Half of the last line has been sent, and nothing more is. Who has read everything leaves after what he has sent;
    // otherwise the system may discard the end of that.
    assert_eq!(client.head().await.0, 200);
    let progress = client.chunk().await.unwrap();
    assert_eq!(progress, "data: {\"imported\":1000,\"gpos\":1000}\n\n");
    drop(client);
    for _ in 0..500 {
        if face.call(json!(["ns.info", "default"])).await["messageCount"] == 1699 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{}", face.call(json!(["ns.info", "default"])).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_removed_also_if_who_asked_for_it_leaves() {
    let face = Face::start().await;
    face.write("s").await;
    face.store.seen.clear_ms.store(200, SeqCst);
    let mut client = face.client().await;
    let head = format!(
        "POST /import?force=true HTTP/1.1\r\nhost: x\r\n{}content-length: 0\r\n\r\n",
        header()
    );
    client.write(head.as_bytes()).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(client);
    while face.store.seen.clears.load(SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(face.write("s").await, 1, "positions begin anew");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_imported_when_nothing_can_be_removed() {
    let face = Face::start().await;
    face.write("s").await;
    face.store.seen.clear_fails.store(true, SeqCst);
    let line = r#"{"stream":"t","type":"T","pos":0,"gpos":7,"time":"2026-01-15T10:00:00Z"}"#;
    let answer = face
        .send("POST", "/import?force=true", &header(), line.as_bytes())
        .await;
    assert_eq!(
        (answer.status, answer.headers["content-type"].as_str()),
        (500, "application/json")
    );
    assert_eq!(
        answer.text.trim_end(),
        r#"{"error":{"code":"CLEAR_FAILED","message":"the disk is full"}}"#
    );
    assert_eq!(face.call(json!(["stream.version", "s"])).await, 0);
    assert_eq!(face.call(json!(["stream.version", "t"])).await, serde_json::Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_who_may_write_may_import() {
    let face = Face::start().await;
    let made = face
        .call(json!(["token.create", "default", {"scopes": ["read"]}]))
        .await;
    let header = format!("authorization: Bearer {}\r\n", made["token"].as_str().unwrap());
    let answer = face.send("POST", "/import?force=true", &header, b"").await;
    assert_eq!(answer.status, 403, "{answer:?}");
    assert_eq!(face.store.seen.clears.load(SeqCst), 0);
}
