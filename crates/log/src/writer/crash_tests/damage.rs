//! Damage to a log of commit files and segments: a check names its position, no reader gets the data, and a repair
//! loses nothing else.

use std::collections::BTreeMap;

use super::*;
use crate::check::scan::LogScan;
use crate::dump::{DumpLine, DumpOptions, dump};
use crate::format::PAGE;
use crate::format::block::{self, BlockHeader};
use crate::format::footer::FileKind;
use crate::format::frame;
use crate::index::FrameEntry;
use crate::partition_table::META;
use crate::superblock;

const PARTITIONS: usize = MODES.len();

/// A log after a clean shutdown with several files, segments and trims, determined by a seed.
fn built(seed: u64) -> (SimDisk, Vec<Known>, Random) {
    let mut random = Random::new(seed);
    let disk = SimDisk::new(seed, 64 << 20);
    let mut known = vec![Known::default(); PARTITIONS];
    let mut driven = open(&disk).unwrap();
    driven.checkpoints = true;
    for _ in 0..3 + random.below(12) {
        assert!(work(&mut driven, &mut known, &mut random));
        if random.one_in(2) {
            assert!(keep_up(&mut driven, &mut known, &mut random));
        }
    }
    // A file without room for another block takes no mark.
    loop {
        driven.core.sync().unwrap();
        let last = checked(&disk).last;
        driven.core.mark(9).unwrap();
        if checked(&disk).last > last {
            disk.kill();
            return (disk, known, random);
        }
        assert!(work(&mut driven, &mut known, &mut random));
    }
}

/// The readable records of a partition. Each contains its own offset or is missing.
#[derive(Default)]
pub(super) struct Readable {
    pub offsets: Vec<u64>,
    /// Offsets that are reported as lost.
    pub gaps: u64,
    /// Read errors and the requested offsets.
    pub errors: Vec<(u64, LogError)>,
    /// The newest readable checkpoint.
    pub checkpoint: u64,
    pub first: u64,
    pub next: u64,
}

impl Readable {
    fn needed_is_read(&self) -> bool {
        self.errors.iter().all(|(at, _)| *at < self.checkpoint)
    }
}

pub(super) fn read_what_can_be(partition: &Partition) -> Readable {
    let bounds = partition.bounds();
    let mut found = Readable {
        first: bounds.first,
        next: bounds.next,
        ..Readable::default()
    };
    let mut from = bounds.first;
    while from < bounds.next {
        let frames = match partition.read(from, 1) {
            Ok(frames) => frames,
            Err(LogError::Gap { to, .. }) => {
                assert!(to > from);
                (found.gaps, from) = (found.gaps + to - from, to);
                continue;
            }
            Err(error) => {
                found.errors.push((from, error));
                from += 1;
                continue;
            }
        };
        for frame in frames {
            assert!(frame.header.base <= from, "a hole before {}", frame.header.base);
            if frame.header.kind == FrameKind::Gap {
                assert_eq!((frame.header.records, frame.body.len()), (0, 0));
                found.gaps += frame.header.next() - from;
            }
            if frame.header.kind == FrameKind::Checkpoint {
                found.checkpoint = frame.header.base;
            }
            let mut next = frame.header.base;
            for record in records(&frame.body) {
                let record = record.unwrap();
                let offset = record.delta.map_or(next, |delta| frame.header.base + u64::from(delta));
                next = offset + 1;
                assert_eq!(number_of(record.value), offset, "a record is not what was written");
                if offset >= from {
                    found.offsets.push(offset);
                }
            }
            assert!(frame.header.next() > from);
            from = frame.header.next();
        }
    }
    found
}

fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let first = number("THALWEG_SIM_SEED").unwrap_or(0);
    first..first + number("THALWEG_SIM_SEEDS").unwrap_or(default)
}

pub(super) fn each_seed(default: u64, mut test: impl FnMut(u64)) {
    for seed in seeds(default) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(seed)));
        assert!(
            outcome.is_ok(),
            "THALWEG_SIM_SEED={seed} THALWEG_SIM_SEEDS=1 shows it again"
        );
    }
}

