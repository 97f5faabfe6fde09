//! The writer and recovery on a simulated disk. After a crash at any moment, all acknowledged records are there once
//! and in order, and the others only as a prefix without holes.

mod damage;
mod deceit;
mod ends;
mod full;
mod newer;
mod promises;
mod spares;
mod unsynced;
mod whole_files;

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::core::{Offsets, Submission, SubmissionParts, WriterCore};
use super::group::SubmissionPart;
use crate::cache::IndexCache;
use crate::check::{CheckReport, FindingKind, check as check_files};
use crate::disk::Disk as _;
use crate::disk::sim::{Faults, Random, SimDisk};
use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::file::LogFile;
use crate::file_pool::FilePool;
use crate::format::frame::{FrameFlags, FrameKind};
use crate::format::record::{RecordRef, records};
use crate::ids::{Micros, PartitionId};
use crate::open::{self, OpenedLog};
use crate::options::LogOptions;
use crate::partition::Partition;
use crate::partition_table::PartitionChange;
use crate::records::Records;
use crate::recovery::recover;
use crate::repair::repair;
use crate::segment::{self, MovePlan};
use crate::test_support::{bytes_of, one_record, overwrite};

const MODES: [Durability; 4] = [
    Durability::Fsync,
    Durability::Os,
    Durability::Fsync,
    Durability::Interval,
];
const FILE_SIZE: u64 = 96 << 10;

/// A log on a simulated disk, driven by hand.
struct Driven {
    core: WriterCore,
    pool: Arc<FilePool>,
    meta: Arc<Partition>,
    partitions: Vec<Arc<Partition>>,
    /// Whether some records are checkpoints, which make earlier records unnecessary.
    checkpoints: bool,
}

fn options() -> LogOptions {
    LogOptions {
        file_bytes: FILE_SIZE,
        first_file_bytes: FILE_SIZE / 2,
        min_free_bytes: Some(0),
        commit_bytes_max: 16 << 10,
        tail_bytes_max: 20 << 10,
        index_bytes_max: 10 << 10,
        ..LogOptions::default()
    }
}

fn open(disk: &SimDisk) -> Result<Driven> {
    open_with(disk, &options())
}

/// Opens a log; a new one gets this id.
fn open_of(disk: &SimDisk, log_id: u64) -> Result<Driven> {
    open_named(disk, log_id, &options())
}

/// Opens a log with larger files.
fn open_wide(disk: &SimDisk) -> Driven {
    let options = LogOptions {
        file_bytes: 1 << 20,
        first_file_bytes: 1 << 20,
        ..options()
    };
    open_with(disk, &options).unwrap()
}

fn open_with(disk: &SimDisk, options: &LogOptions) -> Result<Driven> {
    open_named(disk, 42, options)
}

fn open_named(disk: &SimDisk, log_id: u64, options: &LogOptions) -> Result<Driven> {
    let OpenedLog {
        mut core,
        pool,
        partitions: mut known,
        meta,
        ..
    } = open::open(Arc::new(disk.clone()), log_id, options)?;
    let mut partitions = Vec::new();
    for (n, mode) in MODES.iter().enumerate() {
        let id = PartitionId::new(1, n as u32);
        let partition = match known.remove(&id) {
            Some(partition) => partition,
            None => {
                let partition = Arc::new(Partition::new(id, n + 1, *mode, 0));
                core.add_partition(partition.clone());
                change(&mut core, &meta, PartitionChange::Created(id, *mode), Durability::Fsync)?;
                partition
            }
        };
        assert_eq!((partition.slot, partition.durability()), (n + 1, *mode));
        partitions.push(partition);
    }
    Ok(Driven {
        core,
        pool,
        meta,
        partitions,
        checkpoints: false,
    })
}

type Answer = oneshot::Receiver<Result<Offsets>>;

/// A submission without a waiter.
fn submission(partition: &Partition, kind: FrameKind, records: Records, durability: Durability) -> Submission {
    Submission {
        bytes: records.bytes(),
        parts: [SubmissionPart::of(partition, kind, records)].into(),
        durability,
        done: None,
        for_files: false,
        frees: false,
    }
}

/// Adds a waiter to a submission.
fn awaited(submission: Submission) -> (Submission, Answer) {
    let (done, answer) = oneshot::channel();
    let done = Some(done);
    (Submission { done, ..submission }, answer)
}

/// Commits a single submission.
fn commit(core: &mut WriterCore, submission: Submission, now: Micros) -> Result<Offsets> {
    let (submission, mut answer) = awaited(submission);
    core.commit(&mut VecDeque::from([submission]), now);
    answer.try_recv().unwrap()
}

/// Commits a change of the partition table.
fn change(core: &mut WriterCore, meta: &Partition, change: PartitionChange, durability: Durability) -> Result<()> {
    let mut value = Vec::new();
    change.encode(&mut value);
    let submission = submission(meta, FrameKind::Meta, one_record(&value), durability);
    commit(core, submission, 1).map(drop)
}

