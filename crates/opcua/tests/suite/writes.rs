//! The `opcua` output in a real flow against a running simulator: which values nodes get, and how connection losses
//! affect it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_config::SourceText;
use thalweg_flow::{ComponentRegistry, Flow, FlowEnvironment, FlowSpec, ParseContext};
use thalweg_opcua::InputDirectory;
use thalweg_record::DropReason;
use thalweg_telemetry::Metrics;

use crate::harness::{Plant, SimulatorOptions, collect, open, payload};

const PATIENCE: Duration = Duration::from_secs(60);

/// A running flow to nodes, and its data folder, which outlives it.
struct Writer {
    flow: Flow,
    metrics: Arc<Metrics>,
    _data: tempfile::TempDir,
}

/// Starts a flow that writes generated messages to the nodes of a server.
fn write(plant: &Plant, input: &str, mappings: &str) -> Writer {
    let data = tempfile::tempdir().unwrap();
    let text = format!(
        "input:\n  generate: {input}\noutput:\n  opcua:\n    endpoint: {}\n    reconnectIntervalInSeconds: 1\n    handshake: {{readbackTimeoutMs: 200}}\n    nodeMappings:\n{mappings}",
        plant.endpoint()
    );
    let source = SourceText {
        name: "flow.yaml".to_owned(),
        text,
    };
    let loaded = thalweg_config::load(&source, &thalweg_config::process_environment, &Default::default());
    let mut registry = ComponentRegistry::new();
    thalweg_opcua::register(&mut registry, InputDirectory::new());
    let mut context = ParseContext::new(&loaded.diagnostics, &registry, &loaded.config);
    let flows = &loaded.config.flows;
    let spec = flows.first().and_then(|flow| FlowSpec::parse(flow, &mut context));
    let spec = spec.unwrap_or_else(|| panic!("{}\n{}", source.text, loaded.diagnostics));
    let metrics = Arc::new(Metrics::default());
    let environment = FlowEnvironment {
        metrics: metrics.clone(),
        data_dir: data.path().to_owned(),
        runtime: tokio::runtime::Handle::current(),
        dead_letters: None,
    };
    Writer {
        flow: Flow::start(spec, &environment).unwrap(),
        metrics,
        _data: data,
    }
}

