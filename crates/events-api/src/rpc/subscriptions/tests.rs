//! Calls as clients make them, against a test double of the store.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use futures::StreamExt as _;
use thalweg_events::test_double::{NamespaceDouble, StoreDouble};
use thalweg_events::token_text;
use thalweg_telemetry::Metrics;

use crate::{EventsApiOptions, EventsApiServer, rpc, subscribe};

struct Scene {
    double: Arc<NamespaceDouble>,
    server: Arc<EventsApiServer>,
}

fn scene() -> Scene {
    let double = Arc::new(NamespaceDouble::new("default"));
    let options = EventsApiOptions {
        version: "1.2.3".into(),
        test_mode: false,
        open_admin: false,
        message_bytes_max: 1000,
        ..EventsApiOptions::default()
    };
    let store = Arc::new(StoreDouble(double.clone()));
    let server = EventsApiServer::new(store, options, Arc::new(Metrics::new(false)));
    Scene { double, server }
}

fn request(method: &str, path: &str, digit: u8, body: &str) -> Request {
    let token = token_text("default", [digit; 32]);
    let request = Request::builder().method(method).uri(path);
    let request = request.header("Authorization", format!("Bearer {token}"));
    request.body(Body::from(body.to_owned())).unwrap()
}

impl Scene {
    async fn call_with(&self, digit: u8, body: &str) -> (StatusCode, String) {
        let response = rpc::answer(self.server.clone(), request("POST", "/rpc", digit, body)).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap().trim_end().to_owned())
    }

    async fn call(&self, body: &str) -> String {
        self.call_with(1, body).await.1
    }

    /// The message of a refused call.
    async fn refused(&self, body: &str) -> String {
        let (status, text) = self.call_with(1, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{text}");
        let message = text
            .strip_prefix("{\"error\":{\"code\":\"INVALID_REQUEST\",\"message\":\"")
            .unwrap();
        message.strip_suffix("\"}}").unwrap().to_owned()
    }

    async fn subscribe(&self, query: &str) -> axum::http::Response<Body> {
        let request = request("GET", &format!("/subscribe?{query}"), 1, "");
        subscribe::answer(self.server.clone(), request).await
    }
}

/// The first lease in a response.
fn lease(text: &str) -> &str {
    let (_, rest) = text.split_once("\"lease\":\"").unwrap();
    rest.split_once('"').unwrap().0
}

