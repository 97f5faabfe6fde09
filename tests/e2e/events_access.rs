//! Access control: tokens, scopes and namespaces, on every kind of storage with tokens, and the checks that test mode skips.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use thalweg_tests::eventually;

use crate::events_feeds::metric;
use crate::events_server::{Backend, Events, Pokes, TOKEN, as_token, for_backends_with_tokens, poke, token};

const N: &str = "namespace ID must be a non-empty string";

for_backends_with_tokens!(
    who_has_no_valid_token_is_told_why,
    a_token_opens_what_its_scopes_say_and_ends_at_once,
    each_path_asks_for_the_token_in_the_same_words,
    a_revoked_token_waits_for_no_message,
    a_token_ends_when_its_time_is_over,
);

fn who_has_no_valid_token_is_told_why(events: Events) {
    let ask = |header: Option<&str>, query: &str| {
        let headers: Vec<_> = header.map(|value| ("authorization", value)).into_iter().collect();
        let answer = events
            .api
            .send("POST", &format!("/rpc{query}"), &headers, r#"["sys.version"]"#);
        (answer.status, answer.json["error"].clone())
    };
    let required = |message: &str| (401, json!({"code": "AUTH_REQUIRED", "message": message}));
    assert_eq!(ask(None, ""), required("Authorization header required"));
    assert_eq!(
        ask(Some("Basic x"), ""),
        required("Authorization header must use Bearer scheme")
    );
    let bad = json!({"code": "AUTH_INVALID_TOKEN", "message": "Invalid token format",
        "details": {"error": "invalid token format: missing 'ns_' prefix"}});
    assert_eq!(ask(Some("Bearer x"), ""), (401, bad.clone()));
    let wrong = TOKEN.replace("0000", "1111");
    let refused = json!({"code": "AUTH_UNAUTHORIZED", "message": "Token not authorized for namespace",
        "details": {"namespace": "default"}});
    assert_eq!(ask(Some(&format!("Bearer {wrong}")), ""), (403, refused));
    assert_eq!(ask(None, &format!("?token={TOKEN}")), (200, Value::Null));
    assert_eq!(
        ask(Some(&format!("Bearer {TOKEN}")), "?token=x").1,
        bad,
        "the address wins"
    );

    // A token of one namespace sees nothing of another and cannot create tokens for it.
    let own = events.call(json!(["ns.create", "a-b", {"metadata": {"x": 1}}]))["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let as_own = |call: Value| {
        let answer = events
            .api
            .send("POST", &format!("/rpc?token={own}"), &[], &call.to_string());
        (answer.status, answer.json)
    };
    assert_eq!(as_own(json!(["stream.write", "s", {"type": "t", "data": {}}])).0, 200);
    assert_eq!(events.call(json!(["stream.get", "s"])), json!([]));
    assert_eq!(as_own(json!(["ns.list"])).1.as_array().unwrap().len(), 1);
    let (status, info) = as_own(json!(["ns.info", "a-b"]));
    assert_eq!(
        (status, &info["messageCount"], &info["metadata"]),
        (200, &json!(1), &json!({"x": 1}))
    );
    for call in [
        json!(["ns.create", "c"]),
        json!(["ns.delete", "a-b"]),
        json!(["ns.info", "default"]),
    ] {
        let (status, refused) = as_own(call);
        assert_eq!(
            (status, refused["error"]["message"].as_str()),
            (403, Some("Token lacks scope 'admin'"))
        );
    }
    let deleted = events.call(json!(["ns.delete", "a-b"]));
    assert_eq!(deleted["messagesDeleted"], 1);
    assert_eq!(as_own(json!(["sys.version"])).0, 403);
}

fn a_token_opens_what_its_scopes_say_and_ends_at_once(events: Events) {
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
    // Mistakes are reported before the scope.
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
    // Recreated, it is empty.
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

fn each_path_asks_for_the_token_in_the_same_words(events: Events) {
    let paths = [("POST", "/rpc"), ("GET", "/subscribe"), ("POST", "/import")];
    let ask = |header: Option<&str>, query: &str| {
        let headers: Vec<_> = header.map(|value| ("authorization", value)).into_iter().collect();
        let answers = paths.map(|(method, path)| {
            let answer = events.api.send(method, &format!("{path}?{query}"), &headers, "");
            assert_eq!(answer.headers["content-type"], "application/json", "{answer:?}");
            (answer.status, answer.text)
        });
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
        let (status, text) = answers[0].clone();
        let error = serde_json::from_str::<Value>(&text).unwrap()["error"].clone();
        let of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (
            status,
            of(&error["code"]),
            of(&error["message"]),
            error["details"].clone(),
        )
    };
    for (header, message) in [
        (None, "Authorization header required"),
        (Some("Basic x"), "Authorization header must use Bearer scheme"),
        (Some("bearer x"), "Authorization header must use Bearer scheme"),
        (Some("Bearer "), "Token required"),
    ] {
        // An empty token in the address counts as no token.
        for query in ["", "token="] {
            let (status, code, told, details) = ask(header, query);
            assert_eq!((status, code.as_str(), told.as_str()), (401, "AUTH_REQUIRED", message));
            assert_eq!(details, Value::Null);
        }
    }
    let zeros = "0".repeat(64);
    for (text, reason) in [
        ("x".to_owned(), "missing 'ns_' prefix"),
        ("ns_ZGVmYXVsdA".to_owned(), "expected 2 parts after prefix, got 1"),
        (
            "ns_ZGVmYXVsdA_00".to_owned(),
            "random part must be 64 hex characters, got 2",
        ),
        (
            format!("ns_ZGVmYXVsdA_{}", "0".repeat(65)),
            "random part must be 64 hex characters, got 65",
        ),
        (
            format!("ns_ZGVmYXVsdA_{}g", "0".repeat(63)),
            "random part is not valid hexadecimal: ",
        ),
        (format!("ns_!_{zeros}"), "namespace part is not valid base64url: "),
        (format!("ns__{zeros}"), "namespace is empty"),
    ] {
        let header = format!("Bearer {text}");
        for (header, query) in [(Some(&*header), String::new()), (None, format!("token={text}"))] {
            let (status, code, message, details) = ask(header, &query);
            assert_eq!(
                (status, code.as_str(), message.as_str()),
                (401, "AUTH_INVALID_TOKEN", "Invalid token format")
            );
            let told = details["error"].as_str().unwrap();
            assert!(
                told.starts_with(&format!("invalid token format: {reason}")),
                "{text}: {told}"
            );
        }
    }
    for (text, namespace) in [(token("default", '1'), "default"), (token("nobody", '0'), "nobody")] {
        let refused = ask(Some(&format!("Bearer {text}")), "");
        let details = json!({"namespace": namespace});
        let message = "Token not authorized for namespace".to_owned();
        assert_eq!(refused, (403, "AUTH_UNAUTHORIZED".to_owned(), message, details));
    }
    // Each path reports a missing scope; and a wrong method only to authorised callers.
    let reading = events.call(json!(["token.create", "default", {"scopes": ["read"]}]))["token"].clone();
    let writing = events.call(json!(["token.create", "default", {"scopes": ["write"]}]))["token"].clone();
    let lacks = |method: &str, path: &str, token: &Value, scope: &str| {
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{separator}token={}", token.as_str().unwrap());
        let answer = events.api.send(method, &path, &[], r#"["stream.get","s"]"#);
        assert_eq!(
            (answer.status, &answer.json["error"]["details"]["required"]),
            (403, &json!(scope)),
            "{answer:?}"
        );
    };
    lacks("POST", "/rpc", &writing, "read");
    lacks("GET", "/subscribe?all=true", &writing, "read");
    events.call(json!(["sub.create", "jobs", {"all": true}]));
    lacks("GET", "/subscribe?subscription=jobs", &writing, "read");
    lacks("GET", "/subscribe?subscription=jobs", &reading, "write");
    for (token, scope, calls) in [
        (
            &reading,
            "write",
            vec![
                json!(["stream.append", "s", [{"type": "t", "data": {}}]]),
                json!(["stream.appendMany", [{"stream": "s", "messages": [{"type": "t", "data": {}}]}]]),
                json!(["snapshot.put", "s", {"version": 0, "type": "t", "data": {}}]),
                json!(["sub.create", "other", {"all": true}]),
                json!(["sub.update", "jobs", {"maxAttempts": 2}]),
                json!(["sub.reset", "jobs", {"from": "end"}]),
                json!(["sub.fetch", "jobs"]),
                json!(["sub.ack", "jobs", ["1.1"]]),
                json!(["sub.nack", "jobs", ["1.1"]]),
                json!(["sub.replay", "jobs"]),
                json!(["sub.delete", "jobs"]),
            ],
        ),
        (
            &writing,
            "read",
            vec![
                json!(["message.get", "x"]),
                json!(["category.get", "s"]),
                json!(["snapshot.get", "s"]),
                json!(["retention.get", "s"]),
                json!(["sub.info", "jobs"]),
                json!(["sub.list"]),
                json!(["sub.parked", "jobs"]),
                json!(["sub.fetch", "jobs"]),
            ],
        ),
    ] {
        for call in calls {
            let (status, answer) = as_token(&events, token.as_str().unwrap(), &call);
            let required = &answer["error"]["details"]["required"];
            assert_eq!((status, required), (403, &json!(scope)), "{call}: {answer}");
        }
    }
    lacks("POST", "/import", &reading, "write");
    lacks("POST", "/import?force=true", &reading, "write");
    for (method, path, allowed) in [
        ("POST", "/subscribe?all=true", "GET"),
        ("GET", "/import?force=true", "POST"),
    ] {
        assert_eq!(events.api.send(method, path, &[], "").status, 401);
        let bearer = format!("Bearer {TOKEN}");
        let answer = events.api.send(method, path, &[("authorization", &bearer)], "");
        let expected = json!({"code": "INVALID_REQUEST", "message": format!("Only {allowed} method allowed")});
        assert_eq!((answer.status, &answer.json["error"]), (405, &expected));
    }
    // No token is required, and none is returned.
    for path in ["/health", "/version", "/ready", "/metrics"] {
        let answer = events.api.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert!(!answer.text.contains("ns_ZGVm") && !format!("{:?}", answer.headers).contains("ns_ZGVm"));
    }
}

/// A client that waits for messages when its token is revoked gets none of the later ones.
fn a_revoked_token_waits_for_no_message(events: Events) {
    events.call(json!(["sub.create", "jobs", {"all": true}]));
    let made = events.call(json!(["token.create", "default", {"scopes": ["read", "write"]}]));
    let token = made["token"].as_str().unwrap().to_owned();
    let asked = metric(&events, "thalweg_events_requests_total");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| as_token(&events, &token, &json!(["sub.fetch", "jobs", {"waitMs": 30000}])));
        // It is counted when it begins; one that waits a moment later is refused all the same.
        eventually(|| {
            let calls = metric(&events, "thalweg_events_requests_total") - asked;
            anyhow::ensure!(calls == 1.0, "{calls} calls");
            Ok(())
        })
        .unwrap();
        events.call(json!(["token.revoke", "default", made["id"]]));
        events.call(json!(["stream.write", "s", {"type": "t", "data": {}}]));
        let (status, answer) = waiting.join().unwrap();
        assert_eq!(
            (status, &answer["error"]["details"]),
            (403, &json!({"namespace": "default"})),
            "{answer}"
        );
    });
}

