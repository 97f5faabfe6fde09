//! Determines the state of a log after a crash: which blocks belong to it, where it ends, and whether synced data is
//! damaged, which is never ignored silently.
//!
//! The *mark* is the highest sequence that the superblock or any sound header or index names as synced, including those
//! after damage. Blocks up to the mark were on disk and must be whole. After the mark the log ends at the first
//! missing block. If the header of that block exists, the block is torn; no acknowledgement in `fsync` mode can have
//! covered it.
//!
//! Recovery changes nothing. Data beyond the end is erased only after everything else is understood, including the
//! partitions: see [`RecoveredLog::make_end`].

use std::sync::Arc;

use crate::cache::IndexCache;
use crate::check::outline::{self, BlockVersion};
use crate::disk::Disk;
use crate::error::{LogError, Result};
use crate::file::{self, LogFile};
use crate::format::PAGE;
use crate::format::block::{self, BlockHeader};
use crate::format::footer::{FileKind, PartitionExtent, Trailer};
use crate::ids::{Micros, Sequence};
use crate::index::{FileIndex, FrameEntry};
use crate::partition_table::META;
use crate::superblock::{self, StoredSuperblock, Superblock};

/// The size of one read during a search.
const PIECE: usize = 1 << 20;

/// A recovered log. After [`RecoveredLog::make_end`] all of its blocks and frames are synced. The indexes of full files
/// may not be, because they can be rebuilt.
pub(crate) struct RecoveredLog {
    /// Commit files in order; the last one is the current file. Empty for a log without blocks.
    pub files: Vec<Arc<LogFile>>,
    /// The holdings of each file.
    pub holdings: Vec<Vec<PartitionExtent>>,
    /// Segments in the order of their numbers, with their holdings.
    pub segments: Vec<(Arc<LogFile>, Vec<PartitionExtent>)>,
    pub next_segment: u64,
    /// Spare files that have not been used yet.
    pub spares: Vec<LogFile>,
    /// Greater than every number in use.
    pub next_number: u64,
    pub log_id: Option<u64>,
    /// The end of the last block in the last file; `None` if that file is closed.
    pub end: Option<u64>,
    /// The sequence of the first block in the last file.
    pub first: Sequence,
    /// The sequence of the next block.
    pub next: Sequence,
    /// `None` if the log was never opened by a program that writes one.
    pub superblock: Option<StoredSuperblock>,
    pub report: RecoveryReport,
    /// Files that were created and then skipped.
    empty: Vec<LogFile>,
    /// The position from which the last file must be erased.
    erase_from: Option<u64>,
    /// The number of the spare file that has blocks with later sequences, which must be erased.
    erase_spare: Option<u64>,
}

/// What recovery found, for the program's log output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    pub blocks_read: u64,
    /// The size of blocks that were being written during the crash.
    pub torn_bytes: u64,
    pub last_sequence: Sequence,
    /// The log time of the newest block, as far as its file names it. Zero if there is none.
    pub last_commit_time: Micros,
    /// The number of damaged records that were given up at this start, see [`LogOptions`](crate::LogOptions).
    pub given_up: u64,
    /// The log was closed cleanly, and nothing was written since.
    pub was_closed: bool,
    /// The number of spare files that are too short to be used.
    pub short_spares: u64,
}

/// Inspects all files of a log without changing them.
pub(crate) fn recover(disk: &dyn Disk, cache: &Arc<IndexCache>) -> Result<RecoveredLog> {
    let names = disk.names().map_err(LogError::io("cannot list", "the log"))?;
    look(disk, &names, cache)?.finish()
}

