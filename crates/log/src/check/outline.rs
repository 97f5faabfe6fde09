//! Finds the blocks of a commit file and the places where something else stands instead. Only headers are read here.
//! Bodies are read later, because the meaning of a damaged body depends on the synced mark, which is known only after
//! all files were outlined.
//!
//! Blocks are followed one by one. Every page is tried only where the sequence breaks, so that message bytes that look
//! like a block are not mistaken for one.

use std::sync::Arc;

use crate::error::{LogError, Result};
use crate::file::LogFile;
use crate::format::PAGE;
use crate::format::block::{self, BlockHeader};
use crate::format::footer::{FileKind, PartitionExtent, TRAILER_LEN, Trailer};
use crate::format::newer::NewerVersion;
use crate::ids::{Micros, Sequence};

/// The size of one read during a search.
const PIECE: usize = 1 << 20;

/// Consecutive blocks, or bytes where such blocks should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRun {
    pub at: u64,
    pub end: u64,
    /// The sequence of the first block that is here or should be.
    pub first: Sequence,
    pub last: Sequence,
    pub sound: bool,
}

/// The state of the index at the end of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FooterState {
    Whole(Trailer, Vec<PartitionExtent>),
    /// The trailer is readable, and so are the holdings if present. The rest is damaged: position and length.
    Part(Trailer, Option<Vec<PartitionExtent>>, u64, u64),
    /// The file is open, or its trailer is damaged.
    None,
}

/// The state of the version field of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockVersion {
    Known,
    Newer(NewerVersion),
    /// The field names a newer version, but the rest is a sound block of this version.
    Damaged,
}

pub(crate) struct FileOutline {
    pub file: Arc<LogFile>,
    pub footer: FooterState,
    /// The position and version of what a newer program wrote. Nothing after that position can be interpreted.
    pub newer: Option<(u64, NewerVersion)>,
    /// The first block names another version, but its remaining bytes are a sound block of this version.
    pub bad_version: bool,
    pub stretches: Vec<BlockRun>,
}

/// What is known of a log before the next file is read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogWatermarks {
    pub log_id: Option<u64>,
    /// Blocks with a lower sequence are left over from before the file was reused.
    pub least: Sequence,
    /// The highest sequence that any header, index or superblock names as synced.
    pub mark: Sequence,
    /// The highest sequence of any block, whether it is part of the log or not.
    pub highest: Sequence,
    /// The log time at which the newest block was written.
    pub newest_time: Micros,
}

impl FooterState {
    pub fn trailer(&self) -> Option<&Trailer> {
        match self {
            FooterState::Whole(trailer, _) | FooterState::Part(trailer, ..) => Some(trailer),
            FooterState::None => None,
        }
    }

    /// The holdings that recovery accepts without reading the blocks.
    pub fn holdings(&self) -> Option<&Vec<PartitionExtent>> {
        match self {
            FooterState::Whole(_, holdings) => Some(holdings),
            FooterState::Part(_, holdings, ..) => holdings.as_ref(),
            FooterState::None => None,
        }
    }

    pub fn is_whole(&self) -> bool {
        matches!(self, FooterState::Whole(..))
    }

    pub fn of(file: &LogFile, log_id: Option<u64>) -> Result<FooterState> {
        let own = |trailer: &Trailer| file.kind == FileKind::Segment || log_id.is_none_or(|id| id == trailer.log_id);
        let Some(trailer) = file.trailer()?.filter(own) else {
            return Ok(FooterState::None);
        };
        let at = file.size - trailer.footer_len();
        let entries = bytes(file, at, trailer.entries_len());
        let holdings = file.holdings(&trailer)?;
        let entries_sound = trailer.index(&entries).is_some();
        Ok(match (entries_sound, holdings) {
            (true, Some(holdings)) => FooterState::Whole(trailer, holdings),
            (true, None) => {
                let rows = at + trailer.entries_len() as u64;
                FooterState::Part(trailer, None, rows, trailer.holdings_len() as u64)
            }
            (false, holdings) => FooterState::Part(trailer, holdings, at, trailer.entries_len() as u64),
        })
    }
}

