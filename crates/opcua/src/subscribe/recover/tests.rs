use opcua::core::{RequestMessage, ResponseMessage};
use opcua::types::{NotificationMessage, RepublishResponse};

use super::*;
use crate::fake_server::{FakeServer, fault, good, session};
use crate::value::TypeBook;

/// Of the messages 1 to 6 the server keeps the even ones.
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
            Republished::Message(body) => {
                let message = crate::value::answers::republish(&body, &TypeBook::default(), &mut Vec::new()).unwrap();
                given.push((number, message.sequence_number));
            }
            Republished::NotAvailable => {}
            Republished::Unanswered | Republished::NoSubscription => panic!("{number} was answered"),
        }
    }
    assert_eq!(given, [(2, 2), (4, 4), (6, 6)]);
    // A server without the service is not asked a thousand times.
    let without = FakeServer::start(|request| {
        let is_asked = matches!(request, RequestMessage::Republish(_));
        is_asked.then(|| fault(StatusCode::BadServiceUnsupported))
    })
    .await;
    let other = crate::fake_server::session(&without.url).await;
    assert!(matches!(republish(&other, 7, 1).await, Ok(Republished::Unanswered)));
    drop(server);
    session.channel().closed().await;
    assert!(matches!(republish(&session, 7, 1).await, Err(CallError::Closed(_))));
}
