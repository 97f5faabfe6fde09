//! `GET /subscribe`: a message is told as soon as it can be read. A subscriber is a cursor over what is stored, not a queue:
//! one that is slow reads later, and misses nothing.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use bytes::Bytes;
use futures::stream;
use thalweg_events::names::Member;
use thalweg_events::{CategoryRead, Direction, From, Namespace, Page, Stored, StreamRead, Visible};
use tokio::sync::watch;

use crate::auth::{Need, authenticate};
use crate::problem::{Problem, Result};
use crate::write::{number, row, text};
use crate::{Server, query_value, subscribe_persistent};

/// So long nothing comes before it is said that the connection stands.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Messages read at once.
const PAGE: usize = 256;
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What is told to whom.
struct Subscription {
    namespace: Arc<dyn Namespace>,
    of: Of,
    /// Of a stream the position, else the global position, that comes next.
    next: u64,
    /// A stream was left off at a global position, from which its own follows with the first message.
    after_global: Option<u64>,
    types: Vec<String>,
    correlation: Option<String>,
    /// Whole messages, not pokes.
    data: bool,
    visible: watch::Receiver<Visible>,
    /// Read and not told yet.
    read: VecDeque<Stored>,
    /// There is more to read behind that.
    more: bool,
    begun: bool,
}

enum Of {
    Stream(String),
    Category(String, Option<Member>),
    All,
    Nothing,
}

