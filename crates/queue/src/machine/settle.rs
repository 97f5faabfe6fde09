//! The end of leases. A consumer settles: ack, nack, reject, extend. A consumer has gone: `release`. The deadline has
//! passed: `due.rs` finds the expired lease and calls `fail`. Each settle finds its message with one array access, or
//! below the floor with one look-up in the held set.

use thalweg_log::{Micros, Offset};

use super::chain::NIL;
use super::entry::{MessageState, NEVER};
use super::journal::FailureVerdict;
use super::{AckOutcome, EXTEND_MAX, FailOutcome, FinalState, MessageStatus, RemovalReason, SettleError, WorkMachine};

impl WorkMachine {
    /// Marks a message as done. Also counts after the lease has ended, as long as no other consumer has the message. A
    /// repeated ack succeeds.
    pub fn ack(&mut self, offset: Offset, delivery: u32, now: Micros) -> Result<AckOutcome, SettleError> {
        let entry = match self.find(offset) {
            MessageStatus::Active(entry) => entry,
            MessageStatus::Settled(FinalState::Acked, last) if self.may_have_been_last(last, delivery) => {
                return Ok(AckOutcome::Repeated);
            }
            MessageStatus::Settled(..) => return Err(SettleError::Gone),
            MessageStatus::Asleep => return Err(SettleError::NotLeased),
            MessageStatus::Unpassed => return Err(SettleError::LeaseLost),
        };
        let at = self.store.entries.get(entry);
        match at.state {
            MessageState::Delayed => return Err(SettleError::NotLeased),
            MessageState::Ending => return Err(SettleError::Gone),
            _ if at.deliveries != delivery || delivery == 0 => return Err(SettleError::LeaseLost),
            _ => {}
        }
        self.settle(entry, FinalState::Acked, now);
        Ok(AckOutcome::Acked)
    }

    /// Whether an acked message was acked with this delivery, as far as that is remembered.
    fn may_have_been_last(&self, last: Option<u32>, delivery: u32) -> bool {
        match last {
            Some(last) => delivery == last,
            // Deliveries other than the first are remembered, but not for ever.
            None if self.settlements.is_full() => (1..=self.policy.max_retries.saturating_add(1)).contains(&delivery),
            None => delivery == 1,
        }
    }

    /// A consumer could not process the message: it is retried after `delay`, or after the backoff of the policy.
    pub fn nack(
        &mut self,
        offset: Offset,
        delivery: u32,
        delay: Option<Micros>,
        now: Micros,
    ) -> Result<FailOutcome, SettleError> {
        let entry = self.leased(offset, delivery)?;
        Ok(self.fail(entry, delay, now))
    }

    /// Rejects a message: it must leave for the dead-letter queue.
    pub fn reject(&mut self, offset: Offset, delivery: u32) -> Result<FailOutcome, SettleError> {
        let entry = self.leased(offset, delivery)?;
        self.revoke_later(entry);
        self.end(entry, RemovalReason::Rejected);
        Ok(FailOutcome::Ending(RemovalReason::Rejected))
    }

    /// Sets a new deadline, `visibility` from now but at most 12 h after the claim. Returns it.
    pub fn extend(
        &mut self,
        offset: Offset,
        delivery: u32,
        visibility: Micros,
        now: Micros,
    ) -> Result<Micros, SettleError> {
        let entry = self.leased(offset, delivery)?;
        let at = self.store.entries.get_mut(entry);
        at.due = now
            .saturating_add(visibility)
            .min(at.claimed_at.saturating_add(EXTEND_MAX));
        let due = at.due;
        self.wheel.cancel(&mut self.store.entries, entry);
        self.wheel.arm(&mut self.store.entries, entry, due);
        self.journal.extended(offset, due);
        Ok(due)
    }

