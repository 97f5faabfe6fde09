//! Crash tests: a machine is restored from its last checkpoint and its journal, complete or cut off at any record, once
//! or twice. Then it must deliver exactly the unsettled messages, in the order of each lane.

use std::collections::BTreeMap;

use thalweg_log::{Micros, Offset};

use super::driver::{CONSUMERS, Driver, Options, Random, for_seeds};
use super::model::{At, Message};
use crate::machine::entry::{MessageEntry, MessageState};
use crate::machine::*;

const SECOND: Micros = 1_000_000;

/// What is on disk.
#[derive(Default)]
struct Disk {
    checkpoint: Option<Vec<u8>>,
    records: Vec<Vec<u8>>,
}

impl Disk {
    fn store_journal(&mut self, machine: &mut WorkMachine) {
        let mut bytes = Vec::new();
        machine.take_journal(&mut bytes);
        let mut from = codec::StateReader::new(&bytes);
        let mut start = 0;
        while !from.is_empty() {
            from.byte().unwrap();
            from.part().unwrap();
            self.records.push(bytes[start..from.position()].to_vec());
            start = from.position();
        }
    }

    fn store_checkpoint(&mut self, machine: &mut WorkMachine) {
        self.store_journal(machine);
        let mut bytes = Vec::new();
        machine.checkpoint(&mut bytes);
        self.checkpoint = Some(bytes);
        self.records.clear();
    }

    fn restore(&self, log: &[Option<MessageMeta>], policy: DeliveryPolicy, now: Micros) -> WorkMachine {
        let mut restoring = MachineRecovery::new(0, self.checkpoint.as_deref()).unwrap();
        for record in &self.records {
            restoring.apply(record).unwrap();
        }
        for offset in restoring.unknown() {
            restoring.fill(&log[offset as usize].unwrap());
        }
        restoring.finish(policy, now, can_return)
    }
}

fn can_return(consumer: u32) -> bool {
    consumer != 0
}

fn entry_of(machine: &WorkMachine, offset: Offset) -> Option<&MessageEntry> {
    match machine.find(offset) {
        MessageStatus::Active(entry) => Some(machine.store.entries.get(entry)),
        _ => None,
    }
}

/// Runs a while and stops at a moment at which nothing is due.
fn run(seed: u64, options: Options) -> (Driver, Disk, BTreeMap<Offset, u32>) {
    let mut driver = Driver::new(seed, options);
    let mut disk = Disk::default();
    let mut most = BTreeMap::new();
    for _ in 0..50 + driver.random.below(250) {
        driver.step();
        for (offset, message) in &driver.model.messages {
            let deliveries = most.entry(*offset).or_insert(0);
            *deliveries = message.deliveries.max(*deliveries);
        }
        if driver.random.chance(3) {
            disk.store_journal(&mut driver.machine);
        }
        if driver.random.chance(60) {
            disk.store_checkpoint(&mut driver.machine);
        }
    }
    driver.now += 5 * SECOND;
    driver.machine.advance(driver.now);
    driver.model.advance(driver.now);
    driver.rouse();
    disk.store_journal(&mut driver.machine);
    (driver, disk, most)
}

#[test]
fn a_complete_journal_gives_the_same_state() {
    for_seeds(|seed| {
        let options = Options {
            seek_and_purge: true,
            unsent: true,
            policy_changes: true,
        };
        let (driver, disk, _) = run(seed, options);
        let mut restored = disk.restore(&driver.log, driver.model.policy, driver.now);
        // More may be known about messages that slept, and then the floor waits for them.
        let slept = driver.model.messages.values().any(|message| message.slept);
        assert!(restored.floor() == driver.model.floor || (slept && restored.floor() < driver.model.floor));
        restored.advance(driver.now);
        for (offset, message) in &driver.model.messages {
            match message.at {
                At::Settled(_) => assert!(restored.is_settled(*offset), "{offset} comes back: {message:?}"),
                _ => assert_same(&driver, &restored, *offset, message),
            }
        }
        drain(&driver, disk, restored);
    });
}

