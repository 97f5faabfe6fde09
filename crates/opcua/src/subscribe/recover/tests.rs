use opcua::core::{RequestMessage, ResponseMessage};
use opcua::types::{NotificationMessage, RepublishResponse};

use super::*;
use crate::fake_server::{FakeServer, fault, good, session};
use crate::value::TypeBook;

fn missing(first: u32, count: u32) -> Missing {
    Missing {
        first,
        count,
        too_many: false,
    }
}

#[test]
fn only_what_the_server_says_it_keeps_is_asked_for() {
    assert_eq!(worth_asking(missing(5, 4), &[1, 6, 8, 9]), [6, 8]);
    // A server that does not say is asked for all.
    assert_eq!(worth_asking(missing(5, 3), &[]), [5, 6, 7]);
    assert!(worth_asking(missing(5, 3), &[9]).is_empty());
}

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
    for number in worth_asking(missing(1, 6), &[]) {
        match republish(&session, 7, number).await.unwrap() {
            Republished::Message(body) => {
                let message = crate::value::answers::republish(&body, &TypeBook::default(), &mut Vec::new()).unwrap();
                given.push((number, message.sequence_number));
            }
            Republished::NotAvailable => {}
            Republished::Unanswered => panic!("{number} was answered"),
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
