//! The statements of docs/explanation/durability.md about single files and about undetectable losses: the tests show
//! that each stated limit exists.

use super::whole_files::{Ending, Snapshot, disk_of, ended, outcome, snapshot};
use super::*;
use crate::format::PAGE;
use crate::format::block::BlockHeader;
use crate::superblock;

fn commit_files(files: &Snapshot) -> Vec<String> {
    let found = recovered(files);
    let used = found.files.iter().map(|file| file.name.clone());
    used.filter(|name| name.starts_with("commit-")).collect()
}

fn recovered(files: &Snapshot) -> crate::recovery::RecoveredLog {
    recover(&disk_of(files, 1), &IndexCache::new(1 << 20)).unwrap()
}

/// The end of each partition after opening the log. Asserts that nothing is damaged.
fn ends(files: &Snapshot) -> Result<Vec<u64>> {
    let driven = open(&disk_of(files, 1))?;
    for partition in &driven.partitions {
        read_all(partition);
    }
    let ends = driven.partitions.iter().map(|partition| partition.bounds().next);
    Ok(ends.collect())
}

fn acknowledged(known: &[Known]) -> Vec<u64> {
    known.iter().map(|known| known.acknowledged).collect()
}

#[test]
fn a_file_made_ready_for_use_that_is_gone_or_too_short_costs_nothing() {
    let mut seen = 0;
    for seed in 0..20 {
        let (files, known) = ended(seed, 42, Ending::Closed);
        for spare in recovered(&files).spares {
            seen += 1;
            for len in [None, Some(0), Some(PAGE), Some(files[&spare.name].len() - 1)] {
                let mut damaged = files.clone();
                match len {
                    None => drop(damaged.remove(&spare.name)),
                    Some(len) => damaged.get_mut(&spare.name).unwrap().truncate(len),
                }
                let disk = disk_of(&damaged, seed);
                outcome(&disk, &known, Ending::Closed, &damaged, false).unwrap();
                // The log accepts writes.
                let mut driven = open(&disk).unwrap();
                let mut known: Vec<Known> = known.clone();
                let mut random = Random::new(seed);
                assert!((0..10).all(|_| work(&mut driven, &mut known, &mut random)));
            }
        }
    }
    assert!(seen > 0);
}

