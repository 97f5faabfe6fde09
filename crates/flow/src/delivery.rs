//! Delivers batches to the output and their outcome back: sends permanently rejected messages to the dead letter (or
//! drops and counts them), and acknowledges the rest.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use thalweg_kit::clock;
use thalweg_record::{Ack, Batch, Message};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::batching::{BatchMetrics, BatchTrigger, Batching};
use crate::component::Component;
use crate::context::{DeadLetter, DeadLetterSender, whose};
use crate::output_driver::{OpenFailure, OutputDriver, PermanentRejection, WriteFuture};
use crate::queue::Weight as _;
use crate::{BoxFuture, queue};

/// Maximum letters in one write.
const LETTERS_MAX: usize = 1000;

/// Flush period for letters if the output batches without a period: nobody knows whether another message will fail, and
/// the sources of these wait.
const LETTERS_PERIOD: Duration = Duration::from_secs(1);

/// Approximate maximum size of batches joined into one write.
const JOINED_BYTES_MAX: usize = 4 << 20;

/// Everything needed to drive one output.
#[derive(Clone)]
pub(crate) struct Delivery {
    pub driven: OutputDriver,
    pub dead_letters: Option<DeadLetterSender>,
    /// How messages are collected, beside what the output asks for.
    pub policy: Option<Batching>,
    /// Whether the output is a buffer, from which the messages continue.
    pub buffers: bool,
    /// Notified when someone waits for collected messages to be written.
    pub hurry: Arc<Notify>,
    /// Cancelled when the shutdown time is over and waiting is pointless.
    pub stop: CancellationToken,
}

impl Delivery {
    /// Ends when the queue is closed and empty and every write has ended, or immediately when `stop` is cancelled,
    /// giving up the rest. `Err` is the reason why the output accepts nothing any more; the rest is given up too.
    pub async fn run(self, mut queue: queue::QueueReceiver<Batch>) -> Result<(), String> {
        match self.driven.open(&self.stop).await {
            Ok(()) => {}
            Err(OpenFailure::GivenUp) => return Ok(()),
            Err(OpenFailure::Never(why)) => return Err(why),
        }
        let result = self.deliver(&mut queue).await;
        // Senders that wait for room learn now that there will be none.
        drop(queue);
        self.driven.close(&self.stop).await;
        result
    }

    async fn deliver(&self, queue: &mut queue::QueueReceiver<Batch>) -> Result<(), String> {
        let output = &self.driven.output;
        let mut writes = FuturesUnordered::new();
        let policy = Batching::both(output.batching(), self.policy);
        let mut held = BatchCollector::new(policy, output.joins(), &self.driven.component);
        let mut more = true;
        while more || !writes.is_empty() {
            let free = writes.len() < output.max_in_flight();
            let waiting = held.batch.is_some() || !queue.is_empty();
            if (!free && waiting) || !more {
                output.hurry();
            }
            let takes = more && held.takes(free);
            tokio::select! {
                () = self.stop.cancelled() => break,
                Some(written) = writes.next() => written?,
                () = held.due() => held.flush = Some(BatchTrigger::Period),
                () = self.hurry.notified(), if held.batch.is_some() => held.flush = Some(BatchTrigger::Flush),
                batch = queue.receive(), if takes => match batch {
                    Some(batch) => held.add(batch, || queue.try_receive()),
                    None => more = false,
                },
            }
            if writes.len() < output.max_in_flight()
                && let Some(batch) = held.ready(!more)
            {
                writes.push(self.start(batch));
            }
        }
        Ok(())
    }

    /// As [`Delivery::run`], for failed messages: a successful write ends each with the reason of its failure. When the
    /// output accepts no more, they are dropped with that reason.
    pub async fn run_letters(self, mut queue: queue::QueueReceiver<DeadLetter>) {
        let mut lost = None;
        match self.driven.open(&self.stop).await {
            Ok(()) => {}
            Err(OpenFailure::GivenUp) => return,
            Err(OpenFailure::Never(why)) => lost = Some(why),
        }
        if lost.is_none() {
            lost = self.deliver_letters(&mut queue).await.err();
            self.driven.close(&self.stop).await;
        }
        let Some(why) = lost else { return };
        tracing::error!(
            component = self.driven.component.title(),
            "the dead letter output accepts no more messages; failed messages are lost from now on: {why}"
        );
        let lose = async {
            while let Some(mut letter) = queue.receive().await {
                letter.ack.dropped(letter.reason, 1);
            }
        };
        tokio::select! {
            () = self.stop.cancelled() => {}
            () = lose => {}
        }
    }

