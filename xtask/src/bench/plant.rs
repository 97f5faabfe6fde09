//! A plant of tens of thousands of tags: how fast they are found and subscribed, what they cost while each changes once per
//! second, and how many values one core of the collector takes, and two.
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
const PERIODS: [f64; 8] = [1.0, 0.5, 0.2, 0.125, 0.1, 0.08, 0.066, 0.05];
/// The simulator has a processor of its own, so that only the collector's is measured.
const ONE_CORE: Highest = Highest {
    name: "opcua_max_one_core",
    connections: 1,
    of_collector: "0",
    of_simulator: Some("1"),
    slowest: 0.5,
};
/// The values of one session are decoded by one task, so two cores need several.
const TWO_CORES: Highest = Highest {
    name: "opcua_max_two_cores",
    connections: 4,
    of_collector: "0,1",
    of_simulator: None,
    slowest: 1.0,
};
const NOTHING_CHANGES: &str = "86400";

/// A search for the highest rate.
struct Highest {
    name: &'static str,
    /// OPC UA sessions, among which the tags are spread.
    connections: usize,
    /// Processors, as `taskset` names them.
    of_collector: &'static str,
    /// `None`: the others if the machine has more than two, else those of the collector.
    of_simulator: Option<&'static str>,
    /// The period with which the search begins.
    slowest: f64,
}

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
    for search in [ONE_CORE, TWO_CORES] {
        if wanted(search.name) {
            rows.push(highest(binary, effort, &search)?);
        }
    }
    Ok(rows)
}

fn plant(binary: &Path, processors: Option<&str>, tags: u64, period: &str) -> Result<Plant> {
    let tags = tags.to_string();
    let arguments = ["--slow-nodes", "0", "--fast-nodes", &tags, "--fast-rate", period];
    Plant::start_on(processors, binary, &arguments)
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

/// Values of one tag that wait in the server: what comes in one publishing interval, and some seconds of patience.
const QUEUED: usize = 100;

impl Highest {
    fn config(&self, endpoint: &str) -> String {
        let mode = format!(
            "{SUBSCRIBE}\n    queueSize: {QUEUED}\n    connections: {}",
            self.connections
        );
        format!("{}{}", config(endpoint, &mode), super::collect::static_script())
    }

    /// The simulator's processors, and whether the collector has to share its own with it.
    fn of_simulator(&self, cores: usize) -> (String, bool) {
        match self.of_simulator {
            Some(own) => (own.to_owned(), false),
            None if cores > 2 => (format!("2-{}", cores - 1), false),
            None => (self.of_collector.to_owned(), true),
        }
    }
}

/// The highest rate of which nothing is lost, through a script on metadata that does not change. Where the simulator shares the collector's processors, this is what the machine
/// carries with both of them: the rate is bounded by the simulator too, and `simulator_cores` is what it took away. The
/// collector's CPU time per value holds for itself alone, at that rate and with caches that are shared.
fn highest(binary: &Path, effort: Effort, search: &Highest) -> Result<Row> {
    let cores = std::thread::available_parallelism()?.get();
    let (of_simulator, is_shared) = search.of_simulator(cores);
    let mut best: Option<Row> = None;
    for period in PERIODS.into_iter().filter(|period| *period <= search.slowest) {
        let offered = NODES as f64 / period;
        println!("measuring {}: {offered:.0} values/s offered", search.name);
        let plant = plant(binary, Some(&of_simulator), NODES, &period.to_string())?;
        let collector = UnderTest::start_on(search.of_collector, binary, &search.config(&plant.endpoint))?;
        match at_rate(&plant, collector, search.name, effort, offered) {
            Ok(Some(row)) => best = Some(row),
            Ok(None) => break,
            Err(error) => {
                println!("  {error:#}");
                break;
            }
        }
    }
    let Some(mut row) = best else {
        let slowest = NODES as f64 / search.slowest;
        bail!("{}: not even {slowest:.0} values/s were held", search.name)
    };
    row.more.insert("connections".to_owned(), search.connections.into());
    row.more.insert("simulator_shares_cores".to_owned(), is_shared.into());
    Ok(row)
}

/// What a rate costs; `None` if it is not held, and whose fault that is has been told.
fn at_rate(plant: &Plant, mut collector: UnderTest, name: &str, effort: Effort, offered: f64) -> Result<Option<Row>> {
    collector.wait_until("thalweg_opcua_items_monitored", NODES as f64)?;
    std::thread::sleep(Duration::from_secs_f64(effort.warm_up_seconds));
    let (before, used, start) = (plant.fast()?, plant.cpu_seconds()?, Instant::now());
    let mut row = collector.measure(name, effort)?;
    let of_simulator = (plant.cpu_seconds()? - used) / start.elapsed().as_secs_f64();
    let after = plant.fast()?;
    let cores = row.ops_per_second * row.cpu_ns_per_op / 1e9;
    let lost = after.lost - before.lost;
    let rate = row.ops_per_second;
    println!(
        "  {rate:.0} values/s, {lost} lost by the server; the collector took {cores:.2} cores, the simulator {of_simulator:.2}"
    );
    if lost > 0 || rate <= offered * 0.98 {
        let is_late = after.late > before.late;
        println!(
            "  not held: {}",
            if is_late {
                "the simulator is late"
            } else {
                "the collector"
            }
        );
        return Ok(None);
    }
    row.more.insert("cores".to_owned(), cores.into());
    row.more.insert("simulator_cores".to_owned(), of_simulator.into());
    Ok(Some(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulator_shares_the_cores_only_where_there_are_no_others() {
        assert_eq!(ONE_CORE.of_simulator(2), ("1".to_owned(), false));
        assert_eq!(TWO_CORES.of_simulator(2), ("0,1".to_owned(), true));
        assert_eq!(TWO_CORES.of_simulator(8), ("2-7".to_owned(), false));
    }
}
