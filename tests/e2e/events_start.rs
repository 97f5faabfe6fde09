//! `events serve` from start to end: flags, tokens, listeners, log output, and errors.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};

use serde_json::json;
use thalweg_tests::api::Answer;
use thalweg_tests::postgres::{Database, Server};
use thalweg_tests::receiver::Authority;
use thalweg_tests::servers::free_port;
use thalweg_tests::{Api, Process, eventually, thalweg};

use crate::events_server::{Backend, Events, Pokes, TOKEN, as_token, token};

/// The lock and the folder belong to the embedded engine; the port is bound before any engine is opened.
#[test]
fn a_taken_port_and_a_folder_in_use_are_told_and_a_signal_ends_it_at_once() {
    let mut events = Events::on_disk();
    let port = events.address.rsplit(':').next().unwrap().to_owned();
    let other = thalweg::run(
        events.folder.path(),
        &["events", "serve", "-port", &port, "-data-dir=other"],
    )
    .unwrap();
    let expected = format!("Error: cannot listen on port {port}: address already in use\n");
    assert_eq!(
        (other.status.code(), other.stderr.as_str()),
        (Some(1), expected.as_str())
    );
    assert!(!events.folder.path().join("other").exists(), "nothing is touched");
    let other = thalweg::run(
        events.folder.path(),
        &["events", "serve", "--port=0", "--data-dir=data"],
    )
    .unwrap();
    assert_eq!(other.status.code(), Some(1));
    assert!(other.stderr.contains("data directory is in use"), "{}", other.stderr);
    let neither = thalweg::run(events.folder.path(), &["events", "serve"]).unwrap();
    assert_eq!(neither.status.code(), Some(1));
    let cure = "--data-dir or --db-url is required (use --test-mode for in-memory testing)";
    assert!(neither.stderr.contains(cure), "{}", neither.stderr);
    let usage = thalweg::run(events.folder.path(), &["events", "-port", "70000"]).unwrap();
    assert_eq!(usage.status.code(), Some(2));
    let _open = Pokes::open(&events, "all=true");
    events.process.signal("TERM").unwrap();
    assert!(events.process.wait().unwrap().success());
}

/// The output of `events` with these arguments when it ends by itself.
fn ended(arguments: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let done = thalweg::run(folder.path(), &[&["events", "serve", "--port=0"], arguments].concat()).unwrap();
    assert_eq!(done.stdout, "", "{arguments:?}");
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 0, "{arguments:?} leaves something behind");
    (done.status.code(), done.stderr)
}