#[test]
fn a_whole_log_has_no_findings_and_its_parts_are_counted() {
    let (mut segments, mut trimmed) = (0, 0);
    each_seed(40, |seed| {
        let (disk, known, _) = built(seed);
        let report = checked(&disk);
        assert!(report.is_whole(), "{:?}", report.findings);
        let notes = report
            .findings
            .iter()
            .filter(|finding| finding.kind != FindingKind::TornTail);
        assert_eq!(notes.count(), 0, "{:?}", report.findings);
        assert_eq!(report.log_id, Some(42));
        assert!(report.last >= report.synced && report.blocks > 0 && report.frames > 0);
        assert_eq!(dumped(&disk), (report.blocks, report.frames));
        let driven = open(&disk).unwrap();
        for (slot, partition) in driven.partitions.iter().enumerate() {
            let row = report.partitions.iter().find(|row| row.id == partition.id).unwrap();
            assert_eq!(
                (row.first, row.next),
                (partition.bounds().first, known[slot].acknowledged)
            );
            assert_eq!((row.gaps, row.lost), (0, 0));
            trimmed += u64::from(row.first > 0);
        }
        segments += report.segments;
    });
    assert!(segments > 10 && trimmed > 10, "{segments} segments, {trimmed} trimmed");
}

/// The number of blocks and frames in a dump. Asserts that the records are those that were written.
fn dumped(disk: &SimDisk) -> (u64, u64) {
    let (mut blocks, mut frames) = (0, 0);
    let options = DumpOptions {
        records: true,
        ..DumpOptions::default()
    };
    let mut own = false;
    dump(disk, &options, &mut |line| {
        match line {
            DumpLine::Block { .. } => blocks += 1,
            DumpLine::Frame { header, sound, .. } => {
                own = header.partition != META;
                frames += 1;
                assert!(sound);
            }
            DumpLine::Record { offset, record } if own => assert_eq!(number_of(record.value), *offset),
            DumpLine::Record { .. } => {}
            DumpLine::Damage { .. } | DumpLine::Newer { .. } => panic!("{line:?}"),
        }
        true
    })
    .unwrap();
    (blocks, frames)
}

#[test]
#[expect(clippy::print_stdout, reason = "the counts of a long run are its result")]
fn a_flipped_bit_anywhere_is_harmless_or_named_by_file_and_position_and_never_served() {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    each_seed(300, |seed| {
        let (disk, known, _) = built(seed);
        let (file, position) = disk.flip_bit().unwrap();
        let report = checked(&disk);
        let at = |finding: &&crate::check::Finding| {
            finding.file == file && (finding.position..finding.position + finding.bytes).contains(&position)
        };
        for finding in &report.findings {
            let elsewhere = matches!(finding.kind, FindingKind::Missing { .. } | FindingKind::BadTable);
            assert!(elsewhere || at(&finding), "{file} at {position}: {finding}");
        }
        let named = report.findings.iter().find(at);
        assert!(
            named.is_some() || report.findings.is_empty(),
            "{file} at {position}: {:?}",
            report.findings
        );
        let outcome = outcome_of(&disk, &known, &file, &report);
        assert_eq!(
            report.is_whole(),
            outcome.is_whole,
            "{file} at {position}: {:?} {outcome:?}",
            report.findings
        );
        let kind = if file.starts_with("commit") {
            "commit file"
        } else {
            "segment"
        };
        let what = match named {
            None => "harmless".to_owned(),
            Some(finding) if finding.is_error => format!("{}, {}", finding.kind.name(), outcome.how),
            Some(finding) => format!("{} (note)", finding.kind.name()),
        };
        *counts.entry(format!("{kind}: {what}")).or_default() += 1;
    });
    println!("{counts:#?}");
    assert!(counts.len() > 5, "{counts:?}");
}

#[derive(Debug)]
struct Outcome {
    is_whole: bool,
    how: &'static str,
}

