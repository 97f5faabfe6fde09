//! A sorted table in a file, written once: blocks of keys and values, the first key of each block, a filter for missing
//! keys, and a footer with their positions. Every part has a checksum.
//!
//! `TWEVINDX` · version 4 · zero 4 · blocks · list of blocks · filter · footer of 64 bytes. Numbers are little-endian.

use std::sync::Arc;

use quick_cache::sync::Cache;
use thalweg_kit::varint;
use thalweg_log::disk::{Disk, DiskFile};
use thalweg_log::format::{FieldReader, FieldWriter};

use super::block::{Block, BlockBuilder, checked};
use super::bloom::Bloom;
use crate::error::EventsError;

const MAGIC: &[u8; 8] = b"TWEVINDX";
const VERSION: u32 = 1;
const HEAD: usize = 16;
const FOOTER: usize = 64;
/// Sizes of a write and of a sync. Frequent syncs keep dirty pages from piling up in front of the log's own syncs.
const WRITE: usize = 1 << 20;
const SYNC: usize = 8 << 20;

/// Why a lookup has no result.
#[derive(Clone, Debug)]
pub(crate) enum IndexReadError {
    /// The data is on disk, and only memory may be used.
    OnDisk,
    /// The data is being moved to a table: a retry will find it.
    Moved,
    Failed(EventsError),
}

impl From<EventsError> for IndexReadError {
    fn from(error: EventsError) -> IndexReadError {
        IndexReadError::Failed(error)
    }
}

pub(crate) type IndexReadResult<T> = std::result::Result<T, IndexReadError>;

/// Whether a lookup may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    MemoryOnly,
    MayBlock,
}

/// A cache of blocks of all tables, limited by bytes.
pub(crate) type BlockCache = Cache<(u64, u32), Arc<Block>, BlockWeighter>;

#[derive(Clone, Debug)]
pub(crate) struct BlockWeighter;

impl quick_cache::Weighter<(u64, u32), Arc<Block>> for BlockWeighter {
    fn weight(&self, _: &(u64, u32), block: &Arc<Block>) -> u64 {
        block.bytes() as u64
    }
}

pub(crate) fn blocks(bytes_max: usize) -> Arc<BlockCache> {
    Arc::new(Cache::with_weighter(
        bytes_max / (16 << 10),
        bytes_max as u64,
        BlockWeighter,
    ))
}

pub(crate) struct Table {
    /// Also in the file name. Newer tables have larger numbers.
    pub number: u64,
    file: Arc<dyn DiskFile>,
    cache: Arc<BlockCache>,
    /// The first key and the position of each block.
    sparse: Vec<SparseIndexEntry>,
    bloom: Bloom,
    pub bytes: u64,
}

#[derive(Debug)]
struct SparseIndexEntry {
    first: Box<[u8]>,
    at: u64,
    len: u32,
}

pub(crate) fn file_name(number: u64) -> String {
    format!("{number:016}.index")
}

pub(crate) struct TableWriter {
    number: u64,
    file: Arc<dyn DiskFile>,
    block: BlockBuilder,
    sparse: Vec<SparseIndexEntry>,
    hashes: Vec<u64>,
    /// Bytes not written yet. The first of them belongs at `at`.
    buffer: Vec<u8>,
    at: u64,
    synced_at: u64,
}

impl TableWriter {
    pub fn new(disk: &dyn Disk, number: u64) -> std::io::Result<TableWriter> {
        let name = file_name(number);
        // Left by an attempt that a crash interrupted.
        if disk.names()?.contains(&name) {
            disk.remove(&name)?;
        }
        let mut buffer = Vec::with_capacity(WRITE + (64 << 10));
        FieldWriter(&mut buffer).bytes(MAGIC).u32(VERSION).u32(0);
        Ok(TableWriter {
            number,
            file: disk.create(&name)?,
            block: BlockBuilder::default(),
            sparse: Vec::new(),
            hashes: Vec::new(),
            buffer,
            at: 0,
            synced_at: 0,
        })
    }

    /// Adds an entry. Keys must be in order. `hash` goes into the filter.
    pub fn add(&mut self, key: &[u8], value: &[u8], hash: Option<u64>) -> std::io::Result<()> {
        // Chunks of a list are consecutive and share one hash.
        if let Some(hash) = hash
            && self.hashes.last() != Some(&hash)
        {
            self.hashes.push(hash);
        }
        self.block.add(key, value);
        if self.block.is_full() {
            self.end_block()?;
        }
        Ok(())
    }

