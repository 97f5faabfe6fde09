//! What a file holds of each partition: the offsets that can be read, those that are damaged, and those it records as
//! lost. Consecutive offsets are merged into one range, so that a file with many frames takes little memory.

use std::collections::BTreeMap;

use crate::format::frame::FrameKind;
use crate::ids::{Offset, PartitionId};
use crate::index::FrameEntry;

/// First offset (inclusive) and end offset (exclusive).
pub(crate) type OffsetRange = (Offset, Offset);

pub(crate) type FileCoverage = BTreeMap<PartitionId, PartitionCoverage>;

#[derive(Clone, Debug, Default)]
pub(crate) struct PartitionCoverage {
    /// The first offset of all frames, including damaged ones.
    pub first: Offset,
    pub next: Offset,
    pub bytes: u64,
    pub frames: u64,
    pub sound: Vec<OffsetRange>,
    pub gaps: Vec<OffsetRange>,
    /// The offset of each checkpoint, and whether the checkpoint can be read.
    pub checkpoints: Vec<(Offset, bool)>,
}

impl PartitionCoverage {
    /// Adds the next frame. Frames must be added in the order of their offsets.
    pub fn add(&mut self, entry: &FrameEntry, sound: bool) {
        let header = &entry.header;
        let span = (header.base, header.next());
        if self.frames == 0 {
            self.first = span.0;
        }
        self.first = self.first.min(span.0);
        self.next = self.next.max(span.1);
        self.frames += 1;
        self.bytes += u64::from(header.body_len);
        if header.kind == FrameKind::Checkpoint {
            self.checkpoints.push((header.base, sound));
        }
        if !sound {
            return;
        }
        if header.kind == FrameKind::Gap {
            join(&mut self.gaps, span);
        }
        join(&mut self.sound, span);
    }
}

fn join(spans: &mut Vec<OffsetRange>, span: OffsetRange) {
    match spans.last_mut().filter(|last| last.1 == span.0) {
        Some(last) => last.1 = span.1,
        None if span.0 < span.1 => spans.push(span),
        None => {}
    }
}

/// The parts of `whole` that none of `spans` covers.
pub(crate) fn without(whole: OffsetRange, spans: &[OffsetRange]) -> Vec<OffsetRange> {
    let mut sorted = spans.to_vec();
    sorted.sort_unstable();
    let mut left = Vec::new();
    let mut at = whole.0;
    for (first, next) in sorted {
        if first >= whole.1 {
            break;
        }
        if first > at {
            left.push((at, first));
        }
        at = at.max(next);
    }
    if at < whole.1 {
        left.push((at, whole.1));
    }
    left
}

/// The parts of `spans` that lie within `whole`.
pub(crate) fn within(whole: OffsetRange, spans: &[OffsetRange]) -> Vec<OffsetRange> {
    let cut = spans.iter().map(|span| (span.0.max(whole.0), span.1.min(whole.1)));
    cut.filter(|span| span.0 < span.1).collect()
}

pub(crate) fn overlap(one: OffsetRange, other: OffsetRange) -> bool {
    one.0 < other.1 && other.0 < one.1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_offset_is_covered_or_left_over(
            whole in (0..50u64, 0..50u64), spans in prop::collection::vec((0..60u64, 0..9u64), 0..8),
        ) {
            let spans: Vec<OffsetRange> = spans.into_iter().map(|(first, len)| (first, first + len)).collect();
            let inside = |at: u64, spans: &[OffsetRange]| spans.iter().any(|span| span.0 <= at && at < span.1);
            let (left, cut) = (without(whole, &spans), within(whole, &spans));
            for at in 0..60 {
                let wanted = inside(at, &[whole]);
                prop_assert_eq!(inside(at, &left), wanted && !inside(at, &spans), "{}", at);
                prop_assert_eq!(inside(at, &cut), wanted && inside(at, &spans), "{}", at);
            }
        }
    }
}
