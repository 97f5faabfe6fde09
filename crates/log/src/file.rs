//! A file of the log: either a commit file, which stores blocks of all partitions, or a segment, into which frames were
//! moved. Its index locates the frames. The index is in memory while the file grows; later it is read from the end of
//! the file on demand.
//!
//! A commit file is filled with zeros before its first use, so that syncing a block changes no metadata, and gets its
//! name then, so that switching to it costs nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;

use crate::cache::{IndexCache, IndexHandle};
use crate::disk::{Disk, DiskFile};
use crate::error::{LogError, Result};
use crate::format::block::{self, BlockHeader};
use crate::format::footer::{self, FileKind, PartitionExtent, TRAILER_LEN, Trailer, TrailerFields};
use crate::format::frame::{self, FrameHeader};
use crate::format::newer::NewerVersion;
use crate::ids::{Micros, Offset, PartitionId, Sequence};
use crate::index::{FileIndex, FrameEntry};

/// Zeros are written in pieces of this size, each synced before the next, so that a concurrent commit waits for at most
/// one piece. Otherwise the kernel would gather the whole file and write it at once.
const FILL: usize = 1 << 20;

pub(crate) struct LogFile {
    pub kind: FileKind,
    pub number: u64,
    pub name: String,
    /// Size in bytes. All of them have been written at least once.
    pub size: u64,
    file: Arc<dyn DiskFile>,
    index: RwLock<IndexState>,
    cache: Arc<IndexCache>,
    /// Whether message bytes in the file could be mistaken for blocks: one of the three values below.
    deceit: AtomicU8,
}

const UNKNOWN: u8 = 0;
const HONEST: u8 = 1;
const DECEIVES: u8 = 2;

/// The index of a file.
enum IndexState {
    /// The file is still growing, or was not closed.
    Open(FileIndex),
    /// The index is in the footer.
    Closed(IndexHandle),
}

/// Renames a file durably. If the sync fails, a file may exist under a name that the log does not know. Continuing with
/// the next name would leave that file between files in use, so the log is poisoned.
pub(crate) fn rename(disk: &dyn Disk, from: &str, to: &str) -> Result<()> {
    disk.rename(from, to).map_err(LogError::fatal("cannot rename to", to))?;
    let synced = disk.sync_names();
    synced.map_err(|error| LogError::Poisoned {
        cause: LogError::io("cannot sync the name of", to)(error).to_string().into(),
    })
}

pub(crate) fn commit_name(number: u64) -> String {
    format!("commit-{number:016}.log")
}

pub(crate) fn segment_name(number: u64) -> String {
    format!("segment-{number:016}.log")
}

/// Parses the kind and number from the name of a log file.
pub(crate) fn parse_name(name: &str) -> Option<(FileKind, u64)> {
    let (kind, rest) = match name.strip_prefix("commit-") {
        Some(rest) => (FileKind::Commit, rest),
        None => (FileKind::Segment, name.strip_prefix("segment-")?),
    };
    let digits = rest.strip_suffix(".log")?;
    let number = (digits.len() == 16).then(|| digits.parse().ok()).flatten()?;
    Some((kind, number))
}

/// Whether a name is one that the log uses in its folder.
pub fn is_file_of_log(name: &str) -> bool {
    parse_name(name).is_some() || is_unfinished(name) || name == crate::superblock::NAME
}

/// A file that is being filled is not yet part of the log. A start removes any that it finds.
pub(crate) fn is_unfinished(name: &str) -> bool {
    name.starts_with("new-")
}

impl LogFile {
    fn of(kind: FileKind, number: u64, size: u64, file: Arc<dyn DiskFile>, cache: &Arc<IndexCache>) -> LogFile {
        let name = match kind {
            FileKind::Commit => commit_name(number),
            FileKind::Segment => segment_name(number),
        };
        LogFile {
            kind,
            number,
            name,
            size,
            file,
            index: RwLock::new(IndexState::Open(FileIndex::default())),
            cache: cache.clone(),
            deceit: AtomicU8::new(UNKNOWN),
        }
    }

    pub fn open(disk: &dyn Disk, kind: FileKind, number: u64, cache: &Arc<IndexCache>) -> Result<LogFile> {
        let name = match kind {
            FileKind::Commit => commit_name(number),
            FileKind::Segment => segment_name(number),
        };
        let file = disk.open(&name).map_err(LogError::io("cannot open", &name))?;
        let size = file.len().map_err(LogError::io("cannot get the size of", &name))?;
        Ok(LogFile::of(kind, number, size, file, cache))
    }

