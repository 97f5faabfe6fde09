//! Compares the store with a model while its indexes are written, merged, lost and rebuilt.

mod disks;

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_log::PartitionId;
use thalweg_log::disk::{Disk as _, RamDisk};

use super::*;
use crate::id::MessageId;
use crate::names::{self, GroupMember};
use crate::store::*;
use crate::{StoredEvent, TokenDigest};

pub(super) use disks::{Disks, FrameOnDisk};

/// A deterministic random generator.
pub(super) struct Chance(pub u64);

impl Chance {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    id: String,
    stream: String,
    position: u64,
    global: u64,
    kind: String,
    data: String,
    metadata: Option<String>,
}

impl Told {
    fn of(stored: &StoredEvent) -> Told {
        let event = stored.event();
        Told {
            id: MessageId::from(event.id).to_string(),
            stream: event.stream.to_owned(),
            position: event.position,
            global: event.global,
            kind: event.kind.to_owned(),
            data: event.data.to_owned(),
            metadata: event.metadata.map(str::to_owned),
        }
    }
}

/// The expected content, by global position.
#[derive(Default)]
pub(super) struct Model {
    all: BTreeMap<u64, Told>,
    versions: BTreeMap<String, i64>,
    last_global: u64,
    /// The first visible position and the maximum count for each stream.
    floors: BTreeMap<String, u64>,
    counts: BTreeMap<String, u64>,
    documents: BTreeMap<String, (u64, Vec<u8>)>,
    /// The last revision of each document, including removed ones.
    revisions: BTreeMap<String, u64>,
}

impl Model {
    fn of_stream(&self, stream: &str) -> Vec<&Told> {
        let mut own: Vec<&Told> = self.all.values().filter(|told| told.stream == stream).collect();
        own.sort_by_key(|told| told.position);
        own
    }

    fn version(&self, stream: &str) -> i64 {
        self.versions.get(stream).copied().unwrap_or(-1)
    }

    fn next_global(&self) -> u64 {
        self.last_global + 1
    }

    /// Removes hidden messages for good, because rules here only become stricter.
    fn settle(&mut self) {
        for told in self.all.values() {
            let version = self.versions.entry(told.stream.clone()).or_insert(-1);
            *version = (*version).max(told.position as i64);
            self.last_global = self.last_global.max(told.global);
        }
        let (versions, floors, counts) = (&self.versions, &self.floors, &self.counts);
        self.all.retain(|_, told| {
            let next = (versions[&told.stream] + 1) as u64;
            let floor = floors.get(&told.stream).copied().unwrap_or(0);
            let newest = counts.get(&told.stream).map_or(0, |count| next.saturating_sub(*count));
            told.position >= floor.max(newest)
        });
    }

    fn clear(&mut self) {
        self.all.clear();
        self.versions.clear();
        self.last_global = 0;
    }
}

const KINDS: [&str; 3] = ["Opened", "Changed", "Closed"];

fn a_stream(chance: &mut Chance) -> String {
    match chance.below(8) {
        0 => "alone".to_owned(),
        1 => format!("a-{}+x", chance.below(5)),
        2 => format!("b-{}", chance.below(40)),
        _ => format!("a-{}", chance.below(12)),
    }
}

fn an_id(chance: &mut Chance) -> Option<MessageId> {
    match chance.below(3) {
        0 => {
            let mut bytes = [0; 16];
            bytes.fill_with(|| chance.below(256) as u8);
            Some(MessageId::Uuid(crate::Uuid(bytes)))
        }
        _ => None,
    }
}

