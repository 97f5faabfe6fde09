//! A lake on an object store: rows are stored and read there by other engines, whatever faults the store and the process have.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_tests::servers::{Kind, Server, free_port, python};
use thalweg_tests::{Api, Thalweg, eventually, eventually_within};

use crate::otlp::{attributes, end, is_stored, now, text};

const PATIENCE: Duration = Duration::from_secs(60);

/// An object store with faults on demand.
pub struct Store {
    server: Server,
}

impl Store {
    pub fn start() -> Store {
        Store {
            server: Server::start(Kind::S3, &["0"]).unwrap(),
        }
    }

    /// Sets faults; returns the requests since the last call.
    pub fn set(&self, faults: &Value) -> Value {
        let address = self.server.endpoint.trim_start_matches("http://");
        let answer = Api::at_root(address).post("/_test", faults);
        assert_eq!(answer.status, 200, "{answer:?}");
        serde_json::from_str(&answer.text).unwrap()
    }

    /// The configuration of a lake in it.
    pub fn lake(&self, name: &str, key: &str) -> String {
        format!(
            "lake:\n  url: s3://lake/{name}\n  storage: {{endpoint: \"{}\", region: us-east-1, allow_http: true, \
             access_key_id: {key}, secret_access_key: none}}\n  flush: {{interval: 200ms}}\n",
            self.server.endpoint
        )
    }

    /// The environment for other programs.
    fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT_URL", self.server.endpoint.clone()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", "thalweg".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "none".to_owned()),
        ]
    }

    /// The output of deltalake, which does not depend on our code.
    fn ask(&self, table: &str, sql: &str) -> Value {
        let script = thalweg_tests::beside("python/read_table.py");
        let asked = Command::new(python().unwrap())
            .arg(script)
            .args(["deltalake", &format!("s3://lake/{table}"), sql])
            .envs(self.environment())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&asked.stderr);
        assert!(asked.status.success(), "{error}");
        serde_json::from_slice(&asked.stdout).unwrap()
    }
}

/// A configuration with its own receiver ports, and an API client for the HTTP one.
pub fn receivers(lake: &str) -> (String, Api) {
    let (http, grpc) = (free_port().unwrap(), free_port().unwrap());
    let yaml = format!(
        "ingest:\n  otlp:\n    http: {{address: \"127.0.0.1:{http}\"}}\n    grpc: {{address: \"127.0.0.1:{grpc}\"}}\n{lake}"
    );
    (yaml, Api::at_root(&format!("127.0.0.1:{http}")))
}

fn start(lake: &str) -> (Thalweg, Api) {
    let (yaml, otlp) = receivers(lake);
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    thalweg.wait_ready().unwrap();
    (thalweg, otlp)
}

fn logs(numbers: std::ops::Range<u64>) -> Value {
    let record = |n: u64| {
        json!({"timeUnixNano": now().to_string(), "body": text(&format!("line {n}")),
            "attributes": attributes(&[("n", json!({"intValue": n.to_string()}))])})
    };
    let resource = attributes(&[("service.name", text("shop"))]);
    let records: Vec<Value> = numbers.map(record).collect();
    json!({"resourceLogs": [{"resource": {"attributes": resource}, "scopeLogs": [{"logRecords": records}]}]})
}

const SUMS: &str = "select count(*) as rows, count(distinct attr_n) as numbers from";

/// The numbers of rows and of distinct ones.
fn counted(rows: &Value) -> (u64, u64) {
    let of = |name: &str| rows[0][name].as_u64().unwrap_or(u64::MAX);
    (of("rows"), of("numbers"))
}

fn wait_for_rows(thalweg: &Thalweg, rows: u64) {
    let all = eventually_within(PATIENCE, || {
        let found = counted(&Value::Array(thalweg.sql(&format!("{SUMS} logs"))?));
        anyhow::ensure!(found.0 >= rows, "{found:?}");
        Ok(found)
    });
    assert_eq!(all.unwrap(), (rows, rows));
}