#[tokio::test]
async fn a_message_is_fetched_acknowledged_and_counted() {
    let scene = scene();
    let created = scene
        .call(r#"["sub.create", "s", {"category": "order", "types": ["Created"]}]"#)
        .await;
    let (before, after) = created.split_once(",\"createdAt\":\"").unwrap();
    assert_eq!(
        before,
        r#"{"name":"s","category":"order","from":1,"strategy":"byStream","ackTimeoutMs":30000,"maxAttempts":5,"maxInFlight":100,"types":["Created"],"correlation":null"#
    );
    let tail = r#","position":0,"read":0,"inFlight":0,"waiting":0,"parked":0,"consumers":[]}"#;
    assert!(after.ends_with(tail), "{after}");
    scene.double.write("order-1", "Created", None).await;
    let fetched = scene.call(r#"["sub.fetch", "s", {"consumer": "c", "max": 10}]"#).await;
    let taken = lease(&fetched);
    let rest = fetched.replace(taken, "L");
    let (head, tail) = rest.split_at(r#"[{"lease":"L","attempt":1,"message":[""#.len());
    assert_eq!(head, r#"[{"lease":"L","attempt":1,"message":[""#);
    assert!(
        tail.ends_with(r#"","order-1","Created",0,1,{},null,"1970-01-01T00:00:00Z"]}]"#),
        "{tail}"
    );
    let info = scene.call(r#"["sub.info", "s"]"#).await;
    assert!(
        info.ends_with(r#""consumers":[{"consumer":"c","inFlight":1}]}"#),
        "{info}"
    );
    let ack = format!(r#"["sub.ack", "s", ["{taken}"]]"#);
    assert_eq!(scene.call(&ack).await, r#"{"acked":1,"stale":[]}"#);
    assert_eq!(scene.call(&ack).await, format!(r#"{{"acked":0,"stale":["{taken}"]}}"#));
    assert_eq!(scene.call(r#"["sub.fetch", "s"]"#).await, "[]");
    assert_eq!(
        scene.call(r#"["sub.reset", "s", {"from": "end"}]"#).await,
        r#"{"from":2,"name":"s"}"#
    );
    assert_eq!(scene.call(r#"["sub.delete", "s"]"#).await, r#"{"name":"s"}"#);
    assert_eq!(scene.call(r#"["sub.list"]"#).await, "[]");
}

#[tokio::test]
async fn a_message_that_cannot_be_done_is_parked_listed_and_replayed() {
    let scene = scene();
    scene
        .call(r#"["sub.create", "s", {"all": true, "maxAttempts": 1}]"#)
        .await;
    scene.double.write("order-1", "Created", None).await;
    for call in ["retry", "park"] {
        let fetched = scene.call(r#"["sub.fetch", "s"]"#).await;
        let nack = format!(
            r#"["sub.nack", "s", ["{}"], {{"action": "{call}", "reason": "no \"stock\""}}]"#,
            lease(&fetched)
        );
        assert_eq!(scene.call(&nack).await, r#"{"nacked":1,"stale":[]}"#);
        let parked = scene.call(r#"["sub.parked", "s"]"#).await;
        let head = r#"[{"globalPosition":1,"attempts":1,"reason":"no \"stock\"","time":""#;
        assert!(
            parked.starts_with(head) && parked.contains(r#""message":[""#),
            "{parked}"
        );
        assert_eq!(
            scene.call(r#"["sub.replay", "s", {"globalPositions": [1, 9]}]"#).await,
            r#"{"replayed":1}"#
        );
    }
    let fetched = scene.call(r#"["sub.fetch", "s"]"#).await;
    let nack = format!(r#"["sub.nack", "s", ["{}"]]"#, lease(&fetched));
    scene.call(&nack).await;
    assert_eq!(
        scene.call(r#"["sub.replay", "s", {"discard": true}]"#).await,
        r#"{"discarded":1}"#
    );
    assert_eq!(scene.call(r#"["sub.parked", "s"]"#).await, "[]");
}

#[tokio::test]
async fn each_wrong_argument_is_named() {
    let scene = scene();
    for (call, expected) in [
        (
            r#"["sub.create", "s"]"#,
            "sub.create requires at least 2 arguments: name and options",
        ),
        (r#"["sub.create", "", {}]"#, "name must be a non-empty string"),
        (r#"["sub.create", "s", null]"#, "options must be an object"),
        (
            r#"["sub.create", "s", {}]"#,
            "options must have one of category, stream and all",
        ),
        (
            r#"["sub.create", "s", {"stream": ""}]"#,
            "options.stream must be a non-empty string",
        ),
        (
            r#"["sub.create", "s", {"all": 1}]"#,
            "options.all must be true or false",
        ),
        (
            r#"["sub.create", "s", {"all": true, "stream": "a"}]"#,
            "options must have only one of category, stream and all",
        ),
        (
            r#"["sub.create", "s", {"all": true, "from": "now"}]"#,
            "options.from must be start, end or a number",
        ),
        (
            r#"["sub.create", "s", {"all": true, "strategy": 1}]"#,
            "options.strategy must be byStream or roundRobin",
        ),
        (
            r#"["sub.create", "s", {"all": true, "ackTimeoutMs": 99}]"#,
            "options.ackTimeoutMs must be between 100 and 43200000",
        ),
        (
            r#"["sub.create", "s", {"all": true, "maxAttempts": "5"}]"#,
            "options.maxAttempts must be a number",
        ),
        (
            r#"["sub.create", "s", {"all": true, "maxInFlight": 0}]"#,
            "options.maxInFlight must be between 1 and 10000",
        ),
        (
            r#"["sub.create", "s", {"all": true, "types": [1]}]"#,
            "options.types must be an array of strings",
        ),
        (
            r#"["sub.create", "s", {"all": true, "correlation": null}]"#,
            "options.correlation must be a string",
        ),
        (
            r#"["sub.update", "s", {"stream": "a"}]"#,
            "options.stream cannot be changed: delete the subscription and create it again",
        ),
        (
            r#"["sub.update", "s", {"from": 1}]"#,
            "options.from cannot be changed: use sub.reset",
        ),
        (
            r#"["sub.reset", "s", {}]"#,
            "options.from must be start, end or a number",
        ),
        (r#"["sub.fetch"]"#, "sub.fetch requires at least 1 argument: name"),
        (
            r#"["sub.fetch", "s", {"max": 1001}]"#,
            "options.max must be between 1 and 1000",
        ),
        (
            r#"["sub.fetch", "s", {"waitMs": 30001}]"#,
            "options.waitMs must be between 0 and 30000",
        ),
        (
            r#"["sub.fetch", "s", {"consumer": 1}]"#,
            "options.consumer must be a string",
        ),
        (
            r#"["sub.ack", "s"]"#,
            "sub.ack requires at least 2 arguments: name and leases",
        ),
        (r#"["sub.ack", "s", "1.1"]"#, "leases must be an array of strings"),
        (
            r#"["sub.ack", "s", ["x"]]"#,
            "leases must be those that sub.fetch returned",
        ),
        (
            r#"["sub.nack", "s", [], {"action": "no"}]"#,
            "options.action must be retry, park or skip",
        ),
        (
            r#"["sub.nack", "s", [], {"delayMs": -1}]"#,
            "options.delayMs must be between 0 and 43200000",
        ),
        (
            r#"["sub.parked", "s", {"limit": 0}]"#,
            "options.limit must be between 1 and 1000",
        ),
        (
            r#"["sub.replay", "s", {"globalPositions": []}]"#,
            "options.globalPositions must be an array of numbers, at most 10000",
        ),
        (
            r#"["snapshot.put", "cart-1", {"version": -1}]"#,
            "snapshot.version must be non-negative",
        ),
        (
            r#"["snapshot.put", "cart-1", {"version": 1, "type": "A", "data": []}]"#,
            "snapshot.data must be an object",
        ),
    ] {
        assert_eq!(scene.refused(call).await, expected, "{call}");
    }
    let long = "n".repeat(256);
    assert_eq!(
        scene.refused(&format!(r#"["sub.info", "{long}"]"#)).await,
        "name exceeds 255 bytes"
    );
    let big = format!(
        r#"["snapshot.put", "a", {{"version": 1, "type": "A", "data": {{"a": "{}"}}}}]"#,
        "x".repeat(1000)
    );
    assert_eq!(
        scene.refused(&big).await,
        "snapshot size 1009 exceeds the limit of 1000 bytes"
    );
}

#[tokio::test]
async fn every_limit_of_a_subscription_is_told_with_its_number() {
    let scene = scene();
    let create = |options: &str| format!(r#"["sub.create", "s", {{"all": true, {options}}}]"#);
    let list = |of: &str, count: usize| vec![of; count].join(",");
    for (call, expected) in [
        (
            create(r#""ackTimeoutMs": 43200001"#),
            "options.ackTimeoutMs must be between 100 and 43200000",
        ),
        (
            create(r#""maxAttempts": 1001"#),
            "options.maxAttempts must be between 1 and 1000",
        ),
        (
            create(r#""maxInFlight": 10001"#),
            "options.maxInFlight must be between 1 and 10000",
        ),
        (
            create(&format!(r#""types": [{}]"#, list("\"t\"", 101))),
            "options.types must have at most 100 entries",
        ),
        (
            r#"["sub.nack", "s", [], {"delayMs": 43200001}]"#.to_owned(),
            "options.delayMs must be between 0 and 43200000",
        ),
        (
            format!(r#"["sub.ack", "s", [{}]]"#, list("\"1.1\"", 10_001)),
            "leases must have at most 10000 entries",
        ),
        (
            format!(r#"["sub.replay", "s", {{"globalPositions": [{}]}}]"#, list("1", 10_001)),
            "options.globalPositions must be an array of numbers, at most 10000",
        ),
        (
            r#"["sub.list", {"limit": 1001}]"#.to_owned(),
            "options.limit must be between 1 and 1000",
        ),
    ] {
        assert_eq!(scene.refused(&call).await, expected);
    }
    let most = r#""ackTimeoutMs": 43200000, "maxAttempts": 1000, "maxInFlight": 10000"#;
    scene
        .call(&create(&format!(r#"{most}, "types": [{}]"#, list("\"t\"", 100))))
        .await;
}

#[tokio::test]
async fn unknown_taken_and_forbidden_have_codes_of_their_own() {
    let scene = scene();
    let create = r#"["sub.create", "s", {"all": true}]"#;
    let (status, text) = scene.call_with(0, create).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(text.contains("Token lacks scope 'write'"), "{text}");
    let missing = scene.call_with(1, r#"["sub.fetch", "s"]"#).await;
    let expected = r#"{"error":{"code":"SUBSCRIPTION_NOT_FOUND","message":"Subscription 's' not found"}}"#;
    assert_eq!(missing, (StatusCode::NOT_FOUND, expected.to_owned()));
    scene.call(create).await;
    let taken = scene.call_with(1, create).await;
    let expected = r#"{"error":{"code":"SUBSCRIPTION_EXISTS","message":"Subscription 's' already exists"}}"#;
    assert_eq!(taken, (StatusCode::CONFLICT, expected.to_owned()));
    assert_eq!(scene.call_with(0, r#"["sub.info", "s"]"#).await.0, StatusCode::OK);
    assert_eq!(
        scene.call_with(1, r#"["sub.other", "s"]"#).await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn snapshots_come_back_as_they_were_put() {
    let scene = scene();
    assert_eq!(scene.call(r#"["snapshot.get", "cart-1"]"#).await, "null");
    let put = r#"["snapshot.put", "cart-1", {"version": 7, "type": "Cart", "data": {"a": 1.50, "a": 2}}]"#;
    assert_eq!(scene.call(put).await, r#"{"version":7,"stored":true}"#);
    let older = r#"["snapshot.put", "cart-1", {"version": 6, "type": "Cart", "data": {}}]"#;
    assert_eq!(scene.call(older).await, r#"{"version":7,"stored":false}"#);
    let got = scene.call(r#"["snapshot.get", "cart-1"]"#).await;
    assert!(
        got.starts_with(r#"{"version":7,"type":"Cart","data":{"a":1.50,"a":2},"time":""#),
        "{got}"
    );
}

#[tokio::test]
async fn a_consumer_is_sent_as_much_as_it_can_have_and_what_it_leaves_comes_again() {
    let scene = scene();
    scene
        .call(r#"["sub.create", "s", {"category": "order", "strategy": "roundRobin"}]"#)
        .await;
    for n in 1..=3 {
        scene.double.write(&format!("order-{n}"), "Created", None).await;
    }
    let response = scene.subscribe("subscription=s&consumer=c&max=2").await;
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body().into_data_stream();
    assert_eq!(&body.next().await.unwrap().unwrap()[..], b": ready\n\n");
    let mut told = Vec::new();
    for global in 1..=2 {
        let chunk = String::from_utf8(body.next().await.unwrap().unwrap().to_vec()).unwrap();
        let head = format!("event: message\nid: {global}\ndata: {{\"lease\":\"{global}.");
        assert!(chunk.starts_with(&head) && chunk.ends_with("]}\n\n"), "{chunk}");
        told.push(lease(&chunk).to_owned());
    }
    // The third message is sent when one of the two is acknowledged.
    let third = tokio::spawn(async move { (body.next().await.unwrap().unwrap(), body) });
    tokio::task::yield_now().await;
    assert!(!third.is_finished());
    scene.call(&format!(r#"["sub.ack", "s", ["{}"]]"#, told[0])).await;
    let (chunk, body) = third.await.unwrap();
    assert!(chunk.starts_with(b"event: message\nid: 3\n"));
    drop(body);
    let mut left = Vec::new();
    while left.len() < 2 {
        let fetched = scene.call(r#"["sub.fetch", "s", {"max": 10, "waitMs": 1000}]"#).await;
        assert!(fetched.contains("\"attempt\":2"), "{fetched}");
        left.extend(fetched.match_indices("\"lease\":").map(|(at, _)| at));
    }
    assert_eq!(left.len(), 2);
}

#[tokio::test]
async fn a_consumer_is_refused_with_the_reason_and_ends_with_its_subscription() {
    let scene = scene();
    for (query, status) in [
        ("subscription=s", StatusCode::NOT_FOUND),
        ("subscription=s&stream=a", StatusCode::BAD_REQUEST),
        ("subscription=s&max=0", StatusCode::BAD_REQUEST),
        ("subscription=s&max=1001", StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(scene.subscribe(query).await.status(), status, "{query}");
    }
    scene.call(r#"["sub.create", "s", {"all": true}]"#).await;
    let mut body = scene.subscribe("subscription=s").await.into_body().into_data_stream();
    assert_eq!(&body.next().await.unwrap().unwrap()[..], b": ready\n\n");
    let end = tokio::spawn(async move { body.next().await.is_none() });
    tokio::task::yield_now().await;
    scene.call(r#"["sub.delete", "s"]"#).await;
    assert!(
        tokio::time::timeout(Duration::from_secs(60), end)
            .await
            .unwrap()
            .unwrap()
    );
}