pub(crate) async fn answer(server: Arc<Server>, request: Request) -> Response<Body> {
    let (parts, _) = request.into_parts();
    if let Some(name) = subscribe_persistent::named(&parts) {
        return subscribe_persistent::answer(&server, &parts, name).await;
    }
    match subscribe(&server, &parts).await {
        Ok(subscription) => {
            let chunks = stream::unfold(subscription, |mut subscription| async move {
                let chunk = subscription.chunk().await?;
                Some((Ok::<_, Infallible>(chunk), subscription))
            });
            let mut response = Response::new(Body::from_stream(chunks));
            let headers = response.headers_mut();
            for (name, value) in [
                (CONTENT_TYPE, "text/event-stream"),
                (CACHE_CONTROL, "no-cache"),
                (CONNECTION, "keep-alive"),
                (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
            ] {
                headers.insert(name, HeaderValue::from_static(value));
            }
            response
        }
        Err(Refused::Plain(message)) => {
            let mut response = Response::new(Body::from(message));
            *response.status_mut() = StatusCode::BAD_REQUEST;
            let plain = HeaderValue::from_static("text/plain; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, plain);
            response
        }
        Err(Refused::Problem(problem)) => problem.answer(),
    }
}

/// Mistakes in the address are told as plain text, which clients show as it is.
enum Refused {
    Plain(&'static str),
    Problem(Problem),
}

impl std::convert::From<Problem> for Refused {
    fn from(problem: Problem) -> Refused {
        Refused::Problem(problem)
    }
}

async fn subscribe(server: &Arc<Server>, request: &Parts) -> std::result::Result<Subscription, Refused> {
    let query = request.uri.query();
    // An empty value is none.
    let value = |name: &str| query_value(query, name).filter(|value| !value.is_empty());
    let store = server.store.as_ref();
    let token = value("token");
    let caller = authenticate(store, server.options.test_mode, &request.headers, token.as_deref()).await?;
    if request.method != Method::GET {
        return Err(Refused::Problem(Problem {
            status: StatusCode::METHOD_NOT_ALLOWED,
            ..Problem::invalid("Only GET method allowed")
        }));
    }
    let (stream, category) = (value("stream"), value("category"));
    let all = value("all").as_deref() == Some("true");
    if stream.is_none() && category.is_none() && !all {
        return Err(Refused::Plain(
            "Either 'stream', 'category', or 'all=true' parameter required",
        ));
    }
    if all && (stream.is_some() || category.is_some()) {
        return Err(Refused::Plain("Cannot combine 'all' with 'stream' or 'category'"));
    }
    if stream.is_some() && category.is_some() {
        return Err(Refused::Plain("Cannot specify both 'stream' and 'category'"));
    }
    let position = whole(value("position"), "Invalid position parameter")?
        .unwrap_or(0)
        .max(0) as u64;
    let natural = |name: &str, wrong: &'static str| match whole(value(name), wrong)? {
        Some(..0) => Err(Refused::Plain(wrong)),
        number => Ok(number.map(i64::unsigned_abs)),
    };
    let consumer = natural("consumer", "Invalid consumer parameter")?;
    let size = natural("size", "Invalid size parameter")?;
    let member = match (consumer.unwrap_or(0), size.unwrap_or(0)) {
        (0, 0) => None,
        (number, of) if number < of => Some(Member { number, of }),
        _ => return Err(Refused::Plain("Invalid consumer group: member must be < size")),
    };
    caller.may(Need::Read)?;
    let namespace = caller.namespace()?.clone();
    let mut visible = namespace.watch();
    let last = visible.borrow_and_update().last;
    let resumed = last_event_id(&request.headers, value("lastEventId"));
    let of = match (stream, category) {
        (Some(stream), _) => Of::Stream(stream),
        // No category has a `-` in its name.
        (None, Some(category)) if category.contains('-') => Of::Nothing,
        (None, Some(category)) => Of::Category(category, member),
        (None, None) => Of::All,
    };
    let (next, after_global) = match (&of, resumed) {
        (Of::Stream(_), Some(resumed)) => (0, Some(resumed)),
        (_, Some(resumed)) => (resumed + 1, None),
        // History only for those who ask: clients open it at any position and expect what is new.
        (Of::All, None) if value("catchup").as_deref() != Some("true") => (position.max(last + 1), None),
        (_, None) => (position, None),
    };
    Ok(Subscription {
        namespace,
        of,
        next,
        after_global,
        types: value("types").map_or_else(Vec::new, |types| types.split(',').map(str::to_owned).collect()),
        correlation: value("correlation"),
        data: value("data").as_deref() == Some("true"),
        visible,
        read: VecDeque::new(),
        more: true,
        begun: false,
    })
}

fn whole(value: Option<String>, wrong: &'static str) -> std::result::Result<Option<i64>, Refused> {
    let parsed = value.map(|value| value.parse());
    parsed.transpose().map_err(|_| Refused::Plain(wrong))
}

fn last_event_id(headers: &HeaderMap, query: Option<String>) -> Option<u64> {
    let header = headers.get(LAST_EVENT_ID).and_then(|value| value.to_str().ok());
    header.map(str::to_owned).or(query)?.trim().parse().ok()
}

impl Subscription {
    /// What goes out next; `None` when the namespace is gone, or cannot be read.
    async fn chunk(&mut self) -> Option<Bytes> {
        if !self.begun {
            self.begun = true;
            return Some(Bytes::from_static(b": ready\n\n"));
        }
        loop {
            if let Some(stored) = self.read.pop_front() {
                return Some(self.tell(&stored));
            }
            if self.more {
                // What is stored from here on is seen as a change.
                let seen = self.visible.borrow_and_update().last;
                if let Err(problem) = self.read_on(seen).await {
                    tracing::warn!(
                        namespace = self.namespace.name(),
                        reason = problem.message,
                        "a subscription ends"
                    );
                    return None;
                }
                continue;
            }
            match tokio::time::timeout(SILENCE_MAX, self.visible.changed()).await {
                Ok(Ok(())) => self.more = true,
                Ok(Err(_)) => return None,
                Err(_) => return Some(Bytes::from_static(b": hb\n\n")),
            }
        }
    }

    /// Everything up to the global position `seen` can be read.
    async fn read_on(&mut self, seen: u64) -> Result<()> {
        let page = match &self.of {
            Of::Nothing => Page::default(),
            Of::Stream(stream) => {
                let from = match self.after_global {
                    Some(global) => From::Global(global + 1),
                    None => From::Position(self.next),
                };
                let read = StreamRead {
                    stream,
                    from: Some(from),
                    direction: Direction::Forward,
                    max: PAGE,
                    types: &self.types,
                };
                self.namespace.read_stream(read).await
            }
            .map_err(Problem::of("get messages"))?,
            Of::Category(_, _) | Of::All => {
                let (category, member) = match &self.of {
                    Of::Category(category, member) => (Some(category.as_str()), *member),
                    _ => (None, None),
                };
                let read = CategoryRead {
                    category,
                    from: Some(self.next),
                    direction: Direction::Forward,
                    max: PAGE,
                    correlation: self.correlation.as_deref(),
                    member,
                    types: &self.types,
                };
                self.namespace.read_category(read).await
            }
            .map_err(Problem::of("get category messages"))?,
        };
        self.more = page.next.is_some();
        let behind = match (&self.of, page.events.last().map(Stored::event)) {
            (Of::Stream(_), Some(last)) => {
                self.after_global = None;
                Some(last.position + 1)
            }
            (Of::Stream(_), None) => None,
            // Nothing of what was passed over is looked at again.
            (_, last) => Some(last.map_or(0, |last| last.global).max(seen) + 1),
        };
        self.next = page.next.or(behind).map_or(self.next, |next| next.max(self.next));
        self.read = page.events.into();
        Ok(())
    }

    /// One event, in one piece.
    fn tell(&self, stored: &Stored) -> Bytes {
        let event = stored.event();
        let mut out = String::with_capacity(128);
        out.push_str(if self.data {
            "event: message\nid: "
        } else {
            "event: poke\nid: "
        });
        number(&mut out, event.global);
        out.push_str("\ndata: ");
        if self.data {
            row(&mut out, stored, true);
        } else {
            out.push_str("{\"stream\":");
            text(&mut out, event.stream);
            out.push_str(",\"position\":");
            number(&mut out, event.position);
            out.push_str(",\"globalPosition\":");
            number(&mut out, event.global);
            out.push('}');
        }
        out.push_str("\n\n");
        Bytes::from(out)
    }
}
