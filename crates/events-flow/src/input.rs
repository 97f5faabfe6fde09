//! The input `events`: existing and new messages of a stream, a category or a whole namespace. A checkpoint in the
//! namespace records what the flow has confirmed. A restart resumes there, so every message is delivered at least once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_config::{ComponentNode, Fields};
use thalweg_events::names::GroupMember;
use thalweg_events::{
    CategoryRead, Direction, EventsError, MessageId, Namespace, NamespaceWatermark, Page, StoredEvent, StreamPosition,
    StreamRead, time,
};
use thalweg_flow::{
    BoxFuture, BuildContext, BuildError, ComponentRegistry, Input, InputContext, InputError, InputSpec, ParseContext,
};
use thalweg_kit::clock;
use thalweg_record::{AckResult, Batch, Message};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::SharedStore;
use crate::checkpoint::{Checkpoint, CheckpointError, NAME_BYTES_MAX};
use crate::cursor::InputCursor;

/// The pause before a retry.
const PAUSE: Duration = Duration::from_secs(1);
/// The shortest time between two saves of the checkpoint; a clean stop saves it too.
const SAVE: Duration = Duration::from_secs(1);
const BATCH: i64 = 500;
const BATCH_MAX: i64 = 10_000;
const MEMBERS_MAX: i64 = 1 << 20;

pub(crate) fn register(registry: &mut ComponentRegistry, store: Arc<SharedStore>) {
    registry.input(
        "events",
        include_str!("../reference/input-events.txt"),
        move |node, context| parse(node, context, &store),
    );
}

