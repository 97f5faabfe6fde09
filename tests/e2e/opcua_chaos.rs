//! Faults between a plant and its collector: silent connections, slow responses, servers that return with other limits, tags
//! that turn bad. After each, every tag delivers again, and a missing value is marked on the next value of its tag.

use std::collections::BTreeMap;
use std::time::Duration;

use thalweg_tests::proxy::Proxy;
use thalweg_tests::servers::{Kind, Server};
use thalweg_tests::{Thalweg, eventually, eventually_within};

use crate::opcua::{items_add_up, messages, stop_and_account};

const PLANT: &str = "ns=3;s=OpcPlc";
/// Two groups of fast-changing counters.
const COUNTERS: [&str; 8] = [
    "--slow-nodes",
    "40",
    "--slow-rate",
    "0.5",
    "--fast-nodes",
    "60",
    "--fast-rate",
    "0.25",
];
const TAGS: usize = 100;

/// Name, value and whether it follows a gap.
const TO_FILE: &str = "\
pipeline:
  processors:
    - mapping: |
        root.payload = content().string()
        root.meta.opcua_attr_browsename = @opcua_attr_browsename
        root.meta.opcua_gap = @opcua_gap
        root.meta.opcua_attr_statuscode = @opcua_attr_statuscode
output:
  file: {path: out.jsonl}
";

fn flow(endpoint: &str, node: &str, more: &str) -> String {
    format!("input:\n  opcua:\n    endpoint: {endpoint}\n    nodeIDs: [\"{node}\"]\n{more}{TO_FILE}")
}

const SUBSCRIBED: &str =
    "    subscribeEnabled: true\n    reconnectIntervalInSeconds: 1\n    queueSize: 200\n    sessionTimeout: 6000\n";

/// The values of each counter, and whether each follows a marked gap.
fn counters(thalweg: &Thalweg) -> BTreeMap<String, Vec<(i64, bool)>> {
    let mut all: BTreeMap<String, Vec<(i64, bool)>> = BTreeMap::new();
    for message in messages(thalweg) {
        let meta = &message["meta"];
        let (name, value) = (meta["opcua_attr_browsename"].as_str(), message["payload"].as_str());
        let value = value.and_then(|value| value.parse().ok());
        if let (Some(name), Some(value)) = (name, value) {
            let after_gap = meta["opcua_gap"] == "true";
            all.entry(name.to_owned()).or_default().push((value, after_gap));
        }
    }
    all
}

/// Waits until each of this many tags has sent more values than before.
fn all_flow(thalweg: &Thalweg, tags: usize, more: usize) {
    let before = counters(thalweg);
    eventually(|| {
        let now = counters(thalweg);
        let flows = now.iter().filter(|(name, values)| {
            let had = before.get(*name).map_or(0, Vec::len);
            values.len() >= had + more
        });
        let flows = flows.count();
        anyhow::ensure!(
            flows >= tags,
            "{flows} of {tags} tags flow; {:?}",
            thalweg.request("/ready")
        );
        Ok(())
    })
    .unwrap();
}

/// No value is repeated or out of order, and none is missing without a mark. Returns the number of marked gaps. A restarted
/// server counts from its beginning again, after a mark.
fn holes_are_marked(thalweg: &Thalweg) -> usize {
    let mut marks = 0;
    for (name, values) in counters(thalweg) {
        for pair in values.windows(2) {
            let (step, marked) = (pair[1].0 - pair[0].0, pair[1].1);
            assert!(step == 1 || marked, "a hole of {name} without a mark: {pair:?}");
            marks += usize::from(marked);
        }
    }
    marks
}

fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&COUNTERS[..], more].concat()
}

#[test]
fn connections_that_fall_silent_are_left_by_each_of_several_sessions() {
    let server = Server::start(Kind::Simulator, &arguments(&["--port", "0"])).unwrap();
    let (proxy, endpoint) = Proxy::of_endpoint(&server.endpoint).unwrap();
    let more = format!("{SUBSCRIBED}    connections: 3\n");
    let mut thalweg = Thalweg::start(&flow(&endpoint, PLANT, &more)).unwrap();
    thalweg.wait_ready().unwrap();
    all_flow(&thalweg, TAGS, 3);
    for _ in 0..2 {
        let (connections, reconnects) = (proxy.connections(), reconnects(&thalweg));
        proxy.silence();
        eventually(|| {
            let again = reconnects_since(&thalweg, reconnects);
            anyhow::ensure!(again >= 3.0, "{again} of 3 sessions came back");
            Ok(())
        })
        .unwrap();
        assert!(proxy.connections() >= connections + 3);
        thalweg.wait_ready().unwrap();
        all_flow(&thalweg, TAGS, 3);
    }
    holes_are_marked(&thalweg);
    items_add_up(&thalweg);
    stop_and_account(&mut thalweg);
}

