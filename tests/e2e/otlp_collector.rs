//! The OpenTelemetry Collector between an SDK and the lake: it forwards everything, and data that it must resend later, or
//! cannot deliver at first, is still in its table once.

use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use thalweg_tests::api::Api;
use thalweg_tests::process::Process;
use thalweg_tests::servers::{collector, free_port, python};
use thalweg_tests::{Thalweg, eventually, eventually_within};

use crate::otlp::{counts, end, logs};
use crate::otlp_senders::{python_logs, python_metrics, python_spans, send};

/// A collector that receives over HTTP and exports to a lake.
struct Collector {
    process: Process,
    port: u16,
    _folder: TempDir,
}

impl Collector {
    /// `exporter` is one of its components, `ports` are those of the lake over gRPC and HTTP.
    fn start(exporter: &str, ports: [u16; 2]) -> Collector {
        let [grpc, http] = ports;
        let endpoint = match exporter {
            "otlp_grpc" => format!("endpoint: \"127.0.0.1:{grpc}\"\n    tls: {{insecure: true}}"),
            _ => format!("endpoint: \"http://127.0.0.1:{http}\""),
        };
        let port = free_port().unwrap();
        let pipeline = format!("{{receivers: [otlp], processors: [batch], exporters: [{exporter}]}}");
        let yaml = format!(
            "receivers:
  otlp: {{protocols: {{http: {{endpoint: \"127.0.0.1:{port}\"}}}}}}
processors:
  batch: {{timeout: 50ms, send_batch_size: 50, send_batch_max_size: 50}}
exporters:
  {exporter}:
    {endpoint}
    compression: gzip
    retry_on_failure: {{initial_interval: 100ms, max_interval: 1s, max_elapsed_time: 0s}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{logs: {pipeline}, metrics: {pipeline}, traces: {pipeline}}}
"
        );
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("collector.yaml"), yaml).unwrap();
        let mut command = Command::new(collector().unwrap());
        command.arg("--config=collector.yaml").current_dir(folder.path());
        let mut process = Process::start("collector", folder.path(), &mut command).unwrap();
        eventually(|| {
            process.check_running()?;
            Ok(TcpStream::connect(("127.0.0.1", port))?)
        })
        .unwrap();
        Collector {
            process,
            port,
            _folder: folder,
        }
    }

    /// Stops it like an operator: it first sends its queued data.
    fn end(&mut self) {
        self.process.signal("TERM").unwrap();
        let status = self.process.wait_within(Duration::from_secs(30)).unwrap();
        assert!(status.success(), "{}", self.process.stderr());
    }
}

/// A lake, with the ports at which it receives over gRPC and HTTP.
fn lake(ingest: &str) -> (Thalweg, [u16; 2]) {
    let ports = [free_port().unwrap(), free_port().unwrap()];
    let [grpc, http] = ports;
    let yaml = format!(
        "ingest:\n  otlp: {{http: {{address: \"127.0.0.1:{http}\"}}, grpc: {{address: \"127.0.0.1:{grpc}\"}}}}\n{ingest}"
    );
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    thalweg.wait_ready().unwrap();
    (thalweg, ports)
}

#[test]
fn every_field_of_an_sdk_comes_through_a_collector() {
    for exporter in ["otlp_grpc", "otlp_http"] {
        let (mut thalweg, ports) = lake("");
        let mut collector = Collector::start(exporter, ports);
        let endpoint = format!("http://127.0.0.1:{}", collector.port);
        send(
            &mut Command::new(python().unwrap()),
            "otel_sdk.py",
            &["http", &endpoint],
        );
        python_logs(&thalweg, "python-http");
        python_metrics(&thalweg, "python-http");
        python_spans(&thalweg, "python-http");
        thalweg.records_are_accounted_for().unwrap();
        collector.end();
        end(&mut thalweg);
    }
}

#[test]
fn what_a_collector_has_to_send_again_is_there_once() {
    const LOGS: u64 = 1500;
    for exporter in ["otlp_grpc", "otlp_http"] {
        // One at a time, while the collector has ten in flight.
        let (mut thalweg, ports) = lake("  max_requests: 1\n");
        let mut collector = Collector::start(exporter, ports);
        let api = Api::at_root(&format!("127.0.0.1:{}", collector.port));
        let send = |from: u64| {
            for begin in (from..from + LOGS).step_by(50) {
                let answer = api.post("/v1/logs", &logs(begin..begin + 50));
                assert_eq!(answer.status, 200, "{answer:?}");
            }
        };
        send(0);
        let all_there = |thalweg: &Thalweg, count: u64| {
            eventually_within(Duration::from_secs(90), || {
                let found = counts(thalweg)?;
                anyhow::ensure!(found == (count, count, count * (count - 1) / 2), "{found:?} of {count}");
                Ok(())
            })
            .unwrap();
        };
        all_there(&thalweg, LOGS);
        let refused = thalweg
            .metric("thalweg_lake_pressure_total", "cause=\"requests\"")
            .unwrap();
        assert!(refused > 0.0, "{exporter}: there was no pressure");
        let code = thalweg
            .metric("thalweg_lake_requests_total", "code=\"otlp.pressure\"")
            .unwrap();
        assert_eq!(refused, code, "{exporter}");
        thalweg.records_are_accounted_for().unwrap();
        // It stops in the middle, and comes back.
        send(LOGS);
        end(&mut thalweg);
        // Nobody answers for several of the collector's attempts.
        std::thread::sleep(Duration::from_millis(500));
        thalweg.restart().unwrap();
        thalweg.wait_ready().unwrap();
        all_there(&thalweg, 2 * LOGS);
        collector.end();
        // No duplicates appear later.
        all_there(&thalweg, 2 * LOGS);
        end(&mut thalweg);
    }
}
