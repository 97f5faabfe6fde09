//! Random flows with random faults: whatever stages and outputs do, no message is lost or counted twice, every batch is
//! settled exactly once, and a series keeps its order. This also holds when the flow gives up midway.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use thalweg_config::{Diagnostics, LoadOptions, SourceText, load};
use thalweg_flow::{
    Backoff, BoxFuture, BuildContext, BuildError, ComponentRegistry, DeadLetterOutput, Flow, FlowEnvironment, FlowSpec,
    Input, InputContext, InputError, InputSpec, OpenError, Output, OutputContext, OutputSpec, ParseContext, Processor,
    ProcessorSpec, Rejection, StageContext, WriteError,
};
use thalweg_record::{AckResult, BalanceCounts, Batch, DropReason, FilterReason, Message};

/// What a test run observes from outside.
#[derive(Default)]
struct Seen {
    begun: AtomicUsize,
    settled: AtomicUsize,
    nacked: AtomicUsize,
    /// By output number.
    outputs: Mutex<HashMap<usize, Taken>>,
}

/// What one output did.
#[derive(Clone, Default)]
struct Taken {
    /// Delivered messages as (series, number), in the order of delivery.
    delivered: Vec<(u64, u64)>,
    refused: usize,
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

/// A processor of a random flow.
#[derive(Clone, Debug)]
enum Stage {
    /// Filters, drops, fails or expands messages.
    Change,
    /// Cuts batches in two.
    Cut,
    /// Holds messages back until a tick or the end.
    Hold,
    /// Flags some messages.
    Flag,
    Split(u8),
    Try(Vec<Stage>),
    Catch(Vec<Stage>),
    /// Two cases; the flag says whether the first falls through.
    Switch(bool, Vec<Stage>, Vec<Stage>),
}

impl Stage {
    fn yaml(&self) -> String {
        let list = |stages: &[Stage]| {
            let all: Vec<String> = stages.iter().map(Stage::yaml).collect();
            format!("[{}]", all.join(", "))
        };
        match self {
            Stage::Change => "{change: {}}".to_owned(),
            Stage::Cut => "{cut: {}}".to_owned(),
            Stage::Hold => "{hold: {}}".to_owned(),
            Stage::Flag => {
                "{mapping: 'root = if content().string().number() % 5 == 1 { throw(\"one in five\") }'}".to_owned()
            }
            Stage::Split(size) => format!("{{split: {{size: {size}}}}}"),
            Stage::Try(stages) => format!("{{try: {}}}", list(stages)),
            Stage::Catch(stages) => format!("{{catch: {}}}", list(stages)),
            Stage::Switch(fallthrough, first, second) => format!(
                "{{switch: [{{check: content().string().number() % 3 == 1, fallthrough: {fallthrough}, processors: {}}}, \
                 {{processors: {}}}]}}",
                list(first),
                list(second)
            ),
        }
    }
}

/// The output of a random flow: one output, or several within nested brokers.
#[derive(Clone, Debug)]
enum Tree {
    Leaf,
    /// `fan_out` or `fan_out_sequential`; the second flag says whether the first child has its own processor.
    Fan(bool, bool, Vec<Tree>),
}

impl Tree {
    fn yaml(&self, leaves: &mut usize) -> String {
        match self {
            Tree::Leaf => {
                *leaves += 1;
                format!("test: {}", *leaves - 1)
            }
            Tree::Fan(sequential, processed, children) => {
                let pattern = if *sequential { "fan_out_sequential" } else { "fan_out" };
                let child = |(number, tree): (usize, &Tree)| {
                    let processors = match number == 0 && *processed {
                        true => ", processors: [{split: {size: 1}}, {mapping: root = content()}]",
                        false => "",
                    };
                    format!("{{{}{processors}}}", tree.yaml(leaves))
                };
                let all: Vec<String> = children.iter().enumerate().map(child).collect();
                format!("broker: {{pattern: {pattern}, outputs: [{}]}}", all.join(", "))
            }
        }
    }
}

/// How the dead letter behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Letters {
    None,
    Taken,
    /// It fails temporarily now and then, also when it is opened.
    Slow,
    /// It accepts nothing. Used only where the flow gives up at the end.
    Stuck,
}

