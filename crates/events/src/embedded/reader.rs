//! Reads records by log offset. A reader keeps the frames that it used last.

use bytes::Bytes;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Frame, Log, LogError, Micros, Offset, PartitionId, ReadOptions};

use super::index::{IndexReadError, IndexReadResult, Io};
use crate::error::EventsError;
use crate::event::StoredEvent;

/// Frames kept by a reader. The messages of a stream are spread over few frames at a time, or are in order.
const FRAMES: usize = 8;

pub(super) struct RecordReader<'a> {
    log: &'a dyn Log,
    id: PartitionId,
    io: Io,
    /// Most recently used last.
    frames: Vec<ParsedFrame>,
}

/// A frame with the positions of its records.
struct ParsedFrame {
    frame: Frame,
    records: Vec<RecordLocation>,
}

/// A record in a frame: its offset minus the frame's first, its time, and the position of its value in the body.
struct RecordLocation {
    delta: u32,
    time: Micros,
    start: u32,
    end: u32,
}

impl<'a> RecordReader<'a> {
    pub fn new(log: &'a dyn Log, id: PartitionId, io: Io) -> RecordReader<'a> {
        RecordReader {
            log,
            id,
            io,
            frames: Vec::new(),
        }
    }

    /// The message at an offset; `None` if the record is gone or is not a message.
    pub fn message(&mut self, offset: Offset) -> IndexReadResult<Option<StoredEvent>> {
        let record = self.record(offset)?;
        Ok(record.and_then(|(value, time)| StoredEvent::new(value, time)))
    }

    /// The value and the time at an offset; `None` if the record is gone.
    pub fn record(&mut self, offset: Offset) -> IndexReadResult<Option<(Bytes, Micros)>> {
        let own = |parsed: &ParsedFrame| (parsed.frame.header.base..parsed.frame.header.next()).contains(&offset);
        match self.frames.iter().position(own) {
            Some(at) => {
                let parsed = self.frames.remove(at);
                self.frames.push(parsed);
            }
            None => {
                let Some(frame) = self.frame(offset)? else {
                    return Ok(None);
                };
                if self.frames.len() == FRAMES {
                    self.frames.remove(0);
                }
                self.frames.push(ParsedFrame::of(frame)?);
            }
        }
        let Some(parsed) = self.frames.last().filter(|parsed| own(parsed)) else {
            return Ok(None);
        };
        let delta = (offset - parsed.frame.header.base) as u32;
        let found = parsed.records.binary_search_by_key(&delta, |place| place.delta);
        let place = found.ok().and_then(|at| parsed.records.get(at));
        Ok(place.map(|place| {
            let value = parsed.frame.body.slice(place.start as usize..place.end as usize);
            (value, place.time)
        }))
    }

    fn frame(&self, offset: Offset) -> IndexReadResult<Option<Frame>> {
        let frames = match self.log.newest(self.id, offset, 1) {
            Ok(Some(frames)) => Ok(frames),
            Ok(None) if self.io == Io::MemoryOnly => return Err(IndexReadError::OnDisk),
            Ok(None) => {
                let want = ReadOptions {
                    bytes: 1,
                    synced: false,
                };
                self.log.read(self.id, offset, want)
            }
            Err(error) => Err(error),
        };
        match frames {
            Ok(frames) => Ok(frames.into_iter().next()),
            Err(LogError::Gap { .. }) => Ok(None),
            Err(error) => Err(IndexReadError::Failed(error.into())),
        }
    }
}

impl ParsedFrame {
    fn of(frame: Frame) -> IndexReadResult<ParsedFrame> {
        let mut records = Vec::with_capacity(frame.header.records as usize);
        let (mut rest, mut next) = (&frame.body[..], 0);
        while !rest.is_empty() {
            let (record, after) = RecordRef::take(rest).ok_or_else(|| {
                let base = frame.header.base;
                EventsError::Damaged(format!("the data after offset {base} is not a record"))
            })?;
            let delta = record.delta.unwrap_or(next);
            // The value is within the body, whose length fits into `u32`.
            let start = (record.value.as_ptr() as usize - frame.body.as_ptr() as usize) as u32;
            records.push(RecordLocation {
                delta,
                time: record.time,
                start,
                end: start + record.value.len() as u32,
            });
            (rest, next) = (after, delta + 1);
        }
        Ok(ParsedFrame { frame, records })
    }
}
