//! Damages every frame of the catalog, one at a time, and starts as a user would: no acknowledged event is lost, and
//! deleted data does not come back.

use std::collections::{BTreeMap, BTreeSet};

use thalweg_log::Durability;

use super::super::test_support::{append_one, data_of, lives, new};
use super::super::tests::{Chance, Disks, FrameOnDisk};
use super::super::*;
use super::{CATALOG, CatalogLog, partition};
use crate::store::*;

/// The data of the events by namespace.
type Events = BTreeMap<String, Vec<String>>;

async fn append(store: &EmbeddedStore, name: &str, data: &str) {
    append_one(&store.namespace(name).await.unwrap(), "s-1", data).await;
}

async fn all_of(store: &EmbeddedStore) -> Events {
    let mut all = Events::new();
    for namespace in store.namespaces().await.unwrap() {
        all.insert(namespace.name().to_owned(), data_of(&namespace).await);
    }
    all
}

/// The existing events, and the names of deleted namespaces.
#[derive(Default)]
struct Model {
    events: Events,
    deleted: BTreeSet<String>,
}

/// Creates and deletes namespaces, tokens and events, with restarts.
async fn fill(disks: &Disks, chance: &mut Chance, steps: u64) -> Model {
    let mut store = disks.open().await;
    let mut model = Model::default();
    model.events.insert(DEFAULT.to_owned(), Vec::new());
    for step in 0..steps {
        let names: Vec<String> = model.events.keys().cloned().collect();
        let name = names[chance.below(names.len() as u64) as usize].clone();
        match chance.below(8) {
            0 | 1 => {
                let name = format!("ns-{step}");
                store.create(new(&name)).await.unwrap();
                model.events.insert(name, Vec::new());
            }
            2 if name != DEFAULT => {
                store.delete(&name).await.unwrap();
                model.deleted.extend(model.events.remove(&name).unwrap());
            }
            3 => {
                let token = NewToken {
                    digest: TokenDigest::from_bytes([step as u8 + 9; 32]),
                    scopes: Scopes::ALL,
                    description: String::new(),
                    expires_at: None,
                };
                store.create_token(&name, token).await.unwrap();
            }
            4 => {
                drop(store);
                store = disks.open().await;
            }
            _ => {
                let data = format!("{{\"n\":{step}}}");
                append(&store, &name, &data).await;
                model.events.get_mut(&name).unwrap().push(data);
            }
        }
    }
    // Ensures that the log does not end with a change of the catalog.
    append(&store, DEFAULT, "{}").await;
    model.events.get_mut(DEFAULT).unwrap().push("{}".to_owned());
    model
}

/// Asserts that everything acknowledged exists, under its name or a found one, and nothing that was deleted.
fn hold(model: &Model, found: &Events, what: &str) {
    for (name, events) in model.events.iter().filter(|(_, events)| !events.is_empty()) {
        let is_theirs =
            |(own, other): (&String, &Vec<String>)| (own == name || own.starts_with("found-")) && other == events;
        assert!(
            found.iter().any(is_theirs),
            "{what}: {name} has lost {events:?}: {found:?}"
        );
    }
    for events in found.values().flatten() {
        assert!(!model.deleted.contains(events), "{what}: {events} was deleted");
    }
}

const DAMAGES: [&str; 6] = [
    "a bit",
    "the last byte",
    "the body",
    "its header",
    "the block's header",
    "the whole block",
];

fn damage(disks: &Disks, frame: &FrameOnDisk, kind: &str, chance: &mut Chance) {
    let body = frame.body.clone();
    let bit = 1u8 << chance.below(8);
    let at = body.start + chance.below(body.len() as u64) as usize;
    let file = frame.file.as_str();
    match kind {
        "a bit" => disks.bend_log(file, at..at + 1, |bytes| bytes[0] ^= bit),
        "the last byte" => disks.bend_log(file, body.end - 1..body.end, |bytes| bytes[0] ^= 0xff),
        "the body" => disks.bend_log(file, body, |bytes| bytes.fill(0)),
        "its header" => disks.bend_log(file, frame.header + 20..frame.header + 21, |bytes| bytes[0] ^= bit),
        "the block's header" => disks.bend_log(file, frame.block..frame.block + 8, |bytes| bytes.fill(0xee)),
        _ => disks.bend_log(file, frame.block..body.end, |bytes| bytes.fill(0)),
    }
}

