//! Reads everything that is stored once and collects which frames of each file are sound, which partitions exist, which
//! file serves each offset, and which offsets cannot be read. A check reports the result; a repair acts on it.

mod untraced;
mod whole_files;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::coverage::{self, FileCoverage, OffsetRange, PartitionCoverage};
use super::finding::{CheckReport, CheckedPartition, Finding, FindingKind, LostRange};
use super::layout::{FileRole, LogLayout, each_block, settle};
use super::outline::{BlockRun, FileOutline, FooterState, LogWatermarks, bytes};
use super::table_replay::{TableReplay, UNKNOWN};
use super::{CheckProgress, INDEX_BYTES, salvage};
use crate::cache::IndexCache;
use crate::disk::Disk;
use crate::error::{LogError, Result};
use crate::file::{self, LogFile};
use crate::format::footer::{FileKind, PartitionExtent};
use crate::format::{PAGE, block};
use crate::ids::{Micros, Offset, PartitionId, Sequence};
use crate::index::FrameEntry;
use crate::missing_files::stood_in;
use crate::open::{self, RankedRange};
use crate::partition::FileRange;
use crate::partition_table::{self, META, PartitionTable};
use crate::recovery;
use crate::superblock::{self, StoredSuperblock, Superblock};

/// A file and what the scan found in it.
pub(crate) struct ScannedFile {
    pub outline: FileOutline,
    pub role: FileRole,
    /// Frames from damaged stretches that were identified by their own checksums.
    pub salvaged: Vec<FrameEntry>,
    pub holds: FileCoverage,
    pub holdings: Vec<PartitionExtent>,
    /// The file prevents a start, or a start does not find everything in it.
    pub obstacle: bool,
    /// Position and length of what a repair sets aside.
    pub bad: Vec<(u64, u64)>,
    /// The file is full, but its index is incomplete.
    pub needs_footer: bool,
}

/// A partition, the files that serve it, and the offsets that cannot be read.
pub(crate) struct ScannedPartition {
    pub id: PartitionId,
    /// The entry as a start would restore it.
    pub known: partition_table::PartitionEntry,
    /// The partition begins later than the table says, with a checkpoint, because the files with the earlier offsets
    /// are gone.
    pub raised: bool,
    /// The newest readable checkpoint. Consumers of the partition begin there.
    pub needed: Offset,
    pub ranges: Vec<FileRange>,
    /// One past the last known offset.
    pub next: Offset,
    pub lost: Vec<OffsetRange>,
    /// Unreadable offsets before `needed`. They matter only to code that moves all records.
    pub let_go: Vec<OffsetRange>,
    pub gaps: Vec<OffsetRange>,
}

pub(crate) struct LogScan {
    pub commits: Vec<ScannedFile>,
    pub segments: Vec<ScannedFile>,
    pub partitions: Vec<ScannedPartition>,
    pub log_id: Option<u64>,
    pub superblock: Option<StoredSuperblock>,
    /// See [`CheckReport::unaccounted`] and [`CheckReport::skipped`].
    pub unaccounted: u64,
    pub skipped: u64,
    pub mark: Sequence,
    pub last: Sequence,
    /// The highest sequence of any stored block, whether it is part of the log or not.
    pub highest: Sequence,
    /// The log time at which the newest remaining block was written.
    pub newest_time: Micros,
    pub table: PartitionTable,
    /// The next offset of the log's own partition.
    pub meta_next: Offset,
    /// Part of what was recorded about partitions is lost.
    pub table_damaged: bool,
    /// See [`TableReplay::damaged`].
    damaged_from: Option<u64>,
    pub findings: Vec<Finding>,
    /// An error that only the owner can resolve: renamed files, or files of two logs when nothing says which log this
    /// is.
    pub by_hand: Option<LogError>,
    pub names: Vec<String>,
    bytes: u64,
    blocks: u64,
    frames: u64,
}

/// Reads the files and collects findings.
struct LogScanner<'a> {
    progress: &'a mut CheckProgress<'a>,
    done: u64,
    all: u64,
    findings: Vec<Finding>,
    blocks: u64,
    frames: u64,
    /// One past the last offset of each partition in the commit files that have been read.
    next: BTreeMap<PartitionId, Offset>,
    facts: TableReplay,
    /// The number of the last commit file that had a block, whether the file exists or not.
    last_in_use: u64,
    /// Files that belong to another log or have another name.
    misplaced: Vec<LogError>,
}

