//! `downsampler`: keeps only the significant points of each tag.
//!
//! It handles samples: a topic, and a payload of exactly `value` and `timestamp_ms`. All other messages pass. A point
//! that is held back keeps its message and a part of its batch's acknowledgement, so the source is not yet acknowledged
//! for it. It is released when a later point shows that it is needed, when its series has been idle, or when the flow
//! ends.

mod algorithm;
mod config;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use thalweg_flow::{BuildError, Processor, ProcessorSpec, StageContext};
use thalweg_kit::clock;
use thalweg_record::{
    Ack, Batch, CacheLimits, DropReason, FilterReason, Message, MetaMap, Metadata, Number, Payload, PerMapCache,
    Remembered, Text, Value, json, key,
};
use thalweg_telemetry::{COMPONENT_LABELS, IntCounter, MetricDoc, metric_group};

use self::algorithm::{AlgorithmSettings, AlgorithmState, Point, PointVerdict, SettingsKey};
use self::config::{DownsamplerConfig, LatePolicy, SeriesPolicy, is_crossed};
use crate::lost_value::lacks_value;
use crate::metrics::{MESSAGES_ERRORED, MESSAGES_PROCESSED};
use crate::time::whole_ms;

pub(crate) use self::config::parse;

/// Metadata keys that name the algorithm and settings which kept the point, or why it passed without one.
const DOWNSAMPLED_BY: &str = "downsampled_by";
const CONFIG: &str = "downsampling_config";
/// `downsampled_by` of points that are older than the newest one of their series, and pass.
const LATE: &str = "late";
/// Metadata keys with which messages override the settings.
const DS_ALGORITHM: &str = "ds_algorithm";
const DS_THRESHOLD: &str = "ds_threshold";
const DS_MIN_TIME: &str = "ds_min_time";
const DS_MAX_TIME: &str = "ds_max_time";
const DS_LATE_POLICY: &str = "ds_late_policy";
const DS_IGNORE: &str = "ds_ignore";
const DS_KEYS: [&str; 5] = [DS_ALGORITHM, DS_THRESHOLD, DS_MIN_TIME, DS_MAX_TIME, DS_LATE_POLICY];

/// A series without a maximum time is idle after this.
const IDLE: Duration = Duration::from_secs(4 * 3600);
/// Maximum number of tracked series; points of further series pass unchanged.
const SERIES_MAX: usize = if cfg!(test) { 20_000 } else { 2_000_000 };
/// Maximum number of cached settings texts. Messages with endlessly new settings still get theirs, formatted for each.
const TEXTS_MAX: usize = 1024;

pub(crate) struct DownsamplerSpec {
    config: Arc<DownsamplerConfig>,
}

impl ProcessorSpec for DownsamplerSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(Downsampler::new(self.config.clone(), context)))
    }

    fn holds_back(&self) -> Option<&'static str> {
        self.config.has_door().then_some("swinging_door")
    }
}

metric_group! {
    pub(crate) DOWNSAMPLER_METRICS("Processor `downsampler`", COMPONENT_LABELS) {
        PROCESSED = MESSAGES_PROCESSED.meaning("Points that went through an algorithm.");
        FILTERED = MetricDoc::counter("messages_filtered", "Points that are not worth keeping.");
        ERRORED = MESSAGES_ERRORED.meaning("Samples without a usable value, which pass.");
        PASSED_THROUGH = MetricDoc::counter(
            "messages_passed_through",
            "Messages that are not samples, and late points that pass.",
        );
        IGNORED = MetricDoc::counter("messages_ignored", "Messages with ds_ignore, which pass.");
        OVERRIDES_APPLIED = MetricDoc::counter(
            "meta_overrides_applied",
            "Messages with their own settings in metadata.",
        );
        OVERRIDES_REJECTED = MetricDoc::counter(
            "meta_overrides_rejected",
            "Settings in metadata that cannot be used.",
        );
        RECREATIONS = MetricDoc::counter("meta_override_recreations", "Series that restarted with other settings.");
    }
}

