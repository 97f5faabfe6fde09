//! The journal: changes as records that a restart applies in order. A record is kind, length and body.
//!
//! | Kind | Body |
//! |---|---|
//! | 1 leases | runs of offsets with consumer, time, deadline and delivery number |
//! | 2 settles | runs of offsets with their final state |
//! | 3 failed | offset, deliveries, failures, retry time or reason to leave |
//! | 4 released | offset, deliveries |
//! | 5 extended | offset, deadline |
//! | 6 held | all facts of a message, because the floor passes it |
//! | 7 seek, 8 purge | offset |
//! | 9 sleeps | runs of long-delayed offsets, with a time not after the first of them is due |
//! | 10 leases | the epoch of all of them, then as 1 |
//! | 11 held | as 6, with the epoch of the last lease |
//!
//! Kinds 1 and 6 are from earlier versions, which had no epochs.
//!
//! Sleeps, leases and settles are collected as runs and written in this order when another kind follows. For one
//! message that is the order of events: between two other records it is put to sleep, leased and settled at most once
//! each, in this order. Across messages it is not: a settle that raised the floor comes after later messages that were
//! then put to sleep or leased. A restart rejects offsets at a distance of [`WINDOW_MAX`] or more from the floor, so
//! the runs are written before such an offset. So a batch of claims or acks is one record of a few bytes, and one
//! message of it costs no more than a counter.

use thalweg_kit::varint::{put, put_signed};
use thalweg_log::{Micros, Offset};

use super::codec::MessageSnapshot;
use super::delayed_set::SPAN;
use super::types::{FinalState, RemovalReason, WINDOW_MAX};

pub const LEASES: u8 = 1;
pub const SETTLES: u8 = 2;
pub const FAILED: u8 = 3;
pub const RELEASED: u8 = 4;
pub const EXTENDED: u8 = 5;
pub const HELD: u8 = 6;
pub const SEEK: u8 = 7;
pub const PURGE: u8 = 8;
pub const SLEEPS: u8 = 9;
pub const LEASES_IN_EPOCH: u8 = 10;
pub const HELD_IN_EPOCH: u8 = 11;