impl LogScan {
    pub fn of(disk: &dyn Disk, progress: &mut CheckProgress<'_>) -> Result<LogScan> {
        let cache = IndexCache::new(INDEX_BYTES);
        let names = disk.names().map_err(LogError::io("cannot list", "the log"))?;
        let mut all: Vec<(FileKind, u64)> = names.iter().filter_map(|name| file::parse_name(name)).collect();
        all.sort_unstable_by_key(|(_, number)| *number);
        let open = |wanted: FileKind| {
            let files = all.iter().filter(move |(kind, _)| *kind == wanted);
            files
                .map(|(kind, number)| LogFile::open(disk, *kind, *number, &cache).map(Arc::new))
                .collect::<Result<Vec<_>>>()
        };
        let (commits, segments) = (open(FileKind::Commit)?, open(FileKind::Segment)?);
        let size = commits.iter().chain(&segments).map(|file| file.size).sum();
        let files = commits.iter().chain(&segments).map(AsRef::as_ref);
        let introduced = recovery::introduce(disk, &names, files)?;
        let mut known = LogWatermarks {
            log_id: introduced.log_id,
            mark: introduced.mark,
            ..LogWatermarks::default()
        };
        let outlines = commits
            .into_iter()
            .map(|file| FileOutline::of(file, &mut known))
            .collect::<Result<_>>()?;
        let superblock = introduced.superblock;
        let newest = superblock.as_ref().and_then(|found| found.newest);
        let settled = settle(outlines, known.mark, newest.as_ref());
        let mut reading = LogScanner {
            progress: &mut |done, all| progress(done, all),
            done: 0,
            all: size,
            findings: Vec::new(),
            blocks: 0,
            frames: 0,
            next: BTreeMap::new(),
            facts: TableReplay::default(),
            last_in_use: 0,
            misplaced: introduced.misplaced,
        };
        reading.superblock(superblock.as_ref());
        let last = settled.last;
        let commits = reading.commits(settled, newest.as_ref());
        let segments = segments
            .into_iter()
            .map(|file| reading.segment(file))
            .collect::<Result<Vec<_>>>()?;
        let mut scan = LogScan {
            commits,
            segments,
            partitions: Vec::new(),
            log_id: known.log_id,
            superblock,
            unaccounted: 0,
            skipped: 0,
            mark: known.mark,
            last,
            highest: known.highest.max(known.mark).max(last),
            newest_time: known.newest_time,
            table: PartitionTable::default(),
            meta_next: reading.facts.next,
            damaged_from: reading.facts.damaged,
            table_damaged: reading.facts.damaged.is_some()
                || !reading.facts.has_snapshot && !reading.facts.seen.is_empty(),
            findings: reading.findings,
            by_hand: reading.misplaced.into_iter().find(is_by_hand),
            names,
            bytes: size,
            blocks: reading.blocks,
            frames: reading.frames,
        };
        scan.table = reading.facts.into_table(scan.table_damaged);
        scan.look_for_untraced(newest.as_ref());
        scan.cover();
        scan.grade();
        scan.leave_open();
        Ok(scan)
    }

