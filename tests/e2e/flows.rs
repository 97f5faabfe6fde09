//! Flows without a real machine: inputs, processors, outputs, acknowledgements, dead letters.

use thalweg_tests::thalweg::{RUN, run};
use thalweg_tests::{Balance, Thalweg, eventually};

fn lines(thalweg: &Thalweg, file: &str) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(thalweg.folder.path().join(file)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_file_flows_through_a_mapping_into_another_and_the_process_ends() {
    let input: String = (1..=1000).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    let mut thalweg = Thalweg::spawn_with(
        "\
input:
  file:
    paths: [in.jsonl]
pipeline:
  processors:
    - mapping: |
        root.n = this.n * 2
        root.from = @path
        root = if this.n == 3 { deleted() }
output:
  file:
    path: out.jsonl
",
        &[("in.jsonl", &input)],
    )
    .unwrap();
    let expected = Balance {
        entered: 1000,
        out: 999,
        filtered: 1,
        ..Balance::default()
    };
    assert_eq!(thalweg.finish().unwrap(), expected);
    let rows = lines(&thalweg, "out.jsonl");
    let numbers: Vec<u64> = rows.iter().map(|row| row["n"].as_u64().unwrap()).collect();
    let expected: Vec<u64> = (1..=1000).filter(|n| *n != 3).map(|n| n * 2).collect();
    assert_eq!(numbers, expected);
    assert!(rows.iter().all(|row| row["from"] == "in.jsonl"));
}

#[test]
fn several_flows_run_in_one_process_and_a_second_process_is_refused_the_folder() {
    let mut thalweg = Thalweg::start(
        "\
flows:
  - name: left
    input: {generate: {mapping: 'root = \"l\"', interval: 10ms}}
    output: {drop: {}}
  - name: right
    input: {generate: {mapping: 'root = \"r\"', interval: 10ms, batch_size: 5}}
    output: {drop: {}}
",
    )
    .unwrap();
    thalweg.wait_ready().unwrap();
    eventually(|| {
        let left = thalweg.metric("thalweg_flow_out_total", "flow=\"left\"")?;
        let right = thalweg.metric("thalweg_flow_out_total", "flow=\"right\"")?;
        anyhow::ensure!(left > 10.0 && right > 50.0, "left {left}, right {right}");
        Ok(())
    })
    .unwrap();
    thalweg.balance().unwrap();

    let second = run(thalweg.folder.path(), &RUN).unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(
        second.stderr.contains("is in use by process") && second.stderr.contains("data_dir"),
        "{}",
        second.stderr
    );

    thalweg.stop().unwrap();
}

#[test]
fn a_failing_script_sends_its_message_to_the_dead_letter_and_the_rest_goes_on() {
    let mut thalweg = Thalweg::spawn(
        "\
input:
  generate:
    count: 100
    interval: \"\"
    mapping: root.n = counter()
pipeline:
  processors:
    - tag_processor:
        defaults: |
          if (msg.payload.n % 10 === 0) { throw new Error(\"ten\"); }
          msg.meta.location_path = \"a\";
          msg.meta.data_contract = \"_raw\";
          msg.meta.tag_name = \"n\";
          msg.payload = msg.payload.n;
          return msg;
output:
  file: {path: out.jsonl}
dead_letter:
  file: {path: dead.jsonl, codec: lines}
",
    )
    .unwrap();
    let expected = Balance {
        entered: 100,
        out: 90,
        dropped: 10,
        ..Balance::default()
    };
    assert_eq!(thalweg.finish().unwrap(), expected);
    assert_eq!(lines(&thalweg, "out.jsonl").len(), 90);
    assert_eq!(lines(&thalweg, "dead.jsonl").len(), 10);
    let log = thalweg.process.stdout();
    assert!(log.contains("JavaScript error in defaults"), "{log}");
}

#[test]
fn a_broker_gives_every_message_to_all_outputs() {
    let mut thalweg = Thalweg::spawn(
        "\
input: {generate: {count: 500, interval: \"\", batch_size: 50, mapping: root.n = counter()}}
output:
  broker:
    pattern: fan_out
    outputs:
      - file: {path: a.jsonl}
      - file: {path: b.jsonl}
",
    )
    .unwrap();
    let balance = thalweg.finish().unwrap();
    assert_eq!((balance.entered, balance.out), (500, 500));
    let expected: Vec<u64> = (1..=500).collect();
    for file in ["a.jsonl", "b.jsonl"] {
        let numbers: Vec<u64> = lines(&thalweg, file)
            .iter()
            .map(|row| row["n"].as_u64().unwrap())
            .collect();
        assert_eq!(numbers, expected);
    }
}

#[test]
fn standard_input_to_standard_output_keeps_the_log_apart() {
    use std::io::Write as _;
    let mut thalweg = Thalweg::spawn("input: {stdin: {}}\noutput: {stdout: {}}\n").unwrap();
    let stdin = thalweg.process.stdin().unwrap();
    stdin.write_all(b"one\ntwo\r\nthree").unwrap();
    thalweg.process.close_stdin();
    let balance = thalweg.finish().unwrap();
    assert_eq!((balance.entered, balance.out), (3, 3));
    assert_eq!(thalweg.process.stdout(), "one\ntwo\nthree\n");
}
