//! Tests both protocols over real connections, with a log in memory.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io::Write as _;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, Request, StatusCode};
use base64::Engine as _;
use bytes::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use thalweg_lake::LakeMetrics;
use thalweg_lake::Signal;
use thalweg_lake::entry::InflateLimits;
use thalweg_lake::entry::{
    AppendRefused, BoxFuture, EntryForm, EntryPosition, EntrySink, PayloadCompression, PayloadEncoding, decode,
};
use thalweg_lake::ingest::Handoff;
use thalweg_otlp::inflate::inflate;
use thalweg_otlp::json::{JsonLimits, to_proto};
use thalweg_otlp::{Admission, AdmissionError, OtlpReceiver, ReceiverOptions, grpc_router, http_router};
use thalweg_telemetry::Metrics;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};

/// Stores entries, or refuses them.
struct Log {
    entries: Mutex<Vec<(Signal, Vec<u8>)>>,
    refuses: Mutex<Option<AppendRefused>>,
    /// Each append needs a permit.
    goes_on: Semaphore,
}

/// Checks that the handoff equals the entry.
fn is_the_entry(entry: &[u8], handoff: &Handoff) {
    let (head, request) = decode(entry).unwrap();
    let request = inflate(head.compression, request, &InflateLimits::default()).unwrap();
    let request = match head.form {
        EntryForm::Request(PayloadEncoding::Proto) => request,
        EntryForm::Request(PayloadEncoding::Json) => {
            let mut proto = Vec::new();
            to_proto(head.signal, &request, &JsonLimits::default(), &mut proto).unwrap();
            proto
        }
        EntryForm::Rows => panic!("nobody sends rows"),
    };
    assert_eq!(handoff.request(), Handoff::of(&head, Bytes::from(request)).request());
}

struct Shared(Arc<Log>);

impl EntrySink for Shared {
    fn append(
        &self,
        signal: Signal,
        entry: Vec<u8>,
        handoff: Handoff,
    ) -> BoxFuture<'static, Result<EntryPosition, AppendRefused>> {
        let log = self.0.clone();
        Box::pin(async move {
            if let Some(refused) = log.refuses.lock().await.clone() {
                return Err(refused);
            }
            let _goes_on = log.goes_on.acquire().await;
            is_the_entry(&entry, &handoff);
            let mut entries = log.entries.lock().await;
            entries.push((signal, entry));
            Ok(EntryPosition {
                queue: "lake.logs".to_owned(),
                partition: 3,
                offset: entries.len() as u64 - 1,
            })
        })
    }
}

/// A request without a token is not authenticated, and one token may not send.
struct Tokens;

impl Admission for Tokens {
    fn admit<'a>(&'a self, headers: &'a HeaderMap) -> BoxFuture<'a, Result<(), AdmissionError>> {
        let token = headers.get("authorization").map(|value| value.as_bytes());
        let answer = match token {
            Some(b"Bearer writer") => Ok(()),
            Some(_) => Err(AdmissionError::NotAuthorized("lacks the role write".to_owned())),
            None => Err(AdmissionError::NotAuthenticated("send a token".to_owned())),
        };
        Box::pin(std::future::ready(answer))
    }
}