    /// Determines which file serves each offset of each partition, as a start would.
    fn cover(&mut self) {
        let mut pieces: BTreeMap<PartitionId, Vec<RankedRange>> = BTreeMap::new();
        let live = self
            .commits
            .iter()
            .filter(|file| file.role != FileRole::Spare)
            .map(|file| (0, file));
        let ranked = self.segments.iter().map(|file| (1 + file.outline.file.number, file));
        for (rank, file) in live.chain(ranked) {
            for holding in &file.holdings {
                let piece = (rank, open::range(&file.outline.file, holding));
                pieces.entry(holding.partition).or_default().push(piece);
            }
        }
        let there: Vec<u64> = self.commits.iter().map(|file| file.outline.file.number).collect();
        for (id, mut known) in self.table.partitions.clone() {
            let pieces = pieces.remove(&id).unwrap_or_default();
            if known.first == UNKNOWN {
                known.first = pieces.iter().map(|(_, range)| range.first).min().unwrap_or_default();
            }
            let stated = known.first;
            let ranges = {
                let checkpoint = |range: &FileRange| Ok(self.checkpoints(id, range).map(|(base, _)| base).min());
                // This does not fail: unreadable parts of an index have been found before.
                let (first, ranges) = open::needed_of(pieces, stated, checkpoint).unwrap_or_default();
                known.first = first;
                ranges
            };
            let next = ranges.last().map_or(known.next, |range| range.next.max(known.next));
            let sound = ranges.iter().flat_map(|range| self.checkpoints(id, range));
            let newest = sound.filter(|(_, sound)| *sound).map(|(base, _)| base).max();
            let needed = newest.unwrap_or(known.first);
            let (mut lost, mut let_go, mut gaps) = (Vec::new(), Vec::new(), Vec::new());
            let whole: Vec<OffsetRange> = ranges.iter().map(|range| (range.first, range.next)).collect();
            let holes = coverage::without((known.first, next), &whole);
            for span in &holes {
                let stood_in = stood_in(&ranges, span.0, &there);
                let place = self.goes_on(id, &ranges, span.0);
                let kind = FindingKind::Missing { stood_in };
                self.findings.push(of_records(id, *span, place, kind));
            }
            lost.extend(holes);
            for range in &ranges {
                let span = (range.first, range.next);
                let Some(file) = self.file_of(range) else { continue };
                let none = PartitionCoverage::default();
                let holds = file.holds.get(&id).unwrap_or(&none);
                let unread = coverage::without(span, &holds.sound);
                lost.extend(coverage::within((needed, Offset::MAX), &unread));
                let_go.extend(coverage::within((0, needed), &unread));
                gaps.extend(coverage::within(span, &holds.gaps));
            }
            lost.sort_unstable();
            gaps.sort_unstable();
            self.partitions.push(ScannedPartition {
                id,
                raised: known.first > stated,
                known,
                needed,
                ranges,
                next,
                lost,
                let_go,
                gaps,
            });
        }
    }

    /// The offsets of the checkpoints of a partition that are to be read from a file, and whether they can be read.
    fn checkpoints(&self, id: PartitionId, range: &FileRange) -> impl Iterator<Item = (Offset, bool)> {
        let held = self.file_of(range).and_then(|file| file.holds.get(&id));
        let all = held.map_or(&[][..], |held| &held.checkpoints).iter().copied();
        let (first, next) = (range.first, range.next);
        all.filter(move |(base, _)| (first..next).contains(base))
    }

    /// The position of the frame of a partition that contains an offset, else of the next frame after it, else the end
    /// of the last frame.
    fn goes_on(&self, id: PartitionId, ranges: &[FileRange], at: Offset) -> (String, u64) {
        let range = ranges.iter().find(|range| range.next > at).or(ranges.last());
        let Some(file) = range.and_then(|range| self.file_of(range)) else {
            return (String::new(), 0);
        };
        let (mut begins, mut end) = (None, 0);
        file.each_entry(&mut |entry| {
            if entry.header.partition == id {
                end = end.max(entry.body_at + u64::from(entry.header.body_len));
                let is_later = begins.is_none() && entry.header.next() > at;
                begins = begins.or(is_later.then_some(entry.body_at));
            }
        });
        (file.outline.file.name.clone(), begins.unwrap_or(end))
    }

    pub fn file_of(&self, range: &FileRange) -> Option<&ScannedFile> {
        let own = |file: &&ScannedFile| Arc::ptr_eq(&file.outline.file, &range.file);
        self.commits.iter().chain(&self.segments).find(own)
    }