impl FileOutline {
    /// Outlines the next commit file and updates `known`.
    pub fn of(file: Arc<LogFile>, known: &mut LogWatermarks) -> Result<FileOutline> {
        let footer = FooterState::of(&file, known.log_id)?;
        let mut walk = BlockWalker {
            file: &file,
            expected: footer.trailer().map(|trailer| trailer.first),
            limit: footer.trailer().map_or(file.size, |trailer| trailer.end.min(file.size)),
            known,
            stretches: Vec::new(),
            newer: None,
        };
        walk.run();
        if let Some(trailer) = footer.trailer() {
            walk.known.log_id = Some(trailer.log_id);
            walk.known.mark = walk.known.mark.max(trailer.synced);
            walk.known.highest = walk.known.highest.max(trailer.last);
            walk.known.least = walk.known.least.max(trailer.last + 1);
            if walk.newer.is_none() {
                walk.fill_up_to(trailer);
            }
        }
        let (stretches, mut newer, mut bad_version) = (walk.stretches, walk.newer, false);
        match version(&file, 0) {
            BlockVersion::Newer(found) => newer = newer.or(Some((0, found))),
            BlockVersion::Damaged => bad_version = true,
            BlockVersion::Known => {}
        }
        let newer = match newer {
            None => file.newer_trailer(known.log_id)?,
            newer => newer,
        };
        Ok(FileOutline {
            file,
            footer,
            newer,
            bad_version,
            stretches,
        })
    }

    /// The end of the last block that was found; zero if the file has none.
    pub fn end(&self) -> u64 {
        self.stretches.last().map_or(0, |stretch| stretch.end)
    }

    pub fn first(&self) -> Option<Sequence> {
        self.stretches.first().map(|stretch| stretch.first)
    }

    pub fn last(&self) -> Option<Sequence> {
        self.stretches.last().map(|stretch| stretch.last)
    }

    /// The position of the trailer.
    pub fn trailer_at(&self) -> u64 {
        self.file.size.saturating_sub(TRAILER_LEN as u64)
    }
}

struct BlockWalker<'a> {
    file: &'a LogFile,
    known: &'a mut LogWatermarks,
    expected: Option<Sequence>,
    limit: u64,
    stretches: Vec<BlockRun>,
    /// The position and version of a block or frame that a newer program wrote after the blocks of this one.
    newer: Option<(u64, NewerVersion)>,
}

impl BlockWalker<'_> {
    fn run(&mut self) {
        let mut at = 0;
        while at < self.limit {
            let header = self.sound(at).filter(|header| self.is_next(header, at));
            if header.is_none() && self.goes_on_newer(at) {
                return;
            }
            match header
                .map(|header| (at, header))
                .or_else(|| self.search(at + PAGE as u64))
            {
                Some((found, header)) => {
                    if found > at {
                        self.damaged(at, found, header.sequence);
                    }
                    at = found;
                    self.newer = self.newer_frame(at, &header);
                    if self.newer.is_some() {
                        return;
                    }
                    self.take(&mut at, &header);
                }
                None => return,
            }
        }
    }

    /// Whether `header` is the expected block. At the start of a file, any block is accepted that is not older than the
    /// log.
    fn is_next(&self, header: &BlockHeader, at: u64) -> bool {
        match self.expected {
            Some(expected) => header.sequence == expected,
            None => at == 0 && header.sequence >= self.known.least,
        }
    }

    /// Whether the next block was written by a newer program. A file that this program closed has no such block.
    fn goes_on_newer(&mut self, at: u64) -> bool {
        let is_closed = self.limit < self.file.size;
        let expected = self.expected.filter(|_| at > 0 && !is_closed);
        self.newer = expected.and_then(|expected| {
            let newer = newer_at(self.file, at, expected, self.known.log_id)?;
            Some((at, newer))
        });
        self.newer.is_some()
    }

    /// Looks for a frame of a newer program in a sound block.
    fn newer_frame(&self, at: u64, header: &BlockHeader) -> Option<(u64, NewerVersion)> {
        match self.file.block_entries(at, header) {
            Err(LogError::NewerFormat { position, found, .. }) => Some((position, found)),
            _ => None,
        }
    }

    fn damaged(&mut self, at: u64, end: u64, next: Sequence) {
        // At the start of a file the number of lost blocks is unknown: at least one.
        let first = self.expected.unwrap_or_else(|| next.saturating_sub(1)).min(next);
        self.stretches.push(BlockRun {
            at,
            end,
            first,
            last: next.saturating_sub(1),
            sound: false,
        });
    }

    fn take(&mut self, at: &mut u64, header: &BlockHeader) {
        let end = *at + u64::from(header.block_len);
        match self.stretches.last_mut().filter(|stretch| stretch.sound) {
            Some(stretch) => (stretch.end, stretch.last) = (end, header.sequence),
            None => self.stretches.push(BlockRun {
                at: *at,
                end,
                first: header.sequence,
                last: header.sequence,
                sound: true,
            }),
        }
        self.known.log_id.get_or_insert(header.log_id);
        self.known.least = self.known.least.max(header.sequence + 1);
        self.expected = Some(header.sequence + 1);
        *at = end;
    }

    /// Marks the blocks that the trailer names after the last sound block as damaged.
    fn fill_up_to(&mut self, trailer: &Trailer) {
        let at = self.stretches.last().map_or(0, |stretch| stretch.end);
        let expected = self.expected.unwrap_or(trailer.first);
        if at < trailer.end || expected <= trailer.last {
            self.stretches.push(BlockRun {
                at,
                end: trailer.end.max(at),
                first: expected,
                last: trailer.last,
                sound: false,
            });
        }
    }

    /// Returns a sound block header of this log. Raises the synced mark if the header names a higher one.
    fn sound(&mut self, at: u64) -> Option<BlockHeader> {
        let page = bytes(self.file, at, PAGE);
        self.sound_in(&page, at)
    }

    fn sound_in(&mut self, page: &[u8], at: u64) -> Option<BlockHeader> {
        let header = BlockHeader::decode(page)?;
        let own = self.known.log_id.is_none_or(|id| id == header.log_id);
        let fits = at + u64::from(header.block_len) <= self.file.size;
        let sound = own && fits && header.is_sound(&bytes(self.file, at, header.headers_len()));
        if sound {
            self.known.mark = self.known.mark.max(header.synced);
            self.known.highest = self.known.highest.max(header.sequence);
            self.known.newest_time = self.known.newest_time.max(header.commit_time);
        }
        sound.then_some(header)
    }

    /// The next block of the log at or after `from`. The search assumes that each missing block took at least one
    /// page.
    fn search(&mut self, from: u64) -> Option<(u64, BlockHeader)> {
        let mut found = None;
        let mut at = from;
        while at < self.limit {
            let piece = bytes(self.file, at, PIECE.min((self.limit - at) as usize));
            for (n, page) in piece.chunks(PAGE).enumerate() {
                let position = at + (n * PAGE) as u64;
                let Some(header) = self.sound_in(page, position) else {
                    continue;
                };
                let least = self.expected.unwrap_or(self.known.least);
                let pages = (position - (from - PAGE as u64)) / PAGE as u64;
                let room = self
                    .expected
                    .is_none_or(|expected| header.sequence.saturating_sub(expected) <= pages);
                if found.is_none() && header.sequence >= least && room {
                    found = Some((position, header));
                }
            }
            if found.is_some() {
                return found;
            }
            at += PIECE as u64;
        }
        found
    }
}

