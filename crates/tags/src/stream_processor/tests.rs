//! Scenarios: from YAML and samples to results and mass balance.

use thalweg_record::{BalanceCounts, FlowBalance, MetaMap, Metadata, ValueQuality};
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::tag_processor::tests::{with_config, with_settings};

const LEFT: &str = "umh.v1.acme.berlin._raw.press.left";
const RIGHT: &str = "umh.v1.acme.berlin._raw.press.right";
const OUTPUT: &str = "umh.v1.acme.berlin._pump_v1";

fn yaml(mapping: &str) -> String {
    let mapping: String = mapping.lines().map(|line| format!("        {line}\n")).collect();
    format!(
        "  - stream_processor:
      mode: timeseries
      model: {{name: pump, version: v1}}
      output_topic: umh.v1.acme.berlin
      sources: {{left: {LEFT}, right: {RIGHT}}}
      mapping:
{mapping}"
    )
}

fn mistakes(yaml: &str) -> Vec<String> {
    with_config(yaml, config::parse).map(|_| ()).unwrap_err()
}

fn message(topic: &str, payload: &str) -> Message {
    let mut message = Message::raw(payload.to_owned().into_bytes());
    message.meta.set(key::UMH_TOPIC, topic);
    message
}

fn sample(topic: &str, time_ms: i64, value: impl Into<Value>) -> Message {
    let value = value.into();
    let mut message = Message::new(Payload::Sample { value, time_ms }, Metadata::default());
    message.meta.set(key::UMH_TOPIC, topic);
    message
}

fn left(time_ms: i64, value: i64) -> Message {
    sample(LEFT, time_ms, Value::I64(value))
}

fn right(time_ms: i64, value: i64) -> Message {
    sample(RIGHT, time_ms, Value::I64(value))
}

/// Instances of one processor, and the mass balance of their messages.
struct Run {
    spec: StreamProcessorSpec,
    instances: Vec<Box<dyn Processor>>,
    context: StageContext,
    balance: Arc<FlowBalance>,
}

impl Run {
    fn new(mapping: &str) -> Run {
        Run::of(&yaml(mapping))
    }

    fn of(yaml: &str) -> Run {
        let spec = with_config(yaml, |node, context| Some(config::read(node, context))).unwrap();
        Run::with(spec)
    }

    /// Like [`Run::new`], for a file with warnings.
    fn warned(mapping: &str) -> (Run, Vec<String>) {
        let mut kept = None;
        let warnings = with_config(&yaml(mapping), |node, context| {
            kept = Some(config::read(node, context));
            Some(())
        });
        (Run::with(kept.unwrap()), warnings.unwrap_err())
    }

    fn with(spec: StreamProcessorSpec) -> Run {
        let context = StageContext::for_tests("stream_processor");
        Run {
            instances: vec![
                spec.build(context.clone()).unwrap(),
                spec.build(context.clone()).unwrap(),
            ],
            spec,
            context,
            balance: Arc::default(),
        }
    }

    fn batch(&mut self, messages: Vec<Message>) -> Vec<Message> {
        self.batch_at(0, messages)
    }

    fn batch_at(&mut self, instance: usize, messages: Vec<Message>) -> Vec<Message> {
        let ack = Ack::enter(&self.balance, messages.len(), |_| {});
        let mut out = Vec::new();
        self.instances[instance].process(Batch::new(messages, ack), &mut out);
        let mut results = Vec::new();
        for batch in out {
            assert_eq!(batch.len(), batch.ack.count());
            results.extend(batch.messages);
            batch.ack.delivered();
        }
        let counts = self.balance.snapshot();
        assert!(counts.adds_up() && counts.in_flight == 0, "{counts}");
        results
    }

    fn counts(&self) -> BalanceCounts {
        self.balance.snapshot()
    }

    fn metric(&self, name: &str) -> f64 {
        self.context.component.metrics.total(name)
    }
}

/// `path payload`, for each.
fn shown(messages: &[Message]) -> Vec<String> {
    let show = |message: &Message| {
        let topic = message.meta.get(key::UMH_TOPIC).unwrap();
        let path = topic.strip_prefix(OUTPUT).unwrap().trim_start_matches('.').to_owned();
        format!("{path} {}", String::from_utf8_lossy(&message.bytes()))
    };
    messages.iter().map(show).collect()
}

