//! A soak of what can be made and removed: each kind is made, used and removed again and again, and as many bytes live afterwards as
//! before. The kinds together name every request of an interface, so that none is added without its soak.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;

use crate::wait::eventually_within;

/// Caches and tables of the allocator's users are as large as they become.
const WARM_UP: u64 = 30;
/// More with `THALWEG_SOAK_ROUNDS`.
const ROUNDS: u64 = 100;
/// What all rounds together may differ by: tables that double, tasks that have not ended.
const SLACK_BYTES: u64 = 128 << 10;
const FREED_WITHIN: Duration = Duration::from_secs(60);
const LOOKS: usize = 10;

/// Something that can be made and removed.
pub struct Kind<S> {
    pub name: &'static str,
    /// The requests by which it is made, used and removed, as the interface's own table names them.
    pub requests: &'static [&'static str],
    /// Bytes that each may leave for as long as the process runs. Not 0: documents or bounds of the interface say why.
    pub leaves_bytes: u64,
    /// Makes the one of this number, uses and removes it.
    pub round: fn(&S, u64),
}

/// Panics with all kinds of which something is left. `live` counts the bytes that live.
#[allow(clippy::print_stdout, reason = "what a long run came to is to be read")]
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

/// Requests and tasks that are ending hold something for a moment.
fn at_rest(live: &impl Fn() -> u64) -> u64 {
    let looks = (0..LOOKS).map(|_| {
        std::thread::sleep(Duration::from_millis(30));
        live()
    });
    looks.min().unwrap_or_default()
}

/// Panics unless every request is one of a kind, or makes nothing that could be removed.
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
