//! The table of states, cell by cell, and the rules beside it.

use thalweg_log::Micros;

use crate::machine::*;

const SECOND: Micros = 1_000_000;
/// Every message below is offset 0 and was delivered twice, so 2 is the current receipt and 1 an older one.
const CURRENT: u32 = 2;
const OLDER: u32 = 1;

fn policy() -> DeliveryPolicy {
    let backoff = Backoff {
        initial: 5 * SECOND,
        max: 300 * SECOND,
        multiplier: 2.0,
        jitter: 0.0,
        seed: 0,
    };
    DeliveryPolicy {
        ordering: LaneOrdering::None,
        backoff,
        ..DeliveryPolicy::default()
    }
}

fn message(offset: u64) -> MessageMeta {
    MessageMeta {
        offset,
        lane: None,
        expires_at: None,
        not_before: None,
        skip: false,
        hint: 0,
    }
}

fn lease_of(passed: PassOutcome) -> Lease {
    match passed {
        PassOutcome::Leased(lease) => lease,
        other => panic!("{other:?}"),
    }
}

/// A machine whose only message is in the state that the column names, at time 0.
fn column(name: &str, ttl: Option<Micros>) -> WorkMachine {
    let mut machine = WorkMachine::new(policy(), 0);
    if name == "Delayed" {
        let delayed = MessageMeta {
            not_before: Some(10 * SECOND),
            ..message(0)
        };
        assert_eq!(machine.pass(&delayed, 1, 1000 * SECOND, 0), PassOutcome::Taken);
        return machine;
    }
    let passing = MessageMeta {
        expires_at: ttl,
        ..message(0)
    };
    lease_of(machine.pass(&passing, 1, 1000 * SECOND, 0));
    assert!(machine.release(0, 1, false));
    assert_eq!(machine.next_ready(1, 1000 * SECOND, 0).unwrap().delivery, CURRENT);
    match name {
        "Leased" => {}
        "Ready" => assert!(machine.release(0, CURRENT, false)),
        "Waiting" => drop(machine.nack(0, CURRENT, Some(500 * SECOND), 0).unwrap()),
        "Acked" => drop(machine.ack(0, CURRENT, 0).unwrap()),
        "Dead" => drop(machine.reject(0, CURRENT).unwrap()),
        "Dropped" => assert_eq!(machine.purge(1), 1),
        other => panic!("{other}"),
    }
    finish_endings(&mut machine);
    machine
}

fn finish_endings(machine: &mut WorkMachine) {
    for ending in machine.take_ending(10) {
        let kind = match ending.reason {
            RemovalReason::Expired => FinalState::Expired,
            RemovalReason::Overflow => FinalState::Dropped,
            _ => FinalState::Dead,
        };
        assert!(machine.ended(ending.offset, kind, 0));
    }
}

fn state(machine: &WorkMachine, offset: u64) -> String {
    let counts = machine.counts();
    match machine.find(offset) {
        // Without any delivery there is no receipt to answer, and the end is only counted.
        MessageStatus::Settled(_, None) if counts.dropped > 0 => "Dropped".to_string(),
        MessageStatus::Settled(_, None) if counts.expired > 0 => "Expired".to_string(),
        MessageStatus::Active(entry) => format!("{:?}", machine.store.entries.get(entry).state),
        MessageStatus::Settled(kind, _) => format!("{kind:?}"),
        MessageStatus::Unpassed => "Ready".to_string(),
        MessageStatus::Asleep => "Delayed".to_string(),
    }
}

/// Answer and state after the event, as the table writes it: `–` is "the state it was in".
fn answer<T>(result: Result<T, SettleError>) -> &'static str {
    match result {
        Ok(_) => "ok",
        Err(SettleError::NotLeased) => "NL",
        Err(SettleError::LeaseLost) => "LL",
        Err(SettleError::Gone) => "gone",
    }
}

type Event = fn(&mut WorkMachine) -> &'static str;
const COLUMNS: [&str; 7] = ["Delayed", "Ready", "Leased", "Waiting", "Acked", "Dead", "Dropped"];

