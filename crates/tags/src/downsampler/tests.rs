//! Scenarios: from YAML and samples to kept points and mass balance.

use thalweg_config::{LoadOptions, SourceText, load};
use thalweg_flow::{BuildContext, ComponentRegistry, FlowSpec, Input, InputSpec, ParseContext, StageContext};
use thalweg_record::{BalanceCounts, FlowBalance, ValueQuality};

use super::config::read;
use super::*;
use crate::tag_processor::tests::with_config;

const TOPIC: &str = "umh.v1.ent.site._raw.line.temp";

fn downsampler(yaml: &str) -> Downsampler {
    let yaml = format!("  - downsampler:\n{yaml}");
    let config = with_config(&yaml, |node, context| Some(read(node, context))).unwrap();
    Downsampler::new(Arc::new(config), StageContext::for_tests("downsampler"))
}

fn sample(topic: &str, time_ms: i64, value: Value) -> Message {
    let map = MetaMap::new([(key::UMH_TOPIC.into(), topic.into())], Some(1));
    Message::new(Payload::Sample { value, time_ms }, Metadata::shared(Arc::new(map)))
}

fn number(time_ms: i64, value: f64) -> Message {
    sample(TOPIC, time_ms, Value::F64(value))
}

struct Run {
    downsampler: Downsampler,
    balance: Arc<FlowBalance>,
}

impl Run {
    fn new(yaml: &str) -> Run {
        Run {
            downsampler: downsampler(yaml),
            balance: Arc::default(),
        }
    }

    fn batch(&mut self, messages: Vec<Message>) -> Vec<Message> {
        let ack = Ack::enter(&self.balance, messages.len(), |_| {});
        let mut out = Vec::new();
        self.downsampler.process(Batch::new(messages, ack), &mut out);
        self.taken(out)
    }

    fn taken(&self, out: Vec<Batch>) -> Vec<Message> {
        let mut messages = Vec::new();
        for batch in out {
            assert_eq!(batch.len(), batch.ack.count());
            messages.extend(batch.messages);
            batch.ack.delivered();
        }
        assert!(self.balance.snapshot().adds_up());
        messages
    }

    fn flush(&mut self) -> Vec<Message> {
        let mut out = Vec::new();
        self.downsampler.flush(&mut out);
        self.taken(out)
    }

    fn counts(&self) -> BalanceCounts {
        self.balance.snapshot()
    }
}

fn times(messages: &[Message]) -> Vec<i64> {
    let time = |message: &Message| match message.payload {
        Payload::Sample { time_ms, .. } => time_ms,
        _ => -1,
    };
    messages.iter().map(time).collect()
}

#[test]
fn the_deadband_filters_and_says_so() {
    let mut run = Run::new("      default: {deadband: {threshold: 0.5, max_time: 3s}}\n");
    let out = run.batch(vec![
        number(0, 1.0),
        number(1000, 1.1),
        number(2000, 1.6),
        number(5000, 1.6),
        number(6000, 1.6),
    ]);
    assert_eq!(times(&out), [0, 2000, 5000]);
    assert_eq!(out[0].meta.get(DOWNSAMPLED_BY).unwrap(), "deadband");
    assert_eq!(
        out[0].meta.get(CONFIG).unwrap(),
        "deadband(threshold=0.500,max_time=3s)"
    );
    assert!(
        !out[0].meta.is_changed(),
        "messages of a tag share what is said of them"
    );
    assert_eq!(run.counts().filtered(FilterReason::Deadband), 2);
    assert_eq!(run.counts().in_flight, 0);
}

