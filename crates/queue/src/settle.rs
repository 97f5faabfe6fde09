//! Consumers settle messages: ack, nack, reject, or extend the lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use thalweg_log::format::frame::FrameKind;
use thalweg_log::{Micros, PartitionId, Records, WriteBatch};

use crate::error::{QueueError, Result};
use crate::group::Group;
use crate::group_partition::{GroupPartition, GroupPartitionInner, GroupState};
use crate::ids::Receipt;
use crate::machine::{AckOutcome, FailOutcome, SettleError, StreamError};
use crate::message_times::micros;
use crate::queue::Queue;
use crate::store::{Cursor, NextMessage};

/// Maximum bytes of the reason stored with a dead letter; a longer one is truncated.
pub const REASON_BYTES_MAX: usize = 1 << 10;

/// What a consumer does with one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleAction {
    Ack,
    /// Retries after this delay, or after the queue's backoff. The reason is stored if this was the last try.
    Nack {
        delay: Option<Duration>,
        reason: Option<Box<str>>,
    },
    /// Moves the message to the dead letters.
    Reject {
        reason: Option<Box<str>>,
    },
    /// Extends the lease to this long from now.
    Extend {
        visibility: Option<Duration>,
    },
}

/// The result of [`Queue::settle`].
#[derive(Debug, Default)]
pub struct SettleResult {
    /// Accepted settlements.
    pub settled: u32,
    /// Rejected ones, in the order of the request.
    pub failed: Vec<(Receipt, QueueError)>,
}

impl Queue {
    /// Settles messages. With `wait` it returns when everything is as durable as the queue promises. Without, the
    /// settlements are stored with the next commit, and a crash before that redelivers the messages.
    pub async fn settle(
        self: &Arc<Queue>,
        group: &Arc<Group>,
        verdicts: Vec<(Receipt, SettleAction)>,
        wait: bool,
    ) -> Result<SettleResult> {
        let mut outcome = SettleResult::default();
        let mut by_partition: BTreeMap<u32, Vec<(usize, Receipt, SettleAction)>> = BTreeMap::new();
        for (n, (receipt, verdict)) in verdicts.into_iter().enumerate() {
            let partition = receipt.id.partition;
            by_partition.entry(partition).or_default().push((n, receipt, verdict));
        }
        let (mut failed, mut states, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
        for (partition, verdicts) in by_partition {
            let before = failed.len();
            let count = verdicts.len();
            if self.settle_in(group, partition, verdicts, &mut failed)? {
                leaving.push(partition);
            }
            outcome.settled += (count - (failed.len() - before)) as u32;
            if partition < self.partition_count() {
                states.push(self.identity.state_id(partition));
            }
            self.settled_in(group, partition);
        }
        failed.sort_by_key(|(n, _, _)| *n);
        outcome.failed = failed.into_iter().map(|(_, receipt, error)| (receipt, error)).collect();
        if wait && outcome.settled > 0 {
            for partition in leaving {
                self.move_out(group, partition).await;
            }
            self.wait_for(&states).await?;
        }
        Ok(outcome)
    }

    /// Acks one message without waiting. For callers that got it from this queue and group in this process.
    pub fn ack(&self, group: &Group, partition: u32, offset: u64, delivery: u32) -> Result<()> {
        let Some(part) = group.part(partition) else {
            return Err(self.unknown(partition, offset));
        };
        // In memory, an ack needs the time only to find messages that have been in the window for a minute or more.
        let now = match self.is_in_memory() {
            true => self.clock.roughly_now(),
            false => self.clock.now(),
        };
        let mut inner = part.inner.lock();
        let done = ack(&mut inner.state, offset, delivery, now);
        if let Ok(SettleEffect::Yes) = done {
            part.acked.add(&mut inner, 1);
        }
        self.after(group, partition, part, &mut inner, now)?;
        drop(inner);
        match done {
            Ok(_) => {
                self.free_memory(partition, part);
                self.settled_in(group, partition);
                Ok(())
            }
            Err(why) => Err(why.error(Receipt {
                id: self.identity.message_id(partition, offset),
                delivery,
                tag: None,
            })),
        }
    }

    /// Acks many messages: one lock and one state record per run of receipts in the same partition. Messages that
    /// another consumer has by now, or that are settled, are left as they are.
    pub fn ack_all<'a>(&self, group: &Group, receipts: impl Iterator<Item = &'a Receipt>) -> Result<()> {
        let now = self.clock.now();
        let mut receipts = receipts.peekable();
        while let Some(partition) = receipts.peek().map(|receipt| receipt.id.partition) {
            let run = std::iter::from_fn(|| receipts.next_if(|receipt| receipt.id.partition == partition));
            let Some(part) = group.part(partition) else {
                run.for_each(drop);
                continue;
            };
            let mut inner = part.inner.lock();
            let mut acked = 0;
            for receipt in run {
                let offset = receipt.id.offset;
                if !self.is_current(group, &inner.state, receipt, ReceiptUse::Done) {
                    continue;
                }
                acked += u64::from(match &mut inner.state {
                    GroupState::Work(machine) => machine.ack(offset, receipt.delivery, now).is_ok(),
                    GroupState::Stream(machine) => machine.ack(offset).is_ok(),
                });
            }
            part.acked.add(&mut inner, acked);
            self.after(group, partition, part, &mut inner, now)?;
            drop(inner);
            self.free_memory(partition, part);
            self.settled_in(group, partition);
        }
        Ok(())
    }

