//! Entry points for the fuzz targets, which treat arbitrary bytes as index data. They return or panic; a panic is a
//! bug.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_log::disk::Disk;
use thalweg_log::disk::sim::SimDisk;

use super::block::{Block, BlockBuilder};
use super::bloom::Bloom;
use super::keys::{self, CategoryValue, DocumentAt, PositionRun, StreamValue};
use super::rows::{self, IndexRow, ListKind};
use super::table::{IndexReadResult, Io, TableWriter, blocks};
use super::view::ListId;
use super::{MergingIterator, NamespaceIndex, TableStore};
use crate::id::MessageId;
use crate::store::Direction;

const LOG: u64 = 7;
const CACHE: usize = 1 << 20;
/// A list may claim to be longer than anything that is read.
const ROWS_MAX: usize = 2000;
/// Names to look up, which the corpus has too.
const NAMES: [&str; 4] = ["", "a", "a-1", "b-2"];

/// Decodes a block with a valid checksum, a chunk of a list, keys and values. What can be decoded must survive encoding
/// and decoding.
pub fn parts(bytes: &[u8]) {
    let mut whole = bytes.to_vec();
    seal(&mut whole);
    if let Some(block) = Block::parse(&whole) {
        let entries = |block: &Block| -> Vec<(Vec<u8>, Vec<u8>)> {
            let entry = |n| (block.key(n).to_vec(), block.value(n).to_vec());
            (0..block.len()).map(entry).collect()
        };
        let mut builder = BlockBuilder::default();
        for (key, value) in entries(&block) {
            assert!(block.at_least(&key) <= block.len());
            builder.add(&key, &value);
        }
        let again = Block::parse(&builder.finish()).expect("what is written can be read");
        assert_eq!(entries(&again), entries(&block));
    }
    for list in [ListKind::Stream, ListKind::Category] {
        let (mut found, mut again, mut out) = (Vec::new(), Vec::new(), Vec::new());
        if rows::decode(list, bytes, &mut found).is_some() {
            rows::encode(list, &found, &mut out);
            // An empty list need not be decodable.
            assert!(found.is_empty() || rows::decode(list, &out, &mut again).is_some());
            assert_eq!(found, again);
        }
    }
    let _ = (
        keys::parse(bytes),
        keys::filter_hash(bytes),
        keys::name(bytes),
        keys::number(bytes),
    );
    let _ = (
        StreamValue::decode(bytes),
        CategoryValue::decode(bytes),
        DocumentAt::decode(bytes),
    );
    let _ = (
        PositionRun::decode(bytes, bytes),
        Bloom::decode(bytes).may_have(bytes.len() as u64),
    );
}

/// Opens a file with these bytes, and one with these bytes as its list of blocks and valid checksums.
pub fn file(bytes: &[u8]) {
    let list_at = 16 + bytes.len() as u64 / 2;
    let (blocks_part, list) = bytes.split_at(bytes.len() / 2);
    let mut whole = b"TWEVINDX\x01\0\0\0\0\0\0\0".to_vec();
    whole.extend_from_slice(blocks_part);
    let mut part = list.to_vec();
    seal(&mut part);
    let mut filter = vec![0xff; 64];
    seal(&mut filter);
    let numbers = [
        list_at,
        part.len() as u64,
        list_at + part.len() as u64,
        filter.len() as u64,
        1,
        0,
    ];
    let mut footer: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    seal(&mut footer);
    whole.extend_from_slice(&part);
    whole.extend_from_slice(&filter);
    whole.extend_from_slice(&footer);
    whole.extend_from_slice(b"TWEVINDX");
    for content in [bytes, whole.as_slice()] {
        let disk = SimDisk::new(1, 64 << 20);
        let _ = put(&disk, &super::table::file_name(1), content);
        let Ok(table) = super::table::Table::open(&disk, 1, &blocks(CACHE)) else {
            continue;
        };
        let table = Arc::new(table);
        for name in NAMES {
            let _ = table
                .seek(name.as_bytes(), Io::MayBlock)
                .map(|mut cursor| cursor.back());
        }
        let Ok(mut cursor) = table.walk() else { continue };
        for _ in 0..ROWS_MAX {
            if cursor.entry().is_none() || cursor.next().is_err() {
                break;
            }
        }
    }
}

