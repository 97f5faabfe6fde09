//! Topics: classic payloads that are split, and the topic browser.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::ensure;
use serde_json::{Value, json};
use thalweg_tests::{Balance, Thalweg, eventually};

fn read(thalweg: &Thalweg, file: &str) -> String {
    std::fs::read_to_string(thalweg.folder.path().join(file)).unwrap_or_default()
}

fn lines(thalweg: &Thalweg, file: &str) -> Vec<Value> {
    let text = read(thalweg, file);
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn classic_payloads_become_samples_and_what_cannot_goes_to_the_dead_letter() {
    let deep = format!("{}1{}", "{\"k\":".repeat(11), "}".repeat(11));
    let many: Vec<String> = (0..1001).map(|n| format!("\"t{n}\":{n}")).collect();
    let mut input: String = (1..=100)
        .map(|n| {
            format!(
                "{{\"timestamp_ms\":{n},\"force\":{n},\"axis\":{{\"x\":[{n},0.5]}},\"meta\":{{\"unit\":\"kN\"}}}}\n"
            )
        })
        .collect();
    input += "no object\n";
    input += "{\"force\":1}\n";
    input += &format!("{{\"timestamp_ms\":1,\"deep\":{deep}}}\n");
    input += &format!("{{\"timestamp_ms\":1,{}}}\n", many.join(","));
    input += "{\"timestamp_ms\":101,\"bad.\":1,\"none\":null,\"force\":18446744073709551615}\n";
    let mut thalweg = Thalweg::spawn_with(
        "\
input: {file: {paths: [in.jsonl]}}
pipeline:
  processors:
    - mapping: meta umh_topic = \"umh.v1.acme.line1._historian.press\"
    - classic_to_core: {target_data_contract: _raw}
    - mapping: |
        root = this
        root.topic = @umh_topic
        root.tag = @tag_name
        root.group = @virtual_path
        root.unit = @unit
output: {file: {path: out.jsonl}}
dead_letter: {file: {path: dead.jsonl}}
",
        &[("in.jsonl", &input)],
    )
    .unwrap();
    // 105 lines; 100 of them have two tags, and the last one has three, of which one has no value and one no name.
    let expected = Balance {
        entered: 105 + 100 + 2,
        out: 201,
        filtered: 1,
        dropped: 5,
        ..Balance::default()
    };
    assert_eq!(thalweg.finish().unwrap(), expected);
    let rows = lines(&thalweg, "out.jsonl");
    assert_eq!(rows.len(), 201);
    let force = json!({
        "value": 1, "timestamp_ms": 1, "topic": "umh.v1.acme.line1._raw.press.force", "tag": "force", "group": "press",
        "unit": "kN",
    });
    assert_eq!(rows[0], force);
    let axis = json!({
        "value": "[1 0.5]", "timestamp_ms": 1, "topic": "umh.v1.acme.line1._raw.press.axis.x", "tag": "axis.x",
        "group": "press", "unit": "kN",
    });
    assert_eq!(rows[1], axis);
    assert!(
        read(&thalweg, "out.jsonl").contains("18446744073709551615"),
        "every digit is kept"
    );
    assert_eq!(read(&thalweg, "dead.jsonl").lines().count(), 5);
}

/// Messages of eight machines, with two tags each; every thread has some of them.
const MACHINES: &str = "\
input:
  generate:
    interval: 1ms
    batch_size: 4
    mapping: |
      let n = count(\"n\")
      meta umh_topic = \"umh.v1.acme.line%v._historian.press\".format($n % 8)
      root.timestamp_ms = $n
      root.force = $n * 0.5
      root.state.on = $n % 2 == 0
      root.meta.unit = \"kN\"
pipeline:
  threads: 3
  processors:
    - classic_to_core: {target_data_contract: _raw}
    - label: browser
      topic_browser: {emit_interval: 100ms}
output: {file: {path: bundles.txt}}
";

#[test]
fn bundles_and_http_tell_all_topics_of_all_threads() {
    let mut thalweg = Thalweg::start(MACHINES).unwrap();
    let emitted = || thalweg.metric("total_events_emitted", "label=\"browser\"");
    eventually(|| {
        let topics = thalweg.json("/api/v1/topics?limit=3")?;
        ensure!(topics["total"] == 16 && emitted()? > 100.0, "{topics}");
        thalweg.balance().map(drop)
    })
    .unwrap();
    topics_are_shown_page_by_page(&thalweg);
    let balance = thalweg.stop().unwrap();

    let text = read(&thalweg, "bundles.txt");
    let bundles: Vec<Bundle> = text.split_inclusive("ENDENDENDEND\n").map(Bundle::read).collect();
    let written = bundles.len() as u64;
    let expected = Balance {
        entered: balance.entered,
        out: written,
        filtered: balance.entered - written,
        ..Balance::default()
    };
    assert_eq!(
        balance, expected,
        "each message is a bundle, or filtered once one stands for it"
    );
    let names: BTreeSet<String> = (0..8)
        .flat_map(|line| ["force", "on"].map(|tag| format!("acme line{line} _raw {tag}")))
        .collect();
    let all = bundles
        .iter()
        .map(|bundle| bundle.topics.values().cloned().collect::<BTreeSet<_>>());
    let complete = all.skip_while(|topics| *topics != names);
    assert!(complete.clone().count() > 3, "{} bundles", bundles.len());
    assert!(
        complete.into_iter().all(|topics| topics == names),
        "once known, a topic is in every bundle"
    );
    for bundle in &bundles {
        let ids: BTreeSet<&String> = bundle.events.iter().collect();
        assert_eq!(ids.len(), bundle.events.len(), "one event of a topic in an interval");
        assert!(ids.into_iter().all(|id| bundle.topics.contains_key(id)));
    }
}

fn topics_are_shown_page_by_page(thalweg: &Thalweg) {
    let mut found = Vec::new();
    for offset in (0..20).step_by(5) {
        let page = thalweg
            .json(&format!("/api/v1/topics?processor=browser&offset={offset}&limit=5"))
            .unwrap();
        assert_eq!(
            (&page["total"], &page["offset"], &page["limit"]),
            (&json!(16), &json!(offset), &json!(5))
        );
        found.extend(page["items"].as_array().unwrap().clone());
    }
    let topics: Vec<&str> = found.iter().map(|item| item["topic"].as_str().unwrap()).collect();
    assert_eq!(topics.len(), 16);
    assert!(topics.is_sorted_by(|a, b| a < b), "{topics:?}");
    let on = &found[1];
    for (key, expected) in [
        ("processor", json!("browser")),
        ("topic", json!("umh.v1.acme.line0._raw.press.state.on")),
        ("level0", json!("acme")),
        ("sublevels", json!(["line0"])),
        ("contract", json!("_raw")),
        ("virtual_path", json!("press.state")),
        ("name", json!("on")),
        ("value", json!(true)),
    ] {
        assert_eq!(on[key], expected, "{key} of {on}");
    }
    assert_eq!(on["id"].as_str().unwrap().len(), 16);
    assert_eq!(
        (&on["metadata"]["unit"], &on["metadata"]["tag_name"]),
        (&json!("kN"), &json!("state.on"))
    );
    assert_eq!(on["timestamp_ms"].as_u64().unwrap() % 8, 0);
    let none = thalweg.json("/api/v1/topics?processor=other").unwrap();
    assert_eq!((&none["total"], &none["items"]), (&json!(0), &json!([])));
}

/// A consumer's view of a bundle.
struct Bundle {
    /// Level 0, sublevel, contract and name by id.
    topics: BTreeMap<String, String>,
    /// The ids of the events' topics.
    events: Vec<String>,
}

impl Bundle {
    fn read(text: &str) -> Bundle {
        let lines: Vec<&str> = text.lines().collect();
        let [start, hex, data_end, time, end] = lines.as_slice() else {
            panic!("{} lines", lines.len());
        };
        assert_eq!(
            (*start, *data_end, *end),
            ("STARTSTARTSTART", "ENDDATAENDDATAENDDATA", "ENDENDENDEND")
        );
        assert!(time.parse::<u64>().unwrap() > 1_700_000_000_000);
        let digits = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(digits).collect();
        let of = |field: u64| inner(&bytes, field).into_iter().flat_map(|table| inner(table, 1));
        let id = |entry: &[u8]| texts(entry, 1).remove(0);
        let topics = of(1).map(|entry| {
            let topic = inner(entry, 2).remove(0);
            let parts: Vec<String> = [1, 2, 3, 5].into_iter().flat_map(|field| texts(topic, field)).collect();
            (id(entry), parts.join(" "))
        });
        Bundle {
            topics: topics.collect(),
            events: of(2).map(id).collect(),
        }
    }
}

fn texts(message: &[u8], field: u64) -> Vec<String> {
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).unwrap().to_owned();
    inner(message, field).into_iter().map(text).collect()
}

/// The contents of a protobuf message's length-delimited fields of one number.
fn inner(mut message: &[u8], field: u64) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        match key & 7 {
            0 => drop(varint(&mut message)),
            1 => message = &message[8..],
            2 => {
                let length = varint(&mut message) as usize;
                let (content, rest) = message.split_at(length);
                message = rest;
                if key >> 3 == field {
                    found.push(content);
                }
            }
            other => panic!("wire type {other}"),
        }
    }
    found
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}
