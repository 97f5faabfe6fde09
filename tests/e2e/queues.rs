//! Queues of a running Thalweg: over HTTP, and between flows.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use thalweg_tests::{Api, Thalweg, eventually};

const QUEUE: &str = "\
log: {min_free: 16MiB, commit: {spare: 1}}
queues:
  list:
    - {name: jobs, partitions: 4, max_depth: 0, visibility_timeout: 2s, retry: {initial_backoff: 10ms}, groups: [{name: g}]}
";

/// Sends a JSON body and returns the response.
pub(crate) fn post(base: &str, path: &str, body: &str) -> Result<(u16, Value)> {
    call(base, "POST", path, body)
}

pub(crate) fn call(base: &str, method: &str, path: &str, body: &str) -> Result<(u16, Value)> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .allow_non_standard_methods(true)
        .timeout_global(Some(Duration::from_secs(20)));
    let agent: ureq::Agent = config.build().into();
    let request = ureq::http::Request::builder()
        .method(method)
        .uri(format!("http://{base}/api/v1/queues/{path}"))
        .header("content-type", "application/json")
        .body(body)?;
    let mut answer = agent.run(request)?;
    let text = answer.body_mut().read_to_string()?;
    let value = if text.is_empty() {
        Value::Null
    } else {
        serde_json::from_str(&text).context(text)?
    };
    Ok((answer.status().as_u16(), value))
}

#[test]
fn a_message_is_produced_claimed_and_acked_over_http() {
    let mut thalweg = Thalweg::start(QUEUE).unwrap();
    let base = thalweg.address().unwrap();
    let (status, produced) = post(&base, "jobs/messages", "hello").unwrap();
    assert_eq!((status, &produced["durability"]), (201, &json!("fsync")), "{produced}");
    let (status, claimed) = post(&base, "jobs/groups/g/claim", r#"{"consumer":"c","max":5,"wait":"5s"}"#).unwrap();
    assert_eq!(status, 200, "{claimed}");
    let receipt = &claimed["messages"][0]["receipt"];
    let (status, settled) = post(&base, "jobs/groups/g/settle", &json!({"ack": [receipt]}).to_string()).unwrap();
    assert_eq!((status, &settled["settled"]), (200, &json!(1)), "{settled}");
    let (status, missing) = post(&base, "nowhere/messages", "x").unwrap();
    assert_eq!((status, &missing["code"]), (404, &json!("queue_not_found")));
    thalweg.process.signal("TERM").unwrap();
    assert!(thalweg.process.wait().unwrap().success());
}

#[test]
fn two_flows_read_what_a_third_has_queued_each_at_its_own_pace_over_a_restart() {
    let config = "\
log: {min_free: 16MiB, commit: {spare: 1}}
queues: {list: [{name: lines, max_depth: 0}]}
flows:
  - name: in
    input: {generate: {count: 2000, interval: '', mapping: 'root = count(\"n\").string()'}}
    output: {queue: {name: lines}}
  - name: a
    input: {queue: {name: lines, group: a}}
    output: {file: {path: a.txt, codec: lines}}
  - name: b
    input: {queue: {name: lines, group: b}}
    output: {file: {path: b.txt, codec: lines}}
";
    let mut thalweg = Thalweg::start(config).unwrap();
    let lines = |thalweg: &Thalweg, name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(thalweg.folder.path().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    eventually(|| {
        ensure!(lines(&thalweg, "a.txt").len() > 200);
        Ok(())
    })
    .unwrap();
    thalweg.process.kill().unwrap();
    // The generator starts over: every number comes at least twice.
    thalweg.restart().unwrap();
    let all: HashSet<String> = (1..=2000).map(|n| n.to_string()).collect();
    for name in ["a.txt", "b.txt"] {
        eventually(|| {
            let found: HashSet<String> = lines(&thalweg, name).into_iter().collect();
            ensure!(found == all, "{name} has {} of {}", found.len(), all.len());
            Ok(())
        })
        .unwrap();
    }
    thalweg.stop().unwrap().check().unwrap();
}

#[test]
fn flows_go_on_with_the_queue_and_the_group_that_have_the_names_after_a_deletion_and_say_so_once() {
    let config = "\
log: {min_free: 16MiB, commit: {spare: 1}}
queues: {auto_create: false}
flows:
  - name: in
    input: {generate: {interval: 20ms, mapping: 'root = count(\"n\").string()'}}
    output: {queue: {name: lines}}
  - name: out
    input: {queue: {name: lines, group: a}}
    output: {file: {path: out.txt, codec: lines}}
";
    let mut thalweg = Thalweg::start(config).unwrap();
    let api = Api::new(&thalweg.address().unwrap());
    let path = thalweg.folder.path().join("out.txt");
    let last = || -> u64 {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.lines().last().and_then(|line| line.parse().ok()).unwrap_or(0)
    };
    let goes_on = || {
        let before = last();
        eventually(|| {
            ensure!(last() > before + 20, "{} after {before}", last());
            Ok(())
        })
        .unwrap();
    };
    let make = |partitions: &str| api.send("PUT", "/queues/lines", &[], partitions).ok(201);
    let delete = |path: &str| assert_eq!(api.send("DELETE", path, &[], "").status, 204, "{path}");
    make(r#"{"partitions": 2}"#);
    goes_on();
    delete("/queues/lines?force=true");
    make(r#"{"partitions": 1}"#);
    goes_on();
    delete("/queues/lines/groups/a");
    goes_on();
    let told = thalweg.process.stdout();
    for (what, wanted) in [
        ("while a flow reads it", 2),
        ("deleted and created again; the flow continues", 1),
    ] {
        assert_eq!(told.matches(what).count(), wanted, "{what}: {told}");
    }
    thalweg.process.signal("TERM").unwrap();
    assert!(
        thalweg.process.wait().unwrap().success(),
        "{}",
        thalweg.process.stderr()
    );
}
