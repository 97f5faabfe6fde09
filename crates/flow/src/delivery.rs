//! Carries batches to the output and their fate back: retries what failed for now, sends to the dead letter (or drops,
//! counted) what the output refuses for good, and acknowledges the rest.

use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use thalweg_record::{Ack, Batch, DropReason, Message};
use thalweg_telemetry::{IntCounter, Timing};

use crate::backoff::Pauses;
use crate::context::{DeadLetters, Letter};
use crate::output::{Output, OutputContext, Rejection, WriteError};
use crate::{BoxFuture, queue};

/// Letters written together.
const LETTERS_MAX: usize = 1000;

#[derive(Clone)]
pub(crate) struct DeliveryMetrics {
    pub sent: IntCounter,
    batch_sent: IntCounter,
    pub error: IntCounter,
    latency: Timing,
}

impl DeliveryMetrics {
    pub fn new(component: &crate::Component) -> DeliveryMetrics {
        DeliveryMetrics {
            sent: component.counter("output_sent", "Messages written and confirmed."),
            batch_sent: component.counter("output_batch_sent", "Batches written and confirmed."),
            error: component.counter("output_error", "Writes that failed or were refused, by message."),
            latency: component.timing(
                "output_latency_ns",
                "Time from the write of a batch to its confirmation.",
            ),
        }
    }
}

/// Everything one output needs to be driven.
#[derive(Clone)]
pub(crate) struct Delivery {
    pub output: Arc<dyn Output>,
    pub context: Arc<OutputContext>,
    pub metrics: DeliveryMetrics,
    pub dead_letters: Option<DeadLetters>,
}

impl Delivery {
    /// Ends when the queue is closed, empty, and every write has ended; or at once when `context.stop` is cancelled,
    /// giving up what is left.
    pub async fn run(self, mut queue: queue::Receiver<Batch>) {
        if self.open().await.is_err() {
            return;
        }
        let mut writes = FuturesUnordered::new();
        let mut more = true;
        while more || !writes.is_empty() {
            let free = writes.len() < self.output.max_in_flight();
            if (!free && !queue.is_empty()) || !more {
                self.output.hurry();
            }
            tokio::select! {
                () = self.context.stop.cancelled() => break,
                Some(()) = writes.next() => {}
                batch = queue.receive(), if free && more => match batch {
                    Some(batch) => writes.push(self.start(batch)),
                    None => more = false,
                },
            }
        }
        drop(writes);
        if let Err(error) = self.output.close().await {
            tracing::error!(component = self.context.component.title(), "{error}");
        }
    }

    /// As [`Delivery::run`], for failed messages: taking one ends its way with the reason it failed for.
    pub async fn run_letters(self, mut queue: queue::Receiver<Letter>) {
        if self.open().await.is_err() {
            return;
        }
        while let Some(first) = queue.receive().await {
            let mut letters = vec![first];
            while letters.len() < LETTERS_MAX
                && let Some(letter) = queue.try_receive()
            {
                letters.push(letter);
            }
            let messages = Arc::new(letters.iter().map(|letter| letter.message.clone()).collect::<Vec<_>>());
            let written = self.write_until_done(self.output.write(messages.clone()), messages, |_, _, error| {
                self.context.component.warn_limited("dead_letter", 1, || {
                    format!("the dead letter output refused a message, which is lost: {error}")
                });
            });
            tokio::select! {
                () = self.context.stop.cancelled() => break,
                () = written => {}
            }
            for mut letter in letters {
                letter.ack.dropped(letter.reason, 1);
            }
        }
        if let Err(error) = self.output.close().await {
            tracing::error!(component = self.context.component.title(), "{error}");
        }
    }

    async fn open(&self) -> Result<(), ()> {
        tokio::select! {
            () = self.context.stop.cancelled() => Err(()),
            opened = self.output.open(&self.context) => opened.map_err(|error| {
                self.context.connection.failed(&error);
                tracing::error!(component = self.context.component.title(), "{error}");
            }),
        }
    }

    /// Calls the output now, which fixes the batch's place in the order; the future brings it to its end.
    fn start(&self, batch: Batch) -> BoxFuture<'static, ()> {
        let messages = Arc::new(batch.messages);
        let write = self.output.write(messages.clone());
        Box::pin(self.clone().finish(write, messages, batch.ack))
    }

    async fn finish(self, write: Write, messages: Arc<Vec<Message>>, mut ack: Ack) {
        let start = Instant::now();
        let mut refused = Vec::new();
        self.write_until_done(write, messages, |message, reason, error| {
            refused.push((message.clone(), reason, error))
        })
        .await;
        for (message, reason, error) in refused {
            let component = &self.context.component;
            component.warn_limited(reason.as_str(), 1, || format!("message refused ({reason}): {error}"));
            match &self.dead_letters {
                None => ack.dropped(reason, 1),
                Some(dead) => {
                    dead.send(dead.letter(ack.split(1), message, reason, &error, component))
                        .await
                }
            }
        }
        self.metrics.sent.inc_by(ack.count() as u64);
        self.metrics.batch_sent.inc();
        self.metrics.latency.observe(start.elapsed());
        ack.delivered();
    }

    /// Repeats a write until every message was taken or refused for good, with pauses that double.
    async fn write_until_done(
        &self,
        mut write: Write,
        mut messages: Arc<Vec<Message>>,
        mut refuse: impl FnMut(&Message, DropReason, String),
    ) {
        let mut pauses = Pauses::new(self.output.backoff());
        loop {
            let (again, why) = match write.await {
                Ok(()) => (Vec::new(), String::new()),
                Err(WriteError::Temporary(error)) => (messages.to_vec(), error),
                Err(WriteError::Some(rejections)) => self.sort_out(&messages, rejections, &mut refuse),
            };
            if again.is_empty() {
                if !self.context.connection.is_up() {
                    self.context.connection.up();
                }
                return;
            }
            self.metrics.error.inc_by(again.len() as u64);
            self.context.connection.lost(&why);
            self.context
                .component
                .warn_limited("write_failed", 1, || format!("write failed, trying again: {why}"));
            tokio::time::sleep(pauses.after(again.len() < messages.len())).await;
            messages = Arc::new(again);
            write = self.output.write(messages.clone());
        }
    }

    /// Refuses what is permanent; returns what to try again, in order, and why it failed.
    fn sort_out(
        &self,
        messages: &[Message],
        mut rejections: Vec<Rejection>,
        refuse: &mut impl FnMut(&Message, DropReason, String),
    ) -> (Vec<Message>, String) {
        rejections.sort_by_key(|rejection| rejection.index);
        rejections.dedup_by_key(|rejection| rejection.index);
        let mut again = Vec::new();
        let mut why = String::new();
        for Rejection {
            index,
            permanent,
            error,
        } in rejections
        {
            let Some(message) = messages.get(index) else { continue };
            match permanent {
                Some(reason) => {
                    self.metrics.error.inc();
                    refuse(message, reason, error);
                }
                None => {
                    again.push(message.clone());
                    why = error;
                }
            }
        }
        (again, why)
    }
}

type Write = BoxFuture<'static, Result<(), WriteError>>;