/// Builds a folder of up to five tables from entries: table and whether it is of this namespace 1 · family 1 · length
/// of the rest of the key 1 · length of the value 1 · both. The folder is opened, queried, merged, queried again, and
/// verified.
pub fn folder(bytes: &[u8]) {
    let disk = SimDisk::new(1, 64 << 20);
    let mut tables: [BTreeMap<Vec<u8>, Vec<u8>>; 5] = Default::default();
    let mut rest = bytes;
    while let Some((&[place, family, key_len, value_len], more)) = rest.split_first_chunk::<4>() {
        let (own, more) = more.split_at(more.len().min(usize::from(key_len)));
        let (value, more) = more.split_at(more.len().min(usize::from(value_len)));
        // Entries that survive a clearing are in key space 0.
        let cleared = if family % 8 == 7 { 0 } else { 1 };
        let mut key = vec![0, 0, 0, 1, 0, 0, 0, cleared, family % 8];
        if place >= 200 {
            key.clear();
        }
        key.extend_from_slice(own);
        if let Some(table) = tables.get_mut(usize::from(place) % 5) {
            table.insert(key, value.to_vec());
        }
        rest = more;
    }
    let filled = tables.iter().zip(1..).filter(|(table, _)| !table.is_empty());
    let mut named = Vec::new();
    for (table, number) in filled {
        let Ok(()) = write(&disk, number, table) else { return };
        named.insert(0, (number, 0));
    }
    let state = super::IndexState {
        last_global: u64::from(u32::MAX),
        cleared: 1,
        ..super::IndexState::default()
    };
    let manifest = serde_json::json!({
        "version": 1, "log": LOG, "next_table": 9, "tables": named, "namespaces": [(1, state)],
    });
    let mut manifest = manifest.to_string().into_bytes();
    seal(&mut manifest);
    let _ = put(&disk, "manifest", &manifest);
    let Ok(table_store) = TableStore::open(Some(Arc::new(disk)), LOG, CACHE) else {
        return;
    };
    assert_eq!(
        table_store.tables().list.len(),
        named.len(),
        "what was written is opened"
    );
    let _ = table_store.tidy();
    let table_store = Arc::new(table_store);
    ask(&table_store);
    let _ = table_store.merge(&|_| true);
    ask(&table_store);
    let _ = table_store.verify();
}

fn write(disk: &dyn Disk, number: u64, entries: &BTreeMap<Vec<u8>, Vec<u8>>) -> std::io::Result<()> {
    let mut writer = TableWriter::new(disk, number)?;
    for (key, value) in entries {
        writer.add(key, value, keys::filter_hash(key))?;
    }
    writer.finish(&blocks(CACHE)).map(drop)
}

fn put(disk: &dyn Disk, name: &str, content: &[u8]) -> std::io::Result<()> {
    disk.create(name)?.write_at(content, 0)
}

fn seal(part: &mut Vec<u8>) {
    let sum = xxhash_rust::xxh3::xxh3_64(part);
    part.extend_from_slice(&sum.to_le_bytes());
}

fn ask(table_store: &Arc<TableStore>) {
    let index = NamespaceIndex::new(table_store, 1);
    let view = index.view();
    for name in NAMES {
        let _ = (
            index.version(&view, name, Io::MayBlock),
            view.document_in_tables(name, Io::MayBlock),
        );
        let _ = view.id_in_tables(&MessageId::of(name), Io::MayBlock);
        let _ = view.streams(index.streams_here(name, name, 10), name, "", 10);
        let _ = view.documents(index.documents_here(name, name), name, "", 10);
        let lists = [ListKind::Stream, ListKind::Category].map(|list| ListId::Of(list, name.to_owned()));
        for listed in lists.into_iter().chain([ListId::All]) {
            for (from, direction) in [
                (None, Direction::Forward),
                (Some(3), Direction::Forward),
                (None, Direction::Backward),
                (Some(u64::MAX), Direction::Backward),
            ] {
                walk(&index, &listed, from, direction);
            }
        }
    }
    let _ = view.categories(index.categories_here());
}

