use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use thalweg_config::Role;

use thalweg_console::{ConsoleOptions, RunningListener};
use tokio::net::TcpStream;

use crate::support::{connect, exchange, fetch, options, send, start_with, token};

#[tokio::test]
async fn a_body_up_to_the_limit_is_taken_and_one_beyond_is_told_so() {
    let mut small = options();
    small.limits.body_bytes_max = 1000;
    let running = start_with(small).await;
    let fits = send(&running, "POST", "/echo", &[], &"x".repeat(1000)).await;
    assert_eq!((fits.status, fits.body.len()), (200, 1000));
    let declared = send(&running, "POST", "/echo", &[], &"x".repeat(1001)).await;
    assert_eq!(declared.status, 413);
    assert_eq!(
        declared.text(),
        "the request body is larger than 1000 bytes; send it in parts\n"
    );
    // Without a declared length it is detected while reading.
    let chunk = format!("3e9\r\n{}\r\n0\r\n\r\n", "x".repeat(1001));
    let request = format!(
        "POST /echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n{chunk}"
    );
    let undeclared = exchange(&mut connect(&running).await, request.as_bytes())
        .await
        .unwrap();
    assert_eq!(undeclared.status, 413);
}

#[tokio::test]
async fn who_sends_all_of_a_refused_body_before_it_reads_gets_the_answer() {
    const BYTES: usize = 16 << 20;
    let mut small = options();
    small.limits.body_bytes_max = 1000;
    let running = start_with(small).await;
    let announced = format!("content-length: {BYTES}\r\n\r\n{}", "x".repeat(BYTES));
    let undeclared = format!(
        "transfer-encoding: chunked\r\n\r\n{BYTES:x}\r\n{}\r\n0\r\n\r\n",
        "x".repeat(BYTES)
    );
    for rest in [announced, undeclared] {
        let mut stream = connect(&running).await;
        let head = "POST /echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(rest.as_bytes()).await.unwrap();
        let answer = exchange(&mut stream, b"").await.unwrap();
        assert_eq!(answer.status, 413);
        assert_eq!(
            answer.text(),
            "the request body is larger than 1000 bytes; send it in parts\n"
        );
    }
}

#[tokio::test]
async fn bodies_are_not_held_to_a_smaller_limit_of_the_framework() {
    let running = start_with(options()).await;
    let three_megabytes = "x".repeat(3 << 20);
    let answer = send(&running, "POST", "/echo", &[], &three_megabytes).await;
    assert_eq!((answer.status, answer.body.len()), (200, three_megabytes.len()));
}

#[tokio::test]
async fn a_body_that_drips_is_given_up() {
    let mut hasty = options();
    hasty.limits.body_grace = Duration::from_millis(100);
    let running = start_with(hasty).await;
    let request = b"POST /echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 10\r\n\r\nx";
    let answer = exchange(&mut connect(&running).await, request).await.unwrap();
    assert_eq!(answer.status, 408);
    assert!(
        answer.text().starts_with("the request body arrived more slowly than"),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn a_body_that_begins_fast_and_stops_is_given_up_and_others_are_served_meanwhile() {
    let mut hasty = options();
    hasty.limits.body_grace = Duration::from_millis(300);
    // What is sent here would last for days.
    hasty.limits.body_bytes_per_second_min = 1;
    let running = start_with(hasty).await;
    let begun = format!(
        "POST /echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 2000000\r\n\r\n{}",
        "x".repeat(1_000_000)
    );
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let mut stream = connect(&running).await;
        stream.write_all(begun.as_bytes()).await.unwrap();
        stalled.push(stream);
    }
    assert_eq!(send(&running, "POST", "/echo", &[], "x").await.status, 200);
    for mut stream in stalled {
        let answer = tokio::time::timeout(Duration::from_secs(60), exchange(&mut stream, b""));
        assert_eq!(answer.await.unwrap().unwrap().status, 408);
    }
}

#[tokio::test]
async fn headers_that_are_too_large_are_refused() {
    let running = start_with(options()).await;
    let large = format!("x-large: {}", "x".repeat(70 << 10));
    assert_eq!(send(&running, "GET", "/ping", &[&large], "").await.status, 431);
    assert_eq!(fetch(&running, "/ping").await.status, 200);
}

#[tokio::test]
async fn refusals_are_counted_by_their_status() {
    let mut small = options();
    small.limits.body_bytes_max = 1000;
    small.limits.body_grace = Duration::from_millis(100);
    let running = start_with(small).await;
    let large = format!("x-large: {}", "x".repeat(70 << 10));
    let late = b"POST /echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 10\r\n\r\nx";
    let two = b"GET /ping HTTP/1.1\r\nhost: localhost\r\nhost: evil\r\n\r\n";
    let statuses = [
        exchange(&mut connect(&running).await, two).await.unwrap().status,
        send(&running, "GET", "/metrics", &["origin: https://evil.example"], "")
            .await
            .status,
        exchange(&mut connect(&running).await, late).await.unwrap().status,
        send(&running, "POST", "/echo", &[], &"x".repeat(1001)).await.status,
        send(&running, "GET", "/ping", &[&large], "").await.status,
    ];
    assert_eq!(statuses, [400, 403, 408, 413, 431]);
    // The connection of a request that was too large to be read ends by itself, and is counted then.
    let counted = async |code: u16| {
        let metrics = fetch(&running, "/metrics").await;
        let name = format!("thalweg_http_refused_total{{code=\"{code}\"}} ");
        let line = metrics
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(&name).map(str::to_owned));
        line.unwrap().parse::<u64>().unwrap()
    };
    while counted(431).await == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for code in statuses {
        assert_eq!(counted(code).await, 1, "{code}");
    }
    for code in [401, 409, 422, 429, 503, 504, 507] {
        assert_eq!(counted(code).await, 0, "{code}");
    }
}

