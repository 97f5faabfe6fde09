//! A stop has one deadline. Whatever is stuck, the flow ends, and undelivered messages are counted once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use thalweg_flow::StopReport;
use thalweg_record::DropReason;

use crate::harness::{World, until};

/// Stops with a short deadline, on a thread that must return.
fn given_up(world: World, running: crate::harness::Running, entered: u64) -> World {
    let (report, world) = stop_shortly(world, running);
    assert_eq!(report.unacknowledged, entered, "{report:?}");
    assert_eq!(report.counts.dropped(DropReason::Shutdown), entered, "{report:?}");
    world
}

fn stop_shortly(world: World, running: crate::harness::Running) -> (StopReport, World) {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let report = world.stop(running, Duration::from_millis(50));
        let _ = sender.send((report, world));
    });
    let (report, world) = receiver.recv_timeout(Duration::from_secs(60)).expect("the flow stops");
    assert!(report.counts.adds_up() && report.counts.in_flight == 0, "{report:?}");
    (report, world)
}

const BATCHES: &str = "batches: [[a, b], [c, d], [e, f], [g, h], [i, j], [k, l]], forever: true";

#[test]
fn a_dead_letter_that_is_stuck_and_full_does_not_outlive_the_deadline() {
    let world = World::new();
    let running = world.start(
        "
input: {generate: {mapping: 'root = \"x\".repeat(1)', count: 0, interval: '', batch_size: 1000}}
pipeline: {threads: 2, processors: [{trip: fails}]}
output: {kept: {}}
dead_letter: {kept: {name: dead, gated: true}}
"
        .replace("root = \"x\".repeat(1)", "root = \"x\"")
        .as_str(),
    );
    // More messages than the queue of the dead letter admits: the workers block on it.
    let mut last = 0;
    until("nothing moves any more", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = world.metric("processor_error", "");
        let stuck = now > 10_000.0 && now as u64 == last;
        last = now as u64;
        stuck
    });
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let report = world.stop(running, Duration::from_millis(50));
        let _ = sender.send(report);
        // The runtime must be dropped outside of its own threads.
        drop(world);
    });
    let report = receiver.recv_timeout(Duration::from_secs(60)).expect("the flow stops");
    assert!(report.counts.adds_up() && report.counts.in_flight == 0, "{report:?}");
    assert_eq!(
        report.unacknowledged, report.counts.entered,
        "nothing was taken: {report:?}"
    );
}

#[test]
fn a_pause_ends_with_the_deadline_and_what_is_queued_is_not_processed_any_more() {
    let world = World::new();
    let running = world.start(&format!(
        "
input: {{given: {{{BATCHES}}}}}
pipeline: {{threads: 1, processors: [{{sleep: {{duration: 50s}}}}]}}
output: {{kept: {{}}}}
"
    ));
    until("all are queued", || running.handle.counts().entered == 12);
    let (report, world) = stop_shortly(world, running);
    // The batch whose pause was cut short may still have been delivered; later ones were not.
    let out = world.texts("out");
    assert!(out.is_empty() || out == ["a", "b"], "{out:?}");
    assert_eq!(
        (report.counts.out, report.unacknowledged),
        (out.len() as u64, 12 - out.len() as u64)
    );
    assert_eq!(world.seen.nacked.load(Ordering::SeqCst), 6 - out.len() / 2);
}

#[test]
fn stuck_places_of_every_kind_give_up_at_the_deadline() {
    for (input, output) in [
        (format!("{{given: {{{BATCHES}}}}}"), "{kept: {gated: true}}"),
        (
            format!("{{given: {{{BATCHES}}}}}"),
            "{kept: {gated: true, close_hangs: true}}",
        ),
        (format!("{{given: {{{BATCHES}}}}}"), "{kept: {open_fails: 1000000}}"),
        (format!("{{given: {{{BATCHES}}}}}"), "{kept: {fails: 1000000}}"),
        (
            format!("{{given: {{{BATCHES}}}}}"),
            "{broker: {pattern: greedy, outputs: [{kept: {gated: true}}, {kept: {fails: 1000000}}]}}",
        ),
        (
            format!("{{given: {{{BATCHES}}}}}"),
            "{broker: {outputs: [{kept: {gated: true}, processors: [{split: {size: 1}}]}]}}",
        ),
        (
            format!("{{broker: {{inputs: [{{given: {{{BATCHES}}}, processors: [{{sleep: {{duration: 50s}}}}]}}]}}}}"),
            "{kept: {}}",
        ),
    ] {
        let world = World::new();
        let running = world.start(&format!("input: {input}\noutput: {output}\n"));
        until("all entered", || running.handle.counts().entered == 12);
        given_up(world, running, 12);
    }
}

#[test]
fn a_processor_that_cannot_be_interrupted_is_left_behind_and_its_messages_count_as_unacknowledged() {
    let world = World::new();
    let running = world.start(
        "
input: {given: {batches: [[a, b], [c]], forever: true}}
pipeline: {threads: 1, processors: [{trip: blocks}]}
output: {kept: {}}
",
    );
    until("all entered", || running.handle.counts().entered == 3);
    until("the first is being processed", || {
        world.metric("processor_received", "") == 2.0
    });
    let report = world.stop(running, Duration::from_millis(50));
    assert!(report.counts.adds_up(), "{report:?}");
    assert_eq!(report.unacknowledged, 3, "{report:?}");
    // The thread lives longer than the test.
    world.runtime.shutdown_background();
}

#[test]
fn failed_messages_are_settled_before_the_report() {
    let world = World::new();
    let running = world.start(
        "
input: {given: {batches: [[a, b]], forever: true}}
pipeline: {processors: [{trip: fails}]}
output: {kept: {}}
dead_letter: {kept: {name: dead, fails: 5}}
",
    );
    let report = world.stop(running, Duration::from_secs(60));
    assert_eq!((report.counts.in_flight, report.unacknowledged), (0, 0), "{report:?}");
    assert_eq!(world.texts("dead").len() as u64, report.counts.entered);
}

/// The input ends when everything is settled, and the workers end after the input: messages that a worker holds back
/// must not wait for that.
#[test]
fn an_input_that_waits_for_its_acknowledgements_gets_those_of_what_processors_hold_back() {
    let keeps = "[{trip: keeps}]";
    // The first worker may release to the second after the second has already released.
    for (at_input, in_pipeline) in [
        ("[]", keeps),
        (keeps, "[]"),
        (keeps, keeps),
        ("[]", "[{trip: keeps}, {trip: keeps}]"),
    ] {
        for forever in [true, false] {
            let world = World::new();
            let text = format!(
                "
input: {{given: {{batches: [[a], [b, c]], settles: true, forever: {forever}}}, processors: {at_input}}}
pipeline: {{threads: 2, processors: {in_pipeline}}}
output: {{kept: {{}}}}
"
            );
            let report = match forever {
                true => {
                    let running = world.start(&text);
                    until("all entered", || running.handle.counts().entered == 3);
                    world.stop(running, Duration::from_secs(60))
                }
                false => world.run(&text),
            };
            assert_eq!(
                (report.unacknowledged, report.counts.out),
                (0, 3),
                "{at_input} {in_pipeline}: {report:?}"
            );
            assert_eq!(world.texts("out"), ["a", "b", "c"], "{at_input} {in_pipeline}");
        }
    }
}
