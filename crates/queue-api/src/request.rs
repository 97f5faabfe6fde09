//! One request: names from its path, query parameters, and its body within a limit.

use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::HeaderMap;
use bytes::Bytes;
use thalweg_http::body::{BodyFault, BodyRules, ROOM_PATIENCE, collect};
use thalweg_http::compression::{ContentCoding, DecodeError, body_coding, decode, decoded_len};
use thalweg_kit::blocking;
use thalweg_kit::byte_budget::{ByteBudget, ByteReservation};
use thalweg_queue::names::{NameKind, check_name};
use thalweg_queue::settings::{GroupMode, GroupSettings};
use thalweg_queue::{Group, Queue, QueueError, Queues};
use tokio::sync::Notify;

use crate::json::cut;
use crate::problem::{Problem, Result};

/// Maximum size of a body without messages.
pub const SMALL_BODY_BYTES_MAX: usize = 4 << 20;

/// Bytes that are decompressed in the time in which one is read.
const DECODING_COST: usize = 64;

/// State shared by all requests.
pub struct ApiState {
    pub queues: Queues,
    /// The memory limit for the bodies of all requests.
    bodies: ByteBudget,
    /// Notified when something was settled in a stream group.
    pub stream_settled: Notify,
}

impl ApiState {
    pub fn new(queues: Queues, bodies_bytes_max: usize) -> Arc<ApiState> {
        Arc::new(ApiState {
            queues,
            bodies: ByteBudget::new(bodies_bytes_max),
            stream_settled: Notify::new(),
        })
    }
}

pub struct ApiRequest {
    pub shared: Arc<ApiState>,
    pub names: Vec<(String, String)>,
    pub query: Vec<(String, String)>,
    pub headers: HeaderMap,
    /// Only one task reads it; the mutex makes the request shareable.
    pub body: Mutex<Body>,
    /// Memory of the body, until the request is answered.
    pub memory: Option<ByteReservation>,
}

impl ApiRequest {
    /// A name from the path.
    pub fn name(&self, part: &str) -> &str {
        let found = self.names.iter().find(|(known, _)| known == part);
        found.map_or("", |(_, name)| name.as_str())
    }

    pub fn queues(&self) -> &Queues {
        &self.shared.queues
    }

    /// The queue of the path, for reading.
    pub fn queue(&self) -> Result<Arc<Queue>> {
        Ok(self.queues().get(self.queue_name()?)?)
    }

    /// An invalid name is an error of the request, not a missing queue.
    fn queue_name(&self) -> Result<&str> {
        let name = self.name("queue");
        check_name(name).map_err(|error| Problem::invalid(format!("queue {:?}: {error}", cut(name))))?;
        Ok(name)
    }

    /// The queue of the path for producers and consumers; created if that is allowed.
    pub async fn used_queue(&self, verb: &str) -> Result<Arc<Queue>> {
        let name = self.queue_name()?;
        user_queue(name, verb)?;
        Ok(self.queues().get_or_create(name).await?)
    }

    /// The queue of the path, to use it. Queues of the lake and of pipelines are excluded: a message taken from them or
    /// added would be missing or wrong there.
    pub fn own_queue(&self, verb: &str) -> Result<Arc<Queue>> {
        let queue = self.queue()?;
        user_queue(queue.name(), verb)?;
        Ok(queue)
    }

    /// The group of the path.
    pub fn group(&self, queue: &Arc<Queue>) -> Result<Arc<Group>> {
        Ok(queue.group(self.name("group"))?)
    }

