//! `cargo xtask bench NAME [--quick] [--json FILE]`: drives the real binary and measures it from outside.
//!
//! A row is the median of several windows of one run. CPU is that of all threads of the process under test; simulators
//! and load generators are processes of their own. Allocations come from the binary's counting allocator.

mod collect;
mod queue;
mod report;
mod tags;
mod under_test;

use anyhow::{Result, bail};

/// How much to measure.
#[derive(Clone, Copy)]
pub struct Effort {
    pub windows: usize,
    pub window_seconds: f64,
    pub warm_up_seconds: f64,
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
        bail!("which benchmark? valid: collect, tags, queue")
    };
    let (mut effort, mut json) = (FULL, None);
    while let Some(word) = words.next() {
        match word {
            "--quick" => effort = QUICK,
            "--json" => match words.next() {
                Some(file) => json = Some(file),
                None => bail!("--json takes a file"),
            },
            other => bail!("unknown option {other}; valid: --quick, --json FILE"),
        }
    }
    let (rows, stages): (_, &[_]) = match name {
        "collect" => (collect::run(effort)?, &collect::STAGES),
        "tags" => (tags::run(effort)?, &tags::STAGES),
        "queue" => (queue::run(effort)?, &[]),
        other => bail!("unknown benchmark {other}; valid: collect, tags, queue"),
    };
    report::print(name, &rows);
    report::print_stages(&rows, stages);
    if let Some(file) = json {
        report::write_json(name, &rows, file)?;
    }
    Ok(())
}
