//! Brokers that are not there, and records that they do not take.

use std::process::Command;

use serde_json::json;
use thalweg_record::DropReason;

use crate::broker::{Broker, numbered};
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
        told.contains(&broker.address) && told.contains("is it running"),
        "{told}"
    );
    broker.restart();
    until("all is out", || running.handle.counts().out == COUNT as u64);
    until("it is found again", || running.trouble().is_empty());
    world.stop(running);
    let mut last = [None; 5];
    let records = broker.consume("t", COUNT);
    for record in &records {
        let value: serde_json::Value = serde_json::from_str(record["value"].as_str().unwrap()).unwrap();
        let (key, n) = (value["k"].as_u64().unwrap() as usize, value["n"].as_u64());
        assert!(last[key] < n, "{n:?} of key {key} after {:?}", last[key]);
        last[key] = n;
    }
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
    // The output makes it.
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
    // The output of the namespace makes it.
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
    // Each fits, and together they are too large for the broker, which the client does not know.
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
fn records_that_cannot_be_read_end_the_flow_and_are_not_passed_over() {
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    broker.produce("t", &numbered(0..3));
    let long = json!({"value": "x".repeat(5000)});
    broker.produce_compressed("t", "zstd", &[long]);
    broker.produce("t", &numbered(3..6));
    let running = world.start(&format!(
        "input: {{kafka: {{addresses: [{}], topics: [t], consumer_group: g}}}}\noutput: {{kept: {{}}}}",
        broker.address
    ));
    let told = world.failure(&running);
    assert!(told.contains("compressed with zstd"), "{told}");
    world.stop(running);
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
