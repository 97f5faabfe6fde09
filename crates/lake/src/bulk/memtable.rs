//! The rows of a file before they are flushed. Memory is bounded whatever the length of the file.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::tables::TableSpec;

/// Rows of one table that are flushed together.
pub(super) struct BulkBatch {
    pub spec: &'static TableSpec,
    pub chunks: Vec<Arc<MemtableChunk>>,
}

impl BulkBatch {
    pub fn rows(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.rows() as u64).sum()
    }
}

struct BulkMemtable {
    spec: &'static TableSpec,
    full: Vec<Arc<MemtableChunk>>,
    full_bytes: usize,
    chunk: MemtableChunk,
    /// Rows already passed on.
    flushed: u64,
}

/// The memtables of all tables.
pub(super) struct BulkMemtables<'a> {
    tables: Vec<BulkMemtable>,
    flush_bytes: usize,
    /// Takes one batch at a time, while the next one grows. Without it rows are only counted.
    to: Option<&'a SyncSender<BulkBatch>>,
}

impl BulkMemtables<'_> {
    pub fn new(flush_bytes: usize, to: Option<&SyncSender<BulkBatch>>) -> BulkMemtables<'_> {
        BulkMemtables {
            tables: Vec::new(),
            flush_bytes,
            to,
        }
    }

    pub fn chunk(&mut self, spec: &'static TableSpec) -> &mut MemtableChunk {
        let known = self.tables.iter().position(|table| std::ptr::eq(table.spec, spec));
        let at = known.unwrap_or_else(|| {
            self.tables.push(BulkMemtable {
                spec,
                full: Vec::new(),
                full_bytes: 0,
                chunk: MemtableChunk::new(spec),
                flushed: 0,
            });
            self.tables.len() - 1
        });
        &mut self.tables[at].chunk
    }

    /// Called between rows from time to time. Returns false if the receiver is gone.
    pub fn settle(&mut self) -> bool {
        let mut bytes = 0;
        for table in &mut self.tables {
            let used = table.chunk.space().used;
            if table.chunk.is_full() {
                table.close(used);
                bytes += table.full_bytes;
            } else {
                bytes += table.full_bytes + used;
            }
        }
        if bytes < self.flush_bytes {
            return true;
        }
        let Some(to) = self.to else {
            self.tables.iter_mut().for_each(|table| drop(table.part()));
            return true;
        };
        let mut parts = self.tables.iter_mut().map(BulkMemtable::part);
        parts.all(|part| part.chunks.is_empty() || to.send(part).is_ok())
    }

    /// The rows that were not passed on.
    pub fn rest(mut self) -> Vec<BulkBatch> {
        let parts = self.tables.iter_mut().map(BulkMemtable::part);
        parts.filter(|part| !part.chunks.is_empty()).collect()
    }

    /// The number of rows of each table.
    pub fn rows(&self) -> impl Iterator<Item = (&'static TableSpec, u64)> {
        self.tables.iter().map(|table| {
            let full = table.full.iter().map(|chunk| chunk.rows() as u64).sum::<u64>();
            (table.spec, table.flushed + full + table.chunk.rows() as u64)
        })
    }
}

impl BulkMemtable {
    fn close(&mut self, used: usize) {
        if self.chunk.rows() > 0 {
            let chunk = std::mem::replace(&mut self.chunk, MemtableChunk::new(self.spec));
            self.full.push(Arc::new(chunk));
            self.full_bytes += used;
        }
    }

    fn part(&mut self) -> BulkBatch {
        self.close(0);
        self.full_bytes = 0;
        let part = BulkBatch {
            spec: self.spec,
            chunks: std::mem::take(&mut self.full),
        };
        self.flushed += part.rows();
        part
    }
}