fn assert_same(driver: &Driver, restored: &WorkMachine, offset: Offset, message: &Message) {
    let known = driver.model.held.contains(&offset)
        || message.deliveries > 0
        || message.reason == Some(RemovalReason::Overflow);
    if message.asleep || (message.roused && message.deliveries == 0 && message.reason != Some(RemovalReason::Overflow))
    {
        assert!(
            matches!(restored.find(offset), MessageStatus::Asleep),
            "{offset}: {message:?}"
        );
        return;
    }
    let Some(entry) = entry_of(restored, offset) else {
        let unpassed = matches!(restored.find(offset), MessageStatus::Unpassed);
        assert!((!known || message.slept) && unpassed, "{offset} is lost: {message:?}");
        return;
    };
    assert!(known, "{offset}: {message:?} became {entry:?}");
    let (number, failures) = (entry.deliveries, u32::from(entry.failures));
    assert_eq!(
        (number, failures, entry.first_delivery, entry.claimed_at),
        (message.deliveries, message.failures, message.first, message.claimed),
        "{offset}: {message:?}"
    );
    // A restart reads messages again that had to leave while they slept.
    assert!(
        entry.hint == message.hint || message.hint == NO_HINT,
        "{offset}: {message:?}"
    );
    let same_lane = || {
        driver
            .model
            .messages
            .iter()
            .filter(|(_, other)| other.lane.is_some() && other.lane == message.lane)
    };
    let leases = same_lane().filter(|(_, other)| other.at == At::Leased).count();
    // A lease may end if an earlier message of its lane waits, or if a policy change left one too many.
    let may_end = leases > usize::from(driver.model.policy.lane_window)
        || same_lane().any(|(other, m)| *other < offset && matches!(m.at, At::Ready | At::Waiting));
    let expected = match message.at {
        At::Leased if !can_return(message.consumer) => MessageState::Ready,
        At::Leased if may_end && entry.state == MessageState::Ready => MessageState::Ready,
        At::Leased => MessageState::Leased,
        At::Waiting if message.reason.is_some() => MessageState::Ending,
        // Due within this millisecond.
        At::Waiting if message.due <= driver.now => MessageState::Ready,
        At::Waiting => MessageState::Waiting,
        At::Ready => MessageState::Ready,
        At::Delayed => MessageState::Delayed,
        At::Ending => MessageState::Ending,
        At::Settled(_) => unreachable!(),
    };
    // If it was released late, it may have expired meanwhile.
    let expired =
        entry.state == MessageState::Ending && expected == MessageState::Ready && entry.expires_at <= driver.now;
    assert!(
        entry.state == expected || expired,
        "{offset}: {message:?} became {entry:?}"
    );
    if matches!(
        expected,
        MessageState::Leased | MessageState::Waiting | MessageState::Delayed
    ) {
        assert_eq!(entry.due, message.due, "{offset}: {message:?}");
    }
}

#[test]
fn a_journal_cut_off_loses_no_message_and_raises_no_delivery_number() {
    for_seeds(|seed| {
        let options = Options {
            seek_and_purge: false,
            unsent: false,
            policy_changes: true,
        };
        let (mut driver, mut disk, most) = run(seed ^ 0x5555, options);
        let left = driver.random.below(disk.records.len() as u64 + 1) as usize;
        disk.records.truncate(left);
        let restored = disk.restore(&driver.log, driver.model.policy, driver.now);
        assert!(restored.floor() <= driver.model.floor);
        for offset in 0..driver.log.len() as Offset {
            let settled = driver
                .model
                .messages
                .get(&offset)
                .is_none_or(|message| matches!(message.at, At::Settled(_)));
            let passed = offset < driver.model.cursor;
            assert!(!restored.is_settled(offset) || (settled && passed), "{offset} is lost");
            if let Some(entry) = entry_of(&restored, offset) {
                assert!(entry.deliveries <= most[&offset], "{offset}: {entry:?}");
            }
        }
        drain(&driver, disk, restored);
    });
}

