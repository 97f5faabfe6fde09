//! Every later version reads what each version of the format has stored: messages, the state of groups, the catalogue.
//!
//! A fixture is a log as [`write`] left it: its files without trailing zeros, with their sizes in their names. Another
//! version of the format gets a new fixture; existing ones are never rewritten. The first had neither epochs of leases
//! nor a superblock.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{claim_http_as, log_options, nack_in, queues_in, settings, settle, up_to};
use thalweg_log::disk::FolderDisk;
use thalweg_log::{EmbeddedLog, LogOptions, Micros};
use thalweg_queue::settings::{GroupMode, QueueSettings};
use thalweg_queue::{Clock, NewMessage, Queue, Queues, SettleAction};

const FILE: u64 = 64 << 10;
const MESSAGES: u64 = 120;
const CONSUMER: &str = "consumer";

/// The moment at which the fixture was written, so that nothing in it has expired.
struct Then;

impl Clock for Then {
    fn now(&self) -> Micros {
        1_800_000_000_000_000
    }
}

/// The oldest first.
const FIXTURES: [&str; 2] = ["format-1", "queues-2"];

fn fixture(name: &str) -> PathBuf {
    // Cargo sets this at each run; the value at build time may be another clone.
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    own.join("../log/tests/fixtures").join(name)
}

async fn open_small_files(folder: &Path) -> (Queues, Arc<EmbeddedLog>) {
    let options = LogOptions {
        files_max: 2,
        scrub: Duration::ZERO,
        ..log_options(FILE, FILE)
    };
    let log = Arc::new(EmbeddedLog::open(Arc::new(FolderDisk::open(folder).unwrap()), 7, &options).unwrap());
    let queues = queues_in(log.clone(), Arc::new(Then), u64::MAX).await;
    (queues, log)
}

fn payload(n: u64) -> Vec<u8> {
    format!("message {n} {}", "x".repeat(900 + n as usize)).into_bytes()
}

/// Of 120 messages the first is acked, the second waits, the third is dead, two are leased.
async fn write(folder: &Path) {
    let (queues, log) = open_small_files(folder).await;
    let groups = [("work", GroupMode::Work), ("stream", GroupMode::Stream)];
    let settings = QueueSettings {
        max_depth: 12_345,
        ttl: Duration::ZERO,
        ..settings(1, &groups)
    };
    let queue = queues.create("jobs", settings).await.unwrap();
    for n in 0..MESSAGES {
        let message = NewMessage {
            key: (n % 3 == 0).then(|| format!("key-{n}").into_bytes().into()),
            ..NewMessage::of(payload(n))
        };
        queue.produce(message).await.unwrap();
    }
    let leased = claim_http_as(&queue, "work", CONSUMER, up_to(5)).await;
    settle(&queue, "work", &leased[..1], SettleAction::Ack).await;
    settle(&queue, "work", &leased[1..2], nack_in(Duration::from_hours(1))).await;
    let reason = Some("bad".into());
    settle(&queue, "work", &leased[2..3], SettleAction::Reject { reason }).await;
    let read = claim_http_as(&queue, "stream", CONSUMER, up_to(7)).await;
    for delivery in &read {
        settle(&queue, "stream", std::slice::from_ref(delivery), SettleAction::Ack).await;
    }
    queues.create("gone", QueueSettings::default()).await.unwrap();
    queues.remove("gone", true).await.unwrap();
    // Full files are moved into segments until few are left.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while log.counters().segments == 0 || log.counters().full_files > 2 {
        assert!(std::time::Instant::now() < until, "{:?}", log.counters());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    queues.close().await;
    log.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "writes a fixture, once for each version of the format"]
async fn the_fixture_of_this_format_is_written() {
    let fixture = fixture(FIXTURES[FIXTURES.len() - 1]);
    assert!(!fixture.exists(), "a fixture is never written again");
    let folder = tempfile::tempdir().unwrap();
    write(folder.path()).await;
    std::fs::create_dir_all(&fixture).unwrap();
    for entry in std::fs::read_dir(folder.path()).unwrap().flatten() {
        let bytes = std::fs::read(entry.path()).unwrap();
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let name = format!("{}.{}", entry.file_name().to_str().unwrap(), bytes.len());
        std::fs::write(fixture.join(name), &bytes[..used]).unwrap();
    }
}

