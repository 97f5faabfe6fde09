//! Ids of one batch or of many concurrent ones, against a plain map.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const WINDOW: Duration = Duration::from_micros(100);

fn dedup_of(window: Duration) -> Dedup {
    Dedup::new(window, Budget::new(u64::MAX))
}

fn place(offset: Offset) -> MessagePosition {
    MessagePosition { partition: 3, offset }
}

fn see(dedup: &mut Dedup, now: Micros, id: &str) -> Option<DedupLookup> {
    dedup.reserve(now, &[id], 0).ok().map(|seen| seen[0])
}

fn first(dedup: &mut Dedup, now: Micros, id: &str) -> DedupTicket {
    match see(dedup, now, id) {
        Some(DedupLookup::First(ticket)) => ticket,
        seen => panic!("{id} at {now} is {seen:?}"),
    }
}

fn store(dedup: &mut Dedup, now: Micros, id: &str, at: Offset) {
    let ticket = first(dedup, now, id);
    dedup.stored(now, ticket, place(at));
}

fn stored(offset: Offset) -> Option<DedupLookup> {
    Some(DedupLookup::Stored(place(offset)))
}

#[test]
fn a_repetition_inside_the_window_gets_the_first_place() {
    let mut dedup = dedup_of(WINDOW);
    store(&mut dedup, 0, "a", 7);
    assert_eq!(see(&mut dedup, 99, "a"), stored(7));
    let again = see(&mut dedup, 100, "a");
    assert!(
        matches!(again, Some(DedupLookup::First(_))),
        "a repetition does not lengthen the window"
    );
}

#[test]
fn the_window_begins_when_the_message_is_stored_however_long_that_takes() {
    let mut dedup = dedup_of(WINDOW);
    let ticket = first(&mut dedup, 0, "a");
    assert_eq!(see(&mut dedup, 1000, "a"), None, "it is not stored, and not forgotten");
    assert!(dedup.holds(ticket));
    dedup.stored(1000, ticket, place(7));
    assert_eq!(see(&mut dedup, 1099, "a"), stored(7));
}

#[tokio::test]
async fn of_two_that_come_together_the_second_waits_for_the_first() {
    let mut dedup = dedup_of(WINDOW);
    let ticket = first(&mut dedup, 0, "a");
    let busy = dedup.reserve(1, &["b", "a"], 0).unwrap_err();
    assert_eq!(busy.at, 1);
    assert!(
        matches!(see(&mut dedup, 1, "b"), Some(DedupLookup::First(_))),
        "who waits holds nothing"
    );
    let over = tokio::spawn(busy.is_over());
    tokio::task::yield_now().await;
    assert!(!over.is_finished());
    dedup.stored(2, ticket, place(7));
    over.await.unwrap();
    assert_eq!(see(&mut dedup, 3, "a"), stored(7));
}

#[test]
fn an_id_that_is_twice_in_a_batch_is_reserved_once() {
    let mut dedup = dedup_of(WINDOW);
    let seen = dedup.reserve(0, &["a", "b", "a"], 1).unwrap();
    assert!(
        matches!(
            seen[..],
            [DedupLookup::First(_), DedupLookup::First(_), DedupLookup::SameAs(0)]
        ),
        "{seen:?}"
    );
}

#[test]
fn a_message_that_was_not_stored_leaves_its_id_free() {
    let mut dedup = dedup_of(WINDOW);
    let ticket = first(&mut dedup, 0, "a");
    dedup.failed(ticket);
    let again = first(&mut dedup, 1, "a");
    dedup.failed(ticket);
    assert!(dedup.holds(again), "the old ticket says nothing about the new message");
    dedup.stored(1, ticket, place(1));
    assert!(dedup.holds(again));
}

#[test]
fn the_oldest_are_forgotten_first_and_counted_when_there_are_too_many() {
    let mut dedup = Dedup::with_limits(WINDOW, (3, 1000), Budget::new(u64::MAX));
    for (at, id) in ["a", "b", "c", "d"].into_iter().enumerate() {
        store(&mut dedup, 0, id, at as Offset);
    }
    assert_eq!((dedup.len(), dedup.forgotten_early()), (3, 1));
    assert_eq!(see(&mut dedup, 1, "b"), stored(1));
    store(&mut dedup, 1, "a", 9);
    assert_eq!(dedup.forgotten_early(), 2);
    dedup.forget(1000);
    assert!(dedup.is_empty());
    assert_eq!(dedup.forgotten_early(), 2, "what leaves with its window is not early");
}

