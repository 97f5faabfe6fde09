//! A plant of tens of thousands of tags: the time to find and subscribe them, their cost at one change per second, and the
//! number of values that one core of the collector processes, and two.
//!
//! p50 and p99 of the steady rows are measured from the source timestamp to the acknowledgement by the output, so they include
//! the publishing interval of 100 ms and the server's own delay.

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
/// Seconds between two changes of all 100,000 nodes; the highest rate is searched upwards.
const PERIODS: [f64; 8] = [1.0, 0.5, 0.2, 0.125, 0.1, 0.08, 0.066, 0.05];
/// Two sessions, because the server's side of one saturates before the collector's, and waits for a lock.
const ONE_CORE: Highest = Highest {
    name: "opcua_max_one_core",
    connections: 2,
    cores: 1,
    slowest: 0.5,
};
/// The values of one session are decoded by one task, so two cores need several.
const TWO_CORES: Highest = Highest {
    name: "opcua_max_two_cores",
    connections: 4,
    cores: 2,
    slowest: 0.5,
};
const NOTHING_CHANGES: &str = "86400";

const FULL_RATE_PERIOD: &str = "0.1";

/// A search for the highest rate.
struct Highest {
    name: &'static str,
    /// OPC UA sessions, over which the tags are spread.
    connections: usize,
    /// CPUs of the collector; the first ones of the machine.
    cores: usize,
    /// The period at which the search begins.
    slowest: f64,
}

/// A configuration of the collector; `mode` is the way it gets values.
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

fn plant(binary: &Path, tags: u64, period: &str) -> Result<Plant> {
    let tags = tags.to_string();
    Plant::start(
        binary,
        &["--slow-nodes", "0", "--fast-nodes", &tags, "--fast-rate", period],
    )
}

/// A plant whose values start to change on command, on some processors. Finding tags while a million values per second change
/// is a different measurement from collecting them.
/// another matter than to take them.
fn held_plant(binary: &Path, processors: &str, period: &str) -> Result<Plant> {
    let tags = NODES.to_string();
    let arguments = [
        "--slow-nodes",
        "0",
        "--fast-nodes",
        &tags,
        "--fast-rate",
        period,
        "--hold",
    ];
    Plant::start_on(Some(processors), binary, &arguments)
}

/// From the start of the process until all tags are found, or monitored: the median of several starts. One op is one node.
fn from_start(binary: &Path, effort: Effort, name: &str, mode: &str, metric: &str, value: f64) -> Result<Row> {
    let plant = plant(binary, NODES, NOTHING_CHANGES)?;
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
    let plant = plant(binary, tags, "1")?;
    let mut collector = UnderTest::start(binary, &config(&plant.endpoint, SUBSCRIBE))?;
    collector.wait_until("thalweg_opcua_items_monitored", tags as f64)?;
    // Values come in one burst per second, so a window contains several bursts.
    let effort = Effort {
        window_seconds: (effort.window_seconds * 2.0).max(4.0),
        ..effort
    };
    let mut row = collector.measure(name, effort)?;
    let lost = plant.fast()?.lost;
    ensure!(
        lost == 0,
        "{name}: the server lost {lost} values; the result would be meaningless"
    );
    let share = row.ops_per_second * row.cpu_ns_per_op / 1e9;
    row.more.insert("cores".to_owned(), share.into());
    row.more
        .insert("resident_bytes".to_owned(), collector.resident_bytes()?.into());
    Ok(row)
}

/// Values of one tag that wait in the server: those of one publishing interval, plus some seconds of slack.
const QUEUED: usize = 100;

impl Highest {
    fn config(&self, endpoint: &str) -> String {
        let mode = format!(
            "{SUBSCRIBE}\n    queueSize: {QUEUED}\n    connections: {}",
            self.connections
        );
        format!("{}{}", config(endpoint, &mode), super::collect::static_script())
    }

    /// The processors of the simulator, as named by `taskset`, and whether they include the collector's: first the others, if
    /// there are any, and then all.
    fn of_simulator(&self, of_machine: usize) -> Vec<(String, bool)> {
        let last = of_machine.saturating_sub(1);
        let others = (self.cores < of_machine).then(|| (format!("{}-{last}", self.cores), false));
        others.into_iter().chain([(format!("0-{last}"), true)]).collect()
    }
}