    /// The group of the path for a consumer. If it does not exist, it is created with mode work, from the earliest
    /// message on, and expires when it is not used.
    pub async fn joined_group(&self, queue: &Arc<Queue>) -> Result<Arc<Group>> {
        let name = self.name("group");
        match queue.group(name) {
            Err(QueueError::GroupNotFound { .. }) => {}
            found => return Ok(found?),
        }
        check_name(name).map_err(|error| Problem::invalid(format!("group: {error}")))?;
        let settings = GroupSettings::new(name, GroupMode::Work);
        match self.queues().join_group(queue, settings).await {
            // Another request created it meanwhile, with another mode.
            Err(QueueError::InvalidConfig { .. }) => Ok(queue.group(name)?),
            joined => Ok(joined?),
        }
    }

    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// A whole number; digits only.
    pub fn number(&self, name: &str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(text) = self.parameter(name) else {
            return Ok(None);
        };
        let digits = text.bytes().all(|b| b.is_ascii_digit());
        let number = text.parse().ok().filter(|number| digits && range.contains(number));
        number.map(Some).ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            let got = crate::json::cut(text);
            Problem::invalid(format!(
                "{name}: expected a whole number from {low} to {high}, got {got:?}"
            ))
        })
    }

    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.parameter(name) {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => {
                let got = crate::json::cut(other);
                Err(Problem::invalid(format!("{name}: expected true or false, got {got:?}")))
            }
        }
    }

    /// The body, if it has at most `limit` bytes, also after decompression; `limit_of` says in an error what is limited and
    /// how to stay below it.
    pub async fn body(&mut self, limit: usize, limit_of: &str) -> Result<Bytes> {
        let coding = body_coding(&self.headers)?;
        let body = self.body.get_mut().map(std::mem::take).unwrap_or_default();
        let room = self.shared.bodies.reservation();
        let read = collect(body, BodyRules::up_to(limit), room).await;
        let bodies_max = self.shared.bodies.max();
        let (mut whole, mut room) = read.map_err(|fault| problem_of(fault, limit_of, bodies_max))?;
        if let Some(coding) = coding {
            let len = decompressed_len(coding, &whole, limit).map_err(|error| undecodable(error, limit_of))?;
            // What it becomes replaces the compressed body.
            if !room.grow_within(len.saturating_sub(whole.len()), ROOM_PATIENCE).await {
                return Err(Problem::too_many_bodies(bodies_max));
            }
            let decoded = blocking::work(len, || decode(coding, &whole, len));
            whole = decoded.map_err(|error| undecodable(error, limit_of))?;
        }
        self.memory = Some(room);
        Ok(whole)
    }

    pub async fn small_body(&mut self) -> Result<Bytes> {
        self.body(
            SMALL_BODY_BYTES_MAX,
            "the most that this request takes; send it in parts",
        )
        .await
    }
}

/// `limit_of` says what is limited and how to stay below it; all bodies together have `bodies_max` bytes.
fn problem_of(fault: BodyFault, limit_of: &str, bodies_max: usize) -> Problem {
    match fault {
        BodyFault::TooLarge { limit } => {
            Problem::too_large(format!("the body has more than {limit} bytes, {limit_of}"))
        }
        BodyFault::NoRoom { .. } => Problem::too_many_bodies(bodies_max),
        // The listener replaces the answer to a body that is too slow for it.
        BodyFault::EndedEarly(_) | BodyFault::TooSlow { .. } => Problem::invalid("the body ends early; send it again"),
    }
}

/// Counted before there is memory for it.
fn decompressed_len(coding: ContentCoding, packed: &Bytes, limit: usize) -> std::result::Result<usize, DecodeError> {
    let cost = packed.len().saturating_mul(DECODING_COST);
    blocking::work(cost, || decoded_len(coding, packed, limit))
}

fn undecodable(error: DecodeError, limit_of: &str) -> Problem {
    match error {
        DecodeError::TooLarge { limit } => Problem::too_large(format!(
            "the body has more than {limit} bytes after decompression, {limit_of}"
        )),
        DecodeError::Ratio => Problem::too_large(error.to_string()),
        DecodeError::Malformed { .. } | DecodeError::Window => Problem::invalid(error.to_string()),
    }
}

/// Whether a user may do this with a queue of this name.
pub fn user_queue(name: &str, verb: &str) -> Result<()> {
    let reason = match NameKind::of(name) {
        NameKind::Ordinary | NameKind::DeadLetter => return Ok(()),
        NameKind::Lake => "names beginning with lake. belong to the lake; browse it, or ask the lake itself",
        NameKind::Buffer => "names beginning with buffer. belong to the buffers of flows; change the flow",
    };
    Err(Problem::not_authorized(format!("{verb} queue {name}"), reason))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_body_that_is_refused_is_told_with_its_limit_and_when_to_come_again() {
        let too_large = problem_of(BodyFault::TooLarge { limit: 10 }, "the most here", 8192);
        let facts = too_large.kind.facts();
        assert_eq!((facts.status, facts.code), (413, "message_too_large"));
        assert_eq!(too_large.detail, "the body has more than 10 bytes, the most here");
        let no_room = problem_of(BodyFault::NoRoom { bytes: 7168 }, "", 8192);
        let facts = no_room.kind.facts();
        assert_eq!((facts.status, facts.code), (429, "too_many_pending"));
        assert_eq!(no_room.retry_after, Some(Duration::from_secs(1)));
        assert!(no_room.detail.contains("8192 bytes"), "{no_room:?}");
    }
}
