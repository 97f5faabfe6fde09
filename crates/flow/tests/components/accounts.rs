//! Where failed messages go, and how they are counted.

use std::time::Duration;

use thalweg_record::DropReason;

use crate::harness::{World, until};

#[test]
fn a_failed_message_reaches_the_dead_letter_with_what_happened_to_it() {
    let world = World::new();
    let running = world.start(
        "
input: {given: {batches: [[{text: a, meta: {k: v}}], [b]], forever: true}}
pipeline:
  processors:
    - label: stumble
      switch: [{check: content().string() == \"a\", processors: [{trip: fails}]}]
output: {label: there, kept: {refuses: b}}
dead_letter:
  kept: {name: dead, open_fails: 2, fails: 2}
  processors: [{mapping: root = content().string() + \" is dead\"}]
",
    );
    until("both are taken", || world.texts("dead").len() == 2);
    let mut letters: Vec<_> = world
        .messages("dead")
        .iter()
        .map(|letter| {
            let meta = |key: &str| letter.meta.get(key).map(|text| text.into_owned()).unwrap_or_default();
            let what = ["thalweg_reason", "thalweg_error", "thalweg_stage", "k"].map(meta);
            (crate::harness::text(letter), what.join("|"))
        })
        .collect();
    letters.sort_unstable();
    let expected = [
        (
            "a is dead",
            "script_error|it trips|root.pipeline.processors.0.switch.0.processors.0|v",
        ),
        ("b is dead", "output_rejected|not this one|there|"),
    ];
    assert_eq!(letters, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));

    until("both are counted", || running.handle.counts().in_flight == 0);
    let dead = "path=\"root.dead_letter\"";
    assert_eq!(world.metric("output_sent", dead), 2.0);
    assert!(world.metric("output_connection_failed", dead) >= 2.0);
    let nodes = running.handle.status().nodes;
    let shown = nodes.iter().find(|node| node.path == "root.dead_letter").unwrap();
    assert_eq!((shown.sent, shown.connected), (2, Some(true)));
    let report = world.stop(running, Duration::from_secs(30));
    assert_eq!((report.counts.dropped_total(), report.unacknowledged), (2, 0));
}

#[test]
fn a_dead_letter_that_cannot_be_opened_is_not_ready() {
    let world = World::new();
    let running = world.start(
        "
input: {given: {batches: [[a]], forever: true}}
pipeline: {processors: [{trip: fails}]}
output: {kept: {}}
dead_letter: {kept: {name: dead, open_fails: 1000000}}
",
    );
    let status = running.dead_letter_status.clone().unwrap();
    until("it says why", || {
        status.not_ready() == ["dead_letter: kept root.dead_letter is not connected: dead is away"]
    });
    // The message waits: it is neither lost nor counted.
    until("the message has entered", || running.handle.counts().in_flight == 1);
    let report = world.stop(running, Duration::from_millis(20));
    assert_eq!((report.unacknowledged, report.counts.in_flight), (1, 0));
    assert_eq!(report.counts.dropped(DropReason::Shutdown), 1);
}

#[test]
fn without_a_dead_letter_that_works_failed_messages_count_under_their_reason() {
    for dead_letter in [
        "",
        "dead_letter: {kept: {name: dead, never: gone}}",
        "dead_letter: {kept: {name: dead, ends: gone}}",
    ] {
        let world = World::new();
        let report = world.run(&format!(
            "
input: {{given: {{batches: [[a], [b]]}}}}
pipeline: {{processors: [{{trip: fails}}]}}
output: {{kept: {{}}}}
{dead_letter}
"
        ));
        let failed = report.counts.dropped(DropReason::ScriptError);
        // Messages of the last write when the dead letter ended may have been given up.
        assert_eq!(report.counts.dropped_total(), 2, "for {dead_letter}");
        assert!(failed >= 1, "for {dead_letter}: {report:?}");
    }
}

#[test]
fn a_dead_letter_with_batching_collects_before_it_writes() {
    let world = World::new();
    let running = world.start(
        "
input: {given: {batches: [[a], [b], [c], [d], [e]], forever: true}}
pipeline: {processors: [{trip: fails}]}
output: {kept: {}}
dead_letter: {kept: {name: dead, batching: {count: 2, period: 1h}}}
",
    );
    until("two batches are full", || world.writes("dead") == [2, 2]);
    until("their sources hear of it", || running.handle.counts().in_flight == 1);
    // The last one waits for another, or for the end.
    let report = world.stop(running, Duration::from_secs(30));
    assert_eq!(world.writes("dead"), [2, 2, 1]);
    assert_eq!((report.counts.dropped_total(), report.unacknowledged), (5, 0));
    let created = |mechanism: &str| world.metric("batch_created", &format!("mechanism=\"{mechanism}\""));
    assert_eq!((created("count"), created("flush")), (2.0, 1.0));
}

#[test]
fn a_letter_does_not_wait_for_ever_for_others_to_fail() {
    for batching in ["count: 1000", "count: 1000, period: 10ms"] {
        let world = World::new();
        // The flow ends by itself only when its one message is settled.
        let report = world.run(&format!(
            "
input: {{given: {{batches: [[a]]}}}}
pipeline: {{processors: [{{trip: fails}}]}}
output: {{kept: {{}}}}
dead_letter: {{kept: {{name: dead, batching: {{{batching}}}}}}}
"
        ));
        assert_eq!(world.texts("dead"), ["a"], "{batching}");
        assert_eq!(report.counts.dropped_total(), 1, "{batching}");
        assert_eq!(world.metric("batch_created", "mechanism=\"period\""), 1.0, "{batching}");
    }
}
