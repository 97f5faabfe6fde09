//! Tags computed from other tags, in flows of the real binary.

use serde_json::{Value, json};
use thalweg_tests::{Balance, Thalweg, beside, eventually};

fn lines(thalweg: &Thalweg, file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(thalweg.folder.path().join(file)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn sample(topic: &str, value: impl Into<Value>, time_ms: u64) -> String {
    let value = value.into();
    format!("{}\n", json!({"topic": topic, "value": value, "timestamp_ms": time_ms}))
}

#[test]
fn the_example_computes_power_from_torque_and_speed() {
    let example = std::fs::read_to_string(beside("../examples/stream-processor.yaml")).unwrap();
    let samples = [
        sample("umh.v1.acme.berlin._raw.motor.torque", 12.5, 1000),
        sample("umh.v1.acme.berlin._raw.motor.speed", 1440, 2000),
        sample("umh.v1.acme.berlin._raw.motor.torque", 50, 3000),
        sample("umh.v1.acme.berlin._raw.oven.speed", 1, 4000),
    ];
    let mut thalweg = Thalweg::spawn_with(&example, &[("samples.jsonl", &samples.concat())]).unwrap();
    let expected = Balance {
        // Three messages ran 2, 4 and 4 expressions, of which one returned null; one message is of no source.
        entered: 11,
        out: 9,
        filtered: 2,
        ..Balance::default()
    };
    assert_eq!(thalweg.finish().unwrap(), expected);
    let result = |path: &str, value: Value, time_ms: u64| {
        let topic = format!("umh.v1.acme.berlin._motor_v1.{path}");
        json!({"value": value, "timestamp_ms": time_ms, "topic": topic})
    };
    assert_eq!(
        lines(&thalweg, "results.jsonl"),
        [
            result("serial_number", json!("M-1138"), 1000),
            result("speed", json!(1440), 2000),
            result("power.watts", json!(1885), 2000),
            result("power.kilowatts", json!("1.9"), 2000),
            result("serial_number", json!("M-1138"), 2000),
            result("power.watts", json!(7540), 3000),
            result("power.kilowatts", json!("7.5"), 3000),
            result("overload", json!("50 Nm"), 3000),
            result("serial_number", json!("M-1138"), 3000),
        ]
    );
}

const READ: &str = "\
input: {file: {paths: [samples.jsonl]}}
output:
  processors: [{mapping: 'root.result = this.value'}]
  file: {path: results.jsonl}
dead_letter: {file: {path: dead.jsonl, codec: lines}}
pipeline:
  threads: 8
  processors:
    - mapping: |
        meta umh_topic = this.topic
        root.value = this.value
        root.timestamp_ms = this.timestamp_ms
    - stream_processor:
        mode: timeseries
        model: {name: m, version: v1}
        output_topic: umh.v1.acme
        sources: {a: umh.v1.acme._raw.a, b: umh.v1.acme._raw.b, c: umh.v1.acme._raw.c}
";

/// The sources are separate series, which eight threads would process independently.
#[test]
fn results_are_right_and_in_order_with_many_threads() {
    const ROUNDS: u64 = 20_000;
    let samples: String = (1..=ROUNDS)
        .flat_map(|n| ["a", "b", "c"].map(|name| sample(&format!("umh.v1.acme._raw.{name}"), n, n)))
        .collect();
    let yaml = format!("{READ}        mapping: {{all: 'a + \" \" + b + \" \" + c'}}\n");
    let mut thalweg = Thalweg::spawn_with(&yaml, &[("samples.jsonl", &samples)]).unwrap();
    let balance = thalweg.finish().unwrap();
    let expected = Balance {
        entered: 3 * ROUNDS,
        out: 3 * ROUNDS - 2,
        // Until each source has a value.
        filtered: 2,
        ..Balance::default()
    };
    assert_eq!(balance, expected);
    let mut expected = vec!["1 1 1".to_owned()];
    for n in 2..=ROUNDS {
        let before = n - 1;
        expected.push(format!("{n} {before} {before}"));
        expected.push(format!("{n} {n} {before}"));
        expected.push(format!("{n} {n} {n}"));
    }
    let results = lines(&thalweg, "results.jsonl")
        .into_iter()
        .map(|row| row["result"].clone());
    assert!(results.eq(expected), "results are wrong, or out of order");
}

#[test]
fn what_fails_goes_to_the_dead_letter_with_its_reason_and_the_rest_goes_on() {
    let samples = [
        sample("umh.v1.acme._raw.a", 1, 1),
        sample("umh.v1.acme._raw.a", 2, 0),
        sample("umh.v1.acme._raw.a", Value::Null, 3),
        sample("umh.v1.acme._raw.a", 4, 4),
    ];
    let yaml = format!("{READ}        mapping: {{bad: a.b.c, worse: eval(a), good: a + 1}}\n");
    let mut thalweg = Thalweg::spawn_with(&yaml, &[("samples.jsonl", &samples.concat())]).unwrap();
    let expected = Balance {
        entered: 8,
        out: 2,
        dropped: 6,
        ..Balance::default()
    };
    assert_eq!(thalweg.finish().unwrap(), expected);
    assert_eq!(
        lines(&thalweg, "results.jsonl"),
        [json!({"result": 2}), json!({"result": 5})]
    );
    assert_eq!(lines(&thalweg, "dead.jsonl").len(), 6);
    let log = thalweg.process.stdout() + &thalweg.process.stderr();
    for text in [
        "JavaScript error in bad: TypeError: cannot read property 'c' of undefined",
        "missing or invalid timestamp_ms",
        "'eval' is disabled for security reasons in this sandboxed environment",
    ] {
        assert!(log.contains(text), "{text} is not in {log}");
    }
}

#[test]
fn a_running_processor_tells_its_metrics() {
    let mut thalweg = Thalweg::start(
        "\
input:
  generate:
    interval: 5ms
    mapping: |
      meta umh_topic = \"umh.v1.acme._raw.a\"
      root.value = counter()
      root.timestamp_ms = timestamp_unix_milli()
pipeline:
  processors:
    - label: model
      stream_processor:
        mode: timeseries
        model: {name: m, version: v1}
        output_topic: umh.v1.acme
        sources: {a: umh.v1.acme._raw.a}
        mapping: {twice: a * 2, now: Date.now()}
output: {drop: {}}
",
    )
    .unwrap();
    eventually(|| {
        let metric = |name: &str| thalweg.metric(name, "label=\"model\"");
        let (processed, outputs) = (metric("messages_processed")?, metric("outputs_generated")?);
        anyhow::ensure!(processed > 10.0, "{processed} messages");
        anyhow::ensure!(outputs > 20.0, "{outputs} results");
        anyhow::ensure!(metric("active_mappings")? == 2.0 && metric("active_variables")? == 1.0);
        for name in [
            "javascript_execution_time",
            "message_processing_time",
            "batch_processing_time",
        ] {
            anyhow::ensure!(metric(&format!("{name}_count"))? > 0.0, "{name}");
        }
        Ok(())
    })
    .unwrap();
    thalweg.balance().unwrap();
    thalweg.stop().unwrap();
}