/// No row waits for its commit.
fn wait_for_commits(thalweg: &Thalweg, rows: u64) {
    let committed = eventually_within(PATIENCE, || {
        let committed = thalweg.metric("thalweg_lake_rows", "table=\"logs\"")?;
        anyhow::ensure!(committed >= rows as f64, "{committed}");
        Ok(committed)
    });
    assert_eq!(committed.unwrap(), rows as f64);
}

#[test]
fn rows_go_to_an_object_store_and_others_read_them_there() {
    let store = Store::start();
    let (mut thalweg, otlp) = start(&store.lake("plain", "thalweg"));
    for n in 0..20 {
        is_stored(&otlp.post("/v1/logs", &logs(n * 10..n * 10 + 10)));
    }
    wait_for_rows(&thalweg, 200);
    wait_for_commits(&thalweg, 200);
    assert_eq!(counted(&store.ask("plain/logs", &format!("{SUMS} t"))), (200, 200));
    let tables = thalweg
        .sql("select table_name from information_schema.tables where table_schema = 'lake'")
        .unwrap();
    assert!(tables.contains(&json!({"table_name": "logs"})), "{tables:?}");
    // Only the log, its lock and scratch files are on this machine.
    let local = thalweg.data_dir().join("lake");
    assert!(!local.join("logs").exists(), "{}", local.display());
    end(&mut thalweg);
    // Without a process, by URL.
    let asked = Command::new(thalweg_tests::thalweg::binary())
        .args([
            "sql",
            "--lake",
            "s3://lake/plain",
            "--format",
            "json",
            &format!("{SUMS} logs"),
        ])
        .envs(store.environment())
        .current_dir(thalweg.folder.path())
        .output()
        .unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    assert_eq!(counted(&serde_json::from_slice(&asked.stdout).unwrap()), (200, 200));
}

#[test]
fn files_on_an_object_store_are_merged_by_way_of_the_spool() {
    let store = Store::start();
    let more = "  compaction: {target: 1MiB}\n  spool: 16MiB\n";
    let (mut thalweg, otlp) = start(&(store.lake("merged", "thalweg") + more));
    for n in 0..40 {
        is_stored(&otlp.post("/v1/logs", &logs(n * 5..n * 5 + 5)));
        wait_for_commits(&thalweg, n * 5 + 5);
    }
    let merged = eventually_within(PATIENCE, || {
        let jobs = thalweg.metric("thalweg_lake_compaction_jobs_total", "outcome=\"ok\"")?;
        anyhow::ensure!(jobs >= 1.0);
        Ok(jobs)
    });
    merged.unwrap();
    let spools = std::fs::read_dir(thalweg.data_dir().join("lake/_thalweg/spool")).unwrap();
    assert!(spools.flatten().any(|spool| spool.path().join("logs").is_dir()));
    wait_for_rows(&thalweg, 200);
    assert_eq!(counted(&store.ask("merged/logs", &format!("{SUMS} t"))), (200, 200));
    end(&mut thalweg);
}

