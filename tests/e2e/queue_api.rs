//! The queue interface from outside: its OpenAPI document against the real binary, `thalweg queue` with every sub-command,
//! webhooks, and the examples of the documentation.

use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Value, json};
use thalweg_tests::receiver::{Authority, Receiver};
use thalweg_tests::servers::{free_port, python};
use thalweg_tests::thalweg::{Finished, binary, run};
use thalweg_tests::{Api, Thalweg, eventually};

const LOG: &str = "log: {min_free: 16MiB, commit: {spare: 1}}\n";

fn start(queues: &str) -> Thalweg {
    Thalweg::start(&format!("{LOG}{queues}")).unwrap()
}

/// `thalweg queue` with arguments.
fn queue(folder: &Path, url: &str, arguments: &[&str]) -> Finished {
    let all: Vec<&str> = ["queue", "--url", url].iter().chain(arguments).copied().collect();
    run(folder, &all).unwrap()
}

/// The output of a successful command.
#[track_caller]
fn done(finished: Finished) -> String {
    assert!(finished.status.success(), "{}{}", finished.stdout, finished.stderr);
    assert_eq!(finished.stderr, "");
    finished.stdout
}

/// The error of a failed command.
#[track_caller]
fn failed(finished: Finished) -> String {
    assert_eq!(
        finished.status.code(),
        Some(1),
        "{}{}",
        finished.stdout,
        finished.stderr
    );
    assert!(finished.stderr.starts_with("thalweg: "), "{}", finished.stderr);
    finished.stderr
}

#[test]
fn whoever_closes_a_long_poll_leaves_its_partitions_to_others_at_once() {
    let thalweg = start("queues: {list: [{name: q, partitions: 1, ordering: strict}]}\n");
    let address = thalweg.address().unwrap();
    let api = Api::new(&address);
    let members = || {
        let groups = api.get("/queues/q/groups/g").json;
        groups["consumers"].as_array().map_or(0, Vec::len)
    };
    let wait_for = |count: usize| {
        eventually(|| {
            ensure!(members() == count, "{} members", members());
            Ok(())
        })
        .unwrap();
    };
    // The first one has the only partition.
    let body = json!({"consumer": "first", "wait": "60s"}).to_string();
    let mut first = TcpStream::connect(&address).unwrap();
    let length = body.len();
    let request = format!(
        "POST /api/v1/queues/q/groups/g/claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    first.write_all(request.as_bytes()).unwrap();
    wait_for(1);
    let second = std::thread::spawn({
        let api = Api::new(&address);
        move || {
            api.post(
                "/queues/q/groups/g/claim",
                &json!({"consumer": "second", "wait": "60s"}),
            )
        }
    });
    wait_for(2);
    drop(first);
    // Well before the 30 s after which a silent consumer is removed.
    let closed = Instant::now();
    wait_for(1);
    api.post("/queues/q/messages", &json!({"n": 1}));
    let claimed = second.join().unwrap();
    assert_eq!(
        claimed.json["messages"].as_array().map(Vec::len),
        Some(1),
        "{claimed:?}"
    );
    assert!(closed.elapsed() < Duration::from_secs(20), "{:?}", closed.elapsed());
}

#[test]
fn every_answer_is_one_that_the_document_describes() {
    let mut thalweg = start("queues: {auto_create: false}\n");
    let script = thalweg_tests::beside("python/queue_openapi.py");
    let url = format!("http://{}", thalweg.address().unwrap());
    let mut check = Command::new(python().unwrap());
    check.arg(script).arg(&url);
    // Generated requests for each operation.
    check.args(std::env::var_os("THALWEG_OPENAPI_EXAMPLES"));
    let checked = check.output().unwrap();
    let (out, error) = (
        String::from_utf8_lossy(&checked.stdout),
        String::from_utf8_lossy(&checked.stderr),
    );
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("no report: {out}{error}"));
    for part in ["any_names", "known_names", "removing"] {
        let text = report[part]["output"].as_str().unwrap();
        assert!(report[part]["exit"] == 0, "{part}: {text}\n{}", report[part]["error"]);
        // A tool that sends no requests finds no mistakes.
        assert!(
            text.contains("Test cases:") && !text.contains(" 0 generated"),
            "{part}: {text}"
        );
    }
    for counted in ["delivered", "acked", "dead"] {
        let [before, after] = ["before", "after"].map(|when| report[when][counted].as_u64());
        assert!(before.is_some() && before < after, "{counted}: {before:?}, {after:?}");
    }
    thalweg.process.check_running().unwrap();
    assert!(
        !thalweg.process.stderr().contains("panicked"),
        "{}",
        thalweg.process.stderr()
    );
}