#[test]
fn long_ids_are_bounded_in_bytes() {
    let mut dedup = Dedup::with_limits(WINDOW, (1000, 100), Budget::new(u64::MAX));
    store(&mut dedup, 0, &"x".repeat(60), 1);
    store(&mut dedup, 0, &"y".repeat(60), 2);
    assert_eq!((dedup.len(), dedup.forgotten_early()), (1, 1));
    store(&mut dedup, 0, &"z".repeat(200), 3);
    assert_eq!(dedup.len(), 0, "one that does not fit at all is not kept");
}

#[test]
fn without_a_window_every_message_is_the_first() {
    let mut dedup = dedup_of(Duration::ZERO);
    store(&mut dedup, 0, "a", 1);
    store(&mut dedup, 0, "a", 2);
    assert!(dedup.is_empty());
}

#[test]
fn a_clock_that_is_set_back_keeps_no_id_longer_than_the_window() {
    let mut dedup = dedup_of(WINDOW);
    store(&mut dedup, 1000, "young", 0);
    store(&mut dedup, 10, "old", 1);
    assert_eq!(see(&mut dedup, 50, "old"), stored(1));
    assert_eq!(dedup.next_due(), Some(1100));
    assert!(matches!(see(&mut dedup, 110, "old"), Some(DedupLookup::First(_))));
}

#[test]
fn ids_come_back_from_the_log() {
    let mut dedup = dedup_of(WINDOW);
    dedup.restore(0, "a", place(1));
    dedup.restore(50, "b", place(2));
    dedup.restore(60, "b", place(3));
    dedup.restore(110, "c", place(4));
    assert!(matches!(see(&mut dedup, 120, "a"), Some(DedupLookup::First(_))));
    assert_eq!(see(&mut dedup, 120, "b"), stored(2));
    assert_eq!(see(&mut dedup, 120, "c"), stored(4));
}

#[derive(Clone, Debug)]
enum Op {
    /// The ids of a batch.
    Reserve(Vec<u8>, usize),
    Stored(usize),
    Failed(usize),
    Pass(i64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (proptest::collection::vec(0..8_u8, 1..4), 0..4_usize).prop_map(|(ids, from)| Op::Reserve(ids, from)),
        3 => any::<usize>().prop_map(Op::Stored),
        2 => any::<usize>().prop_map(Op::Failed),
        2 => (0..60_i64).prop_map(Op::Pass),
    ];
    proptest::collection::vec(op, 0..200)
}

/// The model's state of an id.
#[derive(Clone, Copy, Debug)]
enum Known {
    Reserved(DedupTicket),
    Stored(Micros, MessagePosition),
}

proptest! {
    /// Against a plain map that forgets nothing early.
    #[test]
    fn all_ids_of_a_batch_are_reserved_or_none_and_an_id_is_first_when_no_message_with_it_is_in_the_window(ops in ops()) {
        let mut dedup = dedup_of(WINDOW);
        let mut model: HashMap<u8, Known> = HashMap::new();
        let mut tickets: Vec<(u8, DedupTicket)> = Vec::new();
        let (mut now, mut offset) = (0, 0);
        for op in ops {
            match op {
                Op::Pass(time) => now += time,
                Op::Reserve(batch, from) => {
                    let texts: Vec<String> = batch.iter().map(|id| format!("id-{id}")).collect();
                    let ids: Vec<&str> = texts.iter().map(String::as_str).collect();
                    model.retain(|_, known| !matches!(known, Known::Stored(since, _) if now - *since >= 100));
                    let is_busy = |id: &u8| matches!(model.get(id), Some(Known::Reserved(_)));
                    match dedup.reserve(now, &ids, from) {
                        Err(busy) => prop_assert!(is_busy(&batch[busy.at])),
                        Ok(seen) => {
                            prop_assert!(!batch.iter().any(is_busy), "{batch:?}");
                            for (at, (id, seen)) in batch.iter().zip(seen).enumerate() {
                                let before = batch[..at].iter().position(|other| other == id);
                                match (before, model.get(id)) {
                                    (Some(before), _) => prop_assert_eq!(seen, DedupLookup::SameAs(before)),
                                    (None, Some(Known::Stored(_, place))) => prop_assert_eq!(seen, DedupLookup::Stored(*place)),
                                    (None, _) => {
                                        let DedupLookup::First(ticket) = seen else {
                                            return Err(TestCaseError::fail(format!("{seen:?} is not the first")));
                                        };
                                        model.insert(*id, Known::Reserved(ticket));
                                        tickets.push((*id, ticket));
                                    }
                                }
                            }
                        }
                    }
                }
                Op::Stored(at) if !tickets.is_empty() => {
                    let (id, ticket) = tickets[at % tickets.len()];
                    offset += 1;
                    let holds = matches!(model.get(&id), Some(Known::Reserved(own)) if *own == ticket);
                    prop_assert_eq!(dedup.holds(ticket), holds);
                    dedup.stored(now, ticket, place(offset));
                    if holds {
                        model.insert(id, Known::Stored(now, place(offset)));
                    }
                }
                Op::Failed(at) if !tickets.is_empty() => {
                    let (id, ticket) = tickets[at % tickets.len()];
                    dedup.failed(ticket);
                    if matches!(model.get(&id), Some(Known::Reserved(own)) if *own == ticket) {
                        model.remove(&id);
                    }
                }
                Op::Stored(_) | Op::Failed(_) => {}
            }
            let known = dedup.entries.iter().filter(|entry| entry.place.is_some()).count();
            prop_assert_eq!(dedup.numbers.len(), known);
            let bytes: usize = dedup.entries.iter().map(|entry| entry.id.len()).sum();
            prop_assert_eq!(dedup.id_bytes, bytes);
            prop_assert_eq!(dedup.reserved.len(), dedup.tickets.len());
        }
    }

    #[test]
    fn neither_number_nor_bytes_pass_their_limits(ids in proptest::collection::vec("[a-d]{1,30}", 0..100)) {
        let mut dedup = Dedup::with_limits(WINDOW, (10, 80), Budget::new(u64::MAX));
        for id in ids {
            if let Some(DedupLookup::First(ticket)) = see(&mut dedup, 0, &id) {
                dedup.stored(0, ticket, place(0));
            }
            prop_assert!(dedup.len() <= 10 && dedup.id_bytes <= 80);
        }
    }
}