    /// Turns damage that affects no needed record into notes, and adds a finding for lost records that no error covers.
    fn grade(&mut self) {
        let needed = |file: &str, (id, first, next): (PartitionId, Offset, Offset)| {
            let partition = self.partitions.iter().find(|one| one.id == id);
            partition.is_some_and(|partition| {
                partition.ranges.iter().any(|range| {
                    let wanted = (range.first.max(partition.needed), range.next);
                    range.file.name == file && coverage::overlap(wanted, (first, next))
                })
            })
        };
        for finding in &mut self.findings {
            if finding.kind == FindingKind::BadBody
                && let Some(records) = finding.records.filter(|(id, _, _)| *id != META)
            {
                finding.is_error = needed(&finding.file, records);
            }
        }
        let mut gaps = Vec::new();
        for partition in &self.partitions {
            for span in &partition.lost {
                let said = self.findings.iter().any(|finding| finding.is_error);
                if !said {
                    let place = self.goes_on(partition.id, &partition.ranges, span.0);
                    gaps.push(of_records(partition.id, *span, place, FindingKind::Unread));
                }
            }
            for (from, to) in &partition.gaps {
                let place = self.goes_on(partition.id, &partition.ranges, *from);
                gaps.push(Finding {
                    is_error: false,
                    ..of_records(partition.id, (*from, *to), place, FindingKind::Gap)
                });
            }
        }
        self.findings.extend(gaps);
        if self.table_damaged && !self.findings.iter().any(|finding| finding.is_error) {
            self.findings.push(Finding {
                file: String::new(),
                position: 0,
                bytes: 0,
                kind: FindingKind::BadTable,
                records: None,
                is_error: true,
            });
        }
    }

    /// Removes findings after the first data of a newer program, because what seems lost may be stored there.
    fn leave_open(&mut self) {
        let newer = |file: &&ScannedFile| file.outline.newer.is_some();
        let names = |file: &ScannedFile| file.outline.file.name.clone();
        let first = self.commits.iter().find(newer).map(names);
        let segments: Vec<String> = self.segments.iter().filter(newer).map(names).collect();
        if first.is_none() && segments.is_empty() {
            return;
        }
        let is_before = |file: &String| match file::parse_name(file) {
            Some((FileKind::Commit, _)) => first.as_ref().is_none_or(|first| file < first),
            _ => !segments.contains(file),
        };
        self.findings.retain(|finding| match finding.kind {
            FindingKind::NewerFormat(_) | FindingKind::Gap => true,
            FindingKind::TornTail
            | FindingKind::Missing { .. }
            | FindingKind::Unread
            | FindingKind::BadTable
            | FindingKind::Refused(_) => false,
            _ => is_before(&finding.file),
        });
        for partition in &mut self.partitions {
            partition.lost.clear();
            partition.let_go.clear();
        }
    }

    pub fn report(&self) -> CheckReport {
        let sum = |spans: &[OffsetRange]| spans.iter().map(|(from, to)| to - from).sum();
        let partitions = self.partitions.iter().map(|partition| CheckedPartition {
            id: partition.id,
            durability: partition.known.durability,
            first: partition.known.first,
            next: partition.next,
            bytes: partition.ranges.iter().map(|range| range.bytes).sum(),
            gaps: sum(&partition.gaps),
            lost: sum(&partition.lost),
            let_go: sum(&partition.let_go),
        });
        let spans = |of: fn(&ScannedPartition) -> &[OffsetRange]| {
            let each = |partition: &ScannedPartition| {
                let id = partition.id;
                let named = move |(from, to): OffsetRange| LostRange {
                    partition: id,
                    from,
                    to,
                };
                of(partition).iter().copied().map(named).collect::<Vec<_>>()
            };
            self.partitions.iter().flat_map(each).collect()
        };
        let live = |file: &&ScannedFile| file.role != FileRole::Spare;
        CheckReport {
            log_id: self.log_id,
            files: self.commits.iter().filter(live).count(),
            spares: self.commits.iter().filter(|file| !live(file)).count(),
            segments: self.segments.len(),
            bytes: self.bytes,
            blocks: self.blocks,
            frames: self.frames,
            synced: self.mark,
            last: self.last,
            partitions: partitions.collect(),
            findings: self.findings.clone(),
            lost: spans(|partition| &partition.lost),
            let_go: spans(|partition| &partition.let_go),
            unaccounted: self.unaccounted,
            skipped: self.skipped,
        }
    }
}

fn is_by_hand(error: &LogError) -> bool {
    match error {
        LogError::Misnamed { .. } => true,
        LogError::Foreign { beside, .. } => beside != superblock::NAME,
        _ => false,
    }
}

fn of_records(id: PartitionId, (from, to): OffsetRange, (file, position): (String, u64), kind: FindingKind) -> Finding {
    Finding {
        file,
        position,
        bytes: 0,
        kind,
        records: Some((id, from, to)),
        is_error: true,
    }
}

