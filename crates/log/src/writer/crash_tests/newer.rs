//! Data of a newer program: every access reports its file, position and version, and no byte of the log changes, even
//! if a start or a repair may give up data.

use super::*;
use crate::dump::{DumpLine, DumpOptions, dump};
use crate::format::PAGE;
use crate::format::block::{self, BlockHeader};
use crate::format::footer::{self, ENTRY_LEN, FileKind, TRAILER_LEN, TrailerFields};
use crate::format::frame::{self, FrameHeader};
use crate::format::newer::{NewerVersion, VersionedPart};

/// A made-up later version.
const LATER: u16 = 7;

/// A log of several files after a clean shutdown.
fn stored(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed, 64 << 20);
    let (mut driven, ..) = worked(&disk, seed, 12);
    driven.core.sync().unwrap();
    let sealed = driven.pool.sealed();
    // The first file is small and may have nothing of a partition.
    MovePlan::of(&sealed[..2], &driven.partitions)
        .unwrap()
        .run(&driven.pool, &|_| {})
        .unwrap();
    disk.kill();
    disk
}

fn files(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let names = disk.names().unwrap();
    names
        .into_iter()
        .map(|name| (name.clone(), bytes_of(disk, &name)))
        .collect()
}

/// The recovered state, before anything is changed.
fn found(disk: &SimDisk) -> crate::recovery::RecoveredLog {
    recover(disk, &IndexCache::new(1 << 20)).unwrap()
}

/// Every operation on the log names the place, and none changes the log.
fn is_left_alone(disk: &SimDisk, file: &str, at: u64, newer: NewerVersion, opens: bool) {
    let before = files(disk);
    let refused = |error: LogError| match error {
        LogError::NewerFormat {
            file: named,
            position,
            found,
        } => assert_eq!((named.as_str(), position, found), (file, at, newer)),
        error => panic!("{error}"),
    };
    for accept_loss in [false, true] {
        refused(repair(disk, accept_loss, &mut |_, _| {}).err().unwrap());
    }
    let report = checked(disk);
    names_it_alone(&report, file, at, newer);
    let mut shown = Vec::new();
    let dumped = dump(disk, &DumpOptions::default(), &mut |line| {
        if let DumpLine::Newer { file, position, found } = line {
            shown.push(((*file).to_owned(), *position, *found));
        }
        true
    });
    refused(dumped.err().unwrap());
    assert_eq!(shown, [(file.to_owned(), at, newer)]);
    for recover_skip in [false, true] {
        let options = LogOptions {
            recover_skip,
            ..options()
        };
        let outcome = open::open(Arc::new(disk.clone()), 42, &options);
        match outcome {
            Ok(opened) if opens => {
                let mut errors = opened.partitions.values().filter_map(|one| read_to_an_error(one));
                refused(errors.next().unwrap());
            }
            Ok(_) => panic!("it opens"),
            Err(error) => refused(error),
        }
        disk.kill();
    }
    assert!(opens || files(disk) == before, "it was changed");
}

fn names_it_alone(report: &CheckReport, file: &str, at: u64, newer: NewerVersion) {
    let errors: Vec<_> = report.findings.iter().filter(|finding| finding.is_error).collect();
    let [named] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!((named.file.as_str(), named.position), (file, at));
    assert_eq!(named.kind, FindingKind::NewerFormat(newer));
    assert!(report.is_newer() && report.lost.is_empty(), "{report:?}");
    let text = named.to_string();
    assert!(text.starts_with(&format!("error: {file} at byte {at}: ")), "{text}");
    assert!(
        text.ends_with(&format!("reads up to {}; install that version", newer.known())),
        "{text}"
    );
}

fn read_to_an_error(partition: &Partition) -> Option<LogError> {
    let mut from = partition.bounds().first;
    while from < partition.bounds().next {
        match partition.read(from, 1) {
            Ok(frames) => from = frames.last()?.header.next(),
            Err(error) => return Some(error),
        }
    }
    None
}

/// A frame header as a newer program would write it.
fn newer_frame(header: &[u8], newer: NewerVersion) -> Vec<u8> {
    let mut header = header.to_vec();
    let at = if newer.what == VersionedPart::Frame { 4 } else { 5 };
    header[at] = newer.found as u8;
    let crc = crc32c::crc32c(&header[..frame::BARE_LEN]);
    header[frame::BARE_LEN..].copy_from_slice(&crc.to_le_bytes());
    header
}

const NEWER_FRAMES: [NewerVersion; 2] = [
    NewerVersion {
        what: VersionedPart::Frame,
        found: LATER,
    },
    NewerVersion {
        what: VersionedPart::FrameKind,
        found: LATER,
    },
];

