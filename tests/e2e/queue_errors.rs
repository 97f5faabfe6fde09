//! Errors of queues, each with a code, a status, and one sentence that names the place and the cure: over HTTP, on the command
//! line and in the configuration, against the real binary.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::ensure;
use serde_json::{Value, json};
use thalweg_tests::api::Answer;
use thalweg_tests::thalweg::{RUN, run};
use thalweg_tests::{Api, Thalweg, eventually};

const QUEUE: &str = "\
log: {min_free: 16MiB, commit: {spare: 1}}
queues:
  list:
    - {name: jobs, partitions: 1, groups: [{name: g}, {name: s, mode: stream}]}
    - {name: large, partitions: 1, max_message_size: 24MiB, max_bytes: 0}
";

const MIB: usize = 1 << 20;

fn start() -> (Thalweg, Api) {
    let thalweg = Thalweg::start(QUEUE).unwrap();
    let api = Api::new(&thalweg.address().unwrap());
    (thalweg, api)
}

/// `thalweg queue` with arguments, against this process.
fn queue(thalweg: &Thalweg, arguments: &[&str]) -> thalweg_tests::thalweg::Finished {
    let url = format!("http://{}", thalweg.address().unwrap());
    let all: Vec<&str> = ["queue", "--url", &url].iter().chain(arguments).copied().collect();
    run(thalweg.folder.path(), &all).unwrap()
}

#[test]
fn a_second_process_on_the_data_folder_is_told_who_holds_it_and_the_first_goes_on() {
    let (thalweg, api) = start();
    let second = run(thalweg.folder.path(), &RUN).unwrap();
    assert_eq!(second.status.code(), Some(1), "{}", second.stderr);
    assert_eq!(second.stderr.lines().count(), 1, "{}", second.stderr);
    let holder = format!("process {}", thalweg.process.id());
    for words in ["data folder data", &holder, "stop it", "data_dir"] {
        assert!(
            second.stderr.contains(words),
            "{words:?} is missing in {}",
            second.stderr
        );
    }
    api.send("POST", "/queues/jobs/messages", &[], b"x").ok(201);
}

#[test]
fn a_log_of_a_newer_format_is_left_alone_and_named() {
    let (mut thalweg, api) = start();
    api.send("POST", "/queues/jobs/messages", &[], b"x").ok(201);
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
    let file = thalweg.data_dir().join("log/commit-0000000000000000.log");
    let mut bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes.get(..6).unwrap(), b"TWB1\x01\0");
    // Another version with the checksum of this one would only be damage.
    (bytes[4], bytes[12]) = (9, !bytes[12]);
    std::fs::write(&file, &bytes).unwrap();

    let refused = run(thalweg.folder.path(), &RUN).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{}", refused.stderr);
    assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
    for words in [
        "commit-0000000000000000.log",
        "format version 9",
        "newer version of Thalweg",
        "up to 1",
        "install that version",
    ] {
        assert!(
            refused.stderr.contains(words),
            "{words:?} is missing in {}",
            refused.stderr
        );
    }
    assert!(std::fs::read(&file).unwrap() == bytes, "the newer log was changed");

    // The newer program finds all of it again.
    (bytes[4], bytes[12]) = (1, !bytes[12]);
    std::fs::write(&file, &bytes).unwrap();
    thalweg.restart().unwrap();
    let api = Api::new(&thalweg.address().unwrap());
    let messages = api.get("/queues/jobs/messages").ok(200);
    assert_eq!(messages["messages"].as_array().map(Vec::len), Some(1), "{messages}");
}

