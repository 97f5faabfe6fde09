//! Unreachable brokers, and records that they reject.

use std::process::Command;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::json;
use thalweg_record::DropReason;

use crate::broker::{Broker, numbered};
use crate::proxy::Proxy;
use crate::world::{World, until};

#[test]
fn a_broker_that_is_killed_while_it_is_written_to_gets_all_in_order() {
    const COUNT: usize = 3000;
    let (world, mut broker) = (World::new(), Broker::start(&["-topics", "t", "-partitions", "2"]));
    let running = world.start(&format!(
        "input:
  generate:
    interval: 1ms
    count: {COUNT}
    mapping: |
      let n = counter()
      root.n = $n
      root.k = $n % 5
output: {{kafka: {{addresses: [{}], topic: t, key: '${{! json(\"k\") }}', max_in_flight: 20}}}}",
        broker.address
    ));
    until("it is written to", || running.handle.counts().out > 300);
    broker.kill();
    until("it is missed", || running.trouble().contains("no broker answers at "));
    let told = running.trouble();
    assert!(
        told.contains(&broker.address) && told.contains("check that it runs"),
        "{told}"
    );
    broker.restart();
    until("all is out", || running.handle.counts().out == COUNT as u64);
    until("it is found again", || running.trouble().is_empty());
    world.stop(running);
    let records = all_of(&broker, "t", COUNT);
    for key in 0..5 {
        let of_key = records.iter().filter(|n| *n % 5 == key);
        in_order_apart_from_repeats(of_key.copied(), 5);
    }
}

/// Returns the numbers of a topic's records, up to where each of the first `count` numbers has occurred. A killed
/// broker of this kind forgets its producers' sequence numbers, which others restore from their log: so it accepts
/// records a second time that it had written and not yet confirmed.
fn all_of(broker: &Broker, topic: &str, count: usize) -> Vec<u64> {
    let mut wanted = count;
    loop {
        let values = broker.consume(topic, wanted);
        let number = |record: &serde_json::Value| {
            let value: serde_json::Value = serde_json::from_str(record["value"].as_str().unwrap()).unwrap();
            value["n"].as_u64().unwrap()
        };
        let numbers: Vec<u64> = values.iter().map(number).collect();
        let distinct: std::collections::BTreeSet<u64> = numbers.iter().copied().collect();
        if distinct.len() == count {
            return numbers;
        }
        // All are confirmed, so the others follow these.
        wanted += count - distinct.len();
    }
}

/// Each number follows the one before it, except where the sequence goes back, which happens at most once: there was
/// one kill.
fn in_order_apart_from_repeats(numbers: impl Iterator<Item = u64>, step: u64) {
    let (mut last, mut repeats): (Option<u64>, Vec<(u64, u64)>) = (None, Vec::new());
    for n in numbers {
        match last {
            Some(last) if n <= last => repeats.push((last, n)),
            Some(last) => assert_eq!(n, last + step, "nothing is left out, and nothing comes too early"),
            None => {}
        }
        last = Some(n);
    }
    assert!(repeats.len() <= 1, "(last, again): {repeats:?}");
}

#[test]
fn a_broker_that_is_killed_while_it_is_read_is_read_on() {
    let (world, mut broker) = (World::new(), Broker::with_topics("t"));
    broker.produce("t", &numbered(0..100));
    let running = world.start(&format!(
        "input: {{kafka: {{addresses: [{}], topics: [t], consumer_group: g, commit_period: 50ms}}}}\noutput: {{kept: {{}}}}",
        broker.address
    ));
    world.wait_for(100);
    until("all is committed", || broker.committed("g") == [100]);
    assert_eq!(running.trouble(), "");
    broker.kill();
    until("it is missed", || running.trouble().contains("no broker answers at "));
    broker.restart();
    broker.produce("t", &numbered(100..200));
    world.wait_for(200);
    until("it is found again", || running.trouble().is_empty());
    until("the group goes on, too", || broker.committed("g") == [200]);
    world.stop(running);
    let unique: std::collections::BTreeSet<String> = world.kept.texts().into_iter().collect();
    assert_eq!(unique.len(), 200);
    assert_eq!(broker.committed("g"), [200]);
}

