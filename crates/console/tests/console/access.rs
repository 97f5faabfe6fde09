use std::net::{IpAddr, UdpSocket};

use thalweg_config::Role;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Answer, connect, exchange, fetch, options, send, start_with, token};

/// A non-loopback address of this machine: connections from it look like another host. `None` without a network.
fn outside_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Nothing is sent; the system only chooses the route.
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().unwrap().ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}

async fn from_outside(ip: IpAddr, port: u16, path: &str) -> Answer {
    let mut stream = TcpStream::connect((ip, port)).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: {ip}\r\nconnection: close\r\n\r\n");
    exchange(&mut stream, request.as_bytes()).await.unwrap()
}

#[tokio::test]
async fn unprotected_on_all_addresses_other_hosts_get_only_the_paths_of_the_reference() {
    let mut all = options();
    all.http.address = "0.0.0.0:0".to_owned();
    all.http.debug_endpoints = true;
    let running = start_with(all).await;
    let port = running.address().port();
    let local = "127.0.0.1".parse().unwrap();
    for path in ["/", "/api/v1/status", "/ping", "/metrics", "/open", "/debug/stack"] {
        assert_eq!(from_outside(local, port, path).await.status, 200, "{path}");
    }
    let Some(ip) = outside_address() else { return };
    // Its tokens would be sent in the clear.
    assert_eq!(from_outside(ip, port, "/own").await.status, 403);
    // From this machine the path authorizes by itself; here it rejects the GET.
    assert_eq!(from_outside(local, port, "/own").await.status, 405);
    for path in [
        "/ping",
        "/ready",
        "/version",
        "/metrics",
        "/stats",
        "/endpoints",
        "/benthos/metrics",
    ] {
        assert_eq!(from_outside(ip, port, path).await.status, 200, "{path}");
    }
    for path in [
        "/",
        "/api/v1/status",
        "/open",
        "/debug/stack",
        "/benthos/debug/stack",
        "/console/main.js",
    ] {
        let answer = from_outside(ip, port, path).await;
        assert_eq!(answer.status, 403, "{path}");
        assert!(
            answer.text().contains("configure a login in auth.tokens"),
            "{}",
            answer.text()
        );
    }
}

#[tokio::test]
async fn one_outside_address_without_protection_is_refused_at_start() {
    let Some(ip) = outside_address() else { return };
    let mut outside = options();
    outside.http.address = format!("{ip}:0");
    let error = crate::support::try_start(outside.clone(), Vec::new())
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("can be reached by other hosts without TLS and a login"),
        "{error}"
    );

    outside.http.insecure = true;
    let running = start_with(outside.clone()).await;
    assert_eq!(from_outside(ip, running.address().port(), "/").await.status, 200);

    outside.http.insecure = false;
    outside.auth.tokens = vec![token("reader", &[Role::Read])];
    let error = crate::support::try_start(outside.clone(), Vec::new())
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("without TLS; set it to"), "{error}");
    outside.http.insecure = true;
    let running = start_with(outside).await;
    assert_eq!(from_outside(ip, running.address().port(), "/").await.status, 401);
    assert_eq!(from_outside(ip, running.address().port(), "/ping").await.status, 200);
}

#[tokio::test]
async fn with_tokens_everything_but_health_needs_a_role() {
    let mut guarded = options();
    guarded.http.debug_endpoints = true;
    guarded.auth.tokens = vec![
        token("reader", &[Role::Read]),
        token("writer", &[Role::Write]),
        token("admin", &[Role::Admin]),
    ];
    let running = start_with(guarded).await;
    let cases = [
        // method, path, nobody, reader, writer, admin
        ("GET", "/ping", [200, 200, 200, 200]),
        ("GET", "/ready", [200, 200, 200, 200]),
        ("GET", "/version", [200, 200, 200, 200]),
        ("GET", "/open", [200, 200, 200, 200]),
        ("GET", "/", [401, 200, 200, 200]),
        ("GET", "/metrics", [401, 200, 200, 200]),
        ("GET", "/benthos/metrics", [401, 200, 200, 200]),
        ("GET", "/api/v1/status", [401, 200, 200, 200]),
        ("POST", "/echo", [401, 403, 200, 200]),
        ("POST", "/benthos/post", [401, 403, 200, 200]),
        ("GET", "/debug/stack", [401, 403, 403, 200]),
        ("GET", "/debug/config/json", [401, 403, 403, 200]),
        ("GET", "/benthos/debug/config/yaml", [401, 403, 403, 200]),
    ];
    for (method, path, expected) in cases {
        for (who, status) in [None, Some("reader"), Some("writer"), Some("admin")]
            .into_iter()
            .zip(expected)
        {
            let header = who.map(|who| format!("authorization: Bearer {who}"));
            let headers: Vec<&str> = header.iter().map(String::as_str).collect();
            let answer = send(&running, method, path, &headers, "").await;
            assert_eq!(answer.status, status, "{method} {path} as {who:?}: {answer:?}");
        }
    }
    let asked = fetch(&running, "/").await;
    assert!(
        asked.head.contains("www-authenticate: basic realm=\"thalweg\""),
        "{}",
        asked.head
    );
    let wrong = send(&running, "GET", "/", &["authorization: Bearer wrong"], "").await;
    assert_eq!(
        (wrong.status, wrong.text()),
        (401, "the token, the user name or the password is wrong\n")
    );
    let lacking = send(&running, "POST", "/echo", &["authorization: Bearer reader"], "x").await;
    assert_eq!(
        lacking.text(),
        "\"reader\" lacks the role write that this request needs; add it in auth\n"
    );
}