    fn end_block(&mut self) -> std::io::Result<()> {
        let first = self.block.first.clone().into_boxed_slice();
        let bytes = self.block.finish();
        self.sparse.push(SparseIndexEntry {
            first,
            at: self.at + self.buffer.len() as u64,
            len: bytes.len() as u32,
        });
        self.put(&bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() < WRITE {
            return Ok(());
        }
        self.write()
    }

    fn write(&mut self) -> std::io::Result<()> {
        self.file.write_at(&self.buffer, self.at)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        if self.at - self.synced_at >= SYNC as u64 {
            self.file.sync()?;
            self.synced_at = self.at;
        }
        Ok(())
    }

    /// Completes and syncs the file, but not its name.
    pub fn finish(mut self, cache: &Arc<BlockCache>) -> std::io::Result<Table> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        let mut list = Vec::new();
        for sparse in &self.sparse {
            varint::put(&mut list, sparse.first.len() as u64);
            list.extend_from_slice(&sparse.first);
            varint::put(&mut list, sparse.at);
            varint::put(&mut list, u64::from(sparse.len));
        }
        let bloom = Bloom::of(&self.hashes);
        let mut filter = Vec::with_capacity(bloom.bytes() + 8);
        bloom.encode(&mut filter);
        let mut footer = Vec::with_capacity(FOOTER);
        for part in [&mut list, &mut filter] {
            seal(part);
            let at = self.at + self.buffer.len() as u64;
            FieldWriter(&mut footer).u64(at).u64(part.len() as u64);
            self.put(part)?;
        }
        FieldWriter(&mut footer).u64(self.number).u64(0);
        seal(&mut footer);
        FieldWriter(&mut footer).bytes(MAGIC);
        self.buffer.extend_from_slice(&footer);
        self.write()?;
        self.file.sync()?;
        Ok(Table {
            number: self.number,
            file: self.file,
            cache: cache.clone(),
            sparse: self.sparse,
            bloom,
            bytes: self.at,
        })
    }
}

fn seal(part: &mut Vec<u8>) {
    let sum = xxhash_rust::xxh3::xxh3_64(part);
    part.extend_from_slice(&sum.to_le_bytes());
}

impl Table {
    /// Opens a table. The list of blocks and the filter are read now; blocks are read on demand.
    pub fn open(disk: &dyn Disk, number: u64, cache: &Arc<BlockCache>) -> std::result::Result<Table, String> {
        let name = file_name(number);
        let wrong = |what: &str| format!("{name}: {what}");
        let failed = |error: std::io::Error| wrong(&error.to_string());
        let file = disk.open(&name).map_err(failed)?;
        let len = file.len().map_err(failed)?;
        let part = |at: u64, len: u64| -> std::result::Result<Vec<u8>, String> {
            let len = usize::try_from(len).ok().filter(|len| *len < 1 << 32);
            let mut bytes = vec![0; len.ok_or_else(|| wrong("its footer is damaged"))?];
            let read = file.read_at(&mut bytes, at).map_err(failed)?;
            (read == bytes.len())
                .then_some(bytes)
                .ok_or_else(|| wrong("it is cut off"))
        };
        let head = part(0, HEAD as u64)?;
        let mut take = FieldReader(&head);
        if take.bytes::<8>() != Some(*MAGIC) {
            return Err(wrong("it is not an index"));
        }
        if (take.u32(), take.u32()) != (Some(VERSION), Some(0)) {
            return Err(wrong("it has the format of another version"));
        }
        let footer_at = len.checked_sub(FOOTER as u64).ok_or_else(|| wrong("it is cut off"))?;
        let footer = part(footer_at, FOOTER as u64)?;
        let places = (|| {
            let body = checked(footer.strip_suffix(MAGIC)?)?;
            let mut take = FieldReader(body);
            let places = (take.u64()?, take.u64()?, take.u64()?, take.u64()?);
            (take.u64()? == number && places.0.checked_add(places.1)? <= len && places.2.checked_add(places.3)? <= len)
                .then_some(places)
        })();
        let (list_at, list_len, filter_at, filter_len) = places.ok_or_else(|| wrong("its footer is damaged"))?;
        let list = part(list_at, list_len)?;
        let sparse = checked(&list)
            .and_then(sparse)
            // Rejects positions beyond the end of the file before anything is read or allocated.
            .filter(|sparse| {
                sparse
                    .iter()
                    .all(|one| one.at.checked_add(u64::from(one.len)).is_some_and(|end| end <= len))
            })
            .ok_or_else(|| wrong("its list of blocks is damaged"))?;
        let filter = part(filter_at, filter_len)?;
        let bloom = Bloom::decode(checked(&filter).ok_or_else(|| wrong("its filter is damaged"))?);
        Ok(Table {
            number,
            file,
            cache: cache.clone(),
            sparse,
            bloom,
            bytes: len,
        })
    }

