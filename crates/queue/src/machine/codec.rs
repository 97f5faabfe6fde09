//! Encoding of journal and checkpoint: varints, zigzag for signed numbers, and the facts of one message. Decoding
//! checks every length and bound; an invalid value is `DamagedState` with its position.

use thalweg_kit::varint::{self, VarintError, put, put_signed};
use thalweg_log::{Micros, Offset};

use super::entry::{MessageEntry, MessageState, NEVER};
use super::types::{DamagedState, FinalState, RemovalReason};

/// Reads from the front of a slice and tracks its position.
pub struct StateReader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the slice itself starts, for errors.
    offset: usize,
}

impl<'a> StateReader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        StateReader {
            bytes,
            at: 0,
            offset: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    #[cfg(test)]
    pub fn position(&self) -> usize {
        self.at
    }

    pub fn damaged(&self, what: &'static str) -> DamagedState {
        DamagedState {
            at: self.offset + self.at,
            what,
        }
    }

    pub fn byte(&mut self) -> Result<u8, DamagedState> {
        let byte = *self.bytes.get(self.at).ok_or(self.damaged("the data ends too early"))?;
        self.at += 1;
        Ok(byte)
    }

    pub fn u64(&mut self) -> Result<u64, DamagedState> {
        match varint::read(self.bytes.get(self.at..).unwrap_or_default()) {
            Ok((value, len)) => {
                self.at += len;
                Ok(value)
            }
            Err(error) => Err(self.no_number(error)),
        }
    }

    /// The error is where reading stopped.
    #[cold]
    fn no_number(&mut self, error: VarintError) -> DamagedState {
        match error {
            VarintError::Cut => {
                self.at = self.bytes.len();
                self.damaged("the data ends too early")
            }
            VarintError::TooLarge => {
                self.at += varint::LEN_MAX;
                self.damaged("a number is too long")
            }
        }
    }

    pub fn u32(&mut self) -> Result<u32, DamagedState> {
        u32::try_from(self.u64()?).map_err(|_| self.damaged("a number is too large"))
    }

    pub fn i64(&mut self) -> Result<i64, DamagedState> {
        self.u64().map(varint::unzigzag)
    }

    /// Encoded as a difference to the previous epoch.
    pub fn epoch(&mut self, before: u32) -> Result<u32, DamagedState> {
        let epoch = i64::from(before).wrapping_add(self.i64()?);
        u32::try_from(epoch).map_err(|_| self.damaged("an epoch is invalid"))
    }

    /// Reads a length prefix and returns a reader of that many bytes.
    pub fn part(&mut self) -> Result<StateReader<'a>, DamagedState> {
        let len = usize::try_from(self.u64()?).map_err(|_| self.damaged("a length is too large"))?;
        let end = self.at.checked_add(len).ok_or(self.damaged("a length is too large"))?;
        let bytes = self
            .bytes
            .get(self.at..end)
            .ok_or(self.damaged("a part ends beyond its whole"))?;
        let part = StateReader {
            bytes,
            at: 0,
            offset: self.offset + self.at,
        };
        self.at = end;
        Ok(part)
    }

    pub fn terminal(&mut self) -> Result<FinalState, DamagedState> {
        let byte = self.byte()?;
        terminal(u64::from(byte)).ok_or(self.damaged("the final state is unknown"))
    }

    pub fn reason(&mut self) -> Result<RemovalReason, DamagedState> {
        Ok(match self.byte()? {
            0 => RemovalReason::MaxRetries,
            1 => RemovalReason::Timeout,
            2 => RemovalReason::Rejected,
            3 => RemovalReason::Expired,
            4 => RemovalReason::Overflow,
            _ => return Err(self.damaged("the reason is unknown")),
        })
    }
}

pub fn terminal(code: u64) -> Option<FinalState> {
    [
        FinalState::Acked,
        FinalState::Dead,
        FinalState::Expired,
        FinalState::Dropped,
        FinalState::Skipped,
    ]
    .into_iter()
    .find(|kind| *kind as u64 == code)
}

/// Everything a restart must know about an active message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageSnapshot {
    pub offset: Offset,
    pub state: MessageState,
    pub deliveries: u32,
    pub failures: u16,
    pub consumer: u32,
    pub due: Micros,
    pub expires_at: Micros,
    pub lane: Option<u64>,
    pub first_delivery: Micros,
    pub claimed_at: Micros,
    pub hint: u32,
    /// Epoch of the last lease; not in what earlier versions wrote.
    pub epoch: u32,
    pub reason: Option<RemovalReason>,
    /// Whether lane, expiry and hint are known. They are not for a lease that only the journal contains.
    pub filled: bool,
}