fn look(disk: &dyn Disk, names: &[String], cache: &Arc<IndexCache>) -> Result<RecoveryState> {
    let mut all: Vec<(FileKind, u64)> = names.iter().filter_map(|name| file::parse_name(name)).collect();
    all.sort_unstable_by_key(|(_, number)| *number);
    let of_kind = |wanted: FileKind| {
        all.iter()
            .filter(move |(kind, _)| *kind == wanted)
            .map(|(_, number)| *number)
    };
    let open = |kind: FileKind, number: u64| LogFile::open(disk, kind, number, cache);
    let commits = of_kind(FileKind::Commit).map(|number| open(FileKind::Commit, number));
    let commits: Vec<LogFile> = commits.collect::<Result<_>>()?;
    let segments = of_kind(FileKind::Segment).map(|number| open(FileKind::Segment, number));
    let segments: Vec<LogFile> = segments.collect::<Result<_>>()?;
    let introduced = introduce(disk, names, commits.iter().chain(&segments))?;
    if let Some(misplaced) = introduced.misplaced.into_iter().next() {
        return Err(misplaced);
    }
    if let Some((position, found)) = introduced.superblock.as_ref().and_then(|found| found.newer) {
        let file = superblock::NAME.to_owned();
        return Err(LogError::NewerFormat { file, position, found });
    }
    let mut walk = RecoveryState {
        log_id: introduced.log_id,
        mark: introduced.mark,
        superblock: introduced.superblock,
        ..RecoveryState::default()
    };
    let mut files = commits.into_iter().peekable();
    while let Some(file) = files.next() {
        walk.next_number = file.number + 1;
        if let Some(next) = files.peek()
            && walk.is_passed(&file, next)?
        {
            walk.empty.push(file);
            continue;
        }
        if walk.visit(file)? == FileUse::Unused {
            break;
        }
    }
    for file in files {
        walk.next_number = file.number + 1;
        walk.look_beyond_end(file)?;
    }
    for file in segments {
        walk.next_segment = file.number + 1;
        let holdings = segment(&file)?;
        walk.segments.push((Arc::new(file), holdings));
    }
    Ok(walk)
}

/// What is known of a log before its blocks are followed.
#[derive(Default)]
pub(crate) struct LogIdentity {
    pub log_id: Option<u64>,
    pub mark: Sequence,
    pub superblock: Option<StoredSuperblock>,
    /// Files that belong to another log or were renamed.
    pub misplaced: Vec<LogError>,
}

/// Determines the log id and the synced mark from the superblock and all files, so that damage to one file does not
/// affect how the others are judged.
pub(crate) fn introduce<'a>(
    disk: &dyn Disk,
    names: &[String],
    files: impl IntoIterator<Item = &'a LogFile>,
) -> Result<LogIdentity> {
    let superblock = superblock::read(disk, names)?;
    let newest = superblock.as_ref().and_then(|found| found.newest);
    let mut told = Vec::new();
    for file in files {
        told.push((file, file.introduces()?.collect::<Vec<_>>()));
    }
    let mut misplaced = Vec::new();
    // The superblock of a log without blocks does not decide the log id.
    let mut newest = newest.filter(|newest| newest.synced > 0);
    if let Some(foreign) = newest.and_then(|newest| outvoted(&newest, &told)) {
        misplaced.push(foreign);
        newest = None;
    }
    let mut known = newest.map(|newest| (superblock::NAME, newest.log_id));
    let mut introduced = LogIdentity {
        mark: newest.map_or(0, |newest| newest.synced),
        superblock,
        misplaced,
        ..LogIdentity::default()
    };
    'files: for (file, said) in &told {
        for &(id, synced) in said {
            match known {
                Some((beside, own)) if own != id => {
                    introduced.misplaced.push(LogError::Foreign {
                        file: file.name.clone(),
                        found: id,
                        beside: beside.to_owned(),
                        own,
                    });
                    continue 'files;
                }
                Some(_) => {}
                None => known = Some((&file.name, id)),
            }
            introduced.mark = introduced.mark.max(synced);
        }
        introduced.misplaced.extend(file.misnamed(names)?);
    }
    introduced.log_id = known.map(|(_, id)| id);
    Ok(introduced)
}

/// A superblock with another log id than most of the files is the foreign one, and is not used.
fn outvoted(newest: &Superblock, told: &[(&LogFile, Vec<(u64, Sequence)>)]) -> Option<LogError> {
    let (others, own) = (told.iter())
        .filter_map(|(file, said)| Some((file, said.first()?.0)))
        .partition::<Vec<_>, _>(|(_, id)| *id != newest.log_id);
    let (file, id) = others.first().filter(|_| others.len() > own.len())?;
    Some(LogError::Foreign {
        file: superblock::NAME.to_owned(),
        found: newest.log_id,
        beside: file.name.clone(),
        own: *id,
    })
}