#[test]
fn a_store_that_is_away_late_or_loses_answers_costs_no_row_and_adds_none() {
    let store = Store::start();
    let (mut thalweg, otlp) = start(&store.lake("faults", "thalweg"));
    is_stored(&otlp.post("/v1/logs", &logs(0..10)));
    wait_for_commits(&thalweg, 10);
    store.set(&json!({"down": true}));
    for n in 1..5 {
        // Acknowledged all the same: the log has it.
        is_stored(&otlp.post("/v1/logs", &logs(n * 10..n * 10 + 10)));
    }
    let trouble = eventually_within(PATIENCE, || {
        let text = thalweg.process.stdout();
        let line = text
            .lines()
            .find(|line| line.contains("rows cannot be stored in s3://lake/faults/logs"));
        line.map(str::to_owned)
            .ok_or_else(|| anyhow::anyhow!("nothing was said"))
    });
    assert!(
        trouble
            .unwrap()
            .contains("stay in the log until they can: the object store does not answer")
    );
    eventually_within(PATIENCE, || {
        let (status, text) = thalweg.request("/ready")?;
        anyhow::ensure!(
            status == 503 && text.contains("rows of the table logs have been waiting for their commit"),
            "{status} {text}"
        );
        Ok(())
    })
    .unwrap();
    store.set(&json!({"down": false}));
    wait_for_commits(&thalweg, 50);
    eventually(|| {
        let (status, text) = thalweg.request("/ready")?;
        anyhow::ensure!(status == 200, "{text}");
        Ok(())
    })
    .unwrap();
    let said = thalweg.process.stdout();
    assert_eq!(
        said.matches("rows cannot be stored in s3://lake/faults/logs").count(),
        1,
        "{said}"
    );
    store.set(&json!({"lost": 4, "refused": 6, "late_ms": 20}));
    for n in 5..30 {
        is_stored(&otlp.post("/v1/logs", &logs(n * 10..n * 10 + 10)));
        if n % 5 == 0 {
            wait_for_commits(&thalweg, n * 10 + 10);
        }
    }
    wait_for_commits(&thalweg, 300);
    let seen = store.set(&json!({"lost": 0, "refused": 0, "late_ms": 0}));
    assert!(
        seen["lost"].as_u64().unwrap() > 0 && seen["refused"].as_u64().unwrap() > 0,
        "{seen}"
    );
    wait_for_rows(&thalweg, 300);
    assert_eq!(counted(&store.ask("faults/logs", &format!("{SUMS} t"))), (300, 300));
    end(&mut thalweg);
}

#[test]
fn a_process_that_is_killed_again_and_again_leaves_every_row_once_on_an_object_store() {
    let rounds: u64 = std::env::var("THALWEG_KILL_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(12);
    let store = Store::start();
    store.set(&json!({"lost": 15, "late_ms": 3}));
    let more = "  compaction: {target: 1MiB}\n";
    let (yaml, otlp) = receivers(&(store.lake("killed", "thalweg") + more));
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    let (mut sent, mut pause) = (0, 11_u64);
    for round in 0..rounds {
        thalweg.wait_ready().unwrap();
        for _ in 0..4 {
            is_stored(&otlp.post("/v1/logs", &logs(sent..sent + 5)));
            sent += 5;
        }
        pause = pause
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_millis((pause >> 33) % 900));
        thalweg.process.kill().unwrap();
        thalweg.restart().unwrap();
        if round % 4 == 3 {
            // There is no other writer, so readers see a whole version at any moment.
            let (rows, numbers) = counted(&store.ask("killed/logs", &format!("{SUMS} t")));
            assert!(rows == numbers && rows <= sent, "{rows} {numbers} {sent}");
        }
    }
    thalweg.wait_ready().unwrap();
    wait_for_commits(&thalweg, sent);
    wait_for_rows(&thalweg, sent);
    assert_eq!(counted(&store.ask("killed/logs", &format!("{SUMS} t"))), (sent, sent));
    end(&mut thalweg);
}

/// The output of `thalweg` for a lake that is given by its URL alone.
fn shell(store: &Store, words: &[&str]) -> (i32, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new(thalweg_tests::thalweg::binary())
        .args(words)
        .envs(store.environment())
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(
        std::fs::read_dir(folder.path()).unwrap().count(),
        0,
        "nothing is left here"
    );
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ran.status.code().unwrap(), text(&ran.stdout), text(&ran.stderr))
}

