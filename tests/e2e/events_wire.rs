//! The wire of the event store, black box: every method with every message in its order, every status, every limit, and
//! who may do what.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::events::{Events, Pokes, TOKEN, poke};

const S: &str = "streamName must be a non-empty string";
const O: &str = "options must be an object";
const N: &str = "namespace ID must be a non-empty string";
const BATCH: &str = "options.batchSize must be <= 10000 or -1 for unlimited";

/// A token of `namespace` whose digits are all the same.
fn token(namespace: &str, digit: char) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::from("ns_");
    for bytes in namespace.as_bytes().chunks(3) {
        let bits = bytes.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - bytes.len()));
        for place in 0..=bytes.len() {
            text.push(char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63]));
        }
    }
    text.push('_');
    text.extend(std::iter::repeat_n(digit, 64));
    text
}

/// Of a call with a token: status and body.
fn as_token(events: &Events, token: &str, call: &Value) -> (u16, Value) {
    let header = format!("Bearer {token}");
    let headers = [("authorization", header.as_str())];
    let answer = events.api.send("POST", "/rpc", &headers, &call.to_string());
    assert_eq!(answer.headers["content-type"], "application/json", "{answer:?}");
    (answer.status, answer.json)
}

fn invalid(events: &Events, table: &[(Value, &str)]) {
    for (call, message) in table {
        let expected = (400, "INVALID_REQUEST".to_owned(), (*message).to_owned());
        assert_eq!(events.refusal(&call.to_string()), expected, "{call}");
    }
}

#[test]
fn each_mistake_of_a_write_hides_those_behind_it() {
    let events = Events::in_memory();
    // Each call mends one mistake and leaves those behind it.
    let long = "s".repeat(1025);
    let bad = json!({"id": 1, "expectedVersion": "x"});
    invalid(
        &events,
        &[
            (
                json!(["stream.write"]),
                "stream.write requires at least 2 arguments: streamName and message",
            ),
            (
                json!(["stream.write", ""]),
                "stream.write requires at least 2 arguments: streamName and message",
            ),
            (json!(["stream.write", "", 1, 1]), S),
            (json!(["stream.write", null, 1, 1]), S),
            (json!(["stream.write", long, null, 1]), "message must be an object"),
            (
                json!(["stream.write", long, {"data": 1}, 1]),
                "message.type must be a non-empty string",
            ),
            (
                json!(["stream.write", long, {"type": "", "data": 1}, 1]),
                "message.type must be a non-empty string",
            ),
            (
                json!(["stream.write", long, {"type": "t", "metadata": 1}, 1]),
                "message.data must be an object",
            ),
            (
                json!(["stream.write", long, {"type": "t", "data": "d", "metadata": 1}, 1]),
                "message.data must be an object",
            ),
            (
                json!(["stream.write", long, {"type": "t", "data": {}, "metadata": []}, 1]),
                "message.metadata must be an object",
            ),
            (
                json!(["stream.write", long, {"type": "t", "data": {}, "metadata": null}, null]),
                O,
            ),
            (
                json!(["stream.write", long, {"type": "t", "data": {}}, bad]),
                "options.id must be a string",
            ),
            (
                json!(["stream.write", long, {"type": "t", "data": {}}, {"id": "x", "expectedVersion": "x"}]),
                "options.id must be a valid UUID",
            ),
            (
                json!(["stream.write", long, {"type": "t", "data": {}}, {"id": "", "expectedVersion": "x"}]),
                "options.expectedVersion must be a number",
            ),
            (
                json!(["stream.write", long, {"type": "t", "data": {}}, {"expectedVersion": null}]),
                "options.expectedVersion must be a number",
            ),
            (
                json!(["stream.write", long, {"type": "t", "data": {}}, {"id": "", "other": 1}]),
                "streamName exceeds 1024 bytes",
            ),
        ],
    );
    let id = "{0190B5C2-7A00-7C1F-A2B3-C4D5E6F70819}";
    let written = events.call(json!(["stream.write", "s", {"type": "t", "data": {}, "id": 5}, {"id": id}, "more"]));
    assert_eq!(written, json!({"globalPosition": 1, "position": 0}));
    let read = events.call(json!(["stream.last", "s"]));
    assert_eq!(read[0], "0190b5c2-7a00-7c1f-a2b3-c4d5e6f70819");
}