#[test]
fn an_absent_broker_and_a_missing_topic_are_waited_for() {
    let (world, mut broker) = (World::new(), Broker::with_topics("other"));
    broker.kill();
    let running = world.start(&format!(
        "input: {{uns: {{broker_address: \"{}\"}}}}\noutput: {{kept: {{}}}}",
        broker.address
    ));
    until("it is missed", || running.trouble().contains("no broker answers at "));
    assert!(world.metric("input_uns_connection_errors") >= 1.0);
    broker.restart();
    until("the topic is missed", || {
        running.trouble().contains("the topic umh.messages does not exist")
    });
    // The output creates it.
    let sender = World::new();
    sender.send(
        &["1".to_owned()],
        &format!(
            "output: {{uns: {{broker_address: \"{}\", umh_topic: umh.v1.a._raw.x}}}}",
            broker.address
        ),
    );
    world.wait_for(1);
    until("it is connected", || world.metric("input_uns_connected") == 1.0);
    world.stop(running);
}

#[test]
fn a_missing_topic_is_waited_for_by_who_writes_to_it() {
    let (world, broker) = (World::new(), Broker::start(&[]));
    let running = world.start_sending(
        &["1".to_owned()],
        &format!(
            "output: {{kafka: {{addresses: [{}], topic: umh.messages}}}}",
            broker.address
        ),
    );
    until("the topic is missed", || {
        running.trouble().contains("the topic umh.messages does not exist")
    });
    // The output of the namespace creates it.
    World::new().send(
        &["2".to_owned()],
        &format!(
            "output: {{uns: {{broker_address: \"{}\", umh_topic: umh.v1.acme._raw.x}}}}",
            broker.address
        ),
    );
    until("it is written", || running.handle.counts().out == 1);
    world.stop(running);
    let mut values = broker.values("umh.messages", 2);
    values.sort();
    assert_eq!(values, ["1", "2"]);
}

#[test]
fn what_no_broker_takes_is_dropped_and_the_rest_is_written() {
    let (world, broker) = (
        World::new(),
        Broker::start(&["-topics", "t", "-settings", "message.max.bytes=20000"]),
    );
    // Each fits, but together they exceed the broker's limit, which the client does not know.
    let mut messages: Vec<String> = (0..60)
        .map(|n| json!({"topic": "t", "n": n, "pad": "x".repeat(900)}).to_string())
        .collect();
    messages.push(json!({"topic": "t", "pad": "x".repeat(30_000)}).to_string());
    messages.push(json!({"topic": "t", "pad": "x".repeat(200_000)}).to_string());
    messages.push(json!({"topic": "no topic"}).to_string());
    let report = world.send(
        &messages,
        &format!(
            "output: {{kafka: {{addresses: [{}], topic: '${{! json(\"topic\") }}', max_message_bytes: 100kB, \
             batching: {{count: 1000, period: 200ms}}}}}}",
            broker.address
        ),
    );
    assert_eq!(report.counts.out, 60);
    assert_eq!(report.counts.dropped(DropReason::TooLarge), 2);
    assert_eq!(report.counts.dropped(DropReason::OutputRejected), 1);
    assert_eq!(broker.values("t", 60), messages[..60]);
}

#[test]
fn a_request_that_is_refused_says_nothing_of_the_writes_in_it() {
    let (world, broker) = (
        World::new(),
        Broker::start(&["-topics", "t", "-settings", "message.max.bytes=20000"]),
    );
    // The client puts many of these writes into one request.
    let mut messages: Vec<String> = (0..49)
        .map(|n| json!({"n": n, "pad": "x".repeat(900)}).to_string())
        .collect();
    messages.insert(20, json!({"n": "too large", "pad": "x".repeat(30_000)}).to_string());
    let report = world.send(
        &messages,
        &format!(
            "output: {{kafka: {{addresses: [{}], topic: t, max_in_flight: 50, max_message_bytes: 100kB}}}}",
            broker.address
        ),
    );
    assert_eq!(
        (report.counts.out, report.counts.dropped(DropReason::TooLarge)),
        (49, 1)
    );
    messages.remove(20);
    messages.sort();
    // Records of a request after a rejected one are stored twice.
    let mut wanted = messages.len();
    let values = loop {
        let values: std::collections::BTreeSet<String> = broker.values("t", wanted).into_iter().collect();
        if values.len() >= messages.len() {
            break Vec::from_iter(values);
        }
        wanted += messages.len() - values.len();
    };
    assert_eq!(values, messages);
}