#[test]
fn the_door_holds_a_point_back_until_it_is_needed() {
    let mut run = Run::new("      default: {swinging_door: {threshold: 0.1}}\n");
    assert_eq!(
        times(&run.batch(vec![number(0, 0.0), number(1000, 1.0), number(2000, 2.0)])),
        [0]
    );
    assert_eq!(run.counts().in_flight, 1, "the source is not told yet");
    let out = run.batch(vec![number(3000, 0.0), number(4000, -2.0)]);
    assert_eq!(times(&out), [2000]);
    assert_eq!(out[0].meta.get(DOWNSAMPLED_BY).unwrap(), "swinging_door");
    assert_eq!(times(&run.flush()), [4000]);
    let counts = run.counts();
    assert_eq!((counts.in_flight, counts.filtered(FilterReason::SwingingDoor)), (0, 2));
}

#[test]
fn a_series_that_is_idle_gives_back_what_is_held() {
    let mut run = Run::new("      default: {swinging_door: {threshold: 0.1, max_time: 5s}}\n");
    run.batch(vec![number(0, 0.0), number(1000, 1.0)]);
    let due = run.downsampler.next_tick().unwrap();
    let mut out = Vec::new();
    run.downsampler.tick(due - Duration::from_millis(1), &mut out);
    assert!(out.is_empty());
    run.downsampler.tick(due, &mut out);
    assert_eq!(times(&run.taken(out)), [1000]);
    assert_eq!(run.downsampler.next_tick(), None);
    assert_eq!(times(&run.batch(vec![number(2000, 2.0), number(3000, 9.0)])), [2000]);
}

#[test]
fn repeats_and_late_points_do_not_keep_a_point_back() {
    let mut run = Run::new("      default: {swinging_door: {threshold: 0.1, max_time: 50ms}, late_policy: drop}\n");
    run.batch(vec![number(0, 0.0), number(10, 1.0)]);
    let due = run.downsampler.next_tick().unwrap();
    while Instant::now() < due {
        run.batch(vec![number(10, 1.0), number(5, 0.5)]);
    }
    let mut out = Vec::new();
    run.downsampler.tick(Instant::now(), &mut out);
    assert_eq!(times(&run.taken(out)), [10]);
}

#[test]
fn a_point_after_a_flush_is_given_back_when_its_series_is_idle() {
    let mut run = Run::new("      default: {swinging_door: {threshold: 0.1, max_time: 5s}}\n");
    run.batch(vec![number(0, 0.0), number(1000, 1.0)]);
    assert_eq!(times(&run.flush()), [1000]);
    run.batch(vec![number(2000, 2.0), number(3000, 3.0)]);
    let (due, mut out) = (run.downsampler.next_tick().unwrap(), Vec::new());
    run.downsampler.tick(due, &mut out);
    assert_eq!(times(&run.taken(out)), [3000]);
}

#[test]
fn what_is_no_sample_passes_and_what_has_no_value_too() {
    let mut run = Run::new("      default: {deadband: {threshold: 5}}\n");
    let raw = |text: &str| {
        let mut message = Message::raw(text.to_owned().into_bytes());
        message.meta.set(key::UMH_TOPIC, TOPIC);
        message
    };
    let out = run.batch(vec![
        raw("{\"value\": 1, \"timestamp_ms\": 1}"),
        raw("{\"value\": 2, \"timestamp_ms\": 2}"),
        raw("{\"value\": 2, \"timestamp_ms\": 3, \"unit\": \"K\"}"),
        raw("text"),
        number(4, f64::NAN),
        Message::raw("{\"value\": 1, \"timestamp_ms\": 1}"),
    ]);
    assert_eq!(out.len(), 5, "all but the second");
    assert_eq!(run.downsampler.counters.errored.get(), 1);
    assert_eq!(run.downsampler.counters.passed_through.get(), 3);
}

/// What a tag that has lost its value becomes: a status and null.
fn lost(time_ms: i64) -> Message {
    let stamps = ValueQuality {
        status: 0x8031_0000,
        ..ValueQuality::NONE
    };
    let map = number(0, 0.0).meta.shared_map().clone();
    let value = Value::Null;
    Message::new(Payload::Sample { value, time_ms }, Metadata::stamped(map, stamps))
}