#[test]
fn a_name_with_dots_or_slashes_is_no_queue_and_no_folder_on_any_way() {
    let (thalweg, api) = start();
    let path = "/api/v1/queues";
    for (name, words) in [
        ("..", "name folders"),
        (".", "name folders"),
        ("%2e%2e", "name folders"),
    ] {
        let refused = api.raw_path("PUT", &format!("{path}/{name}")).unwrap();
        refused.is_problem(400, "invalid_config", &["name", words]);
        let refused = api.raw_path("GET", &format!("{path}/{name}")).unwrap();
        refused.is_problem(400, "invalid_config", &["queue", words]);
    }
    for name in [
        "..%2f..%2fetc",
        "%2e%2e%2fetc",
        "a%2Fb",
        "a%5cb",
        "a%00b",
        "%ff",
        "a b%20",
    ] {
        let name = name.replace(' ', "%20");
        let refused = api.raw_path("PUT", &format!("{path}/{name}")).unwrap();
        assert!([400, 404].contains(&refused.status), "{name}: {refused:?}");
        assert!(
            ["invalid_config", "not_found"].contains(&refused.json["code"].as_str().unwrap()),
            "{refused:?}"
        );
    }
    // Paths are not normalised: these are different ones, which do not exist.
    for wrong in ["/../../etc/passwd", "/a/../b", "//"] {
        let answer = api.raw_path("PUT", &format!("{path}{wrong}")).unwrap();
        assert_eq!(
            (answer.status, answer.json["code"].as_str()),
            (404, Some("not_found")),
            "{wrong}"
        );
    }
    for name in ["..", "../../etc", "a/b", ""] {
        api.post("/queues", &json!({"name": name}))
            .is_problem(400, "invalid_config", &["name: "]);
        let refused = queue(&thalweg, &["create", name]);
        assert_eq!(refused.status.code(), Some(1), "{name}: {}", refused.stderr);
        assert!(
            refused.stderr.starts_with("thalweg: invalid_config: name: "),
            "{}",
            refused.stderr
        );
    }
    let groups = api.raw_path("PUT", "/api/v1/queues/jobs/groups/..").unwrap();
    groups.is_problem(400, "invalid_config", &["group: ", "name folders"]);
    let claimed = api.raw_path("POST", "/api/v1/queues/jobs/groups/..%2fx/claim").unwrap();
    claimed.is_problem(400, "invalid_config", &["group: ", "'/'"]);

    std::fs::write(
        thalweg.folder.path().join("bad.yaml"),
        "queues:\n  list:\n    - {name: ..}\n    - {name: a/b}\n",
    )
    .unwrap();
    let checked = run(thalweg.folder.path(), &["check", "bad.yaml"]).unwrap();
    let text = checked.stdout + &checked.stderr;
    assert_eq!(checked.status.code(), Some(1), "{text}");
    for words in ["3:", "4:", "name folders", "'/'"] {
        assert!(text.contains(words), "{words:?} is missing in {text}");
    }
    let folder: Vec<_> = std::fs::read_dir(thalweg.data_dir()).unwrap().flatten().collect();
    assert!(
        folder
            .iter()
            .all(|entry| ["LOCK", "log", "lake", "keys"].contains(&entry.file_name().to_str().unwrap()))
    );
}

#[test]
fn names_have_128_characters_and_those_of_the_lake_are_not_for_users() {
    let (_thalweg, api) = start();
    let (long, too_long) = ("x".repeat(124), "x".repeat(129));
    api.send("PUT", &format!("/queues/{long}"), &[], b"").ok(201);
    api.send("PUT", &format!("/queues/{too_long}"), &[], b"").is_problem(
        400,
        "invalid_config",
        &["at most 128 characters", "129"],
    );
    // dlq.<name> is a name, too.
    api.post("/queues", &json!({"name": "y".repeat(125)})).is_problem(
        400,
        "invalid_config",
        &["name", "dlq", "shorten it or set dlq.enabled: false"],
    );
    for name in ["lake.x", "buffer.x", "dlq.x"] {
        for refused in [
            api.post("/queues", &json!({"name": name})),
            api.send("PUT", &format!("/queues/{name}"), &[], b""),
        ] {
            refused.is_problem(
                403,
                "not_authorized",
                &[&format!("you may not create queue {name}"), "names beginning"],
            );
        }
    }
    api.send("POST", "/queues/lake.x/messages", &[], b"x").is_problem(
        403,
        "not_authorized",
        &["produce to queue lake.x"],
    );
}

