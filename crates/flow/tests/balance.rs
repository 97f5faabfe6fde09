//! Random flows with random faults: whatever stages and outputs do, no message is lost or counted twice, every batch is
//! settled exactly once, and a series keeps its order.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use thalweg_config::{Diagnostics, LoadOptions, Source, load};
use thalweg_flow::{
    Backoff, BoxFuture, BuildContext, BuildError, Flow, FlowEnvironment, FlowSpec, Input, InputContext, InputError, InputSpec,
    Output, OutputSpec, ParseContext, Processor, ProcessorSpec, Registry, Rejection, StageContext, WriteError,
};
use thalweg_record::{Batch, DropReason, FilterReason, Message, Outcome};

/// What a test run sees from the outside.
#[derive(Default)]
struct Seen {
    settled: AtomicUsize,
    nacked: AtomicUsize,
    /// Delivered messages as (series, number), in the order of delivery.
    delivered: Mutex<Vec<(u64, u64)>>,
}

/// A repeatable source of decisions.
#[derive(Clone)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[derive(Clone, Debug)]
enum Kind {
    /// Filters, drops, fails or expands messages.
    Change,
    /// Cuts batches in two.
    Cut,
    /// Holds messages back until a tick or the end.
    Hold,
}

#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    batches: Vec<usize>,
    series: u64,
    threads: usize,
    stages: Vec<Kind>,
    in_flight: usize,
    faults: bool,
    dead_letter: bool,
}

struct TestInput(Plan, Arc<Seen>);

impl InputSpec for TestInput {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(TestInput(self.0.clone(), self.1.clone())))
    }
}

impl Input for TestInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            context.connection.up();
            let mut number = 0;
            for size in &self.0.batches {
                let messages = (0..*size).map(|_| {
                    number += 1;
                    let mut message = Message::raw(number.to_string());
                    message.meta.set("umh_topic", (number % self.0.series).to_string());
                    message
                });
                let seen = self.1.clone();
                let settle = move |outcome| {
                    seen.settled.fetch_add(1, Ordering::SeqCst);
                    seen.nacked
                        .fetch_add(usize::from(outcome == Outcome::Nacked), Ordering::SeqCst);
                };
                if context.sink.send_all(messages.collect(), settle).await.is_err() {
                    break;
                }
            }
            Ok(())
        })
    }
}

struct TestStage(Kind, AtomicU64);

impl ProcessorSpec for TestStage {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        let dice = Dice(self.1.fetch_add(7, Ordering::Relaxed));
        Ok(match self.0 {
            Kind::Change => Box::new(Change { dice, context }),
            Kind::Cut => Box::new(Cut),
            Kind::Hold => Box::new(Hold { held: None, due: None }),
        })
    }
}

struct Change {
    dice: Dice,
    context: StageContext,
}

impl Processor for Change {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        let Batch { messages, mut ack } = batch;
        let mut kept = Vec::new();
        for message in messages {
            match self.dice.roll(12) {
                0 => ack.filtered(FilterReason::Unchanged, 1),
                1 => self
                    .context
                    .fail(&mut ack, message, DropReason::ScriptError, "it fails"),
                2 => {
                    ack.expanded(2);
                    kept.extend([message.clone(), message.clone(), message]);
                }
                _ => kept.push(message),
            }
        }
        out.push(Batch::new(kept, ack));
    }
}

struct Cut;

impl Processor for Cut {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        let Batch { mut messages, mut ack } = batch;
        let tail = messages.split_off(messages.len() / 2);
        let tail_ack = ack.split(tail.len());
        out.push(Batch::new(messages, ack));
        out.push(Batch::new(tail, tail_ack));
    }
}

struct Hold {
    held: Option<Batch>,
    due: Option<Instant>,
}

impl Processor for Hold {
    fn process(&mut self, batch: Batch, _: &mut Vec<Batch>) {
        match &mut self.held {
            Some(held) => held.append(batch),
            None => self.held = Some(batch),
        }
        self.due.get_or_insert(Instant::now() + Duration::from_millis(2));
    }

    fn next_tick(&self) -> Option<Instant> {
        self.due
    }

    fn tick(&mut self, _: Instant, out: &mut Vec<Batch>) {
        self.flush(out);
    }

    fn flush(&mut self, out: &mut Vec<Batch>) {
        self.due = None;
        out.extend(self.held.take());
    }
}

struct TestOutput {
    seen: Arc<Seen>,
    dice: Mutex<Dice>,
    in_flight: usize,
    faults: bool,
}

struct TestOutputSpec(Plan, Arc<Seen>);

