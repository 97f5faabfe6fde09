//! A plant of tens of thousands of tags: how fast they are found and subscribed, what they cost while each changes once per
//! second, and how many values one core of the collector takes.
//!
//! p50 and p99 of the steady rows are from the source timestamp to the acknowledgement by the output, so the publishing
//! interval of 100 ms and the server's own delay are in them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::Effort;
use super::report::Row;
use super::under_test::{Plant, UnderTest};

const NODES: u64 = 100_000;
/// Tags of the rows `opcua_*_steady`.
const STEADY: [(&str, u64); 3] = [
    ("opcua_10k_steady", 10_000),
    ("opcua_50k_steady", 50_000),
    ("opcua_100k_steady", 100_000),
];
/// Seconds between two changes of all 100,000 nodes, for the highest rate, which is looked for upwards.
const PERIODS: [f64; 6] = [0.5, 0.2, 0.125, 0.1, 0.08, 0.066];
/// The simulator has a processor of its own, so that only the collector's is measured.
const OF_COLLECTOR: usize = 0;
const OF_SIMULATOR: usize = 1;
const NOTHING_CHANGES: &str = "86400";

/// A configuration of the collector; `mode` is how it gets values.
fn config(endpoint: &str, mode: &str) -> String {
    format!(
        "input:\n  opcua:\n    endpoint: {endpoint}\n    nodeIDs: [\"ns=3;s=OpcPlc\"]\n    {mode}\noutput:\n  drop: {{}}\n\
         metrics: {{prometheus: {{use_histogram_timing: true}}}}\n"
    )
}

const SUBSCRIBE: &str = "subscribeEnabled: true";
/// Tags that are found and read once a day.
const BROWSE: &str = "pollRate: 86400000";

pub fn run(binary: &Path, effort: Effort, wanted: impl Fn(&str) -> bool) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (name, mode, metric, value) in [
        ("browse_100k", BROWSE, "thalweg_opcua_browse_done", 1.0),
        (
            "subscribe_100k",
            SUBSCRIBE,
            "thalweg_opcua_items_monitored",
            NODES as f64,
        ),
    ] {
        if wanted(name) {
            println!("measuring {name}");
            rows.push(from_start(binary, effort, name, mode, metric, value)?);
        }
    }
    for (name, tags) in STEADY {
        if wanted(name) {
            println!("measuring {name}");
            rows.push(steady(binary, effort, name, tags)?);
        }
    }
    if wanted("opcua_max_one_core") {
        rows.push(highest(binary, effort)?);
    }
    Ok(rows)
}

fn plant(binary: &Path, processor: Option<usize>, tags: u64, period: &str) -> Result<Plant> {
    let tags = tags.to_string();
    let arguments = ["--slow-nodes", "0", "--fast-nodes", &tags, "--fast-rate", period];
    Plant::start_on(processor, binary, &arguments)
}

/// From the start of the process until all is found, or monitored: the median of several starts. One op is one node.
fn from_start(binary: &Path, effort: Effort, name: &str, mode: &str, metric: &str, value: f64) -> Result<Row> {
    let plant = plant(binary, None, NODES, NOTHING_CHANGES)?;
    let mut starts = Vec::new();
    for _ in 0..effort.windows {
        let start = Instant::now();
        let mut collector = UnderTest::start(binary, &config(&plant.endpoint, mode))?;
        collector.watch_until(metric, value, Duration::from_millis(5))?;
        starts.push((start.elapsed(), collector.costs()?));
        collector.stop()?;
    }
    starts.sort_by_key(|(took, _)| *took);
    let (took, costs) = starts.get(starts.len() / 2).context("no start was measured")?;
    let nodes = NODES as f64;
    Ok(Row {
        name: name.to_owned(),
        ops_per_second: nodes / took.as_secs_f64(),
        wall_ns_per_op: took.as_nanos() as f64 / nodes,
        cpu_ns_per_op: costs.cpu_seconds * 1e9 / nodes,
        bytes_per_op: costs.bytes / nodes,
        allocs_per_op: costs.allocations / nodes,
        ..Row::default()
    })
}

fn steady(binary: &Path, effort: Effort, name: &str, tags: u64) -> Result<Row> {
    let plant = plant(binary, None, tags, "1")?;
    let mut collector = UnderTest::start(binary, &config(&plant.endpoint, SUBSCRIBE))?;
    collector.wait_until("thalweg_opcua_items_monitored", tags as f64)?;
    // Values come in one burst per second, so a window is some of them.
    let effort = Effort {
        window_seconds: (effort.window_seconds * 2.0).max(4.0),
        ..effort
    };
    let mut row = collector.measure(name, effort)?;
    let lost = plant.fast()?.lost;
    ensure!(
        lost == 0,
        "{name}: the server lost {lost} values; the figures would mean nothing"
    );
    let share = row.ops_per_second * row.cpu_ns_per_op / 1e9;
    row.more.insert("cores".to_owned(), share.into());
    row.more
        .insert("resident_bytes".to_owned(), collector.resident_bytes()?.into());
    Ok(row)
}

/// The highest rate of which nothing is lost, of a collector that has one processor and a simulator that has another.
fn highest(binary: &Path, effort: Effort) -> Result<Row> {
    let mut best: Option<Row> = None;
    for period in PERIODS {
        let offered = NODES as f64 / period;
        println!("measuring opcua_max_one_core: {offered:.0} values/s offered");
        let plant = plant(binary, Some(OF_SIMULATOR), NODES, &period.to_string())?;
        let mut collector = UnderTest::start_on(OF_COLLECTOR, binary, &config(&plant.endpoint, SUBSCRIBE))?;
        collector.wait_until("thalweg_opcua_items_monitored", NODES as f64)?;
        std::thread::sleep(Duration::from_secs_f64(effort.warm_up_seconds));
        let before = plant.fast()?;
        let measured = collector.measure("opcua_max_one_core", effort);
        let after = plant.fast()?;
        let busy = |row: &Row| row.ops_per_second * row.cpu_ns_per_op / 1e9;
        match measured {
            Ok(row) if after.lost == before.lost && row.ops_per_second > offered * 0.98 => {
                println!(
                    "  {:.0} values/s, nothing lost, {:.2} of the core",
                    row.ops_per_second,
                    busy(&row)
                );
                best = Some(row);
            }
            Ok(row) => {
                let whose = if after.late > before.late {
                    "the simulator is late"
                } else {
                    "the collector"
                };
                println!(
                    "  {:.0} values/s of {offered:.0}, {} lost by the server; {:.2} of the core: {whose}",
                    row.ops_per_second,
                    after.lost - before.lost,
                    busy(&row)
                );
                break;
            }
            Err(error) => {
                println!("  {error:#}");
                break;
            }
        }
    }
    let Some(mut row) = best else {
        bail!("not even {:.0} values/s were held", NODES as f64 / PERIODS[0])
    };
    let cores = row.ops_per_second * row.cpu_ns_per_op / 1e9;
    row.more.insert("cores".to_owned(), cores.into());
    Ok(row)
}
