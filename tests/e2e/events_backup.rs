//! Backups of the event store and their restores, with the real binary: under load, cut off, corrupted, killed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use serde_json::{Value, json};
use tempfile::TempDir;
use thalweg_tests::{Api, Process, Thalweg, eventually, thalweg};

use crate::events_server::{Events, TOKEN};

/// Result of a command.
struct Done {
    code: Option<i32>,
    stderr: String,
}

fn run(folder: &Path, arguments: &[&str]) -> Done {
    let done = thalweg::run(folder, arguments).unwrap();
    assert_eq!(done.stdout, "", "what they have to say goes to the standard error");
    Done {
        code: done.status.code(),
        stderr: done.stderr,
    }
}

fn backup(url: &str, folder: &Path, output: &str) -> Done {
    let arguments = ["events", "backup", "--url", url, "--token", TOKEN, "--output", output];
    run(folder, &arguments)
}

fn restore(folder: &Path, input: &str, data_dir: &str) -> Done {
    run(folder, &["events", "restore", "--input", input, "--data-dir", data_dir])
}

fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// The result of a call with a token.
fn call(api: &Api, token: &str, call: &Value) -> Value {
    let answer = api.with_token(token).post("/rpc", call);
    assert_eq!(answer.status, 200, "{call}: {}", answer.text);
    answer.json
}

/// A server with every kind of data in the namespace `shop`, and the tokens of that namespace.
fn filled() -> (Events, String, String) {
    let events = Events::on_disk();
    let shop = json!(["ns.create", "shop", {"description": "a shop", "metadata": {"a": 1}}]);
    let shop = events.call(shop)["token"].as_str().unwrap().to_owned();
    let reader = json!(["token.create", "shop", {"scopes": ["read"], "expiresAt": "2100-01-01T00:00:00Z"}]);
    let reader = events.call(reader)["token"].as_str().unwrap().to_owned();
    let own = |what: Value| call(&events.api, &shop, &what);
    for n in 0..200 {
        let data = json!({"n": n, "long": "x".repeat(n * 11)});
        for stream in ["order-1", "order-2+a", "bill-1", "dead-1"] {
            own(json!(["stream.write", stream, {"type": "T", "data": data, "metadata": {"m": n}}]));
        }
    }
    own(json!(["stream.write", "bill-1", {"type": "T", "data": {}}, {"id": "6f1b0f9e-6d0c-4c39-a9a3-0a8f0a1c3a11"}]));
    own(json!(["retention.set", "order-1", {"maxCount": 50}]));
    own(json!(["stream.delete", "dead-1", {"tombstone": true}]));
    own(json!(["snapshot.put", "bill-1", {"version": 9, "type": "S", "data": {"sum": 12.50}}]));
    own(json!(["sub.create", "bills", {"category": "bill", "from": "start", "ackTimeoutMs": 600_000}]));
    let fetched = own(json!(["sub.fetch", "bills", {"consumer": "c", "max": 3, "waitMs": 0}]));
    let lease = |n: usize| fetched[n]["lease"].clone();
    own(json!(["sub.nack", "bills", [lease(0)], {"action": "park", "reason": "no"}]));
    let freed = events.call(json!(["sys.scavenge"]));
    assert!(freed["messages"].is_number(), "{freed}");
    (events, shop, reader)
}

/// Requests that must have the same result on both servers.
fn asked() -> Vec<Value> {
    let mut asked = vec![
        json!(["ns.info", "shop"]),
        json!(["ns.streams"]),
        json!(["ns.categories"]),
        json!(["category.get", "", {"batchSize": -1}]),
        json!(["message.get", "6f1b0f9e-6d0c-4c39-a9a3-0a8f0a1c3a11"]),
        json!(["retention.get", "order-1"]),
        json!(["snapshot.get", "bill-1"]),
        json!(["sub.list"]),
        json!(["sub.info", "bills"]),
        json!(["sub.parked", "bills"]),
    ];
    for stream in ["order-1", "order-2+a", "bill-1", "dead-1", "none"] {
        asked.push(json!(["stream.get", stream, {"batchSize": -1}]));
        asked.push(json!(["stream.version", stream]));
    }
    asked
}

fn answers(api: &Api, token: &str) -> Vec<Value> {
    let mut answers: Vec<Value> = asked().iter().map(|asked| call(api, token, asked)).collect();
    answers.iter_mut().for_each(without_read_ahead);
    answers
}

