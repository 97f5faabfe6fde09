use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn partition(number: i32) -> TopicPartition {
    TopicPartition {
        topic: "t".into(),
        number,
    }
}

fn span(number: i32, from: i64, to: i64) -> OffsetRange {
    OffsetRange {
        partition: partition(number),
        from,
        to,
    }
}

fn mark(id: u128) -> CommitMetadata {
    CommitMetadata {
        topic: Some(TopicId::of(id)),
        newest_below: 0,
    }
}

/// Sets the starting point of an assigned partition and seeks there.
fn place(tracker: &mut OffsetTracker, number: i32, start: SeekPosition, is_to_be_committed: bool) {
    place_in(tracker, number, mark(1), start, is_to_be_committed);
}

fn place_in(
    tracker: &mut OffsetTracker,
    number: i32,
    mark: CommitMetadata,
    start: SeekPosition,
    is_to_be_committed: bool,
) {
    let unplaced = tracker.unplaced();
    let (partition, assignment) = unplaced
        .iter()
        .find(|(partition, _)| partition.number == number)
        .unwrap();
    let (partition, assignment) = (partition.clone(), *assignment);
    assert!(!tracker.wants(&partition));
    let placed = PartitionStart {
        partition: partition.clone(),
        assignment,
        mark,
        start,
        is_to_be_committed,
    };
    tracker.placed(&placed);
    assert!(!tracker.wants(&partition));
    tracker.rewound(&partition, start);
    assert!(tracker.wants(&partition));
}

/// Assigns a partition and reads it from its oldest record.
fn hold(tracker: &mut OffsetTracker, number: i32) {
    tracker.assigned(partition(number));
    place(tracker, number, SeekPosition::Oldest, false);
}

fn due(tracker: &OffsetTracker) -> Vec<(TopicPartition, i64)> {
    let due = tracker.due().into_iter();
    due.map(|(partition, to, _)| (partition, to)).collect()
}

fn rewinds(tracker: &OffsetTracker) -> Vec<(TopicPartition, i64)> {
    let rewinds = tracker.rewinds().into_iter();
    rewinds
        .map(|(partition, start)| (partition, start.offset().unwrap_or(0)))
        .collect()
}

#[test]
fn only_the_confirmed_front_is_committed() {
    let mut tracker = OffsetTracker::default();
    hold(&mut tracker, 0);
    let first = tracker.sent(&[span(0, 5, 7)]);
    let second = tracker.sent(&[span(0, 7, 9)]);
    tracker.settled(second, AckResult::Acked);
    assert_eq!(due(&tracker), []);
    tracker.settled(first, AckResult::Acked);
    assert_eq!(due(&tracker), [(partition(0), 9)]);
    tracker.committing(&partition(0), 9);
    assert_eq!(due(&tracker), []);
    tracker.uncommitted(&partition(0));
    assert_eq!(due(&tracker), [(partition(0), 9)]);
}

#[test]
fn what_is_given_back_is_read_again_with_all_after_it() {
    let mut tracker = OffsetTracker::default();
    hold(&mut tracker, 0);
    let first = tracker.sent(&[span(0, 0, 2)]);
    let second = tracker.sent(&[span(0, 2, 4)]);
    assert!(tracker.settled(first, AckResult::Nacked));
    assert_eq!(rewinds(&tracker), [(partition(0), 0)]);
    assert!(!tracker.wants(&partition(0)), "what was on its way is older");
    tracker.settled(second, AckResult::Acked);
    assert_eq!(due(&tracker), [], "it is forgotten");
    tracker.rewound(&partition(0), SeekPosition::At(0));
    assert!(tracker.wants(&partition(0)) && rewinds(&tracker).is_empty());
    let again = tracker.sent(&[span(0, 0, 2)]);
    tracker.settled(again, AckResult::Acked);
    assert_eq!(due(&tracker), [(partition(0), 2)]);
}

#[test]
fn what_goes_back_further_while_it_is_sought_is_not_there_yet() {
    let mut tracker = OffsetTracker::default();
    hold(&mut tracker, 0);
    let first = tracker.sent(&[span(0, 20, 50)]);
    let second = tracker.sent(&[span(0, 50, 60)]);
    tracker.settled(second, AckResult::Nacked);
    assert_eq!(rewinds(&tracker), [(partition(0), 50)]);
    tracker.settled(first, AckResult::Nacked);
    tracker.rewound(&partition(0), SeekPosition::At(50));
    assert_eq!(rewinds(&tracker), [(partition(0), 20)]);
    assert!(!tracker.wants(&partition(0)), "nobody has gone there");
    tracker.rewound(&partition(0), SeekPosition::At(20));
    assert!(tracker.wants(&partition(0)) && rewinds(&tracker).is_empty());
}

