//! Membership in a group: waiting for an assignment, static members, rebalances, and what a member reports of itself.

use std::collections::BTreeSet;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use crate::apache::ApacheKafka;
use crate::broker::{Broker, numbered, spread};
use crate::client::Client;
use crate::log::{listen, warnings};
use crate::proxy::Proxy;
use crate::world::{World, until};

fn flow(client: &Client, topic: &str, more: &str) -> String {
    format!(
        "input: {{kafka: {{addresses: [{}], topics: [{topic}], consumer_group: {topic}, commit_period: 50ms{more}}}}}\n\
         output: {{kept: {{}}}}",
        client.address
    )
}

/// After a `kill -9`, the group gives the partitions of the dead member to nobody until its session is over.
#[test]
fn while_the_group_waits_for_a_member_that_has_died_the_input_is_not_ready_and_says_so() {
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    broker.produce("t", &numbered(0..10));
    let proxy = Proxy::plain(&broker.address);
    let dead: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &proxy.address)
        .set("group.id", "t")
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("session.timeout.ms", "12000")
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    dead.subscribe(&["t"]).unwrap();
    until("the member reads", || {
        matches!(dead.poll(Duration::from_millis(50)), Some(Ok(_)))
    });
    proxy.die();
    listen();
    let running = world.start(&flow(&broker, "t", ""));
    until("it says what it waits for", || {
        let told = running.trouble();
        told.contains("assigned no partitions to this member yet") && told.contains("session_timeout")
    });
    assert!(world.kept.texts().is_empty());
    world.wait_for(10);
    until("it is ready", || running.trouble().is_empty());
    world.stop(running);
}

/// A session that is far longer than the test is waited for unless the member is known again.
#[test]
fn a_static_member_that_comes_back_has_its_partitions_at_once() {
    let (kafka, topic) = (ApacheKafka::shared(), "static-member");
    kafka.create(topic, 1);
    let more = ", group_instance_id: plant-7, session_timeout: 10m, heartbeat_interval: 500ms";
    for round in 0..3 {
        let world = World::new();
        kafka.produce(topic, &numbered(round * 10..round * 10 + 10));
        let running = world.start(&flow(kafka, topic, more));
        world.wait_for(10);
        world.stop(running);
    }
    assert_eq!(kafka.committed(topic), [30]);
}

#[test]
fn a_session_timeout_that_the_broker_does_not_take_is_told() {
    let (world, kafka, topic) = (World::new(), ApacheKafka::shared(), "short-session");
    kafka.create(topic, 1);
    let running = world.start(&flow(kafka, topic, ", session_timeout: 1s, heartbeat_interval: 200ms"));
    until("it is told", || {
        running.trouble().contains("group.min.session.timeout.ms")
    });
    world.stop(running);
}

#[test]
fn members_that_come_and_go_in_order_are_no_warnings() {
    listen();
    let (kafka, topic) = (ApacheKafka::shared(), "come-and-go");
    kafka.create(topic, 4);
    let stays = World::new();
    let one = stays.start(&flow(kafka, topic, ""));
    let mut sent = 0;
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let comes = World::new();
        let two = comes.start(&flow(kafka, topic, ""));
        until("both read", || {
            kafka.produce(topic, &spread(4, numbered(sent..sent + 40)));
            sent += 40;
            comes.kept.texts().len() >= 40
        });
        comes.stop(two);
        seen.extend(comes.kept.texts());
    }
    until("nothing is missing", || {
        seen.extend(stays.kept.texts());
        seen.len() == sent
    });
    stays.stop(one);
    assert_eq!(warnings(&[topic]), [] as [String; 0]);
}

/// Returns the lines of the metrics that tell the lag.
fn lags(world: &World) -> Vec<String> {
    let text = world.metrics.text();
    let lags = text.lines().filter(|line| line.contains("_lag{"));
    lags.map(str::to_owned).collect()
}

/// The last offset of a transaction is no record, so no committed offset reaches it.
#[test]
fn the_lag_of_each_partition_is_0_when_all_is_confirmed_also_behind_a_transaction() {
    let (world, kafka, topic) = (World::new(), ApacheKafka::shared(), "lag");
    kafka.create(topic, 2);
    world.kept.shut(true);
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &kafka.address)
        .set("transactional.id", topic)
        .create()
        .unwrap();
    let patience = Duration::from_secs(30);
    producer.init_transactions(patience).unwrap();
    producer.begin_transaction().unwrap();
    for n in 0..10 {
        let text = n.to_string();
        let record = BaseRecord::<(), str>::to(topic).partition(1).payload(&text);
        producer.send(record).map_err(|(error, _)| error).unwrap();
    }
    producer.commit_transaction(patience).unwrap();
    let running = world.start(&flow(kafka, topic, ""));
    let has = |ending: &str| {
        lags(&world)
            .iter()
            .any(|line| line.contains(r#"partition="1""#) && line.ends_with(ending))
    };
    until("what waits is counted", || has(" 10"));
    world.kept.shut(false);
    until("nothing waits", || has(" 0"));
    until("the other one has a lag, too", || lags(&world).len() == 2);
    // The commit stays before the marker.
    until("it is committed", || kafka.committed(topic) == [10]);
    world.stop(running);
    until("an input that has ended reports none", || lags(&world).is_empty());
}