/// Regression: ids were outside of every memory share, so twelve queues took a gigabyte at a limit of 400 MiB.
#[test]
fn ids_whose_window_has_passed_go_in_pieces_and_a_producer_waits_for_few_of_them() {
    let mut dedup = Dedup::new(Duration::from_secs(1), Budget::new(u64::MAX));
    for n in 0..10_000 {
        store(&mut dedup, n, &n.to_string(), n as u64);
    }
    let later = 5_000_000;
    let _first = first(&mut dedup, later, "7");
    assert!(dedup.len() > 9_000, "{}", dedup.len());
    assert!(dedup.forget_some(later, 4_096));
    let mut pieces = 1;
    while dedup.forget_some(later, 4_096) {
        pieces += 1;
    }
    assert_eq!((dedup.len(), pieces), (0, 2));
}

#[test]
fn all_queues_together_take_no_more_than_their_share_and_each_keeps_its_newest() {
    const SHARE: u64 = 1 << 20;
    let share = Budget::new(SHARE);
    let mut all: Vec<Dedup> = (0..12)
        .map(|_| Dedup::new(Duration::from_secs(3600), share.clone()))
        .collect();
    let id = |queue: usize, n: u64| format!("{queue}-{n:0>36}");
    for n in 0..5000 {
        for (queue, dedup) in all.iter_mut().enumerate() {
            store(dedup, n as Micros, &id(queue, n), n);
        }
        let sum: u64 = all.iter().map(Dedup::bytes).sum();
        assert!(sum <= SHARE + 12 * FLOOR_BYTES, "{sum}");
    }
    for (queue, dedup) in all.iter_mut().enumerate() {
        assert!(dedup.forgotten_early() > 0 && dedup.len() > 100, "{}", dedup.len());
        assert_eq!(dedup.forgotten_early() + dedup.len() as u64, 5000);
        assert_eq!(see(dedup, 5000, &id(queue, 4999)), stored(4999));
        // The reported size is not below the actual one.
        let table = dedup.numbers.capacity() * 8 / 7 * 9 * 2;
        let has = dedup.entries.capacity() * size_of::<DedupEntry>() + table + dedup.heap_bytes as usize;
        assert!(has as u64 <= dedup.bytes() + FLOOR_BYTES, "{has} {}", dedup.bytes());
    }
    // When their window has passed, the memory is available to other queues.
    let (one, others) = all.split_first_mut().unwrap();
    others.iter_mut().for_each(|dedup| dedup.forget(4_000_000_000));
    assert!(
        others
            .iter()
            .all(|dedup| dedup.bytes() == 0 && dedup.entries.capacity() <= SMALL)
    );
    let before = one.len();
    for n in 5000..15_000 {
        store(one, n as Micros, &id(0, n), n);
    }
    assert!(one.len() > 4 * before, "{} {before}", one.len());
}