/// The read-ahead of a subscription is not part of a backup: the next server reads it again.
fn without_read_ahead(answer: &mut Value) {
    match answer {
        Value::Array(all) if all.iter().all(Value::is_object) => all.iter_mut().for_each(without_read_ahead),
        Value::Object(members) if members.contains_key("ackTimeoutMs") => {
            members.remove("read");
            members.remove("waiting");
        }
        _ => {}
    }
}

fn rows(api: &Api) -> Vec<Value> {
    let all = call(api, TOKEN, &json!(["category.get", "load", {"batchSize": -1}]));
    all.as_array().unwrap().clone()
}

#[test]
fn a_backup_under_load_is_restored_and_served_with_the_same_tokens_and_content() {
    let (events, shop, reader) = filled();
    let before = answers(&events.api, &shop);
    let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..3)
        .map(|n| {
            let api = Api::at_root(&events.address);
            let (stop, acknowledged) = (stop.clone(), acknowledged.clone());
            std::thread::spawn(move || {
                while !stop.load(SeqCst) {
                    let stored = call(
                        &api,
                        TOKEN,
                        &json!(["stream.write", format!("load-{n}"), {"type": "L", "data": {}}]),
                    );
                    acknowledged.fetch_max(stored["globalPosition"].as_u64().unwrap(), SeqCst);
                }
            })
        })
        .collect();
    eventually(|| {
        anyhow::ensure!(acknowledged.load(SeqCst) > 100, "the writers have not begun");
        Ok(())
    })
    .unwrap();
    let (folder, floor) = (tempfile::tempdir().unwrap(), acknowledged.load(SeqCst));
    let made = backup(&format!("http://{}", events.address), folder.path(), "all");
    stop.store(true, SeqCst);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert!(made.stderr.contains("2 namespaces, "), "{}", made.stderr);
    assert_eq!(names(folder.path()), ["all"]);
    let done = restore(folder.path(), "all", "again");
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let again = Events::start_in(folder, &["--data-dir", "again", "--min-free", "0"]);
    assert!(!again.process.stderr().contains("the token of the namespace"));
    for ((asked, one), other) in asked().iter().zip(&before).zip(&answers(&again.api, &shop)) {
        assert_eq!(one, other, "{asked}");
    }
    for token in [&shop, &reader] {
        let tokens = json!(["token.list", "shop"]);
        assert_eq!(events.call(tokens.clone()), again.call(tokens));
        assert_eq!(
            call(&again.api, token, &json!(["stream.version", "bill-1"])),
            json!(200)
        );
    }
    let refused = again
        .api
        .with_token(&reader)
        .post("/rpc", &json!(["stream.write", "s", {"type": "t", "data": {}}]));
    assert_eq!(refused.status, 403, "{}", refused.text);
    let (all, kept) = (rows(&events.api), rows(&again.api));
    assert!(
        kept.len() as u64 >= floor && kept.len() <= all.len(),
        "{} of {}",
        kept.len(),
        all.len()
    );
    assert_eq!(kept[..], all[..kept.len()], "what is kept has no gap");
    let fetch = json!(["sub.fetch", "bills", {"consumer": "c", "max": 3, "waitMs": 0}]);
    let (one, other) = (call(&events.api, &shop, &fetch), call(&again.api, &shop, &fetch));
    assert!(one[0]["message"].is_array(), "{one}");
    assert_eq!(one[0]["message"], other[0]["message"]);
    let next = json!(["stream.write", "order-2+a", {"type": "T", "data": {}}]);
    assert_eq!(
        call(&events.api, &shop, &next),
        call(&again.api, &shop, &next),
        "it goes on where the other does"
    );
    assert_eq!(again.call(json!(["sys.verify"]))["faults"], json!([]));
    is_sound(again);
}

/// Also in the files on the disk.
fn is_sound(mut events: Events) {
    events.process.signal("TERM").unwrap();
    assert!(events.process.wait().unwrap().success());
    for command in [["events", "verify"], ["log", "check"]] {
        let arguments = [&command[..], &["--data-dir", "again"]].concat();
        let done = thalweg::run(events.folder.path(), &arguments).unwrap();
        assert_eq!(
            done.status.code(),
            Some(0),
            "{command:?}: {}{}",
            done.stdout,
            done.stderr
        );
    }
}

