//! The mass balances of the flows: every message came out, was dropped with a reason, or is in flight; every published value of
//! the plant is in the lake.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::ledger::Account;
use super::{Soak, otlp};
use crate::bench::under_test::{Plant, UnderTest};

const EQUAL_WITHIN: Duration = Duration::from_secs(60);
const COMMITTED_WITHIN: Duration = Duration::from_secs(60);

/// As reported by the process.
#[derive(Clone, Copy, Debug)]
struct Balance {
    entered: u64,
    out: u64,
    filtered: u64,
    dropped: u64,
    in_flight: u64,
}

/// Called when everything else has ended; stops the plant.
pub fn close(soak: &Soak, server: &UnderTest, plant: Plant) -> Vec<Account> {
    let (plant, scripts) = (of_plant(soak, server, plant), of_scripts(soak, server));
    let failed = |name: &str, error: anyhow::Error| Account {
        name: name.to_owned(),
        acknowledged: 0,
        came: 0,
        missing: 1,
        note: format!("{error:#}"),
    };
    vec![
        plant.unwrap_or_else(|error| failed("tags", error)),
        scripts.unwrap_or_else(|error| failed("scripts", error)),
    ]
}

fn of_plant(soak: &Soak, server: &UnderTest, plant: Plant) -> Result<Account> {
    // A moment with nothing in flight.
    let until = Instant::now() + EQUAL_WITHIN;
    let published = loop {
        let (changes, balance) = (plant.changes()?, balance(soak, "plant")?);
        ensure!(changes.lost == 0, "the plant itself lost {} values", changes.lost);
        ensure!(balance.dropped == 0, "values were dropped: {balance:?}");
        if changes.pending == 0 && changes.published == balance.out {
            break changes.published;
        }
        ensure!(
            Instant::now() < until,
            "{} values were published, and the flow has {balance:?}",
            changes.published
        );
        std::thread::sleep(Duration::from_millis(20));
    };
    drop(plant);
    std::thread::sleep(Duration::from_secs(2));
    let out = balance(soak, "plant")?.out;
    ensure!(
        out >= published,
        "{published} values were published, but only {out} came out"
    );
    let rows = otlp::rows_within(server, "tags", out, Instant::now() + COMMITTED_WITHIN)?;
    ensure!(rows <= out, "{rows} rows of {out} values");
    Ok(Account {
        name: "tags".to_owned(),
        acknowledged: out,
        came: rows,
        missing: out.saturating_sub(rows),
        note: format!("{published} were published and acknowledged at one moment; values and rows"),
    })
}

/// Calls that time out are dropped, and nothing else is.
fn of_scripts(soak: &Soak, server: &UnderTest) -> Result<Account> {
    // A call that times out between the two reads is in the second one only.
    let until = Instant::now() + EQUAL_WITHIN;
    let (balance, timeouts) = loop {
        let (balance, timeouts) = (
            balance(soak, "scripts")?,
            server.total("thalweg_script_timeouts_total")? as u64,
        );
        if balance.dropped == timeouts || Instant::now() > until {
            break (balance, timeouts);
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    ensure!(timeouts > 0, "no script timed out: {balance:?}");
    Ok(Account {
        name: "scripts".to_owned(),
        acknowledged: balance.entered,
        came: balance.out + balance.in_flight + balance.dropped,
        missing: balance.dropped.abs_diff(timeouts),
        note: format!("{timeouts} calls timed out, {} messages were dropped", balance.dropped),
    })
}

/// Returns the balance of one flow after checking that it adds up.
fn balance(soak: &Soak, flow: &str) -> Result<Balance> {
    let answer = soak.client().ask("GET", "/api/v1/status", "")?;
    let flows = answer.json["flows"].as_array().context("no flows in the status")?;
    let found = flows.iter().find(|one| one["name"] == flow);
    let told: &Value = &found.with_context(|| format!("no flow {flow}"))?["balance"];
    let number = |name: &str| told[name].as_u64().with_context(|| format!("no {name} in {told}"));
    let balance = Balance {
        entered: number("in")?,
        out: number("out")?,
        filtered: number("filtered")?,
        dropped: number("dropped")?,
        in_flight: number("in_flight")?,
    };
    let fate = balance.out + balance.filtered + balance.dropped + balance.in_flight;
    ensure!(balance.entered == fate, "flow {flow} does not add up: {balance:?}");
    Ok(balance)
}