/// Otherwise a reader would see the tag as bad until its value is another one.
#[test]
fn the_first_value_after_a_lost_one_passes_and_what_is_held_back_passes_before() {
    let mut run = Run::new("      default: {deadband: {threshold: 5}}\n");
    let out = run.batch(vec![
        number(1, 7.0),
        number(2, 7.0),
        lost(3),
        number(4, 7.0),
        number(5, 7.0),
    ]);
    assert_eq!(times(&out), [1, 3, 4]);
    let text = |time_ms| sample(TOPIC, time_ms, Value::text("on"));
    assert_eq!(
        times(&run.batch(vec![text(6), text(7), lost(8), text(9), text(10)])),
        [6, 8, 9]
    );
    let mut run = Run::new("      default: {swinging_door: {threshold: 0.1}}\n");
    let out = run.batch(vec![number(0, 0.0), number(1000, 1.0), lost(2000), number(3000, 3.0)]);
    assert_eq!(times(&out), [0, 1000, 2000, 3000]);
    // A null of another source changes nothing.
    let mut run = Run::new("      default: {deadband: {threshold: 5}}\n");
    let null = sample(TOPIC, 2, Value::Null);
    assert_eq!(times(&run.batch(vec![number(1, 7.0), null, number(3, 7.0)])), [1, 2]);
}

#[test]
fn points_of_more_topics_than_can_be_remembered_pass_as_they_are() {
    let mut run = Run::new("      default: {deadband: {threshold: 5}}\n");
    let topic = |n: usize| format!("umh.v1.ent.site._raw.line.t{n}");
    let batch = |times: [i64; 2], topics: std::ops::Range<usize>| -> Vec<Message> {
        let points = topics.flat_map(|n| times.map(|time| sample(&topic(n), time, Value::F64(1.0))));
        points.collect()
    };
    assert_eq!(
        run.batch(batch([1, 2], 0..SERIES_MAX)).len(),
        SERIES_MAX,
        "the first of each"
    );
    assert_eq!(
        run.batch(batch([3, 4], SERIES_MAX..SERIES_MAX + 3)).len(),
        6,
        "both of each"
    );
    assert_eq!(
        run.batch(batch([5, 6], 0..3)).len(),
        0,
        "those that are known are thinned out as before"
    );
}

#[test]
fn truths_and_texts_go_on_when_they_change() {
    let mut run = Run::new("      default: {swinging_door: {threshold: 1}}\n");
    let values = [true, true, false, false, true];
    let messages = values
        .iter()
        .zip(1..)
        .map(|(v, t)| sample(TOPIC, t, Value::Bool(*v)))
        .collect();
    assert_eq!(times(&run.batch(messages)), [1, 3, 5]);
    assert_eq!(run.counts().filtered(FilterReason::Unchanged), 2);
}

#[test]
fn the_same_time_again_is_filtered_and_late_points_follow_the_policy() {
    for (policy, expected) in [("passthrough", vec![1000, 500, 2000]), ("drop", vec![1000, 2000])] {
        let mut run = Run::new(&format!(
            "      default: {{deadband: {{threshold: 1}}, late_policy: {policy}}}\n"
        ));
        let out = run.batch(vec![
            number(1000, 1.0),
            number(1000, 7.0),
            number(500, 3.0),
            number(2000, 5.0),
        ]);
        assert_eq!(times(&out), expected, "{policy}");
        assert_eq!(run.counts().filtered(FilterReason::DuplicateTimestamp), 1);
    }
    let mut door = Run::new("      default: {swinging_door: {threshold: 1}, late_policy: drop}\n");
    door.batch(vec![number(1000, 1.0), number(2000, 1.0), number(1500, 9.0)]);
    assert_eq!(times(&door.flush()), [2000], "the point that is held back stays");
}