#[test]
fn only_an_administrator_gets_a_backup() {
    let (events, shop, _) = filled();
    let path = "/api/v1/events/backup";
    let refused = events.api.with_token(&shop).get(path);
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert_eq!(refused.json["error"]["details"], json!({"required": "admin"}));
    assert_eq!(events.api.get(path).status, 401);
    let posted = events.api.with_token(TOKEN).post(path, &json!([]));
    assert_eq!(posted.json["error"]["message"], "Only GET method allowed");
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://{}", events.address);
    let denied = run(
        folder.path(),
        &["events", "backup", "--url", &url, "--token", &shop, "--output", "all"],
    );
    assert_eq!(denied.code, Some(1));
    assert!(denied.stderr.contains("Token lacks scope 'admin'"), "{}", denied.stderr);
    let mut answer = events.api.with_token(TOKEN).open("GET", path, &[], "").unwrap();
    assert_eq!(answer.headers()["content-type"], "application/octet-stream");
    let bytes = answer.body_mut().with_config().limit(1 << 30).read_to_vec().unwrap();
    assert!(bytes.starts_with(b"TWEVBACK"));
    assert_eq!(names(folder.path()), Vec::<String>::new());
}

/// The backup of a filled server, in a folder.
fn made() -> (TempDir, Vec<u8>) {
    let (events, ..) = filled();
    let folder = tempfile::tempdir().unwrap();
    let done = backup(&format!("http://{}", events.address), folder.path(), "all");
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let bytes = std::fs::read(folder.path().join("all")).unwrap();
    (folder, bytes)
}

#[test]
fn a_damaged_backup_is_exit_65_names_the_byte_and_leaves_no_store() {
    let (folder, bytes) = made();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let middle = bytes.len() / 2;
    let mut bent = bytes.clone();
    bent[middle] ^= 4;
    write("cut", &bytes[..middle]);
    write("bent", &bent);
    write("other", b"{\"not\": \"a backup\"}");
    for (name, says) in [
        ("cut", format!("cut: the backup is cut off at byte {middle}")),
        ("bent", "bent: the backup is damaged at byte ".to_owned()),
        ("other", "other: it is not a backup of events".to_owned()),
    ] {
        let done = restore(folder.path(), name, "data");
        assert_eq!(done.code, Some(65), "{name}: {}", done.stderr);
        assert!(done.stderr.contains(&says), "{}", done.stderr);
        let left = folder.path().join("data");
        assert!(!left.join("log").exists() && !left.join("RESTORING").exists(), "{name}");
    }
    let missing = restore(folder.path(), "nothing", "data");
    assert_eq!(missing.code, Some(1), "{}", missing.stderr);
    // Leftovers of the others do not matter.
    let done = restore(folder.path(), "all", "data");
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

#[test]
fn a_restore_refuses_a_folder_with_something_in_it_and_one_that_is_in_use() {
    let (folder, _) = made();
    std::fs::create_dir(folder.path().join("mine")).unwrap();
    std::fs::write(folder.path().join("mine/letter"), "dear").unwrap();
    let refused = restore(folder.path(), "all", "mine");
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("is not empty: it has letter"),
        "{}",
        refused.stderr
    );
    assert_eq!(names(&folder.path().join("mine")), ["letter"]);
    let usage = run(folder.path(), &["events", "restore", "--input", "all"]);
    assert_eq!(usage.code, Some(2), "{}", usage.stderr);
    let input = folder.path().join("all").to_str().unwrap().to_owned();
    let running = Events::on_disk();
    let refused = restore(running.folder.path(), &input, "data");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert_eq!(running.call(json!(["ns.info", "default"]))["messageCount"], 0);
}

/// A restore that reads from a pipe.
fn piped(folder: &Path) -> Process {
    let mut command = Command::new(thalweg::binary());
    command
        .args(["events", "restore", "--input", "-", "--data-dir", "data"])
        .current_dir(folder);
    Process::start("restore", folder, &mut command).unwrap()
}

#[test]
fn a_restore_that_was_killed_is_no_store_and_begins_anew() {
    let (folder, bytes) = made();
    let mut killed = piped(folder.path());
    killed.stdin().unwrap().write_all(&bytes[..bytes.len() - 10]).unwrap();
    eventually(|| {
        let begun = folder.path().join("data/log").is_dir();
        anyhow::ensure!(begun, "it has not begun");
        killed.check_running()
    })
    .unwrap();
    // A concurrent restore is refused.
    let second = restore(folder.path(), "all", "data");
    assert_eq!(second.code, Some(1), "{}", second.stderr);
    assert!(second.stderr.contains("data directory is in use"), "{}", second.stderr);
    killed.kill().unwrap();
    for command in [
        vec!["events", "serve", "--port", "0", "--data-dir", "data"],
        vec!["events", "verify", "--data-dir", "data"],
    ] {
        let refused = run(folder.path(), &command);
        assert_eq!(refused.code, Some(1), "{}", refused.stderr);
        let why = "contains an incomplete restore";
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
    let mut again = piped(folder.path());
    again.stdin().unwrap().write_all(&bytes).unwrap();
    again.close_stdin();
    assert!(again.wait().unwrap().success(), "{}", again.stderr());
    let served = Events::start_in(folder, &["--data-dir", "data", "--min-free", "0"]);
    assert_eq!(served.call(json!(["ns.info", "shop"]))["messageCount"], 451);
}

/// Answers one request with the start of these bytes, and announces more.
fn answering(bytes: Vec<u8>, said: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        while request.read_line(&mut line).unwrap() > 2 {
            line.clear();
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {said}\r\n\r\n");
        // A satisfied client disconnects.
        let _ = stream.write_all(&[head.as_bytes(), &bytes].concat());
    });
    url
}

