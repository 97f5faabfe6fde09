//! Scenarios: from YAML and classic messages to samples and mass balance.

use proptest::prelude::*;
use thalweg_record::{BalanceCounts, FlowBalance, Object, Ticks, Value, ValueQuality, json};

use super::*;
use crate::tag_processor::tests::with_config;

const TOPIC_TEXT: &str = "umh.v1.acme.plant1._historian.weather";

fn processor(yaml: &str) -> ClassicToCore {
    let yaml = format!("  - classic_to_core: {yaml}\n");
    let spec = with_config(&yaml, |node, context| read(node, context)).unwrap();
    ClassicToCore::new(spec.target, StageContext::for_tests("classic_to_core"))
}

fn classic(payload: impl Into<Vec<u8>>) -> Message {
    let mut message = Message::raw(payload.into());
    message.meta.set(key::UMH_TOPIC, TOPIC_TEXT);
    message
}

/// The result of some messages.
struct Outcome {
    samples: Vec<Message>,
    counts: BalanceCounts,
    processor: ClassicToCore,
}

fn run(yaml: &str, messages: Vec<Message>) -> Outcome {
    let mut processor = processor(yaml);
    let balance = Arc::new(FlowBalance::default());
    let ack = Ack::enter(&balance, messages.len(), |_| {});
    let mut out = Vec::new();
    processor.process(Batch::new(messages, ack), &mut out);
    let mut samples = Vec::new();
    for batch in out {
        assert_eq!(batch.len(), batch.ack.count());
        samples.extend(batch.messages);
        batch.ack.delivered();
    }
    let counts = balance.snapshot();
    assert!(counts.adds_up() && counts.in_flight == 0, "{counts}");
    Outcome {
        samples,
        counts,
        processor,
    }
}

/// Topics and payloads.
fn seen(samples: &[Message]) -> Vec<(String, String)> {
    let one = |sample: &Message| {
        let topic = sample.meta.get(key::UMH_TOPIC).unwrap().into_owned();
        (topic, String::from_utf8(sample.bytes().into_owned()).unwrap())
    };
    samples.iter().map(one).collect()
}

fn meta<'a>(sample: &'a Message, key: &str) -> std::borrow::Cow<'a, str> {
    sample.meta.get(key).unwrap_or_default()
}

#[test]
fn each_leaf_becomes_a_sample_under_its_own_topic() {
    let payload = r#"{"a": 1, "timestamp_ms": 1717083000000, "b": {"c": "x", "d": {"e": false}},
                      "list": [10, 20.5, [true, null]], "big": 18446744073709551615, "exact": 1.50}"#;
    let outcome = run("{}", vec![classic(payload)]);
    let sample = |tag: &str, value: &str| {
        (
            format!("{TOPIC_TEXT}.{tag}"),
            format!("{{\"value\":{value},\"timestamp_ms\":1717083000000}}"),
        )
    };
    let expected = [
        sample("a", "1"),
        sample("b.c", "\"x\""),
        sample("b.d.e", "false"),
        sample("list", "\"[10 20.5 [true <nil>]]\""),
        sample("big", "18446744073709551615"),
        sample("exact", "1.50"),
    ];
    assert_eq!(seen(&outcome.samples), expected);
    assert_eq!((outcome.counts.expanded, outcome.counts.out), (5, 6));
    let counters = &outcome.processor.counters;
    assert_eq!((counters.processed.get(), counters.expanded.get()), (1, 6));
}

