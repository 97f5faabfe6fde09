//! Compressed requests and responses, as clients send and read them.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_events::backup::{BackupPart, BackupReader};
use thalweg_events_api::EventsApiOptions;
use thalweg_log::disk::sim::Random;

use crate::client::{Client, RawAnswer};
use crate::face::{Face, TOKEN};

const CODINGS: [&str; 2] = ["gzip", "zstd"];

fn packed(coding: &str, bytes: &[u8]) -> Vec<u8> {
    if coding == "zstd" {
        return zstd::bulk::compress(bytes, 3).unwrap();
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn unpacked(coding: &str, bytes: &[u8]) -> String {
    let mut text = String::new();
    match coding {
        "zstd" => text = String::from_utf8(zstd::stream::decode_all(bytes).unwrap()).unwrap(),
        _ => drop(
            flate2::read::MultiGzDecoder::new(bytes)
                .read_to_string(&mut text)
                .unwrap(),
        ),
    }
    text
}

fn header(coding: &str) -> String {
    format!("authorization: Bearer {TOKEN}\r\ncontent-encoding: {coding}\r\n")
}

fn accepts(coding: &str) -> String {
    format!("authorization: Bearer {TOKEN}\r\naccept-encoding: {coding}\r\n")
}

async fn asked(face: &Face, method: &str, path: &str, headers: &str, body: &[u8]) -> RawAnswer {
    let mut client = face.client().await;
    client.begin(method, path, headers, body).await;
    client.raw_answer().await
}

/// A call with about 2 MB, of which compression saves half.
fn large_call() -> String {
    let text: String = (0..300_000).map(|n| format!("{n} ")).collect();
    json!(["stream.write", "s-1", {"type": "t", "data": {"x": text}}]).to_string()
}

/// A face with so many messages of about 300 bytes in the stream `s-1`.
async fn with_messages(count: usize) -> Face {
    let face = Face::start().await;
    for first in (0..count).step_by(1000) {
        let messages: Vec<Value> = (first..count.min(first + 1000))
            .map(|n| json!({"type": "Measured", "data": {"n": n, "text": "x".repeat(250)}}))
            .collect();
        face.call(json!(["stream.append", "s-1", messages])).await;
    }
    face
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compressed_call_is_the_call() {
    let face = Face::start().await;
    for (n, coding) in CODINGS.into_iter().enumerate() {
        // A small one, one that needs room, and one of several members or frames.
        let large = large_call();
        let small = r#"["stream.write","s-1",{"type":"t","data":{"n":1.10}}]"#;
        let (first, second) = small.split_at(20);
        let parts = [packed(coding, first.as_bytes()), packed(coding, second.as_bytes())].concat();
        for (k, body) in [
            packed(coding, small.as_bytes()),
            packed(coding, large.as_bytes()),
            parts,
        ]
        .iter()
        .enumerate()
        {
            let answer = face.send("POST", "/rpc", &header(coding), body).await;
            let position = n * 3 + k;
            let expected = format!("{{\"globalPosition\":{},\"position\":{position}}}\n", position + 1);
            assert_eq!((answer.status, answer.text), (200, expected));
        }
        // Without a length, too.
        let mut client = face.client().await;
        let body = packed(coding, br#"["sys.version"]"#);
        let head = format!(
            "POST /rpc HTTP/1.1\r\nhost: x\r\n{}transfer-encoding: chunked\r\n\r\n",
            header(coding)
        );
        client.write(head.as_bytes()).await;
        for byte in body {
            client.write(&[b"1\r\n", &[byte][..], b"\r\n"].concat()).await;
        }
        client.write(b"0\r\n\r\n").await;
        assert_eq!(client.answer().await.status, 200);
    }
    let last = face
        .call(json!(["stream.get", "s-1", {"position": 3, "batchSize": 1}]))
        .await;
    assert_eq!(last[0][4], json!({"n": 1.10}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_cannot_be_decompressed_is_refused_with_the_reason() {
    let face = Face::start().await;
    let spaces = vec![b' '; 101 << 20];
    let noise: Vec<u8> = (0..2_000_000_u32)
        .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect();
    for coding in CODINGS {
        let cut = packed(coding, br#"["sys.version"]"#);
        for (body, status, code, text) in [
            (cut[..cut.len() - 2].to_vec(), 400, "INVALID_REQUEST", coding),
            (b"[\"sys.version\"]".to_vec(), 400, "INVALID_REQUEST", coding),
            (
                packed(coding, b"[\"sys.version\""),
                400,
                "INVALID_REQUEST",
                "Malformed JSON request",
            ),
            (Vec::new(), 400, "INVALID_REQUEST", "empty body"),
            (packed(coding, b""), 400, "INVALID_REQUEST", "empty body"),
            // A hundred times as much as was sent is nothing special; this is a thousand times as much.
            (packed(coding, &spaces), 413, "PAYLOAD_TOO_LARGE", "1000 times"),
            (
                packed(coding, &[&noise[..], &spaces].concat()),
                413,
                "PAYLOAD_TOO_LARGE",
                "104857600 bytes",
            ),
        ] {
            let mut client = face.client().await;
            let answer = client.send("POST", "/rpc", &header(coding), &body).await;
            assert!(
                answer.status == status && answer.text.contains(code) && answer.text.contains(text),
                "{coding} {text}: {answer:?}"
            );
            assert_eq!(answer.headers["content-type"], "application/json");
            let next = client
                .send("POST", "/rpc", &accepts("identity"), br#"["sys.version"]"#)
                .await;
            assert_eq!(next.status, 200, "the connection goes on");
        }
    }
    for path in ["/rpc", "/import"] {
        for coding in ["br", "gzip, zstd"] {
            let answer = face.send("POST", path, &header(coding), b"abc").await;
            let expected = format!(
                "{{\"error\":{{\"code\":\"UNSUPPORTED_ENCODING\",\"message\":\"Content-Encoding is \\\"{coding}\\\"; send gzip, zstd or none\"}}}}\n"
            );
            assert_eq!((answer.status, answer.text), (415, expected));
            assert_eq!(answer.headers["accept-encoding"], "gzip, zstd");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_arrives_compressed_is_answered_in_json() {
    let face = Face::start().await;
    let mut random = Random::new(7);
    let mut client = face.client().await;
    let call = json!(["stream.write", "s-1", {"type": "t", "data": {"x": "abc ".repeat(500)}}]).to_string();
    for n in 0..400 {
        let coding = CODINGS[n % 2];
        let mut body = packed(coding, call.as_bytes());
        for _ in 0..=random.below(3) {
            let at = random.below(body.len() as u64) as usize;
            body[at] = random.number() as u8;
        }
        let answer = client.send("POST", "/rpc", &header(coding), &body).await;
        assert!(matches!(answer.status, 200 | 400 | 404 | 413), "{answer:?}");
        assert!(serde_json::from_str::<Value>(&answer.text).is_ok(), "{answer:?}");
    }
}

/// Many clients whose bodies become large, on a server with little memory for calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_become_large_share_the_memory_of_all_calls() {
    let options = EventsApiOptions {
        memory_bytes: 16 << 20,
        ..EventsApiOptions::default()
    };
    let face = Face::with(options).await;
    let call = large_call();
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (address, body) = (face.address.clone(), packed(CODINGS[n % 2], call.as_bytes()));
        calls.spawn(async move {
            loop {
                let mut client = Client::connect(&address).await;
                let answer = client.send("POST", "/rpc", &header(CODINGS[n % 2]), &body).await;
                match answer.status {
                    200 => return,
                    // On a slow machine the others need longer than a call waits for them.
                    503 => assert_eq!(answer.headers["retry-after"], "1"),
                    _ => panic!("{answer:?}"),
                }
            }
        });
    }
    calls.join_all().await;
    assert_eq!(face.call(json!(["stream.version", "s-1"])).await, 7);
}

fn line(global: u64) -> String {
    json!({"stream": "s", "type": "t", "pos": global - 1, "gpos": global, "data": {"n": global},
        "time": "2026-01-15T10:00:00Z"})
    .to_string()
        + "\n"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compressed_import_is_stored_while_it_arrives() {
    for coding in CODINGS {
        let face = Face::start().await;
        let first: String = (1..=2000).map(line).collect();
        let rest: String = (2001..=2500).map(line).collect();
        let (first, rest) = (packed(coding, first.as_bytes()), packed(coding, rest.as_bytes()));
        let mut client = face.client().await;
        let len = first.len() + rest.len();
        let head = format!(
            "POST /import HTTP/1.1\r\nhost: x\r\n{}content-length: {len}\r\n\r\n",
            header(coding)
        );
        client.write(head.as_bytes()).await;
        client.write(&first).await;
        let (status, headers) = client.head().await;
        assert_eq!((status, headers["content-type"].as_str()), (200, "text/event-stream"));
        let mut told = String::new();
        while !told.contains("{\"imported\":2000,\"gpos\":2000}") {
            told += &client.chunk().await.unwrap();
        }
        client.write(&rest).await;
        while let Some(more) = client.chunk().await {
            told += &more;
        }
        assert!(told.contains("{\"done\":true,\"imported\":2500,"), "{told}");
        assert_eq!(face.call(json!(["ns.info", "default"])).await["messageCount"], 2500);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_import_that_is_damaged_on_the_way_the_lines_before_it_are_stored_and_the_reason_is_told() {
    for coding in CODINGS {
        let face = Face::start().await;
        let lines: String = (1..=1700).map(line).collect();
        let whole = packed(coding, lines.as_bytes());
        let body = [&whole[..], b"neither gzip nor zstd", &vec![b'x'; 1 << 20]].concat();
        // Everything is sent before anything is read.
        let answer = face.send("POST", "/import", &header(coding), &body).await;
        let last = answer
            .text
            .split("\n\n")
            .filter(|event| !event.is_empty())
            .last()
            .unwrap();
        let start = format!("data: {{\"error\":\"READ_ERROR\",\"message\":\"the body is no {coding} after ");
        assert!(
            last.starts_with(&start) && last.ends_with("\"imported\":1700,\"read\":1700}"),
            "{last}"
        );
        assert_eq!(face.call(json!(["ns.info", "default"])).await["messageCount"], 1700);
        let bomb = packed(coding, &vec![b'\n'; 64 << 20]);
        let answer = face.send("POST", "/import", &header(coding), &bomb).await;
        assert!(
            answer.text.contains("READ_ERROR") && answer.text.contains("1000 times"),
            "{answer:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_accepts_compressed_responses_gets_the_same_in_fewer_bytes() {
    let face = with_messages(3000).await;
    let calls = [
        // As a whole, in pieces as they are read, and a list.
        r#"["stream.get","s-1"]"#,
        r#"["stream.get","s-1",{"batchSize":-1}]"#,
        r#"["category.get","s",{"batchSize":-1}]"#,
    ];
    for call in calls {
        let plain = asked(&face, "POST", "/rpc", &accepts("identity"), call.as_bytes()).await;
        assert_eq!((plain.status, plain.headers.get("content-encoding")), (200, None));
        assert_eq!(plain.headers["vary"], "accept-encoding");
        for (coding, accepted) in [("gzip", "gzip, deflate, br"), ("zstd", "gzip, deflate, br, zstd")] {
            let answer = asked(&face, "POST", "/rpc", &accepts(accepted), call.as_bytes()).await;
            assert_eq!(answer.status, 200);
            assert_eq!(answer.headers["content-encoding"], coding, "{call}");
            assert_eq!(answer.headers["content-type"], "application/json");
            assert!(
                answer.body.len() * 4 < plain.body.len(),
                "{} of {}",
                answer.body.len(),
                plain.body.len()
            );
            assert!(unpacked(coding, &answer.body).as_bytes() == plain.body, "{call}");
        }
    }
    let short = asked(&face, "POST", "/rpc", &accepts("gzip"), br#"["stream.version","s-1"]"#).await;
    assert_eq!(
        (short.body.as_slice(), short.headers.get("content-encoding")),
        (&b"2999\n"[..], None)
    );
    let metrics = asked(&face, "GET", "/metrics", &accepts("gzip"), b"").await;
    assert_eq!(metrics.headers["content-encoding"], "gzip");
    assert!(unpacked("gzip", &metrics.body).contains("thalweg_events_requests_total"));
    let refused = asked(&face, "POST", "/rpc", &accepts("gzip"), br#"["no.such"]"#).await;
    assert_eq!((refused.status, refused.headers.get("content-encoding")), (404, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_is_compressed_for_who_accepts_it() {
    let face = with_messages(2000).await;
    for coding in CODINGS {
        let answer = asked(&face, "GET", "/api/v1/events/backup", &accepts(coding), b"").await;
        assert_eq!(
            (answer.status, answer.headers["content-encoding"].as_str()),
            (200, coding)
        );
        let bytes = match coding {
            "zstd" => zstd::stream::decode_all(&answer.body[..]).unwrap(),
            _ => {
                let mut bytes = Vec::new();
                flate2::read::MultiGzDecoder::new(&answer.body[..])
                    .read_to_end(&mut bytes)
                    .unwrap();
                bytes
            }
        };
        assert!(answer.body.len() * 4 < bytes.len());
        let mut backup = BackupReader::new(&bytes[..]).unwrap();
        let mut messages = None;
        while let Some(part) = backup.next_part().unwrap() {
            if let BackupPart::End(counts) = part {
                messages = Some(counts.messages);
            }
        }
        assert_eq!(messages, Some(2000));
    }
}

/// Whole messages are compressed one by one; pokes, which existing clients read, stay as they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_messages_reach_a_subscriber_compressed_and_at_once_and_pokes_stay_plain() {
    for (coding, query) in [
        ("gzip", "category=s&data=true"),
        ("zstd", "category=s&data=true"),
        ("gzip", "subscription=all"),
        ("zstd", "subscription=all"),
    ] {
        let face = Face::start().await;
        face.call(json!(["sub.create", "all", {"all": true, "from": "start"}]))
            .await;
        let mut client = face.client().await;
        let head = format!("GET /subscribe?{query} HTTP/1.1\r\nhost: x\r\n{}\r\n", accepts(coding));
        client.write(head.as_bytes()).await;
        let (status, headers) = client.head().await;
        assert_eq!((status, headers["content-encoding"].as_str()), (200, coding));
        assert_eq!(headers["content-type"], "text/event-stream");
        let mut came = client.piece().await.unwrap();
        for n in 0..5 {
            let text = format!("message {n}");
            face.call(json!(["stream.write", format!("s-{n}"), {"type": "t", "data": {"text": text}}]))
                .await;
            // One chunk is enough for the whole message.
            let expected = format!("{{\"text\":\"{text}\"}}");
            let chunk = tokio::time::timeout(Duration::from_secs(10), client.piece()).await;
            came.extend(chunk.unwrap().unwrap());
            let told = begun(coding, &came);
            assert!(told.contains(&expected) && told.ends_with("\n\n"), "{query}: {told}");
        }
        assert!(begun(coding, &came).starts_with(": ready\n\n"));
        face.server.stop();
        while let Some(chunk) = client.piece().await {
            came.extend(chunk);
        }
        assert!(unpacked(coding, &came).ends_with("\n\n"), "the body ends properly");
    }
    let face = Face::start().await;
    let mut pokes = face
        .subscribe_as(TOKEN, "all=true", "accept-encoding: gzip, zstd\r\n")
        .await;
    face.write("s-1").await;
    assert_eq!(pokes.next().await, crate::client::poke("s-1", 0, 1));
}

/// What can be decompressed of a body that has not ended.
fn begun(coding: &str, bytes: &[u8]) -> String {
    let mut text = Vec::new();
    let cut = match coding {
        "zstd" => zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut text),
        _ => flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut text),
    };
    assert!(cut.is_err());
    String::from_utf8(text).unwrap()
}