#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    batches: Vec<usize>,
    series: u64,
    threads: usize,
    stages: Vec<Stage>,
    output: Tree,
    in_flight: usize,
    joins: usize,
    faults: bool,
    letters: Letters,
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
                seen.begun.fetch_add(1, Ordering::SeqCst);
                let settle = move |outcome| {
                    seen.nacked
                        .fetch_add(usize::from(outcome == AckResult::Nacked), Ordering::SeqCst);
                    seen.settled.fetch_add(1, Ordering::SeqCst);
                };
                if context.sink.send_all(messages.collect(), settle).await.is_err() {
                    break;
                }
            }
            Ok(())
        })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Change,
    Cut,
    Hold,
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

/// One output: rejects some messages permanently, fails on others temporarily, does not open immediately.
struct TestOutput {
    number: usize,
    seen: Arc<Seen>,
    dice: Mutex<Dice>,
    in_flight: usize,
    joins: usize,
    temporary: bool,
    refuses: bool,
    stuck: bool,
}

struct TestOutputSpec {
    number: usize,
    plan: Plan,
    seen: Arc<Seen>,
    /// `None` for an output of the flow.
    letters: Option<Letters>,
}

impl OutputSpec for TestOutputSpec {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        let faults = self.plan.faults && self.letters.is_none();
        Ok(Arc::new(TestOutput {
            number: self.number,
            seen: self.seen.clone(),
            dice: Mutex::new(Dice(self.plan.seed.wrapping_add(self.number as u64))),
            in_flight: self.plan.in_flight,
            joins: self.plan.joins,
            temporary: faults || self.letters == Some(Letters::Slow),
            refuses: faults,
            stuck: self.letters == Some(Letters::Stuck),
        }))
    }
}

