//! Backups of stores with a long history, during further changes, and their restores.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use thalweg_log::disk::RamDisk;
use thalweg_log::{Durability, EmbeddedLog, Log, LogOptions};

use super::super::test_support::all_of;
use super::super::{EmbeddedStore, EventsOptions, RestoreReport, restore};
use super::*;
use crate::backup::{BackupError, BackupReader};
use crate::id::{MessageId, Uuid};
use crate::store::*;
use crate::token::TokenDigest;

/// A log with some full files, which scavenging rewrites.
fn log() -> Arc<dyn Log> {
    log_of(1 << 20)
}

fn log_of(file_bytes: u64) -> Arc<dyn Log> {
    let options = LogOptions {
        folder: "memory".to_owned(),
        file_bytes,
        first_file_bytes: file_bytes,
        spare: 1,
        min_free_bytes: Some(0),
        linger: Duration::ZERO,
        scrub: Duration::ZERO,
        ..LogOptions::default()
    };
    Arc::new(EmbeddedLog::open(Arc::new(RamDisk::new(256 << 20)), 1, &options).unwrap())
}

async fn open(log: &Arc<dyn Log>) -> EmbeddedStore {
    let options = EventsOptions {
        durability: Durability::Fsync,
        in_memory: false,
        indexes: Some(Arc::new(RamDisk::new(256 << 20))),
        index_memory: 1 << 20,
        keep_deleted: false,
        accept_loss: false,
    };
    EmbeddedStore::open(log.clone(), options).await.unwrap()
}

async fn make(store: &EmbeddedStore, name: &str) -> Arc<dyn Namespace> {
    let new = NewNamespace {
        name: name.to_owned(),
        description: format!("{name} it is"),
        metadata: Some(format!("{{\"of\":\"{name}\"}}")),
        digest: TokenDigest::from_bytes([name.len() as u8; 32]),
        scopes: Scopes::READ_WRITE,
    };
    store.create(new).await.unwrap();
    store.namespace(name).await.unwrap()
}

async fn write(namespace: &Arc<dyn Namespace>, stream: &str, data: &[&str]) -> AppendOutcome {
    try_write(namespace, stream, data).await.unwrap()
}

async fn try_write(namespace: &Arc<dyn Namespace>, stream: &str, data: &[&str]) -> Result<AppendOutcome> {
    let events = data.iter().map(|data| NewEvent {
        id: None,
        kind: "Changed",
        data,
        metadata: None,
    });
    let append = Append {
        stream,
        expected: ExpectedVersion::Any,
        events: events.collect(),
    };
    Ok(namespace.append(&[append]).await?[0])
}

async fn finish(mut pieces: Box<dyn BackupPieces>) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await.unwrap() {
        bytes.extend_from_slice(&piece);
    }
    bytes
}

async fn backup(store: &EmbeddedStore) -> Vec<u8> {
    finish(store.backup().await.unwrap()).await
}

async fn try_restore(log: &Arc<dyn Log>, bytes: Vec<u8>) -> std::result::Result<RestoreReport, BackupError> {
    let log = log.clone();
    let restored = tokio::task::spawn_blocking(move || {
        let backup = BackupReader::new(&bytes[..])?;
        restore(&log, backup, &mut |_| {})
    });
    restored.await.unwrap()
}

async fn restored(bytes: Vec<u8>) -> EmbeddedStore {
    let log = log_of(16 << 20);
    let found = try_restore(&log, bytes).await.unwrap();
    let store = open(&log).await;
    store.has_restored(&found).unwrap();
    assert_eq!(store.verify().await.unwrap().faults, []);
    store
}

/// Everything that can be read, as text. `streams` can name streams without messages.
async fn everything(store: &EmbeddedStore, streams: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    let mut namespaces = store.namespaces().await.unwrap();
    namespaces.sort_by(|one, other| one.name().cmp(other.name()));
    for namespace in &namespaces {
        let name = namespace.name().to_owned();
        all.push(format!("{:?}", namespace.info().await.unwrap()));
        all.push(format!("{:?}", store.tokens(&name).await.unwrap()));
        all.push(format!("{:?}", namespace.categories().await.unwrap()));
        all.push(format!("{:?}", namespace.streams("", "", 1000).await.unwrap()));
        all.push(format!("last {}", namespace.watch().borrow().last));
        let stored = all_of(namespace).await;
        for message in &stored {
            let event = message.event();
            let own = namespace.by_id(&event.id.into()).await.unwrap();
            let own = own.map(|own| format!("{:?}", own.event()));
            assert_eq!(own, Some(format!("{event:?}")), "{name}");
            all.push(format!("{name} {event:?}"));
        }
        for stream in streams {
            let version = namespace.version(stream).await.unwrap();
            let rule = namespace.retention(RetentionTarget::Stream(stream)).await.unwrap();
            let of_category = namespace.retention(RetentionTarget::Category(stream)).await.unwrap();
            let read = StreamRead {
                stream,
                from: None,
                direction: Direction::Backward,
                max: 1000,
                types: &[],
            };
            let page = namespace.read_stream(read).await.unwrap();
            let positions: Vec<u64> = page.events.iter().map(|stored| stored.event().position).collect();
            all.push(format!(
                "{name} {stream} {version} {rule:?} {of_category:?} {positions:?}"
            ));
        }
        for document in namespace.documents("", "", 10_000).await.unwrap() {
            let content = namespace.document(&document).await.unwrap();
            all.push(format!("{name} {document} {content:?}"));
        }
    }
    all
}

