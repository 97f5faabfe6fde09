//! `GET /subscribe?subscription=name`: pushes messages to a consumer of a persistent subscription. The consumer chooses
//! how many it leases at a time and settles each with `sub.ack` or `sub.nack`. When it disconnects, its leases are
//! released and the messages are delivered again.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Method, Response};
use bytes::Bytes;
use futures::stream;
use thalweg_events::subscription::{Lease, NAME_BYTES_MAX, Nack};
use thalweg_events::{DeliveredMessage, EventsError, FetchRequest, FetchedMessages, Namespace};
use thalweg_http::compression::accepted_coding;
use thalweg_kit::clock;
use tokio::time::Instant;

use crate::args::name_within;
use crate::auth::{RequiredScope, admit};
use crate::memory::ResponsePermit;
use crate::problem::{Problem, Result};
use crate::rpc::write_message;
use crate::subscribe::event_stream;
use crate::{EventsApiServer, query_value};

/// The longest time without a message before a heartbeat.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// The most messages that a consumer leases at a time by default.
const MAX: usize = 16;
const MAX_MAX: usize = 1000;

/// A consumer and its leases.
struct Consumer {
    server: Arc<EventsApiServer>,
    namespace: Arc<dyn Namespace>,
    subscription: String,
    name: Arc<str>,
    max: usize,
    held: Vec<Lease>,
    /// Leased but not sent yet.
    waiting: VecDeque<DeliveredMessage>,
    /// The memory of the waiting messages.
    room: ResponsePermit,
    /// Resolves when the token is no longer valid or the server stops.
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    begun: bool,
}

/// The name of the subscription in the address. An empty one counts as absent.
pub(crate) fn named(request: &Parts) -> Option<String> {
    query_value(request.uri.query(), "subscription").filter(|name| !name.is_empty())
}

pub(crate) async fn answer(server: &Arc<EventsApiServer>, request: &Parts, subscription: String) -> Response<Body> {
    match open(server, request, subscription).await {
        Ok(consumer) => {
            let chunks = stream::unfold(consumer, |mut consumer| async move {
                let chunk = consumer.chunk().await?;
                Some((Ok::<_, Infallible>(chunk), consumer))
            });
            let events = event_stream(Body::from_stream(chunks));
            server.encoded(accepted_coding(&request.headers), events)
        }
        Err(problem) => server.refuse(&problem),
    }
}

async fn open(server: &Arc<EventsApiServer>, request: &Parts, subscription: String) -> Result<Consumer> {
    let caller = admit(server, request, &Method::GET).await?;
    let value = |name: &str| query_value(request.uri.query(), name).filter(|value| !value.is_empty());
    if ["stream", "category", "all"].iter().any(|other| value(other).is_some()) {
        return Err(Problem::invalid(
            "Cannot combine 'subscription' with 'stream', 'category' or 'all'",
        ));
    }
    let name = value("consumer").unwrap_or_default();
    let max = value("max").map_or(Ok(MAX), |max| max.parse().map_err(|_| ()));
    let max = max.ok().filter(|max| (1..=MAX_MAX).contains(max));
    let max = max.ok_or_else(|| Problem::invalid(format!("max must be between 1 and {MAX_MAX}")))?;
    name_within(&subscription, NAME_BYTES_MAX, "subscription")?;
    name_within(&name, NAME_BYTES_MAX, "consumer")?;
    caller.may(RequiredScope::Read)?;
    caller.may(RequiredScope::Write)?;
    let namespace = caller.namespace()?.clone();
    let known = server.subscriptions.info(&namespace, &subscription).await;
    known.map_err(Problem::of("get subscription"))?;
    Ok(Consumer {
        server: server.clone(),
        namespace,
        subscription,
        name: name.into(),
        max,
        held: Vec::new(),
        waiting: VecDeque::new(),
        room: ResponsePermit::default(),
        ended: {
            let (ended, stopping) = (caller.ended(), server.stopping.clone());
            Box::pin(async move {
                tokio::select! {
                    () = ended => {}
                    () = stopping.cancelled() => {}
                }
            })
        },
        begun: false,
    })
}