    /// Creates a commit file of zeros. The file and its name are durable on return. `paced` is called with the number
    /// of bytes written and can cancel the creation.
    pub fn make(
        disk: &dyn Disk,
        number: u64,
        size: u64,
        cache: &Arc<IndexCache>,
        paced: &dyn Fn(usize) -> bool,
    ) -> Result<LogFile> {
        let (unfinished, name) = (format!("new-{number:016}"), commit_name(number));
        let file = disk.create(&unfinished).map_err(LogError::io("cannot make", &name))?;
        let fill = || {
            let zeros = vec![0; FILL];
            let mut at = 0;
            while at < size {
                let piece = zeros.get(..(size - at) as usize).unwrap_or(&zeros);
                file.write_and_sync(piece, at)?;
                at += piece.len() as u64;
                if !paced(piece.len()) {
                    return Ok(false);
                }
            }
            file.sync()?;
            Ok(true)
        };
        let filled = match fill().map_err(LogError::fatal("cannot fill", &name)) {
            Ok(true) => rename(disk, &unfinished, &name),
            Ok(false) => Err(LogError::Closed),
            Err(error) => Err(error),
        };
        if let Err(error) = filled {
            // Free the space; if that fails too, the next start does it.
            let _ = disk.remove(&unfinished);
            return Err(error);
        }
        let made = LogFile::of(FileKind::Commit, number, size, file, cache);
        made.deceit.store(HONEST, Ordering::Relaxed);
        Ok(made)
    }

    /// Reuses a commit file that is not needed any more under a new number. Its old blocks have lower sequences and its
    /// footer names the old number, so they are ignored. The file must not contain messages that look like blocks, see
    /// [`LogFile::may_deceive`], because those can have any sequence.
    pub fn recycle(self, disk: &dyn Disk, number: u64) -> Result<LogFile> {
        rename(disk, &self.name, &commit_name(number))?;
        let again = LogFile::of(FileKind::Commit, number, self.size, self.file, &self.cache);
        again.deceit.store(HONEST, Ordering::Relaxed);
        Ok(again)
    }

    /// Records that a message was written which looks like a block at a page boundary.
    pub fn deceives(&self) {
        self.deceit.store(DECEIVES, Ordering::Relaxed);
    }

    /// Whether a page of the file looks like the start of a block but is not. A file from an earlier process must be
    /// read once to find out; an unreadable file counts as deceiving.
    pub fn may_deceive(&self) -> bool {
        match self.deceit.load(Ordering::Relaxed) {
            HONEST => return false,
            DECEIVES => return true,
            _ => {}
        }
        let deceives = self.looks_deceiving().unwrap_or(true);
        let deceit = if deceives { DECEIVES } else { HONEST };
        self.deceit.store(deceit, Ordering::Relaxed);
        deceives
    }

    fn looks_deceiving(&self) -> Result<bool> {
        let mut at = 0;
        // The bytes after the last block were checked when the file was reused before.
        while let Some(header) = BlockHeader::decode(&self.read(at, block::LEN)?) {
            let front = crate::format::pages(header.headers_len()) as u64;
            let end = at + u64::from(header.block_len);
            let mut from = at + front;
            while from < end {
                let piece = self.read(from, FILL.min((end - from) as usize))?;
                if piece.is_empty() {
                    return Ok(true);
                }
                if block::begins_within(&piece, 0) {
                    return Ok(true);
                }
                from += FILL as u64;
            }
            at = end;
        }
        Ok(false)
    }

    /// A segment that was written under a temporary name and synced.
    pub fn segment(
        number: u64,
        size: u64,
        file: Arc<dyn DiskFile>,
        index: FileIndex,
        cache: &Arc<IndexCache>,
    ) -> LogFile {
        let segment = LogFile::of(FileKind::Segment, number, size, file, cache);
        segment.set_index(index);
        segment.close();
        segment
    }

