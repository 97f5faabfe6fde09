//! A queue that lacks some of its partitions moves to a new number when a process starts. The power fails at every
//! write, sync and rename of that start, one after the other, or the disk is full there: afterwards each message exists
//! once, and so does each queue. With `THALWEG_SIM_SEEDS` the disk is full at every write.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::support::{TestClock, keyed, log_options, number, queues_options, text, until, work};
use thalweg_log::disk::Disk as _;
use thalweg_log::disk::sim::SimDisk;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, EmbeddedLog, Log, PartitionId, Records, WriteBatch};
use thalweg_queue::settings::{GroupMode, GroupSettings};
use thalweg_queue::{Queues, Result};

const CATALOG: PartitionId = PartitionId::new(1, 0);
/// The first queue of a log.
const NUMBER: u32 = 16;
const MESSAGES: usize = 40;

/// What the start has to repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    /// A partition of a queue is gone.
    Partition,
    /// The same, and the catalogue does not contain the queue.
    PartitionAndName,
}

/// Opens the queues; fails if the power fails before.
async fn start(disk: &SimDisk) -> Result<(Queues, Arc<EmbeddedLog>)> {
    let log = EmbeddedLog::open(Arc::new(disk.clone()), 7, &log_options(1 << 20, 1 << 19));
    let log = Arc::new(log?);
    let queues = Queues::open(log.clone(), Arc::new(TestClock::default()), queues_options(u64::MAX)).await;
    if queues.is_err() {
        log.close();
    }
    Ok((queues?, log))
}

/// Messages in all partitions of `q` except the second, which is gone.
async fn damaged(seed: u64, damage: Damage) -> (SimDisk, BTreeSet<String>) {
    let disk = SimDisk::new(seed, 64 << 20);
    let (queues, log) = start(&disk).await.unwrap();
    let queue = queues.create("q", work(4)).await.unwrap();
    let mut there = BTreeSet::new();
    for n in 0..MESSAGES {
        // Large enough that a copy of them is many small commits.
        let message = format!("message {n:>3000}");
        let produced = queue.produce(keyed(format!("key {n}"), message.clone())).await.unwrap();
        if produced.partition != 1 {
            there.insert(message);
        }
    }
    assert!(there.len() < MESSAGES, "one partition had some");
    let other = queues.create("other", work(1)).await.unwrap();
    other.produce(keyed("key", "whole")).await.unwrap();
    queues.close().await;
    Log::remove(log.as_ref(), PartitionId::new(NUMBER, 1)).await.unwrap();
    if damage == Damage::PartitionAndName {
        let mut nothing = Records::new();
        let nobody = RecordRef {
            key: Some(b"q"),
            ..RecordRef::of(1, b"")
        };
        nothing.push(&nobody).unwrap();
        let unit = WriteBatch::default().and_of(FrameKind::State, CATALOG, nothing);
        Log::append(log.as_ref(), unit).await.unwrap();
    }
    log.sync().await.unwrap();
    log.close();
    disk.kill();
    (disk, there)
}

fn name_of(damage: Damage) -> &'static str {
    match damage {
        Damage::Partition => "q",
        Damage::PartitionAndName => "found-16",
    }
}

async fn all_is_there_once(queues: &Queues, damage: Damage, there: &BTreeSet<String>, what: &str) {
    let names: Vec<String> = queues.all().iter().map(|queue| queue.name().to_string()).collect();
    let name = name_of(damage);
    assert_eq!(
        names.iter().collect::<BTreeSet<_>>(),
        BTreeSet::from([&name.to_owned(), &"other".to_owned()]),
        "{what}"
    );
    let queue = queues.get(name).unwrap();
    let stored = queue.browse(None, None, 1000).await.unwrap();
    let mut texts: Vec<String> = stored.iter().map(|(_, message)| text(message).to_owned()).collect();
    texts.sort();
    let wanted: Vec<String> = there.iter().cloned().collect();
    assert_eq!(texts, wanted, "{what}");
}