struct DownsamplerMetrics {
    processed: IntCounter,
    filtered: IntCounter,
    errored: IntCounter,
    passed_through: IntCounter,
    ignored: IntCounter,
    overrides_applied: IntCounter,
    overrides_rejected: IntCounter,
    recreations: IntCounter,
}

struct Downsampler {
    config: Arc<DownsamplerConfig>,
    series: HashMap<Text, SeriesState>,
    /// When to check series that hold a point back.
    due: BinaryHeap<Reverse<(Instant, Text)>>,
    /// Metadata with the keys that mark a point, by the original map and the settings that kept it; `None` for a late one.
    marked: PerMapCache<Arc<MetaMap>, Option<SettingsKey>>,
    /// Texts of settings in use, so that they are shared.
    texts: Remembered<SettingsKey, Text>,
    counters: DownsamplerMetrics,
    context: StageContext,
}

/// The state of a topic.
struct SeriesState {
    choice: SeriesPolicy,
    state: AlgorithmState,
    newest: Option<i64>,
    /// The last value that is not a number.
    last: Option<Value>,
    held: Option<PendingPoint>,
    /// When its newest point arrived; repeated and late points do not count.
    arrived: Instant,
    is_in_due: bool,
}

struct PendingPoint {
    message: Message,
    ack: Ack,
}

/// The result of a batch.
struct BatchOutput {
    messages: Vec<Message>,
    ack: Ack,
}

impl BatchOutput {
    /// Passes on a message that was held back.
    fn release(&mut self, held: PendingPoint) {
        self.messages.push(held.message);
        self.ack.merge(held.ack);
    }
}

/// Why a point is passed on.
#[derive(Clone, Copy)]
enum PassedPoint {
    Kept(AlgorithmSettings),
    Late,
}

/// The parts of a sample.
struct Sample {
    value: Value,
    time_ms: i64,
}

impl Processor for Downsampler {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        let Batch { messages, ack } = batch;
        let mut output = BatchOutput {
            messages: Vec::with_capacity(messages.len()),
            ack,
        };
        let now = clock::now();
        for message in messages {
            self.one(message, now, &mut output);
        }
        let BatchOutput { messages, ack } = output;
        if messages.is_empty() {
            return ack.delivered();
        }
        out.push(Batch::new(messages, ack));
    }

    fn next_tick(&self) -> Option<Instant> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    fn tick(&mut self, now: Instant, out: &mut Vec<Batch>) {
        while let Some(Reverse((due, topic))) = self.due.pop() {
            if due > now {
                self.due.push(Reverse((due, topic)));
                break;
            }
            let Some(series) = self.series.get_mut(&topic) else {
                continue;
            };
            series.is_in_due = false;
            if series.held.is_none() {
                continue;
            }
            let idle_at = series.arrived + idle(&series.choice.settings);
            if idle_at > now {
                series.is_in_due = true;
                self.due.push(Reverse((idle_at, topic)));
                continue;
            }
            series.state.release();
            out.extend(series.held.take().map(batch_of));
        }
    }

    fn flush(&mut self, out: &mut Vec<Batch>) {
        for series in self.series.values_mut() {
            series.state.release();
            series.is_in_due = false;
            out.extend(series.held.take().map(batch_of));
        }
        self.due.clear();
    }
}

fn batch_of(held: PendingPoint) -> Batch {
    Batch::new(vec![held.message], held.ack)
}

fn idle(settings: &AlgorithmSettings) -> Duration {
    match settings.max_time() {
        Duration::ZERO => IDLE,
        max_time => max_time,
    }
}

impl SeriesPolicy {
    /// Applies `ds_min_time` or `ds_max_time`. Only the swinging door has a minimum time.
    fn set_time(&mut self, name: &str, time: Duration, is_door: bool) {
        match (name, is_door) {
            (DS_MIN_TIME, _) => self.door.min_time = time,
            (_, true) => self.door.max_time = time,
            (_, false) => self.deadband.max_time = time,
        }
    }
}