/// Late points are passed on whatever their value is, so a reader can tell them from those that an algorithm kept.
#[test]
fn late_points_that_pass_say_so() {
    for settings in ["deadband: {threshold: 1}", "swinging_door: {threshold: 1}"] {
        let mut run = Run::new(&format!("      default: {{{settings}}}\n"));
        run.batch(vec![number(1000, 1.0), number(2000, 9.0)]);
        let mut before = number(400, 3.0);
        before.meta.set(DOWNSAMPLED_BY, "deadband");
        before.meta.set(CONFIG, "deadband(threshold=9.000)");
        let late = [number(500, 3.0), number(600, 3.0), before];
        // The messages of a tag share their metadata.
        let shared = late[0].meta.shared_map().clone();
        let late = late.map(|message| Message {
            meta: message.meta.with_shared(shared.clone()),
            ..message
        });
        let out = run.batch(late.into());
        assert_eq!(times(&out), [500, 600, 400], "{settings}");
        for message in &out {
            assert_eq!(message.meta.get(DOWNSAMPLED_BY).as_deref(), Some("late"), "{settings}");
            assert!(!message.meta.contains(CONFIG), "no settings kept it");
            assert_eq!(message.meta.get(key::UMH_TOPIC).as_deref(), Some(TOPIC));
        }
        assert!(Arc::ptr_eq(out[0].meta.shared_map(), out[1].meta.shared_map()));
        assert!(!out[0].meta.is_changed());
        assert_eq!(run.downsampler.counters.passed_through.get(), 3);
    }
}

/// A time is a whole number of milliseconds in any notation.
#[test]
fn a_time_in_another_notation_is_a_time() {
    let mut run = Run::new("      default: {deadband: {threshold: 5}}\n");
    let messages = ["1.7e12", "1700000000001.0", "1700000000002"].map(|time| {
        let mut message = Message::raw(format!("{{\"value\": 1, \"timestamp_ms\": {time}}}"));
        message.meta.set(key::UMH_TOPIC, TOPIC);
        message
    });
    assert_eq!(run.batch(messages.into()).len(), 1);
    assert_eq!(run.counts().filtered(FilterReason::Deadband), 2);
}

#[test]
fn the_first_exception_that_fits_the_topic_or_its_end_applies() {
    let yaml = "      default: {deadband: {threshold: 0.5, max_time: 1h}}\n      overrides:\n        \
                - {pattern: 'temp*', swinging_door: {threshold: 0.2, min_time: 1s}}\n        \
                - {pattern: 'umh.*.line.*', deadband: {threshold: 9}}\n        \
                - {pattern: '*', late_policy: drop}\n";
    let config = downsampler(yaml).config;
    let of = |topic: &str| config.of(topic);
    assert_eq!(
        of(TOPIC).settings.to_string(),
        "swinging_door(threshold=0.200,min_time=1s)"
    );
    assert_eq!(
        of("umh.v1.e._raw.line.x").settings.to_string(),
        "deadband(threshold=9.000,max_time=1h)"
    );
    let last = of("umh.v1.e._raw.x");
    assert_eq!(
        (last.settings.to_string().as_str(), last.late),
        ("deadband(threshold=0.500,max_time=1h)", LatePolicy::Drop)
    );
}

