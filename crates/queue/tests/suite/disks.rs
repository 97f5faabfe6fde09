//! Queues whose dead letters are on another disk: a crash at any moment of a move leaves no message in both.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    REJECT, TestClock, claim_http, letters, log_options, number, put_keyed, queues_in, text, texts, work,
};
use thalweg_log::disk::Disk;
use thalweg_log::disk::sim::{Faults, SimDisk};
use thalweg_log::{Durability, LogOptions, MultiDiskLog, PartitionId};
use thalweg_queue::settings::RetentionMode;
use thalweg_queue::{
    DeadLetterFilter, DeadLetterSelection, Delivery, Message, NewMessage, Queue, Queues, ResendTo, Result, SeekTo,
    SettleAction, together,
};

const MIB: u64 = 1 << 20;

/// Two disks: queue `q`, with one partition, is on one of them, its dead letters are on the other.
struct World {
    disks: [SimDisk; 2],
    /// The disk of `q`.
    source: usize,
}

/// A process that uses them.
struct Process {
    log: Arc<MultiDiskLog>,
    queues: Queues,
    clock: Arc<TestClock>,
}

impl World {
    async fn new(seed: u64) -> World {
        World::with_durability(seed, Durability::Fsync).await
    }

    /// With the durability of `q` and its dead letters.
    async fn with_durability(seed: u64, durability: Durability) -> World {
        let mut world = World {
            disks: [SimDisk::new(seed, 64 * MIB), SimDisk::new(seed + 1000, 64 * MIB)],
            source: 0,
        };
        let process = world.open().await;
        let mut settings = work(1);
        settings.durability = Some(durability);
        // Messages stay when they are settled, so that a seek finds them.
        settings.retention.mode = RetentionMode::Policy;
        let queue = process.queues.create("q", settings).await.unwrap();
        // The first dead letter creates their queue, on the disk with less data.
        queue.produce(NewMessage::of(vec![7; 200_000])).await.unwrap();
        reject(&queue, &claim_http(&queue, "g", 1).await).await.unwrap();
        let home = |id| {
            let logs = process.log.logs().iter();
            logs.clone()
                .position(|log| log.partitions().contains(&PartitionId::new(id, 0)))
        };
        // Queues are numbered from 16 on.
        world.source = home(16).unwrap();
        assert_ne!(home(17), Some(world.source));
        process.stop().await;
        world
    }

    async fn open(&self) -> Process {
        let disks = self.disks.iter().enumerate();
        let disks = disks.map(|(n, disk)| {
            let options = LogOptions {
                folder: format!("disk{n}"),
                ..log_options(MIB, MIB / 2)
            };
            (Arc::new(disk.clone()) as Arc<dyn Disk>, options)
        });
        let log = Arc::new(MultiDiskLog::open(disks.collect(), 7, together).await.unwrap());
        let clock = Arc::new(TestClock::default());
        let queues = queues_in(log.clone().into_log(), clock.clone(), u64::MAX).await;
        Process { log, queues, clock }
    }
}

impl Process {
    fn queue(&self) -> Arc<Queue> {
        self.queues.get("q").unwrap()
    }

    /// As by `kill -9`.
    fn kill(self) {
        self.log.logs().iter().for_each(|log| log.close());
    }

    async fn stop(self) {
        self.queues.close().await;
        self.kill();
    }

    async fn later(&self, time: Duration) {
        self.clock.later(time);
        self.queue().look_after_now().await;
    }
}

async fn reject(queue: &Arc<Queue>, deliveries: &[Delivery]) -> Result<()> {
    let verdicts = deliveries.iter().map(|delivery| (queue.receipt(delivery), REJECT));
    let group = queue.group("g").unwrap();
    queue.settle(&group, verdicts.collect(), true).await?;
    queue.look_after_now().await;
    Ok(())
}

/// How often the message `bad` is among the dead letters.
async fn bad_letters(queue: &Queue) -> usize {
    let letters = letters(queue).await;
    letters.iter().filter(|letter| text(letter) == "bad").count()
}