struct World {
    log: Arc<Log>,
    receiver: Arc<OtlpReceiver>,
    http: String,
    grpc: String,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: HeaderMap,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl World {
    async fn new(options: ReceiverOptions) -> World {
        let log = Arc::new(Log {
            entries: Mutex::default(),
            refuses: Mutex::default(),
            goes_on: Semaphore::new(100),
        });
        let sink = Arc::new(Shared(log.clone()));
        let metrics = Metrics::default();
        let lake = LakeMetrics::register(&metrics);
        let receiver = OtlpReceiver::new(sink, Arc::new(Tokens), options, &metrics, &lake);
        let mut addresses = Vec::new();
        for router in [http_router(&receiver), grpc_router(&receiver)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.push(listener.local_addr().unwrap().to_string());
            tokio::spawn(async move { axum::serve(listener, router).await });
        }
        let grpc = addresses.pop().unwrap();
        let http = addresses.pop().unwrap();
        World {
            log,
            receiver,
            http,
            grpc,
        }
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let stream = TcpStream::connect(&self.http).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        let request = request(path, headers, body).header("host", "x");
        let response = sender.send_request(request.body(Body::from(body.to_vec())).unwrap());
        read(response.await.unwrap()).await
    }

    async fn call(&self, service: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let stream = TcpStream::connect(&self.grpc).await.unwrap();
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        tokio::spawn(connection);
        let path = format!("http://{}/opentelemetry.proto.collector.{service}/Export", self.grpc);
        let request = request(&path, headers, body).header("te", "trailers");
        let response = sender.send_request(request.body(Body::from(body.to_vec())).unwrap());
        read(response.await.unwrap()).await
    }

    /// The last entry: its encoding, compression, records, and request.
    async fn last(&self) -> (Signal, PayloadEncoding, PayloadCompression, u32, Vec<u32>, Vec<u8>) {
        let entries = self.log.entries.lock().await;
        let (signal, entry) = entries.last().unwrap();
        let (head, request) = decode(entry).unwrap();
        assert_eq!(*signal, head.signal);
        let rejected = head.rejected.iter().collect();
        let EntryForm::Request(encoding) = head.form else {
            panic!("nobody sends rows")
        };
        (
            *signal,
            encoding,
            head.compression,
            head.records,
            rejected,
            request.to_vec(),
        )
    }
}

fn request(path: &str, headers: &[(&str, &str)], _: &[u8]) -> axum::http::request::Builder {
    let with_token = headers.iter().any(|(name, _)| *name == "authorization");
    let mut request = Request::post(path);
    for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
        request = request.header(*name, *value);
    }
    match with_token {
        true => request,
        false => request.header("authorization", "Bearer writer"),
    }
}

async fn read(response: axum::http::Response<hyper::body::Incoming>) -> Answer {
    let (parts, body) = response.into_parts();
    let mut body = std::pin::pin!(body);
    let (mut all, mut trailers) = (Vec::new(), HeaderMap::new());
    while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
        match frame.unwrap().into_data() {
            Ok(data) => all.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().unwrap(),
        }
    }
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: all,
        trailers,
    }
}

fn field(key: u8, inner: &[u8]) -> Vec<u8> {
    assert!(inner.len() < 128);
    [&[key, inner.len() as u8][..], inner].concat()
}

/// Logs with these bodies.
fn logs(bodies: &[&str]) -> Vec<u8> {
    let log = |body: &&str| field(0x12, &field(0x2a, &field(0x0a, body.as_bytes())));
    let logs: Vec<u8> = bodies.iter().flat_map(log).collect();
    field(0x0a, &field(0x12, &logs))
}

fn frame(flag: u8, message: &[u8]) -> Vec<u8> {
    [&[flag][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const PROTO: (&str, &str) = ("content-type", "application/x-protobuf");
const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");
const GRPC: (&str, &str) = ("content-type", "application/grpc");
const LOGS: &str = "logs.v1.LogsService";

#[tokio::test]
async fn requests_of_every_form_are_stored_as_they_came() {
    let world = World::new(ReceiverOptions::default()).await;
    let request = logs(&["a", "b"]);
    let answer = world.post("/v1/logs", &[PROTO], &request).await;
    assert_eq!((answer.status, answer.body.len()), (StatusCode::OK, 0));
    assert_eq!(answer.header("content-type"), "application/x-protobuf");
    assert_eq!(answer.header("thalweg-position"), "lake.logs:3:0");
    assert_eq!(
        world.last().await,
        (
            Signal::Logs,
            PayloadEncoding::Proto,
            PayloadCompression::None,
            2,
            vec![],
            request.clone()
        )
    );

    let zipped = gzip(&request);
    let answer = world
        .post("/v1/logs", &[PROTO, ("content-encoding", "gzip")], &zipped)
        .await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(
        world.last().await,
        (
            Signal::Logs,
            PayloadEncoding::Proto,
            PayloadCompression::Gzip,
            2,
            vec![],
            zipped.clone()
        )
    );

    let json = br#"{"resourceSpans":[{"scopeSpans":[{"spans":[
        {"traceId":"0102030405060708090a0b0c0d0e0f10","spanId":"0102030405060708","name":"x"}]}]}]}"#;
    let packed = zstd::bulk::compress(json, 1).unwrap();
    let answer = world
        .post("/v1/traces", &[JSON, ("content-encoding", "zstd")], &packed)
        .await;
    assert_eq!((answer.status, answer.text().as_str()), (StatusCode::OK, "{}"));
    assert_eq!(
        world.last().await,
        (
            Signal::Traces,
            PayloadEncoding::Json,
            PayloadCompression::Zstd,
            1,
            vec![],
            packed
        )
    );

    let answer = world.call(LOGS, &[GRPC], &frame(0, &request)).await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.header("content-type"), "application/grpc+proto");
    assert_eq!(
        (answer.body, answer.trailers["grpc-status"].to_str().unwrap()),
        (frame(0, b""), "0")
    );
    assert_eq!(answer.trailers["thalweg-position"], "lake.logs:3:3");
    assert_eq!(world.last().await.5, request);
    let answer = world
        .call(LOGS, &[GRPC, ("grpc-encoding", "gzip")], &frame(1, &zipped))
        .await;
    assert_eq!(answer.trailers["grpc-status"], "0");
    assert_eq!(
        world.last().await,
        (
            Signal::Logs,
            PayloadEncoding::Proto,
            PayloadCompression::Gzip,
            2,
            vec![],
            zipped
        )
    );

    // An empty request stores nothing.
    let before = world.log.entries.lock().await.len();
    for answer in [
        world.post("/v1/metrics", &[PROTO], b"").await,
        world.call(LOGS, &[GRPC], &frame(0, b"")).await,
    ] {
        assert_eq!(answer.status, StatusCode::OK);
    }
    assert_eq!(world.log.entries.lock().await.len(), before);
}

