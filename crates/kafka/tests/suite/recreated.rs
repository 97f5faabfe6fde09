//! Topics that are deleted and recreated under the same name, that get partitions, or that lose records, while a group
//! reads them. Every available record is read.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};

use crate::apache::ApacheKafka;
use crate::client::spread;
use crate::log::{listen, warnings};
use crate::world::{World, until};

fn input(address: &str, topic: &str, more: &str) -> String {
    format!(
        "input: {{kafka: {{addresses: [{address}], topics: [{topic}], consumer_group: {topic}-group, commit_period: 50ms{more}}}}}\n\
         output: {{kept: {{}}}}"
    )
}

fn records(name: &str, count: usize) -> Vec<Value> {
    (0..count).map(|n| json!({"value": format!("{name}-{n}")})).collect()
}

/// The number of different messages whose text begins with `name`.
fn distinct(world: &World, name: &str) -> usize {
    let texts = world.kept.texts().into_iter();
    texts
        .filter(|text| text.starts_with(name))
        .collect::<BTreeSet<_>>()
        .len()
}

fn committed(kafka: &ApacheKafka, topic: &str) -> Vec<i64> {
    kafka.committed(&format!("{topic}-group"))
}

/// Old records, then as many of the new topic, which exists before any probe.
fn is_recreated_while_it_is_read(topic: &str, old: usize, new: usize) {
    listen();
    let (world, kafka) = (World::new(), ApacheKafka::shared());
    kafka.create(topic, 1);
    kafka.produce(topic, &records("old", old));
    let running = world.start(&input(&kafka.address, topic, ""));
    world.wait_for(old);
    until("it is committed", || committed(kafka, topic) == [old as i64]);
    kafka.recreate(topic, 1);
    kafka.produce(topic, &records("new", new));
    until("the new topic is read whole", || distinct(&world, "new") == new);
    until("its end is committed", || committed(kafka, topic) == [new as i64]);
    assert_eq!(world.metric("thalweg_kafka_input_topics_recreated_total"), 1.0);
    let told = warnings(&[topic, "was deleted and recreated"]);
    assert_eq!(told.len(), 1, "{told:?}");
    world.stop(running);
    assert_eq!(distinct(&world, "old"), old);
}

#[test]
fn a_topic_that_is_recreated_with_more_records_than_were_read_is_read_from_its_beginning() {
    is_recreated_while_it_is_read("recreated-longer", 200, 300);
}

#[test]
fn a_topic_that_is_recreated_with_as_many_records_as_were_read_is_read_from_its_beginning() {
    is_recreated_while_it_is_read("recreated-equal", 1000, 1000);
}

#[test]
fn a_topic_that_is_recreated_with_fewer_records_than_were_read_is_read_from_its_beginning() {
    is_recreated_while_it_is_read("recreated-shorter", 300, 100);
}

#[test]
fn a_topic_that_is_recreated_while_the_input_is_stopped_is_read_from_its_beginning() {
    let (world, kafka, topic) = (World::new(), ApacheKafka::shared(), "recreated-stopped");
    let flow = input(&kafka.address, topic, "");
    kafka.create(topic, 1);
    kafka.produce(topic, &records("old", 200));
    let running = world.start(&flow);
    world.wait_for(200);
    world.stop(running);
    assert_eq!(committed(kafka, topic), [200]);
    kafka.recreate(topic, 1);
    kafka.produce(topic, &records("new", 300));
    let running = world.start(&flow);
    until("the new topic is read whole", || distinct(&world, "new") == 300);
    world.stop(running);
    assert_eq!(committed(kafka, topic), [300]);
}

/// The group has already started: its configured start does not apply to the new topic.
#[test]
fn a_recreated_topic_is_read_from_its_beginning_by_a_group_that_began_at_the_end() {
    let (world, kafka, topic) = (World::new(), ApacheKafka::shared(), "recreated-newest");
    kafka.create(topic, 1);
    kafka.produce(topic, &records("before", 20));
    let running = world.start(&input(&kafka.address, topic, ", start_from_oldest: false"));
    until("its beginning is committed", || committed(kafka, topic) == [20]);
    kafka.recreate(topic, 2);
    kafka.produce(topic, &spread(2, records("new", 100)));
    until("the new topic is read whole", || distinct(&world, "new") == 100);
    world.stop(running);
    assert_eq!(distinct(&world, "before"), 0);
    assert_eq!(committed(kafka, topic), [50, 50]);
}