#[test]
fn every_cell_of_the_table_is_as_specified() {
    let rows: [(&str, Option<Micros>, Event, [&str; 7]); 14] = [
        (
            "not-before reached",
            None,
            |m| time(m, 11),
            ["Ready", "–", "–", "–", "–", "–", "–"],
        ),
        (
            "claim",
            None,
            claim,
            ["none –", "ok Leased", "none –", "none –", "none –", "none –", "none –"],
        ),
        (
            "ack, current receipt",
            None,
            |m| answer(m.ack(0, CURRENT, 0)),
            ["NL –", "ok Acked", "ok Acked", "ok Acked", "ok –", "gone –", "gone –"],
        ),
        (
            "ack, older receipt",
            None,
            |m| answer(m.ack(0, OLDER, 0)),
            ["NL –", "LL –", "LL –", "LL –", "gone –", "gone –", "gone –"],
        ),
        (
            "nack",
            None,
            |m| answer(m.nack(0, CURRENT, None, 0)),
            ["NL –", "LL –", "ok Waiting", "LL –", "gone –", "gone –", "gone –"],
        ),
        (
            "nack, older receipt",
            None,
            |m| answer(m.nack(0, OLDER, None, 0)),
            ["NL –", "LL –", "LL –", "LL –", "gone –", "gone –", "gone –"],
        ),
        (
            "reject",
            None,
            |m| answer(m.reject(0, CURRENT)),
            ["NL –", "LL –", "ok Dead", "LL –", "gone –", "gone –", "gone –"],
        ),
        (
            "extend",
            None,
            |m| answer(m.extend(0, CURRENT, 2000 * SECOND, 0)),
            ["NL –", "LL –", "ok –", "LL –", "gone –", "gone –", "gone –"],
        ),
        (
            "consumer gone",
            None,
            |m| if m.release(0, CURRENT, true) { "yes" } else { "no" },
            ["no –", "no –", "yes Ready", "no –", "no –", "no –", "no –"],
        ),
        (
            "TTL passed",
            Some(100 * SECOND),
            |m| time(m, 101),
            ["Ready", "Expired", "–", "Expired", "–", "–", "–"],
        ),
        (
            "overflow",
            None,
            |m| if m.drop_oldest(false, 0).is_some() { "yes" } else { "no" },
            [
                "yes Dropped",
                "yes Dropped",
                "no –",
                "yes Dropped",
                "no –",
                "no –",
                "no –",
            ],
        ),
        (
            "purge",
            None,
            purge,
            ["Dropped", "Dropped", "Dropped", "Dropped", "–", "–", "–"],
        ),
        (
            "seek back",
            None,
            seek_back,
            ["–", "kept –", "kept Ready", "kept Ready", "Ready", "Ready", "Ready"],
        ),
        ("restart", None, restart, ["–", "–", "–", "–", "–", "–", "–"]),
    ];
    for (event, ttl, act, cells) in rows {
        for (name, cell) in COLUMNS.into_iter().zip(cells) {
            let mut machine = column(name, ttl);
            assert_eq!(state(&machine, 0), name, "the column");
            let answer = act(&mut machine);
            finish_endings(&mut machine);
            let after = format!("{answer} {}", state(&machine, 0));
            assert_eq!(after.trim(), cell.replace('–', name), "{event} of {name}");
        }
    }
}

fn time(machine: &mut WorkMachine, seconds: Micros) -> &'static str {
    machine.advance(seconds * SECOND);
    ""
}

fn claim(machine: &mut WorkMachine) -> &'static str {
    if machine.next_ready(2, SECOND, 0).is_some() {
        "ok"
    } else {
        "none"
    }
}

fn purge(machine: &mut WorkMachine) -> &'static str {
    machine.purge(machine.cursor());
    ""
}

/// Whether the message still has the number of its last delivery.
fn seek_back(machine: &mut WorkMachine) -> &'static str {
    let is_delayed = machine.counts().delayed > 0;
    machine.seek(0);
    if is_delayed {
        let delayed = MessageMeta {
            not_before: Some(10 * SECOND),
            ..message(0)
        };
        machine.pass(&delayed, 9, SECOND, 0);
    }
    match machine.find(0) {
        MessageStatus::Active(entry) if machine.store.entries.get(entry).deliveries == CURRENT => "kept",
        _ => "",
    }
}

fn restart(machine: &mut WorkMachine) -> &'static str {
    let mut bytes = Vec::new();
    machine.checkpoint(&mut bytes);
    *machine = MachineRecovery::new(0, Some(&bytes))
        .unwrap()
        .finish(policy(), 0, |_| true);
    if machine.cursor() == 0 {
        machine.pass(
            &MessageMeta {
                not_before: Some(10 * SECOND),
                ..message(0)
            },
            9,
            SECOND,
            0,
        );
    }
    ""
}

