//! Unsynced data: when it is synced, who can read it before, and how much of it a power cut can take, whatever the disk
//! and the wall clock do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_kit::clock;

use super::*;

const INTERVAL: Duration = Duration::from_millis(50);

/// A manual clock that also advances a little on every reading, sometimes as far as a stalled disk would take.
#[derive(Clone, Default)]
struct Time {
    micros: Arc<AtomicU64>,
    stalls: Option<Arc<Mutex<Random>>>,
}

impl Time {
    fn go_on(&self, time: Duration) {
        self.micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }

    fn give_to(&self, core: &mut WriterCore) {
        let (own, began) = (self.clone(), clock::now());
        core.set_clock(Box::new(move || {
            if let Some(random) = &own.stalls {
                let mut random = random.lock();
                let stall = if random.one_in(30) { 150_000 } else { 100 };
                own.go_on(Duration::from_micros(random.below(stall)));
            }
            began + own.now()
        }));
    }

    /// Sleeps like the writer thread while nothing arrives.
    fn sleep(&self, core: &mut WriterCore, time: Duration) {
        let until = self.now() + time;
        while self.now() < until {
            let left = until.saturating_sub(self.now());
            self.go_on(core.due_in().unwrap_or(left).clamp(Duration::from_micros(1), left));
            core.sync_if_due();
        }
    }
}

/// A message with a waiter.
fn message(partition: &Partition, bytes: usize) -> (Submission, Answer) {
    let records = one_record(&vec![7; bytes]);
    awaited(submission(partition, FrameKind::Data, records, partition.durability()))
}

fn journaled(partition: &Partition) -> Submission {
    submission(
        partition,
        FrameKind::State,
        one_record(b"lease"),
        partition.durability(),
    )
}

#[test]
fn a_power_cut_takes_of_an_interval_what_was_acknowledged_in_two_of_them_at_most() {
    let mut lost = 0;
    for seed in 0..300 {
        let (mut random, disk) = (Random::new(seed), SimDisk::new(seed, 64 << 20));
        let mut driven = open(&disk).unwrap();
        let time = Time {
            stalls: Some(Arc::new(Mutex::new(Random::new(!seed)))),
            ..Time::default()
        };
        time.give_to(&mut driven.core);
        let dated = driven.partitions[3].clone();
        assert_eq!(dated.durability(), Durability::Interval);
        let mut acknowledged = Vec::new();
        for n in 0..random.below(80) {
            // More than fits into one block, with other submissions in between.
            let mut waiting = VecDeque::new();
            let mut answers = Vec::new();
            for _ in 0..1 + random.below(8) {
                let (one, answer) = message(&dated, random.below(9000) as usize);
                waiting.push_back(one);
                answers.push(answer);
                if random.one_in(10) {
                    waiting.push_back(message(&driven.partitions[1], 100).0);
                }
            }
            // The wall clock is set back by an hour and runs on.
            let wall = if n < 30 { 7_200_000_000 } else { 3_600_000_000 } + time.now().as_micros() as i64;
            while !waiting.is_empty() {
                driven.core.commit(&mut waiting, wall);
                for answer in &mut answers {
                    if let Ok(done) = answer.try_recv() {
                        acknowledged.push((done.unwrap()[0], time.now()));
                    }
                }
            }
            if random.one_in(3) {
                time.sleep(&mut driven.core, Duration::from_micros(random.below(100_000)));
            }
        }
        disk.power_cut();
        let found = open(&disk).unwrap().partitions[3].bounds().next;
        let first = acknowledged.iter().find(|(offset, _)| *offset >= found);
        if let (Some((_, first)), Some((_, last))) = (first, acknowledged.last()) {
            lost += 1;
            assert!(*last - *first <= 2 * INTERVAL, "seed {seed}: {:?}", *last - *first);
        }
    }
    assert!(lost > 20, "only {lost} power cuts took anything");
}

#[test]
fn what_nobody_waits_for_has_no_sync_of_its_own_and_is_read_when_it_is_synced() {
    let disk = SimDisk::new(1, 64 << 20);
    let mut driven = open_wide(&disk);
    let time = Time::default();
    time.give_to(&mut driven.core);
    let strict = driven.partitions[0].clone();
    let before = disk.syncs();
    for _ in 0..30 {
        driven.core.commit(&mut VecDeque::from([journaled(&strict)]), 1);
        time.sleep(&mut driven.core, Duration::from_millis(20));
    }
    assert_eq!((disk.syncs(), strict.bounds().next), (before, 0));
    // A submission with a waiter: one sync for all of them.
    let (one, mut answer) = message(&strict, 10);
    driven.core.commit(&mut VecDeque::from([journaled(&strict), one]), 1);
    assert_eq!(answer.try_recv().unwrap().unwrap()[0], 31);
    assert_eq!((disk.syncs(), strict.bounds().next), (before + 1, 32));
    // Without a waiter, the sync comes after a second.
    driven.core.commit(&mut VecDeque::from([journaled(&strict)]), 1);
    time.sleep(&mut driven.core, Duration::from_millis(999));
    assert_eq!((disk.syncs(), strict.bounds().next), (before + 1, 32));
    time.sleep(&mut driven.core, Duration::from_millis(1));
    assert_eq!((disk.syncs(), strict.bounds().next), (before + 2, 33));
    // A killed process loses none of it.
    driven.core.commit(&mut VecDeque::from([journaled(&strict)]), 1);
    disk.kill();
    assert_eq!(open(&disk).unwrap().partitions[0].bounds().next, 34);
}

#[test]
fn what_waits_for_its_sync_is_read_in_its_order_when_the_next_file_is_begun() {
    let disk = SimDisk::new(1, 64 << 20);
    let mut driven = open(&disk).unwrap();
    let strict = driven.partitions[0].clone();
    let file = driven.core.current_file();
    while driven.core.current_file() == file {
        driven.core.commit(&mut VecDeque::from([journaled(&strict)]), 1);
    }
    // All but the last one, which is in the new file.
    let (mut from, next) = (0, strict.bounds().next);
    while from < next {
        let frames = strict.read(from, 1 << 20).unwrap();
        assert_eq!(frames[0].header.base, from);
        from = frames.last().unwrap().header.next();
    }
    disk.power_cut();
    assert!(open(&disk).unwrap().partitions[0].bounds().next >= next);
}
