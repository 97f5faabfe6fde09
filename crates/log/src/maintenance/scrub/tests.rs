use thalweg_kit::clock::wall_micros as now;

use super::*;
use crate::disk::sim::SimDisk;
use crate::embedded::EmbeddedLog;
use crate::status::LogStatus;
use crate::test_support::{append, damage, open};

const ID: PartitionId = PartitionId::new(1, 0);
const DAY: Micros = 24 * 3600 * 1_000_000;

/// Sixty messages in as many blocks, in several files.
async fn filled(disk: &SimDisk) -> EmbeddedLog {
    let log = open(disk);
    log.create(ID, Durability::Os).await.unwrap();
    for n in 0..60 {
        let value = format!("message-{n}.{}", "x".repeat(16 << 10));
        append(&log, ID, value.as_bytes()).await;
    }
    assert!(log.counters().full_files > 3);
    log
}

/// Runs the round that is due at `at` to its end.
fn round(log: &EmbeddedLog, scrub: &mut Scrubber<'_>, at: Micros) {
    assert_eq!(scrub.due_in(&log.maintenance, at), Duration::ZERO);
    while scrub.due_in(&log.maintenance, at).is_zero() {
        scrub.piece(&log.maintenance, at);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_finds_all_damage_and_tells_each_place_once() {
    let disk = SimDisk::new(1, 64 << 20);
    let log = filled(&disk).await;
    damage(&disk, "message-2.");
    damage(&disk, "message-33.");
    let book = log.book();
    let mut scrub = Scrubber::new(&book);
    round(&log, &mut scrub, now() + 8 * DAY);
    assert_eq!(log.counters().corrupt_frames, 2);
    assert!(matches!(log.status(), LogStatus::Degraded(_)), "{:?}", log.status());
    round(&log, &mut scrub, now() + 16 * DAY);
    assert_eq!(log.counters().corrupt_frames, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_restarted_each_day_is_checked_once_a_week() {
    let disk = SimDisk::new(2, 64 << 20);
    drop(filled(&disk).await);
    // Nothing was scrubbed yet, so the age of the stored data counts.
    let (log, began) = (open(&disk), now());
    let book = log.book();
    let mut scrub = Scrubber::new(&book);
    assert!(!scrub.due_in(&log.maintenance, began + 6 * DAY).is_zero());
    assert_eq!(scrub.due_in(&log.maintenance, began + 7 * DAY), Duration::ZERO);
    let first = now();
    scrub.progress = Some(ScrubProgress {
        began: first - 8 * DAY,
        next: None,
    });
    round(&log, &mut scrub, first);
    drop((book, log));
    for day in 1..7 {
        let log = open(&disk);
        let left = Scrubber::new(&log.book()).due_in(&log.maintenance, first + day * DAY);
        assert_eq!(left, Duration::from_hours(24 * (7 - day) as u64));
    }
    let log = open(&disk);
    assert_eq!(
        Scrubber::new(&log.book()).due_in(&log.maintenance, first + 7 * DAY),
        Duration::ZERO
    );
    // The internal partition is not listed.
    assert_eq!(log.partitions(), [ID]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_goes_on_in_the_next_process_after_the_files_that_were_read() {
    let disk = SimDisk::new(3, 64 << 20);
    let log = filled(&disk).await;
    let (book, at) = (log.book(), now());
    let mut scrub = Scrubber::new(&book);
    scrub.progress = Some(ScrubProgress {
        began: at - 8 * DAY,
        next: None,
    });
    let third = ScrubPosition {
        is_segment: false,
        number: 2,
    };
    while scrub.progress.and_then(|progress| progress.next) < Some(third) {
        scrub.piece(&log.maintenance, at);
    }
    drop((book, log));
    damage(&disk, "message-2.");
    damage(&disk, "message-40.");
    let log = open(&disk);
    let book = log.book();
    let mut scrub = Scrubber::new(&book);
    // The log's own maintenance thread may have read further.
    let next = scrub.progress.map(|progress| progress.next);
    assert!(
        next.is_some_and(|next| next.is_none_or(|next| next >= third)),
        "{next:?}"
    );
    scrub.progress = Some(ScrubProgress {
        began: at,
        next: Some(third),
    });
    round(&log, &mut scrub, at);
    assert_eq!(log.counters().corrupt_frames, 1);
    round(&log, &mut scrub, at + 8 * DAY);
    assert_eq!(log.counters().corrupt_frames, 2);
}
