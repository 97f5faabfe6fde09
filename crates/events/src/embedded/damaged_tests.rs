//! Damaged frames of a namespace, alone and several at once: only their own content is lost, removed messages stay
//! removed as far as anything records it, and rebuilt indexes show the same as kept ones.

use std::collections::BTreeSet;

use super::test_support::{append_one, closed, data_of, is_healthy, keep_newest, lives, new};
use super::tests::{Chance, Disks, FrameOnDisk};
use super::*;
use crate::store::*;

/// What was appended and removed.
#[derive(Default)]
struct Model {
    /// Stream and data.
    live: Vec<(String, String)>,
    cleared: BTreeSet<String>,
    deleted: BTreeSet<String>,
    /// Whether the indexes on disk know every clearing.
    clears_are_indexed: bool,
}

const STEPS: u64 = 20;

async fn fill(disks: &Disks, chance: &mut Chance) -> Model {
    let store = disks.open().await;
    let namespace = store.namespace(DEFAULT).await.unwrap();
    let mut model = Model::default();
    // With a document, cleared messages stay in the log for a while.
    namespace.put_document("kept", Some(b"x"), 0).await.unwrap();
    for step in 0..STEPS {
        let stream = format!("s-{}", chance.below(3));
        match chance.below(16) {
            0 | 1 => {
                namespace.clear().await.unwrap();
                let live = std::mem::take(&mut model.live);
                model.cleared.extend(live.into_iter().map(|(_, data)| data));
                model.clears_are_indexed = false;
            }
            2 => {
                namespace
                    .delete_stream(&stream, ExpectedVersion::Any, false)
                    .await
                    .unwrap();
                let own = model.live.extract_if(.., |(of, _)| *of == stream);
                model.deleted.extend(own.map(|(_, data)| data));
            }
            3 => {
                store.flush_indexes().await.unwrap();
                model.clears_are_indexed = true;
            }
            _ => {
                let data = format!("{{\"n\":\"<{step}>\"}}");
                append_one(&namespace, &stream, &data).await;
                model.live.push((stream, data));
            }
        }
    }
    // Ensures that the log does not end with this namespace.
    store.create(new("last")).await.unwrap();
    drop(namespace);
    closed(store).await;
    model
}

/// Damages the frames and returns their former bytes.
fn damaged(disks: &Disks, frames: &[FrameOnDisk]) -> Vec<u8> {
    let had = parking_lot::Mutex::new(Vec::new());
    for frame in frames {
        disks.bend_log(&frame.file, frame.body.clone(), |bytes| {
            had.lock().extend_from_slice(bytes);
            bytes.fill(0);
        });
    }
    disks.recover_skip();
    had.into_inner()
}

fn has(bytes: &[u8], text: &str) -> bool {
    memchr::memmem::find(bytes, text.as_bytes()).is_some()
}

/// Starts with the existing indexes, unless they are lost too, and then with rebuilt ones.
async fn holds_what_is_left(disks: &Disks, model: &Model, had: &[u8], one: bool, what: &str) {
    let are_kept = !disks.tables().is_empty();
    let mut before: Option<Vec<String>> = None;
    for start in 0..3 {
        let what = format!("{what}, start {start}");
        let store = disks.open().await;
        let namespace = store.namespace(DEFAULT).await.unwrap();
        let shown = data_of(&namespace).await;
        let live = model.live.iter().map(|(_, data)| data);
        let wanted: Vec<&String> = live.filter(|data| !has(had, data)).collect();
        let is_removed = |data: &&String| model.cleared.contains(*data) || model.deleted.contains(*data);
        let found: Vec<&String> = shown.iter().filter(|data| !is_removed(data)).collect();
        assert_eq!(found, wanted, "{what}");
        assert_eq!(
            shown.iter().collect::<BTreeSet<_>>().len(),
            shown.len(),
            "{what}: {shown:?}"
        );
        let back = |removed: &BTreeSet<String>| shown.iter().any(|data| removed.contains(data));
        // The last clearing leaves no other trace if nothing followed it.
        let is_told = one && !wanted.is_empty() || are_kept && model.clears_are_indexed;
        assert!(
            !is_told || !back(&model.cleared),
            "{what}: cleared, and back: {shown:?}"
        );
        let is_deletion_lost = has(had, "~deleted/");
        assert!(
            is_deletion_lost || !back(&model.deleted),
            "{what}: deleted, and back: {shown:?}"
        );
        is_healthy(&store, &what).await;
        assert_eq!(
            *before.get_or_insert_with(|| shown.clone()),
            shown,
            "{what}: it was other before"
        );
        drop(namespace);
        closed(store).await;
        disks.lose_indexes();
    }
}

