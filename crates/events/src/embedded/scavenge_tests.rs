//! Deleted and scavenged messages stay gone, whatever happens to rules and indexes, and others are never lost.

use std::collections::BTreeMap;

use super::between_tests::{events, to};
use super::test_support::{all_of, append_one, append_with, is_healthy, keep_newest, lives, new};
use super::tests::{Chance, Disks};
use super::*;
use crate::event::StoredEvent;
use crate::id::MessageId;
use crate::store::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_scavenged_stays_gone_without_its_rule_and_with_indexes_that_are_made_again() {
    let disks = Disks::new();
    let mut store = disks.open().await;
    let mut own = store.namespace(DEFAULT).await.unwrap();
    let given = MessageId::of("given");
    for n in 0..20 {
        let id = (n == 3).then(|| given.clone());
        append_with(&own, "a-1", &format!("{{\"n\":{n}}}"), id).await.unwrap();
    }
    let made = MessageId::from(all_of(&own).await[4].event().id);
    keep_newest(&own, RetentionTarget::Stream("a-1"), Some(1)).await;
    assert_eq!(store.scavenge().await.unwrap().messages, 19);
    keep_newest(&own, RetentionTarget::Stream("a-1"), None).await;
    for step in ["scavenged", "started", "indexed anew", "and again"] {
        if step != "scavenged" {
            drop((store, own));
            if step != "started" {
                disks.lose_indexes();
            }
            store = disks.open().await;
            own = store.namespace(DEFAULT).await.unwrap();
        }
        is_healthy(&store, step).await;
        let left: Vec<String> = all_of(&own)
            .await
            .iter()
            .map(|stored| stored.event().data.to_owned())
            .collect();
        assert_eq!(left, ["{\"n\":19}"], "{step}");
        assert_eq!(own.info().await.unwrap().messages, 1, "{step}");
        for id in [&given, &made] {
            assert!(own.by_id(id).await.unwrap().is_none(), "{step}: {id}");
        }
        assert_eq!(own.version("a-1").await.unwrap(), 19, "{step}");
    }
    // The id is free again.
    let again = append_with(&own, "a-1", "{}", Some(given)).await.unwrap();
    assert_eq!(
        (again.first_position, again.first_global, again.duplicate),
        (20, 21, false)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_stream_leaves_no_message_and_goes_on_where_it_ended() {
    let disks = Disks::new();
    let mut store = disks.open().await;
    let mut own = store.namespace(DEFAULT).await.unwrap();
    own.append(&to("b-1", events(None, 2))).await.unwrap();
    own.append(&to("a-1", events(None, 5))).await.unwrap();
    own.delete_stream("a-1", ExpectedVersion::Any, false).await.unwrap();
    // Including the last message of the stream and of the namespace.
    assert_eq!(store.scavenge().await.unwrap().messages, 5);
    for step in ["scavenged", "started", "indexed anew"] {
        if step != "scavenged" {
            drop((store, own));
            if step == "indexed anew" {
                disks.lose_indexes();
            }
            store = disks.open().await;
            own = store.namespace(DEFAULT).await.unwrap();
        }
        is_healthy(&store, step).await;
        let info = own.info().await.unwrap();
        assert_eq!((info.messages, info.streams), (2, 1), "{step}");
        assert_eq!(own.version("a-1").await.unwrap(), 4, "{step}");
        assert_eq!(own.streams("", "", 10).await.unwrap().len(), 1, "{step}");
    }
    let next = append_one(&own, "a-1", "{}").await;
    assert_eq!((next.first_position, next.first_global), (5, 8));
    let info = own.info().await.unwrap();
    assert_eq!((info.messages, info.streams), (3, 2));
    is_healthy(&store, "goes on").await;
}

/// The mark is stored, but the indexes cannot be written, as if the process had ended there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_ends_a_scavenging_that_was_cut_off() {
    for lose_indexes in [false, true] {
        let disks = Disks::new();
        let store = disks.open().await;
        let own = store.namespace(DEFAULT).await.unwrap();
        own.append(&to("a-1", events(None, 9))).await.unwrap();
        keep_newest(&own, RetentionTarget::Stream("a-1"), Some(2)).await;
        store.flush_indexes().await.unwrap();
        disks.fail_indexes(true);
        assert!(store.scavenge().await.is_err());
        disks.fail_indexes(false);
        keep_newest(&own, RetentionTarget::Stream("a-1"), None).await;
        drop((store, own));
        if lose_indexes {
            disks.lose_indexes();
        }
        for step in ["first", "second"] {
            let store = disks.open().await;
            let own = store.namespace(DEFAULT).await.unwrap();
            is_healthy(&store, step).await;
            assert_eq!(own.info().await.unwrap().messages, 2, "{step}");
            assert_eq!(all_of(&own).await.len(), 2, "{step}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_of_what_is_deleted_are_in_no_file_once_they_are_erased() {
    const SECRET: &str = "a secret of somebody";
    let disks = Disks::with_small_files();
    let store = disks.open().await;
    let own = store.namespace(DEFAULT).await.unwrap();
    store.create(new("other")).await.unwrap();
    let other = store.namespace("other").await.unwrap();
    for n in 0..6 {
        let data = format!("{{\"n\":{n},\"x\":\"{SECRET}\"}}");
        append_one(&own, "a-1", &data).await;
        append_one(&other, "o-1", &format!("{{\"n\":{n}}}")).await;
        own.put_document(
            "kept",
            Some(data.as_bytes()),
            own.document("kept").await.unwrap().map_or(0, |it| it.revision),
        )
        .await
        .unwrap();
    }
    // The secret is in the last message of the stream and of the namespace.
    own.delete_stream("a-1", ExpectedVersion::Any, false).await.unwrap();
    let revision = own.document("kept").await.unwrap().unwrap().revision;
    own.put_document("kept", None, revision).await.unwrap();
    assert_eq!(store.scavenge().await.unwrap().messages, 6);
    assert!(disks.log_holds(SECRET.as_bytes()), "what is freed is not gone yet");
    store.erase().await.unwrap();
    assert!(!disks.log_holds(SECRET.as_bytes()));
    is_healthy(&store, "erased").await;
    drop((store, own, other));
    disks.lose_indexes();
    let store = disks.open().await;
    assert!(!disks.log_holds(SECRET.as_bytes()));
    is_healthy(&store, "started").await;
    let own = store.namespace(DEFAULT).await.unwrap();
    assert_eq!(own.version("a-1").await.unwrap(), 5);
    assert_eq!(all_of(&store.namespace("other").await.unwrap()).await.len(), 6);
    let next = append_one(&own, "a-1", "{}").await;
    assert_eq!((next.first_position, next.first_global), (6, 7));
}

/// A message that was not scavenged.
#[derive(Clone, Debug)]
struct Kept {
    global: u64,
    data: String,
}

#[derive(Clone, Debug, Default)]
struct StreamModel {
    kept: BTreeMap<u64, Kept>,
    next: u64,
    deleted_before: u64,
    max_count: Option<u64>,
    truncate_before: u64,
}

impl StreamModel {
    fn floor(&self) -> u64 {
        let newest = self.max_count.map_or(0, |count| self.next.saturating_sub(count));
        self.deleted_before.max(self.truncate_before).max(newest)
    }

    fn shown(&self) -> impl Iterator<Item = (u64, &Kept)> {
        let floor = self.floor();
        self.kept.range(floor..).map(|(position, kept)| (*position, kept))
    }

    /// The last message stays, unless it is deleted.
    fn scavenge(&mut self) {
        let (floor, next, deleted_before) = (self.floor(), self.next, self.deleted_before);
        self.kept
            .retain(|position, _| *position >= floor || (*position + 1 == next && *position >= deleted_before));
    }

    async fn set_rule(&self, namespace: &Arc<dyn Namespace>, stream: &str) {
        let rule = Retention {
            max_age: None,
            max_count: self.max_count,
            truncate_before: Some(self.truncate_before).filter(|before| *before > 0),
        };
        let rule = (rule != Retention::default()).then_some(rule);
        namespace
            .set_retention(RetentionTarget::Stream(stream), rule)
            .await
            .unwrap();
    }
}

#[derive(Default)]
struct Model {
    streams: BTreeMap<String, StreamModel>,
    next_global: u64,
    /// Ids from the server, which encode the log offset, with their messages.
    ids: Vec<(MessageId, u64)>,
}

impl Model {
    async fn hold(&self, store: &EmbeddedStore, namespace: &Arc<dyn Namespace>, what: &str) {
        let mut expected: Vec<(u64, String, u64, String)> = Vec::new();
        for (name, stream) in &self.streams {
            let shown = stream.shown();
            expected.extend(shown.map(|(position, kept)| (kept.global, name.clone(), position, kept.data.clone())));
            let version = namespace.version(name).await.unwrap();
            assert_eq!(version, stream.next as i64 - 1, "{what}: {name}");
        }
        expected.sort();
        let found = all_of(namespace).await.into_iter().map(|stored| {
            let event = stored.event();
            (
                event.global,
                event.stream.to_owned(),
                event.position,
                event.data.to_owned(),
            )
        });
        assert_eq!(found.collect::<Vec<_>>(), expected, "{what}");
        let info = namespace.info().await.unwrap();
        let streams = self.streams.values().filter(|stream| stream.shown().next().is_some());
        assert_eq!(
            (info.messages, info.streams),
            (expected.len() as u64, streams.count() as u64),
            "{what}"
        );
        assert_eq!(namespace.watch().borrow().last, self.next_global, "{what}");
        for (id, global) in &self.ids {
            let found = namespace.by_id(id).await.unwrap();
            let is_shown = expected.iter().any(|(shown, ..)| shown == global);
            assert_eq!(found.is_some(), is_shown, "{what}: {id} at {global}");
        }
        is_healthy(store, what).await;
    }
}

async fn life(seed: u64, steps: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let disks = Disks::with_small_files();
    let mut store = disks.open().await;
    let mut model = Model::default();
    for step in 0..steps {
        let what = format!("seed {seed}, step {step}");
        let namespace = store.namespace(DEFAULT).await.unwrap();
        let name = format!("s-{}", chance.below(4));
        let stream = model.streams.entry(name.clone()).or_default();
        match chance.below(16) {
            0..6 => {
                for _ in 0..1 + chance.below(6) {
                    // In most lives, commit files fill up soon.
                    let filler = "x".repeat((chance.below(3) * 8000) as usize);
                    let data = format!("{{\"n\":{step},\"x\":\"{filler}\"}}");
                    let at = append_one(&namespace, &name, &data).await;
                    model.next_global += 1;
                    assert_eq!(
                        (at.first_position, at.first_global),
                        (stream.next, model.next_global),
                        "{what}"
                    );
                    let global = model.next_global;
                    stream.kept.insert(stream.next, Kept { global, data });
                    stream.next += 1;
                }
            }
            6..8 => {
                stream.max_count = (!chance.one_in(3)).then(|| 1 + chance.below(5));
                stream.set_rule(&namespace, &name).await;
            }
            8 => {
                stream.truncate_before = chance.below(stream.next + 2);
                stream.set_rule(&namespace, &name).await;
            }
            9 => {
                namespace
                    .delete_stream(&name, ExpectedVersion::Any, false)
                    .await
                    .unwrap();
                stream.deleted_before = stream.next;
            }
            10 | 11 => {
                store.scavenge().await.unwrap();
                model.streams.values_mut().for_each(StreamModel::scavenge);
            }
            12 => store.flush_indexes().await.unwrap(),
            13 if chance.one_in(2) => {
                // Interrupted after the marks were stored.
                store.flush_indexes().await.unwrap();
                disks.fail_indexes(true);
                let _ = store.scavenge().await;
                disks.fail_indexes(false);
                drop((store, namespace));
                model.streams.values_mut().for_each(StreamModel::scavenge);
                store = disks.open().await;
            }
            _ => {
                drop((store, namespace));
                if chance.one_in(2) {
                    disks.lose_indexes();
                }
                store = disks.open().await;
            }
        }
        if step % 4 == 0 {
            let namespace = store.namespace(DEFAULT).await.unwrap();
            let shown = all_of(&namespace).await;
            let known = model.ids.last().map_or(0, |(_, global)| *global);
            let new = shown
                .iter()
                .map(StoredEvent::event)
                .filter(|event| event.global > known);
            model.ids.extend(new.map(|event| (event.id.into(), event.global)));
            model.hold(&store, &namespace, &what).await;
        }
    }
}

#[test]
fn what_is_gone_never_returns_and_the_rest_is_never_lost() {
    lives(12, |seed| life(seed, 100));
}