    /// Whether a receipt names a delivery by this very queue and group.
    fn is_ours(&self, group: &Group, receipt: &Receipt) -> bool {
        let named = receipt.tag.map(|tag| (tag.queue, tag.group));
        named == Some((self.identity.id, group.id)) && !group.removed.load(Ordering::Relaxed)
    }

    /// Whether a receipt is ours and its lease is known. It is not if the queue or group was deleted, a crash lost the
    /// lease, it is from before a seek, or it is from an earlier version.
    pub(crate) fn is_current(&self, group: &Group, state: &GroupState, receipt: &Receipt, used: ReceiptUse) -> bool {
        let Some(tag) = receipt.tag.filter(|_| self.is_ours(group, receipt)) else {
            return false;
        };
        match (state, used) {
            (GroupState::Work(machine), _) => {
                u32::try_from(tag.lease).is_ok_and(|epoch| !machine.is_stale(receipt.id.offset, epoch))
            }
            (GroupState::Stream(machine), ReceiptUse::Done) => !machine.is_stale(tag.lease),
            (GroupState::Stream(machine), ReceiptUse::Again) => !machine.is_of_another(tag.lease),
        }
    }

    /// Returns whether messages must leave now.
    fn settle_in(
        &self,
        group: &Group,
        partition: u32,
        verdicts: Vec<(usize, Receipt, SettleAction)>,
        failed: &mut Vec<(usize, Receipt, QueueError)>,
    ) -> Result<bool> {
        let Some(part) = group.part(partition) else {
            failed.extend(verdicts.into_iter().map(|(n, receipt, _)| {
                let error = match self.is_ours(group, &receipt) {
                    true => self.unknown(partition, receipt.id.offset),
                    false => QueueError::ReceiptOver {
                        receipt: receipt.clone(),
                    },
                };
                (n, receipt, error)
            }));
            return Ok(false);
        };
        let (now, visibility) = (self.clock.now(), self.settings_now().visibility_timeout);
        let mut inner = part.inner.lock();
        for (n, receipt, verdict) in verdicts {
            if receipt.id.queue != *self.name() {
                let error = QueueError::invalid(format!("receipt {receipt} is not of queue {}", self.name()));
                failed.push((n, receipt, error));
                continue;
            }
            let used = match verdict {
                SettleAction::Ack | SettleAction::Extend { .. } => ReceiptUse::Done,
                SettleAction::Nack { .. } | SettleAction::Reject { .. } => ReceiptUse::Again,
            };
            if !self.is_current(group, &inner.state, &receipt, used) {
                let error = QueueError::ReceiptOver {
                    receipt: receipt.clone(),
                };
                failed.push((n, receipt, error));
                continue;
            }
            let done = apply(&mut inner, &receipt, &verdict, visibility, now);
            if let Ok(SettleEffect::Yes) = done {
                group.count(&verdict, part, &mut inner);
            }
            if let Err(why) = done {
                let offset = receipt.id.offset;
                let error = match self.is_there(partition, offset) {
                    true if self.is_delayed_unread(partition, offset, &inner, now) => QueueError::NotLeased {
                        receipt: receipt.clone(),
                    },
                    true => why.error(receipt.clone()),
                    false => self.unknown(partition, offset),
                };
                failed.push((n, receipt, error));
            }
        }
        let leaving = matches!(&inner.state, GroupState::Work(machine) if machine.has_ending());
        self.after(group, partition, part, &mut inner, now)?;
        drop(inner);
        self.free_memory(partition, part);
        Ok(leaving)
    }

