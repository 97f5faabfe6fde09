//! The checkpoint: all state that a restart needs, as of one moment, in one value.
//!
//! Layout: version (3), epoch of the last lease, floor, runs of settled offsets from the floor on (distance, length,
//! final state), facts of active messages, each delta-encoded against the one before, remembered ends, spans of delayed
//! messages. Version 2 has no epochs; version 1 also has no deltas and no delayed messages. Messages in the window that
//! were passed but never delivered are left out, because a restart shows them to the cursor again. Encoding costs
//! O(window width + held).

use thalweg_kit::varint::{put, put_signed};
use thalweg_log::Offset;

use super::chain::NIL;
use super::codec::{MessageSnapshot, StateReader};
use super::delayed_set::{DelayedMessageSet, SPAN};
use super::restore::{MachineRecovery, RUN_TOO_HIGH};
use super::settlement_cache::{REMEMBERED, Settlement, SettlementCache};
use super::window::WindowSlot;
use super::{DamagedState, FinalState, WorkMachine};

const VERSION: u8 = 3;
/// Without epochs.
const FORMAT_2: u8 = 2;
/// Without delayed messages outside of memory, and without delta encoding.
const FORMAT_1: u8 = 1;

impl WorkMachine {
    /// Appends the checkpoint to `out`. Take the journal first and store it before the checkpoint: it is not needed
    /// after it, and replayed after it, it would set some messages back.
    pub fn checkpoint(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        put(out, self.leased_in.into());
        put(out, self.floor());
        let mut runs: Vec<(Offset, u64, FinalState)> = Vec::new();
        let mut active: Vec<u32> = self.held.values().copied().collect();
        for offset in self.floor()..self.window.end() {
            match self.window.get(offset) {
                WindowSlot::Empty | WindowSlot::Asleep => {}
                WindowSlot::Active(entry) => active.push(entry),
                WindowSlot::Settled(kind) => match runs.last_mut() {
                    Some((first, len, last)) if *last == kind && *first + *len == offset => *len += 1,
                    _ => runs.push((offset, 1, kind)),
                },
            }
        }
        put(out, runs.len() as u64);
        let mut end = self.floor();
        for (first, len, kind) in runs {
            put(out, first - end);
            put(out, len);
            out.push(kind as u8);
            end = first + len;
        }
        // Messages that a restart puts back into the delayed set.
        let mut delayed = self.delayed_set.clone();
        for at in active.iter().map(|entry| self.store.entries.get(*entry)) {
            if at.may_sleep_again() {
                delayed.insert(at.offset, at.due);
            }
        }
        active.retain(|entry| self.store.entries.get(*entry).is_known_only_here());
        active.sort_unstable_by_key(|entry| self.store.entries.get(*entry).offset);
        put(out, active.len() as u64);
        let mut before = MessageSnapshot::unfilled(0);
        for entry in active {
            let at = self.store.entries.get(entry);
            let lane = (at.lane != NIL).then(|| self.store.lanes.get(at.lane).hash);
            MessageSnapshot::of(at, lane).encode_after(&mut before, out);
        }
        encode_settlements(&self.settlements, out);
        encode_delayed_set(&delayed, out);
    }
}

fn encode_settlements(settlements: &SettlementCache, out: &mut Vec<u8>) {
    let ends = settlements.iter();
    put(out, ends.len() as u64);
    let (mut last, mut epoch) = (0, 0);
    for (offset, end) in ends {
        put_signed(out, offset.wrapping_sub(last) as i64);
        out.push(end.kind as u8);
        put(out, u64::from(end.deliveries));
        put_signed(out, i64::from(end.epoch) - epoch);
        (last, epoch) = (offset, end.epoch.into());
    }
}

fn encode_delayed_set(delayed: &DelayedMessageSet, out: &mut Vec<u8>) {
    let spans = delayed.spans();
    put(out, spans.len() as u64);
    let (mut last, mut before) = (0, 0);
    for (span, at) in spans {
        put(out, span - last);
        put_signed(out, at.wake.wrapping_sub(before));
        match at.bits.iter().all(|word| *word == u64::MAX) {
            true => out.push(1),
            false => {
                out.push(0);
                at.bits
                    .iter()
                    .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
            }
        }
        (last, before) = (span, at.wake);
    }
}

