//! The input, in a flow, against a real broker.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use super::broker::Broker;
use super::proxy::Proxy;
use super::world::{Running, World, until};

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

fn flow(broker: &Broker, fields: &str) -> String {
    format!(
        "input: {{mqtt: {{urls: [\"{}\"], {fields}}}}}\noutput: {{kept: {{}}}}\n",
        broker.url()
    )
}

/// Starts a flow, and waits until it is subscribed.
fn start(world: &World, broker: &Broker, fields: &str) -> Running {
    let running = world.start(&flow(broker, fields));
    until("the flow is subscribed", || running.trouble().is_empty());
    running
}

fn first_times(all: &[String]) -> Vec<String> {
    let mut seen = HashSet::new();
    all.iter().filter(|text| seen.insert(*text)).cloned().collect()
}

#[test]
fn messages_of_every_qos_come_with_their_metadata() {
    for (version, answered) in [("5.0", "5"), ("3.1.1", "311")] {
        let (broker, world) = (Broker::start(), World::new());
        let running = start(
            &world,
            &broker,
            &format!("topics: [\"plant/+/value\", state], qos: 2, version: {version}"),
        );
        for qos in ["0", "1", "2"] {
            let topic = format!("plant/{qos}/value");
            broker.publish(&["-V", answered, "-t", &topic, "-m", "21.5", "-q", qos]);
        }
        if version == "5.0" {
            let properties = ["content-type text/plain", "response-topic r", "correlation-data c-1"];
            let mut arguments = vec![
                "-V",
                "5",
                "-t",
                "state",
                "-m",
                "x",
                "-q",
                "1",
                "-D",
                "PUBLISH",
                "user-property",
                "unit",
                "bar",
            ];
            for property in properties {
                arguments.extend(["-D", "PUBLISH"]);
                arguments.extend(property.split(' '));
            }
            broker.publish(&arguments);
        } else {
            broker.publish(&["-t", "state", "-m", "x", "-q", "1"]);
        }
        world.wait_for(4);
        world.stop(running);
        let messages = world.kept.0.messages.lock();
        for (qos, message) in ["0", "1", "2", "1"].iter().zip(messages.iter()) {
            let get = |name: &str| message.meta.get(name).map(|text| text.into_owned()).unwrap_or_default();
            assert_eq!(get("mqtt_qos"), *qos);
            assert_eq!(
                (get("mqtt_retained"), get("mqtt_duplicate")),
                ("false".to_owned(), "false".to_owned())
            );
            assert_eq!(get("mqtt_message_id") == "0", *qos == "0");
        }
        assert_eq!(messages[1].meta.get("mqtt_topic").as_deref(), Some("plant/1/value"));
        assert_eq!(messages[1].bytes().as_ref(), b"21.5");
        let of_5 = [
            "mqtt_content_type",
            "mqtt_response_topic",
            "mqtt_correlation_data",
            "mqtt_user_unit",
        ];
        let found: Vec<_> = of_5
            .iter()
            .map(|name| messages[3].meta.get(name).map(|text| text.into_owned()))
            .collect();
        let expected = match version {
            "5.0" => ["text/plain", "r", "c-1", "bar"].map(|text| Some(text.to_owned())),
            _ => [const { None }; 4],
        };
        assert_eq!(found, expected);
    }
}

#[test]
fn a_retained_message_comes_with_the_subscription() {
    let (broker, world) = (Broker::start(), World::new());
    broker.publish(&["-t", "a", "-m", "kept", "-r", "-q", "1"]);
    let running = start(&world, &broker, "topics: [a]");
    world.wait_for(1);
    world.stop(running);
    let messages = world.kept.0.messages.lock();
    assert_eq!(messages[0].meta.get("mqtt_retained").as_deref(), Some("true"));
}

/// Nothing that the flow has not confirmed is acknowledged, so it is there again after a restart of either side.
#[test]
fn a_session_loses_nothing_over_restarts_of_both_sides() {
    for (version, qos) in [("5.0", "1"), ("5.0", "2"), ("3.1.1", "1"), ("3.1.1", "2")] {
        let (mut broker, world) = (Broker::start(), World::new());
        let fields = format!(
            "topics: [a], client_id: lake, clean_session: false, qos: {qos}, version: {version}, receive_maximum: 10"
        );
        let running = start(&world, &broker, &fields);
        broker.publish_each("a", qos, &numbers(0..50));
        world.wait_for(50);
        world.stop(running);
        assert_eq!(world.kept.texts(), numbers(0..50), "{version} {qos}");

        // Nobody is there, and the broker restarts.
        broker.publish_each("a", qos, &numbers(50..100));
        broker.restart();
        world.kept.shut(true);
        let running = world.start(&flow(&broker, &fields));
        until("a write was refused", || running.trouble().contains("it is shut"));
        // The flow has messages, and the broker that sent them goes.
        broker.restart();
        world.kept.shut(false);
        world.wait_for(100);
        broker.publish_each("a", qos, &numbers(100..150));
        until("all have come", || first_times(&world.kept.texts()).len() == 150);
        world.stop(running);
        assert_eq!(first_times(&world.kept.texts()), numbers(0..150), "{version} {qos}");

        // All was acknowledged: nothing comes again.
        let before = world.kept.texts().len();
        let running = start(&world, &broker, &fields);
        broker.publish_each("a", qos, &numbers(150..151));
        until("the last has come", || {
            world.kept.texts().last() == Some(&"150".to_owned())
        });
        world.stop(running);
        assert_eq!(world.kept.texts().len(), before + 1, "{version} {qos}");
    }
}

