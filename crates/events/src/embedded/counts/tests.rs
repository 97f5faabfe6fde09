//! Counts during concurrent writes, deletions, scavenging and flushes: each count was true at some moment of the call,
//! and nobody is blocked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::super::test_support::{append_one, keep_newest, lives};
use super::super::tests::{Chance, Disks};
use super::super::{DEFAULT, EmbeddedStore};
use crate::store::{ExpectedVersion, Namespace, RetentionTarget, Store as _};

/// The number of messages of a stream that the category rule keeps.
const KEPT: u64 = 3;

/// The minimum and maximum of visible messages and streams, before and after each step of the writer.
#[derive(Default)]
struct Shown(Mutex<Vec<[(u64, u64); 2]>>);

impl Shown {
    fn now(&self) -> usize {
        self.0.lock().len() - 1
    }

    fn push(&self, messages: (u64, u64), streams: (u64, u64)) {
        self.0.lock().push([messages, streams]);
    }

    /// Whether these counts were true at some moment since then.
    fn was(&self, since: usize, messages: u64, streams: u64) -> bool {
        let moments = self.0.lock();
        let is_within = |(least, most): (u64, u64), found: u64| (least..=most).contains(&found);
        moments
            .get(since..)
            .unwrap_or_default()
            .iter()
            .any(|[of_messages, of_streams]| is_within(*of_messages, messages) && is_within(*of_streams, streams))
    }
}

/// The streams of the writer and their visible messages.
struct Writer {
    namespace: Arc<dyn Namespace>,
    shown: Arc<Shown>,
    streams: BTreeMap<String, u64>,
    made: u64,
    deletions: u64,
    totals: (u64, u64),
}

impl Writer {
    /// A step changes the visible counts from the old to the new values at some moment during it.
    async fn step(&mut self, stream: &str, after: u64, does: impl AsyncFnOnce(&Arc<dyn Namespace>)) {
        let before = self.streams.insert(stream.to_owned(), after).unwrap_or(0);
        let (messages, streams) = self.totals;
        let then = (
            messages - before + after,
            streams - u64::from(before > 0) + u64::from(after > 0),
        );
        let between = |one: u64, other: u64| (one.min(other), one.max(other));
        self.shown.push(between(messages, then.0), between(streams, then.1));
        does(&self.namespace).await;
        self.totals = then;
        self.shown.push((then.0, then.0), (then.1, then.1));
    }

    async fn append(&mut self, stream: &str) {
        let before = self.streams.get(stream).copied().unwrap_or(0);
        let after = if stream.starts_with("kept-") {
            (before + 1).min(KEPT)
        } else {
            before + 1
        };
        let own = stream.to_owned();
        self.step(stream, after, async |namespace| {
            append_one(namespace, &own, "{}").await;
        })
        .await;
    }

    async fn delete(&mut self, stream: &str) {
        let own = stream.to_owned();
        self.deletions += 1;
        self.step(stream, 0, async |namespace| {
            namespace
                .delete_stream(&own, ExpectedVersion::Any, false)
                .await
                .unwrap();
        })
        .await;
    }

    async fn one(&mut self, chance: &mut Chance) {
        let existing = |chance: &mut Chance| {
            let category = if chance.one_in(2) { "kept" } else { "free" };
            format!("{category}-{}", chance.below(40))
        };
        match chance.below(12) {
            0 => {
                self.made += 1;
                let stream = format!("kept-new-{}", self.made);
                self.append(&stream).await;
            }
            1 => {
                let stream = existing(chance);
                if self.streams.get(&stream).is_some_and(|shown| *shown > 0) {
                    self.delete(&stream).await;
                }
            }
            _ => {
                let stream = existing(chance);
                self.append(&stream).await;
            }
        }
    }
}

async fn count(namespace: Arc<dyn Namespace>, shown: Arc<Shown>, is_over: Arc<AtomicBool>, what: String) {
    let mut asked = 0;
    while !is_over.load(Ordering::Relaxed) || asked < 3 {
        asked += 1;
        let since = shown.now();
        let info = namespace.info().await.unwrap();
        assert!(
            shown.was(since, info.messages, info.streams),
            "{what}: {} messages of {} streams were never shown since {since}",
            info.messages,
            info.streams
        );
        let since = shown.now();
        let all = namespace.categories().await.unwrap();
        let (messages, streams) = all.iter().fold((0, 0), |(messages, streams), category| {
            (messages + category.messages, streams + category.streams)
        });
        assert!(shown.was(since, messages, streams), "{what}: {all:?}");
        tokio::task::yield_now().await;
    }
}