/// Starts and reads the log: everything is there, or an error names the file.
fn outcome_of(disk: &SimDisk, known: &[Known], file: &str, report: &CheckReport) -> Outcome {
    let driven = match open(disk) {
        Ok(driven) => driven,
        Err(LogError::Corrupt { file: named, .. } | LogError::NewerFormat { file: named, .. }) => {
            assert_eq!(named, file);
            return Outcome {
                is_whole: false,
                how: "refused",
            };
        }
        Err(LogError::Missing { .. }) => {
            return Outcome {
                is_whole: false,
                how: "missing",
            };
        }
        Err(error) => panic!("{error}"),
    };
    let mut is_whole = true;
    for (slot, partition) in driven.partitions.iter().enumerate() {
        let found = read_what_can_be(partition);
        for (_, error) in &found.errors {
            assert!(
                matches!(error, LogError::Corrupt { file: named, .. } if named == file),
                "{error}"
            );
        }
        // Records before a readable checkpoint are not needed.
        is_whole &= found.needed_is_read();
        assert_eq!(
            (found.next, found.gaps),
            (known[slot].acknowledged, 0),
            "partition {slot}: {report:?}"
        );
        let wanted = (found.first..found.next).filter(|n| *n >= known[slot].thinned || is_kept(*n));
        let there = |n: &u64| found.offsets.binary_search(n).is_ok();
        assert!(!found.errors.is_empty() || wanted.clone().all(|n| there(&n)));
    }
    Outcome {
        is_whole,
        how: "opened",
    }
}

/// The position of a frame: its file, header and body, and its offsets.
pub(super) struct Placed {
    pub slot: usize,
    pub file: String,
    pub header_at: u64,
    pub body_at: u64,
    pub end: u64,
    pub offsets: std::ops::Range<u64>,
    pub checkpoint: bool,
}

/// The frames that a start needs, located by the bytes of the files and not by the indexes.
pub(super) fn placed(disk: &SimDisk) -> Vec<Placed> {
    let driven = open(disk).unwrap();
    let mut all = Vec::new();
    for (slot, partition) in driven.partitions.iter().enumerate() {
        partition.each_range(|range| {
            let starts = header_positions(&range.file);
            for entry in range.file.entries(partition.id, range.first, usize::MAX).unwrap() {
                if entry.header.base >= range.next {
                    break;
                }
                all.push(Placed {
                    slot,
                    file: range.file.name.clone(),
                    header_at: starts[&entry.body_at],
                    body_at: entry.body_at,
                    end: entry.body_at + u64::from(entry.header.body_len),
                    offsets: entry.header.base.max(range.first)..entry.header.next().min(range.next),
                    checkpoint: entry.header.kind == FrameKind::Checkpoint,
                });
            }
        });
    }
    disk.kill();
    all
}

/// Header positions by body position.
fn header_positions(file: &LogFile) -> BTreeMap<u64, u64> {
    let mut positions = BTreeMap::new();
    let mut at = 0;
    if file.kind == FileKind::Segment {
        for (_, entries) in file.with_index(|index| index.clone()).unwrap().partitions() {
            positions.extend(
                entries
                    .iter()
                    .map(|entry| (entry.body_at, entry.body_at - frame::LEN as u64)),
            );
        }
        return positions;
    }
    while let Some(header) = BlockHeader::decode(&file.read(at, block::LEN).unwrap()) {
        let Ok(entries) = file.block_entries(at, &header) else {
            break;
        };
        for (n, entry) in entries.iter().enumerate() {
            positions.insert(entry.body_at, at + (block::LEN + n * frame::LEN) as u64);
        }
        at += u64::from(header.block_len);
    }
    positions
}