#[test]
fn a_topic_that_does_not_exist_does_not_hold_up_others_and_is_refused_in_the_end() {
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    let message = |topic: &str, n: usize| json!({"topic": topic, "n": n}).to_string();
    let mut messages: Vec<String> = (0..100).map(|n| message("t", n)).collect();
    messages.insert(10, message("nowhere", 0));
    messages.insert(50, message("nowhere", 1));
    let running = world.start_sending(
        &messages,
        &format!(
            "output: {{kafka: {{addresses: [{}], topic: '${{! json(\"topic\") }}'}}}}",
            broker.address
        ),
    );
    // Messages that are read together are confirmed together, so only the broker shows what is written.
    assert_eq!(broker.values("t", 100).len(), 100);
    assert_eq!(running.handle.counts().dropped_total(), 0, "it is still waited for");
    until("it is refused", || {
        running.handle.counts().dropped(DropReason::OutputRejected) == 2
    });
    assert_eq!(running.trouble(), "");
    world.stop(running);
}

#[test]
fn many_topics_that_do_not_exist_are_refused_as_soon_as_one_is() {
    const COUNT: usize = 3000;
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    let message = |topic: &str, n: usize| json!({"topic": topic, "n": n}).to_string();
    let mut messages: Vec<String> = (0..COUNT).map(|n| message(&format!("nowhere-{n}"), n)).collect();
    messages.push(message("t", COUNT));
    let running = world.start_sending(
        &messages,
        &format!(
            "output: {{kafka: {{addresses: [{}], topic: '${{! json(\"topic\") }}'}}}}",
            broker.address
        ),
    );
    until("they are refused", || {
        running.handle.counts().dropped(DropReason::OutputRejected) == COUNT as u64
    });
    until("the other is written", || running.handle.counts().out == 1);
    world.stop(running);
    assert_eq!(broker.values("t", 1), messages[COUNT..]);
}

#[test]
fn records_that_wait_for_their_topic_are_written_in_order_when_it_is_made() {
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    let message = |topic: &str, n: usize| json!({"topic": topic, "n": n}).to_string();
    let messages: Vec<String> = (0..6)
        .map(|n| message(if n % 2 == 0 { "umh.messages" } else { "t" }, n))
        .collect();
    let running = world.start_sending(
        &messages,
        &format!(
            "output: {{kafka: {{addresses: [{}], topic: '${{! json(\"topic\") }}'}}}}",
            broker.address
        ),
    );
    assert_eq!(broker.values("t", 3), [&*messages[1], &messages[3], &messages[5]]);
    // The output of the namespace creates it.
    World::new().send(
        &["made".to_owned()],
        &format!(
            "output: {{uns: {{broker_address: \"{}\", umh_topic: umh.v1.acme._raw.x}}}}",
            broker.address
        ),
    );
    until("all are written", || running.handle.counts().out == 6);
    world.stop(running);
    let written = broker.values("umh.messages", 4);
    let waited: Vec<&String> = written.iter().filter(|value| *value != "made").collect();
    assert_eq!(waited, [&messages[0], &messages[2], &messages[4]]);
}

#[test]
fn a_partition_without_a_leader_is_told_of_until_it_has_one() {
    let (world, cluster) = (World::new(), MockCluster::new(1).unwrap());
    cluster.create_topic("t", 1, 1).unwrap();
    cluster.partition_leader("t", 0, None).unwrap();
    let running = world.start_sending(
        &["1".to_owned()],
        &format!(
            "output: {{kafka: {{addresses: [\"{}\"], topic: t}}}}",
            cluster.bootstrap_servers()
        ),
    );
    until("it is told", || running.trouble().contains("topic t, partition 0: "));
    let told = running.trouble();
    assert!(told.contains("records to t are not confirmed for 1"), "{told}");
    cluster.partition_leader("t", 0, Some(1)).unwrap();
    until("it is written", || running.handle.counts().out == 1);
    until("it is over", || running.trouble().is_empty());
    world.stop(running);
}

