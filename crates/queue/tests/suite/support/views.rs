//! What tests check.

use std::sync::Arc;
use std::time::Duration;

use thalweg_queue::{DeadLetterFilter, Delivery, Message, Queue};

/// Payloads are texts in most tests.
pub fn text(message: &Message) -> String {
    String::from_utf8(message.payload.to_vec()).unwrap()
}

/// In the order of delivery.
pub fn texts(deliveries: &[Delivery]) -> Vec<String> {
    deliveries.iter().map(|delivery| text(&delivery.message)).collect()
}

/// The texts of all messages that can be browsed.
pub async fn kept(queue: &Arc<Queue>) -> Vec<String> {
    let found = queue.browse(None, None, 10_000).await.unwrap();
    found.iter().map(|(_, message)| text(message)).collect()
}

/// The dead letters, if they fit on one page.
pub async fn letters(queue: &Queue) -> Vec<Message> {
    let page = queue.dead_page(&DeadLetterFilter::default(), None, 1000).await.unwrap();
    page.letters
}

/// Why a message died.
pub fn reason(letter: &Message) -> Option<&str> {
    letter.properties.as_ref().get("x-dlq-reason")
}

/// How many messages were dropped for this reason.
pub fn dropped(queue: &Queue, reason: &str) -> u64 {
    let all = queue.counters().dropped();
    all.filter(|(name, _)| *name == reason).map(|(_, count)| count).sum()
}

/// Waits until the queue has reached a state on its own.
pub async fn until(what: &str, is: impl AsyncFn() -> bool) {
    let waited = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), waited).await;
    assert!(waited.is_ok(), "{what}");
}