impl Downsampler {
    fn new(config: Arc<DownsamplerConfig>, context: StageContext) -> Downsampler {
        let counter = |doc: &MetricDoc| context.component.counter(doc);
        let counters = DownsamplerMetrics {
            processed: counter(&PROCESSED),
            filtered: counter(&FILTERED),
            errored: counter(&ERRORED),
            passed_through: counter(&PASSED_THROUGH),
            ignored: counter(&IGNORED),
            overrides_applied: counter(&OVERRIDES_APPLIED),
            overrides_rejected: counter(&OVERRIDES_REJECTED),
            recreations: counter(&RECREATIONS),
        };
        Downsampler {
            config,
            series: HashMap::new(),
            due: BinaryHeap::new(),
            marked: PerMapCache::default(),
            texts: Remembered::within(CacheLimits::entries(TEXTS_MAX)),
            counters,
            context,
        }
    }

    fn one(&mut self, mut message: Message, now: Instant, output: &mut BatchOutput) {
        let topic = message.meta.text(key::UMH_TOPIC);
        let (Some(topic), Some(sample)) = (topic, sample_of(&message.payload)) else {
            self.counters.passed_through.inc();
            return output.messages.push(message);
        };
        if self.config.allow_meta_overrides && message.meta.contains(DS_IGNORE) {
            self.counters.ignored.inc();
            message.meta.remove(DS_IGNORE);
            message.meta.set(DOWNSAMPLED_BY, "ignored");
            return output.messages.push(message);
        }
        let value = match &sample.value {
            Value::Bool(_) | Value::Text(_) => None,
            other => match Number::of(other).filter(|number| number.as_f64().is_finite()) {
                Some(v) => Some(v),
                None => {
                    self.counters.errored.inc();
                    if lacks_value(&message) {
                        self.lost(&topic, output);
                    }
                    return output.messages.push(message);
                }
            },
        };
        let choice = self.choice(&topic, &message.meta);
        if !self.begin(&topic, choice, now, output) {
            self.counters.passed_through.inc();
            return output.messages.push(message);
        }
        let Some(series) = self.series.get_mut(&topic) else {
            return output.messages.push(message);
        };
        if series.newest == Some(sample.time_ms) {
            self.counters.filtered.inc();
            return output.ack.filtered(FilterReason::DuplicateTimestamp, 1);
        }
        match value {
            Some(v) => self.number(topic, Point { t: sample.time_ms, v }, message, now, output),
            None => self.other(&topic, sample, message, output),
        }
    }

    /// The tag has lost its value. What is held back goes on before, and the next value after it, even if it is the same.
    fn lost(&mut self, topic: &Text, output: &mut BatchOutput) {
        let Some(series) = self.series.get_mut(topic) else {
            return;
        };
        if let Some(held) = series.held.take() {
            output.release(held);
        }
        series.state = AlgorithmState::new(series.choice.settings);
        series.last = None;
    }

