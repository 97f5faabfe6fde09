//! The end of a log and its file sequence: unused files, and blocks that are cut off.

use super::*;
use crate::dump::{DumpLine, DumpOptions, dump};
use crate::file::commit_name;

/// A log of several files without spare files after the current one. Returns the number of the current file.
fn without_spares(seed: u64) -> (SimDisk, [Known; MODES.len()], u64) {
    let disk = SimDisk::new(seed, 64 << 20);
    let (mut driven, known, _) = worked(&disk, seed, 20);
    driven.core.sync().unwrap();
    disk.kill();
    let found = recover(&disk, &IndexCache::new(1 << 20)).unwrap();
    for spare in &found.spares {
        disk.remove(&spare.name).unwrap();
    }
    (disk, known, found.files.last().unwrap().number)
}

#[test]
fn an_empty_file_between_files_in_use_is_passed_if_nothing_is_missing_there() {
    for seed in 0..10 {
        let (disk, mut known, last) = without_spares(seed);
        // This happens when the name of a new file could not be synced and the next number was used.
        disk.rename(&commit_name(last), &commit_name(last + 1)).unwrap();
        // The superblock names the file as it was.
        disk.remove(crate::superblock::NAME).unwrap();
        disk.create(&commit_name(last)).unwrap();
        overwrite(&disk, &commit_name(last), 0, &vec![0; FILE_SIZE as usize]);
        for _ in 0..2 {
            let mut driven = open(&disk).unwrap();
            check(&driven, &mut known, false);
            assert!(work(&mut driven, &mut known, &mut Random::new(seed)));
            driven.core.sync().unwrap();
            disk.kill();
        }
        assert!(!disk.names().unwrap().contains(&commit_name(last)));
    }
}

#[test]
fn a_file_in_use_that_has_become_empty_is_not_passed() {
    let (disk, _, last) = without_spares(1);
    let name = commit_name(last - 1);
    let size = disk.open(&name).unwrap().len().unwrap();
    overwrite(&disk, &name, 0, &vec![0; size as usize]);
    let error = open(&disk).err().unwrap();
    assert!(matches!(error, LogError::Corrupt { .. }), "{error}");
}

#[test]
fn what_stands_after_a_block_that_is_not_there_is_cut_off_and_counted() {
    let disk = SimDisk::new(1, 64 << 20);
    let mut driven = open_wide(&disk);
    let partition = driven.partitions[1].clone();
    assert_eq!(partition.durability(), Durability::Os);
    let before = driven.core.next_sequence();
    for n in 0..10u8 {
        let submission = submission(&partition, FrameKind::Data, one_record(&[n; 100]), Durability::Os);
        driven.core.commit(&mut VecDeque::from([submission]), 1);
    }
    disk.kill();
    let mut blocks = Vec::new();
    dump(&disk, &DumpOptions::default(), &mut |line| {
        if let DumpLine::Block {
            file,
            position,
            sequence,
            bytes,
            ..
        } = line
        {
            blocks.push(((*file).to_owned(), *position, *sequence, *bytes));
        }
        true
    })
    .unwrap();
    let (file, at, sequence, bytes) = blocks.iter().find(|block| block.2 == before + 4).unwrap().clone();
    let (_, last_at, _, last_bytes) = blocks.last().unwrap().clone();
    overwrite(&disk, &file, at, &vec![0; bytes as usize]);
    let opened = open::open(Arc::new(disk.clone()), 42, &options()).unwrap();
    assert_eq!(opened.report.last_sequence, sequence - 1);
    assert_eq!(opened.report.torn_bytes, last_at + u64::from(last_bytes) - at);
    let found = &opened.partitions[&partition.id];
    assert_eq!(found.bounds().next, 4);
    drop(opened);
    disk.kill();
    let again = open::open(Arc::new(disk.clone()), 42, &options()).unwrap();
    assert_eq!(again.report.torn_bytes, 0);
}