#[test]
fn a_message_of_17_mib_is_refused_by_default_and_fits_where_the_queue_allows_it() {
    let (_thalweg, api) = start();
    let large = vec![b'x'; 17 * MIB];
    api.send("POST", "/queues/jobs/messages", &[], &large).is_problem(
        413,
        "message_too_large",
        &["1048576", "queue jobs", "max_message_size"],
    );
    let fits = api.send("POST", "/queues/large/messages", &[], &large).ok(201);
    let most = vec![b'y'; 24 * MIB];
    let second = api.send("POST", "/queues/large/messages", &[], &most).ok(201);
    for (produced, size) in [(fits, large.len()), (second, most.len())] {
        let message = api
            .get(&format!("/queues/large/messages/{}", produced["id"].as_str().unwrap()))
            .ok(200);
        assert_eq!(message["text"].as_str().map(str::len), Some(size));
    }
    api.send("POST", "/queues/large/messages", &[], &vec![b'z'; 24 * MIB + 1])
        .is_problem(413, "message_too_large", &["25165824", "max_message_size"]);
    // Beyond the limit of the listener.
    api.send("POST", "/queues/large/messages", &[], &vec![b'z'; 33 * MIB])
        .is_problem(413, "message_too_large", &["bytes"]);
    api.post("/queues", &json!({"name": "huge", "max_message_size": "25MiB"}))
        .is_problem(400, "invalid_config", &["max_message_size", "24MiB"]);
    // In a batch the error names the line.
    let line = json!({"text": "x".repeat(2 * MIB)});
    api.send(
        "POST",
        "/queues/jobs/messages:batch",
        &[],
        format!("{{\"text\":\"a\"}}\n{line}\n").as_bytes(),
    )
    .is_problem(413, "message_too_large", &["line 2", "1048576"]);
    let claimed = api.post("/queues/large/groups/g/claim", &json!({"max": 1})).ok(200);
    assert_eq!(claimed["messages"][0]["text"].as_str().map(str::len), Some(large.len()));
}

#[test]
fn what_is_not_there_is_named_with_the_cure() {
    let (thalweg, api) = start();
    let no_queue = ["there is no queue nowhere", "create it", "auto_create"];
    api.send("POST", "/queues/nowhere/messages", &[], b"x")
        .is_problem(404, "queue_not_found", &no_queue);
    api.post("/queues/nowhere/groups/g/claim", &json!({}))
        .is_problem(404, "queue_not_found", &no_queue);
    api.get("/queues/nowhere").is_problem(404, "queue_not_found", &no_queue);
    let shown = queue(&thalweg, &["show", "nowhere"]);
    assert_eq!(shown.status.code(), Some(1));
    assert!(
        shown
            .stderr
            .starts_with("thalweg: queue_not_found: there is no queue nowhere"),
        "{}",
        shown.stderr
    );

    let no_group = ["queue jobs has no group nobody", "create it, or join it"];
    for (method, path, body) in [
        ("GET", "/queues/jobs/groups/nobody", ""),
        ("DELETE", "/queues/jobs/groups/nobody", ""),
        (
            "POST",
            "/queues/jobs/groups/nobody/settle",
            r#"{"ack": ["jobs:0:0:1"]}"#,
        ),
        (
            "POST",
            "/queues/jobs/groups/nobody:commit",
            r#"{"partition": 0, "offset": 0}"#,
        ),
        ("POST", "/queues/jobs/groups/nobody:pause", ""),
    ] {
        api.send(method, path, &[], body.as_bytes())
            .is_problem(404, "group_not_found", &no_group);
    }
    api.get("/queues/jobs/messages/jobs:0:99")
        .is_problem(404, "message_not_found", &["jobs:0:99", "dlq.jobs"]);
    api.get("/queues/jobs/messages/jobs:7:0")
        .is_problem(404, "message_not_found", &["jobs:7:0"]);
    api.get("/queues/jobs/messages?partition=5")
        .is_problem(400, "invalid_config", &["partitions 0 to 0, not 5"]);
    api.post("/queues/jobs:prge", &json!({}))
        .is_problem(404, "not_found", &["\"prge\"", "purge"]);
    api.send("PUT", "/queues/jobs/messages", &[], b"x")
        .is_problem(405, "method_not_allowed", &["PUT"]);
}