#[test]
fn what_is_taken_at_once_becomes_a_bounded_number_of_results() {
    let constants: Vec<String> = (0..100).map(|n| format!("c{n}: {n}")).collect();
    for (mapping, each) in [("x: left", 1), (constants.join("\n").as_str(), 100)] {
        let mut run = Run::new(mapping);
        let count = run.instances[0].messages_max().min(2 * RESULTS_MAX);
        let results = run.batch((1..=count as i64).map(|n| left(n, n)).collect());
        assert_eq!(results.len(), count * each);
        assert_eq!(results.len(), RESULTS_MAX, "of {mapping}");
    }
}

#[test]
fn what_is_missing_is_told_in_the_words_of_the_reference() {
    assert_eq!(
        mistakes("  - stream_processor: {}\n"),
        [
            "flow.yaml:4:23: mode is required",
            "flow.yaml:4:23: output_topic is required",
            "flow.yaml:4:23: model name is required",
            "flow.yaml:4:23: model version is required",
            "flow.yaml:4:23: at least one source mapping is required",
        ]
    );
    let empty = yaml("x: left").replace("output_topic: umh.v1.acme.berlin", "output_topic: ''");
    assert_eq!(mistakes(&empty), ["flow.yaml:7:21: output_topic is required"]);
    let wrong = yaml("x: left").replace("mode: timeseries", "mode: relational");
    assert_eq!(
        mistakes(&wrong),
        ["flow.yaml:5:13: pipeline.processors[0].stream_processor.mode: \"relational\" is not a mode; use timeseries"]
    );
}

#[test]
fn mistakes_in_the_mapping_have_their_place() {
    for (mapping, mistake) in [
        (
            "sum: left +",
            "flow.yaml:10:20: failed to compile JavaScript expression of sum: SyntaxError: unexpected end of the script \
             (line 1, column 7)",
        ),
        (
            "motor:\n  sum: |\n    left\n      + ) right",
            "flow.yaml:13:17: failed to compile JavaScript expression of motor.sum: SyntaxError: unexpected token in \
             expression: ')' (line 2, column 5)",
        ),
        (
            "sum: [left]",
            "flow.yaml:10:14: pipeline.processors[0].stream_processor.mapping.sum: expected an expression, a number, or \
             true or false, got a list",
        ),
        (
            "a.b: 1\na: {b: 2}",
            "flow.yaml:11:16: pipeline.processors[0].stream_processor.mapping.a.b: there are two expressions for a.b",
        ),
    ] {
        assert_eq!(mistakes(&yaml(mapping)), [mistake], "{mapping}");
    }
}

#[test]
fn what_an_expression_cannot_have_is_warned_of() {
    for (mapping, warning) in [
        (
            "sum: left + rigth",
            "flow.yaml:10:21: warning: there is no source \"rigth\", did you mean \"right\"?",
        ),
        (
            "now: console.log(left)",
            "flow.yaml:10:14: warning: 'console' is disabled for security reasons in this sandboxed environment",
        ),
        (
            "two words: left",
            "flow.yaml:10:20: warning: pipeline.processors[0].stream_processor.mapping.two words: its results get an \
             invalid topic: topic contained invalid characters and was rejected: 'umh.v1.acme.berlin._pump_v1.two \
             words' -> 'umh.v1.acme.berlin._pump_v1.two_words'",
        ),
    ] {
        let (_, warnings) = Run::warned(mapping);
        assert_eq!(warnings, [warning]);
    }
}

#[test]
fn an_expression_runs_once_all_its_sources_have_a_value() {
    let mut run = Run::new("sum: left + right\ntwice: left * 2");
    assert_eq!(
        shown(&run.batch(vec![left(1, 3)])),
        ["twice {\"value\":6,\"timestamp_ms\":1}"]
    );
    assert_eq!(
        shown(&run.batch(vec![right(2, 4)])),
        ["sum {\"value\":7,\"timestamp_ms\":2}"]
    );
    assert_eq!(
        shown(&run.batch(vec![left(5, 10), right(4, 1)])),
        [
            "sum {\"value\":14,\"timestamp_ms\":5}",
            "twice {\"value\":20,\"timestamp_ms\":5}",
            "sum {\"value\":11,\"timestamp_ms\":4}",
        ],
        "the latest value is the one that came last, and a result has the time of what started it"
    );
    assert_eq!(run.metric("active_variables"), 2.0);
    assert_eq!(run.metric("active_mappings"), 2.0);
}

