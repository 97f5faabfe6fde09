//! Calls that fail as a whole: the size and number of later calls, and that nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use opcua::core::{RequestMessage, ResponseMessage};
use opcua::types::{BrowseResult, Identifier};
use parking_lot::Mutex;

use super::test_context::{browse_response, connected, context, object};
use super::*;
use crate::fake_server::{FakeServer, fault};
use crate::server_facts::OperationLimits;

/// The server's limit of nodes per call.
const PER_CALL: u32 = 8;

/// Long enough for every response that comes, also on a busy machine.
const CALL_TIMEOUT_SHORT: Duration = Duration::from_secs(1);

/// How the server handles a call.
enum Fate {
    Answer,
    Silence,
    Refuse(StatusCode),
}

/// Nodes of each Browse call so far.
type Calls = Arc<Mutex<Vec<Vec<u32>>>>;

/// A root with this many children. `judge` receives the earlier calls and the current one.
async fn plant(
    children: u32,
    mut judge: impl FnMut(&[Vec<u32>], &[u32]) -> Fate + Send + 'static,
) -> (FakeServer, Calls) {
    let calls = Calls::default();
    let noted = calls.clone();
    let server = FakeServer::start(move |request| {
        let RequestMessage::Browse(request) = request else {
            return None;
        };
        let nodes = request.nodes_to_browse.iter().flatten();
        let ids: Vec<u32> = nodes
            .filter_map(|node| match node.node_id.identifier {
                Identifier::Numeric(id) => Some(id),
                _ => None,
            })
            .collect();
        let mut calls = noted.lock();
        let fate = judge(&calls, &ids);
        calls.push(ids.clone());
        match fate {
            Fate::Answer => Some(answer(children, &ids)),
            Fate::Silence => None,
            Fate::Refuse(status) => Some(fault(status)),
        }
    })
    .await;
    (server, calls)
}

fn answer(children: u32, ids: &[u32]) -> ResponseMessage {
    let results = ids.iter().map(|id| BrowseResult {
        references: Some(match id {
            0 => (1..=children).map(object).collect(),
            _ => Vec::new(),
        }),
        ..BrowseResult::default()
    });
    browse_response(results.collect())
}

fn limits() -> OperationLimits {
    OperationLimits {
        nodes_per_browse: PER_CALL,
        ..OperationLimits::default()
    }
}

/// Browses everything with one call in flight, and returns the number of nodes of each call.
async fn browsed(server: &FakeServer, calls: &Calls, children: u32) -> Vec<usize> {
    let mut connected = connected(&server.url, limits()).await;
    connected.profile.browse_in_flight = 1;
    let (_sender, context) = context(&connected);
    let mut pass = BrowsePass::new(&context, &connected);
    pass.call_timeout = CALL_TIMEOUT_SHORT;
    tokio::time::timeout(Duration::from_secs(60), pass.run(&mut |_| {}))
        .await
        .expect("the browse ends");
    assert_eq!(context.table.read().len() as u32, 1 + children);
    assert_eq!(context.failures.len(), 0);
    let calls = calls.lock();
    calls.iter().map(Vec::len).collect()
}

#[tokio::test]
async fn a_call_that_is_not_answered_makes_calls_smaller_and_they_grow_again() {
    let per_call = PER_CALL as usize;
    let children = PER_CALL / 2 * 64 + PER_CALL * 3;
    let (server, calls) = plant(children, move |before, ids| {
        let is_first = ids.len() == per_call && before.iter().all(|call| call.len() < per_call);
        if is_first { Fate::Silence } else { Fate::Answer }
    })
    .await;
    let sizes = browsed(&server, &calls, children).await;
    let expected = [&[1, per_call][..], &[per_call / 2; 64], &[per_call; 3]].concat();
    assert_eq!(sizes, expected);
}

#[tokio::test]
async fn a_server_that_is_halted_is_asked_again_and_calls_stay_as_large() {
    let (server, calls) = plant(24, |before, _| match before.len() {
        1..=3 => Fate::Refuse(StatusCode::BadServerHalted),
        _ => Fate::Answer,
    })
    .await;
    let sizes = browsed(&server, &calls, 24).await;
    assert_eq!(sizes, [1, 8, 8, 8, 8, 8, 8]);
}

#[tokio::test]
async fn a_server_that_takes_fewer_operations_is_not_asked_for_more_again() {
    let (server, calls) = plant(400, |_, ids| match ids.len() {
        ..=3 => Fate::Answer,
        _ => Fate::Refuse(StatusCode::BadTooManyOperations),
    })
    .await;
    let sizes = browsed(&server, &calls, 400).await;
    assert_eq!(sizes[..3], [1, 8, 4]);
    assert!(sizes[3..].iter().all(|size| *size == 2), "{sizes:?}");
}

