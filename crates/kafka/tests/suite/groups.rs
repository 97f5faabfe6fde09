//! What a group learns from the flow: only confirmed offsets are committed, and only by the member that reads the
//! partition.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::broker::{Broker, numbered, spread};
use crate::proxy::Proxy;
use crate::world::{World, until};

fn input(broker: &Broker) -> String {
    format!(
        "input: {{kafka: {{addresses: [{}], topics: [t], consumer_group: g, commit_period: 50ms}}}}\n",
        broker.address
    )
}

#[test]
fn what_is_given_back_comes_again_and_is_committed_in_the_end() {
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    world.losses.store(3, std::sync::atomic::Ordering::SeqCst);
    broker.produce("t", &numbered(0..100));
    let running = world.start(&(input(&broker) + "pipeline: {processors: [lose: {}]}\noutput: {kept: {}}"));
    let unique = || world.kept.texts().into_iter().collect::<BTreeSet<String>>().len();
    until("all are there", || unique() == 100);
    until("all is committed", || broker.committed("g") == [100]);
    world.stop(running);
}

#[test]
fn nothing_is_committed_that_the_flow_has_in_hand() {
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    world.kept.shut(true);
    broker.produce("t", &numbered(0..50));
    let running = world.start(&(input(&broker) + "output: {kept: {}}"));
    until("all is in hand", || running.handle.counts().in_flight == 50);
    // Nothing is committed in six commit periods.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(broker.committed("g"), [] as [i64; 0]);
    let report = world.abandon(running);
    assert_eq!(report.unacknowledged, 50);
    // They come again, so none is lost.
    assert_eq!((report.counts.in_flight, report.counts.dropped_total()), (50, 0));
    assert_eq!(broker.committed("g"), [] as [i64; 0]);
    world.kept.shut(false);
    let running = world.start(&(input(&broker) + "output: {kept: {}}"));
    world.wait_for(50);
    world.stop(running);
    assert_eq!(broker.committed("g"), [50]);
}

#[test]
fn members_share_partitions_and_take_over_what_others_leave() {
    let (first, second) = (World::new(), World::new());
    let broker = Broker::start(&["-topics", "t", "-partitions", "4"]);
    let produce = |range| broker.produce("t", &spread(4, numbered(range)));
    let flow = input(&broker) + "output: {kept: {}}";
    produce(0..200);
    let one = first.start(&flow);
    first.wait_for(200);
    let two = second.start(&flow);
    let mut sent = 200;
    until("both read", || {
        produce(sent..sent + 40);
        sent += 40;
        second.kept.texts().len() >= 100
    });
    first.stop(one);
    produce(sent..sent + 200);
    sent += 200;
    let all = || {
        let mut texts = first.kept.texts();
        texts.extend(second.kept.texts());
        texts
    };
    until("nothing is missing", || {
        all().into_iter().collect::<BTreeSet<_>>().len() == sent
    });
    second.stop(two);
    assert_eq!(broker.committed("g").iter().sum::<i64>(), sent as i64);
}

/// Request types of the protocol.
const LIST_OFFSETS: i16 = 2;
const HEARTBEAT: i16 = 12;
const LEAVE_GROUP: i16 = 13;

/// A client that queries the end of a partition may seek there when the response arrives, although it was told
/// meanwhile to read elsewhere: the records in between are lost. That is a race, so this test looks for the query
/// instead.
#[test]
fn who_takes_partitions_over_never_asks_where_they_end() {
    let world = World::new();
    let broker = Broker::start(&["-topics", "t", "-partitions", "4"]);
    let proxy = Proxy::plain(&broker.address);
    let produce = |range| broker.produce("t", &spread(4, numbered(range)));
    produce(0..200);
    let running = world.start(&(input(&broker) + "output: {kept: {}}"));
    world.wait_for(200);
    world.stop(running);
    produce(200..400);
    let flow = input(&broker).replace(&broker.address, &proxy.address) + "output: {kept: {}}";
    let running = world.start(&flow);
    world.wait_for(400);
    // A second member gets some partitions, and gives them back when it leaves.
    let second = World::new();
    let two = second.start(&flow);
    let mut sent = 400;
    until("both read", || {
        produce(sent..sent + 40);
        sent += 40;
        second.kept.texts().len() >= 40
    });
    second.stop(two);
    produce(sent..sent + 40);
    sent += 40;
    until("nothing is missing", || {
        let mut texts = world.kept.texts();
        texts.extend(second.kept.texts());
        texts.into_iter().collect::<BTreeSet<_>>().len() == sent
    });
    world.stop(running);
    assert_eq!(proxy.requests(LIST_OFFSETS), 0);
    assert_eq!(broker.committed("g").iter().sum::<i64>(), sent as i64);
}

