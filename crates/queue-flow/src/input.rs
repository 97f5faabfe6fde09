//! `queue`: reads messages from a queue. A batch is acked when the flow has confirmed it, and nacked when it failed. A
//! message that the flow refuses for good, and that its dead letter output does not take, is rejected and becomes a
//! dead letter of the queue.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use parking_lot::Mutex;
use thalweg_config::{ComponentNode, Fields};
use thalweg_flow::{
    BoxFuture, BuildContext, BuildError, ComponentRegistry, Input, InputContext, InputError, InputSpec, ParseContext,
};
use thalweg_queue::members::MemberKind;
use thalweg_queue::settings::{GroupMode, GroupSettings, GroupStart};
use thalweg_queue::{ClaimRequest, Delivery, Group, MessageId, Queue, QueueError, Queues, Receipt, SettleAction};
use thalweg_record::{AckResult, Batch, Message, Metadata};

use crate::SharedQueues;
use crate::names::{GroupReference, QueueReference};

/// How long a claim waits before it is repeated.
const WAIT: Duration = Duration::from_secs(30);
/// Pause after an error.
const PAUSE: Duration = Duration::from_secs(1);
/// Leases are extended after this fraction of their time.
const EXTEND_PART: u32 = 3;

pub(super) fn register(registry: &mut ComponentRegistry, store: Arc<SharedQueues>) {
    registry.input(
        "queue",
        include_str!("../reference/input-queue.txt"),
        move |node, context| parse(node, context, &store),
    );
}

#[derive(Clone)]
struct QueueInputOptions {
    name: String,
    group: Option<String>,
    consumer: Option<String>,
    mode: GroupMode,
    start: GroupStart,
    claim_batch: Option<u32>,
    max_in_flight: Option<u32>,
    auto_extend: bool,
}

struct QueueInputSpec {
    store: Arc<SharedQueues>,
    options: QueueInputOptions,
}

fn parse(
    node: &ComponentNode,
    context: &mut ParseContext<'_>,
    store: &Arc<SharedQueues>,
) -> Option<Arc<dyn InputSpec>> {
    store.want();
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let name = fields.required_string("name");
    let group = fields.opt_string("group");
    for (field, text) in [("name", Some(&name)), ("group", group.as_ref())] {
        if let Some(text) = text.filter(|text| !text.is_empty())
            && let Err(error) = thalweg_queue::names::check_name(text)
        {
            fields.error(field, error);
        }
    }
    let consumer = fields.opt_string("consumer");
    let mode = match fields.one_of("mode", &["work", "stream"], "work") {
        "stream" => GroupMode::Stream,
        _ => GroupMode::Work,
    };
    let start = fields.string("start", "earliest");
    let start = start.parse().unwrap_or_else(|error| {
        fields.error("start", format!("expected {error}"));
        GroupStart::Earliest
    });
    let number = |fields: &mut Fields<'_>, name: &str, max: i64| {
        let number = fields.opt_int_in(name, 1..=max)?;
        u32::try_from(number).ok()
    };
    let options = QueueInputOptions {
        name,
        group,
        consumer,
        mode,
        start,
        claim_batch: number(&mut fields, "claim_batch", 10_000),
        max_in_flight: number(&mut fields, "max_in_flight", 1_000_000),
        auto_extend: fields.bool("auto_extend", true),
    };
    let named = if fields.has("group") { "group" } else { "name" };
    store.uses(QueueReference {
        name: options.name.clone(),
        pos: fields.pos_of("name"),
        reader: Some(GroupReference {
            group: options.group.clone(),
            mode: options.mode,
            pos: fields.pos_of(named),
        }),
    });
    fields.finish();
    Some(Arc::new(QueueInputSpec {
        store: store.clone(),
        options,
    }))
}

impl InputSpec for QueueInputSpec {
    fn build(&self, context: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        // Two inputs of one file are two consumers. After a restart their names differ: the leases of this process end
        // with it, so no later consumer has to take them over.
        let consumer = self.options.consumer.clone();
        let consumer = consumer.unwrap_or_else(|| format!("{}@{}", context.source, std::process::id()));
        Ok(Box::new(QueueInput {
            store: self.store.clone(),
            options: self.options.clone(),
            consumer,
        }))
    }

    /// A work group limits the leased messages, and those of each key to `lane_window`. A stream reads on.
    fn waits_for_answers(&self) -> Option<&'static str> {
        let is_work = self.options.mode == GroupMode::Work;
        is_work.then_some("read the queue as a stream (mode: stream)")
    }
}

struct QueueInput {
    store: Arc<SharedQueues>,
    options: QueueInputOptions,
    consumer: String,
}