/// Longest run of leases. A reader creates one entry per message, so a few corrupt bytes must not create millions.
pub const LEASE_RUN_MAX: u64 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseRun {
    pub first: Offset,
    pub len: u64,
    pub consumer: u32,
    pub now: Micros,
    pub deadline: Micros,
    pub delivery: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettleRun {
    pub first: Offset,
    pub len: u64,
    pub kind: FinalState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DelayRun {
    first: Offset,
    len: u64,
    wake: Micros,
}

/// The consequence of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureVerdict {
    Retry(Micros),
    Ending(RemovalReason),
}

#[derive(Default)]
pub struct Journal {
    off: bool,
    out: Vec<u8>,
    body: Vec<u8>,
    leases: Vec<u8>,
    lease: Option<LeaseRun>,
    /// The previous lease item, against which the next one is delta-encoded.
    lease_context: LeaseContext,
    settles: Vec<u8>,
    settle: Option<SettleRun>,
    settle_end: Offset,
    epoch: u32,
    sleeps: Vec<u8>,
    sleep: Option<DelayRun>,
    sleep_end: Offset,
    /// A restart accepts offsets below this before it has read the collected settles.
    reach: Offset,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseContext {
    pub end: Offset,
    pub consumer: u32,
    pub now: Micros,
    pub deadline: Micros,
}

impl Journal {
    pub fn turn_off(&mut self) {
        *self = Journal {
            off: true,
            ..Journal::default()
        };
    }

    /// `floor` is the current floor.
    #[inline]
    pub fn lease(&mut self, lease: LeaseRun, floor: Offset) {
        if self.off {
            return;
        }
        self.reach(lease.first, floor);
        if let Some(run) = &mut self.lease {
            let next = LeaseRun {
                first: run.first + run.len,
                len: 1,
                ..*run
            };
            if next == lease && run.len < LEASE_RUN_MAX {
                run.len += 1;
                return;
            }
            let run = *run;
            self.encode_run(&run);
        }
        self.lease = Some(lease);
    }

    fn encode_run(&mut self, run: &LeaseRun) {
        if self.leases.is_empty() {
            put(&mut self.leases, self.epoch.into());
        }
        encode_lease(run, &mut self.lease_context, &mut self.leases);
    }

    /// The epoch of the leases that follow.
    pub fn set_epoch(&mut self, epoch: u32) {
        self.flush();
        self.epoch = epoch;
    }

    #[inline]
    pub fn settle(&mut self, first: Offset, len: u64, kind: FinalState) {
        if self.off {
            return;
        }
        if let Some(run) = &mut self.settle {
            if run.kind == kind && run.first + run.len == first {
                run.len += len;
                return;
            }
            let run = *run;
            encode_settle(&run, &mut self.settle_end, &mut self.settles);
        }
        self.settle = Some(SettleRun { first, len, kind });
    }

    pub fn sleep(&mut self, offset: Offset, wake: Micros, floor: Offset) {
        if self.off {
            return;
        }
        self.reach(offset, floor);
        if let Some(run) = &mut self.sleep {
            // Runs stay within one span, because a span stores only its earliest time.
            if run.first + run.len == offset && !offset.is_multiple_of(SPAN) {
                run.len += 1;
                run.wake = run.wake.min(wake);
                return;
            }
            let run = *run;
            encode_sleep(&run, &mut self.sleep_end, &mut self.sleeps);
        }
        self.sleep = Some(DelayRun {
            first: offset,
            len: 1,
            wake,
        });
    }

    pub fn failed(&mut self, offset: Offset, deliveries: u32, failures: u16, verdict: FailureVerdict) {
        self.record(FAILED, |body| {
            put(body, offset);
            put(body, u64::from(deliveries));
            put(body, u64::from(failures));
            match verdict {
                FailureVerdict::Retry(at) => {
                    body.push(0);
                    put_signed(body, at);
                }
                FailureVerdict::Ending(reason) => body.extend_from_slice(&[1, reason as u8]),
            }
        });
    }

    pub fn released(&mut self, offset: Offset, deliveries: u32) {
        self.record(RELEASED, |body| {
            put(body, offset);
            put(body, u64::from(deliveries));
        });
    }

    pub fn extended(&mut self, offset: Offset, deadline: Micros) {
        self.record(EXTENDED, |body| {
            put(body, offset);
            put_signed(body, deadline);
        });
    }

    pub fn held(&mut self, facts: &MessageSnapshot) {
        self.record(HELD_IN_EPOCH, |body| facts.encode(body));
    }

    pub fn seek(&mut self, to: Offset) {
        self.record(SEEK, |body| put(body, to));
    }

    pub fn purge(&mut self, next: Offset) {
        self.record(PURGE, |body| put(body, next));
    }

    pub fn is_empty(&self) -> bool {
        self.out.is_empty() && self.lease.is_none() && self.settle.is_none() && self.sleep.is_none()
    }

    /// Appends all records to `out` and clears the journal.
    pub fn take(&mut self, out: &mut Vec<u8>, floor: Offset) {
        self.flush();
        self.reach = floor.saturating_add(WINDOW_MAX);
        out.append(&mut self.out);
    }

    /// Writes the collected runs before an offset that is too far from the floor known to a restart.
    #[inline]
    fn reach(&mut self, offset: Offset, floor: Offset) {
        if offset >= self.reach {
            self.flush();
            self.reach = floor.saturating_add(WINDOW_MAX);
        }
    }

    fn record(&mut self, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
        if self.off {
            return;
        }
        self.flush();
        self.body.clear();
        write(&mut self.body);
        frame(kind, &self.body, &mut self.out);
    }

    /// Writes the collected runs.
    fn flush(&mut self) {
        if let Some(run) = self.sleep.take() {
            encode_sleep(&run, &mut self.sleep_end, &mut self.sleeps);
            frame(SLEEPS, &self.sleeps, &mut self.out);
            self.sleeps.clear();
            self.sleep_end = 0;
        }
        if let Some(run) = self.lease.take() {
            self.encode_run(&run);
            frame(LEASES_IN_EPOCH, &self.leases, &mut self.out);
            self.leases.clear();
            self.lease_context = LeaseContext::default();
        }
        if let Some(run) = self.settle.take() {
            encode_settle(&run, &mut self.settle_end, &mut self.settles);
            frame(SETTLES, &self.settles, &mut self.out);
            self.settles.clear();
            self.settle_end = 0;
        }
    }
}

/// The record of one settled message.
pub fn settled(offset: Offset, kind: FinalState, out: &mut Vec<u8>) {
    let mut body = Vec::with_capacity(16);
    encode_settle(
        &SettleRun {
            first: offset,
            len: 1,
            kind,
        },
        &mut 0,
        &mut body,
    );
    frame(SETTLES, &body, out);
}

fn frame(kind: u8, body: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    put(out, body.len() as u64);
    out.extend_from_slice(body);
}

fn encode_lease(run: &LeaseRun, context: &mut LeaseContext, out: &mut Vec<u8>) {
    let LeaseRun {
        first,
        len,
        consumer,
        now,
        deadline,
        delivery,
    } = *run;
    put_signed(out, first.wrapping_sub(context.end) as i64);
    let same = (consumer, now, deadline) == (context.consumer, context.now, context.deadline);
    put(out, len << 2 | u64::from(delivery != 1) << 1 | u64::from(!same));
    if !same {
        put(out, u64::from(consumer));
        put_signed(out, now.wrapping_sub(context.now));
        put_signed(out, deadline.wrapping_sub(now));
    }
    if delivery != 1 {
        put(out, u64::from(delivery));
    }
    *context = LeaseContext {
        end: first + len,
        consumer,
        now,
        deadline,
    };
}

fn encode_sleep(run: &DelayRun, end: &mut Offset, out: &mut Vec<u8>) {
    put_signed(out, run.first.wrapping_sub(*end) as i64);
    put(out, run.len);
    put_signed(out, run.wake);
    *end = run.first + run.len;
}

fn encode_settle(run: &SettleRun, end: &mut Offset, out: &mut Vec<u8>) {
    put_signed(out, run.first.wrapping_sub(*end) as i64);
    put(out, run.len);
    out.push(run.kind as u8);
    *end = run.first + run.len;
}
