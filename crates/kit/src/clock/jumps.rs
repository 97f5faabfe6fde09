//! The history of the difference between the wall clock and log time. It converts either time into the other for any moment
//! of the history, and says what cannot be known.

use std::sync::{Arc, LazyLock};

use crate::time::Micros;

/// Older jumps are dropped, because a clock that is set every second for minutes must not fill the log.
pub const JUMPS_MAX: usize = 512;

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
    pub fn starting_with(first: Micros) -> ClockJumps {
        ClockJumps {
            first,
            list: Vec::new(),
        }
    }

    /// A history of which [`first`](ClockJumps::first) and [`list`](ClockJumps::list) are given. `None` if the jumps are
    /// too many or not in order.
    pub fn from_parts(first: Micros, list: Vec<(Micros, Micros)>) -> Option<ClockJumps> {
        let is_history = list.len() <= JUMPS_MAX && list.is_sorted_by_key(|(at, _)| *at);
        is_history.then_some(ClockJumps { first, list })
    }

    /// Wall clock minus log time before the first jump.
    pub fn first(&self) -> Micros {
        self.first
    }

    /// The log time of each jump and the wall clock minus log time from then on, in the order of log time.
    pub fn list(&self) -> &[(Micros, Micros)] {
        &self.list
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

    /// The history with one more jump, the newest.
    pub fn and(&self, jump: ClockJump) -> ClockJumps {
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
                let next_begins_later = end != Micros::MAX && time >= end && self.wall_at(end) >= wall;
                match (was_shown, next_begins_later) {
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Micros = 1_000_000;

    proptest! {
        #[test]
        fn what_is_stamped_earlier_than_something_before_it_is_known_by_the_jumps(
            jumps in proptest::collection::vec((1..20_i64, -30..30_i64), 0..8),
            wall in -400..1500_i64,
        ) {
            const STEP: Micros = 10 * SECOND;
            let (mut at, mut all, mut goes_back) = (0, ClockJumps::default(), false);
            for (after, offset) in jumps {
                at += after * STEP;
                let (before, offset) = (all.offset(), offset * STEP);
                goes_back |= offset <= before;
                all = all.and(ClockJump { at, before, offset });
            }
            let wall = wall * SECOND;
            let stamps: Vec<Micros> = (0..400).map(|n| all.wall_at(n * STEP / 2)).collect();
            let first = stamps.iter().position(|stamp| *stamp >= wall).unwrap_or(stamps.len());
            let falls = stamps.iter().skip(first).any(|stamp| *stamp < wall);
            prop_assert!(!falls || all.may_fall_below(wall));
            prop_assert!(goes_back || !all.may_fall_below(wall));
        }
    }

    #[test]
    fn a_history_of_parts_is_in_order_and_not_too_long() {
        let all = |list: &[(Micros, Micros)]| ClockJumps::from_parts(7, list.to_vec());
        let jumps = all(&[(1, 5), (1, 6), (2, 4)]).unwrap();
        assert_eq!((jumps.first(), jumps.list()), (7, &[(1, 5), (1, 6), (2, 4)][..]));
        assert_eq!(ClockJumps::from_parts(7, vec![]), Some(ClockJumps::starting_with(7)));
        assert_eq!(all(&[(2, 4), (1, 5)]), None);
        assert!(all(&[(1, 1); JUMPS_MAX]).is_some());
        assert_eq!(all(&[(1, 1); JUMPS_MAX + 1]), None);
    }
}