#[test]
fn a_receipt_that_no_longer_holds_is_told_beside_those_that_do() {
    let (_thalweg, api) = start();
    let settle = |body: Value| api.post("/queues/jobs/groups/g/settle", &body).ok(200);
    let lines: String = (0..4).map(|n| format!("{{\"text\":\"{n}\"}}\n")).collect();
    api.send("POST", "/queues/jobs/messages:batch", &[], lines.as_bytes())
        .ok(201);
    let claimed = api.post("/queues/jobs/groups/g/claim", &json!({})).ok(200);
    let receipt = |n: usize| claimed["messages"][n]["receipt"].as_str().unwrap().to_owned();

    let first = json!({"ack": [receipt(0)], "reject": [{"r": receipt(1), "reason": "bad"}]});
    assert_eq!(settle(first), json!({"settled": 2, "failed": []}));
    // A repeated ack is not an error: its response may have been lost.
    assert_eq!(settle(json!({"ack": [receipt(0)]}))["settled"], 1);
    let other = receipt(3).replace(":3:1", ":3:2");
    let unsettled = settle(json!({"nack": [receipt(0)], "ack": [receipt(1), &other], "extend": [receipt(2)]}));
    assert_eq!(unsettled["settled"], 1, "{unsettled}");
    let failed: BTreeMap<&str, (&str, &str)> = unsettled["failed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|failed| {
            let text = |name: &str| failed[name].as_str().unwrap();
            (text("r"), (text("code"), text("detail")))
        })
        .collect();
    for (r, code, words) in [
        (&receipt(0), "gone", "settled already"),
        (&receipt(1), "gone", "dead"),
        (&other, "lease_lost", "visibility_timeout or extend it"),
    ] {
        let found = failed.get(r.as_str()).unwrap_or_else(|| panic!("{r} in {unsettled}"));
        assert!(found.0 == code && found.1.contains(words), "{r}: {found:?}");
    }

    // A malformed receipt is a mistake of the whole request, and nothing is settled.
    for wrong in [
        "",
        "jobs",
        "jobs:0:0",
        "jobs:0:0:0",
        "jobs:0:-1:1",
        "jobs:0:0:1:1",
        "../x:0:0:1",
        "jobs:0:99999999999999999999:1",
    ] {
        let refused = api.post("/queues/jobs/groups/g/settle", &json!({"ack": [receipt(2), wrong]}));
        refused.is_problem(400, "invalid_config", &["ack[1]"]);
    }
    let elsewhere = settle(json!({"ack": ["large:0:0:1"]}));
    assert_eq!(elsewhere["failed"][0]["code"], "invalid_config", "{elsewhere}");
    assert_eq!(settle(json!({"ack": [receipt(2)]}))["settled"], 1);
}

