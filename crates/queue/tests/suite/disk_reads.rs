//! No task of a queue reads the disk, because a disk may take seconds and other tasks of the thread would wait.
//!
//! The log of these tests keeps next to nothing in memory, and its disk records which thread reads. The runtime has one
//! thread, on which all tasks run; blocking threads are separate.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use thalweg_log::LogOptions;
use thalweg_log::disk::sim::Random;
use thalweg_log::disk::{Disk, DiskFile, DiskSpace, RamDisk};
use thalweg_queue::settings::{GroupMode, GroupSettings, GroupStart, Overflow, QueueSettings, RetentionMode};
use thalweg_queue::{DeadLetterFilter, DeadLetterSelection, NewMessage, Queue, ResendTo, SeekTo, SettleAction};

use crate::support::{NACK_NOW, Place, REJECT, log_options, number, open_on, settings, up_to};

/// A disk that counts what one thread reads.
struct Watched {
    disk: Arc<dyn Disk>,
    watch: Arc<Watch>,
}

struct Watch {
    thread: ThreadId,
    is_on: AtomicBool,
    reads: AtomicU64,
}

struct WatchedFile {
    file: Arc<dyn DiskFile>,
    watch: Arc<Watch>,
}

impl Watched {
    /// Watches the thread that creates it, once that is switched on.
    fn new() -> Watched {
        Watched {
            disk: Arc::new(RamDisk::new(1 << 30)),
            watch: Arc::new(Watch {
                thread: std::thread::current().id(),
                is_on: AtomicBool::new(false),
                reads: AtomicU64::new(0),
            }),
        }
    }

    fn watched(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let watch = self.watch.clone();
        Arc::new(WatchedFile { file, watch })
    }
}

impl Disk for Watched {
    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.watched(self.disk.open(name)?))
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.watched(self.disk.create(name)?))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }
    fn space(&self) -> io::Result<DiskSpace> {
        self.disk.space()
    }
}

impl DiskFile for WatchedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_at(bytes, at)
    }
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        if std::thread::current().id() == self.watch.thread && self.watch.is_on.load(Ordering::SeqCst) {
            self.watch.reads.fetch_add(1, Ordering::SeqCst);
        }
        self.file.read_at(buf, at)
    }
    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// Small files; for full files neither indexes nor messages are in memory.
fn cold() -> LogOptions {
    LogOptions {
        tail_bytes_max: 0,
        index_bytes_max: 1,
        ..log_options(512 << 10, 512 << 10)
    }
}

/// A queue "q" whose older messages are only on disk, from before a restart.
async fn begin_cold(settings: QueueSettings, messages: usize) -> (Place, Arc<Queue>, Arc<Watch>) {
    let disk = Arc::new(Watched::new());
    let place = open_on(disk.clone(), &cold(), Duration::ZERO, u64::MAX).await;
    let queue = place.queues.create("q", settings).await.unwrap();
    fill(&queue, messages).await;
    place.stop().await;
    let place = open_on(disk.clone(), &cold(), Duration::ZERO, u64::MAX).await;
    let queue = place.queue();
    disk.watch.is_on.store(true, Ordering::SeqCst);
    (place, queue, disk.watch.clone())
}

/// This many messages of 8,000 bytes, over the partitions in turn.
async fn fill(queue: &Arc<Queue>, messages: usize) {
    for _ in 0..messages {
        queue.produce(NewMessage::of(vec![7; 8000])).await.unwrap();
    }
}

impl Watch {
    fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }
}

fn dropping(groups: &[(&str, GroupMode)]) -> QueueSettings {
    QueueSettings {
        overflow: Overflow::DropOldest,
        ..settings(2, groups)
    }
}

