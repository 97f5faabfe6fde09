//! `POST …/claim`: messages for a consumer, with an optional wait.
//!
//! Leases of an answer that was never sent because the client disconnected are released as if they had not been made.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use thalweg_kit::blocking;
use thalweg_queue::members::MemberKind;
use thalweg_queue::names::check_consumer;
use thalweg_queue::{ClaimRequest, Delivery, Group, Queue, Receipt};

use crate::json::JsonObject;
use crate::payload;
use crate::problem::Result;
use crate::request::ApiRequest;
use crate::response;

/// Default consumer.
pub const CONSUMER: &str = "default";
const WAIT_MAX: Duration = Duration::from_secs(60);
pub const VISIBILITY: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(12 * 3600);
/// Bytes of payloads, keys and properties in one answer; more come with the next claim.
const ANSWER_BYTES_MAX: u64 = 24 << 20;

pub async fn claim(mut call: ApiRequest) -> Result<Response> {
    let queue = call.used_queue("claim from").await?;
    let body = call.small_body().await?;
    let asked = JsonObject::of_body(&body, &["consumer", "max", "max_bytes", "wait", "visibility"])?;
    let consumer = asked.text("consumer")?.unwrap_or_else(|| CONSUMER.to_owned());
    check_consumer(&consumer)?;
    let max = asked
        .number("max", 1..=10_000)?
        .unwrap_or(queue.settings().claim_batch.into());
    let want = ClaimRequest {
        max: u32::try_from(max).unwrap_or(u32::MAX),
        max_bytes: asked
            .number("max_bytes", 1..=u64::MAX)?
            .unwrap_or(u64::MAX)
            .min(ANSWER_BYTES_MAX),
        wait: asked.duration("wait", Duration::ZERO..=WAIT_MAX)?.unwrap_or_default(),
        visibility: asked.duration("visibility", VISIBILITY)?,
        max_in_flight: None,
    };
    // Released, because the claim may wait for long.
    call.memory = None;
    let group = call.joined_group(&queue).await?;
    let deliveries = queue.claim(&group, &consumer, MemberKind::Http, want).await?;
    if deliveries.is_empty() {
        return Ok(response::nothing());
    }
    let bytes = deliveries.iter().map(|delivery| delivery.message.bytes()).sum();
    let out = blocking::work(bytes, || text_of(&queue, &deliveries));
    let unsent = UnsentLeases::new(queue, group, (consumer, deliveries));
    let body = ClaimResponseBody {
        bytes: Some(Bytes::from(out)),
        unsent: Some(unsent),
    };
    Ok(response::raw(StatusCode::OK, Body::new(body)))
}

fn text_of(queue: &Queue, deliveries: &[Delivery]) -> String {
    let mut out = "{\"messages\":[".to_owned();
    for (n, delivery) in deliveries.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        payload::delivery(&mut out, queue, delivery);
    }
    out.push_str("]}");
    out
}

/// Releases the leases when dropped: the client has disconnected, so its membership ends too.
pub struct UnsentLeases {
    queue: Arc<Queue>,
    group: Arc<Group>,
    consumer: String,
    receipts: Vec<Receipt>,
}

impl UnsentLeases {
    pub fn new(queue: Arc<Queue>, group: Arc<Group>, (consumer, deliveries): (String, Vec<Delivery>)) -> UnsentLeases {
        let receipts = deliveries.iter().map(|delivery| queue.receipt(delivery)).collect();
        UnsentLeases {
            queue,
            group,
            consumer,
            receipts,
        }
    }

    pub fn sent(mut self) {
        self.receipts.clear();
    }
}

impl Drop for UnsentLeases {
    fn drop(&mut self) {
        if self.receipts.is_empty() {
            return;
        }
        if let Err(error) = self.queue.give_back(&self.group, &self.receipts, true) {
            tracing::warn!(
                queue = %self.queue.name(), %error,
                "unsent leases cannot be released; they stay until they end"
            );
        }
        self.queue.client_gone(&self.group, &self.consumer);
    }
}

/// A body that tracks whether it was sent.
struct ClaimResponseBody {
    bytes: Option<Bytes>,
    unsent: Option<UnsentLeases>,
}

impl HttpBody for ClaimResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        let bytes = self.bytes.take();
        if let Some(unsent) = self.unsent.take() {
            unsent.sent();
        }
        Poll::Ready(bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

#[cfg(test)]
mod tests {
    use thalweg_log::disk::FolderDisk;
    use thalweg_log::{Durability, EmbeddedLog, LogOptions};
    use thalweg_queue::settings::{GroupMode, GroupSettings, QueueSettings};
    use thalweg_queue::{NewMessage, Queues, QueuesOptions, SystemClock};

    use super::*;

    async fn one() -> OnItsWay {
        let folder = tempfile::tempdir().unwrap();
        let options = LogOptions {
            file_bytes: 4 << 20,
            first_file_bytes: 1 << 20,
            min_free_bytes: Some(0),
            spare: 1,
            ..LogOptions::default()
        };
        let disk = Arc::new(FolderDisk::open(folder.path()).unwrap());
        let log = Arc::new(EmbeddedLog::open(disk, 7, &options).unwrap());
        let options = QueuesOptions {
            durability: Durability::Fsync,
            auto_create: false,
            memory_bytes: u64::MAX,
            dedup_bytes: u64::MAX,
            state_bytes: u64::MAX,
        };
        let queues = Queues::open(log, Arc::new(SystemClock), options).await.unwrap();
        let queue = queues.create("q", QueueSettings::default()).await.unwrap();
        let group = GroupSettings::new("g", GroupMode::Work);
        let group = queues.join_group(&queue, group).await.unwrap();
        queue.produce(NewMessage::of("a")).await.unwrap();
        let mut answer = OnItsWay {
            body: None,
            queue,
            group,
            _folder: folder,
        };
        let claimed = answer.claim().await;
        answer.body = Some(ClaimResponseBody {
            bytes: Some(Bytes::from_static(b"{}")),
            unsent: Some(UnsentLeases::new(
                answer.queue.clone(),
                answer.group.clone(),
                ("c".to_owned(), claimed),
            )),
        });
        answer
    }

    /// An answer with one message that was not sent yet.
    struct OnItsWay {
        body: Option<ClaimResponseBody>,
        queue: Arc<Queue>,
        group: Arc<Group>,
        _folder: tempfile::TempDir,
    }

    impl OnItsWay {
        async fn claim(&self) -> Vec<Delivery> {
            let want = ClaimRequest::default();
            self.queue
                .claim(&self.group, "c", MemberKind::Http, want)
                .await
                .unwrap()
        }
    }

    #[tokio::test]
    async fn an_answer_that_nobody_took_gives_its_leases_back_as_never_made() {
        let mut answer = one().await;
        assert!(answer.claim().await.is_empty());
        drop(answer.body.take());
        assert!(
            answer.group.stats().consumers.is_empty(),
            "nobody is there to come again"
        );
        let again = answer.claim().await;
        assert_eq!(again.first().map(|delivery| delivery.delivery), Some(1));
    }

    #[tokio::test]
    async fn an_answer_that_left_keeps_its_leases() {
        let mut answer = one().await;
        let mut body = answer.body.take().unwrap();
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        assert!(frame.is_some());
        drop(body);
        assert!(answer.claim().await.is_empty());
    }
}