#[tokio::test]
async fn users_of_the_users_file_come_with_basic_and_changes_need_no_restart() {
    // The password is `pump`.
    let hash = "$argon2id$v=19$m=64,t=1,p=1$c2FsdHNhbHQ$";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("users");
    let line = |roles: &str| format!("ada:{}:{roles}\n", password_hash());
    assert!(password_hash().starts_with(hash));
    std::fs::write(&file, line("read")).unwrap();
    let mut guarded = options();
    guarded.auth.users_file = Some(file.clone());
    let running = start_with(guarded).await;
    let ada = "authorization: Basic YWRhOnB1bXA="; // ada:pump
    let eve = "authorization: Basic ZXZlOnB1bXA="; // eve:pump
    assert_eq!(send(&running, "GET", "/metrics", &[ada], "").await.status, 200);
    assert_eq!(
        send(&running, "GET", "/metrics", &[ada], "").await.status,
        200,
        "remembered"
    );
    assert_eq!(send(&running, "GET", "/metrics", &[eve], "").await.status, 401);
    assert_eq!(send(&running, "POST", "/echo", &[ada], "x").await.status, 403);
    std::fs::write(&file, line("read,write")).unwrap();
    while send(&running, "POST", "/echo", &[ada], "x").await.status != 200 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    // An invalid line lets nobody in, and neither does a missing file.
    std::fs::write(&file, "nonsense\n").unwrap();
    while send(&running, "POST", "/echo", &[ada], "x").await.status != 401 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    std::fs::write(&file, line("read,write")).unwrap();
    while send(&running, "POST", "/echo", &[ada], "x").await.status != 200 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    std::fs::remove_file(&file).unwrap();
    while send(&running, "POST", "/echo", &[ada], "x").await.status != 401 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn what_a_revoked_token_holds_open_ends() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    let line = |name: &str| {
        use sha2::Digest as _;
        let digits: String = sha2::Sha256::digest(name)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{name}:{digits}:read\n")
    };
    std::fs::write(&file, [line("goes"), line("stays")].concat()).unwrap();
    let mut guarded = options();
    guarded.auth.tokens_file = Some(file.clone());
    let running = start_with(guarded).await;
    let open = async |path: &str, token: &str| {
        let mut stream = connect(&running).await;
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut first = [0; 16];
        if path != "/waits" {
            stream.read_exact(&mut first).await.unwrap();
        }
        stream
    };
    let mut gone = [
        open("/events", "goes").await,
        open("/parts", "goes").await,
        open("/waits", "goes").await,
    ];
    let mut stays = open("/events", "stays").await;
    std::fs::write(&file, line("stays")).unwrap();
    let mut ends = Vec::new();
    for stream in &mut gone {
        let mut rest = Vec::new();
        let read = stream.read_to_end(&mut rest);
        let _end = tokio::time::timeout(std::time::Duration::from_secs(30), read)
            .await
            .expect("it ends");
        ends.push(String::from_utf8(rest).unwrap());
    }
    // An event stream ends normally; a partial answer is not mistaken for the whole; a waiting client gets an error.
    assert!(ends[0].ends_with("0\r\n\r\n"), "{}", ends[0]);
    assert!(!ends[1].ends_with("0\r\n\r\n"), "{}", ends[1]);
    assert!(ends[2].starts_with("HTTP/1.1 401"), "{}", ends[2]);
    let mut more = [0; 1];
    let read = tokio::time::timeout(std::time::Duration::from_millis(300), stays.read_exact(&mut more)).await;
    assert!(
        read.is_err() || read.is_ok_and(|read| read.is_ok()),
        "the other goes on"
    );
    assert_eq!(
        send(&running, "GET", "/metrics", &["authorization: Bearer goes"], "")
            .await
            .status,
        401
    );
    assert_eq!(
        send(&running, "GET", "/metrics", &["authorization: Bearer stays"], "")
            .await
            .status,
        200
    );
}

