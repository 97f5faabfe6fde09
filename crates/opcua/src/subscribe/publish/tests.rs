use std::sync::Arc;

use opcua::core::{RequestMessage, ResponseMessage};
use opcua::types::{PublishResponse, StatusCode};
use parking_lot::Mutex;

use super::*;
use crate::backoff::until;
use crate::fake_server::{FakeServer, fault, good, session};

/// Longer than the tests run.
const PAUSE: Duration = Duration::from_secs(3600);

fn gauge() -> IntGauge {
    IntGauge::new("outstanding", "Requests.").unwrap()
}

/// A server that keeps up to `max` publish requests.
async fn keeping(max: usize) -> (FakeServer, Arc<Mutex<Vec<PublishRequest>>>) {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let keeping = kept.clone();
    let answer = move |request: &RequestMessage| -> Option<ResponseMessage> {
        let RequestMessage::Publish(request) = request else {
            return None;
        };
        let mut kept = keeping.lock();
        if kept.len() >= max {
            return Some(fault(StatusCode::BadTooManyPublishRequests));
        }
        kept.push((**request).clone());
        None
    };
    (FakeServer::start(answer).await, kept)
}

async fn fill(publisher: &mut PublishRequester, session: &Session, subscriptions: usize) -> usize {
    let missing = publisher.missing(subscriptions);
    for _ in 0..missing {
        publisher.send(session).await;
    }
    missing
}

#[tokio::test]
async fn as_many_requests_are_outstanding_as_subscriptions_call_for_but_never_more_than_64() {
    let (server, kept) = keeping(1000).await;
    let session = session(&server.url).await;
    let outstanding = gauge();
    let mut publisher = PublishRequester::new(4, outstanding.clone());
    assert_eq!(fill(&mut publisher, &session, 3).await, 12);
    assert_eq!(fill(&mut publisher, &session, 3).await, 0);
    // A hundred subscriptions need 400.
    assert_eq!(fill(&mut publisher, &session, 100).await, OUTSTANDING_MAX - 12);
    assert_eq!(publisher.missing(100), 0);
    while kept.lock().len() < OUTSTANDING_MAX {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(outstanding.get(), 64);
}

#[tokio::test]
async fn a_server_that_keeps_fewer_requests_is_not_sent_more() {
    let (server, kept) = keeping(5).await;
    let session = session(&server.url).await;
    let mut publisher = PublishRequester::new(8, gauge());
    assert_eq!(fill(&mut publisher, &session, 1).await, 8);
    for _ in 0..3 {
        let (answer, _) = publisher.answer().await;
        let error = answer.result.and_then(|body| body.decode::<PublishRequest>().map(drop));
        let status = error.err().and_then(|error| error.status());
        assert_eq!(status, Some(StatusCode::BadTooManyPublishRequests.bits()));
        publisher.too_many(PAUSE);
    }
    // The server keeps five, which is the limit from now on.
    assert_eq!((publisher.missing(1), publisher.missing(10)), (0, 0));
    assert_eq!((kept.lock().len(), server.count("Publish")), (5, 8));
    // In another session the limit is probed again.
    publisher.session_lost();
    assert_eq!(publisher.missing(1), 8);
}

#[tokio::test]
async fn acknowledgements_go_with_the_next_request_and_wait_for_another_connection() {
    let (server, kept) = keeping(1000).await;
    let session = session(&server.url).await;
    let mut publisher = PublishRequester::new(2, gauge());
    publisher.acknowledge(7, 1);
    publisher.connection_lost();
    publisher.acknowledge(7, 2);
    publisher.send(&session).await;
    publisher.send(&session).await;
    while kept.lock().len() < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let acknowledged = |request: &PublishRequest| -> Vec<(u32, u32)> {
        let all = request.subscription_acknowledgements.iter().flatten();
        all.map(|one| (one.subscription_id, one.sequence_number)).collect()
    };
    assert_eq!(acknowledged(&kept.lock()[0]), [(7, 1), (7, 2)]);
    assert!(acknowledged(&kept.lock()[1]).is_empty());
    publisher.acknowledge(7, 3);
    publisher.session_lost();
    publisher.send(&session).await;
    while kept.lock().len() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(acknowledged(&kept.lock()[2]).is_empty());
}

#[tokio::test]
async fn answers_of_a_connection_that_is_gone_are_not_taken_for_those_of_the_next() {
    let answering = |request: &RequestMessage| -> Option<ResponseMessage> {
        let RequestMessage::Publish(_) = request else {
            return None;
        };
        let response = PublishResponse {
            response_header: good(),
            subscription_id: 7,
            ..PublishResponse::default()
        };
        Some(response.into())
    };
    let server = FakeServer::start(answering).await;
    let session = session(&server.url).await;
    let mut publisher = PublishRequester::new(2, gauge());
    publisher.send(&session).await;
    publisher.connection_lost();
    publisher.send(&session).await;
    let (answer, _) = publisher.answer().await;
    assert_eq!(answer.tag, 2);
}

/// A request that failed is not replaced at once, since a server could otherwise cause a busy loop.
#[tokio::test]
async fn a_request_that_failed_rests_and_the_others_do_not_wait_for_it() {
    let (server, _kept) = keeping(0).await;
    let session = session(&server.url).await;
    let mut publisher = PublishRequester::new(4, gauge());
    assert_eq!(fill(&mut publisher, &session, 1).await, 4);
    let (_failed, _) = publisher.answer().await;
    publisher.rest(PAUSE);
    assert_eq!(publisher.missing(1), 0);
    // The next response brings something.
    let (_good, _) = publisher.answer().await;
    assert_eq!(publisher.missing(1), 1);
    for _ in 0..2 {
        publisher.answer().await;
        publisher.rest(Duration::ZERO);
    }
    until(publisher.rests_until()).await;
    assert_eq!(publisher.missing(1), 3);
    assert!(
        publisher.is_up_to_date(),
        "a server that answers nothing else is the one to wait for"
    );
    // The next connection starts without pauses.
    publisher.connection_lost();
    assert_eq!(publisher.missing(1), 4);
}

#[tokio::test]
async fn a_server_that_takes_no_request_at_all_is_asked_again_after_a_pause() {
    let (server, _kept) = keeping(0).await;
    let session = session(&server.url).await;
    let mut publisher = PublishRequester::new(4, gauge());
    fill(&mut publisher, &session, 1).await;
    for _ in 0..4 {
        publisher.answer().await;
        publisher.too_many(PAUSE);
    }
    assert_eq!((publisher.missing(1), server.count("Publish")), (0, 4));
}