    pub fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file
            .write_at(bytes, at)
            .map_err(LogError::io("cannot write", &self.name))
    }

    pub fn sync(&self) -> Result<()> {
        self.file.sync().map_err(LogError::io("cannot sync", &self.name))
    }

    /// Writes and syncs, in a single call if the disk has one.
    pub fn write_and_sync(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file
            .write_and_sync(bytes, at)
            .map_err(LogError::io("cannot write and sync", &self.name))
    }

    /// Reads up to `len` bytes, fewer only at the end of the file.
    pub fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let found = self
            .file
            .read_at(&mut bytes, at)
            .map_err(LogError::io("cannot read", &self.name))?;
        bytes.truncate(found);
        Ok(bytes)
    }

    pub fn set_index(&self, index: FileIndex) {
        *self.index.write() = IndexState::Open(index);
    }

    pub fn add(&self, entries: impl Iterator<Item = FrameEntry>) {
        if let IndexState::Open(index) = &mut *self.index.write() {
            entries.for_each(|entry| index.push(entry));
        }
    }

    /// Removes frames from the index that are not part of the log after all.
    pub fn retain(&self, keep: impl Fn(&FrameEntry) -> bool) {
        if let IndexState::Open(index) = &mut *self.index.write() {
            index.retain(keep);
        }
    }

    /// The number of frames and partitions of an open file.
    pub fn counts(&self) -> (usize, usize) {
        match &*self.index.read() {
            IndexState::Open(index) => (index.frames(), index.partition_count()),
            IndexState::Closed(_) => (0, 0),
        }
    }

    /// Moves the index to the footer. It stays in memory only while the cache has room.
    pub fn close(&self) {
        let mut slot = self.index.write();
        if let IndexState::Open(index) = &mut *slot {
            let index = Arc::new(std::mem::take(index));
            let indexed = IndexHandle::new();
            self.cache.put(&indexed, &index);
            *slot = IndexState::Closed(indexed);
        }
    }

    /// Marks a file that was found with a footer as closed.
    pub fn found_closed(&self) {
        *self.index.write() = IndexState::Closed(IndexHandle::new());
    }

    pub fn is_closed(&self) -> bool {
        matches!(&*self.index.read(), IndexState::Closed(_))
    }

    /// Applies `look` to the index, which is read first if it is not in memory.
    pub fn with_index<T>(&self, look: impl FnOnce(&FileIndex) -> T) -> Result<T> {
        let indexed = match &*self.index.read() {
            IndexState::Open(index) => return Ok(look(index)),
            IndexState::Closed(indexed) => indexed.clone(),
        };
        if let Some(index) = self.cache.get(&indexed) {
            return Ok(look(&index));
        }
        let index = Arc::new(self.load_index().map_err(|error| match error {
            LogError::Io { error, .. } => self.corrupt(self.size, format!("the disk cannot read its index: {error}")),
            error => error,
        })?);
        self.cache.put(&indexed, &index);
        Ok(look(&index))
    }

    /// Loads the index from the footer or, if the footer is incomplete, from the frames.
    fn load_index(&self) -> Result<FileIndex> {
        let trailer = self.trailer()?;
        if let Some(trailer) = &trailer
            && let Some(index) = trailer.index(&self.read(self.size - trailer.footer_len(), trailer.entries_len())?)
        {
            return Ok(index);
        }
        match (self.kind, trailer) {
            (FileKind::Commit, Some(trailer)) => self.index_of_blocks(trailer.end),
            (FileKind::Commit, None) => Err(self.corrupt(self.size, "the index at its end is missing".to_owned())),
            (FileKind::Segment, _) => self.index_of_frames(),
        }
    }

    /// The index of a file with consecutive blocks up to `end`.
    fn index_of_blocks(&self, end: u64) -> Result<FileIndex> {
        let mut index = FileIndex::default();
        let mut at = 0;
        while at < end {
            let header = BlockHeader::decode(&self.read(at, block::LEN)?);
            let header = header.ok_or_else(|| self.corrupt(at, "no block begins here".to_owned()))?;
            self.block_entries(at, &header)?
                .into_iter()
                .for_each(|entry| index.push(entry));
            at += u64::from(header.block_len);
        }
        Ok(index)
    }

    /// The index of a segment with consecutive frames from its start. If the end of the frames is known, they must
    /// reach it: an incomplete index would make damaged frames look like removed ones.
    pub fn index_of_frames(&self) -> Result<FileIndex> {
        let mut index = FileIndex::default();
        let end = self.trailer()?.map(|trailer| trailer.end);
        let limit = end.unwrap_or(self.size);
        let mut next: BTreeMap<PartitionId, Offset> = BTreeMap::new();
        let mut at = 0;
        while at < limit {
            let bytes = self.read(at, frame::LEN)?;
            let Some(header) = FrameHeader::decode(&bytes) else {
                match FrameHeader::newer(&bytes) {
                    Some(newer) => return Err(self.newer(at, newer)),
                    None => break,
                }
            };
            // The index after the frames begins with a copy of the first header, and offsets of a partition never
            // decrease.
            if next.insert(header.partition, header.next()) > Some(header.base) {
                break;
            }
            let body_at = at + frame::LEN as u64;
            index.push(FrameEntry { header, body_at });
            at = body_at + u64::from(header.body_len);
        }
        match end {
            Some(end) if at != end => {
                Err(self.corrupt(at, "no frame begins here, and the index is damaged too".to_owned()))
            }
            // The content is unknown. An older stored copy of it would be taken for the newest.
            None if !footer::begins(&self.read(at, footer::ENTRY_LEN)?, |entry| index.has(entry)) => {
                Err(self.corrupt(at, "the frames end here without the index after them".to_owned()))
            }
            _ => Ok(index),
        }
    }

    /// The frames of a block, whose headers must be sound.
    pub fn block_entries(&self, at: u64, header: &BlockHeader) -> Result<Vec<FrameEntry>> {
        let headers = self.read(at, header.headers_len())?;
        let damaged = |found: &str| LogError::Corrupt {
            file: self.name.clone(),
            position: at,
            expected: Some(header.sequence),
            found: found.to_owned(),
        };
        if !header.is_sound(&headers) {
            return Err(damaged("its headers are damaged"));
        }
        let mut body_at = at + header.headers_len() as u64;
        let mut entries = Vec::with_capacity(usize::from(header.frames));
        let frames = headers.get(block::LEN..).unwrap_or_default().chunks_exact(frame::LEN);
        for (n, bytes) in frames.enumerate() {
            let header = FrameHeader::decode(bytes).ok_or_else(|| match FrameHeader::newer(bytes) {
                Some(newer) => self.newer(at + (block::LEN + n * frame::LEN) as u64, newer),
                None => damaged("it has an invalid frame"),
            })?;
            entries.push(FrameEntry { header, body_at });
            body_at += u64::from(header.body_len);
        }
        Ok(entries)
    }

    /// The trailer at the end of a full file, if it belongs to this file.
    pub fn trailer(&self) -> Result<Option<Trailer>> {
        let Some(at) = self.size.checked_sub(TRAILER_LEN as u64) else {
            return Ok(None);
        };
        let trailer = Trailer::decode(&self.read(at, TRAILER_LEN)?);
        // A reused file still has the old footer, with another number.
        let own = |trailer: &Trailer| trailer.file == self.number && trailer.kind == self.kind;
        Ok(trailer.filter(own).filter(|trailer| trailer.footer_len() <= self.size))
    }

    /// The log id and the synced sequence that the trailer and the first block name. Segments of older programs do not
    /// name them.
    pub fn introduces(&self) -> Result<impl Iterator<Item = (u64, Sequence)> + use<>> {
        let trailer = self.any_trailer()?.map(|trailer| (trailer.log_id, trailer.synced));
        let trailer = trailer.filter(|(log_id, _)| self.kind == FileKind::Commit || *log_id != 0);
        let mut first = None;
        if self.kind == FileKind::Commit
            && let Some(header) = BlockHeader::decode(&self.read(0, block::LEN)?)
            && header.is_sound(&self.read(0, header.headers_len())?)
        {
            first = Some((header.log_id, header.synced));
        }
        Ok(trailer.into_iter().chain(first))
    }

    /// The trailer, even if it was written before the file got its current number. A commit file gets a new number when
    /// it is reused.
    fn any_trailer(&self) -> Result<Option<Trailer>> {
        let Some(at) = self.size.checked_sub(TRAILER_LEN as u64) else {
            return Ok(None);
        };
        let trailer = Trailer::decode(&self.read(at, TRAILER_LEN)?);
        Ok(trailer.filter(|trailer| trailer.kind == self.kind))
    }

    /// An error if the file was closed under another name than its own and both files exist.
    pub fn misnamed(&self, names: &[String]) -> Result<Option<LogError>> {
        let trailer = self.any_trailer()?.map(|trailer| trailer.file);
        let Some(number) = trailer.filter(|number| *number != self.number) else {
            return Ok(None);
        };
        let (written_as, is_there) = match self.kind {
            FileKind::Segment => (segment_name(number), true),
            FileKind::Commit => (commit_name(number), names.contains(&commit_name(number))),
        };
        Ok(is_there.then(|| LogError::Misnamed {
            file: self.name.clone(),
            written_as,
        }))
    }

    /// The position and version of a trailer that a newer program wrote for this file.
    pub fn newer_trailer(&self, log_id: Option<u64>) -> Result<Option<(u64, NewerVersion)>> {
        let Some(at) = self.size.checked_sub(TRAILER_LEN as u64) else {
            return Ok(None);
        };
        // A segment belongs to the log in whose folder it is.
        let log_id = log_id.filter(|_| self.kind == FileKind::Commit);
        let newer = Trailer::newer(&self.read(at, TRAILER_LEN)?, self.number, log_id);
        Ok(newer.map(|newer| (at, newer)))
    }

    /// What a closed file holds of each partition; `None` if that part of the footer is damaged.
    pub fn holdings(&self, trailer: &Trailer) -> Result<Option<Vec<PartitionExtent>>> {
        let at = self.size - trailer.footer_len() + trailer.entries_len() as u64;
        Ok(trailer.holdings(&self.read(at, trailer.holdings_len())?))
    }

    /// Frames of a partition from `from` on, with about `bytes` of bodies and at least one frame.
    pub fn entries(&self, partition: PartitionId, from: Offset, bytes: usize) -> Result<Vec<FrameEntry>> {
        self.with_index(|index| {
            let mut sum = 0;
            let wanted = index.from(partition, from).iter().take_while(|entry| {
                let first = sum == 0;
                sum += entry.header.body_len as usize + 1;
                first || sum <= bytes
            });
            wanted.copied().collect()
        })
    }

    /// See [`FileIndex::bytes_within`].
    pub fn bytes_within(&self, partition: PartitionId, from: Offset, to: Offset) -> Result<u64> {
        self.with_index(|index| index.bytes_within(partition, from, to))
    }

    /// See [`FileIndex::at_time`].
    pub fn entry_at_time(&self, partition: PartitionId, from: Offset, time: Micros) -> Result<Option<FrameEntry>> {
        self.with_index(|index| index.at_time(partition, from, time).copied())
    }

    pub fn last_entry(&self, partition: PartitionId, is: impl Fn(&FrameHeader) -> bool) -> Result<Option<FrameEntry>> {
        self.with_index(|index| index.last(partition, is))
    }

    /// The body of a frame, verified by its checksum. A read error counts as damage, because the data is lost in either
    /// case.
    pub fn body(&self, entry: &FrameEntry) -> Result<Bytes> {
        self.body_as_read(entry).map_err(|error| match error {
            LogError::Io { error, .. } => self.corrupt(entry.body_at, format!("the disk cannot read it: {error}")),
            error => error,
        })
    }

    /// Like `body`, but a read error is returned as such, because it says nothing about what was written.
    pub fn body_as_read(&self, entry: &FrameEntry) -> Result<Bytes> {
        let len = entry.header.body_len as usize;
        if len > frame::BODY_MAX {
            return Err(self.corrupt(entry.body_at, format!("a frame cannot have {len} bytes")));
        }
        let body = self.read(entry.body_at, len)?;
        if body.len() != len || crc32c::crc32c(&body) != entry.header.body_crc {
            let (partition, first, last) = (
                entry.header.partition,
                entry.header.base,
                entry.header.next().saturating_sub(1),
            );
            return Err(self.corrupt(
                entry.body_at,
                format!("the frame with the records {first} to {last} of partition {partition} is damaged"),
            ));
        }
        Ok(body.into())
    }

    pub fn newer(&self, position: u64, found: NewerVersion) -> LogError {
        LogError::NewerFormat {
            file: self.name.clone(),
            position,
            found,
        }
    }

    fn corrupt(&self, position: u64, found: String) -> LogError {
        LogError::Corrupt {
            file: self.name.clone(),
            position,
            expected: None,
            found,
        }
    }

    /// Writes the index after the last block, so that a start does not have to read the blocks. The footer is not
    /// synced: a missing index is rebuilt.
    pub fn write_footer(&self, bounds: &TrailerFields) -> Result<()> {
        let bytes = self.with_index(|index| footer::encode(index, &index.holdings(), bounds))?;
        self.write(&bytes, self.size - bytes.len() as u64)?;
        self.close();
        Ok(())
    }

    pub fn remove(&self, disk: &dyn Disk) -> Result<()> {
        disk.remove(&self.name)
            .map_err(LogError::io("cannot remove", &self.name))
    }
}