/// The holdings of a segment from its footer or, if that is damaged, from its frames.
fn segment(file: &LogFile) -> Result<Vec<PartitionExtent>> {
    refuse_newer_trailer(file, None)?;
    if let Some(trailer) = file.trailer()?
        && let Some(holdings) = file.holdings(&trailer)?
    {
        file.found_closed();
        return Ok(holdings);
    }
    let index = file.index_of_frames()?;
    let holdings = index.holdings();
    file.set_index(index);
    Ok(holdings)
}

/// The log up to the current file.
#[derive(Default)]
struct RecoveryState {
    files: Vec<Arc<LogFile>>,
    holdings: Vec<Vec<PartitionExtent>>,
    segments: Vec<(Arc<LogFile>, Vec<PartitionExtent>)>,
    next_number: u64,
    next_segment: u64,
    spares: Vec<LogFile>,
    /// Files that were created and then skipped.
    empty: Vec<LogFile>,
    log_id: Option<u64>,
    /// The sequence of the next block; `None` before the first one.
    expected: Option<Sequence>,
    mark: Sequence,
    end: u64,
    /// The last file already has its index.
    closed: bool,
    /// The first sequence of each file.
    firsts: Vec<Sequence>,
    /// The beginning of the next block at the end of the last file, if there is one.
    torn: Option<TornBlock>,
    /// The distance from the end of the last file's blocks to the end of the last later block in it; zero if there is
    /// none.
    beyond: u64,
    /// Like `beyond`, for the file after it, and the number of that file.
    beyond_in_spare: u64,
    spare: Option<u64>,
    report: RecoveryReport,
    /// Bodies that could not be judged yet, because the mark was unknown.
    unchecked: Vec<UncheckedBlock>,
    superblock: Option<StoredSuperblock>,
}

struct TornBlock {
    bytes: u64,
    /// The block is at the start of the file after the last one.
    in_spare: bool,
}

/// A block whose bodies must be checked unless the mark covers it.
struct UncheckedBlock {
    file: usize,
    at: u64,
    len: u64,
    sequence: Sequence,
    entries: Vec<FrameEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileUse {
    InUse,
    Unused,
}

impl RecoveryState {
    /// Whether a file is empty although the log continues in the next one without a gap. Such a file was created when
    /// its name could not be synced.
    fn is_passed(&self, file: &LogFile, next: &LogFile) -> Result<bool> {
        let is_empty = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        if self.expected.is_none() || !is_empty(&file.read(0, PAGE)?) {
            return Ok(false);
        }
        let begins = self.header_in(next, 0, &next.read(0, PAGE)?)?;
        if begins.map(|header| header.sequence) != self.expected {
            return Ok(false);
        }
        let mut at = 0;
        while at < file.size {
            if !is_empty(&file.read(at, PIECE)?) {
                return Ok(false);
            }
            at += PIECE as u64;
        }
        Ok(true)
    }

    fn visit(&mut self, file: LogFile) -> Result<FileUse> {
        refuse_newer(&file, self.log_id)?;
        if let Some((trailer, holdings)) = self.sealed(&file)? {
            self.insist(&file, 0, trailer.first)?;
            self.log_id = Some(trailer.log_id);
            self.mark = self.mark.max(trailer.synced);
            self.expected = Some(trailer.last + 1);
            (self.end, self.closed) = (trailer.end, true);
            (self.torn, self.beyond) = (None, 0);
            file.found_closed();
            self.push(file, trailer.first, holdings);
            return Ok(FileUse::InUse);
        }
        let headers = self.headers(&file)?;
        for (_, header) in &headers {
            self.mark = self.mark.max(header.synced);
        }
        let start = headers
            .first()
            .filter(|(at, _)| *at == 0)
            .map(|(_, header)| header.sequence);
        let begins = match self.expected {
            Some(expected) => start.is_some_and(|start| self.follows(&file, start, expected)),
            None => start.is_some(),
        };
        if !begins {
            // Either nothing was written here yet, or it is damaged: the mark will tell.
            let expected = self.expected.unwrap_or(1);
            self.beyond_in_spare = beyond(&headers, 0, expected);
            if self.torn.is_none() {
                let torn = self.torn_at(&file, 0, expected)?;
                self.torn = torn.map(|torn| TornBlock { in_spare: true, ..torn });
                let torn = self.torn.as_ref().map_or(0, |torn| torn.bytes);
                self.beyond_in_spare = self.beyond_in_spare.max(torn);
            }
            self.spare = Some(file.number);
            self.spares.push(file);
            return Ok(FileUse::Unused);
        }
        self.log_id = headers.first().map(|(_, header)| header.log_id);
        self.walk(file, start.unwrap_or_default(), &headers)?;
        Ok(FileUse::InUse)
    }

