//! Unreachable outputs, disconnected children and panics: what waits, what ends, and what is reported.

use std::time::Duration;

use thalweg_telemetry::StatusSource as _;

use crate::harness::{World, until};

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn messages_wait_while_the_output_cannot_be_opened() {
    for output in [
        "{kept: {open_fails: 3}}",
        "{broker: {outputs: [{kept: {open_fails: 3}}, {kept: {name: other}}]}}",
    ] {
        let world = World::new();
        let report = world.run(&format!(
            "input: {{given: {{batches: [[a], [b]]}}}}\noutput: {output}\n"
        ));
        assert_eq!(world.texts("out"), ["a", "b"], "for {output}");
        assert_eq!(
            (report.counts.out, report.counts.dropped_total()),
            (2, 0),
            "for {output}"
        );
        let opened = world.seen.opened.lock().clone();
        assert_eq!(opened.get("out"), Some(&4));
        // An open output is not opened again.
        assert_eq!(opened.get("other").copied().unwrap_or(1), 1);
        assert_eq!(world.metric("output_connection_failed", ""), 3.0);
    }
}

#[test]
fn an_output_that_never_opens_ends_the_flow_with_its_reason() {
    for (output, place) in [
        ("{kept: {never: another schema}}", ""),
        (
            "{broker: {outputs: [{kept: {open_fails: 1000000}}, {kept: {name: b, never: another schema}}]}}",
            "root.output.broker.outputs.1: ",
        ),
    ] {
        let world = World::new();
        let text = format!("input: {{given: {{batches: [[a]], forever: true}}}}\noutput: {output}\n");
        let report = world.run(&text);
        assert_eq!(
            report.failure,
            Some(format!("output root.output: {place}another schema"))
        );
        assert_eq!(report.unacknowledged, 1);
    }
}

#[test]
fn a_write_that_can_never_succeed_ends_the_flow() {
    for output in [
        "{kept: {ends: closed}}",
        "{broker: {outputs: [{kept: {ends: closed}}]}}",
        "{kept: {ends: closed}, processors: []}",
    ] {
        let world = World::new();
        let report = world.run(&format!(
            "input: {{given: {{batches: [[a]], forever: true}}}}\noutput: {output}\n"
        ));
        assert!(report.failure.as_ref().unwrap().ends_with("closed"), "{report:?}");
        assert!(report.counts.adds_up() && report.counts.in_flight == 0, "{report:?}");
        assert_eq!(world.seen.nacked.load(std::sync::atomic::Ordering::SeqCst), 1);
    }
}

#[test]
fn a_fault_in_a_processor_or_an_output_ends_the_flow_and_is_named() {
    let broken_child = "{broker: {outputs: [{kept: {}, processors: [{trip: panics}]}]}}";
    let broken_input = "{broker: {inputs: [{given: {batches: [[a]], forever: true}, processors: [{trip: panics}]}]}}";
    let given = "{given: {batches: [[a]], forever: true}}";
    for (input, processors, output, expected) in [
        (given, "[{trip: panics}]", "{kept: {}}", "a fault in the processor"),
        (
            given,
            "[]",
            "{kept: {panics: true}}",
            "output root.output was stopped by an internal error",
        ),
        (
            given,
            "[]",
            broken_child,
            "its processors were stopped by an internal error",
        ),
    ] {
        let world = World::new();
        let text = format!("input: {input}\npipeline: {{processors: {processors}}}\noutput: {output}\n");
        let report = world.run(&text);
        assert!(report.failure.as_ref().unwrap().contains(expected), "{report:?}");
        assert_eq!((report.counts.in_flight, report.unacknowledged), (0, 1), "{report:?}");
    }
    let world = World::new();
    let running = world.start(&format!("input: {broken_input}\noutput: {{kept: {{}}}}\n"));
    until("the message is given up", || {
        running.handle.counts().dropped_total() == 1
    });
    let report = world.stop(running, PATIENCE);
    assert!(
        report
            .failure
            .unwrap()
            .contains("its processors were stopped by an internal error: a fault in the processor")
    );
}

#[test]
fn a_broker_is_connected_only_while_all_of_its_children_are() {
    let world = World::new();
    let running = world.start(
        "
input: {given: {batches: [[a]], forever: true}}
output: {broker: {outputs: [{kept: {}}, {label: far, kept: {name: far, fails: 1000000}}]}}
",
    );
    until("the child that is down is named", || {
        running.handle.not_ready() == ["flow default: kept far is not connected: far is busy"]
    });
    let nodes = running.handle.status().nodes;
    let shown: Vec<_> = nodes.iter().map(|node| (node.path.as_str(), node.connected)).collect();
    let expected = [
        ("root.input", Some(true)),
        ("root.output", Some(false)),
        ("root.output.broker.outputs.0", Some(true)),
        ("root.output.broker.outputs.1", Some(false)),
    ];
    assert_eq!(shown, expected);
    assert_eq!(nodes[1].not_ready.as_deref(), Some("far: far is busy"));
    world.stop(running, Duration::from_millis(20));
}

#[test]
fn every_copy_of_a_child_is_opened_and_written() {
    let world = World::new();
    let running = world.start(
        "
input: {given: {batches: [[a]], forever: true}}
output: {broker: {copies: 2, pattern: fan_out_sequential, outputs: [{kept: {gated: true, open_fails: 3}}]}}
",
    );
    let status = || (running.handle.not_ready(), running.handle.status().nodes.len());
    until("both copies are open", || status() == (vec![], 3));
    assert_eq!(world.seen.opened.lock().get("out"), Some(&5));
    world.gate.send_replace(true);
    until("both have it", || world.texts("out") == ["a", "a"]);
    world.stop(running, PATIENCE);
}