/// The report of a check of all files.
fn checked(disk: &SimDisk) -> CheckReport {
    check_files(disk, &mut |_, _| {}).unwrap()
}

/// The expected state of a partition. Its records are the numbers from 0, each in a value of varying length.
#[derive(Clone, Copy, Default, Debug)]
struct Known {
    submitted: u64,
    acknowledged: u64,
    /// Records before this offset were trimmed.
    trimmed: u64,
    /// Before this offset every third record may be missing.
    thinned: u64,
}

/// Whether a rewrite keeps the record.
fn is_kept(number: u64) -> bool {
    !number.is_multiple_of(3)
}

fn value(number: u64, random: &mut Random) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    let filling = if random.one_in(20) {
        random.below(20_000)
    } else {
        random.below(300)
    };
    value.resize(8 + filling as usize, number as u8);
    value
}

fn number_of(value: &[u8]) -> u64 {
    let number = u64::from_le_bytes(value[..8].try_into().unwrap());
    assert!(
        value[8..].iter().all(|byte| *byte == number as u8),
        "a value is damaged"
    );
    number
}

/// Reads a partition from its start in pieces, like a consumer. Asserts that every record contains its own offset.
fn read_all(partition: &Partition) -> Vec<u64> {
    let (mut numbers, start) = (Vec::new(), partition.bounds().first);
    let mut from = start;
    loop {
        let frames = partition.read(from, 4096).unwrap();
        if frames.is_empty() {
            assert_eq!(from, partition.bounds().next);
            return numbers;
        }
        for frame in frames {
            assert!(frame.header.base <= from, "a hole before {}", frame.header.base);
            let mut next = frame.header.base;
            for record in records(&frame.body) {
                let record = record.unwrap();
                let offset = record.delta.map_or(next, |delta| frame.header.base + u64::from(delta));
                next = offset + 1;
                assert_eq!(
                    number_of(record.value),
                    offset,
                    "an offset is not the number of its record"
                );
                if offset >= from {
                    numbers.push(offset);
                }
            }
            from = frame.header.next();
        }
    }
}

/// A submission, its reply channel, and the number of records per partition.
type Submitted = (Submission, Answer, Vec<(usize, u64)>);

fn submit(driven: &Driven, known: &mut [Known], random: &mut Random) -> Submitted {
    let (mut parts, mut counts, mut bytes, mut durability) = (SubmissionParts::new(), Vec::new(), 0, Durability::Os);
    for (slot, partition) in driven.partitions.iter().enumerate() {
        let chosen = random.one_in(2) || slot == 0;
        if !chosen {
            continue;
        }
        let (mut body, n) = (Vec::new(), 1 + random.below(4));
        let kind = match driven.checkpoints && random.one_in(25) {
            true => FrameKind::Checkpoint,
            false => FrameKind::Data,
        };
        if kind == FrameKind::Checkpoint {
            // Records before the checkpoint may disappear from now on.
            known[slot].trimmed = known[slot].trimmed.max(known[slot].submitted);
        }
        for _ in 0..n {
            let mut value = value(known[slot].submitted, random);
            // A whole submission must fit into a file.
            let room = (FILE_SIZE as usize / 2).saturating_sub(bytes + body.len());
            value.truncate(room.max(8));
            known[slot].submitted += 1;
            RecordRef::of(1, &value).encode(&mut body);
        }
        counts.push((slot, n));
        bytes += body.len();
        if partition.durability() == Durability::Fsync {
            durability = Durability::Fsync;
        }
        parts.push(SubmissionPart {
            slot: partition.slot,
            partition: partition.id,
            kind,
            flags: FrameFlags::NONE,
            records: n as u32,
            body,
            base_time: 1,
            max_time: 1,
            expected: None,
            span: None,
        });
    }
    let (submission, answer) = awaited(Submission {
        parts,
        durability,
        bytes,
        done: None,
        for_files: false,
        frees: false,
    });
    (submission, answer, counts)
}

/// Runs some commits of some submissions. Returns false once the log refuses writes.
fn work(driven: &mut Driven, known: &mut [Known], random: &mut Random) -> bool {
    let (mut waiting, mut answers) = (VecDeque::new(), Vec::new());
    for _ in 0..1 + random.below(6) {
        let (submission, answer, counts) = submit(driven, known, random);
        waiting.push_back(submission);
        answers.push((answer, counts));
    }
    let now = 5;
    while !waiting.is_empty() {
        driven.core.commit(&mut waiting, now);
        if random.one_in(5) {
            let _ = driven.core.sync();
        }
        if random.one_in(9) && driven.core.has_news() {
            let _ = driven.core.mark(now);
        }
    }
    let mut all = true;
    for (mut answer, counts) in answers {
        match answer.try_recv().unwrap() {
            Ok(firsts) => {
                for ((slot, n), first) in counts.into_iter().zip(firsts) {
                    assert_eq!(
                        first, known[slot].acknowledged,
                        "an offset is not the number of its record"
                    );
                    known[slot].acknowledged = first + n;
                }
            }
            Err(_) => all = false,
        }
    }
    all
}