#[test]
fn what_cannot_be_served_is_told_in_one_sentence() {
    let other = token("other", '0');
    let long = format!("ns_ZGVmYXVsdA_{}", "0".repeat(63));
    for (arguments, code, told) in [
        (
            vec![],
            1,
            "--data-dir or --db-url is required (use --test-mode for in-memory testing)",
        ),
        (
            vec!["--db-url", "sqlite://events"],
            1,
            "--db-url sqlite:// needs --data-dir",
        ),
        (
            vec!["--db-url", "mysql://x"],
            1,
            "--db-url mysql://… names no known store",
        ),
        (vec!["--db-url", "log://"], 1, "names no folder"),
        (
            vec!["--db-url", "postgres://127.0.0.1:1/none?connect_timeout=1"],
            1,
            "Error: ",
        ),
        (
            vec!["--test-mode", "--token", "x"],
            1,
            "invalid token format: missing 'ns_' prefix",
        ),
        (
            vec!["--test-mode", "--token", &long],
            1,
            "invalid token format: random part must be 64 hex characters, got 63",
        ),
        (
            vec!["--test-mode", "--token", &other],
            1,
            "provided token is for namespace 'other', expected 'default'",
        ),
        (vec!["--test-mode=maybe"], 2, "Usage: thalweg events serve"),
        (
            vec!["--test-mode", "--max-message-bytes=25165825"],
            2,
            "Usage: thalweg events serve",
        ),
        (
            vec!["--test-mode", "-durability", "sometimes"],
            2,
            "Usage: thalweg events serve",
        ),
        (
            vec!["--test-mode", "--log-level=loud"],
            2,
            "Usage: thalweg events serve",
        ),
        (
            vec!["--test-mode", "--db-type=oracle"],
            2,
            "Usage: thalweg events serve",
        ),
        (vec!["--test-mode", "--tls-cert=server.crt"], 2, "Usage: thalweg events"),
        (vec!["--test-mode", "more"], 2, "Usage: thalweg events serve"),
    ] {
        let (found, stderr) = ended(&arguments);
        assert!(
            found == Some(code) && stderr.contains(told),
            "{arguments:?}: {found:?} {stderr}"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let version = thalweg::run(folder.path(), &["events", "version"]).unwrap();
    let numbers: Vec<&str> = version.stdout.trim_end().split('.').collect();
    assert!(
        numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok()),
        "{}",
        version.stdout
    );
}

#[test]
fn a_store_is_found_by_each_of_its_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("data").display().to_string();
    let (log, pebble) = (format!("log://{kept}"), format!("pebble://{kept}"));
    let mut at = folder;
    for (n, flags) in [
        vec!["-data-dir=data", "-token", TOKEN],
        vec!["--db-url", &log],
        vec!["--db-url", &pebble],
        vec!["--db-url=sqlite://ignored", "--data-dir", "data"],
        vec!["--db-url", &log, "--db-type=timescale"],
        // The rules of production apply.
        vec!["--db-url", &log, "--test-mode"],
    ]
    .into_iter()
    .enumerate()
    {
        let flags = [&flags[..], &["--min-free=0"]].concat();
        let mut events = Events::start_in(at, &flags);
        let written = events.call(json!(["stream.write", "s", {"type": "t", "data": {}}]));
        assert_eq!(written["position"], n, "{flags:?}");
        assert_eq!(events.api.post("/rpc", &json!(["sys.version"])).status, 401);
        let log = events.process.stderr();
        assert!(!log.contains("DEFAULT NAMESPACE TOKEN"), "{log}");
        assert_eq!(
            log.contains("--db-type timescale is plain Postgres"),
            flags.contains(&"--db-type=timescale"),
            "{log}"
        );
        assert_eq!(
            log.contains("--test-mode is ignored with --db-url"),
            flags.contains(&"--test-mode"),
            "{log}"
        );
        events.process.signal("INT").unwrap();
        assert!(events.process.wait().unwrap().success());
        at = std::mem::replace(&mut events.folder, tempfile::tempdir().unwrap());
    }
}

#[test]
fn the_token_of_a_new_store_is_told_once_and_a_given_one_is_valid_from_then_on() {
    let database = Database::create();
    let url = database.url();
    for (flags, file) in [
        (vec!["--data-dir=data", "--min-free=0"], "data/keys/default.token"),
        (vec!["--db-url", &url, "--token-out", "kept/first"], "kept/first"),
    ] {
        let events = Events::start_in(tempfile::tempdir().unwrap(), &flags);
        // Output to a file or a pipe may end up in a journal.
        let path = events.folder.path().join(file);
        let printed = eventually(|| {
            let log = events.process.stderr();
            anyhow::ensure!(
                log.contains("the token of the namespace default was written to"),
                "{log}"
            );
            Ok(std::fs::read_to_string(&path)?.trim_end().to_owned())
        });
        let printed = printed.unwrap();
        assert_eq!(printed.len(), TOKEN.len());
        let log = events.process.stderr();
        assert!(log.contains(file) && !log.contains("ns_"), "{log}");
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        assert_eq!(
            as_token(&events, &printed, &json!(["ns.list"])).0,
            200,
            "it administers"
        );
        assert_eq!(as_token(&events, TOKEN, &json!(["ns.list"])).0, 403);
        let events = events.again();
        let log = events.process.stderr();
        assert!(!log.contains("the token of"), "{log}");
        assert_eq!(as_token(&events, &printed, &json!(["ns.list"])).0, 200);
        let mut events = events;
        events.process.kill().unwrap();
        let folder = std::mem::replace(&mut events.folder, tempfile::tempdir().unwrap());
        let given = Events::start_in(folder, &[&flags[..], &["--token", TOKEN]].concat());
        for valid in [TOKEN, &printed] {
            assert_eq!(as_token(&given, valid, &json!(["ns.list"])).0, 200);
        }
        assert!(!given.process.stderr().contains("the token of"));
        let given = given.again();
        assert_eq!(as_token(&given, TOKEN, &json!(["ns.list"])).0, 200);
    }
}