    /// Records the newest commit time. It excludes blocks beyond the end, which are not kept.
    fn note_time(&mut self, time: Micros) {
        self.report.last_commit_time = self.report.last_commit_time.max(time);
    }

    fn push(&mut self, file: LogFile, first: Sequence, holdings: Vec<PartitionExtent>) {
        // The log's own records have log time; the first of them was written when the file was started.
        let own = holdings.iter().find(|holding| holding.partition == META);
        own.into_iter().for_each(|own| self.note_time(own.max_time));
        self.files.push(Arc::new(file));
        self.holdings.push(holdings);
        self.firsts.push(first);
    }

    /// The trailer and holdings of a full file, if they belong to it and are sound.
    fn sealed(&self, file: &LogFile) -> Result<Option<(Trailer, Vec<PartitionExtent>)>> {
        let trailer = file.trailer()?;
        let Some(trailer) = trailer.filter(|trailer| self.log_id.is_none_or(|id| id == trailer.log_id)) else {
            return Ok(None);
        };
        Ok(file.holdings(&trailer)?.map(|holdings| (trailer, holdings)))
    }

    /// Whether a file that begins with block `start` is the next one. If file numbers are missing in between, those
    /// files were no longer needed.
    fn follows(&self, file: &LogFile, start: Sequence, expected: Sequence) -> bool {
        let adjacent = self.files.last().is_some_and(|last| last.number + 1 == file.number);
        start == expected || (!adjacent && start > expected)
    }

    /// Fails unless `found` is the next block of the log.
    fn insist(&self, file: &LogFile, position: u64, found: Sequence) -> Result<()> {
        match self.expected {
            Some(expected) if !self.follows(file, found, expected) => Err(LogError::Corrupt {
                file: file.name.clone(),
                position,
                expected: Some(expected),
                found: format!("block {found} was found"),
            }),
            _ => Ok(()),
        }
    }

    /// The headers of the consecutive blocks from the start of the file, and of all blocks of this log after them.
    /// Inside a block that was followed, message bytes that look like a block are ignored.
    fn headers(&self, file: &LogFile) -> Result<Vec<(u64, BlockHeader)>> {
        let mut found: Vec<(u64, BlockHeader)> = Vec::new();
        let mut at = 0;
        while let Some(header) = self.header_in(file, at, &file.read(at, block::LEN)?)? {
            if found
                .last()
                .is_some_and(|(_, last)| last.sequence + 1 != header.sequence)
            {
                break;
            }
            found.push((at, header));
            at += u64::from(header.block_len);
        }
        while at < file.size {
            let piece = file.read(at, PIECE)?;
            for (n, page) in piece.chunks(PAGE).enumerate() {
                let position = at + (n * PAGE) as u64;
                if let Some(header) = self.header_in(file, position, page)? {
                    found.push((position, header));
                }
            }
            at += PIECE as u64;
        }
        Ok(found)
    }

    /// The sound header of a block of this log at the start of `bytes`, which are at position `at` of the file.
    fn header_in(&self, file: &LogFile, at: u64, bytes: &[u8]) -> Result<Option<BlockHeader>> {
        let own = |header: &BlockHeader| self.log_id.is_none_or(|id| id == header.log_id);
        let Some(header) = BlockHeader::decode(bytes).filter(own) else {
            return Ok(None);
        };
        let sound = header.is_sound(&file.read(at, header.headers_len())?);
        Ok(sound.then_some(header))
    }