#[test]
fn where_a_group_begins_is_due_until_it_is_committed() {
    let mut tracker = OffsetTracker::default();
    tracker.assigned(partition(0));
    place(&mut tracker, 0, SeekPosition::At(7), true);
    tracker.committing(&partition(0), 7);
    assert_eq!(due(&tracker), []);
    tracker.uncommitted(&partition(0));
    assert_eq!(due(&tracker), [(partition(0), 7)]);
    let batch = tracker.sent(&[span(0, 7, 9)]);
    assert_eq!(due(&tracker), [(partition(0), 7)], "what was sent is not confirmed");
    tracker.settled(batch, AckResult::Acked);
    assert_eq!(due(&tracker), [(partition(0), 9)]);
}

#[test]
fn a_partition_that_is_before_where_a_group_began_is_another_log_by_now() {
    let mut tracker = OffsetTracker::default();
    tracker.assigned(partition(0));
    place(&mut tracker, 0, SeekPosition::At(7), true);
    tracker.committing(&partition(0), 7);
    assert_eq!(tracker.jump(&partition(0), 0), Some(Jump::Back(7)));
    let batch = tracker.sent(&[span(0, 0, 2)]);
    tracker.settled(batch, AckResult::Acked);
    assert_eq!(due(&tracker), [(partition(0), 2)]);
}

#[test]
fn of_a_partition_that_was_taken_away_nothing_is_committed() {
    let mut tracker = OffsetTracker::default();
    hold(&mut tracker, 0);
    hold(&mut tracker, 1);
    let batch = tracker.sent(&[span(0, 0, 2), span(1, 0, 3)]);
    let epoch = tracker.epoch();
    tracker.revoked(&partition(0));
    assert!(tracker.epoch() > epoch);
    // It is assigned again, and starts over.
    hold(&mut tracker, 0);
    tracker.settled(batch, AckResult::Acked);
    assert_eq!(due(&tracker), [(partition(1), 3)]);
}

#[test]
fn records_that_were_read_and_not_sent_are_read_again() {
    let mut tracker = OffsetTracker::default();
    hold(&mut tracker, 0);
    tracker.unsent(&[span(0, 4, 6)]);
    assert_eq!(rewinds(&tracker), [(partition(0), 4)]);
    tracker.rewound(&partition(0), SeekPosition::At(4));
    let batch = tracker.sent(&[span(0, 4, 6)]);
    tracker.unsent(&[span(0, 6, 7)]);
    assert_eq!(rewinds(&tracker), [(partition(0), 6)]);
    tracker.settled(batch, AckResult::Acked);
    assert_eq!(due(&tracker), [(partition(0), 6)]);
}

#[test]
fn a_partition_that_goes_back_is_another_log_by_now() {
    let mut tracker = OffsetTracker::default();
    hold(&mut tracker, 0);
    let old = tracker.sent(&[span(0, 500, 510)]);
    tracker.settled(old, AckResult::Acked);
    tracker.committing(&partition(0), 510);
    let late = tracker.sent(&[span(0, 510, 520)]);
    assert_eq!(tracker.jump(&partition(0), 520), None);
    assert_eq!(tracker.jump(&partition(0), 0), Some(Jump::Back(520)));
    let new = tracker.sent(&[span(0, 0, 3)]);
    tracker.settled(late, AckResult::Acked);
    assert_eq!(due(&tracker), [], "what is confirmed is of the log that is gone");
    tracker.settled(new, AckResult::Acked);
    assert_eq!(due(&tracker), [(partition(0), 3)]);
    let newest = tracker.sent(&[span(0, 3, 5)]);
    tracker.settled(newest, AckResult::Nacked);
    assert_eq!(rewinds(&tracker), [(partition(0), 3)]);
}

#[test]
fn records_that_are_lost_are_told_once_with_where_they_were() {
    let mut tracker = OffsetTracker::default();
    hold(&mut tracker, 0);
    tracker.lost(&partition(0), 7);
    assert_eq!(tracker.jump(&partition(0), 100), Some(Jump::From(7)));
    assert_eq!(tracker.jump(&partition(0), 101), None);
    let batch = tracker.sent(&[span(0, 100, 102)]);
    tracker.settled(batch, AckResult::Acked);
    assert_eq!(due(&tracker), [(partition(0), 102)]);
}

