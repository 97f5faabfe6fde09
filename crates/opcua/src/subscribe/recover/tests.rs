use opcua::core::{RequestMessage, ResponseMessage};
use opcua::types::{NotificationMessage, RepublishResponse, TransferResult, TransferSubscriptionsResponse};

use super::*;
use crate::fake_server::{FakeServer, fault, good, session};
use crate::value::StructureRegistry;

/// The server keeps the even ones of the messages 1 to 6.
#[tokio::test]
async fn a_server_that_keeps_some_messages_gives_those() {
    let answer = |request: &RequestMessage| -> Option<ResponseMessage> {
        let RequestMessage::Republish(request) = request else {
            return None;
        };
        let number = request.retransmit_sequence_number;
        if !number.is_multiple_of(2) {
            return Some(fault(StatusCode::BadMessageNotAvailable));
        }
        let response = RepublishResponse {
            response_header: good(),
            notification_message: NotificationMessage {
                sequence_number: number,
                ..NotificationMessage::default()
            },
        };
        Some(response.into())
    };
    let server = FakeServer::start(answer).await;
    let session = session(&server.url).await;
    let mut given = Vec::new();
    for number in 1..=6 {
        match republish(&session, 7, number).await.unwrap() {
            RepublishOutcome::Message(body) => {
                let message =
                    crate::value::answers::republish(&body, &StructureRegistry::default(), &mut Vec::new()).unwrap();
                given.push((number, message.sequence_number));
            }
            RepublishOutcome::NotAvailable => {}
            RepublishOutcome::Unanswered | RepublishOutcome::NoSubscription => panic!("{number} was answered"),
        }
    }
    assert_eq!(given, [(2, 2), (4, 4), (6, 6)]);
    // A server without the service does not get a thousand requests.
    let without = FakeServer::start(|request| {
        let is_asked = matches!(request, RequestMessage::Republish(_));
        is_asked.then(|| fault(StatusCode::BadServiceUnsupported))
    })
    .await;
    let other = crate::fake_server::session(&without.url).await;
    assert!(matches!(
        republish(&other, 7, 1).await,
        Ok(RepublishOutcome::Unanswered)
    ));
    drop(server);
    session.channel().closed().await;
    assert!(matches!(republish(&session, 7, 1).await, Err(CallError::Closed(_))));
}

fn moved(status: StatusCode) -> TransferResult {
    TransferResult {
        status_code: status,
        available_sequence_numbers: Some(vec![3]),
    }
}

fn answer(results: Vec<TransferResult>) -> ResponseMessage {
    TransferSubscriptionsResponse {
        response_header: good(),
        results: Some(results),
        diagnostic_infos: None,
    }
    .into()
}

/// A transferred subscription is used; otherwise it would stay on the server and send values next to a new one.
#[tokio::test]
async fn a_server_that_miscounts_what_it_has_moved_is_asked_for_one_at_a_time() {
    let server = FakeServer::start(|request: &RequestMessage| {
        let RequestMessage::TransferSubscriptions(request) = request else {
            return None;
        };
        let ids = request.subscription_ids.clone().unwrap_or_default();
        Some(match ids.as_slice() {
            [7] => answer(vec![moved(StatusCode::Good)]),
            // Already transferred by the call before.
            [8] => answer(vec![moved(StatusCode::BadNothingToDo)]),
            [9] => answer(vec![moved(StatusCode::BadSubscriptionIdInvalid)]),
            [10] => answer(vec![]),
            [11] => answer(vec![moved(StatusCode::Good), moved(StatusCode::Good)]),
            _ => answer(vec![moved(StatusCode::Good)]),
        })
    })
    .await;
    let session = session(&server.url).await;
    let results = transfer(&session, &[7, 8, 9, 10, 11]).await.unwrap();
    let good: Vec<bool> = results.iter().map(SubscriptionTransfer::is_good).collect();
    assert_eq!(good, [true, true, false, false, false]);
    assert_eq!(results[0].available, [3]);
    assert!(transfer(&session, &[]).await.unwrap().is_empty());
}