/// The output of `thalweg queue` on a terminal of its own where these steps are typed, and whether it succeeded.
fn at_terminal(folder: &Path, url: &str, arguments: &[&str], steps: &Value) -> (bool, String) {
    let typed = Command::new(python().unwrap())
        .arg(thalweg_tests::beside("python/at_terminal.py"))
        .arg(steps.to_string())
        .arg(binary())
        .args(["queue", "--url", url])
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap();
    (
        typed.status.success(),
        String::from_utf8_lossy(&typed.stdout).into_owned(),
    )
}

#[test]
fn whoever_sits_at_a_terminal_is_asked_before_messages_are_dropped() {
    let thalweg = start("queues: {auto_create: false}\n");
    let (folder, url) = (thalweg.folder.path(), format!("http://{}", thalweg.address().unwrap()));
    done(queue(folder, &url, &["create", "pumps"]));
    done(queue(folder, &url, &["produce", "pumps", "one", "two"]));
    let answers = |text: &str| {
        let question = "All messages of the queue pumps will be dropped. Continue? [y/N] ";
        json!([{"expect": question}, {"send": text}])
    };
    let (went_on, shown) = at_terminal(folder, &url, &["purge", "pumps"], &answers("n\n"));
    assert!(!went_on && shown.contains("nothing was changed"), "{shown}");
    let (went_on, shown) = at_terminal(folder, &url, &["purge", "pumps"], &answers("y\n"));
    assert!(went_on && shown.contains("2 messages dropped"), "{shown}");
    let (went_on, shown) = at_terminal(folder, &url, &["purge", "pumps", "--yes"], &json!([]));
    assert!(went_on && shown.contains("0 messages dropped"), "{shown}");
    let question = json!([{"expect": "0 dead letters of the queue pumps will be deleted. Continue?"}, {"send": "\n"}]);
    let (went_on, shown) = at_terminal(folder, &url, &["dlq", "purge", "pumps", "--all"], &question);
    assert!(!went_on && shown.contains("nothing was changed"), "{shown}");
}