#[test]
fn what_was_read_can_be_read_on_from_its_end_once_more() {
    let mut tracker = OffsetTracker::default();
    hold(&mut tracker, 0);
    hold(&mut tracker, 1);
    let batch = tracker.sent(&[span(0, 0, 2)]);
    assert_eq!(
        tracker.places(),
        BTreeMap::from([(partition(0), Some(2)), (partition(1), None)])
    );
    tracker.read_on_again();
    assert_eq!(
        tracker.rewinds(),
        [
            (partition(0), SeekPosition::At(2)),
            (partition(1), SeekPosition::Oldest)
        ]
    );
    tracker.rewound(&partition(0), SeekPosition::At(2));
    tracker.settled(batch, AckResult::Acked);
    assert_eq!(due(&tracker), [(partition(0), 2)]);
}

#[test]
fn a_place_is_that_of_the_assignment_for_which_it_was_found_out() {
    let mut tracker = OffsetTracker::default();
    tracker.assigned(partition(0));
    let (_, earlier) = tracker.unplaced()[0].clone();
    tracker.revoked(&partition(0));
    tracker.assigned(partition(0));
    let placed = |assignment| PartitionStart {
        partition: partition(0),
        assignment,
        mark: mark(1),
        start: SeekPosition::At(7),
        is_to_be_committed: false,
    };
    tracker.placed(&placed(earlier));
    let (_, now) = tracker.unplaced()[0].clone();
    tracker.placed(&placed(now));
    assert!(tracker.unplaced().is_empty());
    assert_eq!(due(&tracker), [], "the group has committed it");
}

#[test]
fn of_a_topic_that_was_recreated_all_is_read_and_nothing_is_committed_that_was_read_before() {
    let mut tracker = OffsetTracker::default();
    hold(&mut tracker, 0);
    hold(&mut tracker, 1);
    let old = tracker.sent(&[span(0, 5, 9)]);
    assert_eq!(tracker.found_in("t", TopicId::of(1)), [], "it is the same");
    assert_eq!(tracker.found_in("another", TopicId::of(2)), []);
    let moved = tracker.found_in("t", TopicId::of(2));
    assert_eq!(moved, [(partition(0), Some(9)), (partition(1), None)]);
    assert_eq!(rewinds(&tracker), [(partition(0), 0), (partition(1), 0)]);
    tracker.settled(old, AckResult::Acked);
    assert_eq!(due(&tracker), [(partition(0), 0), (partition(1), 0)]);
    tracker.revoked(&partition(1));
    tracker.rewound(&partition(0), SeekPosition::At(0));
    let new = tracker.sent(&[span(0, 0, 3)]);
    tracker.settled(new, AckResult::Acked);
    assert_eq!(tracker.due(), [(partition(0), 3, mark(2))]);
}

#[derive(Clone, Debug)]
enum Step {
    Assign(i32),
    Revoke(i32),
    /// Numbers of records per partition, in one batch.
    Send(Vec<(i32, i64)>),
    Settle(usize, bool),
    Rewind,
    Commit,
    /// The topic is deleted and recreated.
    Recreate,
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0..3_i32;
    prop_oneof![
        2 => number.clone().prop_map(Step::Assign),
        1 => number.clone().prop_map(Step::Revoke),
        6 => prop::collection::vec((number, 1..5_i64), 1..3).prop_map(Step::Send),
        6 => (any::<usize>(), prop::bool::weighted(0.8)).prop_map(|(which, acked)| Step::Settle(which, acked)),
        2 => Just(Step::Rewind),
        2 => Just(Step::Commit),
        1 => Just(Step::Recreate),
    ]
}

/// A naive model of a partition: its read position, and the offsets confirmed since its assignment.
#[derive(Default)]
struct Naive {
    assigned: u64,
    next: i64,
    confirmed: BTreeSet<i64>,
    waits: bool,
}

