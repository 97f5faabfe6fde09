//! Settlements by consumers, and how messages end.

use super::*;

impl Model {
    /// The end of a settled or unpassed message. Messages below the floor without any receipt count as acked.
    fn settled(&self, offset: Offset) -> Option<(FinalState, u32)> {
        match self.messages.get(&offset) {
            Some(Message {
                at: At::Settled(kind),
                deliveries,
                ..
            }) => {
                let forgotten = offset < self.floor && *deliveries == 0;
                Some((if forgotten { FinalState::Acked } else { *kind }, *deliveries))
            }
            None if offset < self.floor => Some((FinalState::Acked, 0)),
            _ => None,
        }
    }

    pub fn ack(&mut self, offset: Offset, delivery: u32, now: Micros) -> Result<AckOutcome, SettleError> {
        if let Some((kind, deliveries)) = self.settled(offset) {
            let ok = kind == FinalState::Acked && deliveries.max(1) == delivery;
            return if ok {
                Ok(AckOutcome::Repeated)
            } else {
                Err(SettleError::Gone)
            };
        }
        let Some(message) = self.messages.get(&offset) else {
            return Err(SettleError::LeaseLost);
        };
        match message.at {
            At::Delayed => Err(SettleError::NotLeased),
            At::Ending => Err(SettleError::Gone),
            _ if delivery == 0 || message.deliveries != delivery => Err(SettleError::LeaseLost),
            _ => {
                self.settle(offset, FinalState::Acked, now);
                Ok(AckOutcome::Acked)
            }
        }
    }

    fn leased(&self, offset: Offset, delivery: u32) -> Result<(), SettleError> {
        if self.settled(offset).is_some() {
            return Err(SettleError::Gone);
        }
        let Some(message) = self.messages.get(&offset) else {
            return Err(SettleError::LeaseLost);
        };
        match message.at {
            At::Delayed => Err(SettleError::NotLeased),
            At::Ending => Err(SettleError::Gone),
            At::Leased if message.deliveries == delivery => Ok(()),
            _ => Err(SettleError::LeaseLost),
        }
    }

    pub fn nack(
        &mut self,
        offset: Offset,
        delivery: u32,
        delay: Option<Micros>,
        now: Micros,
    ) -> Result<FailOutcome, SettleError> {
        self.leased(offset, delivery)?;
        Ok(self.fail(offset, delay, now))
    }

    pub fn reject(&mut self, offset: Offset, delivery: u32) -> Result<FailOutcome, SettleError> {
        self.leased(offset, delivery)?;
        self.revoke_later(offset);
        self.end(offset, RemovalReason::Rejected);
        Ok(FailOutcome::Ending(RemovalReason::Rejected))
    }

    pub fn extend(
        &mut self,
        offset: Offset,
        delivery: u32,
        visibility: Micros,
        now: Micros,
    ) -> Result<Micros, SettleError> {
        self.leased(offset, delivery)?;
        let message = self.get(offset);
        message.due = (now + visibility).min(message.claimed + EXTEND_MAX);
        let due = message.due;
        self.arm(offset, due);
        Ok(due)
    }

    pub fn release(&mut self, offset: Offset, delivery: u32, unsent: bool) -> bool {
        let Some(message) = self.messages.get(&offset).cloned() else {
            return false;
        };
        let leased = message.at == At::Leased;
        let revoked = message.at == At::Ready && message.revoked;
        if message.deliveries != delivery || !(leased || revoked) {
            return false;
        }
        if leased {
            self.revoke_later(offset);
            self.make_ready(offset);
        }
        let message = self.get(offset);
        if leased || unsent {
            message.revoked = false;
        }
        if unsent {
            message.deliveries -= 1;
            if message.deliveries == 0 {
                (message.first, message.claimed) = (0, 0);
            }
        }
        true
    }

    pub fn take_ending(&mut self, max: usize) -> Vec<PendingRemoval> {
        let taken: Vec<Offset> = self.endings.drain(..max.min(self.endings.len())).collect();
        taken
            .into_iter()
            .map(|offset| {
                let message = self.get(offset);
                message.taken = true;
                PendingRemoval {
                    offset,
                    hint: message.hint,
                    reason: message.reason.unwrap(),
                    deliveries: message.deliveries,
                    first_attempt: message.first,
                    last_attempt: message.claimed,
                }
            })
            .collect()
    }

    fn is_taken(&self, offset: Offset) -> bool {
        let at = self.messages.get(&offset);
        at.is_some_and(|message| message.at == At::Ending && message.taken && !self.endings.contains(&offset))
    }

    pub fn ended(&mut self, offset: Offset, kind: FinalState, now: Micros) -> bool {
        let taken = self.is_taken(offset);
        if taken {
            self.settle(offset, kind, now);
        }
        taken
    }

    pub fn move_failed(&mut self, offset: Offset, now: Micros) -> bool {
        if !self.is_taken(offset) {
            return false;
        }
        let message = self.get(offset);
        message.at = At::Waiting;
        message.taken = false;
        message.due = now + MOVE_RETRY;
        self.arm(offset, now + MOVE_RETRY);
        true
    }
}
