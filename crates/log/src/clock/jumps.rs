//! How far the wall clock was from log time, and since when.
//!
//! Stored: version 1 · ahead before the first jump 8 · number of jumps as varint · for each: log time 8, ahead from then on 8.

use std::sync::{Arc, LazyLock};

use crate::format::{FieldReader, FieldWriter, varint};
use crate::ids::Micros;

/// Of more jumps the oldest are forgotten: a clock that is set every second for minutes must not fill the log.
pub(crate) const JUMPS_MAX: usize = 512;

const VERSION: u8 = 1;

/// A clock that is set back is seen within a second by a process that lives on, and by the next start else. What was stamped between
/// carries times of before the jump as it is known; so much before it they are taken for times of behind it.
const SEEN_WITHIN: Micros = 60_000_000;

/// A step of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockJump {
    /// Log time when it was seen.
    pub at: Micros,
    /// Wall clock less log time, before and from then on.
    pub before: Micros,
    pub offset: Micros,
}

impl ClockJump {
    /// How far the wall clock was set; negative: back.
    pub fn by(&self) -> Micros {
        self.offset.saturating_sub(self.before)
    }
}

/// All jumps of a log that are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClockJumps {
    /// Before the first of them.
    first: Micros,
    /// Log time, and what the wall clock is ahead of it from then on; in the order of the log times.
    list: Vec<(Micros, Micros)>,
}

impl ClockJumps {
    /// Of a log whose wall clock was never set.
    pub fn none() -> Arc<ClockJumps> {
        static NONE: LazyLock<Arc<ClockJumps>> = LazyLock::new(Arc::default);
        NONE.clone()
    }

    /// The wall clock has always been so much ahead.
    pub(crate) fn starting_with(first: Micros) -> ClockJumps {
        ClockJumps {
            first,
            list: Vec::new(),
        }
    }

    /// What the wall clock is ahead of log time by now.
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

    /// The last log time at which the wall clock shows a time, or has stepped over it: in the future if it has yet to come.
    pub fn at_wall(&self, wall: Micros) -> Micros {
        self.times_of(wall).next().unwrap_or(wall)
    }

    /// The first log time at which it showed a time or a later one.
    pub fn first_at_wall(&self, wall: Micros) -> Micros {
        self.times_of(wall).last().unwrap_or(wall)
    }

    /// The earliest time that it has shown from the log time `since` up to `now`: what was stamped earlier is older, and what is
    /// not may be.
    pub fn least_wall_since(&self, since: Micros, now: Micros) -> Micros {
        let sets = self.list.iter().filter(|(at, _)| (since..=now).contains(at));
        let shown = sets.map(|(at, offset)| at.saturating_add(*offset).saturating_sub(SEEN_WITHIN));
        shown.fold(self.wall_at(since), Micros::min)
    }

    /// Whether something stamped `wall` or later may be followed by something that was stamped before `wall`: the wall clock was
    /// set back over that time.
    pub fn may_fall_below(&self, wall: Micros) -> bool {
        let mut ahead = self.first;
        self.list.iter().any(|(at, offset)| {
            let (before, after) = (at.saturating_add(ahead), at.saturating_add(*offset));
            ahead = *offset;
            after < before && before >= wall && after.saturating_sub(SEEN_WITHIN) < wall
        })
    }

    /// The log times at which the wall clock came to show a time or, being set, to show a later one; the last one first.
    fn times_of(&self, wall: Micros) -> impl Iterator<Item = Micros> {
        let mut until = Micros::MAX;
        let first = std::iter::once((Micros::MIN, self.first));
        let spans: Vec<(Micros, Micros)> = first.chain(self.list.iter().copied()).collect();
        let times: Vec<Micros> = spans
            .into_iter()
            .rev()
            .filter_map(|(from, offset)| {
                let (time, end) = (wall.saturating_sub(offset), std::mem::replace(&mut until, from));
                // Later than the end of the span: it was stepped over there, or came to be shown in the next one, again.
                let was_shown = time >= from && time < end;
                let was_unseen = from != Micros::MIN && time < from && time >= from.saturating_sub(SEEN_WITHIN);
                let next_begins_behind = end != Micros::MAX && time >= end && self.wall_at(end) >= wall;
                match (was_shown, next_begins_behind) {
                    (true, _) => Some(time),
                    (_, true) => Some(end),
                    // Only a clock that was set back can have shown it before that was seen.
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

    /// `None` for bytes that are none, or whose times are in no order.
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