#[tokio::test]
async fn what_is_dropped_for_others_is_looked_up_on_a_thread_for_that() {
    for (groups, to_dlq) in [
        (&[("g", GroupMode::Work)][..], false),
        (&[("g", GroupMode::Work)][..], true),
        (&[("s", GroupMode::Stream)][..], false),
        (&[][..], false),
    ] {
        for by_bytes in [false, true] {
            let mut settings = dropping(groups);
            settings.dlq.on_overflow = to_dlq;
            match by_bytes {
                true => settings.max_bytes = 300 * 8100,
                false => settings.max_depth = 300,
            }
            let (place, queue, watch) = begin_cold(settings, 290).await;
            fill(&queue, 40).await;
            assert_eq!(watch.reads(), 0, "{groups:?} by_bytes {by_bytes} to_dlq {to_dlq}");
            place.stop().await;
        }
    }
}

#[tokio::test]
async fn a_purge_and_what_is_done_with_dead_letters_read_nothing_on_a_task() {
    let mut kept = settings(2, &[("g", GroupMode::Work)]);
    kept.retention.mode = RetentionMode::Policy;
    let (place, queue, watch) = begin_cold(kept, 300).await;
    let group = queue.group("g").unwrap();
    for _ in 0..3 {
        let wanted = thalweg_queue::members::MemberKind::Http;
        let some = queue.claim(&group, "c", wanted, up_to(60)).await.unwrap();
        let verdicts = some.iter().map(|of| (queue.receipt(of), REJECT)).collect();
        queue.settle(&group, verdicts, true).await.unwrap();
        queue.look_after_now().await;
    }
    let all = DeadLetterSelection::Filter(DeadLetterFilter::default());
    assert!(queue.resend(&all, ResendTo::Source, None).await.unwrap().count > 0);
    queue.purge_dead(&all).await.unwrap();
    queue.purge().await.unwrap();
    assert_eq!(watch.reads(), 0);
    place.stop().await;
}

#[tokio::test]
async fn a_group_that_begins_at_a_time_and_one_that_goes_there_read_nothing_on_a_task() {
    let (place, queue, watch) = begin_cold(settings(2, &[("g", GroupMode::Work)]), 300).await;
    let middle = queue.browse(Some(0), Some(70), 1).await.unwrap();
    let time = middle.first().unwrap().1.time;
    let mut late = GroupSettings::new("late", GroupMode::Stream);
    late.start = GroupStart::Time(time);
    let late = place.queues.join_group(&queue, late).await.unwrap();
    assert!(late.stats().positions.iter().all(|at| *at > 0), "{:?}", late.stats());
    let group = queue.group("g").unwrap();
    queue.seek(&group, SeekTo::Time(time)).await.unwrap();
    assert_eq!(watch.reads(), 0);
    place.stop().await;
}

