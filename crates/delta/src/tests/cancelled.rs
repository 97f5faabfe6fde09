//! Interrupts refreshes: the future is dropped at every await, the store fails at any call, or a commit is not
//! supported. The snapshot must then be unchanged, and the next refresh must make it equal to a fresh load.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::store::flaky::{Faults, Flaky, left_after};

/// A table in memory, with commits that the snapshot does not have yet.
struct History {
    _scratch: tempfile::TempDir,
    store: Flaky,
    log: DeltaLog,
    before: Snapshot,
}

/// The next number of a pseudo-random sequence.
fn next(random: &mut u64, below: u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random % below
}

/// Random actions: files come and go, columns are added, transactions advance.
fn random_commit(random: &mut u64, version: i64, columns: &mut TableSchema) -> Vec<Action> {
    let mut actions = Vec::new();
    if next(random, 4) == 0 {
        columns
            .columns
            .push(TableColumn::new(&format!("c{version}"), ColumnType::Long));
        actions.push(Action::Metadata(new_metadata(columns, &["date"], &[], version)));
    }
    for _ in 0..next(random, 4) {
        let name = format!("f{}", next(random, 8));
        actions.push(match next(random, 3) {
            0 => Action::Remove(Remove {
                path: format!("date=2031-05-06/{name}"),
                data_change: true,
                deletion_timestamp: None,
            }),
            _ => add(&name, 1 + next(random, 100)),
        });
    }
    actions.push(Action::Txn(actions::Txn {
        app_id: format!("a{}", next(random, 2)),
        version,
        last_updated: None,
    }));
    actions
}

async fn history(seed: u64) -> History {
    let scratch = tempfile::tempdir().unwrap();
    let store = Flaky::new(seed);
    let log = log_on(&store, scratch.path());
    let (mut random, mut columns) = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, schema());
    let metadata = new_metadata(&columns, &["date"], &[], 7);
    log.commit(0, &creation(metadata)).await.unwrap();
    log.commit(1, &[add("f0", 5), add("f1", 7)]).await.unwrap();
    let before = log.load(SnapshotDetail::Stats).await.unwrap().unwrap();
    for version in 2..3 + i64::try_from(next(&mut random, 5)).unwrap() {
        let actions = random_commit(&mut random, version, &mut columns);
        log.commit(version, &actions).await.unwrap();
    }
    History {
        _scratch: scratch,
        store,
        log,
        before,
    }
}

fn assert_same(a: &Snapshot, b: &Snapshot, when: &str) {
    assert_eq!(a.version, b.version, "{when}");
    assert_eq!((a.rows, a.bytes), (b.rows, b.bytes), "{when}");
    assert_eq!((&a.files, &a.schema), (&b.files, &b.schema), "{when}");
    assert_eq!(
        (&a.metadata, &a.protocol, &a.transactions),
        (&b.metadata, &b.protocol, &b.transactions),
        "{when}"
    );
}

/// Drops the future after this many polls and returns `None`.
fn polled<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    (0..times).find_map(|_| match future.as_mut().poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    })
}

fn seeds() -> u64 {
    let seeds = std::env::var("THALWEG_SIM_SEEDS").ok();
    seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(60)
}

#[tokio::test]
async fn a_refresh_that_is_dropped_at_any_await_changes_nothing() {
    for seed in 1..=seeds() {
        let History { store, log, before, .. } = &history(seed).await;
        let newest = log.load(SnapshotDetail::Stats).await.unwrap().unwrap();
        store.set(Faults::Slow);
        for polls in 0.. {
            let mut snapshot = before.clone();
            let done = polled(log.refresh(&mut snapshot), polls);
            let when = format!("seed {seed}, dropped after {polls} polls");
            let Some(done) = done else {
                assert_same(&snapshot, before, &when);
                assert!(log.refresh(&mut snapshot).await.unwrap(), "{when}");
                assert_same(&snapshot, &newest, &when);
                continue;
            };
            assert!(done.unwrap() && polls > 4, "{when}");
            assert_same(&snapshot, &newest, &when);
            break;
        }
    }
}

