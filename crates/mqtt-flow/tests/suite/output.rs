//! The output, in a flow, against a real broker.

use super::broker::Broker;
use super::world::{World, until};

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

fn to(broker: &Broker, fields: &str) -> String {
    format!("output: {{mqtt: {{urls: [\"{}\"], {fields}}}}}\n", broker.url())
}

#[test]
fn messages_of_every_qos_arrive_in_order() {
    for version in ["5.0", "3.1.1"] {
        for qos in 0..3 {
            let (broker, world) = (Broker::start(), World::new());
            let subscriber = broker.subscribe("reader", &["-t", "plant/#", "-q", "2", "-F", "%t %q %p"]);
            let fields = format!("topic: 'plant/${{! content() }}', qos: {qos}, version: {version}, max_in_flight: 5");
            let report = world.send(&numbers(0..200), &to(&broker, &fields));
            assert_eq!(report.counts.out, 200);
            let expected: Vec<String> = (0..200).map(|n| format!("plant/{n} {qos} {n}")).collect();
            assert_eq!(subscriber.wait_for(200), expected);
        }
    }
}

#[test]
fn properties_and_the_retained_flag_arrive() {
    let (broker, world) = (Broker::start(), World::new());
    let fields = "topic: a, retained_interpolated: '${! content() == \"kept\" }', content_type: text/plain, \
                  user_properties: {unit: '${! content() }-bar'}, message_expiry: 1h";
    world.send(&["kept".to_owned(), "passing".to_owned()], &to(&broker, fields));
    let subscriber = broker.subscribe("reader", &["-V", "5", "-t", "a", "-F", "%p %r %C %P %E"]);
    let lines = subscriber.wait_for(1);
    let words: Vec<&str> = lines[0].split(' ').collect();
    assert_eq!(words[..4], ["kept", "1", "text/plain", "unit:kept-bar"]);
    let left: u32 = words[4].parse().unwrap();
    assert!(left <= 3600, "{lines:?}");
}

/// The broker restarts again and again; each message arrives, and the order holds but for repetitions.
#[test]
fn nothing_is_lost_and_the_order_holds_while_the_broker_restarts() {
    for qos in [1, 2] {
        let (mut broker, world) = (Broker::start(), World::new());
        // A subscriber that is known, and keeps its messages at the broker.
        let arguments = ["-V", "5", "-c", "-x", "3600", "-q", "1", "-t", "a"];
        drop(broker.subscribe("reader", &arguments));
        let messages = numbers(0..20_000);
        let fields = format!("topic: a, qos: {qos}, version: 5.0");
        let running = world.start_sending(&messages, &to(&broker, &fields));
        for part in 1..4 {
            until("a part is out", || running.handle.counts().out >= part * 4000);
            broker.restart();
        }
        let handle = running.handle.clone();
        until("all is out", || handle.counts().out == 20_000);
        world.stop(running);
        let subscriber = broker.subscribe("reader", &arguments);
        until("the last has arrived", || subscriber.lines().last() == messages.last());
        let lines = subscriber.lines();
        let mut seen = std::collections::HashSet::new();
        let first: Vec<String> = lines.iter().filter(|line| seen.insert(*line)).cloned().collect();
        assert!(
            first == messages,
            "{} of 20000 arrived, or in another order",
            first.len()
        );
    }
}

#[test]
fn a_broker_that_comes_later_is_waited_for() {
    let (mut broker, world) = (Broker::start(), World::new());
    let arguments = ["-V", "5", "-c", "-x", "3600", "-q", "1", "-t", "a"];
    drop(broker.subscribe("reader", &arguments));
    broker.stop();
    let running = world.start_sending(&numbers(0..3), &to(&broker, "topic: a"));
    until("the broker is missed", || {
        running.trouble().contains("Connection refused")
    });
    broker.start_again();
    let handle = running.handle.clone();
    until("all is out", || handle.counts().out == 3);
    world.stop(running);
    assert_eq!(broker.subscribe("reader", &arguments).wait_for(3), numbers(0..3));
}

/// What the broker refuses for good is counted, and the rest arrives.
#[test]
fn a_message_that_is_not_allowed_is_refused_for_good() {
    let folder = tempfile::tempdir().unwrap();
    let acl = folder.path().join("acl");
    std::fs::write(&acl, "topic readwrite good\n").unwrap();
    let (broker, world) = (Broker::with(&format!("acl_file {}", acl.display())), World::new());
    let subscriber = broker.subscribe("reader", &["-t", "good"]);
    let report = world.send(
        &["good".to_owned(), "bad".to_owned(), "good".to_owned()],
        &to(&broker, "topic: '${! content() }'"),
    );
    assert_eq!((report.counts.out, report.counts.dropped_total()), (2, 1));
    assert_eq!(subscriber.wait_for(2), ["good", "good"]);
}

/// A broker that takes no packet of this size ends the connection; the message is found, and the others arrive.
#[test]
fn a_message_that_is_too_large_for_the_broker_is_refused_for_good() {
    let (broker, world) = (Broker::with("max_packet_size 1000"), World::new());
    let subscriber = broker.subscribe("reader", &["-t", "a"]);
    let messages = ["1".to_owned(), "x".repeat(2000), "2".to_owned()];
    let report = world.send(&messages, &to(&broker, "topic: a"));
    assert_eq!((report.counts.out, report.counts.dropped_total()), (2, 1));
    assert_eq!(subscriber.wait_for(2), ["1", "2"]);
}

/// Two flows are a bridge between brokers: nothing is lost on the way, over restarts of both.
#[test]
fn two_flows_are_a_bridge() {
    let (mut one, mut other, world) = (Broker::start(), Broker::start(), World::new());
    let arguments = ["-V", "5", "-c", "-x", "3600", "-q", "1", "-t", "a/b"];
    drop(other.subscribe("reader", &arguments));
    let text = format!(
        "input: {{mqtt: {{urls: [\"{}\"], topics: [\"#\"], client_id: bridge, clean_session: false}}}}\n\
         output: {{mqtt: {{urls: [\"{}\"], topic: '${{! @mqtt_topic }}'}}}}\n",
        one.url(),
        other.url()
    );
    let running = world.start(&text);
    until("both ends are up", || running.trouble().is_empty());
    one.publish_each("a/b", "1", &numbers(0..1000));
    other.restart();
    one.publish_each("a/b", "1", &numbers(1000..2000));
    one.restart();
    one.publish_each("a/b", "1", &numbers(2000..3000));
    let subscriber = other.subscribe("reader", &arguments);
    until("all have arrived", || {
        let lines = subscriber.lines();
        lines.iter().collect::<std::collections::HashSet<_>>().len() == 3000
    });
    until("both ends are up", || running.trouble().is_empty());
    world.stop(running);
}
