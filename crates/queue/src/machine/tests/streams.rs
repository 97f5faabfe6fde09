//! Stream groups: what raises the commit, and what moves the position back.

use std::collections::BTreeSet;

use super::driver::{Random, for_seeds};
use crate::machine::*;

fn read(machine: &mut StreamMachine, offsets: impl IntoIterator<Item = u64>) {
    for offset in offsets {
        assert!(machine.deliver(offset));
    }
}

#[test]
fn the_commit_is_the_highest_contiguous_acked_offset_plus_one() {
    let mut machine = StreamMachine::new(10, 100);
    read(&mut machine, [10, 11, 12, 15, 16]);
    machine.ack(12).unwrap();
    machine.ack(11).unwrap();
    assert_eq!((machine.committed(), machine.lag(20)), (10, 10));
    machine.ack(10).unwrap();
    machine.ack(15).unwrap();
    assert_eq!(machine.committed(), 16, "offsets that do not exist hold nobody up");
    assert_eq!(machine.ack(17), Err(StreamError::NotDelivered));
    assert_eq!(machine.ack(3), Ok(()), "a repeat succeeds");
}

#[test]
fn a_nack_reads_again_from_its_offset_after_the_delay() {
    let mut machine = StreamMachine::new(0, 100);
    read(&mut machine, 0..5);
    machine.ack(0).unwrap();
    machine.ack(3).unwrap();
    machine.nack(2, 500, 1000).unwrap();
    assert_eq!((machine.readable(1499), machine.next_due()), (None, Some(1500)));
    assert_eq!(machine.readable(1500), Some(2));
    read(&mut machine, 2..4);
    machine.ack(1).unwrap();
    machine.ack(2).unwrap();
    assert_eq!(machine.committed(), 3, "the ack of 3 was for the first reading");
    assert_eq!(machine.nack(0, 0, 0), Err(StreamError::Committed));
    assert_eq!(machine.nack(9, 0, 0), Err(StreamError::NotDelivered));
}

#[test]
fn a_reject_skips_and_counts_once() {
    let mut machine = StreamMachine::new(0, 100);
    read(&mut machine, 0..2);
    machine.reject(1).unwrap();
    machine.reject(1).unwrap();
    machine.ack(0).unwrap();
    assert_eq!((machine.committed(), machine.rejected()), (2, 1));
}

#[test]
fn reading_stops_a_window_ahead_of_the_commit() {
    let mut machine = StreamMachine::new(0, 3);
    read(&mut machine, 0..3);
    assert_eq!(machine.readable(0), None);
    assert!(!machine.deliver(3));
    machine.ack(0).unwrap();
    assert_eq!(machine.readable(0), Some(3));
}

#[test]
fn retention_gives_one_gap_and_then_the_first_message() {
    let mut machine = StreamMachine::new(5, 100);
    assert_eq!(machine.retain(9), Some(OffsetGap { from: 5, to: 9 }));
    assert_eq!(machine.retain(9), None);
    assert_eq!((machine.readable(0), machine.committed()), (Some(9), 9));
    read(&mut machine, 9..14);
    assert_eq!(machine.retain(12), None, "it was read before");
    assert_eq!(machine.committed(), 12);
}

#[test]
fn commit_and_seek_move_either_way_and_survive_a_restart() {
    let mut machine = StreamMachine::new(0, 100);
    read(&mut machine, 0..10);
    let mut journal = Vec::new();
    machine.commit(7);
    machine.take_journal(&mut journal);
    machine.commit(4);
    assert_eq!((machine.committed(), machine.position()), (4, 10));
    machine.seek(2);
    machine.take_journal(&mut journal);
    let len = journal.len();
    machine.take_journal(&mut journal);
    assert_eq!(journal.len(), len, "nothing changed");
    let mut restored = StreamMachine::restore(&journal, 100).unwrap();
    assert_eq!((restored.committed(), restored.readable(0)), (2, Some(2)));
    assert!(StreamMachine::restore(&journal[..len - 1], 100).is_err());
    assert!(StreamMachine::restore(&[9, 1, 1], 100).is_err());
}