#[test]
fn an_input_without_the_right_to_read_is_not_connected_until_it_has_it() {
    let (world, cluster) = (World::new(), MockCluster::new(1).unwrap());
    cluster.create_topic("t", 1, 1).unwrap();
    let denied = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 200];
    cluster.request_errors(RDKafkaApiKey::Fetch, &denied);
    let running = world.start(&format!(
        "input: {{kafka: {{addresses: [\"{}\"], topics: [t], consumer_group: g}}}}\noutput: {{kept: {{}}}}",
        cluster.bootstrap_servers()
    ));
    until("it is told", || running.trouble().contains("the broker denies reading"));
    let told = running.trouble();
    assert!(
        told.contains("Topic authorization failed") && told.contains("the right to"),
        "{told}"
    );
    assert_eq!(world.metric("thalweg_kafka_input_connected"), 0.0);
    cluster.clear_request_errors(RDKafkaApiKey::Fetch);
    World::new().send(
        &["1".to_owned()],
        &format!(
            "output: {{kafka: {{addresses: [\"{}\"], topic: t}}}}",
            cluster.bootstrap_servers()
        ),
    );
    world.wait_for(1);
    until("it is over", || running.trouble().is_empty());
    world.stop(running);
}

/// Otherwise a restart would start at the end at that time, and would skip the records in between.
#[test]
fn where_a_group_begins_is_committed_again_when_that_failed() {
    let (world, cluster) = (World::new(), MockCluster::new(1).unwrap());
    cluster.create_topic("t", 1, 1).unwrap();
    let addresses = cluster.bootstrap_servers();
    World::new().send(
        &["before".to_owned()],
        &format!("output: {{kafka: {{addresses: [\"{addresses}\"], topic: t}}}}"),
    );
    let refused = [RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_COMMIT_OFFSET_SIZE];
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &refused);
    let running = world.start(&format!(
        "input: {{kafka: {{addresses: [\"{addresses}\"], topics: [t], consumer_group: g, start_from_oldest: false, \
         commit_period: 50ms}}}}\noutput: {{kept: {{}}}}"
    ));
    until("it is committed", || committed(&addresses, "g") == Offset::Offset(1));
    world.stop(running);
    assert!(world.kept.texts().is_empty());
}

/// The group's commit of the first partition of `t`.
fn committed(addresses: &str, group: &str) -> Offset {
    let client = ClientConfig::new()
        .set("bootstrap.servers", addresses)
        .set("group.id", group)
        .create::<BaseConsumer>()
        .unwrap();
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition("t", 0);
    let known = client.committed_offsets(partitions, Duration::from_secs(10)).unwrap();
    known.elements()[0].offset()
}

#[test]
fn what_was_deleted_before_it_was_read_is_told_and_reading_goes_on() {
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    let flow = format!(
        "input: {{kafka: {{addresses: [{}], topics: [t], consumer_group: g}}}}\noutput: {{kept: {{}}}}",
        broker.address
    );
    broker.produce("t", &numbered(0..5));
    let running = world.start(&flow);
    world.wait_for(5);
    world.stop(running);
    assert_eq!(broker.committed("g"), [5]);
    broker.produce("t", &numbered(5..20));
    broker.delete_before("t", 15);
    assert_eq!(world.metric("thalweg_kafka_input_offset_resets_total"), 0.0);
    let running = world.start(&flow);
    world.wait_for(10);
    until("all is committed", || broker.committed("g") == [20]);
    world.stop(running);
    assert_eq!(world.metric("thalweg_kafka_input_offset_resets_total"), 1.0);
    assert_eq!(world.kept.texts()[5..], ["15", "16", "17", "18", "19"]);
}