#[tokio::test]
async fn rejected_records_are_told_and_the_others_are_stored() {
    let options = ReceiverOptions {
        walk: thalweg_columns::rows::record_limits::RecordLimits {
            value_bytes: 5,
            ..Default::default()
        },
        ..ReceiverOptions::default()
    };
    let world = World::new(options).await;
    let request = logs(&["short", "much longer", "x"]);
    let why = "1 of 3 records rejected (value_too_long: 1)";
    let answer = world.post("/v1/logs", &[PROTO], &request).await;
    let partial = field(0x0a, &[&[0x08, 1][..], &field(0x12, why.as_bytes())].concat());
    assert_eq!((answer.status, &answer.body), (StatusCode::OK, &partial));
    assert_eq!(world.last().await.4, [1]);
    let answer = world.call(LOGS, &[GRPC], &frame(0, &request)).await;
    assert_eq!(
        (answer.body, answer.trailers["grpc-status"].to_str().unwrap()),
        (frame(0, &partial), "0")
    );
    let json = br#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"much longer"}},{}]}]}]}"#;
    let answer = world.post("/v1/logs", &[JSON], json).await;
    let expected =
        r#"{"partialSuccess":{"rejectedLogRecords":"1","errorMessage":"1 of 2 records rejected (value_too_long: 1)"}}"#;
    assert_eq!(answer.text(), expected);
    let all = world.post("/v1/logs", &[PROTO], &logs(&["much longer"])).await;
    assert_eq!(all.status, StatusCode::BAD_REQUEST);
    assert!(
        all.text().contains("otlp.all_rejected: 1 of 1 records rejected"),
        "{}",
        all.text()
    );
}

