//! A hierarchical timer wheel with ticks of 1 ms. Handles are armed with the tick at which they are due and fire in
//! tick order, never early.
//!
//! Eight levels of 64 slots cover 8900 years. A timer is on the level of the highest digit (base 64) in which its tick
//! differs from the wheel's time, so it moves down at most seven times. Slots are doubly linked lists through links
//! stored by the owner of the handles. One bitmap per level makes empty time free. Invariant: a slot is occupied
//! exactly when its bit is set, and no timer is due before the wheel's time. The slots are allocated with the first
//! timer, because most groups have nothing in most of their partitions. (A heap needs O(log n) and a search to remove;
//! nearly all timers here are removed before they are due.)

use thalweg_log::Micros;

use super::chain::NIL;

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = 8;
const TICK_MAX: u64 = (1 << (BITS as u64 * LEVELS as u64)) - 1;
const TICK: Micros = 1000;

const IDLE: u16 = u16::MAX;
const FIRING: u16 = u16::MAX - 1;

/// The links of a timer, stored by its owner.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    tick: u64,
    prev: u32,
    next: u32,
    slot: u16,
}

impl Timer {
    pub const IDLE: Timer = Timer {
        tick: 0,
        prev: NIL,
        next: NIL,
        slot: IDLE,
    };

    #[cfg(debug_assertions)]
    pub fn is_armed(&self) -> bool {
        self.slot < FIRING
    }
}

/// Gives access to the timer of a handle.
pub trait Timers {
    fn timer(&mut self, handle: u32) -> &mut Timer;
}

pub struct TimerWheel {
    time: u64,
    occupied: [u64; LEVELS],
    heads: Option<Box<Heads>>,
}

/// The first handle of each slot.
type Heads = [u32; SLOTS * LEVELS];

/// The first tick at which something due at `due` may happen.
fn tick_of(due: Micros) -> u64 {
    (due.max(0) as u64).div_ceil(TICK as u64).min(TICK_MAX)
}

fn digit(tick: u64, level: usize) -> u32 {
    (tick >> (BITS as usize * level)) as u32 & (SLOTS as u32 - 1)
}

impl TimerWheel {
    /// Memory of the slots.
    pub const SLOTS_BYTES: usize = size_of::<Heads>();

    pub fn new(now: Micros) -> Self {
        let time = now.max(0) as u64 / TICK as u64;
        TimerWheel {
            time: time.min(TICK_MAX),
            occupied: [0; LEVELS],
            heads: None,
        }
    }

    /// Starts the timer of `handle`, which must be idle. A due time in the past fires at the next `fire`.
    pub fn arm(&mut self, timers: &mut impl Timers, handle: u32, due: Micros) {
        debug_assert_eq!(timers.timer(handle).slot, IDLE);
        self.link(timers, handle, tick_of(due).max(self.time));
    }

    /// Stops the timer, if it runs.
    pub fn cancel(&mut self, timers: &mut impl Timers, handle: u32) {
        let timer = timers.timer(handle);
        let Timer { prev, next, slot, .. } = *timer;
        timer.slot = IDLE;
        if slot >= FIRING {
            return;
        }
        if next != NIL {
            timers.timer(next).prev = prev;
        }
        if prev != NIL {
            timers.timer(prev).next = next;
            return;
        }
        *self.head(usize::from(slot)) = next;
        if next == NIL {
            self.occupied[usize::from(slot) / SLOTS] &= !(1 << (usize::from(slot) % SLOTS));
        }
    }

    /// A time not after the earliest timer: exact within 64 ms of it, and earlier than it while the timer must still
    /// move down a level.
    pub fn next_due(&self) -> Option<Micros> {
        self.next_slot().map(|(_, _, start)| start as Micros * TICK)
    }

    /// Moves the wheel to the next tick at or before `now` at which timers are due and puts them into `due`; false when
    /// none is left. Until `take_fired` each of them can still be cancelled.
    pub fn fire(&mut self, timers: &mut impl Timers, now: Micros, due: &mut Vec<u32>) -> bool {
        let now = (now.max(0) as u64 / TICK as u64).min(TICK_MAX);
        while let Some((level, slot, start)) = self.next_slot()
            && start <= now
        {
            self.time = self.time.max(start);
            let index = level * SLOTS + slot as usize;
            let mut handle = std::mem::replace(self.head(index), NIL);
            self.occupied[level] &= !(1 << slot);
            while handle != NIL {
                let timer = timers.timer(handle);
                let (next, tick) = (timer.next, timer.tick);
                if level == 0 {
                    timer.slot = FIRING;
                    due.push(handle);
                } else {
                    self.link(timers, handle, tick);
                }
                handle = next;
            }
            if level == 0 {
                return true;
            }
        }
        self.time = self.time.max(now);
        false
    }

    /// Whether a handle that `fire` returned is still due.
    pub fn take_fired(timers: &mut impl Timers, handle: u32) -> bool {
        let timer = timers.timer(handle);
        let fired = timer.slot == FIRING;
        if fired {
            timer.slot = IDLE;
        }
        fired
    }

    fn link(&mut self, timers: &mut impl Timers, handle: u32, tick: u64) {
        let differing = (tick ^ self.time) | (SLOTS as u64 - 1);
        let level = (63 - differing.leading_zeros()) / BITS;
        let slot = digit(tick, level as usize);
        let index = level as usize * SLOTS + slot as usize;
        let head = std::mem::replace(self.head(index), handle);
        *timers.timer(handle) = Timer {
            tick,
            prev: NIL,
            next: head,
            slot: index as u16,
        };
        if head == NIL {
            self.occupied[level as usize] |= 1 << slot;
        } else {
            timers.timer(head).prev = handle;
        }
    }

    #[inline]
    fn head(&mut self, index: usize) -> &mut u32 {
        let heads = self.heads.get_or_insert_with(|| Box::new([NIL; SLOTS * LEVELS]));
        &mut heads[index]
    }

    /// Level, slot and first tick of the earliest occupied slot. Lower levels are earlier than higher ones.
    fn next_slot(&self) -> Option<(usize, u32, u64)> {
        let level = self.occupied.iter().position(|bits| *bits != 0)?;
        let slot = self.occupied[level].trailing_zeros();
        let shift = BITS as usize * level;
        let above = (self.time >> shift) & !(SLOTS as u64 - 1);
        Some((level, slot, (above | u64::from(slot)) << shift))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One(Timer);

    impl Timers for One {
        fn timer(&mut self, _handle: u32) -> &mut Timer {
            &mut self.0
        }
    }

    #[test]
    fn a_wheel_takes_no_memory_for_its_slots_before_the_first_timer() {
        let (mut wheel, mut one, mut due) = (TimerWheel::new(0), One(Timer::IDLE), Vec::new());
        assert!(
            size_of::<TimerWheel>() < TimerWheel::SLOTS_BYTES / 8,
            "{}",
            size_of::<TimerWheel>()
        );
        assert!(!wheel.fire(&mut one, 5_000_000, &mut due) && wheel.next_due().is_none());
        wheel.cancel(&mut one, 0);
        assert!(wheel.heads.is_none(), "nothing was armed");
        wheel.arm(&mut one, 0, 6_000_000);
        assert!(wheel.heads.is_some() && wheel.fire(&mut one, 6_000_000, &mut due));
        assert_eq!(due, [0]);
    }
}