#[test]
fn record_sets_that_do_not_fit_their_checksum_are_read_again_and_end_the_flow_if_they_stay_so() {
    let broker = Broker::with_topics("t");
    broker.produce("t", &numbered(0..3));
    broker.produce("t", &[json!({"value": "damaged on its way"})]);
    broker.produce("t", &numbered(4..6));
    let flow = |proxy: &Proxy| {
        format!(
            "input: {{kafka: {{addresses: [{}], topics: [t], consumer_group: g}}}}\noutput: {{kept: {{}}}}",
            proxy.address
        )
    };
    let (world, proxy) = (
        World::new(),
        Proxy::that_flips_a_bit(&broker.address, "damaged on its way", usize::MAX),
    );
    let running = world.start(&flow(&proxy));
    let told = world.failure(&running);
    assert!(
        told.contains("the record set at offset 3 of t, partition 0 does not match its checksum after 5 reads"),
        "{told}"
    );
    world.abandon(running);
    assert!(
        world.kept.texts().iter().all(|text| text.len() == 1),
        "{:?}",
        world.kept.texts()
    );
    assert!(broker.committed("g").iter().all(|offset| *offset <= 3));

    let (world, proxy) = (
        World::new(),
        Proxy::that_flips_a_bit(&broker.address, "damaged on its way", 2),
    );
    let running = world.start(&flow(&proxy).replace("consumer_group: g", "consumer_group: h"));
    world.wait_for(6);
    world.stop(running);
    assert_eq!(world.kept.texts(), ["0", "1", "2", "damaged on its way", "4", "5"]);
    assert_eq!(broker.committed("h"), [6]);
}

#[test]
fn records_in_a_compression_that_is_unknown_end_the_flow_and_are_not_passed_over() {
    let broker = Broker::with_topics("t");
    broker.produce("t", &numbered(0..3));
    broker.produce("t", &[json!({"value": "in a way of the future"})]);
    broker.produce("t", &numbered(4..6));
    let (world, proxy) = (
        World::new(),
        Proxy::that_compresses_unknowably(&broker.address, "in a way of the future"),
    );
    let running = world.start(&format!(
        "input: {{kafka: {{addresses: [{}], topics: [t], consumer_group: g}}}}\noutput: {{kept: {{}}}}",
        proxy.address
    ));
    let told = world.failure(&running);
    assert!(
        told.contains("compressed in a way that this build cannot read"),
        "{told}"
    );
    world.abandon(running);
    assert!(broker.committed("g").iter().all(|offset| *offset <= 3));
}

#[test]
fn brokers_with_tls_and_a_login_are_spoken_to() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-days",
            "2",
            "-nodes",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1,DNS:localhost",
        ])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .expect("openssl 3 is not installed; on Debian: apt-get install openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
    for mechanism in ["PLAIN", "SCRAM-SHA-512"] {
        let world = World::new();
        let user = format!("{mechanism}:plant:secret");
        let broker = Broker::start(&[
            "-topics",
            "t",
            "-certificate",
            &certificate,
            "-key",
            &key,
            "-user",
            &user,
        ]);
        let settings = |password: &str| {
            format!(
                "addresses: [{}], tls: {{enabled: true, root_cas_file: \"{certificate}\"}}, \
                 sasl: {{mechanism: {mechanism}, user: plant, password: {password}}}",
                broker.address
            )
        };
        let report = world.send(
            &["hello".to_owned()],
            &format!("output: {{kafka: {{{}, topic: t}}}}", settings("secret")),
        );
        assert_eq!(report.counts.out, 1);
        let running = world.start(&format!(
            "input: {{kafka: {{{}, topics: [t], consumer_group: g}}}}\noutput: {{kept: {{}}}}",
            settings("secret")
        ));
        world.wait_for(1);
        world.stop(running);
        let running = world.start(&format!(
            "input: {{kafka: {{{}, topics: [t], consumer_group: g}}}}\noutput: {{kept: {{}}}}",
            settings("wrong")
        ));
        until("it is refused", || running.trouble().to_lowercase().contains("sasl"));
        world.stop(running);
    }
}
