//! Requests that wait for their answers, by request id. Each is answered exactly once: by its answer, or by the reason
//! for which the channel closed.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use thalweg_telemetry::IntGauge;
use tokio::sync::{mpsc, oneshot};

use super::body::Body;
use super::limits;
use super::service::CallError;

/// Where an answer goes.
pub(super) enum Reply {
    One(oneshot::Sender<Result<Body, CallError>>),
    Queue(QueueReply),
}

/// Answers exactly once, also when it is dropped: the queue's owner counts what is outstanding.
pub(super) struct QueueReply {
    queue: AnswerQueue,
    tag: u64,
    sent: bool,
}

impl QueueReply {
    pub fn new(queue: AnswerQueue, tag: u64) -> QueueReply {
        queue.outstanding.inc();
        QueueReply {
            queue,
            tag,
            sent: false,
        }
    }

    fn send(&mut self, result: Result<Body, CallError>) {
        self.sent = true;
        self.queue.outstanding.dec();
        // Whoever asked may have gone.
        let _gone = self.queue.answers.send(Answer { tag: self.tag, result });
    }
}

impl Drop for QueueReply {
    fn drop(&mut self) {
        if !self.sent {
            self.send(Err(CallError::Closed("the connection was closed".into())));
        }
    }
}

/// For requests of which several are outstanding and whose answers must be seen in order. Unbounded in itself: whoever
/// sends the requests bounds their number.
#[derive(Clone)]
pub(crate) struct AnswerQueue {
    pub answers: mpsc::UnboundedSender<Answer>,
    /// How many requests the server holds.
    pub outstanding: IntGauge,
}

/// One answer with the tag of its request.
pub(crate) struct Answer {
    pub tag: u64,
    pub result: Result<Body, CallError>,
}

impl Reply {
    pub fn send(self, result: Result<Body, CallError>) {
        // Whoever asked may have gone.
        match self {
            Reply::One(reply) => drop(reply.send(result)),
            Reply::Queue(mut reply) => reply.send(result),
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Reply::One(reply) => reply.is_closed(),
            Reply::Queue(reply) => reply.queue.answers.is_closed(),
        }
    }
}

#[derive(Default)]
pub(super) struct Pending {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: HashMap<u32, Waiting>,
    closed: Option<Arc<str>>,
}

struct Waiting {
    reply: Reply,
    chunks: Vec<Bytes>,
    bytes: usize,
}

impl Pending {
    /// Must be called before the request is written, since its answer may overtake.
    pub fn add(&self, request_id: u32, reply: Reply) {
        let mut state = self.state.lock();
        if let Some(why) = &state.closed {
            reply.send(Err(CallError::Closed(why.clone())));
            return;
        }
        if state.waiting.len() >= limits::REQUESTS_PENDING_MAX {
            // Callers that gave up (timeout) leave their entries until an answer comes.
            state.waiting.retain(|_, waiting| !waiting.reply.is_closed());
        }
        let waiting = Waiting {
            reply,
            chunks: Vec::new(),
            bytes: 0,
        };
        state.waiting.insert(request_id, waiting);
    }

    /// A part of an answer. Chunks for unknown requests (answers after their timeout) are ignored.
    pub fn chunk(&self, request_id: u32, chunk: Bytes, is_final: bool) {
        let mut state = self.state.lock();
        let Some(waiting) = state.waiting.get_mut(&request_id) else {
            return;
        };
        waiting.bytes += chunk.len();
        waiting.chunks.push(chunk);
        let too_large = waiting.bytes > limits::MESSAGE_BYTES_MAX || waiting.chunks.len() > limits::CHUNKS_MAX;
        if !is_final && !too_large {
            return;
        }
        let Some(waiting) = state.waiting.remove(&request_id) else {
            return;
        };
        drop(state);
        let result = if too_large {
            Err(CallError::TooLarge)
        } else {
            Ok(Body::new(joined(waiting.chunks, waiting.bytes)))
        };
        waiting.reply.send(result);
    }

    pub fn fail(&self, request_id: u32, error: CallError) {
        let waiting = self.state.lock().waiting.remove(&request_id);
        if let Some(waiting) = waiting {
            waiting.reply.send(Err(error));
        }
    }

    /// The first reason counts.
    pub fn close(&self, why: &str) {
        let mut state = self.state.lock();
        let why = state.closed.get_or_insert_with(|| why.into()).clone();
        for (_, waiting) in state.waiting.drain() {
            waiting.reply.send(Err(CallError::Closed(why.clone())));
        }
    }

    pub fn closed_error(&self) -> CallError {
        let why = self.state.lock().closed.clone();
        CallError::Closed(why.unwrap_or_else(|| "the connection was closed".into()))
    }
}

/// One chunk is passed on as it is; several are copied together once.
fn joined(mut chunks: Vec<Bytes>, bytes: usize) -> Bytes {
    if let [only] = chunks.as_mut_slice() {
        return std::mem::take(only);
    }
    let mut whole = BytesMut::with_capacity(bytes);
    for chunk in chunks {
        whole.extend_from_slice(&chunk);
    }
    whole.freeze()
}
