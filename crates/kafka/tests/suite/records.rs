//! The contents of records, and that all of them arrive.

use serde_json::json;

use crate::broker::{Broker, numbered};
use crate::raw::{self, RawRecord};
use crate::world::{World, until};

#[test]
fn messages_become_records_that_another_client_reads() {
    let (world, broker) = (World::new(), Broker::with_topics("a,b"));
    let message = |topic: &str, key: &str| json!({"topic": topic, "key": key}).to_string();
    let report = world.send(
        &[message("a", "k1"), message("b", "k2"), message("a", "k3")],
        &format!(
            "pipeline:
  processors:
    - mapping: |
        meta kind = \"pump\"
        meta own_x = \"1\"
        meta _incomingKeys = \"x\"
output:
  kafka:
    addresses: [{}]
    topic: '${{! json(\"topic\") }}'
    key: '${{! json(\"key\") }}'
    metadata: {{exclude_prefixes: [own_]}}
    batching: {{count: 2, period: 20ms}}",
            broker.address
        ),
    );
    assert_eq!(report.counts.out, 3);
    let records = broker.consume("a", 2);
    let keys: Vec<&str> = records.iter().map(|record| record["key"].as_str().unwrap()).collect();
    assert_eq!(keys, ["k1", "k3"]);
    let headers = &records[0]["headers"];
    assert_eq!(headers["kind"], "pump");
    assert!(
        headers["own_x"].is_null() && headers["_incomingKeys"].is_null(),
        "{headers}"
    );
    assert_eq!(records[0]["value"], message("a", "k1"));
    assert_eq!(broker.consume("b", 1)[0]["key"], "k2");
}

#[test]
fn records_of_another_client_become_messages_with_their_metadata() {
    let (world, broker) = (World::new(), Broker::start(&["-topics", "t", "-partitions", "2"]));
    broker.produce(
        "t",
        &[json!({"key": "a", "value": "first", "headers": {"unit": "bar", "empty": ""}, "partition": 1})],
    );
    for (compression, partition) in [("gzip", 0), ("snappy", 0), ("lz4", 0), ("zstd", 0)] {
        let value = compression.repeat(500);
        broker.produce_compressed("t", compression, &[json!({"value": value, "partition": partition})]);
    }
    let running = world.start(&format!(
        "input: {{kafka_franz: {{seed_brokers: [{}], topics: [t], consumer_group: g}}}}\noutput: {{kept: {{}}}}",
        broker.address
    ));
    world.wait_for(5);
    world.stop(running);
    let messages = world.kept.0.messages.lock();
    let first = messages
        .iter()
        .find(|message| message.meta.get("kafka_key").is_some())
        .unwrap();
    assert_eq!(*first.bytes(), *b"first");
    for (name, value) in [
        ("unit", "bar"),
        ("kafka_key", "a"),
        ("kafka_topic", "t"),
        ("kafka_partition", "1"),
        ("kafka_offset", "0"),
        ("kafka_tombstone_message", "false"),
    ] {
        assert_eq!(first.meta.get(name).unwrap(), value, "{name}");
    }
    assert!(first.meta.get("kafka_timestamp_ms").unwrap().parse::<i64>().unwrap() > 1_700_000_000_000);
    let others = messages
        .iter()
        .filter(|message| message.meta.get("kafka_key").is_none());
    let lengths: Vec<usize> = others.map(|message| message.bytes().len()).collect();
    assert_eq!(lengths, [2000, 3000, 1500, 2000]);
    assert_eq!(broker.committed("g"), [4, 1]);
}

#[test]
fn many_records_come_through_in_the_order_of_their_keys() {
    const COUNT: usize = 20_000;
    let (world, broker) = (World::new(), Broker::start(&["-topics", "t", "-partitions", "3"]));
    let messages: Vec<String> = (0..COUNT).map(|n| json!({"k": n % 50, "n": n}).to_string()).collect();
    let report = world.send(
        &messages,
        &format!(
            "output: {{kafka: {{addresses: [{}], topic: t, key: '${{! json(\"k\") }}', max_in_flight: 20, compression: lz4, \
             batching: {{count: 300, period: 10ms}}}}}}",
            broker.address
        ),
    );
    assert_eq!(report.counts.out, COUNT as u64);
    let running = world.start(&format!(
        "input: {{kafka: {{addresses: [{}], topics: [t], consumer_group: g}}}}\noutput: {{kept: {{}}}}",
        broker.address
    ));
    world.wait_for(COUNT);
    let report = world.stop(running);
    assert_eq!(report.counts.out, COUNT as u64, "each once, since nothing failed");
    let mut last = [None; 50];
    for text in world.kept.texts() {
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let (key, n) = (value["k"].as_u64().unwrap() as usize, value["n"].as_u64());
        assert!(last[key] < n, "{n:?} of key {key} after {:?}", last[key]);
        last[key] = n;
    }
    assert_eq!(broker.committed("g").iter().sum::<i64>(), COUNT as i64);
    assert!(world.metric("thalweg_kafka_input_records_received_total") >= COUNT as f64);
}