fn password_hash() -> String {
    use argon2::password_hash::{PasswordHasher, SaltString};
    let cheap = argon2::Params::new(64, 1, 1, None).unwrap();
    let argon = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, cheap);
    argon
        .hash_password(b"pump", &SaltString::from_b64("c2FsdHNhbHQ").unwrap())
        .unwrap()
        .to_string()
}

#[tokio::test]
async fn only_allowed_origins_may_read_and_write_from_other_pages() {
    let mut with_cors = options();
    with_cors.http.cors.enabled = true;
    with_cors.http.cors.allowed_origins = vec!["https://grafana.example".to_owned()];
    let running = start_with(with_cors).await;
    let friend = "origin: https://grafana.example";
    let foe = "origin: https://evil.example";
    let preflight = send(
        &running,
        "OPTIONS",
        "/echo",
        &[friend, "access-control-request-method: POST"],
        "",
    )
    .await;
    assert_eq!(
        preflight.header("access-control-allow-origin"),
        Some("https://grafana.example")
    );
    let asked = "access-control-request-headers: authorization, last-event-id, x-key, x-prop-unit";
    let with_headers = [friend, "access-control-request-method: POST", asked];
    let preflight = send(&running, "OPTIONS", "/echo", &with_headers, "").await;
    assert_eq!(
        preflight.header("access-control-allow-headers"),
        Some("authorization, last-event-id, x-key, x-prop-unit")
    );
    let sent = send(&running, "POST", "/echo", &[friend], "x").await;
    assert_eq!(
        (sent.status, sent.header("access-control-expose-headers")),
        (200, Some("location,retry-after,www-authenticate,thalweg-position"))
    );
    let refused = send(&running, "POST", "/echo", &[foe], "x").await;
    assert_eq!(
        (refused.status, refused.header("access-control-allow-origin")),
        (403, None)
    );
    assert!(
        refused.text().contains("add its origin to http.cors.allowed_origins"),
        "{}",
        refused.text()
    );
    let read = send(&running, "GET", "/metrics", &[foe], "").await;
    assert_eq!((read.status, read.header("access-control-allow-origin")), (403, None));
}

#[tokio::test]
async fn what_another_page_makes_a_browser_send_is_refused_on_every_method() {
    let running = start_with(options()).await;
    let image = [
        "sec-fetch-site: same-site",
        "sec-fetch-mode: no-cors",
        "sec-fetch-dest: image",
    ];
    let link = [
        "sec-fetch-site: cross-site",
        "sec-fetch-mode: navigate",
        "sec-fetch-dest: document",
    ];
    let typed = [
        "sec-fetch-site: none",
        "sec-fetch-mode: navigate",
        "sec-fetch-dest: document",
    ];
    for (method, path, headers, expected) in [
        ("GET", "/api/v1/status", &image, 403),
        ("HEAD", "/api/v1/status", &image, 403),
        ("GET", "/ping", &image, 403),
        ("GET", "/open", &image, 403),
        ("GET", "/open", &link, 403),
        ("GET", "/", &link, 200),
        ("GET", "/console/main.js", &link, 200),
        ("GET", "/benthos/ready", &link, 200),
        ("GET", "/api/v1/status", &typed, 200),
    ] {
        let answer = send(&running, method, path, headers, "").await;
        assert_eq!(answer.status, expected, "{method} {path} {headers:?}");
    }
    let refused = send(&running, "GET", "/api/v1/status", &image, "").await;
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert!(
        refused.text().contains("a page of another site may not send this"),
        "{}",
        refused.text()
    );
}

