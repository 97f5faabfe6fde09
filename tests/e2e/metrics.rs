//! The metrics of a running process are those of the reference: no name, type or label is exported that it does not list.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use thalweg_tests::servers::free_port;
use thalweg_tests::thalweg::run;
use thalweg_tests::{Api, Thalweg, eventually};

use crate::events_server::{Backend, Events};
use crate::otlp::logs;

/// What is said of a metric, in the reference or by a process.
#[derive(Debug, Default)]
struct Family {
    kind: String,
    labels: BTreeSet<String>,
}

type Families = BTreeMap<String, Family>;

/// The metrics that the reference lists, by name.
fn reference() -> Families {
    let folder = tempfile::tempdir().unwrap();
    let written = run(folder.path(), &["reference", "."]).unwrap();
    assert!(written.status.success(), "{}", written.stderr);
    let page = std::fs::read_to_string(folder.path().join("metrics.md")).unwrap();
    let (mut families, mut of_group) = (Families::new(), Vec::new());
    for line in page.lines() {
        if line.starts_with("### ") {
            of_group.clear();
        } else if let Some(labels) = line.strip_prefix("Labels of each: ") {
            of_group = quoted(labels);
        } else if line.starts_with("| `") {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, name, kind, labels, _unit, sentence, ..] = cells[..] else {
                panic!("{line}");
            };
            assert!(sentence.ends_with('.'), "{line}");
            let family = families.entry(name.trim_matches('`').to_owned()).or_default();
            family.kind = kind.to_owned();
            family.labels.extend(of_group.iter().cloned());
            family.labels.extend(quoted(labels));
        }
    }
    families
}

fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The metrics in the text of `/metrics`, without the labels that belong to the type.
fn exported(text: &str) -> Families {
    let (mut families, mut name) = (Families::new(), String::new());
    for line in text.lines() {
        if let Some(of_type) = line.strip_prefix("# TYPE ") {
            let (of_family, kind) = of_type.split_once(' ').unwrap();
            name = of_family.to_owned();
            families.entry(name.clone()).or_default().kind = kind.to_owned();
        } else if !line.starts_with('#') && !line.is_empty() {
            assert!(line.starts_with(&name), "{line} belongs to no family");
            families
                .entry(name.clone())
                .or_default()
                .labels
                .extend(label_names(line));
        }
    }
    families
}

/// The label names of a sample such as `depth{queue="a\"b",group="c"} 1`.
fn label_names(sample: &str) -> Vec<String> {
    let (mut names, mut name) = (Vec::new(), String::new());
    let (mut is_value, mut is_escaped) = (false, false);
    let labels = sample.split_once('{').map_or("", |(_, labels)| labels);
    for c in labels.chars() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' if is_value => is_value = false,
            '"' => {
                names.push(std::mem::take(&mut name));
                is_value = true;
            }
            '}' if !is_value => break,
            '=' | ',' => {}
            c if !is_value => name.push(c),
            _ => {}
        }
    }
    names.retain(|name| name != "le" && name != "quantile");
    names
}

/// Checks a scrape; `timing` is the type of timings.
fn are_listed(text: &str, timing: &str) -> Families {
    let (listed, exported) = (reference(), exported(text));
    for (name, family) in &exported {
        let Some(known) = listed.get(name) else {
            panic!("docs/reference/metrics.md does not list {name}");
        };
        let kind = if known.kind == "timing" { timing } else { &known.kind };
        assert_eq!(family.kind, kind, "{name}");
        let unknown: Vec<&String> = family.labels.difference(&known.labels).collect();
        assert!(unknown.is_empty(), "{name} has labels that are not listed: {unknown:?}");
    }
    exported
}

/// Flows with components of every kind. Those that connect to other machines have metrics before they are connected.
const FLOWS: &str = r#"
log: {min_free: 16MiB, commit: {spare: 1}}
events: {}
dead_letter: {file: {path: dead.jsonl, codec: lines}}
flows:
  - name: tags
    input: {generate: {interval: 10ms, batch_size: 10, mapping: root = counter()}}
    buffer: {queue: {partitions: 1}}
    pipeline:
      processors:
        - label: named
          tag_processor:
            defaults: |
              msg.meta.location_path = "e"; msg.meta.data_contract = "_raw"; msg.meta.tag_name = "n"; return msg;
        - label: thinned
          downsampler: {default: {deadband: {threshold: 1}}}
    output: {lake: {table: tags}}
  - name: machines
    input:
      generate:
        interval: 10ms
        mapping: |
          meta umh_topic = "umh.v1.acme.line._historian.press"
          root.timestamp_ms = timestamp_unix_milli()
          root.force = counter()
    pipeline:
      processors:
        - classic_to_core: {target_data_contract: _raw}
        - stream_processor:
            mode: timeseries
            model: {name: m, version: v1}
            output_topic: umh.v1.acme
            sources: {a: umh.v1.acme.line._raw.press.force}
            mapping: {twice: a * 2}
        - topic_browser: {emit_interval: 100ms}
    output: {file: {path: bundles.txt}}
  - name: plain
    input: {broker: {inputs: [{generate: {interval: 10ms, mapping: root = counter()}}]}}
    pipeline:
      processors:
        - nodered_js: {code: "return msg;"}
    output: {broker: {pattern: fan_out, outputs: [{file: {path: a.jsonl}}, {drop: {}}]}}
  - name: plant
    input: {opcua: {endpoint: "opc.tcp://127.0.0.1:1", nodeIDs: ["ns=2;i=1"]}}
    output:
      opcua:
        endpoint: opc.tcp://127.0.0.1:1
        nodeMappings: [{nodeId: "ns=2;i=1", valueFrom: v, dataType: Int32}]
  - name: topics
    input: {kafka: {addresses: ["127.0.0.1:1"], topics: [a], consumer_group: g}}
    output: {uns: {broker_address: "127.0.0.1:1"}}
  - name: namespace
    input: {uns: {broker_address: "127.0.0.1:1"}}
    output: {drop: {}}
