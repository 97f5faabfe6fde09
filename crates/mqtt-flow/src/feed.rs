//! The way of received messages into the flow: a queue with a limit, and a task that passes on what is in it, many at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use thalweg_flow::{InputContext, SinkClosed};
use thalweg_record::{AckResult, Message};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::incoming::DeliveryNumber;

/// Above either of these the broker is not read.
const MESSAGES_MAX: usize = 10_000;
const BYTES_MAX: usize = 16 << 20;
/// Messages that enter the flow as one batch.
const BATCH: usize = 1000;

/// A message on its way into the flow.
pub struct FedMessage {
    /// `None`: nothing waits for a confirmation.
    pub number: Option<DeliveryNumber>,
    pub message: Message,
    /// Whether the broker sends it again, also to the next run, until it is acknowledged.
    pub is_redelivered: bool,
    pub bytes: usize,
}

/// What became of messages that entered together.
pub struct FedOutcome {
    pub numbers: Vec<DeliveryNumber>,
    pub outcome: AckResult,
    /// Those that the flow gave up.
    pub given_up: Vec<FedMessage>,
}

/// The filled part of the queue.
#[derive(Default)]
pub struct FeedLevel {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    lowered: Notify,
}

impl FeedLevel {
    pub fn has_room(&self) -> bool {
        self.messages.load(Ordering::SeqCst) < MESSAGES_MAX && self.bytes.load(Ordering::SeqCst) < BYTES_MAX
    }

    /// Waits until there is room.
    pub async fn room(&self) {
        loop {
            let lowered = self.lowered.notified();
            tokio::pin!(lowered);
            lowered.as_mut().enable();
            if self.has_room() {
                return;
            }
            lowered.await;
        }
    }
}

/// The end of the queue that is filled. The task ends with it.
pub struct Feed {
    queue: Option<mpsc::UnboundedSender<FedMessage>>,
    pub level: Arc<FeedLevel>,
    pub task: FeedTask,
    pub outcomes: mpsc::UnboundedReceiver<FedOutcome>,
}

impl Feed {
    /// `replays`: what the flow gives up is kept until then, see [`FedOutcome::given_up`].
    pub fn start(context: Arc<InputContext>, replays: bool) -> Feed {
        // Neither queue can grow without a limit: the level limits the first, and what has entered the flow the second.
        let (queue, fed) = mpsc::unbounded_channel();
        let (tell, outcomes) = mpsc::unbounded_channel();
        let level = Arc::new(FeedLevel::default());
        let feeder = Feeder {
            context,
            replays,
            level: level.clone(),
            tell,
        };
        let mut task = JoinSet::new();
        task.spawn(feeder.run(fed));
        Feed {
            queue: Some(queue),
            level,
            task: FeedTask(task),
            outcomes,
        }
    }

    pub fn push(&self, message: FedMessage) {
        self.level.messages.fetch_add(1, Ordering::SeqCst);
        self.level.bytes.fetch_add(message.bytes, Ordering::SeqCst);
        if let Some(queue) = &self.queue {
            // The task ends early only when the flow accepts nothing any more.
            let _ = queue.send(message);
        }
    }

    /// Nothing is added any more.
    pub fn close(&mut self) {
        self.queue = None;
    }
}

/// The task that passes messages on. It ends when this is dropped.
pub struct FeedTask(JoinSet<()>);

impl FeedTask {
    /// Waits, after [`Feed::close`], until all messages have entered the flow.
    pub async fn drained(&mut self) {
        while self.0.join_next().await.is_some() {}
    }
}

struct Feeder {
    context: Arc<InputContext>,
    replays: bool,
    level: Arc<FeedLevel>,
    tell: mpsc::UnboundedSender<FedOutcome>,
}

impl Feeder {
    async fn run(self, mut fed: mpsc::UnboundedReceiver<FedMessage>) {
        let mut held = None;
        loop {
            let first = match held.take() {
                Some(first) => first,
                None => match fed.recv().await {
                    Some(first) => first,
                    None => return,
                },
            };
            let mut batch = vec![first];
            while batch.len() < BATCH {
                match fed.try_recv() {
                    Ok(next) if next.is_redelivered == batch.first().is_some_and(|first| first.is_redelivered) => {
                        batch.push(next);
                    }
                    Ok(next) => {
                        held = Some(next);
                        break;
                    }
                    Err(_) => break,
                }
            }
            let (count, bytes) = (batch.len(), batch.iter().map(|fed| fed.bytes).sum());
            let sent = self.send(batch).await;
            self.level.messages.fetch_sub(count, Ordering::SeqCst);
            self.level.bytes.fetch_sub(bytes, Ordering::SeqCst);
            self.level.lowered.notify_waiters();
            if sent.is_err() {
                return;
            }
        }
    }

    async fn send(&self, batch: Vec<FedMessage>) -> Result<(), SinkClosed> {
        let sink = &self.context.sink;
        let is_redelivered = batch.first().is_some_and(|first| first.is_redelivered);
        let numbers: Vec<DeliveryNumber> = batch.iter().filter_map(|fed| fed.number).collect();
        let count = batch.len();
        let mut parts = sink.parts(count);
        let mut kept = Vec::with_capacity(if self.replays { count } else { 0 });
        for fed in batch {
            match self.replays {
                true => {
                    parts.push(fed.message.clone());
                    kept.push(fed);
                }
                false => parts.push(fed.message),
            }
        }
        let tell = self.tell.clone();
        let settle = move |outcome| {
            let given_up = match outcome {
                AckResult::Acked => Vec::new(),
                AckResult::Nacked => kept,
            };
            if !numbers.is_empty() || !given_up.is_empty() {
                let _ = tell.send(FedOutcome {
                    numbers,
                    outcome,
                    given_up,
                });
            }
        };
        let ack = match is_redelivered {
            true => sink.enter_redeliverable(count, settle),
            false => sink.enter(count, settle),
        };
        sink.send_parts(parts, ack).await
    }
}
