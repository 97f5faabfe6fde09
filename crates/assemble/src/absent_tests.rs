//! No component waits silently: each registered input and output is started with a missing target, and must log that.

use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_config::{LoadOptions, SourceText};

use crate::checked_config::CheckedConfig;
use crate::components::Components;
use crate::process::Process;

/// Longer than any step takes; reaching it fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nothing listens there: only root could bind this port.
const NOBODY: &str = "127.0.0.1:1";

/// Warnings and errors of the whole process, because some components log from their own threads.
fn log() -> &'static Mutex<Vec<u8>> {
    static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(|| ToLog)
            .finish();
        // If another test of this process has set a subscriber, nothing is captured here, and the test fails.
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
    &LOG
}

struct ToLog;

impl Write for ToLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        log().lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The component with a missing target; `None` if it has no target.
fn input(name: &str) -> Option<String> {
    Some(match name {
        "queue" => "queue: {name: nobody-made}".to_owned(),
        "events" => "events: {namespace: nobody-made, all: true}".to_owned(),
        "file" => "file: {paths: [/nowhere/at/all]}".to_owned(),
        "opcua" => format!("opcua: {{endpoint: \"opc.tcp://{NOBODY}\", nodeIDs: [\"i=85\"]}}"),
        "kafka" | "kafka_franz" => format!("{name}: {{addresses: [\"{NOBODY}\"], topics: [a], consumer_group: g}}"),
        "uns" => format!("uns: {{broker_address: \"{NOBODY}\"}}"),
        "mqtt" => format!("mqtt: {{urls: [\"tcp://{NOBODY}\"], topics: [a]}}"),
        "broker" => "broker: {inputs: [{label: LABEL, queue: {name: nobody-made}}]}".to_owned(),
        "resource" => "resource: absent".to_owned(),
        // They generate or are given what they send.
        "generate" | "stdin" => return None,
        other => panic!("what is not there for the input {other}? Without a line in the log it would wait in silence"),
    })
}

fn output(name: &str) -> Option<String> {
    Some(match name {
        "queue" => "queue: {name: nobody-made}".to_owned(),
        "events" => "events: {namespace: nobody-made, stream: a-1, type: a}".to_owned(),
        "file" => "file: {path: /proc/nowhere/at/all, codec: lines}".to_owned(),
        "opcua" => format!(
            "opcua: {{endpoint: \"opc.tcp://{NOBODY}\", nodeMappings: [{{nodeId: \"ns=2;s=a\", valueFrom: a, dataType: Float}}]}}"
        ),
        "kafka" | "kafka_franz" => format!("{name}: {{addresses: [\"{NOBODY}\"], topic: a}}"),
        "uns" => format!("uns: {{broker_address: \"{NOBODY}\"}}"),
        "mqtt" => format!("mqtt: {{urls: [\"tcp://{NOBODY}\"], topic: a}}"),
        "broker" => "broker: {outputs: [{label: LABEL, queue: {name: nobody-made}}]}".to_owned(),
        "resource" => "resource: absent".to_owned(),
        // They write nowhere, to the process's own output, or to existing tables.
        "drop" | "stdout" | "lake" => return None,
        other => panic!("what is not there for the output {other}? Without a line in the log it would wait in silence"),
    })
}

/// Starts a flow and waits for a log line about its component.
async fn told(label: &str, ends: &str) {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "data_dir: {}\nhttp: {{enabled: false}}\nshutdown_timeout: 1s\nevents: {{}}\n{ends}",
        folder.path().display()
    );
    let text = text.replace("LABEL", label);
    let checked = CheckedConfig::text(
        &SourceText::new("f.yaml", text.as_str()),
        &|_| None,
        &LoadOptions::default(),
    );
    assert!(!checked.diagnostics.has_errors(), "{text}: {}", checked.diagnostics);
    let process = match Process::start(checked, "").await {
        Ok(process) => process,
        // The caller of the start got the error.
        Err(_) => return,
    };
    let start = Instant::now();
    // A flow that fails permanently names its cause instead of its component.
    let is_told = |log: &str| log.contains(&format!("component=\"{label}\"")) || log.contains("/nowhere/at/all");
    while !is_told(&String::from_utf8_lossy(&log().lock())) {
        assert!(start.elapsed() < PATIENCE, "nothing is told of {label}:\n{text}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    process.stop().await;
}

const INPUT_RESOURCES: &str = "input_resources: [{label: absent, queue: {name: nobody-made}}]\n";
const OUTPUT_RESOURCES: &str = "output_resources: [{label: absent, queue: {name: nobody-made}}]\n";
const MESSAGES: &str = "generate: {interval: 10ms, mapping: 'root.a = 1'}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_not_there_is_told_of() {
    log();
    let registry = Components::new().registry;
    let inputs: Vec<&str> = registry.input_names().collect();
    let outputs: Vec<&str> = registry.output_names().collect();
    assert!(inputs.contains(&"queue") && outputs.contains(&"queue"));
    for name in inputs {
        let Some(fields) = input(name) else { continue };
        let label = if name == "resource" {
            "absent".to_owned()
        } else {
            format!("in_{name}")
        };
        let (own, resources) = match name {
            "resource" => (String::new(), INPUT_RESOURCES),
            "broker" => (String::new(), ""),
            _ => (format!("label: {label}, "), ""),
        };
        told(
            &label,
            &format!("input: {{{own}{fields}}}\noutput: {{drop: {{}}}}\n{resources}"),
        )
        .await;
        log().lock().clear();
    }
    for name in outputs {
        let Some(fields) = output(name) else { continue };
        let label = if name == "resource" {
            "absent".to_owned()
        } else {
            format!("out_{name}")
        };
        let (own, resources) = match name {
            "resource" => (String::new(), OUTPUT_RESOURCES),
            "broker" => (String::new(), ""),
            _ => (format!("label: {label}, "), ""),
        };
        told(
            &label,
            &format!("input: {{{MESSAGES}}}\noutput: {{{own}{fields}}}\n{resources}"),
        )
        .await;
        log().lock().clear();
    }
}
