//! Checks the accounting against a model of the server library's queues, which records what was really drained and
//! displaced.

use std::collections::{HashMap, VecDeque};

use opcua::types::Variant;
use proptest::prelude::*;

use super::*;
use crate::SimulatorOptions;

const ITEMS: u32 = 6;

/// One queue of the model.
struct Queue {
    values: VecDeque<(u32, bool)>,
    limit: usize,
    reporting: bool,
}

/// Queues that follow the library's rules and count.
#[derive(Default)]
struct Model {
    queues: HashMap<u32, Queue>,
    late: bool,
    pushed: u64,
    /// Item, value, and whether the value carries the overflow bit.
    drained: Vec<(u32, u32, bool)>,
    displaced: u64,
}

impl Model {
    fn create(&mut self, new: &NewItem, space: &PlcAddressSpace) {
        let value = space.changed_value(new.group, new.index, new.changes);
        let limit = new.queue as usize;
        let queue = Queue {
            values: VecDeque::new(),
            limit,
            reporting: true,
        };
        self.queues.insert(new.id, queue);
        self.enqueue(new.id, value, false);
    }

    fn enqueue(&mut self, id: u32, value: Variant, overflow: bool) {
        let Variant::UInt32(value) = value else {
            panic!("not a counter: {value:?}")
        };
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if queue.values.len() == queue.limit {
            queue.values.pop_front();
            self.displaced += 1;
        }
        queue.values.push_back((value, overflow));
        self.pushed += 1;
    }

    fn drain(&mut self) {
        for (id, queue) in self.queues.iter_mut().filter(|(_, queue)| queue.reporting) {
            let values = queue.values.drain(..);
            self.drained
                .extend(values.map(|(value, overflow)| (*id, value, overflow)));
        }
    }

    fn held(&self) -> u64 {
        self.queues.values().map(|queue| queue.values.len() as u64).sum()
    }

    fn values(&self) -> Vec<u32> {
        self.drained.iter().map(|(_, value, _)| *value).collect()
    }
}

impl SubscriptionQueues for Model {
    fn holds(&self, item: u32) -> Option<bool> {
        self.queues.get(&item).map(|queue| !queue.values.is_empty())
    }

    fn discards_oldest(&self, _: u32) -> bool {
        true
    }

    fn is_late(&self) -> bool {
        self.late
    }

    fn push(&mut self, item: u32, value: DataValue, _: &DateTime) {
        let overflow = value.status.is_some_and(|status| status.overflow());
        self.enqueue(item, value.value.unwrap(), overflow);
    }
}

fn item(id: u32, changes: u64, queue: u32) -> NewItem {
    NewItem {
        subscription: 1,
        id,
        group: Group::Fast,
        index: id,
        changes,
        queue,
        sampling_interval_ms: 0.0,
        mode: MonitoringMode::Reporting,
        filter: None,
        writable: false,
    }
}

/// A ledger, the model of its queues, and the totals.
struct Bench {
    space: PlcAddressSpace,
    ledger: Ledger,
    model: Model,
    totals: [Totals; GROUPS],
    changes: u64,
}

impl Bench {
    fn new() -> Bench {
        let options = SimulatorOptions {
            fast_nodes: ITEMS,
            ..SimulatorOptions::default()
        };
        Bench {
            space: PlcAddressSpace::new(&options),
            ledger: Ledger::default(),
            model: Model::default(),
            totals: Default::default(),
            changes: 0,
        }
    }

    fn announce(&mut self, id: u32, queue: u32) -> NewItem {
        let new = item(id, self.changes, queue);
        self.ledger.add(new.clone());
        new
    }

    fn create(&mut self, id: u32, queue: u32) {
        let new = self.announce(id, queue);
        self.model.create(&new, &self.space);
        self.admit();
    }

    fn admit(&mut self) {
        self.ledger
            .admit(&self.space, &mut self.model, DateTime::null(), &mut self.totals);
    }