#[test]
fn a_backup_that_does_not_come_whole_gets_no_name() {
    let (folder, bytes) = made();
    let len = bytes.len();
    let mut bent = bytes.clone();
    bent[len / 3] ^= 1;
    for (sent, said, code, says) in [
        (bytes[..len / 2].to_vec(), len, 1, "the server ended the backup after "),
        (
            bytes[..len / 2].to_vec(),
            len / 2,
            1,
            "the server ended the backup after ",
        ),
        (bent, len, 65, "the backup is damaged at byte "),
        (b"everything".to_vec(), 10, 65, "it is not a backup of events"),
    ] {
        let done = backup(&answering(sent, said), folder.path(), "new");
        assert_eq!(done.code, Some(code), "{}", done.stderr);
        assert!(done.stderr.contains(says), "{}", done.stderr);
        assert_eq!(names(folder.path()), ["all"]);
    }
    let done = backup(&answering(bytes.clone(), len), folder.path(), "new");
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(std::fs::read(folder.path().join("new")).unwrap(), bytes);
    let url = answering(bytes.clone(), len);
    let piped = Command::new(thalweg::binary())
        .args(["events", "backup", "--url", &url, "--token", TOKEN, "--output", "-"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(piped.status.success() && piped.stdout == bytes);
}

#[test]
fn damage_of_what_was_restored_is_exit_65_and_names_its_place() {
    let (folder, _) = made();
    let done = restore(folder.path(), "all", "data");
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let text = b"\"n\":199";
    let found: Vec<(PathBuf, usize)> = names(&folder.path().join("data/log"))
        .iter()
        .filter_map(|name| {
            let path = folder.path().join("data/log").join(name);
            let bytes = std::fs::read(&path).unwrap();
            let at = bytes.windows(text.len()).position(|window| window == text)?;
            Some((path, at))
        })
        .collect();
    let (path, at) = found.first().expect("the message is somewhere");
    let mut bytes = std::fs::read(path).unwrap();
    bytes[*at] ^= 1;
    std::fs::write(path, &bytes).unwrap();
    let done = thalweg::run(folder.path(), &["events", "verify", "--data-dir", "data"]).unwrap();
    assert_eq!(done.status.code(), Some(65), "{}{}", done.stdout, done.stderr);
    let has_place = done.stderr.contains("offset ") || done.stderr.contains("at byte ");
    assert!(has_place, "{}", done.stderr);
}

const WITHIN: &str = "\
events: {}
log: {min_free: 16MiB, commit: {spare: 1}}
flows:
  - name: waits
    input: {generate: {interval: 1h, count: 0, mapping: 'root = {}'}}
    output: {drop: {}}
";

#[test]
fn the_whole_process_makes_backups_that_a_server_alone_serves() {
    let mut running = Thalweg::spawn(WITHIN).unwrap();
    eventually(|| {
        running.process.check_running()?;
        running.get("/ping").map(drop)
    })
    .unwrap();
    let token = eventually(|| running.first_token()).unwrap();
    let api = Api::at_root(&running.address().unwrap());
    let large = "x".repeat(9 << 20);
    call(
        &api,
        &token,
        &json!(["stream.write", "s-1", {"type": "t", "data": {"large": large}}]),
    );
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://{}", running.address().unwrap());
    let done = run(
        folder.path(),
        &["events", "backup", "--url", &url, "--token", &token, "--output", "all"],
    );
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let done = restore(folder.path(), "all", "data");
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let served = Events::start_in(folder, &["--data-dir", "data", "--min-free", "0"]);
    let row = call(&served.api, &token, &json!(["stream.last", "s-1"]));
    assert_eq!(row[4]["large"], json!(large));
}