/// Claims and acks until the whole log is settled, with a second crash on the way.
fn drain(driver: &Driver, mut disk: Disk, restored: WorkMachine) {
    let log = &driver.log;
    let policy = DeliveryPolicy {
        max_retries: 1000,
        total_timeout: 0,
        ..driver.model.policy
    };
    let mut machine = restored;
    machine.set_policy(policy);
    let settled: Vec<bool> = (0..log.len() as Offset)
        .map(|offset| machine.is_settled(offset))
        .collect();
    let mut now = driver.now;
    let mut random = Random::new(log.len() as u64);
    for round in 0..10_000 {
        // Now and then past every deadline: some leases belong to consumers that never come back.
        now += if round % 50 == 49 { EXTEND_MAX } else { SECOND };
        machine.advance(now);
        let consumer = round % CONSUMERS;
        for _ in 0..3 {
            let Some(lease) = claim(&mut machine, log, consumer, now) else {
                break;
            };
            assert!(
                !settled[lease.offset as usize],
                "{} was settled and comes back",
                lease.offset
            );
            assert_order(&machine, log, lease.offset, consumer);
            if random.chance(2) {
                machine.ack(lease.offset, lease.delivery, now).unwrap();
            }
        }
        for ending in machine.take_ending(10) {
            assert!(machine.ended(ending.offset, FinalState::Dead, now));
        }
        while let Some(span) = machine.to_rouse(now) {
            let messages = log.iter().flatten().filter(|message| span.contains(&message.offset));
            machine.rouse(span.clone(), &messages.copied().collect::<Vec<_>>(), span.end, now);
        }
        disk.store_journal(&mut machine);
        if round == 5 {
            let again = disk.restore(log, policy, now);
            for offset in 0..log.len() as Offset {
                assert_eq!(
                    again.is_settled(offset),
                    machine.is_settled(offset),
                    "{offset} after the second crash"
                );
            }
            machine = again;
        }
        if machine.cursor() as usize >= log.len() && machine.backlog(machine.cursor()) == 0 {
            return;
        }
    }
    panic!(
        "never done: {:?}, floor {}, cursor {}",
        machine.counts(),
        machine.floor(),
        machine.cursor()
    );
}

fn claim(machine: &mut WorkMachine, log: &[Option<MessageMeta>], consumer: u32, now: Micros) -> Option<Lease> {
    loop {
        if let Some(lease) = machine.next_ready(consumer, SECOND, now) {
            return Some(lease);
        }
        let Some(message) = log
            .get(machine.cursor() as usize..)?
            .iter()
            .find_map(|message| *message)
        else {
            machine.pass_gap(log.len() as Offset, false, now);
            return None;
        };
        match machine.pass(&message, consumer, SECOND, now) {
            PassOutcome::Leased(lease) => return Some(lease),
            PassOutcome::Taken => {}
            PassOutcome::Full(_) => return None,
        }
    }
}

/// Every earlier message of the lane is done, leaving, delayed, or leased to the same consumer.
fn assert_order(machine: &WorkMachine, log: &[Option<MessageMeta>], offset: Offset, consumer: u32) {
    let passing = log[offset as usize].unwrap();
    let Some(lane) = machine.lane_of(passing.lane) else {
        return;
    };
    for earlier in log[..offset as usize].iter().flatten() {
        if machine.lane_of(earlier.lane) != Some(lane) || machine.is_settled(earlier.offset) {
            continue;
        }
        // A sleeping message counts as delayed.
        let asleep = matches!(machine.find(earlier.offset), MessageStatus::Asleep);
        let fine = asleep
            || entry_of(machine, earlier.offset).is_some_and(|entry| match entry.state {
                MessageState::Leased => entry.consumer == consumer && machine.policy().lane_window > 1,
                MessageState::Delayed | MessageState::Ending => true,
                _ => entry.reason.is_some(),
            });
        assert!(
            fine,
            "{offset} goes before {}: {:?} and {:?}",
            earlier.offset,
            entry_of(machine, earlier.offset),
            entry_of(machine, offset)
        );
    }
}