fn reconnects(thalweg: &Thalweg) -> f64 {
    thalweg.metric("thalweg_opcua_reconnects_total", "").unwrap()
}

fn reconnects_since(thalweg: &Thalweg, before: f64) -> f64 {
    reconnects(thalweg) - before
}

#[test]
fn answers_that_take_long_lose_nothing() {
    let server = Server::start(Kind::Simulator, &arguments(&["--port", "0"])).unwrap();
    let (proxy, endpoint) = Proxy::of_endpoint(&server.endpoint).unwrap();
    proxy.delay(Duration::from_millis(200));
    // The browse and the creation of all items also run over slow responses.
    let mut thalweg = Thalweg::start(&flow(&endpoint, PLANT, SUBSCRIBED)).unwrap();
    thalweg.wait_ready().unwrap();
    all_flow(&thalweg, TAGS, 2);
    proxy.delay(Duration::from_millis(1500));
    all_flow(&thalweg, TAGS, 8);
    proxy.delay(Duration::ZERO);
    all_flow(&thalweg, TAGS, 8);
    assert_eq!(holes_are_marked(&thalweg), 0, "queues of the server held it all");
    assert_eq!(reconnects(&thalweg), 0.0, "slow is not dead");
    items_add_up(&thalweg);
    stop_and_account(&mut thalweg);
}

/// Servers differ in their response to a Republish of a message that they do not have: some refuse it, some return an empty
/// one.
#[test]
fn connections_that_are_cut_again_and_again_are_got_over_with_every_server() {
    let others = ["--port", "0", "--nodes", "20", "--period", "0.25"];
    for (kind, arguments, node) in [
        (Kind::Asyncua, others.to_vec(), "ns=2;s=Plant"),
        (Kind::NodeOpcua, others.to_vec(), "ns=1;s=Plant"),
        (Kind::Simulator, arguments(&["--port", "0"]), PLANT),
    ] {
        let server = Server::start(kind, &arguments).unwrap();
        let (proxy, endpoint) = Proxy::of_endpoint(&server.endpoint).unwrap();
        let mut thalweg = Thalweg::start(&flow(&endpoint, node, SUBSCRIBED)).unwrap();
        thalweg.wait_ready().unwrap();
        all_flow(&thalweg, 20, 3);
        proxy.cut_after(Duration::from_secs(6));
        let before = reconnects(&thalweg);
        eventually(|| {
            let again = reconnects_since(&thalweg, before);
            anyhow::ensure!(
                again >= 4.0,
                "{kind:?}: {again} of 4 reconnects; {:?}",
                thalweg.request("/ready")
            );
            Ok(())
        })
        .unwrap();
        proxy.cut_no_more();
        all_flow(&thalweg, 20, 8);
        thalweg.wait_ready().unwrap();
        // node-opcua resends the present values when a session is resumed, so its counters are stopped there.
        if !matches!(kind, Kind::NodeOpcua) {
            holes_are_marked(&thalweg);
        }
        items_add_up(&thalweg);
        stop_and_account(&mut thalweg);
    }
}

#[test]
fn a_server_that_comes_back_with_lower_limits_is_asked_for_less_at_once() {
    for subscribed in [true, false] {
        let mut server = Server::start(Kind::Simulator, &arguments(&["--port", "0"])).unwrap();
        let port = server.port().unwrap().to_string();
        let polled = "    pollRate: 100\n    reconnectIntervalInSeconds: 1\n";
        let more = if subscribed { SUBSCRIBED } else { polled };
        let mut thalweg = Thalweg::start(&flow(&server.endpoint, PLANT, more)).unwrap();
        thalweg.wait_ready().unwrap();
        all_flow(&thalweg, TAGS, 3);
        let limits = [
            "--max-nodes-per-browse",
            "3",
            "--max-nodes-per-read",
            "5",
            "--max-items-per-call",
            "7",
        ];
        for limits in [&limits[..], &[]] {
            server.process.kill().unwrap();
            eventually(|| {
                anyhow::ensure!(thalweg.request("/ready")?.0 == 503, "still ready without its server");
                Ok(())
            })
            .unwrap();
            server = Server::start(Kind::Simulator, &[&arguments(&["--port", &port]), limits].concat()).unwrap();
            thalweg.wait_ready().unwrap();
            all_flow(&thalweg, TAGS, 3);
        }
        if subscribed {
            let marks = holes_are_marked(&thalweg);
            assert!(marks >= 2 * TAGS, "each restart is marked at each tag: {marks}");
        }
        items_add_up(&thalweg);
        stop_and_account(&mut thalweg);
    }
}