pub(super) async fn append(namespace: &Arc<dyn Namespace>, model: &mut Model, chance: &mut Chance) {
    let mut streams: Vec<String> = (0..1 + chance.below(3)).map(|_| a_stream(chance)).collect();
    streams.sort();
    streams.dedup();
    let mut parts = Vec::new();
    for stream in &streams {
        let many = chance.one_in(10);
        let count = 1 + chance.below(if many { 400 } else { 4 });
        let events: Vec<_> = (0..count)
            .map(|n| {
                let metadata = chance
                    .one_in(3)
                    .then(|| format!("{{\"correlationStreamName\":\"c{}-1\"}}", chance.below(3)));
                (
                    an_id(chance),
                    KINDS[chance.below(3) as usize],
                    format!("{{\"n\":{n}}}"),
                    metadata,
                )
            })
            .collect();
        let version = model.version(stream);
        let (expected, fits) = match chance.below(4) {
            0 => (ExpectedVersion::Version(version), true),
            1 => (ExpectedVersion::Version(version + 1), false),
            2 => (ExpectedVersion::NoStream, version < 0),
            _ => (ExpectedVersion::Any, true),
        };
        parts.push((stream, expected, fits, events));
    }
    let appends: Vec<Append<'_>> = parts
        .iter()
        .map(|(stream, expected, _, events)| Append {
            stream,
            expected: *expected,
            events: events
                .iter()
                .map(|(id, kind, data, metadata)| NewEvent {
                    id: id.clone(),
                    kind,
                    data,
                    metadata: metadata.as_deref(),
                })
                .collect(),
        })
        .collect();
    let done = namespace.append(&appends).await;
    if parts.iter().any(|(_, _, fits, _)| !fits) {
        assert!(matches!(done, Err(EventsError::VersionConflict { .. })), "{done:?}");
        return;
    }
    for (place, append) in done.unwrap().iter().zip(&appends) {
        assert_eq!(place.first_position as i64, model.version(append.stream) + 1);
        assert_eq!(place.first_global, model.next_global());
        for (event, n) in append.events.iter().zip(0..) {
            let told = Told {
                id: event.id.as_ref().map(ToString::to_string).unwrap_or_default(),
                stream: append.stream.to_owned(),
                position: place.first_position + n,
                global: place.first_global + n,
                kind: event.kind.to_owned(),
                data: event.data.to_owned(),
                metadata: event.metadata.map(str::to_owned),
            };
            model.all.insert(told.global, told);
        }
        model.settle();
    }
    if chance.one_in(4)
        && appends
            .iter()
            .all(|append| append.events.iter().all(|event| event.id.is_some()))
    {
        let again = namespace.append(&appends).await.unwrap();
        assert!(again.iter().all(|place| place.duplicate), "{again:?}");
    }
}

async fn import(namespace: &Arc<dyn Namespace>, model: &mut Model, chance: &mut Chance) {
    let base = model.next_global();
    let batch: Vec<ImportRecord> = (0..1 + chance.below(30))
        .map(|n| {
            let stream = a_stream(chance);
            let position = match chance.below(3) {
                0 => chance.below(50),
                _ => (model.version(&stream) + 1) as u64 + n + chance.below(3),
            };
            ImportRecord {
                id: an_id(chance),
                kind: KINDS[chance.below(3) as usize].to_owned(),
                position,
                global: match chance.below(3) {
                    0 => 1 + chance.below(base),
                    _ => base + chance.below(200),
                },
                data: "{}".to_owned(),
                metadata: None,
                time: 5,
                stream,
            }
        })
        .collect();
    let mut next: BTreeMap<u64, Told> = model.all.clone();
    let taken = batch.iter().position(|import| {
        let same = |told: &Told| told.stream == import.stream && told.position == import.position;
        let is_taken = next.contains_key(&import.global) || next.values().any(same);
        let told = Told {
            id: import.id.as_ref().map(ToString::to_string).unwrap_or_default(),
            stream: import.stream.clone(),
            position: import.position,
            global: import.global,
            kind: import.kind.clone(),
            data: import.data.clone(),
            metadata: None,
        };
        next.insert(import.global, told);
        is_taken
    });
    let done = namespace.import(&batch).await;
    match taken {
        Some(first) => assert!(
            matches!(done, Err(EventsError::Taken { record, .. }) if record == first),
            "{first} {done:?}"
        ),
        None => {
            done.unwrap();
            model.all = next;
        }
    }
}

async fn hide(namespace: &Arc<dyn Namespace>, model: &mut Model, chance: &mut Chance) {
    let stream = a_stream(chance);
    let version = model.version(&stream);
    match chance.below(3) {
        0 => {
            namespace
                .delete_stream(&stream, ExpectedVersion::Version(version), false)
                .await
                .unwrap();
            let floor = model.floors.entry(stream).or_default();
            *floor = (*floor).max((version + 1) as u64);
        }
        n => {
            let rule = namespace
                .retention(RetentionTarget::Stream(&stream))
                .await
                .unwrap()
                .unwrap_or_default();
            let rule = match n {
                1 => Retention {
                    max_count: Some(rule.max_count.unwrap_or(8).saturating_sub(chance.below(3)).max(1)),
                    ..rule
                },
                _ => Retention {
                    truncate_before: rule.truncate_before.max(Some((version + 1) as u64 / 2)),
                    ..rule
                },
            };
            namespace
                .set_retention(RetentionTarget::Stream(&stream), Some(rule))
                .await
                .unwrap();
            let floor = model.floors.entry(stream.clone()).or_default();
            *floor = (*floor).max(rule.truncate_before.unwrap_or(0));
            if let Some(count) = rule.max_count {
                model.counts.insert(stream, count);
            }
        }
    }
}