async fn one_damaged_frame_after_the_other(seed: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let filled = Disks::new();
    let model = fill(&filled, &mut chance, 30).await;
    filled.close();
    for (n, frame) in filled.frames_of(CATALOG).into_iter().enumerate() {
        for (m, kind) in DAMAGES.into_iter().enumerate() {
            let what = format!("seed {seed}, frame {n}, {kind}");
            let disks = filled.copied();
            damage(&disks, &frame, kind, &mut chance);
            // Damage outside of the catalog loses nothing of it either.
            match (n + m) % 2 {
                0 => disks.recover_skip(),
                _ => disks.repair(),
            }
            let store = disks.open().await;
            let found = all_of(&store).await;
            hold(&model, &found, &what);
            assert_eq!(store.verify().await.unwrap().faults, [], "{what}");
            // The store works, and the result is stable.
            store.create(new("later")).await.unwrap();
            assert_eq!(
                data_of(&store.namespace("later").await.unwrap()).await,
                [""; 0],
                "{what}"
            );
            append(&store, "later", "{\"later\":1}").await;
            drop(store);
            let store = disks.open().await;
            let mut again = all_of(&store).await;
            assert_eq!(again.remove("later"), Some(vec!["{\"later\":1}".to_owned()]), "{what}");
            assert_eq!(again, found, "{what}");
        }
    }
}

#[test]
fn no_damaged_frame_of_the_catalogue_takes_an_event_with_it_or_brings_a_namespace_back() {
    lives(1, one_damaged_frame_after_the_other);
}