    /// Releases a lease because its consumer is gone. The message is ready again; if it never left the process, the
    /// delivery is not counted. False if there was no such lease. May be called in any order for the leases of one
    /// lane, which end together.
    pub fn release(&mut self, offset: Offset, delivery: u32, unsent: bool) -> bool {
        let MessageStatus::Active(entry) = self.find(offset) else {
            return false;
        };
        let at = *self.store.entries.get(entry);
        if at.deliveries != delivery || (at.state != MessageState::Leased && !at.revoked) {
            return false;
        }
        if at.state == MessageState::Leased {
            self.revoke_later(entry);
            self.give_back(entry);
        } else if !unsent {
            return true;
        }
        if unsent {
            let at = self.store.entries.get_mut(entry);
            at.deliveries -= 1;
            if at.deliveries == 0 {
                (at.first_delivery, at.claimed_at) = (0, 0);
            }
        }
        let at = self.store.entries.get_mut(entry);
        at.revoked = false;
        self.journal.released(offset, at.deliveries);
        self.refresh_lane_of(entry);
        true
    }

    /// Releases all leases of a consumer.
    pub fn release_all(&mut self, consumer: u32) {
        let leased: Vec<(Offset, u32)> = self
            .store
            .entries
            .iter()
            .filter(|(_, entry)| entry.state == MessageState::Leased && entry.consumer == consumer)
            .map(|(_, entry)| (entry.offset, entry.deliveries))
            .collect();
        for (offset, delivery) in leased {
            self.release(offset, delivery, false);
        }
    }

    /// Ends a lease without success, after a nack or because its deadline has passed: the message waits for its next
    /// delivery, `delay` or the backoff of the policy, or leaves as dead or expired. Later leases of its lane end with
    /// it. The entry must be leased.
    pub(super) fn fail(&mut self, entry: u32, delay: Option<Micros>, now: Micros) -> FailOutcome {
        let at = self.store.entries.get_mut(entry);
        at.failures = at.failures.saturating_add(1);
        let (failures, expired) = (at.failures, at.expires_at <= now);
        self.revoke_later(entry);
        if let Some(reason) = self.exhausted(entry, now).or(expired.then_some(RemovalReason::Expired)) {
            self.end(entry, reason);
            return FailOutcome::Ending(reason);
        }
        let offset = self.store.entries.get(entry).offset;
        let delay = delay.unwrap_or_else(|| self.backoff(offset, failures));
        let retry_at = now.saturating_add(delay.max(0));
        let at = self.store.entries.get(entry);
        self.journal
            .failed(offset, at.deliveries, failures, FailureVerdict::Retry(retry_at));
        self.unlease(entry);
        self.wait(entry, retry_at, now);
        FailOutcome::Retry(retry_at)
    }

    /// The message waits until `retry_at`; it is ready at once if that is now.
    fn wait(&mut self, entry: u32, retry_at: Micros, now: Micros) {
        if retry_at <= now {
            self.make_ready(entry);
            return;
        }
        self.store.entries.set_state(entry, MessageState::Waiting);
        let at = self.store.entries.get_mut(entry);
        at.due = retry_at;
        let due = at.due.min(at.expires_at);
        self.wheel.arm(&mut self.store.entries, entry, due);
        self.oldest.note(&self.store.entries, entry);
        self.refresh_lane_of(entry);
    }

    /// Makes a message ready, after those that are already. The entry is queued in its lane, if it has one, and is in
    /// no list.
    pub(super) fn make_ready(&mut self, entry: u32) {
        self.store.entries.set_state(entry, MessageState::Ready);
        self.arm_expiry(entry);
        if self.store.entries.get(entry).lane == NIL {
            self.ready.push(&mut self.store, entry);
        }
        self.refresh_lane_of(entry);
    }

    pub(super) fn arm_expiry(&mut self, entry: u32) {
        let expires_at = self.store.entries.get(entry).expires_at;
        if expires_at != NEVER {
            self.wheel.arm(&mut self.store.entries, entry, expires_at);
        }
        self.oldest.note(&self.store.entries, entry);
    }

