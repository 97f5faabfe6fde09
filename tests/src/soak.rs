//! A soak test of everything that can be created and removed: each kind is created, used and removed repeatedly, and the live
//! bytes afterwards must equal those before. The kinds together must name every request of an interface, so that no request is
//! added without a soak.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;

use crate::wait::eventually_within;

/// Rounds after which caches and tables have reached their size.
const WARM_UP: u64 = 30;
/// More with `THALWEG_SOAK_ROUNDS`.
const ROUNDS: u64 = 100;
/// Allowed difference over all rounds: doubled tables, tasks that have not ended.
const SLACK_BYTES: u64 = 128 << 10;
const FREED_WITHIN: Duration = Duration::from_secs(60);
const LOOKS: usize = 10;

/// Something that can be created and removed.
pub struct Kind<S> {
    pub name: &'static str,
    /// The requests that create, use and remove it, as named in the interface's own table.
    pub requests: &'static [&'static str],
    /// Bytes that each may leave while the process runs. If not 0, documents or bounds of the interface give the reason.
    pub leaves_bytes: u64,
    /// Creates the instance of this number, uses and removes it.
    pub round: fn(&S, u64),
}

/// Panics with all kinds that leave something. `live` counts the live bytes.
#[allow(clippy::print_stdout, reason = "a long run prints its result")]
pub fn soak<S>(scene: &S, kinds: &[Kind<S>], live: impl Fn() -> u64) {
    let rounds = std::env::var("THALWEG_SOAK_ROUNDS").ok();
    let rounds = rounds.and_then(|rounds| rounds.parse().ok()).unwrap_or(ROUNDS);
    let only = std::env::var("THALWEG_SOAK_ONLY").ok();
    let mut left = Vec::new();
    for kind in kinds {
        if only.as_ref().is_some_and(|only| !kind.name.contains(only.as_str())) {
            continue;
        }
        (0..WARM_UP).for_each(|number| (kind.round)(scene, number));
        let before = at_rest(&live);
        (WARM_UP..WARM_UP + rounds).for_each(|number| (kind.round)(scene, number));
        let bound = before + SLACK_BYTES + kind.leaves_bytes * rounds;
        let mut after = 0;
        let freed = eventually_within(FREED_WITHIN, || {
            after = at_rest(&live);
            ensure!(
                after <= bound,
                "{before} bytes lived before, and {after} after {rounds} rounds"
            );
            Ok(())
        });
        println!(
            "{}: {before} bytes lived before, {after} after {rounds} rounds ({:+} each)",
            kind.name,
            (after as i64 - before as i64) / rounds.max(1) as i64
        );
        if let Err(error) = freed {
            left.push(format!("{}: {error:#}", kind.name));
        }
    }
    assert!(left.is_empty(), "something is left of:\n{}", left.join("\n"));
}

/// Ending requests and tasks hold memory for a moment.
fn at_rest(live: &impl Fn() -> u64) -> u64 {
    let looks = (0..LOOKS).map(|_| {
        std::thread::sleep(Duration::from_millis(30));
        live()
    });
    looks.min().unwrap_or_default()
}

/// Panics unless every request belongs to a kind, or creates nothing that could be removed.
pub fn covers<S>(kinds: &[Kind<S>], makes_nothing: &[&str], requests: impl IntoIterator<Item = impl Into<String>>) {
    let requests: BTreeSet<String> = requests.into_iter().map(Into::into).collect();
    let known: BTreeSet<String> = kinds
        .iter()
        .flat_map(|kind| kind.requests)
        .chain(makes_nothing)
        .map(|name| (*name).to_owned())
        .collect();
    let without: Vec<_> = requests.difference(&known).collect();
    assert!(
        without.is_empty(),
        "no soak makes, uses and removes what these requests are about; add a kind, or say that they make nothing: {without:?}"
    );
    let unknown: Vec<_> = known.difference(&requests).collect();
    assert!(unknown.is_empty(), "the interface has no such requests: {unknown:?}");
}