impl LogScanner<'_> {
    fn commits(&mut self, settled: LogLayout, newest: Option<&Superblock>) -> Vec<ScannedFile> {
        let last_live = settled.files.iter().rposition(|(_, role)| *role == FileRole::Live);
        self.findings.extend(settled.findings);
        let obstacles = settled.obstacles;
        let in_use = settled.files.iter().rfind(|(_, role)| *role != FileRole::Spare);
        let highest = in_use.map_or(0, |(outline, _)| outline.file.number);
        self.last_in_use = newest.map_or(highest, |newest| highest.max(newest.file));
        for (outline, _) in settled.files.iter().filter(|(_, role)| *role == FileRole::Live) {
            let misnamed = newest.zip(outline.first());
            let misnamed = misnamed.and_then(|(newest, first)| recovery::misnamed(newest, &outline.file, first));
            self.misplaced.extend(misnamed);
        }
        let (mut scanned, mut expected) = (Vec::new(), 1);
        for (n, (outline, role)) in settled.files.into_iter().enumerate() {
            let mut file = ScannedFile::new(outline, role);
            file.obstacle = obstacles.contains(&n);
            self.version(&mut file);
            let role = match self.foreign(&mut file) {
                true => FileRole::Spare,
                false => role,
            };
            self.cut_short(&mut file, newest);
            match role {
                FileRole::Live => self.live(&mut file, Some(n) == last_live),
                FileRole::Destroyed => self.destroyed(&mut file, expected),
                FileRole::Spare => {}
            }
            expected = file.outline.last().map_or(expected, |last| last + 1);
            self.passed(&file.outline.file);
            scanned.push(file);
        }
        if let Some(newest) = newest {
            let before = scanned.iter().filter(|file| file.outline.file.number < newest.file);
            let sound = before.filter_map(ScannedFile::last_sound).max();
            if newest.first > sound.unwrap_or_default() + 1 {
                self.facts.lose_before(newest.file);
            }
        }
        scanned
    }

    fn passed(&mut self, file: &LogFile) {
        self.done += file.size;
        (self.progress)(self.done, self.all);
    }

    fn found(&mut self, file: &LogFile, (position, bytes): (u64, u64), kind: FindingKind, is_error: bool) {
        self.findings.push(Finding {
            file: file.name.clone(),
            position,
            bytes,
            kind,
            records: None,
            is_error,
        });
    }

    fn version(&mut self, file: &mut ScannedFile) {
        let (place, kind) = match file.outline.newer {
            Some((at, newer)) => ((at, newer.bytes()), FindingKind::NewerFormat(newer)),
            None if file.outline.bad_version => ((0, block::LEN as u64), FindingKind::BadVersion),
            None => return,
        };
        file.obstacle = true;
        file.bad.push((place.0, PAGE as u64));
        let file = file.outline.file.clone();
        self.found(&file, place, kind, true);
    }

    fn destroyed(&mut self, file: &mut ScannedFile, expected: Sequence) {
        file.obstacle = true;
        file.bad.push((0, file.outline.file.size));
        let log_file = file.outline.file.clone();
        let whole = BlockRun {
            at: 0,
            end: log_file.size,
            first: expected,
            last: expected,
            sound: false,
        };
        self.damaged(&log_file, &whole, false);
        self.salvage(file, &whole);
        self.read(file);
        self.facts.damage(&log_file);
    }

    fn damaged(&mut self, file: &LogFile, stretch: &BlockRun, copied: bool) {
        let kind = FindingKind::Corrupt {
            expected: stretch.first,
            last: stretch.last,
            copied,
        };
        self.found(file, (stretch.at, stretch.end - stretch.at), kind, !copied);
    }

    fn live(&mut self, file: &mut ScannedFile, is_last: bool) {
        let log_file = file.outline.file.clone();
        let indexed = file.outline.footer.is_whole();
        let damaged: Vec<BlockRun> = file
            .outline
            .stretches
            .iter()
            .filter(|one| !one.sound)
            .copied()
            .collect();
        for stretch in &damaged {
            // The damaged version has already been reported and covers this block.
            if stretch.at > 0 || !file.outline.bad_version {
                self.damaged(&log_file, stretch, indexed);
            }
            if !indexed {
                file.obstacle = true;
                file.bad.push((stretch.at, stretch.end - stretch.at));
                self.salvage(file, stretch);
            }
        }
        self.unknown_frames(file, indexed);
        self.footer(file, is_last);
        self.read(file);
        // The snapshot at the start of the file replaces earlier facts, but not those that are damaged after it.
        if file.obstacle && !indexed {
            self.facts.damage(&log_file);
        }
        let sound = file.outline.stretches.iter().filter(|stretch| stretch.sound);
        self.blocks += sound.map(|stretch| stretch.last + 1 - stretch.first).sum::<u64>();
    }

    fn read(&mut self, file: &mut ScannedFile) {
        let log_file = file.outline.file.clone();
        let (mut holds, mut bad) = (FileCoverage::new(), Vec::new());
        file.read_frames(&mut |entry, sound| {
            self.frame(&log_file, entry, sound);
            holds.entry(entry.header.partition).or_default().add(entry, sound);
            if !sound {
                bad.push((entry.body_at, u64::from(entry.header.body_len)));
            }
        });
        file.bad.extend(bad);
        file.holds = holds;
        file.settle_holdings();
    }

    /// Salvages frames whose offsets continue the partition. Frames that a reused file has left over from earlier do
    /// not.
    fn salvage(&mut self, file: &mut ScannedFile, stretch: &BlockRun) {
        let bytes = bytes(&file.outline.file, stretch.at, (stretch.end - stretch.at) as usize);
        let mut next = self.next.clone();
        for entry in salvage::frames(&bytes, stretch.at) {
            let at = next.entry(entry.header.partition).or_default();
            if entry.header.base >= *at {
                *at = entry.header.next();
                file.salvaged.push(entry);
            }
        }
    }

    /// Reports blocks with a correct checksum and a frame that this program does not know.
    fn unknown_frames(&mut self, file: &mut ScannedFile, indexed: bool) {
        if indexed {
            return;
        }
        let mut unknown = Vec::new();
        for stretch in file.outline.stretches.iter().filter(|stretch| stretch.sound) {
            each_block(&file.outline, stretch, |at, header| {
                if file.outline.file.block_entries(at, header).is_err() {
                    unknown.push((at, *header));
                }
                true
            });
        }
        for (at, header) in unknown {
            let len = u64::from(header.block_len);
            let kind = FindingKind::Corrupt {
                expected: header.sequence,
                last: header.sequence,
                copied: false,
            };
            let log_file = file.outline.file.clone();
            self.found(&log_file, (at, len), kind, true);
            file.obstacle = true;
            file.bad.push((at, len));
        }
    }

    fn footer(&mut self, file: &mut ScannedFile, is_last: bool) {
        let log_file = file.outline.file.clone();
        let place = match &file.outline.footer {
            FooterState::Whole(..) => return,
            FooterState::Part(_, _, at, len) => (*at, *len),
            FooterState::None if is_last => return,
            FooterState::None => (file.outline.trailer_at(), log_file.size - file.outline.trailer_at()),
        };
        file.needs_footer = true;
        self.found(&log_file, place, FindingKind::BadFooter, false);
    }

    fn frame(&mut self, file: &LogFile, entry: &FrameEntry, sound: bool) {
        let header = &entry.header;
        self.frames += 1;
        let next = self.next.entry(header.partition).or_default();
        *next = (*next).max(header.next());
        if !sound {
            self.findings.push(Finding {
                file: file.name.clone(),
                position: entry.body_at,
                bytes: header.body_len.into(),
                kind: FindingKind::BadBody,
                records: Some((header.partition, header.base, header.next())),
                is_error: true,
            });
        }
        if header.partition == META {
            self.facts.take(file, entry, sound, &mut self.findings);
        } else {
            self.facts.see(header);
        }
    }

    fn segment(&mut self, file: Arc<LogFile>) -> Result<ScannedFile> {
        let mut segment = ScannedFile::of_segment(file.clone())?;
        self.version(&mut segment);
        if self.foreign(&mut segment) {
            self.passed(&file);
            return Ok(segment);
        }
        let place = match &segment.outline.footer {
            FooterState::Whole(..) => None,
            FooterState::Part(_, _, at, len) => Some((*at, *len)),
            FooterState::None => Some((segment.outline.trailer_at(), file.size - segment.outline.trailer_at())),
        };
        if let Some(place) = place {
            self.found(&file, place, FindingKind::BadFooter, false);
            segment.needs_footer = true;
        }
        let indexed = place.is_none();
        for (at, len) in segment.bad_frames() {
            self.found(&file, (at, len), FindingKind::BadFrame { copied: indexed }, !indexed);
            segment.obstacle |= !indexed;
            if !indexed {
                segment.bad.push((at, len));
            }
        }
        let mut holds = FileCoverage::new();
        let mut bad = Vec::new();
        let misses_names = self.facts.misses_names(self.last_in_use);
        segment.read_frames(&mut |entry, sound| {
            self.frames += 1;
            if misses_names {
                self.facts.see(&entry.header);
            }
            holds.entry(entry.header.partition).or_default().add(entry, sound);
            if !sound {
                let header = &entry.header;
                bad.push((entry.body_at, u64::from(header.body_len)));
                self.findings.push(Finding {
                    file: file.name.clone(),
                    position: entry.body_at,
                    bytes: header.body_len.into(),
                    kind: FindingKind::BadBody,
                    records: Some((header.partition, header.base, header.next())),
                    is_error: true,
                });
            }
        });
        segment.bad.extend(bad);
        segment.holds = holds;
        segment.settle_holdings();
        self.passed(&file);
        Ok(segment)
    }
}