#[test]
fn results_come_in_the_order_of_the_mapping() {
    let mut run = Run::new("z: left\nmotor:\n  state: '\"on\"'\n  deep: {limit: 7, is_on: true}\na: left + 1");
    let paths: Vec<String> = shown(&run.batch(vec![left(1, 3)]));
    assert_eq!(
        paths,
        [
            "z {\"value\":3,\"timestamp_ms\":1}",
            "motor.state {\"value\":\"on\",\"timestamp_ms\":1}",
            "motor.deep.limit {\"value\":7,\"timestamp_ms\":1}",
            "motor.deep.is_on {\"value\":true,\"timestamp_ms\":1}",
            "a {\"value\":4,\"timestamp_ms\":1}",
        ]
    );
    let counts = run.counts();
    assert_eq!((counts.entered, counts.expanded, counts.out), (5, 4, 5));
}

#[test]
fn sources_are_found_in_templates_objects_and_functions() {
    let mut run = Run::new(
        "text: '`${{left}}/${`${{right}}`}`'\nobject: '{l: left, right}'\nshadow: '[1, 2].map(left => left + right)'\n\
         default: '((a, b = left) => a + b)(1)'",
    );
    assert_eq!(
        shown(&run.batch(vec![right(1, 4)])),
        ["shadow {\"value\":[5,6],\"timestamp_ms\":1}"],
        "a parameter is no source"
    );
    assert_eq!(
        shown(&run.batch(vec![left(2, 3)])),
        [
            "text {\"value\":\"3/4\",\"timestamp_ms\":2}",
            "object {\"value\":{\"l\":3,\"right\":4},\"timestamp_ms\":2}",
            "default {\"value\":4,\"timestamp_ms\":2}",
        ]
    );
}

#[test]
fn what_has_no_json_form_within_a_result_is_null_and_every_result_is_json() {
    let mut run = Run::new(
        "list: '[left, 0 / 0, [1 / 0]]'\nobject: '({a: {b: -1 / left}, c: left})'\nfixed: '[NaN]'\nsame: left\nitself: 0 / left",
    );
    let nested = Value::from(vec![Value::F64(f64::NAN), Value::F32(f32::INFINITY), Value::I64(7)]);
    for (value, expected) in [
        (
            Value::I64(0),
            vec![
                r#"list {"value":[0,null,[null]],"timestamp_ms":1}"#,
                r#"object {"value":{"a":{"b":null},"c":0},"timestamp_ms":1}"#,
                r#"fixed {"value":[null],"timestamp_ms":1}"#,
                r#"same {"value":0,"timestamp_ms":1}"#,
            ],
        ),
        (
            nested,
            vec![
                r#"list {"value":[[null,null,7],null,[null]],"timestamp_ms":1}"#,
                r#"object {"value":{"a":{"b":null},"c":[null,null,7]},"timestamp_ms":1}"#,
                r#"fixed {"value":[null],"timestamp_ms":1}"#,
                r#"same {"value":[null,null,7],"timestamp_ms":1}"#,
            ],
        ),
    ] {
        let results = run.batch(vec![sample(LEFT, 1, value)]);
        for result in &results {
            thalweg_record::json::parse(&result.bytes()).unwrap();
        }
        assert_eq!(shown(&results), expected);
    }
    assert_eq!(
        run.counts().dropped(DropReason::InvalidValue),
        2,
        "a result that is NaN itself"
    );
}

#[test]
fn values_that_take_too_much_memory_are_refused_and_the_ones_before_stay() {
    let mut run = Run::new("length: 1\nboth: right");
    let large = |mib: usize| Value::text("x".repeat(mib << 20));
    run.batch(vec![sample(LEFT, 1, large(40)), right(1, 5)]);
    assert!(run.batch(vec![sample(RIGHT, 2, large(30))]).is_empty());
    assert_eq!(run.counts().dropped(DropReason::Limit), 1);
    assert_eq!(run.metric("messages_errored"), 1.0);
    let results = run.batch(vec![left(3, 1), right(4, 6)]);
    assert_eq!(shown(&results).len(), 3, "{:?}", shown(&results));
    assert_eq!(
        run.batch(vec![sample(RIGHT, 5, large(30))]).len(),
        2,
        "now there is room"
    );
    assert_eq!(run.counts().dropped(DropReason::Limit), 1);
}

