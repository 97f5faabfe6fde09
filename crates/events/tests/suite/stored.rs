//! Every later version reads what each version of the format has stored: messages, rules, deletions, scavenge marks,
//! subscriptions, snapshots and tokens, with the indexes of that version and without them.
//!
//! A fixture consists of the two folders that [`write`] created, with files stripped of trailing zeros and named with
//! their sizes. Each format version gets a fixture of its own; none is ever rewritten.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thalweg_events::snapshot::{self, Snapshot};
use thalweg_events::subscription::{DeliveryStrategy, Nack, SubscriptionSettings, SubscriptionSource};
use thalweg_events::{
    Append, CategoryRead, DEFAULT, Direction, EmbeddedStore, EventsError, EventsOptions, ExpectedVersion, FetchRequest,
    MessageId, Namespace, NewEvent, NewNamespace, NewToken, Retention, RetentionTarget, Scopes, Store as _,
    StoredEvent, Subscriptions, TokenDigest,
};
use thalweg_log::disk::FolderDisk;
use thalweg_log::{Durability, EmbeddedLog, Log, LogOptions};
use tokio::time::Instant;

/// Oldest first. Format 1 had no marks and no deletions of streams without messages; the log of format 3 has lost a
/// clearing.
const FIXTURES: [&str; 2] = ["events-2", "events-3"];
const FILE: u64 = 64 << 10;

fn fixture(name: &str) -> PathBuf {
    // Cargo names the package folder at run time; the one from compile time may be of another clone.
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    own.join("tests/fixtures").join(name)
}

async fn open(folder: &Path) -> (EmbeddedStore, Arc<EmbeddedLog>) {
    open_as(folder, false).await
}

async fn open_as(folder: &Path, accept_loss: bool) -> (EmbeddedStore, Arc<EmbeddedLog>) {
    for part in ["log", "indexes"] {
        std::fs::create_dir_all(folder.join(part)).unwrap();
    }
    let options = LogOptions {
        file_bytes: FILE,
        first_file_bytes: FILE,
        spare: 1,
        min_free_bytes: Some(0),
        scrub: Duration::ZERO,
        ..LogOptions::default()
    };
    let disk = Arc::new(FolderDisk::open(folder.join("log")).unwrap());
    let log = Arc::new(EmbeddedLog::open(disk, 7, &options).unwrap());
    options.clock.resume(log.as_ref()).await.unwrap();
    let options = EventsOptions {
        durability: Durability::Fsync,
        in_memory: false,
        indexes: Some(Arc::new(FolderDisk::open(folder.join("indexes")).unwrap())),
        index_memory: 1 << 20,
        keep_deleted: false,
        accept_loss,
    };
    let store = EmbeddedStore::open(log.clone() as Arc<dyn Log>, options).await.unwrap();
    (store, log)
}

async fn close(store: EmbeddedStore, log: Arc<EmbeddedLog>) {
    drop(store);
    while Arc::strong_count(&log) > 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::task::spawn_blocking(move || log.close()).await.unwrap();
}

fn digest(n: u8) -> TokenDigest {
    TokenDigest::from_bytes([n; 32])
}

fn data(n: u64) -> String {
    format!("{{\"n\":{n},\"x\":\"{}\"}}", "x".repeat(900))
}

async fn append(namespace: &Arc<dyn Namespace>, stream: &str, numbers: std::ops::Range<u64>) {
    let texts: Vec<String> = numbers.clone().map(data).collect();
    let events = numbers.zip(&texts).map(|(n, data)| NewEvent {
        id: (n % 3 == 0).then(|| MessageId::of(&format!("id {n}"))),
        kind: if n % 2 == 0 { "Even" } else { "Odd" },
        data,
        metadata: (n % 5 == 0).then_some("{\"correlationStreamName\":\"run-1\"}"),
    });
    let append = Append {
        stream,
        expected: ExpectedVersion::Any,
        events: events.collect(),
    };
    namespace.append(&[append]).await.unwrap();
}

fn ask(max: usize) -> FetchRequest {
    FetchRequest {
        consumer: "c".into(),
        max,
        held: Vec::new(),
    }
}

