//! `cargo xtask bench NAME [--quick] [--json FILE] [--only WORD] [--input FILE]
//! [--steady [--minutes N]] [--cooked [--rows N]]`: drives the real binary and measures it from outside.
//!
//! A row is the median of several windows of one run. CPU is that of all threads of the process under test; simulators and load
//! generators are separate processes. Allocations come from the binary's counting allocator.

mod collect;
mod cooked;
mod driver;
#[path = "../../../crates/log/benches/support/environment.rs"]
pub(crate) mod environment;
mod events;
mod events_scale;
pub(crate) mod export;
#[allow(dead_code, reason = "the benchmark of the crate uses the rest")]
#[path = "../../../crates/otlp/benches/lake/generator.rs"]
pub(crate) mod generator;
pub(crate) mod lake;
mod otlp;
mod plant;
mod queue;
mod report;
mod steady;
mod tags;
pub(crate) mod under_test;

use std::path::Path;

use anyhow::{Result, bail};
use report::{Row, Stage};

const BENCHMARKS: &str = "collect, tags, queue, events, events-scale, lake";

/// Size of the measurement.
#[derive(Clone, Copy)]
pub struct Effort {
    pub windows: usize,
    pub window_seconds: f64,
    pub warm_up_seconds: f64,
}

impl Effort {
    /// Of all windows.
    pub fn seconds(&self) -> f64 {
        self.window_seconds * self.windows as f64
    }

    pub fn is_quick(&self) -> bool {
        self.windows < FULL.windows
    }
}

const QUICK: Effort = Effort {
    windows: 3,
    window_seconds: 1.0,
    warm_up_seconds: 1.0,
};
const FULL: Effort = Effort {
    windows: 9,
    window_seconds: 2.0,
    warm_up_seconds: 5.0,
};

pub fn run(arguments: &[&str]) -> Result<()> {
    let mut words = arguments.iter().copied();
    let Some(name) = words.next() else {
        bail!("which benchmark? valid: {BENCHMARKS}")
    };
    let (mut effort, mut json, mut only, mut input) = (FULL, None, None, None);
    // For a long run.
    let (mut is_cooked, mut cooked_rows) = (false, 100_000_000);
    let (mut is_steady, mut minutes) = (false, 10);
    while let Some(word) = words.next() {
        match word {
            "--quick" => effort = QUICK,
            "--json" => match words.next() {
                Some(file) => json = Some(file),
                None => bail!("--json takes a file"),
            },
            "--input" if name == "lake" => match words.next() {
                Some(file) => input = Some(file),
                None => bail!("--input takes a file of OTLP requests"),
            },
            "--cooked" if name == "lake" => is_cooked = true,
            "--rows" if name == "lake" => match words.next().map(str::parse) {
                Some(Ok(rows)) => cooked_rows = rows,
                _ => bail!("--rows takes the number of logs that --cooked sends"),
            },
            "--steady" if name == "collect" => is_steady = true,
            "--minutes" if name == "collect" => match words.next().map(str::parse) {
                Some(Ok(count)) => minutes = count,
                _ => bail!("--minutes takes the duration of each run of --steady"),
            },
            "--only" if matches!(name, "collect" | "queue" | "events" | "lake") => match words.next() {
                Some(word) => only = Some(word),
                None => bail!("--only takes a part of row names"),
            },
            other => bail!(
                "unknown option {other}; valid: --quick, --json FILE, of collect, queue, events and lake --only WORD, of collect --steady, \
                 --minutes N, of lake --input FILE, --cooked, --rows N"
            ),
        }
    }
    // Data folder of the binary under test.
    let mut folder = std::env::temp_dir();
    let rows = match name {
        "collect" if is_steady => {
            folder = environment::bench_folder();
            let rows = steady::run(minutes, only)?;
            report::print(name, &rows, &folder);
            rows
        }
        "collect" => staged(name, collect::run(effort, only)?, &collect::STAGES, &folder),
        "tags" => staged(name, tags::run(effort)?, &tags::STAGES, &folder),
        "queue" => {
            folder = environment::bench_folder();
            queue::run(effort, only)?
        }
        "events" => {
            folder = environment::bench_folder();
            events::run(effort, only)?
        }
        "lake" if is_cooked => {
            folder = environment::bench_folder();
            let row = cooked::run(cooked_rows)?;
            report::print(name, std::slice::from_ref(&row), &folder);
            vec![row]
        }
        "lake" => {
            folder = environment::bench_folder();
            lake::run(effort, only, input)?
        }
        "events-scale" => {
            folder = environment::bench_folder();
            events_scale::run(effort)?
        }
        other => bail!("unknown benchmark {other}; valid: {BENCHMARKS}"),
    };
    if let Some(file) = json {
        report::write_json(name, &rows, &folder, file)?;
    }
    steady::judge(&rows)
}

fn staged(name: &str, rows: Vec<Row>, stages: &[Stage], folder: &Path) -> Vec<Row> {
    report::print(name, &rows, folder);
    report::print_stages(&rows, stages);
    rows
}
