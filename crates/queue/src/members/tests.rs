use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::assignment::assign;

const GRACE: Duration = Duration::from_secs(30);
const GRACE_US: Micros = 30_000_000;
const NO_ONE: [u32; 0] = [];
const PERSISTENT: MemberKind = MemberKind::Mqtt { persistent: true };
const TRANSIENT: MemberKind = MemberKind::Mqtt { persistent: false };

fn members(partitions: u32, sharing: Sharing) -> Members {
    Members::new(0, partitions, sharing, GRACE)
}

fn join(members: &mut Members, now: Micros, id: &str, kind: MemberKind) -> u32 {
    members.join(now, id, kind).unwrap()
}

/// Handles everything that is due until then.
fn run(members: &mut Members, until: Micros) -> Vec<u32> {
    let mut left = Vec::new();
    while let Some(due) = members.next_due().filter(|due| *due <= until) {
        left.extend(members.tick(due).left);
        assert!(
            members.next_due().is_none_or(|next| next > due),
            "a tick leaves nothing that is due"
        );
    }
    left
}

#[test]
fn those_who_start_together_cause_one_rebalance() {
    let mut group = members(10, Sharing::Owned);
    let numbers: Vec<u32> = ["c", "a", "b"]
        .into_iter()
        .enumerate()
        .map(|(n, id)| join(&mut group, n as Micros * 49_000, id, MemberKind::Pipeline))
        .collect();
    assert_eq!(
        group.next_due(),
        Some(100_000),
        "100 ms after the first, not after the last"
    );
    assert_eq!(group.tick(99_999), TickOutcome::default());
    assert!(group.tick(100_000).rebalanced);
    assert_eq!(group.generation(), 1);
    let ranges: Vec<_> = numbers.iter().map(|number| group.assigned(*number)).collect();
    assert_eq!(ranges, [7..10, 0..4, 4..7]);
    assert_eq!(group.next_due(), None);
    assert_eq!(
        (group.owner(0), group.owner(9), group.owner(10)),
        (Some(numbers[1]), Some(numbers[0]), None)
    );
}

#[test]
fn a_group_has_so_many_members_and_one_that_leaves_makes_room() {
    let mut group = members(1, Sharing::Owned);
    let first = join(&mut group, 0, "0", MemberKind::Http);
    for n in 1..MEMBERS_MAX {
        join(&mut group, 0, &n.to_string(), MemberKind::Http);
    }
    let refused = group.join(0, "more", MemberKind::Http).unwrap_err();
    assert_eq!(refused.code(), "quota_exceeded");
    assert!(
        refused
            .to_string()
            .contains("no more than 100000 consumers of one group"),
        "{refused}"
    );
    assert!(!group.leave(0, first));
    join(&mut group, 0, "more", MemberKind::Http);
}

#[test]
fn a_leave_and_a_join_within_100_ms_are_one_change() {
    let mut group = members(4, Sharing::Owned);
    let a = join(&mut group, 0, "a", MemberKind::Pipeline);
    run(&mut group, 1_000_000);
    assert!(!group.leave(1_000_000, a));
    join(&mut group, 1_099_999, "b", MemberKind::Pipeline);
    run(&mut group, 2_000_000);
    assert_eq!(group.generation(), 2);
}