fn kept() -> Snapshot {
    Snapshot {
        version: 7,
        kind: "Cart".to_owned(),
        data: "{\"v\":7}".to_owned(),
        time: 1_795_000_000_000_000,
    }
}

/// Writes a catalog with several namespaces and a token, and in one namespace streams with rules, deleted streams, and
/// documents. The log then loses the clearing of another namespace.
async fn write(folder: &Path) {
    let (store, log) = open(folder).await;
    for (name, n) in [(DEFAULT, 1), ("other", 2), ("gone", 3), ("cleared", 4)] {
        let new = NewNamespace {
            name: name.to_owned(),
            description: format!("the namespace {name}"),
            metadata: Some("{\"a\":1}".to_owned()),
            digest: digest(n),
            scopes: Scopes::ALL,
        };
        store.create(new).await.unwrap();
    }
    let token = NewToken {
        digest: digest(9),
        scopes: Scopes::READ_WRITE,
        description: "second".to_owned(),
        expires_at: None,
    };
    store.create_token("other", token).await.unwrap();
    store.delete("gone").await.unwrap();
    let other = store.namespace("other").await.unwrap();
    append(&other, "o-1", 0..3).await;
    other.clear().await.unwrap();
    append(&other, "o-2", 3..5).await;
    drop(other);
    let own = store.namespace(DEFAULT).await.unwrap();
    for n in 0..30 {
        append(&own, &format!("a-{}", n % 3), 4 * n..4 * n + 4).await;
    }
    append(&own, "b-1", 200..203).await;
    append(&own, "b-2", 203..206).await;
    let newest = Retention {
        max_count: Some(5),
        ..Retention::default()
    };
    own.set_retention(RetentionTarget::Stream("a-0"), Some(newest))
        .await
        .unwrap();
    let behind = Retention {
        truncate_before: Some(1),
        ..Retention::default()
    };
    own.set_retention(RetentionTarget::Category("b"), Some(behind))
        .await
        .unwrap();
    own.delete_stream("a-1", ExpectedVersion::Any, false).await.unwrap();
    own.delete_stream("b-2", ExpectedVersion::Any, true).await.unwrap();
    store.flush_indexes().await.unwrap();
    // The marks stay, because the newest file is not rewritten. The rule is removed, so that only the marks say what is
    // gone.
    store.scavenge().await.unwrap();
    own.set_retention(RetentionTarget::Stream("a-0"), None).await.unwrap();
    append(&own, "a-1", 300..302).await;
    let subscriptions = Subscriptions::default();
    let settings = SubscriptionSettings {
        source: SubscriptionSource::Category("a".to_owned()),
        from: 1,
        strategy: DeliveryStrategy::RoundRobin,
        ack_timeout: 3_600_000_000,
        max_attempts: 5,
        max_in_flight: 100,
        types: Vec::new(),
        correlation: None,
    };
    subscriptions.create(&own, "s", settings).await.unwrap();
    let fetched = subscriptions.fetch(&own, "s", ask(4), Instant::now()).await.unwrap();
    let leases: Vec<_> = fetched.messages.iter().map(|message| message.lease).collect();
    subscriptions.ack(&own, "s", leases[..2].to_vec()).await.unwrap();
    let park = Nack::Park {
        reason: "bad".to_owned(),
    };
    subscriptions
        .nack(&own, "s", leases[2..3].to_vec(), park)
        .await
        .unwrap();
    snapshot::put(own.as_ref(), "a-2", &kept()).await.unwrap();
    drop(own);
    // Scavenging would remove the messages as well.
    let lost = clear_one(folder, &store).await;
    close(store, log).await;
    lose(folder, &lost).await;
}

/// Clears a namespace so that only a document will record it.
async fn clear_one(folder: &Path, store: &EmbeddedStore) -> ByteOfLog {
    let cleared = store.namespace("cleared").await.unwrap();
    // With a document, cleared messages stay in the log.
    cleared.put_document("kept", Some(b"x"), 0).await.unwrap();
    append(&cleared, "c-1", 6..9).await;
    let before = log_files(folder);
    cleared.clear().await.unwrap();
    let lost = last_changed(&before, &log_files(folder));
    cleared.put_document("later", Some(b"x"), 0).await.unwrap();
    store.flush_indexes().await.unwrap();
    lost
}