#[test]
fn an_early_record_of_a_move_keeps_the_message_settled() {
    let message = MessageMeta {
        offset: 0,
        lane: None,
        expires_at: None,
        not_before: None,
        skip: false,
        hint: 0,
    };
    let mut machine = WorkMachine::new(DeliveryPolicy::default(), 0);
    assert!(matches!(machine.pass(&message, 1, SECOND, 0), PassOutcome::Leased(_)));
    machine.reject(0, 1).unwrap();
    let mut disk = Disk::default();
    let mut early = Vec::new();
    WorkMachine::ended_record(0, FinalState::Dead, &mut early);
    disk.records.push(early);
    disk.store_journal(&mut machine);
    let mut restored = disk.restore(&[Some(message)], DeliveryPolicy::default(), 0);
    assert!(restored.is_settled(0));
    assert_eq!(restored.take_ending(10), []);
    assert_eq!(restored.cursor(), 1);
}

/// One message, then a gap, then another message: what was journaled in one go.
fn over_a_gap(width: u64, delayed: bool) -> (WorkMachine, Disk) {
    let message = MessageMeta {
        offset: width,
        lane: None,
        expires_at: None,
        not_before: delayed.then_some(3600 * SECOND),
        skip: false,
        hint: 0,
    };
    let mut machine = WorkMachine::new(DeliveryPolicy::default(), 0);
    let mut disk = Disk::default();
    disk.store_journal(&mut machine);
    assert_eq!(machine.pass_gap(width, true, 0), width);
    let passed = machine.pass(&message, 1, SECOND, 0);
    assert_eq!(matches!(passed, PassOutcome::Leased(_)), !delayed);
    disk.store_journal(&mut machine);
    (machine, disk)
}

#[test]
fn a_gap_wider_than_the_window_and_what_comes_after_it_are_restored_as_they_were() {
    for (width, delayed) in [
        (WINDOW_MAX - 1, false),
        (WINDOW_MAX, false),
        (3 * WINDOW_MAX, false),
        (3 * WINDOW_MAX, true),
    ] {
        let (machine, disk) = over_a_gap(width, delayed);
        let mut restoring = MachineRecovery::new(0, None).unwrap();
        for record in &disk.records {
            restoring.apply(record).unwrap();
        }
        assert_eq!(restoring.floor(), machine.floor(), "{width}");
        let unknown = if delayed { vec![] } else { vec![width] };
        assert_eq!(restoring.unknown(), unknown);
        let restored = restoring.finish(DeliveryPolicy::default(), 0, can_return);
        assert_eq!(restored.asleep(), u64::from(delayed));
    }
}

#[test]
fn a_window_as_wide_as_can_be_is_restored_though_its_floor_rose_with_the_last_lease() {
    let policy = DeliveryPolicy {
        max_pending: WINDOW_MAX as u32,
        max_held: 0,
        ..DeliveryPolicy::default()
    };
    let message = |offset| MessageMeta {
        offset,
        lane: None,
        expires_at: None,
        not_before: None,
        skip: offset > 0 && offset < WINDOW_MAX,
        hint: 0,
    };
    let (mut machine, mut disk) = (WorkMachine::new(policy, 0), Disk::default());
    for offset in 0..WINDOW_MAX {
        assert!(!matches!(
            machine.pass(&message(offset), 1, SECOND, 0),
            PassOutcome::Full(_)
        ));
    }
    assert!(matches!(
        machine.pass(&message(WINDOW_MAX), 1, SECOND, 0),
        PassOutcome::Full(_)
    ));
    disk.store_journal(&mut machine);
    // A claim finds that the first message is lost, and then there is room.
    assert!(machine.gone(0, true, 0));
    let passed = machine.pass(&message(2 * WINDOW_MAX - 1), 1, SECOND, 0);
    assert!(matches!(passed, PassOutcome::Leased(_)), "{passed:?}");
    disk.store_journal(&mut machine);
    let mut restoring = MachineRecovery::new(0, None).unwrap();
    for record in &disk.records {
        restoring.apply(record).unwrap();
    }
    assert_eq!(restoring.unknown(), [2 * WINDOW_MAX - 1]);
}