#[test]
fn a_lake_on_an_object_store_is_looked_after_at_the_shell_beside_its_process_and_alone() {
    let store = Store::start();
    let (mut thalweg, otlp) = start(&store.lake("shell", "thalweg"));
    for n in 0..6 {
        is_stored(&otlp.post("/v1/logs", &logs(n * 10..n * 10 + 10)));
        wait_for_commits(&thalweg, n * 10 + 10);
    }
    let url = "s3://lake/shell";
    let json = |words: &[&str]| -> Value {
        let (code, printed, said) = shell(&store, &[words, &["--lake", url, "--json"]].concat());
        assert_eq!(code, 0, "{words:?}: {said}");
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{words:?}: {error}: {printed}"))
    };
    let status = json(&["lake", "status"]);
    assert_eq!(status["holder"]["process"], thalweg.process.id(), "{status}");
    let rows = |tables: &Value| {
        let logs = tables.as_array().unwrap().iter().find(|table| table["table"] == "logs");
        logs.unwrap()["rows"].as_u64().unwrap()
    };
    assert_eq!(rows(&json(&["lake", "tables"])), 60);
    // The process does it, and no other one.
    let (code, _, said) = shell(&store, &["lake", "compact", "--lake", url]);
    assert!(
        code == 1 && said.contains("lake.held: s3://lake/shell is written by process"),
        "{said}"
    );
    // Files are added beside it, each once.
    let files = tempfile::tempdir().unwrap();
    let more = files.path().join("more.jsonl");
    std::fs::write(&more, format!("{}\n", logs(60..75))).unwrap();
    let more = more.to_str().unwrap();
    for added in [15, 0] {
        let report = json(&["lake", "ingest", more]);
        assert_eq!(report["rows"].as_u64().unwrap(), added, "{report}");
    }
    is_stored(&otlp.post("/v1/logs", &logs(75..80)));
    wait_for_rows(&thalweg, 80);
    end(&mut thalweg);
    let verified = json(&["lake", "verify", "--deep"]);
    assert_eq!(verified["findings"], 0, "{verified}");
    let merged = json(&["lake", "compact", "logs"]);
    assert!(merged["files"].as_u64().unwrap() > 6, "{merged}");
    let (code, printed, said) = shell(&store, &["lake", "files", "logs", "--lake", url, "--json"]);
    let file: Value = serde_json::from_str(printed.lines().next().unwrap()).unwrap();
    assert_eq!(
        (code, printed.lines().count(), file["rows"].as_u64()),
        (0, 1, Some(80)),
        "{printed}{said}"
    );
    let file = format!("{url}/logs/{}", file["path"].as_str().unwrap());
    let (code, printed, said) = shell(&store, &["parquet", "cat", "--columns", "attr_n", &file]);
    assert_eq!((code, printed.lines().count()), (0, 80), "{said}");
    // A file of an object store, into another lake.
    let other = [
        "lake",
        "ingest",
        &file,
        "--lake",
        "s3://lake/copied",
        "--table",
        "logs",
        "--json",
    ];
    let (code, printed, said) = shell(&store, &other);
    assert_eq!(code, 0, "{said}");
    assert_eq!(serde_json::from_str::<Value>(&printed).unwrap()["rows"], 80);
    for lake in ["shell", "copied"] {
        let rows = store.ask(
            &format!("{lake}/logs"),
            "select count(*) as rows, count(distinct attr_n) as numbers from t",
        );
        assert_eq!(counted(&rows), (80, 80), "{lake}");
    }
    let (code, _, said) = shell(&store, &["lake", "tables", "--lake", "s3://no-such-bucket/x"]);
    assert!(code == 1 && said.contains("the bucket does not exist"), "{said}");
}

/// The error of a process that may not start.
fn refusal(yaml: &str) -> String {
    let mut thalweg = Thalweg::spawn(yaml).unwrap();
    let status = thalweg.process.wait_within(PATIENCE).unwrap();
    assert_eq!(status.code(), Some(1), "{}", thalweg.process.stderr());
    thalweg.process.stderr()
}

