//! The topic of the unified namespace.

use serde_json::{Value, json};
use thalweg_record::{DropReason, FilterReason};

use crate::apache::ApacheKafka;
use crate::broker::Broker;
use crate::log::{listen, warnings};
use crate::registry::SchemaRegistry;
use crate::world::{World, until};

const TOPIC: &str = "umh.messages";

/// The rest of a flow that writes messages `{"topic", "fields"}` to the namespace.
fn output(broker: &Broker, registry: &str) -> String {
    format!(
        "pipeline:
  processors:
    - mapping: |
        meta umh_topic = this.topic
        meta unit = \"bar\"
        meta kafka_old = \"x\"
        root = this.fields
output: {{uns: {{broker_address: \"{}\", bridged_by: test, schema_registry_url: \"{registry}\"}}}}",
        broker.address
    )
}

fn message(topic: &str, value: Value) -> String {
    json!({"topic": topic, "fields": {"value": value, "timestamp_ms": 5}}).to_string()
}

fn nobody() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn messages_get_a_topic_of_one_partition_with_key_and_headers() {
    let (world, broker) = (World::new(), Broker::start(&["-partitions", "10"]));
    let report = world.send(
        &[
            message("umh.v1.acme._raw.t", json!(1)),
            message("umh.v1.acme._raw", json!(2)),
            json!({"fields": 3}).to_string(),
            message("umh.v1.acme._raw.u", json!(4)),
        ],
        &output(&broker, &nobody()),
    );
    assert_eq!(report.counts.out, 2);
    assert_eq!(report.counts.dropped(DropReason::InvalidTopic), 1);
    assert_eq!(report.counts.dropped(DropReason::MissingField), 1);
    let records = broker.consume(TOPIC, 2);
    assert_eq!(records[0]["key"], "umh.v1.acme._raw.t");
    assert_eq!(records[1]["key"], "umh.v1.acme._raw.u");
    assert!(records.iter().all(|record| record["partition"] == 0));
    let value: Value = serde_json::from_str(records[0]["value"].as_str().unwrap()).unwrap();
    assert_eq!(value, json!({"value": 1, "timestamp_ms": 5}));
    let headers = &records[0]["headers"];
    for (name, value) in [
        ("bridged_by", "test"),
        ("umh_topic", "umh.v1.acme._raw.t"),
        ("unit", "bar"),
        ("data_contract_bypassed", "true"),
        (
            "data_contract_bypass_reason",
            "_raw has no version; only contracts that end in _v and a number are checked",
        ),
    ] {
        assert_eq!(headers[name], value, "{headers}");
    }
    assert!(headers["kafka_old"].is_null(), "{headers}");
}

#[test]
fn a_topic_with_another_number_of_partitions_is_an_error() {
    let (world, broker) = (World::new(), Broker::start(&["-topics", TOPIC, "-partitions", "3"]));
    let messages = [message("umh.v1.acme._raw.t", json!(1))];
    let running = world.start_sending(&messages, &output(&broker, &nobody()));
    let told = world.failure(&running);
    assert!(told.contains("the topic umh.messages has 3 partitions"), "{told}");
    world.abandon(running);
}

#[test]
fn what_breaks_its_contract_is_refused_by_itself() {
    let schema = |path: &str, kind: &str| {
        let fields = json!({
            "type": "object", "required": ["value", "timestamp_ms"], "additionalProperties": false,
            "properties": {"value": {"type": kind}, "timestamp_ms": {"type": "number"}},
        });
        let properties = json!({"virtual_path": {"enum": [path]}, "fields": fields});
        json!({"type": "object", "properties": properties, "required": ["virtual_path", "fields"]}).to_string()
    };
    let registry = SchemaRegistry::start(&[
        ("_pump_v1-number", &schema("motor.speed", "number")),
        ("_pump_v1-text", &schema("serial", "string")),
        ("_pump_v10-number", "false"),
        ("_odd_v1-x", r#"{"contains": {}}"#),
    ]);
    let (world, broker) = (World::new(), Broker::start(&[]));
    let report = world.send(
        &[
            message("umh.v1.acme._pump_v1.motor.speed", json!(1.5)),
            message("umh.v1.acme._pump_v1.motor.speed", json!("fast")),
            message("umh.v1.acme._pump_v1.serial", json!("A-1")),
            message("umh.v1.acme._pump_v1.other", json!(1)),
            message("umh.v1.acme._pump_v2.motor.speed", json!("fast")),
            message("umh.v1.acme._odd_v1.x", json!(1)),
        ],
        &output(&broker, &registry.url),
    );
    assert_eq!(
        (report.counts.out, report.counts.dropped(DropReason::SchemaRejected)),
        (4, 2)
    );
    let records = broker.consume(TOPIC, 4);
    let header = |index: usize, name: &str| records[index]["headers"][name].as_str().unwrap_or_default().to_owned();
    for index in [0, 1] {
        assert_eq!(
            (
                header(index, "data_contract_name"),
                header(index, "data_contract_version")
            ),
            ("_pump".into(), "1".into())
        );
        assert_eq!(header(index, "data_contract_bypassed"), "");
    }
    assert_eq!(
        header(2, "data_contract_bypass_reason"),
        "the schema registry has no subject that begins with _pump_v2-"
    );
    assert!(
        header(3, "data_contract_bypass_reason").starts_with("the schema of _odd_v1-x cannot be checked: #/contains")
    );
    // The subjects of three contracts, and three schemas; cached results are not queried again.
    assert_eq!(registry.requests(), 6);
}

#[test]
fn without_an_answer_of_the_registry_messages_pass_and_say_so() {
    let (world, broker) = (World::new(), Broker::start(&[]));
    let url = nobody();
    let report = world.send(&[message("umh.v1.acme._pump_v1.x", json!(1))], &output(&broker, &url));
    assert_eq!(report.counts.out, 1);
    let reason = broker.consume(TOPIC, 1)[0]["headers"]["data_contract_bypass_reason"].to_string();
    assert!(
        reason.contains(&format!("the schema registry at {url} does not answer: ")),
        "{reason}"
    );
}

#[test]
fn only_records_whose_key_is_found_become_messages() {
    let (world, broker) = (World::new(), Broker::with_topics(TOPIC));
    let record = |key: &str, headers: Value| json!({"key": key, "value": "{}", "headers": headers});
    broker.produce(
        TOPIC,
        &[
            record(
                "umh.v1.acme.cologne._raw.t",
                json!({"unit": "bar", "umh_topic": "stale"}),
            ),
            record("umh.v1.acme.aachen._raw.t", json!({})),
            record("umh.v1.acme.cologne._raw.t", json!({"unit": "mbar"})),
            record("umh.v1.acme.bonn._historian.t", json!({})),
            json!({"value": "no key"}),
        ],
    );
    let running = world.start(&format!(
        "input: {{uns: {{broker_address: \"{}\", umh_topics: ['cologne\\._raw'], umh_topic: '_historian\\.', \
         consumer_group: mine}}}}\noutput: {{kept: {{}}}}",
        broker.address
    ));
    until("all is settled", || {
        let counts = running.handle.counts();
        counts.entered == 5 && counts.in_flight == 0
    });
    let report = world.stop(running);
    assert_eq!(
        (report.counts.out, report.counts.filtered(FilterReason::KeyMismatch)),
        (3, 2)
    );
    let messages = world.kept.0.messages.lock();
    let meta = |index: usize, name: &str| messages[index].meta.get(name).unwrap_or_default().into_owned();
    for (name, value) in [
        ("umh_topic", "umh.v1.acme.cologne._raw.t"),
        ("kafka_msg_key", "umh.v1.acme.cologne._raw.t"),
        ("kafka_topic", TOPIC),
        ("unit", "bar"),
    ] {
        assert_eq!(meta(0, name), value);
    }
    assert_eq!(
        (meta(1, "unit"), meta(2, "umh_topic")),
        ("mbar".into(), "umh.v1.acme.bonn._historian.t".into())
    );
    assert!(meta(0, "kafka_timestamp_ms").parse::<i64>().unwrap() > 0);
    assert_eq!(world.metric("input_uns_records_received"), 5.0);
    assert_eq!(world.metric("input_uns_records_filtered"), 3.0);
    assert_eq!(broker.committed("mine"), [5]);
}

#[test]
fn what_one_flow_writes_another_one_reads_with_its_metadata() {
    let (world, broker) = (World::new(), Broker::start(&[]));
    let messages: Vec<String> = (0..500)
        .map(|n| message(&format!("umh.v1.acme._raw.t{}", n % 3), json!(n)))
        .collect();
    let report = world.send(&messages, &output(&broker, &nobody()));
    assert_eq!(report.counts.out, 500);
    let running = world.start(&format!(
        "input: {{uns: {{broker_address: \"{}\"}}}}\noutput: {{kept: {{}}}}",
        broker.address
    ));
    world.wait_for(500);
    world.stop(running);
    let messages = world.kept.0.messages.lock();
    for (n, message) in messages
        .iter()
        .filter(|message| message.meta.get("umh_topic").unwrap().ends_with("t1"))
        .enumerate()
    {
        let value: Value = serde_json::from_slice(&message.bytes()).unwrap();
        assert_eq!(value["value"], 3 * n + 1, "in the order of its topic");
        assert_eq!(message.meta.get("bridged_by").unwrap(), "test");
    }
}

/// A schema that requires a number.
fn number() -> String {
    let fields = json!({"type": "object", "required": ["value"], "properties": {"value": {"type": "number"}}});
    json!({"type": "object", "properties": {"fields": fields}}).to_string()
}

#[test]
fn deletions_under_a_versioned_contract_cross_a_bridge() {
    let registry = SchemaRegistry::start(&[("_pump_v1-number", &number())]);
    let (world, from, to) = (World::new(), Broker::with_topics(TOPIC), Broker::start(&[]));
    let record = |value: Value| json!({"key": "umh.v1.acme._pump_v1.x", "value": value});
    from.produce(
        TOPIC,
        &[record(json!("{\"value\": 1}")), record(json!("")), record(Value::Null)],
    );
    let running = world.start(&format!(
        "input: {{uns: {{broker_address: \"{}\"}}}}\noutput: {{uns: {{broker_address: \"{}\", schema_registry_url: \"{}\"}}}}",
        from.address, to.address, registry.url
    ));
    until("all are out", || running.handle.counts().out == 3);
    let report = world.stop(running);
    assert_eq!(report.counts.dropped(DropReason::SchemaRejected), 0);
    let records = to.consume(TOPIC, 3);
    let values: Vec<&Value> = records.iter().map(|record| &record["value"]).collect();
    assert_eq!(values, [&json!("{\"value\": 1}"), &json!(""), &Value::Null]);
    assert_eq!(records[0]["headers"]["data_contract_name"], "_pump");
    let reason = &records[2]["headers"]["data_contract_bypass_reason"];
    assert_eq!(reason, "the message has no payload: it deletes its key");
    assert_eq!(world.metric("thalweg_uns_output_contract_bypassed_total"), 2.0);
}

#[test]
fn that_contracts_are_not_checked_is_told_once_and_counted_for_each_message() {
    listen();
    let (world, broker, url) = (World::new(), Broker::start(&[]), nobody());
    let messages: Vec<String> = (0..300).map(|n| message("umh.v1.acme._pump_v1.x", json!(n))).collect();
    let report = world.send(&messages, &output(&broker, &url));
    assert_eq!(report.counts.out, 300);
    assert_eq!(world.metric("thalweg_uns_output_contract_bypassed_total"), 300.0);
    let told = warnings(&[&url, "pass unchecked"]);
    assert_eq!(told.len(), 1, "{told:?}");

    let registry = SchemaRegistry::start(&[]);
    let report = world.send(&messages, &output(&broker, &registry.url));
    assert_eq!(report.counts.out, 300);
    let told = warnings(&[
        "the contract _pump_v1 is not checked",
        "no subject that begins with _pump_v1-",
    ]);
    assert!(!told.is_empty());
}

#[test]
fn messages_wait_for_a_registry_that_is_down_if_they_must_not_pass() {
    listen();
    let (world, broker, url) = (World::new(), Broker::start(&[]), nobody());
    let messages = [
        message("umh.v1.acme._pump_v1.x", json!(1)),
        message("umh.v1.acme._pump_v1.x", json!("no number")),
        message("umh.v1.acme._raw.x", json!(2)),
    ];
    let holding = output(&broker, &url).replace("bridged_by: test", "bridged_by: test, on_registry_failure: hold");
    let running = world.start_sending(&messages, &holding);
    until("it is told that they wait", || {
        running
            .trouble()
            .contains("messages wait for the schema of their contract")
    });
    assert!(running.trouble().contains(&url), "{}", running.trouble());
    assert_eq!(running.handle.counts().out, 0);
    let registry = SchemaRegistry::start_at(&url, &[("_pump_v1-number", &number())]);
    until("what keeps its contract is out", || running.handle.counts().out == 2);
    until("it is over", || running.trouble().is_empty());
    let report = world.stop(running);
    assert_eq!(report.counts.dropped(DropReason::SchemaRejected), 1);
    assert_eq!(broker.consume(TOPIC, 2)[0]["headers"]["data_contract_name"], "_pump");
    assert!(registry.requests() >= 2);
}

#[test]
fn messages_that_wait_for_a_registry_do_not_keep_the_flow_from_stopping() {
    let (world, broker) = (World::new(), Broker::start(&[]));
    let holding = output(&broker, &nobody()).replace("bridged_by: test", "bridged_by: test, on_registry_failure: hold");
    let running = world.start_sending(&[message("umh.v1.acme._pump_v1.x", json!(1))], &holding);
    until("they wait", || {
        running.trouble().contains("messages wait for the schema")
    });
    assert_eq!(world.abandon(running).unacknowledged, 1);
}

/// The topic changes while it is written to.
#[test]
fn the_one_partition_is_looked_at_whenever_the_topic_changes() {
    let (world, kafka) = (World::new(), ApacheKafka::shared());
    let flow = format!(
        "input:
  generate: {{interval: 5ms, mapping: 'root.n = counter()'}}
output: {{uns: {{broker_address: \"{}\", umh_topic: umh.v1.acme._raw.x, schema_registry_url: \"{}\"}}}}",
        kafka.address,
        nobody()
    );
    let running = world.start(&flow);
    until("it is written to", || running.handle.counts().out > 100);
    kafka.recreate(TOPIC, 1);
    let before = running.handle.counts().out;
    until("the new one is written to", || {
        running.handle.counts().out > before + 1000
    });
    assert_eq!(running.trouble(), "");
    kafka.grow(TOPIC, 3);
    let told = world.failure(&running);
    assert!(told.contains("the topic umh.messages has 3 partitions"), "{told}");
    world.abandon(running);
    // Until that was noticed, all records went to the old partition.
    assert!(kafka.consume(TOPIC, 500).iter().all(|record| record["partition"] == 0));

    kafka.recreate(TOPIC, 1);
    let running = world.start(&flow);
    until("it is written to", || running.handle.counts().out > 100);
    kafka.recreate(TOPIC, 2);
    let told = world.failure(&running);
    assert!(told.contains("the topic umh.messages has 2 partitions"), "{told}");
    world.abandon(running);
    kafka.delete(TOPIC);
}