#[tokio::test]
async fn a_message_that_dies_while_the_disk_of_its_queue_goes_away_is_among_the_dead_letters_once() {
    let mut died = 0;
    for seed in 0..24 {
        let n = seed % 3;
        let world = World::new(seed).await;
        let process = world.open().await;
        let queue = process.queue();
        queue.produce(NewMessage::of("bad")).await.unwrap();
        let taken = claim_http(&queue, "g", 1).await;
        assert_eq!(taken.len(), 1);
        world.disks[world.source].cut_power_in(n);
        let _ = reject(&queue, &taken).await;
        process.kill();
        world.disks[world.source].power_cut();
        world.disks[1 - world.source].kill();

        let process = world.open().await;
        let queue = process.queue();
        // Leased messages are redelivered.
        process.later(Duration::from_secs(31)).await;
        process.later(Duration::from_secs(600)).await;
        let there = bad_letters(&queue).await;
        died += there;
        let taken = claim_http(&queue, "g", 1).await;
        assert_eq!(taken.len(), 1 - there, "seed {seed}: it is in one of the two");
        if there == 0 {
            reject(&queue, &taken).await.unwrap();
        }
        process.kill();
        world.disks.iter().for_each(SimDisk::kill);

        let process = world.open().await;
        let queue = process.queue();
        process.later(Duration::from_secs(600)).await;
        assert_eq!(
            (
                bad_letters(&queue).await,
                claim_http(&queue, "g", 1).await.len(),
                queue.depth()
            ),
            (1, 0, 0),
            "seed {seed}"
        );
        process.stop().await;
    }
    assert!(died > 0, "it is told of before the disk is gone");
}

#[tokio::test]
async fn a_dead_message_that_a_seek_has_brought_back_is_delivered_after_a_crash() {
    let world = World::new(1).await;
    let process = world.open().await;
    let queue = process.queue();
    queue.produce(NewMessage::of("bad")).await.unwrap();
    reject(&queue, &claim_http(&queue, "g", 1).await).await.unwrap();
    assert_eq!((bad_letters(&queue).await, queue.depth()), (1, 0));
    let back = SeekTo::Offset {
        partition: None,
        offset: 1,
    };
    queue.seek(&queue.group("g").unwrap(), back).await.unwrap();
    process.kill();
    world.disks.iter().for_each(SimDisk::kill);

    let process = world.open().await;
    let queue = process.queue();
    let taken = claim_http(&queue, "g", 1).await;
    assert_eq!(texts(&taken), ["bad"]);
    process.stop().await;
}

#[tokio::test]
async fn letters_that_are_sent_again_while_their_disk_fails_are_sent_once_by_a_process() {
    for in_time in [true, false] {
        let world = World::new(1).await;
        let process = world.open().await;
        let queue = process.queue();
        queue.produce(NewMessage::of("bad")).await.unwrap();
        reject(&queue, &claim_http(&queue, "g", 1).await).await.unwrap();
        let all = DeadLetterSelection::Filter(DeadLetterFilter::default());
        let there = letters(&queue).await.len() as u64;
        // Messages go to the one disk, the removal of their dead letters to the other.
        let faults = Faults {
            failing_syncs: u64::from(in_time),
            failing_writes: u64::from(!in_time),
            ..Faults::default()
        };
        world.disks[1 - world.source].set_faults(faults);
        let sent = queue.resend(&all, ResendTo::Source, None).await.unwrap();
        assert_eq!((sent.count, queue.depth()), (there, there), "{:?}", sent.stopped);
        let again = queue.resend(&all, ResendTo::Source, None).await.unwrap();
        assert_eq!((again.count, queue.depth()), (0, there), "{:?}", again.stopped);
        process.kill();
    }
}

/// This many dead letters with keys, and no others.
async fn bad_letters_alone(queue: &Arc<Queue>, count: u32) -> Vec<String> {
    queue.purge_dead(&all()).await.unwrap();
    let texts: Vec<String> = (10..10 + count).map(|n| format!("bad {n}")).collect();
    for text in &texts {
        put_keyed(queue, text, text).await;
    }
    reject(queue, &claim_http(queue, "g", count).await).await.unwrap();
    texts
}

fn all() -> DeadLetterSelection {
    DeadLetterSelection::Filter(DeadLetterFilter::default())
}

/// What all partitions of a queue have for group `g`.
async fn claim_whole(queue: &Arc<Queue>) -> Vec<Delivery> {
    let mut whole = Vec::new();
    loop {
        let some = claim_http(queue, "g", 100).await;
        if some.is_empty() {
            return whole;
        }
        whole.extend(some);
    }
}

/// Acks all messages of a queue. Returns those that are acked, and those that may be.
async fn ack_all(queue: &Arc<Queue>) -> (Vec<String>, Vec<String>) {
    let group = queue.group("g").unwrap();
    let (mut acked, mut perhaps) = (Vec::new(), Vec::new());
    for delivery in claim_whole(queue).await {
        let verdict = (queue.receipt(&delivery), SettleAction::Ack);
        let told = queue.settle(&group, vec![verdict], true).await;
        let is_acked = told.is_ok_and(|settled| settled.failed.is_empty());
        let into = if is_acked { &mut acked } else { &mut perhaps };
        into.push(text(&delivery.message));
    }
    (acked, perhaps)
}