async fn life(seed: u64) {
    let what = format!("seed {seed}");
    let disks = Disks::with_small_files();
    let store = Arc::new(disks.open().await);
    let namespace = store.namespace(DEFAULT).await.unwrap();
    keep_newest(&namespace, RetentionTarget::Category("kept"), Some(KEPT)).await;
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let shown = Arc::new(Shown::default());
    shown.push((0, 0), (0, 0));
    let mut writer = Writer {
        namespace: namespace.clone(),
        shown: shown.clone(),
        streams: BTreeMap::new(),
        made: 0,
        deletions: 0,
        totals: (0, 0),
    };
    for _ in 0..150 {
        writer.one(&mut chance).await;
    }
    let embedded = store.inner.opened(DEFAULT).unwrap().namespace;
    let holds = embedded.holds.load(Ordering::Relaxed);
    writer.deletions = 0;
    let is_over = Arc::new(AtomicBool::new(false));
    let counts = (0..3).map(|_| tokio::spawn(count(namespace.clone(), shown.clone(), is_over.clone(), what.clone())));
    let counts: Vec<_> = counts.collect();
    let scavenging = tokio::spawn(scavenge(store.clone(), is_over.clone()));
    for _ in 0..400 {
        writer.one(&mut chance).await;
    }
    is_over.store(true, Ordering::Relaxed);
    for count in counts {
        count.await.unwrap();
    }
    scavenging.await.unwrap();
    let info = namespace.info().await.unwrap();
    assert_eq!((info.messages, info.streams), writer.totals, "{what}");
    let held = embedded.holds.load(Ordering::Relaxed) - holds;
    assert_eq!(held, writer.deletions, "{what}: only deletions hold writers");
}

async fn scavenge(store: Arc<EmbeddedStore>, is_over: Arc<AtomicBool>) {
    while !is_over.load(Ordering::Relaxed) {
        store.flush_indexes().await.unwrap();
        store.scavenge().await.unwrap();
        tokio::time::sleep(std::time::Duration::from_millis(3)).await;
    }
}

#[test]
fn counts_are_of_some_moment_while_everything_goes_on() {
    lives(6, life);
}

/// One endless writer and four counters: no writer is ever blocked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_are_never_held_for_those_who_count() {
    let disks = Disks::with_small_files();
    let store = disks.open().await;
    let namespace = store.namespace(DEFAULT).await.unwrap();
    keep_newest(&namespace, RetentionTarget::Category("kept"), Some(KEPT)).await;
    for i in 0..300 {
        append_one(&namespace, &format!("kept-{i}"), "{}").await;
    }
    let is_over = Arc::new(AtomicBool::new(false));
    let (own, over) = (namespace.clone(), is_over.clone());
    let writing = tokio::spawn(async move {
        let mut appended = 300;
        while !over.load(Ordering::Relaxed) {
            append_one(&own, &format!("kept-{}", appended % 300), "{}").await;
            appended += 1;
        }
        appended
    });
    let asking = (0..4).map(|_| {
        let own = namespace.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                let info = own.info().await.unwrap();
                assert!(info.streams == 300 && (300..=900).contains(&info.messages), "{info:?}");
                assert_eq!(own.categories().await.unwrap().len(), 1);
            }
        })
    });
    for asking in asking.collect::<Vec<_>>() {
        asking.await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    let appended = writing.await.unwrap();
    let holds = store
        .inner
        .opened(DEFAULT)
        .unwrap()
        .namespace
        .holds
        .load(Ordering::Relaxed);
    assert_eq!(holds, 0, "{appended} messages");
}

/// As long as nothing is written, a count stays valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_counted_is_kept_until_something_changes() {
    let disks = Disks::with_small_files();
    let store = disks.open().await;
    let namespace = store.namespace(DEFAULT).await.unwrap();
    let embedded = store.inner.opened(DEFAULT).unwrap().namespace;
    keep_newest(&namespace, RetentionTarget::Category("kept"), Some(KEPT)).await;
    append_one(&namespace, "kept-1", "{}").await;
    let first = embedded.counted().await.unwrap();
    assert!(Arc::ptr_eq(&first, &embedded.counted().await.unwrap()));
    append_one(&namespace, "kept-1", "{}").await;
    let second = embedded.counted().await.unwrap();
    assert_eq!((first.messages, second.messages), (1, 2));
    keep_newest(&namespace, RetentionTarget::Category("kept"), Some(1)).await;
    assert_eq!(embedded.counted().await.unwrap().messages, 1);
    namespace
        .delete_stream("kept-1", ExpectedVersion::Any, false)
        .await
        .unwrap();
    let none = embedded.counted().await.unwrap();
    assert_eq!((none.messages, none.streams, none.last_activity), (0, 0, None));
    assert!(none.categories.is_empty());
}
