//! Where each output writes messages, and how several outputs of a broker share one stream.

use std::time::Duration;

use thalweg_record::DropReason;

use crate::harness::{World, until};

#[test]
fn codecs_put_messages_into_files() {
    for (codec, expected) in [
        ("lines", "a\nb\nc\n"),
        ("append", "abc"),
        ("all-bytes", "c"),
        ("'delim:; '", "a; b; c; "),
    ] {
        let world = World::new();
        world.run(&format!(
            "input: {{given: {{batches: [[a, b], [c]]}}}}\noutput: {{file: {{path: DIR/new/out, codec: {codec}}}}}\n"
        ));
        assert_eq!(world.file("new/out"), expected, "for {codec}");
    }
}

#[test]
fn a_path_may_depend_on_the_message() {
    let world = World::new();
    let report = world.run(
        "
input:
  given:
    batches: [[{text: a, meta: {to: x}}, {text: b, meta: {to: y/z}}, {text: c, meta: {to: x}}], [{text: d, meta: {to: y/z}}]]
output: {file: {path: 'DIR/${! @to }.txt'}}
",
    );
    assert_eq!(
        (world.file("x.txt"), world.file("y/z.txt")),
        ("a\nc\n".into(), "b\nd\n".into())
    );
    assert_eq!(report.counts.out, 4);
}

#[test]
fn batches_that_wait_share_one_write_of_an_output_that_joins_them() {
    for (joins, expected) in [(1, vec![1, 1, 2, 1]), (3, vec![1, 4])] {
        let world = World::new();
        // One at a time through one worker: the first write is in progress while the others arrive.
        let running = world.start(&format!(
            "
input: {{given: {{batches: [[a], [b], [c, d], [e]], forever: true}}}}
output: {{kept: {{gated: true, joins: {joins}}}}}
"
        ));
        until("all wait", || running.handle.counts().entered == 5);
        std::thread::sleep(Duration::from_millis(20));
        world.gate.send_replace(true);
        until("all are written", || running.handle.counts().out == 5);
        let report = world.stop(running, Duration::from_secs(30));
        assert_eq!(world.texts("out"), ["a", "b", "c", "d", "e"]);
        if joins == 1 {
            assert_eq!(world.writes("out"), expected);
        } else {
            assert!(world.writes("out").len() < 4, "{:?}", world.writes("out"));
        }
        assert_eq!(
            (
                report.counts.out,
                world.seen.settled.load(std::sync::atomic::Ordering::SeqCst)
            ),
            (5, 4)
        );
    }
}

#[test]
fn every_pattern_of_a_broker_delivers_everything_where_it_belongs() {
    let input = "input: {given: {batches: [[a], [b], [c], [d]]}}";
    for (pattern, copies) in [
        ("fan_out", 2),
        ("fan_out_sequential", 2),
        ("round_robin", 1),
        ("greedy", 1),
    ] {
        let world = World::new();
        let report = world.run(&format!(
            "
{input}
output:
  broker:
    pattern: {pattern}
    outputs:
      - kept: {{name: one, fails: 2}}
      - kept: {{name: two}}
"
        ));
        assert_eq!((report.counts.out, report.unacknowledged), (4, 0), "for {pattern}");
        let (one, two) = (world.texts("one"), world.texts("two"));
        let mut all = [one.clone(), two.clone()].concat();
        all.sort_unstable();
        let expected: Vec<&str> = ["a", "b", "c", "d"].into_iter().flat_map(|m| vec![m; copies]).collect();
        assert_eq!(all, expected, "for {pattern}");
        if copies == 2 {
            assert_eq!(
                (one.as_slice(), two.as_slice()),
                (
                    ["a", "b", "c", "d"].map(String::from).as_slice(),
                    ["a", "b", "c", "d"].map(String::from).as_slice()
                )
            );
        }
        if pattern == "round_robin" {
            assert_eq!(
                (one, two),
                (
                    vec!["a".to_owned(), "c".to_owned()],
                    vec!["b".to_owned(), "d".to_owned()]
                )
            );
        }
        // Each child has its own counters; the failed one also counts its failures.
        let count =
            |name: &str, child: usize| world.metric(name, &format!("path=\"root.output.broker.outputs.{child}\""));
        assert_eq!(
            count("output_sent", 0) + count("output_sent", 1),
            4.0 * copies as f64,
            "for {pattern}"
        );
        assert_eq!(
            (count("output_error", 0) > 0.0, count("output_error", 1)),
            (true, 0.0),
            "for {pattern}"
        );
    }
}

