//! The parts alone: the wheel against an ordered map, codec round trips, and arbitrary bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;
use thalweg_kit::varint::{put, put_signed};
use thalweg_log::Micros;

use crate::machine::codec::{MessageSnapshot, StateReader};
use crate::machine::entry::{MessageState, NEVER};
use crate::machine::journal::{FailureVerdict, Journal, LeaseRun};
use crate::machine::timer_wheel::{Timer, TimerWheel, Timers};
use crate::machine::*;

struct Handles(Vec<Timer>);

impl Timers for Handles {
    fn timer(&mut self, handle: u32) -> &mut Timer {
        &mut self.0[handle as usize]
    }
}

#[derive(Clone, Debug)]
enum Op {
    Arm(u32, Micros),
    Cancel(u32),
    Advance(Micros),
}

fn op() -> impl Strategy<Value = Op> {
    // Delays of every magnitude, so that each level of the wheel is used.
    let delay = (0u32..52, any::<u64>()).prop_map(|(bits, random)| (random & ((1 << bits) - 1)) as Micros - 3000);
    prop_oneof![
        4 => (0u32..24, delay.clone()).prop_map(|(handle, delay)| Op::Arm(handle, delay)),
        2 => (0u32..24).prop_map(Op::Cancel),
        3 => delay.prop_map(Op::Advance),
    ]
}

proptest! {
    #[test]
    fn the_wheel_fires_what_an_ordered_map_would(start in 0i64..1 << 50, ops in prop::collection::vec(op(), 1..200)) {
        let mut now = start;
        let mut wheel = TimerWheel::new(now);
        let mut handles = Handles(vec![Timer::IDLE; 24]);
        let mut map: BTreeMap<u32, i64> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Arm(handle, delay) => {
                    wheel.cancel(&mut handles, handle);
                    wheel.arm(&mut handles, handle, now + delay);
                    let tick = ((now + delay).max(0) + 999) / 1000;
                    map.insert(handle, tick.max(now / 1000));
                }
                Op::Cancel(handle) => {
                    wheel.cancel(&mut handles, handle);
                    map.remove(&handle);
                }
                Op::Advance(by) => {
                    now += by.max(0);
                    let mut due = Vec::new();
                    while wheel.fire(&mut handles, now, &mut due) {
                        let first = *map.values().min().unwrap();
                        prop_assert!(first <= now / 1000);
                        let mut expected: Vec<u32> =
                            map.iter().filter(|(_, tick)| **tick == first).map(|(handle, _)| *handle).collect();
                        due.sort_unstable();
                        expected.sort_unstable();
                        prop_assert_eq!(&due, &expected);
                        for handle in due.drain(..) {
                            prop_assert!(TimerWheel::take_fired(&mut handles, handle));
                            map.remove(&handle);
                        }
                    }
                    prop_assert!(map.values().all(|tick| *tick > now / 1000));
                }
            }
            let next = map.values().min().map(|tick| tick * 1000);
            prop_assert_eq!(wheel.next_due().is_some(), next.is_some());
            if let (Some(early), Some(next)) = (wheel.next_due(), next) {
                prop_assert!(early <= next && (next - early < 64_000 || early > now));
            }
        }
    }

    #[test]
    fn numbers_come_back(unsigned in any::<u64>(), signed in any::<i64>()) {
        let mut bytes = Vec::new();
        put(&mut bytes, unsigned);
        put_signed(&mut bytes, signed);
        let mut from = StateReader::new(&bytes);
        prop_assert_eq!((from.u64(), from.i64(), from.is_empty()), (Ok(unsigned), Ok(signed), true));
    }

    #[test]
    fn facts_come_back(facts in facts()) {
        let mut bytes = Vec::new();
        facts.encode(&mut bytes);
        prop_assert_eq!(MessageSnapshot::decode(&mut StateReader::new(&bytes), true), Ok(facts));
        for len in 0..bytes.len() {
            prop_assert!(MessageSnapshot::decode(&mut StateReader::new(&bytes[..len]), true).is_err());
        }
    }

    #[test]
    fn hostile_bytes_are_damaged_or_understood_but_never_a_panic(
        checkpoint in prop::collection::vec(any::<u8>(), 0..200),
        journal in prop::collection::vec(any::<u8>(), 0..200),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        bodies in prop::collection::vec((1u8..9, prop::collection::vec(any::<u8>(), 0..40)), 0..10),
    ) {
        let (mut good_checkpoint, mut good_journal) = example();
        for (at, value) in flips {
            let len = good_checkpoint.len() + good_journal.len();
            let at = at.index(len);
            match at.checked_sub(good_checkpoint.len()) {
                Some(at) => good_journal[at] = value,
                None => good_checkpoint[at] = value,
            }
        }
        let mut framed = Vec::new();
        for (kind, body) in bodies {
            framed.push(kind);
            put(&mut framed, body.len() as u64);
            framed.extend(body);
        }
        for checkpoint in [&checkpoint, &good_checkpoint] {
            for journal in [&journal, &good_journal, &framed] {
                if let Ok(mut restoring) = MachineRecovery::new(0, Some(checkpoint)) {
                    let _ = restoring.apply(journal);
                    for offset in restoring.unknown() {
                        restoring.fill(&passing(offset));
                    }
                    restoring.finish(DeliveryPolicy::default(), 0, |_| true).advance(1 << 50);
                }
            }
            let _ = StreamMachine::restore(checkpoint, 10);
        }
    }
}