/// Operations of users, operators and the queue itself, in any order.
async fn act(place: &Place, queue: &Arc<Queue>, random: &mut Random) -> &'static str {
    let group = |name: &str| queue.group(name).unwrap();
    match random.below(16) {
        0..=4 => {
            let message = NewMessage {
                key: Some(format!("k{}", random.below(5)).into()),
                dedup_id: (random.below(3) == 0).then(|| random.below(1000).to_string().into()),
                not_before: (random.below(4) == 0).then(|| place.now() + 1_000_000),
                ..NewMessage::of(vec![1; random.below(20_000) as usize])
            };
            // Full, or messages are retained because of a group.
            let _ = queue.produce(message).await;
            "produce"
        }
        5..=6 => {
            let group = group("g");
            let kind = thalweg_queue::members::MemberKind::Http;
            let some = queue.claim(&group, "c", kind, up_to(7)).await.unwrap();
            let verdict = |n: u64| [SettleAction::Ack, NACK_NOW, REJECT][n as usize].clone();
            let verdicts = some.iter().map(|of| (queue.receipt(of), verdict(random.below(3))));
            let verdicts = verdicts.collect();
            let _ = queue.settle(&group, verdicts, true).await.unwrap();
            "claim and settle"
        }
        7 => {
            let kind = thalweg_queue::members::MemberKind::Http;
            // It may be told of a gap first.
            let some = queue.claim(&group("s"), "c", kind, up_to(20)).await;
            for of in some.iter().flatten() {
                queue
                    .commit(&group("s"), of.partition, of.message.offset + 1)
                    .await
                    .unwrap();
            }
            "stream"
        }
        8 => {
            let to = match random.below(4) {
                0 => SeekTo::Earliest,
                1 => SeekTo::Latest,
                2 => SeekTo::Time(place.now() - 1000 * random.below(1000) as i64),
                _ => SeekTo::Offset {
                    partition: None,
                    offset: random.below(300),
                },
            };
            let name = ["g", "s"][random.below(2) as usize];
            queue.seek(&group(name), to).await.unwrap();
            "seek"
        }
        9 => {
            let mut other = GroupSettings::new("other", GroupMode::Work);
            other.start = GroupStart::Time(place.now() - 1000 * random.below(1000) as i64);
            place.queues.join_group(queue, other).await.unwrap();
            place.queues.remove_group(queue, "other").await.unwrap();
            "a group"
        }
        10 => {
            let all = DeadLetterSelection::Filter(DeadLetterFilter::default());
            match random.below(2) {
                0 => drop(queue.purge_dead(&all).await.unwrap()),
                _ => drop(queue.resend(&all, ResendTo::Source, None).await.unwrap()),
            }
            "dead letters"
        }
        11 => {
            queue.browse(None, None, 50).await.unwrap();
            queue.dead_page(&DeadLetterFilter::default(), None, 50).await.unwrap();
            queue.find(0, random.below(100)).await.unwrap();
            "browse"
        }
        12 => {
            queue.stats();
            "stats"
        }
        13 => {
            queue.compact_now().await;
            "compaction"
        }
        14 => {
            place.later(Duration::from_millis(random.below(4000)));
            queue.look_after_now().await;
            "maintenance"
        }
        _ => match random.below(8) {
            0 => {
                queue.purge().await.unwrap();
                "purge"
            }
            _ => "nothing",
        },
    }
}

/// Random settings.
fn some_settings(random: &mut Random) -> QueueSettings {
    let mut settings = settings(
        1 + random.below(3) as u32,
        &[("g", GroupMode::Work), ("s", GroupMode::Stream)],
    );
    settings.block_timeout = Duration::from_millis(1);
    settings.overflow = [Overflow::DropOldest, Overflow::Block][random.below(2) as usize];
    settings.max_depth = [0, 100][random.below(2) as usize];
    settings.max_bytes = [0, 2_000_000][random.below(2) as usize];
    settings.dlq.on_overflow = settings.overflow == Overflow::DropOldest && random.below(2) == 0;
    settings.dedup_window = Duration::from_secs([0, 2][random.below(2) as usize]);
    settings.ttl = Duration::from_secs([0, 3, 3600][random.below(3) as usize]);
    if random.below(2) == 0 {
        settings.retention.mode = RetentionMode::Policy;
        settings.retention.max_messages = [0, 80][random.below(2) as usize];
        settings.retention.max_age = Duration::from_secs([0, 5][random.below(2) as usize]);
        settings.compaction.enabled = random.below(2) == 0;
        settings.compaction.lag = Duration::from_secs(1);
    }
    settings
}

#[tokio::test]
async fn whatever_is_done_with_a_queue_no_task_reads_the_disk() {
    let (first, count) = (number("THALWEG_SIM_SEED", 0), number("THALWEG_SIM_SEEDS", 6));
    for seed in first..first + count {
        let mut random = Random::new(seed);
        let (place, queue, watch) = begin_cold(some_settings(&mut random), 95).await;
        for step in 0..120 {
            let what = act(&place, &queue, &mut random).await;
            assert_eq!(watch.reads(), 0, "seed {seed}, step {step}: {what}");
        }
        place.stop().await;
    }
}
