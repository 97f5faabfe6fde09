//! A log restored from an older copy, while the indexes of the event store and the tables of the lake are newer: the start is
//! refused with exit code 65, names the loss, and stores nothing; once the loss is accepted, the log continues after their
//! positions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::ensure;
use serde_json::{Value, json};
use thalweg_tests::servers::free_port;
use thalweg_tests::thalweg::{RUN, run};
use thalweg_tests::{Api, Thalweg, eventually};

use crate::events_server::TOKEN;
use crate::lake_urls::{Store, receivers};
use crate::otlp::{end, is_stored, logs};

/// Requests before the copy is made, and again after it.
const EACH: u64 = 10;
/// Events per stream: index tables are written only when there is enough for one.
const EVENTS_EACH: u64 = 200_000;

/// Writes messages of these numbers, and waits until indexes or tables contain them.
type Write<'a> = &'a dyn Fn(&mut Thalweg, std::ops::Range<u64>);

/// A data folder whose log is older than the rest of it.
fn with_an_older_log(yaml: &str, write: Write<'_>) -> Thalweg {
    let mut thalweg = Thalweg::start(yaml).unwrap();
    write(&mut thalweg, 0..EACH);
    end(&mut thalweg);
    let (log, older) = (thalweg.data_dir().join("log"), thalweg.folder.path().join("older"));
    copy(&log, &older);
    thalweg.restart().unwrap();
    write(&mut thalweg, EACH..2 * EACH);
    end(&mut thalweg);
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::rename(&older, &log).unwrap();
    thalweg
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Length and modification time of every file of the data folder. The log is opened before a table reports the loss, so it may
/// have prepared files.
fn look_at(data: &Path) -> BTreeMap<PathBuf, (u64, SystemTime)> {
    let (mut files, mut folders) = (BTreeMap::new(), vec![data.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let metadata = entry.metadata().unwrap();
            if metadata.is_dir() && entry.file_name() != "log" {
                folders.push(entry.path());
            } else if metadata.is_file() && entry.file_name() != "LOCK" {
                files.insert(entry.path(), (metadata.len(), metadata.modified().unwrap()));
            }
        }
    }
    files
}

/// A start exits with 65, its error contains all of these words, and indexes and tables are unchanged; the next start does the
/// same.
fn is_refused(thalweg: &Thalweg, arguments: &[&str], words: &[&str]) {
    for _ in 0..2 {
        let before = look_at(&thalweg.data_dir());
        let refused = run(thalweg.folder.path(), arguments).unwrap();
        assert_eq!(refused.status.code(), Some(65), "{}", refused.stderr);
        for word in words {
            assert!(
                refused.stderr.contains(word),
                "{word:?} is missing in {}",
                refused.stderr
            );
        }
        assert_eq!(look_at(&thalweg.data_dir()), before, "a file was changed");
    }
}

/// Starts once with the loss accepted, and stays up for `meanwhile`; then again with the original configuration.
fn accept_the_loss(thalweg: &mut Thalweg, yaml: &str, meanwhile: impl FnOnce(&mut Thalweg)) {
    let config = thalweg.folder.path().join("flow.yaml");
    std::fs::write(&config, format!("{yaml}log: {{recover: skip}}\n")).unwrap();
    thalweg.restart().unwrap();
    meanwhile(thalweg);
    end(thalweg);
    std::fs::write(&config, yaml).unwrap();
    thalweg.restart().unwrap();
}

fn call(thalweg: &Thalweg, call: &Value) -> Value {
    let api = Api::at_root(&thalweg.address().unwrap()).with_token(TOKEN);
    api.post("/rpc", call).ok(200)
}

fn write_events(thalweg: &mut Thalweg, numbers: std::ops::Range<u64>) -> Value {
    let messages: Vec<Value> = numbers.map(|n| json!({"type": "Counted", "data": {"n": n}})).collect();
    let mut answer = Value::Null;
    for part in messages.chunks(1000) {
        answer = call(
            thalweg,
            &json!(["stream.appendMany", [{"stream": "orders-1", "messages": part}]]),
        );
    }
    answer
}

#[test]
fn an_event_store_gives_no_position_twice_when_its_log_is_older_than_its_indexes() {
    let yaml = format!("events: {{token: {TOKEN}}}\nmemory: {{limit: 600MiB}}\n");
    let each = |numbers: std::ops::Range<u64>| numbers.start / EACH * EVENTS_EACH..numbers.end / EACH * EVENTS_EACH;
    let write = |thalweg: &mut Thalweg, numbers| {
        write_events(thalweg, each(numbers));
        eventually(|| {
            let tables = std::fs::read_dir(thalweg.data_dir().join("events"))?.count();
            ensure!(tables > 1, "no table is written yet");
            Ok(())
        })
        .unwrap();
    };
    let mut thalweg = with_an_older_log(&yaml, &write);
    // Like a table that was being written when a process was killed.
    let unfinished = thalweg.data_dir().join("events").join("0000000000000099.index");
    std::fs::write(&unfinished, "").unwrap();
    let words = [
        "the log has lost messages that were acknowledged",
        "in namespace 'default'",
        "--recover=skip (`log: {recover: skip}`",
    ];
    is_refused(&thalweg, &RUN, &words);
    is_refused(&thalweg, &["events", "serve", "--port=0", "--data-dir=data"], &words);
    let mut at = Value::Null;
    accept_the_loss(&mut thalweg, &yaml, |thalweg| at = write_events(thalweg, 0..1));
    assert!(!unfinished.exists(), "a start that goes on removes what is of no use");
    let position = at[0]["firstPosition"].as_u64().unwrap();
    assert!(position > EVENTS_EACH, "after versions that were given: {at}");
    let read = call(
        &thalweg,
        &json!(["stream.get", "orders-1", {"position": EVENTS_EACH - 2, "batchSize": 100}]),
    );
    let positions: Vec<u64> = read
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message[2].as_u64().unwrap())
        .collect();
    assert_eq!(positions, [EVENTS_EACH - 2, EVENTS_EACH - 1, position], "{read}");
    end(&mut thalweg);
    let verified = run(thalweg.folder.path(), &["events", "verify", "--data-dir", "data"]).unwrap();
    assert!(verified.status.success(), "{}{}", verified.stdout, verified.stderr);
}

