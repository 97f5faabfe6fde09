//! A damaged frame costs the records of that frame, and nothing before or after it.

use std::path::Path;

use thalweg_log::disk::sim::SimDisk;
use thalweg_log::disk::{Disk as _, FolderDisk};
use thalweg_log::format::record::records;
use thalweg_log::{Durability, EmbeddedLog, LogError, LogStatus, PartitionId, check};

use crate::support::{append, bytes_of, damage, open, open_folder, small_files};

const ID: PartitionId = PartitionId::new(3, 0);

/// Twenty messages in separate frames, one of which is damaged.
async fn damaged(folder: &Path, message: u32) {
    let log = open_folder(folder);
    log.create(ID, Durability::Fsync).await.unwrap();
    for n in 0..20 {
        append(&log, ID, format!("message-{n}.").as_bytes()).await;
    }
    drop(log);
    damage(&FolderDisk::open(folder).unwrap(), &format!("message-{message}."));
}

/// The values that one read from an offset returns.
fn read(log: &EmbeddedLog, from: u64) -> Result<Vec<String>, LogError> {
    let frames = log.read(ID, from, 256 << 10)?;
    let all = frames.iter().flat_map(|frame| records(&frame.body));
    Ok(all
        .map(|record| String::from_utf8(record.unwrap().value.to_vec()).unwrap())
        .collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_read_that_begins_at_a_damaged_frame_fails() {
    let folder = tempfile::tempdir().unwrap();
    damaged(folder.path(), 12).await;
    let log = open_folder(folder.path());
    assert_eq!(log.status(), LogStatus::Healthy);
    assert_eq!(read(&log, 0).unwrap().len(), 12);
    assert_eq!(read(&log, 11).unwrap(), ["message-11."]);
    let error = read(&log, 12).unwrap_err().to_string();
    assert!(error.contains("the records 12 to 12 of partition 3/0"), "{error}");
    assert_eq!(read(&log, 13).unwrap().len(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_frame_is_counted_once_however_often_it_is_read_and_degrades_the_log() {
    let folder = tempfile::tempdir().unwrap();
    damaged(folder.path(), 5).await;
    let log = open_folder(folder.path());
    for _ in 0..10 {
        assert!(matches!(read(&log, 5), Err(LogError::Corrupt { .. })));
    }
    assert_eq!(log.counters().corrupt_frames, 1);
    let LogStatus::Degraded(why) = log.status() else {
        panic!("{:?}", log.status());
    };
    assert!(why.contains("commit-0000000000000000.log is damaged at byte"), "{why}");
}

/// The positions of the records are lost, but their offsets are known from the end of the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_whose_index_and_frames_are_damaged_is_an_error_and_no_gap_until_damage_is_passed_over() {
    const OTHER: PartitionId = PartitionId::new(3, 1);
    let folder = tempfile::tempdir().unwrap();
    let log = std::sync::Arc::new(open_folder(folder.path()));
    for id in [ID, OTHER] {
        log.create(id, Durability::Fsync).await.unwrap();
    }
    for n in 0..20u8 {
        append(&log, ID, &[n]).await;
    }
    log.roll().await.unwrap();
    let erasing = log.clone();
    tokio::task::spawn_blocking(move || erasing.erase())
        .await
        .unwrap()
        .unwrap();
    append(&log, ID, b"after").await;
    drop(log);
    let segment = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut segments = segment.filter(|path| path.to_string_lossy().contains("segment-"));
    let segment = segments.next().unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    // All but the row of the partition and the trailer that refers to it.
    let kept = bytes.len() - 48 - 76;
    bytes[..kept].fill(0);
    std::fs::write(&segment, bytes).unwrap();
    let log = open_folder(folder.path());
    for from in [0, 10, 19] {
        let error = log.read(ID, from, 1).unwrap_err();
        assert!(matches!(error, LogError::Corrupt { .. }), "{from}: {error}");
    }
    assert_eq!(read(&log, 20).unwrap(), ["after"]);
    log.pass_over_damage();
    let error = log.read(ID, 5, 1).unwrap_err();
    assert!(matches!(error, LogError::Gap { from: 5, to: 20, .. }), "{error}");
}

/// If a check named more than is lost, a repair would give that up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_segment_that_is_cut_short_a_check_names_as_lost_what_a_start_cannot_read() {
    let disk = SimDisk::new(1, 64 << 20);
    let log = std::sync::Arc::new(open(&disk));
    log.create(ID, Durability::Fsync).await.unwrap();
    for n in 0..12u8 {
        append(&log, ID, &[n; 50]).await;
    }
    log.roll().await.unwrap();
    let erasing = log.clone();
    tokio::task::spawn_blocking(move || erasing.erase())
        .await
        .unwrap()
        .unwrap();
    drop(log);
    let files: Vec<(String, Vec<u8>)> = disk
        .names()
        .unwrap()
        .into_iter()
        .map(|name| (name.clone(), bytes_of(&disk, &name)))
        .collect();
    let (segment, whole) = files.iter().find(|(name, _)| name.starts_with("segment")).unwrap();
    for cut in 1..whole.len() {
        let copy = SimDisk::new(1, 64 << 20);
        for (name, bytes) in &files {
            let len = if name == segment {
                bytes.len() - cut
            } else {
                bytes.len()
            };
            let file = copy.create(name).unwrap();
            file.write_at(&bytes[..len], 0).unwrap();
            file.sync().unwrap();
        }
        copy.sync_names().unwrap();
        let report = check(&copy, &mut |_, _| {}).unwrap();
        // Damage after the cut does not prevent a start; only reads of it fail.
        let Ok(log) = EmbeddedLog::open(std::sync::Arc::new(copy.clone()), 7, &small_files()) else {
            assert!(!report.is_whole(), "{cut} bytes are missing");
            continue;
        };
        for offset in 0..12 {
            let is_lost = report.lost.iter().any(|lost| (lost.from..lost.to).contains(&offset));
            let is_there = log.read(ID, offset, 1).is_ok_and(|frames| {
                let mut bases = frames.iter().map(|frame| frame.header.base);
                bases.any(|base| base == offset)
            });
            assert_eq!(
                is_lost, !is_there,
                "{cut} bytes are missing: offset {offset}, {report:?}"
            );
        }
    }
}
