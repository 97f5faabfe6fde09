//! Every frame of a namespace, damaged one at a time: nothing goes with it but what it had, and what was removed before stays so.

use std::collections::BTreeSet;

use super::test_support::{append_one, closed, data_of, lives};
use super::tests::{Chance, Disks};
use super::*;
use crate::store::*;

/// What was appended since the namespace was cleared, and before.
#[derive(Default)]
struct Model {
    live: Vec<String>,
    removed: BTreeSet<String>,
}

async fn fill(disks: &Disks, chance: &mut Chance) -> Model {
    let store = disks.open().await;
    let namespace = store.namespace(DEFAULT).await.unwrap();
    let mut model = Model::default();
    for step in 0..24 {
        if chance.below(8) == 0 {
            namespace.clear().await.unwrap();
            model.removed.extend(std::mem::take(&mut model.live));
            continue;
        }
        let data = format!("{{\"n\":\"<{step}>\"}}");
        append_one(&namespace, &format!("s-{}", chance.below(3)), &data).await;
        model.live.push(data);
    }
    // So that nothing of the namespace is what the log ends with.
    store.create(super::test_support::new("last")).await.unwrap();
    model
}

async fn one_damaged_frame_after_the_other(seed: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let filled = Disks::new();
    let model = fill(&filled, &mut chance).await;
    let partition = {
        let store = filled.open().await;
        store.inner.opened(DEFAULT).unwrap().namespace.partition
    };
    for (n, frame) in filled.frames_of(partition).into_iter().enumerate() {
        let what = format!("seed {seed}, frame {n}");
        let disks = filled.copied();
        let had = parking_lot::Mutex::new(Vec::new());
        disks.bend_log(&frame.file, frame.body, |bytes| {
            had.lock().extend_from_slice(bytes);
            bytes.fill(0);
        });
        let had = had.into_inner();
        disks.recover_skip();
        for round in 0..2 {
            let store = disks.open().await;
            let namespace = store.namespace(DEFAULT).await.unwrap();
            let shown = data_of(&namespace).await;
            let is_lost = |data: &&String| memchr::memmem::find(&had, data.as_bytes()).is_some();
            let wanted: Vec<&String> = model.live.iter().filter(|data| !is_lost(data)).collect();
            // Nothing tells of the last clear if nothing came behind it.
            let is_told = !wanted.is_empty();
            let found: Vec<&String> = shown.iter().filter(|data| !model.removed.contains(*data)).collect();
            assert_eq!(found, wanted, "{what}, start {round}");
            assert!(
                !is_told || shown.len() == wanted.len(),
                "{what}, start {round}: removed, and back: {shown:?}"
            );
            if is_told {
                assert_eq!(store.verify().await.unwrap().faults, [], "{what}, start {round}");
            }
            drop(namespace);
            closed(store).await;
            disks.lose_indexes();
        }
    }
}

#[test]
fn a_damaged_frame_of_a_namespace_takes_nothing_with_it_and_brings_nothing_back() {
    lives(6, one_damaged_frame_after_the_other);
}
