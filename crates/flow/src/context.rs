//! How a stage reports that it failed on a message: the message goes to the dead letter if there is one, otherwise it
//! is dropped, counted and logged.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_kit::threads;
use thalweg_record::{Ack, Batch, DropReason, Failure, FlowBalance, Message, key};
use thalweg_telemetry::{IntCounter, StatusDetail};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::component::Component;
use crate::queue;
use crate::runtime::{GraphNodes, NodeCounters, NodeDetails};

/// Given to each processor instance; the instances of one processor share its counters.
#[derive(Clone)]
pub struct StageContext {
    pub component: Component,
    /// `processor_error`: messages that this stage failed on.
    pub errors: IntCounter,
    pub(crate) details: NodeDetails,
    pub(crate) scope: FlowScope,
}

/// State that the components of a flow share.
#[derive(Clone)]
pub(crate) struct FlowScope {
    /// The mass balance of the flow.
    pub balance: Arc<FlowBalance>,
    pub failures: FailurePolicy,
    pub runtime: Handle,
    /// Cancelled when the shutdown time is over and waiting is pointless.
    pub give_up: CancellationToken,
    /// Where nested components register themselves in the graph.
    pub nodes: GraphNodes,
}

/// Where failed messages go.
#[derive(Clone)]
pub(crate) enum FailurePolicy {
    /// Counted and logged.
    Drop,
    DeadLetters(DeadLetterSender),
    /// Rejected to the writer: the stage is in front of one of several outputs, and the outcome of the message depends
    /// on all of them.
    Refuse(Arc<Mutex<Vec<(DropReason, String)>>>),
}

impl StageContext {
    /// Sets the details that the console shows of the stage. The first instance sets them for all.
    pub fn show(&self, details: Vec<StatusDetail>) {
        let _known = self.details.set(details);
    }

    /// Creates the acknowledgement of messages that the stage makes without input, as when an interval ends. They count
    /// as expanded, and nobody waits for their outcome.
    pub fn made(&self, n: usize) -> Ack {
        let mut ack = Ack::enter(&self.scope.balance, 0, |_outcome| {});
        ack.expanded(n);
        ack
    }

    /// Removes one message from the flow because this stage failed on it. `ack` must include it; one message is taken
    /// from it. Blocks while the dead letter is full, because losing the message is not an option; when the shutdown
    /// time is over, the message is given up (counted as dropped with reason `shutdown`).
    pub fn fail(&self, ack: &mut Ack, message: Message, reason: DropReason, error: &str) {
        self.fail_with_cure(ack, message, reason, error, cure(reason));
    }

    /// As [`StageContext::fail`], for a stage with better advice for the operator. `cure` follows the error, in the log
    /// only.
    pub fn fail_with_cure(&self, ack: &mut Ack, message: Message, reason: DropReason, error: &str, cure: &str) {
        self.errors.inc();
        if let FailurePolicy::Refuse(refused) = &self.scope.failures {
            refused
                .lock()
                .push((reason, format!("{}: {error}", self.component.title())));
            return ack.dropped(reason, 1);
        }
        self.component
            .warn_limited(reason.as_str(), 1, || removed(&message, reason, error, cure));
        match &self.scope.failures {
            FailurePolicy::DeadLetters(dead_letters) => {
                let letter = dead_letters.letter(ack.split(1), message, reason, error, &self.component);
                threads::block_on(&self.scope.runtime, async {
                    tokio::select! {
                        biased;
                        () = dead_letters.send(letter) => {}
                        () = self.scope.give_up.cancelled() => {}
                    }
                });
            }
            _ => {
                ack.refused(&message, error);
                ack.dropped(reason, 1);
            }
        }
    }

    /// Flags a message that this stage failed on and that is passed on: it carries the mark that `catch` and
    /// `errored()` read.
    pub fn flag(&self, message: &mut Message, error: &str) {
        message.failure = Some(Arc::new(Failure {
            stage: self.component.title().into(),
            error: error.into(),
        }));
        self.errors.inc();
        self.component
            .warn_limited("flagged", 1, || format!("message flagged: {error}{}", whose(message)));
    }

    /// Returns a check whether the shutdown time is over, for work that polls it occasionally.
    pub fn gives_up(&self) -> impl Fn() -> bool + Send + Sync + use<> {
        let give_up = self.scope.give_up.clone();
        move || give_up.is_cancelled()
    }

    /// Sleeps on this worker thread; `false` if the flow gave up first.
    pub fn pause(&self, pause: Duration) -> bool {
        threads::block_on(&self.scope.runtime, async {
            tokio::select! {
                biased;
                () = self.scope.give_up.cancelled() => false,
                () = tokio::time::sleep(pause) => true,
            }
        })
    }
}

fn removed(message: &Message, reason: DropReason, error: &str, cure: &str) -> String {
    format!("message removed ({reason}): {error}{cure}{}", whose(message))
}

