//! The OPC UA input against real servers: our simulator, asyncua (Python), node-opcua (Node.js).

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use thalweg_tests::servers::{Kind, Server};
use thalweg_tests::{Thalweg, eventually};

/// Payload text and metadata of every message, in order.
const TO_FILE: &str = "\
pipeline:
  threads: 1
  processors:
    - mapping: |
        root.payload = content().string()
        root.meta = @
output:
  file: {path: out.jsonl}
";

pub const SECURE: &str = "    securityMode: SignAndEncrypt\n    securityPolicy: Basic256Sha256\n    username: operator\n    password: secret\n";

pub fn flow(server: &Server, node: &str, more: &str) -> String {
    format!(
        "input:\n  opcua:\n    endpoint: {}\n    nodeIDs: [\"{node}\"]\n{more}{TO_FILE}",
        server.endpoint
    )
}

pub fn messages(thalweg: &Thalweg) -> Vec<Value> {
    let text = std::fs::read_to_string(thalweg.folder.path().join("out.jsonl")).unwrap_or_default();
    // The last line may be half written.
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// The newest payload of each tag.
pub fn newest(thalweg: &Thalweg) -> BTreeMap<String, (String, Value)> {
    let pairs = messages(thalweg).into_iter().map(|message| {
        let name = message["meta"]["opcua_attr_browsename"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        (
            name,
            (
                message["payload"].as_str().unwrap_or_default().to_owned(),
                message["meta"].clone(),
            ),
        )
    });
    pairs.collect()
}

/// The payloads of one tag as numbers.
fn series(thalweg: &Thalweg, name: &str) -> Vec<i64> {
    let all = messages(thalweg)
        .into_iter()
        .filter(|message| message["meta"]["opcua_attr_browsename"] == name);
    all.map(|message| message["payload"].as_str().unwrap_or_default().parse().unwrap())
        .collect()
}

fn wait_for_values(thalweg: &Thalweg, name: &str, n: usize) -> Vec<i64> {
    let mut seen = Vec::new();
    eventually(|| {
        seen = series(thalweg, name);
        anyhow::ensure!(
            seen.len() >= n,
            "{} values of {name}; {:?}",
            seen.len(),
            thalweg.request("/ready")
        );
        Ok(())
    })
    .unwrap();
    seen
}

fn assert_consecutive(values: &[i64]) {
    assert!(
        values.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "a value is missing, doubled or out of order: {values:?}"
    );
}

pub fn items_add_up(thalweg: &Thalweg) {
    let of = |name: &str| thalweg.metric(&format!("thalweg_opcua_{name}"), "").unwrap();
    assert_eq!(
        of("items_wanted"),
        of("items_monitored") + of("items_polled") + of("items_failed")
    );
}

/// Type, metadata and the account of what a flow has collected, whatever happened before.
fn assert_sound(thalweg: &Thalweg, counter: &str) {
    let (_, meta) = newest(thalweg).remove(counter).unwrap();
    for (key, text) in [
        ("opcua_tag_type", "number"),
        ("opcua_attr_datatype", "uint32"),
        ("opcua_attr_browsename", counter),
        ("opcua_tag_name", counter),
        ("opcua_attr_nodeclass", "NodeClassVariable"),
        ("opcua_attr_statuscode", "The operation succeeded. StatusGood (0x0)"),
    ] {
        assert_eq!(meta[key], text, "{key} of {meta}");
    }
    items_add_up(thalweg);
    let balance = thalweg.balance().unwrap();
    assert_eq!(balance.dropped, 0, "{balance:?}");
}

fn subscribes_without_holes(kind: Kind, arguments: &[&str], node: &str, counter: &str, security: &str) {
    let server = Server::start(kind, arguments).unwrap();
    let more = format!("    subscribeEnabled: true\n{security}");
    let mut thalweg = Thalweg::start(&flow(&server, node, &more)).unwrap();
    thalweg.wait_ready().unwrap();
    assert_consecutive(&wait_for_values(&thalweg, counter, 8));
    assert_sound(&thalweg, counter);
    thalweg.stop().unwrap();
    assert!(
        thalweg.process.stdout().contains("in flight 0"),
        "{}",
        thalweg.process.stdout()
    );
}

#[test]
fn simulator_subscribed_in_the_clear_and_encrypted() {
    let plain = ["--port", "0", "--fast-rate", "0.25"];
    subscribes_without_holes(Kind::Simulator, &plain, "ns=3;s=OpcPlc", "FastUInt1", "");
    let login = [
        "--port",
        "0",
        "--fast-rate",
        "0.25",
        "--user",
        "operator:secret",
        "--auto-accept",
    ];
    subscribes_without_holes(Kind::Simulator, &login, "ns=3;s=OpcPlc", "FastUInt1", SECURE);
}

#[test]
fn asyncua_subscribed_in_the_clear_and_encrypted() {
    let arguments = ["--port", "0", "--period", "0.25"];
    subscribes_without_holes(Kind::Asyncua, &arguments, "ns=2;s=Plant", "Counter1", "");
    subscribes_without_holes(Kind::Asyncua, &arguments, "ns=2;s=Plant", "Counter1", SECURE);
}

#[test]
fn node_opcua_subscribed_in_the_clear_and_encrypted() {
    let arguments = ["--port", "0", "--period", "0.25"];
    subscribes_without_holes(Kind::NodeOpcua, &arguments, "ns=1;s=Plant", "Counter1", "");
    subscribes_without_holes(Kind::NodeOpcua, &arguments, "ns=1;s=Plant", "Counter1", SECURE);
}

#[test]
fn polling_reads_every_tag_each_period() {
    let server = Server::start(Kind::Simulator, &["--port", "0", "--max-nodes-per-read", "30"]).unwrap();
    let mut thalweg = Thalweg::start(&flow(&server, "ns=3;s=OpcPlc", "    pollRate: 200\n")).unwrap();
    let values = wait_for_values(&thalweg, "FastUInt100", 12);
    assert!(
        values
            .windows(2)
            .all(|pair| pair[1] - pair[0] <= 1 && pair[1] >= pair[0]),
        "{values:?}"
    );
    assert_eq!(thalweg.metric("thalweg_opcua_items_polled", "").unwrap(), 200.0);
    assert_sound(&thalweg, "FastUInt100");
    thalweg.stop().unwrap();
}

#[test]
fn a_server_that_refuses_filters_is_filtered_in_the_client() {
    let server = Server::start(
        Kind::Simulator,
        &["--port", "0", "--refuse-filters", "--fast-rate", "0.25"],
    )
    .unwrap();
    let more = "    subscribeEnabled: true\n    deadband: {type: absolute, value: 1.5}\n";
    let mut thalweg = Thalweg::start(&flow(&server, "ns=3;s=OpcPlc", more)).unwrap();
    let values = wait_for_values(&thalweg, "FastUInt1", 5);
    assert!(
        values.windows(2).all(|pair| pair[1] - pair[0] == 2),
        "a change of 1 does not pass 1.5, one of 2 does: {values:?}"
    );
    assert_sound(&thalweg, "FastUInt1");
    thalweg.stop().unwrap();
}

#[test]
fn bad_nodes_among_good_ones_are_listed_and_the_others_flow() {
    let server = Server::start(
        Kind::Simulator,
        &["--port", "0", "--bad-nodes", "7", "--fast-rate", "0.25"],
    )
    .unwrap();
    let mut thalweg = Thalweg::start(&flow(&server, "ns=3;s=OpcPlc", "    subscribeEnabled: true\n")).unwrap();
    assert_consecutive(&wait_for_values(&thalweg, "FastUInt1", 6));
    assert_sound(&thalweg, "FastUInt1");
    assert_eq!(
        thalweg.metric("thalweg_opcua_items_failed", "node_id_unknown").unwrap(),
        7.0
    );
    let failures = thalweg.json("/api/v1/opcua/failures").unwrap();
    assert!(failures.to_string().contains("BadNodeIdUnknown"), "{failures}");
    thalweg.stop().unwrap();

    // A bad id in the list itself.
    let list = "ns=3;s=NoSuchNode\", \"ns=3;s=OpcPlc";
    let mut thalweg = Thalweg::start(&flow(&server, list, "    subscribeEnabled: true\n")).unwrap();
    assert_consecutive(&wait_for_values(&thalweg, "FastUInt2", 4));
    assert_sound(&thalweg, "FastUInt2");
    thalweg.stop().unwrap();
}

fn survives_a_restart(kind: Kind, arguments: &[&str], node: &str, counter: &str) {
    let mut server = Server::start(kind, &[arguments, &["--port", "0"]].concat()).unwrap();
    let port = server.port().unwrap().to_string();
    let more = "    subscribeEnabled: true\n    reconnectIntervalInSeconds: 1\n";
    let mut thalweg = Thalweg::start(&flow(&server, node, more)).unwrap();
    wait_for_values(&thalweg, counter, 4);
    server.process.kill().unwrap();
    eventually(|| {
        anyhow::ensure!(thalweg.request("/ready")?.0 == 503, "still ready without its server");
        Ok(())
    })
    .unwrap();
    let before = messages(&thalweg).len();
    let _again = Server::start(kind, &[arguments, &["--port", &port]].concat()).unwrap();
    thalweg.wait_ready().unwrap();
    eventually(|| {
        anyhow::ensure!(messages(&thalweg).len() > before + 3, "no values after the restart");
        Ok(())
    })
    .unwrap();
    let marked = messages(&thalweg)
        .iter()
        .filter(|message| message["meta"]["opcua_gap"] == "true")
        .count();
    assert!(marked > 0, "the gap is marked on the next value of each touched item");
    assert!(thalweg.metric("thalweg_opcua_gaps_total", "").unwrap() > 0.0);
    assert_sound(&thalweg, counter);
    thalweg.stop().unwrap();
}

#[test]
fn the_simulator_may_be_killed_and_restarted_in_mid_stream() {
    survives_a_restart(Kind::Simulator, &["--fast-rate", "0.25"], "ns=3;s=OpcPlc", "FastUInt1");
}

#[test]
fn asyncua_may_be_killed_and_restarted_in_mid_stream() {
    survives_a_restart(Kind::Asyncua, &["--period", "0.25"], "ns=2;s=Plant", "Counter1");
}

#[test]
fn node_opcua_may_be_killed_and_restarted_in_mid_stream() {
    survives_a_restart(Kind::NodeOpcua, &["--period", "0.25"], "ns=1;s=Plant", "Counter1");
}

#[test]
fn connections_that_are_cut_again_and_again_lose_nothing_unmarked() {
    let server = Server::start(
        Kind::Simulator,
        &["--port", "0", "--fast-rate", "0.2", "--drop-every", "3"],
    )
    .unwrap();
    let more = "    subscribeEnabled: true\n    reconnectIntervalInSeconds: 1\n    queueSize: 100\n";
    let mut thalweg = Thalweg::start(&flow(&server, "ns=3;s=OpcPlc", more)).unwrap();
    wait_for_values(&thalweg, "FastUInt1", 50);
    std::thread::sleep(Duration::from_millis(500));
    // A hole is allowed only where a gap is marked.
    let all = messages(&thalweg);
    let mine: Vec<(i64, bool)> = all
        .iter()
        .filter(|message| message["meta"]["opcua_attr_browsename"] == "FastUInt1")
        .map(|message| {
            (
                message["payload"].as_str().unwrap().parse().unwrap(),
                message["meta"]["opcua_gap"] == "true",
            )
        })
        .collect();
    for pair in mine.windows(2) {
        let step = pair[1].0 - pair[0].0;
        assert!(step == 1 || pair[1].1, "a hole without a mark between {pair:?}");
    }
    assert!(thalweg.metric("thalweg_opcua_reconnects_total", "").unwrap() >= 2.0);
    thalweg.balance().unwrap();
    thalweg.stop().unwrap();
}