    /// Wakes others after a settlement in any partition.
    pub(crate) fn settled(&self, group: &Group) {
        group.wake();
        self.admission.has_room();
        self.maintenance.trim_soon();
    }

    /// Wakes others after a settlement in one partition.
    fn settled_in(&self, group: &Group, partition: u32) {
        // The consumer may take another lease, and the next message of the lane is ready.
        group.waiting.call_claims_at_limit();
        self.call_if_more(group, partition);
        self.admission.has_room();
        self.maintenance.trim_soon();
    }

    /// Returns when the journal of these partitions is durable.
    pub(crate) async fn wait_for(&self, states: &[PartitionId]) -> Result<()> {
        if !self.is_in_memory() {
            self.log.flush(states).await?;
        }
        Ok(())
    }

    /// Like `wait_for` after messages were released; also works on a full disk.
    pub(crate) async fn wait_freeing(self: &Arc<Queue>) -> Result<()> {
        if self.is_in_memory() {
            return Ok(());
        }
        let stored = self.store_journals().await;
        // State records keep files in use too. Once no messages are tracked, a checkpoint that replaces them is small.
        self.on_a_thread(|queue| queue.checkpoint(|unsaved| unsaved.is_worth_it()))
            .await;
        let whole = self.store_journals().await;
        Ok(stored.or(whole)?)
    }

    /// Stores the journals of group state in the reserve that every log file has for changes that free space.
    async fn store_journals(&self) -> thalweg_log::Result<()> {
        let states = self.identity.state_ids(0..self.partition_count()).into_iter();
        let journaled = states.fold(WriteBatch::default(), |unit, state| {
            unit.and_of(FrameKind::State, state, Records::new())
        });
        self.log.append(journaled.freeing()).await.map(drop)
    }

    /// False for an offset that no message has had yet.
    fn is_there(&self, partition: u32, offset: u64) -> bool {
        let next = self.store(partition).and_then(|store| store.next().ok());
        next.is_none_or(|next| offset < next)
    }

    /// Whether a message that the machine has not reached is delayed. A message that would need a disk read counts as
    /// ready.
    fn is_delayed_unread(&self, partition: u32, offset: u64, inner: &GroupPartitionInner, now: Micros) -> bool {
        let is_unread = matches!(&inner.state, GroupState::Work(machine) if offset >= machine.cursor());
        let Some(store) = self.store(partition).filter(|_| is_unread) else {
            return false;
        };
        match store.at(&mut Cursor::default(), offset) {
            Ok(NextMessage::Message(message, _)) => {
                message.offset == offset && message.not_before.is_some_and(|at| at > now)
            }
            _ => false,
        }
    }

    fn unknown(&self, partition: u32, offset: u64) -> QueueError {
        QueueError::MessageNotFound {
            id: self.identity.message_id(partition, offset),
        }
    }
}

/// What a receipt is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiptUse {
    /// It changes nothing for other consumers.
    Done,
    /// Other consumers get the message, or nobody does.
    Again,
}

/// Whether an accepted settlement changed anything.
enum SettleEffect {
    Yes,
    /// The message was acked before.
    Repeated,
}