impl Consumer {
    /// The next chunk; `None` when the subscription was deleted or cannot be read.
    async fn chunk(&mut self) -> Option<Bytes> {
        if !self.begun {
            self.begun = true;
            return Some(Bytes::from_static(b": ready\n\n"));
        }
        if self.waiting.is_empty() {
            self.fetch().await?;
        }
        let Some(message) = self.waiting.pop_front() else {
            return Some(Bytes::from_static(b": hb\n\n"));
        };
        let room = match self.waiting.is_empty() {
            true => std::mem::take(&mut self.room),
            false => self.room.clone(),
        };
        Some(room.hold(event(&message)))
    }

    /// Waits for messages until a heartbeat is due.
    async fn fetch(&mut self) -> Option<()> {
        let ask = FetchRequest {
            consumer: self.name.clone(),
            max: self.max,
            held: self.held.clone(),
        };
        let until = clock::tokio_now() + SILENCE_MAX;
        let subscriptions = &self.server.subscriptions;
        let fetched = tokio::select! {
            () = &mut self.ended => return None,
            fetched = subscriptions.fetch(&self.namespace, &self.subscription, ask, until) => fetched,
        };
        let fetched = match fetched {
            Ok(fetched) => self.with_room(fetched, until).await,
            Err(error) => Err(error),
        };
        match fetched {
            Ok(fetched) => {
                self.held = fetched.held;
                self.held.extend(fetched.messages.iter().map(|message| message.lease));
                self.waiting = fetched.messages.into();
                Some(())
            }
            Err(EventsError::SubscriptionNotFound(_) | EventsError::NamespaceNotFound(_)) => None,
            Err(error) => {
                tracing::warn!(
                    namespace = self.namespace.name(),
                    subscription = self.subscription,
                    reason = %error,
                    "a consumer of a subscription was cut off"
                );
                None
            }
        }
    }

    /// Keeps the fetched messages if there is room now. Otherwise returns them and waits until there may be room.
    async fn with_room(
        &mut self,
        mut fetched: FetchedMessages,
        until: Instant,
    ) -> std::result::Result<FetchedMessages, EventsError> {
        let bytes = bytes_of(&fetched.messages);
        let memory = &self.server.memory;
        match memory.room_now(bytes) {
            Some(room) => self.room = room,
            None => {
                let messages = std::mem::take(&mut fetched.messages);
                give_back(&self.server, &self.namespace, &self.subscription, messages).await?;
                let _ = tokio::time::timeout_at(until, memory.room(bytes)).await;
            }
        }
        Ok(fetched)
    }
}

/// The approximate size of the messages as text.
pub(crate) fn bytes_of(messages: &[DeliveredMessage]) -> usize {
    messages.iter().map(|message| message.stored.bytes() + 200).sum()
}

/// Returns messages for which there is no room, as if they had never been leased.
pub(crate) async fn give_back(
    server: &EventsApiServer,
    namespace: &Arc<dyn Namespace>,
    subscription: &str,
    messages: Vec<DeliveredMessage>,
) -> std::result::Result<(), EventsError> {
    let leases = messages.iter().map(|message| message.lease).collect();
    drop(messages);
    let back = server.subscriptions.nack(namespace, subscription, leases, Nack::Back);
    back.await.map(|_| ())
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let leases = std::mem::take(&mut self.held);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        if leases.is_empty() {
            return;
        }
        let (server, namespace) = (self.server.clone(), self.namespace.clone());
        let subscription = std::mem::take(&mut self.subscription);
        runtime.spawn(async move {
            // A lease that cannot be released expires, and its message is delivered again.
            let _ = server.subscriptions.release(&namespace, &subscription, leases).await;
        });
    }
}

/// One event in one piece.
fn event(message: &DeliveredMessage) -> String {
    let mut out = String::with_capacity(message.stored.bytes() + 160);
    out.push_str("event: message\nid: ");
    out.push_str(&message.lease.global.to_string());
    out.push_str("\ndata: ");
    write_message(&mut out, message);
    out.push_str("\n\n");
    out
}
