//! Salvages frames from a damaged block. Each frame has its own checksums, so frames with a sound header and body can
//! be found: from the front up to the first damaged header, and from the end back to the last damaged one.

use crate::format::block::{self, BlockHeader};
use crate::format::frame::{self, FrameHeader};
use crate::format::{PAGE, pages};
use crate::index::FrameEntry;

/// The search stops after more than this many damaged frame headers in a row.
const DAMAGED_HEADERS_MAX: usize = 64;

/// Without a block header the number of frames is unknown. Up to this many frame headers at the end may be unreadable.
const MISSING_AT_END_MAX: usize = 3;

/// Sound frames in `bytes`, which are at position `at` of a file where damaged blocks are.
pub(crate) fn frames(bytes: &[u8], at: u64) -> Vec<FrameEntry> {
    let mut found = Vec::new();
    let mut start = 0;
    while let Some(rest) = bytes.get(start..).filter(|rest| rest.len() >= block::LEN) {
        let (entries, len) = block(rest, at + start as u64);
        found.extend(entries);
        start += len.max(PAGE);
    }
    found
}

/// The frames of the block that may begin with `bytes`, and the length of the block.
fn block(bytes: &[u8], at: u64) -> (Vec<FrameEntry>, usize) {
    let header = BlockHeader::decode(bytes);
    let slots = slots(bytes);
    let seen = slots.len();
    if slots.iter().all(Option::is_none) {
        return (Vec::new(), PAGE);
    }
    let stated = header.map(|header| usize::from(header.frames));
    let counts = stated.into_iter().chain(seen..=seen + MISSING_AT_END_MAX);
    let len = header
        .map(|header| header.block_len as usize)
        .filter(|len| *len <= bytes.len());
    let mut best = (Vec::new(), PAGE);
    for count in counts.filter(|count| *count >= seen) {
        let tried = with_count(bytes, at, &slots, count, len);
        if tried.0.len() > best.0.len() {
            best = tried;
        }
    }
    best
}

/// The frame headers by position, up to the last sound one.
fn slots(bytes: &[u8]) -> Vec<Option<FrameHeader>> {
    let mut slots = Vec::new();
    let mut missing = 0;
    for bytes in bytes.get(block::LEN..).unwrap_or_default().chunks_exact(frame::LEN) {
        let header = FrameHeader::decode(bytes);
        missing = if header.is_some() { 0 } else { missing + 1 };
        if missing > DAMAGED_HEADERS_MAX {
            break;
        }
        slots.push(header);
    }
    let last = slots.iter().rposition(Option::is_some);
    slots.truncate(last.map_or(0, |last| last + 1));
    slots
}

fn with_count(
    bytes: &[u8],
    at: u64,
    slots: &[Option<FrameHeader>],
    count: usize,
    len: Option<usize>,
) -> (Vec<FrameEntry>, usize) {
    let bodies = block::LEN + count * frame::LEN;
    let mut found = Vec::new();
    let mut position = bodies;
    let front = slots.iter().map_while(|slot| *slot);
    for header in front {
        take(bytes, at, &header, position, &mut found);
        position += header.body_len as usize;
    }
    let front = slots.iter().take_while(|slot| slot.is_some()).count();
    if front == count {
        return (found, pages(position));
    }
    // If the last headers are unreadable, the positions of the bodies cannot be computed from the end.
    let back: Vec<FrameHeader> = slots.iter().rev().map_while(|slot| *slot).collect();
    if slots.len() == count && front < slots.len() {
        let sum: usize = back.iter().map(|header| header.body_len as usize).sum();
        // Without a length, every page boundary after the last bodies is tried as the end of the block.
        let ends = (pages(position + sum)..=bytes.len()).step_by(PAGE);
        for end in len.into_iter().chain(ends) {
            let tried = from_the_end(bytes, at, &back, position..end);
            if !tried.is_empty() {
                found.extend(tried);
                return (found, end);
            }
        }
    }
    (found, len.unwrap_or(PAGE))
}

/// The last frames of a block that ends at the end of `room`, apart from zeros up to the page boundary.
fn from_the_end(bytes: &[u8], at: u64, back: &[FrameHeader], room: std::ops::Range<usize>) -> Vec<FrameEntry> {
    let sum: usize = back.iter().map(|header| header.body_len as usize).sum();
    for filling in 0..PAGE {
        let Some(start) = room.end.checked_sub(filling + sum).filter(|start| *start >= room.start) else {
            break;
        };
        let mut tried = Vec::new();
        let mut position = start;
        for header in back.iter().rev() {
            take(bytes, at, header, position, &mut tried);
            position += header.body_len as usize;
        }
        // An empty body passes its checksum anywhere and proves nothing.
        if tried.iter().any(|entry| entry.header.body_len > 0) || sum == 0 {
            return tried;
        }
        if bytes.get(room.end - filling - 1) != Some(&0) {
            break;
        }
    }
    Vec::new()
}

fn take(bytes: &[u8], at: u64, header: &FrameHeader, position: usize, found: &mut Vec<FrameEntry>) {
    let body = bytes.get(position..position + header.body_len as usize);
    if body.is_some_and(|body| crc32c::crc32c(body) == header.body_crc) {
        found.push(FrameEntry {
            header: *header,
            body_at: at + position as u64,
        });
    }
}

/// The next sound frame of a segment in `bytes`. Frames in segments are not aligned.
pub(crate) fn next_frame(bytes: &[u8], from: usize) -> Option<(usize, FrameHeader)> {
    let mut at = from;
    while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= frame::LEN) {
        // Only bytes that begin like a frame header are decoded.
        if rest.first() == Some(&b'T')
            && let Some(header) = FrameHeader::decode(rest)
            && let Some(body) = rest.get(frame::LEN..frame::LEN + header.body_len as usize)
            && crc32c::crc32c(body) == header.body_crc
        {
            return Some((at, header));
        }
        at += 1;
    }
    None
}
