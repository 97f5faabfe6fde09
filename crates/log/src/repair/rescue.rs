//! Segments that replace damaged files: they have the sound frames and gap frames for the offsets in between. A segment
//! takes precedence over all earlier files, so it is written first and the damaged file is removed last. A crash in
//! between leaves both.

use std::sync::Arc;

use crate::check::coverage::OffsetRange;
use crate::disk::{Disk, DiskFile};
use crate::error::{LogError, Result};
use crate::file::{LogFile, segment_name};
use crate::format::footer::{self, FileKind, TrailerFields};
use crate::format::frame::{self, FrameFlags, FrameHeader, FrameKind};
use crate::ids::{Micros, Offset, PartitionId};
use crate::index::{FileIndex, FrameEntry};

/// A segment is finished at this size.
const SEGMENT_BYTES: u64 = 64 << 20;

/// Writes segments one after the other.
pub(super) struct RescueWriter<'a> {
    disk: &'a dyn Disk,
    log_id: u64,
    number: u64,
    open: Option<OpenSegment>,
    pub names: Vec<String>,
}

struct OpenSegment {
    unfinished: String,
    file: Arc<dyn DiskFile>,
    at: u64,
    index: FileIndex,
    /// The offsets that the segment covers. A footer row has one contiguous range for each partition.
    spans: Vec<(PartitionId, OffsetRange)>,
}

impl<'a> RescueWriter<'a> {
    pub fn new(disk: &'a dyn Disk, log_id: u64, number: u64) -> RescueWriter<'a> {
        RescueWriter {
            disk,
            log_id,
            number,
            open: None,
            names: Vec::new(),
        }
    }

    /// Writes the offsets of `span` from `frames`, which are sound and in order, and as gaps in between.
    pub fn range(
        &mut self,
        partition: PartitionId,
        span: OffsetRange,
        source: Option<&LogFile>,
        frames: &[FrameEntry],
    ) -> Result<()> {
        if self
            .open
            .as_ref()
            .is_some_and(|open| open.spans.iter().any(|(id, _)| *id == partition))
        {
            self.finish()?;
        }
        let mut at = span.0;
        let mut first = at;
        let mut time = frames.first().map_or(0, |entry| entry.header.base_time);
        for entry in frames {
            let header = &entry.header;
            if header.next() <= at || header.base >= span.1 {
                continue;
            }
            if header.base > at {
                self.gap(partition, (at, header.base), time)?;
            }
            if let Some(source) = source {
                let body = source.body(entry)?;
                self.segment()?.push(header, &body)?;
            }
            (at, time) = (header.next().min(span.1), header.max_time);
            let full = self.open.as_ref().is_some_and(|open| open.at >= SEGMENT_BYTES);
            if full && at < span.1 {
                self.segment()?.spans.push((partition, (first, at)));
                self.finish()?;
                first = at;
            }
        }
        if at < span.1 {
            self.gap(partition, (at, span.1), time)?;
        }
        self.segment()?.spans.push((partition, (first, span.1)));
        Ok(())
    }

    /// Writes gap frames for lost offsets. Their time is that of a neighbouring frame, so that times stay in order.
    fn gap(&mut self, partition: PartitionId, (from, to): OffsetRange, time: Micros) -> Result<()> {
        let mut base: Offset = from;
        while base < to {
            let span = u32::try_from(to - base).unwrap_or(u32::MAX);
            let header = FrameHeader {
                kind: FrameKind::Gap,
                flags: FrameFlags::NONE,
                body_len: 0,
                body_crc: crc32c::crc32c(&[]),
                partition,
                base,
                records: 0,
                last_delta: span,
                base_time: time,
                max_time: time,
            };
            self.segment()?.push(&header, &[])?;
            base += u64::from(span);
        }
        Ok(())
    }

    fn segment(&mut self) -> Result<&mut OpenSegment> {
        if self.open.is_none() {
            let unfinished = format!("new-segment-{:016}", self.number);
            let file = self
                .disk
                .create(&unfinished)
                .map_err(LogError::io("cannot make", &unfinished))?;
            self.open = Some(OpenSegment {
                unfinished,
                file,
                at: 0,
                index: FileIndex::default(),
                spans: Vec::new(),
            });
        }
        self.open.as_mut().ok_or(LogError::Closed)
    }

    /// Finishes the open segment durably, including its name.
    pub fn finish(&mut self) -> Result<()> {
        let Some(mut segment) = self.open.take() else {
            return Ok(());
        };
        let mut rows = segment.index.holdings();
        for row in &mut rows {
            let own = segment.spans.iter().find(|(id, _)| *id == row.partition);
            if let Some((_, (first, next))) = own {
                (row.first, row.next) = (*first, *next);
            }
        }
        let bounds = TrailerFields {
            kind: FileKind::Segment,
            file: self.number,
            first: 0,
            last: 0,
            synced: 0,
            end: segment.at,
            log_id: self.log_id,
        };
        let footer = footer::encode(&segment.index, &rows, &bounds);
        segment.write(&footer)?;
        let name = segment_name(self.number);
        segment
            .file
            .sync()
            .map_err(LogError::io("cannot sync", &segment.unfinished))?;
        let named = self
            .disk
            .rename(&segment.unfinished, &name)
            .and_then(|()| self.disk.sync_names());
        named.map_err(LogError::io("cannot rename to", &name))?;
        self.number += 1;
        self.names.push(name);
        Ok(())
    }
}

impl OpenSegment {
    fn push(&mut self, header: &FrameHeader, body: &[u8]) -> Result<()> {
        let mut bytes = Vec::with_capacity(frame::LEN + body.len());
        header.encode(&mut bytes);
        bytes.extend_from_slice(body);
        self.index.push(FrameEntry {
            header: *header,
            body_at: self.at + frame::LEN as u64,
        });
        self.write(&bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_at(bytes, self.at);
        written.map_err(LogError::io("cannot write", &self.unfinished))?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}
