//! Every kind of mistake, and its one-sentence error. Nothing panics, nothing is lost.

use std::time::Duration;

use thalweg_tests::servers::{Kind, Server};
use thalweg_tests::thalweg::run;
use thalweg_tests::{Balance, Thalweg, eventually};

fn start_fails(yaml: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
    let ended = run(folder.path(), &["run", "flow.yaml", "-s", "http.address=127.0.0.1:0"]).unwrap();
    assert_eq!(
        ended.status.code(),
        Some(1),
        "stdout: {}\nstderr: {}",
        ended.stdout,
        ended.stderr
    );
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    ended.stderr
}

fn opcua(endpoint: &str, more: &str) -> String {
    format!(
        "input:\n  opcua:\n    endpoint: {endpoint}\n    nodeIDs: [\"ns=3;s=OpcPlc\"]\n    subscribeEnabled: true\n{more}output:\n  drop: {{}}\n"
    )
}

/// `/ready` gives the cause when data cannot flow, and the log has it once.
fn never_ready(yaml: &str, expected: &[&str]) {
    let mut thalweg = Thalweg::start(yaml).unwrap();
    eventually(|| {
        thalweg.process.check_running()?;
        let (status, body) = thalweg.request("/ready")?;
        let log = thalweg.process.stdout();
        for words in expected {
            anyhow::ensure!(status == 503 && body.contains(words), "/ready: {status} {body}");
            anyhow::ensure!(log.contains(words), "log: {log}");
        }
        Ok(())
    })
    .unwrap();
    assert!(
        !thalweg.process.stderr().contains("panicked"),
        "{}",
        thalweg.process.stderr()
    );
    thalweg.stop().unwrap();
}

#[test]
fn a_wrong_endpoint_is_named_with_the_reason() {
    never_ready(
        &opcua("opc.tcp://127.0.0.1:1", ""),
        &["opc.tcp://127.0.0.1:1", "refused"],
    );
    never_ready(
        &opcua("opc.tcp://no-such-host.invalid:4840", ""),
        &["no-such-host.invalid"],
    );
}

#[test]
fn a_wrong_password_is_named_as_such() {
    let plant = Server::start(
        Kind::Simulator,
        &["--port", "0", "--user", "operator:secret", "--auto-accept"],
    )
    .unwrap();
    let login = "    securityMode: SignAndEncrypt\n    securityPolicy: Basic256Sha256\n    username: operator\n    password: wrong\n";
    never_ready(&opcua(&plant.endpoint, login), &["password"]);
}

#[test]
fn an_untrusted_server_certificate_is_refused_with_the_cure() {
    let plant = Server::start(Kind::Simulator, &["--port", "0", "--auto-accept"]).unwrap();
    let other = "00ff".repeat(16);
    let fingerprint = format!(
        "    securityMode: SignAndEncrypt\n    securityPolicy: Basic256Sha256\n    serverCertificateFingerprint: \"{other}\"\n"
    );
    never_ready(
        &opcua(&plant.endpoint, &fingerprint),
        &["fingerprint mismatch for endpoint", &format!("expected {other}, got ")],
    );
    let folder = tempfile::tempdir().unwrap();
    let trust = format!(
        "    securityMode: SignAndEncrypt\n    securityPolicy: Basic256Sha256\n    trustFolder: {}\n",
        folder.path().display()
    );
    never_ready(
        &opcua(&plant.endpoint, &trust),
        &["is not trusted; move it from rejected/ to trusted/ to accept it"],
    );
    assert_eq!(std::fs::read_dir(folder.path().join("rejected")).unwrap().count(), 1);
}

#[test]
fn no_encryption_is_never_chosen_in_silence() {
    let plant = Server::start(Kind::Simulator, &["--port", "0", "--secure", "false"]).unwrap();
    never_ready(
        &opcua(&plant.endpoint, "    securityMode: SignAndEncrypt\n"),
        &["no suitable endpoint found"],
    );
}

#[test]
fn an_unwritable_data_folder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let data_dir = folder.path().join("file/data");
    let error = start_fails(&format!(
        "data_dir: {}\ninput: {{stdin: {{}}}}\noutput: {{drop: {{}}}}\n",
        data_dir.display()
    ));
    assert!(
        error.contains(&data_dir.display().to_string()) && error.contains("data_dir"),
        "{error}"
    );
}

#[test]
fn a_taken_port_is_named_with_the_cure() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("flow.yaml"),
        "input: {stdin: {}}\noutput: {drop: {}}\n",
    )
    .unwrap();
    let set = format!("http.address=127.0.0.1:{port}");
    let ended = run(folder.path(), &["run", "flow.yaml", "-s", &set]).unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        ended.stderr.contains(&format!("127.0.0.1:{port}")) && ended.stderr.contains("http.address"),
        "{}",
        ended.stderr
    );
}

