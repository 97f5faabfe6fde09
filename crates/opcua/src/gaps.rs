//! Gaps in the data: each is counted and logged once, and marked on the next value of every affected item.

use std::time::Duration;

use thalweg_record::Ticks;

/// Why values may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GapReason {
    /// The server no longer had notifications that were lost with a connection.
    NotRepublished,
    /// Subscriptions and items had to be created again.
    Recreated,
    /// The server's queue of an item overflowed.
    Overflow,
    /// A poll cycle was skipped.
    PollSkipped,
    /// A response with values could not be decoded.
    Undecodable,
}

impl GapReason {
    pub const ALL: [GapReason; 5] = [
        GapReason::NotRepublished,
        GapReason::Recreated,
        GapReason::Overflow,
        GapReason::PollSkipped,
        GapReason::Undecodable,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            GapReason::NotRepublished => "not_republished",
            GapReason::Recreated => "recreated",
            GapReason::Overflow => "overflow",
            GapReason::PollSkipped => "poll_skipped",
            GapReason::Undecodable => "undecodable",
        }
    }
}

/// A span of time in which values may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub from: Ticks,
    pub to: Ticks,
}

impl Gap {
    pub fn length(&self) -> Duration {
        let ticks = self.to.0.saturating_sub(self.from.0).max(0).unsigned_abs();
        Duration::from_nanos(ticks.saturating_mul(100))
    }

    /// Returns the span of both.
    pub fn joined(self, other: Gap) -> Gap {
        Gap {
            from: self.from.min(other.from),
            to: self.to.max(other.to),
        }
    }
}

/// Gaps that items still have to mark. Items store a number; most items have none most of the time.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    open: Vec<OpenGap>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct OpenGap {
    gap: Gap,
    /// Items that have not marked it yet.
    items: usize,
}

/// The number of an item without a gap.
pub(crate) const NO_GAP: u32 = u32::MAX;

impl Gaps {
    /// Opens a gap that affects a number of items, which store the returned number until they mark it.
    pub fn open(&mut self, gap: Gap, items: usize) -> u32 {
        let open = OpenGap { gap, items };
        if items == 0 {
            return NO_GAP;
        }
        if let Some(number) = self.free.pop() {
            if let Some(slot) = self.open.get_mut(number as usize) {
                *slot = open;
            }
            return number;
        }
        self.open.push(open);
        (self.open.len() - 1) as u32
    }

    /// An item has marked its gap, or a later gap replaces it.
    pub fn take(&mut self, number: u32) -> Option<Gap> {
        let open = self.open.get_mut(number as usize)?;
        let gap = open.gap;
        open.items = open.items.saturating_sub(1);
        if open.items == 0 {
            self.free.push(number);
        }
        Some(gap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_marked_by_each_item_once_and_its_number_reused() {
        let mut gaps = Gaps::default();
        let gap = Gap {
            from: Ticks(0),
            to: Ticks(25_000_000),
        };
        let number = gaps.open(gap, 2);
        assert_eq!((gaps.take(number), gaps.take(number)), (Some(gap), Some(gap)));
        assert_eq!(gaps.open(gap, 1), number);
        assert_eq!(gaps.open(gap, 0), NO_GAP);
        assert_eq!(gaps.take(NO_GAP), None);
        assert_eq!(gap.length(), Duration::from_millis(2500));
    }
}