#[test]
fn the_command_line_makes_fills_shows_empties_and_pauses_queues() {
    let thalweg = start("queues: {auto_create: false}\n");
    let (folder, url) = (thalweg.folder.path(), format!("http://{}", thalweg.address().unwrap()));
    let queue = |arguments: &[&str]| queue(folder, &url, arguments);
    assert_eq!(
        done(queue(&[
            "create",
            "pumps",
            "--partitions",
            "1",
            "--set",
            "retry.max_retries=0",
            "--set",
            "ttl=72h"
        ])),
        "queue pumps created\n"
    );
    assert!(failed(queue(&["create", "pumps"])).contains("queue_exists"));
    assert!(failed(queue(&["create", "q", "--set", "ttl=soon"])).contains("invalid_config: ttl"));
    let shown: Value = serde_json::from_str(&done(queue(&["--json", "show", "pumps"]))).unwrap();
    assert_eq!(shown["queue"]["settings"]["retry"]["max_retries"], 0);
    assert_eq!(shown["queue"]["settings"]["ttl"], "72h");

    assert_eq!(
        done(queue(&["produce", "pumps", "one", "--key", "k"])),
        "1 messages stored in pumps\n"
    );
    done(queue(&["produce", "pumps", "two"]));
    std::fs::write(folder.join("lines.txt"), "three\nfour\n").unwrap();
    done(queue(&[
        "produce",
        "pumps",
        "--file",
        "lines.txt",
        "--lines",
        "--property",
        "unit=bar",
    ]));
    std::fs::write(
        folder.join("json.txt"),
        "{\"json\": {\"v\": 12345678901234567890.10}}\n\n{\"text\": \"six\"}\n",
    )
    .unwrap();
    done(queue(&["produce", "pumps", "--file", "json.txt"]));
    let wrong = failed(queue(&["produce", "pumps", "--file", "lines.txt"]));
    assert!(
        wrong.contains("line 1") && wrong.contains("refused as a whole"),
        "{wrong}"
    );
    assert!(failed(queue(&["produce", "nowhere", "x"])).contains("queue_not_found"));
    assert!(failed(queue(&["produce", "pumps", "--file", "no.txt"])).contains("cannot read no.txt"));
    let listed = done(queue(&["list"]));
    let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row.get(..4), Some(&["pumps", "1", "fsync", "6"][..]), "{listed}");

    // Before the others: messages settled by every group are deleted, and a later group finds nothing.
    let message: Value = serde_json::from_str(&done(queue(&[
        "--json", "consume", "pumps", "--group", "b", "--no-ack", "--max", "1",
    ])))
    .unwrap();
    assert_eq!(
        (&message["text"], &message["key"], &message["delivery"]),
        (&json!("one"), &json!("k"), &json!(1))
    );
    assert_eq!(
        done(queue(&["consume", "pumps", "--group", "a", "--max", "2"])),
        "one\ntwo\n"
    );
    assert_eq!(
        done(queue(&["consume", "pumps", "--group", "a"])),
        "three\nfour\n{\"v\": 12345678901234567890.10}\nsix\n"
    );
    assert_eq!(
        done(queue(&["consume", "pumps", "--group", "a"])),
        "",
        "what was printed is done"
    );

    assert_eq!(done(queue(&["pause", "pumps", "--produce"])), "queue pumps is paused\n");
    assert!(failed(queue(&["produce", "pumps", "x"])).contains("paused: "));
    done(queue(&["pause", "pumps", "--produce", "--resume"]));
    assert_eq!(
        done(queue(&["pause", "pumps", "--group", "a"])),
        "group a of queue pumps is paused\n"
    );
    assert!(failed(queue(&["consume", "pumps", "--group", "a"])).contains("paused: group a"));
    done(queue(&["pause", "pumps", "--group", "a", "--resume"]));
    assert!(failed(queue(&["pause", "pumps", "--group", "nobody"])).contains("group_not_found"));

    done(queue(&["produce", "pumps", "seven"]));
    let purged = done(queue(&["purge", "pumps"]));
    assert!(
        purged.ends_with("messages dropped\n") && !purged.starts_with('0'),
        "{purged}"
    );
    assert_eq!(done(queue(&["consume", "pumps", "--group", "a"])), "");
}