#[test]
fn a_terminal_is_shown_the_first_token_and_no_file_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let line = format!(
        "{} events serve --port 0 --data-dir data --min-free 0",
        thalweg::binary().display()
    );
    // A separate terminal, whose text goes to a file.
    let mut command = Command::new("script");
    command
        .args(["-q", "-f", "-c", &line, "shown"])
        .current_dir(folder.path());
    let mut process = Process::start("terminal", folder.path(), &mut command).unwrap();
    eventually(|| {
        let shown = std::fs::read_to_string(folder.path().join("shown"))?.replace('\r', "");
        let token = shown.split("DEFAULT NAMESPACE TOKEN:\n").nth(1);
        let token = token.and_then(|rest| rest.lines().next());
        anyhow::ensure!(token.is_some_and(|token| token.len() == TOKEN.len()), "{shown}");
        Ok(())
    })
    .unwrap();
    assert!(!folder.path().join("data/keys/default.token").exists());
    process.kill().unwrap();
}

#[test]
fn without_a_place_for_its_token_a_store_is_not_made() {
    let (database, folder) = (Database::create(), tempfile::tempdir().unwrap());
    let arguments = ["events", "serve", "--port=0", "--db-url", &database.url()];
    for _ in 0..2 {
        let done = thalweg::run(folder.path(), &arguments).unwrap();
        assert_eq!(done.status.code(), Some(1));
        assert!(
            done.stderr
                .contains("pass one (--token-file), or a file for it (--token-out)"),
            "{}",
            done.stderr
        );
    }
}

#[test]
fn it_is_reached_from_this_machine_only_unless_its_address_says_otherwise() {
    let reaches = |events: &Events, host: &str| {
        let port = events.address.rsplit(':').next().unwrap();
        TcpStream::connect(format!("{host}:{port}")).is_ok()
    };
    let has_six = std::net::TcpListener::bind("[::1]:0").is_ok();
    for alone in [
        Events::in_memory(),
        Events::with(Backend::TestMode, &["--insecure"]),
        Events::on_disk(),
        Events::of(Backend::Memory),
        Events::with(Backend::Fsync, &["--insecure"]),
    ] {
        assert!(reaches(&alone, "127.0.0.1") && !reaches(&alone, "127.0.0.2"));
        assert_eq!(reaches(&alone, "[::1]"), has_six);
    }
    for (backend, address) in [
        (Backend::TestMode, "0.0.0.0"),
        (Backend::Memory, "0.0.0.0"),
        (Backend::Fsync, "::"),
    ] {
        if address == "::" && !has_six {
            continue;
        }
        let open = Events::with(backend, &["--address", address, "--insecure"]);
        assert!(reaches(&open, "127.0.0.1") && reaches(&open, "127.0.0.2"));
        assert_eq!(reaches(&open, "[::1]"), has_six && address == "::");
    }
    let one = Events::with(Backend::Fsync, &["--address", "127.0.0.2"]);
    assert!(!reaches(&one, "127.0.0.1") && reaches(&one, "127.0.0.2"));
}

#[test]
fn what_other_hosts_reach_needs_tls_and_tokens_or_the_word_of_the_operator() {
    let folder = tempfile::tempdir().unwrap();
    let identity = Authority::new(folder.path(), "ca")
        .unwrap()
        .certify("localhost")
        .unwrap();
    let (cert, key) = (
        identity.certificate.display().to_string(),
        identity.key.display().to_string(),
    );
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    let test_mode = ["--test-mode"];
    let kept = ["--data-dir", "data", "--min-free", "0", "--token", TOKEN];
    for (flags, lacks) in [
        ([&test_mode[..], &[][..]], Some("without TLS and a login")),
        ([&test_mode[..], &tls[..]], Some("without a login")),
        ([&kept[..], &[][..]], Some("without TLS;")),
        ([&kept[..], &tls[..]], None),
    ] {
        let flags = flags.concat();
        let Some(lacks) = lacks else {
            drop(Events::start_in(
                tempfile::tempdir().unwrap(),
                &[&flags[..], &["--address", "0.0.0.0"]].concat(),
            ));
            continue;
        };
        let refused = [&["events", "serve", "--port", "0", "--address", "0.0.0.0"], &flags[..]].concat();
        let done = thalweg::run(folder.path(), &refused).unwrap();
        assert_eq!(done.status.code(), Some(1), "{flags:?}");
        assert!(
            done.stderr.contains(lacks) && done.stderr.contains("or allow it with --insecure"),
            "{flags:?}: {}",
            done.stderr
        );
        assert!(!folder.path().join("data").exists(), "nothing is touched");
    }
}