#[test]
fn an_output_that_fails_fast_has_everything_written_again_to_all() {
    for (pattern, others) in [("fan_out_fail_fast", 3), ("fan_out_sequential_fail_fast", 1)] {
        let world = World::new();
        let report = world.run(&format!(
            "
input: {{given: {{batches: [[a, x], [b]]}}}}
output:
  broker:
    pattern: {pattern}
    outputs:
      - kept: {{name: one, fails: 2}}
      - kept: {{name: two, refuses: x}}
"
        ));
        // What one of them refuses for good is refused once, and both were asked.
        let counts = (report.counts.out, report.counts.dropped(DropReason::OutputRejected));
        assert_eq!((counts, report.unacknowledged), ((2, 1), 0), "for {pattern}");
        assert_eq!(world.texts("one"), ["a", "x", "b"], "for {pattern}");
        let mut expected = vec!["a"; others];
        expected.push("b");
        assert_eq!(world.texts("two"), expected, "for {pattern}");
        let errors = world.metric("output_error", "path=\"root.output.broker.outputs.0\"");
        assert_eq!(errors, 4.0, "for {pattern}");
    }
}

#[test]
fn a_buffer_in_memory_collects_messages_for_the_output() {
    let policy = "batch_policy: {enabled: true, count: 3, period: 1h}";
    for (buffer, output, expected) in [
        (format!("{{memory: {{{policy}}}}}"), "{kept: {}}", vec![3, 3]),
        // The tighter limit holds.
        (
            format!("{{memory: {{{policy}}}}}"),
            "{kept: {batching: {count: 2}}}",
            vec![2, 2, 2],
        ),
        (
            "{memory: {batch_policy: {enabled: false}}}".to_owned(),
            "{kept: {}}",
            vec![1; 6],
        ),
    ] {
        let world = World::new();
        // An input that ends would have what is held written at once.
        let running = world.start(&format!(
            "
input: {{given: {{batches: [[a], [b], [c], [d], [e], [f]], forever: true}}}}
buffer: {buffer}
pipeline: {{threads: 1}}
output: {output}
"
        ));
        until("all are written", || running.handle.counts().out == 6);
        world.stop(running, Duration::from_secs(30));
        assert_eq!(world.texts("out"), ["a", "b", "c", "d", "e", "f"]);
        assert_eq!(world.writes("out"), expected, "for {buffer} and {output}");
    }
    let flow = "input: {given: {}}\noutput: {kept: {}}\n";
    for (policy, expected) in [
        (
            "{count: 3}",
            "t.yaml:3:33: warning: buffer.memory.batch_policy: has no effect: add enabled: true, or remove it\n",
        ),
        (
            "{enabled: true, check: this.a}",
            "t.yaml:3:56: buffer.memory.batch_policy.check: not in this version; remove it; processors of the pipeline or of \
             the output do the same\n",
        ),
    ] {
        let text = format!("{flow}buffer: {{memory: {{batch_policy: {policy}}}}}\n");
        assert_eq!(World::new().check(&text), expected, "for {policy}");
    }
}

#[test]
fn fan_out_in_sequence_writes_to_the_next_only_after_the_one_before() {
    let world = World::new();
    let running = world.start(
        "
input: {given: {batches: [[a]], forever: true}}
output:
  broker:
    pattern: fan_out_sequential
    outputs: [{kept: {name: one, gated: true}}, {kept: {name: two}}]
",
    );
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(world.texts("two"), [] as [&str; 0]);
    world.gate.send_replace(true);
    until("both have it", || world.texts("two") == ["a"]);
    assert_eq!(world.texts("one"), ["a"]);
    world.stop(running, Duration::from_secs(30));
}

#[test]
fn greedy_goes_round_an_output_that_is_stuck_and_round_robin_waits_for_it() {
    for (pattern, expected) in [("greedy", 9), ("round_robin", 1)] {
        let world = World::new();
        let running = world.start(&format!(
            "
input: {{given: {{batches: [[0], [1], [2], [3], [4], [5], [6], [7], [8], [9]], forever: true}}}}
output:
  broker:
    pattern: {pattern}
    outputs: [{{kept: {{name: stuck, gated: true}}}}, {{kept: {{name: free}}}}]
"
        ));
        until("the free one has what it can get", || {
            world.texts("free").len() == expected
        });
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(world.texts("free").len(), expected, "for {pattern}");
        world.gate.send_replace(true);
        until("all are delivered", || running.handle.counts().out == 10);
        world.stop(running, Duration::from_secs(30));
    }
}