#[test]
fn messages_choose_for_themselves_and_other_settings_begin_anew() {
    let mut run = Run::new("      default: {swinging_door: {threshold: 0.1}}\n");
    run.batch(vec![number(0, 0.0), number(1000, 1.0)]);
    let with = |mut message: Message, entries: &[(&str, &str)]| {
        for (key, value) in entries {
            message.meta.set(*key, *value);
        }
        message
    };
    let out = run.batch(vec![with(
        number(2000, 2.0),
        &[(DS_ALGORITHM, "deadband"), (DS_THRESHOLD, "3")],
    )]);
    assert_eq!(times(&out), [1000, 2000], "what was held back goes on first");
    assert_eq!(out[1].meta.get(CONFIG).unwrap(), "deadband(threshold=3.000)");
    assert_eq!(run.downsampler.counters.recreations.get(), 1);
    run.batch(vec![with(
        number(3000, 2.0),
        &[(DS_THRESHOLD, "lots"), (DS_MIN_TIME, "x")],
    )]);
    assert_eq!(run.downsampler.counters.overrides_rejected.get(), 2);
    let out = run.batch(vec![with(number(4000, 2.0), &[(DS_IGNORE, "yes")])]);
    assert_eq!(out[0].meta.get(DOWNSAMPLED_BY).unwrap(), "ignored");
    assert!(!out[0].meta.contains(DS_IGNORE));
    let mut closed = Run::new("      allow_meta_overrides: false\n");
    let out = closed.batch(vec![with(number(0, 1.0), &[(DS_IGNORE, "yes")])]);
    assert_eq!(out[0].meta.get(DOWNSAMPLED_BY).unwrap(), "deadband");
}

#[test]
fn times_that_are_right_together_are_taken_together() {
    let yaml = "      default: {swinging_door: {threshold: 0.1, min_time: 1s, max_time: 5s}}\n";
    let chosen = |entries: &[(&str, &str)]| {
        let run = Run::new(yaml);
        let mut meta = Metadata::default();
        for (key, value) in entries {
            meta.set(*key, *value);
        }
        let choice = run.downsampler.choice(TOPIC, &meta);
        let rejected = run.downsampler.counters.overrides_rejected.get();
        (choice.door.min_time.as_secs(), choice.door.max_time.as_secs(), rejected)
    };
    assert_eq!(chosen(&[(DS_MIN_TIME, "10s"), (DS_MAX_TIME, "60s")]), (10, 60, 0));
    assert_eq!(chosen(&[(DS_MIN_TIME, "10s")]), (1, 5, 1));
    // 4 s are valid with the file's 5 s, and then 3 s are not.
    assert_eq!(chosen(&[(DS_MIN_TIME, "4s"), (DS_MAX_TIME, "3s")]), (4, 5, 1));
    assert_eq!(chosen(&[(DS_MIN_TIME, "x"), (DS_MAX_TIME, "500ms")]), (1, 5, 2));
}

#[test]
fn a_counter_beyond_the_digits_of_doubles_goes_on_with_every_step() {
    let mut run = Run::new("      default: {deadband: {threshold: 0}}\n");
    let counter = |t: i64, n: u64| sample(TOPIC, t, Value::U64(u64::MAX - 9 + n));
    let out = run.batch(vec![counter(0, 0), counter(1, 1), counter(2, 1), counter(3, 2)]);
    assert_eq!(times(&out), [0, 1, 3]);
}

#[test]
fn settings_without_end_take_no_memory_without_end_and_are_told_rightly() {
    let mut run = Run::new("      allow_meta_overrides: true\n");
    let limit = TEXTS_MAX as i64;
    let mut told = |t: i64, threshold: i64| {
        let mut message = number(t, (t * 1_000_000) as f64);
        message.meta.set(DS_THRESHOLD, threshold.to_string());
        let out = run.batch(vec![message]);
        assert!(run.downsampler.texts.len() <= TEXTS_MAX);
        assert_eq!(
            out[0].meta.get(CONFIG).unwrap(),
            format!("deadband(threshold={threshold}.000)")
        );
        run.downsampler.texts.len()
    };
    for n in 1..=2 * limit {
        told(n, n);
    }
    let before = told(2 * limit + 1, 1);
    assert_eq!(told(2 * limit + 2, 1), before, "what is in use is known");
}

