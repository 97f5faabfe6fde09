//! Partitions without a queue: what a crash leaves half created or half removed is removed, what the catalogue has lost
//! comes back, and no number is used twice.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::support::{Place, claim_http, open, put, texts, work};
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, Log, PartitionId, Records, WriteBatch};
use thalweg_queue::NewMessage;
use thalweg_queue::Queue;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};

const CATALOG: PartitionId = PartitionId::new(1, 0);

fn partitions(place: &Place) -> usize {
    Log::partitions(place.log.as_ref())
        .iter()
        .filter(|id| id.queue != 1)
        .count()
}

/// Ends the process as soon as the log has this many partitions.
async fn kill_at(place: Place, count: impl Fn(usize) -> bool) {
    while !count(partitions(&place)) {
        tokio::task::yield_now().await;
    }
    place.kill();
}

async fn take_all(queue: &Arc<Queue>) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let taken = claim_http(queue, "g", 100).await;
        if taken.is_empty() {
            return all;
        }
        all.extend(texts(&taken));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_half_made_is_gone_after_a_restart_and_its_number_is_not_given_again() {
    let (folder, slow, queues) = crate::beside::begin().await;
    let weak = QueueSettings {
        durability: Some(Durability::Os),
        ..work(1000)
    };
    // Its partitions are stored, and its catalogue entry is in progress.
    slow.holds_after_creation.store(true, Ordering::SeqCst);
    let making = tokio::spawn(async move { queues.create("half", weak).await });
    slow.until_held().await;
    assert!(slow.log.partitions().len() >= 2000);
    slow.log.close();
    slow.let_go();
    assert!(making.await.unwrap().is_err());
    drop(slow);

    let place = open(folder.path()).await;
    assert!(place.queues.get("half").is_err());
    assert_eq!(partitions(&place), 0);
    let queue = place.queues.create("whole", work(1)).await.unwrap();
    put(&queue, &["m"]).await;
    assert_eq!(queue.durability(), Durability::Fsync);
    let synced = Log::bounds(place.log.as_ref(), PartitionId::new(17, 0)).unwrap().synced;
    assert_eq!(
        synced, 1,
        "it has the second number, and the durability it was promised"
    );
    place.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_half_removed_is_gone_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let place = open(folder.path()).await;
    let queue = place.queues.create("q", work(300)).await.unwrap();
    put(&queue, &["m"]).await;
    let queues = place.queues.clone();
    let removing = tokio::spawn(async move { queues.remove("q", true).await });
    kill_at(place, |count| count < 590).await;
    let _ = removing.await.unwrap();

    let place = open(folder.path()).await;
    assert!(place.queues.get("q").is_err());
    assert_eq!(partitions(&place), 0);
    place.stop().await;
}

#[tokio::test]
async fn messages_of_a_queue_that_the_catalogue_has_lost_are_in_a_queue_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let place = open(folder.path()).await;
    let lost = place.queues.create("lost", work(2)).await.unwrap();
    for n in 0..4 {
        put(&lost, &[&format!("precious {n}")]).await;
    }
    assert_eq!(take_all(&lost).await.len(), 4);
    place.stop().await;

    // As after damage to all of it, and a repair.
    let place = open(folder.path()).await;
    let mut nothing = Records::new();
    for (key, value) in [("lost", ""), ("/16", "")] {
        let record = RecordRef {
            key: Some(key.as_bytes()),
            ..RecordRef::of(1, value.as_bytes())
        };
        nothing.push(&record).unwrap();
    }
    let unit = WriteBatch::default().and_of(FrameKind::Checkpoint, CATALOG, nothing);
    Log::append(place.log.as_ref(), unit).await.unwrap();
    place.kill();

    for start in 0..2 {
        let place = open(folder.path()).await;
        let found = place.queues.get("found-16").unwrap();
        if start == 0 {
            let group = GroupSettings::new("g", GroupMode::Work);
            place.queues.create_group(&found, group).await.unwrap();
            let mut texts = take_all(&found).await;
            texts.sort();
            assert_eq!(texts, ["precious 0", "precious 1", "precious 2", "precious 3"]);
        }
        assert_eq!(found.depth(), 4);
        assert!(
            found.produce(NewMessage::of("more")).await.is_err(),
            "it is not for more"
        );
        let fresh = place.queues.create("fresh", work(1)).await;
        let fresh = fresh.unwrap_or_else(|_| place.queues.get("fresh").unwrap());
        assert_eq!(fresh.depth(), 0);
        place.kill();
    }
}