    /// The policy for a message: the configured one, with the message's own overrides.
    fn choice(&self, topic: &str, meta: &Metadata) -> SeriesPolicy {
        let mut choice = self.config.of(topic);
        if !self.config.allow_meta_overrides || !DS_KEYS.iter().any(|name| meta.contains(name)) {
            return choice;
        }
        let mut is_applied = false;
        let reject = |name: &str, text: &str| {
            self.counters.overrides_rejected.inc();
            self.context
                .component
                .warn_limited("override", 1, || format!("bad {name}: {text}"));
        };
        let mut is_door = matches!(choice.settings, AlgorithmSettings::Door(_));
        match meta.get(DS_ALGORITHM).as_deref() {
            None => {}
            Some("deadband") => (is_door, is_applied) = (false, true),
            Some("swinging_door") => (is_door, is_applied) = (true, true),
            Some(other) => reject(DS_ALGORITHM, other),
        }
        if let Some(text) = meta.get(DS_THRESHOLD) {
            match text.parse::<f64>() {
                Ok(threshold) if threshold.is_finite() && threshold >= 0.0 => match is_door {
                    true => (choice.door.threshold, is_applied) = (threshold, true),
                    false => (choice.deadband.threshold, is_applied) = (threshold, true),
                },
                _ => reject(DS_THRESHOLD, &text),
            }
        }
        let times = [DS_MIN_TIME, DS_MAX_TIME].map(|name| {
            let text = meta.get(name)?;
            let time = thalweg_config::parse_duration(&text);
            time.map_err(|_| reject(name, &text))
                .ok()
                .map(|time| (name, text, time))
        });
        // The two may be valid together even if one alone is not.
        let mut together = choice;
        for (name, _, time) in times.iter().flatten() {
            together.set_time(name, *time, is_door);
        }
        if !is_crossed(&together.door) {
            is_applied |= times.iter().any(Option::is_some);
            choice = together;
        } else {
            for (name, text, time) in times.iter().flatten() {
                let mut with = choice;
                with.set_time(name, *time, is_door);
                match is_crossed(&with.door) {
                    true => reject(name, text),
                    false => (choice, is_applied) = (with, true),
                }
            }
        }
        if let Some(text) = meta.get(DS_LATE_POLICY) {
            match LatePolicy::named(&text) {
                Some(late) => (choice.late, is_applied) = (late, true),
                None => reject(DS_LATE_POLICY, &text),
            }
        }
        if is_applied {
            self.counters.overrides_applied.inc();
        }
        choice.settings = match is_door {
            true => AlgorithmSettings::Door(choice.door),
            false => AlgorithmSettings::Deadband(choice.deadband),
        };
        choice
    }

    /// Makes sure that a series exists, with this policy. `false` if there are too many.
    fn begin(&mut self, topic: &Text, choice: SeriesPolicy, now: Instant, output: &mut BatchOutput) -> bool {
        let is_full = self.series.len() >= SERIES_MAX;
        match self.series.get_mut(topic) {
            Some(series) if series.choice.settings == choice.settings => {
                series.choice.late = choice.late;
                true
            }
            Some(series) => {
                // Other settings start a new state; a point held back under the old ones is released.
                self.counters.recreations.inc();
                if let Some(held) = series.held.take() {
                    output.release(held);
                }
                series.choice = choice;
                series.state = AlgorithmState::new(choice.settings);
                true
            }
            None if is_full => {
                self.context.component.warn_limited("series", 1, || {
                    format!("more than {SERIES_MAX} topics; points of further ones pass as they are")
                });
                false
            }
            None => {
                let series = SeriesState {
                    choice,
                    state: AlgorithmState::new(choice.settings),
                    newest: None,
                    last: None,
                    held: None,
                    arrived: now,
                    is_in_due: false,
                };
                self.series.insert(topic.clone(), series);
                true
            }
        }
    }

    fn number(&mut self, topic: Text, point: Point, mut message: Message, now: Instant, output: &mut BatchOutput) {
        let Some(series) = self.series.get_mut(&topic) else {
            return output.messages.push(message);
        };
        if series.newest.is_some_and(|newest| point.t < newest) {
            return match series.choice.late {
                LatePolicy::Passthrough => {
                    self.counters.passed_through.inc();
                    self.mark(&mut message.meta, PassedPoint::Late);
                    output.messages.push(message);
                }
                LatePolicy::Drop => output.ack.dropped(DropReason::Late, 1),
            };
        }
        (series.newest, series.arrived) = (Some(point.t), now);
        self.counters.processed.inc();
        let settings = *series.state.settings();
        let reason = match settings {
            AlgorithmSettings::Deadband(_) => FilterReason::Deadband,
            AlgorithmSettings::Door(_) => FilterReason::SwingingDoor,
        };
        let verdict = series.state.point(point);
        if verdict == PointVerdict::Filter {
            self.counters.filtered.inc();
            return output.ack.filtered(reason, 1);
        }
        // A point held back before is dropped, or passed on first.
        match (series.held.take(), verdict) {
            (Some(held), PointVerdict::EmitHeldAndHold) => output.release(held),
            (Some(mut held), _) => {
                self.counters.filtered.inc();
                held.ack.filtered(reason, 1);
            }
            (None, _) => {}
        }
        self.mark(&mut message.meta, PassedPoint::Kept(settings));
        if verdict == PointVerdict::Emit {
            return output.messages.push(message);
        }
        let ack = output.ack.split(1);
        if let Some(series) = self.series.get_mut(&topic) {
            message.payload.detach();
            series.held = Some(PendingPoint { message, ack });
            if !series.is_in_due {
                series.is_in_due = true;
                self.due.push(Reverse((now + idle(&settings), topic)));
            }
        }
    }