/// Damages some bytes. Returns the files and ranges.
fn damage(disk: &SimDisk, random: &mut Random) -> Vec<(String, std::ops::Range<u64>)> {
    let mut hit = Vec::new();
    for _ in 0..1 + random.below(3) {
        let names = disk.names().unwrap();
        if names.is_empty() {
            break;
        }
        let name = names[random.below(names.len() as u64) as usize].clone();
        // Headers are few bytes, so they are targeted, most often in the file without an index.
        let open = names
            .iter()
            .filter(|name| name.starts_with("commit"))
            .nth_back(random.below(3) as usize);
        let aimed = random.one_in(2);
        let name = open.filter(|_| aimed).cloned().unwrap_or(name);
        let file = disk.open(&name).unwrap();
        let size = file.len().unwrap();
        let page = random.below(size / PAGE as u64 + 1) / 3 * PAGE as u64;
        let at = if aimed {
            page + random.below(120)
        } else {
            random.below(size)
        }
        .min(size - 1);
        let len = match random.below(8) {
            0 => {
                disk.remove(&name).unwrap();
                disk.sync_names().unwrap();
                hit.push((name, 0..size));
                continue;
            }
            1..4 => 1,
            4..6 => 512.min(size - at),
            _ => ((1 + random.below(3)) * PAGE as u64).min(size - at),
        };
        let mut bytes = vec![0; len as usize];
        file.read_at(&mut bytes, at).unwrap();
        let before = bytes.clone();
        match random.below(3) {
            0 => bytes.fill(0),
            1 => bytes.iter_mut().for_each(|byte| *byte = random.number() as u8),
            _ => bytes[0] ^= 1 << random.below(8),
        }
        file.write_at(&bytes, at).unwrap();
        file.sync().unwrap();
        let changed: Vec<u64> = (0..len).filter(|n| bytes[*n as usize] != before[*n as usize]).collect();
        if let (Some(first), Some(last)) = (changed.first(), changed.last()) {
            hit.push((name, at + first..at + last + 1));
        }
    }
    hit
}

/// Repairs, with power cuts in between. Returns false if the log belongs to a newer program.
fn repaired(disk: &SimDisk, random: &mut Random) -> bool {
    for _ in 0..random.below(3) {
        disk.cut_power_in(random.below(40));
        let outcome = repair(disk, true, &mut |_, _| {});
        disk.power_cut();
        if outcome.is_ok() {
            break;
        }
    }
    let outcome = match repair(disk, true, &mut |_, _| {}) {
        // If the damage makes a block look like that of a newer program, the repair refuses.
        Err(LogError::NewerFormat { .. }) => return false,
        outcome => outcome.unwrap(),
    };
    let after = outcome.done.map_or(outcome.before, |done| done.after);
    assert!(after.is_whole(), "{:?}", after.findings);
    true
}

/// In a block with two damaged places, nothing may be left that tells where the frame begins.
fn is_hit_twice(one: &Placed, before: &CheckReport, hit: &[(String, std::ops::Range<u64>)]) -> bool {
    let around = before.findings.iter().find(|finding| {
        let range = finding.position..finding.position + finding.bytes;
        matches!(finding.kind, FindingKind::Corrupt { .. })
            && finding.file == one.file
            && range.contains(&one.header_at)
    });
    around.is_some_and(|finding| {
        let end = finding.position + finding.bytes;
        let own = |(file, range): &&(String, std::ops::Range<u64>)| {
            *file == one.file && range.start < end && finding.position < range.end
        };
        hit.iter().filter(own).count() > 1
    })
}

/// If the records that name the last blocks as synced are also destroyed, those blocks look like blocks that were being
/// written.
fn is_untold(one: &Placed, before: &CheckReport) -> bool {
    let torn = before
        .findings
        .iter()
        .find(|finding| finding.kind == FindingKind::TornTail);
    let is_after = |file: &str, position| one.file.as_str() > file || (one.file == file && one.body_at >= position);
    let after_torn = torn.is_some_and(|torn| is_after(&torn.file, torn.position));
    one.file.starts_with("commit") && after_torn
}