fn ack(
    state: &mut GroupState,
    offset: u64,
    delivery: u32,
    now: Micros,
) -> std::result::Result<SettleEffect, SettleFailure> {
    let repeated = match state {
        GroupState::Work(machine) => {
            machine.ack(offset, delivery, now).map_err(SettleFailure::Work)? == AckOutcome::Repeated
        }
        GroupState::Stream(machine) => {
            let repeated = machine.is_acked(offset);
            machine.ack(offset).map_err(SettleFailure::Stream)?;
            repeated
        }
    };
    Ok(if repeated {
        SettleEffect::Repeated
    } else {
        SettleEffect::Yes
    })
}

/// The beginning of a reason, at most [`REASON_BYTES_MAX`] of it.
fn cut(reason: &str) -> Box<str> {
    let end = reason.floor_char_boundary(REASON_BYTES_MAX);
    reason.get(..end).unwrap_or_default().into()
}

fn apply(
    inner: &mut GroupPartitionInner,
    receipt: &Receipt,
    verdict: &SettleAction,
    visibility: Duration,
    now: Micros,
) -> std::result::Result<SettleEffect, SettleFailure> {
    let (offset, delivery) = (receipt.id.offset, receipt.delivery);
    match &mut inner.state {
        GroupState::Work(machine) => {
            machine.advance(now);
            let done = match verdict {
                SettleAction::Ack => return ack(&mut inner.state, offset, delivery, now),
                SettleAction::Nack { delay, reason } => {
                    let outcome = machine.nack(offset, delivery, delay.map(micros), now);
                    // For a message that is retried, the reason would have to be kept for an unknown time.
                    if let (Ok(FailOutcome::Ending(_)), Some(reason)) = (&outcome, reason) {
                        inner.details.insert(offset, cut(reason));
                    }
                    outcome.map(drop)
                }
                SettleAction::Reject { reason } => {
                    let done = machine.reject(offset, delivery).map(drop);
                    if let (Ok(()), Some(reason)) = (&done, reason) {
                        inner.details.insert(offset, cut(reason));
                    }
                    done
                }
                SettleAction::Extend { visibility: asked } => {
                    let visibility = micros(asked.unwrap_or(visibility));
                    machine.extend(offset, delivery, visibility, now).map(drop)
                }
            };
            done.map(|()| SettleEffect::Yes).map_err(SettleFailure::Work)
        }
        GroupState::Stream(machine) => {
            let done = match verdict {
                SettleAction::Ack => return ack(&mut inner.state, offset, delivery, now),
                SettleAction::Nack { delay, .. } => machine.nack(offset, delay.map_or(0, micros), now),
                SettleAction::Reject { .. } => machine.reject(offset),
                // A stream has no leases.
                SettleAction::Extend { .. } => Ok(()),
            };
            done.map(|()| SettleEffect::Yes).map_err(SettleFailure::Stream)
        }
    }
}

/// Why a settlement was rejected.
enum SettleFailure {
    Work(SettleError),
    Stream(StreamError),
}

impl SettleFailure {
    fn error(self, receipt: Receipt) -> QueueError {
        match self {
            SettleFailure::Work(SettleError::NotLeased) | SettleFailure::Stream(StreamError::NotDelivered) => {
                QueueError::NotLeased { receipt }
            }
            SettleFailure::Work(SettleError::LeaseLost) => QueueError::LeaseLost { receipt },
            SettleFailure::Work(SettleError::Gone) | SettleFailure::Stream(StreamError::Committed) => {
                QueueError::Gone { receipt }
            }
        }
    }
}

impl Group {
    fn count(&self, verdict: &SettleAction, part: &GroupPartition, inner: &mut GroupPartitionInner) {
        let counter = match verdict {
            SettleAction::Ack => return part.acked.add(inner, 1),
            SettleAction::Nack { .. } => &self.counters.nacked,
            SettleAction::Reject { .. } => &self.counters.rejected,
            SettleAction::Extend { .. } => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