#[test]
fn partitions_that_are_added_are_read_from_their_oldest_record_by_a_group_that_began_at_the_end() {
    let (world, kafka, topic) = (World::new(), ApacheKafka::shared(), "grown");
    kafka.create(topic, 1);
    kafka.produce(topic, &records("before", 20));
    let flow = input(&kafka.address, topic, ", start_from_oldest: false");
    let running = world.start(&flow);
    until("its beginning is committed", || committed(kafka, topic) == [20]);
    kafka.grow(topic, 4);
    kafka.produce(topic, &spread(4, records("added", 400)));
    until("all are read", || distinct(&world, "added") == 400);
    world.stop(running);
    assert_eq!(committed(kafka, topic), [120, 100, 100, 100]);
    // Also partitions that are added while nobody reads.
    kafka.grow(topic, 5);
    let mut added: Vec<Value> = records("later", 50);
    added.iter_mut().for_each(|record| record["partition"] = 4.into());
    kafka.produce(topic, &added);
    let running = world.start(&flow);
    until("all are read", || distinct(&world, "later") == 50);
    world.stop(running);
    assert_eq!(distinct(&world, "before"), 0);
}

#[test]
fn after_retention_has_overtaken_it_a_group_that_began_at_the_end_goes_on_at_the_oldest_record() {
    let (world, kafka, topic) = (World::new(), ApacheKafka::shared(), "overtaken");
    kafka.create(topic, 1);
    let flow = input(&kafka.address, topic, ", start_from_oldest: false");
    let running = world.start(&flow);
    until("its beginning is committed", || committed(kafka, topic) == [0]);
    kafka.produce(topic, &records("read", 50));
    world.wait_for(50);
    world.stop(running);
    kafka.produce(topic, &records("gone", 100));
    kafka.produce(topic, &records("there", 150));
    kafka.delete_before(topic, 150);
    let running = world.start(&flow);
    until("what there is is read", || distinct(&world, "there") == 150);
    world.stop(running);
    assert_eq!(world.metric("thalweg_kafka_input_offset_resets_total"), 1.0);
    assert_eq!(committed(kafka, topic), [300]);
}

#[test]
fn a_topic_that_is_made_while_it_is_waited_for_is_read_from_its_oldest_record() {
    let (world, kafka, topic) = (World::new(), ApacheKafka::shared(), "awaited");
    let running = world.start(&input(&kafka.address, topic, ", start_from_oldest: false"));
    until("it is missed", || running.trouble().contains("does not exist"));
    kafka.create(topic, 1);
    kafka.produce(topic, &records("first", 100));
    until("all are read", || distinct(&world, "first") == 100);
    world.stop(running);
}

/// This holds however long the topic is missing: a client may find the group and the topic in any order.
#[test]
fn a_cluster_that_was_rebuilt_empty_is_read_again_once_it_has_the_topic() {
    let (world, mut kafka, topic) = (World::new(), ApacheKafka::start(), "rebuilt");
    kafka.create(topic, 1);
    kafka.produce(topic, &records("first", 100));
    let running = world.start(&input(&kafka.address, topic, ""));
    world.wait_for(100);
    until("it is committed", || committed(&kafka, topic) == [100]);
    for (name, pause_s, count) in [("at-once", 0, 150), ("soon", 2, 90), ("late", 7, 200)] {
        kafka.rebuild_empty();
        std::thread::sleep(Duration::from_secs(pause_s));
        kafka.create(topic, 1);
        kafka.produce(topic, &records(name, count));
        until("the new cluster is read whole", || distinct(&world, name) == count);
        until("it is connected", || running.trouble().is_empty());
        until("it is committed", || committed(&kafka, topic) == [count as i64]);
    }
    world.stop(running);
}
