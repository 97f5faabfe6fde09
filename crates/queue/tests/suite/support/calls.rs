//! Calls of producers and consumers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_queue::members::MemberKind;
use thalweg_queue::{ClaimRequest, Delivery, NewMessage, Queue, SettleAction};

/// Retried at once.
pub const NACK_NOW: SettleAction = nack_in(Duration::ZERO);

/// Retried after this time.
pub const fn nack_in(delay: Duration) -> SettleAction {
    SettleAction::Nack {
        delay: Some(delay),
        reason: None,
    }
}

/// Dead at once.
pub const REJECT: SettleAction = SettleAction::Reject { reason: None };

/// A message with a key.
pub fn keyed(key: impl Into<Bytes>, payload: impl Into<Bytes>) -> NewMessage {
    NewMessage {
        key: Some(key.into()),
        ..NewMessage::of(payload)
    }
}

/// Messages without a key, one after the other.
pub async fn put(queue: &Arc<Queue>, texts: &[&str]) {
    for text in texts {
        queue.produce(NewMessage::of(text.as_bytes().to_vec())).await.unwrap();
    }
}

/// The same with a key.
pub async fn put_keyed(queue: &Arc<Queue>, key: &str, text: &str) {
    let message = keyed(key.as_bytes().to_vec(), text.as_bytes().to_vec());
    queue.produce(message).await.unwrap();
}

/// This many messages, without waiting for them.
pub fn up_to(max: u32) -> ClaimRequest {
    ClaimRequest {
        max,
        ..ClaimRequest::default()
    }
}

/// Waits this long for a message.
pub fn waiting_for(wait: Duration) -> ClaimRequest {
    ClaimRequest {
        wait,
        ..ClaimRequest::default()
    }
}

/// What consumer "c" of a pipeline gets at once.
pub async fn claim(queue: &Arc<Queue>, group: &str, max: u32) -> Vec<Delivery> {
    let group = queue.group(group).unwrap();
    queue
        .claim(&group, "c", MemberKind::Pipeline, up_to(max))
        .await
        .unwrap()
}

/// What consumer "c" gets at once over HTTP.
pub async fn claim_http(queue: &Arc<Queue>, group: &str, max: u32) -> Vec<Delivery> {
    claim_http_as(queue, group, "c", up_to(max)).await
}

/// What a consumer gets over HTTP.
pub async fn claim_http_as(queue: &Arc<Queue>, group: &str, consumer: &str, want: ClaimRequest) -> Vec<Delivery> {
    let group = queue.group(group).unwrap();
    queue.claim(&group, consumer, MemberKind::Http, want).await.unwrap()
}

/// Settles all of them in the same way; none fails.
pub async fn settle(queue: &Arc<Queue>, group: &str, deliveries: &[Delivery], verdict: SettleAction) {
    let verdicts = deliveries
        .iter()
        .map(|delivery| (queue.receipt(delivery), verdict.clone()))
        .collect();
    let group = queue.group(group).unwrap();
    let settled = queue.settle(&group, verdicts, true).await.unwrap();
    assert!(settled.failed.is_empty(), "{:?}", settled.failed);
}

/// Like a pipeline, which does not wait until they are stored.
pub fn ack(queue: &Queue, group: &str, deliveries: &[Delivery]) {
    let group = queue.group(group).unwrap();
    for delivery in deliveries {
        let (offset, number) = (delivery.message.offset, delivery.delivery);
        queue.ack(&group, delivery.partition, offset, number).unwrap();
    }
}