/// Leases that the flow has not confirmed.
type OpenLeases = Arc<Mutex<Vec<Receipt>>>;

impl Input for QueueInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            while let Some((queue, group)) = self.join(&context).await {
                context.connection.up();
                // Leases of a deleted queue do not belong to the next one.
                let open = OpenLeases::default();
                let ended = tokio::select! {
                    ended = self.read(&context, &queue, &group, &open) => ended,
                    never = self.extend(&queue, &group, &open) => match never {},
                };
                match ended {
                    InputEnd::Stopped => {
                        context.sink.settled().await;
                        queue.leave(&group, &self.consumer);
                        break;
                    }
                    // This is an event rather than an outage, so it is logged each time, however soon the queue is
                    // back.
                    InputEnd::Deleted(what) => {
                        context.connection.progress(&what);
                        tracing::warn!(
                            queue = %queue.name(), group = %group.name(),
                            "{what} while a flow reads it; the flow continues with the next queue of that name"
                        );
                    }
                }
            }
            Ok(())
        })
    }
}

/// Why an input stops reading.
enum InputEnd {
    Stopped,
    /// The queue or the group was deleted; the error says which.
    Deleted(String),
}

impl QueueInput {
    /// Finds the queue and the group, which may be created while the process runs. Returns `None` if the flow stops
    /// first.
    async fn join(&self, context: &InputContext) -> Option<(Arc<Queue>, Arc<Group>)> {
        loop {
            let joined = match self.store.queues() {
                Some(queues) => self.try_join(&queues).await.map_err(|error| error.to_string()),
                None => Err("the log is not open yet".to_owned()),
            };
            match joined {
                Ok(found) => return Some(found),
                Err(why) => context.connection.failed(&why),
            }
            if !self.pause(context).await {
                return None;
            }
        }
    }

    async fn try_join(&self, queues: &Queues) -> Result<(Arc<Queue>, Arc<Group>), QueueError> {
        let queue = queues.get_or_create(&self.options.name).await?;
        let name = self
            .options
            .group
            .clone()
            .unwrap_or_else(|| queue.settings().default_group.to_string());
        let settings = GroupSettings {
            start: self.options.start,
            ..GroupSettings::new(&name, self.options.mode)
        };
        let group = queues.join_group(&queue, settings).await?;
        Ok((queue, group))
    }

    async fn read(
        &self,
        context: &InputContext,
        queue: &Arc<Queue>,
        group: &Arc<Group>,
        open: &OpenLeases,
    ) -> InputEnd {
        loop {
            context.sink.has_room().await;
            let want = ClaimRequest {
                max: self.options.claim_batch.unwrap_or(queue.settings().claim_batch),
                wait: WAIT,
                max_in_flight: self.options.max_in_flight,
                ..ClaimRequest::default()
            };
            let claimed = tokio::select! {
                () = context.stop.cancelled() => return InputEnd::Stopped,
                claimed = queue.claim(group, &self.consumer, MemberKind::Pipeline, want) => claimed,
            };
            match claimed {
                Ok(deliveries) if deliveries.is_empty() => {}
                Ok(deliveries) => {
                    context.connection.up();
                    if self.pass_on(context, queue, group, open, deliveries).await.is_err() {
                        return InputEnd::Stopped;
                    }
                }
                // There is room again once the flow has settled them.
                Err(QueueError::TooManyPending { .. }) => {}
                Err(error @ (QueueError::QueueNotFound { .. } | QueueError::GroupNotFound { .. })) => {
                    // Queues also disappear when the process stops.
                    return match self.pause(context).await {
                        true => InputEnd::Deleted(error.to_string()),
                        false => InputEnd::Stopped,
                    };
                }
                Err(error) => {
                    context.connection.failed(&error.to_string());
                    if !self.pause(context).await {
                        return InputEnd::Stopped;
                    }
                }
            }
        }
    }

    /// Returns `false` if the flow stops meanwhile.
    async fn pause(&self, context: &InputContext) -> bool {
        tokio::select! {
            () = context.stop.cancelled() => false,
            () = tokio::time::sleep(PAUSE) => true,
        }
    }

    async fn pass_on(
        &self,
        context: &InputContext,
        queue: &Arc<Queue>,
        group: &Arc<Group>,
        open: &OpenLeases,
        deliveries: Vec<Delivery>,
    ) -> Result<(), thalweg_flow::SinkClosed> {
        let receipts: Vec<Receipt> = deliveries.iter().map(|delivery| queue.receipt(delivery)).collect();
        let messages: Vec<Message> = deliveries.iter().map(|delivery| message(queue, delivery)).collect();
        open.lock().extend(receipts.iter().cloned());
        let taken = Arc::new(LeasedBatch {
            queue: queue.clone(),
            group: group.clone(),
            open: open.clone(),
            receipts,
            refused: Mutex::default(),
        });
        let refusing = taken.clone();
        let ack = context.sink.enter_refusable(
            messages.len(),
            move |message, error| refusing.refuse(message, error),
            move |outcome| taken.settle(outcome),
        );
        context.sink.send(Batch::new(messages, ack)).await
    }

