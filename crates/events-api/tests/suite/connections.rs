//! Rules for every connection, whatever is requested on it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, Version};
use futures::StreamExt as _;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use thalweg_console::HttpLimits;
use thalweg_events_api::{EventsApiOptions, EventsApiServer};
use thalweg_telemetry::Metrics;
use tokio::io::AsyncBufReadExt as _;
use tokio::net::TcpStream;

use crate::client::Client;
use crate::double::Double;
use crate::face::{Face, TOKEN, limits, serve};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_names_the_server_and_every_refusal_of_a_call_is_json() {
    let face = Face::start().await;
    let header = format!("authorization: Bearer {TOKEN}\r\n");
    for (method, path, headers, status) in [
        ("GET", "/health", "", 200),
        ("PUT", "/health", "", 200),
        ("GET", "/version", "", 200),
        ("GET", "/ready", "", 200),
        ("GET", "/metrics", "", 200),
        ("GET", "/nowhere", "", 404),
        ("POST", "/rpc", "", 401),
        ("GET", "/rpc", header.as_str(), 405),
        ("POST", "/rpc", header.as_str(), 400),
        ("GET", "/import", header.as_str(), 405),
    ] {
        let answer = face.send(method, path, headers, b"").await;
        assert_eq!(
            (answer.status, answer.headers["server"].as_str()),
            (status, "Thalweg/1.2.3"),
            "{method} {path}"
        );
        if status != 200 {
            assert_eq!(answer.headers["content-type"], "application/json");
            let json: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
            assert!(json["error"]["code"].is_string(), "{answer:?}");
        }
    }
    let mut client = face.client().await;
    for _ in 0..3 {
        assert_eq!(
            client.send("GET", "/version", "", b"").await.status,
            200,
            "the connection is kept"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_request_leaves_its_connection_usable_or_says_that_it_does_not() {
    let face = Face::start().await;
    let mut client = face.client().await;
    for _ in 0..2 {
        client
            .write(b"POST /rpc HTTP/1.1\r\nhost: x\r\ncontent-length: 15\r\n\r\n")
            .await;
        // By now the server has refused the request and will not process the body.
        tokio::time::sleep(Duration::from_millis(20)).await;
        client.write(b"[\"sys.version\"]").await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.headers.get("connection")), (401, None));
    }
    for (length, expect) in [("1000000", ""), ("15", "expect: 100-continue\r\n")] {
        let mut client = face.client().await;
        let head = format!("POST /rpc HTTP/1.1\r\nhost: x\r\n{expect}content-length: {length}\r\n\r\n");
        client.write(head.as_bytes()).await;
        let answer = client.answer().await;
        let connection = answer.headers.get("connection").map(String::as_str);
        assert_eq!((answer.status, connection), (401, Some("close")), "{length}");
        assert!(client.is_closed().await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_head_over_the_limit_is_told_in_json() {
    let face = Face::start().await;
    let long = "x".repeat(70_000);
    let many = "a: b\r\n".repeat(20_000);
    for head in [
        format!("POST /rpc HTTP/1.1\r\nhost: x\r\nlong: {long}\r\n\r\n"),
        format!("POST /rpc?{long} HTTP/1.1\r\nhost: x\r\n\r\n"),
        format!("POST /rpc HTTP/1.1\r\nhost: x\r\n{many}\r\n"),
    ] {
        let mut client = face.client().await;
        client.write(head.as_bytes()).await;
        let answer = client.answer().await;
        let expected = "{\"error\":{\"code\":\"INVALID_REQUEST\",\"message\":\"Request header too large\"}}\n";
        assert_eq!((answer.status, answer.text.as_str()), (431, expected));
        assert_eq!(answer.headers["content-type"], "application/json");
        assert_eq!(answer.headers["server"], "Thalweg/1.2.3");
        assert!(client.is_closed().await);
    }
    let fits = format!("long: {}\r\n", "x".repeat(60_000));
    assert_eq!(face.send("GET", "/health", &fits, b"").await.status, 200);
    let mut client = face.client().await;
    client.write(b"POST /rpc HTTP/1.1\r\n: nameless\r\n\r\n").await;
    let answer = client.answer().await;
    let expected = "{\"error\":{\"code\":\"INVALID_REQUEST\",\"message\":\"Malformed HTTP request\"}}\n";
    assert_eq!((answer.status, answer.text.as_str()), (400, expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_tls_there_is_no_http_2() {
    let face = Face::start().await;
    let mut client = face.client().await;
    client
        .write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await;
    let mut answer = Vec::new();
    let _ = tokio::io::AsyncReadExt::read_to_end(&mut client.0, &mut answer).await;
    let settings = answer.get(3) == Some(&4);
    assert!(!settings, "a server of HTTP/2 begins with its settings: {answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_left_unfinished_costs_its_connection_and_a_wait_does_not() {
    let limits = HttpLimits {
        request_stall_max: Some(Duration::from_millis(100)),
        ..limits()
    };
    let face = Face::within(EventsApiOptions::default(), limits).await;
    let head = format!("POST /rpc HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n");
    for sent in [
        "P".to_owned(),
        head.clone(),
        format!("{head}content-length: 100\r\n\r\n"),
        format!("{head}content-length: 100\r\n\r\n[\"sys."),
    ] {
        let mut client = face.client().await;
        client.write(sent.as_bytes()).await;
        let mut rest = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut client.0, &mut rest).await;
    }
    // Three times as long as a request may stall: whoever has begun none stays connected.
    let idle = async || tokio::time::sleep(Duration::from_millis(300)).await;
    let mut client = face.client().await;
    idle().await;
    let call = br#"["stream.get","s",{"waitMs":400}]"#;
    let header = format!("authorization: Bearer {TOKEN}\r\n");
    for _ in 0..2 {
        let answer = client.send("POST", "/rpc", &header, call).await;
        assert_eq!(
            (answer.status, answer.text.as_str()),
            (200, "[]\n"),
            "idle and waiting clients are left alone"
        );
        idle().await;
    }
    let mut pokes = face.subscribe("all=true").await;
    idle().await;
    face.write("s").await;
    assert_eq!(pokes.global().await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_too_many_is_told_so_in_json() {
    let limits = HttpLimits {
        connections_max: 1,
        ..limits()
    };
    let face = Face::within(EventsApiOptions::default(), limits).await;
    let _listening = face.subscribe("all=true").await;
    let answer = Client::connect(&face.address).await.answer().await;
    let expected = "{\"error\":{\"code\":\"UNAVAILABLE\",\"message\":\"Too many connections\"}}\n";
    assert_eq!((answer.status, answer.text.as_str()), (503, expected));
    assert_eq!(answer.headers["retry-after"], "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_come_while_the_store_is_being_opened_are_answered_when_it_is() {
    let metrics = Arc::new(Metrics::new(false));
    let server = EventsApiServer::starting(EventsApiOptions::default(), metrics.clone());
    let (_running, address) = serve(&server, limits(), &metrics).await;
    let header = format!("authorization: Bearer {TOKEN}\r\n");
    let line = r#"{"stream":"t","type":"T","pos":0,"gpos":7,"time":"2026-01-15T10:00:00Z"}"#;
    let requests = [
        ("POST", "/rpc", r#"["sys.version"]"#),
        ("POST", "/rpc", r#"["stream.write","s",{"type":"t","data":{}}]"#),
        ("POST", "/import", line),
        ("GET", "/subscribe?all=true", ""),
        ("GET", "/api/v1/events/backup", ""),
    ];
    let mut waiting = Vec::new();
    for (method, path, body) in requests {
        let mut client = Client::connect(&address).await;
        client.begin(method, path, &header, body.as_bytes()).await;
        waiting.push(client);
    }
    // Others are answered meanwhile, as well as those who will never be admitted.
    for (method, path, headers, status) in [
        ("GET", "/health", "", 200),
        ("GET", "/ready", "", 503),
        ("POST", "/rpc", "", 401),
        ("POST", "/rpc", "authorization: Bearer x\r\n", 401),
    ] {
        let answer = Client::connect(&address).await.send(method, path, headers, b"").await;
        assert_eq!(answer.status, status, "{method} {path}");
    }
    for client in &mut waiting {
        let early = tokio::time::timeout(Duration::from_millis(20), client.0.fill_buf()).await;
        assert!(early.is_err(), "it is not answered yet");
    }
    server.open(Double::open().await);
    for (client, (_, path, _)) in waiting.iter_mut().zip(requests) {
        assert_eq!(client.head().await.0, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_the_wait_for_a_store_that_is_being_opened() {
    let metrics = Arc::new(Metrics::new(false));
    let server = EventsApiServer::starting(EventsApiOptions::default(), metrics.clone());
    let (_running, address) = serve(&server, limits(), &metrics).await;
    let mut client = Client::connect(&address).await;
    let header = format!("authorization: Bearer {TOKEN}\r\n");
    client.begin("POST", "/rpc", &header, br#"["sys.version"]"#).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.stop();
    let answer = client.answer().await;
    assert!(
        answer.status == 503 && answer.text.contains("The server is shutting down"),
        "{answer:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_store_is_recovering_for_long_the_server_says_that_it_lives_and_is_not_ready() {
    let metrics = Arc::new(Metrics::new(false));
    let options = EventsApiOptions {
        opening_patience: Duration::from_millis(50),
        ..EventsApiOptions::default()
    };
    let server = EventsApiServer::starting(options, metrics.clone());
    let (_running, address) = serve(&server, limits(), &metrics).await;
    let header = format!("authorization: Bearer {TOKEN}\r\n");
    let ask = |method: &'static str, path: &'static str| {
        let (address, header) = (address.clone(), header.clone());
        async move {
            let mut client = Client::connect(&address).await;
            client.send(method, path, &header, br#"["sys.version"]"#).await
        }
    };
    let paths = [
        ("GET", "/health"),
        ("GET", "/version"),
        ("GET", "/metrics"),
        ("GET", "/ready"),
        ("POST", "/rpc"),
        ("POST", "/import"),
        ("GET", "/subscribe?all=true"),
    ];
    for (method, path) in paths {
        let answer = ask(method, path).await;
        let works = matches!(path, "/health" | "/version" | "/metrics");
        assert_eq!(answer.status, if works { 200 } else { 503 }, "{path}");
        if !works {
            let expected = "{\"error\":{\"code\":\"UNAVAILABLE\",\"message\":\"The store is recovering\"}}\n";
            assert_eq!(
                (answer.text.as_str(), answer.headers["retry-after"].as_str()),
                (expected, "1")
            );
        }
    }
    server.open(Double::open().await);
    for (method, path) in &paths[..5] {
        assert_eq!(ask(method, path).await.status, 200, "{path}");
    }
}

/// With HTTP/2, as the listener of the whole process and every listener with TLS allow it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_and_subscriptions_go_through_http2_too() {
    let limits = HttpLimits {
        http2_in_clear: true,
        ..limits()
    };
    let face = Face::within(EventsApiOptions::default(), limits).await;
    let io = TokioIo::new(TcpStream::connect(&face.address).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = |method: &str, path: &str, body: &'static str| {
        let uri = format!("http://{}{path}", face.address);
        let token = format!("Bearer {TOKEN}");
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header("authorization", token);
        request.body(Body::from(body)).unwrap()
    };
    let listening = sender
        .send_request(request("GET", "/subscribe?stream=s-1", ""))
        .await
        .unwrap();
    assert_eq!(
        (listening.status().as_u16(), listening.version()),
        (200, Version::HTTP_2)
    );
    let written = request(
        "POST",
        "/rpc",
        r#"["stream.write","s-1",{"type":"t","data":{"n":1.10}}]"#,
    );
    let written = sender.send_request(written).await.unwrap();
    assert_eq!(written.status(), 200);
    let written = to_bytes(Body::new(written.into_body()), 1000).await.unwrap();
    assert!(written.starts_with(b"{\"globalPosition\":1,"), "{written:?}");
    let mut told = Body::new(listening.into_body()).into_data_stream();
    let mut text = String::new();
    while !text.contains("event: poke") {
        let piece = told.next().await.unwrap().unwrap();
        text += std::str::from_utf8(&piece).unwrap();
    }
    let read = sender
        .send_request(request("POST", "/rpc", r#"["stream.get","s-1"]"#))
        .await
        .unwrap();
    let read = to_bytes(Body::new(read.into_body()), 1000).await.unwrap();
    assert!(
        std::str::from_utf8(&read).unwrap().contains(r#"{"n":1.10}"#),
        "{read:?}"
    );
    let nobody = Request::post(format!("http://{}/rpc", face.address))
        .body(Body::from("[\"ns.list\"]"))
        .unwrap();
    assert_eq!(sender.send_request(nobody).await.unwrap().status(), 401);
}