    async fn deliver_letters(&self, queue: &mut queue::QueueReceiver<DeadLetter>) -> Result<(), String> {
        let policy = self.driven.output.batching().map(|policy| Batching {
            period: policy.period.or(Some(LETTERS_PERIOD)),
            ..policy
        });
        let mut held = BatchCollector::new(policy, LETTERS_MAX, &self.driven.component);
        let mut more = true;
        while more {
            tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                () = held.due() => held.flush = Some(BatchTrigger::Period),
                letter = queue.receive(), if held.takes(true) => match letter {
                    Some(letter) => held.add(vec![letter], || queue.try_receive().map(|next| vec![next])),
                    None => more = false,
                },
            }
            if let Some(letters) = held.ready(!more) {
                self.write_letters(letters).await?;
            }
        }
        Ok(())
    }

    async fn write_letters(&self, letters: Vec<DeadLetter>) -> Result<(), String> {
        let messages = Arc::new(letters.iter().map(|letter| letter.message.clone()).collect::<Vec<_>>());
        let written = tokio::select! {
            () = self.stop.cancelled() => return Ok(()),
            written = self.driven.finish(self.driven.start(&messages), &messages) => written,
        };
        for refusal in written.as_deref().unwrap_or_default() {
            self.driven.component.warn_limited("dead_letter", 1, || {
                format!(
                    "the dead letter output refused a message, which is lost: {}",
                    refusal.error
                )
            });
        }
        for mut letter in letters {
            letter.ack.dropped(letter.reason, 1);
        }
        written.map(drop)
    }

    /// Calls the output now, which fixes the batch's place in the order; the returned future completes the write.
    fn start(&self, batch: Batch) -> BoxFuture<'static, Result<(), String>> {
        let messages = Arc::new(batch.messages);
        let write = self.driven.start(&messages);
        Box::pin(self.clone().finish(write, messages, batch.ack))
    }

    async fn finish(self, write: WriteFuture, messages: Arc<Vec<Message>>, mut ack: Ack) -> Result<(), String> {
        for PermanentRejection { index, reason, error } in self.driven.finish(write, &messages).await? {
            let Some(message) = messages.get(index) else { continue };
            let component = &self.driven.component;
            component.warn_limited(reason.as_str(), 1, || {
                format!("message refused ({reason}): {error}{}", whose(message))
            });
            match &self.dead_letters {
                None => {
                    ack.refused(message, &error);
                    ack.dropped(reason, 1);
                }
                Some(dead) => {
                    dead.send(dead.letter(ack.split(1), message.clone(), reason, &error, component))
                        .await;
                }
            }
        }
        match self.buffers {
            true => ack.kept(),
            false => ack.delivered(),
        }
        Ok(())
    }
}

/// A unit that is collected for one write.
trait Batchable: Sized {
    fn count(&self) -> usize;
    fn size(&self) -> usize;
    fn join(&mut self, next: Self);
}

impl Batchable for Batch {
    fn count(&self) -> usize {
        self.len()
    }

    fn size(&self) -> usize {
        self.bytes()
    }

    fn join(&mut self, next: Batch) {
        self.append(next);
    }
}

impl Batchable for Vec<DeadLetter> {
    fn count(&self) -> usize {
        self.len()
    }

    fn size(&self) -> usize {
        self.iter().map(|letter| letter.bytes()).sum()
    }

    fn join(&mut self, next: Vec<DeadLetter>) {
        self.extend(next);
    }
}

/// Collects the next write.
struct BatchCollector<C> {
    policy: Option<Batching>,
    /// Maximum units per write without a policy.
    joins: usize,
    batch: Option<C>,
    bytes: usize,
    /// The deadline of the batch.
    until: Option<Instant>,
    /// Why the batch is to be written as soon as the output accepts it.
    flush: Option<BatchTrigger>,
    /// Metrics of collected batches; `None` without a policy.
    batches: Option<BatchMetrics>,
}

impl<C: Batchable> BatchCollector<C> {
    fn new(policy: Option<Batching>, joins: usize, component: &Component) -> BatchCollector<C> {
        BatchCollector {
            policy,
            joins,
            batch: None,
            bytes: 0,
            until: None,
            flush: None,
            batches: policy.map(|_| BatchMetrics::new(component)),
        }
    }

    /// Whether more can be added; without a policy, only while the output is free and nothing is held.
    fn takes(&self, free: bool) -> bool {
        match (&self.policy, &self.batch) {
            (None, held) => free && held.is_none(),
            (Some(policy), Some(batch)) => self.flush.is_none() && policy.enough(batch.count(), self.bytes).is_none(),
            (Some(_), None) => true,
        }
    }

    /// Completes when the period is over, if there is one.
    async fn due(&self) {
        match self.until {
            Some(until) if self.flush.is_none() => tokio::time::sleep_until(until).await,
            _ => std::future::pending().await,
        }
    }

    /// Adds a unit, and without a policy up to `joins` units that wait, which share one write and its result.
    fn add(&mut self, batch: C, mut waiting: impl FnMut() -> Option<C>) {
        self.put(batch);
        if self.policy.is_some() {
            return;
        }
        for _ in 1..self.joins {
            if self.bytes >= JOINED_BYTES_MAX {
                break;
            }
            let Some(next) = waiting() else { break };
            self.put(next);
        }
    }

    fn put(&mut self, batch: C) {
        // size() visits every message, so it is called only where it matters.
        if self.policy.is_some() || self.joins > 1 {
            self.bytes += batch.size();
        }
        match &mut self.batch {
            Some(held) => held.join(batch),
            None => {
                let period = self.policy.and_then(|policy| policy.period);
                self.until = period.map(|period| clock::tokio_now() + period);
                self.batch = Some(batch);
            }
        }
    }

    /// Returns what is to be written now; with `last`, no further message can complete the batch.
    fn ready(&mut self, last: bool) -> Option<C> {
        let batch = self.batch.as_ref()?;
        if let Some(policy) = self.policy {
            let enough = policy.enough(batch.count(), self.bytes).or(self.flush);
            let created = enough.or(last.then_some(BatchTrigger::Flush))?;
            self.batches.as_ref().inspect(|batches| batches.created(created));
        }
        (self.bytes, self.until, self.flush) = (0, None, None);
        self.batch.take()
    }
}
