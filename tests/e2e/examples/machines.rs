//! Examples that read and write OPC UA servers, with the simulator.

use anyhow::ensure;
use serde_json::{Value, json};
use thalweg_tests::servers::{Kind, Server};
use thalweg_tests::{Api, Thalweg, eventually};

use super::{example, rows, with};

const FAST: [&str; 8] = [
    "--port",
    "0",
    "--fast-nodes",
    "3",
    "--fast-rate",
    "0.05",
    "--slow-nodes",
    "2",
];

fn simulator(more: &[&str]) -> Server {
    Server::start(Kind::Simulator, &[&FAST[..], more].concat()).unwrap()
}

/// Waits until a query of the running process has a row whose `n` is larger.
fn more_than(thalweg: &mut Thalweg, query: &str, floor: u64) {
    eventually(|| {
        thalweg.process.check_running()?;
        let rows = thalweg.sql(query)?;
        ensure!(rows[0]["n"].as_u64().is_some_and(|n| n > floor), "{rows:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn only_points_that_matter_are_kept() {
    let server = simulator(&["--slow-rate", "0.5"]);
    let yaml = with(
        example("downsampled"),
        &[("ENDPOINT", &server.endpoint), ("NODE", "ns=3;s=OpcPlc")],
    );
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    more_than(
        &mut thalweg,
        "select count(*) as n from tags where tag like '%.Fast.FastUInt1'",
        8,
    );
    let balance = thalweg.stop().unwrap();
    assert!(
        balance.filtered > 2 * balance.out && balance.dropped == 0,
        "{balance:?}"
    );
    // Each value of the simulator is one more than the one before: a deadband of 10 keeps every tenth.
    let steps = "select tag, min(step) as min, max(step) as max from (select tag, value - lag(value) over \
                 (partition by tag order by time) as step from tags where tag like '%.Fast.%') as steps where step is not null \
                 group by tag order by tag";
    let expected: Vec<Value> = (1..=3)
        .map(|n| json!({"tag": format!("umh.v1.acme.berlin.line1._raw.OpcPlc.Fast.FastUInt{n}"), "min": 10.0, "max": 10.0}))
        .collect();
    assert_eq!(rows(&thalweg, steps), Value::from(expected));
    // A straight rise is its two ends; a busy machine may bend it.
    let slow =
        "select tag, count(*) between 2 and 5 as few from tags where tag like '%.Slow.%' group by tag order by tag";
    let expected: Vec<Value> = (1..=2)
        .map(|n| json!({"tag": format!("umh.v1.acme.berlin.line1._raw.OpcPlc.Slow.SlowUInt{n}"), "few": true}))
        .collect();
    assert_eq!(rows(&thalweg, slow), Value::from(expected));
}

#[test]
fn two_machines_are_read_and_told_apart() {
    let (first, second) = (simulator(&[]), simulator(&[]));
    let yaml = with(
        example("several-servers"),
        &[
            ("PRESS1", &first.endpoint),
            ("PRESS2", &second.endpoint),
            ("NODE", "ns=3;s=Fast"),
        ],
    );
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    for source in ["berlin_press1", "berlin_press2"] {
        let query = format!("select count(*) as n from tags where source = '{source}'");
        more_than(&mut thalweg, &query, 10);
    }
    let balance = thalweg.stop().unwrap();
    assert_eq!(balance.dropped, 0);
    let expected: Vec<Value> = [1, 2]
        .into_iter()
        .flat_map(|press| (1..=3).map(move |node| (press, node)))
        .map(|(press, node)| {
            json!({"source": format!("berlin_press{press}"), "tag": format!("umh.v1.acme.berlin.press{press}._raw.FastUInt{node}")})
        })
        .collect();
    let found = rows(&thalweg, "select distinct source, tag from tags order by source, tag");
    assert_eq!(found, Value::from(expected));
}

#[test]
fn an_encrypted_connection_with_a_login_collects() {
    let server = simulator(&["--user", "operator:secret", "--auto-accept", "--insecure", "false"]);
    let yaml = with(example("opcua-secure"), &[("ENDPOINT", &server.endpoint)]);
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    more_than(&mut thalweg, "select count(*) as n from tags", 20);
    eventually(|| {
        let polled = thalweg.metric("thalweg_flow_out_total", "flow=\"slow\"")?;
        ensure!(polled >= 2.0, "{polled}");
        Ok(())
    })
    .unwrap();
    thalweg.stop().unwrap();
    let fast = "select distinct tag from tags where tag like '%.Fast.FastUInt1'";
    let expected = json!([{"tag": "umh.v1.acme.berlin.line1._raw.OpcPlc.Fast.FastUInt1"}]);
    assert_eq!(rows(&thalweg, fast), expected);
}

#[test]
fn setpoints_reach_the_machine_once_and_impossible_ones_are_dead_letters() {
    let server = simulator(&["--types"]);
    let mut thalweg = Thalweg::start(&with(example("setpoints"), &[("ENDPOINT", &server.endpoint)])).unwrap();
    thalweg.wait_ready().unwrap();
    let api = Api::new(&thalweg.address().unwrap());
    let good = json!({"temperature": 71.5, "recipe": {"name": "rye"}, "steps": 12}).to_string();
    // The second one is told that it is stored already.
    for (status, repeated) in [(201, false), (200, true)] {
        let headers = [("x-dedup-id", "recipe-4711")];
        let stored = api
            .send("POST", "/queues/setpoints/messages", &headers, &good)
            .ok(status);
        assert_eq!(stored["repeated"].as_bool().unwrap_or(false), repeated, "{stored}");
    }
    let bad = json!({"temperature": 71.5, "recipe": {"name": "oat"}, "steps": 120_000}).to_string();
    api.send("POST", "/queues/setpoints/messages", &[], &bad).ok(201);
    eventually(|| {
        let dead = api.get("/queues/setpoints/dlq").json;
        let detail = dead["messages"][0]["properties"]["x-dlq-detail"]
            .as_str()
            .unwrap_or_default();
        ensure!(detail == "value 120000 is out of range for Int16", "{dead}");
        Ok(())
    })
    .unwrap();
    let balance = thalweg.stop().unwrap();
    assert_eq!((balance.entered, balance.out, balance.dropped), (2, 1, 1));
    let reader = "input: {opcua: {endpoint: \"ENDPOINT\", nodeIDs: [\"ns=3;s=OpcPlc\"], subscribeEnabled: true}}\n\
                  pipeline: {processors: [{mapping: 'root = @opcua_tag_name + \" \" + content().string()'}]}\n\
                  output: {file: {path: read.txt}}\n";
    let mut reader = Thalweg::start(&reader.replace("ENDPOINT", &server.endpoint)).unwrap();
    eventually(|| {
        let read = std::fs::read_to_string(reader.folder.path().join("read.txt")).unwrap_or_default();
        for line in ["WritableDouble 71.5", "WritableString \"rye\"", "WritableInt16 12"] {
            ensure!(read.lines().any(|read| read == line), "{line} is missing in {read}");
        }
        Ok(())
    })
    .unwrap();
    reader.stop().unwrap();
}