    fn change(&mut self) {
        self.changes += 1;
        self.space.clock(Group::Fast).unwrap().set_changes(self.changes);
        let change = Change::new(&self.space, Group::Fast, self.changes, DateTime::null()).unwrap();
        let count = self.ledger.len(Group::Fast);
        self.ledger.push(change, 0..count, &mut self.model, &mut self.totals);
    }

    fn release(&mut self) {
        self.ledger
            .release(&self.space, &mut self.model, DateTime::null(), &mut self.totals);
    }

    fn remove(&mut self, id: u32) {
        self.model.queues.remove(&id);
        self.ledger.remove(&HashSet::from([id]), &self.model, &mut self.totals);
    }

    fn set_mode(&mut self, id: u32, mode: MonitoringMode) {
        self.ledger
            .set_mode(&HashSet::from([id]), mode, &self.model, &mut self.totals);
    }

    fn fast(&self) -> Totals {
        self.totals[Group::Fast as usize]
    }

    fn settle(&mut self) {
        self.ledger.settle(&self.model, &mut self.totals);
    }
}

fn consecutive(values: &[u32]) -> bool {
    values.windows(2).all(|pair| pair[1] == pair[0] + 1)
}

#[test]
fn a_change_between_the_initial_value_and_the_creation_is_delivered_late_but_not_left_out() {
    let mut bench = Bench::new();
    let new = bench.announce(0, 10);
    bench.change();
    bench.change();
    bench.admit();
    assert!(bench.ledger.is_waiting(), "the library has not created it yet");
    bench.model.create(&new, &bench.space);
    bench.admit();
    bench.change();
    bench.model.drain();
    assert_eq!(bench.model.drained.len(), 4);
    assert!(consecutive(&bench.model.values()), "{:?}", bench.model.drained);
}

#[test]
fn a_full_queue_is_counted_as_lost() {
    let mut bench = Bench::new();
    bench.create(0, 2);
    for _ in 0..5 {
        bench.change();
    }
    let lost = Totals {
        queued: 6,
        lost_overflow: 4,
        ..Totals::default()
    };
    assert_eq!(bench.fast(), lost);
    bench.model.drain();
    bench.settle();
    assert_eq!(bench.fast().published, 2);
    assert_eq!(bench.ledger.pending(Group::Fast), 0);
}

#[test]
fn values_of_a_deleted_item_are_discarded_and_others_still_settle() {
    let mut bench = Bench::new();
    bench.create(0, 10);
    bench.create(1, 10);
    bench.change();
    bench.remove(1);
    assert_eq!(bench.fast().discarded, 2);
    bench.model.drain();
    bench.settle();
    let settled = Totals {
        queued: 4,
        published: 2,
        lost_overflow: 0,
        discarded: 2,
    };
    assert_eq!(bench.fast(), settled);
}

#[test]
fn sampling_slower_than_the_changes_takes_every_nth() {
    let mut bench = Bench::new();
    let new = NewItem {
        sampling_interval_ms: 2_500.0,
        ..item(0, 0, 10)
    };
    bench.model.create(&new, &bench.space);
    bench.ledger.add(new);
    bench.admit();
    for _ in 0..9 {
        bench.change();
    }
    bench.model.drain();
    let values = bench.model.values();
    assert_eq!(values.len(), 4);
    assert!(values.windows(2).all(|pair| pair[1] == pair[0] + 3), "{values:?}");
}

#[test]
fn a_disabled_item_gets_nothing_and_goes_on_when_enabled() {
    let mut bench = Bench::new();
    bench.create(0, 10);
    bench.model.drain();
    bench.set_mode(0, MonitoringMode::Disabled);
    bench.change();
    assert_eq!(bench.model.held(), 0);
    bench.set_mode(0, MonitoringMode::Reporting);
    bench.change();
    assert_eq!(bench.model.held(), 1);
}