/// A log after a number of rounds, determined by a seed.
fn worked(disk: &SimDisk, seed: u64, rounds: u32) -> (Driven, [Known; MODES.len()], Random) {
    let (mut random, mut known) = (Random::new(seed), [Known::default(); MODES.len()]);
    let mut driven = open(disk).unwrap();
    for _ in 0..rounds {
        assert!(work(&mut driven, &mut known, &mut random));
    }
    (driven, known, random)
}

/// Runs a maintenance step. Returns false once the log refuses writes.
fn keep_up(driven: &mut Driven, known: &mut [Known], random: &mut Random) -> bool {
    let Driven {
        core,
        pool,
        meta,
        partitions,
        ..
    } = driven;
    let slot = random.below(MODES.len() as u64) as usize;
    let partition = &partitions[slot];
    let done = match random.below(4) {
        // A file is free when no partition needs it.
        0 => partitions
            .iter()
            .zip(known.iter_mut())
            .try_for_each(|(partition, known)| {
                let bounds = partition.bounds();
                let below = bounds.next - random.below(bounds.next + 1 - bounds.first) / (1 + random.below(20));
                known.trimmed = known.trimmed.max(below);
                // The trim is journaled, without a waiter.
                let said = change(
                    core,
                    meta,
                    PartitionChange::Trimmed(partition.id, below),
                    Durability::Os,
                );
                said.map(|()| {
                    partition.trim(below);
                })
            }),
        1 => {
            // Moves one full file, or merges several segments.
            let (sealed, mut files) = (pool.sealed(), pool.segments());
            match sealed.get(random.below(sealed.len().max(1) as u64) as usize) {
                Some(file) if random.below(2) == 0 => files = vec![file.clone()],
                _ => files.retain(|_| random.below(3) > 0),
            }
            MovePlan::of(&files, partitions).and_then(|planned| planned.run(pool, &|_| {}).map(drop))
        }
        2 => {
            known[slot].thinned = partition.bounds().next;
            let keep = |offset: u64, _: &RecordRef<'_>| is_kept(offset);
            let mut files = pool.sealed();
            files.extend(pool.segments());
            files
                .iter()
                .try_for_each(|file| segment::rewrite(pool, file, partition, &keep, &|_| {}).map(drop))
        }
        // Like the thread: nothing is reused before the records that freed it are on disk.
        _ => core.sync().and_then(|()| {
            while pool.prepare(2)? {}
            pool.remove_dead_segments()
        }),
    };
    // Like the threads: an error that does not poison is retried.
    let poisoned = matches!(done, Err(LogError::Poisoned { .. }));
    !poisoned && core.poison().is_none()
}

/// After a start, everything acknowledged is there, nothing is there twice, nothing was never submitted, and there are
/// no holes.
fn check(driven: &Driven, known: &mut [Known], power_cut: bool) {
    for (slot, partition) in driven.partitions.iter().enumerate() {
        let (first, found) = (partition.bounds().first, partition.bounds().next);
        let Known {
            submitted,
            acknowledged,
            trimmed,
            thinned,
        } = known[slot];
        let numbers = read_all(partition);
        let wanted = (first..found).filter(|number| *number >= thinned || is_kept(*number));
        let missing = wanted
            .filter(|number| numbers.binary_search(number).is_err())
            .collect::<Vec<_>>();
        assert!(missing.is_empty(), "partition {slot} from {first}: {missing:?} missing");
        assert!(
            numbers.is_sorted_by(|one, other| one < other),
            "partition {slot}: {numbers:?}"
        );
        assert!(
            first <= trimmed,
            "partition {slot} begins at {first}, trimmed to {trimmed}"
        );
        let promised = partition.durability() == Durability::Fsync || !power_cut;
        assert!(
            !promised || found >= acknowledged,
            "partition {slot}: {found} found, {acknowledged} acknowledged"
        );
        assert!(
            found <= submitted,
            "partition {slot}: {found} found, {submitted} submitted"
        );
        known[slot] = Known {
            submitted: found,
            acknowledged: found,
            ..known[slot]
        };
    }
}

