//! The history of the difference between the wall clock and log time.
//!
//! Stored format: version 1 · wall clock minus log time before the first jump 8 · number of jumps as varint · for each
//! jump: log time 8, wall clock minus log time from then on 8.

use std::sync::{Arc, LazyLock};

use thalweg_kit::varint;

use crate::format::{FieldReader, FieldWriter};
use crate::ids::Micros;

/// Older jumps are dropped, because a clock that is set every second for minutes must not fill the log.
pub(crate) const JUMPS_MAX: usize = 512;

const VERSION: u8 = 1;

/// A running process notices a clock that was set back within a second; otherwise the next start does. Timestamps taken
/// in between are before the recorded log time of the jump. Up to this long before a jump, a timestamp may therefore
/// already come from the new setting.
const SEEN_WITHIN: Micros = 60_000_000;

/// A step of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockJump {
    /// The log time at which the jump was noticed.
    pub at: Micros,
    /// Wall clock minus log time, before the jump and after it.
    pub before: Micros,
    pub offset: Micros,
}

impl ClockJump {
    /// How far the wall clock was set. Negative if it was set back.
    pub fn by(&self) -> Micros {
        self.offset.saturating_sub(self.before)
    }
}

/// All known jumps of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockJumps {
    /// Wall clock minus log time before the first jump.
    first: Micros,
    /// Log time of a jump and the wall clock minus log time from then on, in the order of log time.
    list: Vec<(Micros, Micros)>,
}

impl ClockJumps {
    /// The history of a log whose wall clock was never set.
    pub fn none() -> Arc<ClockJumps> {
        static NONE: LazyLock<Arc<ClockJumps>> = LazyLock::new(Arc::default);
        NONE.clone()
    }

    /// The difference has always been `first`.
    pub(crate) fn starting_with(first: Micros) -> ClockJumps {
        ClockJumps {
            first,
            list: Vec::new(),
        }
    }

    /// The current wall clock minus log time.
    pub fn offset(&self) -> Micros {
        self.list.last().map_or(self.first, |(_, offset)| *offset)
    }

    pub fn newest(&self) -> Option<ClockJump> {
        let (at, offset) = *self.list.last()?;
        let before = self.list.iter().rev().nth(1).map_or(self.first, |(_, offset)| *offset);
        Some(ClockJump { at, before, offset })
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(crate) fn and(&self, jump: ClockJump) -> ClockJumps {
        let mut jumps = self.clone();
        jumps.list.push((jump.at, jump.offset));
        let forgotten = jumps.list.len().saturating_sub(JUMPS_MAX);
        if let Some((_, offset)) = jumps.list.drain(..forgotten).next_back() {
            jumps.first = offset;
        }
        jumps
    }

    /// What the wall clock showed at a log time.
    pub fn wall_at(&self, time: Micros) -> Micros {
        let later = self.list.partition_point(|(at, _)| *at <= time);
        let offset = later.checked_sub(1).and_then(|n| self.list.get(n));
        time.saturating_add(offset.map_or(self.first, |(_, offset)| *offset))
    }

    /// The last log time at which the wall clock shows a time or stepped over it. It is in the future if the wall clock
    /// has not reached the time.
    pub fn at_wall(&self, wall: Micros) -> Micros {
        self.times_of(wall).next().unwrap_or(wall)
    }

    /// The first log time at which the wall clock showed this time or a later one.
    pub fn first_at_wall(&self, wall: Micros) -> Micros {
        self.times_of(wall).last().unwrap_or(wall)
    }

    /// The earliest time that the wall clock has shown between the log times `since` and `now`. Data with an earlier
    /// timestamp is older than `since`; data with a later timestamp may be.
    pub fn least_wall_since(&self, since: Micros, now: Micros) -> Micros {
        let sets = self.list.iter().filter(|(at, _)| (since..=now).contains(at));
        let shown = sets.map(|(at, offset)| at.saturating_add(*offset).saturating_sub(SEEN_WITHIN));
        shown.fold(self.wall_at(since), Micros::min)
    }

    /// Whether data stamped `wall` or later may be followed by data stamped before `wall`, because the wall clock was
    /// set back across that time.
    pub fn may_fall_below(&self, wall: Micros) -> bool {
        let mut ahead = self.first;
        self.list.iter().any(|(at, offset)| {
            let (before, after) = (at.saturating_add(ahead), at.saturating_add(*offset));
            ahead = *offset;
            after < before && before >= wall && after.saturating_sub(SEEN_WITHIN) < wall
        })
    }

    /// The log times at which the wall clock reached a time or was set past it, the last one first.
    fn times_of(&self, wall: Micros) -> impl Iterator<Item = Micros> {
        let mut until = Micros::MAX;
        let first = std::iter::once((Micros::MIN, self.first));
        let spans: Vec<(Micros, Micros)> = first.chain(self.list.iter().copied()).collect();
        let times: Vec<Micros> = spans
            .into_iter()
            .rev()
            .filter_map(|(from, offset)| {
                let (time, end) = (wall.saturating_sub(offset), std::mem::replace(&mut until, from));
                // A time beyond the end of the span: the clock stepped over it there, or reached it in the next span.
                let was_shown = time >= from && time < end;
                let was_unseen = from != Micros::MIN && time < from && time >= from.saturating_sub(SEEN_WITHIN);
                let next_begins_behind = end != Micros::MAX && time >= end && self.wall_at(end) >= wall;
                match (was_shown, next_begins_behind) {
                    (true, _) => Some(time),
                    (_, true) => Some(end),
                    // Only a clock that was set back can have shown the time before the jump was noticed.
                    _ if was_unseen && self.wall_at(from - 1) > wall => Some(from),
                    _ => None,
                }
            })
            .collect();
        times.into_iter()
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + 16 * self.list.len());
        FieldWriter(&mut out).u8(VERSION).i64(self.first);
        varint::put(&mut out, self.list.len() as u64);
        for (at, offset) in &self.list {
            FieldWriter(&mut out).i64(*at).i64(*offset);
        }
        out
    }

    /// Returns `None` if the bytes are malformed or the jumps are not in order.
    pub(crate) fn decode(bytes: &[u8]) -> Option<ClockJumps> {
        let mut take = FieldReader(bytes);
        if take.u8()? != VERSION {
            return None;
        }
        let first = take.i64()?;
        let (count, rest) = varint::take(take.0)?;
        let mut take = FieldReader(rest);
        let mut list = Vec::new();
        for _ in 0..count.min(JUMPS_MAX as u64) {
            list.push((take.i64()?, take.i64()?));
        }
        let whole = take.0.is_empty() && list.len() as u64 == count;
        (whole && list.is_sorted_by_key(|(at, _)| *at)).then_some(ClockJumps { first, list })
    }
}
