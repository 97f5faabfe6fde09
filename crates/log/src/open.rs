//! Builds the partitions and the writer of a log from what recovery found: which partitions exist, and which file
//! serves each of their offsets.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::cache::IndexCache;
use crate::disk::Disk;
use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::file::LogFile;
use crate::file_pool::{ExistingFiles, FilePool, FilePoolPolicy, FilePurpose};
use crate::format::footer::PartitionExtent;
use crate::format::frame::FrameKind;
use crate::format::record;
use crate::ids::{Offset, PartitionId};
use crate::missing_files::stood_in;
use crate::options::LogOptions;
use crate::partition::{FileRange, Partition};
use crate::partition_table::{META, PartitionTable};
use crate::recovery::{RecoveredLog, RecoveryReport, recover};
use crate::repair::repair;
use crate::superblock::{StoredSuperblock, Superblock, SuperblockFile};
use crate::writer::core::{ResumePoint, WriterCore};
use crate::writer::files::CommitFiles;

pub(crate) struct OpenedLog {
    pub core: WriterCore,
    pub pool: Arc<FilePool>,
    pub partitions: HashMap<PartitionId, Arc<Partition>>,
    pub meta: Arc<Partition>,
    pub log_id: u64,
    pub report: RecoveryReport,
}

/// What a disk contains. Inspection changes nothing on it, except for a requested repair.
pub(crate) struct InspectedDisk {
    found: RecoveredLog,
    cache: Arc<IndexCache>,
    pub partitions: Vec<Arc<Partition>>,
    meta: Arc<Partition>,
    given_up: u64,
}

impl InspectedDisk {
    pub fn log_id(&self) -> Option<u64> {
        self.found.log_id
    }

    /// A log without blocks was left behind by an interrupted first start.
    pub fn has_blocks(&self) -> bool {
        self.found.report.last_sequence > 0
    }
}

/// Opens a log for writing after checking everything that was not known to be synced.
pub(crate) fn open(disk: Arc<dyn Disk>, log_id: u64, options: &LogOptions) -> Result<OpenedLog> {
    let looked = look_or_repair(disk.as_ref(), options)?;
    go_on(disk, looked, log_id, options)
}

/// Opens an inspected log. From here on its files are written.
pub(crate) fn go_on(
    disk: Arc<dyn Disk>,
    looked: InspectedDisk,
    log_id: u64,
    options: &LogOptions,
) -> Result<OpenedLog> {
    let InspectedDisk {
        mut found,
        cache,
        partitions,
        meta,
        given_up,
    } = looked;
    found.make_end(disk.as_ref(), options.first_file_bytes.min(options.file_bytes))?;
    let report = RecoveryReport {
        given_up,
        ..found.report
    };
    let offsets = offsets_in(found.holdings.last());
    let superblock = found.superblock;
    let log_id = found.log_id.unwrap_or(log_id);
    let (files, end, first, next) = (found.files, found.end, found.first, found.next);
    let policy = FilePoolPolicy {
        spare: options.spare,
        file_bytes: options.file_bytes,
        min_free_bytes: options.min_free_bytes,
        io_bytes_per_second: options.io_bytes_per_second,
        folder: options.folder.clone(),
        log_id,
    };
    let (current, sealed) = match files.split_last() {
        Some((last, older)) => (Some(last.clone()), older.to_vec()),
        None => (None, Vec::new()),
    };
    let pool = FilePool::new(
        disk.clone(),
        cache,
        policy,
        ExistingFiles {
            ready: found.spares,
            sealed,
            segments: found.segments.into_iter().map(|(file, _)| file).collect(),
            next_number: found.next_number,
            next_segment: found.next_segment,
        },
    );
    let pool = Arc::new(pool);
    let (current, end) = match current {
        Some(file) => (file, end),
        None => (Arc::new(first_file(&pool, options)?), Some(0)),
    };
    let superblock = write_superblock(
        &disk,
        superblock,
        Superblock {
            log_id,
            file: current.number,
            file_bytes: current.size,
            first,
            synced: next - 1,
            offsets,
            ..Superblock::default()
        },
    )?;
    let resume = ResumePoint {
        superblock,
        offsets,
        files: CommitFiles::new(current, end, first, log_id, pool.clone()),
        log_id,
        next,
        synced: next - 1,
    };
    let mut core = WriterCore::new(
        resume,
        options.commit_bytes_max,
        options.tail_bytes_max,
        options.interval,
    );
    core.add_partition(meta.clone());
    partitions
        .iter()
        .for_each(|partition| core.add_partition(partition.clone()));
    Ok(OpenedLog {
        core,
        pool,
        partitions: partitions
            .into_iter()
            .map(|partition| (partition.id, partition))
            .collect(),
        meta,
        log_id,
        report,
    })
}

