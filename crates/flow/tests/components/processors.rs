//! The results of each processor.

use crate::harness::World;

/// Runs the lines of `processors` over the batches and returns what arrives.
fn made(batches: &str, processors: &str) -> Vec<String> {
    let world = World::new();
    let text = format!(
        "input: {{given: {{batches: {batches}}}}}\npipeline:\n  threads: 2\n  processors:\n{processors}\noutput: {{kept: {{}}}}\n"
    );
    let report = world.run(&text);
    assert!(report.counts.adds_up() && report.unacknowledged == 0, "{report:?}");
    world.texts("out")
}

#[test]
fn processors_make_of_messages_what_they_promise() {
    let cases: &[(&str, &str, &[&str])] = &[
        // catch: only flagged messages take its processors, and come out without the flag.
        (
            "[[1, x, 2]]",
            "
    - mapping: root = this.number() + 1
    - catch:
        - mapping: 'root = \"caught \" + content().string()'
    - mapping: 'root = content().string() + errored().string()'",
            &["2false", "caught xfalse", "3false"],
        ),
        // try: a message leaves at the first step that fails on it, and keeps its flag.
        (
            "[[1, x]]",
            "
    - try:
        - mapping: root = content().number()
        - mapping: root = this + 1
    - mapping: 'root = if errored() { \"bad \" + content().string() }'",
            &["2", "bad x"],
        ),
        // switch: the first matching case, with the next if it falls through; without a match nothing changes.
        (
            "[[a, b, c, d]]",
            "
    - switch:
        - check: content().string() == \"a\"
          processors: [{mapping: root = content().string() + \"1\"}]
        - check: content().string() == \"b\"
          fallthrough: true
          processors: [{mapping: root = content().string() + \"2\"}]
        - check: content().string() == \"c\"
          processors: [{mapping: root = content().string() + \"3\"}]",
            &["a1", "b23", "c3", "d"],
        ),
        (
            "[[a, b]]",
            "
    - switch:
        - check: content().string() == \"a\"
          processors: []
        - processors: [{mapping: root = \"else\"}]",
            &["a", "else"],
        ),
        // A check that gives no truth flags the message, and no case takes it: not a truth, null, missing, no JSON, an error,
        // nothing.
        (
            r#"[['{"on": true}', '{"on": 1}', '{"on": null}', '{}', plain]]"#,
            "
    - switch:
        - check: this.on
          processors: [{mapping: root = \"on\"}]
        - processors: [{mapping: root = \"else\"}]
    - mapping: 'root = if errored() { \"flagged\" } else { content().string() }'",
            &["on", "flagged", "flagged", "flagged", "flagged"],
        ),
        (
            "[[a]]",
            "
    - switch:
        - check: throw(\"no\")
          processors: [{mapping: root = \"thrown\"}]
        - processors: [{mapping: root = \"else\"}]
    - switch:
        - check: deleted()
          processors: [{mapping: root = \"deleted\"}]
        - processors: [{mapping: root = \"else\"}]
    - mapping: 'root = content().string() + errored().string()'",
            &["atrue"],
        ),
        // The texts `true` and `false` are truths: metadata and payloads are texts.
        (
            "[[\"true\", \"false\", maybe]]",
            "
    - mapping: meta on = content().string()
    - switch:
        - check: '@on'
          processors: [{mapping: root = \"on\"}]
        - check: content()
          processors: [{mapping: root = \"never\"}]
        - processors: [{mapping: root = \"else\"}]
    - mapping: 'root = if errored() { \"flagged\" } else { content().string() }'",
            &["on", "else", "flagged"],
        ),
        // sleep: an invalid duration flags the message.
        (
            "[[1ms, soon]]",
            "
    - sleep: {duration: '${! content() }'}
    - mapping: 'root = content().string() + \" \" + errored().string()'",
            &["1ms false", "soon true"],
        ),
        (
            "[[a]]",
            "
    - log: {level: DEBUG, message: '${! content() }', fields: {k: '${! batch_size() }'}}",
            &["a"],
        ),
        (
            "[[a, b]]",
            "
    - mutation: 'root = if content().string() == \"a\" { deleted() }'",
            &["b"],
        ),
    ];
    for (batches, processors, expected) in cases {
        assert_eq!(made(batches, processors), *expected, "for {processors}");
    }
}

#[test]
fn split_cuts_batches_and_keeps_the_answers_apart() {
    let world = World::new();
    let report = world.run(
        "
input: {given: {batches: [[a, b, c, d, e]]}}
pipeline: {processors: [{split: {size: 2}}]}
output: {kept: {}}
",
    );
    assert_eq!(world.texts("out"), ["a", "b", "c", "d", "e"]);
    assert_eq!(world.writes("out"), [2, 2, 1]);
    assert_eq!(report.counts.out, 5);
}

#[test]
fn split_cuts_by_bytes_and_a_large_message_goes_alone() {
    let world = World::new();
    let report = world.run(
        "
input: {given: {batches: [[aa, bb, c, dddddddd, e, f, g, h]]}}
pipeline: {processors: [{split: {size: 3, byte_size: 4}}]}
output: {kept: {}}
",
    );
    assert_eq!(world.texts("out"), ["aa", "bb", "c", "dddddddd", "e", "f", "g", "h"]);
    assert_eq!(world.writes("out"), [2, 1, 1, 3, 1]);
    assert!(report.counts.adds_up(), "{report:?}");
}

#[test]
fn a_resource_runs_where_it_is_named() {
    let world = World::new();
    world.run(
        "
input: {given: {batches: [[a]]}}
pipeline: {processors: [{resource: twice}, {try: [{resource: twice}]}]}
output: {kept: {}}
processor_resources:
  - label: twice
    mapping: root = content().string() + content().string()
",
    );
    assert_eq!(world.texts("out"), ["aaaa"]);
}

/// Workers that shared the state of such a processor would overtake each other after it.
#[test]
fn one_worker_runs_a_processor_that_makes_one_series_of_several() {
    let of_topic = |topic: usize| format!("[{{text: a, meta: {{umh_topic: t{topic}}}}}]");
    let batches: Vec<String> = (0..24).map(of_topic).collect();
    let input = format!("given: {{batches: [{}]}}", batches.join(", "));
    let numbers: Vec<String> = (0..24).map(|number| number.to_string()).collect();
    for (at_input, in_pipeline) in [
        ("[]", "[{trip: joins}]"),
        ("[{trip: joins}]", "[]"),
        ("[]", "[{resource: joining}]"),
        ("[]", "[{try: [{trip: joins}]}]"),
        ("[]", "[{switch: [{processors: [{try: [{trip: joins}]}]}]}]"),
    ] {
        let world = World::new();
        let report = world.run(&format!(
            "
input: {{{input}, processors: {at_input}}}
pipeline: {{threads: 8, processors: {in_pipeline}}}
output: {{kept: {{}}}}
processor_resources: [{{label: joining, trip: joins}}]
"
        ));
        assert_eq!(report.counts.out, 24, "{report:?}");
        assert_eq!(world.texts("out"), numbers, "for {at_input} and {in_pipeline}");
    }
}

/// A tick releases held messages from a processor inside another one: the flow does not end here.
#[test]
fn ticks_reach_processors_inside_processors() {
    for processor in [
        "try: [{trip: holds}, {mapping: root = content().string() + \"!\"}]",
        "switch: [{fallthrough: true, processors: [{trip: holds}]}, {processors: [{mapping: root = content().string() + \"!\"}]}]",
        "catch: [{trip: holds}, {mapping: root = content().string() + \"!\"}]",
    ] {
        let world = World::new();
        let running = world.start(
            &format!(
                "
input: {{given: {{batches: [[a]], forever: true}}}}
pipeline: {{processors: [{{mapping: 'root = throw(\"flag\")'}}, {{catch: []}}, {{{processor}}}]}}
output: {{kept: {{}}}}
",
            )
            .replace("{catch: []}, {catch", "{catch"),
        );
        crate::harness::until("the message is released by a tick", || world.texts("out") == ["a!"]);
        world.stop(running, std::time::Duration::from_secs(30));
    }
}

#[test]
fn processors_inside_processors_have_their_own_counts_and_place() {
    let world = World::new();
    let running = world.start(
        "
input: {given: {batches: [[a, b]], forever: true}}
pipeline:
  threads: 2
  processors:
    - try:
        - mapping: root = content().uppercase()
        - mapping: 'root = throw(\"no\")'
output: {kept: {}}
",
    );
    crate::harness::until("both arrive", || world.texts("out").len() == 2);
    let path = |step: usize| format!("path=\"root.pipeline.processors.0.try.{step}\"");
    assert_eq!(world.metric("processor_received", &path(0)), 2.0);
    assert_eq!(world.metric("processor_sent", &path(1)), 2.0);
    assert_eq!(world.metric("processor_error", &path(0)), 0.0);
    assert_eq!(world.metric("processor_error", &path(1)), 2.0);
    let paths: Vec<String> = running
        .handle
        .status()
        .nodes
        .into_iter()
        .map(|node| node.path)
        .collect();
    let expected = [
        "root.input",
        "root.pipeline.processors.0",
        "root.pipeline.processors.0.try.0",
        "root.pipeline.processors.0.try.1",
        "root.output",
    ];
    assert_eq!(paths, expected);
    world.stop(running, std::time::Duration::from_secs(30));
}