fn a_token_ends_when_its_time_is_over(events: Events) {
    let refuse = |options: Value, message: &str| {
        let expected = (400, "INVALID_REQUEST".to_owned(), message.to_owned());
        assert_eq!(
            events.refusal(&json!(["token.create", "default", options]).to_string()),
            expected
        );
    };
    refuse(
        json!({"scopes": ["read"], "expiresAt": "2020-01-01T00:00:00Z"}),
        "options.expiresAt must be in the future",
    );
    refuse(
        json!({"scopes": ["read"], "expiresAt": "soon"}),
        "options.expiresAt must be an RFC 3339 time",
    );
    let soon = SystemTime::now() + Duration::from_secs(6);
    let expires = utc(soon.duration_since(UNIX_EPOCH).unwrap().as_secs());
    let made = events.call(json!(["token.create", "default", {"scopes": ["read", "write"], "expiresAt": expires}]));
    let text = made["token"].as_str().unwrap();
    assert_eq!(made["expiresAt"], json!(expires));
    let mut pokes = Pokes::open(&events, &format!("all=true&token={text}"));
    assert_eq!(as_token(&events, text, &json!(["stream.version", "s"])).0, 200);
    assert_eq!(pokes.chunk(), "", "its subscription ends");
    eventually(|| {
        let status = as_token(&events, text, &json!(["stream.version", "s"])).0;
        anyhow::ensure!(status == 403, "{status}");
        Ok(())
    })
    .unwrap();
}