"#;

/// At least one metric of each part.
const PARTS: [&str; 33] = [
    "process_open_fds",
    "thalweg_http_connections",
    "thalweg_otlp_connections",
    "thalweg_flow_in_total",
    "thalweg_flow_latency_ns",
    "input_received",
    "input_connection_up",
    "buffer_sent",
    "thalweg_buffer_connections_made_total",
    "processor_sent",
    "processor_error",
    "output_sent",
    "output_connection_failed",
    "messages_processed",
    "thalweg_script_calls_total",
    "meta_overrides_applied",
    "outputs_generated",
    "messages_expanded",
    "total_events_emitted",
    "thalweg_opcua_connected",
    "thalweg_opcua_items_wanted",
    "thalweg_opcua_nodes_held_up",
    "thalweg_kafka_input_connected",
    "input_uns_connected",
    "thalweg_uns_output_contract_bypassed_total",
    "thalweg_log_commit_seconds",
    "mqtt_queue_depth",
    "mqtt_queue_ack_total",
    "thalweg_events_requests_total",
    "thalweg_events_info",
    "thalweg_lake_records_total",
    "thalweg_lake_visibility_seconds",
    "thalweg_lake_query_seconds",
];

#[test]
fn a_process_exports_nothing_that_the_reference_does_not_list() {
    let port = free_port().unwrap();
    let receiver = format!("ingest: {{otlp: {{http: {{address: '127.0.0.1:{port}'}}, grpc: {{enabled: false}}}}}}");
    let thalweg = Thalweg::start(&format!("{receiver}{FLOWS}")).unwrap();
    let otlp = Api::at_root(&format!("127.0.0.1:{port}"));
    let send = || -> Result<()> {
        let answer = otlp.try_send(
            "POST",
            "/v1/logs",
            &[("content-type", "application/json")],
            &logs(0..3).to_string(),
        )?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    };
    eventually(send).unwrap();
    let text = eventually(|| {
        thalweg.sql("select 1")?;
        let text = thalweg.get("/metrics")?;
        let families = exported(&text);
        let missing: Vec<_> = PARTS.iter().filter(|name| !families.contains_key(**name)).collect();
        ensure!(missing.is_empty(), "{missing:?} are missing");
        Ok(text)
    })
    .unwrap();
    are_listed(&text, "summary");
    // Each kind of processor counts something of its own under one name.
    let has = |name: &str, label: &str| -> Result<f64> {
        let value = thalweg.metric(name, label);
        value.with_context(|| format!("{name} of {label}"))
    };
    has("messages_processed", "label=\"named\"").unwrap();
    has("messages_processed", "label=\"thinned\"").unwrap();
    // The dead letter belongs to no flow.
    has("output_sent", "flow=\"plain\"").unwrap();
    has("output_sent", "path=\"root.dead_letter\"").unwrap();
    let log = thalweg.process.stdout() + &thalweg.process.stderr();
    assert!(!log.contains("a metric could not be registered"), "{log}");
}

#[test]
fn timings_are_histograms_of_the_same_names_if_that_is_set() {
    let mut thalweg = Thalweg::start(
        "\
metrics: {prometheus: {use_histogram_timing: true}}
input: {generate: {interval: 10ms, mapping: root = counter()}}
output: {drop: {}}
",
    )
    .unwrap();
    thalweg.wait_ready().unwrap();
    let families = are_listed(&thalweg.get("/metrics").unwrap(), "histogram");
    assert_eq!(families["input_latency_ns"].kind, "histogram");
    thalweg.stop().unwrap();
}

#[test]
fn an_event_server_exports_nothing_that_the_reference_does_not_list() {
    let events = Events::with(Backend::Fsync, &["--metrics-per-namespace"]);
    events.call(json!(["sys.version"]));
    let families = are_listed(&events.api.get("/metrics").text, "summary");
    for name in [
        "thalweg_events_connections",
        "thalweg_events_index_tables",
        "thalweg_log_poisoned",
    ] {
        assert!(families.contains_key(name), "{name} is missing");
    }
}