/// Advice for the operator about a reason, where neither the error nor the stage provides it.
fn cure(reason: DropReason) -> &'static str {
    match reason {
        DropReason::ScriptTimeout => "; if the script needs longer, raise scriptTimeout (or scripting.timeout for all)",
        DropReason::InvalidValue => "; have the script that computes the value return null for the message instead",
        _ => "",
    }
}

/// Keys that identify a message to an operator.
const NAMES: [&str; 3] = [key::UMH_TOPIC, key::OPCUA_NODE, key::MQTT_TOPIC];

/// Returns ` (umh_topic=…, opcua_attr_nodeid=…)`, or an empty text if the message has none of these keys.
pub(crate) fn whose(message: &Message) -> String {
    let mut text = String::new();
    for name in NAMES {
        if let Some(value) = message.meta.get(name) {
            let gap = if text.is_empty() { " (" } else { ", " };
            let _ = write!(text, "{gap}{name}={value}");
        }
    }
    if !text.is_empty() {
        text.push(')');
    }
    text
}

/// Sends failed messages to the `dead_letter` output. Clones feed the same output.
#[derive(Clone)]
pub struct DeadLetterSender {
    pub(crate) queue: queue::QueueSender<DeadLetter>,
    /// The output and its children, for the graph of each flow.
    pub(crate) nodes: Arc<[NodeCounters]>,
}

/// One failed message. Its source is notified only after the dead letter output has written it.
pub(crate) struct DeadLetter {
    pub message: Message,
    pub reason: DropReason,
    pub ack: Ack,
}

impl queue::Weight for DeadLetter {
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

impl DeadLetterSender {
    pub(crate) fn letter(
        &self,
        ack: Ack,
        mut message: Message,
        reason: DropReason,
        error: &str,
        stage: &Component,
    ) -> DeadLetter {
        message.failure = None;
        message.meta.set("thalweg_error", error);
        message.meta.set("thalweg_reason", reason.as_str());
        message.meta.set("thalweg_stage", stage.title());
        DeadLetter { message, reason, ack }
    }

    pub(crate) async fn send(&self, letter: DeadLetter) {
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
                .enable_time()
                .build()
                .expect("a runtime starts in a test")
        });
        let id = thalweg_telemetry::ComponentId {
            flow: None,
            path: format!("root.pipeline.processors.{name}"),
            label: String::new(),
        };
        let component = Component::new(name, id, Arc::default());
        let errors = component.counter(&crate::metrics::PROCESSOR_ERROR);
        let scope = FlowScope {
            balance: Arc::default(),
            failures: FailurePolicy::Drop,
            runtime: runtime.handle().clone(),
            give_up: CancellationToken::new(),
            nodes: GraphNodes::default(),
        };
        StageContext {
            component,
            errors,
            details: NodeDetails::default(),
            scope,
        }
    }

    /// The details that the stage has set.
    pub fn shown(&self) -> &[StatusDetail] {
        self.details.get().map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_message_is_called_by_its_names() {
        let mut message = Message::raw("x");
        assert_eq!(whose(&message), "");
        message.meta.set("opcua_attr_nodeid", "ns=2;i=7");
        message.meta.set("umh_topic", "umh.v1.a._raw.t");
        message.meta.set("other", "o");
        assert_eq!(
            whose(&message),
            " (umh_topic=umh.v1.a._raw.t, opcua_attr_nodeid=ns=2;i=7)"
        );
    }

    #[test]
    fn what_an_operator_can_do_is_said_by_the_stage_that_refuses() {
        let message = Message::raw("x");
        let said = |cure: &str| {
            removed(
                &message,
                DropReason::InvalidValue,
                "the value NaN has no JSON form",
                cure,
            )
        };
        assert_eq!(
            said(cure(DropReason::InvalidValue)),
            "message removed (invalid_value): the value NaN has no JSON form; have the script that computes the value return \
             null for the message instead"
        );
        assert_eq!(
            said("; set it anew"),
            "message removed (invalid_value): the value NaN has no JSON form; set it anew"
        );
    }

    #[test]
    fn what_a_stage_makes_of_nothing_is_in_the_account() {
        let context = StageContext::for_tests("browser");
        let counts = || context.scope.balance.snapshot();
        let (ack, lost) = (context.made(2), context.made(1));
        assert!(counts().adds_up() && counts().in_flight == 3 && counts().expanded == 3);
        ack.delivered();
        drop(lost);
        assert!(counts().adds_up() && counts().out == 2 && counts().dropped(DropReason::Shutdown) == 1);
    }

    #[test]
    fn a_pause_ends_when_the_flow_gives_up() {
        let context = StageContext::for_tests("sleep");
        let gives_up = context.gives_up();
        assert!(context.pause(Duration::from_millis(1)) && !gives_up());
        context.scope.give_up.cancel();
        assert!(gives_up());
        assert!(!context.pause(Duration::from_secs(3600)));
    }
}