/// The number of offsets that a file assigned.
fn offsets_in(holdings: Option<&Vec<PartitionExtent>>) -> u64 {
    let own = holdings.into_iter().flatten();
    own.map(|holding| holding.next - holding.first).sum()
}

/// Stores the recovered state. If a slot is damaged or the superblock file is missing, the file is recreated.
fn write_superblock(disk: &Arc<dyn Disk>, found: Option<StoredSuperblock>, slot: Superblock) -> Result<SuperblockFile> {
    let newest = found.as_ref().and_then(|found| found.newest);
    let whole = found.filter(|found| found.damaged.is_empty());
    if let Some(found) = whole
        && let Some(mut file) = SuperblockFile::open(disk.as_ref(), &found)?
    {
        file.store(slot)?;
        return Ok(file);
    }
    let generation = newest.map_or(0, |newest| newest.generation) + 1;
    SuperblockFile::make_if_room(disk, Superblock { generation, ..slot })
}

/// Inspects a log without changing it.
pub(crate) fn look(disk: &dyn Disk, options: &LogOptions) -> Result<InspectedDisk> {
    let cache = IndexCache::new(options.index_bytes_max);
    let found = recover(disk, &cache)?;
    let (partitions, meta) = partitions(&found, &options.folder)?;
    Ok(InspectedDisk {
        found,
        cache,
        partitions,
        meta,
        given_up: 0,
    })
}

/// Inspects a log and repairs it first if necessary and if the options allow to skip damage.
pub(crate) fn look_or_repair(disk: &dyn Disk, options: &LogOptions) -> Result<InspectedDisk> {
    match look(disk, options) {
        Err(error) if is_passed(&error, options) => {
            let repaired = repair(disk, true, &mut |_, _| {})?;
            let given_up = repaired.before.lost_records();
            Ok(InspectedDisk {
                given_up,
                ..look(disk, options)?
            })
        }
        looked => looked,
    }
}

/// Whether the options allow to give up this damage.
pub(crate) fn is_passed(error: &LogError, options: &LogOptions) -> bool {
    options.recover_skip && matches!(error, LogError::Corrupt { .. } | LogError::Missing { .. })
}

fn first_file(pool: &FilePool, options: &LogOptions) -> Result<LogFile> {
    if pool.counts().0 > 0 {
        return pool.take(FilePurpose::State);
    }
    pool.first(options.first_file_bytes)
}

/// The partitions of the log, and the log's own partition.
pub(crate) fn partitions(found: &RecoveredLog, folder: &str) -> Result<(Vec<Arc<Partition>>, Arc<Partition>)> {
    let (table, meta) = read_table(found)?;
    let mut pieces = pieces_of(found);
    let mut there: Vec<u64> = found.files.iter().map(|file| file.number).collect();
    there.extend(found.spares.iter().map(|file| file.number));
    there.sort_unstable();
    let mut partitions = Vec::with_capacity(table.partitions.len());
    for (n, (id, known)) in table.partitions.iter().enumerate() {
        let pieces = pieces.remove(id).unwrap_or_default();
        let (first, ranges) = needed_of(pieces, known.first, |range| checkpoint_in(*id, range))?;
        let partition = Partition::new(*id, n + 1, known.durability, first);
        check_whole((first, known.next), &ranges).map_err(|(from, to)| LogError::Missing {
            folder: folder.to_owned(),
            partition: *id,
            from,
            to,
            stood_in: stood_in(&ranges, from, &there),
        })?;
        partition.found(ranges, known.next);
        partitions.push(Arc::new(partition));
    }
    Ok((partitions, meta))
}

/// Reads the newest table snapshot and the changes since.
fn read_table(found: &RecoveredLog) -> Result<(PartitionTable, Arc<Partition>)> {
    let mut newest = None;
    for file in found.files.iter().rev() {
        newest = file.last_entry(META, |header| header.kind == FrameKind::Checkpoint)?;
        if newest.is_some() {
            break;
        }
    }
    let first = newest.map_or(0, |entry| entry.header.base);
    let mut table = PartitionTable::default();
    let mut ranges = Vec::new();
    let mut next = first;
    for (file, holdings) in found.files.iter().zip(&found.holdings) {
        let Some(holding) = holdings.iter().find(|holding| holding.partition == META) else {
            continue;
        };
        if holding.next <= first {
            continue;
        }
        for entry in file.entries(META, first, usize::MAX)? {
            let body = file.body(&entry)?;
            for record in record::records(&body) {
                let applied = record.ok().and_then(|record| table.apply(record.value).ok());
                applied.ok_or_else(|| LogError::Corrupt {
                    file: file.name.clone(),
                    position: entry.body_at,
                    expected: None,
                    found: "its partition table is invalid".to_owned(),
                })?;
            }
        }
        next = holding.next;
        ranges.push(range(file, holding));
    }
    let meta = Partition::new(META, 0, Durability::Os, first);
    meta.found(ranges, next);
    Ok((table, Arc::new(meta)))
}