#[test]
fn deadlines_and_retry_times_lead_to_waiting_and_back() {
    let mut machine = column("Leased", None);
    time(&mut machine, 999);
    assert_eq!(state(&machine, 0), "Leased");
    time(&mut machine, 1001);
    assert_eq!(
        (state(&machine, 0).as_str(), machine.counts().lease_timeouts),
        ("Waiting", 1)
    );
    time(&mut machine, 1007);
    assert_eq!(state(&machine, 0), "Ready");
    let lease = machine.next_ready(1, SECOND, 1007 * SECOND).unwrap();
    assert_eq!(lease.delivery, 3);
}

#[test]
fn an_exhausted_message_is_dead_at_its_claim_its_nack_and_its_deadline() {
    let strict = DeliveryPolicy {
        max_retries: 1,
        ..policy()
    };
    let acts: [(&str, Event); 3] = [
        ("Ready", |m| {
            if m.next_ready(1, SECOND, 0).is_none() {
                ""
            } else {
                "claimed"
            }
        }),
        ("Leased", |m| answer(m.nack(0, CURRENT, Some(0), 0))),
        ("Leased", |m| time(m, 1001)),
    ];
    for (name, act) in acts {
        let mut machine = column(name, None);
        machine.set_policy(strict);
        assert_ne!(act(&mut machine), "claimed");
        let endings = machine.take_ending(10);
        assert_eq!(
            (endings.len(), endings[0].reason, endings[0].deliveries),
            (1, RemovalReason::MaxRetries, 2)
        );
        assert_eq!(machine.ack(0, CURRENT, 0), Err(SettleError::Gone));
        assert!(machine.ended(0, FinalState::Dead, 0));
        assert_eq!(state(&machine, 0), "Dead");
    }
}

#[test]
fn total_timeout_runs_from_the_first_delivery_not_from_the_append() {
    let mut machine = WorkMachine::new(
        DeliveryPolicy {
            total_timeout: 10 * SECOND,
            ..policy()
        },
        0,
    );
    let late = 1_000_000 * SECOND;
    lease_of(machine.pass(&message(0), 1, SECOND, late));
    assert_eq!(
        machine.nack(0, 1, Some(0), late + 9 * SECOND),
        Ok(FailOutcome::Retry(late + 9 * SECOND))
    );
    machine.next_ready(1, SECOND, late + 9 * SECOND).unwrap();
    let outcome = machine.nack(0, 2, Some(0), late + 10 * SECOND);
    assert_eq!(outcome, Ok(FailOutcome::Ending(RemovalReason::Timeout)));
}

#[test]
fn an_expired_lease_stays_until_it_fails() {
    let mut machine = column("Leased", Some(100 * SECOND));
    time(&mut machine, 200);
    assert_eq!(state(&machine, 0), "Leased");
    assert_eq!(
        machine.nack(0, CURRENT, None, 200 * SECOND),
        Ok(FailOutcome::Ending(RemovalReason::Expired))
    );
}

#[test]
fn a_late_ack_counts_if_nobody_else_holds_the_message() {
    let mut machine = column("Leased", None);
    time(&mut machine, 1001);
    assert_eq!(machine.ack(0, CURRENT, 0), Ok(AckOutcome::Acked));
    assert_eq!(machine.ack(0, CURRENT, 0), Ok(AckOutcome::Repeated));

    let mut machine = column("Ready", None);
    machine.next_ready(2, SECOND, 0).unwrap();
    assert_eq!(machine.ack(0, CURRENT, 0), Err(SettleError::LeaseLost));
}

#[test]
fn a_failed_move_waits_five_seconds_and_leaves_again_without_holding_its_lane() {
    let mut machine = WorkMachine::new(
        DeliveryPolicy {
            ordering: LaneOrdering::Partition,
            ..policy()
        },
        0,
    );
    let keyed = |offset| MessageMeta {
        lane: Some(7),
        ..message(offset)
    };
    lease_of(machine.pass(&keyed(0), 1, SECOND, 0));
    machine.reject(0, 1).unwrap();
    let ending = machine.take_ending(1)[0];
    assert_eq!((ending.offset, ending.reason), (0, RemovalReason::Rejected));
    assert_eq!(machine.take_ending(1), [], "named once");
    assert!(machine.move_failed(0, 0));
    assert_eq!(state(&machine, 0), "Waiting");
    lease_of(machine.pass(&keyed(1), 1, SECOND, 0));
    machine.advance(4 * SECOND);
    assert_eq!(machine.take_ending(1), []);
    machine.advance(5 * SECOND);
    assert_eq!(machine.take_ending(1), [ending]);
}