    pub fn may_have(&self, hash: u64) -> bool {
        self.bloom.may_have(hash)
    }

    /// Memory while it is open, without the cached blocks.
    pub fn resident_bytes(&self) -> usize {
        let sparse = self
            .sparse
            .iter()
            .map(|sparse| sparse.first.len() + size_of::<SparseIndexEntry>());
        self.bloom.bytes() + sparse.sum::<usize>()
    }

    fn block(&self, n: usize, io: Io) -> IndexReadResult<Arc<Block>> {
        let key = (self.number, n as u32);
        if let Some(block) = self.cache.get(&key) {
            return Ok(block);
        }
        if io == Io::MemoryOnly {
            return Err(IndexReadError::OnDisk);
        }
        let block = Arc::new(self.read_block(n)?);
        self.cache.insert(key, block.clone());
        Ok(block)
    }

    /// Reads a block from disk without caching it.
    fn read_block(&self, n: usize) -> IndexReadResult<Block> {
        let wrong = |what: &str| {
            IndexReadError::Failed(EventsError::Damaged(format!(
                "{}: block {n}: {what}",
                file_name(self.number)
            )))
        };
        let sparse = self.sparse.get(n).ok_or_else(|| wrong("it does not exist"))?;
        let mut bytes = vec![0; sparse.len as usize];
        let read = self.file.read_at(&mut bytes, sparse.at);
        let read = read.map_err(|error| wrong(&error.to_string()))?;
        let block = bytes.get(..read).filter(|_| read == bytes.len()).and_then(Block::parse);
        block.ok_or_else(|| wrong("its checksum is wrong"))
    }

    /// A cursor at the first entry whose key is not less.
    pub fn seek(self: &Arc<Table>, key: &[u8], io: Io) -> IndexReadResult<TableCursor> {
        // The entry is in the last block that does not begin after the key, or it is the first of the next block.
        let n = self
            .sparse
            .partition_point(|sparse| *sparse.first <= *key)
            .saturating_sub(1);
        let mut cursor = TableCursor::at(self.clone(), n, io, true);
        if self.sparse.is_empty() {
            return Ok(cursor);
        }
        let block = self.block(n, io)?;
        cursor.entry = block.at_least(key);
        cursor.block = Some(block);
        cursor.settle()?;
        Ok(cursor)
    }

    /// A cursor at the first entry, which does not fill the cache.
    pub fn walk(self: &Arc<Table>) -> IndexReadResult<TableCursor> {
        let mut cursor = TableCursor::at(self.clone(), 0, Io::MayBlock, false);
        cursor.settle()?;
        Ok(cursor)
    }
}

fn sparse(mut bytes: &[u8]) -> Option<Vec<SparseIndexEntry>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = varint::take(bytes)?;
        let (first, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        let (at, rest) = varint::take(rest)?;
        let (len, rest) = varint::take(rest)?;
        all.push(SparseIndexEntry {
            first: first.into(),
            at,
            len: u32::try_from(len).ok()?,
        });
        bytes = rest;
    }
    Some(all)
}

/// A cursor over the entries of a table.
pub(crate) struct TableCursor {
    table: Arc<Table>,
    n: usize,
    block: Option<Arc<Block>>,
    entry: usize,
    io: Io,
    /// Whether blocks are cached.
    keeps: bool,
}

impl TableCursor {
    fn at(table: Arc<Table>, n: usize, io: Io, keeps: bool) -> TableCursor {
        TableCursor {
            table,
            n,
            block: None,
            entry: 0,
            io,
            keeps,
        }
    }

    /// Moves to the next block at the end of the current one.
    fn settle(&mut self) -> IndexReadResult<()> {
        while self.n < self.table.sparse.len() {
            let block = match &self.block {
                Some(block) => block,
                None => {
                    let block = match self.keeps {
                        true => self.table.block(self.n, self.io)?,
                        false => Arc::new(self.table.read_block(self.n)?),
                    };
                    self.block.insert(block)
                }
            };
            if self.entry < block.len() {
                return Ok(());
            }
            (self.n, self.entry, self.block) = (self.n + 1, 0, None);
        }
        Ok(())
    }

