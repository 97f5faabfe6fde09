//! Any bytes as the state of a queue's group: they are refused, or give a machine that works, and whose own state reads
//! back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_queue::machine::{WorkMachine, MessageMeta, DeliveryPolicy, MachineRecovery, StreamMachine};

/// The first byte says how much of the rest is the checkpoint; changes since follow.
fuzz_target!(|bytes: &[u8]| {
    let Some((part, rest)) = bytes.split_first() else {
        return;
    };
    let (checkpoint, changes) = rest.split_at(rest.len() * usize::from(*part) / 255);
    let checkpoint = (!checkpoint.is_empty()).then_some(checkpoint);
    if let Some(machine) = restored(checkpoint, changes) {
        work(machine);
    }
    if let Ok(stream) = StreamMachine::restore(rest, 100) {
        let mut again = Vec::new();
        stream.checkpoint(&mut again);
        let read = StreamMachine::restore(&again, 100).expect("what is written can be read");
        assert_eq!(read.committed(), stream.committed());
    }
});

fn restored(checkpoint: Option<&[u8]>, changes: &[u8]) -> Option<WorkMachine> {
    let mut restoring = MachineRecovery::new(3, checkpoint).ok()?;
    restoring.apply(changes).ok()?;
    for offset in restoring.unknown() {
        restoring.fill(&passing(offset));
    }
    Some(restoring.finish(DeliveryPolicy::default(), 1_000, |consumer| consumer % 2 == 0))
}

fn passing(offset: u64) -> MessageMeta {
    MessageMeta {
        offset,
        lane: (offset % 3 != 0).then_some(offset % 5),
        expires_at: None,
        not_before: None,
        skip: false,
        hint: 0,
    }
}

fn work(mut machine: WorkMachine) {
    let now = 2_000_000;
    machine.advance(now);
    for _ in 0..20 {
        if let Some(lease) = machine.next_ready(1, 30_000_000, now) {
            let _ = machine.ack(lease.offset, lease.delivery, now);
        }
        let next = machine.cursor();
        // Offsets near the end of all numbers are not reached.
        if next < u64::MAX / 2 {
            machine.pass(&passing(next), 1, 30_000_000, now);
        }
    }
    let mut state = Vec::new();
    machine.checkpoint(&mut state);
    let read = MachineRecovery::new(0, Some(&state)).expect("what is written can be read");
    assert_eq!(read.floor(), machine.floor());
}