#[derive(Clone)]
struct EventsInputOptions {
    namespace: String,
    of: InputSource,
    start: InputStart,
    types: Vec<String>,
    member: Option<GroupMember>,
    checkpoint: Option<String>,
    batch: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum InputSource {
    Stream(String),
    Category(String),
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputStart {
    First,
    /// Only messages that are stored from now on.
    End,
    At(u64),
}

struct EventsInputSpec {
    store: Arc<SharedStore>,
    options: EventsInputOptions,
}

fn parse(node: &ComponentNode, context: &mut ParseContext<'_>, store: &Arc<SharedStore>) -> Option<Arc<dyn InputSpec>> {
    store.want();
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let namespace = fields.string("namespace", thalweg_events::DEFAULT);
    crate::check_namespace(&namespace, fields.pos_of("namespace"), context.diagnostics);
    let of = of(&mut fields);
    let start = start(&mut fields);
    let types = fields.string_list("types");
    let member = fields.opt_fields("consumer_group").map(member);
    if member.is_some() && !matches!(of, InputSource::Category(_)) {
        fields.error("consumer_group", "a consumer group shares a category; set category");
    }
    let checkpoint = fields.opt_string("checkpoint");
    let length = checkpoint.as_ref().map_or(1, String::len);
    if !(1..=NAME_BYTES_MAX).contains(&length) {
        let message = format!("a name must have 1 to {NAME_BYTES_MAX} bytes, this one has {length}");
        fields.error("checkpoint", message);
    }
    let batch = fields.int_in("batch_size", BATCH, 1..=BATCH_MAX);
    fields.finish();
    let options = EventsInputOptions {
        namespace,
        of,
        start,
        types,
        member,
        checkpoint,
        batch: usize::try_from(batch).unwrap_or(1),
    };
    Some(Arc::new(EventsInputSpec {
        store: store.clone(),
        options,
    }))
}

fn of(fields: &mut Fields<'_>) -> InputSource {
    let (stream, category) = (fields.opt_string("stream"), fields.opt_string("category"));
    let all = fields.bool("all", false);
    let (of, given) = match (stream, category, all) {
        (Some(stream), None, false) => (InputSource::Stream(stream), "stream"),
        (None, Some(category), false) => (InputSource::Category(category), "category"),
        (None, None, true) => (InputSource::All, "all"),
        (stream, category, _) => {
            let place = match (stream.is_some(), category.is_some()) {
                (_, true) => "category",
                (true, false) => "stream",
                (false, false) => "all",
            };
            fields.error(place, "give one of stream, category and all: true");
            return InputSource::All;
        }
    };
    match &of {
        InputSource::Stream(name) | InputSource::Category(name) if name.is_empty() => {
            fields.error(given, "it is empty")
        }
        InputSource::Category(name) if name.contains('-') => {
            fields.error(
                given,
                "a category cannot contain '-', which ends it in the name of a stream",
            );
        }
        _ => {}
    }
    of
}

fn start(fields: &mut Fields<'_>) -> InputStart {
    let text = fields.string("from", "start");
    match text.as_str() {
        "start" => InputStart::First,
        "end" => InputStart::End,
        other => match other.parse() {
            Ok(at) => InputStart::At(at),
            Err(_) => {
                fields.error("from", format!("expected start, end or a position, got \"{other}\""));
                InputStart::First
            }
        },
    }
}

fn member(mut fields: Fields<'_>) -> GroupMember {
    let of = fields.int_in("size", 1, 1..=MEMBERS_MAX);
    let number = fields.required_int("member");
    if !(0..of).contains(&number) {
        fields.error("member", format!("members of a group of {of} are 0 to {}", of - 1));
    }
    fields.finish();
    GroupMember {
        number: number.unsigned_abs(),
        of: of.unsigned_abs().max(1),
    }
}

impl InputSpec for EventsInputSpec {
    fn build(&self, context: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        let name = self.options.checkpoint.clone();
        Ok(Box::new(EventsInput {
            store: self.store.clone(),
            options: self.options.clone(),
            checkpoint: name.unwrap_or_else(|| context.source.to_string()),
        }))
    }
}

struct EventsInput {
    store: Arc<SharedStore>,
    options: EventsInputOptions,
    checkpoint: String,
}

/// Why reading ended.
enum SessionEnd {
    Stopped,
    /// Retried after a pause.
    Lost(String),
    Failed(String),
}

impl std::convert::From<EventsError> for SessionEnd {
    fn from(error: EventsError) -> SessionEnd {
        SessionEnd::Lost(error.to_string())
    }
}

impl std::convert::From<CheckpointError> for SessionEnd {
    fn from(failed: CheckpointError) -> SessionEnd {
        match failed {
            CheckpointError::Store(error) => error.into(),
            CheckpointError::Mistaken(what) => SessionEnd::Failed(what),
        }
    }
}

/// The number of a sent batch, and its outcome.
type BatchSettlement = (u64, AckResult);

impl Input for EventsInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            loop {
                match self.session(&context).await {
                    SessionEnd::Stopped => return Ok(()),
                    SessionEnd::Failed(what) => return Err(InputError(what)),
                    SessionEnd::Lost(why) => context.connection.failed(&why),
                }
                tokio::select! {
                    () = context.stop.cancelled() => return Ok(()),
                    () = sleep(PAUSE) => {}
                }
            }
        })
    }
}

impl EventsInput {
    /// Reads the namespace, which may be created while the process runs, until the session ends.
    async fn session(&self, context: &InputContext) -> SessionEnd {
        let Some(opened) = self.store.get() else {
            return SessionEnd::Lost("the event store is not open yet".to_owned());
        };
        let namespace = match opened.store.namespace(&self.options.namespace).await {
            Ok(namespace) => namespace,
            Err(error) => return error.into(),
        };
        match self.begin(namespace).await {
            Ok(reading) => reading.run(context).await,
            Err(ended) => ended,
        }
    }