    pub(super) fn refresh_lane_of(&mut self, entry: u32) {
        let lane = self.store.entries.get(entry).lane;
        if lane != NIL {
            self.refresh(lane);
        }
    }

    /// Puts the lane into the right list after any change to it. After a restart the cursor may still meet an earlier
    /// message of the lane, so messages that it has not passed are not delivered.
    #[inline]
    pub(super) fn refresh(&mut self, lane: u32) {
        self.ready
            .refresh(&mut self.store, lane, self.policy.lane_window, self.cursor);
    }

    /// Why the message must not be delivered again, if so.
    pub(super) fn exhausted(&self, entry: u32, now: Micros) -> Option<RemovalReason> {
        let at = self.store.entries.get(entry);
        let timeout = self.policy.total_timeout;
        if at.deliveries > self.policy.max_retries {
            Some(RemovalReason::MaxRetries)
        } else if timeout > 0 && at.deliveries > 0 && now.saturating_sub(at.first_delivery) >= timeout {
            Some(RemovalReason::Timeout)
        } else {
            None
        }
    }

    /// The entry of a message with this current lease.
    fn leased(&self, offset: Offset, delivery: u32) -> Result<u32, SettleError> {
        let entry = match self.find(offset) {
            MessageStatus::Active(entry) => entry,
            MessageStatus::Settled(..) => return Err(SettleError::Gone),
            MessageStatus::Asleep => return Err(SettleError::NotLeased),
            MessageStatus::Unpassed => return Err(SettleError::LeaseLost),
        };
        let at = self.store.entries.get(entry);
        match at.state {
            MessageState::Delayed => Err(SettleError::NotLeased),
            MessageState::Ending => Err(SettleError::Gone),
            MessageState::Leased if at.deliveries == delivery => Ok(entry),
            _ => Err(SettleError::LeaseLost),
        }
    }

    /// Ends the leases of later messages in the same lane, the last one first, so that each is put to the front.
    fn revoke_later(&mut self, entry: u32) {
        let at = self.store.entries.get(entry);
        if at.lane == NIL || self.store.lanes.get(at.lane).leased < 2 {
            return;
        }
        let (offset, lane) = (at.offset, self.store.lanes.get(at.lane));
        let last = match lane.next {
            NIL => lane.chain.tail,
            next => self.store.entries.get(next).links.prev,
        };
        let mut other = last;
        while other != NIL {
            let at = *self.store.entries.get(other);
            if at.offset > offset {
                self.give_back(other);
                self.store.entries.get_mut(other).revoked = true;
                self.journal.released(at.offset, at.deliveries);
            }
            other = at.links.prev;
        }
    }

    pub(super) fn give_back(&mut self, entry: u32) {
        self.unlease(entry);
        self.make_ready(entry);
    }

    fn unlease(&mut self, entry: u32) {
        self.wheel.cancel(&mut self.store.entries, entry);
        if self.store.entries.get(entry).lane != NIL {
            self.store.unlease(entry);
        }
    }

    /// `min(initial × multiplier^(n−1), max)` ± jitter, the same for the same message, failure and seed.
    fn backoff(&self, offset: Offset, failures: u16) -> Micros {
        let backoff = &self.policy.backoff;
        let growth = backoff.multiplier.max(1.0).powi(i32::from(failures) - 1);
        let delay = (backoff.initial as f64 * growth).min(backoff.max as f64).max(0.0);
        let random = spread(backoff.seed ^ spread(offset ^ u64::from(failures) << 48));
        let unit = (random >> 11) as f64 / (1u64 << 53) as f64;
        (delay * (1.0 + backoff.jitter * (2.0 * unit - 1.0))) as Micros
    }
}

/// The finaliser of SplitMix64: equal inputs give equal numbers, near ones unrelated numbers.
fn spread(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