/// Turns the last frame of a block into one of a newer program, with valid checksums. Returns the position of its
/// header.
fn make_newer(disk: &SimDisk, file: &LogFile, at: u64, newer: NewerVersion) -> u64 {
    let header = BlockHeader::decode(&file.read(at, block::LEN).unwrap()).unwrap();
    let mut frames = file.read(at, header.headers_len()).unwrap().split_off(block::LEN);
    let last = frames.len() - frame::LEN;
    let changed = newer_frame(&frames[last..], newer);
    frames[last..].copy_from_slice(&changed);
    let mut bytes = Vec::new();
    header.encode(&frames, &mut bytes);
    bytes.extend_from_slice(&frames);
    overwrite(disk, &file.name, at, &bytes);
    at + (block::LEN + last) as u64
}

/// The positions of the blocks with frames in a file.
fn blocks(file: &LogFile) -> Vec<u64> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some(header) = BlockHeader::decode(&file.read(at, block::LEN).unwrap()) {
        if header.frames > 0 {
            all.push(at);
        }
        at += u64::from(header.block_len);
    }
    all
}

#[test]
fn a_frame_of_a_newer_version_or_kind_in_the_open_file_is_refused_by_name() {
    let mut tried = 0;
    for (seed, newer) in (0..6).flat_map(|seed| NEWER_FRAMES.map(|newer| (seed, newer))) {
        for last in [false, true] {
            let disk = stored(seed);
            let found = found(&disk);
            let Some(file) = found.files.last().filter(|_| found.end.is_some()) else {
                continue;
            };
            let blocks = blocks(file);
            // The last block may be torn, but a newer frame in it must not end the log.
            let at = if last { blocks[blocks.len() - 1] } else { blocks[0] };
            let position = make_newer(&disk, file, at, newer);
            is_left_alone(&disk, &file.name, position, newer, false);
            tried += 1;
        }
    }
    assert!(tried > 10, "{tried}");
}

#[test]
fn a_frame_of_a_newer_version_or_kind_in_a_full_file_is_refused_where_it_is_read() {
    for newer in NEWER_FRAMES {
        let disk = stored(3);
        let found = found(&disk);
        let file = found.files[found.files.len() - 2].clone();
        let trailer = file.trailer().unwrap().unwrap();
        // The last frame of the block, which is not of the log's own partition, and its index entry.
        let at = *blocks(&file).last().unwrap();
        let position = make_newer(&disk, &file, at, newer);
        let entry_of = |at: u64| {
            let bytes = file.read(at, ENTRY_LEN).unwrap();
            (at, bytes)
        };
        let footer = file.size - trailer.footer_len();
        let entries: Vec<(u64, Vec<u8>)> = (0..trailer.entries as u64)
            .map(|n| entry_of(footer + n * ENTRY_LEN as u64))
            .collect();
        let latest = entries
            .iter()
            .max_by_key(|(_, bytes)| u64::from_le_bytes(bytes[frame::BARE_LEN..].try_into().unwrap()));
        let (entry_at, bytes) = latest.unwrap();
        let mut header = bytes[..frame::BARE_LEN].to_vec();
        header.extend([0; 4]);
        overwrite(
            &disk,
            &file.name,
            *entry_at,
            &newer_frame(&header, newer)[..frame::BARE_LEN],
        );
        // Fix the checksums of the entries and of the trailer.
        let trailer_at = file.size - TRAILER_LEN as u64;
        let crc = crc32c::crc32c(&file.read(footer, trailer.entries_len()).unwrap());
        overwrite(&disk, &file.name, trailer_at + 12, &crc.to_le_bytes());
        let crc = crc32c::crc32c(&file.read(trailer_at, TRAILER_LEN - 4).unwrap());
        overwrite(
            &disk,
            &file.name,
            trailer_at + TRAILER_LEN as u64 - 4,
            &crc.to_le_bytes(),
        );
        is_left_alone(&disk, &file.name, position, newer, true);
    }
}

#[test]
fn a_frame_of_a_newer_version_or_kind_in_a_segment_is_refused_by_name() {
    for newer in NEWER_FRAMES {
        let disk = stored(5);
        let (file, _) = found(&disk).segments[0].clone();
        // The last frame: all others can be read.
        let (mut at, mut next) = (0, 0);
        while next < file.trailer().unwrap().unwrap().end {
            at = next;
            let header = FrameHeader::decode(&file.read(at, frame::LEN).unwrap()).unwrap();
            next += (frame::LEN + header.body_len as usize) as u64;
        }
        assert!(at > 0);
        let header = file.read(at, frame::LEN).unwrap();
        overwrite(&disk, &file.name, at, &newer_frame(&header, newer));
        // A check finds it even if the index is whole.
        names_it_alone(&checked(&disk), &file.name, at, newer);
        overwrite(&disk, &file.name, file.size - 8, &[0; 8]);
        is_left_alone(&disk, &file.name, at, newer, false);
    }
}