/// Otherwise the next rebalance would wait for its session to time out.
#[test]
fn a_member_that_has_no_partitions_says_that_it_leaves() {
    let (first, idle) = (World::new(), World::new());
    let broker = Broker::with_topics("t");
    let proxy = Proxy::plain(&broker.address);
    let flow = input(&broker) + "output: {kept: {}}";
    let of_idle = flow.replace(&broker.address, &proxy.address);
    broker.produce("t", &numbered(0..10));
    let one = first.start(&flow);
    first.wait_for(10);
    let two = idle.start(&of_idle);
    // Only a member keeps sending heartbeats.
    until("the second one is a member", || proxy.requests(HEARTBEAT) >= 2);
    idle.stop(two);
    until("it has left", || proxy.requests(LEAVE_GROUP) > 0);
    assert!(idle.kept.texts().is_empty(), "it had no partition");
    let third = World::new();
    let three = third.start(&flow);
    first.stop(one);
    broker.produce("t", &numbered(10..20));
    third.wait_for(10);
    third.stop(three);
    assert_eq!(broker.committed("g"), [20]);
}

#[test]
fn what_was_in_hand_when_a_partition_left_is_not_committed_by_the_one_who_had_it() {
    let (first, second) = (World::new(), World::new());
    let broker = Broker::start(&["-topics", "t", "-partitions", "2"]);
    let both = |range| spread(2, numbered(range));
    let flow = input(&broker) + "output: {kept: {}}";
    first.kept.shut(true);
    broker.produce("t", &both(0..20));
    let one = first.start(&flow);
    until("all is in hand", || one.handle.counts().in_flight == 20);
    let two = second.start(&flow);
    // One of the partitions, with everything that the other member has in progress from it.
    second.wait_for(10);
    broker.produce("t", &both(20..40));
    second.wait_for(20);
    until("it is committed", || broker.committed("g") == [20]);
    first.kept.shut(false);
    first.wait_for(20);
    until("the other one is committed, too", || broker.committed("g") == [20, 20]);
    // The first member's records of the revoked partition would have reset its commit to 10.
    let watched = Instant::now();
    while watched.elapsed() < Duration::from_millis(300) {
        assert_eq!(broker.committed("g"), [20, 20]);
    }
    first.stop(one);
    second.stop(two);
    assert_eq!(broker.committed("g"), [20, 20]);
}

#[test]
fn a_flow_that_is_full_stops_the_fetching_and_keeps_its_place_in_the_group() {
    const COUNT: usize = 30_000;
    let (world, broker) = (World::new(), Broker::with_topics("t"));
    world.kept.shut(true);
    broker.produce("t", &numbered(0..COUNT));
    let running = world
        .start(&(input(&broker) + "buffer: {memory: {limit: 1000000}}\npipeline: {threads: 1}\noutput: {kept: {}}"));
    let received = || world.metric("thalweg_kafka_input_records_received_total") as usize;
    let mut before = 0;
    until("nothing more is fetched", || {
        // Fetches follow each other far faster.
        std::thread::sleep(Duration::from_secs(1));
        std::mem::replace(&mut before, received()) == before && before > 0
    });
    // Everything in the flow, and at most two batches in front of it, of 1000 records each.
    let (taken, in_flow) = (received(), running.handle.counts().in_flight as usize);
    assert!(
        taken <= in_flow + 2000 && taken < COUNT,
        "{taken} taken, {in_flow} in the flow"
    );
    assert_eq!(broker.committed("g"), [] as [i64; 0], "nothing is confirmed");
    world.kept.shut(false);
    world.wait_for(COUNT);
    let report = world.stop(running);
    assert_eq!(
        report.counts.out, COUNT as u64,
        "each once: it was never taken out of the group"
    );
    assert_eq!(broker.committed("g"), [COUNT as i64]);
}

#[test]
fn a_flow_that_is_full_gives_partitions_to_a_member_that_comes() {
    const COUNT: usize = 30_000;
    let (first, second) = (World::new(), World::new());
    let broker = Broker::start(&["-topics", "t", "-partitions", "2"]);
    broker.produce("t", &spread(2, numbered(0..COUNT)));
    let flow = input(&broker) + "buffer: {memory: {limit: 1000000}}\npipeline: {threads: 1}\noutput: {kept: {}}";
    first.kept.shut(true);
    let one = first.start(&flow);
    let mut before = 0;
    until("nothing more is fetched", || {
        // Fetches follow each other far faster.
        std::thread::sleep(Duration::from_secs(1));
        let received = first.metric("thalweg_kafka_input_records_received_total") as usize;
        std::mem::replace(&mut before, received) == before && before > 0
    });
    let two = second.start(&flow);
    second.wait_for(COUNT / 2);
    first.kept.shut(false);
    let all = || {
        let texts = first.kept.texts().into_iter().chain(second.kept.texts());
        texts.collect::<BTreeSet<String>>().len()
    };
    until("nothing is missing", || all() == COUNT);
    first.stop(one);
    second.stop(two);
    assert_eq!(broker.committed("g"), [COUNT as i64 / 2, COUNT as i64 / 2]);
}