#[test]
fn each_mistake_of_a_read_hides_those_behind_it() {
    let events = Events::in_memory();
    invalid(
        &events,
        &[
            (
                json!(["stream.get"]),
                "stream.get requires at least 1 argument: streamName",
            ),
            (json!(["stream.get", "", 1]), S),
            (json!(["stream.get", "s", null]), O),
            (
                json!(["stream.get", "s", {"position": "1", "globalPosition": "1", "batchSize": "1"}]),
                "options.position must be a number",
            ),
            (
                json!(["stream.get", "s", {"position": 1, "globalPosition": null, "batchSize": "1"}]),
                "options.globalPosition must be a number",
            ),
            (
                json!(["stream.get", "s", {"globalPosition": 1, "batchSize": []}]),
                "options.batchSize must be a number",
            ),
            (json!(["stream.get", "s", {"batchSize": 10001}]), BATCH),
            (json!(["stream.get", "s", {"batchSize": 1e300}]), BATCH),
            (
                json!(["stream.get", "s", {"direction": "down"}]),
                "options.direction must be forward or backward",
            ),
            (
                json!(["stream.get", "s", {"types": "t"}]),
                "options.types must be an array of strings",
            ),
            (
                json!(["stream.get", "s", {"types": vec!["t"; 256]}]),
                "options.types must have at most 255 entries",
            ),
            (
                json!(["stream.get", "s", {"waitMs": 30001}]),
                "options.waitMs must be between 0 and 30000",
            ),
            (
                json!(["stream.last"]),
                "stream.last requires at least 1 argument: streamName",
            ),
            (json!(["stream.last", 1, 1]), S),
            (json!(["stream.last", "s", 1]), O),
            (
                json!(["stream.last", "s", {"type": null}]),
                "options.type must be a string",
            ),
            (
                json!(["stream.version"]),
                "stream.version requires 1 argument: streamName",
            ),
            (json!(["stream.version", {}]), S),
            (
                json!(["category.get"]),
                "category.get requires at least 1 argument: categoryName",
            ),
            (json!(["category.get", 1, 1]), "categoryName must be a string"),
            (json!(["category.get", "c", []]), O),
            (
                json!(["category.get", "c", {"position": true, "correlation": 1}]),
                "options.position must be a number",
            ),
            (
                json!(["category.get", "c", {"globalPosition": true, "correlation": 1}]),
                "options.globalPosition must be a number",
            ),
            (
                json!(["category.get", "c", {"batchSize": true, "correlation": 1}]),
                "options.batchSize must be a number",
            ),
            (
                json!(["category.get", "c", {"batchSize": 10001, "correlation": 1}]),
                BATCH,
            ),
            (
                json!(["category.get", "c", {"correlation": 1, "consumerGroup": 1}]),
                "options.correlation must be a string",
            ),
            (
                json!(["category.get", "c", {"consumerGroup": null}]),
                "options.consumerGroup must be an object",
            ),
            (
                json!(["category.get", "c", {"consumerGroup": {"member": "0", "size": "2"}}]),
                "options.consumerGroup.member must be a number",
            ),
            (
                json!(["category.get", "c", {"consumerGroup": {"member": -1, "size": "2"}}]),
                "options.consumerGroup.size must be a number",
            ),
            (
                json!(["category.get", "c", {"consumerGroup": {"member": -1, "size": 0}}]),
                "options.consumerGroup.member must be non-negative",
            ),
            (
                json!(["category.get", "c", {"consumerGroup": {"member": 0, "size": 0}}]),
                "options.consumerGroup.size must be positive",
            ),
            (
                json!(["category.get", "c", {"consumerGroup": {"member": 2, "size": 2}}]),
                "options.consumerGroup.member must be < size",
            ),
            (
                json!(["category.get", "c", {"consumerGroup": {"size": 2}}]),
                "options.consumerGroup requires both member and size",
            ),
            (json!(["message.get"]), "message.get requires 1 argument: id"),
        ],
    );
    for call in [
        json!(["stream.get", "s", {"batchSize": 0}]),
        json!(["stream.get", "s", {"batchSize": -7, "position": -3}]),
        json!(["stream.get", "s", {"batchSize": 5.9, "other": null}]),
        json!(["category.get", "c", {"consumerGroup": {}}]),
        json!(["category.get", "a-b"]),
        json!(["category.get", "", {"correlation": "a-b"}]),
    ] {
        assert_eq!(events.call(call.clone()), json!([]), "{call}");
    }
}