fn facts() -> impl Strategy<Value = MessageSnapshot> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), 0u8..5);
    (
        any::<u64>(),
        any::<[i64; 4]>(),
        any::<[u32; 4]>(),
        any::<u64>(),
        any::<u16>(),
        flags,
    )
        .prop_map(
            |(offset, times, numbers, lane, failures, (has_lane, expires, filled, state))| {
                let deliveries = numbers[0].max(1);
                MessageSnapshot {
                    offset,
                    state: [
                        MessageState::Delayed,
                        MessageState::Ready,
                        MessageState::Leased,
                        MessageState::Waiting,
                        MessageState::Ending,
                    ][state as usize],
                    deliveries,
                    failures,
                    consumer: numbers[1],
                    due: times[0],
                    expires_at: if expires { times[1] } else { NEVER },
                    lane: has_lane.then_some(lane),
                    first_delivery: times[2],
                    claimed_at: times[3],
                    hint: numbers[2],
                    epoch: numbers[3],
                    reason: (state == 4).then_some(RemovalReason::Timeout),
                    filled,
                }
            },
        )
}

fn passing(offset: u64) -> MessageMeta {
    MessageMeta {
        offset,
        lane: Some(offset % 3),
        expires_at: None,
        not_before: None,
        skip: false,
        hint: 1,
    }
}

/// A checkpoint and a journal in which every kind of record occurs.
fn example() -> (Vec<u8>, Vec<u8>) {
    let policy = DeliveryPolicy {
        max_pending: 10,
        ..DeliveryPolicy::default()
    };
    let mut machine = WorkMachine::new(policy, 5);
    let lease = |machine: &mut WorkMachine, offset| machine.pass(&passing(offset), 1, 1_000_000, 7);
    let _ = (5..16).map(|offset| lease(&mut machine, offset)).count();
    machine.ack(7, 1, 8).unwrap();
    machine.nack(6, 1, None, 9).unwrap();
    let (mut checkpoint, mut journal) = (Vec::new(), Vec::new());
    machine.take_journal(&mut journal);
    machine.checkpoint(&mut checkpoint);
    journal.clear();
    machine.extend(5, 1, 2_000_000, 10).unwrap();
    machine.release(5, 1, true);
    machine.next_ready(2, 1_000_000, 10).unwrap();
    let _ = (16..22).map(|offset| lease(&mut machine, offset)).count();
    machine.advance(70_000_000);
    machine.seek(12);
    let _ = (12..16).map(|offset| lease(&mut machine, offset)).count();
    machine.purge(30);
    machine.take_journal(&mut journal);
    (checkpoint, journal)
}

#[test]
fn a_batch_of_claims_and_acks_is_two_records_of_a_few_bytes() {
    let mut machine = WorkMachine::new(
        DeliveryPolicy {
            ordering: LaneOrdering::None,
            ..DeliveryPolicy::default()
        },
        1000,
    );
    for offset in 1000..1100 {
        machine.pass(&passing(offset), 1, 30_000_000, 1_700_000_000_000_000);
    }
    for offset in 1000..1100 {
        machine.ack(offset, 1, 1_700_000_000_000_000).unwrap();
    }
    let mut journal = Vec::new();
    machine.take_journal(&mut journal);
    assert!(journal.len() < 40, "{} bytes", journal.len());
    assert!(!machine.has_journal());
}

#[test]
fn without_a_journal_nothing_is_written() {
    let mut machine = WorkMachine::new(DeliveryPolicy::default(), 0).without_journal();
    machine.pass(&passing(0), 1, 1000, 0);
    machine.nack(0, 1, None, 0).unwrap();
    machine.purge(5);
    assert!(!machine.has_journal());
    let mut journal = Journal::default();
    journal.turn_off();
    journal.failed(1, 1, 1, FailureVerdict::Retry(5));
    let run = LeaseRun {
        first: 1,
        len: 1,
        consumer: 1,
        now: 1,
        deadline: 1,
        delivery: 1,
    };
    journal.lease(run, 0);
    assert!(journal.is_empty());
}

#[test]
fn a_number_that_cannot_be_read_is_reported_where_reading_stopped() {
    let ten_bytes = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0];
    for (rest, at, what) in [
        (vec![0x80, 0x80], 3, "the data ends too early"),
        (vec![], 1, "the data ends too early"),
        (vec![0x80; 20], 11, "a number is too long"),
        (ten_bytes, 11, "a number is too long"),
    ] {
        let bytes: Vec<u8> = std::iter::once(7).chain(rest).collect();
        let mut from = StateReader::new(&bytes);
        assert_eq!(from.u64(), Ok(7));
        assert_eq!(from.u64(), Err(DamagedState { at, what }), "{bytes:?}");
    }
    let mut longer = StateReader::new(&[0x87, 0x80, 0, 1]);
    assert_eq!((longer.u64(), longer.i64(), longer.is_empty()), (Ok(7), Ok(-1), true));
}

#[test]
fn lengths_in_a_checkpoint_take_no_memory() {
    // Floor 0, 2^40 runs announced; a run 2^40 long after a hole; a message 2^40 away.
    let mut many = vec![1, 0];
    put(&mut many, 1 << 40);
    assert!(MachineRecovery::new(0, Some(&many)).is_err());
    let mut long = vec![1, 0, 1, 1];
    put(&mut long, 1 << 40);
    long.push(1);
    let damaged = MachineRecovery::new(0, Some(&long)).err().unwrap();
    assert_eq!(damaged.what, "a run of offsets reaches too far above the floor");
    let mut far = vec![1, 0, 0, 1];
    MessageSnapshot {
        filled: true,
        ..MessageSnapshot::unfilled(1 << 40)
    }
    .encode(&mut far);
    assert_eq!(
        MachineRecovery::new(0, Some(&far)).err().unwrap().what,
        "a message is too far above the floor"
    );
}
