//! `thalweg log repair` makes a damaged log usable again. Lost records are replaced by gap frames, everything else
//! stays readable, and damaged bytes are copied to files beside the log before anything changes.
//!
//! The order makes a repair safe against a crash at any moment, after which it is run again: first the copies; then
//! segments with the sound frames, which take precedence over the damaged files; then a commit file with the table of
//! partitions, in which the log continues; and only then are the damaged files removed. Repairing blocks in place would
//! write less, but a crash in the middle would leave neither the old bytes nor the new ones.

mod rescue;

use std::collections::BTreeMap;

use thalweg_kit::clock::wall_micros;

use crate::cache::IndexCache;
use crate::check::coverage::{self, OffsetRange};
use crate::check::layout::FileRole;
use crate::check::scan::{LogScan, ScannedFile, ScannedPartition};
use crate::check::{self, CheckProgress, CheckReport, FindingKind, INDEX_BYTES};
use crate::disk::Disk;
use crate::error::{LogError, Result};
use crate::file::{self, LogFile};
use crate::format::block::{self, BlockHeader};
use crate::format::footer::{self, FileKind, TrailerFields};
use crate::format::frame::{self, FrameFlags, FrameHeader, FrameKind};
use crate::format::record::RecordRef;
use crate::format::{PAGE, pages};
use crate::ids::{Offset, PartitionId, Sequence};
use crate::index::{FileIndex, FrameEntry};
use crate::partition::FileRange;
use crate::partition_table::{META, PartitionEntry, PartitionTable};
use crate::superblock::{self, Superblock, SuperblockFile};
use rescue::RescueWriter;

/// Room for blocks, beside the table of partitions, in the file with which the log continues.
const ROOM: u64 = 1 << 20;

/// The size of one copy step.
const PIECE: usize = 1 << 20;

/// What a repair found and did.
#[derive(Clone, Debug)]
pub struct RepairReport {
    pub before: CheckReport,
    /// `None` if nothing was done, because nothing was damaged or the loss was not accepted.
    pub done: Option<RepairActions>,
}

#[derive(Clone, Debug)]
pub struct RepairActions {
    /// Files with the damaged bytes.
    pub set_aside: Vec<String>,
    /// Files that were written.
    pub written: Vec<String>,
    /// Files that were removed. Their sound records are in `written`.
    pub removed: Vec<String>,
    /// The check of the repaired log.
    pub after: CheckReport,
}

/// Whether there is anything to repair.
pub fn needs_repair(report: &CheckReport) -> bool {
    !report.is_whole()
        || !report.let_go.is_empty()
        || report
            .findings
            .iter()
            .any(|finding| finding.kind == FindingKind::BadFooter)
}

/// Checks a log and, if `accept_loss` is set, gives up the damaged records in `before.lost`. Nothing else may use the
/// log.
pub fn repair(disk: &dyn Disk, accept_loss: bool, progress: &mut CheckProgress<'_>) -> Result<RepairReport> {
    let scan = LogScan::of(disk, progress)?;
    let before = check::report(disk, &scan);
    // Data of a newer program is not damage, even if loss is accepted.
    for finding in &before.findings {
        if let FindingKind::NewerFormat(found) = finding.kind {
            return Err(LogError::NewerFormat {
                file: finding.file.clone(),
                position: finding.position,
                found,
            });
        }
    }
    if let Some(by_hand) = scan.by_hand.clone().filter(|_| accept_loss) {
        return Err(by_hand);
    }
    if !accept_loss || !needs_repair(&before) {
        return Ok(RepairReport { before, done: None });
    }
    let mut repair = Repair {
        disk,
        scan: &scan,
        set_aside: Vec::new(),
        written: Vec::new(),
        removed: Vec::new(),
    };
    repair.run()?;
    let (set_aside, written, removed) = (repair.set_aside, repair.written, repair.removed);
    let after = check::check(disk, progress)?;
    let done = RepairActions {
        set_aside,
        written,
        removed,
        after,
    };
    Ok(RepairReport {
        before,
        done: Some(done),
    })
}