#[test]
#[expect(clippy::print_stdout, reason = "the counts of a long run are its result")]
fn a_repair_loses_nothing_that_is_not_damaged_and_the_log_goes_on() {
    let (mut gaps, mut kept, mut repairs, mut unnamed) = (0, 0, 0, 0);
    each_seed(300, |seed| {
        let (disk, _, mut random) = built(seed);
        let all = placed(&disk);
        // Only a checkpoint makes earlier records unnecessary.
        let latest: Vec<u64> = (0..PARTITIONS)
            .map(|slot| {
                let own = || all.iter().filter(|one| one.slot == slot);
                let checkpoints = own().filter(|one| one.checkpoint).map(|one| one.offsets.start);
                let begins = own().map(|one| one.offsets.start).min();
                checkpoints.max().or(begins).unwrap_or(u64::MAX)
            })
            .collect();
        let hit = damage(&disk, &mut random);
        let touched = |file: &str, from: u64, to: u64| {
            hit.iter()
                .any(|(name, range)| name == file && range.start < to && from < range.end)
        };
        let names = disk.names().unwrap();
        let before = checked(&disk);
        repairs += u64::from(!before.is_whole());
        if !repaired(&disk, &mut random) {
            return;
        }
        let opened = open::open(Arc::new(disk.clone()), 42, &options()).unwrap_or_else(|error| panic!("{error}"));
        let partition = |slot: usize| opened.partitions.get(&PartitionId::new(1, slot as u32));
        let of = |slot| partition(slot).map_or_else(Readable::default, |one| read_what_can_be(one));
        let found: Vec<Readable> = (0..PARTITIONS).map(of).collect();
        let named =
            (0..PARTITIONS).all(|n| partition(n).is_some_and(|one| (one.slot, one.durability()) == (n + 1, MODES[n])));
        drop(opened);
        disk.kill();
        for one in &found {
            assert!(one.errors.is_empty(), "{:?}", one.errors);
            gaps += one.gaps;
        }
        for one in &all {
            let whole = !touched(&one.file, one.header_at, one.header_at + frame::LEN as u64)
                && !touched(&one.file, one.body_at, one.end);
            let readable = &found[one.slot];
            for n in one
                .offsets
                .clone()
                .filter(|n| whole && is_kept(*n) && *n >= readable.first)
            {
                let there = readable.offsets.binary_search(&n).is_ok();
                assert!(
                    there || is_untold(one, &before) || is_hit_twice(one, &before, &hit),
                    "record {n} of partition {} in {} was whole: {hit:?} {:?}",
                    one.slot,
                    one.file,
                    before.findings
                );
                kept += 1;
            }
        }
        if !named {
            // The table is lost, so the partition was recreated with the strictest durability. If the newest file was
            // removed, nothing shows that it existed.
            let gone = hit
                .iter()
                .any(|(file, _)| file.starts_with("commit") && !names.contains(file));
            assert!(!before.is_whole() || gone, "{hit:?} {before:?}");
            unnamed += 1;
            return;
        }
        for (one, latest) in found.iter().zip(latest) {
            assert!(
                one.first <= latest,
                "begins at {}, not at {latest}: {hit:?} {:?}",
                one.first,
                before.findings
            );
        }
        let mut driven = open(&disk).unwrap();
        let mut known: Vec<Known> = found
            .iter()
            .map(|one| Known {
                submitted: one.next,
                acknowledged: one.next,
                trimmed: one.next,
                thinned: one.next,
            })
            .collect();
        for _ in 0..3 {
            assert!(work(&mut driven, &mut known, &mut random));
            assert!(keep_up(&mut driven, &mut known, &mut random));
        }
        driven.core.sync().unwrap();
        disk.kill();
        let after = checked(&disk);
        assert!(
            after.is_whole(),
            "{hit:?} {:?} then {:?}",
            before.findings,
            after.findings
        );
        let driven = open(&disk).unwrap();
        for (slot, partition) in driven.partitions.iter().enumerate() {
            assert_eq!(partition.bounds().next, known[slot].acknowledged);
            assert!(read_what_can_be(partition).errors.is_empty());
        }
    });
    println!(
        "{repairs} repairs, {unnamed} of them of the table of partitions, {gaps} offsets given up, {kept} records of undamaged frames read"
    );
    assert!(gaps > 0 && kept > 0 && repairs > 0);
}

