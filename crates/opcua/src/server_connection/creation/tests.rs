use opcua::types::StatusCode;

use super::*;

const AT_ONCE: Duration = Duration::ZERO;

fn creation(items_per_call: usize) -> ItemCreation {
    ItemCreation {
        chunk: CallSize::new(0, items_per_call, false),
        ..ItemCreation::new(SamplingIntervals::from_intervals(0.0, Duration::from_millis(100)))
    }
}

fn refused(status: StatusCode) -> CallError {
    CallError::Refused(status.bits())
}

/// Items per call, and calls in flight.
fn sizes(creation: &ItemCreation) -> (usize, usize) {
    (creation.chunk.get(), creation.pace.get())
}

fn answered(creation: &mut ItemCreation, calls: usize) {
    for _ in 0..calls {
        creation.chunk.succeeded();
        creation.pace.answered(Duration::from_millis(1), 1);
    }
}

#[test]
fn a_call_that_is_not_answered_makes_calls_smaller_and_fewer_for_a_while() {
    for error in [
        CallError::Timeout(Duration::from_secs(10)),
        refused(StatusCode::BadTimeout),
        refused(StatusCode::BadRequestTimeout),
    ] {
        let mut creation = creation(800);
        assert_eq!(sizes(&creation), (800, 4));
        // Four calls that were in flight together.
        for _ in 0..4 {
            assert!(creation.failed(&[0; 800], &error, Duration::from_secs(10)));
        }
        assert_eq!(sizes(&creation), (400, 2));
        answered(&mut creation, 64);
        assert_eq!(sizes(&creation), (800, 4));
    }
}

#[test]
fn too_many_operations_make_calls_smaller_for_good_and_fewer_for_a_while() {
    let mut creation = creation(800);
    assert!(creation.failed(&[0; 800], &refused(StatusCode::BadTooManyOperations), AT_ONCE));
    assert_eq!(sizes(&creation), (400, 2));
    answered(&mut creation, 10_000);
    assert_eq!(sizes(&creation), (400, 4));
    for large in [StatusCode::BadRequestTooLarge, StatusCode::BadResponseTooLarge] {
        let before = creation.chunk.get();
        assert!(creation.failed(&vec![0; before], &refused(large), AT_ONCE));
        answered(&mut creation, 10_000);
        assert_eq!(sizes(&creation), (before / 2, 4));
    }
}

/// Errors unrelated to size do not change it.
#[test]
fn a_server_that_stands_still_and_a_session_that_is_gone_make_nothing_smaller() {
    let mut creation = creation(800);
    for gone in [StatusCode::BadSessionIdInvalid, StatusCode::BadSubscriptionIdInvalid] {
        assert!(creation.failed(&[0; 800], &refused(gone), AT_ONCE));
    }
    assert!(creation.failed(&[0; 800], &CallError::Closed("cut".into()), AT_ONCE));
    assert_eq!(sizes(&creation), (800, 4));
    assert!(!creation.is_resting());
    assert!(creation.failed(&[0], &refused(StatusCode::BadServerHalted), AT_ONCE));
    assert!(creation.is_resting());
    assert_eq!(creation.chunk.get(), 800);
}

/// The server may fail on one item: halving finds it, and the others are affected only briefly.
#[test]
fn a_refusal_that_gives_no_reason_is_halved_down_to_one_item() {
    let mut creation = creation(8);
    let error = refused(StatusCode::BadInternalError);
    for size in [8, 4, 2] {
        assert_eq!(creation.chunk.get(), size);
        assert!(creation.failed(&vec![0; size], &error, AT_ONCE));
    }
    assert!(!creation.failed(&[0], &error, AT_ONCE), "it has failed");
    answered(&mut creation, 3 * 64);
    assert_eq!(sizes(&creation), (8, 4));
}

/// An item whose own calls time out has failed: it must not keep causing gaps for the others of its subscription.
#[test]
fn an_item_that_is_not_answered_alone_is_asked_for_three_times() {
    let timeout = CallError::Timeout(Duration::from_secs(10));
    let mut creation = creation(8);
    assert!(creation.failed(&[7], &timeout, AT_ONCE) && creation.failed(&[9], &timeout, AT_ONCE));
    assert!(creation.failed(&[7], &timeout, AT_ONCE));
    assert!(!creation.failed(&[7], &timeout, AT_ONCE));
    assert!(creation.failed(&[9], &timeout, AT_ONCE));
}

#[test]
fn a_call_that_is_not_answered_in_full_is_halved_until_it_is_one_item_that_has_failed() {
    let wrong = |asked| CallError::WrongCount {
        answered: 0,
        asked,
        what: "items",
    };
    let mut creation = creation(8);
    for size in [8, 4, 2] {
        assert_eq!(creation.chunk.get(), size);
        assert!(creation.failed(&vec![0; size], &wrong(size), AT_ONCE));
    }
    assert!(!creation.failed(&[0], &wrong(1), AT_ONCE));
    // One of the items was the cause, not the size.
    answered(&mut creation, 3 * 64);
    assert_eq!(creation.chunk.get(), 8);
}