#[test]
fn each_mistake_about_namespaces_and_tokens_hides_those_behind_it() {
    let events = Events::in_memory();
    let other = token("other", '0');
    invalid(
        &events,
        &[
            (
                json!(["ns.create"]),
                "ns.create requires at least 1 argument: namespace ID",
            ),
            (json!(["ns.create", "", 1]), N),
            (json!(["ns.create", 1, 1]), N),
            (
                json!(["ns.create", "a/b", 1]),
                "namespace ID contains invalid characters",
            ),
            (
                json!(["ns.create", "a\\b", 1]),
                "namespace ID contains invalid characters",
            ),
            (
                json!(["ns.create", "..", 1]),
                "namespace ID contains invalid characters",
            ),
            (
                json!(["ns.create", "a\u{7f}", 1]),
                "namespace ID contains invalid characters",
            ),
            (
                json!(["ns.create", "x".repeat(256), 1]),
                "namespace ID contains invalid characters",
            ),
            (json!(["ns.create", "a", 1]), O),
            (
                json!(["ns.create", "a", {"description": 1, "token": 1, "metadata": 1}]),
                "options.description must be a string",
            ),
            (
                json!(["ns.create", "a", {"token": 1, "metadata": 1}]),
                "options.token must be a string",
            ),
            (
                json!(["ns.create", "a", {"token": "", "metadata": 1}]),
                "Invalid token format: invalid token format: missing 'ns_' prefix",
            ),
            (
                json!(["ns.create", "a", {"token": "ns_x", "metadata": 1}]),
                "Invalid token format: invalid token format: expected 2 parts after prefix, got 1",
            ),
            (
                json!(["ns.create", "a", {"token": "ns_YQ_00", "metadata": 1}]),
                "Invalid token format: invalid token format: random part must be 64 hex characters, got 2",
            ),
            (
                json!(["ns.create", "a", {"token": other, "metadata": 1}]),
                "Token is for namespace 'other', not 'a'",
            ),
            (
                json!(["ns.create", "a", {"metadata": null}]),
                "options.metadata must be an object",
            ),
            (json!(["ns.delete"]), "ns.delete requires 1 argument: namespace ID"),
            (json!(["ns.delete", ""]), N),
            (json!(["ns.delete", "default"]), "Namespace 'default' cannot be deleted"),
            (json!(["ns.info"]), "ns.info requires 1 argument: namespace ID"),
            (json!(["ns.info", []]), N),
            (json!(["ns.streams", 1]), O),
            (
                json!(["ns.streams", {"prefix": 1, "cursor": 1, "limit": "1"}]),
                "prefix must be a string",
            ),
            (
                json!(["ns.streams", {"cursor": 1, "limit": "1"}]),
                "cursor must be a string",
            ),
            (json!(["ns.streams", {"limit": "1"}]), "limit must be a number"),
            (
                json!(["ns.streams", {"limit": 1001}]),
                "limit must be between 1 and 1000",
            ),
            (json!(["ns.streams", {"limit": 0}]), "limit must be between 1 and 1000"),
            (
                json!(["token.create", "a"]),
                "token.create requires at least 2 arguments: namespace ID and options",
            ),
            (json!(["token.list"]), "token.list requires 1 argument: namespace ID"),
            (
                json!(["token.revoke", "a"]),
                "token.revoke requires 2 arguments: namespace ID and token ID",
            ),
            (
                json!(["stream.delete"]),
                "stream.delete requires at least 1 argument: streamName",
            ),
            (
                json!(["retention.set", "s"]),
                "retention.set requires at least 2 arguments: streamName and options",
            ),
            (
                json!(["retention.get"]),
                "retention.get requires 1 argument: streamName",
            ),
            (
                json!(["stream.append", "s"]),
                "stream.append requires at least 2 arguments: streamName and messages",
            ),
            (json!(["stream.append", "s", {}]), "messages must be an array"),
            (json!(["stream.append", "s", []]), "messages must not be empty"),
            (json!(["stream.append", "s", [1]]), "message must be an object"),
            (
                json!(["stream.append", "s", [{"type": "t", "data": {}, "id": "x"}]]),
                "message.id must be a valid UUID",
            ),
            (
                json!(["stream.appendMany"]),
                "stream.appendMany requires 1 argument: appends",
            ),
            (
                json!(["stream.appendMany", [{"stream": "", "messages": []}]]),
                "append.stream must be a non-empty string",
            ),
        ],
    );
    for call in [json!(["ns.delete", "nobody"]), json!(["ns.info", "nobody"])] {
        let expected = (
            404,
            "NAMESPACE_NOT_FOUND".to_owned(),
            "Namespace 'nobody' not found".to_owned(),
        );
        assert_eq!(events.refusal(&call.to_string()), expected);
    }
    events.call(json!(["ns.create", "a"]));
    let taken = (
        409,
        "NAMESPACE_EXISTS".to_owned(),
        "Namespace 'a' already exists".to_owned(),
    );
    assert_eq!(events.refusal(r#"["ns.create","a"]"#), taken);
}

#[test]
fn the_envelope_is_checked_in_its_order() {
    let events = Events::on_disk();
    let bearer = format!("Bearer {TOKEN}");
    let nested = format!("{}{}", "[".repeat(10_001), "]".repeat(10_001));
    /// Method, whether with a token, body; status, code, message.
    type Row<'a> = (&'a str, bool, &'a [u8], u16, &'a str, &'a str);
    let table: [Row<'_>; 14] = [
        ("GET", false, b"", 401, "AUTH_REQUIRED", "Authorization header required"),
        ("GET", true, b"", 405, "INVALID_REQUEST", "Only POST method allowed"),
        ("POST", true, b"", 400, "INVALID_REQUEST", "Malformed JSON request"),
        ("POST", true, b"[", 400, "INVALID_REQUEST", "Malformed JSON request"),
        ("POST", true, b"{}", 400, "INVALID_REQUEST", "Malformed JSON request"),
        ("POST", true, b"\"x\"", 400, "INVALID_REQUEST", "Malformed JSON request"),
        (
            "POST",
            true,
            b"[\"sys.version\"] 1",
            400,
            "INVALID_REQUEST",
            "Malformed JSON request",
        ),
        (
            "POST",
            true,
            b"[\"\xff\"]",
            400,
            "INVALID_REQUEST",
            "Malformed JSON request",
        ),
        (
            "POST",
            true,
            nested.as_bytes(),
            400,
            "INVALID_REQUEST",
            "Malformed JSON request",
        ),
        ("POST", true, b" [ ] ", 400, "INVALID_REQUEST", "Missing method name"),
        ("POST", true, b"null", 400, "INVALID_REQUEST", "Missing method name"),
        (
            "POST",
            true,
            b"[null]",
            400,
            "INVALID_REQUEST",
            "Method name must be a string",
        ),
        ("POST", true, b"[\"\"]", 404, "METHOD_NOT_FOUND", "Unknown method: "),
        (
            "POST",
            true,
            b"[\"Stream.get\"]",
            404,
            "METHOD_NOT_FOUND",
            "Unknown method: Stream.get",
        ),
    ];
    for (method, with_token, body, status, code, message) in table {
        let headers: Vec<_> = with_token
            .then_some(("authorization", bearer.as_str()))
            .into_iter()
            .collect();
        let answer = events.api.send(method, "/rpc", &headers, body);
        let error = &answer.json["error"];
        let found = (answer.status, error["code"].as_str(), error["message"].as_str());
        assert_eq!(found, (status, Some(code), Some(message)), "{answer:?}");
        assert_eq!(answer.headers["content-type"], "application/json");
        assert!(answer.headers["server"].to_str().unwrap().starts_with("Thalweg/"));
        let has_reason = error["details"]["error"].is_string();
        assert_eq!(has_reason, message == "Malformed JSON request", "{answer:?}");
    }
    let deep = format!("[\"sys.version\",{}{}]", "[".repeat(9_999), "]".repeat(9_999));
    assert_eq!(events.rpc(&deep).0, 200, "10,000 levels are allowed");
    for (path, text) in [
        ("/health", "{\"status\":\"ok\"}\n"),
        (
            "/nowhere",
            "{\"error\":{\"code\":\"NOT_FOUND\",\"message\":\"Endpoint not found\"}}\n",
        ),
    ] {
        assert_eq!(events.api.send("PUT", path, &[], "").text, text);
    }
    let version = events.api.get("/version").json["version"].clone();
    assert_eq!(version, events.call(json!(["sys.version"])));
    assert_eq!(events.api.get("/ready").status, 200);
    let health = events.call(json!(["sys.health"]));
    assert_eq!(
        (&health["status"], &health["backend"], &health["durability"]),
        (&json!("ok"), &json!("log"), &json!("fsync"))
    );
    assert!(health["connections"].as_u64().unwrap() >= 1, "{health}");
    let metrics = events.api.get("/metrics").text;
    assert!(metrics.contains("thalweg_events_requests_total "), "{metrics}");
}

#[test]
fn every_limit_is_told_with_its_number() {
    let events = Events::on_disk();
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

    let long = format!("POST /rpc HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "x".repeat(70_000));
    let answer = events.api.raw(long.as_bytes()).unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let told = "{\"error\":{\"code\":\"INVALID_REQUEST\",\"message\":\"Request header too large\"}}\n";
    assert!(answer.ends_with(told), "{answer}");
    assert_eq!(events.rpc(r#"["sys.version"]"#).0, 200, "nothing of it ends the server");
}

/// Head and body of an answer with a length.
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

#[test]
fn a_token_opens_what_its_scopes_say_and_ends_at_once() {
    let events = Events::on_disk();
    let made = events.call(json!(["ns.create", "a_b", {"token": token("a_b", 'f')}]));
    assert_eq!(made["token"], token("a_b", 'f'));
    let own = token("a_b", 'F');
    assert_eq!(
        as_token(&events, &own, &json!(["stream.version", "s"])).0,
        200,
        "either case of hex"
    );
    let refused = |call: Value| {
        let (status, answer) = as_token(&events, &own, &call);
        assert_eq!(
            (status, &answer["error"]["details"]),
            (403, &json!({"required": "admin"})),
            "{call}"
        );
    };
    for call in [
        json!(["ns.create", "c"]),
        json!(["ns.delete", "a_b"]),
        json!(["ns.info", "default"]),
        json!(["token.create", "a_b", {"scopes": ["read"]}]),
        json!(["token.list", "a_b"]),
        json!(["token.revoke", "a_b", "x"]),
        json!(["sys.scavenge"]),
        json!(["sys.verify"]),
    ] {
        refused(call);
    }
    // Mistakes are told before the scope.
    let (status, answer) = as_token(&events, &own, &json!(["ns.create", ""]));
    assert_eq!((status, answer["error"]["message"].as_str()), (400, Some(N)));

    let reading = events.call(json!(["token.create", "a_b", {"scopes": ["read"], "description": "r"}]));
    let text = reading["token"].as_str().unwrap().to_owned();
    let write = json!(["stream.write", "s", {"type": "t", "data": {}}]);
    let (status, answer) = as_token(&events, &text, &write);
    assert_eq!(
        (status, answer["error"]["message"].as_str()),
        (403, Some("Token lacks scope 'write'"))
    );
    assert_eq!(as_token(&events, &text, &json!(["stream.get", "s"])), (200, json!([])));
    let listed = events.call(json!(["token.list", "a_b"]));
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    assert!(!listed.to_string().contains("ns_"), "no secret is listed: {listed}");
    let mut pokes = Pokes::open(&events, &format!("all=true&token={text}"));
    assert_eq!(as_token(&events, &own, &write).0, 200);
    assert_eq!(pokes.chunk(), poke("s", 0, 1));
    let revoked = events.call(json!(["token.revoke", "a_b", reading["id"]]));
    assert_eq!(revoked["revoked"], true);
    assert_eq!(pokes.chunk(), "", "its subscriptions end properly");
    let (status, answer) = as_token(&events, &text, &json!(["sys.version"]));
    assert_eq!(
        (status, &answer["error"]["details"]),
        (403, &json!({"namespace": "a_b"}))
    );

    let mut pokes = Pokes::open(&events, &format!("category=s&token={own}"));
    assert_eq!(pokes.chunk(), poke("s", 0, 1));
    assert_eq!(events.call(json!(["ns.delete", "a_b"]))["messagesDeleted"], 1);
    assert_eq!(pokes.chunk(), "");
    assert_eq!(as_token(&events, &own, &json!(["sys.version"])).0, 403);
    // Made again, it is empty.
    events.call(json!(["ns.create", "a_b", {"token": own}]));
    assert_eq!(
        as_token(&events, &own, &write),
        (200, json!({"globalPosition": 1, "position": 0}))
    );
}

#[test]
fn in_test_mode_any_token_names_its_namespace_and_makes_none() {
    let events = Events::in_memory();
    for header in ["", "Basic x", "Bearer ", "Bearer nonsense"] {
        let headers = [("authorization", header)];
        let answer = events.api.send(
            "POST",
            "/rpc",
            &headers[usize::from(header.is_empty())..],
            r#"["ns.list"]"#,
        );
        assert_eq!(
            (answer.status, &answer.json[0]["namespace"]),
            (200, &json!("default")),
            "{header}"
        );
    }
    let other = token("other", '5');
    let write = json!(["stream.write", "s", {"type": "t", "data": {}}]);
    let (status, answer) = as_token(&events, &other, &write);
    assert_eq!(
        (status, answer["error"]["message"].as_str()),
        (404, Some("Namespace 'other' not found"))
    );
    for call in [
        json!(["sys.version"]),
        json!(["sys.health"]),
        json!(["ns.list"]),
        json!(["ns.create", "other"]),
    ] {
        assert_eq!(as_token(&events, &other, &call).0, 200, "{call}");
    }
    assert_eq!(
        as_token(&events, &token("other", '7'), &write).0,
        200,
        "whatever its digits"
    );
    let query = format!("/subscribe?all=true&token={}", token("none", '0'));
    assert_eq!(events.api.get(&query).status, 404);
}

#[test]
fn conflicts_have_their_codes_and_details() {
    let events = Events::on_disk();
    let message = json!({"type": "t", "data": {}});
    events.call(json!(["stream.append", "s", [message, message]]));
    for (expected, shown) in [
        (json!(5), json!(5)),
        (json!(-1), json!(-1)),
        (json!(-7), json!(-7)),
        (json!("noStream"), json!("noStream")),
    ] {
        let (status, text) =
            events.rpc(&json!(["stream.write", "s", message, {"expectedVersion": expected}]).to_string());
        let error = &serde_json::from_str::<Value>(&text).unwrap()["error"];
        assert_eq!((status, &error["code"]), (409, &json!("STREAM_VERSION_CONFLICT")));
        assert_eq!(error["details"], json!({"actual": 1, "expected": shown}));
    }
    let exists = json!(["stream.write", "t", message, {"expectedVersion": "exists"}]).to_string();
    let text = events.rpc(&exists).1;
    assert!(
        text.contains(r#""details":{"actual":-1,"expected":"exists"}"#),
        "{text}"
    );
    let many = json!(["stream.appendMany", [{"stream": "u", "messages": [message]}, {"stream": "s", "messages": [message], "expectedVersion": 0}]]);
    let (status, text) = events.rpc(&many.to_string());
    assert!(
        status == 409 && text.contains(r#""details":{"actual":1,"expected":0,"stream":"s"}"#),
        "{text}"
    );
    assert_eq!(
        events.call(json!(["stream.version", "u"])),
        Value::Null,
        "nothing of it is written"
    );
    let done = events.call(json!(["stream.delete", "s", {"expectedVersion": 1}]));
    assert_eq!(done, json!({"stream": "s", "tombstone": false}));
    assert_eq!(events.call(json!(["stream.get", "s"])), json!([]));
    assert_eq!(
        events.call(json!(["stream.write", "s", message]))["position"],
        2,
        "it goes on behind what is hidden"
    );
    events.call(json!(["stream.delete", "s", {"tombstone": true}]));
    assert_eq!(events.call(json!(["stream.version", "s"])), Value::Null);
    let dead = (409, "STREAM_DELETED".to_owned(), "Stream 's' is deleted".to_owned());
    assert_eq!(events.refusal(&json!(["stream.write", "s", message]).to_string()), dead);
}

#[test]
fn a_rule_hides_messages_at_once() {
    let events = Events::on_disk();
    let message = json!({"type": "t", "data": {}});
    events.call(json!(["stream.append", "r-1", vec![message.clone(); 10]]));
    events.call(json!(["stream.append", "r-2", vec![message; 10]]));
    let rule = events.call(json!(["retention.set", {"category": "r"}, {"maxCount": 4}]));
    assert_eq!(rule, json!({"maxAge": null, "maxCount": 4, "truncateBefore": null}));
    events.call(json!(["retention.set", "r-2", {"$tb": 9}]));
    let count = |stream: &str| events.call(json!(["stream.get", stream])).as_array().unwrap().len();
    assert_eq!(
        (count("r-1"), count("r-2")),
        (4, 1),
        "that of a stream stands in place of its category's"
    );
    assert_eq!(events.call(json!(["retention.get", "r-2"]))["truncateBefore"], 9);
    assert_eq!(events.call(json!(["retention.get", "r-1"])), Value::Null);
    assert!(
        events.call(json!(["sys.verify"]))["faults"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    events.call(json!(["sys.scavenge"]));
    assert_eq!(events.call(json!(["stream.version", "r-1"])), 9);
    assert_eq!(events.call(json!(["retention.set", "r-2", null])), Value::Null);
}

#[test]
fn a_wrong_subscription_is_told_as_plain_text() {
    let events = Events::in_memory();
    for (query, text) in [
        ("", "Either 'stream', 'category', or 'all=true' parameter required"),
        ("all=1", "Either 'stream', 'category', or 'all=true' parameter required"),
        (
            "all=true&stream=s&category=c",
            "Cannot combine 'all' with 'stream' or 'category'",
        ),
        (
            "stream=s&category=c&position=x",
            "Cannot specify both 'stream' and 'category'",
        ),
        ("stream=s&position=x&consumer=x", "Invalid position parameter"),
        ("category=c&consumer=-1&size=x", "Invalid consumer parameter"),
        ("category=c&consumer=1&size=x", "Invalid size parameter"),
        ("category=c&consumer=1", "Invalid consumer group: member must be < size"),
    ] {
        let answer = events.api.get(&format!("/subscribe?{query}"));
        assert_eq!((answer.status, answer.text.as_str()), (400, text), "{query}");
        assert_eq!(answer.headers["content-type"], "text/plain; charset=utf-8");
    }
}

#[test]
fn a_thousand_open_subscriptions_do_not_hold_up_the_end() {
    let mut events = Events::in_memory();
    let mut open: Vec<Pokes> = (0..1000)
        .map(|n| Pokes::open(&events, &format!("stream=s-{n}")))
        .collect();
    events.process.signal("TERM").unwrap();
    assert!(events.process.wait().unwrap().success());
    for pokes in &mut open {
        assert_eq!(pokes.chunk(), "", "the body ends properly");
    }
    std::net::TcpListener::bind(&events.address).unwrap();
}