/// A log in which a partition begins with its only checkpoint, because the file with the earlier records was reused,
/// and the frame of that checkpoint.
fn begun_with_a_checkpoint(seed: u64) -> Option<(SimDisk, PartitionId, String, FrameEntry)> {
    let mut random = Random::new(seed);
    let disk = SimDisk::new(seed, 64 << 20);
    let mut known = vec![Known::default(); PARTITIONS];
    let mut driven = open(&disk).unwrap();
    driven.checkpoints = true;
    for _ in 0..60 {
        assert!(work(&mut driven, &mut known, &mut random));
        driven.core.sync().unwrap();
        while driven.pool.prepare(2).unwrap() {}
        let last = checked(&disk).last;
        driven.core.mark(9).unwrap();
        let scan = LogScan::of(&disk, &mut |_, _| {}).unwrap();
        if scan.last == last {
            // The file has no room for a mark, so its last block is not known to be synced.
            continue;
        }
        let begun = scan
            .partitions
            .iter()
            .find(|one| one.raised && one.needed == one.known.first);
        let Some((begun, range)) = begun.and_then(|one| Some((one, one.ranges.first()?))) else {
            continue;
        };
        let mut checkpoint = None;
        scan.file_of(range).unwrap().each_entry(&mut |entry| {
            if (entry.header.partition, entry.header.base) == (begun.id, begun.needed) {
                checkpoint = Some(*entry);
            }
        });
        disk.kill();
        return Some((disk, begun.id, range.file.name.clone(), checkpoint.unwrap()));
    }
    None
}

#[test]
fn a_damaged_checkpoint_is_named_with_its_place_and_what_it_let_go_of_stays_gone_after_a_repair() {
    let mut damaged = 0;
    each_seed(40, |seed| {
        let Some((disk, id, file, checkpoint)) = begun_with_a_checkpoint(seed) else {
            return;
        };
        let base = checkpoint.header.base;
        assert!(checked(&disk).is_whole());
        let byte = bytes_of(&disk, &file)[checkpoint.body_at as usize];
        overwrite(&disk, &file, checkpoint.body_at, &[!byte]);
        let report = checked(&disk);
        damaged += 1;
        let errors: Vec<_> = report.findings.iter().filter(|finding| finding.is_error).collect();
        let [named] = &errors[..] else { panic!("{errors:?}") };
        assert_eq!(
            (named.file.as_str(), named.position),
            (file.as_str(), checkpoint.body_at)
        );
        assert_eq!(named.records, Some((id, base, checkpoint.header.next())));
        let readable = |disk: &SimDisk| {
            let opened = open::open(Arc::new(disk.clone()), 42, &options()).unwrap();
            let found = read_what_can_be(&opened.partitions[&id]);
            disk.kill();
            found
        };
        let found = readable(&disk);
        assert_eq!(found.first, base);
        assert!(found.errors.iter().all(|(_, error)| {
            matches!(error, LogError::Corrupt { file: named, position, .. } if (named, *position) == (&file, checkpoint.body_at))
        }));
        assert!(repaired(&disk, &mut Random::new(seed)));
        let found = readable(&disk);
        assert!(found.errors.is_empty(), "{:?}", found.errors);
        assert!(found.gaps >= checkpoint.header.next() - base);
        assert!(checked(&disk).is_whole());
    });
    assert!(damaged > 5, "{damaged}");
}

#[test]
fn a_log_that_may_skip_damage_opens_says_how_much_is_lost_and_one_that_may_not_does_not_open() {
    let mut given_up = 0;
    each_seed(20, |seed| {
        let (disk, ..) = built(seed);
        // The second block of the current file, which has no index yet.
        let found = recover(&disk, &IndexCache::new(1 << 20)).unwrap();
        let file = found.files.last().unwrap();
        let first = BlockHeader::decode(&file.read(0, block::LEN).unwrap()).unwrap();
        file.write(&[0xff; PAGE], first.block_len.into()).unwrap();
        let strict = open::open(Arc::new(disk.clone()), 42, &options());
        if !matches!(strict, Err(LogError::Corrupt { .. })) {
            // The damaged block was the last one, which may be torn.
            assert!(strict.is_ok_and(|opened| opened.report.given_up == 0));
            return;
        }
        let skipping = LogOptions {
            recover_skip: true,
            ..options()
        };
        let before = checked(&disk);
        let opened = open::open(Arc::new(disk.clone()), 42, &skipping).unwrap();
        let gaps: u64 = opened.partitions.values().map(|one| read_what_can_be(one).gaps).sum();
        assert_eq!(opened.report.given_up, before.lost_records());
        let known: u64 = before.lost.iter().map(|lost| lost.to - lost.from).sum();
        // Each partition may have had the records of which nothing is left.
        assert_eq!(gaps, known + before.skipped * PARTITIONS as u64);
        given_up += gaps;
        assert!(disk.names().unwrap().iter().any(|name| name.ends_with(".bad")));
    });
    assert!(given_up > 0);
}