#[test]
fn samples_say_where_they_belong() {
    let outcome = run(
        "{target_data_contract: _raw}",
        vec![classic(r#"{"timestamp_ms": 1, "axis": {"x": 2}}"#)],
    );
    let sample = &outcome.samples[0];
    for (key, text) in [
        ("topic", "umh.v1.acme.plant1._raw.weather.axis.x"),
        ("umh_topic", "umh.v1.acme.plant1._raw.weather.axis.x"),
        ("location_path", "acme.plant1"),
        ("schema", "_raw"),
        ("data_contract", "_raw"),
        ("virtual_path", "weather"),
        ("tag_name", "axis.x"),
    ] {
        assert_eq!(meta(sample, key), text, "{key}");
    }
}

#[test]
fn topic_goes_before_umh_topic_and_may_end_with_the_contract() {
    let mut message = classic(r#"{"timestamp_ms": 1, "t": 2}"#);
    message.meta.set(TOPIC, "umh.v1.acme._historian");
    let outcome = run("{}", vec![message]);
    assert_eq!(meta(&outcome.samples[0], "umh_topic"), "umh.v1.acme._historian.t");
    assert!(!outcome.samples[0].meta.contains("virtual_path"));
}

#[test]
fn entries_of_meta_and_metadata_become_metadata_of_every_sample() {
    let mut message = classic(
        r#"{"timestamp_ms": 1, "a": 1, "b": 2, "meta": {"unit": "K", "list": [1, {"x": 2.5}], "old": ""},
            "metadata": {"serial": 7, "umh_topic": "mine"}, "c": {"meta": 3}}"#,
    );
    message.meta.set("old", "from before");
    message.meta.set("kept", "yes");
    let outcome = run("{}", vec![message]);
    assert_eq!(outcome.samples.len(), 3, "further inside, meta is a name like others");
    assert_eq!(meta(&outcome.samples[2], "tag_name"), "c.meta");
    for sample in &outcome.samples {
        assert_eq!(meta(sample, "unit"), "K");
        assert_eq!(meta(sample, "serial"), "7");
        assert_eq!(meta(sample, "list"), "[1 map[x:2.5]]");
        assert_eq!(meta(sample, "kept"), "yes");
        assert!(!sample.meta.contains("old"), "the empty text removes");
        assert!(meta(sample, "umh_topic").starts_with(TOPIC_TEXT));
        assert!(Arc::ptr_eq(
            sample.meta.shared_map(),
            outcome.samples[0].meta.shared_map()
        ));
    }
}

#[test]
fn meta_and_metadata_that_are_no_objects_are_no_tags() {
    for other in ["5", "\"text\"", "true", "null", "[1, 2]", "[{\"a\": 1}]"] {
        for name in ["meta", "metadata"] {
            let payload = format!(r#"{{"timestamp_ms": 1, "a": 1, "{name}": {other}}}"#);
            let outcome = run("{}", vec![classic(payload.as_str())]);
            let names: Vec<_> = outcome.samples.iter().map(|sample| meta(sample, "tag_name")).collect();
            assert_eq!(names, ["a"], "{payload}");
            assert!(!outcome.samples[0].meta.contains(name), "{payload}");
            let alone = format!(r#"{{"timestamp_ms": 1, "{name}": {other}}}"#);
            let outcome = run("{}", vec![classic(alone.as_str())]);
            assert_eq!(outcome.counts.filtered(FilterReason::NoValue), 1, "{alone}");
        }
    }
}

#[test]
fn the_time_may_be_decimal_text() {
    for (time, ms) in [
        (r#""1717083000000""#, 1_717_083_000_000),
        (r#""-5""#, -5),
        (r#""0""#, 0),
        (r#""1.717083e12""#, 1_717_083_000_000),
        (r#""1717083000000.0""#, 1_717_083_000_000),
        (r#""007""#, 7),
        ("1.717083e12", 1_717_083_000_000),
        ("1717083000000.0", 1_717_083_000_000),
    ] {
        let outcome = run("{}", vec![classic(format!(r#"{{"timestamp_ms": {time}, "a": 1}}"#))]);
        let times: Vec<i64> = outcome
            .samples
            .iter()
            .filter_map(|sample| match sample.payload {
                Payload::Sample { time_ms, .. } => Some(time_ms),
                _ => None,
            })
            .collect();
        assert_eq!(times, [ms], "{time}: {}", outcome.counts);
    }
    for time in [
        r#""""#,
        r#"" 5""#,
        r#""1.5""#,
        r#""0x10""#,
        r#""1e400""#,
        r#""NaN""#,
        "true",
        "null",
        "[1]",
    ] {
        let outcome = run("{}", vec![classic(format!(r#"{{"timestamp_ms": {time}, "a": 1}}"#))]);
        assert_eq!(outcome.counts.dropped(DropReason::InvalidPayload), 1, "{time}");
    }
}

#[test]
fn tags_keep_spaces_and_letters_of_all_languages() {
    for (name, path) in [
        ("oil temp", "oil temp"),
        ("Kühler", "Kühler"),
        ("温度", "温度"),
        ("a/b #1 (°C)", "a/b #1 (°C)"),
        ("ü.ö", "ü.ö"),
    ] {
        let payload = Object::from_iter([
            ("timestamp_ms".into(), Value::I64(1)),
            (name.into(), Value::I64(2)),
            ("group".into(), Object::from_iter([(name.into(), Value::I64(3))]).into()),
        ]);
        let outcome = run(
            "{target_data_contract: _raw}",
            vec![classic(json::to_string(&payload.into()))],
        );
        let place = "umh.v1.acme.plant1._raw.weather";
        let expected = [
            (format!("{place}.{path}"), path.to_owned()),
            (format!("{place}.group.{path}"), format!("group.{path}")),
        ];
        assert_eq!(outcome.samples.len(), 2, "{name}: {}", outcome.counts);
        for (sample, (topic, tag)) in outcome.samples.iter().zip(expected) {
            assert_eq!(meta(sample, "umh_topic"), topic);
            assert_eq!(meta(sample, "topic"), topic);
            assert_eq!(meta(sample, "tag_name"), tag);
            assert_eq!(meta(sample, "virtual_path"), "weather");
        }
    }
}

#[test]
fn stamps_stay_typed_and_what_was_hidden_stays_hidden() {
    let map = MetaMap::new([(key::UMH_TOPIC.into(), TOPIC_TEXT.into())], Some(7));
    let stamps = ValueQuality {
        source_time: Ticks(10_000),
        ..ValueQuality::NONE
    };
    let mut message = classic(r#"{"timestamp_ms": 1, "a": 1}"#);
    message.meta = Metadata::stamped(Arc::new(map), stamps);
    message.meta.remove(key::SERVER_TIMESTAMP);
    message.meta.set(key::STATUS_CODE, "mine");
    let outcome = run("{}", vec![message]);
    let sample = &outcome.samples[0];
    assert_eq!(sample.meta.stamps(), Some(stamps));
    assert_eq!(meta(sample, key::SOURCE_TIMESTAMP), "1970-01-01T00:00:00.001000Z");
    assert_eq!(meta(sample, key::STATUS_CODE), "mine");
    assert!(!sample.meta.contains(key::SERVER_TIMESTAMP));
    assert_ne!(sample.series(), Some(7), "a tag is a series of its own");
}

#[test]
fn what_cannot_be_split_is_dropped_with_its_reason() {
    let unnamed = Message::raw(r#"{"timestamp_ms": 1, "a": 1}"#);
    let mut elsewhere = unnamed.clone();
    elsewhere.meta.set(key::UMH_TOPIC, "umh.v2.acme._historian.x");
    let mut no_contract = unnamed.clone();
    no_contract.meta.set(key::UMH_TOPIC, "umh.v1.acme.historian.x");
    let mut bad_place = unnamed.clone();
    bad_place.meta.set(key::UMH_TOPIC, "umh.v1.a cme._historian");
    for (message, reason) in [
        (unnamed, DropReason::MissingField),
        (elsewhere, DropReason::InvalidTopic),
        (no_contract, DropReason::InvalidTopic),
        (bad_place, DropReason::InvalidTopic),
        (classic("text"), DropReason::InvalidPayload),
        (classic("[1]"), DropReason::InvalidPayload),
        (classic(r#"{"a": 1}"#), DropReason::MissingField),
        (
            classic(r#"{"timestamp_ms": "soon", "a": 1}"#),
            DropReason::InvalidPayload,
        ),
        (classic(r#"{"timestamp_ms": 1.5, "a": 1}"#), DropReason::InvalidPayload),
        (
            classic(r#"{"timestamp_ms": 18446744073709551615}"#),
            DropReason::InvalidPayload,
        ),
    ] {
        let text = String::from_utf8(message.bytes().into_owned()).unwrap();
        let good = classic(r#"{"timestamp_ms": 1.7e12, "a": 1}"#);
        let outcome = run("{}", vec![message, good]);
        assert_eq!(outcome.counts.dropped(reason), 1, "{text}: {}", outcome.counts);
        assert_eq!(outcome.samples.len(), 1, "the other goes on");
        assert_eq!(outcome.processor.counters.errored.get(), 1);
    }
}

#[test]
fn a_tag_that_cannot_go_on_takes_no_other_along() {
    let payload = r#"{"timestamp_ms": 1, "a\nb": 1, "": 2, "c": 3, "none": null, "empty": {}, "d.": 4}"#;
    let outcome = run("{}", vec![classic(payload)]);
    assert_eq!(seen(&outcome.samples)[0].0, format!("{TOPIC_TEXT}.c"));
    let counts = outcome.counts;
    assert_eq!((counts.entered, counts.expanded, counts.out), (5, 4, 1));
    assert_eq!(counts.dropped(DropReason::InvalidTopic), 3);
    assert_eq!(counts.filtered(FilterReason::NoValue), 1);
    let typed = Object::from_iter([
        ("timestamp_ms".into(), Value::I64(1)),
        ("nan".into(), Value::F64(f64::NAN)),
    ]);
    let mut message = classic("");
    message.payload = Payload::Value(typed.into());
    assert_eq!(run("{}", vec![message]).counts.dropped(DropReason::InvalidValue), 1);
}

#[test]
fn a_message_without_tags_has_no_value() {
    let outcome = run("{}", vec![classic(r#"{"timestamp_ms": 1, "meta": {"a": 1}}"#)]);
    assert_eq!(outcome.counts.filtered(FilterReason::NoValue), 1);
    assert_eq!(outcome.processor.counters.dropped.get(), 1);
}

/// An object in which `depth` keys lead to the only leaf.
fn nested(depth: usize) -> String {
    let inner = (1..depth).fold("1".to_owned(), |inner, _| format!("{{\"k\":{inner}}}"));
    format!("{{\"timestamp_ms\":1,\"k\":{inner}}}")
}

fn wide(tags: usize, key: &str) -> String {
    let members: Vec<String> = (0..tags).map(|n| format!("\"t{n}\":{n}")).collect();
    format!("{{\"timestamp_ms\":1,\"{key}\":{{{}}}}}", members.join(","))
}

#[test]
fn depth_and_tags_are_bounded_for_the_whole_message() {
    assert_eq!(run("{}", vec![classic(nested(10))]).samples.len(), 1);
    assert_eq!(run("{}", vec![classic(wide(1000, "k"))]).samples.len(), 1000);
    let counted = |payload: String| {
        let outcome = run("{}", vec![classic(payload)]);
        assert_eq!(outcome.counts.dropped(DropReason::Limit), 1, "{}", outcome.counts);
        assert!(outcome.samples.is_empty());
        let counters = &outcome.processor.counters;
        (counters.recursion_limit_hit.get(), counters.tag_limit_exceeded.get())
    };
    assert_eq!(counted(nested(11)), (1, 0));
    assert_eq!(counted(nested(5000)), (1, 0), "deeper than JSON is read at all");
    assert_eq!(counted(wide(1001, "k")), (0, 1));
    assert_eq!(
        counted(wide(1000, &"k".repeat(2000))),
        (0, 1),
        "a key is in every name below it"
    );
}

#[test]
fn a_long_topic_is_not_multiplied_by_many_tags() {
    let payload = wide(1000, "t");
    for (segments, is_taken) in [(100, true), (1000, false)] {
        let path = vec!["segment"; segments].join(".");
        let mut message = classic(payload.clone());
        message.meta.set(key::UMH_TOPIC, format!("umh.v1.acme._raw.{path}"));
        let outcome = run("{}", vec![message, classic(r#"{"timestamp_ms": 1, "a": 1}"#)]);
        let counters = &outcome.processor.counters;
        let exceeded = u64::from(!is_taken);
        assert_eq!(counters.tag_limit_exceeded.get(), exceeded);
        assert_eq!(outcome.counts.dropped(DropReason::Limit), exceeded);
        assert_eq!(outcome.samples.len(), if is_taken { 1001 } else { 1 }, "{segments}");
    }
}

#[test]
fn many_samples_go_on_in_several_batches() {
    let mut processor = processor("{}");
    let balance = Arc::new(FlowBalance::default());
    let messages: Vec<Message> = (0..25).map(|_| classic(wide(1000, "t"))).collect();
    let ack = Ack::enter(&balance, messages.len(), |_| {});
    let mut out = Vec::new();
    processor.process(Batch::new(messages, ack), &mut out);
    let lengths: Vec<usize> = out.iter().map(Batch::len).collect();
    assert_eq!(lengths, [10_000, 10_000, 5_000]);
    for batch in out {
        assert_eq!(batch.len(), batch.ack.count());
        batch.ack.delivered();
    }
    let counts = balance.snapshot();
    assert!(
        counts.adds_up() && counts.in_flight == 0 && counts.out == 25_000,
        "{counts}"
    );
    assert_eq!(processor.counters.expanded.get(), 25_000);
}

#[test]
fn mistakes_are_told_at_their_place() {
    for target in ["raw", "_", "_a.b", "_ä"] {
        let yaml = format!("  - classic_to_core: {{target_data_contract: {target}}}\n");
        let errors = with_config(&yaml, |node, context| read(node, context)).err().unwrap();
        assert!(
            errors[0].contains("target_data_contract") && errors[0].contains("_raw"),
            "{errors:?}"
        );
    }
}

fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        "[a-z]{0,5}".prop_map(|text| Value::from(text.as_str())),
    ];
    leaf.prop_recursive(8, 200, 6, |inner| {
        prop::collection::btree_map("[a-z]{1,3}", inner, 0..6)
            .prop_map(|members| Object::from_iter(members.into_iter().map(|(k, v)| (k.into(), v))).into())
    })
}

/// Leaves by their path of keys, without the code under test.
fn leaves(value: &Value, way: &[&str], found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(object) => object
            .iter()
            .for_each(|(key, value)| leaves(value, &[way, &[key.as_str()]].concat(), found)),
        leaf => found.push((way.join("."), leaf.clone())),
    }
}

proptest! {
    /// Every leaf of a payload is found once, with its value, and the mass balance holds.
    #[test]
    fn every_leaf_is_found_once(root in prop::collection::btree_map("[a-z]{1,3}", tree(), 0..6), time in any::<i64>()) {
        let mut object = Object::from_iter(root.into_iter().map(|(k, v)| (format!("k{k}").into(), v)));
        let mut expected = Vec::new();
        leaves(&object.clone().into(), &[], &mut expected);
        object.set("timestamp_ms", Value::I64(time));
        let outcome = run("{}", vec![classic(json::to_string(&object.into()))]);
        let found: Vec<(String, Value)> = outcome.samples.iter().map(|sample| {
            let Payload::Sample { value, time_ms } = &sample.payload else { unreachable!() };
            assert_eq!(*time_ms, time);
            (meta(sample, TAG_NAME).into_owned(), value.clone())
        }).collect();
        prop_assert_eq!(found, expected);
    }
}