#[test]
fn a_restart_reads_on_where_the_last_one_ended() {
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    let input = format!(
        "input: {{kafka: {{addresses: [{}], topics: [t], consumer_group: g}}}}\noutput: {{kept: {{}}}}",
        broker.address
    );
    for round in 0..3 {
        broker.produce("t", &numbered(round * 10..round * 10 + 10));
        let running = world.start(&input);
        world.wait_for((round + 1) * 10);
        world.stop(running);
    }
    let expected: Vec<String> = (0..30).map(|n| n.to_string()).collect();
    assert_eq!(world.kept.texts(), expected);
}

#[test]
fn tombstones_stay_what_they_are_on_their_way_through_a_flow() {
    let (world, broker) = (World::new(), Broker::with_topics("from,to"));
    broker.produce(
        "from",
        &[
            json!({"key": "a", "value": null}),
            json!({"key": "b", "value": ""}),
            json!({"key": "c", "value": "x"}),
        ],
    );
    let running = world.start(&format!(
        "input: {{kafka: {{addresses: [{0}], topics: [from], consumer_group: g}}}}\n\
         output: {{kafka: {{addresses: [{0}], topic: to, key: '${{! meta(\"kafka_key\") }}'}}}}",
        broker.address
    ));
    until("all are written", || running.handle.counts().out == 3);
    world.stop(running);
    let records = broker.consume("to", 3);
    let values: Vec<&serde_json::Value> = records.iter().map(|record| &record["value"]).collect();
    assert_eq!(values, [&json!(null), &json!(""), &json!("x")]);
    let headers = &records[0]["headers"];
    assert_eq!(headers["kafka_tombstone_message"], "true", "{headers}");
}

#[test]
fn a_group_that_begins_at_the_end_keeps_that_place() {
    let (world, broker) = (World::new(), Broker::start(&["-topics", "t", "-partitions", "2"]));
    broker.produce("t", &numbered(0..5));
    let flow = format!(
        "input: {{kafka: {{addresses: [{}], topics: [t], consumer_group: g, start_from_oldest: false}}}}\noutput: {{kept: {{}}}}",
        broker.address
    );
    let running = world.start(&flow);
    // This happens before any record is passed on.
    until("its beginning is committed", || broker.committed("g") == [5, 0]);
    world.stop(running);
    broker.produce("t", &numbered(5..8));
    let running = world.start(&flow);
    world.wait_for(3);
    world.stop(running);
    assert_eq!(world.kept.texts(), ["5", "6", "7"]);
}

#[test]
fn a_group_without_commits_may_begin_at_the_end() {
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    broker.produce("t", &numbered(0..5));
    let running = world.start(&format!(
        "input: {{kafka: {{addresses: [{}], topics: [t], consumer_group: g, start_from_oldest: false}}}}\noutput: {{kept: {{}}}}",
        broker.address
    ));
    // Its starting point is found a while after it has connected.
    let mut next = 100;
    until("a record comes", || {
        broker.produce("t", &numbered(next..next + 1));
        next += 1;
        !world.kept.texts().is_empty()
    });
    world.stop(running);
    assert!(
        world
            .kept
            .texts()
            .iter()
            .all(|text| text.parse::<usize>().unwrap() >= 100)
    );
}

#[test]
fn each_compression_is_written_and_read() {
    for compression in ["gzip", "snappy", "lz4", "zstd"] {
        let (world, broker) = (World::new(), Broker::with_topics("t"));
        let messages: Vec<String> = (0..100).map(|n| format!("{n}{}", "x".repeat(1000))).collect();
        world.send(
            &messages,
            &format!(
                "output: {{kafka: {{addresses: [{}], topic: t, key: k, compression: {compression}, batching: {{count: 50}}}}}}",
                broker.address
            ),
        );
        assert_eq!(broker.values("t", 100), messages, "{compression}");
        let running = world.start(&format!(
            "input: {{kafka: {{addresses: [{}], topics: [t], consumer_group: g}}}}\noutput: {{kept: {{}}}}",
            broker.address
        ));
        world.wait_for(100);
        world.stop(running);
        assert_eq!(world.kept.texts(), messages, "{compression}");
    }
}

