//! Plants of every size, up to a million tags, below one node or many levels deep: all tags are found, monitored, and their
//! values delivered once, in bounded memory. `THALWEG_OPCUA_TAGS=1000000` has larger plants, too.

use std::time::Duration;

use thalweg_tests::servers::{Kind, Server};
use thalweg_tests::{Thalweg, eventually_within};

use crate::opcua::items_add_up;

/// Far more than needed, for busy machines.
const PATIENCE: Duration = Duration::from_secs(300);
/// Base memory of the process, with a flow and the metrics.
const RESIDENT_BYTES: f64 = 200e6;
/// In addition for each tag: its nodes, its metadata, its first value while paths are not final.
const RESIDENT_BYTES_PER_TAG: f64 = 600.0;

/// Tags at the end of many levels, and beside the largest plant others of about its size: `THALWEG_OPCUA_TAGS=1000000`.
fn tags_of_large_plants() -> Option<u32> {
    std::env::var("THALWEG_OPCUA_TAGS").ok()?.parse().ok()
}

/// That many children of one node.
fn all_children_flow(tags: u32) -> Progress {
    all_tags_flow(tags, &["--fast-nodes", "0", "--wide", &tags.to_string()])
}

/// The number of found tags in the metrics, one sample after another.
struct Progress {
    found: Vec<f64>,
    tags: u32,
}

impl Progress {
    fn was_seen(&self) {
        assert!(self.found.is_sorted(), "{:?}", self.found);
        let on_the_way = |found: &f64| 0.0 < *found && *found < f64::from(self.tags);
        assert!(self.found.iter().any(on_the_way), "{:?}", self.found);
    }
}

/// `plant`: options of the simulator that create this many tags.
fn all_tags_flow(tags: u32, plant: &[&str]) -> Progress {
    let common = ["--port", "0", "--secure", "false", "--slow-nodes", "0"];
    let server = Server::start(Kind::Simulator, &[&common[..], plant].concat()).unwrap();
    let mut thalweg = Thalweg::start(&format!(
        "input:\n  opcua:\n    endpoint: {}\n    nodeIDs: [\"ns=3;s=OpcPlc\"]\n    subscribeEnabled: true\n\
         output:\n  drop: {{}}\n",
        server.endpoint
    ))
    .unwrap();
    let is = |name: &str, expected: f64| -> anyhow::Result<()> {
        let value = thalweg.metric(name, "")?;
        anyhow::ensure!(
            value == expected,
            "{name} is {value} and not {expected}; {:?}",
            thalweg.request("/ready")
        );
        Ok(())
    };
    let mut found = Vec::new();
    eventually_within(PATIENCE, || {
        found.push(thalweg.metric("thalweg_opcua_browse_variables", "")?);
        is("thalweg_opcua_browse_done", 1.0)?;
        is("thalweg_opcua_items_monitored", f64::from(tags))?;
        is("thalweg_flow_out_total", f64::from(tags))
    })
    .unwrap();
    is("thalweg_opcua_browse_variables", f64::from(tags)).unwrap();
    is("thalweg_opcua_values_total", f64::from(tags)).unwrap();
    let resident = thalweg.metric("process_resident_memory_bytes", "").unwrap();
    let allowed = RESIDENT_BYTES + RESIDENT_BYTES_PER_TAG * f64::from(tags);
    assert!(resident < allowed, "{tags} tags take {resident} bytes");
    // The last values can be here before the answer that makes the input ready.
    eventually_within(PATIENCE, || thalweg.get("/ready")).unwrap();
    items_add_up(&thalweg);
    let balance = thalweg.stop().unwrap();
    assert_eq!(
        (balance.entered, balance.out),
        (tags.into(), tags.into()),
        "{balance:?}"
    );
    Progress { found, tags }
}

#[test]
fn plants_around_every_power_of_ten_are_whole() {
    for power in (0..6).map(|exponent| 10_u32.pow(exponent)) {
        for tags in [power - 1, power, power + 1].into_iter().filter(|tags| *tags > 0) {
            all_children_flow(tags);
        }
    }
}

#[test]
fn a_million_children_of_one_node() {
    if let Some(tags) = tags_of_large_plants() {
        all_children_flow(300_000);
        all_children_flow(tags - 1).was_seen();
    }
    all_children_flow(1_000_000).was_seen();
}

#[test]
fn what_lies_deeper_than_is_browsed_is_told() {
    let common = ["--port", "0", "--secure", "false", "--slow-nodes", "0"];
    let plant = ["--fast-nodes", "100", "--fast-rate", "86400", "--depth", "12"];
    let server = Server::start(Kind::Simulator, &[&common[..], &plant].concat()).unwrap();
    for (depth, tags, is_told) in [(5, 0.0, true), (25, 100.0, false)] {
        let mut thalweg = Thalweg::start(&format!(
            "input:\n  opcua:\n    endpoint: {}\n    nodeIDs: [\"ns=3;s=OpcPlc\"]\n    subscribeEnabled: true\n    \
             browse: {{maxDepth: {depth}}}\noutput:\n  drop: {{}}\n",
            server.endpoint
        ))
        .unwrap();
        eventually_within(PATIENCE, || {
            anyhow::ensure!(thalweg.metric("thalweg_opcua_browse_done", "")? == 1.0);
            Ok(())
        })
        .unwrap();
        assert_eq!(thalweg.metric("thalweg_opcua_browse_variables", "").unwrap(), tags);
        let log = thalweg.process.stdout();
        assert_eq!(log.contains("raise browse.maxDepth to browse them"), is_told, "{log}");
        thalweg.stop().unwrap();
    }
}

#[test]
fn many_tags_at_the_end_of_many_levels() {
    let tags = tags_of_large_plants().unwrap_or(200_000);
    // All of them change once, at the start.
    let plant = [
        "--fast-nodes",
        &tags.to_string(),
        "--fast-rate",
        "86400",
        "--depth",
        "12",
    ];
    let progress = all_tags_flow(tags, &plant);
    if tags >= 1_000_000 {
        progress.was_seen();
    }
}