async fn document(namespace: &Arc<dyn Namespace>, model: &mut Model, chance: &mut Chance) {
    let name = format!("thing/{}", chance.below(20));
    let known = model.documents.get(&name).map_or(0, |(revision, _)| *revision);
    let expected = if chance.one_in(4) { known + 1 } else { known };
    let content = (!chance.one_in(4)).then(|| vec![chance.below(256) as u8; 5]);
    let done = namespace
        .put_document(&name, content.as_deref(), expected)
        .await
        .unwrap();
    if expected != known {
        assert_eq!(done, None);
        return;
    }
    let revision = done.unwrap();
    let last = model.revisions.insert(name.clone(), revision);
    assert!(last < Some(revision), "{name}: {revision} behind {last:?}");
    match content {
        Some(content) => model.documents.insert(name, (revision, content)),
        None => model.documents.remove(&name),
    };
}

async fn whole_stream(namespace: &Arc<dyn Namespace>, mut read: StreamRead<'_>) -> Vec<Told> {
    let mut found = Vec::new();
    loop {
        let page = namespace.read_stream(read).await.unwrap();
        found.extend(page.events.iter().map(Told::of));
        let Some(next) = page.next.filter(|_| found.len() < 5000) else {
            break;
        };
        read.from = Some(StreamPosition::Position(next));
    }
    found
}

async fn whole_category(namespace: &Arc<dyn Namespace>, mut read: CategoryRead<'_>) -> Vec<Told> {
    let mut found = Vec::new();
    loop {
        let page = namespace.read_category(read).await.unwrap();
        found.extend(page.events.iter().map(Told::of));
        let Some(next) = page.next else { break };
        read.from = Some(next);
    }
    found
}

/// Ids from the server are accepted as they are.
fn same(found: &[Told], expected: &[&Told], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let mut found = found.clone();
        if expected.id.is_empty() {
            found.id.clear();
        }
        assert_eq!(&found, *expected, "{what}");
    }
}

pub(super) async fn check(store: &EmbeddedStore, namespace: &Arc<dyn Namespace>, model: &Model, chance: &mut Chance) {
    if chance.one_in(4) {
        assert_eq!(store.verify().await.unwrap().faults, []);
    }
    let info = namespace.info().await.unwrap();
    let mut streams: Vec<&str> = model.all.values().map(|told| told.stream.as_str()).collect();
    streams.sort_unstable();
    streams.dedup();
    assert_eq!(
        (info.messages, info.streams),
        (model.all.len() as u64, streams.len() as u64)
    );
    let kinds = vec![KINDS[chance.below(3) as usize].to_owned()];
    let of_kind = |told: &&&Told, types: &[String]| types.is_empty() || types.contains(&told.kind);
    for stream in streams.iter().take(8).chain(&["a-none"]) {
        let own = model.of_stream(stream);
        assert_eq!(
            namespace.version(stream).await.unwrap(),
            model.version(stream),
            "{stream}"
        );
        for types in [&[][..], &kinds] {
            let read = StreamRead {
                stream,
                from: None,
                direction: Direction::Forward,
                max: 1 + chance.below(700) as usize,
                types,
            };
            let forward: Vec<&Told> = own.iter().filter(|told| of_kind(told, types)).copied().collect();
            let backward: Vec<&Told> = forward.iter().rev().copied().collect();
            same(&whole_stream(namespace, read).await, &forward, stream);
            let back = StreamRead {
                direction: Direction::Backward,
                ..read
            };
            same(&whole_stream(namespace, back).await, &backward, stream);
            let last = namespace.last(stream, types.first().map(String::as_str)).await.unwrap();
            same(
                &last.iter().map(Told::of).collect::<Vec<_>>(),
                &backward[..backward.len().min(1)],
                stream,
            );
            let global = chance.below(model.next_global() + 2);
            let read = StreamRead {
                from: Some(StreamPosition::Global(global)),
                max: 9,
                ..read
            };
            let page = namespace.read_stream(read).await.unwrap();
            let found: Vec<Told> = page.events.iter().map(Told::of).collect();
            let after: Vec<&Told> = forward
                .iter()
                .filter(|told| told.global >= global)
                .take(9)
                .copied()
                .collect();
            same(&found, &after, stream);
        }
    }
    for category in [None, Some("a"), Some("b"), Some("alone"), Some("none")] {
        let member = chance.one_in(2).then(|| GroupMember {
            number: chance.below(2),
            of: 2,
        });
        let correlation = chance.one_in(3).then_some("c1");
        let read = CategoryRead {
            category,
            from: Some(chance.below(model.next_global() + 2)),
            direction: if chance.one_in(2) {
                Direction::Forward
            } else {
                Direction::Backward
            },
            max: 1 + chance.below(500) as usize,
            correlation,
            member,
            types: if chance.one_in(3) { &kinds } else { &[] },
        };
        let from = read.from.unwrap();
        let mut expected: Vec<&Told> = model.all.values().collect();
        expected.retain(|told| {
            category.is_none_or(|category| names::category(&told.stream) == category)
                && member.is_none_or(|member| member.owns(&told.stream))
                && correlation.is_none_or(|_| told.metadata.as_ref().is_some_and(|text| text.contains("c1-1")))
                && of_kind(&told, read.types)
                && match read.direction {
                    Direction::Forward => told.global >= from,
                    Direction::Backward => told.global <= from,
                }
        });
        if read.direction == Direction::Backward {
            expected.reverse();
        }
        same(&whole_category(namespace, read).await, &expected, &format!("{read:?}"));
    }
    for told in model.all.values().filter(|_| chance.one_in(20)).take(20) {
        if let Some(id) = Some(MessageId::of(&told.id)).filter(|_| !told.id.is_empty()) {
            let found = namespace.by_id(&id).await.unwrap().unwrap();
            same(&[Told::of(&found)], &[told], "by its id");
        }
    }
    let everything = CategoryRead {
        category: None,
        from: None,
        direction: Direction::Backward,
        max: 30,
        correlation: None,
        member: None,
        types: &[],
    };
    for stored in namespace.read_category(everything).await.unwrap().events {
        let id = MessageId::from(stored.event().id);
        let found = namespace.by_id(&id).await.unwrap().unwrap();
        assert_eq!(Told::of(&found), Told::of(&stored));
    }
    check_names(namespace, model, &streams, chance).await;
}