/// Producers in other languages may write any bytes: here the name of a header in Latin-1.
#[test]
fn a_record_whose_header_has_a_name_that_is_no_text_becomes_a_message_and_those_after_it_too() {
    for input in [
        "kafka_franz: {seed_brokers: ['ADDRESS'], topics: [t], consumer_group: g}",
        "uns: {broker_address: 'ADDRESS', kafka_topic: t, consumer_group: g}",
    ] {
        let (world, broker) = (World::new(), Broker::with_topics("t"));
        produce_raw(&broker.address, &[(b"caf\xe9", b"1"), (b"unit", b"bar")]);
        broker.produce("t", &[json!({"key": "umh.v1.acme._raw.b", "value": "after"})]);
        let running = world.start(&format!(
            "input: {{{}}}\noutput: {{kept: {{}}}}",
            input.replace("ADDRESS", &broker.address)
        ));
        world.wait_for(2);
        world.stop(running);
        let messages = world.kept.0.messages.lock();
        let said = |name: &str| messages[0].meta.get(name).map(|value| value.to_string());
        assert_eq!(said("caf\u{f7e9}").as_deref(), Some("1"), "{input}");
        assert_eq!(said("unit").as_deref(), Some("bar"), "{input}");
        assert_eq!(*messages[1].bytes(), *b"after", "{input}");
    }
}

/// Writes a record with headers whose names are any bytes.
fn produce_raw(address: &str, headers: &[(&[u8], &[u8])]) {
    let headers = headers
        .iter()
        .map(|(name, value)| (name.to_vec(), Some(value.to_vec())));
    let record = RawRecord {
        key: Some(b"umh.v1.acme._raw.a".to_vec()),
        value: b"hostile".to_vec(),
        headers: headers.collect(),
        time_ms: 1_700_000_000_000,
    };
    raw::produce(address, "t", &[record]);
}

fn record(key: Option<&[u8]>, value: &str, headers: &[(&[u8], Option<&[u8]>)]) -> RawRecord {
    let header = |(name, value): &(&[u8], Option<&[u8]>)| (name.to_vec(), value.map(<[u8]>::to_vec));
    RawRecord {
        key: key.map(<[u8]>::to_vec),
        value: value.as_bytes().to_vec(),
        headers: headers.iter().map(header).collect(),
        time_ms: 1_234_567_890_123,
    }
}

/// A compacted topic is copied only if keys are what they were: absent, empty, or bytes.
#[test]
fn a_copy_has_the_keys_headers_and_times_of_its_original() {
    let (world, broker) = (World::new(), Broker::with_topics("from,to"));
    let records = [
        record(None, "no key", &[]),
        record(Some(b""), "empty key", &[(b"a", Some(b"1"))]),
        record(
            Some(b"null"),
            "a text",
            &[(b"a", Some(b"1")), (b"b", Some(b"2")), (b"a", Some(b"3"))],
        ),
        record(
            Some(b"\xff\0\x80k"),
            "bytes",
            &[(b"e", Some(b"")), (b"n", None), (b"caf\xe9", Some(b"\xfe\xff"))],
        ),
        record(
            Some("\u{f7e9}".as_bytes()),
            "private",
            &[(b"p", Some("\u{f7e9}".as_bytes()))],
        ),
    ];
    raw::produce(&broker.address, "from", &records);
    let running = world.start(&format!(
        "input: {{kafka: {{addresses: [{0}], topics: [from], consumer_group: g}}}}
output:
  kafka:
    addresses: [{0}]
    topic: to
    key: '${{! if meta(\"kafka_empty_key\") == \"true\" {{ \"\" }} else {{ meta(\"kafka_key\") }} }}'
    timestamp_ms: '${{! meta(\"kafka_timestamp_ms\") }}'
    metadata: {{exclude_prefixes: [kafka_]}}
    max_in_flight: 1",
        broker.address
    ));
    until("all are copied", || running.handle.counts().out == records.len() as u64);
    world.stop(running);
    let mut copies = raw::consume(&broker.address, "to", records.len());
    // Those without a key have no order.
    copies.sort_by_key(|copy| records.iter().position(|record| record.value == copy.value));
    assert_eq!(copies, records);
}

#[test]
fn a_key_that_is_null_or_missing_is_no_key() {
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    let messages = [
        r#"{"n":0,"key":null}"#,
        r#"{"n":1}"#,
        r#"{"n":2,"key":"null"}"#,
        r#"{"n":3,"key":""}"#,
    ];
    world.send(
        &messages.map(str::to_owned),
        &format!(
            "output: {{kafka: {{addresses: [{}], topic: t, key: '${{! json(\"key\") }}', max_in_flight: 1}}}}",
            broker.address
        ),
    );
    let mut records = raw::consume(&broker.address, "t", messages.len());
    records.sort_by(|a, b| a.value.cmp(&b.value));
    let keys: Vec<Option<Vec<u8>>> = records.into_iter().map(|record| record.key).collect();
    assert_eq!(keys, [None, None, Some(b"null".to_vec()), Some(Vec::new())]);
}