/// A sender that is told "accepted" deletes its batch.
#[tokio::test]
async fn json_of_which_nothing_would_be_taken_is_refused_and_not_accepted() {
    let world = World::new(ReceiverOptions::default()).await;
    for (path, body, told) in [
        (
            "/v1/logs",
            r#"{"resourceLog":[]}"#,
            "byte 1: an object has a member that OTLP does not define, and no resourceLogs",
        ),
        (
            "/v1/traces",
            r#"{"resourceSpans":[{"instrumentationLibrarySpans":[]}]}"#,
            "byte 49: a field belongs to OTLP before version 1",
        ),
        (
            "/v1/metrics",
            r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"m","intGauge":{}}]}]}]}"#,
            "a field belongs to OTLP before version 1",
        ),
    ] {
        let answer = world.post(path, &[JSON], body.as_bytes()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        let status: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let message = status["message"].as_str().unwrap();
        assert!(
            message.starts_with("otlp.malformed: ") && message.contains(told),
            "{message}"
        );
    }
    let nothing = world
        .post("/v1/logs", &[JSON], br#"{"resourceLogs":[],"later":1}"#)
        .await;
    assert_eq!((nothing.status, nothing.text().as_str()), (StatusCode::OK, "{}"));
    assert!(world.log.entries.lock().await.is_empty());
}

#[tokio::test]
async fn what_is_refused_is_told_in_the_words_of_both_protocols() {
    let options = ReceiverOptions {
        body_bytes_max: 2_000,
        decoded_bytes_max: 4 << 20,
        ratio_max: 10,
        inflight_bytes_max: 8 << 20,
        ..ReceiverOptions::default()
    };
    let world = World::new(options).await;
    let request = logs(&["a"]);
    let bomb = gzip(&vec![0; 1_900_000]);
    let large = vec![0x7a; 3_000];
    type Case<'a> = (&'a [(&'a str, &'a str)], &'a [u8], u16, u8, &'a str);
    let cases: [Case<'_>; 6] = [
        (&[], &[0x0a, 9, 1], 400, 3, "otlp.malformed"),
        // Field 1000, which held the records before version 1.
        (&[], &[0x0a, 3, 0xc2, 0x3e, 0], 400, 3, "otlp.malformed"),
        (&[("encoding", "gzip")], &request, 400, 3, "otlp.malformed"),
        (&[("encoding", "gzip")], &bomb, 413, 8, "otlp.decoded_too_large"),
        (&[("encoding", "br")], &request, 415, 12, "otlp.encoding"),
        (&[], &large, 413, 8, "otlp.too_large"),
    ];
    for (headers, body, status, code, reason) in cases {
        let encoding = headers.first().map_or("", |(_, value)| value);
        let answer = world
            .post("/v1/logs", &[PROTO, ("content-encoding", encoding)], body)
            .await;
        assert_eq!(answer.status.as_u16(), status, "{reason}: {}", answer.text());
        assert_eq!(answer.body[..2], [0x08, code], "{reason}: a google.rpc.Status");
        assert!(answer.text().contains(&format!("{reason}: ")), "{}", answer.text());
        assert_eq!(answer.header("retry-after"), "", "{reason}");
        let flag = u8::from(!encoding.is_empty());
        let answer = world
            .call(LOGS, &[GRPC, ("grpc-encoding", encoding)], &frame(flag, body))
            .await;
        assert_eq!(
            (answer.status, answer.header("grpc-status")),
            (StatusCode::OK, code.to_string().as_str()),
            "{reason}"
        );
        assert!(
            answer.header("grpc-message").starts_with(reason),
            "{}",
            answer.header("grpc-message")
        );
        assert!(!answer.header("grpc-status-details-bin").is_empty());
    }
    let answer = world
        .post("/v1/logs", &[("content-type", "text/plain")], &request)
        .await;
    assert_eq!(
        (answer.status.as_u16(), answer.text().contains("otlp.media_type")),
        (415, true)
    );
    let answer = world
        .call(LOGS, &[("content-type", "text/plain")], &frame(0, &request))
        .await;
    assert_eq!(answer.status.as_u16(), 415);
    let answer = world.call("logs.v1.NoService", &[GRPC], &frame(0, &request)).await;
    assert_eq!(answer.header("grpc-status"), "12");
    let answer = world.post("/v1/logs", &[JSON], b"{\"resourceLogs\": 5}").await;
    assert_eq!(answer.status.as_u16(), 400);
    assert!(
        answer
            .text()
            .starts_with("{\"code\":3,\"message\":\"otlp.malformed: byte "),
        "{}",
        answer.text()
    );
    assert!(world.log.entries.lock().await.is_empty());
}

#[tokio::test]
async fn what_may_be_tried_again_says_so() {
    let world = World::new(ReceiverOptions::default()).await;
    let request = logs(&["a"]);
    let refusals = [
        (AppendRefused::Pressure, 429, "8", "1", "otlp.pressure"),
        (
            AppendRefused::DiskFull("the disk is full".to_owned()),
            503,
            "14",
            "10",
            "disk_full",
        ),
        (
            AppendRefused::Poisoned("a sync failed".to_owned()),
            503,
            "14",
            "10",
            "log_poisoned",
        ),
        (AppendRefused::Stopping, 503, "14", "10", "stopping"),
    ];
    for (refused, status, code, after, reason) in refusals {
        *world.log.refuses.lock().await = Some(refused);
        let answer = world
            .post(
                "/v1/logs",
                &[JSON],
                br#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{}]}]}]}"#,
            )
            .await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("retry-after")),
            (status, after),
            "{reason}"
        );
        let status: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(status["details"][0]["reason"], reason);
        assert_eq!(status["details"][1]["retryDelay"], format!("{after}s"));
        let answer = world.call(LOGS, &[GRPC], &frame(0, &request)).await;
        assert_eq!(answer.header("grpc-status"), code, "{reason}");
    }
}

