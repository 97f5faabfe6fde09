//! Long-delayed messages are read again shortly before they are due, so that their group has an entry for them by then.
//! Until then, only the log has them.

use std::ops::Range;
use std::sync::Arc;

use arc_swap::ArcSwap;
use thalweg_kit::blocking;
use thalweg_log::clock::{Clock, ClockJumps};
use thalweg_log::{LogError, Micros, Offset};

use crate::group::Group;
use crate::group_partition::{GroupPartition, GroupState};
use crate::machine::MessageMeta;
use crate::queue::Queue;
use crate::store::{Cursor, MessageStore, NextMessage};

/// Delay before a failed read is retried.
const TRY_AGAIN: Micros = 60_000_000;

impl Queue {
    pub(crate) async fn rouse(self: &Arc<Queue>, group: &Arc<Group>, partition: u32, part: &GroupPartition) {
        loop {
            let now = self.clock.now();
            let span = match &part.inner.lock().state {
                GroupState::Work(machine) => machine.to_rouse(now),
                GroupState::Stream(_) => None,
            };
            let (Some(span), Some(store)) = (span, self.store(partition).cloned()) else {
                return;
            };
            let jumps = self.clock.jumps();
            let (reader, wanted) = (group.clone(), span.clone());
            let read = blocking::spawn(move || read(&store, wanted, &reader)).await;
            let read = read.unwrap_or(Err(LogError::Closed));
            let mut inner = part.inner.lock();
            let GroupState::Work(machine) = &mut inner.state else {
                return;
            };
            if !Arc::ptr_eq(&jumps, &self.clock.jumps()) {
                // The clock was set meanwhile. Messages delayed until a wall-clock time were read with the old clock,
                // and would sleep until that time.
                continue;
            }
            match read {
                Ok((messages, reached)) => machine.rouse(span, &messages, reached, now),
                Err(error) => {
                    tracing::warn!(
                        queue = %self.name(), group = %group.name(), partition, from = span.start, %error,
                        "delayed messages cannot be read; retrying in a minute"
                    );
                    machine.rouse_at(&span, now + TRY_AGAIN);
                }
            }
            let stored = self.after(group, partition, part, &mut inner, now);
            drop(inner);
            if let Err(error) = stored {
                tracing::warn!(queue = %self.name(), group = %group.name(), %error, "the state of a group cannot be stored");
                return;
            }
            self.call_if_more(group, partition);
        }
    }
}

/// How far the delays and expiry times of a queue follow the wall clock.
pub(crate) struct WallClockFollower {
    /// The clock jumps that the current times are computed with.
    jumps: ArcSwap<ClockJumps>,
    /// Held while they are recomputed.
    following: tokio::sync::Mutex<()>,
}

impl WallClockFollower {
    pub fn new() -> WallClockFollower {
        WallClockFollower {
            jumps: ArcSwap::new(ClockJumps::none()),
            following: tokio::sync::Mutex::default(),
        }
    }

    /// Whether the times are up to date with the clock.
    pub fn is_followed(&self, clock: &dyn Clock) -> bool {
        Arc::ptr_eq(&self.jumps.load(), &clock.jumps())
    }
}

impl Queue {
    /// Recomputes delays and expiry times that refer to the wall clock, after the clock was set. Also needed after a
    /// start, because checkpoints contain the times by the clock of their moment.
    pub(crate) async fn follow_the_wall_clock(self: &Arc<Queue>) {
        let following = self.wall_clock.following.lock().await;
        if self.wall_clock.is_followed(self.clock.as_ref()) {
            return;
        }
        let jumps = self.clock.jumps();
        for group in self.groups() {
            for (partition, part) in group.parts() {
                self.delay_part_anew(&group, partition, part).await;
            }
        }
        self.clone().learn_ages().await;
        self.wall_clock.jumps.store(jumps);
        drop(following);
        self.timers.wake_by(0);
    }

    async fn delay_part_anew(self: &Arc<Queue>, group: &Arc<Group>, partition: u32, part: &GroupPartition) {
        let delayed = match &mut part.inner.lock().state {
            GroupState::Work(machine) => machine.delayed(),
            GroupState::Stream(machine) => {
                machine.delay_anew();
                Vec::new()
            }
        };
        let Some(store) = self.store(partition).cloned() else {
            return;
        };
        let reader = group.clone();
        let read = blocking::spawn(move || read_each(&store, &delayed, &reader)).await;
        let messages = read.unwrap_or(Err(LogError::Closed)).unwrap_or_else(|error| {
            tracing::warn!(
                queue = %self.name(), group = %group.name(), partition, %error,
                "delayed messages cannot be read; they stay due by the clock before it was set"
            );
            Vec::new()
        });
        let now = self.clock.now();
        let mut inner = part.inner.lock();
        if let GroupState::Work(machine) = &mut inner.state {
            machine.delay_anew(&messages, now);
        }
        let stored = self.after(group, partition, part, &mut inner, now);
        drop(inner);
        if let Err(error) = stored {
            tracing::warn!(queue = %self.name(), group = %group.name(), %error, "the state of a group cannot be stored");
        }
        self.call_if_more(group, partition);
    }
}

/// Reads what a group needs to know about some messages, without those that are gone. Blocks.
fn read_each(store: &MessageStore, offsets: &[Offset], group: &Group) -> Result<Vec<MessageMeta>, LogError> {
    let (mut cursor, mut found) = (Cursor::default(), Vec::with_capacity(offsets.len()));
    for offset in offsets {
        let next = match store.at(&mut cursor, *offset)? {
            NextMessage::Load => {
                cursor = store.load(*offset)?;
                store.at(&mut cursor, *offset)?
            }
            next => next,
        };
        if let NextMessage::Message(message, hint) = next
            && message.offset == *offset
        {
            found.push(message.passing(group.name(), group.settings.filter.as_deref(), hint));
        }
    }
    Ok(found)
}

/// Reads what a group needs to know about the messages of a span. Also returns the offset up to which the result is
/// complete: the partition may end within the span and grow right afterwards. Blocks.
fn read(store: &MessageStore, span: Range<Offset>, group: &Group) -> Result<(Vec<MessageMeta>, Offset), LogError> {
    let (mut cursor, mut at, mut found) = (Cursor::default(), span.start, Vec::new());
    while at < span.end {
        match store.at(&mut cursor, at)? {
            NextMessage::Message(message, hint) => {
                at = message.offset + 1;
                if message.offset < span.end {
                    found.push(message.passing(group.name(), group.settings.filter.as_deref(), hint));
                }
            }
            NextMessage::Gap { to, .. } => at = to,
            NextMessage::Load => cursor = store.load(at)?,
            NextMessage::End => break,
        }
    }
    Ok((found, at))
}
