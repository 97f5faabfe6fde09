//! Pending requests by request id. Each is completed exactly once: with its response, or with the reason why the
//! channel closed.
//!
//! Unused data from the peer counts against one budget of the channel: parts of responses, responses in a queue, and
//! responses being decoded. Beyond it the channel closes, because a peer that only sends what was requested never
//! reaches it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use thalweg_telemetry::IntGauge;
use tokio::sync::{mpsc, oneshot};

use super::body::AnswerBody;
use super::limits;
use super::service::CallError;

/// The destination of a response.
pub(super) enum AnswerSink {
    One(oneshot::Sender<Result<AnswerBody, CallError>>),
    Queue(QueueReply),
}

/// Replies exactly once, also when it is dropped, because the queue's owner counts what is outstanding.
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

    fn send(&mut self, result: Result<AnswerBody, CallError>) {
        self.sent = true;
        self.queue.outstanding.dec();
        // The caller may be gone.
        let _gone = self.queue.answers.send(QueuedAnswer { tag: self.tag, result });
    }
}

impl Drop for QueueReply {
    fn drop(&mut self) {
        if !self.sent {
            self.send(Err(CallError::Closed("the connection was closed".into())));
        }
    }
}

/// For several outstanding requests whose responses must be processed in order. The queue itself is unbounded: the
/// sender of the requests bounds their number, and the channel's budget bounds their bytes.
#[derive(Clone)]
pub(crate) struct AnswerQueue {
    pub answers: mpsc::UnboundedSender<QueuedAnswer>,
    /// Number of requests at the server.
    pub outstanding: IntGauge,
}

/// One response with the tag of its request.
pub(crate) struct QueuedAnswer {
    pub tag: u64,
    pub result: Result<AnswerBody, CallError>,
}

impl AnswerSink {
    pub fn send(self, result: Result<AnswerBody, CallError>) {
        // The caller may be gone.
        match self {
            AnswerSink::One(reply) => drop(reply.send(result)),
            AnswerSink::Queue(mut reply) => reply.send(result),
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            AnswerSink::One(reply) => reply.is_closed(),
            AnswerSink::Queue(reply) => reply.queue.answers.is_closed(),
        }
    }
}

/// The bytes of responses that a channel may hold.
#[derive(Debug)]
struct Budget {
    held: AtomicUsize,
    max: usize,
}

/// A part of the budget, released on drop.
#[derive(Debug)]
pub(super) struct BudgetReservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl BudgetReservation {
    fn new(budget: &Arc<Budget>) -> BudgetReservation {
        BudgetReservation {
            budget: budget.clone(),
            bytes: 0,
        }
    }

    fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.budget.held.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

pub(super) struct PendingRequests {
    state: Mutex<PendingState>,
    budget: Arc<Budget>,
}

#[derive(Default)]
struct PendingState {
    waiting: HashMap<u32, PendingRequest>,
    closed: Option<Arc<str>>,
}

struct PendingRequest {
    reply: AnswerSink,
    chunks: Vec<Bytes>,
    bytes: usize,
    share: BudgetReservation,
}

impl Default for PendingRequests {
    fn default() -> PendingRequests {
        PendingRequests::with_budget(limits::ANSWERS_BYTES_MAX)
    }
}

impl PendingRequests {
    fn with_budget(max: usize) -> PendingRequests {
        let held = AtomicUsize::new(0);
        PendingRequests {
            state: Mutex::default(),
            budget: Arc::new(Budget { held, max }),
        }
    }

    /// Must be called before the request is written, because its response may arrive first.
    pub fn add(&self, request_id: u32, reply: AnswerSink) {
        let mut state = self.state.lock();
        if let Some(why) = &state.closed {
            reply.send(Err(CallError::Closed(why.clone())));
            return;
        }
        if state.waiting.len() >= limits::REQUESTS_PENDING_MAX {
            // Callers that timed out leave their entries until a response arrives.
            state.waiting.retain(|_, waiting| !waiting.reply.is_closed());
        }
        let waiting = PendingRequest {
            reply,
            chunks: Vec::new(),
            bytes: 0,
            share: BudgetReservation::new(&self.budget),
        };
        state.waiting.insert(request_id, waiting);
    }