#[test]
fn the_command_line_finds_resends_and_throws_away_dead_letters() {
    let thalweg = start("queues: {list: [{name: jobs, partitions: 1, groups: [{name: g}]}]}\n");
    let (folder, url) = (thalweg.folder.path(), format!("http://{}", thalweg.address().unwrap()));
    let queue = |arguments: &[&str]| queue(folder, &url, arguments);
    let api = Api::new(&thalweg.address().unwrap());
    let bury = |count: usize| {
        let claimed = api
            .post("/queues/jobs/groups/g/claim", &json!({"consumer": "me", "max": count}))
            .ok(200);
        let reject: Vec<Value> = claimed["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| json!({"r": message["receipt"], "reason": "no such pump"}))
            .collect();
        assert_eq!(reject.len(), count);
        api.post("/queues/jobs/groups/g/settle", &json!({"reject": reject}))
            .ok(200);
    };
    done(queue(&["produce", "jobs", "a", "b", "c"]));
    bury(3);
    let listed = done(queue(&["dlq", "list", "jobs", "--reason", "rejected"]));
    assert!(
        listed.lines().count() == 4 && listed.contains("no such pump"),
        "{listed}"
    );
    assert_eq!(
        done(queue(&["dlq", "list", "jobs", "--group", "other"]))
            .lines()
            .count(),
        1
    );
    let letter: Value = serde_json::from_str(&done(queue(&["dlq", "show", "dlq.jobs:0:1"]))).unwrap();
    assert_eq!(
        (&letter["text"], &letter["properties"]["x-dlq-queue"]),
        (&json!("b"), &json!("jobs"))
    );
    assert!(failed(queue(&["dlq", "show", "dlq.jobs:0:99"])).contains("message_not_found"));
    assert!(failed(queue(&["dlq", "show", "nothing"])).contains("dlq.<queue>:<partition>:<offset>"));

    assert!(failed(queue(&["dlq", "resend", "jobs"])).contains("no dead letters are named"));
    assert!(failed(queue(&["dlq", "resend", "jobs", "--all", "--to", "nowhere"])).contains("queue_not_found"));
    assert!(failed(queue(&["dlq", "purge", "nowhere", "--all"])).contains("queue_not_found"));
    assert_eq!(
        done(queue(&["dlq", "resend", "jobs", "dlq.jobs:0:1"])),
        "1 messages sent again\n"
    );
    assert_eq!(
        done(queue(&["consume", "jobs", "--group", "g", "--consumer", "me"])),
        "b\n"
    );
    assert_eq!(
        done(queue(&["dlq", "purge", "jobs", "dlq.jobs:0:0"])),
        "1 dead letters deleted\n"
    );
    assert_eq!(
        done(queue(&["dlq", "resend", "jobs", "--all"])),
        "1 messages sent again\n"
    );
    assert_eq!(
        done(queue(&["consume", "jobs", "--group", "g", "--consumer", "me"])),
        "c\n"
    );
    assert_eq!(done(queue(&["dlq", "list", "jobs"])).lines().count(), 1);

    // More than one request can contain.
    let lines: String = (0..2500).map(|n| format!("{n}\n")).collect();
    std::fs::write(folder.join("many.txt"), lines).unwrap();
    done(queue(&["produce", "jobs", "--lines", "--file", "many.txt"]));
    (0..5).for_each(|_| bury(500));
    assert_eq!(
        done(queue(&["dlq", "purge", "jobs", "--reason", "expired"])),
        "0 dead letters deleted\n"
    );
    assert_eq!(
        done(queue(&["--json", "dlq", "resend", "jobs", "--reason", "rejected"])),
        "{\"resent\":2500}\n"
    );
    assert_eq!(
        done(queue(&["consume", "jobs", "--group", "g", "--consumer", "me"]))
            .lines()
            .count(),
        2500
    );
}

#[test]
fn a_process_that_is_not_there_or_does_not_know_the_caller_is_told_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let free = free_port().unwrap();
    let absent = failed(queue(folder.path(), &format!("http://127.0.0.1:{free}"), &["list"]));
    assert!(absent.contains("is thalweg running there?"), "{absent}");
    assert!(
        failed(queue(folder.path(), "ftp://x", &["list"])).contains("expected http://host:port or https://host:port")
    );
    let no_file = failed(queue(folder.path(), "http://x", &["--token-file", "no.token", "list"]));
    assert!(no_file.contains("cannot read the token in no.token"), "{no_file}");

    let yaml = format!(
        "auth: {{tokens: [{{name: r, file: r.token, roles: [read]}}]}}\n{LOG}queues: {{list: [{{name: q}}]}}\n"
    );
    let mut thalweg = Thalweg::spawn_with(&yaml, &[("r.token", "secret\n")]).unwrap();
    eventually(|| {
        thalweg.process.check_running()?;
        thalweg.get("/ping").map(drop)
    })
    .unwrap();
    let (folder, url) = (thalweg.folder.path(), format!("http://{}", thalweg.address().unwrap()));
    assert!(failed(queue(folder, &url, &["list"])).contains("not_authenticated"));
    assert!(failed(queue(folder, &url, &["--token", "wrong", "list"])).contains("not_authenticated"));
    let denied = failed(queue(folder, &url, &["--token", "secret", "produce", "q", "x"]));
    assert!(
        denied.contains("not_authorized") && denied.contains("role write"),
        "{denied}"
    );
    assert!(done(queue(folder, &url, &["--token-file", "r.token", "list"])).contains('q'));
}