    /// Booleans and texts: keeps the first one, and each change.
    fn other(&mut self, topic: &Text, sample: Sample, mut message: Message, output: &mut BatchOutput) {
        let Some(series) = self.series.get_mut(topic) else {
            return output.messages.push(message);
        };
        series.newest = series.newest.max(Some(sample.time_ms));
        self.counters.processed.inc();
        if series.last.as_ref() == Some(&sample.value) {
            self.counters.filtered.inc();
            return output.ack.filtered(FilterReason::Unchanged, 1);
        }
        series.last = Some(sample.value);
        let settings = *series.state.settings();
        self.mark(&mut message.meta, PassedPoint::Kept(settings));
        output.messages.push(message);
    }

    /// Marks a point with why it is passed on. Messages of a tag share this metadata too.
    fn mark(&mut self, meta: &mut Metadata, passed: PassedPoint) {
        let (name, settings, key) = match passed {
            PassedPoint::Kept(settings) => (settings.name(), Some(settings), Some(settings.key())),
            PassedPoint::Late => (LATE, None, None),
        };
        if meta.is_changed() || (settings.is_none() && meta.contains(CONFIG)) {
            meta.set(DOWNSAMPLED_BY, name);
            return match settings {
                Some(settings) => meta.set(CONFIG, self.text(settings)),
                None => meta.remove(CONFIG),
            };
        }
        let map = meta.shared_map();
        if let Some(marked) = self.marked.get(map, key) {
            *meta = meta.with_shared(marked.clone());
            return;
        }
        let by = (Text::new_static(DOWNSAMPLED_BY), Text::new_static(name));
        let with = settings.map(|settings| (Text::new_static(CONFIG), self.text(settings)));
        let entries = map.iter().map(|(name, text)| (name.clone(), text.clone()));
        let marked = Arc::new(MetaMap::new(entries.chain([by]).chain(with), map.series()));
        self.marked.insert(map, key, marked.clone(), marked.memory_bytes());
        *meta = meta.with_shared(marked);
    }

    fn text(&mut self, settings: AlgorithmSettings) -> Text {
        let key = settings.key();
        self.texts.get_or_insert_with(&key, || {
            let text = Text::from(settings.to_string());
            let bytes = text.len();
            (key, text, bytes)
        })
    }
}

/// The sample in a payload, if it is exactly that.
fn sample_of(payload: &Payload) -> Option<Sample> {
    let parsed;
    let value = match payload {
        Payload::Sample { value, time_ms } => {
            return Some(Sample {
                value: value.clone(),
                time_ms: *time_ms,
            });
        }
        Payload::Value(value) => value,
        Payload::Raw(bytes) => {
            parsed = json::parse(bytes).ok()?;
            &parsed
        }
    };
    let Value::Object(object) = value else {
        return None;
    };
    let (value, time) = (object.get("value")?, object.get("timestamp_ms")?);
    (object.len() == 2).then_some(Sample {
        value: value.clone(),
        time_ms: whole_ms(time)?,
    })
}

#[cfg(test)]
mod tests;