#[tokio::test]
async fn senders_need_a_login_that_may_write() {
    let world = World::new(ReceiverOptions::default()).await;
    let request = logs(&["a"]);
    for (token, status, code, reason) in [
        ("", 401, "16", "not_authenticated"),
        ("Bearer reader", 403, "7", "not_authorized"),
    ] {
        let answer = world
            .post("/v1/logs", &[PROTO, ("authorization", token)], &request)
            .await;
        assert_eq!(answer.status.as_u16(), status);
        assert!(answer.text().contains(reason));
        let answer = world
            .call(LOGS, &[GRPC, ("authorization", token)], &frame(0, &request))
            .await;
        assert_eq!(answer.header("grpc-status"), code);
    }
    assert!(world.log.entries.lock().await.is_empty());
}

#[tokio::test]
async fn more_than_there_is_room_for_is_told_to_come_when_the_rest_is_stored() {
    let options = ReceiverOptions {
        inflight_bytes_max: 64 << 10,
        ..ReceiverOptions::default()
    };
    let world = Arc::new(World::new(options).await);
    let (small, large) = (logs(&["a"]), [&logs(&["a"])[..], &filler(40_000)].concat());
    for _ in 0..5 {
        assert_eq!(world.post("/v1/logs", &[PROTO], &small).await.status, StatusCode::OK);
    }
    // The first request reserves more than half of the budget and is not stored; a second one does not fit.
    let held = world.log.goes_on.acquire_many(100).await.unwrap();
    let (one, body) = (world.clone(), large.clone());
    let first = tokio::spawn(async move { one.post("/v1/logs", &[PROTO], &body).await });
    while world.receiver.inflight_bytes() < 40_000 {
        tokio::task::yield_now().await;
    }
    let refused = world.post("/v1/logs", &[PROTO], &large).await;
    assert_eq!(refused.status.as_u16(), 429);
    // The pause follows the rate at which entries were stored before.
    let again: u64 = refused.header("retry-after").parse().unwrap();
    assert!((1..=30).contains(&again), "{again}");
    assert!(refused.text().contains("otlp.pressure"), "{}", refused.text());
    let refused = world.call(LOGS, &[GRPC], &frame(0, &large)).await;
    assert_eq!(refused.header("grpc-status"), "8");
    assert!(retry_info(&refused).is_some_and(|seconds| (1..=30).contains(&seconds)));
    drop(held);
    assert_eq!(first.await.unwrap().status, StatusCode::OK);
    assert_eq!(
        world.post("/v1/logs", &[PROTO], &large).await.status,
        StatusCode::OK,
        "what was refused holds nothing"
    );
    // A request that can never fit is not told to retry.
    let never = world.post("/v1/logs", &[PROTO], &vec![0x7a; 70_000]).await;
    assert_eq!((never.status.as_u16(), never.header("retry-after")), (413, ""));
    assert!(never.text().contains("ingest.inflight_bytes"), "{}", never.text());
}

/// An unknown field of this many bytes.
fn filler(bytes: u32) -> Vec<u8> {
    let mut out = vec![0x7a];
    let mut len = bytes;
    while len >= 0x80 {
        out.push(len as u8 | 0x80);
        len >>= 7;
    }
    out.push(len as u8);
    out.resize(out.len() + bytes as usize, 0);
    out
}

/// The retry delay in seconds from the details of a status.
fn retry_info(answer: &Answer) -> Option<u64> {
    let details = answer.header("grpc-status-details-bin");
    let details = base64::engine::general_purpose::STANDARD_NO_PAD
        .decode(details)
        .unwrap();
    let name = b"google.rpc.RetryInfo";
    let at = details.windows(name.len()).position(|window| window == name)? + name.len();
    // The value of the Any: a RetryInfo with a Duration in seconds.
    match details.get(at..)? {
        [0x12, _, 0x0a, _, 0x08, seconds, ..] => Some(u64::from(*seconds)),
        _ => None,
    }
}