/// Walks through arbitrary rows, which must always terminate.
fn walk(index: &NamespaceIndex, listed: &ListId, from: Option<u64>, direction: Direction) {
    let active = |of: &ListId,
                  from: Option<u64>,
                  direction: Direction,
                  max: usize,
                  out: &mut Vec<IndexRow>|
     -> IndexReadResult<()> {
        index.copy(of, from, direction, max, out);
        Ok(())
    };
    let view = index.view();
    let mut way = MergingIterator::new(&view, listed, from, direction, Io::MayBlock, &active);
    for _ in 0..ROWS_MAX {
        if !matches!(way.next(), Ok(Some(_))) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_log::disk::sim::Random;

    use super::*;

    #[test]
    fn a_folder_of_tables_that_are_right_is_read_and_merged() {
        let mut bytes = Vec::new();
        for place in 0..5 {
            let (mut stream, mut chunk) = (Vec::new(), Vec::new());
            StreamValue::default().encode(&mut stream);
            rows::encode(
                ListKind::Stream,
                &[IndexRow {
                    global: 1,
                    ..IndexRow::default()
                }],
                &mut chunk,
            );
            let list = [keys::hash(b"a-1").to_be_bytes(), 0_u64.to_be_bytes()].concat();
            for (family, key, value) in [(1, b"a-1".as_slice(), &stream), (3, list.as_slice(), &chunk)] {
                bytes.extend([place, family, key.len() as u8, value.len() as u8]);
                bytes.extend_from_slice(key);
                bytes.extend_from_slice(value);
            }
        }
        folder(&bytes);
    }

    #[test]
    fn the_entries_take_any_bytes() {
        let mut random = Random::new(3);
        for _ in 0..200 {
            let bytes: Vec<u8> = (0..random.below(300)).map(|_| random.number() as u8).collect();
            [parts, file, folder].iter().for_each(|target| target(&bytes));
        }
    }

    /// A merge visits every key, but looks up the owner once per key space, not per key.
    #[test]
    fn whose_the_keys_of_a_merge_are_is_asked_once_for_each_space() {
        let disk = SimDisk::new(1, 64 << 20);
        let mut value = Vec::new();
        StreamValue::default().encode(&mut value);
        let table = |number: u64| {
            let mut writer = TableWriter::new(&disk, number).unwrap();
            for namespace in 1..=3 {
                let space = keys::KeySpace { namespace, cleared: 1 };
                for stream in 0..500 {
                    let key = keys::named(space, keys::Family::Stream, &format!("s-{stream:04}"));
                    writer.add(&key, &value, keys::filter_hash(&key)).unwrap();
                }
            }
            Arc::new(writer.finish(&blocks(CACHE)).unwrap())
        };
        let tables = [table(2), table(1)];
        let asked = std::cell::RefCell::new(Vec::new());
        let lives = |space: keys::KeySpace| {
            asked.borrow_mut().push(space.namespace);
            space.namespace != 2
        };
        let mut writer = TableWriter::new(&disk, 3).unwrap();
        super::super::merge::merge(&tables, &lives, None, &mut writer).unwrap();
        let merged = Arc::new(writer.finish(&blocks(CACHE)).unwrap());
        assert_eq!(*asked.borrow(), [1, 2, 3]);
        let (mut cursor, mut found) = (merged.walk().unwrap(), 0);
        while let Some((key, _)) = cursor.entry() {
            assert_ne!(keys::parse(key).unwrap().0.namespace, 2);
            found += 1;
            cursor.next().unwrap();
        }
        assert_eq!(found, 1000);
    }
}
