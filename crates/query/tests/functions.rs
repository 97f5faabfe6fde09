//! Runs every function that a query can call with absurd arguments, in a process with limited memory.
//!
//! Queries come over HTTP to an engine with the share that `memory.limit: 600MiB` gives it. For every query, the
//! process survives, the answer is rows or an error that names a remedy, and the memory of the query and of the process
//! is released. `THALWEG_SIM_SEEDS` runs more seeds, and `THALWEG_SIM_SEED` sets the first. `THALWEG_SQL_UNIONS` sets how many
//! UNION the longest query has.
#![allow(clippy::unwrap_used)]

#[path = "functions/absurd.rs"]
mod absurd;
#[path = "functions/asked.rs"]
mod asked;
#[path = "functions/memory.rs"]
mod memory;
#[path = "functions/plans.rs"]
mod plans;
#[path = "functions/process.rs"]
mod process;

use asked::Asked;
use process::{Child, Limits};

/// For each seed.
const CHAINS: usize = 30;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The settings of the thalweg binary.
#[unsafe(export_name = "malloc_conf")]
pub static MALLOC_CONF: &[u8] = thalweg_telemetry::alloc::JEMALLOC_SETTINGS;

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Queries found by hand, each of which once ended the process.
#[test]
fn a_short_query_does_not_end_the_process() {
    Child::run("known").assert_lives();
}

/// Operators, the planner, and the response writer.
#[test]
fn no_plan_takes_more_memory_than_the_process_has() {
    Child::run("plans").assert_lives();
    // Each in a process of its own, with which its planning ends.
    for n in 0..plans::planned_for_long(1).len() {
        Child::run(&format!("long {n}")).assert_lives();
    }
    let (first, seeds) = (number("THALWEG_SIM_SEED", 1), number("THALWEG_SIM_SEEDS", 1));
    for seed in first..first + seeds {
        Child::run(&format!("chains {seed}")).assert_lives();
    }
}

#[test]
fn no_function_takes_more_memory_than_a_query_has() {
    let (first, seeds) = (number("THALWEG_SIM_SEED", 1), number("THALWEG_SIM_SEEDS", 1));
    for seed in first..first + seeds {
        Child::run(&format!("seed {seed}")).assert_lives();
    }
}

/// The process under test. The other tests start it.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    let Some(role) = process::role() else { return };
    Limits::set();
    let one = |sql: &str| vec![Asked::from(sql.to_owned())];
    match role.split_once(' ') {
        Some(("seed", seed)) => process::answer(absurd::Calls::of_all(seed.parse().unwrap())),
        Some(("chains", seed)) => process::answer(vec![plans::chains(seed.parse().unwrap(), CHAINS).into_iter()]),
        // Repeats a query that was reported.
        Some(("query", sql)) => process::answer(vec![one(sql).into_iter()]),
        // Runs from this query on.
        Some(("plans", from)) => {
            let rest = plans::known().split_off(from.parse().unwrap());
            process::answer(vec![rest.into_iter()]);
        }
        Some(("long", n)) => {
            let all = plans::planned_for_long(number("THALWEG_SQL_UNIONS", 2_000) as usize);
            let one = all.into_iter().nth(n.parse().unwrap());
            process::answer(vec![one.into_iter().collect::<Vec<_>>().into_iter()]);
        }
        _ if role == "plans" => process::answer(vec![plans::known().into_iter()]),
        _ => process::answer(vec![absurd::known().into_iter()]),
    }
}