/// The position of a byte in a log file.
struct ByteOfLog {
    file: PathBuf,
    at: usize,
}

type Files = BTreeMap<PathBuf, Vec<u8>>;

fn log_files(folder: &Path) -> Files {
    let entries = std::fs::read_dir(folder.join("log")).unwrap().flatten();
    // Spare files come and go.
    let read = entries.filter_map(|entry| Some((entry.path(), std::fs::read(entry.path()).ok()?)));
    read.collect()
}

/// The last byte that changed in the only changed commit file.
fn last_changed(before: &Files, after: &Files) -> ByteOfLog {
    let is_of_commits = |file: &Path| {
        file.file_name()
            .is_some_and(|name| name.to_str().unwrap().starts_with("commit-"))
    };
    let commits = after.iter().filter(|(file, _)| is_of_commits(file));
    let mut changed = commits.filter_map(|(file, bytes)| {
        let old = before.get(file)?;
        let at = (0..bytes.len()).rev().find(|at| bytes[*at] != old[*at])?;
        let file = file.clone();
        Some(ByteOfLog { file, at })
    });
    let found = changed.next().unwrap();
    assert!(changed.next().is_none());
    found
}

/// Damages a record of the log. A start that accepts the loss then stores what the indexes know about it.
async fn lose(folder: &Path, lost: &ByteOfLog) {
    let mut bytes = std::fs::read(&lost.file).unwrap();
    bytes[lost.at] ^= 0x55;
    std::fs::write(&lost.file, bytes).unwrap();
    let disk = FolderDisk::open(folder.join("log")).unwrap();
    thalweg_log::repair(&disk, true, &mut |_, _| {}).unwrap();
    let (store, log) = open_as(folder, true).await;
    close(store, log).await;
    let says_again = |bytes: &Vec<u8>| memchr::memmem::find(bytes, b"~cleared").is_some();
    assert!(log_files(folder).values().any(says_again));
}

fn pack(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let bytes = std::fs::read(entry.path()).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let name = format!("{}.{}", entry.file_name().to_str().unwrap(), bytes.len());
        std::fs::write(to.join(name), &bytes[..used]).unwrap();
    }
}

