//! What a stage uses to say that it failed on a message: the dead letter if there is one, else a counted, logged drop.

use std::sync::Arc;

use thalweg_record::{Ack, Batch, DropReason, Message};
use thalweg_telemetry::IntCounter;
use tokio::runtime::Handle;

use crate::component::Component;
use crate::queue;

/// Given to each processor instance; the instances of one processor share its counters.
#[derive(Clone)]
pub struct StageContext {
    pub component: Component,
    /// `processor_error`: messages that this stage failed on.
    pub errors: IntCounter,
    pub(crate) dead_letters: Option<DeadLetters>,
    pub(crate) runtime: Handle,
}

impl StageContext {
    /// One message leaves the flow because this stage failed on it. `ack` must answer for it; one message is taken from
    /// it. Blocks while the dead letter is full: losing the message is not an alternative.
    pub fn fail(&self, ack: &mut Ack, message: Message, reason: DropReason, error: &str) {
        self.errors.inc();
        self.component
            .warn_limited(reason.as_str(), 1, || format!("message removed ({reason}): {error}"));
        match &self.dead_letters {
            None => ack.dropped(reason, 1),
            Some(dead_letters) => {
                let letter = dead_letters.letter(ack.split(1), message, reason, error, &self.component);
                let _closed = self.runtime.block_on(dead_letters.queue.send(letter));
            }
        }
    }

    /// A message is passed on although this stage failed on it (it was flagged).
    pub fn flagged(&self, n: u64, error: &str) {
        self.errors.inc_by(n);
        self.component
            .warn_limited("flagged", n, || format!("message flagged: {error}"));
    }
}

/// Failed messages on their way to the `dead_letter` output. Clones feed the same output.
#[derive(Clone)]
pub struct DeadLetters {
    pub(crate) queue: queue::Sender<Letter>,
}

/// One failed message. Its source hears of it only after the dead letter took it.
pub(crate) struct Letter {
    pub message: Message,
    pub reason: DropReason,
    pub ack: Ack,
}

impl queue::Weight for Letter {
    fn messages(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        self.message.memory_bytes()
    }
}

impl queue::Weight for Batch {
    fn messages(&self) -> usize {
        self.len()
    }

    fn bytes(&self) -> usize {
        self.memory_bytes()
    }
}

impl DeadLetters {
    pub(crate) fn letter(
        &self,
        ack: Ack,
        mut message: Message,
        reason: DropReason,
        error: &str,
        stage: &Component,
    ) -> Letter {
        message.failure = None;
        message.meta.set("thalweg_error", error);
        message.meta.set("thalweg_reason", reason.as_str());
        message.meta.set("thalweg_stage", stage.title());
        Letter { message, reason, ack }
    }

    pub(crate) async fn send(&self, letter: Letter) {
        let _closed = self.queue.send(letter).await;
    }
}

impl std::fmt::Debug for StageContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StageContext({})", self.component.title())
    }
}

/// For tests of processors in other crates: a context that drops and counts.
impl StageContext {
    pub fn for_tests(name: &str) -> StageContext {
        static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
        let runtime = RUNTIME.get_or_init(|| {
            tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .build()
                .expect("a runtime starts in a test")
        });
        let id = thalweg_telemetry::ComponentId {
            flow: None,
            path: format!("root.pipeline.processors.{name}"),
            label: String::new(),
        };
        let component = Component::new(name, id, Arc::default());
        let errors = component.counter("processor_error", "Messages that the stage failed on.");
        StageContext {
            component,
            errors,
            dead_letters: None,
            runtime: runtime.handle().clone(),
        }
    }
}
