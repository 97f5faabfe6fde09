//! The call envelope, and each method's arguments: every error message, in the order of the checks, on every kind of storage.

use serde_json::json;

use crate::events_server::{Events, TOKEN, for_backends_with_tokens, for_every_backend, invalid, token};

const S: &str = "streamName must be a non-empty string";
const O: &str = "options must be an object";
const N: &str = "namespace ID must be a non-empty string";
const BATCH: &str = "options.batchSize must be <= 10000 or -1 for unlimited";

for_every_backend!(
    each_mistake_of_a_write_hides_those_after_it,
    each_mistake_of_a_read_hides_those_after_it,
    each_mistake_about_namespaces_and_tokens_hides_those_after_it,
    what_is_read_of_json_is_read_as_the_reference_does,
    ids_that_the_server_makes_are_uuids_of_version_7_that_begin_with_their_time,
);
// The first check is that of the token, which test mode skips.
for_backends_with_tokens!(the_envelope_is_checked_in_its_order);

fn each_mistake_of_a_write_hides_those_after_it(events: Events) {
    // Each call fixes one mistake and leaves the later ones.
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

fn each_mistake_of_a_read_hides_those_after_it(events: Events) {
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

fn each_mistake_about_namespaces_and_tokens_hides_those_after_it(events: Events) {
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

fn the_envelope_is_checked_in_its_order(events: Events) {
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
    let (backend, durability) = events.backend.told();
    assert_eq!(
        (&health["status"], &health["backend"], &health["durability"]),
        (&json!("ok"), &json!(backend), &json!(durability))
    );
    assert!(health["connections"].as_u64().unwrap() >= 1, "{health}");
    let metrics = events.api.get("/metrics").text;
    assert!(metrics.contains("thalweg_events_requests_total "), "{metrics}");
}

fn what_is_read_of_json_is_read_as_the_reference_does(events: Events) {
    for (call, expected) in [
        // Numbers are truncated toward zero, and clamped.
        (
            r#"["stream.write","n-1",{"type":"t","data":{}},{"expectedVersion":-1.9}]"#,
            r#"{"globalPosition":1,"position":0}"#,
        ),
        (
            r#"["stream.write","n-1",{"type":"t","data":{}},{"expectedVersion":0.9}]"#,
            r#"{"globalPosition":2,"position":1}"#,
        ),
        (
            r#"["stream.write","n-1",{"type":"t","data":{}},{"expectedVersion":10e-1}]"#,
            r#"{"globalPosition":3,"position":2}"#,
        ),
        (r#"["stream.get","n-1",{"position":1e400}]"#, "[]"),
        // An unpaired surrogate becomes U+FFFD.
        (
            r#"["stream.write","\ud800-1",{"type":"\udc00","data":{}}]"#,
            r#"{"globalPosition":4,"position":0}"#,
        ),
        ("[\"stream.version\",\"\u{fffd}-1\"]", "0"),
        (
            r#"["stream.write","\u00e9\ud83d\ude00",{"type":"t","data":{}}]"#,
            r#"{"globalPosition":5,"position":0}"#,
        ),
        ("[\"stream.version\",\"é😀\"]", "0"),
        // Surplus arguments and unknown keys are ignored, and so is white space.
        (r#" [ "stream.version" , "n-1" , 7 , null ] "#, "2"),
        (r#"["stream.version","n-1",{"x":[]}]"#, "2"),
        (r#"["stream.get","nobody",{"x":null},8]"#, "[]"),
        (r#"["ns.streams",{"prefix":"nobody","x":1}]"#, "[]"),
    ] {
        assert_eq!(events.rpc(call), (200, expected.to_owned()), "{call}");
    }
    // Of two equal keys the last counts, in arguments that the server reads.
    let twice = r#"["stream.write","n-1",{"type":"a","type":"b","data":{},"data":{"x":1}}]"#;
    assert_eq!(events.rpc(twice).0, 200);
    let row = events.call(json!(["stream.last", "n-1"]));
    assert_eq!((&row[1], &row[4]), (&json!("b"), &json!({"x": 1})));
    // Stored text is unchanged except for white space outside of strings.
    for (stored, kept) in [
        (
            r#"{ "k" : 1.0 , "k":1e5, "":[ true , null,-0.0 ] }"#,
            r#"{"k":1.0,"k":1e5,"":[true,null,-0.0]}"#,
        ),
        (r#"{"a":" \t\u0041 \ud800 \/ "}"#, r#"{"a":" \t\u0041 \ud800 \/ "}"#),
        (
            "{\n\t\"n\":\r 123456789012345678901234567890.000000000000000000001 }",
            r#"{"n":123456789012345678901234567890.000000000000000000001}"#,
        ),
        (r#"{"nul":"\u0000","é":"😀"}"#, r#"{"nul":"\u0000","é":"😀"}"#),
    ] {
        let write = format!(r#"["stream.write","kept",{{"type":"t","data":{stored},"metadata":{stored}}}]"#);
        assert_eq!(events.rpc(&write).0, 200, "{write}");
        let row = events.rpc(r#"["stream.last","kept"]"#).1;
        assert!(row.contains(&format!(",{kept},{kept},")), "{row}");
    }
}

fn ids_that_the_server_makes_are_uuids_of_version_7_that_begin_with_their_time(events: Events) {
    let message = json!({"type": "t", "data": {}});
    for _ in 0..3 {
        events.call(json!(["stream.append", "v-1", vec![message.clone(); 5]]));
    }
    let read = events.call(json!(["category.get", "v"]));
    let ids: Vec<&str> = read
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row[0].as_str())
        .collect();
    assert_eq!(ids.len(), 15, "{read}");
    assert!(ids.is_sorted_by_key(|id| &id[..13]), "{ids:?}");
    for id in ids {
        let groups: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12], "{id}");
        assert!(
            id.chars().all(|c| c == '-' || matches!(c, '0'..='9' | 'a'..='f')),
            "{id}"
        );
        assert!(
            id[14..].starts_with('7') && id[19..].starts_with(['8', '9', 'a', 'b']),
            "{id}"
        );
    }
}