fn unpack(name: &str, folder: &Path) {
    for entry in std::fs::read_dir(fixture(name)).unwrap().flatten() {
        let packed = entry.file_name().into_string().unwrap();
        let (name, size) = packed.rsplit_once('.').unwrap();
        let mut bytes = std::fs::read(entry.path()).unwrap();
        bytes.resize(size.parse().unwrap(), 0);
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_of_every_format_is_read_with_its_messages_groups_and_queues() {
    for name in FIXTURES {
        reads_as_it_was(name).await;
    }
}

async fn reads_as_it_was(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    unpack(name, folder.path());
    let whole = thalweg_log::check(&FolderDisk::open(folder.path()).unwrap(), &mut |_, _| {}).unwrap();
    assert!(whole.is_whole(), "{:?}", whole.findings);
    let (queues, log) = open_small_files(folder.path()).await;
    let mut names: Vec<String> = queues.all().iter().map(|queue| queue.name().to_string()).collect();
    names.sort();
    assert_eq!(names, ["dlq.jobs", "jobs"]);
    let queue = queues.get("jobs").unwrap();
    assert_eq!(
        (queue.settings().max_depth, queue.settings().ttl),
        (12_345, Duration::ZERO)
    );
    // What the stream has read and the work group settled is trimmed; the rest is as it was stored.
    let stored = queue.browse(None, None, 1000).await.unwrap();
    assert_eq!(stored.last().map(|(_, message)| message.offset), Some(MESSAGES - 1));
    for (_, message) in &stored {
        let n = message.offset;
        assert_eq!(message.payload, payload(n));
        let key = (n % 3 == 0).then(|| format!("key-{n}").into_bytes());
        assert_eq!(message.key.as_deref(), key.as_deref());
    }
    assert!(stored.len() as u64 >= MESSAGES - 1, "{}", stored.len());
    let letters = queues.get("dlq.jobs").unwrap().browse(None, None, 10).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].1.payload, payload(2));
    // Two are acked or dead, one waits, two are leased.
    let stats = queue.stats();
    let work = stats.groups.iter().find(|group| group.name == "work").unwrap();
    assert_eq!(work.backlog, MESSAGES - 2);
    assert_eq!((work.counts.leased, work.counts.waiting), (2, 1), "{:?}", work.counts);
    let next = claim_http_as(&queue, "work", CONSUMER, up_to(1)).await;
    assert_eq!((next[0].message.offset, next[0].delivery), (5, 1));
    let stream = claim_http_as(&queue, "stream", CONSUMER, up_to(1)).await;
    assert_eq!(stream[0].message.offset, 7);
    queues.close().await;
    log.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receipt_that_the_first_version_gave_is_gone_and_its_lease_runs_on() {
    let folder = tempfile::tempdir().unwrap();
    unpack("format-1", folder.path());
    let (queues, log) = open_small_files(folder.path()).await;
    let queue = queues.get("jobs").unwrap();
    let group = queue.group("work").unwrap();
    for verdict in [
        SettleAction::Ack,
        SettleAction::Reject { reason: None },
        nack_in(Duration::ZERO),
    ] {
        let receipt = "jobs:0:3:1".parse().unwrap();
        let settled = queue.settle(&group, vec![(receipt, verdict)], true).await.unwrap();
        assert_eq!(settled.failed[0].1.code(), "gone");
    }
    let counts = |queue: &Arc<Queue>| {
        queue
            .stats()
            .groups
            .iter()
            .find(|group| group.name == "work")
            .unwrap()
            .counts
    };
    assert_eq!(counts(&queue).leased, 2);
    queues.close().await;
    log.close();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receipt_of_a_stored_lease_holds_in_every_later_version() {
    let folder = tempfile::tempdir().unwrap();
    unpack("queues-2", folder.path());
    let (queues, log) = open_small_files(folder.path()).await;
    let queue = queues.get("jobs").unwrap();
    let group = queue.group("work").unwrap();
    // The queue is the first of its log, the group the first of the queue, the epoch the second in which it was
    // written.
    let epoch = Then.now() / 1_000_000;
    for (receipt, wanted) in [
        (format!("jobs:0:3:1:16.1.{epoch:x}"), None),
        (format!("jobs:0:3:1:16.1.{epoch:x}"), None),
        (format!("jobs:0:0:1:16.1.{epoch:x}"), None),
        (format!("jobs:0:4:1:16.1.{:x}", epoch - 1), Some("gone")),
        (format!("jobs:0:4:1:17.1.{epoch:x}"), Some("gone")),
    ] {
        let verdict = (receipt.parse().unwrap(), SettleAction::Ack);
        let settled = queue.settle(&group, vec![verdict], true).await.unwrap();
        let code = settled.failed.first().map(|(_, error)| error.code());
        assert_eq!(code, wanted, "{receipt}");
    }
    queues.close().await;
    log.close();
}