/// Compares line by line, so that a difference is readable.
fn assert_same(one: &[String], other: &[String]) {
    for (one, other) in one.iter().zip(other) {
        assert_eq!(one, other);
    }
    assert_eq!(one.len(), other.len());
}

const STREAMS: [&str; 9] = ["a-1", "a-2", "a-3", "b-1", "gone-1", "dead-1", "in-1", "c-1", "none-1"];

/// Creates an example of everything that a namespace can contain.
async fn fill(namespace: &Arc<dyn Namespace>) {
    for n in 0..300 {
        let data = format!("{{\"n\":{n},\"long\":\"{}\"}}", "x".repeat(n * 7 % 1500));
        for stream in ["a-1", "b-1", "gone-1", "dead-1", "c-1"] {
            write(namespace, stream, &[&data, "{}"]).await;
        }
    }
    for n in 0..20u8 {
        let own = NewEvent {
            id: Some(MessageId::Uuid(Uuid([n; 16]))),
            kind: "Own",
            data: "{}",
            metadata: Some("{\"correlationStreamName\":\"c-9\"}"),
        };
        let append = Append {
            stream: "a-2",
            expected: ExpectedVersion::Any,
            events: vec![own],
        };
        namespace.append(&[append]).await.unwrap();
    }
    let imported = |global: u64| ImportRecord {
        id: Some(MessageId::of(&format!("text {global}"))),
        stream: "in-1".to_owned(),
        kind: "In".to_owned(),
        position: 10_000 - global / 10,
        global,
        data: "{}".to_owned(),
        metadata: None,
        time: 1_500_000_000_000_000,
    };
    let batch: Vec<ImportRecord> = (0..50).map(|n| imported(100_000 - 10 * n)).collect();
    namespace.import(&batch).await.unwrap();
    let count = Retention {
        max_count: Some(17),
        ..Retention::default()
    };
    let before = Retention {
        truncate_before: Some(9),
        ..Retention::default()
    };
    let age = Retention {
        max_age: Some(1_000_000_000_000),
        ..Retention::default()
    };
    namespace
        .set_retention(RetentionTarget::Stream("a-1"), Some(count))
        .await
        .unwrap();
    namespace
        .set_retention(RetentionTarget::Category("b"), Some(before))
        .await
        .unwrap();
    namespace
        .set_retention(RetentionTarget::Category("d"), Some(age))
        .await
        .unwrap();
    namespace
        .delete_stream("gone-1", ExpectedVersion::Any, false)
        .await
        .unwrap();
    namespace
        .delete_stream("dead-1", ExpectedVersion::Any, true)
        .await
        .unwrap();
    for n in 0..200u64 {
        let name = format!("snapshot/{}", n % 7);
        let revision = namespace
            .document(&name)
            .await
            .unwrap()
            .map_or(0, |found| found.revision);
        let content = vec![n as u8; 500];
        namespace
            .put_document(&name, Some(&content), revision)
            .await
            .unwrap()
            .unwrap();
    }
    let revision = namespace.document("snapshot/3").await.unwrap().unwrap().revision;
    namespace
        .put_document("snapshot/3", None, revision)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_that_can_be_read_and_what_is_written_next_is_the_same_in_what_was_restored() {
    let store = open(&log()).await;
    let names = ["default", "emptied", "scavenged", "refilled"];
    for name in names {
        fill(&make(&store, name).await).await;
    }
    make(&store, "never used").await;
    make(&store, "deleted").await;
    store.delete("deleted").await.unwrap();
    store.namespace("emptied").await.unwrap().clear().await.unwrap();
    let refilled = store.namespace("refilled").await.unwrap();
    refilled.clear().await.unwrap();
    write(&refilled, "a-3", &["{}", "{\"again\":true}"]).await;
    let token = NewToken {
        digest: TokenDigest::from_bytes([99; 32]),
        scopes: Scopes::ALL,
        description: "for a while".to_owned(),
        expires_at: Some(4_000_000_000_000_000),
    };
    store.create_token("default", token).await.unwrap();
    // In tables and in memory, and with offsets that are empty.
    store.scavenge().await.unwrap();
    let scavenged = store.namespace("scavenged").await.unwrap();
    scavenged
        .set_retention(RetentionTarget::Stream("a-1"), None)
        .await
        .unwrap();
    write(&scavenged, "a-3", &["{}"]).await;
    let before = everything(&store, &STREAMS).await;
    let bytes = backup(&store).await;
    let again = restored(bytes).await;
    assert_same(&before, &everything(&again, &STREAMS).await);
    for name in names {
        let (one, other) = (
            store.namespace(name).await.unwrap(),
            again.namespace(name).await.unwrap(),
        );
        for stream in ["a-1", "gone-1", "in-1", "new-1"] {
            assert_eq!(
                write(&one, stream, &["{}"]).await,
                write(&other, stream, &["{}"]).await,
                "{name} {stream}"
            );
        }
        let refused = try_write(&other, "dead-1", &["{}"]).await.is_err();
        assert_eq!(try_write(&one, "dead-1", &["{}"]).await.is_err(), refused);
        assert_eq!(refused, name != "emptied" && name != "refilled");
        let revisions = |namespace: Arc<dyn Namespace>| async move {
            namespace.put_document("snapshot/3", Some(b"new"), 0).await.unwrap()
        };
        assert_eq!(revisions(one).await, revisions(other).await, "{name}");
    }
    // A backup of the restored store is equivalent.
    let third = restored(backup(&again).await).await;
    assert_same(&everything(&again, &STREAMS).await, &everything(&third, &STREAMS).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_beside_writers_has_what_was_answered_before_it_and_whatever_that_came_from() {
    let store = Arc::new(open(&log()).await);
    let causes = make(&store, "causes").await;
    let effects = make(&store, "effects").await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (causes, effects, stop) = (causes.clone(), effects.clone(), stop.clone());
            tokio::spawn(async move {
                let mut count = 0u64;
                while !stop.load(SeqCst) {
                    let cause = write(&causes, &format!("c-{writer}"), &["{}", "{}"]).await;
                    let data = format!("{{\"after\":{}}}", cause.last_global());
                    write(&effects, &format!("e-{writer}"), &[&data]).await;
                    count += 1;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                count
            })
        })
        .collect();
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let answered = effects.watch().borrow().last;
        let pieces = store.backup().await.unwrap();
        let again = restored(finish(pieces).await).await;
        let (own_causes, own_effects) = (
            again.namespace("causes").await.unwrap(),
            again.namespace("effects").await.unwrap(),
        );
        let caused = all_of(&own_causes).await;
        let effected = all_of(&own_effects).await;
        for all in [&caused, &effected] {
            let globals: Vec<u64> = all.iter().map(|stored| stored.event().global).collect();
            assert_eq!(globals, (1..=all.len() as u64).collect::<Vec<_>>());
        }
        assert!(effected.len() as u64 >= answered);
        assert_eq!(caused.len() % 2, 0, "an append is there as a whole or not at all");
        for stored in &effected {
            let event = stored.event();
            let after = event.data.trim_start_matches("{\"after\":").trim_end_matches('}');
            assert!(after.parse::<u64>().unwrap() <= caused.len() as u64, "{event:?}");
        }
    }
    stop.store(true, SeqCst);
    for writer in writers {
        assert!(writer.await.unwrap() > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_cleared_deleted_or_changed_during_a_backup_is_in_it_as_it_was() {
    let log = log();
    let store = open(&log).await;
    for name in ["cleared", "deleted", "changed"] {
        fill(&make(&store, name).await).await;
    }
    let before = everything(&store, &STREAMS).await;
    let pieces = store.backup().await.unwrap();
    let partitions = log.partitions().len();
    let cleared = store.namespace("cleared").await.unwrap();
    cleared.clear().await.unwrap();
    write(&cleared, "a-1", &["{}"]).await;
    let deleted = store.namespace("deleted").await.unwrap();
    store.delete("deleted").await.unwrap();
    assert!(store.namespace("deleted").await.is_err());
    let refused = try_write(&deleted, "a-1", &["{}"]).await;
    assert!(matches!(refused, Err(EventsError::NamespaceNotFound(_))), "{refused:?}");
    let changed = store.namespace("changed").await.unwrap();
    let revision = changed.document("snapshot/1").await.unwrap().unwrap().revision;
    changed
        .put_document("snapshot/1", Some(b"later"), revision)
        .await
        .unwrap()
        .unwrap();
    changed.delete_stream("c-1", ExpectedVersion::Any, true).await.unwrap();
    store.flush_indexes().await.unwrap();
    assert_eq!(log.partitions().len(), partitions, "what is read is still there");
    let again = restored(finish(pieces).await).await;
    assert_same(&before, &everything(&again, &STREAMS).await);
    // When the backup ends, it releases what it held.
    while log.partitions().len() == partitions {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let first = || log.bounds(super::super::catalog::partition(1)).unwrap().first;
    store.scavenge().await.unwrap();
    assert_eq!(all_of(&cleared).await.len(), 1, "{}", first());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scavenging_waits_for_backups_and_these_do_not_wait_for_each_other() {
    let store = Arc::new(open(&log()).await);
    fill(&make(&store, "default").await).await;
    let (first, second) = (store.backup().await.unwrap(), store.backup().await.unwrap());
    let scavenging = {
        let store = store.clone();
        tokio::spawn(async move { store.scavenge().await })
    };
    let (first, second) = (finish(first).await, finish(second).await);
    let scavenged = scavenging.await.unwrap().unwrap();
    assert!(scavenged.messages > 0);
    let (one, other) = (restored(first).await, restored(second).await);
    assert_same(&everything(&one, &STREAMS).await, &everything(&other, &STREAMS).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_is_given_up_holds_nothing_any_more() {
    let store = open(&log()).await;
    fill(&make(&store, "default").await).await;
    let mut pieces = store.backup().await.unwrap();
    pieces.next().await.unwrap().unwrap();
    drop(pieces);
    store.scavenge().await.unwrap();
    assert!(!store.inner.place.backups.are_made());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_in_memory_is_restored_to_a_disk_that_syncs() {
    let options = EventsOptions {
        durability: Durability::Os,
        in_memory: true,
        indexes: None,
        index_memory: 1 << 20,
        keep_deleted: false,
        accept_loss: false,
    };
    let store = EmbeddedStore::open(log(), options).await.unwrap();
    fill(&make(&store, "default").await).await;
    let again = restored(backup(&store).await).await;
    assert_same(&everything(&store, &STREAMS).await, &everything(&again, &STREAMS).await);
    let partition = again.inner.opened("default").unwrap().namespace.partition;
    assert_eq!(again.inner.place.log.durability(partition).unwrap(), Durability::Fsync);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_with_namespaces_and_a_backup_without_its_end_are_refused() {
    let own = log();
    let store = open(&own).await;
    write(&make(&store, "default").await, "a-1", &["{}"]).await;
    let bytes = backup(&store).await;
    let refused = try_restore(&own, bytes.clone()).await.unwrap_err();
    assert!(
        refused.to_string().contains("already has namespaces of events"),
        "{refused}"
    );
    let cut = bytes[..bytes.len() - 1].to_vec();
    let refused = try_restore(&log(), cut).await.unwrap_err();
    assert!(refused.is_damage(), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_global_position_stays_known_though_its_message_is_scavenged() {
    let log = log();
    let store = open(&log).await;
    let namespace = make(&store, "default").await;
    write(&namespace, "a-1", &["{}", "{}"]).await;
    write(&namespace, "dead-1", &["{}", "{}"]).await;
    namespace
        .delete_stream("dead-1", ExpectedVersion::Any, true)
        .await
        .unwrap();
    store.scavenge().await.unwrap();
    drop((namespace, store));
    // With indexes that are rebuilt from the log alone.
    let store = open(&log).await;
    let namespace = store.namespace("default").await.unwrap();
    assert_eq!(write(&namespace, "a-1", &["{}"]).await.first_global, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_scavenged_is_in_no_restored_store_and_positions_go_on() {
    let log = log_of(16 << 20);
    let store = open(&log).await;
    let own = make(&store, "n").await;
    write(&own, "b-1", &["{\"n\":1}", "{\"n\":2}", "{\"n\":3}"]).await;
    write(&own, "a-1", &["{}", "{}"]).await;
    own.delete_stream("a-1", ExpectedVersion::Any, false).await.unwrap();
    let newest = Retention {
        max_count: Some(1),
        ..Retention::default()
    };
    let of = RetentionTarget::Stream("b-1");
    own.set_retention(of, Some(newest)).await.unwrap();
    assert_eq!(store.scavenge().await.unwrap().messages, 4);
    own.set_retention(of, None).await.unwrap();
    let store = restored(backup(&store).await).await;
    let own = store.namespace("n").await.unwrap();
    assert_eq!(all_of(&own).await.len(), 1);
    assert_eq!(
        (own.version("a-1").await.unwrap(), own.version("b-1").await.unwrap()),
        (1, 2)
    );
    let next = write(&own, "a-1", &["{}"]).await;
    assert_eq!((next.first_position, next.first_global), (2, 6));
    assert_eq!(store.verify().await.unwrap().faults, []);
}