impl Output for TestOutput {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        let fails = self.temporary && self.dice.lock().unwrap().roll(2) == 0;
        Box::pin(async move {
            if fails {
                return Err(OpenError::Temporary("not yet".to_owned()));
            }
            context.connection.up();
            Ok(())
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        if self.stuck {
            return Box::pin(std::future::pending());
        }
        let mut dice = self.dice.lock().unwrap();
        if self.temporary && dice.roll(8) == 0 {
            return Box::pin(async { Err(WriteError::Temporary("not now".to_owned())) });
        }
        let mut outputs = self.seen.outputs.lock().unwrap();
        let taken = outputs.entry(self.number).or_default();
        let mut rejections = Vec::new();
        let mut stop = false;
        for (index, message) in messages.iter().enumerate() {
            let text = String::from_utf8(message.bytes().into_owned()).unwrap();
            let number = text.parse().unwrap();
            if stop || (self.temporary && dice.roll(20) == 0) {
                // Messages after one that must wait also wait: an output keeps the order this way.
                stop = true;
                rejections.push(Rejection::temporary(index, "later"));
            } else if self.refuses && dice.roll(20) == 0 {
                taken.refused += 1;
                rejections.push(Rejection::permanent(index, DropReason::OutputRejected, "never"));
            } else {
                let series = message.meta.get("umh_topic").unwrap().parse().unwrap();
                taken.delivered.push((series, number));
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

    fn joins(&self) -> usize {
        self.joins
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(Duration::from_micros(200), Duration::from_millis(5)).with_jitter(0.5)
    }
}

/// Any processors, possibly nested. Held messages overtake others of their series inside a `switch`, so nothing is held
/// there.
fn stages() -> impl Strategy<Value = Vec<Stage>> {
    let simple = prop_oneof![
        Just(Stage::Change),
        Just(Stage::Cut),
        Just(Stage::Flag),
        (1u8..5).prop_map(Stage::Split),
    ];
    let nested = simple.prop_recursive(2, 8, 3, |inner| {
        let some = || prop::collection::vec(inner.clone(), 0..3);
        prop_oneof![
            some().prop_map(Stage::Try),
            some().prop_map(Stage::Catch),
            (any::<bool>(), some(), some()).prop_map(|(falls, a, b)| Stage::Switch(falls, a, b)),
        ]
    });
    prop::collection::vec(prop_oneof![4 => nested, 1 => Just(Stage::Hold)], 0..4)
}

fn tree() -> impl Strategy<Value = Tree> {
    Just(Tree::Leaf).prop_recursive(2, 6, 3, |inner| {
        let children = prop::collection::vec(inner, 1..4);
        (any::<bool>(), any::<bool>(), children)
            .prop_map(|(sequential, processed, c)| Tree::Fan(sequential, processed, c))
    })
}

fn plan(letters: &'static [Letters]) -> impl Strategy<Value = Plan> {
    let shape = (
        any::<u64>(),
        prop::collection::vec(0usize..30, 0..40),
        1u64..9,
        1usize..5,
    );
    let rest = (
        stages(),
        tree(),
        prop_oneof![Just(1usize), Just(4)],
        prop_oneof![Just(1usize), Just(5)],
        any::<bool>(),
        prop::sample::select(letters),
    );
    (shape, rest).prop_map(
        |((seed, batches, series, threads), (stages, output, in_flight, joins, faults, letters))| Plan {
            seed,
            batches,
            series,
            threads,
            stages,
            output,
            in_flight,
            joins,
            faults,
            letters,
        },
    )
}

/// A running plan.
struct Run {
    flow: Flow,
    dead_letter: Option<DeadLetterOutput>,
    /// The number of outputs in the tree.
    leaves: usize,
    seen: Arc<Seen>,
    letters: Arc<Seen>,
}

fn start(plan: &Plan, runtime: &tokio::runtime::Runtime) -> Run {
    let (seen, letters) = (Arc::new(Seen::default()), Arc::new(Seen::default()));
    let mut registry = ComponentRegistry::new();
    let (p, s) = (plan.clone(), seen.clone());
    registry.input("test", "", move |_, _| Some(Arc::new(TestInput(p.clone(), s.clone()))));
    let (p, s) = (plan.clone(), seen.clone());
    registry.output("test", "", move |node, _| {
        Some(Arc::new(TestOutputSpec {
            number: node.body.scalar_text()?.parse().ok()?,
            plan: p.clone(),
            seen: s.clone(),
            letters: None,
        }))
    });
    for (name, kind) in [("change", Kind::Change), ("cut", Kind::Cut), ("hold", Kind::Hold)] {
        let seed = plan.seed;
        registry.processor(name, "", move |_, _| {
            Some(Arc::new(TestStage(kind, AtomicU64::new(seed))))
        });
    }
    let mut leaves = 0;
    let stages: Vec<String> = plan.stages.iter().map(Stage::yaml).collect();
    let text = format!(
        "input: {{test: {{}}}}\npipeline: {{threads: {}, processors: [{}]}}\noutput: {{{}}}\n",
        plan.threads,
        stages.join(", "),
        plan.output.yaml(&mut leaves)
    );
    let loaded = load(&SourceText::new("test.yaml", text), &|_| None, &LoadOptions::default());
    let diagnostics = Diagnostics::new("test.yaml");
    let mut context = ParseContext::new(&diagnostics, &registry, &loaded.config);
    let spec = FlowSpec::parse(&loaded.config.flows[0], &mut context);
    assert!(
        !diagnostics.has_errors() && !loaded.diagnostics.has_errors(),
        "{diagnostics}{}",
        loaded.diagnostics
    );
    let mut environment = FlowEnvironment {
        metrics: Arc::default(),
        data_dir: std::env::temp_dir(),
        runtime: runtime.handle().clone(),
        dead_letters: None,
    };
    let dead: Arc<dyn OutputSpec> = Arc::new(TestOutputSpec {
        number: 0,
        plan: plan.clone(),
        seen: letters.clone(),
        letters: Some(plan.letters),
    });
    let dead_letter = (plan.letters != Letters::None).then(|| {
        let dead = DeadLetterOutput::start(("test", "root.dead_letter", ""), &dead, &environment).unwrap();
        environment.dead_letters = Some(dead.letters());
        dead
    });
    Run {
        flow: Flow::start(spec.unwrap(), &environment).unwrap(),
        dead_letter,
        leaves,
        seen,
        letters,
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

fn taken(seen: &Seen, output: usize) -> Taken {
    seen.outputs.lock().unwrap().get(&output).cloned().unwrap_or_default()
}

/// Checks the invariants that hold whatever happened.
fn check_account(counts: &BalanceCounts, seen: &Seen) -> Result<(), TestCaseError> {
    prop_assert!(counts.adds_up(), "{counts}");
    prop_assert_eq!(counts.in_flight, 0, "{}", counts);
    prop_assert_eq!(seen.settled.load(Ordering::SeqCst), seen.begun.load(Ordering::SeqCst));
    let given_up = counts.dropped(DropReason::Shutdown) > 0;
    prop_assert_eq!(seen.nacked.load(Ordering::SeqCst) > 0, given_up, "{}", counts);
    Ok(())
}

const PATIENCE: Duration = Duration::from_secs(60);

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_or_counted_twice(
        plan in plan(&[Letters::None, Letters::Taken, Letters::Slow]),
        stop_early in any::<bool>(),
    ) {
        let runtime = runtime();
        let _guard = runtime.enter();
        let Run { flow, dead_letter, leaves, seen, letters } = start(&plan, &runtime);
        let handle = flow.handle();
        runtime.block_on(async {
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
            flow.stop(PATIENCE).await;
            if let Some(dead) = dead_letter {
                dead.stop(PATIENCE).await;
            }
        });
        let report = handle.stop_report();
        let counts = report.counts;
        check_account(&counts, &seen)?;
        prop_assert_eq!(report.unacknowledged, 0, "an orderly stop gives nothing up: {:?}", report);
        prop_assert_eq!(report.failure, None);
        let failed = counts.dropped(DropReason::ScriptError) + counts.dropped(DropReason::OutputRejected);
        let dead = if plan.letters == Letters::None { 0 } else { failed };
        prop_assert_eq!(taken(&letters, 0).delivered.len() as u64, dead);
        if !stop_early {
            prop_assert_eq!(seen.settled.load(Ordering::SeqCst), plan.batches.len());
            prop_assert_eq!(counts.entered - counts.expanded, plan.batches.iter().sum::<usize>() as u64);
        }
        // Every output received every message from the processors once, and accepted or rejected it.
        let arrived = counts.out + counts.dropped(DropReason::OutputRejected);
        for leaf in 0..leaves {
            let taken = taken(&seen, leaf);
            prop_assert_eq!((taken.delivered.len() + taken.refused) as u64, arrived, "output {} of {}: {}", leaf, leaves, counts);
            if leaves == 1 {
                prop_assert_eq!(taken.refused as u64, counts.dropped(DropReason::OutputRejected));
            }
            // An output keeps the order of several writes in flight that fail temporarily; this one does not.
            if plan.in_flight > 1 && plan.faults {
                continue;
            }
            let mut last: HashMap<u64, u64> = HashMap::new();
            for (series, number) in taken.delivered {
                let before = last.insert(series, number);
                prop_assert!(before.is_none_or(|before| before <= number), "series {series}: {number} after {before:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_given_up_is_counted_once(
        plan in plan(&[Letters::None, Letters::Taken, Letters::Slow, Letters::Stuck]),
        after_us in 0u64..4000,
        time_us in 0u64..3000,
    ) {
        let runtime = runtime();
        let _guard = runtime.enter();
        let Run { flow, dead_letter, leaves, seen, .. } = start(&plan, &runtime);
        let handle = flow.handle();
        runtime.block_on(async {
            tokio::time::sleep(Duration::from_micros(after_us)).await;
            let time = Duration::from_micros(time_us);
            flow.stop(time).await;
            if let Some(dead) = dead_letter {
                dead.stop(time).await;
            }
        });
        let report = handle.stop_report();
        check_account(&report.counts, &seen)?;
        prop_assert_eq!(report.unacknowledged, report.counts.dropped(DropReason::Shutdown));
        // Messages counted as out arrived everywhere; more may have arrived whose confirmation came too late.
        for leaf in 0..leaves {
            prop_assert!(taken(&seen, leaf).delivered.len() as u64 >= report.counts.out, "output {leaf}: {report:?}");
        }
    }
}