#[test]
fn a_body_that_is_no_request_is_refused_as_a_whole() {
    let (mut thalweg, api) = start();
    let deep = format!("{{\"ack\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_map = format!("{}1{}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    let settle = "/queues/jobs/groups/g/settle";
    for (path, body, words) in [
        (settle, "{", "JSON"),
        (settle, "[]", "object"),
        (settle, "ack", "JSON"),
        (settle, "{\"ack\": [1]}", "ack: expected a list of receipts"),
        (settle, "{\"akc\": []}", "did you mean \"ack\"?"),
        (settle, "{\"ack\": [], \"ack\": []}", "given twice"),
        (settle, "", "nothing to settle"),
        (settle, &deep, "ack"),
        (settle, &deep_map, "a: unknown field"),
        ("/queues", &deep_map, "JSON"),
        (
            "/queues",
            "{\"name\": \"q\", \"retry\": {\"max_retrys\": 1}}",
            "did you mean",
        ),
        ("/queues", "--- {name: q}", "not JSON"),
        (
            "/queues/jobs/groups/g/claim",
            "{\"wait\": \"61s\"}",
            "wait: expected from 0ns to 60s",
        ),
        ("/queues/jobs/groups/g/claim", "{\"wait\": -1}", "wait: "),
        (
            "/queues/jobs/groups/g/claim",
            "{\"max\": 0}",
            "max: expected a whole number from 1 to 10000",
        ),
        ("/queues/jobs/groups/g/claim", "{\"max\": 10001}", "got 10001"),
        (
            "/queues/jobs/groups/g/claim",
            "{\"visibility\": \"13h\"}",
            "visibility: ",
        ),
        (
            "/queues/jobs/groups/g/claim",
            "{\"consumer\": \"a\\u0000\"}",
            "control characters",
        ),
        (
            "/queues/jobs/groups/g:commit",
            "{\"partition\": 0, \"offset\": 0}",
            "mode work",
        ),
        (
            "/queues/jobs/groups/s:seek",
            "{\"to\": \"offset:x\"}",
            "to: expected earliest, latest",
        ),
        (
            "/queues/jobs/messages:batch",
            "{\"text\":\"a\"}\n{\"json\": }\n",
            "line 2",
        ),
        (
            "/queues/jobs/messages:batch",
            "{\"json\":1,\"text\":\"a\"}",
            "give one of text, json and base64",
        ),
        ("/queues/jobs/messages:batch", "", "no messages"),
        (
            "/queues/jobs/messages:batch?atomic=maybe",
            "{\"text\":\"a\"}",
            "atomic: expected true or false",
        ),
        ("/queues/jobs/dlq:purge", "{}", "give either ids or filter"),
    ] {
        let refused = api.send("POST", path, &[], body.as_bytes());
        let shown: String = body.chars().take(60).collect();
        assert_eq!(refused.status, 400, "{path} {shown}: {refused:?}");
        refused.is_problem(400, "invalid_config", &[words]);
    }
    let nested = format!("{{\"json\": {}{}}}", "[".repeat(50_000), "]".repeat(50_000));
    let answer = api.send("POST", "/queues/jobs/messages:batch", &[], nested.as_bytes());
    assert!([201, 400].contains(&answer.status), "{answer:?}");

    for (headers, words) in [
        (&[("x-delay", "soon")][..], "delay: expected"),
        (&[("x-delay", "366d")][..], "365d"),
        (
            &[("x-deliver-at", "tomorrow")][..],
            "deliver-at: expected a time such as",
        ),
        (&[("x-delay", "1s"), ("x-deliver-at", "0")][..], "give one of them"),
        (&[("x-ttl", "0")][..], "ttl"),
        (&[("x-prop-x-dlq-reason", "none")][..], "reserved"),
        (&[("x-prop-delay", "1s")][..], "X-"),
    ] {
        api.send("POST", "/queues/jobs/messages", headers, b"x")
            .is_problem(400, "invalid_config", &[words]);
    }
    thalweg.process.check_running().unwrap();
}

#[test]
fn too_many_at_once_are_told_the_limit() {
    let (_thalweg, api) = start();
    let receipts: Vec<String> = (0..10_001).map(|n| format!("jobs:0:{n}:1")).collect();
    api.post("/queues/jobs/groups/g/settle", &json!({"ack": receipts}))
        .is_problem(413, "message_too_large", &["at most 10000", "10001", "in parts"]);
    let most = api
        .post(
            "/queues/jobs/groups/g/settle",
            &json!({"ack": receipts.get(1..).unwrap()}),
        )
        .ok(200);
    assert_eq!(most["failed"].as_array().map(Vec::len), Some(10_000));

    let mut lines = String::new();
    (0..10_001).for_each(|n| writeln!(lines, "{{\"text\":\"{n}\"}}").unwrap());
    for atomic in [true, false] {
        api.send(
            "POST",
            &format!("/queues/jobs/messages:batch?atomic={atomic}"),
            &[],
            lines.as_bytes(),
        )
        .is_problem(413, "message_too_large", &["more than 10000 lines", "in parts"]);
    }
    assert_eq!(api.get("/queues/jobs").ok(200)["depth"], 0, "nothing of it was stored");
    let fewer = lines.split_once('\n').unwrap().1;
    let stored = api
        .send("POST", "/queues/jobs/messages:batch", &[], fewer.as_bytes())
        .ok(201);
    assert_eq!(stored["messages"].as_array().map(Vec::len), Some(10_000));
    let ids: Vec<String> = (0..10_001).map(|n| format!("dlq.jobs:0:{n}")).collect();
    api.post("/queues/jobs/dlq:resend", &json!({"ids": ids}))
        .is_problem(413, "message_too_large", &["at most 10000"]);
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_body_stores_nothing_and_harms_nobody() {
    let (mut thalweg, api) = start();
    let address = thalweg.address().unwrap();
    for n in 0..20 {
        let mut stream = TcpStream::connect(&address).unwrap();
        let path = ["messages", "messages:batch", "groups/g/claim", "groups/g/settle"][n % 4];
        write!(
            stream,
            "POST /api/v1/queues/jobs/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n{{\"text\": \"half"
        )
        .unwrap();
    }
    // Half a body and nothing more, with the other direction still open: the client gets an error.
    let mut half = TcpStream::connect(&address).unwrap();
    half.write_all(b"POST /api/v1/queues/jobs/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\nabc")
        .unwrap();
    half.shutdown(std::net::Shutdown::Write).unwrap();
    drop(half);
    api.send("POST", "/queues/jobs/messages", &[], b"whole").ok(201);
    let messages = api.get("/queues/jobs/messages").ok(200);
    assert_eq!(messages["messages"].as_array().map(Vec::len), Some(1), "{messages}");
    thalweg.process.check_running().unwrap();
    assert!(!thalweg.process.stderr().contains("panicked"));
}

/// The beginning of a produce request.
fn begin(address: &str, path: &str, length: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let head =
        format!("POST /api/v1/queues/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

fn is_answered(stream: &TcpStream) -> bool {
    stream.peek(&mut [0]).is_ok_and(|n| n > 0)
}

#[test]
fn clients_that_stall_in_the_middle_of_a_body_are_told_so_and_keep_nobody_waiting() {
    let (mut thalweg, api) = start();
    let address = thalweg.address().unwrap();
    // More than the memory for all bodies, without a single byte of it.
    let batch = "jobs/messages:batch";
    let mut stalled: Vec<TcpStream> = (0..16)
        .map(|_| begin(&address, batch, "content-length: 25165824", b""))
        .collect();
    // At once as much as would last for hours at the slowest allowed rate.
    let fast = vec![b'x'; 12 * MIB];
    stalled.push(begin(&address, "large/messages", "content-length: 25165824", &fast));
    let chunk = b"b\r\n{\"text\":\"\"}\r\n";
    stalled.push(begin(&address, batch, "transfer-encoding: chunked", chunk));
    stalled.push(begin(&address, "jobs/groups/g/claim", "content-length: 2", b"{"));
    let mut dripping = begin(&address, "jobs/messages", "content-length: 100000", b"x");

    for _ in 0..20 {
        api.send("POST", "/queues/jobs/messages", &[], "whole").ok(201);
    }
    let claimed = api.post("/queues/jobs/groups/g/claim", &json!({"max": 100})).ok(200);
    assert_eq!(claimed["messages"].as_array().map(Vec::len), Some(20), "{claimed}");
    assert!(
        stalled.iter().all(|stream| !is_answered(stream)),
        "the others did not wait for those that stall"
    );

    eventually(|| {
        let _ = dripping.write(b"x");
        ensure!(is_answered(&dripping), "it drips on and on");
        Ok(())
    })
    .unwrap();
    stalled.push(dripping);
    for (n, mut stream) in stalled.into_iter().enumerate() {
        eventually(|| {
            ensure!(is_answered(&stream), "client {n} waits on and on");
            Ok(())
        })
        .unwrap();
        stream.set_nonblocking(false).unwrap();
        let mut answer = Vec::new();
        // A client that is still sending may find the connection reset after the response.
        let _ = stream.read_to_end(&mut answer);
        let answer = Answer::parse(&String::from_utf8_lossy(&answer)).unwrap();
        answer.is_problem(
            408,
            "request_timeout",
            &["more slowly than 8192 bytes per second for 20s"],
        );
    }
    for (queue, depth) in [("jobs", 20), ("large", 0)] {
        assert_eq!(api.get(&format!("/queues/{queue}")).ok(200)["depth"], depth, "{queue}");
    }
    thalweg.process.check_running().unwrap();
}

#[test]
fn a_full_disk_refuses_messages_lets_readers_go_on_and_takes_messages_again_when_there_is_room() {
    let mut thalweg = Thalweg::start_with_disk_of(QUEUE, "data", 400, |_| Ok(())).unwrap();
    let api = Api::new(&thalweg.address().unwrap());
    let produce = || api.send("POST", "/queues/jobs/messages", &[], b"x");
    for _ in 0..10 {
        produce().ok(201);
    }
    thalweg.disk.as_ref().unwrap().fill().unwrap();
    eventually(|| {
        let answer = produce();
        ensure!(answer.status == 507, "{answer:?}");
        Ok(())
    })
    .unwrap();
    produce().is_problem(507, "disk_full", &["is full", "free some space"]);
    let stored = api.get("/queues/jobs").ok(200)["depth"].as_u64().unwrap();
    assert!(stored >= 10);
    let batch = api
        .send(
            "POST",
            "/queues/jobs/messages:batch?atomic=false",
            &[],
            b"{\"text\":\"a\"}\n",
        )
        .ok(200);
    assert_eq!(batch["results"][0]["code"], "disk_full", "{batch}");
    let (status, why) = thalweg.request("/ready").unwrap();
    assert!(status == 503 && why.contains("is full"), "{status} {why}");

    // Readers continue: browse, claim, settle, seek.
    let messages = api.get("/queues/jobs/messages?limit=1000").ok(200);
    assert_eq!(messages["messages"].as_array().map(Vec::len), Some(stored as usize));
    let claimed = api.post("/queues/jobs/groups/g/claim", &json!({"max": 10_000})).ok(200);
    let receipts: Vec<&Value> = claimed["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| &message["receipt"])
        .collect();
    assert_eq!(receipts.len(), stored as usize);
    let settled = api
        .post("/queues/jobs/groups/g/settle", &json!({"ack": receipts}))
        .ok(200);
    assert_eq!(settled["settled"], stored);
    api.post("/queues/jobs/groups/s:seek", &json!({"to": "latest"})).ok(200);

    // The same works after a start there, and operations that free messages work.
    for _ in 0..3 {
        thalweg.process.kill().unwrap();
        thalweg.restart().unwrap();
    }
    let api = Api::new(&thalweg.address().unwrap());
    let produce = || api.send("POST", "/queues/jobs/messages", &[], b"x");
    eventually(|| {
        let answer = produce();
        ensure!(answer.status == 507, "{answer:?}");
        Ok(())
    })
    .unwrap();
    api.get("/queues/jobs/messages?limit=1000").ok(200);
    api.post("/queues/jobs/groups/s:seek", &json!({"to": "latest"})).ok(200);
    api.post("/queues/jobs:purge", &json!({})).ok(200);
    let deleted = api.send("DELETE", "/queues/large?force=true", &[], "");
    assert_eq!(deleted.status, 204, "{deleted:?}");

    thalweg.disk.as_ref().unwrap().free().unwrap();
    eventually(|| {
        let answer = produce();
        ensure!(answer.status == 201, "{answer:?}");
        Ok(())
    })
    .unwrap();
    thalweg.process.signal("TERM").unwrap();
    assert!(
        thalweg.process.wait().unwrap().success(),
        "{}",
        thalweg.process.stderr()
    );
    thalweg.restart().unwrap();
    let api = Api::new(&thalweg.address().unwrap());
    let left = api.post("/queues/jobs/groups/g/claim", &json!({"max": 10_000})).ok(200);
    let left = left["messages"].as_array().unwrap().len() as u64;
    assert!(
        left >= 1 && left < stored + 10,
        "what was settled on the full disk stays settled: {left} of {stored}"
    );
}

const TOKENS: &str = "\
auth:
  tokens:
    - {name: r, file: r.token, roles: [read]}
    - {name: w, file: w.token, roles: [write]}
    - {name: a, file: a.token, roles: [admin]}
";

#[test]
fn every_request_of_the_document_asks_for_its_role() {
    let files = [
        ("r.token", "read-secret"),
        ("w.token", "write-secret"),
        ("a.token", "admin-secret"),
    ];
    let mut thalweg = Thalweg::spawn_with(&format!("{TOKENS}{QUEUE}"), &files).unwrap();
    eventually(|| {
        thalweg.process.check_running()?;
        thalweg.get("/ping").map(drop)
    })
    .unwrap();
    let api = Api::new(&thalweg.address().unwrap());
    let roles = [
        ("read", "read-secret"),
        ("write", "write-secret"),
        ("admin", "admin-secret"),
    ];
    let document = api.with_token("read-secret").get("/openapi.json").ok(200);
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let method = method.to_uppercase();
            let needed = roles.iter().map(|(role, _)| *role).find(|role| {
                operation["description"]
                    .as_str()
                    .unwrap()
                    .contains(&format!("role `{role}`"))
            });
            let needed = needed.unwrap_or_else(|| panic!("{path} names no role: {operation}"));
            *seen.entry(needed).or_default() += 1;
            // Non-existing names, so that the requests have no effect.
            let path = path
                .replace("{queue}", "nowhere")
                .replace("{group}", "g")
                .replace("{id}", "nowhere:0:0");
            let none = api.send(&method, &path, &[], b"");
            none.is_problem(401, "not_authenticated", &["login"]);
            assert!(none.headers.contains_key("www-authenticate"));
            api.with_token("wrong")
                .send(&method, &path, &[], b"")
                .is_problem(401, "not_authenticated", &["wrong"]);
            for (role, token) in roles {
                let api = api.with_token(token);
                // A role includes those below it.
                let rank = |name: &str| roles.iter().position(|(role, _)| *role == name);
                if rank(role) >= rank(needed) {
                    // Without the body, which for events has no end.
                    let status = api.open(&method, &path, &[], b"").unwrap().status().as_u16();
                    assert!(
                        ![401, 403, 500].contains(&status),
                        "{method} {path} with {role}: {status}"
                    );
                } else {
                    let refused = api.send(&method, &path, &[], b"");
                    refused.is_problem(403, "not_authorized", &[&format!("role {needed}")]);
                }
            }
        }
    }
    assert!(seen.len() == 3 && seen.values().sum::<u32>() >= 28, "{seen:?}");
    let shown = queue(&thalweg, &["list"]);
    assert_eq!(shown.status.code(), Some(1));
    assert!(shown.stderr.contains("not_authenticated"), "{}", shown.stderr);
}