impl OutputSpec for TestOutputSpec {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        let dice = Mutex::new(Dice(self.0.seed));
        Ok(Arc::new(TestOutput {
            seen: self.1.clone(),
            dice,
            in_flight: self.0.in_flight,
            faults: self.0.faults,
        }))
    }
}

impl Output for TestOutput {
    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let mut dice = self.dice.lock().unwrap();
        // Retries may reorder writes that are in flight together, so only an output with one of them may fail for now.
        let temporary = self.faults && self.in_flight == 1;
        if temporary && dice.roll(8) == 0 {
            return Box::pin(async { Err(WriteError::Temporary("not now".to_owned())) });
        }
        let mut rejections = Vec::new();
        let mut stop = false;
        for (index, message) in messages.iter().enumerate() {
            let text = String::from_utf8(message.bytes().into_owned()).unwrap();
            let number = text.parse().unwrap();
            if self.faults && dice.roll(20) == 0 {
                rejections.push(Rejection::permanent(index, DropReason::OutputRejected, "never"));
            } else if stop || (temporary && dice.roll(20) == 0) {
                // What follows a message that must wait, waits too: that is how an output keeps order.
                stop = true;
                rejections.push(Rejection::temporary(index, "later"));
            } else {
                let series = message.meta.get("umh_topic").unwrap().parse().unwrap();
                self.seen.delivered.lock().unwrap().push((series, number));
            }
        }
        let pause = Duration::from_micros(dice.roll(300));
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            if rejections.is_empty() {
                Ok(())
            } else {
                Err(WriteError::Some(rejections))
            }
        })
    }

    fn max_in_flight(&self) -> usize {
        self.in_flight
    }

    fn backoff(&self) -> Backoff {
        Backoff {
            first: Duration::from_micros(200),
            max: Duration::from_millis(5),
        }
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    let kind = prop_oneof![Just(Kind::Change), Just(Kind::Cut), Just(Kind::Hold)];
    let shape = (
        any::<u64>(),
        prop::collection::vec(0usize..30, 0..40),
        1u64..9,
        1usize..5,
    );
    let rest = (
        prop::collection::vec(kind, 0..4),
        prop_oneof![Just(1usize), Just(4)],
        any::<bool>(),
        any::<bool>(),
    );
    (shape, rest).prop_map(
        |((seed, batches, series, threads), (stages, in_flight, faults, dead_letter))| Plan {
            seed,
            batches,
            series,
            threads,
            stages,
            in_flight,
            faults,
            dead_letter,
        },
    )
}

