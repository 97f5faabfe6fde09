//! Sleeping messages and the reads that wake them.

use thalweg_log::Micros;

use crate::machine::*;

const SECOND: Micros = 1_000_000;
const HOUR: Micros = 3600 * SECOND;

fn delayed(offset: u64, until: Micros) -> MessageMeta {
    MessageMeta {
        offset,
        lane: None,
        expires_at: None,
        not_before: Some(until),
        skip: false,
        hint: 0,
    }
}

#[test]
fn what_falls_asleep_while_its_span_is_read_sleeps_on_and_is_roused_in_its_time() {
    let mut machine = WorkMachine::new(DeliveryPolicy::default(), 0);
    let (first, second) = (delayed(0, HOUR), delayed(1, 2 * HOUR));
    assert!(machine.pass_unclaimable(&first, 0));
    let span = machine.to_rouse(HOUR).unwrap();
    // The read ended at the end of the partition, at 1. Then a message is appended and claimed.
    assert!(machine.pass_unclaimable(&second, HOUR));
    machine.rouse(span, &[first], 1, HOUR);
    let lease = machine.next_ready(1, SECOND, HOUR).unwrap();
    machine.ack(lease.offset, lease.delivery, HOUR).unwrap();
    assert_eq!((machine.counts().lost, machine.asleep()), (0, 1));
    assert_eq!(machine.to_rouse(HOUR), None, "at once it would be read in vain");
    let mut now = HOUR;
    while let Some(span) = machine.to_rouse(now).or_else(|| {
        now = machine.next_due()?;
        machine.to_rouse(now)
    }) {
        assert!(now <= 2 * HOUR);
        machine.rouse(span.clone(), &[second], span.end, now);
    }
    machine.advance(2 * HOUR);
    assert_eq!(machine.next_ready(1, SECOND, 2 * HOUR).unwrap().offset, 1);
}