#[test]
fn a_second_process_on_a_lake_hears_who_has_it_and_gets_it_when_that_one_stops() {
    let store = Store::start();
    let (mut first, otlp) = start(&store.lake("held", "thalweg"));
    is_stored(&otlp.post("/v1/logs", &logs(0..5)));
    wait_for_commits(&first, 5);
    let (yaml, _) = receivers(&store.lake("held", "thalweg"));
    let said = refusal(&yaml);
    let holder = format!("lake.held: s3://lake/held is written by process {}", first.process.id());
    assert!(said.contains(&holder), "{said}");
    // Another lake in the same bucket is independent.
    let (mut other, _) = start(&store.lake("other", "thalweg"));
    end(&mut other);
    end(&mut first);
    let (mut second, otlp) = start(&store.lake("held", "thalweg"));
    is_stored(&otlp.post("/v1/logs", &logs(5..10)));
    wait_for_rows(&second, 10);
    end(&mut second);
}

#[test]
fn what_keeps_a_lake_from_being_used_is_one_sentence_at_the_start() {
    let store = Store::start();
    let (yaml, _) = receivers(&store.lake("denied", "somebody"));
    let said = refusal(&yaml);
    assert!(
        said.contains(
            "s3://lake/denied cannot be used: the object store refuses these credentials (InvalidAccessKeyId"
        ),
        "{said}"
    );
    let (yaml, _) = receivers(&store.lake("x", "thalweg").replace("s3://lake/", "s3://no-such-bucket/"));
    let said = refusal(&yaml);
    assert!(
        said.contains("s3://no-such-bucket/x cannot be used: the bucket does not exist (NoSuchBucket"),
        "{said}"
    );
    store.set(&json!({"ignore": true}));
    let (yaml, _) = receivers(&store.lake("twice", "thalweg"));
    let said = refusal(&yaml);
    assert!(
        said.contains("lake.no_conditional_put: s3://lake/twice takes the same name twice"),
        "{said}"
    );
}

#[test]
fn a_process_that_starts_while_the_store_is_away_receives_and_commits_later() {
    let store = Store::start();
    store.set(&json!({"down": true}));
    let (yaml, otlp) = receivers(&store.lake("later", "thalweg"));
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    eventually_within(PATIENCE, || {
        let json = [("content-type", "application/json")];
        let answer = otlp.try_send("POST", "/v1/logs", &json, &logs(0..5).to_string())?;
        anyhow::ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    })
    .unwrap();
    let (status, why) = thalweg.request("/ready").unwrap();
    assert!(
        status == 503 && why.contains("s3://lake/later cannot be used: the object store does not answer"),
        "{why}"
    );
    store.set(&json!({"down": false}));
    thalweg.wait_ready().unwrap();
    wait_for_rows(&thalweg, 5);
    end(&mut thalweg);
}

#[test]
fn of_many_that_put_a_new_name_at_once_the_store_takes_one() {
    // The precondition of all tests above, checked with another client.
    let store = Store::start();
    let script = "
import boto3, sys, threading
from botocore.exceptions import ClientError
clients = [boto3.client('s3', endpoint_url=sys.argv[1]) for _ in range(8)]
for turn in range(50):
    won, barrier = [], threading.Barrier(len(clients))
    def put(n):
        barrier.wait()
        try:
            clients[n].put_object(Bucket='lake', Key=f'race/{turn}', Body=bytes([n]), IfNoneMatch='*')
            won.append(n)
        except ClientError as error:
            assert error.response['Error']['Code'] == 'PreconditionFailed', error
    threads = [threading.Thread(target=put, args=(n,)) for n in range(len(clients))]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    there = clients[0].get_object(Bucket='lake', Key=f'race/{turn}')['Body'].read()
    assert [*there] == won, (turn, won, there)
print('one each')
";
    let mut command = Command::new(python().unwrap());
    command
        .args(["-c", script, &store.server.endpoint])
        .envs(store.environment());
    let ran = command.env("AWS_DEFAULT_REGION", "us-east-1").output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout).trim(),
        "one each",
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}