async fn damage(seed: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let filled = Disks::new();
    let model = fill(&filled, &mut chance).await;
    let partition = {
        let store = filled.open().await;
        let partition = store.inner.opened(DEFAULT).unwrap().namespace.partition;
        closed(store).await;
        partition
    };
    let all = filled.frames_of(partition);
    let mut cases: Vec<Vec<FrameOnDisk>> = all.iter().map(|frame| vec![frame.clone()]).collect();
    for _ in 0..STEPS / 2 {
        // Runs of frames, so that there are several gaps.
        let mut some = Vec::new();
        for _ in 0..1 + chance.below(3) {
            let first = chance.below(all.len() as u64) as usize;
            let count = 1 + chance.below(8) as usize;
            some.extend(all.iter().skip(first).take(count).cloned());
        }
        cases.push(some);
    }
    for (n, case) in cases.iter().enumerate() {
        for is_lost in [false, true] {
            let what = format!("seed {seed}, case {n}, indexes lost: {is_lost}");
            let disks = filled.copied();
            if is_lost {
                disks.lose_indexes();
            }
            let had = damaged(&disks, case);
            holds_what_is_left(&disks, &model, &had, case.len() == 1, &what).await;
        }
    }
}

#[test]
fn damaged_frames_of_a_namespace_take_nothing_with_them_and_bring_nothing_back() {
    lives(2, damage);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_scavenged_is_not_back_when_an_older_file_stands_in_for_one_that_is_lost() {
    let disks = Disks::with_small_files();
    let store = disks.open().await;
    let namespace = store.namespace(DEFAULT).await.unwrap();
    let mut all = Vec::new();
    // More than one commit file. The newest full file is not rewritten.
    for n in 0..30 {
        let data = format!("{{\"n\":\"<{n}>\",\"x\":\"{}\"}}", ".".repeat(12_000));
        append_one(&namespace, "s-1", &data).await;
        all.push(data);
    }
    keep_newest(&namespace, RetentionTarget::Stream("s-1"), Some(20)).await;
    assert_eq!(store.scavenge().await.unwrap().messages, 10);
    // No rule hides them any more.
    keep_newest(&namespace, RetentionTarget::Stream("s-1"), None).await;
    drop(namespace);
    closed(store).await;
    assert_eq!(disks.lose_segments(), 1);
    assert!(disks.log_holds(b"<0>"), "an older file has them");
    for what in ["with the indexes that there were", "with others"] {
        let store = disks.open().await;
        let namespace = store.namespace(DEFAULT).await.unwrap();
        assert!(data_of(&namespace).await == all[10..], "{what}");
        is_healthy(&store, what).await;
        drop(namespace);
        closed(store).await;
        disks.lose_indexes();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_that_is_back_since_its_deletion_was_lost_has_each_message_once() {
    let mut disks = Disks::new();
    let store = disks.open().await;
    store.create(new("other")).await.unwrap();
    let other = store.namespace("other").await.unwrap();
    let mut all = Vec::new();
    for n in 0..5 {
        let data = format!("{{\"n\":\"<{n}>\"}}");
        append_one(&other, "s-1", &data).await;
        all.push(data);
    }
    store.flush_indexes().await.unwrap();
    drop(other);
    closed(store).await;
    let older = disks.copied();
    let store = disks.open().await;
    store.delete("other").await.unwrap();
    // With this flush, the index forgets that the namespace was indexed.
    append_one(&store.namespace(DEFAULT).await.unwrap(), "s-1", "{}").await;
    store.flush_indexes().await.unwrap();
    closed(store).await;
    disks.put_back_log_of(&older);
    disks.recover_skip();
    let store = disks.open().await;
    let other = store.namespace("other").await.unwrap();
    assert_eq!(data_of(&other).await, all);
    assert_eq!(other.info().await.unwrap().messages, 5);
    is_healthy(&store, "with what an index had of it").await;
}