#[test]
fn a_late_client_gets_its_queue_in_growing_portions_and_no_hole_while_it_fits() {
    let mut bench = Bench::new();
    bench.create(0, 20);
    bench.model.drain();
    bench.model.late = true;
    for _ in 0..12 {
        bench.change();
        bench.release();
    }
    assert_eq!(bench.model.held(), 0, "nothing piles up in the library");
    assert_eq!(bench.ledger.pending(Group::Fast), 12);
    bench.model.late = false;
    let mut portions = Vec::new();
    while bench.ledger.is_holding() {
        bench.release();
        bench.release();
        portions.push(bench.model.held());
        bench.model.drain();
    }
    assert_eq!(portions, [1, 2, 4, 5]);
    bench.change();
    bench.model.drain();
    assert_eq!(bench.model.drained.len(), 14);
    assert!(consecutive(&bench.model.values()), "{:?}", bench.model.drained);
    assert!(bench.model.drained.iter().all(|(_, _, overflow)| !overflow));
}

#[test]
fn what_does_not_fit_for_a_late_client_is_counted_and_marked_on_the_next_value() {
    let mut bench = Bench::new();
    bench.create(0, 3);
    bench.model.drain();
    bench.model.late = true;
    for _ in 0..10 {
        bench.change();
    }
    bench.model.late = false;
    while bench.ledger.is_holding() {
        bench.release();
        bench.model.drain();
    }
    bench.settle();
    let expected = Totals {
        queued: 11,
        published: 4,
        lost_overflow: 7,
        discarded: 0,
    };
    assert_eq!(bench.fast(), expected);
    let marks: Vec<bool> = bench.model.drained.iter().map(|(_, _, overflow)| *overflow).collect();
    assert_eq!(marks, [false, true, false, false]);
    let values = bench.model.values();
    assert_eq!(values[1], values[0] + 8);
}

#[test]
fn held_values_of_a_deleted_item_are_discarded() {
    let mut bench = Bench::new();
    bench.create(0, 5);
    bench.model.drain();
    bench.model.late = true;
    bench.change();
    bench.change();
    bench.remove(0);
    assert_eq!(bench.fast().discarded, 2);
    assert!(!bench.ledger.is_holding());
}

#[derive(Clone, Debug)]
enum Step {
    Create(u32, u32),
    Remove(u32),
    Change,
    Drain,
    Look,
    Late(bool),
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..ITEMS, 1u32..4).prop_map(|(id, queue)| Step::Create(id, queue)),
        1 => (0..ITEMS).prop_map(Step::Remove),
        6 => Just(Step::Change),
        3 => Just(Step::Drain),
        1 => Just(Step::Look),
        1 => any::<bool>().prop_map(Step::Late),
        2 => Just(Step::Release),
    ]
}

proptest! {
    #[test]
    fn the_books_agree_with_what_the_queues_did(steps in proptest::collection::vec(step(), 1..150)) {
        let mut bench = Bench::new();
        for step in steps {
            match step {
                Step::Create(id, queue) if !bench.model.queues.contains_key(&id) => bench.create(id, queue),
                Step::Create(..) => {}
                Step::Remove(id) => {
                    // Accounting and queues agree only if the drain before a deletion was seen.
                    bench.settle();
                    bench.remove(id);
                }
                Step::Change => bench.change(),
                Step::Drain => bench.model.drain(),
                Step::Look => bench.settle(),
                Step::Late(late) => bench.model.late = late,
                Step::Release => bench.release(),
            }
            let totals = bench.fast();
            let pending = bench.ledger.pending(Group::Fast);
            prop_assert_eq!(totals.queued, totals.published + totals.lost_overflow + totals.discarded + pending);
        }
        // All deferred changes are collected at the end.
        bench.model.late = false;
        while bench.ledger.is_holding() {
            bench.release();
            bench.model.drain();
        }
        bench.model.drain();
        bench.settle();
        let totals = bench.fast();
        prop_assert_eq!(totals.published, bench.model.drained.len() as u64);
        prop_assert!(totals.lost_overflow >= bench.model.displaced);
        prop_assert_eq!(bench.ledger.pending(Group::Fast), 0);
        let mut last: HashMap<u32, u32> = HashMap::new();
        for (id, value, _) in &bench.model.drained {
            let before = last.insert(*id, *value).unwrap_or(0);
            prop_assert!(*value >= before, "values of an item never go back");
        }
    }
}