struct Repair<'a> {
    disk: &'a dyn Disk,
    scan: &'a LogScan,
    set_aside: Vec<String>,
    written: Vec<String>,
    removed: Vec<String>,
}

impl Repair<'_> {
    fn run(&mut self) -> Result<()> {
        for name in self.scan.names.iter().filter(|name| file::is_unfinished(name)) {
            self.disk.remove(name).map_err(LogError::io("cannot remove", name))?;
        }
        let files = self.scan.commits.iter().chain(&self.scan.segments);
        for file in files.clone() {
            for (n, (at, len)) in file.bad.iter().enumerate() {
                // The same bytes may have been reported twice.
                if !file.bad.iter().take(n).any(|other| other == &(*at, *len)) {
                    self.copy(&file.outline.file, *at, *len)?;
                }
            }
        }
        let structural = self.is_structural();
        let numbers = self.scan.segments.iter().map(|file| file.outline.file.number + 1);
        let log_id = self.scan.log_id.unwrap_or_default();
        let mut rescue = RescueWriter::new(self.disk, log_id, numbers.max().unwrap_or_default());
        for file in files {
            self.rescue(file, &mut rescue)?;
        }
        for partition in &self.scan.partitions {
            let whole: Vec<OffsetRange> = partition.ranges.iter().map(|range| (range.first, range.next)).collect();
            for span in coverage::without((partition.known.first, self.next_of(partition)), &whole) {
                rescue.range(partition.id, span, None, &[])?;
            }
        }
        rescue.finish()?;
        self.written.append(&mut rescue.names);
        let ending = match structural {
            true => Some(self.go_on_in_a_new_file()?),
            false => None,
        };
        let obstacles: Vec<&ScannedFile> = self.scan.commits.iter().filter(|file| file.obstacle).collect();
        let replaced: Vec<&ScannedFile> = self.scan.segments.iter().filter(|file| is_replaced(file)).collect();
        for file in obstacles
            .into_iter()
            .filter(|file| file.role != FileRole::Spare)
            .chain(replaced)
        {
            self.remove(&file.outline.file)?;
        }
        self.sync_names()?;
        self.footers(structural)?;
        self.superblock(ending)
    }

    /// Writes a superblock for the repaired log, so that a start expects no more than what is left.
    fn superblock(&mut self, ending: Option<Superblock>) -> Result<()> {
        let Some(ending) = ending.or_else(|| self.ending_as_found()) else {
            return Ok(());
        };
        let newest = self.scan.superblock.as_ref().and_then(|found| found.newest);
        let generation = newest.map_or(0, |newest| newest.generation) + 1;
        SuperblockFile::make(self.disk, Superblock { generation, ..ending })?;
        self.written.push(superblock::NAME.to_owned());
        Ok(())
    }

    /// The superblock of a log that continues where it ended, if its superblock is damaged.
    fn ending_as_found(&self) -> Option<Superblock> {
        let found = self
            .scan
            .superblock
            .as_ref()
            .filter(|found| !found.damaged.is_empty())?;
        let newest = self.scan.commits.iter().rfind(|file| file.role == FileRole::Live);
        let named = self.scan.log_id.or(found.newest.map(|newest| newest.log_id));
        let log_id = named.unwrap_or_else(new_id);
        let Some(file) = newest else {
            return Some(Superblock {
                log_id,
                ..Superblock::default()
            });
        };
        let offsets = file.holds.values().map(|held| held.next - held.first);
        Some(Superblock {
            log_id,
            file: file.outline.file.number,
            file_bytes: file.outline.file.size,
            first: file.outline.first().unwrap_or_default(),
            synced: self.scan.mark,
            offsets: offsets.sum(),
            ..Superblock::default()
        })
    }

    /// The next offset of a partition, beyond every offset that a lost block may have used.
    fn next_of(&self, partition: &ScannedPartition) -> Offset {
        partition.next.saturating_add(self.scan.skipped)
    }

    /// Whether the sequence of commit files or the table of partitions is damaged.
    fn is_structural(&self) -> bool {
        let scan = self.scan;
        // The lost record may be the checkpoint that shows the later beginning.
        let raised = |partition: &ScannedPartition| partition.raised && !partition.lost.is_empty();
        scan.partitions.iter().any(raised)
            || scan.table_damaged
            || scan.skipped > 0
            || scan.mark > scan.last
            || scan.commits.iter().any(|file| file.obstacle)
    }

    /// Copies bytes that are about to be removed.
    fn copy(&mut self, file: &LogFile, at: u64, len: u64) -> Result<()> {
        let wanted = format!("{}.{at}.bad", file.name);
        let mut name = wanted.clone();
        let mut n = 1;
        while self.scan.names.contains(&name) || self.set_aside.contains(&name) {
            n += 1;
            name = format!("{wanted}.{n}");
        }
        let unfinished = format!("new-{name}");
        let cannot = |error| LogError::io("cannot write", &name)(error);
        let copy = self.disk.create(&unfinished).map_err(cannot)?;
        let mut done = 0;
        while done < len {
            let piece = check::outline::bytes(file, at + done, PIECE.min((len - done) as usize));
            if piece.is_empty() {
                break;
            }
            copy.write_at(&piece, done).map_err(cannot)?;
            done += piece.len() as u64;
        }
        copy.sync().map_err(cannot)?;
        self.disk.rename(&unfinished, &name).map_err(cannot)?;
        self.set_aside.push(name);
        self.sync_names()
    }

    fn sync_names(&self) -> Result<()> {
        self.disk
            .sync_names()
            .map_err(LogError::io("cannot sync the names of", "the log"))
    }

    fn remove(&mut self, file: &LogFile) -> Result<()> {
        file.remove(self.disk)?;
        self.removed.push(file.name.clone());
        Ok(())
    }

    /// Rewrites what partitions read from a file, if part of it is lost or the file must be removed. Whole ranges are
    /// rewritten, so that no partition reads from the file both what precedes a loss and what follows it.
    fn rescue(&self, file: &ScannedFile, rescue: &mut RescueWriter<'_>) -> Result<()> {
        let all = file.obstacle || (file.outline.file.kind == FileKind::Segment && is_replaced(file));
        let wanted: Vec<(&ScannedPartition, &FileRange)> = self
            .scan
            .partitions
            .iter()
            .flat_map(|partition| partition.ranges.iter().map(move |range| (partition, range)))
            .filter(|(partition, range)| {
                let own = std::sync::Arc::ptr_eq(&range.file, &file.outline.file);
                let mut damaged = partition.lost.iter().chain(&partition.let_go);
                own && (all || damaged.any(|span| coverage::overlap(*span, (range.first, range.next))))
            })
            .collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let mut frames: BTreeMap<PartitionId, Vec<FrameEntry>> =
            wanted.iter().map(|(partition, _)| (partition.id, Vec::new())).collect();
        file.read_frames(&mut |entry, sound| {
            if let Some(own) = frames.get_mut(&entry.header.partition).filter(|_| sound) {
                own.push(*entry);
            }
        });
        for (partition, range) in wanted {
            let own = frames.get(&partition.id).map_or(&[][..], Vec::as_slice);
            rescue.range(partition.id, (range.first, range.next), Some(&file.outline.file), own)?;
        }
        Ok(())
    }

    /// Creates a file after all others that begins with the table of partitions. Spare files are removed, because a
    /// start looks for the next block only up to the first file without one.
    fn go_on_in_a_new_file(&mut self) -> Result<Superblock> {
        let scan = self.scan;
        let log_id = scan.log_id.unwrap_or_else(new_id);
        for spare in scan.commits.iter().filter(|file| file.role == FileRole::Spare) {
            self.remove(&spare.outline.file)?;
        }
        self.sync_names()?;
        for file in scan.commits.iter().filter(|file| file.role == FileRole::Live) {
            // The superblock will name this data as synced, so data that a killed process handed to the kernel must be
            // synced.
            file.outline.file.sync()?;
        }
        let sequence = scan.highest + 1;
        let block = self.table_block(sequence, log_id);
        // With a gap in the numbers, the sequences of the blocks may have a gap too.
        let number = scan
            .commits
            .iter()
            .map(|file| file.outline.file.number + 2)
            .max()
            .unwrap_or_default();
        let size = (block.len() as u64 + ROOM).next_multiple_of(PAGE as u64);
        let file = LogFile::make(self.disk, number, size, &IndexCache::new(INDEX_BYTES), &|_| true)?;
        file.write(&block, 0)?;
        file.sync()?;
        self.written.push(file.name.clone());
        Ok(Superblock {
            log_id,
            file: number,
            file_bytes: size,
            first: sequence,
            synced: sequence,
            offsets: 1,
            ..Superblock::default()
        })
    }

    fn table_block(&self, sequence: Sequence, log_id: u64) -> Vec<u8> {
        let rows: Vec<(PartitionId, PartitionEntry)> = self
            .scan
            .partitions
            .iter()
            .map(|partition| {
                let next = self.next_of(partition);
                (
                    partition.id,
                    PartitionEntry {
                        next,
                        ..partition.known
                    },
                )
            })
            .collect();
        // No later than the blocks before it, because the next start continues from this time.
        let time = match self.scan.newest_time {
            0 => wall_micros(),
            newest => newest,
        };
        let (mut value, mut body) = (Vec::new(), Vec::new());
        PartitionTable::encode(rows.into_iter(), &mut value);
        RecordRef::of(time, &value).encode(&mut body);
        let frame = FrameHeader {
            kind: FrameKind::Checkpoint,
            flags: FrameFlags::NONE,
            body_len: body.len() as u32,
            body_crc: crc32c::crc32c(&body),
            partition: META,
            base: self.scan.meta_next,
            records: 1,
            last_delta: 0,
            base_time: time,
            max_time: time,
        };
        let mut headers = Vec::with_capacity(frame::LEN);
        frame.encode(&mut headers);
        let block_len = pages(block::LEN + headers.len() + body.len());
        let header = BlockHeader {
            frames: 1,
            block_len: block_len as u32,
            sequence,
            commit_time: time,
            log_id,
            synced: sequence.saturating_sub(1),
        };
        let mut bytes = Vec::with_capacity(block_len);
        header.encode(&headers, &mut bytes);
        bytes.extend_from_slice(&headers);
        bytes.extend_from_slice(&body);
        bytes.resize(block_len, 0);
        bytes
    }

    /// Writes the missing indexes of full files, so that the next start does not have to read them. An index that does
    /// not reach the disk is rebuilt by that start.
    fn footers(&mut self, structural: bool) -> Result<()> {
        let last = self.scan.commits.iter().rposition(|file| file.role == FileRole::Live);
        for (n, file) in self.scan.commits.iter().enumerate() {
            let was_open = structural && Some(n) == last && file.outline.footer.trailer().is_none();
            if file.role != FileRole::Live || file.obstacle || !(file.needs_footer || was_open) {
                continue;
            }
            let (outline, mut index) = (&file.outline, FileIndex::default());
            let (Some(first), Some(last), Some(log_id)) = (outline.first(), outline.last(), self.scan.log_id) else {
                continue;
            };
            file.read_frames(&mut |entry, _| index.push(*entry));
            let footer = footer::footer_len(index.frames(), index.partition_count());
            if outline.end() + footer > outline.file.size {
                continue;
            }
            outline.file.set_index(index);
            outline.file.write_footer(&TrailerFields {
                kind: FileKind::Commit,
                file: outline.file.number,
                first,
                last,
                synced: last,
                end: outline.end(),
                log_id,
            })?;
            outline.file.sync()?;
            self.written.push(outline.file.name.clone());
        }
        Ok(())
    }
}

/// An id for a log without blocks, whose id is lost.
fn new_id() -> u64 {
    wall_micros() as u64
}

/// A segment with a damaged index or damaged frames is rewritten as a whole.
fn is_replaced(segment: &ScannedFile) -> bool {
    segment.obstacle || segment.needs_footer
}
