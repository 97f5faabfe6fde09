//! Scenarios of `tag_processor`: from YAML and messages to messages and mass balance.

use super::config::read;
use super::*;
use std::sync::Arc;
use thalweg_config::{LoadOptions, SourceText, load};
use thalweg_flow::{ComponentRegistry, ParseContext};
use thalweg_record::{BalanceCounts, FlowBalance, MetaMap, QualityDetails, Ticks, Value, ValueQuality, key};

/// Loads a flow whose one processor is written in `yaml` (indented by two), and returns the processor or the mistakes.
pub(crate) fn with_config<T>(
    yaml: &str,
    read: impl FnOnce(&thalweg_config::ComponentNode, &mut ParseContext<'_>) -> Option<T>,
) -> Result<T, Vec<String>> {
    with_settings("", yaml, read)
}

/// The same with settings of the process.
pub(crate) fn with_settings<T>(
    settings: &str,
    yaml: &str,
    read: impl FnOnce(&thalweg_config::ComponentNode, &mut ParseContext<'_>) -> Option<T>,
) -> Result<T, Vec<String>> {
    let text = format!(
        "{settings}input: {{generate: {{mapping: root = 1}}}}\npipeline:\n  processors:\n{yaml}\noutput: {{drop: {{}}}}\n"
    );
    let source = SourceText::new("flow.yaml", text);
    let loaded = load(&source, &|_| None, &LoadOptions::default());
    let mut registry = ComponentRegistry::new();
    crate::register(&mut registry, &Arc::default());
    let processor = loaded
        .config
        .flows
        .first()
        .and_then(|flow| flow.pipeline.processors.first())
        .cloned();
    let mut context = ParseContext::new(&loaded.diagnostics, &registry, &loaded.config);
    let result = processor.and_then(|node| read(&node, &mut context));
    let errors: Vec<String> = loaded.diagnostics.sorted().iter().map(ToString::to_string).collect();
    match result {
        Some(result) if errors.is_empty() => Ok(result),
        _ => Err(errors),
    }
}

fn processor(yaml: &str) -> TagProcessor {
    let spec = with_config(yaml, |node, context| read(node, context)).unwrap();
    spec.processor(StageContext::for_tests("tag_processor")).unwrap()
}

/// A processor whose `defaults` are `code`.
fn defaults(code: &str) -> TagProcessor {
    processor(&block("defaults", code))
}

fn block(name: &str, code: &str) -> String {
    let code: String = code.lines().map(|line| format!("          {line}\n")).collect();
    format!("  - tag_processor:\n      {name}: |\n{code}")
}

/// The result of some messages.
struct Outcome {
    results: Vec<Message>,
    failed: Vec<(DropReason, String)>,
    counts: BalanceCounts,
}

fn run(processor: &mut TagProcessor, messages: Vec<Message>) -> Outcome {
    let balance = Arc::new(FlowBalance::default());
    let mut ack = Ack::enter(&balance, messages.len(), |_| {});
    let results = processor.results(messages, &mut ack);
    let failed: Vec<_> = processor.failed.drain(..).map(|f| (f.reason, f.error)).collect();
    for (reason, _) in &failed {
        ack.dropped(*reason, 1);
    }
    assert_eq!(ack.count(), results.len(), "every message is accounted for");
    ack.delivered();
    let counts = balance.snapshot();
    assert!(counts.adds_up() && counts.in_flight == 0);
    Outcome {
        results,
        failed,
        counts,
    }
}

fn opcua(value: Value) -> Message {
    let entries = [
        ("opcua_tag_name", "FastUInt1"),
        ("opcua_tag_group", "OpcPlc.Fast"),
        ("opcua_attr_nodeid", "ns=3;s=x"),
    ];
    let map = MetaMap::new(entries.map(|(k, v)| (k.into(), v.into())), Some(1));
    let stamps = ValueQuality {
        source_time: Ticks::from_unix_millis(1000),
        server_time: Ticks::from_unix_millis(2000),
        status: 0,
    };
    Message::new(Payload::Value(value), Metadata::stamped(Arc::new(map), stamps))
}

fn raw(payload: &str, meta: &[(&str, &str)]) -> Message {
    let mut message = Message::raw(payload.to_owned().into_bytes());
    for (key, value) in meta {
        message.meta.set(*key, *value);
    }
    message
}

const PLACE: &str = "msg.meta.location_path = 'ent.site'; msg.meta.data_contract = '_raw'; msg.meta.tag_name = 'temp';";

/// Metadata that needs no script.
const PLACED: [(&str, &str); 4] = [
    ("location_path", "ent.site"),
    ("data_contract", "_raw"),
    ("tag_name", "temp"),
    ("timestamp_ms", "5"),
];

fn text(message: &Message) -> String {
    String::from_utf8(message.bytes().into_owned()).unwrap()
}

#[test]
fn an_opcua_value_gets_topic_value_and_time() {
    let code = "msg.meta.location_path = 'ent.site';\nmsg.meta.data_contract = '_historian';\n\
                msg.meta.tag_name = msg.meta.opcua_tag_name;\nreturn msg;";
    let mut processor = processor(&format!("{}      timestampSource: source\n", block("defaults", code)));
    let out = run(
        &mut processor,
        vec![opcua(Value::U64(u64::MAX)), opcua(Value::F64(0.5))],
    );
    assert_eq!(
        text(&out.results[0]),
        "{\"value\":18446744073709551615,\"timestamp_ms\":1000}"
    );
    assert_eq!(text(&out.results[1]), "{\"value\":0.5,\"timestamp_ms\":1000}");
    let meta = &out.results[0].meta;
    assert_eq!(meta.get("umh_topic").unwrap(), "umh.v1.ent.site._historian.FastUInt1");
    assert_eq!(meta.get("topic").unwrap(), "umh.v1.ent.site._historian.FastUInt1");
    assert_eq!(meta.get("opcua_tag_group").unwrap(), "OpcPlc.Fast");
    assert_eq!(meta.get(key::SOURCE_TIMESTAMP).unwrap(), "1970-01-01T00:00:01.000000Z");
    assert_eq!(meta.stamps().unwrap().server_time, Ticks::from_unix_millis(2000));
    assert!(!meta.is_changed(), "all metadata is shared again");
    assert_eq!(out.results[0].series(), Some(1));
    assert_eq!((out.counts.entered, out.counts.out), (2, 2));
}

fn after_a_gap(from: i64) -> QualityDetails {
    QualityDetails::new(
        Some("0x480".into()),
        Some((Ticks::from_unix_millis(from), Ticks::from_unix_millis(1000))),
    )
}

/// The first runs the scripts, the others are memoized.
#[test]
fn values_after_a_gap_cost_no_script_and_say_so_as_before() {
    let mut processor = processor(&block("defaults", &format!("{PLACE} return msg")));
    let plain = opcua(Value::I64(1));
    let (map, stamps) = (plain.meta.shared_map().clone(), plain.meta.stamps().unwrap());
    for from in [500, 600, 700] {
        let meta = Metadata::marked(map.clone(), stamps, after_a_gap(from));
        let message = Message::new(Payload::Value(Value::I64(1)), meta);
        let out = run(&mut processor, vec![message]);
        let meta = &out.results[0].meta;
        let seen = [key::GAP, key::GAP_FROM, key::GAP_TO, key::STATUS_CODE].map(|key| meta.get(key).unwrap());
        let times = [
            format!("1970-01-01T00:00:00.{from}000Z"),
            "1970-01-01T00:00:01.000000Z".to_owned(),
        ];
        assert_eq!(seen, ["true", times[0].as_str(), times[1].as_str(), "0x480"]);
        assert!(!meta.is_changed());
        let (of_first, now) = (meta.shared_map().clone(), run(&mut processor, vec![plain.clone()]));
        let now = &now.results[0].meta;
        assert!(
            Arc::ptr_eq(now.shared_map(), &of_first) || from == 500,
            "one map for both kinds"
        );
        assert!(!now.contains(key::GAP) && !now.is_marked());
    }
}

/// An OPC UA notification with a status and no value.
fn without_value(status: u32) -> Message {
    let map = opcua(Value::Null).meta.shared_map().clone();
    let stamps = ValueQuality {
        source_time: Ticks::from_unix_millis(1000),
        server_time: Ticks::from_unix_millis(2000),
        status,
    };
    let details = QualityDetails::new(
        Some("No communication. StatusBadNoCommunication (0x80310000)".into()),
        None,
    );
    Message::new(Payload::Value(Value::Null), Metadata::marked(map, stamps, details))
}

/// Scripts compute with null as with 0, which nobody has measured.
#[test]
fn a_bad_tag_without_a_value_gets_its_topic_and_stays_without_a_value() {
    const BAD: u32 = 0x8031_0000;
    const UNCERTAIN: u32 = 0x4092_0000;
    let null = r#"{"value":null,"timestamp_ms":1000}"#;
    for code in [
        "return msg;",
        "msg.payload = msg.payload * 1.8 + 32; return msg;",
        "if (msg.payload === null) msg.payload = 'none'; return msg;",
        "msg.meta.datatype = 'number'; return msg;",
        "msg.meta.datatype = 'string'; return msg;",
        "msg.meta.datatype = 'bool'; return msg;",
        "return {payload: msg.payload + 1, meta: {...msg.meta, n: '1'}};",
    ] {
        let script = block("defaults", &format!("{PLACE} {code}"));
        let mut processor = processor(&format!("{script}      timestampSource: source\n"));
        // The later ones are memoized where that is possible.
        for status in [BAD, UNCERTAIN, BAD] {
            let out = run(&mut processor, vec![without_value(status)]);
            assert_eq!(out.results.len(), 1, "{code}: {:?}", out.failed);
            let (result, meta) = (text(&out.results[0]), &out.results[0].meta);
            assert_eq!(result, null, "{code}");
            assert_eq!(meta.get("umh_topic").unwrap(), "umh.v1.ent.site._raw.temp", "{code}");
            assert_eq!(meta.stamps().unwrap().status, status);
            assert!(meta.get(key::STATUS_CODE).unwrap().contains("StatusBadNoCommunication"));
        }
    }
    let script = format!("{PLACE} return [msg, {{payload: 7, meta: {{...msg.meta, tag_name: 'b'}}}}];");
    let mut processor = processor(&format!(
        "{}      timestampSource: source\n",
        block("defaults", &script)
    ));
    let out = run(&mut processor, vec![without_value(BAD)]);
    assert_eq!(out.results.iter().map(text).collect::<Vec<_>>(), [null, null]);
}

#[test]
fn a_null_that_is_no_lost_value_is_what_it_was() {
    let mut processor = processor(&format!(
        "{}      timestampSource: source\n",
        block("defaults", &format!("{PLACE} return msg;"))
    ));
    for null in [opcua(Value::Null), without_value(0x480)] {
        let out = run(&mut processor, vec![null]);
        assert_eq!(text(&out.results[0]), r#"{"value":"<nil>","timestamp_ms":1000}"#);
    }
    let out = run(&mut processor, vec![raw("null", &[("timestamp_ms", "5")])]);
    assert_eq!(text(&out.results[0]), r#"{"value":"<nil>","timestamp_ms":5}"#);
}

#[test]
fn stages_run_in_order_and_see_each_other() {
    let yaml = r#"
  - tag_processor:
      defaults: |
        msg.meta.location_path = "ent";
        msg.meta.data_contract = "_raw";
        msg.meta.tag_name = "t";
        msg.meta.n = 1;
        return msg;
      conditions:
        - if: msg.meta.kind === "double"
          then: |
            return [msg, {payload: msg.payload * 2, meta: {...msg.meta, tag_name: "twice"}}];
        - if: true
          then: |
            msg.meta.seen = typeof msg.meta.n;
            return msg;
        - if: |
            msg.meta.tag_name = "changed in the condition";
            msg.payload > 100
          then: return null
      advancedProcessing: |
        msg.meta.virtual_path = "v." + msg.meta.seen;
        return msg;
"#;
    let mut processor = processor(yaml);
    let messages = vec![
        raw("4", &[("kind", "double")]),
        raw("60", &[("kind", "double")]),
        raw("7", &[]),
        raw("101", &[]),
    ];
    let out = run(&mut processor, messages);
    let seen: Vec<String> = out
        .results
        .iter()
        .map(|m| {
            format!(
                "{} {}",
                m.meta.get("umh_topic").unwrap(),
                text(m).split(',').next().unwrap()
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            "umh.v1.ent._raw.v.string.t {\"value\":4",
            "umh.v1.ent._raw.v.string.twice {\"value\":8",
            "umh.v1.ent._raw.v.string.t {\"value\":60",
            "umh.v1.ent._raw.v.string.t {\"value\":7",
        ]
    );
    assert_eq!(out.counts.expanded, 2);
    assert_eq!(out.counts.filtered(FilterReason::ReturnedNull), 2);
}

#[test]
fn one_bad_message_fails_alone() {
    let mut processor = defaults(&format!(
        "if (msg.payload === 'throw') throw new Error('boom');\nif (msg.payload === 'loop') while (true) {{}}\n\
         if (msg.payload === 'bad') return 1;\nif (msg.payload === 'list') return [msg, 2];\n{PLACE}\n\
         if (msg.payload === 'topic') msg.meta.data_contract = 'raw';\nif (msg.payload === 'missing') msg.meta.tag_name = '';\n\
         if (msg.payload === 'nan') msg.payload = NaN;\nif (msg.payload === 'number') msg.meta.datatype = 'number';\n\
         return msg;"
    ));
    processor.program = {
        let spec = with_config(
            &format!(
                "{}      scriptTimeout: 100ms\n",
                block(
                    "defaults",
                    &format!(
                        "if (msg.payload === 'throw') throw new Error('boom');\nif (msg.payload === 'loop') while (true) {{}}\n\
                     if (msg.payload === 'bad') return 1;\nif (msg.payload === 'list') return [msg, 2];\n{PLACE}\n\
                     if (msg.payload === 'topic') msg.meta.data_contract = 'raw';\n\
                     if (msg.payload === 'missing') msg.meta.tag_name = '';\n\
                     if (msg.payload === 'nan') msg.payload = NaN;\n\
                     if (msg.payload === 'number') msg.meta.datatype = 'number';\nreturn msg;"
                    )
                )
            ),
            |node, context| read(node, context),
        );
        spec.unwrap()
            .processor(StageContext::for_tests("timeout"))
            .unwrap()
            .program
    };
    let payloads = [
        "1", "throw", "loop", "bad", "list", "topic", "missing", "nan", "number", "2",
    ];
    let out = run(&mut processor, payloads.map(|p| raw(p, &[])).into());
    assert_eq!(out.results.len(), 2);
    let failed: Vec<(DropReason, &str)> = out
        .failed
        .iter()
        .map(|(reason, error)| (*reason, error.lines().next().unwrap()))
        .collect();
    assert_eq!(
        failed,
        [
            (
                DropReason::ScriptError,
                "JavaScript error in defaults: Error: boom (line 1, column 40)"
            ),
            (
                DropReason::ScriptTimeout,
                "JavaScript error in defaults: the script ran longer than 100ms and was stopped"
            ),
            (
                DropReason::ScriptBadReturn,
                "JavaScript error in defaults: code must return a message object or array of message objects"
            ),
            (
                DropReason::ScriptBadReturn,
                "JavaScript error in defaults: array elements must be message objects"
            ),
            (
                DropReason::InvalidTopic,
                "failed to construct UMH topic: failed to build UMH topic: topic must contain a data contract (segment \
                 starting with '_') and it cannot be the final segment"
            ),
            (DropReason::MissingField, "Message validation failed"),
            (DropReason::InvalidValue, "the value NaN has no JSON form"),
            (
                DropReason::InvalidValue,
                "cannot convert \"number\" to number: not a decimal number"
            ),
        ]
    );
    assert_eq!(out.counts.dropped_total(), 8);
}

#[test]
fn errors_name_their_stage() {
    let mut processor = processor(
        "  - tag_processor:\n      conditions:\n        - {if: 'true', then: return msg}\n        - {if: 'nothing.here', then: return msg}\n",
    );
    let out = run(&mut processor, vec![raw("1", &[])]);
    assert_eq!(
        out.failed[0].1,
        "JavaScript error in condition-1-if: ReferenceError: nothing is not defined (line 1, column 1)"
    );
    let mut processor = super::tests::processor(
        "  - tag_processor:\n      conditions:\n        - {if: 'true', then: throw 'x'}\n      advancedProcessing: return msg\n",
    );
    let out = run(&mut processor, vec![raw("1", &[])]);
    assert_eq!(out.failed[0].1, "JavaScript error in condition-0-then: x");
    let mut processor = super::tests::processor("  - tag_processor:\n      advancedProcessing: throw 'x'\n");
    let out = run(&mut processor, vec![raw("1", &[])]);
    assert_eq!(out.failed[0].1, "JavaScript error in advanced: x");
}

#[test]
fn missing_fields_are_told_with_the_message() {
    let mut processor = defaults("msg.meta.tag_name = 'x'; return msg;");
    let out = run(&mut processor, vec![raw("{\"a\": 1}", &[("k", "v\"")])]);
    assert_eq!(
        out.failed[0].1,
        "Message validation failed\n━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━\nMissing fields: location_path, data_contract\n\n\
         Current message:\n┌ Payload: {\"a\":1}\n└ Metadata: {\n  \"k\": \"v\\\"\",\n  \"tag_name\": \"x\"\n}\n\n\
         To fix: set msg.meta.location_path, msg.meta.data_contract and msg.meta.tag_name in a script"
    );
    let mut nothing = processor_without_scripts();
    let out = run(&mut nothing, vec![raw("1", &[])]);
    assert!(
        out.failed[0]
            .1
            .contains("Missing fields: location_path, data_contract, tag_name\n"),
        "{}",
        out.failed[0].1
    );
    assert!(out.failed[0].1.contains("└ Metadata: {}\n"));
}

fn processor_without_scripts() -> TagProcessor {
    processor("  - tag_processor: {}\n")
}

#[test]
fn values_are_typed() {
    let mut processor = processor_without_scripts();
    let placed = |payload: &str, datatype: &str| {
        let mut message = raw(payload, &PLACED);
        message.meta.set("datatype", datatype);
        message
    };
    for (payload, datatype, value) in [
        ("9007199254740993", "", "9007199254740993"),
        ("1.10", "", "1.10"),
        ("\"12\"", "", "12"),
        ("007", "", "7"),
        ("007", "number", "7"),
        ("text", "", "\"text\""),
        ("", "", "\"\""),
        ("true", "", "true"),
        ("null", "", "\"<nil>\""),
        ("[1,2]", "", "\"[1,2]\""),
        ("2500000", "string", "\"2500000\""),
        ("1", "bool", "true"),
        ("NaN", "", "\"NaN\""),
    ] {
        let out = run(&mut processor, vec![placed(payload, datatype)]);
        assert_eq!(
            text(&out.results[0]),
            format!("{{\"value\":{value},\"timestamp_ms\":5}}"),
            "{payload} {datatype}"
        );
    }
    let mut scripted = defaults("return msg");
    let out = run(
        &mut scripted,
        vec![placed("2500000", "string"), placed("9007199254740993", "string")],
    );
    assert_eq!(text(&out.results[0]), "{\"value\":\"2.5e+06\",\"timestamp_ms\":5}");
    assert_eq!(
        text(&out.results[1]),
        "{\"value\":\"9007199254740993\",\"timestamp_ms\":5}"
    );
    let mut replacing = defaults("msg.payload = msg.payload + 1; return msg");
    let out = run(&mut replacing, vec![placed("2500000", "string")]);
    assert_eq!(text(&out.results[0]), "{\"value\":\"2500001\",\"timestamp_ms\":5}");
    // A number that a script sets is formatted as a script's number, even if it equals the original.
    let mut bounding = defaults("msg.payload = Math.min(msg.payload, 3000000); return msg");
    let messages = ["2500000", "4000000", "3000000", "18446744073709551615"].map(|payload| placed(payload, "string"));
    let out = run(&mut bounding, messages.into());
    let values: Vec<String> = out.results.iter().map(text).collect();
    let expected = ["2500000", "3000000", "3000000", "3000000"];
    assert_eq!(
        values,
        expected.map(|n| format!("{{\"value\":\"{n}\",\"timestamp_ms\":5}}"))
    );
    let out = run(
        &mut processor,
        vec![{
            let mut message = opcua(Value::F64(f64::NAN));
            PLACED.iter().for_each(|(k, v)| message.meta.set(*k, *v));
            message
        }],
    );
    assert_eq!(
        out.failed,
        [(DropReason::InvalidValue, "the value NaN has no JSON form".to_owned())]
    );
}

#[test]
fn a_time_that_a_script_sets_counts_and_stays() {
    let mut processor = defaults(&format!(
        "{PLACE} msg.meta.timestamp_ms = 1700000000000 + msg.payload; return msg"
    ));
    let out = run(&mut processor, (0..20).map(|n| raw(&n.to_string(), &[])).collect());
    for (n, message) in out.results.iter().enumerate() {
        assert_eq!(
            text(message),
            format!("{{\"value\":{n},\"timestamp_ms\":{}}}", 1_700_000_000_000u64 + n as u64)
        );
        assert_eq!(
            message.meta.get("timestamp_ms").unwrap(),
            (1_700_000_000_000u64 + n as u64).to_string()
        );
    }
    let mut now = defaults(&format!("{PLACE} return msg"));
    let before = Ticks::now().unix_millis();
    let out = run(&mut now, vec![opcua(Value::U8(1))]);
    assert!(matches!(out.results[0].payload, Payload::Sample { time_ms, .. } if time_ms >= before));
}

#[test]
fn scripts_see_what_the_message_came_with() {
    let mut processor = processor(&format!(
        "{}      advancedProcessing: |\n        msg.meta.keys = msg.meta._incomingKeys; msg.meta.initial = msg.meta._initialMetadata;\n        msg.meta.listed = Object.keys(msg.meta).includes('_initialMetadata'); return msg;\n",
        block(
            "defaults",
            &format!("{PLACE} msg.meta.b = 'changed'; delete msg.meta.a; return msg;")
        )
    ));
    let out = run(
        &mut processor,
        vec![raw("1", &[("b", "2"), ("a", "\"1\""), ("_incomingKeys", "old")])],
    );
    let meta = &out.results[0].meta;
    assert_eq!(meta.get("keys").unwrap(), "a,b");
    assert_eq!(meta.get("initial").unwrap(), r#"{"a":"\"1\"","b":"2"}"#);
    assert_eq!(meta.get("listed").unwrap(), "true");
    assert!(!meta.contains("_incomingKeys") && !meta.contains("_initialMetadata"));
    let mut copying = defaults(&format!("{PLACE} return {{payload: 1, meta: {{...msg.meta}}}}"));
    let out = run(&mut copying, vec![raw("1", &[])]);
    assert!(!out.results[0].meta.contains("_incomingKeys"));
}

#[test]
fn a_failed_message_keeps_the_bytes_it_came_with() {
    let mut processor = defaults("throw new Error('x')");
    let balance = Arc::new(FlowBalance::default());
    let mut ack = Ack::enter(&balance, 1, |_| {});
    processor.results(vec![raw("{ \"a\": 1 }", &[])], &mut ack);
    let failed = processor.failed.pop().unwrap();
    assert_eq!(&*failed.message.bytes(), b"{ \"a\": 1 }");
    ack.dropped(failed.reason, 1);
}

#[test]
fn samples_and_large_texts_pass() {
    let mut processor = defaults(&format!(
        "{PLACE} if (msg.payload.value) msg.payload = msg.payload.value; return msg"
    ));
    let mut sample = raw("", &[]);
    sample.payload = Payload::Sample {
        value: Value::I64(5),
        time_ms: 3,
    };
    let large = "x".repeat(10 << 20);
    let out = run(&mut processor, vec![sample, raw(&large, &[])]);
    assert!(text(&out.results[0]).starts_with("{\"value\":5,"));
    assert!(text(&out.results[1]).len() > large.len());
}

#[test]
fn the_batch_leaves_as_one_and_counters_count() {
    let mut processor = defaults(&format!(
        "if (msg.payload == 0) return null; if (msg.payload == 1) throw 1; {PLACE} return [msg, msg];"
    ));
    let balance = Arc::new(FlowBalance::default());
    let batch = Batch::new(
        (0..4).map(|n| raw(&n.to_string(), &[])).collect(),
        Ack::enter(&balance, 4, |_| {}),
    );
    let mut out = Vec::new();
    processor.process(batch, &mut out);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].len(), 4);
    out.pop().unwrap().ack.delivered();
    let counts = balance.snapshot();
    assert!(counts.adds_up());
    assert_eq!(
        (counts.entered, counts.out, counts.dropped(DropReason::ScriptError)),
        (6, 4, 1)
    );
    assert_eq!(processor.counters.processed.get(), 4);
    assert_eq!(processor.counters.errored.get(), 1);
    assert_eq!(processor.counters.dropped.get(), 1);
    let batch = Batch::new(vec![raw("0", &[])], Ack::enter(&balance, 1, |_| {}));
    processor.process(batch, &mut out);
    assert!(out.is_empty() && balance.snapshot().in_flight == 0);
}

#[test]
fn every_mistake_in_the_configuration_is_told_with_its_place() {
    let errors = |yaml: &str| {
        with_config(yaml, |node, context| read(node, context))
            .map(|_| ())
            .unwrap_err()
    };
    let yaml = r#"  - tag_processor:
      defaults: |
        msg.meta.a = 1;
          return msg +;
      conditions:
        - if: msg.payload >
          then: return msg
        - if: true
          then: |
            }
      advancedProcessing: let a = 1; let a = 2;
"#;
    assert_eq!(
        errors(yaml),
        [
            "flow.yaml:7:23: failed to compile JavaScript programs: failed to compile defaults code: SyntaxError: unexpected token in expression: ';' (line 2, column 15)",
            "flow.yaml:9:28: failed to compile JavaScript programs: failed to compile condition 0 'if' code: SyntaxError: unexpected end of the script (line 1, column 14)",
            "flow.yaml:13:13: failed to compile JavaScript programs: failed to compile condition 1 'then' code: SyntaxError: '}' closes nothing (line 1, column 1)",
            "flow.yaml:14:44: failed to compile JavaScript programs: failed to compile advanced processing code: SyntaxError: invalid redefinition of lexical identifier (line 1, column 18)",
        ]
    );
    assert_eq!(
        errors("  - tag_processor: {default: return msg, timestampSource: later, scriptTimeout: 0s, conditions: [{if: 'true', thn: x}]}\n").len(),
        5
    );
}

/// A processor that has seen the tags, against one that sees them for the first time: equal in everything, in the same
/// order.
#[test]
fn a_result_that_is_at_hand_is_the_one_that_scripts_make() {
    let yaml = "  - tag_processor:\n      timestampSource: source\n      defaults: |\n        \
                msg.meta.location_path = 'ent.site'; msg.meta.data_contract = '_raw';\n        \
                msg.meta.tag_name = msg.meta.opcua_tag_name; return msg;\n      conditions:\n        \
                - if: msg.meta.opcua_tag_name.endsWith('2')\n          then: msg.meta.virtual_path = 'two'; return msg;\n        \
                - if: msg.meta.opcua_tag_name.endsWith('3')\n          then: msg.meta.high = msg.payload > 5; return msg;\n        \
                - if: msg.meta.opcua_tag_name.endsWith('4')\n          then: return null;\n        \
                - if: msg.meta.opcua_tag_name.endsWith('5')\n          then: msg.meta.datatype = 'string'; return msg;\n        \
                - if: msg.meta.opcua_tag_name.endsWith('6')\n          then: msg.meta.data_contract = 'raw'; return msg;\n        \
                - if: msg.meta.opcua_tag_name.endsWith('7')\n          then: msg.meta.timestamp_ms = '77'; return msg;\n        \
                - if: msg.meta.opcua_tag_name.endsWith('8')\n          then: msg.meta.datatype = 'string'; msg.payload *= 1e6; return msg;\n        \
                - if: msg.meta.opcua_tag_name.endsWith('9')\n          then: msg.payload = [msg.payload.toFixed(1)][0]; return msg;\n";
    // With two scripts that compute a payload nothing is cached; with one it is.
    let again = "      advancedProcessing: msg.payload = msg.payload + 1; return msg;\n";
    same_at_hand(yaml, &[0, 2, 5, 7, 8, 9]);
    same_at_hand(&format!("{yaml}{again}"), &[0, 2, 5, 7]);
}

/// Where results can be cached, there are batches with only `tags`.
fn same_at_hand(yaml: &str, tags: &[u64]) {
    let maps: Vec<Arc<MetaMap>> = (0..10)
        .map(|tag| {
            let name = ("opcua_tag_name".into(), format!("Tag{tag}").into());
            Arc::new(MetaMap::new([name], Some(tag)))
        })
        .collect();
    let batch = |seed: usize| -> Vec<Message> {
        let message = |i: usize| {
            let n = seed.wrapping_mul(31).wrapping_add(i.wrapping_mul(7));
            let value = match n % 11 {
                0 => Value::F64(f64::NAN),
                1 => Value::text("12.5"),
                2 => Value::Bool(true),
                _ => Value::I64(n as i64 % 11),
            };
            let stamps = ValueQuality {
                source_time: Ticks::from_unix_millis(n as i64),
                server_time: Ticks::MISSING,
                status: 0,
            };
            let map = maps[n % 10].clone();
            let meta = match n.is_multiple_of(5) {
                true => Metadata::marked(map, stamps, after_a_gap(n as i64)),
                false => Metadata::stamped(map, stamps),
            };
            let mut message = Message::new(Payload::Value(value), meta);
            if n.is_multiple_of(13) {
                message.meta.set("own", "x");
            }
            message
        };
        // From the third on, a batch has only tags whose results can be cached.
        let at_hand = |message: &Message| seed < 3 || tags.contains(&message.meta.shared_map().series().unwrap());
        (0..40).map(message).filter(at_hand).collect()
    };
    let mut known = processor(yaml);
    let mut at_hand = 0;
    for seed in 0..12 {
        let (out, expected) = (run(&mut known, batch(seed)), run(&mut processor(yaml), batch(seed)));
        let seen = |out: &Outcome| -> Vec<String> {
            let results = out.results.iter();
            results
                .map(|m| {
                    format!(
                        "{:?} {:?} {:?}",
                        m.payload,
                        m.meta.iter().collect::<Vec<_>>(),
                        m.series()
                    )
                })
                .collect()
        };
        assert_eq!(seen(&out), seen(&expected), "{seed}");
        assert_eq!(sorted(out.failed), sorted(expected.failed), "{seed}");
        assert_eq!(out.counts, expected.counts, "{seed}");
        let (done, _) = known.finish_at_hand(&mut batch(seed));
        known.failed.clear();
        at_hand += done;
    }
    assert!(at_hand > 50, "{at_hand}");
}

#[test]
fn a_payload_is_computed_and_all_else_is_at_hand() {
    let code = "msg.meta.location_path = 'ent'; msg.meta.data_contract = '_raw';
                msg.meta.tag_name = msg.meta.opcua_tag_name; msg.payload = msg.payload * 2; return msg;";
    let mut processor = processor(&format!("{}      timestampSource: source\n", block("defaults", code)));
    let meta = opcua(Value::Null).meta;
    let of = |value: f64| Message::new(Payload::Value(Value::F64(value)), meta.clone());
    let first = run(&mut processor, vec![of(1.25)]).results;
    // A failed message has the results of the script.
    let mut messages = vec![of(2.25), of(1e308), of(3.25)];
    assert_eq!(processor.finish_at_hand(&mut messages), (3, 2));
    for (message, value) in first.iter().chain(&messages).zip([2.5, 4.5, 6.5]) {
        let expected = Payload::Sample {
            value: Value::F64(value),
            time_ms: 1000,
        };
        assert_eq!(message.payload, expected);
    }
    assert!(Arc::ptr_eq(
        messages[0].meta.shared_map(),
        messages[1].meta.shared_map()
    ));
    let failed = processor.failed.pop().unwrap();
    assert_eq!(failed.reason, DropReason::InvalidValue);
    assert_eq!(failed.message.payload, Payload::Value(Value::F64(f64::INFINITY)));
    assert_eq!(failed.message.meta.get("location_path").as_deref(), Some("ent"));
    assert!(!failed.message.meta.contains("umh_topic"));
    // Bytes are parsed once for all stages.
    let bytes = Message {
        payload: Payload::Raw("5".into()),
        ..of(0.0)
    };
    assert_eq!(processor.finish_at_hand(&mut [bytes]), (0, 0));
}

fn sorted(mut failed: Vec<(DropReason, String)>) -> Vec<String> {
    let mut texts: Vec<String> = failed.drain(..).map(|failed| format!("{failed:?}")).collect();
    texts.sort();
    texts
}

/// The condition of a message sees what the script of the previous message left in the cache, in both engines.
#[test]
fn a_condition_and_its_script_take_turns_message_by_message() {
    for inert in ["", "new Map();"] {
        let mut processor = processor(&format!(
            "  - tag_processor:\n      conditions:\n        - if: \"{inert} !cache.exists('seen')\"\n          then: \"{inert} cache.set('seen', 1); \
             msg.meta.first = 'yes'; return msg\"\n"
        ));
        let out = run(&mut processor, (0..3).map(|i| raw(&i.to_string(), &PLACED)).collect());
        let first: Vec<bool> = out
            .results
            .iter()
            .map(|message| message.meta.contains("first"))
            .collect();
        assert_eq!(first, [true, false, false], "{inert}");
    }
}

/// What leaves says of the virtual path what the topic says, however scripts write it.
#[test]
fn the_virtual_path_that_leaves_is_that_of_the_topic() {
    let code = format!("{PLACE} if (msg.meta.how) msg.meta.virtual_path = eval(msg.meta.how); return msg");
    let quick = format!("{PLACE} msg.meta.virtual_path = CODE; return msg");
    for (how, path) in [
        ("' motor.axis '", "motor.axis"),
        ("'motor'", "motor"),
        ("null", ""),
        ("undefined", ""),
        ("''", ""),
        ("'  '", ""),
        ("'null'", ""),
        ("'NIL'", ""),
        ("' <nil> '", ""),
        ("'Undefined'", ""),
    ] {
        let topic = match path {
            "" => "umh.v1.ent.site._raw.temp".to_owned(),
            path => format!("umh.v1.ent.site._raw.{path}.temp"),
        };
        let see = |out: &Outcome, way: &str| {
            assert!(out.failed.is_empty(), "{how} {way}: {:?}", out.failed);
            for result in &out.results {
                assert_eq!(
                    result.meta.get("umh_topic").as_deref(),
                    Some(topic.as_str()),
                    "{how} {way}"
                );
                let found = result.meta.get("virtual_path");
                assert_eq!(
                    found.as_deref(),
                    Some(path).filter(|path| !path.is_empty()),
                    "{how} {way}"
                );
            }
        };
        // For each message with QuickJS; as native code; remembered for the tag; from the input.
        let mut quickjs = defaults(&code);
        let message = raw("1", &[("how", how)]);
        see(&run(&mut quickjs, vec![message.clone(), message]), "QuickJS");
        let mut native = defaults(&quick.replace("CODE", how));
        for _ in 0..3 {
            see(&run(&mut native, vec![opcua(Value::I64(1)), raw("1", &[])]), "native");
        }
        let mut none = processor("  - tag_processor: {}\n");
        let given = how.trim_matches('\'');
        let given = [&PLACED[..], &[("virtual_path", given)]].concat();
        see(&run(&mut none, vec![raw("1", &given), raw("1", &given)]), "no script");
    }
}

/// Also when it is another one in each message, so that it stays with the message.
#[test]
fn virtual_paths_that_keep_changing_leave_as_their_topics_have_them() {
    let mut processor = defaults(&format!(
        "{PLACE} msg.meta.virtual_path = msg.payload % 2 ? null : ' p' + msg.payload + ' '; return msg"
    ));
    let values = 0..40;
    let out = run(&mut processor, values.clone().map(|n| opcua(Value::I64(n))).collect());
    assert_eq!(out.results.len(), 40);
    for (n, result) in values.zip(&out.results) {
        let path = (n % 2 == 0).then(|| format!("p{n}"));
        let topic = match &path {
            Some(path) => format!("umh.v1.ent.site._raw.{path}.temp"),
            None => "umh.v1.ent.site._raw.temp".to_owned(),
        };
        assert_eq!(result.meta.get("umh_topic").as_deref(), Some(topic.as_str()));
        assert_eq!(result.meta.get("virtual_path").as_deref(), path.as_deref(), "{n}");
    }
}
