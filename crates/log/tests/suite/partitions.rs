//! Creating or removing many partitions at once: the cost, and the state after a crash or on a full disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::{append, message, open, open_with, options, small_files, values};
use thalweg_log::disk::Disk;
use thalweg_log::disk::sim::{Random, SimDisk};
use thalweg_log::{Durability, EmbeddedLog, LogError, LogOptions, PartitionId};

fn ids(queue: u32, count: u32) -> Vec<PartitionId> {
    (0..count).map(|n| PartitionId::new(queue, n)).collect()
}

fn of_queue(log: &EmbeddedLog, queue: u32) -> usize {
    log.partitions().iter().filter(|id| id.queue == queue).count()
}

/// Returns the number of commits that `work` took.
fn commits_of<T>(log: &EmbeddedLog, work: impl FnOnce() -> T) -> (T, u64) {
    let commits = || {
        let told = log.counters().commit_bytes;
        told.buckets.iter().map(|(_, count)| count).sum::<u64>() + told.beyond
    };
    let before = commits();
    (work(), commits() - before)
}

/// Each creation used to be a commit of its own: a queue with a thousand partitions cost thousands.
#[test]
fn a_thousand_partitions_cost_what_one_costs() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let disk = SimDisk::new(1, 64 << 20);
    let log = open_with(&disk, &options(16 << 20));
    let all = ids(2, 3000);
    let (made, commits) = commits_of(&log, || runtime.block_on(log.create_all(&all, Durability::Fsync)));
    made.unwrap();
    assert!(commits <= 2, "{commits} commits");
    assert_eq!(of_queue(&log, 2), 3000);
    runtime.block_on(append(&log, all[2999], b"x"));
    let (removed, commits) = commits_of(&log, || runtime.block_on(log.remove_all(&all)));
    removed.unwrap();
    assert!(commits <= 2, "{commits} commits");
    assert_eq!(of_queue(&log, 2), 0);
    log.close();
    drop(log);
    assert_eq!(of_queue(&open(&disk), 2), 0);
}

#[tokio::test]
async fn one_that_is_there_keeps_all_of_them_from_being_made() {
    let disk = SimDisk::new(1, 64 << 20);
    let log = open(&disk);
    log.create(PartitionId::new(2, 7), Durability::Os).await.unwrap();
    let refused = log.create_all(&ids(2, 10), Durability::Os).await;
    assert!(matches!(refused, Err(LogError::PartitionExists(id)) if id == PartitionId::new(2, 7)));
    let twice = [PartitionId::new(3, 0), PartitionId::new(3, 0)];
    assert!(matches!(
        log.create_all(&twice, Durability::Os).await,
        Err(LogError::PartitionExists(_))
    ));
    assert_eq!((of_queue(&log, 2), of_queue(&log, 3)), (1, 0));
    // If one of them is unknown, none is removed.
    assert!(log.remove_all(&ids(2, 10)).await.is_err());
    assert_eq!(of_queue(&log, 2), 1);
}

/// The power is cut at each possible disk change.
#[test]
fn a_crash_finds_all_that_were_made_or_removed_together_or_none() {
    let (mut none, mut some_removed) = (0, 0);
    for n in 0..60 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let disk = SimDisk::new(n, 64 << 20);
        let log = open(&disk);
        runtime.block_on(async {
            log.create_all(&ids(2, 300), Durability::Fsync).await.unwrap();
            append(&log, PartitionId::new(2, 5), b"kept").await;
        });
        disk.cut_power_in(n % 12);
        let (made, removed) = runtime.block_on(async {
            let made = log.create_all(&ids(3, 300), Durability::Fsync).await;
            // Sometimes enough for a new file, which begins with a table snapshot of all partitions.
            for _ in 0..n / 12 {
                let _ = log.append(message(PartitionId::new(2, 5), &[7; 40_000])).await;
            }
            (made, log.remove_all(&ids(2, 300)).await)
        });
        log.close();
        drop(log);
        disk.power_cut();
        let log = open(&disk);
        let (third, second) = (of_queue(&log, 3), of_queue(&log, 2));
        assert!(
            third == 300 || (third == 0 && made.is_err()),
            "{n}: {third} of 300 are there"
        );
        assert!(
            second == 0 || (second == 300 && removed.is_err()),
            "{n}: {second} of 300 are left"
        );
        if second > 0 {
            assert_eq!(values(&log, PartitionId::new(2, 5))[0], b"kept");
        }
        none += u32::from(third == 0);
        some_removed += u32::from(second == 0);
    }
    assert!(none > 0 && some_removed > 0, "{none}, {some_removed}");
}

/// The reserve that each file has for removals on a full disk may have room for only some at a time.
#[tokio::test]
async fn on_a_full_disk_they_go_in_parts() {
    let disk = SimDisk::new(1, 8 << 20);
    let options = LogOptions {
        file_bytes: 96 << 10,
        first_file_bytes: 96 << 10,
        ..small_files()
    };
    let log = open_with(&disk, &options);
    let all = ids(2, 2000);
    log.create_all(&all, Durability::Os).await.unwrap();
    let space = disk.space().unwrap();
    disk.set_capacity(space.total_bytes - space.free_bytes);
    while log.append(message(all[0], &[7; 3000])).await.is_ok() {}
    let mut left = &all[..];
    while !left.is_empty() {
        // Each removal makes room for the next ones.
        if log.remove_all(left).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let gone = left.iter().take_while(|id| log.bounds(**id).is_err()).count();
        left = &left[gone..];
        assert_eq!(of_queue(&log, 2), left.len(), "they go in their order");
    }
    log.close();
    drop(log);
    assert_eq!(of_queue(&open_with(&disk, &options), 2), 0);
}