#[test]
fn through_tls_the_command_line_asks_whom_it_trusts() {
    let data = thalweg_tests::beside("../crates/console/tests/console/data");
    let data = data.display();
    let yaml = format!(
        "http: {{cert_file: {data}/localhost.crt, key_file: {data}/localhost.key}}\n{LOG}queues: {{list: [{{name: q}}]}}\n"
    );
    let mut thalweg = Thalweg::spawn(&yaml).unwrap();
    let address = eventually(|| {
        thalweg.process.check_running()?;
        thalweg.address()
    })
    .unwrap();
    let (folder, url, ca) = (
        thalweg.folder.path(),
        format!("https://{address}"),
        format!("{data}/localhost.crt"),
    );
    assert_eq!(
        done(queue(folder, &url, &["--ca-file", &ca, "produce", "q", "x"])),
        "1 messages stored in q\n"
    );
    assert_eq!(done(queue(folder, &url, &["--ca-file", &ca, "consume", "q"])), "x\n");
    let stranger = failed(queue(folder, &url, &["list"]));
    assert!(
        stranger.contains("--ca-file") && stranger.contains("certificate"),
        "{stranger}"
    );
    let plain = failed(queue(folder, &format!("http://{address}"), &["list"]));
    assert!(plain.contains("HTTPS only"), "{plain}");
    let none = failed(queue(folder, &url, &["--ca-file", "flow.yaml", "list"]));
    assert!(none.contains("flow.yaml holds no certificate"), "{none}");
}

/// Rejects one message of the queue, with the content `body`.
fn bury(api: &Api, queue: &str, body: &str) {
    api.send("POST", &format!("/queues/{queue}/messages"), &[("x-key", "k")], body)
        .ok(201);
    let claimed = api.post(&format!("/queues/{queue}/groups/g/claim"), &json!({})).ok(200);
    let receipt = &claimed["messages"][0]["receipt"];
    let verdict = json!({"reject": [{"r": receipt, "reason": "no such pump"}]});
    api.post(&format!("/queues/{queue}/groups/g/settle"), &verdict).ok(200);
}

