//! Damage to the catalogue of queues, one frame after the other, through a start that gives up damaged data: no message
//! that a group may still need is lost, nothing that was deleted comes back, and no later start fails.
//!
//! A generator makes the history: queues and groups are created, changed and deleted, messages are produced and some
//! are settled. `THALWEG_SIM_SEEDS` runs more histories, `THALWEG_SIM_SEED` others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    Files, Place, ack, claim, disk_of, files_of, log_options, number, open_on, put, settings, start_skipping, text,
};
use thalweg_log::disk::RamDisk;
use thalweg_log::disk::sim::Random;
use thalweg_log::{DumpLine, DumpOptions, LogOptions, PartitionId, dump, repair};
use thalweg_queue::Pause;
use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};

const CATALOG: PartitionId = PartitionId::new(1, 0);
const DISK_BYTES: u64 = 64 << 20;

fn options() -> LogOptions {
    log_options(1 << 20, 1 << 19)
}

async fn start(disk: Arc<RamDisk>) -> Place {
    open_on(disk, &options(), Duration::ZERO, u64::MAX).await
}

/// What clients were told.
#[derive(Default)]
struct Told {
    /// By queue: messages that some group has not settled.
    messages: BTreeMap<String, BTreeSet<String>>,
    /// Messages of queues that were deleted.
    deleted: BTreeSet<String>,
    next: u64,
}

/// Groups that settle, and one that never does and so keeps everything.
fn some_settings(random: &mut Random) -> QueueSettings {
    let groups: &[(&str, GroupMode)] = match random.below(3) {
        0 => &[],
        1 => &[("fast", GroupMode::Work), ("slow", GroupMode::Work)],
        _ => &[("fast", GroupMode::Work), ("slow", GroupMode::Stream)],
    };
    settings(1 + random.below(3) as u32, groups)
}

/// One random operation. Queues have the names `q0` to `q3`.
async fn one_step(place: &Place, told: &mut Told, random: &mut Random) {
    let name = format!("q{}", random.below(4));
    let Ok(queue) = place.queues.get(&name) else {
        place.queues.create(&name, some_settings(random)).await.unwrap();
        return drop(told.messages.insert(name, BTreeSet::new()));
    };
    match random.below(12) {
        0 => {
            place.queues.remove(&name, true).await.unwrap();
            told.deleted.extend(told.messages.remove(&name).unwrap());
        }
        1 => {
            let mut more = (*queue.settings()).clone();
            more.partitions += 1;
            // Under an order only while it is empty.
            let _ = place.queues.configure(&name, more).await;
        }
        2 => {
            let late = GroupSettings::new(&format!("late{}", random.below(2)), GroupMode::Work);
            let _ = place.queues.create_group(&queue, late).await;
        }
        3 => place.queues.pause(&queue, Pause::Consume, false).await.unwrap(),
        4 if queue.group("fast").is_ok() => {
            let all = claim(&queue, "fast", 100).await;
            ack(&queue, "fast", &all);
        }
        5 => {
            let _ = place.queues.remove_group(&queue, "late0").await;
        }
        _ => {
            let text = format!("message {}", told.next);
            told.next += 1;
            put(&queue, &[&text]).await;
            told.messages.entry(name).or_default().insert(text);
        }
    }
}

/// A history and the log that it leaves.
async fn history(seed: u64, steps: u64) -> (Files, Told) {
    let mut random = Random::new(seed);
    let disk = Arc::new(RamDisk::new(DISK_BYTES));
    let place = start(disk.clone()).await;
    let mut told = Told::default();
    for _ in 0..steps {
        one_step(&place, &mut told, &mut random).await;
    }
    place.stop().await;
    (files_of(disk.as_ref()), told)
}

/// The position of a byte of the catalogue.
#[derive(Clone, Debug)]
struct Target {
    file: String,
    /// Within the body of a frame, with its length, or within the header of its block.
    position: u64,
    bytes: u64,
}

/// Every frame of the catalogue, and the header of its block.
fn targets(files: &Files) -> Vec<Target> {
    let (mut found, mut block) = (Vec::new(), None);
    let of_catalog = DumpOptions {
        partition: Some(CATALOG),
        ..DumpOptions::default()
    };
    let disk = disk_of(files);
    dump(disk.as_ref(), &of_catalog, &mut |line| {
        match line {
            DumpLine::Block { file, position, .. } => {
                block = Some(Target {
                    file: (*file).to_owned(),
                    position: *position,
                    bytes: 32,
                });
            }
            DumpLine::Frame {
                file, position, header, ..
            } => {
                found.push(Target {
                    file: (*file).to_owned(),
                    position: *position,
                    bytes: u64::from(header.body_len),
                });
                found.extend(block.take());
            }
            _ => {}
        }
        true
    })
    .unwrap();
    found
}

/// The texts of all messages in all queues, and how often each exists.
async fn all_texts(place: &Place) -> BTreeMap<String, u32> {
    let mut all = BTreeMap::new();
    for queue in place.queues.all() {
        for (_, message) in queue.browse(None, None, 10_000).await.unwrap() {
            *all.entry(text(&message)).or_default() += 1;
        }
    }
    all
}

async fn check(place: &Place, told: &Told, whole: bool) {
    let found = all_texts(place).await;
    for text in told.messages.values().flatten() {
        assert!(found.contains_key(text), "{text} is lost");
    }
    if whole {
        let back: Vec<&String> = told.deleted.iter().filter(|text| found.contains_key(*text)).collect();
        assert!(back.is_empty(), "{back:?} come back");
    }
}