/// Dead letters are sent to a queue of four partitions, which are on both disks, and one disk fails at some moment.
/// With `settled`, everything that arrived is settled and trimmed before the process is killed. Returns how many dead
/// letters had arrived, and how many were left after it.
async fn send_and_cut(seed: u64, settled: bool) -> (usize, usize) {
    let world = World::new(seed).await;
    let process = world.open().await;
    let queue = process.queue();
    let target = process.queues.create("other", work(4)).await.unwrap();
    let wanted = bad_letters_alone(&queue, 20).await;
    let to = || ResendTo::Queue("other".into());
    let gone = (seed % 2) as usize;
    world.disks[gone].cut_power_in(seed / 2 % 20);
    let told = queue.resend(&all(), to(), None).await;
    let (acked, perhaps) = match settled {
        true => ack_all(&target).await,
        false => Default::default(),
    };
    if settled {
        process.clock.later(Duration::from_secs(40));
        target.look_after_now().await;
    }
    process.kill();
    world.disks[gone].power_cut();
    world.disks[1 - gone].kill();

    let process = world.open().await;
    // Leased messages are redelivered.
    process.later(Duration::from_secs(71)).await;
    let target = process.queues.get("other").unwrap();
    target.look_after_now().await;
    let come = texts(&claim_whole(&target).await);
    let left: Vec<String> = letters(&process.queue()).await.iter().map(text).collect();
    let mut known = [acked.clone(), come.clone(), left.clone()].concat();
    known.sort();
    assert!(
        known.is_sorted_by(|a, b| a < b),
        "seed {seed}: one is there twice: {known:?}; told {told:?}"
    );
    let lost = wanted
        .iter()
        .filter(|text| !known.contains(text) && !perhaps.contains(text));
    assert_eq!(lost.count(), 0, "seed {seed}: {known:?}; told {told:?}");
    let resent = process.queue().resend(&all(), to(), None).await.unwrap();
    assert_eq!(resent.count as usize, left.len(), "seed {seed}: {:?}", resent.stopped);
    let more = texts(&claim_whole(&target).await);
    assert_eq!(more.len(), left.len(), "seed {seed}");
    process.stop().await;
    (acked.len() + come.len(), left.len())
}

#[tokio::test]
async fn letters_that_are_sent_while_a_disk_goes_away_are_messages_once() {
    let mut cut = 0;
    let first = number("THALWEG_SIM_SEED", 0);
    for seed in first..first + number("THALWEG_SIM_SEEDS", 120) {
        let (come, left) = send_and_cut(seed, seed / 2 % 2 == 1).await;
        cut += usize::from(come > 0 && left > 0);
    }
    assert!(cut > 0, "some have come, and some not");
}

/// Dead letters are sent, and the disk of their queue loses them and their removal, so the next ones get their offsets.
#[tokio::test]
async fn letters_that_get_the_offsets_of_lost_ones_that_were_sent_are_there() {
    let mut reused = 0;
    for seed in 0..8 {
        let world = World::with_durability(seed, Durability::Os).await;
        let process = world.open().await;
        // Of several queues one is on the other disk.
        let on_source = |n: u32| {
            process.log.logs()[world.source]
                .partitions()
                .contains(&PartitionId::new(18 + n, 0))
        };
        let mut to = String::new();
        for n in 0..4 {
            let name = format!("other-{n}");
            process.queues.create(&name, work(1)).await.unwrap();
            if on_source(n) {
                to = name;
            }
        }
        let before = bad_letters_alone(&process.queue(), 5).await.len();
        let letters_at = |letters: &[Message]| letters.iter().map(|letter| letter.offset).collect::<Vec<_>>();
        let sent_from = letters_at(&letters(&process.queue()).await);
        let to = ResendTo::Queue(to.into());
        let resent = process.queue().resend(&all(), to, None).await.unwrap();
        assert_eq!(resent.count as usize, before);
        let of_letters = 1 - world.source;
        world.disks[of_letters].power_cut();
        process.kill();
        world.disks[world.source].kill();

        let mut process = world.open().await;
        process.later(Duration::from_secs(71)).await;
        let wanted = bad_letters_alone(&process.queue(), 8).await;
        for start in 0..3 {
            let there = letters(&process.queue()).await;
            let texts: Vec<String> = there.iter().map(text).collect();
            assert_eq!(texts, wanted, "seed {seed}, start {start}");
            reused += usize::from(letters_at(&there).iter().any(|letter| sent_from.contains(letter)));
            process.kill();
            world.disks.iter().for_each(SimDisk::kill);
            process = world.open().await;
        }
        process.stop().await;
    }
    assert!(reused > 0, "letters get offsets of those that were lost");
}