/// With QoS 2 each message comes once, although connections are lost while the flow has messages.
#[test]
fn qos_2_comes_once_over_lost_connections() {
    for version in ["5.0", "3.1.1"] {
        let (broker, world) = (Broker::start(), World::new());
        let proxy = Proxy::to(broker.port);
        let fields = format!("topics: [a], client_id: lake, clean_session: false, qos: 2, version: {version}");
        let text = flow(&broker, &fields).replace(&broker.url(), &proxy.url());
        let running = world.start(&text);
        until("the flow is subscribed", || running.trouble().is_empty());
        for round in 0..5 {
            world.kept.shut(true);
            broker.publish_each("a", "2", &numbers(round * 20..round * 20 + 20));
            until("a write was refused", || running.trouble().contains("it is shut"));
            let before = broker.log().matches("Sending CONNACK to lake").count();
            proxy.cut();
            if round % 2 == 0 {
                until("the flow is back", || {
                    broker.log().matches("Sending CONNACK to lake").count() > before
                });
            }
            world.kept.shut(false);
            world.wait_for(round * 20 + 20);
        }
        until("the flow is subscribed", || running.trouble().is_empty());
        world.stop(running);
        assert_eq!(world.kept.texts(), numbers(0..100), "{version}");
    }
}

/// The broker sends no more than it may, and the rest waits there.
#[test]
fn a_flow_that_stands_still_takes_only_what_it_may() {
    for version in ["5.0", "3.1.1"] {
        let (broker, world) = (Broker::with("max_inflight_messages 0"), World::new());
        world.kept.shut(true);
        let fields =
            format!("topics: [a], client_id: lake, clean_session: false, version: {version}, receive_maximum: 7");
        let running = start(&world, &broker, &fields);
        broker.publish_each("a", "1", &numbers(0..500));
        until("a write was refused", || !running.trouble().is_empty());
        until("seven are there", || running.handle.counts().entered >= 7);
        // One packet may be complete in the buffer, but none more enters.
        assert_eq!(running.handle.counts().entered, 7, "{version}");
        assert!(!broker.log().contains("Received PUBACK from lake"));
        world.kept.shut(false);
        world.wait_for(500);
        world.stop(running);
        assert_eq!(world.kept.texts(), numbers(0..500), "{version}");
    }
}

/// The broker waits for acknowledgements, and the output for more messages: the output is told to write.
#[test]
fn an_output_that_collects_more_than_the_broker_sends_does_not_stop_the_flow() {
    let (broker, world) = (Broker::start(), World::new());
    world.kept.0.collects.store(1000, Ordering::SeqCst);
    let running = start(
        &world,
        &broker,
        "topics: [a], client_id: lake, clean_session: false, receive_maximum: 10",
    );
    broker.publish_each("a", "1", &numbers(0..15));
    world.wait_for(15);
    world.stop(running);
    assert_eq!(world.kept.texts(), numbers(0..15));
}

#[test]
fn what_the_flow_gives_up_enters_it_again() {
    let (broker, world) = (Broker::start(), World::new());
    world.losses.store(2, Ordering::SeqCst);
    let text = format!(
        "input: {{mqtt: {{urls: [\"{}\"], topics: [a]}}}}\npipeline: {{processors: [{{lose: {{}}}}]}}\noutput: {{kept: {{}}}}\n",
        broker.url()
    );
    let running = world.start(&text);
    until("the flow is subscribed", || running.trouble().is_empty());
    broker.publish_each("a", "1", &numbers(0..10));
    until("all are there", || first_times(&world.kept.texts()).len() == 10);
    assert_eq!(world.losses.load(Ordering::SeqCst), 0);
    world.stop(running);
}

#[test]
fn a_will_is_published_when_the_flow_dies_and_not_when_it_stops() {
    let (broker, world) = (Broker::start(), World::new());
    let watcher = broker.subscribe("watcher", &["-t", "state"]);
    let fields = "topics: [a], client_id: lake, will: {enabled: true, topic: state, payload: gone}";
    let running = start(&world, &broker, fields);
    world.stop(running);
    broker.publish(&["-t", "state", "-m", "stopped"]);
    assert_eq!(watcher.wait_for(1), ["stopped"]);
    let running = start(&world, &broker, fields);
    // A takeover ends the connection without a DISCONNECT of the client.
    broker.publish(&["-i", "lake", "-t", "x", "-m", "x"]);
    assert_eq!(watcher.wait_for(2), ["stopped", "gone"]);
    until("the flow is back", || running.trouble().is_empty());
    world.stop(running);
}

#[test]
fn what_is_wrong_is_told() {
    let (broker, world) = (Broker::with("allow_anonymous false\nmax_qos 1"), World::new());
    let url = broker.url();
    let text = format!("input: {{mqtt: {{urls: [\"{url}\"], topics: [a]}}}}\noutput: {{kept: {{}}}}\n");
    let running = world.start(&text);
    let expected = format!("{url}: the broker refuses the connection: Not authorized (0x87)");
    until("the refusal is told", || running.trouble().contains(&expected));
    world.stop(running);
}
