//! Follows the frames of a segment by their own headers, one after the other: what the index should contain, which
//! frames are damaged, and where a newer program wrote one.

use std::collections::BTreeMap;

use super::outline::{FooterState, bytes};
use super::salvage;
use super::scan::ScannedFile;
use crate::file::LogFile;
use crate::format::footer;
use crate::format::frame::{self, FrameHeader};
use crate::format::newer::NewerVersion;
use crate::ids::{Offset, PartitionId};
use crate::index::FrameEntry;

/// The frames of a segment in file order.
#[derive(Default)]
pub(super) struct SegmentFrames {
    pub entries: Vec<FrameEntry>,
    /// Bytes between frames that belong to no frame.
    pub bad: Vec<(u64, u64)>,
    /// The position and version of a frame of a newer program, at which the walk stops.
    pub newer: Option<(u64, NewerVersion)>,
}

impl ScannedFile {
    /// Reads the frames of a segment by their own headers.
    pub(super) fn frames_in_row(&self) -> SegmentFrames {
        let file = &self.outline.file;
        // If the end of the frames is unknown, they may reach to the end of the file, and the last one beyond it if the
        // file was cut short. A start does the same: it treats a frame with an incomplete body as damaged and does not
        // leave it out.
        let end_known = self.outline.footer.trailer().map(|trailer| trailer.end);
        let limit = end_known.unwrap_or(file.size);
        let mut row = SegmentFrames::default();
        let mut next: BTreeMap<PartitionId, Offset> = BTreeMap::new();
        let mut at = 0;
        while at < limit {
            let start = bytes(file, at, frame::LEN);
            row.newer = FrameHeader::newer(&start).map(|newer| (at, newer));
            if row.newer.is_some() {
                break;
            }
            let header = FrameHeader::decode(&start);
            let end = |header: &FrameHeader| at + (frame::LEN as u64) + u64::from(header.body_len);
            // The index after the frames begins with the header of the first frame.
            let goes_on = |header: &FrameHeader| next.get(&header.partition).is_none_or(|next| header.base >= *next);
            match header.filter(|header| goes_on(header) && end_known.is_none_or(|known| end(header) <= known)) {
                Some(header) => {
                    next.insert(header.partition, header.next());
                    row.entries.push(FrameEntry {
                        header,
                        body_at: at + frame::LEN as u64,
                    });
                    at = end(&header);
                }
                None => match next_in(file, at, limit, &next) {
                    Some(found) => {
                        row.bad.push((at, found - at));
                        at = found;
                    }
                    None => {
                        if end_known.is_some() {
                            row.bad.push((at, limit - at));
                        }
                        break;
                    }
                },
            }
        }
        // Without a trailer the index must begin here; otherwise the bytes are unknown data.
        let is_index = || footer::begins(&bytes(file, at, footer::ENTRY_LEN), |entry| row.entries.contains(entry));
        if end_known.is_none() && row.newer.is_none() && !is_index() {
            row.bad.push((at.min(file.size), file.size.saturating_sub(at)));
        }
        row
    }

    /// The first frame of a newer program in a segment.
    pub fn newer_frame(&self) -> Option<(u64, NewerVersion)> {
        let FooterState::Whole(..) = &self.outline.footer else {
            return self.frames_in_row().newer;
        };
        let (mut found, file) = (None, &self.outline.file);
        self.each_entry(&mut |entry| {
            let at = entry.body_at.saturating_sub(frame::LEN as u64);
            found = found.or_else(|| Some((at, FrameHeader::newer(&bytes(file, at, frame::LEN))?)));
        });
        found
    }

    /// Damaged frame headers of a segment.
    pub fn bad_frames(&self) -> Vec<(u64, u64)> {
        let file = &self.outline.file;
        let FooterState::Whole(trailer, _) = &self.outline.footer else {
            return self.frames_in_row().bad;
        };
        let entries = bytes(file, file.size - trailer.footer_len(), trailer.entries_len());
        let index = trailer.index(&entries).unwrap_or_default();
        let mut bad = Vec::new();
        for entry in index.partitions().flat_map(|(_, entries)| entries) {
            let at = entry.body_at.saturating_sub(frame::LEN as u64);
            if FrameHeader::decode(&bytes(file, at, frame::LEN)) != Some(entry.header) {
                bad.push((at, frame::LEN as u64));
            }
        }
        bad
    }
}

/// The next frame of a segment after damaged bytes.
fn next_in(file: &LogFile, at: u64, limit: u64, next: &BTreeMap<PartitionId, Offset>) -> Option<u64> {
    let rest = bytes(file, at, (limit - at) as usize);
    let mut from = 1;
    while let Some((found, header)) = salvage::next_frame(&rest, from) {
        if next.get(&header.partition).is_none_or(|next| header.base >= *next) {
            return Some(at + found as u64);
        }
        from = found + 1;
    }
    None
}