    async fn begin(&self, namespace: Arc<dyn Namespace>) -> Result<InputSession<'_>, SessionEnd> {
        let options = &self.options;
        let checkpoint = Checkpoint::open(namespace.as_ref(), &self.checkpoint, options.of.name()).await?;
        let visible = namespace.watch();
        let end = match &options.of {
            InputSource::Stream(stream) => u64::try_from(namespace.version(stream).await? + 1).unwrap_or(0),
            InputSource::Category(_) | InputSource::All => visible.borrow().last + 1,
        };
        let at = match (checkpoint.saved(), options.start) {
            (Some(saved), _) if saved <= end => saved,
            (Some(saved), _) => {
                let checkpoint = &self.checkpoint;
                tracing::warn!(
                    checkpoint,
                    saved,
                    end,
                    "all messages were removed since then; newer messages are read from the first one"
                );
                0
            }
            (None, InputStart::First) => 0,
            (None, InputStart::End) => end,
            (None, InputStart::At(at)) => at,
        };
        let (tell, settled) = mpsc::unbounded_channel();
        let cleared = visible.borrow().cleared;
        Ok(InputSession {
            options,
            namespace,
            cleared,
            visible,
            checkpoint,
            cursor: InputCursor::new(at),
            tell,
            settled,
        })
    }
}

impl InputSource {
    fn name(&self) -> String {
        match self {
            InputSource::Stream(stream) => format!("stream {stream}"),
            InputSource::Category(category) => format!("category {category}"),
            InputSource::All => "all".to_owned(),
        }
    }
}

/// The state while a namespace is read.
struct InputSession<'i> {
    options: &'i EventsInputOptions,
    namespace: Arc<dyn Namespace>,
    visible: watch::Receiver<NamespaceWatermark>,
    /// The clearing generation of the namespace.
    cleared: u64,
    checkpoint: Checkpoint,
    cursor: InputCursor,
    tell: mpsc::UnboundedSender<BatchSettlement>,
    settled: mpsc::UnboundedReceiver<BatchSettlement>,
}