/// The highest rate without loss, through a script on constant metadata. The simulator needs more CPU per value than the
/// collector, and on a small machine it saturates first; it may then use the collector's processors as well, so that the rate
/// is a lower bound for the collector's cores. The collector's CPU time per value is measured separately, with shared caches.
fn highest(binary: &Path, effort: Effort, search: &Highest) -> Result<Row> {
    let of_machine = std::thread::available_parallelism()?.get();
    let mut places = search.of_simulator(of_machine).into_iter().peekable();
    let mut best: Option<Row> = None;
    let mut periods = PERIODS
        .into_iter()
        .filter(|period| *period <= search.slowest)
        .peekable();
    while let (Some(period), Some((of_simulator, is_shared))) = (periods.peek(), places.peek()) {
        let offered = NODES as f64 / period;
        println!(
            "measuring {}: {offered:.0} values/s offered, the simulator on processors {of_simulator}",
            search.name
        );
        let held = held(binary, effort, search, of_simulator, *period).unwrap_or_else(|error| {
            println!("  {error:#}");
            None
        });
        match held {
            Some(mut row) => {
                row.more
                    .insert("simulator_shares_cores".to_owned(), (*is_shared).into());
                best = Some(row);
                periods.next();
            }
            None => drop(places.next()),
        }
    }
    let Some(mut row) = best else {
        let slowest = NODES as f64 / search.slowest;
        bail!("{}: not even {slowest:.0} values/s were sustained", search.name)
    };
    row.more.insert("connections".to_owned(), search.connections.into());
    Ok(row)
}

/// A plant with 1,000,000 changes per second, and a collector on one core that subscribes to them.
pub fn full_rate(binary: &Path) -> Result<(Plant, UnderTest)> {
    let of_machine = std::thread::available_parallelism()?.get();
    let places = ONE_CORE.of_simulator(of_machine);
    let (of_simulator, _) = places.last().context("no processors are left for the simulator")?;
    let plant = held_plant(binary, of_simulator, FULL_RATE_PERIOD)?;
    let mut collector = UnderTest::start_on("0", binary, &ONE_CORE.config(&plant.endpoint))?;
    flow(&plant, &mut collector)?;
    Ok((plant, collector))
}

/// Starts the value changes when all tags are found and monitored.
fn flow(plant: &Plant, collector: &mut UnderTest) -> Result<()> {
    collector.wait_until("thalweg_opcua_items_monitored", NODES as f64)?;
    collector.wait_until("thalweg_opcua_browse_done", 1.0)?;
    plant.let_go()
}

fn held(binary: &Path, effort: Effort, search: &Highest, of_simulator: &str, period: f64) -> Result<Option<Row>> {
    let plant = held_plant(binary, of_simulator, &period.to_string())?;
    let of_collector = format!("0-{}", search.cores - 1);
    let collector = UnderTest::start_on(&of_collector, binary, &search.config(&plant.endpoint))?;
    at_rate(&plant, collector, search.name, effort, NODES as f64 / period)
}

/// The cost of a rate; `None` if it is not sustained, after reporting which side is the limit.
fn at_rate(plant: &Plant, mut collector: UnderTest, name: &str, effort: Effort, offered: f64) -> Result<Option<Row>> {
    flow(plant, &mut collector)?;
    std::thread::sleep(Duration::from_secs_f64(effort.warm_up_seconds));
    let (before, used, start) = (plant.fast()?, plant.cpu_seconds()?, Instant::now());
    let mut row = collector.measure(name, effort)?;
    let of_simulator = (plant.cpu_seconds()? - used) / start.elapsed().as_secs_f64();
    let after = plant.fast()?;
    let cores = row.ops_per_second * row.cpu_ns_per_op / 1e9;
    let lost = after.lost - before.lost;
    let rate = row.ops_per_second;
    println!(
        "  {rate:.0} values/s, {lost} lost by the server; the collector used {cores:.2} cores, the simulator {of_simulator:.2}"
    );
    if lost > 0 || rate <= offered * 0.98 {
        let is_late = after.late > before.late;
        println!(
            "  not sustained: {}",
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
    fn the_simulator_has_the_other_cores_and_then_all() {
        let places = |search: Highest, of_machine| search.of_simulator(of_machine);
        let of = |text: &str, is_shared| (text.to_owned(), is_shared);
        assert_eq!(places(ONE_CORE, 2), [of("1-1", false), of("0-1", true)]);
        assert_eq!(places(TWO_CORES, 2), [of("0-1", true)]);
        assert_eq!(places(TWO_CORES, 8), [of("2-7", false), of("0-7", true)]);
    }
}
