//! The OPC UA input against real servers: our simulator, asyncua (Python), node-opcua (Node.js).

use std::collections::BTreeMap;

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
    // The last line may be incomplete.
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

/// Checks the types, metadata and balance of a flow's collected values, whatever happened before.
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
}

/// Drains: every received value is in the file, except null values.
pub fn stop_and_account(thalweg: &mut Thalweg) {
    let balance = thalweg.stop().unwrap();
    let written = messages(thalweg).len() as u64;
    assert!(written > 0);
    assert_eq!(
        (balance.entered, balance.out, balance.dropped),
        (written + balance.filtered, written, 0),
        "{balance:?}"
    );
}

fn subscribes_without_holes(kind: Kind, arguments: &[&str], node: &str, counter: &str, security: &str) {
    let server = Server::start(kind, arguments).unwrap();
    let more = format!("    subscribeEnabled: true\n{security}");
    let mut thalweg = Thalweg::start(&flow(&server, node, &more)).unwrap();
    thalweg.wait_ready().unwrap();
    assert_consecutive(&wait_for_values(&thalweg, counter, 8));
    assert_sound(&thalweg, counter);
    stop_and_account(&mut thalweg);
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
    stop_and_account(&mut thalweg);
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
    stop_and_account(&mut thalweg);
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
    stop_and_account(&mut thalweg);

    // An invalid id in the list itself.
    let list = "ns=3;s=NoSuchNode\", \"ns=3;s=OpcPlc";
    let mut thalweg = Thalweg::start(&flow(&server, list, "    subscribeEnabled: true\n")).unwrap();
    assert_consecutive(&wait_for_values(&thalweg, "FastUInt2", 4));
    assert_sound(&thalweg, "FastUInt2");
    stop_and_account(&mut thalweg);
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
    stop_and_account(&mut thalweg);
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
    wait_for_values(&thalweg, "FastUInt1", 53);
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
    assert_sound(&thalweg, "FastUInt1");
    stop_and_account(&mut thalweg);
}

/// A server that restarts with its namespaces in another order: NodeIds by URI follow them, and nothing is read by an index
/// that now belongs to another namespace.
#[test]
fn a_namespace_that_moves_is_followed_to_its_new_index() {
    let arguments = ["--period", "0.25", "--nodes", "2"];
    let mut server = Server::start(Kind::Asyncua, &[&arguments[..], &["--port", "0"]].concat()).unwrap();
    let port = server.port().unwrap().to_string();
    let more = "    subscribeEnabled: true\n    reconnectIntervalInSeconds: 1\n";
    let mut thalweg = Thalweg::start(&flow(&server, "nsu=urn:thalweg:test:plant;s=Plant", more)).unwrap();
    wait_for_values(&thalweg, "Counter1", 4);
    let node_id = |thalweg: &Thalweg| newest(thalweg)["Counter1"].1["opcua_attr_nodeid"].clone();
    assert_eq!(node_id(&thalweg), "ns=2;s=Counter1");
    server.process.kill().unwrap();
    let moved = [&arguments[..], &["--port", &port, "--namespaces-before", "2"]].concat();
    let _again = Server::start(Kind::Asyncua, &moved).unwrap();
    eventually(|| {
        let now = node_id(&thalweg);
        anyhow::ensure!(now == "ns=4;s=Counter1", "{now}; {:?}", thalweg.request("/ready"));
        Ok(())
    })
    .unwrap();
    let seen = series(&thalweg, "Counter1").len();
    wait_for_values(&thalweg, "Counter1", seen + 4);
    thalweg.wait_ready().unwrap();
    assert_sound(&thalweg, "Counter1");
    // At index 2 is now a node of the same name, with a value that no counter reaches.
    assert!(series(&thalweg, "Counter1").iter().all(|value| *value < 1_000_000));
    let all = messages(&thalweg);
    let of_counter = all.iter().filter(|m| m["meta"]["opcua_attr_browsename"] == "Counter1");
    let gap = of_counter.clone().find(|m| m["meta"]["opcua_gap"] == "true").unwrap();
    assert_eq!(gap["meta"]["opcua_attr_nodeid"], "ns=4;s=Counter1");
    assert!(
        of_counter
            .clone()
            .all(|m| m["meta"]["opcua_tag_path"] == "Plant.Counters")
    );
    stop_and_account(&mut thalweg);
}