proptest! {
    /// Whatever is assigned, revoked, settled and read again: each offset below a commit was confirmed by a batch of
    /// the same assignment and topic, and a partition whose batches are all confirmed is committed to its end.
    #[test]
    fn what_is_committed_was_confirmed(steps in prop::collection::vec(step(), 0..80)) {
        let mut tracker = OffsetTracker::default();
        let mut naive: BTreeMap<i32, Naive> = BTreeMap::new();
        let (mut assignments, mut topic) = (0, 1);
        let mut open: Vec<(u64, Vec<(u64, OffsetRange)>)> = Vec::new();
        for step in steps {
            match step {
                Step::Assign(number) => {
                    if naive.contains_key(&number) { continue; }
                    assignments += 1;
                    naive.insert(number, Naive { assigned: assignments, ..Naive::default() });
                    tracker.assigned(partition(number));
                    place_in(&mut tracker, number, mark(topic), SeekPosition::Oldest, false);
                }
                Step::Revoke(number) => {
                    naive.remove(&number);
                    tracker.revoked(&partition(number));
                }
                Step::Send(records) => {
                    let mut spans: Vec<(u64, OffsetRange)> = Vec::new();
                    for (number, count) in records {
                        let Some(held) = naive.get_mut(&number) else { continue };
                        if spans.iter().any(|(_, span)| span.partition.number == number) { continue; }
                        prop_assert_eq!(tracker.wants(&partition(number)), !held.waits);
                        // While a seek is pending, records sent from the partition were read before it, and are
                        // ignored.
                        let assigned = if held.waits { 0 } else { held.assigned };
                        spans.push((assigned, span(number, held.next, held.next + count)));
                        held.next += count;
                    }
                    let plain: Vec<OffsetRange> = spans.iter().map(|(_, span)| span.clone()).collect();
                    open.push((tracker.sent(&plain), spans));
                }
                Step::Settle(which, acked) => {
                    if open.is_empty() { continue; }
                    let (number, spans) = open.remove(which % open.len());
                    let outcome = if acked { AckResult::Acked } else { AckResult::Nacked };
                    tracker.settled(number, outcome);
                    for (assigned, span) in &spans {
                        let held = naive.get_mut(&span.partition.number);
                        let Some(held) = held.filter(|held| held.assigned == *assigned) else { continue };
                        if acked { held.confirmed.extend(span.from..span.to); }
                    }
                    for (partition, at) in rewinds(&tracker) {
                        let held = naive.get_mut(&partition.number).unwrap();
                        prop_assert!(at <= held.next);
                        held.waits = true;
                    }
                }
                Step::Rewind => for (partition, at) in rewinds(&tracker) {
                    tracker.rewound(&partition, SeekPosition::At(at));
                    let held = naive.get_mut(&partition.number).unwrap();
                    (held.next, held.waits) = (at, false);
                },
                Step::Commit => for (partition, at) in due(&tracker) {
                    let held = naive.get(&partition.number).unwrap();
                    prop_assert!((0..at).all(|place| held.confirmed.contains(&place)), "{at} of {:?}", held.confirmed);
                    tracker.committing(&partition, at);
                },
                Step::Recreate => {
                    topic += 1;
                    let moved = tracker.found_in("t", TopicId::of(topic));
                    prop_assert_eq!(moved.len(), naive.len());
                    for held in naive.values_mut() {
                        assignments += 1;
                        *held = Naive { assigned: assignments, next: held.next, waits: true, ..Naive::default() };
                    }
                }
            }
        }
        // All open batches are confirmed, and all rewound partitions are read to their former positions.
        for (number, _) in open { tracker.settled(number, AckResult::Acked); }
        for (partition, at) in rewinds(&tracker) {
            tracker.rewound(&partition, SeekPosition::At(at));
            let batch = tracker.sent(&[OffsetRange { partition: partition.clone(), from: at, to: at + 1 }]);
            tracker.settled(batch, AckResult::Acked);
        }
        for held in tracker.held.values() {
            prop_assert!(held.open.is_empty());
            prop_assert_eq!(held.floor.unwrap_or(0), held.next.unwrap_or(0));
        }
    }
}

#[test]
fn progress_is_told_from_the_starting_point_on() {
    let mut tracker = OffsetTracker::default();
    tracker.assigned(partition(0));
    assert_eq!(tracker.progress(&partition(0)), None);
    place(&mut tracker, 0, SeekPosition::Oldest, false);
    let progress = |tracker: &OffsetTracker| {
        let progress = tracker.progress(&partition(0)).unwrap();
        (progress.next, progress.confirmed, tracker.in_flight(&partition(0)))
    };
    assert_eq!(progress(&tracker), (None, None, 0));
    let first = tracker.sent(&[span(0, 5, 8)]);
    let second = tracker.sent(&[span(0, 8, 10)]);
    assert_eq!(progress(&tracker), (Some(10), Some(5), 5));
    tracker.settled(second, AckResult::Acked);
    assert_eq!(progress(&tracker), (Some(10), Some(5), 5), "the first one is open");
    tracker.settled(first, AckResult::Acked);
    assert_eq!(progress(&tracker), (Some(10), Some(10), 0));
}
