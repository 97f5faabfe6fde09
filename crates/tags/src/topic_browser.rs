//! `topic_browser`: reports all topics and their latest events, in one message per interval.
//!
//! Messages end here. Each stays unacknowledged while its event waits for the bundle. One of them becomes the bundle
//! and carries the acknowledgements of the others, which are filtered. So a source is acknowledged for an event when
//! the bundle with it was delivered. An event that a newer one of its topic replaces before that is filtered at once.
//!
//! All instances collect into one table, because consumers take the topics of a bundle for all that exist. The first
//! interval begins with the first message, each further one with the previous bundle. An interval without messages
//! produces a bundle with only the topics, for new consumers. The instance that first notices its end builds the
//! bundle. A flow runs such a chain with one worker ([`ProcessorSpec::joins_series`]): a bundle is valid until the next
//! one, so none may overtake another.

mod bundle;
mod directory;
mod event;
mod topic_table;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_config::{ComponentNode, Fields};
use thalweg_flow::{BuildError, ComponentRegistry, ParseContext, Processor, ProcessorSpec, StageContext};
use thalweg_kit::clock;
use thalweg_record::{Ack, Batch, CacheLimits, DropReason, FilterReason, Message, Remembered, Text, key};
use thalweg_telemetry::{COMPONENT_LABELS, IntCounter, MetricDoc, metric_group};

pub use self::directory::TopicDirectory;
use self::event::{EventContent, TopicEvent, id_of};
use self::topic_table::{BrowserLimits, BundleContents, PendingEvent, TopicTable};
use crate::metrics::MESSAGES_PROCESSED;
use crate::results::DropCause;
use crate::time::now_ms;
use crate::topic;

const INTERVAL_MAX: Duration = Duration::from_secs(24 * 3600);

/// Limit for the topics whose ids an instance caches, beside that of their number.
const IDS_BYTES_MAX: usize = 16 << 20;

pub(crate) fn register(registry: &mut ComponentRegistry, directory: &Arc<TopicDirectory>) {
    let directory = directory.clone();
    registry.processor(
        "topic_browser",
        include_str!("../reference/processor-topic_browser.txt"),
        move |node, context| {
            let limits = read(node, context)?;
            Some(Arc::new(TopicBrowserSpec {
                limits,
                directory: directory.clone(),
                shared: Mutex::default(),
            }))
        },
    );
}

fn read(node: &ComponentNode, context: &ParseContext<'_>) -> Option<BrowserLimits> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let mut count = |name: &str, default: i64, max: i64| {
        let count = fields.int_in(name, default, 1..=max);
        usize::try_from(count).unwrap_or(usize::MAX)
    };
    let topics_max = count("lru_size", 50_000, 10_000_000);
    let events_per_topic_max = count("max_events_per_topic_per_interval", 1, 1_000_000);
    let events_max = count("max_buffer_size", 10_000, 1_000_000);
    let interval = fields.duration("emit_interval", "1s");
    let is_usable = !interval.is_zero() && interval <= INTERVAL_MAX;
    if !is_usable {
        fields.error(
            "emit_interval",
            "an interval is more than 0 and at most 24h, such as 1s",
        );
    }
    fields.finish();
    is_usable.then_some(BrowserLimits {
        topics_max,
        events_per_topic_max,
        events_max,
        interval,
    })
}

struct TopicBrowserSpec {
    limits: BrowserLimits,
    directory: Arc<TopicDirectory>,
    /// State of the running instances. It is a weak reference, so that events which no instance will emit any more are
    /// dropped.
    shared: Mutex<Weak<BrowserState>>,
}

impl ProcessorSpec for TopicBrowserSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(self.browser(context)))
    }

    fn joins_series(&self) -> bool {
        true
    }
}

impl TopicBrowserSpec {
    fn browser(&self, context: StageContext) -> TopicBrowser {
        let mut slot = self.shared.lock();
        let shared = slot.upgrade().unwrap_or_else(|| {
            let shared = Arc::new(BrowserState {
                gathered: Mutex::new(TopicTable::new(self.limits)),
                counters: TopicBrowserMetrics::new(&context),
            });
            *slot = Arc::downgrade(&shared);
            self.directory.add(&context.component, &shared);
            shared
        });
        let limits = CacheLimits {
            entries_max: self.limits.topics_max,
            bytes_max: IDS_BYTES_MAX,
        };
        TopicBrowser {
            shared,
            ids: Remembered::within(limits),
            context,
        }
    }
}

/// State shared by the instances.
struct BrowserState {
    gathered: Mutex<TopicTable>,
    counters: TopicBrowserMetrics,
}

impl Drop for BrowserState {
    fn drop(&mut self) {
        self.counters
            .not_emitted
            .inc_by(self.gathered.get_mut().events() as u64);
    }
}

metric_group! {
    pub(crate) TOPIC_BROWSER_METRICS("Processor `topic_browser`", COMPONENT_LABELS) {
        PROCESSED = MESSAGES_PROCESSED.meaning("Messages that became an event.");
        FAILED = MetricDoc::counter("messages_failed", "Messages that could not become an event.");
        NOT_EMITTED = MetricDoc::counter(
            "messages_not_emitted",
            "Messages whose event is in no bundle: it was overwritten, or the flow was abandoned.",
        );
        OVERWRITTEN = MetricDoc::counter(
            "events_overwritten",
            "Events that newer ones of their topic replaced within an interval.",
        );
        EMITTED = MetricDoc::counter("total_events_emitted", "Events in bundles.");
    }
}

