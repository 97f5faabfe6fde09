//! The unified namespace on a real broker: samples of a flow go there under their topic, and from there into the lake.

use std::net::TcpStream;
use std::process::Command;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;
use thalweg_tests::process::Process;
use thalweg_tests::servers::{free_port, kafka};
use thalweg_tests::{Thalweg, eventually};

/// A broker that keeps acknowledged records across its kill.
struct Broker {
    process: Process,
    port: u16,
    folder: TempDir,
}

impl Broker {
    fn start() -> Broker {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port().unwrap());
        let process = Broker::spawn(&folder, port);
        Broker { process, port, folder }
    }

    fn spawn(folder: &TempDir, port: u16) -> Process {
        let mut command = Command::new(kafka().unwrap());
        command
            .args(["broker", "-data", "data", "-port", &port.to_string()])
            .current_dir(folder.path());
        let mut process = Process::start("kafka", folder.path(), &mut command).unwrap();
        eventually(|| {
            process.check_running()?;
            Ok(TcpStream::connect(("127.0.0.1", port))?)
        })
        .unwrap();
        process
    }

    fn kill_and_restart(&mut self) {
        self.process.kill().unwrap();
        self.process = Broker::spawn(&self.folder, self.port);
    }
}

const SAMPLES: u64 = 2000;

#[test]
fn samples_go_through_the_namespace_into_the_lake_although_its_broker_is_killed() {
    let mut broker = Broker::start();
    let port = broker.port;
    let mut thalweg = Thalweg::start(&format!(
        "\
flows:
  - name: to
    input:
      generate:
        interval: 1ms
        count: {SAMPLES}
        mapping: |
          let n = counter()
          root.value = $n
          root.timestamp_ms = timestamp_unix_milli()
          meta umh_topic = \"umh.v1.acme.line%v._raw.force\".format($n % 4)
          meta unit = \"kN\"
    output: {{uns: {{broker_address: \"127.0.0.1:{port}\"}}}}
  - name: from
    input: {{uns: {{broker_address: \"127.0.0.1:{port}\", umh_topics: ['^umh\\.v1\\.acme\\.line[0-2]\\.']}}}}
    output: {{lake: {{table: tags}}}}
"
    ))
    .unwrap();
    let counted = |thalweg: &Thalweg| {
        let rows = thalweg.sql("select count(distinct value) as samples, count(distinct tag) as tags from tags")?;
        let first = rows.first().context("no row")?.clone();
        Ok::<_, anyhow::Error>((
            first["samples"].as_u64().unwrap_or(0),
            first["tags"].as_u64().unwrap_or(0),
        ))
    };
    eventually(|| {
        let (samples, _) = counted(&thalweg)?;
        ensure!(samples > 100, "{samples}");
        Ok(())
    })
    .unwrap();
    broker.kill_and_restart();
    // Three of four lines are selected.
    eventually(|| {
        let (samples, tags) = counted(&thalweg)?;
        ensure!(
            (samples, tags) == (SAMPLES * 3 / 4, 3),
            "{samples} samples of {tags} tags"
        );
        Ok(())
    })
    .unwrap();
    thalweg.wait_ready().unwrap();
    let filtered = thalweg
        .metric("thalweg_flow_filtered_total", "reason=\"key_mismatch\"")
        .unwrap();
    assert!(filtered >= (SAMPLES / 4) as f64, "{filtered}");
    let balance = thalweg.stop().unwrap();
    assert_eq!(balance.dropped, 0, "{balance:?}");
}
