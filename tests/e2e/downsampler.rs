//! Downsampling in the running program: the kept points, the complete mass balance, and that a held-back point is passed on
//! when the flow ends.

use serde_json::Value;
use thalweg_tests::{Balance, Thalweg};

const POINTS: u64 = 200;

#[test]
fn points_that_matter_go_on_and_the_others_are_accounted_for() {
    // Two series that rise in a straight line, one of them in steps that are repeated each second.
    let mut input = String::new();
    for n in 0..POINTS {
        for tag in ["level", "flow"] {
            input += &format!("{{\"tag\":\"{tag}\",\"value\":{n},\"timestamp_ms\":{}}}\n", 1000 * n);
        }
    }
    // A repeated time of the newest point, and a value that is not a number.
    input += &format!(
        "{{\"tag\":\"level\",\"value\":5000,\"timestamp_ms\":{}}}\n",
        1000 * (POINTS - 1)
    );
    input += "{\"tag\":\"level\",\"value\":null,\"timestamp_ms\":1000000}\n";
    let mut thalweg = Thalweg::spawn_with(
        "\
input: {file: {paths: [in.jsonl]}}
pipeline:
  processors:
    - mapping: |
        meta umh_topic = \"umh.v1.acme._raw.\" + this.tag
        root.value = this.value
        root.timestamp_ms = this.timestamp_ms
    - downsampler:
        default: {deadband: {threshold: 10}}
        overrides:
          - {pattern: flow, swinging_door: {threshold: 0.2}}
    - mapping: |
        root = this
        root.tag = @umh_topic.split(\".\").index(-1)
        root.by = @downsampled_by
output: {file: {path: out.jsonl}}
",
        &[("in.jsonl", &input)],
    )
    .unwrap();
    let balance = thalweg.finish().unwrap();
    let out = std::fs::read_to_string(thalweg.folder.path().join("out.jsonl")).unwrap();
    let out: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let values = |tag: &str| -> Vec<Option<u64>> {
        let of_tag = out.iter().filter(|point| point["tag"] == tag);
        of_tag.map(|point| point["value"].as_u64()).collect()
    };
    // Each step of ten, and the value that is not a number.
    let mut steps: Vec<Option<u64>> = (0..POINTS).step_by(10).map(Some).collect();
    steps.push(None);
    assert_eq!(values("level"), steps);
    // A line is reduced to its ends; the last one was held back until the flow ended.
    assert_eq!(values("flow"), [Some(0), Some(POINTS - 1)]);
    assert!(
        out.iter()
            .all(|point| point["tag"] != "flow" || point["by"] == "swinging_door")
    );
    let kept = out.len() as u64;
    let expected = Balance {
        entered: 2 * POINTS + 2,
        out: kept,
        filtered: 2 * POINTS + 2 - kept,
        ..Balance::default()
    };
    assert_eq!(balance, expected);
}