/// `processed = emitted + not emitted`, once nothing is pending.
struct TopicBrowserMetrics {
    processed: IntCounter,
    failed: IntCounter,
    not_emitted: IntCounter,
    overwritten: IntCounter,
    emitted: IntCounter,
}

impl TopicBrowserMetrics {
    fn new(context: &StageContext) -> TopicBrowserMetrics {
        let counter = |doc: &MetricDoc| context.component.counter(doc);
        TopicBrowserMetrics {
            processed: counter(&PROCESSED),
            failed: counter(&FAILED),
            not_emitted: counter(&NOT_EMITTED),
            overwritten: counter(&OVERWRITTEN),
            emitted: counter(&EMITTED),
        }
    }
}

struct TopicBrowser {
    shared: Arc<BrowserState>,
    /// Ids by topic.
    ids: Remembered<Text, u64>,
    context: StageContext,
}

impl Processor for TopicBrowser {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        let Batch { messages, mut ack } = batch;
        let arrived_ms = now_ms();
        let mut events = Vec::with_capacity(messages.len());
        for message in messages {
            match self.read(&message) {
                Ok((topic, id, content)) => events.push(TopicEvent::new(message, topic, id, content, arrived_ms)),
                Err((reason, error)) => {
                    self.shared.counters.failed.inc();
                    self.context.fail(&mut ack, message, reason, &error);
                }
            }
        }
        let (taken, overwritten) = self.gather(events, &mut ack);
        ack.merge_all(overwritten);
        ack.filtered(FilterReason::Bundled, ack.count());
        ack.delivered();
        out.extend(taken.into_iter().filter_map(|taken| self.bundle(taken)));
    }

    fn next_tick(&self) -> Option<Instant> {
        self.shared.gathered.lock().due()
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Batch>) {
        let taken = {
            let mut gathered = self.shared.gathered.lock();
            // Another thread may have been first.
            match gathered.due().is_some_and(|due| due <= now) {
                true => gathered.take(now),
                false => return,
            }
        };
        out.extend(self.bundle(taken));
    }

    fn flush(&mut self, out: &mut Vec<Batch>) {
        let taken = {
            let mut gathered = self.shared.gathered.lock();
            match gathered.events() {
                0 => return,
                _ => gathered.take(clock::now()),
            }
        };
        out.extend(self.bundle(taken));
    }
}

impl TopicBrowser {
    fn read(&mut self, message: &Message) -> Result<(Text, u64, EventContent), DropCause> {
        let topic = message.meta.text(key::UMH_TOPIC);
        let topic = topic.ok_or_else(|| (DropReason::MissingField, "the message has no umh_topic".to_owned()))?;
        let id = self.id(&topic)?;
        Ok((topic, id, EventContent::of(&message.payload)?))
    }

    fn id(&mut self, topic: &Text) -> Result<u64, DropCause> {
        if let Some(id) = self.ids.get(topic) {
            return Ok(*id);
        }
        let parts = topic::parts(topic).map_err(|error| (DropReason::InvalidTopic, error.to_string()))?;
        let id = id_of(parts);
        self.ids.insert(topic.clone(), id, topic.len());
        Ok(id)
    }

    /// Adds events to those of the other instances. Bundles that had to be taken to make room, and acknowledgements of
    /// replaced events, are handled by the caller, outside of the lock.
    fn gather(&self, events: Vec<TopicEvent>, ack: &mut Ack) -> (Vec<BundleContents>, Vec<Ack>) {
        let (mut taken, mut overwritten) = (Vec::new(), Vec::new());
        let counters = &self.shared.counters;
        counters.processed.inc_by(events.len() as u64);
        let now = clock::now();
        let mut gathered = self.shared.gathered.lock();
        for event in events {
            if !gathered.has_room_for(&event) {
                taken.push(gathered.take(now));
            }
            let held = PendingEvent::new(event, ack.split(1));
            overwritten.extend(gathered.add(held, now).map(|held| held.ack));
        }
        drop(gathered);
        counters.overwritten.inc_by(overwritten.len() as u64);
        counters.not_emitted.inc_by(overwritten.len() as u64);
        (taken, overwritten)
    }

    /// The message with all pending events, or with only the topics; `None` if there are no topics.
    fn bundle(&self, taken: BundleContents) -> Option<Batch> {
        let BundleContents { topics, held } = taken;
        if topics.is_empty() {
            return None;
        }
        let (events, acks): (Vec<_>, Vec<_>) = held.into_iter().map(|held| (held.event, held.ack)).unzip();
        let mut acks = acks.into_iter();
        let mut ack = acks.next().unwrap_or_else(|| self.context.made(1));
        ack.merge_all(acks);
        ack.filtered(FilterReason::Bundled, ack.count() - 1);
        self.shared.counters.emitted.inc_by(events.len() as u64);
        let text = bundle::text(&topics, &events, now_ms());
        Some(Batch::new(vec![Message::raw(text)], ack))
    }
}

#[cfg(test)]
mod tests;
