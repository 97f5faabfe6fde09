//! The table `events`: the messages of the event store by SQL, compared with the store itself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use thalweg_tests::thalweg::run;
use thalweg_tests::{Api, Thalweg, eventually};

use crate::events_server::TOKEN;

fn yaml() -> String {
    format!("events: {{token: {TOKEN}}}\nlake: {{events: {{enabled: true}}, flush: {{interval: 200ms}}}}\n")
}

fn call(thalweg: &Thalweg, token: &str, call: &Value) -> Value {
    let api = Api::at_root(&thalweg.address().unwrap()).with_token(token);
    let answer = api.post("/rpc", call);
    assert_eq!(answer.status, 200, "{call}: {answer:?}");
    answer.json
}

fn slow() -> String {
    yaml().replace("200ms", "1h")
}

/// It has no flow, and so no balance.
fn stop(thalweg: &mut Thalweg) {
    thalweg.process.signal("TERM").unwrap();
    assert!(
        thalweg.process.wait().unwrap().success(),
        "{}",
        thalweg.process.stderr()
    );
}

fn write(thalweg: &Thalweg, stream: &str, n: u64) {
    let message = json!({"type": "Counted", "data": {"n": n}, "metadata": {"n": n, "who": "test", "list": [1]}});
    call(thalweg, TOKEN, &json!(["stream.write", stream, message]));
}

#[test]
fn messages_are_rows_as_soon_as_they_are_stored_and_once_over_kill_9() {
    let mut thalweg = Thalweg::start(&yaml()).unwrap();
    let mut written = 0;
    for round in 0..4 {
        for _ in 0..50 + 40 * round {
            write(&thalweg, &format!("order-{}", written % 7), written);
            written += 1;
        }
        let count = "select count(*) as n, count(distinct global_position) as positions from events where namespace = 'default'";
        eventually(|| {
            let rows = thalweg.sql(count)?;
            ensure!(
                rows[0]["n"].as_u64() == Some(written),
                "{written} were written: {rows:?}"
            );
            ensure!(rows[0]["positions"] == rows[0]["n"], "{rows:?}");
            Ok(())
        })
        .unwrap();
        // Sometimes after a commit, and sometimes not.
        std::thread::sleep(Duration::from_millis(90 * round));
        thalweg.process.kill().unwrap();
        thalweg.restart().unwrap();
    }
    let streams = "select stream, category, event_type, max(stream_position) + 1 = count(*) as whole, min(attr_who) as who \
                   from events group by 1, 2, 3 order by 1";
    let mut rows = Vec::new();
    eventually(|| {
        rows = thalweg.sql(streams)?;
        ensure!(rows.len() == 7);
        Ok(())
    })
    .unwrap();
    for (n, row) in rows.iter().enumerate() {
        let expected = json!({"stream": format!("order-{n}"), "category": "order", "event_type": "Counted", "whole": true,
            "who": "test"});
        assert_eq!(*row, expected);
    }
    stop(&mut thalweg);
    let sum = "select sum(cast(attr_n as bigint)) as n, min(data) as data from events";
    let own = run(
        thalweg.folder.path(),
        &["sql", "--data-dir", "data", "--format", "json", sum],
    )
    .unwrap();
    let own: Value = serde_json::from_str(&own.stdout).unwrap();
    assert_eq!(
        own[0]["n"].as_u64(),
        Some(written * (written - 1) / 2),
        "what is stopped in order has all in its files"
    );
    assert_eq!(own[0]["data"], "{\"n\":0}");
}

