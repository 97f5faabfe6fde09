//! Calls: their results, the order in which mistakes are reported, and the limits.

use std::sync::atomic::Ordering::SeqCst;

use serde_json::{Value, json};
use thalweg_events_api::EventsApiOptions;

use crate::face::{Face, TOKEN};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_of_the_added_methods_are_told_in_their_order() {
    let face = Face::start().await;
    let scopes = "options.scopes must be a non-empty array of 'read', 'write' and 'admin'";
    let target = "streamName must be a non-empty string or an object with a category";
    let age = "options.maxAge must be a positive number of seconds or a text like \"7d\"";
    for (call, message) in [
        (
            json!(["token.create", "default"]),
            "token.create requires at least 2 arguments: namespace ID and options",
        ),
        (
            json!(["token.create", "", {}]),
            "namespace ID must be a non-empty string",
        ),
        (json!(["token.create", "default", null]), "options must be an object"),
        (json!(["token.create", "default", {}]), scopes),
        (json!(["token.create", "default", {"scopes": []}]), scopes),
        (json!(["token.create", "default", {"scopes": ["all"]}]), scopes),
        (
            json!(["token.create", "default", {"scopes": ["read"], "description": 1}]),
            "options.description must be a string",
        ),
        (
            json!(["token.create", "default", {"scopes": ["read"], "expiresAt": 1}]),
            "options.expiresAt must be a string",
        ),
        (
            json!(["token.create", "default", {"scopes": ["read"], "expiresAt": "soon"}]),
            "options.expiresAt must be an RFC 3339 time",
        ),
        (
            json!(["token.create", "default", {"scopes": ["read"], "expiresAt": "2020-01-01T00:00:00Z"}]),
            "options.expiresAt must be in the future",
        ),
        (
            json!(["token.create", "default", {"scopes": ["read"], "token": "x"}]),
            "Invalid token format: invalid token format: missing 'ns_' prefix",
        ),
        (
            json!(["token.create", "a", {"scopes": ["read"], "token": TOKEN}]),
            "Token is for namespace 'default', not 'a'",
        ),
        (json!(["token.list"]), "token.list requires 1 argument: namespace ID"),
        (json!(["token.list", 1]), "namespace ID must be a non-empty string"),
        (
            json!(["token.revoke", "default"]),
            "token.revoke requires 2 arguments: namespace ID and token ID",
        ),
        (
            json!(["token.revoke", "default", ""]),
            "token ID must be a non-empty string",
        ),
        (
            json!(["stream.delete"]),
            "stream.delete requires at least 1 argument: streamName",
        ),
        (json!(["stream.delete", ""]), "streamName must be a non-empty string"),
        (json!(["stream.delete", "s", []]), "options must be an object"),
        (
            json!(["stream.delete", "s", {"expectedVersion": []}]),
            "options.expectedVersion must be a number",
        ),
        (
            json!(["stream.delete", "s", {"tombstone": 1}]),
            "options.tombstone must be a boolean",
        ),
        (
            json!(["retention.set", "s"]),
            "retention.set requires at least 2 arguments: streamName and options",
        ),
        (json!(["retention.set", "", {}]), target),
        (json!(["retention.set", {"category": 1}, {}]), target),
        (
            json!(["retention.set", {"category": "a-b"}, {}]),
            "category must not contain '-'",
        ),
        (json!(["retention.set", "s", []]), "options must be an object"),
        (json!(["retention.set", "s", {"maxAge": "7y"}]), age),
        (json!(["retention.set", "s", {"maxAge": 0}]), age),
        (
            json!(["retention.set", "s", {"maxCount": 0}]),
            "options.maxCount must be a number >= 1",
        ),
        (
            json!(["retention.set", "s", {"$tb": -1}]),
            "options.truncateBefore must be a number >= 0",
        ),
        (
            json!(["retention.get"]),
            "retention.get requires 1 argument: streamName",
        ),
        (json!(["retention.get", 5]), target),
    ] {
        let expected = (400, "INVALID_REQUEST".to_owned(), message.to_owned());
        assert_eq!(face.refusal(&call.to_string()).await, expected, "{call}");
    }
    for method in [
        "token.no",
        "retention",
        "sys.",
        "nothing",
        "stream",
        ".write",
        "category.write",
    ] {
        let expected = (404, "METHOD_NOT_FOUND".to_owned(), format!("Unknown method: {method}"));
        assert_eq!(face.refusal(&json!([method]).to_string()).await, expected);
    }
    let unknown = face.refusal(r#"["token.list","nobody"]"#).await;
    assert_eq!((unknown.0, unknown.1.as_str()), (404, "NAMESPACE_NOT_FOUND"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_has_the_scopes_that_it_was_made_with_and_is_never_shown_again() {
    let face = Face::start().await;
    let options = json!({"scopes": ["read"], "description": "for the lake", "expiresAt": "2999-01-01T00:00:00Z"});
    let made = face.call(json!(["token.create", "default", options])).await;
    let token = made["token"].as_str().unwrap();
    assert_eq!(
        (&made["scopes"], &made["namespace"], &made["expiresAt"]),
        (&json!(["read"]), &json!("default"), &json!("2999-01-01T00:00:00Z"))
    );
    let listed = face.call(json!(["token.list", "default"])).await;
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert_eq!(
        (&listed[0]["scopes"], &listed[0]["expiresAt"]),
        (&json!(["read", "write", "admin"]), &Value::Null)
    );
    assert_eq!(
        (&listed[1]["description"], &listed[1]["id"]),
        (&json!("for the lake"), &made["id"])
    );
    assert!(!listed.to_string().contains("ns_"), "{listed}");
    for (call, needed) in [
        (r#"["stream.get","s"]"#, None),
        (r#"["ns.info","default"]"#, None),
        (r#"["stream.write","s",{"type":"t","data":{}}]"#, Some("write")),
        (r#"["stream.delete","s"]"#, Some("write")),
        (r#"["retention.set","s",null]"#, Some("write")),
        (r#"["retention.get","s"]"#, None),
        (r#"["ns.create","x"]"#, Some("admin")),
        (r#"["ns.delete","x"]"#, Some("admin")),
        (r#"["token.create","default",{"scopes":["read"]}]"#, Some("admin")),
        (r#"["token.list","default"]"#, Some("admin")),
        (r#"["token.revoke","default","t1"]"#, Some("admin")),
        (r#"["sys.scavenge"]"#, Some("admin")),
        (r#"["sys.verify"]"#, Some("admin")),
    ] {
        let (status, text) = face.rpc_as(token, call).await;
        let lacks = needed.map(|scope| {
            json!({"error": {"code": "AUTH_UNAUTHORIZED", "message": format!("Token lacks scope '{scope}'"),
                "details": {"required": scope}}})
        });
        match lacks {
            Some(lacks) => assert_eq!(
                (status, serde_json::from_str::<Value>(&text).unwrap()),
                (403, lacks),
                "{call}"
            ),
            None => assert_eq!(status, 200, "{call}: {text}"),
        }
    }
    let again = json!(["token.revoke", "default", made["id"]]);
    assert_eq!(face.call(again.clone()).await["revoked"], true);
    assert_eq!(face.call(again).await["revoked"], false);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_changed_by_what_is_named_of_them() {
    let face = Face::start().await;
    let none = Value::Null;
    assert_eq!(face.call(json!(["retention.get", "s"])).await, none);
    for (call, rule) in [
        (
            json!(["retention.set", "s", {"maxAge": "7d"}]),
            json!({"maxAge": 604800, "maxCount": null, "truncateBefore": null}),
        ),
        (
            json!(["retention.set", "s", {"$maxCount": 5}]),
            json!({"maxAge": 604800, "maxCount": 5, "truncateBefore": null}),
        ),
        (
            json!(["retention.set", "s", {"maxAge": null, "$tb": 3}]),
            json!({"maxAge": null, "maxCount": 5, "truncateBefore": 3}),
        ),
    ] {
        assert_eq!(face.call(call).await, rule);
        assert_eq!(face.call(json!(["retention.get", "s"])).await, rule);
    }
    assert_eq!(face.call(json!(["retention.get", {"category": "s"}])).await, none);
    assert_eq!(face.call(json!(["retention.set", "s", null])).await, none);
    assert_eq!(face.call(json!(["retention.get", "s"])).await, none);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_deleted_for_good_takes_nothing_more() {
    let face = Face::start().await;
    face.write("s").await;
    let conflict = face.refusal(r#"["stream.delete","s",{"expectedVersion":4}]"#).await;
    assert_eq!((conflict.0, conflict.1.as_str()), (409, "STREAM_VERSION_CONFLICT"));
    let done = face
        .rpc(r#"["stream.delete","s",{"expectedVersion":0,"tombstone":true}]"#)
        .await;
    assert_eq!(done, (200, r#"{"stream":"s","tombstone":true}"#.to_owned()));
    let dead = face.refusal(r#"["stream.write","s",{"type":"t","data":{}}]"#).await;
    assert_eq!(
        dead,
        (409, "STREAM_DELETED".to_owned(), "Stream 's' is deleted".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_tells_about_itself() {
    let face = Face::start().await;
    let _open = face.client().await.send("GET", "/health", "", b"").await;
    let health = face.call(json!(["sys.health"])).await;
    assert_eq!(
        (&health["backend"], &health["status"]),
        (&json!("memory"), &json!("ok"))
    );
    assert!(health["connections"].as_u64().unwrap() >= 1, "{health}");
    assert_eq!(
        face.rpc(r#"["sys.scavenge"]"#).await.1,
        r#"{"bytes":300,"messages":2,"erased":false}"#
    );
    let verified =
        r#"{"bytes":600,"faults":[{"namespace":"a\"b","offset":7,"what":"its checksum is wrong"}],"messages":5}"#;
    assert_eq!(face.rpc(r#"["sys.verify"]"#).await.1, verified);
    face.refusal(r#"["no"]"#).await;
    let metrics = face.send("GET", "/metrics", "", b"").await.text;
    for line in [
        "thalweg_events_connections ",
        "thalweg_events_requests_total 4",
        "thalweg_events_errors_total{code=\"METHOD_NOT_FOUND\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_of_several_streams_names_its_own_also_if_there_is_but_one() {
    let face = Face::start().await;
    let call =
        json!(["stream.appendMany", [{"stream": "s", "messages": [{"type": "t", "data": {}}], "expectedVersion": 3}]]);
    let (status, text) = face.rpc(&call.to_string()).await;
    let expected = r#"{"error":{"code":"STREAM_VERSION_CONFLICT","message":"Expected version 3, stream is at version -1","details":{"actual":-1,"expected":3,"stream":"s"}}}"#;
    assert_eq!((status, text.as_str()), (409, expected));
    let (_, text) = face
        .rpc(r#"["stream.append","s",[{"type":"t","data":{}}],{"expectedVersion":"exists"}]"#)
        .await;
    assert!(
        text.contains(r#""details":{"actual":-1,"expected":"exists"}"#),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_told_with_their_number() {
    let face = Face::with(EventsApiOptions {
        message_bytes_max: 1 << 20,
        ..EventsApiOptions::default()
    })
    .await;
    let message = json!({"type": "t", "data": {}});
    let large = json!({"type": "t", "data": {"x": "x".repeat(1 << 20)}});
    let near = json!({"type": "t", "data": {"x": "x".repeat(1_000_000)}});
    let many = |streams: usize| -> Vec<Value> {
        (0..streams)
            .map(|n| json!({"stream": format!("s-{n}"), "messages": [message]}))
            .collect()
    };
    for (call, told) in [
        (
            json!(["stream.write", "s", large]),
            "message size 1048585 exceeds the limit of 1048576 bytes",
        ),
        (
            json!(["stream.write", "s".repeat(1025), message]),
            "streamName exceeds 1024 bytes",
        ),
        (
            json!(["stream.write", "s\0", message]),
            "streamName must not contain U+0000",
        ),
        (
            json!(["stream.write", "s", {"type": "t".repeat(256), "data": {}}]),
            "message.type exceeds 255 bytes",
        ),
        (
            json!(["stream.write", "s", {"type": "t\0", "data": {}}]),
            "message.type must not contain U+0000",
        ),
        (
            json!(["stream.append", "s", vec![message.clone(); 10_001]]),
            "append exceeds 10000 messages",
        ),
        (json!(["stream.append", "s", vec![near; 26]]), "append exceeds 24 MiB"),
        (json!(["stream.appendMany", many(1001)]), "append exceeds 1000 streams"),
        (
            json!(["stream.get", "s", {"types": vec!["t"; 256]}]),
            "options.types must have at most 255 entries",
        ),
        (
            json!(["ns.create", "x", {"description": "d".repeat((1 << 20) + 1)}]),
            "options.description exceeds 1048576 bytes",
        ),
        (
            json!(["ns.create", "x", {"metadata": {"m": "d".repeat(1 << 20)}}]),
            "options.metadata exceeds 1048576 bytes",
        ),
        (
            json!(["token.create", "default", {"scopes": ["read"], "description": "d".repeat(4097)}]),
            "options.description exceeds 4096 bytes",
        ),
        (
            json!(["stream.get", "s", {"batchSize": 10_001}]),
            "options.batchSize must be <= 10000 or -1 for unlimited",
        ),
        (
            json!(["ns.create", "x".repeat(256)]),
            "namespace ID contains invalid characters",
        ),
    ] {
        let expected = (400, "INVALID_REQUEST".to_owned(), told.to_owned());
        assert_eq!(face.refusal(&call.to_string()).await, expected);
    }
    for fits in [
        json!(["stream.append", "s", vec![message.clone(); 10_000]]),
        json!(["stream.appendMany", many(1000)]),
        json!(["stream.get", "s", {"types": vec!["t"; 255]}]),
        json!(["ns.create", "x", {"description": "d".repeat(1 << 20)}]),
    ] {
        face.call(fits).await;
    }
    let surplus = json!(["stream.version", "t", vec![0; 100_000], 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    assert_eq!(
        face.call(surplus).await,
        Value::Null,
        "arguments that nobody looks at are left alone"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_over_the_limit_is_told_so() {
    let face = Face::start().await;
    let header = format!("authorization: Bearer {TOKEN}\r\n");
    let body = vec![b' '; (100 << 20) + 1];
    let answer = face.send("POST", "/rpc", &header, &body).await;
    let expected =
        "{\"error\":{\"code\":\"PAYLOAD_TOO_LARGE\",\"message\":\"Request body exceeds 104857600 bytes\"}}\n";
    assert_eq!((answer.status, answer.text.as_str()), (413, expected));
    assert_eq!(answer.headers["content-type"], "application/json");
    let mut body = vec![b' '; 100 << 20];
    body.splice(..15, *b"[\"sys.version\"]");
    let answer = face.send("POST", "/rpc", &header, &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_that_goes_while_something_is_written_is_not_found() {
    let face = Face::start().await;
    let made = face.call(json!(["ns.create", "x"])).await;
    let token = made["token"].as_str().unwrap();
    face.store.seen.vanish.store(true, SeqCst);
    face.store.seen.append_ms.store(200, SeqCst);
    let write = r#"["stream.write","s",{"type":"t","data":{}}]"#;
    let (written, _) = tokio::join!(face.rpc_as(token, write), async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        face.call(json!(["ns.delete", "x"])).await
    });
    assert_eq!(written.0, 404, "{written:?}");
    assert!(
        written
            .1
            .contains("\"NAMESPACE_NOT_FOUND\",\"message\":\"Namespace 'x' not found\""),
        "{written:?}"
    );
    // With an existing namespace it is a failure of the storage.
    let failed = face.refusal(write).await;
    let told = "Failed to write message: partition 5 does not exist".to_owned();
    assert_eq!(failed, (500, "BACKEND_ERROR".to_owned(), told));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_is_answered_at_the_first_match_or_when_time_is_up() {
    let face = std::sync::Arc::new(Face::start().await);
    let empty = face.call(json!(["category.get", "c", {"waitMs": 20}])).await;
    assert_eq!(empty, json!([]));
    let waiting = face.clone();
    let waiting = tokio::spawn(async move {
        waiting
            .call(json!(["category.get", "c", {"waitMs": 30000, "types": ["Wanted"]}]))
            .await
    });
    for kind in ["Other", "Other", "Wanted"] {
        face.call(json!(["stream.write", "c-1", {"type": kind, "data": {}}]))
            .await;
    }
    assert_eq!(waiting.await.unwrap()[0][4], 3);
    for (call, message) in [
        (
            json!(["stream.get", "s", {"waitMs": -1}]),
            "options.waitMs must be between 0 and 30000",
        ),
        (
            json!(["stream.get", "s", {"waitMs": 30001}]),
            "options.waitMs must be between 0 and 30000",
        ),
        (
            json!(["stream.get", "s", {"waitMs": "1"}]),
            "options.waitMs must be a number",
        ),
        (
            json!(["stream.get", "s", {"direction": "up"}]),
            "options.direction must be forward or backward",
        ),
    ] {
        assert_eq!(face.refusal(&call.to_string()).await.2, message);
    }
    let made = face
        .call(json!(["token.create", "default", {"scopes": ["read"]}]))
        .await;
    let (token, id) = (made["token"].as_str().unwrap().to_owned(), made["id"].clone());
    let waiting = face.clone();
    let waiting = tokio::spawn(async move {
        waiting
            .rpc_as(&token, r#"["category.get","none",{"waitMs":30000}]"#)
            .await
    });
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    face.call(json!(["token.revoke", "default", id])).await;
    assert_eq!(waiting.await.unwrap().0, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mistake_of_the_program_is_an_answer_and_ends_nothing_else() {
    let face = Face::start().await;
    face.store.seen.panics.store(true, SeqCst);
    let call = r#"["stream.write","s",{"type":"t","data":{}}]"#;
    let (status, code, _) = face.refusal(call).await;
    assert_eq!((status, code.as_str()), (500, "INTERNAL_ERROR"));
    assert_eq!(face.write("s").await, 1);
}