#[test]
fn instances_share_the_values() {
    let mut run = Run::new("sum: left + right");
    run.batch_at(0, vec![left(1, 1)]);
    assert_eq!(
        shown(&run.batch_at(1, vec![right(2, 2)])),
        ["sum {\"value\":3,\"timestamp_ms\":2}"]
    );
    assert_eq!(
        shown(&run.batch_at(0, vec![left(3, 5)])),
        ["sum {\"value\":7,\"timestamp_ms\":3}"]
    );
    assert!(
        run.spec.joins_series(),
        "and one worker has them all, for the order of the results"
    );
}

/// Sends `1..=COUNT` one by one. Returns the values of `left` and `right` in each result.
fn count_up(
    mut instance: Box<dyn Processor>,
    balance: &Arc<FlowBalance>,
    message: fn(i64, i64) -> Message,
) -> Vec<[i64; 2]> {
    let mut out = Vec::new();
    for n in 1..=COUNT {
        let ack = Ack::enter(balance, 1, |_| {});
        instance.process(Batch::new(vec![message(n, n)], ack), &mut out);
    }
    let both = |message: &Message| match &message.payload {
        Payload::Sample { value, .. } => value.as_i64().map(|both| [both / 10_000, both % 10_000]).unwrap(),
        other => panic!("{other:?}"),
    };
    let mut results = Vec::new();
    for batch in out {
        results.extend(batch.messages.iter().map(both));
        batch.ack.delivered();
    }
    results
}

const COUNT: i64 = 2000;

#[test]
fn no_update_is_lost_between_threads() {
    let mut run = Run::new("both: left * 10000 + right");
    let (second, first) = (run.instances.pop().unwrap(), run.instances.pop().unwrap());
    let balance = &run.balance;
    let [of_left, of_right] = std::thread::scope(|scope| {
        let left = scope.spawn(|| count_up(first, balance, left));
        let right = scope.spawn(|| count_up(second, balance, right));
        [left, right].map(|thread| thread.join().unwrap())
    });
    for (own, other, results) in [(0, 1, &of_left), (1, 0, &of_right)] {
        // The first ones have no results, because the other source had no value yet.
        let sent = (COUNT + 1 - results.len() as i64)..=COUNT;
        assert!(
            results.iter().map(|result| result[own]).eq(sent),
            "a message sees its own value"
        );
        assert!(
            results.is_sorted_by_key(|result| result[other]),
            "values do not go back"
        );
    }
    let last = of_left.last().max(of_right.last());
    assert_eq!(last, Some(&[COUNT, COUNT]), "who came last sees both");
    assert!(run.counts().adds_up() && run.counts().in_flight == 0);
}

#[test]
fn two_names_of_one_topic_have_one_value() {
    let mut run = Run::of(
        &yaml("sum: a + b")
            .replace("left:", "a:")
            .replace(RIGHT, LEFT)
            .replace("right:", "b:"),
    );
    assert_eq!(
        shown(&run.batch(vec![left(1, 3)])),
        ["sum {\"value\":6,\"timestamp_ms\":1}"]
    );
}

#[test]
fn expressions_without_sources_run_on_each_match_and_are_kept_only_if_they_give_the_same() {
    let mut run = Run::new("fixed: 2 ** 10\nchance: Math.random()");
    let messages = (1..=20).flat_map(|n| [left(n, 1), right(n, 1)]).collect();
    let results = run.batch(messages);
    let values = |path: &str| -> Vec<String> {
        let lines = shown(&results);
        let lines = lines.iter().filter_map(|line| line.strip_prefix(path));
        lines.map(|line| line.split(',').next().unwrap().to_owned()).collect()
    };
    assert!(values("fixed ").iter().all(|value| value == "{\"value\":1024"));
    let mut chances = values("chance ");
    assert_eq!(chances.len(), 40);
    chances.sort();
    chances.dedup();
    assert!(chances.len() > 1, "chance is not frozen");
    assert_eq!(run.metric("thalweg_script_calls_total"), 41.0, "the fixed one ran once");
}