/// A range of offsets in a file with its rank. Higher ranks take precedence.
pub(crate) type RankedRange = (u64, FileRange);

fn pieces_of(found: &RecoveredLog) -> BTreeMap<PartitionId, Vec<RankedRange>> {
    let mut pieces: BTreeMap<PartitionId, Vec<RankedRange>> = BTreeMap::new();
    let mut add = |rank: u64, file: &Arc<LogFile>, holdings: &[PartitionExtent]| {
        for holding in holdings {
            let piece = (rank, range(file, holding));
            pieces.entry(holding.partition).or_default().push(piece);
        }
    };
    for (file, holdings) in found.files.iter().zip(&found.holdings) {
        add(0, file, holdings);
    }
    // A segment replaces earlier files, and a later segment an earlier one.
    for (file, holdings) in &found.segments {
        add(1 + file.number, file, holdings);
    }
    pieces
}

pub(crate) fn range(file: &Arc<LogFile>, holding: &PartitionExtent) -> FileRange {
    FileRange {
        file: file.clone(),
        first: holding.first,
        next: holding.next,
        bytes: holding.bytes,
        counted: true,
        max_time: holding.max_time,
    }
}

/// The first needed offset of a partition and the ranges that serve it. The table knows only older checkpoints. A later
/// checkpoint also makes earlier offsets unnecessary, and their files may be gone, so a hole before a checkpoint is not
/// an error. `checkpoint` returns the first checkpoint of a range. No more is dropped than necessary, because the
/// newest checkpoint may be damaged.
pub(crate) fn needed_of(
    pieces: Vec<RankedRange>,
    first: Offset,
    checkpoint: impl Fn(&FileRange) -> Result<Option<Offset>>,
) -> Result<(Offset, Vec<FileRange>)> {
    let ranges = ranges_of(pieces, first);
    let (mut needed, mut at) = (first, first);
    let (mut after_hole, mut unread) = (false, None);
    for range in &ranges {
        after_hole |= range.first > at;
        at = range.next;
        if !after_hole {
            continue;
        }
        match checkpoint(range) {
            Ok(Some(base)) => (needed, after_hole) = (base, false),
            Ok(None) => {}
            // A later file may have a checkpoint.
            Err(error) => unread = Some(error),
        }
    }
    match unread.filter(|_| after_hole) {
        Some(error) => Err(error),
        None if needed == first => Ok((first, ranges)),
        None => {
            let pieces = ranges.into_iter().map(|range| (0, range)).collect();
            Ok((needed, ranges_of(pieces, needed)))
        }
    }
}

/// The first checkpoint of a partition in the offsets that a file serves.
fn checkpoint_in(id: PartitionId, range: &FileRange) -> Result<Option<Offset>> {
    range.file.with_index(|index| {
        let checkpoints = index.from(id, range.first).iter().map(|entry| entry.header);
        let mut bases = checkpoints
            .filter(|header| header.kind == FrameKind::Checkpoint)
            .map(|header| header.base);
        bases.find(|base| (range.first..range.next).contains(base))
    })
}

/// Non-overlapping ranges, in order, that serve the offsets from `first` on.
pub(crate) fn ranges_of(mut pieces: Vec<RankedRange>, first: Offset) -> Vec<FileRange> {
    pieces.sort_by_key(|(rank, range)| (std::cmp::Reverse(*rank), range.first));
    let mut taken: Vec<FileRange> = Vec::new();
    for (_, piece) in pieces {
        let mut from = piece.first.max(first);
        let mut parts = Vec::new();
        for other in taken.iter().filter(|other| other.first < piece.next) {
            if other.next <= from {
                continue;
            }
            if from < other.first {
                parts.push((from, other.first));
            }
            from = from.max(other.next);
        }
        if from < piece.next {
            parts.push((from, piece.next));
        }
        for (first, next) in parts {
            let bytes =
                u128::from(piece.bytes) * u128::from(next - first) / u128::from((piece.next - piece.first).max(1));
            taken.push(FileRange {
                file: piece.file.clone(),
                first,
                next,
                bytes: bytes as u64,
                counted: piece.counted && (first, next) == (piece.first, piece.next),
                max_time: piece.max_time,
            });
        }
        taken.sort_by_key(|range| range.first);
    }
    taken
}

/// Checks that all needed offsets are in some file, or returns the first ones that are not.
fn check_whole((first, next): (Offset, Offset), ranges: &[FileRange]) -> std::result::Result<(), (Offset, Offset)> {
    let mut at = first;
    for range in ranges {
        if range.first > at {
            return Err((at, range.first));
        }
        at = range.next;
    }
    if at < next {
        return Err((at, next));
    }
    Ok(())
}
