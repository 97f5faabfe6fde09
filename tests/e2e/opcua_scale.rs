//! Plants of every size, up to a million tags below one node: all of them are found, monitored, and their values told once, in
//! bounded memory.

use std::time::{Duration, Instant};

use thalweg_tests::servers::{Kind, Server};
use thalweg_tests::{Thalweg, eventually_within};

use crate::opcua::items_add_up;

/// Far more than is needed, for machines with other things to do.
const PATIENCE: Duration = Duration::from_secs(300);
/// Of the process, with a flow and the metrics.
const RESIDENT_BYTES: f64 = 200e6;
/// On top, for each tag: its nodes, its metadata, its first value while paths are not final.
const RESIDENT_BYTES_PER_TAG: f64 = 600.0;

fn all_tags_flow(tags: u32) {
    let count = tags.to_string();
    let plant = [
        "--port",
        "0",
        "--secure",
        "false",
        "--slow-nodes",
        "0",
        "--fast-nodes",
        "0",
    ];
    let server = Server::start(Kind::Simulator, &[&plant[..], &["--wide", &count]].concat()).unwrap();
    let begun = Instant::now();
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
    eventually_within(PATIENCE, || {
        is("thalweg_opcua_browse_done", 1.0)?;
        is("thalweg_opcua_items_monitored", f64::from(tags))?;
        is("thalweg_flow_out_total", f64::from(tags))
    })
    .unwrap();
    println!("{tags} tags were found, monitored and told after {:?}", begun.elapsed());
    is("thalweg_opcua_browse_variables", f64::from(tags)).unwrap();
    is("thalweg_opcua_values_total", f64::from(tags)).unwrap();
    let resident = thalweg.metric("process_resident_memory_bytes", "").unwrap();
    let allowed = RESIDENT_BYTES + RESIDENT_BYTES_PER_TAG * f64::from(tags);
    assert!(resident < allowed, "{tags} tags take {resident} bytes");
    assert!(thalweg.get("/ready").is_ok());
    items_add_up(&thalweg);
    let balance = thalweg.stop().unwrap();
    assert_eq!(
        (balance.entered, balance.out),
        (tags.into(), tags.into()),
        "{balance:?}"
    );
}

#[test]
fn plants_around_every_power_of_ten_are_whole() {
    for power in (0..6).map(|exponent| 10_u32.pow(exponent)) {
        for tags in [power - 1, power, power + 1].into_iter().filter(|tags| *tags > 0) {
            all_tags_flow(tags);
        }
    }
}

#[test]
fn three_hundred_thousand_children_of_one_node_and_a_million() {
    for tags in [300_000, 999_999, 1_000_000] {
        all_tags_flow(tags);
    }
}