fn unpack(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let packed = entry.file_name().into_string().unwrap();
        let (name, size) = packed.rsplit_once('.').unwrap();
        let mut bytes = std::fs::read(entry.path()).unwrap();
        bytes.resize(size.parse().unwrap(), 0);
        std::fs::write(to.join(name), bytes).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes a fixture, once for each version of the format"]
async fn the_fixture_of_this_format_is_written() {
    let fixture = fixture(FIXTURES[FIXTURES.len() - 1]);
    assert!(!fixture.exists(), "a fixture is never written again");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path()).await;
    for part in ["log", "indexes"] {
        pack(&folder.path().join(part), &fixture.join(part));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_every_format_is_read_with_its_indexes_and_without() {
    for name in FIXTURES {
        for indexes in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            unpack(&fixture(name).join("log"), &folder.path().join("log"));
            if indexes {
                unpack(&fixture(name).join("indexes"), &folder.path().join("indexes"));
            }
            let (store, log) = open(folder.path()).await;
            reads_as_it_was(&store, &format!("{name}, with its indexes: {indexes}")).await;
            close(store, log).await;
        }
    }
}

async fn everything(namespace: &Arc<dyn Namespace>, what: &str) -> Vec<StoredEvent> {
    let read = CategoryRead {
        category: None,
        from: None,
        direction: Direction::Forward,
        max: 1000,
        correlation: None,
        member: None,
        types: &[],
    };
    let page = namespace.read_category(read).await.unwrap();
    assert_eq!(page.next, None, "{what}");
    page.events
}

async fn reads_as_it_was(store: &EmbeddedStore, what: &str) {
    let mut names: Vec<String> = Vec::new();
    for namespace in store.namespaces().await.unwrap() {
        let info = namespace.info().await.unwrap();
        assert_eq!(info.description, format!("the namespace {}", info.name), "{what}");
        assert_eq!(info.metadata.as_deref(), Some("{\"a\":1}"), "{what}");
        names.push(info.name);
    }
    names.sort();
    match what.starts_with("events-2") {
        true => assert_eq!(names, [DEFAULT, "other"], "{what}"),
        false => {
            assert_eq!(names, ["cleared", DEFAULT, "other"], "{what}");
            let cleared = store.namespace("cleared").await.unwrap();
            assert!(everything(&cleared, what).await.is_empty(), "{what}");
        }
    }
    let tokens = store.tokens("other").await.unwrap();
    let tokens: Vec<(&str, bool)> = tokens
        .iter()
        .map(|token| (&*token.description, token.scopes.admin))
        .collect();
    assert_eq!(tokens, [("Made with the namespace", true), ("second", false)], "{what}");

    let other = store.namespace("other").await.unwrap();
    let shown = everything(&other, what).await;
    let places: Vec<(u64, u64)> = shown
        .iter()
        .map(|stored| (stored.event().position, stored.event().global))
        .collect();
    assert_eq!(places, [(0, 1), (1, 2)], "{what}: of a namespace that was cleared");

    let own = store.namespace(DEFAULT).await.unwrap();
    // By stream: the newest five, none from before the deletion, all, and all but the first.
    let expected: Vec<u64> = (0..120)
        .filter(|n| n / 4 % 3 == 0)
        .rev()
        .take(5)
        .chain((0..120).filter(|n| n / 4 % 3 == 2))
        .chain([201, 202, 300, 301])
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    let shown = everything(&own, what).await;
    let numbers: Vec<u64> = shown
        .iter()
        .map(|stored| {
            let event = stored.event();
            let n = event.data.trim_start_matches("{\"n\":").split(',').next().unwrap();
            let n = n.parse().unwrap();
            assert_eq!(event.data, data(n), "{what}");
            assert_eq!(event.kind, if n % 2 == 0 { "Even" } else { "Odd" }, "{what}");
            assert_eq!(event.metadata.is_some(), n % 5 == 0, "{what}: {n}");
            n
        })
        .collect();
    assert_eq!(numbers, expected, "{what}");
    assert_eq!(own.info().await.unwrap().messages, expected.len() as u64, "{what}");
    for (stream, version) in [("a-0", 39), ("a-1", 41), ("a-2", 39), ("b-1", 2), ("b-2", -1)] {
        assert_eq!(own.version(stream).await.unwrap(), version, "{what}: {stream}");
    }
    for (n, is_there) in [(0, false), (201, true), (300, true), (15, false)] {
        let found = own.by_id(&MessageId::of(&format!("id {n}"))).await.unwrap();
        assert_eq!(found.is_some(), is_there, "{what}: by id {n}");
    }
    let new = Append {
        stream: "b-2",
        expected: ExpectedVersion::Any,
        events: vec![NewEvent {
            id: None,
            kind: "T",
            data: "{}",
            metadata: None,
        }],
    };
    let refused = own.append(&[new]).await.unwrap_err();
    assert!(matches!(refused, EventsError::StreamDeleted(_)), "{what}: {refused}");

    let subscriptions = Subscriptions::default();
    let info = subscriptions.info(&own, "s").await.unwrap();
    assert_eq!((info.parked, info.settings.max_attempts), (1, 5), "{what}");
    let parked = subscriptions.parked(&own, "s", 0, 10).await.unwrap();
    assert_eq!(
        parked.iter().map(|parked| &*parked.reason).collect::<Vec<_>>(),
        ["bad"],
        "{what}"
    );
    let kept = snapshot::get(own.as_ref(), "a-2").await.unwrap().unwrap();
    assert_eq!((kept.version, &*kept.data), (7, "{\"v\":7}"), "{what}");
    assert_eq!(store.verify().await.unwrap().faults, [], "{what}");

    // The store accepts further messages.
    append(&own, "a-0", 400..402).await;
    assert_eq!(own.version("a-0").await.unwrap(), 41, "{what}");
    assert_eq!(everything(&own, what).await.len(), expected.len() + 2, "{what}");
}