#[test]
fn an_extension_ends_twelve_hours_after_the_claim() {
    let mut machine = column("Leased", None);
    assert_eq!(machine.extend(0, CURRENT, EXTEND_MAX, 999 * SECOND), Ok(EXTEND_MAX));
}

#[test]
fn a_failure_ends_the_later_leases_of_its_lane_and_they_come_again_after_it() {
    let policy = DeliveryPolicy {
        ordering: LaneOrdering::Partition,
        lane_window: 3,
        ..policy()
    };
    let mut machine = WorkMachine::new(policy, 0);
    for offset in 0..4 {
        let passed = machine.pass(
            &MessageMeta {
                lane: Some(7),
                ..message(offset)
            },
            1,
            100 * SECOND,
            0,
        );
        assert_eq!(matches!(passed, PassOutcome::Leased(_)), offset < 3);
    }
    machine.nack(1, 1, Some(SECOND), 0).unwrap();
    let states: Vec<String> = (0..4).map(|offset| state(&machine, offset)).collect();
    assert_eq!(states, ["Leased", "Waiting", "Ready", "Ready"]);
    assert_eq!(machine.next_ready(1, SECOND, 0), None);
    machine.advance(SECOND);
    assert_eq!(machine.next_ready(2, SECOND, SECOND), None, "the lane has a holder");
    let again: Vec<(u64, u32)> = std::iter::from_fn(|| machine.next_ready(1, SECOND, SECOND))
        .map(|lease| (lease.offset, lease.delivery))
        .collect();
    assert_eq!(again, [(1, 2), (2, 2)]);
}

#[test]
fn what_never_left_the_process_was_not_delivered_whatever_the_order_of_the_reports() {
    let policy = DeliveryPolicy {
        ordering: LaneOrdering::Partition,
        lane_window: 3,
        ..policy()
    };
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut machine = WorkMachine::new(policy, 0);
        (0..3).for_each(|offset| {
            lease_of(machine.pass(
                &MessageMeta {
                    lane: Some(7),
                    ..message(offset)
                },
                1,
                SECOND,
                0,
            ));
        });
        for offset in order {
            assert!(machine.release(offset, 1, true));
        }
        let leases: Vec<(u64, u32)> = std::iter::from_fn(|| machine.next_ready(2, SECOND, 0))
            .map(|lease| (lease.offset, lease.delivery))
            .collect();
        assert_eq!(leases, [(0, 1), (1, 1), (2, 1)]);
    }
}

#[test]
fn a_delayed_message_does_not_hold_its_lane() {
    let mut machine = WorkMachine::new(
        DeliveryPolicy {
            ordering: LaneOrdering::Partition,
            ..policy()
        },
        0,
    );
    let delayed = MessageMeta {
        lane: Some(7),
        not_before: Some(10 * SECOND),
        ..message(0)
    };
    assert_eq!(machine.pass(&delayed, 1, SECOND, 0), PassOutcome::Taken);
    lease_of(machine.pass(
        &MessageMeta {
            lane: Some(7),
            ..message(1)
        },
        1,
        100 * SECOND,
        0,
    ));
    assert_eq!(
        machine.pass(
            &MessageMeta {
                lane: Some(7),
                ..message(2)
            },
            1,
            SECOND,
            0
        ),
        PassOutcome::Taken
    );
    machine.advance(10 * SECOND);
    assert_eq!(machine.next_ready(1, SECOND, 10 * SECOND), None);
    machine.ack(1, 1, 10 * SECOND).unwrap();
    assert_eq!(machine.next_ready(1, SECOND, 10 * SECOND).unwrap().offset, 0);
}

