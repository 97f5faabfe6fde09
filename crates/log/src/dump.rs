//! `thalweg log dump`: lists the blocks and frames of a log in commit order, then those of its segments, including
//! damaged ones, which are marked. It changes nothing. A log that is being written can be dumped, but its newest block
//! may look torn.

use crate::cache::IndexCache;
use crate::check::INDEX_BYTES;
use crate::check::layout::each_block;
use crate::check::outline::{FileOutline, LogWatermarks};
use crate::check::scan::ScannedFile;
use crate::disk::Disk;
use crate::error::{LogError, Result};
use crate::file::{self, LogFile};
use crate::format::footer::FileKind;
use crate::format::frame::FrameHeader;
use crate::format::newer::NewerVersion;
use crate::format::record::{self, RecordRef};
use crate::ids::{Micros, Offset, PartitionId, Sequence};
use crate::index::FrameEntry;

/// What to dump.
#[derive(Clone, Copy, Debug, Default)]
pub struct DumpOptions {
    /// Only this partition.
    pub partition: Option<PartitionId>,
    /// Only records from this offset on.
    pub from: Offset,
    /// Include the records of each frame.
    pub records: bool,
}

/// One line of a dump.
#[derive(Debug)]
pub enum DumpLine<'a> {
    Block {
        file: &'a str,
        position: u64,
        sequence: Sequence,
        time: Micros,
        synced: Sequence,
        frames: u16,
        bytes: u32,
    },
    /// Bytes where blocks should be.
    Damage {
        file: &'a str,
        position: u64,
        bytes: u64,
    },
    /// Data that a newer program wrote. The rest of the file is not shown.
    Newer {
        file: &'a str,
        position: u64,
        found: NewerVersion,
    },
    Frame {
        file: &'a str,
        /// Position of the body.
        position: u64,
        header: &'a FrameHeader,
        /// The checksum of the body is correct.
        sound: bool,
    },
    Record {
        offset: Offset,
        record: RecordRef<'a>,
    },
}

/// Passes the blocks, frames and records of a log to `line` one by one, until it returns `false`. Fails at the end if a
/// newer program has written part of the log.
pub fn dump(disk: &dyn Disk, options: &DumpOptions, line: &mut dyn FnMut(&DumpLine<'_>) -> bool) -> Result<()> {
    let names = disk.names().map_err(LogError::io("cannot list", "the log"))?;
    let mut all: Vec<(FileKind, u64)> = names.iter().filter_map(|name| file::parse_name(name)).collect();
    all.sort_unstable_by_key(|(kind, number)| (*kind == FileKind::Segment, *number));
    let cache = IndexCache::new(INDEX_BYTES);
    let mut known = LogWatermarks::default();
    let mut dump = Dump {
        options,
        line,
        newer: None,
        goes_on: true,
    };
    for (kind, number) in all {
        let file = LogFile::open(disk, kind, number, &cache)?.into();
        match kind {
            FileKind::Commit => dump.commit(&FileOutline::of(file, &mut known)?),
            FileKind::Segment => dump.segment(&ScannedFile::of_segment(file)?),
        }
        if !dump.goes_on {
            break;
        }
    }
    dump.newer.map_or(Ok(()), Err)
}

struct Dump<'a> {
    options: &'a DumpOptions,
    line: &'a mut dyn FnMut(&DumpLine<'_>) -> bool,
    /// The error for the first data of a newer program.
    newer: Option<LogError>,
    goes_on: bool,
}

impl Dump<'_> {
    fn put(&mut self, line: &DumpLine<'_>) {
        self.goes_on = self.goes_on && (self.line)(line);
    }

    fn commit(&mut self, outline: &FileOutline) {
        let name = &outline.file.name;
        for stretch in &outline.stretches {
            if !stretch.sound {
                self.put(&DumpLine::Damage {
                    file: name,
                    position: stretch.at,
                    bytes: stretch.end - stretch.at,
                });
                continue;
            }
            each_block(outline, stretch, |at, header| {
                // With a partition filter, blocks are not listed.
                if self.options.partition.is_none() {
                    self.put(&DumpLine::Block {
                        file: name,
                        position: at,
                        sequence: header.sequence,
                        time: header.commit_time,
                        synced: header.synced,
                        frames: header.frames,
                        bytes: header.block_len,
                    });
                }
                match outline.file.block_entries(at, header) {
                    Ok(entries) => entries.iter().for_each(|entry| self.frame(&outline.file, entry)),
                    Err(_) => self.put(&DumpLine::Damage {
                        file: name,
                        position: at,
                        bytes: header.block_len.into(),
                    }),
                }
                self.goes_on
            });
        }
        self.newer(outline);
    }

    fn segment(&mut self, segment: &ScannedFile) {
        let file = &segment.outline.file;
        segment.each_entry(&mut |entry| self.frame(file, entry));
        self.newer(&segment.outline);
    }

    fn newer(&mut self, outline: &FileOutline) {
        let Some((position, found)) = outline.newer.filter(|_| self.goes_on) else {
            return;
        };
        let file = &outline.file;
        self.put(&DumpLine::Newer {
            file: &file.name,
            position,
            found,
        });
        self.newer.get_or_insert_with(|| file.newer(position, found));
    }

    fn frame(&mut self, file: &LogFile, entry: &FrameEntry) {
        let header = &entry.header;
        let wanted =
            self.options.partition.is_none_or(|id| id == header.partition) && header.next() > self.options.from;
        if !self.goes_on || !wanted {
            return;
        }
        let body = file.body(entry);
        self.put(&DumpLine::Frame {
            file: &file.name,
            position: entry.body_at,
            header,
            sound: body.is_ok(),
        });
        let Ok(body) = body else { return };
        if self.options.records {
            self.records(header, &body);
        }
    }

    fn records(&mut self, header: &FrameHeader, body: &[u8]) {
        let mut next = header.base;
        for record in record::records(body) {
            let Ok(record) = record else { return };
            let offset = record.delta.map_or(next, |delta| header.base + u64::from(delta));
            next = offset + 1;
            if offset >= self.options.from {
                self.put(&DumpLine::Record { offset, record });
            }
        }
    }
}