/// It works like any other queue.
async fn can_be_used(queues: &Queues, damage: Damage) {
    let queue = queues.get(name_of(damage)).unwrap();
    let group = GroupSettings::new("after", GroupMode::Work);
    queues.create_group(&queue, group).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_moves_to_a_new_number_is_there_once_wherever_a_crash_cuts_that() {
    for damage in [Damage::Partition, Damage::PartitionAndName] {
        let mut cuts = 0;
        for n in 0.. {
            let (disk, there) = damaged(n, damage).await;
            disk.cut_power_in(n);
            let cut = start(&disk).await;
            if let Ok((_, log)) = &cut {
                // What it begins at the start is done.
                log.close();
            }
            let was_cut = cut.is_err();
            drop(cut);
            disk.power_cut();
            for again in 0..2 {
                let what = format!("{damage:?}, cut {n}, start {again}");
                let (queues, log) = start(&disk).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                if again == 0 {
                    all_is_there_once(&queues, damage, &there, &what).await;
                    can_be_used(&queues, damage).await;
                }
                log.sync().await.unwrap();
                let left: BTreeSet<u32> = Log::partitions(log.as_ref())
                    .iter()
                    .map(|id| id.queue & 0xffff)
                    .collect();
                assert_eq!(left.len(), 3, "{what}: the catalogue and two queues: {left:?}");
                log.close();
                disk.kill();
            }
            cuts += usize::from(was_cut);
            if !was_cut && n > 5 {
                break;
            }
        }
        assert!(cuts > 20, "{damage:?}: {cuts}");
    }
}

/// A partition unknown to the queues.
const FILLER: PartitionId = PartitionId::new(PartitionId::EVENTS, 7);

/// Writes records of 3,000 bytes, and then as many as fit of each of the last sizes. Returns the number of the first.
async fn fill(disk: &SimDisk, most: usize, last: &[usize]) -> usize {
    let log = EmbeddedLog::open(Arc::new(disk.clone()), 7, &log_options(1 << 20, 1 << 19)).unwrap();
    log.create(FILLER, Durability::Os).await.unwrap();
    let put = async |bytes: usize| {
        let mut records = Records::new();
        records.push(&RecordRef::of(1, &vec![7; bytes])).unwrap();
        EmbeddedLog::append(&log, WriteBatch::of(FILLER, records)).await.is_ok()
    };
    // Wait for all spare files, which are made when a quarter of the first file is used: one that is given up for lack of
    // space would leave that space.
    for _ in 0..(1 << 19) / 4 / 3000 + 1 {
        assert!(put(3000).await);
    }
    until("the files are ready", async || log.counters().spare_files >= 2).await;
    let space = disk.space().unwrap();
    disk.set_capacity(space.total_bytes - space.free_bytes);
    let mut took = 0;
    while took < most && put(3000).await {
        took += 1;
    }
    for bytes in last {
        while put(*bytes).await {}
    }
    log.close();
    disk.kill();
    took
}

/// The intact queue is served; the other one has all its messages, or is reported as missing because of a full disk.
async fn is_up(queues: &Queues, damage: Damage, there: &BTreeSet<String>, what: &str) -> bool {
    let other = queues.get("other").unwrap();
    let stored = other.browse(None, None, 10).await.unwrap();
    assert_eq!(stored.len(), 1, "{what}");
    if damage == Damage::Partition
        && let Err(error) = queues.get("q")
    {
        assert_eq!(error.code(), "disk_full", "{what}");
        let again = queues.create("q", work(1)).await;
        assert_eq!(again.err().map(|error| error.code()), Some("queue_exists"), "{what}");
        return false;
    }
    if damage == Damage::PartitionAndName && queues.get(name_of(damage)).is_err() {
        return false;
    }
    all_is_there_once(queues, damage, there, what).await;
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_on_a_full_disk_after_damage_comes_up_and_finishes_when_there_is_room() {
    for damage in [Damage::Partition, Damage::PartitionAndName] {
        let all = fill(&damaged(0, damage).await.0, usize::MAX, &[]).await;
        let mut set_aside = 0;
        // Increases the free space by one commit at a time if more is wanted than CI has time for.
        let step = if number("THALWEG_SIM_SEEDS", 0) > 0 { 1 } else { 5 };
        for left in (0..=all.min(60)).step_by(step) {
            let (disk, there) = damaged(left as u64, damage).await;
            fill(&disk, all - left, &[]).await;
            for start_again in 0..3 {
                let what = format!("{damage:?}, room for {left}, start {start_again}");
                let (queues, log) = start(&disk).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                set_aside += usize::from(!is_up(&queues, damage, &there, &what).await);
                log.close();
                disk.kill();
            }
            let what = format!("{damage:?}, room for {left}, and then for all");
            let (queues, log) = start(&disk).await.unwrap();
            disk.set_capacity(64 << 20);
            until("it is done", async || queues.finish_start_now().await.unwrap()).await;
            all_is_there_once(&queues, damage, &there, &what).await;
            can_be_used(&queues, damage).await;
            log.close();
            disk.kill();
            let (queues, log) = start(&disk).await.unwrap();
            let stored = queues.all().iter().map(|queue| queue.stats().retained).sum::<u64>();
            assert_eq!(stored, there.len() as u64 + 1, "{what}");
            log.close();
        }
        assert!(set_aside > 0, "{damage:?}: no start had too little room");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_set_aside_can_be_deleted_to_make_room() {
    let (disk, _) = damaged(1, Damage::Partition).await;
    // The space left is less than any record needs.
    fill(&disk, usize::MAX, &[300, 1]).await;
    let (queues, log) = start(&disk).await.unwrap();
    assert_eq!(queues.get("q").err().unwrap().code(), "disk_full");
    queues.remove("q", true).await.unwrap();
    assert_eq!(queues.get("q").err().unwrap().code(), "queue_not_found");
    log.close();
    disk.kill();
    let (queues, log) = start(&disk).await.unwrap();
    assert_eq!(queues.get("q").err().unwrap().code(), "queue_not_found");
    assert_eq!(queues.get("other").unwrap().depth(), 1);
    log.close();
}