#[test]
fn nobody_waits_for_a_rebalance_to_read_what_has_no_owner() {
    let mut group = members(4, Sharing::Owned);
    let a = join(&mut group, 0, "a", MemberKind::Http);
    assert_eq!(group.claimable(a).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let b = join(&mut group, 0, "b", MemberKind::Pipeline);
    run(&mut group, 100_000);
    assert_eq!(group.claimable(a).collect::<Vec<_>>(), [0, 1]);
    assert!(!group.may_claim(a, 2) && group.may_claim(b, 2));
    assert!(!group.leave(200_000, b));
    assert!(group.may_claim(a, 2), "at once");
    assert!(!group.may_claim(b, 2));
    assert_eq!(group.claimable(b).count(), 0);
}

#[test]
fn in_strict_order_one_is_active_and_the_first_by_id_stands_in() {
    let mut group = members(1, Sharing::Exclusive);
    let b = join(&mut group, 0, "b", MemberKind::Pipeline);
    let c = join(&mut group, 0, "c", MemberKind::Pipeline);
    assert!(group.may_claim(b, 0) && !group.may_claim(c, 0));
    run(&mut group, 100_000);
    let a = join(&mut group, 150_000, "a", MemberKind::Pipeline);
    assert!(
        group.may_claim(b, 0) && !group.may_claim(a, 0),
        "the active one stays until the rebalance"
    );
    run(&mut group, 250_000);
    assert!(group.may_claim(a, 0) && !group.may_claim(b, 0));
    assert!(!group.leave(300_000, a));
    assert!(group.may_claim(b, 0) && !group.may_claim(c, 0));
}

#[test]
fn without_order_a_share_is_a_preference() {
    let mut group = members(3, Sharing::Preferred);
    let numbers = ["a", "b", "c"].map(|id| join(&mut group, 0, id, MemberKind::Pipeline));
    run(&mut group, 100_000);
    assert_eq!(
        group.claimable(numbers[1]).collect::<Vec<_>>(),
        [1, 0, 2],
        "its own first"
    );
}

#[test]
fn an_http_member_lives_with_its_requests_and_leases_and_a_grace_after_them() {
    let mut group = members(4, Sharing::Owned);
    let a = join(&mut group, 0, "a", MemberKind::Http);
    group.request_begins(0, a);
    assert_eq!(run(&mut group, 2 * GRACE_US), NO_ONE, "a request is open");
    group.leases_taken(a, 3);
    group.request_ends(2 * GRACE_US, a);
    assert_eq!(run(&mut group, 4 * GRACE_US), NO_ONE, "it has leases");
    group.leases_ended(4 * GRACE_US, a, 2);
    assert_eq!(run(&mut group, 6 * GRACE_US), NO_ONE, "it has one lease");
    group.leases_ended(6 * GRACE_US, a, 1);
    assert_eq!(run(&mut group, 7 * GRACE_US - 1), NO_ONE);
    assert_eq!(group.empty_since(), None);
    assert_eq!(run(&mut group, 7 * GRACE_US), [a]);
    assert_eq!((group.active(), group.empty_since()), (0, Some(7 * GRACE_US)));
    run(&mut group, 8 * GRACE_US);
    assert_eq!(group.generation(), 2);
}

/// A detected disconnect is not silence, so there is no grace.
#[test]
fn a_client_that_goes_while_it_asks_leaves_at_once_unless_it_asks_elsewhere_too_or_has_leases() {
    let mut group = members(4, Sharing::Exclusive);
    let [a, b, c] = ["a", "b", "c"].map(|id| join(&mut group, 0, id, MemberKind::Http));
    let pipeline = join(&mut group, 0, "d", MemberKind::Pipeline);
    for index in [a, b, b, c, pipeline] {
        group.request_begins(0, index);
    }
    group.leases_taken(c, 1);
    run(&mut group, 200_000);
    for index in [a, b, c, pipeline] {
        group.request_abandoned(300_000, index);
    }
    assert_eq!(group.find("a"), None);
    assert_eq!(run(&mut group, 400_000), NO_ONE, "it is gone already");
    assert_eq!(
        (group.active(), group.generation()),
        (3, 2),
        "its partitions are others'"
    );
    group.request_abandoned(500_000, b);
    assert_eq!(group.find("b"), None);
    // The lease runs on, and so does the membership: it may be settled over another connection.
    assert_eq!(run(&mut group, 500_000 + 2 * GRACE_US), NO_ONE);
    group.leases_ended(4 * GRACE_US, c, 1);
    group.client_gone(4 * GRACE_US, c);
    assert_eq!((group.find("c"), group.find("d")), (None, Some(pipeline)));
}

#[test]
fn who_comes_back_within_the_grace_has_the_number_it_had() {
    let mut group = members(4, Sharing::Owned);
    let a = join(&mut group, 0, "a", MemberKind::Http);
    let b = join(&mut group, 0, "b", MemberKind::Http);
    run(&mut group, GRACE_US - 1);
    assert_eq!(join(&mut group, GRACE_US - 1, "a", MemberKind::Http), a);
    assert_eq!(run(&mut group, GRACE_US), [b]);
    assert_eq!((group.find("a"), group.find("b")), (Some(a), None));
    assert_eq!(group.generation(), 1, "joining again is no change");
}

#[test]
fn only_http_members_end_by_being_idle() {
    let mut group = members(4, Sharing::Owned);
    join(&mut group, 0, "m", TRANSIENT);
    join(&mut group, 0, "p", MemberKind::Pipeline);
    assert_eq!(run(&mut group, 100 * GRACE_US), NO_ONE);
    assert_eq!(group.active(), 2);
}

#[test]
fn a_persistent_session_keeps_number_and_leases_while_it_is_away() {
    let mut group = members(4, Sharing::Owned);
    let a = join(&mut group, 0, "a", PERSISTENT);
    group.leases_taken(a, 2);
    assert!(group.leave(1, a), "its leases run on");
    run(&mut group, 10 * GRACE_US);
    assert_eq!((group.active(), group.owner(0), group.empty_since()), (0, None, None));
    assert_eq!(group.room(a, 10), 0, "who is away takes nothing");
    group.leases_ended(10 * GRACE_US, a, 2);
    assert_eq!(join(&mut group, 11 * GRACE_US, "a", PERSISTENT), a);
    assert_eq!(group.room(a, 10), 10);
    group.remove(12 * GRACE_US, a);
    assert_eq!(group.find("a"), None);
}

#[test]
fn a_number_is_not_given_to_another_while_its_leases_are_not_back() {
    let mut group = members(4, Sharing::Owned);
    let a = join(&mut group, 0, "a", TRANSIENT);
    group.leases_taken(a, 2);
    assert!(!group.leave(1, a), "its leases are to be given back");
    assert_ne!(join(&mut group, 2, "b", TRANSIENT), a);
    group.leases_ended(3, a, 1);
    assert_ne!(join(&mut group, 4, "c", TRANSIENT), a);
    group.leases_ended(5, a, 1);
    assert_eq!(join(&mut group, 6, "d", TRANSIENT), a);
    assert_eq!(group.room(a, 5), 5);
}

#[test]
fn who_can_return_is_there_after_a_restart_with_its_number_and_leases() {
    let mut group = members(4, Sharing::Owned);
    assert!(group.restore(0, 5, "http", MemberKind::Http, 1));
    assert!(group.restore(0, 2, "session", PERSISTENT, 1));
    for kind in [MemberKind::Pipeline, TRANSIENT] {
        assert!(!group.restore(0, 3, "other", kind, 1), "{kind:?}");
    }
    assert!(!group.restore(0, 2, "again", PERSISTENT, 1), "the number is taken");
    assert!(!group.restore(0, u32::MAX, "far", PERSISTENT, 1));
    assert_eq!(group.active(), 1, "a session without connection reads nothing");
    assert_eq!(join(&mut group, 0, "new", MemberKind::Http), 0);
    assert_eq!(join(&mut group, 0, "session", PERSISTENT), 2);
    group.leases_ended(1, 5, 1);
    run(&mut group, GRACE_US);
    assert_eq!(group.find("http"), Some(5));
    assert_eq!(run(&mut group, GRACE_US + 1), [5]);
}

#[test]
fn there_is_room_up_to_max_in_flight() {
    let mut group = members(4, Sharing::Owned);
    let a = join(&mut group, 0, "a", MemberKind::Http);
    group.leases_taken(a, 7);
    assert_eq!((group.room(a, 10), group.room(a, 5), group.room(99, 10)), (3, 0, 0));
}

#[test]
fn new_partitions_are_read_at_once_and_assigned_with_the_next_rebalance() {
    let mut group = members(2, Sharing::Owned);
    let a = join(&mut group, 0, "a", MemberKind::Pipeline);
    run(&mut group, 100_000);
    group.set_partitions(200_000, 5);
    assert!(group.may_claim(a, 4) && group.owner(4).is_none());
    run(&mut group, 300_000);
    assert_eq!((group.assigned(a), group.generation()), (0..5, 2));
    group.set_partitions(400_000, 3);
    assert_eq!(group.partitions(), 5);
}

#[test]
fn a_shorter_timeout_holds_for_those_who_are_idle_already() {
    let mut group = members(2, Sharing::Owned);
    let a = join(&mut group, 0, "a", MemberKind::Http);
    group.set_consumer_timeout(5_000_000, Duration::from_secs(6));
    assert_eq!(run(&mut group, 5_999_999), NO_ONE);
    assert_eq!(run(&mut group, 6_000_000), [a]);
}

#[test]
fn statistics_show_everybody() {
    let mut group = members(2, Sharing::Owned);
    let a = join(&mut group, 7, "a", MemberKind::Http);
    group.request_begins(8, a);
    group.leases_taken(a, 1);
    run(&mut group, 200_000);
    let expected = MemberView {
        index: a,
        id: "a",
        kind: MemberKind::Http,
        here: true,
        open_requests: 1,
        leases: 1,
        last_seen: 8,
        assigned: 0..2,
    };
    assert_eq!(group.iter().collect::<Vec<_>>(), [expected]);
}

#[derive(Clone, Debug)]
enum Op {
    Join(u8),
    Leave(u8),
    Remove(u8),
    Begin(u8),
    End(u8),
    Abandon(u8),
    Take(u8, u32),
    GiveBack(u8, u32),
    Grow,
    Pass(Micros),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let who = 0..6_u8;
    let op = prop_oneof![
        4 => who.clone().prop_map(Op::Join),
        1 => who.clone().prop_map(Op::Leave),
        1 => who.clone().prop_map(Op::Remove),
        2 => who.clone().prop_map(Op::Begin),
        2 => who.clone().prop_map(Op::End),
        2 => who.clone().prop_map(Op::Abandon),
        2 => (who.clone(), 1..4_u32).prop_map(|(who, count)| Op::Take(who, count)),
        3 => (who, 1..4_u32).prop_map(|(who, count)| Op::GiveBack(who, count)),
        1 => Just(Op::Grow),
        3 => (0..150_000_i64).prop_map(Op::Pass),
        2 => (0..GRACE_US * 2).prop_map(Op::Pass),
    ];
    proptest::collection::vec(op, 0..120)
}

/// A member in the simple model.
#[derive(Clone, Debug)]
struct Model {
    index: u32,
    kind: MemberKind,
    here: bool,
    gone: bool,
    open: u32,
    leases: u32,
    seen: Micros,
}

impl Model {
    fn grace_ends(&self) -> Option<Micros> {
        let idle = self.kind == MemberKind::Http && self.here && self.open == 0 && self.leases == 0;
        idle.then_some(self.seen + GRACE_US)
    }
}

/// Three of HTTP, one of each other kind.
fn kind_of(who: u8) -> MemberKind {
    match who {
        0..=2 => MemberKind::Http,
        3 => MemberKind::Pipeline,
        4 => PERSISTENT,
        _ => TRANSIENT,
    }
}

struct World {
    now: Micros,
    group: Members,
    model: BTreeMap<u8, Model>,
    rebalance_at: Option<Micros>,
    generation: u64,
}

impl World {
    fn changed(&mut self) {
        self.rebalance_at.get_or_insert(self.now + REBALANCE_AFTER);
    }

    fn apply(&mut self, op: &Op) {
        let now = self.now;
        match *op {
            Op::Join(who) => self.join(who),
            Op::Leave(who) | Op::Remove(who) => {
                let for_good = matches!(op, Op::Remove(_)) || kind_of(who) != PERSISTENT;
                let Some(member) = self.model.get_mut(&who) else { return };
                match op {
                    Op::Remove(_) => self.group.remove(now, member.index),
                    _ => assert_eq!(self.group.leave(now, member.index), !for_good),
                }
                member.gone |= for_good;
                if std::mem::replace(&mut member.here, false) {
                    self.changed();
                }
                self.forget();
            }
            Op::Begin(who) => {
                let Some(member) = self.model.get_mut(&who).filter(|member| member.here) else {
                    return;
                };
                (member.open, member.seen) = (member.open + 1, now);
                self.group.request_begins(now, member.index);
            }
            Op::End(who) => {
                let Some(member) = self.model.get_mut(&who).filter(|member| member.open > 0) else {
                    return;
                };
                (member.open, member.seen) = (member.open - 1, now);
                self.group.request_ends(now, member.index);
            }
            Op::Abandon(who) => {
                let Some(member) = self.model.get_mut(&who).filter(|member| member.open > 0) else {
                    return;
                };
                (member.open, member.seen) = (member.open - 1, now);
                self.group.request_abandoned(now, member.index);
                if member.grace_ends().is_some() {
                    self.model.remove(&who);
                    self.changed();
                }
            }
            Op::Take(who, count) => {
                let Some(member) = self.model.get_mut(&who).filter(|member| member.here) else {
                    return;
                };
                member.leases += count;
                self.group.leases_taken(member.index, count);
            }
            Op::GiveBack(who, count) => {
                let Some(member) = self.model.get_mut(&who).filter(|member| member.leases >= count) else {
                    return;
                };
                (member.leases, member.seen) = (member.leases - count, now);
                self.group.leases_ended(now, member.index, count);
                self.forget();
            }
            Op::Grow => {
                let more = self.group.partitions() + 1;
                self.group.set_partitions(now, more);
                self.changed();
            }
            Op::Pass(time) => self.pass(time),
        }
    }

    fn join(&mut self, who: u8) {
        let (now, kind) = (self.now, kind_of(who));
        let index = self.group.join(now, &format!("member-{who}"), kind).unwrap();
        let taken = self
            .model
            .iter()
            .any(|(other, member)| *other != who && member.index == index);
        assert!(!taken, "a number has one member");
        let fresh = || Model {
            index,
            kind,
            here: false,
            gone: false,
            open: 0,
            leases: 0,
            seen: now,
        };
        let member = self.model.entry(who).or_insert_with(fresh);
        assert_eq!(member.index, index, "a member keeps its number");
        (member.seen, member.gone) = (now, false);
        if !std::mem::replace(&mut member.here, true) {
            self.changed();
        }
    }

    fn forget(&mut self) {
        self.model.retain(|_, member| !(member.gone && member.leases == 0));
    }

    /// Ticks only when the members ask for it; the model does everything at its exact time.
    fn pass(&mut self, time: Micros) {
        let end = self.now + time;
        while let Some(due) = self.group.next_due().filter(|due| *due <= end) {
            assert!(due >= self.now, "nothing is due in the past");
            self.now = due;
            let ticked = self.group.tick(due);
            let over = |member: &Model| member.grace_ends().is_some_and(|end| end <= due);
            let mut expected: Vec<u32> = self
                .model
                .values()
                .filter(|member| over(member))
                .map(|member| member.index)
                .collect();
            expected.sort_unstable();
            assert_eq!(ticked.left, expected);
            self.model.retain(|_, member| !over(member));
            if !expected.is_empty() {
                self.changed();
            }
            let due_now = self.rebalance_at.is_some_and(|at| at <= due);
            assert_eq!(ticked.rebalanced, due_now);
            if due_now {
                self.rebalance_at = None;
                self.generation += 1;
            }
        }
        self.now = end;
        let late = self.model.values().filter_map(Model::grace_ends).find(|at| *at <= end);
        assert_eq!(late, None, "a grace ended and nobody was told to look");
        assert!(self.rebalance_at.is_none_or(|at| at > end), "a rebalance is late");
    }

    fn check(&self, sharing: Sharing) {
        assert_eq!(self.group.generation(), self.generation);
        let known: BTreeMap<u32, (u32, u32, bool)> = self
            .group
            .iter()
            .map(|m| (m.index, (m.open_requests, m.leases, m.here)))
            .collect();
        let expected = self
            .model
            .values()
            .map(|m| (m.index, (m.open, m.leases, m.here)))
            .collect();
        assert_eq!(known, expected);
        let here: Vec<(String, u32)> = self
            .model
            .iter()
            .filter(|(_, m)| m.here)
            .map(|(who, m)| (format!("member-{who}"), m.index))
            .collect();
        for partition in 0..self.group.partitions() {
            let readers = here
                .iter()
                .filter(|(_, index)| self.group.may_claim(*index, partition))
                .count();
            assert!(
                readers > 0 || here.is_empty(),
                "partition {partition} is read by nobody"
            );
            assert!(readers <= 1 || sharing != Sharing::Exclusive);
        }
        for (_, index) in &here {
            let mut claimable: Vec<u32> = self.group.claimable(*index).collect();
            claimable.sort_unstable();
            let one_by_one = (0..self.group.partitions()).filter(|p| self.group.may_claim(*index, *p));
            assert_eq!(claimable, one_by_one.collect::<Vec<_>>());
        }
        if self.rebalance_at.is_none() {
            let ids: Vec<&String> = here.iter().map(|(id, _)| id).collect();
            let ranges = assign(&ids, self.group.partitions());
            for ((_, index), range) in here.iter().zip(ranges) {
                for partition in range.clone() {
                    assert_eq!(self.group.owner(partition), Some(*index));
                }
                assert_eq!(self.group.assigned(*index), range);
            }
        }
        assert_eq!(self.group.empty_since().is_some(), self.model.is_empty());
        assert_eq!(self.group.active(), here.len());
    }
}

proptest! {
    #[test]
    fn members_come_and_go_exactly_when_they_should_and_every_partition_is_read(
        ops in ops(),
        partitions in 1..12_u32,
        sharing in prop_oneof![Just(Sharing::Preferred), Just(Sharing::Owned), Just(Sharing::Exclusive)],
    ) {
        let mut world = World {
            now: 0,
            group: members(partitions, sharing),
            model: BTreeMap::new(),
            rebalance_at: None,
            generation: 0,
        };
        for op in &ops {
            world.apply(op);
            world.check(sharing);
        }
    }
}
