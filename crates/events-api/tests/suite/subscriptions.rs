//! A subscriber gets every message that matches, once and in order, whatever else happens.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_console::HttpLimits;
use thalweg_events_api::EventsApiOptions;

use crate::client::{Client, Pokes, poke};
use crate::face::{Face, TOKEN, limits};

/// The global positions of a page, as `category.get` returns them.
async fn stored(face: &Face, call: Value) -> Vec<u64> {
    let at = if call[0] == "stream.get" { 3 } else { 4 };
    let rows = face.call(call).await;
    rows.as_array()
        .unwrap()
        .iter()
        .map(|row| row[at].as_u64().unwrap())
        .collect()
}

fn tiny() -> EventsApiOptions {
    EventsApiOptions {
        recent_messages: 4,
        ..EventsApiOptions::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_subscriber_misses_or_repeats_anything_while_many_write_and_little_is_kept() {
    const WRITERS: u64 = 4;
    const EACH: u64 = 150;
    for options in [tiny(), EventsApiOptions::default()] {
        let face = Arc::new(Face::with(options).await);
        for n in 0..50 {
            face.write(&format!("c-{}", n % 3)).await;
        }
        let queries = [
            ("category=c", json!(["category.get", "c", {"batchSize": -1}])),
            ("stream=c-1", json!(["stream.get", "c-1", {"batchSize": -1}])),
            ("all=true&catchup=true", json!(["category.get", "", {"batchSize": -1}])),
            ("category=c&data=true", json!(["category.get", "c", {"batchSize": -1}])),
            (
                "category=c&consumer=1&size=2",
                json!(["category.get", "c", {"batchSize": -1, "consumerGroup": {"member": 1, "size": 2}}]),
            ),
            (
                "stream=c-1&lastEventId=20",
                json!(["stream.get", "c-1", {"globalPosition": 21, "batchSize": -1}]),
            ),
        ];
        let writers = (0..WRITERS).map(|writer| {
            let face = face.clone();
            tokio::spawn(async move {
                for n in 0..EACH {
                    face.write(&format!("{}-{}", ["c", "d"][(n % 2) as usize], (n + writer) % 3))
                        .await;
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        let mut readers = Vec::new();
        for (query, call) in queries {
            for rest_ms in [0, 3] {
                let mut pokes = face.subscribe(query).await;
                let (tell, heard) = tokio::sync::mpsc::unbounded_channel();
                tokio::spawn(async move {
                    while tell.send(pokes.global().await).is_ok() {
                        if rest_ms > 0 {
                            tokio::time::sleep(Duration::from_millis(rest_ms)).await;
                        }
                    }
                });
                readers.push((query, call.clone(), heard));
            }
        }
        for writer in writers {
            writer.await.unwrap();
        }
        for (query, call, mut heard) in readers {
            let expected = stored(&face, call).await;
            let mut all = Vec::new();
            while all.len() < expected.len() {
                match tokio::time::timeout(Duration::from_secs(60), heard.recv()).await {
                    Ok(Some(global)) => all.push(global),
                    _ => panic!("{query}: {} of {} came", all.len(), expected.len()),
                }
            }
            assert_eq!(all, expected, "{query}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_new_is_read_once_for_a_thousand_subscribers() {
    let face = Face::start().await;
    face.write("c-1").await;
    let mut all = Vec::new();
    for _ in 0..1000 {
        all.push(face.subscribe("category=c&position=2").await);
    }
    let before = face.store.reads();
    let global = face.write("c-1").await;
    for pokes in &mut all {
        assert_eq!(pokes.next().await, poke("c-1", 1, global));
    }
    let reads = face.store.reads() - before;
    assert!(reads < 10, "{reads} reads for one message");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_comes_also_where_much_happens_that_is_for_others() {
    assert_eq!(EventsApiOptions::default().heartbeat, Duration::from_secs(15));
    let face = Arc::new(
        Face::with(EventsApiOptions {
            heartbeat: Duration::from_millis(30),
            ..EventsApiOptions::default()
        })
        .await,
    );
    let mut quiet = face.subscribe("category=c&types=Never").await;
    let mut nothing = face.subscribe("category=a-b").await;
    let busy = face.clone();
    let writer = tokio::spawn(async move {
        loop {
            busy.write("c-1").await;
        }
    });
    for pokes in [&mut quiet, &mut nothing] {
        for _ in 0..3 {
            assert_eq!(pokes.0.chunk().await.as_deref(), Some(": hb\n\n"));
        }
    }
    writer.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_everything_was_removed_what_comes_is_new_to_all() {
    for options in [tiny(), EventsApiOptions::default()] {
        let face = Face::with(options).await;
        for _ in 0..10 {
            face.write("c-1").await;
        }
        let mut subscribers = Vec::new();
        for query in [
            "stream=c-1&position=10",
            "category=c&position=11",
            "all=true",
            "stream=c-1&lastEventId=10",
        ] {
            subscribers.push(face.subscribe(query).await);
        }
        let waiting = {
            let call = json!(["stream.get", "c-1", {"position": 10, "waitMs": 30000}]);
            let mut client = face.client().await;
            let header = format!("authorization: Bearer {TOKEN}\r\n");
            tokio::spawn(async move { client.send("POST", "/rpc", &header, call.to_string().as_bytes()).await })
        };
        tokio::time::sleep(Duration::from_millis(50)).await;
        let lines: String = (0..6u64).map(|n| record("c-1", n, n + 1)).collect();
        let header = format!("authorization: Bearer {TOKEN}\r\n");
        let answer = face.send("POST", "/import?force=true", &header, lines.as_bytes()).await;
        assert!(answer.text.contains("\"done\":true,\"imported\":6"), "{}", answer.text);
        for pokes in &mut subscribers {
            assert_eq!(pokes.globals(6).await, [1, 2, 3, 4, 5, 6]);
        }
        let rows: Value = serde_json::from_str(&waiting.await.unwrap().text).unwrap();
        assert_eq!(rows.as_array().unwrap().len(), 6, "{rows}");
        let global = face.write("c-1").await;
        for pokes in &mut subscribers {
            assert_eq!(pokes.next().await, poke("c-1", 6, global));
        }
    }
}

fn record(stream: &str, position: u64, global: u64) -> String {
    json!({"stream": stream, "type": "t", "pos": position, "gpos": global, "data": {}, "time": "2026-01-15T10:00:00Z"})
        .to_string()
        + "\n"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_ends_properly_with_the_token_the_namespace_or_the_server() {
    let face = Face::start().await;
    let made = face.call(json!(["ns.create", "other"])).await;
    let of_other = made["token"].as_str().unwrap().to_owned();
    let mut deleted = face.subscribe_as(&of_other, "all=true", "").await;
    face.call(json!(["ns.delete", "other"])).await;
    deleted.end().await;

    let made = face
        .call(json!(["token.create", "default", {"scopes": ["read"]}]))
        .await;
    let (token, id) = (made["token"].as_str().unwrap().to_owned(), made["id"].as_str().unwrap());
    let mut revoked = face.subscribe_as(&token, "category=c", "").await;
    let mut stays = face.subscribe("category=c").await;
    let revoke = face.call(json!(["token.revoke", "default", id])).await;
    assert_eq!(revoke["revoked"], true);
    revoked.end().await;
    assert_eq!(face.rpc_as(&token, r#"["sys.version"]"#).await.0, 403);

    let soon = thalweg_events::time::text(thalweg_events::time::now() + 500_000);
    let made = face
        .call(json!(["token.create", "default", {"scopes": ["read"], "expiresAt": soon}]))
        .await;
    let mut expires = face.subscribe_as(made["token"].as_str().unwrap(), "stream=s", "").await;
    expires.end().await;

    let global = face.write("c-1").await;
    assert_eq!(stays.global().await, global, "other tokens go on");
    face.server.stop();
    stays.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_has_always_more_to_hear_ends_with_its_token_too() {
    let face = Arc::new(Face::with(tiny()).await);
    let made = face
        .call(json!(["token.create", "default", {"scopes": ["read"]}]))
        .await;
    let (token, id) = (made["token"].as_str().unwrap().to_owned(), made["id"].as_str().unwrap());
    let busy = face.clone();
    let writer = tokio::spawn(async move {
        loop {
            busy.write("c-1").await;
        }
    });
    let mut pokes = face.subscribe_as(&token, "all=true&catchup=true", "").await;
    pokes.globals(20).await;
    face.call(json!(["token.revoke", "default", id])).await;
    pokes.end().await;
    writer.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_choose_what_is_told_of_history_and_of_what_comes_alike() {
    let face = Face::start().await;
    let write = |stream: &'static str, kind: &'static str, meta: Value| {
        let face = &face;
        async move {
            let call = json!(["stream.write", stream, {"type": kind, "data": {"n": 1}, "metadata": meta}]);
            face.call(call).await["globalPosition"].as_u64().unwrap()
        }
    };
    let correlated = || json!({"correlationStreamName": "order-7"});
    let mut expected: Vec<Vec<u64>> = vec![Vec::new(); 3];
    let mut subscribers: Vec<Pokes> = Vec::new();
    for round in 0..2 {
        expected[0].push(write("c-1", "A", correlated()).await);
        write("c-1", "B", json!({"correlationStreamName": "order"})).await;
        expected[1].push(write("c-1", "C", json!({"correlationStreamName": 5})).await);
        expected[2].push(write("c-1", "D", correlated()).await);
        write("d-1", "A", correlated()).await;
        if round == 0 {
            for query in [
                "category=c&types=A",
                "stream=c-1&types=C,E",
                "stream=c-1&correlation=order&types=D",
            ] {
                subscribers.push(face.subscribe(query).await);
            }
        }
    }
    for (pokes, expected) in subscribers.iter_mut().zip(&expected) {
        assert_eq!(&pokes.globals(2).await, expected);
    }
    // Same for a stream and a category: the second message counts too, because `order` is its own category.
    for query in ["stream=c-1&correlation=order", "category=c&correlation=order"] {
        assert_eq!(
            face.subscribe(query).await.globals(6).await,
            [1, 2, 4, 6, 7, 9],
            "{query}"
        );
    }
    let mut coalesced = face.subscribe("all=true&catchup=true&coalesce=true").await;
    assert_eq!(coalesced.globals(2).await, [9, 10], "the newest of each stream");
    let global = face.write("d-1").await;
    assert_eq!(coalesced.next().await, poke("d-1", 2, global));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_all_that_waits_only_the_newest_of_each_stream_is_told() {
    let face = Face::start().await;
    let messages: Vec<Value> = (0..900).map(|n| json!({"type": "t", "data": {"n": n}})).collect();
    for stream in ["c-1", "d-1", "c-2", "c-1"] {
        face.call(json!(["stream.append", stream, messages])).await;
    }
    let mut all = face.subscribe("all=true&catchup=true&coalesce=true").await;
    assert_eq!(all.globals(3).await, [1800, 2700, 3600]);
    let mut category = face.subscribe("category=c&position=1&coalesce=true").await;
    assert_eq!(category.globals(2).await, [2700, 3600]);
    let mut stream = face.subscribe("stream=c-1&coalesce=true").await;
    assert_eq!(stream.next().await, poke("c-1", 1799, 3600));
    let global = face.write("c-2").await;
    for pokes in [&mut all, &mut category] {
        assert_eq!(pokes.next().await, poke("c-2", 900, global));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_message_comes_in_several_chunks_and_a_poke_always_in_one() {
    let face = Face::start().await;
    let mut live = face.subscribe("all=true&data=true").await;
    let long = "ä".repeat(500);
    let texts = ["x".repeat(10), "x".repeat(40_000), "x".repeat(300_000)];
    for text in &texts {
        face.call(json!(["stream.write", format!("{long}-1"), {"type": "t", "data": {"text": text}}]))
            .await;
    }
    let mut pokes = face.subscribe("all=true&catchup=true").await;
    for (global, position) in (1..=3).zip(0..) {
        assert_eq!(pokes.next().await, poke(&format!("{long}-1"), position, global));
    }
    let mut stored = face.subscribe("all=true&catchup=true&data=true").await;
    for pokes in [&mut live, &mut stored] {
        for (text, global) in texts.iter().zip(1..) {
            let (mut event, mut chunks) = (String::new(), 0);
            while !event.ends_with("\n\n") {
                let chunk = pokes.next().await;
                assert!(chunk.len() <= 16 << 10);
                event.push_str(&chunk);
                chunks += 1;
            }
            assert_eq!(chunks, event.len().div_ceil(16 << 10));
            let start = format!("event: message\nid: {global}\ndata: ");
            let row: Value = serde_json::from_str(event.strip_prefix(&start).unwrap().trim_end()).unwrap();
            assert_eq!(
                (row.as_array().unwrap().len(), row[5]["text"].as_str()),
                (8, Some(text.as_str()))
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_it_begins_is_as_the_kind_of_subscription_says() {
    let face = Face::start().await;
    for n in 0..6 {
        face.write(&format!("c-{}", n % 2)).await;
    }
    let far = u64::MAX.to_string();
    for (query, header, expected) in [
        ("stream=c-0", "", vec![1, 3, 5]),
        ("stream=c-0&position=1", "", vec![3, 5]),
        ("stream=c-0&position=-9", "", vec![1, 3, 5]),
        ("stream=c-0&lastEventId=2", "", vec![3, 5]),
        ("stream=c-0", "last-event-id: 3\r\n", vec![5]),
        ("category=c&position=5", "", vec![5, 6]),
        ("category=c&position=5&lastEventId=3", "", vec![4, 5, 6]),
        ("category=c&lastEventId=4", "last-event-id: x\r\n", vec![5, 6]),
        ("all=true", "", vec![]),
        ("all=true&position=2", "", vec![]),
        ("all=true&catchup=true&position=5", "", vec![5, 6]),
        ("all=true&lastEventId=4", "", vec![5, 6]),
    ] {
        let mut pokes = face.subscribe_as(TOKEN, query, header).await;
        assert_eq!(pokes.globals(expected.len()).await, expected, "{query} {header}");
    }
    let mut ahead = Vec::new();
    for query in [
        format!("category=c&position={far}"),
        format!("all=true&lastEventId={far}"),
        format!("stream=c-0&position={far}"),
        format!("stream=c-0&lastEventId={far}"),
        "category=c&position=9".to_owned(),
    ] {
        ahead.push(face.subscribe(&query).await);
    }
    let mut live = face.subscribe("all=true").await;
    for _ in 0..3 {
        face.write("c-0").await;
    }
    assert_eq!(live.globals(3).await, [7, 8, 9]);
    assert_eq!(ahead[4].global().await, 9, "nothing below the position");
    face.server.stop();
    for pokes in &mut ahead {
        assert_eq!(pokes.0.chunk().await, None, "nothing is told of what is below");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_imported_is_told_like_what_is_written() {
    let face = Face::start().await;
    let mut pokes = face.subscribe("category=i").await;
    let lines: String = [3u64, 1, 2].iter().map(|n| record("i-1", 10 * n, 100 * n)).collect();
    let header = format!("authorization: Bearer {TOKEN}\r\n");
    face.send("POST", "/import", &header, lines.as_bytes()).await;
    assert_eq!(pokes.globals(3).await, [100, 200, 300]);
    face.send("POST", "/import", &header, record("i-1", 15, 150).as_bytes())
        .await;
    let global = face.write("i-1").await;
    assert_eq!(pokes.global().await, global, "nothing below its place");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_address_is_told_as_plain_text_and_a_wrong_token_as_json() {
    let face = Face::start().await;
    let header = format!("authorization: Bearer {TOKEN}\r\n");
    let answer = face.send("GET", "/subscribe?category=c&size=-1", &header, b"").await;
    assert_eq!((answer.status, answer.text.as_str()), (400, "Invalid size parameter"));
    assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8");
    let answer = face.send("GET", "/subscribe", "", b"").await;
    assert_eq!(
        (answer.status, answer.headers["content-type"].as_str()),
        (401, "application/json")
    );
    let answer = face.send("POST", "/subscribe?all=true", &header, b"").await;
    assert_eq!(answer.status, 405);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_is_forgotten() {
    let face = Face::start().await;
    let pokes = face.subscribe("stream=s").await;
    assert!(face.metrics.text().contains("thalweg_events_subscribers 1\n"));
    drop(pokes);
    // Only a failed write shows that the client has left; messages cause writes.
    loop {
        face.write("s").await;
        if face.metrics.text().contains("thalweg_events_subscribers 0\n") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_nothing_for_too_long_is_closed_and_resumes() {
    let limits = HttpLimits {
        push_stall_max: Duration::from_millis(300),
        ..limits()
    };
    let face = Face::within(EventsApiOptions::default(), limits).await;
    let mut idle = face.subscribe("stream=other").await;
    let mut stalled = face.subscribe("stream=s&data=true").await;
    // More than the system buffers for a connection.
    let text = "x".repeat(1 << 20);
    let globals = 1..=24;
    for _ in globals.clone() {
        face.call(json!(["stream.write", "s", {"type": "t", "data": {"text": text}}]))
            .await;
    }
    while !face.metrics.text().contains("thalweg_events_subscribers 1\n") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // A connection with nothing to send is left alone.
    face.write("other").await;
    assert_eq!(idle.global().await, 25);
    let mut taken = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut stalled.0.0, &mut taken).await;
    assert!(
        !taken.ends_with(b"\r\n0\r\n\r\n"),
        "a body that was cut off is not ended properly"
    );
    let taken = String::from_utf8(taken).unwrap();
    let mut began = taken.matches("event: message\nid: ").count() as u64;
    assert!((1..24).contains(&began), "{began}");
    // The last one is incomplete.
    began -= 1;
    let header = format!("last-event-id: {began}\r\n");
    let mut resumed = face.subscribe_as(TOKEN, "stream=s", &header).await;
    assert_eq!(
        resumed.globals(24 - began as usize).await,
        globals.skip(began as usize).collect::<Vec<_>>()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_test_mode_a_namespace_that_is_not_there_is_told() {
    let face = Face::with(EventsApiOptions {
        test_mode: true,
        ..EventsApiOptions::default()
    })
    .await;
    let nobody = format!("/subscribe?all=true&token=ns_eA_{}", "0".repeat(64));
    let answer = face.send("GET", &nobody, "", b"").await;
    assert_eq!(answer.status, 404, "{answer:?}");
    assert!(
        answer
            .text
            .contains("\"NAMESPACE_NOT_FOUND\",\"message\":\"Namespace 'x' not found\"")
    );
    // Any other caller gets `default`, and stays while it exists.
    let mut client = Client::connect(&face.address).await;
    client
        .write(b"GET /subscribe?all=true&token=nonsense HTTP/1.1\r\nhost: x\r\n\r\n")
        .await;
    assert_eq!(client.head().await.0, 200);
}