#[test]
fn messages_that_are_no_samples_of_a_source_have_their_fate() {
    let mut run = Run::new("copy: left");
    let results = run.batch(vec![
        message("umh.v1.other._raw.x", "{\"value\": 1, \"timestamp_ms\": 1}"),
        Message::raw("{}"),
        message(LEFT, "{\"timestamp_ms\": 1}"),
        message(LEFT, "{\"value\": null, \"timestamp_ms\": 1}"),
        message(LEFT, "{\"value\": 1}"),
        message(LEFT, "{\"value\": 1, \"timestamp_ms\": 0}"),
        message(LEFT, "{\"value\": 1, \"timestamp_ms\": \"soon\"}"),
        message(LEFT, "21"),
        message(LEFT, "21 {"),
        right(1, 1),
        message(
            LEFT,
            "{\"timestamp_ms\": 1e3, \"value\": 18446744073709551615, \"more\": 1}",
        ),
    ]);
    assert_eq!(
        shown(&results),
        ["copy {\"value\":18446744073709551615,\"timestamp_ms\":1000}"],
        "a value that is only copied keeps every digit"
    );
    let counts = run.counts();
    assert_eq!(counts.filtered(FilterReason::KeyMismatch), 2);
    assert_eq!(counts.filtered(FilterReason::NoValue), 1);
    assert_eq!(counts.dropped(DropReason::MissingField), 5);
    assert_eq!(counts.dropped(DropReason::InvalidPayload), 2);
    for (name, expected) in [
        ("messages_processed", 2.0),
        ("messages_errored", 7.0),
        ("messages_dropped", 3.0),
        ("outputs_generated", 1.0),
    ] {
        assert_eq!(run.metric(name), expected, "{name}");
    }
}

#[test]
fn a_source_that_has_lost_its_value_runs_nothing_and_is_no_mistake() {
    let mut run = Run::new("copy: left\nsum: left + right");
    let stamps = ValueQuality {
        status: 0x8031_0000,
        ..ValueQuality::NONE
    };
    let map = MetaMap::new([(key::UMH_TOPIC.into(), LEFT.into())], Some(1));
    let payload = Payload::Sample {
        value: Value::Null,
        time_ms: 2,
    };
    let lost = Message::new(payload, Metadata::stamped(Arc::new(map), stamps));
    let results = run.batch(vec![left(1, 3), lost, right(3, 4)]);
    assert_eq!(
        shown(&results),
        [
            "copy {\"value\":3,\"timestamp_ms\":1}",
            "sum {\"value\":7,\"timestamp_ms\":3}"
        ]
    );
    let counts = run.counts();
    assert_eq!((counts.filtered(FilterReason::NoValue), counts.dropped_total()), (1, 0));
}

#[test]
fn a_failing_expression_loses_its_own_result_alone() {
    let mut run = Run::new(
        "bad: left.a.b\nnothing: 'left > 5 ? left : null'\nnan: left / 0 - left / 0\nnone: () => left\ngood: left",
    );
    let results = run.batch(vec![left(1, 3), left(2, 7)]);
    assert_eq!(
        shown(&results),
        [
            "good {\"value\":3,\"timestamp_ms\":1}",
            "nothing {\"value\":7,\"timestamp_ms\":2}",
            "good {\"value\":7,\"timestamp_ms\":2}",
        ]
    );
    let counts = run.counts();
    assert_eq!((counts.entered, counts.expanded, counts.out), (10, 8, 3));
    assert_eq!(counts.dropped(DropReason::ScriptError), 2);
    assert_eq!(counts.dropped(DropReason::InvalidValue), 2);
    assert_eq!(counts.dropped(DropReason::ScriptBadReturn), 2);
    assert_eq!(counts.filtered(FilterReason::ReturnedNull), 1);
    assert_eq!(run.metric("javascript_errors"), 2.0);
    assert_eq!(run.metric("invalid_data_type"), 4.0);
    assert_eq!(run.metric("messages_errored"), 0.0);
}