impl MessageSnapshot {
    pub fn unfilled(offset: Offset) -> Self {
        MessageSnapshot {
            offset,
            state: MessageState::Ready,
            deliveries: 0,
            failures: 0,
            consumer: 0,
            due: 0,
            expires_at: NEVER,
            lane: None,
            first_delivery: 0,
            claimed_at: 0,
            hint: 0,
            epoch: 0,
            reason: None,
            filled: false,
        }
    }

    pub fn of(entry: &MessageEntry, lane: Option<u64>) -> Self {
        MessageSnapshot {
            offset: entry.offset,
            state: entry.state,
            deliveries: entry.deliveries,
            failures: entry.failures,
            consumer: entry.consumer,
            due: entry.due,
            expires_at: entry.expires_at,
            lane,
            first_delivery: entry.first_delivery,
            claimed_at: entry.claimed_at,
            hint: entry.hint,
            epoch: entry.epoch,
            reason: entry.reason,
            filled: true,
        }
    }

    /// Ready and never delivered: the log already says everything about it.
    pub fn is_untouched(&self) -> bool {
        self.state == MessageState::Ready && self.deliveries == 0
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_after(&mut MessageSnapshot::unfilled(0), out);
    }

    /// Delta-encoded against the previous facts, which keeps long runs short.
    pub fn encode_after(&self, before: &mut MessageSnapshot, out: &mut Vec<u8>) {
        put(out, self.offset.wrapping_sub(before.offset));
        let lane = u8::from(self.lane.is_some()) << 3;
        let expires = u8::from(self.expires_at != NEVER) << 4;
        let delivered = u8::from(self.deliveries > 0) << 5;
        let reason = u8::from(self.reason.is_some()) << 6;
        let filled = u8::from(self.filled) << 7;
        out.push(self.state as u8 | lane | expires | delivered | reason | filled);
        put_signed(out, self.due.wrapping_sub(before.due));
        put(out, u64::from(self.hint));
        if let Some(lane) = self.lane {
            out.extend_from_slice(&lane.to_le_bytes());
        }
        if self.expires_at != NEVER {
            put_signed(out, self.expires_at.wrapping_sub(self.due));
        }
        if self.deliveries > 0 {
            put(out, u64::from(self.deliveries));
            put(out, u64::from(self.failures));
            put(out, u64::from(self.consumer));
            put_signed(out, self.first_delivery.wrapping_sub(before.first_delivery));
            put_signed(out, self.claimed_at.wrapping_sub(self.first_delivery));
            put_signed(out, i64::from(self.epoch) - i64::from(before.epoch));
        }
        if let Some(reason) = self.reason {
            out.push(reason as u8);
        }
        *before = *self;
    }

    /// `with_epoch`: in the format of this version.
    pub fn decode(from: &mut StateReader<'_>, with_epoch: bool) -> Result<Self, DamagedState> {
        MessageSnapshot::decode_after(&mut MessageSnapshot::unfilled(0), from, with_epoch)
    }

    pub fn decode_after(
        before: &mut MessageSnapshot,
        from: &mut StateReader<'_>,
        with_epoch: bool,
    ) -> Result<Self, DamagedState> {
        let mut facts = MessageSnapshot::unfilled(before.offset.wrapping_add(from.u64()?));
        let flags = from.byte()?;
        facts.state = match flags & 7 {
            0 => MessageState::Delayed,
            1 => MessageState::Ready,
            2 => MessageState::Leased,
            3 => MessageState::Waiting,
            4 => MessageState::Ending,
            _ => return Err(from.damaged("the state is unknown")),
        };
        facts.filled = flags & 0x80 != 0;
        facts.due = before.due.wrapping_add(from.i64()?);
        facts.hint = from.u32()?;
        if flags & 8 != 0 {
            let mut lane = [0; 8];
            for byte in &mut lane {
                *byte = from.byte()?;
            }
            facts.lane = Some(u64::from_le_bytes(lane));
        }
        if flags & 0x10 != 0 {
            facts.expires_at = facts.due.wrapping_add(from.i64()?);
        }
        if flags & 0x20 != 0 {
            facts.deliveries = from.u32()?;
            facts.failures = from.u32()?.min(u32::from(u16::MAX)) as u16;
            facts.consumer = from.u32()?;
            facts.first_delivery = before.first_delivery.wrapping_add(from.i64()?);
            facts.claimed_at = facts.first_delivery.wrapping_add(from.i64()?);
            if with_epoch {
                facts.epoch = from.epoch(before.epoch)?;
            }
        }
        if flags & 0x40 != 0 {
            facts.reason = Some(from.reason()?);
        }
        if facts.state == MessageState::Leased && facts.deliveries == 0 {
            return Err(from.damaged("a leased message was never delivered"));
        }
        let has_reason = facts.reason.is_some();
        if (facts.state == MessageState::Ending && !has_reason) || (facts.state <= MessageState::Leased && has_reason) {
            return Err(from.damaged("the state of a message excludes its reason"));
        }
        *before = facts;
        Ok(facts)
    }
}