async fn check_names(namespace: &Arc<dyn Namespace>, model: &Model, streams: &[&str], chance: &mut Chance) {
    let (prefix, max) = (
        ["", "a", "a-1", "z"][chance.below(4) as usize],
        1 + chance.below(9) as usize,
    );
    let expected: Vec<&str> = streams
        .iter()
        .filter(|name| name.starts_with(prefix))
        .copied()
        .collect();
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = namespace.streams(prefix, &cursor, max).await.unwrap();
        let Some(last) = page.last() else { break };
        cursor = last.stream.clone();
        for info in page {
            assert_eq!(info.version as i64, model.version(&info.stream));
            found.push(info.stream);
        }
    }
    assert_eq!(found, expected);
    let mut categories: BTreeMap<String, (u64, Vec<&str>)> = BTreeMap::new();
    for told in model.all.values() {
        let category = categories.entry(names::category(&told.stream).to_owned()).or_default();
        category.0 += 1;
        category.1.push(&told.stream);
    }
    let found = namespace.categories().await.unwrap();
    let found: Vec<_> = found
        .into_iter()
        .map(|info| (info.category, info.messages, info.streams))
        .collect();
    let expected: Vec<_> = categories
        .into_iter()
        .map(|(name, (messages, mut streams))| {
            streams.sort_unstable();
            streams.dedup();
            (name, messages, streams.len() as u64)
        })
        .collect();
    assert_eq!(found, expected);
    let names = namespace.documents("thing/", "", 100).await.unwrap();
    assert_eq!(names, model.documents.keys().cloned().collect::<Vec<_>>());
    for (name, (revision, content)) in &model.documents {
        let found = namespace.document(name).await.unwrap().unwrap();
        assert_eq!(
            (found.revision, &found.content[..]),
            (*revision, &content[..]),
            "{name}"
        );
    }
}

/// Damages an index.
fn damage(disk: &RamDisk, chance: &mut Chance) {
    let names = disk.names().unwrap();
    let Some(name) = names.get(chance.below(names.len().max(1) as u64) as usize) else {
        return;
    };
    match chance.below(3) {
        0 => disk.remove(name).unwrap(),
        _ => {
            // Near its end, which is read at the start.
            let file = disk.open(name).unwrap();
            let at = file.len().unwrap().saturating_sub(1 + chance.below(60));
            let mut byte = [0];
            file.read_at(&mut byte, at).unwrap();
            file.write_at(&[byte[0] ^ 0x10], at).unwrap();
        }
    }
}