/// Records that must be there, and others that may be: they were sent but not acknowledged.
type Held = (Vec<Vec<u8>>, Vec<Vec<u8>>);

#[derive(Default)]
struct Model {
    there: BTreeMap<PartitionId, Held>,
    /// Partitions whose creation or removal was not acknowledged.
    unsure: BTreeMap<PartitionId, Held>,
    next_queue: u32,
    next_value: u64,
}

impl Model {
    fn id(&self, random: &mut Random) -> Option<PartitionId> {
        let at = random.below(self.there.len().max(1) as u64) as usize;
        self.there.keys().nth(at).copied()
    }

    /// A value that names its partition, so that a read from a wrong partition is detected.
    fn value(&mut self, id: PartitionId, random: &mut Random) -> Vec<u8> {
        self.next_value += 1;
        format!("{id} {} {}", self.next_value, ".".repeat(random.below(3000) as usize)).into_bytes()
    }

    fn check(&mut self, log: &EmbeddedLog, seed: u64) {
        let found = log.partitions();
        let unsure = std::mem::take(&mut self.unsure).into_iter();
        self.there.extend(unsure.filter(|(id, _)| found.contains(id)));
        assert_eq!(found.len(), self.there.len(), "seed {seed}");
        for (id, (acked, sent)) in &mut self.there {
            let kept = values(log, *id);
            let (known, more): (Vec<_>, Vec<_>) = kept.iter().cloned().partition(|value| acked.contains(value));
            assert_eq!(known, *acked, "seed {seed}: {id}");
            assert!(
                more.iter().all(|value| sent.contains(value)),
                "seed {seed}: {id} has what is not its own"
            );
            (*acked, *sent) = (kept, Vec::new());
        }
    }
}

/// Partitions are created and removed and reuse slots, while messages for them are in flight and the process or the
/// machine may die at any moment. `THALWEG_SIM_SEEDS` runs more of these lives.
#[test]
fn places_of_partitions_that_are_gone_are_others_and_nobody_finds_what_is_not_his() {
    let seeds = std::env::var("THALWEG_SIM_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(25);
    for seed in 0..seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(life(seed));
    }
}

async fn life(seed: u64) {
    let (mut random, disk) = (Random::new(seed), SimDisk::new(seed, 64 << 20));
    let mut model = Model {
        next_queue: 2,
        ..Model::default()
    };
    let mut log = Arc::new(start(&disk));
    for _ in 0..60 {
        match random.below(10) {
            0..3 => {
                let own = ids(model.next_queue, 1 + random.below(6) as u32);
                model.next_queue += 1;
                match log.create_all(&own, Durability::Fsync).await {
                    Ok(()) => model.there.extend(own.into_iter().map(|id| (id, Default::default()))),
                    Err(_) => model.unsure.extend(own.into_iter().map(|id| (id, Default::default()))),
                }
            }
            3..9 => {
                // Messages, some of them for a partition that is being removed.
                let mut sent = Vec::new();
                for _ in 0..random.below(12) {
                    let Some(id) = model.id(&mut random) else { break };
                    let value = model.value(id, &mut random);
                    let (log, unit) = (log.clone(), message(id, &value));
                    sent.push((id, value, tokio::spawn(async move { log.append(unit).await })));
                }
                tokio::task::yield_now().await;
                let going = model.id(&mut random).filter(|_| random.below(2) == 0);
                if let Some(id) = going {
                    let own: Vec<_> = model
                        .there
                        .keys()
                        .copied()
                        .filter(|other| other.queue == id.queue)
                        .collect();
                    let removed = log.remove_all(&own).await;
                    let held: Vec<_> = own.iter().filter_map(|id| model.there.remove_entry(id)).collect();
                    if removed.is_err() {
                        model.unsure.extend(held);
                    }
                }
                for (id, value, stored) in sent {
                    let stored = stored.await.unwrap();
                    let held = model.there.get_mut(&id).or_else(|| model.unsure.get_mut(&id));
                    let Some((acked, sent)) = held else { continue };
                    match stored {
                        Ok(_) => acked.push(value),
                        Err(_) => sent.push(value),
                    }
                }
            }
            _ => {
                match random.below(3) {
                    0 => log.close(),
                    1 => disk.kill(),
                    _ => disk.power_cut(),
                }
                drop(log);
                log = Arc::new(start(&disk));
                model.check(&log, seed);
            }
        }
        if random.below(12) == 0 {
            disk.cut_power_in(random.below(20));
        }
        if !model.unsure.is_empty() {
            // Only a restart shows the outcome.
            disk.power_cut();
            drop(log);
            log = Arc::new(start(&disk));
            model.check(&log, seed);
        }
    }
}

/// The power may be cut during a start, too.
fn start(disk: &SimDisk) -> EmbeddedLog {
    EmbeddedLog::open(Arc::new(disk.clone()), 7, &small_files()).unwrap_or_else(|_| {
        disk.power_cut();
        open(disk)
    })
}