/// Waits until the webhook of a queue has had one letter with this outcome.
fn wait_for_webhook(thalweg: &Thalweg, queue: &str, end: &str) {
    let (name, label) = (
        format!("thalweg_queue_webhook_{end}_total"),
        format!("queue=\"{queue}\""),
    );
    eventually(|| {
        ensure!(thalweg.metric(&name, &label)? == 1.0);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_dead_message_is_posted_to_the_webhook_of_its_queue() {
    let receiver = Receiver::start(2);
    let url = &receiver.url;
    let thalweg = start(&format!(
        "queues: {{list: [{{name: jobs, partitions: 1, dlq: {{webhook: \"{url}\"}}}}]}}\n"
    ));
    let api = Api::new(&thalweg.address().unwrap());
    bury(&api, "jobs", "bad");
    let posted: Vec<Value> = (0..3).map(|_| receiver.body()).collect();
    let shown = api.get("/queues/jobs/dlq").ok(200);
    assert!(
        posted.iter().all(|body| *body == shown["messages"][0]),
        "{posted:?} {shown}"
    );
    assert_eq!(shown["messages"][0]["properties"]["x-dlq-detail"], "no such pump");
    wait_for_webhook(&thalweg, "jobs", "sent");
    api.send("PATCH", "/queues/jobs", &[], b"{\"dlq\": {\"webhook\": null}}")
        .ok(200);
    api.send("PATCH", "/queues/jobs", &[], b"{\"dlq\": {\"webhook\": \"ftp://x\"}}")
        .is_problem(400, "invalid_config", &["webhook", "https:// or http://"]);
}

#[test]
fn a_webhook_with_tls_is_asked_for_a_certificate_of_its_host_from_an_authority_that_is_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path(), "known").unwrap();
    let stranger = Authority::new(folder.path(), "stranger").unwrap();
    let trusted = Receiver::with_tls(&authority.certify("localhost").unwrap());
    let unknown = Receiver::with_tls(&stranger.certify("localhost").unwrap());
    let misnamed = Receiver::with_tls(&authority.certify("elsewhere.example").unwrap());
    let queues: String = [("trusted", &trusted), ("unknown", &unknown), ("misnamed", &misnamed)]
        .map(|(name, receiver)| {
            let url = &receiver.url;
            format!("    - {{name: {name}, partitions: 1, dlq: {{webhook: \"{url}\"}}}}\n")
        })
        .concat();
    let yaml = format!("{LOG}queues:\n  list:\n{queues}");
    let thalweg = Thalweg::start_trusting(&yaml, &authority.certificate()).unwrap();
    let api = Api::new(&thalweg.address().unwrap());

    bury(&api, "trusted", "bad");
    let shown = api.get("/queues/trusted/dlq").ok(200);
    assert_eq!(trusted.body(), shown["messages"][0]);
    wait_for_webhook(&thalweg, "trusted", "sent");

    // One after another: only one of several simultaneous failures is logged.
    bury(&api, "unknown", "secret");
    wait_for_webhook(&thalweg, "unknown", "failed");
    let log = thalweg.process.stdout();
    let line = log.lines().find(|line| line.contains("dlq.webhook")).unwrap_or(&log);
    for words in [
        "level=warn",
        "queue=unknown",
        unknown.url.as_str(),
        "certificate",
        "SSL_CERT_FILE",
        "it stays in dlq.unknown",
    ] {
        assert!(line.contains(words), "{words:?} is missing in {line}");
    }
    bury(&api, "misnamed", "secret");
    wait_for_webhook(&thalweg, "misnamed", "failed");
    for (queue, receiver) in [("unknown", unknown), ("misnamed", misnamed)] {
        assert!(!receiver.has_body(), "{queue} was told what it must not know");
        let letters = api.get(&format!("/queues/{queue}/dlq")).ok(200);
        assert_eq!(letters["messages"].as_array().map(Vec::len), Some(1), "{queue}");
    }
}

/// The blocks of a page in this language.
fn blocks<'t>(page: &'t str, language: &str) -> Vec<&'t str> {
    let begin = format!("\n```{language}\n");
    let blocks = page
        .split(begin.as_str())
        .skip(1)
        .filter_map(|rest| rest.split("\n```").next());
    blocks.collect()
}

#[test]
fn what_the_documentation_shows_works_as_it_stands() {
    let page = include_str!("../../docs/how-to/queues.md");
    let yaml = *blocks(page, "yaml").first().unwrap();
    let thalweg = Thalweg::start(&format!("{LOG}{yaml}")).unwrap();
    let address = thalweg.address().unwrap();
    let folder = thalweg.folder.path();
    std::os::unix::fs::symlink(thalweg_tests::thalweg::binary(), folder.join("thalweg")).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let here = |text: &str| text.replace("127.0.0.1:4195", &address);
    let shells = blocks(page, "sh");
    assert_eq!(shells.len(), 3);
    for block in shells {
        // A listener does not end by itself.
        let listens = block.starts_with("curl -N");
        let text = if listens {
            format!("timeout 3 {block}")
        } else {
            block.to_owned()
        };
        let ran = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &here(&text)])
            .current_dir(folder)
            .env("PATH", &path)
            .env("THALWEG_URL", format!("http://{address}"))
            .output()
            .unwrap();
        let (out, error) = (
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr),
        );
        assert!(listens || ran.status.success(), "{text}\n{out}\n{error}");
        assert!(!listens || out.contains("event: message"), "{out}\n{error}");
    }
    let script = here(blocks(page, "python").first().unwrap());
    let ran = Command::new(python().unwrap()).args(["-c", &script]).output().unwrap();
    let (out, error) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success() && out.contains("'failed': []"), "{out}\n{error}");
}
