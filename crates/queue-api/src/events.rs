//! `GET …/events`: messages as server-sent events, for as long as the client listens.
//!
//! In a work group each event is a lease with its receipt as id. When the consumer has `max_in_flight` of them, no more
//! are sent until some are settled. In a stream group ids are offsets by partition, and with `Last-Event-ID` reading
//! continues after them; only acks and commits change what is committed.
//!
//! When the client disconnects, claimed messages that were not sent are released as never delivered, and unacked
//! messages of a stream are read again. Every 15 s without messages a comment keeps the connection open.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::stream;
use thalweg_kit::{blocking, clock};
use thalweg_log::Offset;
use thalweg_queue::members::MemberKind;
use thalweg_queue::names::check_consumer;
use thalweg_queue::{ClaimRequest, ConsumerHandle, Delivery, Group, Queue, QueueError};

use crate::claim::{CONSUMER, UnsentLeases};
use crate::json::cut;
use crate::payload;
use crate::problem::{Problem, Result};
use crate::request::{ApiRequest, ApiState};

const KEEP_ALIVE: Duration = Duration::from_secs(15);
const IN_FLIGHT_MAX: u64 = 1_000_000;
/// Limits of one claim. They are small, because unsent messages are released again.
const CLAIM: u32 = 100;
const CLAIM_BYTES: u64 = 1 << 20;
/// Approximate size of the pieces in which events are written to the connection.
const PIECE_BYTES: usize = 64 << 10;

pub async fn events(call: ApiRequest) -> Result<Response> {
    let queue = call.used_queue("claim from").await?;
    let consumer = call.parameter("consumer").unwrap_or(CONSUMER).to_owned();
    check_consumer(&consumer)?;
    let max_in_flight = call.number("max_in_flight", 1..=IN_FLIGHT_MAX)?;
    let most = u64::from(queue.settings().max_in_flight);
    let max_in_flight = max_in_flight.map_or(most, |asked| asked.min(most));
    let last = call.headers.get("last-event-id").map(|id| id.as_bytes().to_vec());
    let group = call.joined_group(&queue).await?;
    // Reports what prevents claims while that can still be a status.
    let mut asking = queue.ask(&group, &consumer, MemberKind::Http)?;
    may_consume(&queue, &group).inspect_err(|_| asking.answered())?;
    if let Some(last) = last.filter(|_| !group.is_work()) {
        go_on_after(&asking, &last)?;
    }
    let listener = EventStream {
        shared: call.shared.clone(),
        queue,
        group,
        consumer,
        max_in_flight: u32::try_from(max_in_flight).unwrap_or(u32::MAX),
        claimed: VecDeque::new(),
        sent: BTreeMap::new(),
        first: Some(": messages follow\n\n".to_owned()),
        ended: false,
        asking,
    };
    let pieces = stream::unfold(listener, |mut listener| async move {
        let piece = listener.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(Bytes::from(piece)), listener))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-store"),
        // A proxy would otherwise buffer messages.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    Ok((StatusCode::OK, headers, Body::from_stream(pieces)).into_response())
}

fn may_consume(queue: &Queue, group: &Group) -> Result<()> {
    let what = if group.is_paused() {
        format!("group {} of queue {}", group.name(), queue.name())
    } else if queue.is_consuming_paused() {
        format!("consuming from queue {}", queue.name())
    } else {
        return Ok(());
    };
    Err(QueueError::Paused { what: what.into() }.into())
}

/// Parses `partition:offset,…`, the messages that the client has, and continues after them.
fn go_on_after(asking: &ConsumerHandle, last: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(last);
    let mut places = Vec::new();
    for place in text.split(',').map(str::trim) {
        let pair = place.split_once(':').and_then(|(partition, offset)| {
            let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
            let (partition, offset) = Some((partition, offset)).filter(|(p, o)| digits(p) && digits(o))?;
            Some((partition.parse().ok()?, offset.parse::<Offset>().ok()?))
        });
        let Some((partition, offset)) = pair else {
            let detail = format!("Last-Event-ID: expected partition:offset,..., got {:?}", cut(&text));
            return Err(Problem::invalid(detail));
        };
        places.push((partition, offset));
    }
    for (partition, offset) in places {
        asking.read_from(partition, offset.saturating_add(1))?;
    }
    Ok(())
}

/// The event stream of one client.
struct EventStream {
    shared: Arc<ApiState>,
    queue: Arc<Queue>,
    group: Arc<Group>,
    consumer: String,
    max_in_flight: u32,
    /// Not sent yet.
    claimed: VecDeque<Delivery>,
    /// For a stream group, by partition: offsets that may not be committed yet, in log order, and the last offset.
    sent: BTreeMap<u32, (VecDeque<Offset>, Offset)>,
    first: Option<String>,
    ended: bool,
    /// Keeps the consumer a member while it listens, also between claims.
    asking: ConsumerHandle,
}