#[test]
fn malformed_yaml_is_one_error_with_its_place() {
    let error = start_fails("input:\n  stdin: {\noutput: drop\n");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.starts_with("flow.yaml:"), "{error}");
}

#[test]
fn a_script_with_a_syntax_error_is_found_at_start_with_line_and_column() {
    let error = start_fails(
        "\
input: {stdin: {}}
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.a = 1;
          msg.meta.b = = 2;
          return msg;
output: {drop: {}}
",
    );
    assert!(
        error.contains("failed to compile JavaScript programs: failed to compile defaults code: "),
        "{error}"
    );
    assert!(error.starts_with("flow.yaml:7:"), "{error}");
}

#[test]
fn a_script_that_loops_forever_is_stopped_by_its_limit_and_the_flow_goes_on() {
    let mut thalweg = Thalweg::spawn(
        "\
input: {generate: {count: 5, interval: \"\", mapping: root.n = counter()}}
pipeline:
  processors:
    - tag_processor:
        scriptTimeout: 100ms
        defaults: |
          if (msg.payload.n == 2) { while (true) { try { while (true) {} } catch (e) {} } }
          msg.meta.location_path = \"a\";
          msg.meta.data_contract = \"_raw\";
          msg.meta.tag_name = \"n\";
          return msg;
output: {drop: {}}
",
    )
    .unwrap();
    let expected = Balance {
        entered: 5,
        out: 4,
        dropped: 1,
        ..Balance::default()
    };
    assert_eq!(thalweg.finish().unwrap(), expected);
    let log = thalweg.process.stdout();
    assert!(log.contains("script_timeout"), "{log}");
}

#[test]
fn a_disk_that_cannot_be_written_stops_the_source_and_loses_nothing() {
    // A new file for every hundred numbers, so that files are created all the time.
    let mut thalweg = Thalweg::start(
        "\
input: {generate: {interval: 1ms, mapping: root.n = counter()}}
output: {file: {path: \"out/${! (json(\\\"n\\\") / 100).floor() }.jsonl\"}}
",
    )
    .unwrap();
    eventually(|| {
        anyhow::ensure!(thalweg.balance()?.out > 100);
        Ok(())
    })
    .unwrap();
    // The folder is replaced by a file: no file can be created until it is a folder again.
    let (out, kept) = (thalweg.folder.path().join("out"), thalweg.folder.path().join("kept"));
    std::fs::rename(&out, &kept).unwrap();
    std::fs::write(&out, "").unwrap();
    eventually(|| {
        let failed = thalweg.metric("output_error", "")?;
        let (status, why) = thalweg.request("/ready")?;
        anyhow::ensure!(
            failed > 0.0 && status == 503 && why.contains("out"),
            "{failed} {status} {why}"
        );
        Ok(())
    })
    .unwrap();
    std::fs::remove_file(&out).unwrap();
    std::fs::rename(&kept, &out).unwrap();
    let before = thalweg.balance().unwrap().out;
    eventually(|| {
        anyhow::ensure!(thalweg.balance()?.out > before + 100);
        Ok(())
    })
    .unwrap();
    let acknowledged = thalweg.stop().unwrap().out;
    let mut numbers: Vec<u64> = Vec::new();
    for file in std::fs::read_dir(&out).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        numbers.extend(text.lines().map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["n"]
                .as_u64()
                .unwrap()
        }));
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers, (1..=acknowledged).collect::<Vec<_>>());
}

/// Within `shutdown_timeout` plus the extra second for uninterruptible work.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

fn stops_with_messages_left(thalweg: &mut Thalweg) {
    thalweg.process.signal("TERM").unwrap();
    let status = thalweg.process.wait_within(STOPS_WITHIN).unwrap();
    let errors = thalweg.process.stderr();
    assert_eq!(status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("messages were not acknowledged within shutdown_timeout") && !errors.contains("panicked"),
        "{errors}"
    );
    let log = thalweg.process.stdout();
    assert!(log.contains("in flight 0"), "{log}");
}

