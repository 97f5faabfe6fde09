//! Which topics and partitions an input reads, where it begins, and how much of them it passes on at a time.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::apache::ApacheKafka;
use crate::broker::{Broker, numbered, spread};
use crate::client::Client;
use crate::world::{World, until};

fn flow(client: &Client, group: &str, fields: &str, rest: &str) -> String {
    format!(
        "input: {{kafka_franz: {{addresses: [{}], consumer_group: {group}, commit_period: 50ms, {fields}}}}}\n\
         pipeline: {{threads: 1{rest}}}\noutput: {{kept: {{}}}}",
        client.address
    )
}

fn distinct(world: &World) -> usize {
    world.kept.texts().into_iter().collect::<BTreeSet<String>>().len()
}

#[test]
fn expressions_select_topics_that_are_there_and_topics_that_come() {
    let (world, kafka) = (World::new(), ApacheKafka::shared());
    kafka.create("regexp-a", 1);
    kafka.create("other-regexp", 1);
    kafka.produce("regexp-a", &numbered(0..10));
    kafka.produce("other-regexp", &numbered(100..110));
    // Newest: still, a topic that comes is read from its first record.
    let running = world.start(&flow(
        kafka,
        "regexp",
        "topics: ['^regexp-', '^no-'], regexp_topics: true",
        "",
    ));
    world.wait_for(10);
    kafka.create("regexp-b", 2);
    kafka.produce("regexp-b", &spread(2, numbered(10..20)));
    until("the new topic is read", || distinct(&world) == 20);
    until("it is ready", || running.trouble().is_empty());
    world.stop(running);
    let texts = world.kept.texts();
    assert!(
        texts.iter().all(|text| text.parse::<usize>().unwrap() < 20),
        "{texts:?}"
    );
    assert_eq!(kafka.committed("regexp").iter().sum::<i64>(), 20);
}

#[test]
fn expressions_that_select_nothing_are_waited_for() {
    let (world, kafka) = (World::new(), ApacheKafka::shared());
    let running = world.start(&flow(kafka, "later", "topics: ['^later-'], regexp_topics: true", ""));
    until("it is told", || {
        running.trouble().contains("no topic matches the expressions")
    });
    kafka.create("later-a", 1);
    kafka.produce("later-a", &numbered(0..5));
    world.wait_for(5);
    world.stop(running);
    assert_eq!(kafka.committed("later"), [5]);
}

#[test]
fn partitions_that_are_named_are_read_and_no_others() {
    let broker = Broker::start(&["-topics", "t,u", "-partitions", "4"]);
    broker.produce("t", &spread(4, numbered(0..40)));
    broker.produce("u", &spread(4, numbered(100..140)));
    for round in 0..2 {
        let world = World::new();
        let running = world.start(&flow(&broker, "g", "topics: ['t:1-2', 'u:3']", ""));
        let expected: BTreeSet<String> = match round {
            0 => (0..40)
                .filter(|n| [1, 2].contains(&(n % 4)))
                .chain((0..10).map(|n| 103 + 4 * n))
                .map(|n| n.to_string())
                .collect(),
            _ => ["1000", "1001"].map(str::to_owned).into(),
        };
        world.wait_for(expected.len());
        until("it is ready", || running.trouble().is_empty());
        until("all is committed", || {
            broker.committed("g").iter().sum::<i64>() == 30 + 2 * round
        });
        world.stop(running);
        assert_eq!(world.kept.texts().into_iter().collect::<BTreeSet<String>>(), expected);
        // The next round goes on behind the commits.
        let mut more = spread(4, numbered(1000..1002));
        more.iter_mut().for_each(|record| record["partition"] = 1.into());
        broker.produce("t", &more);
    }
    let world = World::new();
    let running = world.start(&flow(&broker, "h", "topics: ['t:7']", ""));
    until("it is told", || running.trouble().contains("no partition 7"));
    world.stop(running);
}

#[test]
fn a_group_that_has_committed_nothing_waits_if_it_is_to_begin_at_its_commits() {
    let broker = Broker::with_topics("t");
    broker.produce("t", &numbered(0..5));
    let world = World::new();
    let running = world.start(&flow(&broker, "g", "topics: [t], start_offset: committed", ""));
    until("it is told", || {
        running
            .trouble()
            .contains("the group g has committed no offset in some partitions of t")
    });
    world.stop(running);
    assert!(world.kept.texts().is_empty() && broker.committed("g").is_empty());
    let running = world.start(&flow(&broker, "g", "topics: [t], start_offset: earliest", ""));
    world.wait_for(5);
    world.stop(running);
    broker.produce("t", &numbered(5..8));
    let running = world.start(&flow(&broker, "g", "topics: [t], start_offset: committed", ""));
    world.wait_for(8);
    world.stop(running);
    assert_eq!(broker.committed("g"), [8]);
}

#[test]
fn no_more_records_of_a_partition_than_its_limit_are_in_the_flow() {
    let (world, broker) = (World::new(), Broker::start(&["-topics", "t", "-partitions", "2"]));
    world.kept.shut(true);
    broker.produce("t", &spread(2, numbered(0..200)));
    let running = world.start(&flow(&broker, "g", "topics: [t], checkpoint_limit: 7", ""));
    until("the flow has both limits", || running.handle.counts().in_flight == 14);
    // Several rounds of the input.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(running.handle.counts().in_flight, 14);
    world.kept.shut(false);
    until("nothing is missing", || distinct(&world) == 200);
    until("all is committed", || broker.committed("g") == [100, 100]);
    world.stop(running);
    for parity in 0..2 {
        let numbers = world
            .kept
            .texts()
            .into_iter()
            .map(|text| text.parse::<usize>().unwrap());
        let of_partition: Vec<usize> = numbers.filter(|n| n % 2 == parity).collect();
        assert!(of_partition.is_sorted(), "{of_partition:?}");
    }
}

#[test]
fn a_batch_is_collected_up_to_its_limits() {
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    let running = world.start(&flow(&broker, "g", "topics: [t], batching: {count: 5}", ""));
    broker.produce("t", &numbered(0..4));
    until("it reads", || running.trouble().is_empty());
    // Several rounds of the input.
    std::thread::sleep(Duration::from_millis(500));
    assert!(world.kept.texts().is_empty());
    broker.produce("t", &numbered(4..12));
    world.wait_for(10);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(world.kept.texts().len(), 10);
    world.stop(running);
    // What was collected and not passed on comes again.
    let running = world.start(&flow(
        &broker,
        "g",
        "topics: [t], batching: {count: 500, period: 200ms}",
        "",
    ));
    world.wait_for(12);
    world.stop(running);
    assert_eq!(broker.committed("g"), [12]);
}

#[test]
fn records_that_are_given_back_are_not_read_again_if_that_is_switched_off() {
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    world.losses.store(1, Ordering::SeqCst);
    broker.produce("t", &numbered(0..100));
    let running = world.start(&flow(
        &broker,
        "g",
        "topics: [t], auto_replay_nacks: false",
        ", processors: [lose: {}]",
    ));
    until("all is committed", || broker.committed("g") == [100]);
    assert!(world.kept.texts().len() < 100, "one batch is lost");
    // A stop loses nothing in either case.
    world.kept.shut(true);
    broker.produce("t", &numbered(100..150));
    until("it is in hand", || running.handle.counts().in_flight == 50);
    let report = world.abandon(running);
    assert_eq!(report.counts.in_flight, 50);
    assert_eq!(broker.committed("g"), [100]);
}