#[test]
fn the_error_says_which_expression_and_why() {
    let error = |mapping: &str| {
        let (spec, _) = Run::warned(mapping);
        let StreamProcessorSpec { plan, scripts, .. } = spec.spec;
        let mut engine = ExpressionEngine::new(scripts.build(&spec.context).unwrap(), plan.expressions.len());
        let mut values = SourceValues::of(2);
        values.set(&[0, 1], &Value::I64(3)).unwrap();
        let failure = engine.run(0, &plan.expressions[0], &values).unwrap_err();
        (failure.reason, failure.text)
    };
    let disabled = |name: &str| {
        let text = format!("'{name}' is disabled for security reasons in this sandboxed environment");
        (DropReason::ScriptError, text)
    };
    for name in [
        "eval",
        "Function",
        "Proxy",
        "Reflect",
        "console",
        "globalThis",
        "setTimeout",
    ] {
        assert_eq!(error(&format!("x: 'left + {name}'")), disabled(name));
        assert_eq!(error(&format!("x: 'left > 100 ? {name}(left) : left'")), disabled(name));
    }
    assert_eq!(
        error("x: left + missing"),
        (
            DropReason::ScriptError,
            "ReferenceError: missing is not defined (line 1, column 8)".to_owned()
        )
    );
    assert_eq!(
        error("x: '() => unknown'"),
        (
            DropReason::ScriptBadReturn,
            "the result cannot be used: a function has no data form".to_owned()
        )
    );
}

#[test]
fn names_of_the_sandbox_that_mean_something_else_are_fine() {
    let mut run = Run::new("a: '(console => console + left)(1)'\nb: '({eval: left}).eval'\nc: '\"Function\" + left'");
    assert_eq!(run.batch(vec![left(1, 3)]).len(), 3);
    let mut run = Run::of(&yaml("a: process * 2").replace("left:", "process:"));
    assert_eq!(
        shown(&run.batch(vec![left(1, 3)])),
        ["a {\"value\":6,\"timestamp_ms\":1}"]
    );
}

#[test]
fn metadata_is_that_of_the_message_under_the_topic_of_the_result() {
    let mut run = Run::new("double: left * 2");
    let entries = [(key::UMH_TOPIC, LEFT), ("unit", "bar"), ("topic", LEFT)];
    let map = Arc::new(MetaMap::new(entries.map(|(k, v)| (k.into(), v.into())), Some(1)));
    let of_tag = |change: Option<&str>| {
        let mut message = left(1, 2);
        message.meta = Metadata::shared(map.clone());
        if let Some(unit) = change {
            message.meta.set("unit", unit);
        }
        message
    };
    let results = run.batch(vec![
        of_tag(None),
        of_tag(None),
        of_tag(Some("psi")),
        of_tag(Some("")),
        left(1, 2),
    ]);
    let topic = format!("{OUTPUT}.double");
    let units: Vec<_> = results
        .iter()
        .map(|result| result.meta.get("unit").map(|unit| unit.into_owned()))
        .collect();
    let unit = |unit: &str| Some(unit.to_owned());
    assert_eq!(units, [unit("bar"), unit("bar"), unit("psi"), None, None]);
    for result in &results {
        assert_eq!(result.meta.get(key::UMH_TOPIC).unwrap(), topic);
        assert_eq!(
            result.series(),
            Some(xxh3_64(topic.as_bytes())),
            "the series of the result"
        );
    }
    assert!(Arc::ptr_eq(results[0].meta.shared_map(), results[1].meta.shared_map()));
    assert!(
        !results[0].meta.is_changed(),
        "messages of a tag share what is said of them"
    );
    assert_eq!(results[0].meta.get("topic").unwrap(), LEFT);
}