    /// Adds a part of a response. Chunks for unknown requests (responses after their timeout) are ignored. The error is
    /// the reason why the channel must close.
    pub fn chunk(&self, request_id: u32, chunk: Bytes, is_final: bool) -> Result<(), String> {
        let mut state = self.state.lock();
        let Some(waiting) = state.waiting.get_mut(&request_id) else {
            return Ok(());
        };
        if waiting.reply.is_closed() {
            // The caller has given up, so the response is dropped.
            state.waiting.remove(&request_id);
            return Ok(());
        }
        waiting.bytes += chunk.len();
        waiting.share.grow(chunk.len() + CHUNK_OVERHEAD_BYTES);
        waiting.chunks.push(match is_final {
            true => chunk,
            // Without the copy it would keep the whole receive buffer alive, of which only its own bytes are counted.
            false => Bytes::copy_from_slice(&chunk),
        });
        let too_large = waiting.bytes > limits::MESSAGE_BYTES_MAX || waiting.chunks.len() > limits::CHUNKS_MAX;
        let whole = if is_final || too_large {
            state.waiting.remove(&request_id)
        } else {
            None
        };
        drop(state);
        if let Some(waiting) = whole {
            waiting.reply.send(if too_large {
                Err(CallError::TooLarge)
            } else {
                Ok(AnswerBody::with_share(
                    joined(waiting.chunks, waiting.bytes),
                    waiting.share,
                ))
            });
        }
        self.check_budget()
    }

    fn check_budget(&self) -> Result<(), String> {
        let is_kept = || self.budget.held.load(Ordering::Relaxed) <= self.budget.max;
        if is_kept() {
            return Ok(());
        }
        self.state
            .lock()
            .waiting
            .retain(|_, waiting| !waiting.reply.is_closed());
        if is_kept() {
            return Ok(());
        }
        Err(format!(
            "the server's answers that are still to be processed hold more than {} MiB; lower queueSize, or collect large arrays in an input of their own",
            self.budget.max >> 20
        ))
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

/// Overhead of a chunk.
const CHUNK_OVERHEAD_BYTES: usize = 64;

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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn ask(pending: &PendingRequests, request_id: u32) -> oneshot::Receiver<Result<AnswerBody, CallError>> {
        let (sender, receiver) = oneshot::channel();
        pending.add(request_id, AnswerSink::One(sender));
        receiver
    }

    fn part() -> Bytes {
        Bytes::from(vec![0; MIB])
    }

    #[test]
    fn unfinished_answers_together_have_a_limit() {
        let pending = PendingRequests::with_budget(4 * MIB);
        let _answers: Vec<_> = (0..5).map(|id| ask(&pending, id)).collect();
        for id in 0..3 {
            pending.chunk(id, part(), false).unwrap();
        }
        let why = (3..5).find_map(|id| pending.chunk(id, part(), false).err()).unwrap();
        assert!(why.contains("more than 4 MiB; lower queueSize"), "{why}");
    }

    #[test]
    fn answers_in_a_queue_count_until_they_are_used() {
        let pending = PendingRequests::with_budget(4 * MIB);
        let (sender, mut answers) = mpsc::unbounded_channel();
        let queue = AnswerQueue {
            answers: sender,
            outstanding: IntGauge::new("outstanding", "Requests.").unwrap(),
        };
        let ask = |id: u32| pending.add(id, AnswerSink::Queue(QueueReply::new(queue.clone(), u64::from(id))));
        for id in 0..100 {
            ask(id);
            pending.chunk(id, part(), true).unwrap();
            let body = answers.try_recv().unwrap().result.unwrap();
            // It counts while it is being decoded.
            assert!(pending.budget.held.load(Ordering::Relaxed) > MIB);
            drop(body);
            assert_eq!(pending.budget.held.load(Ordering::Relaxed), 0);
        }
        let refused = (100..200).find(|id| {
            ask(*id);
            pending.chunk(*id, part(), true).is_err()
        });
        assert_eq!(refused, Some(103));
    }

    #[test]
    fn what_comes_for_a_caller_that_gave_up_is_not_kept() {
        let pending = PendingRequests::with_budget(4 * MIB);
        for id in 0..100 {
            let answer = ask(&pending, id);
            pending.chunk(id, part(), false).unwrap();
            drop(answer);
        }
        let answer = ask(&pending, 200);
        pending.chunk(200, part(), false).unwrap();
        drop(answer);
        pending.chunk(200, part(), false).unwrap();
        assert!(!pending.state.lock().waiting.contains_key(&200));
    }

    #[test]
    fn a_part_of_an_answer_does_not_keep_the_buffer_that_it_was_received_in() {
        let pending = PendingRequests::with_budget(4 * MIB);
        let _answer = ask(&pending, 0);
        for bytes in [1, 4096, 8192, 65_000] {
            let received = part();
            pending.chunk(0, received.slice(..bytes), false).unwrap();
            assert!(received.is_unique(), "{bytes}");
        }
    }

    #[test]
    fn pieces_without_content_count_too() {
        let pending = PendingRequests::with_budget(MIB);
        let _answers: Vec<_> = (0..4).map(|id| ask(&pending, id)).collect();
        let pieces = (0..100_000).find(|piece| pending.chunk(piece % 4, Bytes::new(), false).is_err());
        assert!(pieces.is_some());
    }
}