#[tokio::test]
async fn every_read_that_acts_is_refused_to_a_browser_that_opens_it() {
    let mut options = options();
    options.http.debug_endpoints = true;
    let running = start_with(options).await;
    for site in ["none", "same-origin"] {
        let site = format!("sec-fetch-site: {site}");
        let opened = [site.as_str(), "sec-fetch-mode: navigate", "sec-fetch-dest: document"];
        for path in [
            "/events",
            "/events?x",
            "/debug/pprof/profile?seconds=1",
            "/benthos/debug/pprof/profile?seconds=1",
        ] {
            for method in ["GET", "HEAD"] {
                let answer = send(&running, method, path, &opened, "").await;
                assert_eq!(answer.status, 403, "{method} {path}");
            }
        }
        for path in ["/api/v1/status", "/metrics", "/", "/debug/stack"] {
            assert_eq!(send(&running, "GET", path, &opened, "").await.status, 200, "{path}");
        }
    }
    let typed = ["sec-fetch-site: none", "sec-fetch-mode: navigate"];
    let refused = send(&running, "GET", "/events", &typed, "").await;
    assert!(
        refused
            .text()
            .contains("neither a link nor the address bar may open it"),
        "{}",
        refused.text()
    );
}

#[tokio::test]
async fn a_request_with_two_hosts_is_refused_and_its_connection_closed() {
    let running = start_with(options()).await;
    for hosts in [
        "host: localhost\r\nhost: evil.example\r\n",
        "host: localhost\r\nHost: localhost\r\n",
        "",
    ] {
        let mut stream = connect(&running).await;
        let request = format!("GET /ping HTTP/1.1\r\n{hosts}\r\n");
        let answer = exchange(&mut stream, request.as_bytes()).await.unwrap();
        assert_eq!(answer.status, 400, "{hosts:?}");
        assert_eq!(answer.header("connection"), Some("close"), "{hosts:?}");
    }
}

#[tokio::test]
async fn debug_paths_say_how_they_are_switched_on() {
    let running = start_with(options()).await;
    let answer = fetch(&running, "/debug/pprof/profile").await;
    assert_eq!(answer.status, 404);
    assert_eq!(
        answer.text(),
        "profiles and configuration are not served; set http.debug_endpoints: true\n"
    );
}

#[tokio::test]
async fn under_paths_that_say_so_every_refusal_is_a_problem_with_a_code() {
    let mut hasty = options();
    hasty.auth.tokens = vec![token("reader", &[Role::Read]), token("all", &[Role::Admin])];
    hasty.limits.body_bytes_max = 1000;
    hasty.limits.body_grace = std::time::Duration::from_millis(100);
    let running = start_with(hasty).await;
    let (reader, all) = ("authorization: Bearer reader", "authorization: Bearer all");
    let large = "x".repeat(1001);
    for (method, path, headers, body, status, code) in [
        ("POST", "/api/things/a", &[][..], "", 401, "not_authenticated"),
        ("POST", "/api/things/a", &[reader][..], "", 403, "not_authorized"),
        ("POST", "/api/things/a", &[all][..], &large, 413, "message_too_large"),
        ("PUT", "/api/things/a", &[all][..], "", 405, "method_not_allowed"),
        ("POST", "/api/things", &[all][..], "", 404, "not_found"),
        ("GET", "/api/v1/nope", &[all][..], "", 404, "not_found"),
    ] {
        let answer = send(&running, method, path, headers, body).await;
        assert_eq!(answer.status, status, "{method} {path}");
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json"),
            "{code}"
        );
        let problem: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
        assert_eq!((&problem["code"], &problem["status"]), (&code.into(), &status.into()));
        assert_eq!(problem["type"], format!("urn:thalweg:error:{code}"));
        assert!(
            problem["detail"].as_str().is_some_and(|detail| !detail.ends_with('\n')),
            "{problem}"
        );
        assert_eq!(answer.header("www-authenticate").is_some(), status == 401);
        assert_eq!(answer.header("allow").is_some(), status == 405);
    }
    let slow = format!(
        "POST /api/things/a HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{all}\r\ncontent-length: 2\r\n\r\nx"
    );
    let slow = exchange(&mut connect(&running).await, slow.as_bytes()).await.unwrap();
    assert_eq!(slow.status, 408);
    assert!(slow.text().contains("\"code\":\"request_timeout\""), "{}", slow.text());
    // Elsewhere a sentence, as before.
    let plain = send(&running, "POST", "/echo", &[], "x").await;
    assert!(plain.text().starts_with("this path needs a login"), "{}", plain.text());
}

#[tokio::test]
async fn one_action_of_a_path_may_ask_for_less_than_its_mount() {
    let mut closed = options();
    closed.auth.tokens = vec![token("reader", &[Role::Read])];
    let running = start_with(closed).await;
    let reader = "authorization: Bearer reader";
    for (path, status) in [("a", 403), ("a:look", 200), ("a:change", 403), ("a%3Alook", 403)] {
        let answer = send(&running, "POST", &format!("/api/things/{path}"), &[reader], "").await;
        assert_eq!(answer.status, status, "{path}");
    }
}