    /// Extends the leases of messages that the flow works on. Never returns.
    async fn extend(&self, queue: &Arc<Queue>, group: &Arc<Group>, open: &OpenLeases) -> Infallible {
        loop {
            tokio::time::sleep(queue.settings().visibility_timeout / EXTEND_PART).await;
            if !self.options.auto_extend || !group.is_work() {
                continue;
            }
            let receipts = open.lock().clone();
            let verdicts: Vec<_> = receipts
                .into_iter()
                .map(|receipt| (receipt, SettleAction::Extend { visibility: None }))
                .collect();
            if let Err(error) = queue.settle(group, verdicts, false).await {
                tracing::warn!(queue = %queue.name(), %error, "leases cannot be extended");
            }
        }
    }
}

/// The messages of one batch until the flow settles them.
struct LeasedBatch {
    queue: Arc<Queue>,
    group: Arc<Group>,
    open: OpenLeases,
    receipts: Vec<Receipt>,
    /// Messages that the flow refuses for good, with the reason.
    refused: Mutex<Vec<(Receipt, Box<str>)>>,
}

impl LeasedBatch {
    /// Records that the flow refuses a message for good. Without a dead letter output in the flow it becomes a dead
    /// letter of the queue. The message is identified by its id; if a script has removed the id, the message is only
    /// counted as dropped.
    fn refuse(&self, message: &Message, error: &str) -> bool {
        let found = match self.receipts.as_slice() {
            [only] => Some(only),
            all => {
                let id = message.meta.get("message-id");
                let id = id.and_then(|text| text.parse::<MessageId>().ok());
                id.and_then(|id| all.iter().find(|receipt| receipt.id == id))
            }
        };
        let Some(receipt) = found else { return false };
        let mut refused = self.refused.lock();
        // One message may have become several.
        if !refused.iter().any(|(known, _)| known == receipt) {
            refused.push((receipt.clone(), error.into()));
        }
        true
    }

    fn settle(&self, outcome: AckResult) {
        self.open.lock().retain(|known| !self.receipts.contains(known));
        let refused = std::mem::take(&mut *self.refused.lock());
        let is_refused = |receipt: &&Receipt| refused.iter().any(|(known, _)| known == *receipt);
        let others = self.receipts.iter().filter(|receipt| !is_refused(receipt));
        let settled = match outcome {
            AckResult::Acked => self.queue.ack_all(&self.group, others),
            AckResult::Nacked => {
                let others: Vec<Receipt> = others.cloned().collect();
                self.queue.give_back(&self.group, &others, false)
            }
        };
        let settled = settled.and_then(|()| self.reject(refused));
        // A deleted queue has nothing left to settle.
        if let Err(error) = settled
            && !self.queue.is_removed()
        {
            tracing::warn!(queue = %self.queue.name(), %error, "messages cannot be settled; they will be delivered again");
        }
    }

    fn reject(&self, refused: Vec<(Receipt, Box<str>)>) -> Result<(), QueueError> {
        if refused.is_empty() {
            return Ok(());
        }
        let verdict = |(receipt, reason)| (receipt, SettleAction::Reject { reason: Some(reason) });
        let verdicts = refused.into_iter().map(verdict).collect();
        // This mode does not wait for the commit, so the future is ready at once.
        let settled = self.queue.settle(&self.group, verdicts, false).now_or_never();
        settled.map_or(Ok(()), |settled| settled.map(drop))
    }
}

/// The payload is kept as it is; everything else becomes metadata.
fn message(queue: &Queue, delivery: &Delivery) -> Message {
    let found = &delivery.message;
    let mut out = Message::raw(found.payload.clone());
    let meta: &mut Metadata = &mut out.meta;
    for (name, value) in found.properties.as_ref().iter() {
        meta.set(name, value);
    }
    if let Some(key) = &found.key {
        meta.set("key", String::from_utf8_lossy(key).into_owned());
    }
    meta.set("queue", queue.name().as_str());
    meta.set("message-id", queue.receipt(delivery).id.to_string());
    meta.set("partition", delivery.partition.to_string());
    meta.set("offset", found.offset.to_string());
    meta.set("delivery", delivery.delivery.to_string());
    meta.set("enqueued-at", (queue.clock().wall_at(found.time) / 1000).to_string());
    out
}