impl ScannedFile {
    fn new(outline: FileOutline, role: FileRole) -> ScannedFile {
        ScannedFile {
            outline,
            role,
            salvaged: Vec::new(),
            holds: FileCoverage::new(),
            holdings: Vec::new(),
            obstacle: false,
            bad: Vec::new(),
            needs_footer: false,
        }
    }

    /// A segment whose frames have not been read yet.
    pub fn of_segment(file: Arc<LogFile>) -> Result<ScannedFile> {
        let outline = FileOutline {
            footer: FooterState::of(&file, None)?,
            newer: file.newer_trailer(None)?,
            bad_version: false,
            stretches: Vec::new(),
            file,
        };
        let mut segment = ScannedFile::new(outline, FileRole::Live);
        segment.outline.newer = segment.outline.newer.or_else(|| segment.newer_frame());
        Ok(segment)
    }

    /// Sets the holdings from the index of the file, and from its frames for partitions that the index lacks.
    fn settle_holdings(&mut self) {
        let stated = self.outline.footer.holdings().cloned().unwrap_or_default();
        let mut all: BTreeMap<PartitionId, PartitionExtent> =
            stated.into_iter().map(|row| (row.partition, row)).collect();
        for (id, held) in &self.holds {
            all.entry(*id).or_insert(PartitionExtent {
                partition: *id,
                first: held.first,
                next: held.next,
                bytes: held.bytes,
                max_time: 0,
                entry: 0,
                entries: held.frames as u32,
            });
        }
        self.holdings = all.into_values().collect();
    }