/// RFC 3339 of seconds since 1970: years of the proleptic Gregorian calendar that begin in March, so that the leap day is the
/// last.
fn utc(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (
        day - (153 * month + 2) / 5 + 1,
        if month < 10 { month + 3 } else { month - 9 },
    );
    let year = year + 400 * era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The API applies the rule; the engine is not involved.
#[test]
fn with_open_admin_any_valid_token_administers() {
    let events = Events::with(Backend::Memory, &["--open-admin"]);
    let own = token("own", '1');
    events.call(json!(["ns.create", "own", {"token": own}]));
    assert_eq!(as_token(&events, &own, &json!(["ns.create", "other"])).0, 200);
    let listed = as_token(&events, &own, &json!(["ns.list"])).1;
    assert_eq!(listed.as_array().map(Vec::len), Some(3));
    assert_eq!(as_token(&events, &own, &json!(["ns.info", "default"])).0, 200);
    assert_eq!(as_token(&events, &own, &json!(["ns.delete", "other"])).0, 200);
    assert_eq!(as_token(&events, &own, &json!(["sys.verify"])).0, 200);
    // For any purpose.
    for scope in ["read", "write", "admin"] {
        let made = json!(["token.create", "own", {"scopes": [scope]}]);
        let token = events.call(made)["token"].as_str().unwrap().to_owned();
        for request in [
            json!(["ns.create", format!("by-{scope}")]),
            json!(["ns.list"]),
            json!(["ns.info", "default"]),
            json!(["token.list", "own"]),
        ] {
            assert_eq!(as_token(&events, &token, &request).0, 200, "{scope}: {request}");
        }
    }
    let stranger = token("own", '2');
    assert_eq!(as_token(&events, &stranger, &json!(["ns.list"])).0, 403);
}