async fn life(seed: u64, steps: u64) {
    let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let disks = Disks::new();
    let mut model = Model::default();
    let mut store = disks.open().await;
    // Imports can reuse positions of scavenged messages at a time that the model does not know, so they have separate
    // lives.
    let hides = seed % 2 == 1;
    for step in 0..steps {
        let namespace = store.namespace(DEFAULT).await.unwrap();
        match chance.below(20) {
            0..10 => append(&namespace, &mut model, &mut chance).await,
            10..12 if hides => hide(&namespace, &mut model, &mut chance).await,
            12 if hides => drop(store.scavenge().await.unwrap()),
            10..13 => import(&namespace, &mut model, &mut chance).await,
            13..15 => document(&namespace, &mut model, &mut chance).await,
            15..17 => store.flush_indexes().await.unwrap(),
            17 => {
                let all = tokio::join!(store.flush_indexes(), store.flush_indexes());
                all.0.and(all.1).unwrap();
            }
            18 if chance.one_in(6) => {
                namespace.clear().await.unwrap();
                // Rules survive a clearing and would hide the new lower positions, so they are removed here.
                if hides {
                    for of in model.floors.keys().chain(model.counts.keys()) {
                        namespace
                            .set_retention(RetentionTarget::Stream(of), None)
                            .await
                            .unwrap();
                    }
                    model.floors.clear();
                    model.counts.clear();
                }
                model.clear();
            }
            18 => {
                let inner = store.inner.clone();
                let merged = tokio::task::spawn_blocking(move || inner.place.table_store.merge(&|_| true));
                merged.await.unwrap().unwrap();
            }
            _ => {
                drop(namespace);
                test_support::closed(store).await;
                if chance.one_in(4) {
                    damage(&disks.indexes, &mut chance);
                }
                let modes = [Durability::Fsync, Durability::Interval, Durability::Os];
                let mode = chance.below(modes.len() as u64) as usize;
                store = disks.open_with(modes[mode]).await;
            }
        }
        model.settle();
        if step % 7 == 0 {
            let namespace = store.namespace(DEFAULT).await.unwrap();
            check(&store, &namespace, &model, &mut chance).await;
        }
    }
}

#[test]
fn a_store_whose_indexes_are_written_merged_and_lost_is_what_its_model_is() {
    test_support::lives(12, |seed| life(seed, 120));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_namespace_takes_no_memory_of_the_indexes() {
    let disks = Disks::new();
    let store = disks.open().await;
    let before = store.index_sizes();
    let new = NewNamespace {
        name: "a".to_owned(),
        description: String::new(),
        metadata: None,
        digest: TokenDigest::from_bytes([8; 32]),
        scopes: Scopes::ALL,
    };
    store.create(new).await.unwrap();
    let namespace = store.namespace("a").await.unwrap();
    let event = NewEvent {
        id: None,
        kind: "T",
        data: "{}",
        metadata: None,
    };
    let appends = [Append {
        stream: "a-1",
        expected: ExpectedVersion::Any,
        events: vec![event],
    }];
    namespace.append(&appends).await.unwrap();
    assert!(store.index_sizes().behind_bytes > before.behind_bytes);
    drop(namespace);
    store.delete("a").await.unwrap();
    for _ in 0..1000 {
        if store.index_sizes() == before {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("{:?} and not {before:?}", store.index_sizes());
}

/// Backups and scavenging also write tables, concurrently with the background task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_writes_a_table_before_another_has_tidied_up_writes_nothing_twice() {
    let disks = Disks::new();
    let store = disks.open().await;
    let mut model = Model::default();
    let namespace = store.namespace(DEFAULT).await.unwrap();
    for seed in 1..=20 {
        append(&namespace, &mut model, &mut Chance(seed)).await;
    }
    assert!(store.index_sizes().behind_bytes > 0);
    let inner = store.inner.clone();
    let twice = tokio::task::spawn_blocking(move || {
        for _ in 0..2 {
            let freeze = || inner.all().iter().filter_map(|own| own.freeze()).collect();
            inner.place.table_store.flush(freeze, &|_| true).unwrap();
        }
    });
    twice.await.unwrap();
    let sizes = store.index_sizes();
    assert_eq!((sizes.tables, sizes.behind_bytes), (1, 0), "{sizes:?}");
    check(&store, &namespace, &model, &mut Chance(1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_start_promises_holds_for_all_that_is_there() {
    let disks = Disks::new();
    for mode in [Durability::Os, Durability::Fsync, Durability::Interval] {
        let store = disks.open_with(mode).await;
        let log = &store.inner.place.log;
        let own: Vec<_> = log
            .partitions()
            .into_iter()
            .filter(|id| id.queue >= PartitionId::EVENTS)
            .collect();
        assert_eq!(own.len(), 2, "the catalogue and a namespace");
        for id in own {
            assert_eq!(log.durability(id).unwrap(), mode, "{id}");
        }
    }
}
