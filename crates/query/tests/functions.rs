//! Every function that a query can call, with absurd arguments, in a process that may have little memory.
//!
//! Queries come over HTTP, as they do from outside, to an engine with the share that `memory.limit: 600MiB` gives it. Whatever is
//! asked: the process lives, each query has rows or an error that says what to do, the memory of the query is given back, and the
//! memory of the process comes back. `THALWEG_SIM_SEEDS` runs more, and `THALWEG_SIM_SEED` begins with another.
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

/// Of a seed.
const CHAINS: usize = 60;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// As the program sets it.
#[unsafe(export_name = "malloc_conf")]
pub static MALLOC_CONF: &[u8] = thalweg_telemetry::alloc::JEMALLOC_SETTINGS;

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What was found by hand: one of these ended the process each.
#[test]
fn a_short_query_does_not_end_the_process() {
    Child::run("known").assert_lives();
}

/// Operators, the planner, and what writes the answer.
#[test]
fn no_plan_takes_more_memory_than_the_process_has() {
    Child::run("plans").assert_lives();
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

/// The process that is to live. It is this test, started by the others.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    let Some(role) = process::role() else { return };
    Limits::set();
    let one = |sql: &str| vec![Asked::from(sql.to_owned())];
    match role.split_once(' ') {
        Some(("seed", seed)) => process::answer(absurd::Calls::of_all(seed.parse().unwrap())),
        Some(("chains", seed)) => process::answer(vec![plans::chains(seed.parse().unwrap(), CHAINS).into_iter()]),
        // One that was told shows what it did again.
        Some(("query", sql)) => process::answer(vec![one(sql).into_iter()]),
        // From one of them on.
        Some(("plans", from)) => {
            let rest = plans::known().split_off(from.parse().unwrap());
            process::answer(vec![rest.into_iter()]);
        }
        _ if role == "plans" => process::answer(vec![plans::known().into_iter()]),
        _ => process::answer(vec![absurd::known().into_iter()]),
    }
}