fn reconnects(thalweg: &Thalweg) -> f64 {
    thalweg.metric("thalweg_opcua_reconnects_total", "").unwrap()
}

#[test]
fn a_server_that_stops_answering_is_left_by_its_heartbeat_and_found_again() {
    let server = Server::start(
        Kind::Simulator,
        &[
            "--port",
            "0",
            "--slow-nodes",
            "0",
            "--fast-nodes",
            "2",
            "--fast-rate",
            "0.25",
        ],
    )
    .unwrap();
    let more =
        "    subscribeEnabled: true\n    useHeartbeat: true\n    reconnectIntervalInSeconds: 1\n    queueSize: 100\n";
    let mut thalweg = Thalweg::start(&flow(&server, "ns=3;s=OpcPlc", more)).unwrap();
    wait_for_values(&thalweg, "FastUInt1", 4);
    let (_, clock) =
        eventually(|| anyhow::Context::context(newest(&thalweg).remove("CurrentTime"), "no heartbeat")).unwrap();
    for (key, text) in [
        ("opcua_tag_group", "heartbeat"),
        ("opcua_tag_name", "CurrentTime"),
        ("opcua_attr_nodeid", "i=2258"),
    ] {
        assert_eq!(clock[key], text, "{clock}");
    }
    assert_eq!(reconnects(&thalweg), 0.0);
    // Neither alive nor closed: its sockets are open, and nothing arrives.
    server.process.signal("STOP").unwrap();
    eventually(|| {
        let log = thalweg.process.stdout();
        anyhow::ensure!(log.contains("neither a heartbeat nor data for 10 s"), "{log}");
        anyhow::ensure!(thalweg.request("/ready")?.0 == 503);
        Ok(())
    })
    .unwrap();
    let before = messages(&thalweg).len();
    server.process.signal("CONT").unwrap();
    thalweg.wait_ready().unwrap();
    eventually(|| {
        anyhow::ensure!(
            messages(&thalweg).len() > before + 3,
            "no values after the server went on"
        );
        Ok(())
    })
    .unwrap();
    assert!(reconnects(&thalweg) >= 1.0);
    assert_sound(&thalweg, "FastUInt1");
    stop_and_account(&mut thalweg);
}

#[test]
fn a_server_whose_clock_stands_still_is_warned_of_and_kept() {
    let server = Server::start(
        Kind::Asyncua,
        &["--port", "0", "--period", "0.25", "--nodes", "1", "--frozen-clock"],
    )
    .unwrap();
    let more = "    subscribeEnabled: true\n    useHeartbeat: true\n";
    let mut thalweg = Thalweg::start(&flow(&server, "ns=2;s=Plant", more)).unwrap();
    let warnings = |thalweg: &Thalweg| {
        let log = thalweg.process.stdout();
        log.matches("no heartbeat for 10 s though data arrives").count()
    };
    eventually(|| {
        anyhow::ensure!(warnings(&thalweg) > 0, "{}", thalweg.process.stdout());
        Ok(())
    })
    .unwrap();
    let seen = series(&thalweg, "Counter1").len();
    assert_consecutive(&wait_for_values(&thalweg, "Counter1", seen + 8));
    // Once per minute, and the connection is as good as before.
    assert_eq!(warnings(&thalweg), 1);
    assert_eq!(reconnects(&thalweg), 0.0);
    thalweg.wait_ready().unwrap();
    assert_sound(&thalweg, "Counter1");
    stop_and_account(&mut thalweg);
}