    /// Follows the blocks of a file without an index.
    fn walk(&mut self, file: LogFile, first: Sequence, headers: &[(u64, BlockHeader)]) -> Result<()> {
        let mut index = FileIndex::default();
        let (mut at, mut expected) = (0, first);
        let number = self.files.len();
        while let Some((_, header)) = headers
            .iter()
            .find(|(position, header)| (*position, header.sequence) == (at, expected))
        {
            let entries = file.block_entries(at, header)?;
            entries.iter().for_each(|entry| index.push(*entry));
            self.unchecked.push(UncheckedBlock {
                file: number,
                at,
                len: header.block_len.into(),
                sequence: expected,
                entries,
            });
            self.report.blocks_read += 1;
            self.note_time(header.commit_time);
            at += u64::from(header.block_len);
            expected += 1;
        }
        if let Some(found) = outline::newer_at(&file, at, expected, self.log_id) {
            return Err(file.newer(at, found));
        }
        self.beyond = beyond(headers, at, expected);
        self.torn = self.torn_at(&file, at, expected)?;
        (self.expected, self.end, self.closed) = (Some(expected), at, false);
        let holdings = index.holdings();
        file.set_index(index);
        self.push(file, first, holdings);
        Ok(())
    }

    /// Whether the next block is here but incomplete.
    fn torn_at(&self, file: &LogFile, at: u64, expected: Sequence) -> Result<Option<TornBlock>> {
        let header = BlockHeader::decode(&file.read(at, block::LEN)?);
        let own =
            |header: &BlockHeader| header.sequence == expected && self.log_id.is_none_or(|id| id == header.log_id);
        Ok(header.filter(own).map(|header| TornBlock {
            bytes: header.block_len.into(),
            in_spare: false,
        }))
    }

    /// A file beyond the end: a spare file, or one with blocks that followed a lost block.
    fn look_beyond_end(&mut self, file: LogFile) -> Result<()> {
        refuse_newer(&file, self.log_id)?;
        let header = BlockHeader::decode(&file.read(0, PAGE)?);
        if let Some(header) = header.filter(|header| Some(header.log_id) == self.log_id)
            && header.is_sound(&file.read(0, header.headers_len())?)
        {
            self.mark = self.mark.max(header.synced);
        }
        self.spares.push(file);
        Ok(())
    }

    fn finish(mut self) -> Result<RecoveredLog> {
        self.check_superblock()?;
        self.check_bodies()?;
        let next = self.expected.unwrap_or(1);
        if next <= self.mark {
            return Err(self.ends_too_early(next));
        }
        // Segments are moved out of commit files, and the newest full commit file is always kept, so at least one must
        // exist.
        if self.files.is_empty() && !self.segments.is_empty() {
            return Err(LogError::Corrupt {
                file: file::commit_name(self.next_number),
                position: 0,
                expected: None,
                found: "no commit file has a block, though there are segments".to_owned(),
            });
        }
        self.report.torn_bytes = self.torn_bytes();
        self.report.last_sequence = next - 1;
        let newest = self.newest_superblock();
        self.report.was_closed = newest.is_some_and(|newest| newest.closed && newest.synced == next - 1);
        let torn = self.torn.as_ref().is_some_and(|torn| !torn.in_spare);
        let erase_from = (torn || self.beyond > 0).then_some(self.end);
        Ok(RecoveredLog {
            files: self.files,
            holdings: self.holdings,
            segments: self.segments,
            next_segment: self.next_segment,
            erase_spare: self.spare.filter(|_| self.beyond_in_spare > 0),
            spares: self.spares,
            next_number: self.next_number,
            log_id: self.log_id,
            end: (!self.closed || erase_from.is_some()).then_some(self.end),
            first: self.firsts.last().copied().unwrap_or(1),
            next,
            superblock: self.superblock,
            report: self.report,
            empty: self.empty,
            erase_from,
        })
    }

    fn newest_superblock(&self) -> Option<Superblock> {
        self.superblock.as_ref().and_then(|found| found.newest)
    }

    /// Checks the newest file against the superblock. Without a superblock, checks that no spare file was cut short.
    fn check_superblock(&self) -> Result<()> {
        let Some(found) = &self.superblock else {
            let short = self.spares.iter().find(|spare| is_cut_short(spare));
            return short.map_or(Ok(()), |file| Err(cut_short(file, None)));
        };
        let Some(newest) = found.newest else {
            return Err(LogError::Corrupt {
                file: superblock::NAME.to_owned(),
                position: 0,
                expected: None,
                found: "none of its slots can be read, so it is unknown whether the newest commit file is complete"
                    .to_owned(),
            });
        };
        let firsts = self.files.iter().zip(&self.firsts);
        for (file, first) in firsts {
            if let Some(misnamed) = misnamed(&newest, file, *first) {
                return Err(misnamed);
            }
        }
        let named = self.files.iter().find(|file| file.number == newest.file);
        match named.filter(|file| file.size < newest.file_bytes) {
            Some(file) => Err(cut_short(file, Some(newest.file_bytes))),
            None => Ok(()),
        }
    }