#[test]
fn each_child_of_a_broker_has_its_own_processors() {
    let world = World::new();
    let report = world.run(
        "
input: {given: {batches: [[1, 2, 3, x]]}}
output:
  broker:
    outputs:
      - kept: {name: plain, refuses: '3'}
      - kept: {name: made, fails: 2}
        processors:
          - mapping: 'root = if content().string() == \"1\" { deleted() }'
          - mapping: root = content().string() + \"!\"
          - split: {size: 1}
  processors:
    - mapping: root = content().string().uppercase()
",
    );
    assert_eq!(world.texts("plain"), ["1", "2", "X"]);
    assert_eq!(world.texts("made"), ["2!", "3!", "X!"]);
    // A message that one output rejects is rejected, whatever the others did; one that its processors filter is not.
    assert_eq!((report.counts.out, report.counts.dropped_total()), (3, 1));
    assert_eq!(
        world.metric("output_sent", "path=\"root.output.broker.outputs.1\""),
        4.0
    );
}

#[test]
fn what_the_processors_of_a_child_fail_on_is_refused_with_its_reason() {
    let world = World::new();
    let report = world.run(
        "
input: {given: {batches: [[a, b]]}}
output:
  broker:
    outputs:
      - kept: {name: plain}
      - kept: {name: never}
        processors: [{trip: fails}]
dead_letter: {kept: {name: dead}}
",
    );
    assert_eq!(
        (world.texts("plain"), world.texts("never")),
        (vec!["a".to_owned(), "b".to_owned()], vec![])
    );
    assert_eq!(report.counts.dropped(thalweg_record::DropReason::ScriptError), 2);
    let dead = world.messages("dead");
    assert_eq!(dead.len(), 2);
    let error = dead[0].meta.get("thalweg_error").unwrap();
    assert_eq!(
        error,
        "root.output.broker.outputs.1: root.output.broker.outputs.1.processors.0: it trips"
    );
}

#[test]
fn an_output_resource_brings_its_processors() {
    for output in ["{resource: there}", "{broker: {outputs: [{resource: there}]}}"] {
        let world = World::new();
        world.run(&format!(
            "
input: {{given: {{batches: [[a]]}}}}
output: {output}
output_resources:
  - label: there
    kept: {{}}
    processors: [{{mapping: root = content().string() + \"!\"}}]
"
        ));
        assert_eq!(world.texts("out"), ["a!"], "for {output}");
    }
}

#[test]
fn batches_that_are_collected_count_by_what_ended_them() {
    for (batching, first, mechanism, writes) in [
        ("count: 2, period: 1h", 2.0, "count", vec![2, 2, 1]),
        ("byte_size: 10kB", 1.0, "size", vec![3, 2]),
        ("count: 100, period: 1ms", 1.0, "period", vec![]),
    ] {
        let world = World::new();
        let text = "x".repeat(4000);
        let running = world.start(&format!(
            "
input: {{given: {{batches: [[{text}], [{text}], [{text}], [{text}], [{text}]], forever: true}}}}
output: {{kept: {{batching: {{{batching}}}}}}}
"
        ));
        let created = |mechanism: &str| world.metric("batch_created", &format!("mechanism=\"{mechanism}\""));
        until("some are collected", || created(mechanism) >= first);
        let report = world.stop(running, Duration::from_secs(30));
        assert_eq!(report.counts.out, 5, "{batching}");
        if !writes.is_empty() {
            assert_eq!(world.writes("out"), writes, "{batching}");
            assert_eq!((created(mechanism), created("flush")), (first, 1.0), "{batching}");
        }
        let all = world.metric("batch_created", "path=\"root.output\"");
        assert_eq!(all, world.metric("output_batch_sent", ""), "{batching}");
    }
}

#[test]
fn an_output_without_batching_creates_no_batches() {
    let world = World::new();
    world.run("input: {given: {batches: [[a]]}}\noutput: {kept: {joins: 3}}\n");
    assert!(!world.metrics.text().contains("batch_created"));
}