    /// `None` after the last entry.
    pub fn entry(&self) -> Option<(&[u8], &[u8])> {
        let block = self.block.as_ref()?;
        (self.entry < block.len()).then(|| (block.key(self.entry), block.value(self.entry)))
    }

    pub fn next(&mut self) -> IndexReadResult<()> {
        self.entry += 1;
        self.settle()
    }

    /// Moves to the end.
    pub fn leave(&mut self) {
        (self.n, self.entry, self.block) = (self.table.sparse.len(), 0, None);
    }

    /// Moves back one entry; `false` before the first.
    pub fn back(&mut self) -> IndexReadResult<bool> {
        if self.entry > 0 && self.block.is_some() {
            self.entry -= 1;
            return Ok(true);
        }
        let Some(n) = self.n.checked_sub(1) else {
            return Ok(false);
        };
        let block = self.table.block(n, self.io)?;
        (self.n, self.entry) = (n, block.len().saturating_sub(1));
        self.block = Some(block);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use thalweg_log::disk::RamDisk;

    use super::*;

    fn entries() -> BTreeMap<Vec<u8>, Vec<u8>> {
        let key = |n: u32| [b"key".as_slice(), &n.wrapping_mul(0x9e37_79b9).to_be_bytes()].concat();
        (0..5000).map(|n| (key(n), vec![n as u8; (n % 50) as usize])).collect()
    }

    fn written(disk: &dyn Disk, entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> Arc<Table> {
        let cache = blocks(1 << 20);
        let mut writer = TableWriter::new(disk, 7).unwrap();
        for (key, value) in entries {
            writer.add(key, value, Some(xxhash_rust::xxh3::xxh3_64(key))).unwrap();
        }
        drop(writer.finish(&cache).unwrap());
        Arc::new(Table::open(disk, 7, &cache).unwrap())
    }

    #[test]
    fn what_was_written_is_found_and_walked_in_both_directions() {
        let (disk, entries) = (RamDisk::new(16 << 20), entries());
        let table = written(&disk, &entries);
        let mut walk = table.walk().unwrap();
        for (key, value) in &entries {
            assert_eq!(walk.entry(), Some((&**key, &**value)));
            assert!(table.may_have(xxhash_rust::xxh3::xxh3_64(key)));
            walk.next().unwrap();
        }
        assert_eq!(walk.entry(), None);
        for key in [&b""[..], b"key", b"key\x80", b"key\xff\xff\xff\xff\xff", b"z"] {
            let mut cursor = table.seek(key, Io::MayBlock).unwrap();
            let mut forward = entries.range(key.to_vec()..);
            for _ in 0..1000 {
                let expected = forward.next().map(|(key, value)| (&**key, &**value));
                assert_eq!(cursor.entry(), expected);
                cursor.next().unwrap();
            }
            let mut cursor = table.seek(key, Io::MayBlock).unwrap();
            for (key, value) in entries.range(..key.to_vec()).rev().take(1000) {
                assert!(cursor.back().unwrap());
                assert_eq!(cursor.entry(), Some((&**key, &**value)));
            }
        }
    }

    #[test]
    fn a_disk_is_asked_only_by_who_may_wait_for_it() {
        let (disk, entries) = (RamDisk::new(16 << 20), entries());
        let table = written(&disk, &entries);
        assert!(matches!(
            table.seek(b"key", Io::MemoryOnly),
            Err(IndexReadError::OnDisk)
        ));
        table.seek(b"key", Io::MayBlock).unwrap();
        assert!(table.seek(b"key", Io::MemoryOnly).unwrap().entry().is_some());
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let (disk, entries) = (RamDisk::new(16 << 20), entries());
        drop(written(&disk, &entries));
        let file = disk.open(&file_name(7)).unwrap();
        let len = file.len().unwrap();
        for at in (0..len).step_by(997).chain([0, 8, len - 1, len - 9, len - 60]) {
            let mut byte = [0];
            file.read_at(&mut byte, at).unwrap();
            file.write_at(&[byte[0] ^ 1], at).unwrap();
            let noticed = match Table::open(&disk, 7, &blocks(1 << 20)) {
                Err(_) => true,
                Ok(table) => {
                    let walked = Arc::new(table).walk().and_then(|mut walk| {
                        while walk.entry().is_some() {
                            walk.next()?;
                        }
                        Ok(())
                    });
                    walked.is_err()
                }
            };
            assert!(noticed, "byte {at} of {len}");
            file.write_at(&byte, at).unwrap();
        }
    }
}
