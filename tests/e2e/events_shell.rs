//! The event store from the shell: flags, environment, commands, TLS, and the section of a configuration, with the real binary.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use thalweg_tests::receiver::{Authority, Identity};
use thalweg_tests::servers::free_port;
use thalweg_tests::{Api, Process, Thalweg, eventually, thalweg};

const TOKEN: &str = "ns_ZGVmYXVsdA_0000000000000000000000000000000000000000000000000000000000000000";

/// A server, and commands against it.
struct Shell {
    process: Process,
    folder: TempDir,
    port: u16,
    scheme: &'static str,
}

/// Result of a command.
struct Done {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn serve(folder: &Path, port: u16, flags: &[&str], environment: &[(&str, &str)]) -> Process {
    let mut command = Command::new(thalweg::binary());
    command
        .args(["events", "serve", "--port", &port.to_string()])
        .args(flags)
        .envs(environment.iter().copied())
        .current_dir(folder);
    let mut process = Process::start("server", folder, &mut command).unwrap();
    eventually(|| {
        process.check_running()?;
        let is_open = process.stderr().contains("the event store is open");
        anyhow::ensure!(is_open, "it does not say that it is open");
        Ok(())
    })
    .unwrap();
    process
}

const ON_DISK: [&str; 6] = ["--data-dir", "data", "--min-free", "0", "--token", TOKEN];
/// The same folder later, with its token.
const AGAIN: &[&str] = ON_DISK.split_at(4).0;

impl Shell {
    fn start(flags: &[&str]) -> Shell {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port().unwrap();
        Shell {
            process: serve(folder.path(), port, flags, &[]),
            folder,
            port,
            scheme: "http",
        }
    }