#[tokio::test]
async fn a_refresh_that_fails_at_any_call_changes_nothing() {
    for seed in 1..=seeds() {
        let History { store, log, before, .. } = &history(seed).await;
        let newest = log.load(SnapshotDetail::Stats).await.unwrap().unwrap();
        store.set(Faults::OneOf(3));
        let mut snapshot = before.clone();
        while let Err(error) = log.refresh(&mut snapshot).await {
            assert_same(&snapshot, before, &format!("seed {seed}: {error}"));
        }
        assert_same(&snapshot, &newest, &format!("seed {seed}"));
    }
}

#[tokio::test]
async fn a_refresh_that_comes_upon_what_it_does_not_understand_changes_nothing() {
    for seed in 1..=seeds() {
        let History { log, before, .. } = &history(seed).await;
        let newest = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
        let newer = actions::Protocol {
            min_reader_version: 3,
            ..actions::Protocol::plain()
        };
        let beyond = [add("f9", 1), Action::Protocol(newer), add("f8", 1)];
        log.commit(newest.version + 1, &beyond).await.unwrap();
        let mut snapshot = before.clone();
        log.refresh(&mut snapshot).await.unwrap_err();
        assert_same(&snapshot, before, &format!("seed {seed}"));
        // A commit is applied completely or not at all.
        snapshot.apply(beyond.to_vec()).unwrap_err();
        assert_same(&snapshot, before, &format!("seed {seed}"));
    }
}

/// An operation on a table's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Load,
    LoadAt,
    Commit,
    Checkpoint,
    Missing,
    NothingBeyond,
}

const STEPS: [Step; 6] = [
    Step::Load,
    Step::LoadAt,
    Step::Commit,
    Step::Checkpoint,
    Step::Missing,
    Step::NothingBeyond,
];

impl Step {
    async fn run(self, log: &DeltaLog, before: &Snapshot, newest: &Snapshot) {
        match self {
            Step::Load => assert_same(
                &log.load(SnapshotDetail::Stats).await.unwrap().unwrap(),
                newest,
                "loaded",
            ),
            Step::LoadAt => {
                let versions = log.versions().await.unwrap().unwrap();
                let loaded = log
                    .load_at(&versions, before.version, SnapshotDetail::Stats)
                    .await
                    .unwrap();
                assert_same(&loaded, before, "loaded");
            }
            Step::Commit => drop(log.commit(newest.version + 1, &[add("f7", 3)]).await.unwrap()),
            Step::Checkpoint => log.checkpoint(newest.version).await.unwrap(),
            Step::Missing => assert_eq!(
                log.missing(newest.files.keys().cloned()).await.unwrap(),
                newest.files.len()
            ),
            Step::NothingBeyond => {
                let mut snapshot = before.clone();
                log.nothing_beyond(&mut snapshot).await.unwrap();
                assert_same(&snapshot, newest, "followed");
            }
        }
    }
}

/// Whatever is dropped at any await, the history stays complete, it has the old or the new content, and a repeated step
/// succeeds.
#[tokio::test]
async fn whatever_is_dropped_at_any_await_leaves_a_whole_history() {
    let seeds = seeds().div_ceil(10);
    // A table may have nothing for a step to do, but not every table.
    let mut left = STEPS.map(|_| 0);
    for (seed, (at, step)) in (1..=seeds).flat_map(|seed| STEPS.into_iter().enumerate().map(move |step| (seed, step))) {
        for waits in 0.. {
            let History { store, log, before, .. } = &history(seed).await;
            let newest = log.load(SnapshotDetail::Stats).await.unwrap().unwrap();
            store.set(Faults::Slow);
            let done = left_after(waits, step.run(log, before, &newest)).await;
            let when = format!("seed {seed}, {step:?} left after {waits} waits");
            let mut now = log.load(SnapshotDetail::Stats).await.unwrap().unwrap();
            log.nothing_beyond(&mut now).await.unwrap();
            let added = now.version - newest.version;
            assert!(added == 0 || (added == 1 && step == Step::Commit), "{when}");
            if added == 0 {
                assert_same(&now, &newest, &when);
            }
            step.run(log, before, &newest).await;
            if done.is_some() {
                break;
            }
            left[at] += 1;
        }
    }
    assert!(left.iter().all(|left| *left > seeds), "{left:?} of {STEPS:?}");
}