    /// Reads every frame of the file and reports whether its body is sound. Frames of one partition come in the order
    /// of offsets.
    pub fn read_frames(&self, look: &mut dyn FnMut(&FrameEntry, bool)) {
        let file = &self.outline.file;
        self.each_entry(&mut |entry| look(entry, file.body(entry).is_ok()));
    }

    /// Like [`read_frames`](ScannedFile::read_frames), but without reading bodies.
    pub fn each_entry(&self, look: &mut dyn FnMut(&FrameEntry)) {
        let file = &self.outline.file;
        if let FooterState::Whole(trailer, _) = &self.outline.footer {
            let entries = bytes(file, file.size - trailer.footer_len(), trailer.entries_len());
            for (_, entries) in trailer
                .index(&entries)
                .iter()
                .flat_map(|index| index.partitions().collect::<Vec<_>>())
            {
                entries.iter().for_each(&mut *look);
            }
            return;
        }
        if file.kind == FileKind::Segment {
            self.frames_in_row().entries.iter().for_each(look);
            return;
        }
        for stretch in &self.outline.stretches {
            if !stretch.sound {
                let inside = |entry: &&FrameEntry| (stretch.at..stretch.end).contains(&entry.body_at);
                self.salvaged.iter().filter(inside).for_each(&mut *look);
                continue;
            }
            each_block(&self.outline, stretch, |at, header| {
                let entries = file
                    .block_entries(at, header)
                    .unwrap_or_else(|_| salvage::frames(&bytes(file, at, header.block_len as usize), at));
                entries.iter().for_each(&mut *look);
                true
            });
        }
        if self.outline.stretches.is_empty() {
            self.salvaged.iter().for_each(look);
        }
    }
}