#[test]
fn a_slow_message_leaves_the_window_and_pins_neither_floor_nor_cursor() {
    let mut machine = WorkMachine::new(
        DeliveryPolicy {
            max_pending: 8,
            ..policy()
        },
        0,
    );
    lease_of(machine.pass(&message(0), 1, 1000 * SECOND, 0));
    for offset in 1..1000 {
        lease_of(machine.pass(&message(offset), 1, SECOND, 0));
        machine.ack(offset, 1, 0).unwrap();
    }
    assert_eq!((machine.floor(), machine.counts().held), (1000, 1));
    assert_eq!(machine.ack(0, 1, 0), Ok(AckOutcome::Acked));
    assert_eq!(machine.counts().held, 0);
}

#[test]
fn a_full_held_set_stops_the_cursor_until_something_is_settled() {
    let mut machine = WorkMachine::new(
        DeliveryPolicy {
            max_pending: 4,
            max_held: 2,
            ..policy()
        },
        0,
    );
    let leased = (0..10).take_while(|offset| {
        matches!(
            machine.pass(&message(*offset), 1, 1000 * SECOND, 0),
            PassOutcome::Leased(_)
        )
    });
    assert_eq!(leased.count(), 6);
    assert_eq!(
        machine.pass(&message(6), 1, SECOND, 0),
        PassOutcome::Full(CursorStop::Held)
    );
    machine.ack(0, 1, 0).unwrap();
    lease_of(machine.pass(&message(6), 1, SECOND, 0));
}

#[test]
fn backoff_grows_to_its_maximum_and_the_jitter_stays_within_its_part() {
    let backoff = Backoff {
        initial: SECOND,
        max: 10 * SECOND,
        multiplier: 3.0,
        jitter: 0.2,
        seed: 5,
    };
    let mut machine = WorkMachine::new(
        DeliveryPolicy {
            backoff,
            max_retries: 100,
            total_timeout: 0,
            ..policy()
        },
        0,
    );
    let mut now = 0;
    let mut seen = std::collections::BTreeSet::new();
    lease_of(machine.pass(&message(0), 1, SECOND, now));
    for delivery in 1..60 {
        let Ok(FailOutcome::Retry(at)) = machine.nack(0, delivery, None, now) else {
            panic!()
        };
        let plain = [1, 3, 9].get(delivery as usize - 1).copied().unwrap_or(10) * SECOND;
        assert!(
            (plain * 4 / 5..=plain * 6 / 5).contains(&(at - now)),
            "failure {delivery}: {}",
            at - now
        );
        seen.insert(at - now);
        now = at + 1000;
        machine.advance(now);
        machine.next_ready(1, SECOND, now).unwrap();
    }
    assert!(seen.len() > 50, "the jitter differs");
}

#[test]
fn a_strict_queue_does_not_read_ahead_of_a_busy_lane() {
    let mut machine = WorkMachine::new(
        DeliveryPolicy {
            ordering: LaneOrdering::Strict,
            ..policy()
        },
        0,
    );
    lease_of(machine.pass(&message(0), 1, SECOND, 0));
    assert_eq!(
        machine.pass(&message(1), 1, SECOND, 0),
        PassOutcome::Full(CursorStop::Lane)
    );
    assert_eq!(machine.cursor(), 1);
    machine.ack(0, 1, 0).unwrap();
    lease_of(machine.pass(&message(1), 1, SECOND, 0));
}

#[test]
fn a_message_in_the_dark_expires_without_a_consumer() {
    let mut machine = WorkMachine::new(policy(), 0);
    assert!(!machine.pass_unclaimable(&message(0), 0), "it is not expired");
    assert!(machine.pass_unclaimable(
        &MessageMeta {
            expires_at: Some(SECOND),
            ..message(0)
        },
        SECOND
    ));
    assert_eq!(machine.take_ending(1)[0].reason, RemovalReason::Expired);
    assert!(machine.ended(0, FinalState::Expired, SECOND));
    assert_eq!((machine.floor(), machine.counts().expired), (1, 1));
}

#[test]
fn after_a_seek_back_an_old_receipt_settles_nothing_that_somebody_else_has() {
    let mut machine = WorkMachine::new(policy(), 0);
    let first = lease_of(machine.pass(&message(0), 1, 1000 * SECOND, 0));
    assert_eq!(machine.seek(0), 1, "it is known, so the cursor is past it");
    let second = machine.next_ready(2, 1000 * SECOND, 0).unwrap();
    assert_eq!((first.delivery, second.delivery), (1, 2));
    assert_eq!(machine.ack(0, 1, 0), Err(SettleError::LeaseLost));
    assert_eq!(machine.ack(0, 2, 0), Ok(AckOutcome::Acked));
}