fn build(
    plan: &Plan,
    seen: &Arc<Seen>,
    letters: &Arc<Seen>,
    runtime: &tokio::runtime::Runtime,
) -> (Flow, Option<thalweg_flow::DeadLetterOutput>) {
    let mut registry = Registry::new();
    let (p, s) = (plan.clone(), seen.clone());
    registry.input("test", move |_, _| Some(Arc::new(TestInput(p.clone(), s.clone()))));
    let (p, s) = (plan.clone(), seen.clone());
    registry.output("test", move |_, _| Some(Arc::new(TestOutputSpec(p.clone(), s.clone()))));
    let mut stages = String::new();
    for (number, kind) in plan.stages.iter().enumerate() {
        let name: &'static str = ["s0", "s1", "s2", "s3"][number];
        let (kind, seed) = (kind.clone(), plan.seed);
        registry.processor(name, move |_, _| {
            Some(Arc::new(TestStage(kind.clone(), AtomicU64::new(seed))))
        });
        stages += &format!("    - {name}: {{}}\n");
    }
    let stages = if stages.is_empty() {
        "    []\n".to_owned()
    } else {
        stages
    };
    let text = format!(
        "input: {{test: {{}}}}\npipeline:\n  threads: {}\n  processors:\n{stages}output: {{test: {{}}}}\n",
        plan.threads
    );
    let loaded = load(&Source::new("test.yaml", text), &|_| None, &LoadOptions::default());
    let diagnostics = Diagnostics::new("test.yaml");
    let mut context = ParseContext::new(&diagnostics, &registry, &loaded.config);
    let spec = FlowSpec::parse(&loaded.config.flows[0], &mut context);
    assert!(
        !diagnostics.has_errors() && !loaded.diagnostics.has_errors(),
        "{:?}",
        diagnostics.sorted()
    );
    let mut environment = FlowEnvironment {
        metrics: Arc::default(),
        data_dir: std::env::temp_dir(),
        runtime: runtime.handle().clone(),
        dead_letters: None,
    };
    let quiet = Plan {
        faults: false,
        ..plan.clone()
    };
    let dead: Arc<dyn OutputSpec> = Arc::new(TestOutputSpec(quiet, letters.clone()));
    let dead = plan.dead_letter.then(|| {
        let dead =
            thalweg_flow::DeadLetterOutput::start(("test", "root.dead_letter", ""), &dead, &environment).unwrap();
        environment.dead_letters = Some(dead.letters());
        dead
    });
    let flow = Flow::start(spec.unwrap(), &environment).unwrap();
    (flow, dead)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_or_counted_twice(plan in plan(), stop_early in any::<bool>()) {
        let (seen, letters) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let _guard = runtime.enter();
        let (flow, dead) = build(&plan, &seen, &letters, &runtime);
        let handle = flow.handle();
        let report = runtime.block_on(async {
            if !stop_early {
                let watch = async {
                    loop {
                        let counts = handle.counts();
                        assert!(counts.adds_up(), "{counts}");
                        tokio::time::sleep(Duration::from_micros(200)).await;
                    }
                };
                tokio::select! { () = flow.ended() => {}, () = watch => {} }
            }
            let report = flow.stop(Duration::from_secs(30)).await;
            if let Some(dead) = dead {
                dead.stop(Duration::from_secs(30)).await;
            }
            report
        });
        let counts = handle.counts();
        prop_assert!(counts.adds_up(), "{counts}");
        prop_assert_eq!(counts.in_flight, 0, "{}", counts);
        prop_assert_eq!(counts.dropped(DropReason::Shutdown), 0, "an orderly stop gives nothing up: {:?}", report);
        prop_assert_eq!(seen.nacked.load(Ordering::SeqCst), 0);
        let delivered = seen.delivered.lock().unwrap();
        prop_assert_eq!(delivered.len() as u64, counts.out, "{}", counts);
        let failed = counts.dropped(DropReason::ScriptError) + counts.dropped(DropReason::OutputRejected);
        let taken = if plan.dead_letter { failed } else { 0 };
        prop_assert_eq!(letters.delivered.lock().unwrap().len() as u64, taken);
        if !stop_early {
            prop_assert_eq!(seen.settled.load(Ordering::SeqCst), plan.batches.len());
            prop_assert_eq!(counts.entered - counts.expanded, plan.batches.iter().sum::<usize>() as u64);
        }
        let mut last: HashMap<u64, u64> = HashMap::new();
        for (series, number) in delivered.iter() {
            let before = last.insert(*series, *number);
            prop_assert!(before.is_none_or(|before| before <= *number), "series {series}: {number} after {before:?}");
        }
    }
}

/// An output that never confirms: the stop gives up what is left, says how much, and nacks the source.
#[test]
fn a_stop_that_times_out_counts_what_it_gives_up() {
    struct Stuck;
    impl OutputSpec for Stuck {
        fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
            Ok(Arc::new(Stuck))
        }
    }
    impl Output for Stuck {
        fn write(&self, _: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
            Box::pin(std::future::pending())
        }
    }
    let plan = Plan {
        seed: 1,
        batches: vec![10; 5],
        series: 3,
        threads: 2,
        stages: vec![],
        in_flight: 1,
        faults: false,
        dead_letter: false,
    };
    let seen = Arc::new(Seen::default());
    let mut registry = Registry::new();
    let (p, s) = (plan.clone(), seen.clone());
    registry.input("test", move |_, _| Some(Arc::new(TestInput(p.clone(), s.clone()))));
    registry.output("stuck", move |_, _| Some(Arc::new(Stuck)));
    let loaded = load(
        &Source::new("t", "input: {test: {}}\noutput: {stuck: {}}\n"),
        &|_| None,
        &LoadOptions::default(),
    );
    let diagnostics = Diagnostics::new("t");
    let spec = FlowSpec::parse(
        &loaded.config.flows[0],
        &mut ParseContext::new(&diagnostics, &registry, &loaded.config),
    )
    .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let environment = FlowEnvironment {
        metrics: Arc::default(),
        data_dir: std::env::temp_dir(),
        runtime: runtime.handle().clone(),
        dead_letters: None,
    };
    let flow = Flow::start(spec, &environment).unwrap();
    let handle = flow.handle();
    let report = runtime.block_on(async {
        while handle.counts().entered < 50 {
            tokio::task::yield_now().await;
        }
        flow.stop(Duration::from_millis(50)).await
    });
    assert_eq!(report.unacknowledged, 50);
    assert_eq!(seen.nacked.load(Ordering::SeqCst), 5);
    assert!(handle.counts().adds_up() && handle.counts().in_flight == 0);
}