#[test]
fn namespaces_come_and_go_and_rows_of_what_is_deleted_stay() {
    // Nothing is committed before the kill.
    let mut thalweg = Thalweg::start(&slow()).unwrap();
    let made = call(&thalweg, TOKEN, &json!(["ns.create", "plant", {}]));
    let token = made["token"].as_str().unwrap().to_owned();
    for n in 0..20 {
        let message = json!({"type": "T", "data": {"n": n}});
        call(&thalweg, &token, &json!(["stream.write", "m-1", message]));
    }
    let count = "select namespace, count(*) as n from events group by 1 order by 1";
    let is = |thalweg: &Thalweg, expected: &Value| {
        eventually(|| {
            let rows = Value::from(thalweg.sql(count)?);
            ensure!(rows == *expected, "{rows}");
            Ok(())
        })
        .unwrap();
    };
    is(&thalweg, &json!([{"namespace": "plant", "n": 20}]));
    call(&thalweg, TOKEN, &json!(["ns.delete", "plant"]));
    let again = call(&thalweg, TOKEN, &json!(["ns.create", "plant", {}]));
    let token = again["token"].as_str().unwrap();
    call(
        &thalweg,
        token,
        &json!(["stream.write", "m-1", {"type": "T", "data": {}}]),
    );
    // Without metadata, whose names would be committed at once.
    call(
        &thalweg,
        TOKEN,
        &json!(["stream.write", "a", {"type": "T", "data": {}}]),
    );
    is(
        &thalweg,
        &json!([{"namespace": "default", "n": 1}, {"namespace": "plant", "n": 21}]),
    );
    let first_commit = "lake/events/_delta_log/00000000000000000001.json";
    assert!(!thalweg.data_dir().join(first_commit).exists());
    thalweg.process.kill().unwrap();
    thalweg.restart().unwrap();
    is(
        &thalweg,
        &json!([{"namespace": "default", "n": 1}, {"namespace": "plant", "n": 21}]),
    );
    stop(&mut thalweg);
}

/// Whatever happens, writers end.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes until the process is gone. Returns the number of acknowledged messages.
fn write_until_killed(api: &Api, stream: &str, stop: &AtomicBool) -> u64 {
    let mut acknowledged = 0;
    while !stop.load(Ordering::Relaxed) {
        let message = json!({"type": "Counted", "data": {}, "metadata": {"n": acknowledged}});
        let asked = json!(["stream.write", stream, message]).to_string();
        let json = [("content-type", "application/json")];
        match api.try_send("POST", "/rpc", &json, &asked) {
            Ok(answer) if answer.status == 200 => acknowledged += 1,
            _ => break,
        }
    }
    acknowledged
}

/// `THALWEG_KILL_ROUNDS` rounds. Beside them a namespace is created, filled, and deleted at once.
#[test]
#[allow(clippy::print_stdout, reason = "a long run prints its result")]
fn messages_are_rows_once_whenever_the_process_is_killed_while_they_are_written() {
    let rounds = std::env::var("THALWEG_KILL_ROUNDS").map_or(6, |rounds| rounds.parse().unwrap());
    // Commits are in progress most of the time.
    let mut thalweg = Thalweg::start(&yaml().replace("200ms", "10ms")).unwrap();
    let (mut acknowledged, mut of_deleted) = (0, 0);
    for round in 0..rounds {
        let address = thalweg.address().unwrap();
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = Stop(stop);
            let writers = ["a", "b-1"].map(|stream| {
                let api = Api::at_root(&address).with_token(TOKEN);
                scope.spawn(move || write_until_killed(&api, stream, stop))
            });
            let made = call(&thalweg, TOKEN, &json!(["ns.create", "plant", {}]));
            let token = made["token"].as_str().unwrap();
            for n in 0..=round % 7 {
                call(
                    &thalweg,
                    token,
                    &json!(["stream.write", "m-1", {"type": "T", "data": {"n": n}}]),
                );
                of_deleted += 1;
            }
            std::thread::sleep(Duration::from_millis(37 * (round % 9)));
            call(&thalweg, TOKEN, &json!(["ns.delete", "plant"]));
            std::thread::sleep(Duration::from_millis(round % 3));
            thalweg.process.kill().unwrap();
            acknowledged += writers.map(|writer| writer.join().unwrap()).iter().sum::<u64>();
        });
        thalweg.restart().unwrap();
        let stored = call(&thalweg, TOKEN, &json!(["ns.info", "default"]));
        let stored = stored["messageCount"].as_u64().unwrap();
        // A message may be stored and its response lost.
        assert!(
            (acknowledged..=acknowledged + 2 * (round + 1)).contains(&stored),
            "{acknowledged}, {stored}"
        );
        let rows = "select namespace, count(*) as n, count(distinct event_id) as ids from events group by 1 order by 1";
        eventually(|| {
            let rows = Value::from(thalweg.sql(rows)?);
            let row = |namespace: &str, n: u64| json!({"namespace": namespace, "n": n, "ids": n});
            let expected = json!([row("default", stored), row("plant", of_deleted)]);
            ensure!(rows == expected, "round {round}: {rows} and not {expected}");
            Ok(())
        })
        .unwrap();
    }
    println!("{rounds} rounds: {acknowledged} acknowledged, {of_deleted} of deleted namespaces, each a row once");
    stop(&mut thalweg);
}