#[test]
fn pages_of_other_sites_reach_no_store_without_tokens() {
    let open = Events::with(Backend::TestMode, &["--allow-origin", "http://localhost:3000"]);
    let write = r#"["stream.write","s",{"type":"t","data":{}}]"#;
    let send = |method: &str, path: &str, headers: &[(&str, &str)]| {
        open.api
            .send(method, path, headers, if method == "POST" { write } else { "" })
    };
    let foreign = ("origin", "http://localhost:9999");
    let refused = send("POST", "/rpc", &[foreign, ("content-type", "text/plain")]);
    assert_eq!(
        (refused.status, &refused.json["error"]["code"]),
        (403, &json!("AUTH_UNAUTHORIZED"))
    );
    let image = [
        ("sec-fetch-site", "same-site"),
        ("sec-fetch-mode", "no-cors"),
        ("sec-fetch-dest", "image"),
    ];
    assert_eq!(send("GET", "/subscribe?all=true", &image).status, 403);
    assert_eq!(send("POST", "/import?force=true", &[foreign]).status, 403);
    assert_eq!(send("POST", "/rpc?token=ns_x", &[foreign]).status, 403);
    assert_eq!(send("POST", "/rpc", &[("host", "evil.example")]).status, 403);
    assert_eq!(open.call(json!(["stream.get", "s"])), json!([]), "nothing was written");
    let friend = ("origin", "http://localhost:3000");
    let answered = send("POST", "/rpc", &[friend]);
    assert_eq!(answered.status, 200);
    let told = |answer: &Answer| answer.headers.get("access-control-allow-origin").cloned();
    assert_eq!(
        told(&answered).unwrap(),
        "http://localhost:3000",
        "its page may read the response"
    );
    // A browser asks before it sends JSON.
    let asks = [
        friend,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "content-type"),
    ];
    let preflight = send("OPTIONS", "/rpc", &asks);
    assert_eq!(
        (preflight.status, told(&preflight).unwrap().as_bytes()),
        (200, &b"http://localhost:3000"[..])
    );
    let preflight = send("OPTIONS", "/rpc", &[&[foreign], &asks[1..]].concat());
    assert_eq!((preflight.status, told(&preflight)), (403, None));
    assert_eq!(send("POST", "/rpc", &[]).status, 200);
    // If tokens are checked, a page cannot know the one in the address.
    let kept = Events::on_disk();
    let asked = kept.api.send("POST", &format!("/rpc?token={TOKEN}"), &[foreign], write);
    assert_eq!(asked.status, 200, "{asked:?}");
    assert_eq!(kept.api.send("POST", "/rpc", &[foreign], write).status, 403);
}

#[test]
fn a_second_server_gets_no_port_that_another_listens_on() {
    let events = Events::in_memory();
    let port = events.address.rsplit(':').next().unwrap();
    for flags in [
        vec!["--test-mode"],
        vec!["--data-dir=data"],
        vec!["--db-url=postgres://127.0.0.1:1/none"],
    ] {
        let folder = tempfile::tempdir().unwrap();
        let done = thalweg::run(folder.path(), &[&["events", "--port", port], &flags[..]].concat()).unwrap();
        let told = format!("Error: cannot listen on port {port}: address already in use\n");
        assert_eq!((done.status.code(), done.stderr), (Some(1), told));
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            0,
            "nothing is touched"
        );
    }
}