fn count(thalweg: &Thalweg, query: &str, expected: u64) {
    eventually(|| {
        let rows = thalweg.sql(query)?;
        ensure!(rows[0]["n"] == expected, "{rows:?}");
        Ok(())
    })
    .unwrap();
}

/// Waits until all of them are in files, and not only in memory.
fn write_logs(thalweg: &mut Thalweg, otlp: &Api, numbers: std::ops::Range<u64>) {
    let last = numbers.end;
    for n in numbers {
        is_stored(&otlp.post("/v1/logs", &logs(n..n + 1)));
    }
    let committed = "select count(*) as n from at_time('logs', now() + interval '1 hour')";
    count(thalweg, committed, last);
}

#[test]
fn a_table_takes_nothing_twice_and_misses_nothing_new_when_its_log_is_older() {
    let (port, grpc) = (free_port().unwrap(), free_port().unwrap());
    let otlp = Api::at_root(&format!("127.0.0.1:{port}"));
    let yaml = format!(
        "ingest: {{otlp: {{http: {{address: \"127.0.0.1:{port}\"}}, grpc: {{address: \"127.0.0.1:{grpc}\"}}}}}}\nlake: {{flush: {{interval: 20ms}}}}\n"
    );
    let write = |thalweg: &mut Thalweg, numbers| {
        thalweg.wait_ready().unwrap();
        write_logs(thalweg, &otlp, numbers);
    };
    let mut thalweg = with_an_older_log(&yaml, &write);
    let words = [
        "lake.lost: the log ends before offset",
        "the table logs",
        "`log: {recover: skip}`",
    ];
    is_refused(&thalweg, &RUN, &words);
    accept_the_loss(&mut thalweg, &yaml, |thalweg| write(thalweg, 2 * EACH..3 * EACH));
    write(&mut thalweg, 3 * EACH..4 * EACH);
    count(
        &thalweg,
        "select count(*) as n, count(distinct body) as m from logs where body like 'line %'",
        4 * EACH,
    );
    end(&mut thalweg);
}