/// Damages the bodies of the last block, which nothing names as synced. Returns its position.
fn torn(disk: &SimDisk) -> Option<(String, u64)> {
    let found = recover(disk, &IndexCache::new(1 << 20)).unwrap();
    let (file, end) = (found.files.last()?, found.end?);
    let (mut at, mut last) = (0, None);
    while at < end {
        let header = BlockHeader::decode(&file.read(at, block::LEN).unwrap()).unwrap();
        last = Some((at, header));
        at += u64::from(header.block_len);
    }
    let (at, header) = last.filter(|(_, header)| header.frames > 0)?;
    file.write(&[0xff; 40], at + header.headers_len() as u64).unwrap();
    disk.kill();
    Some((file.name.clone(), at))
}

#[test]
fn a_file_that_is_gone_is_named_with_the_place_where_its_records_are_missed_beside_a_torn_tail_too() {
    let (mut removed, mut gone, mut exact) = (0, 0, 0);
    each_seed(60, |seed| {
        let (disk, .., mut random) = built(seed);
        let mut known = vec![Known::default(); PARTITIONS];
        let mut driven = open(&disk).unwrap();
        for (known, partition) in known.iter_mut().zip(&driven.partitions) {
            let next = partition.bounds().next;
            (known.submitted, known.acknowledged) = (next, next);
        }
        let before = bytes_of(&disk, superblock::NAME);
        assert!(work(&mut driven, &mut known, &mut random));
        disk.kill();
        // The superblock is older than the last blocks, as after a power cut.
        overwrite(&disk, superblock::NAME, 0, &before);
        let Some((last, torn_at)) = torn(&disk) else { return };
        let older: Vec<String> = disk.names().unwrap();
        let older: Vec<&String> = older
            .iter()
            .filter(|name| name.starts_with("commit") && **name < last)
            .collect();
        let Some(name) = older.get(random.below(older.len().max(1) as u64) as usize) else {
            return;
        };
        disk.remove(name).unwrap();
        disk.sync_names().unwrap();
        removed += 1;
        let report = checked(&disk);
        let torn = report
            .findings
            .iter()
            .find(|one| one.kind == FindingKind::TornTail && (&one.file, one.position) == (&last, torn_at));
        assert!(torn.is_some(), "{:?}", report.findings);
        for finding in report.findings.iter().filter(|one| one.is_error) {
            let FindingKind::Missing { stood_in } = &finding.kind else {
                panic!("{finding}")
            };
            let (first, last) = match stood_in.strip_suffix(" or one before it") {
                Some(last) => ("", last),
                None => {
                    let one = stood_in.strip_prefix("one of ").unwrap_or(stood_in);
                    one.split_once(" to ").unwrap_or((one, one))
                }
            };
            assert!(
                first <= name.as_str() && name.as_str() <= last,
                "{name} is gone: {finding}"
            );
            exact += u64::from(first == last);
            // A partition of which nothing is left has no position.
            let place = disk.open(&finding.file).ok().map(|file| file.len().unwrap());
            assert!(
                place.map_or(finding.file.is_empty(), |size| finding.position < size),
                "{finding}"
            );
            gone += u64::from(place.is_some());
        }
        match open::open(Arc::new(disk.clone()), 42, &options()) {
            Ok(_) => assert!(report.is_whole(), "{:?}", report.findings),
            Err(LogError::Missing { stood_in, .. }) => {
                let said = |one: &crate::check::Finding| {
                    one.kind
                        == FindingKind::Missing {
                            stood_in: stood_in.clone(),
                        }
                };
                assert!(report.findings.iter().any(said), "{stood_in}: {:?}", report.findings);
            }
            Err(error) => panic!("{error}"),
        }
    });
    assert!(removed > 10 && gone > 10 && exact > 10, "{removed} {gone} {exact}");
}