    /// The error if blocks up to the mark were synced but the next one is missing.
    fn ends_too_early(&self, next: Sequence) -> LogError {
        let newest = self.newest_superblock().filter(|newest| newest.first >= next);
        let corrupt = |file: String, position: u64, found: &str| LogError::Corrupt {
            file,
            position,
            expected: Some(next),
            found: format!("{found}, though blocks up to {} were synced", self.mark),
        };
        if let Some(newest) = newest {
            // At least everything in that file is missing.
            let is_there = self.spares.iter().any(|spare| spare.number == newest.file);
            let found = match is_there {
                true => "it is missing",
                false => "the file is missing: restore it if you can",
            };
            return corrupt(file::commit_name(newest.file), 0, found);
        }
        // After a closed file, the beginning of the next file is missing.
        let (file, position) = match (self.files.last().filter(|_| !self.closed), self.spares.first()) {
            (Some(file), _) => (file.name.clone(), self.end),
            (None, Some(file)) => (file.name.clone(), 0),
            (None, None) => (file::commit_name(self.next_number), 0),
        };
        corrupt(file, position, "it is missing")
    }

    /// Checks the bodies of blocks above the mark. The log ends at the first damaged one.
    fn check_bodies(&mut self) -> Result<()> {
        let unchecked = std::mem::take(&mut self.unchecked);
        for (n, block) in unchecked.iter().enumerate() {
            let Some(file) = self.files.get(block.file).cloned() else {
                continue;
            };
            if block.sequence <= self.mark || is_whole(&file, &block.entries)? {
                continue;
            }
            self.torn = Some(TornBlock {
                bytes: unchecked.iter().skip(n).map(|block| block.len).sum(),
                in_spare: false,
            });
            self.cut(block.file, block.at, block.sequence);
            break;
        }
        Ok(())
    }

    /// Ends the log in this file, before this block.
    fn cut(&mut self, file: usize, at: u64, sequence: Sequence) {
        self.beyond = self.torn.as_ref().map_or(1, |torn| torn.bytes.max(1));
        (self.expected, self.end, self.closed) = (Some(sequence), at, false);
        self.firsts.truncate(file + 1);
        self.holdings.truncate(file + 1);
        let after: Vec<_> = self.files.drain(file + 1..).collect();
        // These files have no other references yet.
        let after = after.into_iter().filter_map(Arc::into_inner);
        self.spares.splice(0..0, after);
        if let Some(last) = self.files.last() {
            last.retain(|entry| entry.body_at < at);
            // A file with unchecked bodies has its index in memory.
            if let (Some(holdings), Ok(left)) = (self.holdings.last_mut(), last.with_index(FileIndex::holdings)) {
                *holdings = left;
            }
        }
    }