#[test]
fn files_that_have_each_others_names_are_left_as_they_are_and_told_the_name_that_each_had() {
    let mut seen = 0;
    for seed in 0..20 {
        let (files, _) = ended(seed, 42, Ending::Closed);
        let names = commit_files(&files);
        for pair in names.windows(2) {
            let (one, other) = (&pair[0], &pair[1]);
            let mut swapped = files.clone();
            swapped.insert(one.clone(), files[other].clone());
            swapped.insert(other.clone(), files[one].clone());
            let disk = disk_of(&swapped, seed);
            let refused = open(&disk).err().unwrap();
            let LogError::Misnamed { file, written_as } = &refused else {
                panic!("seed {seed}, {one} and {other}: {refused}")
            };
            assert!(pair.contains(file) && pair.contains(written_as) && file != written_as);
            let found = snapshot(&disk);
            assert_eq!(found, swapped, "a log that is refused is left as it is");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
}

/// The files with everything overwritten with zeros that the superblock does not name as synced.
fn zeroed_after_the_superblock(files: &Snapshot) -> Snapshot {
    let mut damaged = files.clone();
    let disk = disk_of(files, 1);
    let found = superblock::read(&disk, &disk.names().unwrap()).unwrap().unwrap();
    let synced = found.newest.unwrap().synced;
    for name in commit_files(files) {
        let bytes = damaged.get_mut(&name).unwrap();
        let mut at = 0;
        // The blocks are contiguous from the start of the file.
        while let Some(header) = bytes.get(at..).and_then(BlockHeader::decode) {
            if header.sequence > synced {
                bytes[at..].fill(0);
                break;
            }
            at += header.block_len as usize;
        }
    }
    damaged
}

/// The slot that is written without a sync after each commit may be outdated after a power cut.
#[test]
fn after_a_power_cut_the_destroyed_end_of_a_file_is_not_missed_unless_the_log_had_been_idle() {
    let mut less = 0;
    for seed in 0..60 {
        let (files, known) = ended(seed, 42, Ending::PowerCut);
        let damaged = zeroed_after_the_superblock(&files);
        // A segment may name a higher sequence than the superblock.
        let Ok(ends) = ends(&damaged) else { continue };
        let wanted = acknowledged(&known);
        let is_less = |slot: usize| MODES[slot] == Durability::Fsync && ends[slot] < wanted[slot];
        less += usize::from((0..MODES.len()).any(is_less));
    }
    assert!(less > 0, "then the documentation promises too little");
    for seed in 0..30 {
        let disk = SimDisk::new(seed, 64 << 20);
        let (mut driven, known, _) = worked(&disk, seed, 20);
        driven.core.sync().unwrap();
        driven.core.rest(9);
        disk.power_cut();
        let files = snapshot(&disk);
        let (ends, wanted) = (
            ends(&zeroed_after_the_superblock(&files)).unwrap(),
            acknowledged(&known),
        );
        assert_eq!(ends, wanted, "seed {seed}: all of it was known to be synced");
    }
}

#[test]
fn without_its_superblock_and_its_newest_files_a_log_looks_like_one_that_ended_earlier() {
    let mut less = 0;
    for seed in 0..20 {
        let (mut files, known) = ended(seed, 42, Ending::Closed);
        let names = commit_files(&files);
        files.remove(superblock::NAME);
        files.remove(names.last().unwrap());
        // With a single file there is no older one left.
        if names.len() < 2 {
            continue;
        }
        let (ends, wanted) = (ends(&files).unwrap(), acknowledged(&known));
        assert!(ends.iter().zip(&wanted).all(|(end, wanted)| end <= wanted));
        less += usize::from(ends != wanted);
    }
    assert!(less > 0, "then the documentation promises too little");
}

#[test]
fn what_was_not_synced_when_a_process_was_killed_is_not_missed_if_the_file_is_damaged_then() {
    for (slot, mode) in MODES.into_iter().enumerate() {
        for seed in 0..10 {
            let disk = SimDisk::new(seed, 64 << 20);
            let (mut driven, known, mut random) = worked(&disk, seed, 10);
            driven.core.sync().unwrap();
            driven.core.rest(9);
            let (partition, mut wanted) = (driven.partitions[slot].clone(), acknowledged(&known));
            let records = one_record(&value(wanted[slot], &mut random));
            let last = submission(&partition, FrameKind::Data, records, mode);
            commit(&mut driven.core, last, 10).unwrap();
            drop(driven);
            disk.kill();
            let whole = snapshot(&disk);
            let damaged = ends(&zeroed_after_the_superblock(&whole)).unwrap();
            wanted[slot] += 1;
            assert_eq!(ends(&whole).unwrap(), wanted, "a killed process leaves all it wrote");
            // With `fsync`, the superblock covers everything.
            wanted[slot] -= u64::from(mode != Durability::Fsync);
            assert_eq!(damaged, wanted, "seed {seed}, {mode:?}");
        }
    }
}

#[test]
fn an_older_copy_of_the_whole_folder_is_a_log_that_ended_earlier() {
    for seed in 0..10 {
        let disk = SimDisk::new(seed, 64 << 20);
        let (mut driven, known, mut random) = worked(&disk, seed, 10);
        driven.core.close(9);
        let older = snapshot(&disk);
        drop(driven);
        disk.kill();
        let mut driven = open(&disk).unwrap();
        let mut later = known;
        assert!((0..10).all(|_| work(&mut driven, &mut later, &mut random)));
        assert_eq!(ends(&older).unwrap(), acknowledged(&known));
        assert_ne!(acknowledged(&later), acknowledged(&known));
    }
}

/// The file that is read instead of the segment is older and may have records that were trimmed since.
#[test]
fn a_segment_that_says_nothing_is_refused_and_one_that_is_gone_is_missed_unless_something_stands_in_for_it() {
    let (mut seen, mut stood_in) = (0, 0);
    for seed in 0..30 {
        let (files, known) = ended(seed, 42, Ending::Closed);
        for segment in files.keys().filter(|name| name.starts_with("segment-")) {
            seen += 1;
            for zeroed in [true, false] {
                let mut damaged = files.clone();
                let bytes = damaged.get_mut(segment).unwrap();
                if zeroed {
                    bytes.fill(0)
                } else {
                    bytes.clear()
                }
                let disk = disk_of(&damaged, seed);
                let refused = open(&disk).err().unwrap();
                assert!(
                    matches!(&refused, LogError::Corrupt { file, .. } if file == segment),
                    "{refused}"
                );
                assert!(!checked(&disk).is_whole());
                let done = repair(&disk, true, &mut |_, _| {}).unwrap().done.unwrap();
                assert!(done.after.is_whole(), "{:?}", done.after.findings);
                open(&disk).unwrap();
            }
            let mut gone = files.clone();
            gone.remove(segment);
            let disk = disk_of(&gone, seed);
            stood_in += usize::from(outcome(&disk, &known, Ending::Closed, &gone, false).is_ok());
        }
    }
    assert!(0 < stood_in && stood_in < seen, "{stood_in} of {seen}");
}