#[test]
fn tokens_are_masked_and_requests_are_logged_only_for_those_who_look_for_faults() {
    for (level, is_told) in [("info", false), ("debug", true)] {
        let events = Events::with(Backend::Memory, &["--log-level", level, "--log-format", "json"]);
        events.call(json!(["stream.version", "s"]));
        let own = token("own", '7');
        events.call(json!(["ns.create", "own", {"token": own}]));
        assert_eq!(
            events
                .api
                .send("POST", &format!("/rpc?token={own}"), &[], r#"["sys.version"]"#)
                .status,
            200
        );
        drop(Pokes::open(&events, &format!("all=true&token={own}")));
        events.api.get("/nowhere");
        let told = || {
            events
                .process
                .stderr()
                .lines()
                .filter(|line| line.contains("/rpc"))
                .count()
        };
        if is_told {
            eventually(|| {
                anyhow::ensure!(told() >= 3, "{}", events.process.stderr());
                Ok(())
            })
            .unwrap();
        }
        let log = events.process.stderr();
        assert_eq!(told() > 0, is_told, "{log}");
        let secrets = ["ns_ZGVm", own.as_str(), "777777"];
        assert!(!secrets.iter().any(|secret| log.contains(secret)), "{log}");
        assert!(
            log.lines()
                .all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()),
            "{log}"
        );
    }
}

/// A server whose log is a pipe, and that ends with the test.
struct Unread(Child);