impl InputSession<'_> {
    async fn run(mut self, context: &InputContext) -> SessionEnd {
        context.connection.up();
        let ended = match self.read(context).await {
            Ok(()) => SessionEnd::Stopped,
            Err(ended) => ended,
        };
        // The flow settles its open batches before the checkpoint is saved for the last time.
        context.sink.settled().await;
        while let Ok(settled) = self.settled.try_recv() {
            self.settle(settled);
        }
        match (self.save().await, &ended) {
            (Err(SessionEnd::Failed(what)), SessionEnd::Stopped) => return SessionEnd::Failed(what),
            (Err(SessionEnd::Lost(why)), SessionEnd::Stopped) => {
                context.component.warn_limited("checkpoint", 1, || {
                    format!("the checkpoint was not stored, so the next start repeats some messages: {why}")
                });
            }
            _ => {}
        }
        ended
    }

    async fn read(&mut self, context: &InputContext) -> Result<(), SessionEnd> {
        let mut save = interval(SAVE);
        save.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Everything that can be read has been read.
        let mut is_idle = false;
        let mut paused_until = clock::tokio_now();
        loop {
            tokio::select! {
                biased;
                () = context.stop.cancelled() => return Ok(()),
                Some(settled) = self.settled.recv() => {
                    if self.settle(settled) {
                        (is_idle, paused_until) = (false, clock::tokio_now() + PAUSE);
                    }
                }
                _ = save.tick() => match self.save().await {
                    Err(SessionEnd::Lost(why)) => context.component.warn_limited("checkpoint", 1, || {
                        format!("the checkpoint was not stored and will be retried: {why}")
                    }),
                    other => other?,
                },
                changed = self.visible.changed(), if is_idle => {
                    changed.map_err(|_| SessionEnd::Lost("the namespace was deleted".to_owned()))?;
                    is_idle = false;
                }
                () = room(context, paused_until), if !is_idle => is_idle = self.pass_on(context).await?,
            }
        }
    }

    /// Reads a page and sends it to the flow. `true`: there is nothing more for now.
    async fn pass_on(&mut self, context: &InputContext) -> Result<bool, SessionEnd> {
        let visible = *self.visible.borrow_and_update();
        if visible.cleared != self.cleared {
            self.cleared = visible.cleared;
            self.cursor = InputCursor::new(0);
            // Outcomes of removed messages must not reach the new cursor.
            (self.tell, self.settled) = mpsc::unbounded_channel();
        }
        let mut page = self.page().await?;
        let to = self.after(&page, visible);
        let seen = *self.visible.borrow();
        if seen.cleared != visible.cleared {
            return Ok(false);
        }
        if seen.hidden_at != visible.hidden_at {
            // Some messages may have been deleted since: the flow must not get deleted messages.
            let shown = self.namespace.still_shown(&page.events).await?;
            page.events.retain(|stored| shown.contains(&stored.event().global));
        }
        let (count, is_last) = (page.events.len(), page.next.is_none());
        if count == 0 {
            self.cursor.passed(to);
            return Ok(is_last);
        }
        let messages: Vec<Message> = page.events.iter().map(message).collect();
        let (number, tell) = (self.cursor.sent(to), self.tell.clone());
        let ack = context.sink.enter_redeliverable(count, move |outcome| {
            let _ = tell.send((number, outcome));
        });
        // The flow has ended, so only the stop remains to wait for.
        if context.sink.send(Batch::new(messages, ack)).await.is_err() {
            context.stop.cancelled().await;
        }
        Ok(is_last)
    }

    async fn page(&self) -> Result<Page, EventsError> {
        let (options, from) = (self.options, self.cursor.next());
        let category = match &options.of {
            InputSource::Stream(stream) => {
                let read = StreamRead {
                    stream,
                    from: Some(StreamPosition::Position(from)),
                    direction: Direction::Forward,
                    max: options.batch,
                    types: &options.types,
                };
                return self.namespace.read_stream(read).await;
            }
            InputSource::Category(category) => Some(category.as_str()),
            InputSource::All => None,
        };
        let read = CategoryRead {
            category,
            from: Some(from),
            direction: Direction::Forward,
            max: options.batch,
            correlation: None,
            member: options.member,
            types: &options.types,
        };
        self.namespace.read_category(read).await
    }

    /// The position after a page.
    fn after(&self, page: &Page, visible: NamespaceWatermark) -> u64 {
        let last = page.events.last().map(StoredEvent::event);
        let after = match (&self.options.of, last) {
            (InputSource::Stream(_), last) => last.map_or(0, |last| last.position + 1),
            // Skipped messages are not read again.
            (_, last) => last.map_or(0, |last| last.global).max(visible.last) + 1,
        };
        page.next.unwrap_or(after)
    }

    /// `true`: something must be read again.
    fn settle(&mut self, (number, outcome): BatchSettlement) -> bool {
        match outcome {
            AckResult::Acked => {
                self.cursor.confirmed(number);
                false
            }
            AckResult::Nacked => self.cursor.given_back(number),
        }
    }

    async fn save(&mut self) -> Result<(), SessionEnd> {
        let floor = self.cursor.floor();
        if self.checkpoint.saved() == Some(floor) {
            return Ok(());
        }
        Ok(self.checkpoint.save(self.namespace.as_ref(), floor).await?)
    }
}

/// Waits until the flow can take a batch, but at least until `not_before`.
async fn room(context: &InputContext, not_before: Instant) {
    tokio::time::sleep_until(not_before).await;
    context.sink.has_room().await;
}

/// The data become the payload unchanged; everything else becomes metadata.
fn message(stored: &StoredEvent) -> Message {
    let event = stored.event();
    let mut out = Message::raw(Bytes::copy_from_slice(event.data.as_bytes()));
    let (meta, id): (_, MessageId) = (&mut out.meta, event.id.into());
    meta.reserve(7);
    meta.set("event_stream", event.stream);
    meta.set("event_type", event.kind);
    meta.set("event_position", event.position.to_string());
    meta.set("event_global_position", event.global.to_string());
    meta.set("event_time", time::text(event.time));
    meta.set("event_id", id.to_string());
    if let Some(metadata) = event.metadata {
        meta.set("event_metadata", metadata);
    }
    out
}