#[test]
fn tags_that_turn_bad_say_so_and_are_good_again() {
    let flapping = ["--port", "0", "--nodes", "6", "--period", "0.25", "--bad-every", "4"];
    let server = Server::start(Kind::NodeOpcua, &flapping).unwrap();
    for more in [
        "    subscribeEnabled: true\n    queueSize: 100\n",
        "    pollRate: 100\n",
    ] {
        let mut thalweg = Thalweg::start(&flow(&server.endpoint, "ns=1;s=Plant", more)).unwrap();
        thalweg.wait_ready().unwrap();
        // Good, bad and good again: a separate value each time.
        eventually(|| {
            let all = messages(&thalweg);
            for counter in 1..=6 {
                let name = format!("Counter{counter}");
                let of_it = all.iter().filter(|m| m["meta"]["opcua_attr_browsename"] == *name);
                let mut states: Vec<bool> = of_it
                    .map(|m| m["meta"]["opcua_attr_statuscode"].as_str().unwrap_or_default())
                    .map(|status| status.contains("StatusGood"))
                    .collect();
                states.dedup();
                anyhow::ensure!(states.len() >= 4, "{name}: {states:?}");
            }
            Ok(())
        })
        .unwrap();
        let bad = "StatusBadSensorFailure (0x808C0000)";
        let says = |m: &serde_json::Value| m["meta"]["opcua_attr_statuscode"].to_string().contains(bad);
        assert!(messages(&thalweg).iter().any(says), "no message says {bad}");
        if more.contains("subscribe") {
            assert_eq!(holes_are_marked(&thalweg), 0, "a bad value is a value");
        }
        items_add_up(&thalweg);
        stop_and_account(&mut thalweg);
    }
}

/// Many tags of a foreign server: 5,000, or as many as `THALWEG_OPCUA_FOREIGN_TAGS` says.
fn many_tags(kind: Kind, node: &str) {
    let many = std::env::var("THALWEG_OPCUA_FOREIGN_TAGS").ok();
    let many: u32 = many.and_then(|many| many.parse().ok()).unwrap_or(5_000);
    // Such a server cannot change them all more often.
    let period = (many / 2_500).max(2).to_string();
    let server = Server::start(
        kind,
        &["--port", "0", "--nodes", &many.to_string(), "--period", &period],
    )
    .unwrap();
    let more = "    subscribeEnabled: true\n    sessionTimeout: 60000\n    queueSize: 20\n";
    let mut thalweg = Thalweg::start(&flow(&server.endpoint, node, more)).unwrap();
    eventually_within(Duration::from_secs(300), || {
        let monitored = thalweg.metric("thalweg_opcua_items_monitored", "")?;
        anyhow::ensure!(
            monitored >= f64::from(many),
            "{monitored} items; {:?}",
            thalweg.request("/ready")
        );
        Ok(())
    })
    .unwrap();
    eventually_within(Duration::from_secs(300), || {
        // All values are read only when there can be enough of them.
        let out = thalweg.metric("thalweg_flow_out_total", "")?;
        anyhow::ensure!(out >= 3.0 * f64::from(many), "{out} values of {many} tags");
        let all = counters(&thalweg);
        let flows = all
            .iter()
            .filter(|(name, values)| name.starts_with("Counter") && values.len() >= 3);
        let flows = flows.count();
        anyhow::ensure!(flows == many as usize, "{flows} of {many} tags have sent three values");
        Ok(())
    })
    .unwrap();
    assert_eq!(holes_are_marked(&thalweg), 0, "nothing is missing");
    assert_eq!(reconnects(&thalweg), 0.0);
    items_add_up(&thalweg);
    stop_and_account(&mut thalweg);
}

#[test]
fn many_tags_of_asyncua() {
    many_tags(Kind::Asyncua, "ns=2;s=Plant");
}

#[test]
fn many_tags_of_node_opcua() {
    many_tags(Kind::NodeOpcua, "ns=1;s=Plant");
}