/// An unreachable store cannot be checked, so the process starts. The loss is found when the store is back.
#[test]
fn a_log_that_is_older_than_a_table_whose_store_was_away_is_told_when_the_store_is_back() {
    let store = Store::start();
    let (yaml, otlp) = receivers(&store.lake("older", "thalweg"));
    let write = |thalweg: &mut Thalweg, numbers| {
        thalweg.wait_ready().unwrap();
        write_logs(thalweg, &otlp, numbers);
    };
    let mut thalweg = with_an_older_log(&yaml, &write);
    store.set(&json!({"down": true}));
    thalweg.restart().unwrap();
    // It is accepted, and waits in the log for the table.
    eventually(|| {
        let json = [("content-type", "application/json")];
        let body = logs(2 * EACH..2 * EACH + 1).to_string();
        let answer = otlp.try_send("POST", "/v1/logs", &json, &body)?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    })
    .unwrap();
    store.set(&json!({"down": false}));
    let words = [
        "lake.lost: the log ends before offset",
        "the table logs",
        "`log: {recover: skip}`",
    ];
    eventually(|| {
        let (status, why) = thalweg.request("/ready")?;
        ensure!(status == 503, "{status}: {why}");
        let missing = words.iter().find(|word| !why.contains(**word));
        ensure!(missing.is_none(), "{missing:?} is missing in {why}");
        Ok(())
    })
    .unwrap();
    // Still accepted: the log has it, and the table does not, however long that lasts.
    is_stored(&otlp.post("/v1/logs", &logs(2 * EACH + 1..2 * EACH + 2)));
    end(&mut thalweg);
    is_refused(&thalweg, &RUN, &words);
    accept_the_loss(&mut thalweg, &yaml, |thalweg| {
        thalweg.wait_ready().unwrap();
        write_logs(thalweg, &otlp, 2 * EACH + 2..3 * EACH);
    });
    write(&mut thalweg, 3 * EACH..4 * EACH);
    let all = "select count(*) as n, count(distinct body) as m from logs where body like 'line %'";
    count(&thalweg, all, 4 * EACH);
    end(&mut thalweg);
}

fn write_events_to_the_table(thalweg: &mut Thalweg, numbers: std::ops::Range<u64>) {
    let last = numbers.end;
    for n in numbers {
        write_events(thalweg, n..n + 1);
    }
    count(
        thalweg,
        "select count(*) as n from at_time('events', now() + interval '1 hour')",
        last,
    );
}

/// The indexes would report it first; without them only the table can.
#[test]
fn the_table_of_events_keeps_away_a_log_that_is_older() {
    let yaml = format!("events: {{token: {TOKEN}}}\nlake: {{events: {{enabled: true}}, flush: {{interval: 20ms}}}}\n");
    let thalweg = with_an_older_log(&yaml, &write_events_to_the_table);
    std::fs::remove_dir_all(thalweg.data_dir().join("events")).unwrap();
    let words = [
        "lake.lost: the log ends before offset",
        "partition default",
        "the table events",
    ];
    let refused = run(thalweg.folder.path(), &RUN).unwrap();
    assert_eq!(refused.status.code(), Some(65), "{}", refused.stderr);
    for word in words {
        assert!(
            refused.stderr.contains(word),
            "{word:?} is missing in {}",
            refused.stderr
        );
    }
}