#[tokio::test]
async fn a_catalogue_of_thousands_of_changes_reads_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let place = open(folder.path()).await;
    for n in 0..250 {
        let queue = QueueSettings {
            durability: Some(Durability::Memory),
            max_depth: n + 1,
            ..work(1)
        };
        place.queues.create(&format!("q{n}"), queue).await.unwrap();
    }
    for n in 0..1200 {
        let name = format!("q{}", n % 250);
        let queue = place.queues.get(&name).unwrap();
        place
            .queues
            .pause(&queue, thalweg_queue::Pause::Produce, n % 7 == 0)
            .await
            .unwrap();
    }
    place.queues.remove("q249", true).await.unwrap();
    place.kill();
    let place = open(folder.path()).await;
    assert_eq!(place.queues.all().len(), 249);
    for n in 0..249u64 {
        let queue = place.queues.get(&format!("q{n}")).unwrap();
        assert_eq!(queue.settings().max_depth, n + 1);
        let last = (0..1200).filter(|change| change % 250 == n).max().unwrap();
        assert_eq!(queue.stats().produce_paused, last % 7 == 0, "q{n}");
    }
    place.stop().await;
}

#[tokio::test]
async fn what_is_found_takes_no_name_that_somebody_has_given() {
    let folder = tempfile::tempdir().unwrap();
    let place = open(folder.path()).await;
    let lost = place.queues.create("lost", work(1)).await.unwrap();
    put(&lost, &["precious"]).await;
    let own = place.queues.create("found-16", work(1)).await.unwrap();
    put(&own, &["mine", "too"]).await;
    place.stop().await;

    let place = open(folder.path()).await;
    let mut nothing = Records::new();
    let record = RecordRef {
        key: Some(b"lost"),
        ..RecordRef::of(1, b"")
    };
    nothing.push(&record).unwrap();
    let unit = WriteBatch::default().and_of(FrameKind::State, CATALOG, nothing);
    Log::append(place.log.as_ref(), unit).await.unwrap();
    place.kill();

    for _ in 0..2 {
        let place = open(folder.path()).await;
        let depth = |name: &str| place.queues.get(name).unwrap().depth();
        assert_eq!((depth("found-16"), depth("found-16-2")), (2, 1));
        place.kill();
    }
}

#[tokio::test]
async fn a_queue_that_the_first_version_was_removing_does_not_come_back_when_its_checkpoint_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let place = open(folder.path()).await;
    let gone = place.queues.create("gone", work(1)).await.unwrap();
    put(&gone, &["deleted"]).await;
    place.stop().await;

    // That version wrote the same mark for both in its checkpoints, and removed the name of a queue being removed.
    let place = open(folder.path()).await;
    let mut checkpoint = Records::new();
    for (key, value) in [("", "17"), ("/16", "1")] {
        let record = RecordRef {
            key: Some(key.as_bytes()),
            ..RecordRef::of(1, value.as_bytes())
        };
        checkpoint.push(&record).unwrap();
    }
    let unit = WriteBatch::default().and_of(FrameKind::Checkpoint, CATALOG, checkpoint);
    Log::append(place.log.as_ref(), unit).await.unwrap();
    place.kill();

    for _ in 0..2 {
        let place = open(folder.path()).await;
        assert!(place.queues.all().is_empty());
        assert_eq!(partitions(&place), 0);
        place.kill();
    }
}