#[test]
fn a_nested_late_policy_is_read_as_a_flat_one_and_told_of() {
    let place = "pipeline.processors[0].downsampler.default.late_policy";
    for (fields, late, expected) in [
        ("late_policy: drop", LatePolicy::Drop, vec![]),
        (
            "late_policy: {late_policy: drop}",
            LatePolicy::Drop,
            vec![format!(
                "flow.yaml:5:31: warning: {place}.late_policy is read as if the mapping around it were missing; write \
                 late_policy: drop"
            )],
        ),
        (
            "late_policy: {policy: drop}",
            LatePolicy::Passthrough,
            vec![format!(
                "flow.yaml:5:30: {place}: a late policy is a word: late_policy: passthrough, or drop"
            )],
        ),
    ] {
        let mut found = None;
        let yaml = format!("  - downsampler:\n      default: {{{fields}}}\n");
        let told = with_config(&yaml, |node, context| {
            let config = read(node, context);
            found = Some(config.default.late);
            Some(config)
        });
        assert_eq!(told.err().unwrap_or_default(), expected, "{fields}");
        assert_eq!(found, Some(late), "{fields}");
    }
}

#[test]
fn mistakes_are_told_at_their_place() {
    for (yaml, error) in [
        (
            "      default: {swinging_door: {threshold: 1, min_time: 5s, max_time: 1s}}\n",
            "min_time of swinging_door is longer than max_time",
        ),
        ("      default: {deadband: {threshold: -1}}\n", "not negative"),
        (
            "      default: {swinging_door: {max_time: 1s}}\n",
            "swinging_door needs a threshold",
        ),
        ("      overrides: [{deadband: {threshold: 1}}]\n", "pattern"),
        (
            "      overrides: [{pattern: '[a', deadband: {threshold: 1}}]\n",
            "is not a valid pattern",
        ),
        ("      default: {late_policy: never}\n", "late_policy"),
    ] {
        let errors = with_config(&format!("  - downsampler:\n{yaml}"), |node, context| {
            Some(read(node, context))
        });
        let errors = errors.map(|_| ()).unwrap_err();
        assert!(errors.iter().any(|text| text.contains(error)), "{yaml}: {errors:?}");
    }
}

/// An input that emits this many messages and then waits.
struct Waiting;

impl InputSpec for Waiting {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Err(BuildError::new("it is not to be run"))
    }

    fn waits_for_answers(&self) -> Option<&'static str> {
        Some("read it otherwise")
    }
}

#[test]
fn the_door_is_refused_where_an_input_waits_for_what_it_holds_back() {
    for (fields, is_refused) in [
        ("{default: {swinging_door: {threshold: 1}}}", true),
        ("{overrides: [{pattern: a, swinging_door: {threshold: 1}}]}", true),
        (
            "{default: {swinging_door: {threshold: 1}, deadband: {threshold: 1}}}",
            false,
        ),
        ("{default: {deadband: {threshold: 1, max_time: 1h}}}", false),
        ("{}", false),
    ] {
        let text = format!(
            "input: {{waiting: {{}}}}\noutput: {{drop: {{}}}}\npipeline: {{processors: [{{downsampler: {fields}}}]}}\n"
        );
        let loaded = load(&SourceText::new("flow.yaml", text), &|_| None, &LoadOptions::default());
        let mut registry = ComponentRegistry::new();
        crate::register(&mut registry, &Arc::default());
        registry.input("waiting", "", |_, _| Some(Arc::new(Waiting)));
        let mut context = ParseContext::new(&loaded.diagnostics, &registry, &loaded.config);
        let flow = FlowSpec::parse(&loaded.config.flows[0], &mut context);
        let found = loaded.diagnostics.to_string();
        assert_eq!(flow.is_none(), is_refused, "{fields}: {found}");
        let refusal = "flow.yaml:3:26: swinging_door holds messages back until later ones come";
        assert_eq!(found.starts_with(refusal), is_refused, "{fields}: {found}");
        assert_eq!(
            found.contains("so nothing would flow; read it otherwise, or"),
            is_refused,
            "{fields}: {found}"
        );
    }
}