#[test]
fn a_flow_with_a_stuck_output_stops_within_its_time_and_says_what_is_left() {
    let mut thalweg = Thalweg::start(
        "\
shutdown_timeout: 500ms
input: {generate: {interval: 1ms, mapping: root.n = counter()}}
output: {file: {path: \"/proc/no/such/${! json(\\\"n\\\") }\"}}
",
    )
    .unwrap();
    eventually(|| {
        anyhow::ensure!(thalweg.balance()?.in_flight > 0);
        Ok(())
    })
    .unwrap();
    stops_with_messages_left(&mut thalweg);
}

#[test]
fn a_dead_letter_that_is_stuck_is_not_ready_and_does_not_keep_the_process_from_stopping() {
    let mut thalweg = Thalweg::start(
        "\
shutdown_timeout: 500ms
input: {generate: {interval: 1ms, mapping: root = \"no number\"}}
pipeline: {processors: [{tag_processor: {defaults: throw new Error(\"never\")}}]}
output: {drop: {}}
dead_letter: {file: {path: \"/proc/no/such/${! counter() }\"}}
",
    )
    .unwrap();
    eventually(|| {
        anyhow::ensure!(thalweg.balance()?.in_flight > 0);
        let (status, why) = thalweg.request("/ready")?;
        anyhow::ensure!(
            status == 503 && why.contains("dead_letter: file root.dead_letter"),
            "{why}"
        );
        Ok(())
    })
    .unwrap();
    assert_eq!(thalweg.node("dead_letter").unwrap()["connected"], false);
    stops_with_messages_left(&mut thalweg);
}

#[test]
fn a_lake_folder_that_cannot_be_made_holds_messages_back_until_it_can() {
    let yaml = "\
input: {generate: {interval: 10ms, mapping: \"root.value = counter()\"}}
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.payload = msg.payload.value;
          msg.meta.location_path = \"a\";
          msg.meta.data_contract = \"_raw\";
          msg.meta.tag_name = \"n\";
          return msg;
output: {lake: {}}
";
    let mut thalweg = Thalweg::spawn_with(yaml, &[("data/lake", "a file where the folder belongs")]).unwrap();
    let mut waiting = 0;
    for more in [10, 20] {
        eventually(|| {
            thalweg.process.check_running()?;
            let balance = thalweg.balance()?;
            let (status, why) = thalweg.request("/ready")?;
            anyhow::ensure!(status == 503 && why.contains("lake"), "{status} {why}");
            anyhow::ensure!(
                balance.in_flight > waiting + more && balance.dropped == 0,
                "{balance:?}"
            );
            waiting = balance.in_flight;
            Ok(())
        })
        .unwrap();
    }
    std::fs::remove_file(thalweg.data_dir().join("lake")).unwrap();
    eventually(|| {
        let balance = thalweg.balance()?;
        anyhow::ensure!(balance.out > waiting && balance.dropped == 0, "{balance:?}");
        Ok(())
    })
    .unwrap();
    thalweg.wait_ready().unwrap();
    let out = thalweg.balance().unwrap().out;
    eventually(|| {
        let rows = thalweg.sql("select count(distinct value) as n, min(value) as first from tags")?;
        anyhow::ensure!(
            rows[0]["n"].as_u64() >= Some(out) && rows[0]["first"].as_f64() == Some(1.0),
            "{rows:?}"
        );
        Ok(())
    })
    .unwrap();
    thalweg.stop().unwrap();
}

#[test]
fn a_reader_that_closes_the_standard_output_ends_the_flow() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "input: {generate: {interval: 1ms, mapping: root.n = counter()}}\noutput: {stdout: {}}\n";
    std::fs::write(folder.path().join("flow.yaml"), yaml).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut child = std::process::Command::new(thalweg_tests::thalweg::binary())
        .args(["run", "flow.yaml", "-s", "http.enabled=false"])
        .current_dir(folder.path())
        .stdout(writer)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Like `head -1`.
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(&reader), &mut line).unwrap();
    assert!(line.starts_with("{\"n\":1}"), "{line}");
    drop(reader);
    let ended = eventually(|| anyhow::Context::context(child.try_wait()?, "still running"));
    let _ = child.kill();
    let mut errors = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut errors).unwrap();
    assert_eq!(ended.unwrap().code(), Some(1), "{errors}");
    assert!(
        errors.contains("the reader of the standard output has closed it"),
        "{errors}"
    );
    assert!(!errors.contains("panicked"), "{errors}");
}

#[test]
fn what_the_log_holds_back_is_summed_up_while_the_flow_runs() {
    let mut thalweg = Thalweg::start(
        "\
input:
  broker:
    inputs:
      - generate: {count: 5, interval: \"\", mapping: 'root = \"x\"'}
        processors: [{mapping: root = throw(\"not this one\")}]
      - generate: {interval: 100ms, mapping: root = \"y\"}
output: {drop: {}}
",
    )
    .unwrap();
    eventually(|| {
        thalweg.process.check_running()?;
        let log = thalweg.process.stdout();
        anyhow::ensure!(log.contains("4 more events of kind flagged"), "{log}");
        Ok(())
    })
    .unwrap();
    thalweg.stop().unwrap();
}

#[test]
fn what_an_output_queue_would_only_keep_is_refused_with_the_field_that_does_it() {
    let told = start_fails(
        "input: {generate: {mapping: 'root = 1'}}\noutput:\n  queue:\n    name: q\n    properties:\n      delay: 5s\n      dedup-id: x\n",
    );
    assert!(
        told.contains("a property delay has no effect here; set the field delay instead"),
        "{told}"
    );
    assert!(told.contains("a property dedup-id has no effect here"), "{told}");
}