#[test]
fn every_engine_gives_the_same() {
    let mapping =
        "sum: left + right\ntext: '`${{left}}`.padStart(3, \"0\")'\nmap: new Map([[1, left]]).get(1)\nbad: left.a.b";
    let run = |engine: &str| {
        let mut run = Run::of(&format!("{}scripting: {{engine: {engine}}}\n", yaml(mapping)));
        let results = shown(&run.batch(vec![right(1, 4), left(2, 3)]));
        let calls = run.metric("thalweg_script_calls_total");
        (results, calls, run.metric("thalweg_script_verify_differences_total"))
    };
    let (results, ..) = run("quickjs");
    assert_eq!(results.len(), 3);
    for engine in ["auto", "verify"] {
        let (found, calls, differences) = run(engine);
        assert_eq!(found, results, "{engine}");
        assert!(calls > 0.0 && differences == 0.0, "{engine}");
    }
    let beyond = yaml(mapping) + "scripting: {engine: native}\n";
    assert_eq!(
        mistakes(&beyond),
        [
            "flow.yaml:12:35: failed to compile JavaScript expression of map: .get() cannot run as native code; use \
             scripting.engine: auto (line 1, column 22)"
        ]
    );
}

#[test]
fn an_endless_expression_ends_and_the_others_run() {
    let endless = "endless: '(() => { for (;;) {} })()'\nn: left";
    let mut run = Run::of(&format!("{}scripting: {{timeout: 20ms}}\n", yaml(endless)));
    assert_eq!(
        shown(&run.batch(vec![left(1, 3)])),
        ["n {\"value\":3,\"timestamp_ms\":1}"]
    );
    assert_eq!(run.counts().dropped(DropReason::ScriptTimeout), 1);
}

#[test]
fn an_expression_may_end_with_a_semicolon() {
    for engine in ["auto", "quickjs", "verify"] {
        for (expression, value) in [
            ("left + 1;", "4"),
            ("left + 1 ; ;\n", "4"),
            ("left;", "3"),
            ("left; // the torque; in Nm", "3"),
            ("left * 2 /* twice; */ ; /* at the end */", "6"),
            ("{a: left};", "{\"a\":3}"),
            ("';' + left;", "\";3\""),
            ("';'", "\";\""),
            ("`${{left}};`;", "\"3;\""),
            ("/;/.test(';');", "true"),
        ] {
            let text = thalweg_record::json::to_string(&Value::text(expression));
            let settings = format!("scripting: {{engine: {engine}}}\n");
            let spec = with_settings(&settings, &yaml(&format!("x: {text}")), |node, context| {
                Some(config::read(node, context))
            });
            let mut run = Run::with(spec.unwrap_or_else(|mistakes| panic!("{expression}: {mistakes:?}")));
            assert_eq!(
                shown(&run.batch(vec![left(1, 3)])),
                [format!("x {{\"value\":{value},\"timestamp_ms\":1}}")],
                "{expression} {engine}"
            );
        }
    }
    let mut run = Run::new("x: 'left;'");
    let large = sample(LEFT, 1, Value::U64(u64::MAX));
    assert_eq!(
        shown(&run.batch(vec![large])),
        ["x {\"value\":18446744073709551615,\"timestamp_ms\":1}"],
        "the name of a source is its value, with every digit"
    );
}

#[test]
fn what_is_no_expression_is_refused_at_its_place() {
    let place = "failed to compile JavaScript expression of x: SyntaxError: ";
    for (expression, column, why) in [
        (
            "return left",
            1,
            "an expression has no return; write only the value (line 1, column 1)",
        ),
        (
            "return left;",
            1,
            "an expression has no return; write only the value (line 1, column 1)",
        ),
        (
            "import('fs')",
            1,
            "import() is not available: scripts have no modules (line 1, column 1)",
        ),
        (
            "left + import (left)",
            8,
            "import() is not available: scripts have no modules (line 1, column 8)",
        ),
        (
            "(() => import('fs'))()",
            8,
            "import() is not available: scripts have no modules (line 1, column 8)",
        ),
        (
            "`${import('fs')}`",
            4,
            "import() is not available: scripts have no modules (line 1, column 4)",
        ),
        ("left; right", 5, "Unexpected token ';' (line 1, column 5)"),
    ] {
        let text = thalweg_record::json::to_string(&Value::text(expression));
        let found = mistakes(&yaml(&format!("x: {text}")));
        let expected = format!("flow.yaml:10:{}: {place}{why}", 12 + column);
        assert_eq!(found, [expected], "{expression}");
    }
    for expression in [
        "left.import(1)",
        "({import() { return left }}).import()",
        "((f) => f)({import: left})",
    ] {
        let text = thalweg_record::json::to_string(&Value::text(expression));
        Run::new(&format!("x: {text}"));
    }
}