/// As the configuration of the process does at each start.
async fn declare(place: &Place) {
    let wanted = settings(3, &[("fast", GroupMode::Work), ("slow", GroupMode::Work)]);
    match place.queues.get("q0") {
        Ok(_) => drop(place.queues.configure("q0", wanted).await),
        Err(_) => drop(place.queues.create("q0", wanted).await.unwrap()),
    }
}

/// Two starts and more use follow the one that gave up the damaged data.
async fn goes_on(place: Place, disk: &Arc<RamDisk>, told: &Told) {
    check(&place, told, true).await;
    declare(&place).await;
    place.kill();
    for clean in [true, false] {
        let place = start(disk.clone()).await;
        check(&place, told, true).await;
        let (name, mark) = (format!("new-{clean}"), format!("new {clean}"));
        let fresh = place
            .queues
            .create(&name, settings(1, &[("g", GroupMode::Work)]))
            .await
            .unwrap();
        assert_eq!(fresh.depth(), 0);
        put(&fresh, &[&mark]).await;
        assert_eq!(text(&claim(&fresh, "g", 10).await[0].message), mark);
        place.end(clean).await;
    }
}

#[expect(clippy::print_stdout, reason = "a case that fails is the one that was told last")]
#[tokio::test]
async fn no_damaged_frame_of_the_catalogue_costs_a_message_or_keeps_a_start_away() {
    let (first, count) = (number("THALWEG_SIM_SEED", 1), number("THALWEG_SIM_SEEDS", 3));
    let mut cases = 0;
    for seed in first..first + count {
        let (files, told) = history(seed, 24).await;
        let mut random = Random::new(seed);
        for target in targets(&files) {
            let mut files = files.clone();
            let at = (target.position + random.below(target.bytes)) as usize;
            files.get_mut(&target.file).unwrap()[at] ^= 1 << random.below(8);
            let disk = disk_of(&files);
            println!("seed {seed}: {target:?}, byte {at}");
            let place = if random.one_in(2) {
                start_skipping(disk.clone()).await
            } else {
                repair(disk.as_ref(), true, &mut |_, _| {}).unwrap();
                start(disk.clone()).await
            };
            goes_on(place, &disk, &told).await;
            cases += 1;
        }
    }
    println!("{cases} cases");
}

/// The process ends while a queue is created or removed, and then a frame of the catalogue is damaged.
#[tokio::test(flavor = "multi_thread")]
async fn damage_beside_a_queue_half_made_or_half_removed_costs_no_message_of_others() {
    for removed in [false, true] {
        let disk = Arc::new(RamDisk::new(DISK_BYTES));
        let place = start(disk.clone()).await;
        let mut told = Told::default();
        let kept = place
            .queues
            .create("kept", settings(2, &[("slow", GroupMode::Work)]))
            .await
            .unwrap();
        for n in 0..4 {
            put(&kept, &[&format!("kept {n}")]).await;
            told.messages
                .entry("kept".to_owned())
                .or_default()
                .insert(format!("kept {n}"));
        }
        let queues = place.queues.clone();
        let many = settings(40, &[("slow", GroupMode::Work)]);
        let change = if removed {
            let half = queues.create("half", many).await.unwrap();
            put(&half, &["half"; 60]).await;
            tokio::spawn(async move { drop(queues.remove("half", true).await) })
        } else {
            tokio::spawn(async move { drop(queues.create("half", many).await) })
        };
        // Messages go first, so with fewer than 40 partitions left some are state partitions.
        let all = |place: &Place| place.log.partitions().len();
        while if removed { all(&place) > 70 } else { all(&place) < 30 } {
            tokio::task::yield_now().await;
        }
        place.kill();
        change.await.unwrap();
        let files = files_of(disk.as_ref());
        let targets = targets(&files);
        for target in &targets {
            let mut files = files.clone();
            files.get_mut(&target.file).unwrap()[target.position as usize] ^= 16;
            let disk = disk_of(&files);
            let place = start_skipping(disk.clone()).await;
            goes_on(place, &disk, &told).await;
        }
        // The log may have merged frames meanwhile.
        assert!(!targets.is_empty());
    }
}

/// Regression: a mark in the way of a queue's first entry, an entry in the way of declared groups.
#[tokio::test]
async fn a_queue_whose_first_entry_is_damaged_is_found_with_its_messages() {
    let disk = Arc::new(RamDisk::new(DISK_BYTES));
    let place = start(disk.clone()).await;
    let queue = place.queues.create("q", settings(2, &[])).await.unwrap();
    put(&queue, &["one", "two"]).await;
    place.stop().await;
    let files = files_of(disk.as_ref());
    let bodies: Vec<Target> = targets(&files)
        .into_iter()
        .filter(|target| target.bytes > 100)
        .collect();
    let [entry] = bodies.as_slice() else {
        panic!("{bodies:?}")
    };
    let mut damaged = files.clone();
    damaged.get_mut(&entry.file).unwrap()[entry.position as usize + 20] ^= 1;
    let disk = disk_of(&damaged);
    let place = start_skipping(disk.clone()).await;
    let found = place.queues.get("found-16").unwrap();
    assert_eq!(found.depth(), 2);
    // It is an ordinary queue: a user who has saved its messages deletes it.
    place.queues.remove("found-16", true).await.unwrap();
    place.kill();
    let place = start(disk).await;
    assert!(place.queues.all().is_empty());
    place.stop().await;
}
