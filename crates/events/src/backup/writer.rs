//! Writes the frames of a backup.

use serde::Serialize;
use thalweg_log::Offset;
use thalweg_log::format::FieldWriter;
use thalweg_log::format::frame::FrameKind;
use xxhash_rust::xxh3::Xxh3;

use super::{
    BEGIN, BackupCounts, BackupHeader, BackupTrailer, END, FAILED, FORMAT, Failure, MAGIC, NAMESPACE, NAMESPACE_END,
    NamespaceHeader, RECORDS,
};
use crate::error::{EventsError, Result};

/// Appends frames to the given buffers.
pub(crate) struct BackupWriter {
    crc: u32,
    sum: Xxh3,
    bytes: u64,
    own: BackupCounts,
    all: BackupCounts,
}

impl BackupWriter {
    /// Writes the start of a backup.
    pub fn new(begin: &BackupHeader, out: &mut Vec<u8>) -> Result<BackupWriter> {
        let mut writer = BackupWriter::started(out);
        writer.json(BEGIN, begin, out)?;
        Ok(writer)
    }

    fn started(out: &mut Vec<u8>) -> BackupWriter {
        let start = out.len();
        let format = FORMAT.to_le_bytes();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&format);
        FieldWriter(out).u32(crc32c::crc32c(&format));
        let mut writer = BackupWriter {
            crc: crc32c::crc32c(out.get(start..).unwrap_or_default()),
            sum: Xxh3::new(),
            bytes: 0,
            own: BackupCounts::default(),
            all: BackupCounts::default(),
        };
        writer.written(start, out);
        writer
    }

    pub fn namespace(&mut self, head: &NamespaceHeader, out: &mut Vec<u8>) -> Result<()> {
        self.own = BackupCounts {
            namespaces: 1,
            ..BackupCounts::default()
        };
        self.json(NAMESPACE, head, out)
    }

    /// Writes records, each with its offset minus that of the first. `has` has their counts.
    pub fn records(&mut self, (kind, base): (FrameKind, Offset), body: &[u8], has: BackupCounts, out: &mut Vec<u8>) {
        let mut head = Vec::with_capacity(16);
        FieldWriter(&mut head).u8(kind as u8).u64(base);
        self.frame(RECORDS, &[&head, body], out);
        self.own = self.own.and(has);
    }

    pub fn namespace_end(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let own = std::mem::take(&mut self.own);
        self.all = self.all.and(own);
        self.json(NAMESPACE_END, &own, out)
    }

    pub fn end(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let end = BackupTrailer {
            all: self.all,
            bytes: self.bytes,
            sum: self.sum.digest(),
        };
        self.json(END, &end, out)
    }

    /// Records that the backup cannot be completed.
    pub fn failed(&mut self, error: &EventsError, out: &mut Vec<u8>) -> Result<()> {
        let failure = Failure {
            why: error.to_string(),
            damaged: error.is_damage(),
        };
        self.json(FAILED, &failure, out)
    }

    fn json(&mut self, kind: u8, value: &impl Serialize, out: &mut Vec<u8>) -> Result<()> {
        let body = serde_json::to_vec(value).map_err(|error| EventsError::Damaged(error.to_string()))?;
        self.frame(kind, &[&body], out);
        Ok(())
    }

    fn frame(&mut self, kind: u8, body: &[&[u8]], out: &mut Vec<u8>) {
        let start = out.len();
        let len: usize = body.iter().map(|part| part.len()).sum();
        FieldWriter(out).u8(kind).u32(len as u32);
        body.iter().for_each(|part| out.extend_from_slice(part));
        self.crc = crc32c::crc32c_append(self.crc, out.get(start..).unwrap_or_default());
        FieldWriter(out).u32(self.crc);
        self.written(start, out);
    }

    fn written(&mut self, start: usize, out: &[u8]) {
        let new = out.get(start..).unwrap_or_default();
        self.sum.update(new);
        self.bytes += new.len() as u64;
    }
}

/// Frames of any kind and content with valid checksums, for tests of the reader.
#[doc(hidden)]
pub fn sealed(frames: &[(u8, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = BackupWriter::started(&mut out);
    for (kind, body) in frames {
        writer.frame(*kind, &[body], &mut out);
    }
    out
}
