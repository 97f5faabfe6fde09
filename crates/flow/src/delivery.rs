//! Carries batches to the output and their fate back: sends to the dead letter (or drops, counted) what the output
//! refuses for good, and acknowledges the rest.

use std::sync::Arc;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use thalweg_record::{Ack, Batch, Message};
use tokio_util::sync::CancellationToken;

use crate::context::{DeadLetters, Letter, whose};
use crate::driven::{Driven, Refusal, Unopened, Write};
use crate::queue::Weight as _;
use crate::{BoxFuture, queue};

/// Letters written together.
const LETTERS_MAX: usize = 1000;

/// Batches are joined into one write up to about this size.
const JOINED_BYTES_MAX: usize = 4 << 20;

/// Everything one output needs to be driven.
#[derive(Clone)]
pub(crate) struct Delivery {
    pub driven: Driven,
    pub dead_letters: Option<DeadLetters>,
    /// Cancelled when waiting any longer is pointless: the shutdown time is over.
    pub stop: CancellationToken,
}

impl Delivery {
    /// Ends when the queue is closed, empty, and every write has ended; or at once when `stop` is cancelled, giving up
    /// what is left. `Err`: the output takes nothing any more, for this reason; what is left is given up too.
    pub async fn run(self, mut queue: queue::Receiver<Batch>) -> Result<(), String> {
        match self.driven.open(&self.stop).await {
            Ok(()) => {}
            Err(Unopened::GivenUp) => return Ok(()),
            Err(Unopened::Never(why)) => return Err(why),
        }
        let result = self.deliver(&mut queue).await;
        // Whoever waits for room learns now that there will be none.
        drop(queue);
        self.driven.close(&self.stop).await;
        result
    }

    async fn deliver(&self, queue: &mut queue::Receiver<Batch>) -> Result<(), String> {
        let output = &self.driven.output;
        let mut writes = FuturesUnordered::new();
        let mut more = true;
        while more || !writes.is_empty() {
            let free = writes.len() < output.max_in_flight();
            if (!free && !queue.is_empty()) || !more {
                output.hurry();
            }
            tokio::select! {
                () = self.stop.cancelled() => break,
                Some(written) = writes.next() => written?,
                batch = queue.receive(), if free && more => match batch {
                    Some(batch) => writes.push(self.start(joined(batch, queue, output.joins()))),
                    None => more = false,
                },
            }
        }
        Ok(())
    }

    /// As [`Delivery::run`], for failed messages: taking one ends its way with the reason it failed for. When the output
    /// takes no more, they are dropped with that reason.
    pub async fn run_letters(self, mut queue: queue::Receiver<Letter>) {
        let mut lost = None;
        match self.driven.open(&self.stop).await {
            Ok(()) => {}
            Err(Unopened::GivenUp) => return,
            Err(Unopened::Never(why)) => lost = Some(why),
        }
        if lost.is_none() {
            lost = self.deliver_letters(&mut queue).await.err();
            self.driven.close(&self.stop).await;
        }
        let Some(why) = lost else { return };
        tracing::error!(
            component = self.driven.component.title(),
            "the dead letter output takes nothing any more, failed messages are lost from here on: {why}"
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

    async fn deliver_letters(&self, queue: &mut queue::Receiver<Letter>) -> Result<(), String> {
        loop {
            let first = tokio::select! {
                () = self.stop.cancelled() => return Ok(()),
                first = queue.receive() => first,
            };
            let Some(first) = first else { return Ok(()) };
            let mut letters = vec![first];
            while letters.len() < LETTERS_MAX
                && let Some(letter) = queue.try_receive()
            {
                letters.push(letter);
            }
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
            written?;
        }
    }

    /// Calls the output now, which fixes the batch's place in the order; the future brings it to its end.
    fn start(&self, batch: Batch) -> BoxFuture<'static, Result<(), String>> {
        let messages = Arc::new(batch.messages);
        let write = self.driven.start(&messages);
        Box::pin(self.clone().finish(write, messages, batch.ack))
    }

    async fn finish(self, write: Write, messages: Arc<Vec<Message>>, mut ack: Ack) -> Result<(), String> {
        for Refusal { index, reason, error } in self.driven.finish(write, &messages).await? {
            let Some(message) = messages.get(index) else { continue };
            let component = &self.driven.component;
            component.warn_limited(reason.as_str(), 1, || {
                format!("message refused ({reason}): {error}{}", whose(message))
            });
            match &self.dead_letters {
                None => ack.dropped(reason, 1),
                Some(dead) => {
                    dead.send(dead.letter(ack.split(1), message.clone(), reason, &error, component))
                        .await;
                }
            }
        }
        ack.delivered();
        Ok(())
    }
}

/// The batch with those that wait behind it, up to `batches` of them: they share one write and one verdict.
fn joined(mut batch: Batch, queue: &mut queue::Receiver<Batch>, batches: usize) -> Batch {
    if batches < 2 {
        return batch;
    }
    let mut bytes = batch.bytes();
    for _ in 1..batches {
        if bytes >= JOINED_BYTES_MAX {
            break;
        }
        let Some(next) = queue.try_receive() else { break };
        bytes += next.bytes();
        batch.append(next);
    }
    batch
}