impl EventStream {
    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Option<String> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        loop {
            if !self.claimed.is_empty() {
                return Some(self.piece());
            }
            if self.ended {
                return None;
            }
            let Some(room) = self.room().await else {
                return Some(": all in flight\n\n".to_owned());
            };
            let want = ClaimRequest {
                max: room.min(CLAIM),
                max_bytes: CLAIM_BYTES,
                wait: KEEP_ALIVE,
                visibility: None,
                max_in_flight: Some(self.max_in_flight),
            };
            match self
                .queue
                .claim(&self.group, &self.consumer, MemberKind::Http, want)
                .await
            {
                Ok(messages) if messages.is_empty() => return Some(": nothing new\n\n".to_owned()),
                Ok(messages) => self.claimed = messages.into(),
                Err(QueueError::TooManyPending { .. }) => return Some(": all in flight\n\n".to_owned()),
                Err(error) => {
                    // After a gap, reading continues by itself; after any other error the client reconnects.
                    let gap = matches!(error, QueueError::OffsetGap { .. });
                    self.ended = !gap;
                    let name = if gap { "offset_gap" } else { "error" };
                    return Some(format!("event: {name}\ndata: {}\n\n", Problem::from(error).to_json()));
                }
            }
        }
    }

    /// How many messages may be sent now; `None` if after 15 s that is still zero. The group counts leases; messages of
    /// a stream are counted here.
    async fn room(&mut self) -> Option<u32> {
        if self.group.is_work() {
            return Some(self.max_in_flight);
        }
        let shared = self.shared.clone();
        let settled = shared.stream_settled.notified();
        tokio::pin!(settled);
        let until = clock::tokio_now() + KEEP_ALIVE;
        loop {
            // Enabled before the check, so that a later settlement is not missed.
            settled.as_mut().enable();
            let room = self.stream_room();
            if room > 0 {
                return Some(room);
            }
            tokio::select! {
                () = &mut settled => settled.set(shared.stream_settled.notified()),
                () = tokio::time::sleep_until(until) => return None,
            }
        }
    }

    fn stream_room(&mut self) -> u32 {
        let in_flight = |sent: &BTreeMap<u32, (VecDeque<Offset>, Offset)>| -> usize {
            sent.values().map(|(offsets, _)| offsets.len()).sum()
        };
        let max = self.max_in_flight as usize;
        if in_flight(&self.sent) >= max {
            for (partition, (offsets, _)) in &mut self.sent {
                let read = self.group.in_flight(*partition);
                while offsets.front().is_some_and(|offset| *offset < read.start) {
                    offsets.pop_front();
                }
                // Reading went back: messages from there on are sent again.
                while offsets.back().is_some_and(|offset| *offset >= read.end) {
                    offsets.pop_back();
                }
            }
        }
        u32::try_from(max.saturating_sub(in_flight(&self.sent))).unwrap_or(u32::MAX)
    }

    /// Some of the claimed messages, as events.
    fn piece(&mut self) -> String {
        let mut out = String::new();
        while out.len() < PIECE_BYTES
            && let Some(delivery) = self.claimed.pop_front()
        {
            let id = if self.group.is_work() {
                self.queue.receipt(&delivery).to_string()
            } else {
                self.place_after(&delivery)
            };
            // Writing to a String does not fail.
            let _ = write!(out, "event: message\nid: {id}\ndata: ");
            blocking::work(delivery.message.bytes(), || {
                payload::delivery(&mut out, &self.queue, &delivery);
            });
            out.push_str("\n\n");
        }
        out
    }

    /// The client's position after this message.
    fn place_after(&mut self, delivery: &Delivery) -> String {
        let offset = delivery.message.offset;
        let sent = self.sent.entry(delivery.partition).or_default();
        // A redelivered message counts once.
        while sent.0.back().is_some_and(|last| *last >= offset) {
            sent.0.pop_back();
        }
        sent.0.push_back(offset);
        sent.1 = offset;
        let places: Vec<String> = self
            .sent
            .iter()
            .map(|(partition, (_, last))| format!("{partition}:{last}"))
            .collect();
        places.join(",")
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if self.ended {
            self.asking.answered();
        }
        let claimed: Vec<Delivery> = std::mem::take(&mut self.claimed).into();
        if self.group.is_work() {
            let unsent = (self.consumer.clone(), claimed);
            return drop(UnsentLeases::new(self.queue.clone(), self.group.clone(), unsent));
        }
        let unsent = claimed.iter().map(|delivery| delivery.partition);
        self.asking.read_again(self.sent.keys().copied().chain(unsent));
    }
}