    fn in_memory() -> Shell {
        Shell::start(&["--test-mode"])
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(thalweg::binary());
        let url = format!("{}://localhost:{}", self.scheme, self.port);
        let (name, rest) = arguments.split_first().unwrap();
        command
            .args(["events", name, "--url", &url, "--token", TOKEN])
            .args(rest)
            .current_dir(self.folder.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Done {
        self.run_with(arguments, "")
    }

    /// With data on its standard input.
    fn run_with(&self, arguments: &[&str], input: &str) -> Done {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It may have ended without reading.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        Done {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// The output of a successful command.
    fn ok(&self, arguments: &[&str]) -> String {
        let done = self.run(arguments);
        assert_eq!(done.code, Some(0), "{arguments:?}: {}", done.stderr);
        done.stdout
    }

    fn file(&self, name: &str, content: &str) {
        std::fs::write(self.folder.path().join(name), content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }
}

fn record(stream: &str, position: u64, global: u64, time: &str) -> String {
    format!(
        "{{\"id\":\"0190b5c2-7a00-7c1f-a2b3-{global:012x}\",\"stream\":\"{stream}\",\"type\":\"t\",\"pos\":{position},\
         \"gpos\":{global},\"data\":{{\"n\":{global}.10,\"n\":\"\\u00e9\"}},\"meta\":null,\"time\":\"{time}\"}}\n"
    )
}

#[test]
fn what_is_appended_is_listed_and_refusals_have_their_codes() {
    let shell = Shell::in_memory();
    let append = ["append", "order-1", "--type", "Created", "--data", r#"{"n": 1.10}"#];
    assert_eq!(shell.ok(&append), "{\"globalPosition\":1,\"position\":0}\n");
    let mut expecting = append.to_vec();
    expecting.extend(["--expected-version", "-1"]);
    let refused = shell.run(&expecting);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""));
    let expected = "STREAM_VERSION_CONFLICT: Expected version -1, stream is at version 0";
    assert!(refused.stderr.contains(expected), "{}", refused.stderr);
    let lines = "{\"type\":\"a\",\"data\":{}}\n\n{\"type\":\"b\",\"data\":{},\"metadata\":{\"m\":1}}\n";
    let appended = shell.run_with(&["append", "other-1", "--input", "-"], lines);
    let answer: Value = serde_json::from_str(&appended.stdout).unwrap();
    assert_eq!(
        (&answer["count"], &answer["lastPosition"]),
        (&json!(2), &json!(1)),
        "{answer}"
    );
    let names = |text: &str, name: &str| -> Vec<String> {
        let line = |line: &str| {
            serde_json::from_str::<Value>(line).unwrap()[name]
                .as_str()
                .unwrap()
                .to_owned()
        };
        text.lines().map(line).collect()
    };
    assert_eq!(names(&shell.ok(&["streams"]), "stream"), ["order-1", "other-1"]);
    assert_eq!(names(&shell.ok(&["streams", "--prefix", "ord"]), "stream"), ["order-1"]);
    assert_eq!(names(&shell.ok(&["categories"]), "category"), ["order", "other"]);
    let no_json = shell.run(&["append", "s", "--type", "t", "--data", "{"]);
    assert_eq!(no_json.code, Some(1));
    assert!(no_json.stderr.contains("--data is not JSON"), "{}", no_json.stderr);
}

#[test]
fn more_streams_than_a_page_are_all_listed() {
    let shell = Shell::in_memory();
    let records: String = (1..=1001)
        .map(|n| record(&format!("s-{n:04}"), 0, n, "2026-01-15T10:00:00Z"))
        .collect();
    shell.file("in", &records);
    shell.ok(&["import", "--input", "in"]);
    assert_eq!(shell.ok(&["streams"]).lines().count(), 1001);
    // Including more than a page of messages.
    assert_eq!(shell.ok(&["export"]), records);
}

#[test]
fn an_export_is_imported_to_the_same_records_and_text() {
    let shell = Shell::in_memory();
    let all = [
        record("order-1", 0, 1, "2026-01-15T10:00:00.000001Z"),
        record("order-1", 1, 2, "2026-01-15T10:00:00.5Z"),
        record("bill-1", 0, 5, "2026-01-16T00:00:00Z"),
    ];
    shell.file("in", &all.concat());
    let imported = shell.run(&["import", "--input", "in"]);
    assert_eq!(
        (imported.code, imported.stdout.as_str()),
        (Some(0), ""),
        "{}",
        imported.stderr
    );
    assert!(
        imported.stderr.contains("3 messages imported in "),
        "{}",
        imported.stderr
    );
    assert_eq!(shell.ok(&["export"]), all.concat());
    for (flags, expected) in [
        (vec!["--since", "2026-01-15T10:00:00.5Z"], &all[1..]),
        (vec!["--since", "2026-01-15T10:00:00.000000001Z"], &all[..]),
        (vec!["--since", "2026-01-15T10:00:00.000001001Z"], &all[1..]),
        (vec!["--until", "2026-01-15T10:00:00.5Z"], &all[..1]),
        (vec!["--until", "2026-01-16"], &all[..2]),
        (vec!["--categories", "bill"], &all[2..]),
    ] {
        let mut arguments = vec!["export"];
        arguments.extend(&flags);
        assert_eq!(shell.ok(&arguments), expected.concat(), "{flags:?}");
    }
    let both = shell.ok(&["export", "--categories=bill,order,bill"]);
    assert_eq!(both, [&*all[2], &all[0], &all[1]].concat());

    let exported = shell.run(&["export", "--gzip", "--output", "all.gz"]);
    assert_eq!((exported.code, exported.stdout.as_str()), (Some(0), ""));
    assert!(exported.stderr.contains("3 messages exported"), "{}", exported.stderr);
    let unpacked = Command::new("gzip")
        .args(["-dc", "all.gz"])
        .current_dir(shell.folder.path())
        .output()
        .unwrap();
    assert!(unpacked.status.success());
    assert_eq!(String::from_utf8(unpacked.stdout).unwrap(), all.concat());
    let again = Shell::in_memory();
    std::fs::copy(shell.folder.path().join("all.gz"), again.folder.path().join("all.gz")).unwrap();
    again.ok(&["import", "--gzip", "--input", "all.gz"]);
    again.ok(&["export", "--output", "out"]);
    assert_eq!(again.read("out"), all.concat());
}

#[test]
fn a_bad_import_names_its_line_and_force_asks_first() {
    let shell = Shell::in_memory();
    let time = "2026-01-15T10:00:00Z";
    let bad = record("s-1", 0, 1, time) + "{\"stream\":\"s-1\"}\n";
    let refused = shell.run_with(&["import"], &bad);
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("INVALID_RECORD: invalid record at line 2"),
        "{}",
        refused.stderr
    );
    shell.file("in", &record("s-2", 0, 1, time));
    shell.ok(&["import", "--input", "in"]);
    let taken = shell.run(&["import", "--input", "in"]);
    assert_eq!(taken.code, Some(1));
    assert!(taken.stderr.contains("POSITION_EXISTS: "), "{}", taken.stderr);
    shell.file("other", &record("s-3", 0, 1, time));
    let force = ["import", "--force", "--input", "other"];
    let no = shell.run_with(&force, "n\n");
    assert_eq!(no.code, Some(1));
    assert!(no.stderr.contains("nothing was changed"), "{}", no.stderr);
    assert!(shell.ok(&["export"]).contains("s-2"));
    assert_eq!(shell.run_with(&force, "y\n").code, Some(0));
    assert_eq!(shell.ok(&["export"]), record("s-3", 0, 1, time));
    let from_stdin = shell.run_with(&["import", "--force"], "y\n");
    assert_eq!(from_stdin.code, Some(2), "{}", from_stdin.stderr);
    // An invalid export removes nothing.
    shell.file("text", "stream,type\n");
    std::fs::write(shell.folder.path().join("packed"), [0x1f, 0x8b, 8, 0]).unwrap();
    for (name, flags, told) in [
        ("other", &["--gzip"][..], "the file cannot be read; nothing was changed"),
        ("packed", &[], "the file is compressed; add --gzip"),
        ("text", &[], "it is not an export; nothing was changed"),
    ] {
        let refused = shell.run(&[&["import", "--force", "--yes", "--input", name], flags].concat());
        assert_eq!(refused.code, Some(1), "{name}");
        assert!(refused.stderr.contains(told), "{name}: {}", refused.stderr);
    }
    assert_eq!(shell.ok(&["export"]), record("s-3", 0, 1, time));
}

#[test]
fn a_failed_export_leaves_no_file() {
    let shell = Shell::start(&ON_DISK);
    let other = TOKEN.replace('0', "1");
    let before: Vec<_> = std::fs::read_dir(shell.folder.path()).unwrap().collect();
    let mut command = Command::new(thalweg::binary());
    let url = format!("http://127.0.0.1:{}", shell.port);
    let arguments = ["events", "export", "--url", &url, "--token", &other, "--output", "out"];
    let refused = command
        .args(arguments)
        .current_dir(shell.folder.path())
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(stderr.contains("AUTH_UNAUTHORIZED: "), "{stderr}");
    let after: Vec<_> = std::fs::read_dir(shell.folder.path()).unwrap().collect();
    assert_eq!(before.len(), after.len());
}

#[test]
fn tail_goes_on_over_a_crash_of_the_server_without_gap_or_repeat() {
    let mut shell = Shell::start(&ON_DISK);
    let append = |shell: &Shell, kind: &str| shell.ok(&["append", "order-1", "--type", kind, "--data", "{}"]);
    append(&shell, "A");
    append(&shell, "B");
    let mut tail = shell.command(&["tail", "--category", "order"]);
    let mut tail = Process::start("tail", shell.folder.path(), &mut tail).unwrap();
    let lines = |tail: &mut Process, count: usize| -> Vec<Value> {
        eventually(|| {
            tail.check_running()?;
            let out = tail.stdout();
            let all: Vec<Value> = out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            anyhow::ensure!(all.len() >= count, "{out}");
            Ok(all)
        })
        .unwrap()
    };
    lines(&mut tail, 2);
    append(&shell, "C");
    lines(&mut tail, 3);
    shell.process.kill().unwrap();
    shell.process = serve(shell.folder.path(), shell.port, AGAIN, &[]);
    append(&shell, "D");
    let found = lines(&mut tail, 4);
    let kinds: Vec<&str> = found.iter().map(|record| record["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["A", "B", "C", "D"]);
    let places: Vec<u64> = found.iter().map(|record| record["gpos"].as_u64().unwrap()).collect();
    assert_eq!(places, [1, 2, 3, 4]);
    tail.signal("INT").unwrap();
    assert_eq!(tail.wait().unwrap().code(), Some(0));
}

#[test]
fn tail_chooses_where_to_begin_and_which_types() {
    for (arguments, expected) in [
        (vec!["tail", "--stream", "s-1", "--from", "1"], vec!["B", "A", "C"]),
        (vec!["tail", "--all", "--types", "A,C"], vec!["A", "A", "C"]),
        (vec!["tail", "--all", "--from", "end"], vec!["C"]),
        (vec!["tail", "--stream", "s-1", "--from", "end"], vec!["C"]),
    ] {
        let shell = Shell::in_memory();
        let append = |kind: &str| shell.ok(&["append", "s-1", "--type", kind, "--data", "{}"]);
        ["A", "B", "A"].into_iter().for_each(|kind| drop(append(kind)));
        let mut tail = Process::start("tail", shell.folder.path(), &mut shell.command(&arguments)).unwrap();
        // It does not report when it has read the end position: C is repeated until it is seen.
        let found = eventually(|| {
            tail.check_running()?;
            append("C");
            std::thread::sleep(std::time::Duration::from_millis(100));
            let out = tail.stdout();
            let kind = |line: &str| {
                serde_json::from_str::<Value>(line)
                    .ok()
                    .map(|line| line["type"].clone())
            };
            let all: Vec<Value> = out.lines().filter_map(kind).collect();
            anyhow::ensure!(all.len() >= expected.len(), "{out}");
            Ok(all)
        });
        assert_eq!(found.unwrap()[..expected.len()], expected, "{arguments:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let nobody = thalweg::run(
        folder.path(),
        &["events", "tail", "--url", "http://127.0.0.1:1", "--all"],
    )
    .unwrap();
    assert_eq!(nobody.status.code(), Some(1));
    assert!(nobody.stderr.contains("is thalweg running there?"), "{}", nobody.stderr);
}

#[test]
fn flags_come_before_the_own_environment_and_that_before_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str], environment: &[(&str, &str)]| {
        let mut command = Command::new(thalweg::binary());
        command.arg("events").args(arguments).envs(environment.iter().copied());
        let output = command.current_dir(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    // The error for a taken port has its number, and nothing is started.
    let taken: Vec<TcpListener> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    let ports: Vec<String> = taken
        .iter()
        .map(|one| one.local_addr().unwrap().port().to_string())
        .collect();
    let (own, other) = (("THALWEG_EVENTS_PORT", &*ports[1]), ("EVENTODB_PORT", &*ports[2]));
    let flag = format!("-port={}", ports[0]);
    for (arguments, environment, expected) in [
        (vec!["serve", "-test-mode", &flag], vec![own, other], &ports[0]),
        (vec!["-test-mode=true"], vec![own, other], &ports[1]),
        (vec!["serve", "--test-mode=1"], vec![other], &ports[2]),
        (vec!["serve"], vec![other, ("EVENTODB_TEST_MODE", "true")], &ports[2]),
    ] {
        let (code, stderr) = run(&arguments, &environment);
        let message = format!("Error: cannot listen on port {expected}: address already in use\n");
        assert_eq!((code, stderr), (Some(1), message), "{arguments:?} {environment:?}");
    }
    for arguments in [
        ["--prot", "1"],
        ["--port", "65536"],
        ["--max-message-bytes", "99999999999"],
    ] {
        let (code, stderr) = run(&arguments, &[]);
        assert_eq!(code, Some(2), "{arguments:?}");
        assert!(stderr.contains("Usage: thalweg events"), "{stderr}");
    }
    let (code, stderr) = run(&[], &[]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let help = thalweg::run(folder.path(), &["events", "help"]).unwrap();
    assert_eq!(help.status.code(), Some(0));
    assert!(
        help.stdout.contains("append") && help.stdout.contains("serve"),
        "{}",
        help.stdout
    );
}

#[test]
fn a_store_of_durability_memory_keeps_nothing_and_hides_nothing() {
    let mut shell = Shell::start(&["--data-dir", "data", "--durability", "memory", "--token", TOKEN]);
    shell.ok(&["append", "s-1", "--type", "t", "--data", "{}"]);
    let health = Api::at_root(&format!("127.0.0.1:{}", shell.port)).with_token(TOKEN);
    let health = health.post("/rpc", &json!(["sys.health"]));
    assert_eq!(health.json["durability"], "memory", "{}", health.text);
    assert!(!shell.folder.path().join("data").exists());
    shell.process.kill().unwrap();
    let mut on_disk = serve(shell.folder.path(), shell.port, &ON_DISK, &[]);
    on_disk.kill().unwrap();
    let refused = thalweg::run(
        shell.folder.path(),
        &[
            "events",
            "serve",
            "--data-dir",
            "data",
            "--durability",
            "memory",
            "--port",
            "0",
        ],
    );
    let refused = refused.unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stderr.contains("data contains messages"), "{}", refused.stderr);
}

/// The location where the server looks for it.
fn place(identity: &Identity, folder: &Path) {
    std::fs::copy(&identity.certificate, folder.join("server.crt")).unwrap();
    std::fs::copy(&identity.key, folder.join("server.key")).unwrap();
}

#[test]
fn a_server_with_tls_is_asked_through_it_and_takes_a_new_certificate_at_a_signal() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "ca").unwrap();
    let other = Authority::new(folder.path(), "other").unwrap();
    let identity = authority.certify("localhost").unwrap();
    place(&identity, folder.path());
    let port = free_port().unwrap();
    let flags = ["--test-mode", "--tls-cert", "server.crt", "--tls-key", "server.key"];
    let shell = Shell {
        process: serve(folder.path(), port, &flags, &[]),
        folder,
        port,
        scheme: "https",
    };
    let trusting = |authority: &Authority| {
        let file = authority.certificate().display().to_string();
        shell.run(&["append", "s-1", "--ca-file", &file, "--type", "t", "--data", "{}"])
    };
    let stored = trusting(&authority);
    assert_eq!(stored.code, Some(0), "{}", stored.stderr);
    let stranger = trusting(&other);
    assert_eq!(stranger.code, Some(1));
    assert!(stranger.stderr.contains("--ca-file"), "{}", stranger.stderr);
    let renewed = other.certify("localhost").unwrap();
    place(&renewed, shell.folder.path());
    shell.process.signal("HUP").unwrap();
    eventually(|| {
        let stored = trusting(&other);
        anyhow::ensure!(stored.code == Some(0), "{}", stored.stderr);
        Ok(())
    })
    .unwrap();
    assert_eq!(trusting(&authority).code, Some(1));
    let broken = thalweg::run(
        shell.folder.path(),
        &["events", "--test-mode", "--port=0", "--tls-cert=none", "--tls-key=none"],
    );
    let broken = broken.unwrap();
    assert_eq!(broken.status.code(), Some(1));
    assert!(
        broken.stderr.contains("--tls-cert: cannot read none"),
        "{}",
        broken.stderr
    );
}

/// Answers one request with these bytes.
fn answering(body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = BufReader::new(stream.try_clone().unwrap());
        let (mut line, mut length) = (String::new(), 0);
        while request.read_line(&mut line).unwrap() > 2 {
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut call = vec![0; length];
        request.read_exact(&mut call).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
    });
    url
}

#[test]
fn damage_that_a_server_has_found_is_exit_65() {
    let folder = tempfile::tempdir().unwrap();
    let damaged = "{\"messages\":3,\"bytes\":99,\"faults\":[{\"namespace\":\"default\",\"offset\":7,\"what\":\"a checksum is wrong\"}]}\n";
    let found = thalweg::run(folder.path(), &["events", "verify", "--url", &answering(damaged)]).unwrap();
    assert_eq!(found.status.code(), Some(65));
    assert!(found.stdout.contains("\"faults\""), "{}", found.stdout);
    let place = "namespace default, offset 7: a checksum is wrong";
    assert!(found.stderr.contains(place), "{}", found.stderr);
    let whole = "{\"messages\":3,\"bytes\":99,\"faults\":[]}\n";
    let found = thalweg::run(folder.path(), &["events", "verify", "--url", &answering(whole)]).unwrap();
    assert_eq!((found.status.code(), found.stderr.as_str()), (Some(0), ""));
    let missing = thalweg::run(folder.path(), &["events", "verify", "--data-dir", "nowhere"]).unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(missing.stderr.contains("nowhere contains no log"), "{}", missing.stderr);
    assert!(!folder.path().join("nowhere").exists());
}

const WITHIN: &str = "\
events: {}
log: {min_free: 16MiB, commit: {spare: 1}}
flows:
  - name: in
    input: {file: {paths: [in.jsonl], codec: lines}}
    output:
      events: {stream: 'order-${! json(\"id\") }', type: Created, metadata: {from: flow}}
  - name: waits
    input: {generate: {interval: 1h, count: 0, mapping: 'root = {}'}}
    output: {drop: {}}
";

#[test]
fn the_whole_process_has_the_store_on_its_listener_and_keeps_the_first_token() {
    let lines = "{\"id\": 7}\n{\"id\": 8}\n";
    let mut running = Thalweg::spawn_with(WITHIN, &[("in.jsonl", lines)]).unwrap();
    let token = |running: &mut Thalweg| {
        eventually(|| {
            running.process.check_running()?;
            running.get("/ping").map(drop)
        })
        .unwrap();
        running.first_token()
    };
    let first = eventually(|| token(&mut running)).unwrap();
    let api = Api::at_root(&running.address().unwrap());
    assert_eq!(api.get("/health").text, "{\"status\":\"ok\"}\n");
    let nobody = api.post("/rpc", &json!(["sys.health"]));
    assert_eq!(
        (nobody.status, &nobody.json["error"]["code"]),
        (401, &json!("AUTH_REQUIRED"))
    );
    let api = api.with_token(&first);
    let rows = eventually(|| {
        let rows = api.post("/rpc", &json!(["category.get", "order"])).json;
        anyhow::ensure!(rows.as_array().is_some_and(|rows| rows.len() == 2), "{rows}");
        Ok(rows)
    })
    .unwrap();
    assert_eq!(rows[0][1], "order-7");
    assert_eq!(
        (&rows[0][5], &rows[0][6]),
        (&json!({"id": 7}), &json!({"from": "flow"}))
    );
    // Larger than the listener's own limit.
    let large = json!(["stream.write", "s-1", {"type": "t", "data": {"a": "x".repeat(15 << 20)}}]).to_string();
    let padded = format!("{large}{}", " ".repeat(40 << 20));
    assert_eq!(api.send("POST", "/rpc", &[], &padded).status, 200);
    running.process.signal("TERM").unwrap();
    running.process.wait().unwrap();
    std::fs::remove_file(running.data_dir().join("keys/default.token")).unwrap();
    running.restart().unwrap();
    eventually(|| running.get("/ping")).unwrap();
    assert!(running.first_token().is_err(), "it is told when the namespace is new");
    let api = Api::at_root(&running.address().unwrap()).with_token(&first);
    assert_eq!(api.post("/rpc", &json!(["stream.version", "s-1"])).text, "0\n");
}

#[test]
fn the_example_bills_what_it_has_stored_and_goes_on_after_a_restart() {
    let example = thalweg_tests::beside("../examples/events.yaml");
    let text = std::fs::read_to_string(example).unwrap();
    let text = text
        .replace("interval: 100ms", "interval: 1ms")
        .replace("./thalweg-data/", "./")
        + "log: {min_free: 16MiB, commit: {spare: 1}}\n";
    let mut running = Thalweg::spawn(&text).unwrap();
    let bills = running.folder.path().join("bills.jsonl");
    let count = || std::fs::read_to_string(&bills).map_or(0, |text| text.lines().count());
    let more_than = |running: &mut Thalweg, floor: usize| {
        eventually(|| {
            running.process.check_running()?;
            anyhow::ensure!(count() > floor, "{} bills", count());
            Ok(())
        })
        .unwrap();
    };
    more_than(&mut running, 20);
    running.process.signal("TERM").unwrap();
    assert!(running.process.wait().unwrap().success());
    let before = count();
    running.restart().unwrap();
    more_than(&mut running, before + 20);
    running.process.signal("TERM").unwrap();
    assert!(running.process.wait().unwrap().success());
    let text = std::fs::read_to_string(&bills).unwrap();
    let bill: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert!(bill["order"].is_number() && bill["sum"].is_number(), "{bill}");
}