/// Reads as many bytes as exist. Unreadable pages become zeros, so that their checksums fail.
pub(crate) fn bytes(file: &LogFile, at: u64, len: usize) -> Vec<u8> {
    if let Ok(bytes) = file.read(at, len) {
        return bytes;
    }
    let mut all = Vec::with_capacity(len);
    for start in (0..len).step_by(PAGE) {
        let wanted = PAGE.min(len - start);
        let mut page = file.read(at + start as u64, wanted).unwrap_or_default();
        page.resize(wanted, 0);
        all.extend(page);
    }
    all.truncate(usize::try_from(file.size.saturating_sub(at)).map_or(len, |rest| rest.min(len)));
    all
}

/// The version of the block with this sequence, if it is at `at` and was written by a newer program.
pub(crate) fn newer_at(file: &LogFile, at: u64, sequence: Sequence, log_id: Option<u64>) -> Option<NewerVersion> {
    BlockHeader::newer_in_place(&bytes(file, at, block::LEN), sequence, log_id)?;
    match version(file, at) {
        BlockVersion::Newer(newer) => Some(newer),
        BlockVersion::Known | BlockVersion::Damaged => None,
    }
}

/// Whether a newer program wrote the block, or this one did and only its version field is damaged.
pub(crate) fn version(file: &LogFile, at: u64) -> BlockVersion {
    let mut page = bytes(file, at, PAGE);
    let Some(newer) = BlockHeader::newer(&page) else {
        return BlockVersion::Known;
    };
    let repaired = |bytes: &mut Vec<u8>| {
        if let Some(field) = bytes.get_mut(4..6) {
            field.copy_from_slice(&block::VERSION.to_le_bytes());
        }
    };
    repaired(&mut page);
    let sound = BlockHeader::decode(&page).is_some_and(|header| {
        let mut headers = bytes(file, at, header.headers_len());
        repaired(&mut headers);
        header.is_sound(&headers)
    });
    if sound {
        BlockVersion::Damaged
    } else {
        BlockVersion::Newer(newer)
    }
}