    /// The number of bytes beyond the end, up to the last block that would have followed.
    fn torn_bytes(&self) -> u64 {
        let (in_file, in_spare) = match &self.torn {
            Some(torn) if torn.in_spare => (0, torn.bytes),
            Some(torn) => (torn.bytes, 0),
            None => (0, 0),
        };
        in_file.max(self.beyond) + in_spare.max(self.beyond_in_spare)
    }
}

impl RecoveredLog {
    /// Ensures that nothing beyond the end can be taken for a part of the log later, whatever is written next. Call it
    /// only after the whole log was understood, because it erases data. Spare files shorter than `spare_bytes` are
    /// removed.
    pub fn make_end(&mut self, disk: &dyn Disk, spare_bytes: u64) -> Result<()> {
        let names = disk.names().map_err(LogError::io("cannot list", "the log"))?;
        for name in names.iter().filter(|name| file::is_unfinished(name)) {
            disk.remove(name).map_err(LogError::io("cannot remove", name))?;
        }
        // A killed process may have left unsynced names. A power cut would lose them, together with everything that is
        // written to these files later.
        disk.sync_names()
            .map_err(LogError::io("cannot sync the names in", "the log"))?;
        for file in self.empty.drain(..) {
            file.remove(disk)?;
        }
        if let (Some(file), Some(from)) = (self.files.last(), self.erase_from) {
            erase(file, from)?;
        }
        for spare in &self.spares {
            let header = BlockHeader::decode(&spare.read(0, PAGE)?);
            let begins_later =
                header.is_some_and(|header| header.sequence >= self.next && Some(header.log_id) == self.log_id);
            if begins_later || self.erase_spare == Some(spare.number) {
                erase(spare, 0)?;
            }
        }
        let short = self.spares.extract_if(.., |spare| spare.size < spare_bytes);
        for spare in short {
            spare.remove(disk)?;
            self.report.short_spares += 1;
        }
        // A removed file that reappears would be among the files in use.
        disk.sync_names()
            .map_err(LogError::io("cannot sync the names in", "the log"))?;
        // Data that a killed process had handed to the kernel is served from now on, so it must be synced. Files with
        // an index were synced before.
        let (last, full) = match self.files.split_last() {
            Some((last, full)) => (Some(last), full),
            None => (None, &[][..]),
        };
        let open = full.iter().filter(|file| !file.is_closed());
        open.chain(last).try_for_each(|file| file.sync())
    }
}

/// An error if the superblock names the first block of this file under another file number, which means that the file
/// was renamed.
pub(crate) fn misnamed(newest: &Superblock, file: &LogFile, first: Sequence) -> Option<LogError> {
    let is_named = newest.synced >= first && newest.first == first;
    (is_named && newest.file != file.number).then(|| LogError::Misnamed {
        file: file.name.clone(),
        written_as: file::commit_name(newest.file),
    })
}

/// Whether the size is impossible for a commit file, whose size is a positive multiple of the page size.
pub(crate) fn is_cut_short(file: &LogFile) -> bool {
    file.size == 0 || !file.size.is_multiple_of(PAGE as u64)
}

fn cut_short(file: &LogFile, had: Option<u64>) -> LogError {
    let had = had.map_or_else(|| "more when it was created".to_owned(), |bytes| format!("{bytes}"));
    LogError::Corrupt {
        file: file.name.clone(),
        position: file.size,
        expected: None,
        found: format!("it ends here, but it had {had} bytes"),
    }
}

/// Whether all bodies of a block are sound. A read error is returned, because it says nothing about what was written.
fn is_whole(file: &LogFile, entries: &[FrameEntry]) -> Result<bool> {
    for entry in entries {
        match file.body_as_read(entry) {
            Ok(_) => {}
            Err(LogError::Corrupt { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The number of bytes from the end of the log to the end of the last later block in the file.
fn beyond(headers: &[(u64, BlockHeader)], end: u64, expected: Sequence) -> u64 {
    let later = headers.iter().filter(|(_, header)| header.sequence >= expected);
    let ends = later.map(|(at, header)| at + u64::from(header.block_len));
    ends.max().map_or(0, |last| last.saturating_sub(end))
}

/// Fails if a newer program wrote the first block or the trailer of a commit file.
fn refuse_newer(file: &LogFile, log_id: Option<u64>) -> Result<()> {
    match outline::version(file, 0) {
        BlockVersion::Newer(found) => Err(file.newer(0, found)),
        BlockVersion::Damaged => Err(LogError::Corrupt {
            file: file.name.clone(),
            position: 0,
            expected: None,
            found: "the version of its first block is damaged".to_owned(),
        }),
        BlockVersion::Known => refuse_newer_trailer(file, log_id),
    }
}

fn refuse_newer_trailer(file: &LogFile, log_id: Option<u64>) -> Result<()> {
    match file.newer_trailer(log_id)? {
        Some((at, newer)) => Err(file.newer(at, newer)),
        None => Ok(()),
    }
}

fn erase(file: &LogFile, from: u64) -> Result<()> {
    let zeros = vec![0; PIECE];
    let mut at = from;
    while at < file.size {
        let piece = zeros.get(..(file.size - at) as usize).unwrap_or(&zeros);
        file.write(piece, at)?;
        at += piece.len() as u64;
    }
    file.sync()
}