/// A refusal that does not say that the call was too large may concern one of its nodes.
#[tokio::test]
async fn a_node_that_spoils_every_call_fails_alone_and_calls_grow_again() {
    const CHILDREN: u32 = 1000;
    let (server, calls) = plant(CHILDREN, |_, ids| match ids.contains(&5) {
        true => Fate::Refuse(StatusCode::BadInternalError),
        false => Fate::Answer,
    })
    .await;
    let mut connected = connected(&server.url, limits()).await;
    connected.profile.browse_in_flight = 1;
    let (_sender, context) = context(&connected);
    let pass = BrowsePass::new(&context, &connected);
    tokio::time::timeout(Duration::from_secs(60), pass.run(&mut |_| {}))
        .await
        .expect("the browse ends");
    let failed = context.failures.page(0, 10);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].2.status, StatusCode::BadInternalError.bits());
    let calls = calls.lock();
    let sizes: Vec<usize> = calls.iter().map(Vec::len).collect();
    assert_eq!(sizes[1], 8);
    assert!(
        sizes.contains(&1) && sizes.iter().skip(150).any(|size| *size == 8),
        "{sizes:?}"
    );
    // Each of the others was answered once.
    let answered = calls.iter().filter(|call| !call.contains(&5)).flatten();
    assert_eq!(answered.count() as u32, CHILDREN);
}

/// Every call with one of the nodes times out. The others do not wait for it forever.
#[tokio::test]
async fn a_node_that_is_never_answered_fails_alone_and_the_browse_ends() {
    const CHILDREN: u32 = 60;
    let (server, calls) = plant(CHILDREN, |_, ids| match ids.contains(&5) {
        true => Fate::Silence,
        false => Fate::Answer,
    })
    .await;
    let connected = connected(&server.url, limits()).await;
    let (_sender, context) = context(&connected);
    let mut pass = BrowsePass::new(&context, &connected);
    pass.call_timeout = CALL_TIMEOUT_SHORT;
    tokio::time::timeout(Duration::from_secs(60), pass.run(&mut |_| {}))
        .await
        .expect("the browse ends");
    let failed = context.failures.page(0, 10);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].2.status, StatusCode::BadTimeout.bits());
    let calls = calls.lock();
    let alone = calls.iter().filter(|call| call.as_slice() == [5]).count();
    assert_eq!(alone, usize::from(SILENCES_MAX));
    let answered = calls.iter().filter(|call| !call.contains(&5)).flatten();
    assert_eq!(answered.count() as u32, CHILDREN, "each of the others once");
}

/// Simulates that many calls of 1000 nodes in flight that began together and fail one after the other. Returns the
/// resulting nodes per call and calls in flight.
async fn after(error: CallError, calls: usize) -> (usize, usize) {
    let (server, _) = plant(0, |_, _| Fate::Answer).await;
    let connected = connected(&server.url, OperationLimits::default()).await;
    let (_sender, context) = context(&connected);
    let mut pass = BrowsePass::new(&context, &connected);
    pass.pace = ConcurrencyLimit::of(16);
    assert_eq!((pass.browse_chunk.get(), pass.pace.get()), (1000, 16));
    let turn = (pass.walk.enter(0), 0);
    for _ in 0..calls {
        let done = BrowseCallResult::Browsed(vec![turn; 1000], Err(error.clone()));
        let lost = pass.settle(done, Duration::from_secs(60), 1000, &mut |_| {});
        assert_eq!(lost, error.failure() == CallFailureKind::Lost);
    }
    assert_eq!(pass.again.len(), calls * 1000, "all are asked for again");
    (pass.browse_chunk.get(), pass.pace.get())
}

#[tokio::test]
async fn calls_that_fail_together_halve_sizes_and_concurrency_once_and_only_for_what_size_is_to_blame_for() {
    let because = |status: StatusCode| CallError::Refused(status.bits());
    let wrong_count = CallError::WrongCount {
        answered: 999,
        asked: 1000,
        what: "browses",
    };
    for (error, expected) in [
        (CallError::Timeout(CALL_TIMEOUT), (500, 8)),
        (because(StatusCode::BadTimeout), (500, 8)),
        (because(StatusCode::BadTooManyOperations), (500, 8)),
        (because(StatusCode::BadRequestTooLarge), (500, 16)),
        (because(StatusCode::BadResponseTooLarge), (500, 16)),
        (because(StatusCode::BadInternalError), (500, 16)),
        (wrong_count, (500, 16)),
        (because(StatusCode::BadServerHalted), (1000, 8)),
        (because(StatusCode::BadSessionIdInvalid), (1000, 16)),
        (CallError::Closed("cut".into()), (1000, 16)),
    ] {
        for calls in [1, 5] {
            assert_eq!(after(error.clone(), calls).await, expected, "{error}");
        }
    }
}