/// The state after a crash: the mark and the partition exist, but no namespace.
async fn leave_half_made(disks: &Disks) -> u32 {
    let store = disks.open().await;
    let number = store.inner.catalog.lock().await.new_partition(0).await.unwrap();
    append(&store, DEFAULT, "{\"after\":1}").await;
    number
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_crash_has_left_half_made_is_removed() {
    let disks = Disks::new();
    let number = leave_half_made(&disks).await;
    let store = disks.open().await;
    assert!(!store.inner.place.log.partitions().contains(&partition(number)));
    assert_eq!(all_of(&store).await.len(), 1);
    // The number is not reused.
    store.create(new("next")).await.unwrap();
    assert!(store.inner.opened("next").unwrap().namespace.number > number);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_partition_that_nothing_names_is_removed_and_its_number_is_not_given_again() {
    let disks = Disks::new();
    let number = leave_half_made(&disks).await;
    let mark = disks.frames_of(CATALOG).pop().unwrap();
    damage(&disks, &mark, "the body", &mut Chance(1));
    disks.recover_skip();
    for n in 0..2 {
        let store = disks.open().await;
        assert_eq!(all_of(&store).await.len(), 1 + n, "only what was made");
        assert!(!store.inner.place.log.partitions().contains(&partition(number)));
        store.create(new(&format!("next-{n}"))).await.unwrap();
        let next = store.inner.opened(&format!("next-{n}")).unwrap().namespace.number;
        assert!(next > number, "{next}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_without_a_namespace_are_found_whatever_the_marks_say_and_under_a_name_that_is_free() {
    for marked in [true, false] {
        let disks = Disks::new();
        let store = disks.open().await;
        store.create(new("found-3")).await.unwrap();
        assert_eq!(store.inner.opened("found-3").unwrap().namespace.number, 2);
        let log = store.inner.place.log.clone();
        match marked {
            true => assert_eq!(store.inner.catalog.lock().await.new_partition(0).await.unwrap(), 3),
            false => log.create(partition(3), Durability::Fsync).await.unwrap(),
        }
        // Frames for this partition are copied from another log.
        let other = Disks::new().open().await;
        append(&other, DEFAULT, "{\"n\":1}").await;
        let want = thalweg_log::ReadOptions {
            bytes: 1 << 20,
            synced: false,
        };
        for frame in other.inner.place.log.read(partition(1), 0, want).unwrap() {
            let mut records = thalweg_log::Records::new();
            for record in thalweg_log::format::record::records(&frame.body) {
                records.push(&record.unwrap()).unwrap();
            }
            let unit = thalweg_log::WriteBatch::default().and(partition(3), records);
            log.append(unit).await.unwrap();
        }
        drop((store, log));
        let store = disks.open().await;
        let found = all_of(&store).await;
        assert_eq!(found.get("found-3-2"), Some(&vec!["{\"n\":1}".to_owned()]), "{found:?}");
        assert_eq!(found.get("found-3"), Some(&Vec::new()));
        // The log message tells the operator to do this.
        assert_eq!(store.delete("found-3-2").await.unwrap(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_deletion_keeps_no_start_away() {
    let disks = Disks::new();
    let store = disks.open().await;
    store.create(new("a")).await.unwrap();
    append(&store, "a", "{\"n\":1}").await;
    store.delete("a").await.unwrap();
    let removal = disks.frames_of(CATALOG).pop().unwrap();
    append(&store, DEFAULT, "{\"after\":1}").await;
    drop(store);
    damage(&disks, &removal, "a bit", &mut Chance(3));
    disks.recover_skip();
    for _ in 0..2 {
        let store = disks.open().await;
        assert_eq!(all_of(&store).await.len(), 1, "it stays deleted");
        store.create(new("a")).await.unwrap();
        assert_eq!(all_of(&store).await["a"], [""; 0]);
        store.delete("a").await.unwrap();
    }
}

/// The loss of the last change cannot be detected by a later one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_without_a_partition_keeps_no_start_away() {
    let disks = Disks::new();
    let store = disks.open().await;
    store.create(new("b")).await.unwrap();
    let number = store.inner.opened("b").unwrap().namespace.number;
    store.inner.place.log.remove(partition(number)).await.unwrap();
    drop(store);
    for _ in 0..2 {
        let store = disks.open().await;
        assert_eq!(all_of(&store).await.into_keys().collect::<Vec<_>>(), [DEFAULT]);
        store.create(new("b")).await.unwrap();
        assert!(store.inner.opened("b").unwrap().namespace.number > number);
        store.delete("b").await.unwrap();
    }
}

/// This decides whether a start looks for scavenge marks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offsets_of_the_catalogue_without_a_change_count_as_lost_changes() {
    let disks = Disks::new();
    let store = disks.open().await;
    let log = store.inner.place.log.clone();
    let read = |log: &dyn Log| CatalogLog::read(log).unwrap();
    let whole = read(log.as_ref());
    assert_eq!((whole.known.lost_before, whole.known.may_have_marks()), (0, false));
    let skipped_to = whole.end + 3;
    thalweg_log::raise_next(log.as_ref(), CATALOG, skipped_to)
        .await
        .unwrap();
    let at_the_end = read(log.as_ref());
    assert_eq!((at_the_end.known.lost_before, at_the_end.end), (skipped_to, skipped_to));
    store.create(new("after")).await.unwrap();
    let before = read(log.as_ref());
    assert!(before.end > skipped_to && before.known.may_have_marks());
    assert_eq!(before.known.lost_before, skipped_to);
    assert!(before.known.there.values().any(|named| named.name == "after"));
    drop((store, log));
    // A start that rewrites the catalog must keep that information.
    let store = disks.open().await;
    for n in 0..40 {
        let name = format!("n-{n}");
        store.create(new(&name)).await.unwrap();
        store.delete(&name).await.unwrap();
    }
    drop(store);
    let store = disks.open().await;
    let again = read(store.inner.place.log.as_ref());
    assert!(again.changes < 20, "{}", again.changes);
    assert!(again.known.lost_before == 0 && again.known.may_have_marks());
}