fn decode_delayed_set(from: &mut StateReader<'_>, state: &mut MachineRecovery) -> Result<(), DamagedState> {
    let (mut span, mut wake) = (0u64, 0i64);
    for _ in 0..from.u64()? {
        span = span
            .checked_add(from.u64()?)
            .filter(|span| *span < Offset::MAX / SPAN)
            .ok_or(from.damaged("a span ends above the highest offset"))?;
        wake = wake.wrapping_add(from.i64()?);
        let full = from.byte()? == 1;
        for word in 0..SPAN / 64 {
            let mut bits = u64::MAX;
            if !full {
                let mut bytes = [0; 8];
                for byte in &mut bytes {
                    *byte = from.byte()?;
                }
                bits = u64::from_le_bytes(bytes);
            }
            for bit in (0..64).filter(|bit| bits & 1 << bit != 0) {
                let offset = span * SPAN + word * 64 + bit;
                state
                    .checkpointed_asleep(offset, wake)
                    .map_err(|what| from.damaged(what))?;
            }
        }
    }
    Ok(())
}

pub fn decode(bytes: &[u8]) -> Result<MachineRecovery, DamagedState> {
    let mut from = StateReader::new(bytes);
    let version = from.byte()?;
    if ![FORMAT_1, FORMAT_2, VERSION].contains(&version) {
        return Err(DamagedState {
            at: 0,
            what: "a checkpoint of another version",
        });
    }
    let with_epochs = version == VERSION;
    let leased_in = if with_epochs { from.u32()? } else { 0 };
    let mut state = MachineRecovery::at(from.u64()?);
    state.leased_in = leased_in;
    let mut end = state.floor();
    for _ in 0..from.u64()? {
        let (distance, len, kind) = (from.u64()?, from.u64()?, from.terminal()?);
        let first = end.checked_add(distance).ok_or(from.damaged(RUN_TOO_HIGH))?;
        state.settle(first, len, kind).map_err(|what| from.damaged(what))?;
        end = first + len;
    }
    let mut before = MessageSnapshot::unfilled(0);
    for _ in 0..from.u64()? {
        if version == FORMAT_1 {
            before = MessageSnapshot::unfilled(0);
        }
        let facts = MessageSnapshot::decode_after(&mut before, &mut from, with_epochs)?;
        state.insert(facts).map_err(|what| from.damaged(what))?;
    }
    let ends = from.u64()?;
    if ends > REMEMBERED as u64 {
        return Err(from.damaged("it lists more settlements than a machine remembers"));
    }
    let (mut last, mut epoch) = (0u64, 0);
    for _ in 0..ends {
        last = last.wrapping_add(from.i64()? as u64);
        let (kind, deliveries) = (from.terminal()?, from.u32()?);
        if with_epochs {
            epoch = from.epoch(epoch)?;
        }
        let end = Settlement {
            kind,
            deliveries,
            epoch,
        };
        state.settlements.insert(last, end);
    }
    if version != FORMAT_1 {
        decode_delayed_set(&mut from, &mut state)?;
        state.trim();
    }
    match from.is_empty() {
        true => Ok(state),
        false => Err(from.damaged("the state is followed by further bytes")),
    }
}

#[cfg(test)]
mod tests {
    use thalweg_log::Micros;

    use crate::machine::{DeliveryPolicy, MessageMeta, PassOutcome, WorkMachine};

    #[test]
    fn a_million_messages_that_wait_for_their_retry_fit_into_a_frame() {
        const SECOND: Micros = 1_000_000;
        let mut now = 1_795_000_000 * SECOND;
        let mut machine = WorkMachine::new(DeliveryPolicy::default(), 0);
        for offset in 0..1_000_000 {
            // As with keys, expiry, and claims of batches.
            now += 17;
            let message = MessageMeta {
                offset,
                lane: Some(crate::hash::lane_hash(&offset.to_le_bytes()).get()),
                expires_at: Some(now + 168 * 3600 * SECOND),
                not_before: None,
                skip: false,
                hint: (offset % 1000) as u32 * 300,
            };
            let claimed = now - now % 5000;
            let passed = machine.pass(&message, 7, 30 * SECOND, claimed);
            assert!(matches!(passed, PassOutcome::Leased(_)), "{passed:?}");
            machine.nack(offset, 1, Some(3600 * SECOND), claimed + 3000).unwrap();
            machine.take_journal(&mut Vec::new());
        }
        let mut checkpoint = Vec::new();
        machine.checkpoint(&mut checkpoint);
        assert!(checkpoint.len() < 32 << 20, "{}", checkpoint.len());
    }
}