impl Drop for Unread {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_log_that_nobody_reads_holds_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port().unwrap();
    let mut command = Command::new(thalweg::binary());
    command
        .args([
            "events",
            "--test-mode",
            "--log-level=debug",
            "--port",
            &port.to_string(),
        ])
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut server = Unread(command.spawn().unwrap());
    let api = Api::at_root(&format!("127.0.0.1:{port}"));
    eventually(|| {
        let answer = api.try_send("GET", "/ready", &[], "")?;
        anyhow::ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    })
    .unwrap();
    // Several times the capacity of a pipe.
    for _ in 0..4000 {
        assert_eq!(api.send("POST", "/rpc", &[], r#"["stream.version","s"]"#).status, 200);
    }
    Command::new("kill")
        .args(["-s", "TERM", &server.0.id().to_string()])
        .status()
        .unwrap();
    let ended = eventually(|| {
        server
            .0
            .try_wait()?
            .ok_or_else(|| anyhow::anyhow!("it is still running"))
    });
    assert!(ended.unwrap().success());
}

/// For a database that disappears and returns: the embedded engine's disk does not.
#[test]
fn without_its_database_it_says_so_and_goes_on_when_it_is_back() {
    let mut postgres = Server::start();
    let url = postgres.url();
    let events = Events::start_in(tempfile::tempdir().unwrap(), &["--db-url", &url, "--token", TOKEN]);
    let write = json!(["stream.write", "s", {"type": "t", "data": {}}]);
    assert_eq!(events.call(write.clone())["globalPosition"], 1);
    let mut pokes = Pokes::open(&events, "all=true");
    postgres.kill();
    let bearer = format!("Bearer {TOKEN}");
    eventually(|| {
        let answer = events
            .api
            .send("POST", "/rpc", &[("authorization", &bearer)], &write.to_string());
        anyhow::ensure!(answer.status == 503, "{answer:?}");
        assert_eq!(answer.json["error"]["code"], "UNAVAILABLE");
        assert_eq!(answer.headers["retry-after"], "1");
        assert_eq!(answer.headers["content-type"], "application/json");
        Ok(())
    })
    .unwrap();
    assert_eq!(events.api.get("/health").status, 200);
    eventually(|| {
        anyhow::ensure!(events.api.get("/ready").status == 503, "it is ready");
        Ok(())
    })
    .unwrap();
    postgres.run_postgres();
    let written = eventually(|| {
        let (status, text) = events.rpc(&write.to_string());
        anyhow::ensure!(status == 200, "{text}");
        Ok(serde_json::from_str::<serde_json::Value>(&text)?)
    });
    // Writes without a response may have been stored, but nothing is missing between.
    let last = written.unwrap()["globalPosition"].as_u64().unwrap();
    let mut told: Vec<u64> = Vec::new();
    while told.last() != Some(&last) {
        let chunk = pokes.chunk();
        if chunk == ": hb\n\n" {
            continue;
        }
        let position = chunk
            .split("\"globalPosition\":")
            .nth(1)
            .and_then(|rest| rest.split('}').next());
        match position {
            Some(position) => told.push(position.parse().unwrap()),
            // It was reading when the database disappeared: then it ends, and its client reconnects.
            None => {
                assert_eq!(chunk, "", "the proper end");
                let next = told.last().map_or(2, |last| last + 1);
                pokes = Pokes::open(&events, &format!("all=true&position={next}"));
            }
        }
    }
    assert_eq!(told, (2..=last).collect::<Vec<u64>>());
}

/// A caller whose write cannot be stored gets an error, even if the process ends because of it.
#[test]
fn a_failed_write_is_told_to_whoever_waits_and_ends_the_process_or_leaves_it_to_readers() {
    for (flag, code) in [("exit", Some(74)), ("stay", Some(0))] {
        let mut events = Events::with(Backend::Fsync, &["--on-poison", flag]);
        let write = json!(["stream.write", "s", {"type": "t", "data": {"text": "x".repeat(100_000)}}]);
        for _ in 0..5 {
            events.call(write.clone());
        }
        let limited = Command::new("prlimit")
            .args(["--pid", &events.process.id().to_string(), "--fsize=262144"])
            .status()
            .unwrap();
        assert!(limited.success());
        let (status, answer) = as_token(&events, TOKEN, &write);
        assert_eq!(
            (status, &answer["error"]["code"]),
            (503, &json!("UNAVAILABLE")),
            "{answer}"
        );
        if flag == "stay" {
            assert_eq!(as_token(&events, TOKEN, &write).0, 503);
            assert_eq!(events.call(json!(["stream.version", "s"])), 4);
            assert_eq!(events.api.get("/ready").status, 503);
            events.process.signal("TERM").unwrap();
        }
        let status = events.process.wait().unwrap();
        assert_eq!(status.code(), code, "{flag}: {}", events.process.stderr());
    }
}

/// Several servers that start at the same moment on an empty database: one of them creates the namespace that always exists.
#[test]
fn servers_that_start_at_once_on_an_empty_database_share_it() {
    for _ in 0..3 {
        let (database, folder) = (Database::create(), tempfile::tempdir().unwrap());
        let mut servers: Vec<Child> = (0..4)
            .map(|_| {
                let mut command = Command::new(thalweg::binary());
                command
                    .args([
                        "events",
                        "serve",
                        "--port=0",
                        "--token",
                        TOKEN,
                        "--db-url",
                        &database.url(),
                    ])
                    .current_dir(folder.path())
                    .stderr(Stdio::piped());
                command.spawn().unwrap()
            })
            .collect();
        let ports: Vec<String> = servers
            .iter_mut()
            .map(|server| {
                let mut log = String::new();
                let mut lines = BufReader::new(server.stderr.take().unwrap());
                while !log.contains("address=") {
                    assert!(lines.read_line(&mut log).unwrap() > 0, "{log}");
                }
                // Nobody reads on; further output is dropped.
                let address = log.split("address=").nth(1).unwrap().split_whitespace().next().unwrap();
                address.rsplit(':').next().unwrap().to_owned()
            })
            .collect();
        let bearer = format!("Bearer {TOKEN}");
        for (port, n) in ports.iter().zip(0..) {
            let write = r#"["stream.write","s",{"type":"t","data":{}}]"#;
            let answer =
                Api::at_root(&format!("127.0.0.1:{port}")).send("POST", "/rpc", &[("authorization", &bearer)], write);
            assert_eq!(
                (answer.status, &answer.json["position"]),
                (200, &json!(n)),
                "{answer:?}"
            );
        }
        for server in &mut servers {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }
}

/// The port answers before the store is open. Who has seen that the server lives may call.
#[test]
fn the_first_call_to_a_server_that_lives_is_answered() {
    let database = Database::create();
    let url = database.url();
    for (on, storage) in [
        ("disk", vec!["--data-dir", "data", "--min-free", "0"]),
        ("database", vec!["--db-url", &url]),
    ] {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port().unwrap());
        let mut command = Command::new(thalweg::binary());
        command
            .args(["events", "serve", "--token", TOKEN, "--port", &port.to_string()])
            .args(storage)
            .current_dir(folder.path());
        let mut process = Process::start("events", folder.path(), &mut command).unwrap();
        let api = Api::at_root(&format!("127.0.0.1:{port}"));
        while api.try_send("GET", "/health", &[], "").is_err() {
            process.check_running().unwrap();
        }
        let bearer = format!("Bearer {TOKEN}");
        let write = r#"["stream.write","s",{"type":"t","data":{}}]"#;
        let answer = api.send("POST", "/rpc", &[("authorization", &bearer)], write);
        assert_eq!(answer.status, 200, "on {on}: {answer:?}");
    }
}