fn life_and_death(seed: u64) {
    let mut random = Random::new(seed);
    let disk = SimDisk::new(seed, 64 << 20);
    let mut known = [Known::default(); MODES.len()];
    let mut power_cut = false;
    for _ in 0..6 {
        disk.set_faults(Faults::default());
        if random.one_in(4) {
            // Also during recovery.
            disk.cut_power_in(random.below(12));
        }
        let mut driven = match open(&disk) {
            Ok(driven) => driven,
            Err(LogError::Io { .. } | LogError::Poisoned { .. }) => {
                disk.power_cut();
                power_cut = true;
                continue;
            }
            Err(error) => panic!("seed {seed}: {error}"),
        };
        let life = disk.life();
        driven.checkpoints = true;
        check(&driven, &mut known, power_cut);
        match random.below(4) {
            0 => disk.cut_power_in(random.below(60)),
            1 => disk.set_faults(Faults {
                failing_syncs: 20,
                ..Faults::default()
            }),
            2 => disk.set_faults(Faults {
                failing_writes: 20,
                ..Faults::default()
            }),
            3 if seed.is_multiple_of(2) => disk.set_faults(Faults {
                failing_names: 10,
                ..Faults::default()
            }),
            _ => {}
        }
        for _ in 0..random.below(25) {
            if !work(&mut driven, &mut known, &mut random) {
                break;
            }
            let times = random.below(4);
            let mut keep_up = || keep_up(&mut driven, &mut known, &mut random) && disk.life() == life;
            let keeps_up = (0..times).all(|_| keep_up());
            if !keeps_up {
                break;
            }
        }
        power_cut = random.one_in(2) || driven.core.poison().is_some();
        if power_cut { disk.power_cut() } else { disk.kill() }
    }
}

/// Seeds that once found a bug which thousands of others did not.
const FOUND: [u64; 3] = [7_592, 57_623, 66_569];

#[test]
fn no_moment_loses_what_was_acknowledged() {
    let rounds = std::env::var("THALWEG_SIM_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(400);
    let first = std::env::var("THALWEG_SIM_SEED")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    for seed in FOUND.into_iter().chain(first..first + rounds) {
        let outcome = std::panic::catch_unwind(|| life_and_death(seed));
        assert!(
            outcome.is_ok(),
            "THALWEG_SIM_SEED={seed} THALWEG_SIM_SEEDS=1 shows it again"
        );
    }
}

/// Every bit flip in a cleanly closed log of several files is harmless or reported.
#[test]
fn a_flipped_bit_is_harmless_or_reported_and_never_served() {
    let (mut reported, mut harmless) = (0, 0);
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let disk = SimDisk::new(seed, 64 << 20);
        let mut known = [Known::default(); MODES.len()];
        let mut driven = open(&disk).unwrap();
        driven.checkpoints = true;
        for _ in 0..15 {
            assert!(work(&mut driven, &mut known, &mut random));
        }
        driven.core.sync().unwrap();
        driven.core.mark(9).unwrap();
        disk.kill();
        let (file, position) = disk.flip_bit().unwrap();
        match open(&disk) {
            Err(LogError::Corrupt { file: named, .. }) => {
                reported += 1;
                assert_eq!(named, file, "the damage is at {position} of {file}");
            }
            Err(error) => panic!("seed {seed}: {error}"),
            Ok(driven) => {
                let mut whole = true;
                for (slot, partition) in driven.partitions.iter().enumerate() {
                    whole &= reads_back_or_says_where(partition, known[slot].acknowledged, &file);
                }
                if whole { harmless += 1 } else { reported += 1 }
            }
        }
    }
    assert!(
        reported > 20 && harmless > 20,
        "{reported} reported, {harmless} harmless"
    );
}

fn reads_back_or_says_where(partition: &Partition, expected: u64, file: &str) -> bool {
    let mut from = partition.bounds().first;
    while from < expected {
        match partition.read(from, 4096) {
            Ok(frames) => {
                for frame in frames {
                    for (n, record) in records(&frame.body).enumerate() {
                        assert_eq!(number_of(record.unwrap().value), frame.header.base + n as u64);
                    }
                    from = frame.header.next();
                }
            }
            Err(LogError::Corrupt { file: named, .. }) => {
                assert_eq!(named, file);
                return false;
            }
            Err(error) => panic!("{error}"),
        }
    }
    true
}

#[test]
fn files_follow_each_other_and_are_found_again_by_their_indexes() {
    let disk = SimDisk::new(1, 64 << 20);
    let (_, mut known, mut random) = worked(&disk, 1, 60);
    disk.kill();
    let found = recover(&disk, &IndexCache::new(1 << 20)).unwrap();
    assert!(found.files.len() > 3, "{} files", found.files.len());
    // Only the blocks of the last file were read.
    let blocks_of_a_file = FILE_SIZE / 4096;
    assert!(found.report.blocks_read <= blocks_of_a_file, "{:?}", found.report);
    assert_eq!(found.report.torn_bytes, 0);
    let mut again = open(&disk).unwrap();
    check(&again, &mut known, false);
    assert!(work(&mut again, &mut known, &mut random));
}