#[tokio::test]
async fn one_connection_of_http2_has_so_many_requests_at_a_time() {
    let running = start_with(options()).await;
    let mut stream = connect(&running).await;
    // The preface, and an empty settings frame.
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    assert_eq!(head[3], 4, "the server begins with its settings");
    let mut settings = vec![0; usize::from(head[2])];
    stream.read_exact(&mut settings).await.unwrap();
    // MAX_CONCURRENT_STREAMS.
    assert!(
        settings.chunks_exact(6).any(|setting| setting == [0, 3, 0, 0, 0, 128]),
        "{settings:?}"
    );
}

#[tokio::test]
async fn a_connection_that_never_finishes_its_headers_is_closed() {
    let mut hasty = options();
    hasty.limits.header_timeout = Duration::from_millis(100);
    let running = start_with(hasty).await;
    for begun in ["", "G", "PRI * HTT", "GET /ping HTTP/1.1\r\nhost: x\r\nx-slow: "] {
        let mut stream = connect(&running).await;
        stream.write_all(begun.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "{begun:?}");
    }
    // An answered connection that stays idle is closed as well.
    let mut idle = connect(&running).await;
    let answer = exchange(&mut idle, b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(answer.status, 200);
}

/// A client that listens to events.
async fn listen(running: &RunningListener) -> (TcpStream, u16) {
    let mut stream = connect(running).await;
    stream
        .write_all(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    let status = std::str::from_utf8(&head[9..]).unwrap().parse().unwrap();
    (stream, status)
}

fn few(connections_max: usize) -> ConsoleOptions {
    let mut few = options();
    few.limits.connections_max = connections_max;
    few
}

#[tokio::test]
async fn one_connection_too_many_is_told_so_and_room_is_reused() {
    let running = start_with(few(2)).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = connect(&running).await;
        stream
            .write_all(b"GET /waits HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        held.push(stream);
    }
    let full = "2 connections are open already, which is the limit; try again later";
    let refused = async || {
        let refused = fetch(&running, "/api/v1/status").await;
        (refused.status == 503).then_some(refused)
    };
    let refused = loop {
        // Until both have sent a request.
        match refused().await {
            Some(refused) => break refused,
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    assert!(refused.text().contains(full), "{}", refused.text());
    assert_eq!(refused.header("retry-after"), Some("5"));
    assert_eq!(refused.header("connection"), Some("close"));
    held.pop();
    while fetch(&running, "/api/v1/status").await.status != 200 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn however_many_listen_probes_and_the_status_page_are_served_and_no_more_may_listen() {
    let running = start_with(few(64)).await;
    let mut streams = Vec::new();
    for n in 0..80 {
        let (stream, status) = listen(&running).await;
        assert_eq!(status, if n < 57 { 200 } else { 503 }, "stream {n}");
        streams.push(stream);
    }
    // Other clients share the remaining slots; idle ones are closed for each other.
    for path in [
        "/ping",
        "/ready",
        "/version",
        "/metrics",
        "/benthos/ready",
        "/",
        "/api/v1/status",
    ] {
        assert_eq!(fetch(&running, path).await.status, 200, "{path}");
    }
    let mut waiting = Vec::new();
    for _ in 0..64 {
        let mut stream = connect(&running).await;
        stream
            .write_all(b"GET /waits HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        waiting.push(stream);
    }
    while fetch(&running, "/api/v1/status").await.status != 503 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..20 {
        for path in ["/ping", "/ready", "/version", "/metrics", "/"] {
            assert_eq!(fetch(&running, path).await.status, 200, "{path}");
        }
    }
    let metrics = fetch(&running, "/metrics").await;
    assert!(
        !metrics.text().contains("thalweg_http_connections_passed_total 0"),
        "{}",
        metrics.text()
    );
}

#[tokio::test]
async fn half_open_slow_and_idle_clients_make_room_for_whoever_asks() {
    let running = start_with(few(16)).await;
    let begun = ["", "G", "GET /ping HTTP/1.1\r\nhost: x\r\nx-slow: ", "PRI * HTT"];
    let mut half_open = Vec::new();
    for n in 0..200 {
        let mut stream = connect(&running).await;
        stream.write_all(begun[n % begun.len()].as_bytes()).await.unwrap();
        half_open.push(stream);
    }
    let began = std::time::Instant::now();
    while fetch(&running, "/api/v1/status").await.status != 200 {
        assert!(
            began.elapsed() < Duration::from_secs(15),
            "half-open clients keep others out"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(half_open);
    let mut idle = Vec::new();
    for _ in 0..40 {
        let mut stream = connect(&running).await;
        stream
            .write_all(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200", "an idle one has made room");
        idle.push(stream);
    }
    let metrics = fetch(&running, "/metrics").await;
    let closed = |why: &str| {
        let name = format!("thalweg_http_connections_closed_for_others_total{{why=\"{why}\"}} ");
        let line = metrics
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(&name).map(str::to_owned));
        line.unwrap().parse::<u64>().unwrap()
    };
    assert!(
        closed("idle") >= 24 && closed("half_open") > 0,
        "{} {}",
        closed("idle"),
        closed("half_open")
    );
}

#[tokio::test]
async fn one_connection_serves_many_requests_one_after_another() {
    let running = start_with(options()).await;
    let request = "GET /ping HTTP/1.1\r\nhost: x\r\n\r\n".repeat(3)
        + "GET /ping HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut stream = connect(&running).await;
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).await.unwrap();
    assert_eq!(all.matches("HTTP/1.1 200 OK").count(), 4);
}

#[tokio::test]
async fn http2_without_tls_is_spoken_as_well() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let running = start_with(options()).await;
    let io = TokioIo::new(connect(&running).await);
    let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
        .await
        .unwrap();
    tokio::spawn(connection);
    let request = axum::http::Request::post(format!("http://{}/echo", running.address()))
        .body("hello".to_owned())
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), response.version()),
        (200, axum::http::Version::HTTP_2)
    );
    let body = axum::body::to_bytes(axum::body::Body::new(response.into_body()), 100)
        .await
        .unwrap();
    assert_eq!(&body[..], b"hello");
}

#[tokio::test]
async fn a_path_that_limits_bodies_itself_gets_those_of_any_size_without_a_login() {
    let mut small = options();
    small.limits.body_bytes_max = 1000;
    small.auth.tokens = vec![token("t", &[Role::Read])];
    let running = start_with(small).await;
    let large = send(
        &running,
        "POST",
        "/own",
        &["authorization: Bearer somebody-elses"],
        &"x".repeat(5000),
    )
    .await;
    assert_eq!((large.status, large.text()), (200, "5000"));
    assert_eq!(send(&running, "POST", "/echo", &[], "x").await.status, 401);
}