#[test]
fn an_index_of_a_newer_version_or_of_an_unknown_kind_of_file_is_not_made_anew() {
    for (seed, kind) in (0..6).flat_map(|seed| [(seed, FileKind::Commit), (seed, FileKind::Segment)]) {
        let disk = stored(seed);
        let found = found(&disk);
        let file = match kind {
            FileKind::Commit => found.files[0].clone(),
            FileKind::Segment => found.segments[0].0.clone(),
        };
        let at = file.size - TRAILER_LEN as u64;
        let old = file.read(at, TRAILER_LEN).unwrap();
        let mut trailer = old.clone();
        trailer[4..6].copy_from_slice(&LATER.to_le_bytes());
        // A newer version with a checksum of this version is damage, and the index is rebuilt.
        overwrite(&disk, &file.name, at, &trailer);
        let report = checked(&disk);
        assert!(report.is_whole() && !report.is_newer(), "{:?}", report.findings);
        trailer[TRAILER_LEN - 4] ^= 1;
        overwrite(&disk, &file.name, at, &trailer);
        let newer = NewerVersion {
            what: VersionedPart::Index,
            found: LATER,
        };
        is_left_alone(&disk, &file.name, at, newer, false);
        // The number of another file, from before the file was reused.
        trailer[24] ^= 1;
        overwrite(&disk, &file.name, at, &trailer);
        assert!(!checked(&disk).is_newer());
        let mut trailer = old;
        trailer[6..8].copy_from_slice(&LATER.to_le_bytes());
        let crc = crc32c::crc32c(&trailer[..TRAILER_LEN - 4]);
        trailer[TRAILER_LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        overwrite(&disk, &file.name, at, &trailer);
        let newer = NewerVersion {
            what: VersionedPart::FileKind,
            found: LATER,
        };
        is_left_alone(&disk, &file.name, at, newer, false);
    }
}

#[test]
fn a_newer_file_after_one_that_is_not_used_yet_is_seen() {
    let disk = stored(1);
    let found = found(&disk);
    let number = found.next_number + 1;
    let made = LogFile::make(&disk, number, FILE_SIZE, &IndexCache::new(1 << 20), &|_| true).unwrap();
    let bounds = TrailerFields {
        kind: FileKind::Commit,
        file: number,
        first: 1,
        last: 1,
        synced: 1,
        end: 4096,
        log_id: found.log_id.unwrap(),
    };
    let index = crate::index::FileIndex::default();
    let mut footer = footer::encode(&index, &[], &bounds);
    let at = made.size - footer.len() as u64;
    (footer[4], footer[TRAILER_LEN - 1]) = (LATER as u8, !footer[TRAILER_LEN - 1]);
    overwrite(&disk, &made.name, at, &footer);
    let newer = NewerVersion {
        what: VersionedPart::Index,
        found: LATER,
    };
    is_left_alone(&disk, &made.name, at, newer, false);
}

#[test]
fn a_file_that_begins_with_a_newer_block_is_refused_by_name() {
    let disk = SimDisk::new(1, 64 << 20);
    let file = LogFile::make(&disk, 0, FILE_SIZE, &IndexCache::new(1 << 20), &|_| true).unwrap();
    file.write(b"TWB1\x02\x00", 0).unwrap();
    let error = open(&disk).err().unwrap().to_string();
    assert_eq!(
        error,
        "commit-0000000000000000.log at byte 0: a block of format version 2, written by a newer version of Thalweg, \
         while this one reads up to 1; install that version"
    );
}

#[test]
fn a_log_that_goes_on_with_a_newer_block_is_neither_cut_off_nor_repaired() {
    for seed in 0..20 {
        let disk = stored(seed);
        let found = found(&disk);
        // After the last block in the same file, or at the start of the next one.
        let (file, at) = match (found.files.last(), found.end) {
            (Some(last), Some(end)) if end + PAGE as u64 <= last.size => (last.name.clone(), end),
            _ => (found.spares[0].name.clone(), 0),
        };
        let mut block = vec![0x5a; PAGE];
        block[..6].copy_from_slice(b"TWB1\x02\x00");
        block[16..24].copy_from_slice(&found.next.to_le_bytes());
        block[32..40].copy_from_slice(&found.log_id.unwrap().to_le_bytes());
        overwrite(&disk, &file, at, &block);
        let newer = NewerVersion {
            what: VersionedPart::Block,
            found: 2,
        };
        is_left_alone(&disk, &file, at, newer, false);
    }
}
