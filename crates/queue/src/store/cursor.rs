//! Frames that were read and not fully consumed, with the position of the next record, so that sequential reads need no
//! search. A few earlier frames are kept for redeliveries.

use std::collections::VecDeque;

use thalweg_log::clock::Clock;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Frame, LogError, Offset};

use super::NextMessage;
use crate::message::Message;

#[derive(Default)]
pub(crate) struct Cursor {
    frames: VecDeque<Frame>,
    /// Bytes of their bodies.
    bytes: usize,
    /// The current frame, and offset and position of the next record.
    frame: usize,
    offset: Offset,
    position: usize,
    /// Known not to exist.
    gap: Option<(Offset, Offset)>,
}

impl Cursor {
    pub fn set(&mut self, frames: Vec<Frame>) {
        self.bytes = frames.iter().map(|frame| frame.body.len()).sum();
        self.frames = frames.into();
        (self.frame, self.position, self.gap) = (0, 0, None);
        self.offset = self.frames.front().map_or(0, |frame| frame.header.base);
    }

    /// Memory that it keeps.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.gap.is_none()
    }

    pub fn set_gap(&mut self, from: Offset, to: Offset) {
        self.frames.clear();
        self.bytes = 0;
        self.gap = Some((from, to));
    }

    /// The message at `from` or the first after it, as far as these frames show.
    pub fn at<M>(
        &mut self,
        from: Offset,
        clock: &dyn Clock,
        mut take: impl FnMut(Message) -> M,
    ) -> Option<Result<NextMessage<M>, LogError>> {
        if let Some((_, to)) = self.gap.filter(|(start, end)| (*start..*end).contains(&from)) {
            return Some(Ok(NextMessage::Gap { to, lost: false }));
        }
        if !self.seek(from) {
            return None;
        }
        loop {
            let frame = self.frames.get(self.frame)?;
            if frame.header.kind == FrameKind::Gap {
                return Some(Ok(NextMessage::Gap {
                    to: frame.header.next(),
                    lost: true,
                }));
            }
            let rest = frame.body.get(self.position..).unwrap_or_default();
            if rest.is_empty() {
                let next = frame.header.next();
                self.enter(self.frame + 1);
                let Some(following) = self.frames.get(self.frame) else {
                    // After compaction the records may end before the frame does.
                    return (next > from).then_some(Ok(NextMessage::Gap { to: next, lost: false }));
                };
                if following.header.base > next {
                    let to = following.header.base;
                    return Some(Ok(NextMessage::Gap { to, lost: false }));
                }
                continue;
            }
            let Some((record, after)) = RecordRef::take(rest) else {
                return Some(Err(LogError::Corrupt {
                    file: "memory".to_owned(),
                    position: self.position as u64,
                    expected: None,
                    found: format!(
                        "offset {} of partition {} holds no record",
                        self.offset, frame.header.partition
                    ),
                }));
            };
            let offset = record
                .delta
                .map_or(self.offset, |delta| frame.header.base + u64::from(delta));
            let position = self.position;
            let message = (offset >= from).then(|| take(Message::within(&frame.body, &record, offset, clock)));
            self.position = frame.body.len() - after.len();
            self.offset = offset + 1;
            if let Some(message) = message {
                return Some(Ok(NextMessage::Message(message, position as u32)));
            }
        }
    }

    /// The message at `offset`, whose record was found at `hint` before.
    pub fn again(&self, offset: Offset, hint: u32, clock: &dyn Clock) -> Option<Message> {
        let at = self.frames.partition_point(|frame| frame.header.next() <= offset);
        let frame = self.frames.get(at).filter(|frame| frame.header.base <= offset)?;
        let (mut position, mut next) = (0, frame.header.base);
        if !frame
            .header
            .flags
            .has(thalweg_log::format::frame::FrameFlags::OFFSET_DELTAS)
        {
            // Frames are never changed, only replaced as a whole by frames with deltas.
            (position, next) = (hint as usize, offset);
        }
        loop {
            let rest = frame.body.get(position..)?;
            let (record, after) = RecordRef::take(rest)?;
            let own = record.delta.map_or(next, |delta| frame.header.base + u64::from(delta));
            if own == offset {
                return Some(Message::within(&frame.body, &record, offset, clock));
            }
            position = frame.body.len() - after.len();
            next = own + 1;
        }
    }

    /// Moves to the frame that contains `from`, if it is not there already.
    fn seek(&mut self, from: Offset) -> bool {
        let holds = |frame: &Frame| frame.header.base <= from && from < frame.header.next();
        if self.offset <= from && self.frames.get(self.frame).is_some_and(holds) {
            return true;
        }
        // There may be thousands of frames with one message each.
        let at = self.frames.partition_point(|frame| frame.header.next() <= from);
        let found = self.frames.get(at).is_some_and(holds);
        if found {
            self.enter(at);
        }
        found
    }

    fn enter(&mut self, frame: usize) {
        self.frame = frame;
        self.position = 0;
        self.offset = self.frames.get(frame).map_or(self.offset, |frame| frame.header.base);
    }
}
