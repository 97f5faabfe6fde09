//! `generate`: creates messages with a mapping, at a fixed interval, at the times of a cron expression, or as fast as the
//! flow accepts them.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use thalweg_config::{ComponentNode, Fields, kind};
use thalweg_kit::clock;
use thalweg_mapping::{Mapping, MappingOutcome};
use thalweg_record::{Batch, DropReason, FilterReason, Message};

use super::cron::CronExpression;
use crate::BoxFuture;
use crate::component::{BuildContext, BuildError};
use crate::input::{Input, InputContext, InputError};
use crate::parse::{ParseContext, compile_error};
use crate::registry::InputSpec;

#[derive(Clone)]
struct GenerateInput {
    mapping: Arc<Mapping>,
    pace: Pace,
    /// 0 means no end.
    count: u64,
    batch_size: usize,
}

/// When batches are made.
#[derive(Clone, Debug, PartialEq)]
enum Pace {
    AsFastAsPossible,
    /// The first one at once.
    Every(Duration),
    /// The first one after this time, as with all cron expressions.
    AfterEvery(Duration),
    At(CronExpression),
}

impl Pace {
    fn read(fields: &mut Fields<'_>) -> Pace {
        let usual = Pace::Every(USUAL);
        let Some(node) = fields.node_or("interval", kind::INTERVAL, "1s") else {
            return usual;
        };
        let read = node.expect_text().and_then(|text| {
            let text = text.trim();
            match text.strip_prefix("@every ") {
                _ if text.is_empty() => Ok(Pace::AsFastAsPossible),
                Some(duration) => match thalweg_config::parse_duration(duration) {
                    Ok(Duration::ZERO) => Err("@every needs a duration of more than 0".to_owned()),
                    Ok(duration) => Ok(Pace::AfterEvery(duration)),
                    Err(form) => Err(format!("expected {form} behind @every")),
                },
                None if CronExpression::is_meant(text) => CronExpression::parse(text).map(Pace::At),
                None => Ok(match node.expect_duration()? {
                    Duration::ZERO => Pace::AsFastAsPossible,
                    duration => Pace::Every(duration),
                }),
            }
        });
        read.unwrap_or_else(|why| {
            fields.error("interval", why);
            usual
        })
    }
}

/// The default of `interval`.
const USUAL: Duration = Duration::from_secs(1);

/// What a running input waits with.
enum Pacer {
    AsFastAsPossible,
    Timer(tokio::time::Interval),
    Clock {
        expression: CronExpression,
        /// The wall clock when a batch was last due.
        last: Timestamp,
    },
}

/// The wall clock is read again after this time, because it may be set.
const CLOCK_CHECK: Duration = Duration::from_secs(30);

impl Pacer {
    fn new(pace: &Pace) -> Pacer {
        match pace {
            Pace::AsFastAsPossible => Pacer::AsFastAsPossible,
            Pace::Every(period) => Pacer::Timer(tokio::time::interval(*period)),
            Pace::AfterEvery(period) => {
                let first = clock::tokio_now() + *period;
                Pacer::Timer(tokio::time::interval_at(first, *period))
            }
            Pace::At(expression) => Pacer::Clock {
                expression: expression.clone(),
                last: wall_clock(),
            },
        }
    }

    /// Waits until the next batch is due. What was due while nobody waited is due once.
    async fn due(&mut self, context: &InputContext) {
        match self {
            Pacer::AsFastAsPossible => context.sink.has_room().await,
            Pacer::Timer(timer) => drop(timer.tick().await),
            Pacer::Clock { expression, last } => loop {
                let Some(due) = expression.next(*last) else {
                    return std::future::pending().await;
                };
                let now = wall_clock();
                if now >= due {
                    *last = now;
                    return;
                }
                // A clock that is a little behind is only being corrected; one that was set back counts from there.
                if last.duration_since(now) > SignedDuration::from_secs(60) {
                    *last = now;
                    continue;
                }
                let left = Duration::try_from(due.duration_since(now)).unwrap_or_default();
                tokio::time::sleep(left.min(CLOCK_CHECK)).await;
            },
        }
    }
}

fn wall_clock() -> Timestamp {
    Timestamp::try_from(clock::wall()).unwrap_or_default()
}

const BATCH_SIZE_MAX: i64 = 100_000;

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let diagnostics = context.diagnostics;
    let mut fields = Fields::new(&node.body, diagnostics);
    let mapping = fields.required_node("mapping", kind::PROGRAM);
    let pace = Pace::read(&mut fields);
    let count = fields.int_in("count", 0, 0..=i64::MAX).unsigned_abs();
    let batch_size = fields.int_in("batch_size", 1, 1..=BATCH_SIZE_MAX).unsigned_abs() as usize;
    super::read_auto_replay_nacks(&mut fields);
    fields.finish();
    let mapping = mapping?;
    let text = mapping
        .expect_text()
        .map_err(|error| diagnostics.error(&mapping, error));
    let mapping = Mapping::compile(text.ok()?)
        .map_err(|error| compile_error(&mapping, &error, diagnostics))
        .ok()?;
    Some(Arc::new(GenerateInput {
        mapping: Arc::new(mapping),
        pace,
        count,
        batch_size,
    }))
}

impl InputSpec for GenerateInput {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(self.clone()))
    }
}

impl Input for GenerateInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            context.connection.up();
            let mut pacer = Pacer::new(&self.pace);
            let mut made = 0;
            while self.count == 0 || made < self.count {
                tokio::select! {
                    biased;
                    () = context.stop.cancelled() => break,
                    () = pacer.due(&context) => {}
                }
                let left = if self.count == 0 { u64::MAX } else { self.count - made };
                let size = left.min(self.batch_size as u64) as usize;
                made += size as u64;
                if self.send(size, &context).await.is_err() {
                    break;
                }
            }
            Ok(())
        })
    }
}

impl GenerateInput {
    async fn send(&self, size: usize, context: &InputContext) -> Result<(), crate::SinkClosed> {
        let mut ack = context.sink.enter(size, |_| {});
        let mut messages: Vec<Message> = (0..size).map(|_| Message::raw("")).collect();
        let mut index = 0;
        while index < messages.len() {
            match self.mapping.apply(&mut messages, index) {
                Ok(MappingOutcome::Kept) => index += 1,
                Ok(MappingOutcome::Deleted) => {
                    messages.remove(index);
                    ack.filtered(FilterReason::MappingDeleted, 1);
                }
                Err(error) => {
                    messages.remove(index);
                    ack.dropped(DropReason::ScriptError, 1);
                    context
                        .component
                        .warn_limited("script_error", 1, || format!("the mapping failed: {error}"));
                }
            }
        }
        context.sink.send(Batch::new(messages, ack)).await
    }
}