impl Writer {
    async fn until(&self, what: &str, holds: impl Fn(&Writer) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            let text = self.metrics.text();
            assert!(
                start.elapsed() < PATIENCE,
                "never came: {what}\n{:?}\n{text}",
                self.not_ready()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn written(&self) -> u64 {
        self.flow.handle().counts().out
    }

    /// Returns the reason that `/ready` reports for the output.
    fn not_ready(&self) -> Option<String> {
        let status = self.flow.handle().status();
        status.nodes.last().and_then(|node| node.not_ready.clone())
    }

    async fn stop(self) -> thalweg_record::BalanceCounts {
        let handle = self.flow.handle();
        self.flow.stop(Duration::from_secs(20)).await;
        let counts = handle.counts();
        assert!(counts.adds_up() && counts.in_flight == 0, "{counts}");
        counts
    }
}

fn mapping(node: &str, field: &str, data_type: &str) -> String {
    format!("      - {{nodeId: \"ns=3;s=Types{node}\", valueFrom: {field}, dataType: {data_type}}}\n")
}

async fn types() -> Plant {
    Plant::start(SimulatorOptions { types: true, ..open() }).await
}

/// Returns the value of a node as another client reads it.
async fn value_at(plant: &Plant, node: &str) -> String {
    let collector = collect(&plant.endpoint(), &format!("nodeIDs: [\"ns=3;s=Types{node}\"]")).await;
    collector.until("a value", |c| c.count() > 0).await;
    let value = payload(&collector.messages()[0]);
    collector.stop().await;
    value
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_type_arrives_with_its_digits() {
    let plant = types().await;
    let cases = [
        ("Boolean", "\"T\"", "true"),
        ("SByte", "-128.9", "-128"),
        ("Byte", "255", "255"),
        ("Int16", "\"-32768\"", "-32768"),
        ("UInt16", "65535", "65535"),
        ("Int32", "-2147483648", "-2147483648"),
        ("UInt32", "4294967295", "4294967295"),
        ("Int64", "\"-9223372036854775807\"", "-9223372036854775807"),
        ("UInt64", "\"18446744073709551615\"", "18446744073709551615"),
        ("Float", "0.1", "0.1"),
        ("Double", "0.1", "0.1"),
        ("String", "[1, 2]", "\"[1,2]\""),
        (
            "DateTime",
            "\"2031-05-06T09:08:09.1234567+02:00\"",
            "\"2031-05-06T07:08:09.1234567Z\"",
        ),
    ];
    let members: Vec<String> = cases
        .iter()
        .map(|(kind, value, _)| format!("\"{kind}\": {value}"))
        .collect();
    let mappings: String = cases
        .iter()
        .map(|(kind, ..)| mapping(&format!("Writable{kind}"), &format!("of.{kind}"), kind))
        .collect();
    let input = format!(
        "{{count: 1, interval: \"\", mapping: 'root.of = {{{}}}'}}",
        members.join(", ")
    );
    let writer = write(&plant, &input, &mappings);
    writer.until("the message", |w| w.written() == 1).await;
    assert_eq!(writer.stop().await.dropped_total(), 0);
    for (kind, _, expected) in cases {
        assert_eq!(value_at(&plant, &format!("Writable{kind}")).await, expected, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_can_never_be_written_are_dropped_with_their_reason_and_the_others_flow() {
    let plant = types().await;
    // 0, 20000, 40000, 60000: the last two do not fit into an Int16.
    let input = "{count: 4, interval: \"\", mapping: 'root.v = (counter() - 1) * 20000'}";
    let writer = write(&plant, input, &mapping("WritableInt16", "v", "Int16"));
    writer
        .until("all", |w| w.flow.handle().counts().in_flight == 0 && w.written() > 0)
        .await;
    let counts = writer.stop().await;
    assert_eq!((counts.out, counts.dropped(DropReason::InvalidValue)), (2, 2));
    assert_eq!(value_at(&plant, "WritableInt16").await, "20000");

    for (node, kind) in [
        ("WritableStuck", "Int32"),
        ("Boolean", "Boolean"),
        ("WritableInt16", "Int32"),
        ("None", "Int16"),
    ] {
        let input = "{count: 1, interval: \"\", mapping: 'root.v = 1'}";
        let writer = write(&plant, input, &mapping(node, "v", kind));
        writer
            .until("its end", |w| w.flow.handle().counts().dropped_total() == 1)
            .await;
        assert!(
            writer.not_ready().is_none(),
            "the connection is fine: {:?}",
            writer.not_ready()
        );
        let counts = writer.stop().await;
        assert_eq!(counts.dropped(DropReason::OutputRejected), 1, "{node}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_and_restarts_lose_nothing() {
    let plant = Plant::start(SimulatorOptions {
        types: true,
        cuttable: true,
        ..open()
    })
    .await;
    let input = "{count: 200, interval: 10ms, mapping: 'root.v = counter()'}";
    let writer = write(&plant, input, &mapping("WritableUInt32", "v", "UInt32"));
    writer.until("the first", |w| w.written() > 5).await;
    assert_eq!(writer.not_ready(), None);
    plant.cut();
    let before = writer.written();
    writer.until("more after the cut", |w| w.written() > before + 10).await;
    let plant = plant.restart(|_| {}).await;
    writer.until("all", |w| w.written() == 200).await;
    assert_eq!(value_at(&plant, "WritableUInt32").await, "200");
    assert!(
        writer.metrics.total("thalweg_opcua_reconnects_total") >= 2.0,
        "{}",
        writer.metrics.text()
    );
    assert_eq!(writer.stop().await.dropped_total(), 0);
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_and_comes_back_is_seen_while_nothing_is_written() {
    let plant = types().await;
    let input = "{interval: 1h, mapping: 'root.v = 1'}";
    let writer = write(&plant, input, &mapping("WritableUInt32", "v", "UInt32"));
    writer.until("the connection", |w| w.not_ready().is_none()).await;
    assert_eq!(writer.metrics.total("thalweg_opcua_connected"), 1.0);
    let (port, options, folder) = (plant.port(), plant.options.clone(), plant.folder.clone());
    plant.stop().await;
    writer.until("the loss to be seen", |w| w.not_ready().is_some()).await;
    assert_eq!(writer.metrics.total("thalweg_opcua_connected"), 0.0);
    let again = Plant::start(SimulatorOptions {
        port,
        pki_dir: folder.path().join("pki"),
        ..options
    })
    .await;
    writer.until("the way back", |w| w.not_ready().is_none()).await;
    assert_eq!(writer.metrics.total("thalweg_opcua_reconnects_total"), 1.0);
    assert_eq!(writer.stop().await.dropped_total(), 0);
    again.stop().await;
}