#[test]
fn the_commit_never_passes_a_message_that_was_not_acked() {
    for_seeds(|seed| {
        let mut random = Random::new(seed);
        let mut machine = StreamMachine::new(0, 20);
        let mut unacked: BTreeSet<u64> = BTreeSet::new();
        let (mut now, mut end) = (0, 0);
        for step in 1..500 {
            now += 100;
            match random.below(10) {
                0 => {
                    machine.read_by(step);
                    assert_eq!(machine.position(), machine.committed());
                }
                1..5 => {
                    if let Some(from) = machine.readable(now) {
                        // Messages that were read before exist.
                        let offset = from + u64::from(from >= end && random.chance(5));
                        if machine.deliver(offset) {
                            unacked.insert(offset);
                        }
                    }
                }
                5..9 => {
                    let offset = random.below(end + 2);
                    let ok = machine.ack(offset).is_ok();
                    assert_eq!(ok, offset < end);
                    unacked.remove(&offset);
                }
                _ => {
                    let offset = random.below(machine.position() + 2);
                    if machine.nack(offset, random.below(3) as i64 * 100, now).is_ok() {
                        unacked.split_off(&offset);
                        end = offset;
                        assert!(machine.position() <= offset);
                    }
                }
            }
            machine.shrink();
            end = end.max(machine.position());
            let expected = unacked.first().copied().unwrap_or(end);
            assert_eq!(machine.committed(), expected);
        }
    });
}

#[test]
fn another_reader_begins_at_the_commit_and_is_not_given_what_was_acked() {
    let mut machine = StreamMachine::new(0, 100);
    machine.read_by(1);
    read(&mut machine, 0..5);
    machine.ack(1).unwrap();
    machine.read_by(2);
    assert_eq!(machine.readable(0), Some(0));
    read(&mut machine, [0]);
    assert_eq!(machine.readable(0), Some(2));
    machine.ack(4).unwrap();
    machine.ack(0).unwrap();
    assert_eq!((machine.committed(), machine.readable(0)), (2, Some(2)));
    machine.ack(2).unwrap();
    machine.ack(3).unwrap();
    assert_eq!(
        (machine.committed(), machine.readable(0)),
        (5, Some(5)),
        "the first reader was not too late"
    );
}

#[test]
fn a_delayed_message_is_waited_for_and_what_lies_before_it_is_not() {
    let mut machine = StreamMachine::new(0, 100);
    machine.read_by(1);
    read(&mut machine, 0..2);
    machine.wait_at(3, 500);
    assert_eq!((machine.readable(499), machine.next_due()), (None, Some(500)));
    machine.read_by(2);
    assert_eq!(machine.readable(499), Some(0));
    read(&mut machine, 0..2);
    assert_eq!(machine.readable(499), None);
    machine.advance(500);
    assert_eq!((machine.readable(500), machine.next_due()), (Some(3), None));
    machine.commit(4);
    machine.wait_at(4, 900);
    machine.commit(5);
    assert_eq!(machine.readable(600), Some(5), "an operator has it go on");
}

#[test]
fn going_on_after_what_arrived_commits_nothing_and_never_leads_further_than_the_window() {
    let mut machine = StreamMachine::new(0, 10);
    machine.read_from(4, 7);
    assert_eq!((machine.committed(), machine.readable(0)), (0, Some(4)));
    machine.read_again(6);
    assert_eq!(machine.readable(0), Some(4), "an earlier request has ended");
    machine.read_again(7);
    assert_eq!(machine.readable(0), Some(0));
    machine.read_from(1 << 40, 8);
    assert_eq!((machine.position(), machine.readable(0)), (10, None));
    machine.ack(0).unwrap();
    assert_eq!(machine.readable(0), Some(10));
}
