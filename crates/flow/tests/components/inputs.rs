//! The messages of each input.

use thalweg_record::DropReason;

use crate::harness::World;

#[test]
fn codecs_cut_files_into_messages() {
    for (codec, expected) in [
        ("lines", vec!["a;b", "c"]),
        ("all-bytes", vec!["a;b\nc\n"]),
        ("'delim:;'", vec!["a", "b\nc\n"]),
    ] {
        let world = World::new();
        std::fs::write(world.path("in.txt"), "a;b\nc\n").unwrap();
        world.run(&format!(
            "input: {{file: {{paths: [DIR/*.txt], codec: {codec}}}}}\noutput: {{kept: {{}}}}\n"
        ));
        assert_eq!(world.texts("out"), expected, "for {codec}");
        let path = world.path("in.txt").display().to_string();
        assert!(
            world
                .messages("out")
                .iter()
                .all(|m| m.meta.get("path").as_deref() == Some(&path))
        );
    }
}

#[test]
fn scanners_cut_files_into_messages() {
    let world = World::new();
    std::fs::write(world.path("in.csv"), "a,b\n1,2\n3\n").unwrap();
    std::fs::write(world.path("in.jsonl"), "{\"a\": 1}\n[2,\n3] nonsense").unwrap();
    let report = world.run(
        "
input:
  broker:
    inputs:
      - file: {paths: [DIR/in.csv], scanner: {csv: {continue_on_error: true}}}
      - file: {paths: [DIR/in.jsonl], scanner: {json_documents: {}}, auto_replay_nacks: true}
pipeline: {processors: [{catch: [{mapping: root = error()}]}]}
output: {kept: {}}
",
    );
    let mut texts = world.texts("out");
    texts.sort_unstable();
    let expected = [
        "[2,\n3]",
        "row 1 has 1 fields, and the first row 2",
        "{\"a\": 1}",
        "{\"a\":\"1\",\"b\":\"2\"}",
    ];
    assert_eq!(texts, expected);
    assert_eq!(report.counts.dropped(DropReason::InvalidPayload), 1, "{report:?}");
    let rows = world
        .messages("out")
        .into_iter()
        .filter_map(|m| m.meta.get("csv_row").map(|row| row.into_owned()));
    assert_eq!(rows.collect::<Vec<_>>(), ["0", "1"]);
}

#[test]
fn a_file_that_cannot_be_read_on_ends_the_flow_and_is_named() {
    let world = World::new();
    std::fs::write(world.path("in.csv"), "a,b\n1,2\n3\n").unwrap();
    let running = world.start("input: {file: {paths: [DIR/in.csv], scanner: {csv: {}}}}\noutput: {kept: {}}\n");
    crate::harness::until("it has failed", || running.handle.failure().is_some());
    let why = running.handle.failure().unwrap();
    let report = world.stop(running, std::time::Duration::from_secs(30));
    assert!(
        why.contains("in.csv: row 1 has 1 fields") && why.contains("continue_on_error"),
        "{why}"
    );
    assert_eq!(report.counts.out, 1, "what comes before it is delivered");
}

#[test]
fn messages_are_made_at_the_times_of_a_cron_expression() {
    let world = World::new();
    world.run("input: {generate: {mapping: root = \"tick\", count: 2, interval: '* * * * * *'}}\noutput: {kept: {}}\n");
    assert_eq!(world.texts("out"), ["tick", "tick"]);
    let world = World::new();
    world.run("input: {generate: {mapping: root = \"tick\", count: 3, interval: '@every 1ms'}}\noutput: {kept: {}}\n");
    assert_eq!(world.texts("out").len(), 3);
    let check = |interval: &str, more: &str| {
        let text = format!(
            "input: {{generate: {{mapping: root = 1, interval: '{interval}'{more}}}}}\noutput: {{kept: {{}}}}\n"
        );
        World::new().check(&text)
    };
    for interval in [
        "",
        "0",
        "1s",
        "@every 5m",
        "@daily",
        "0 */5 * * *",
        "TZ=Europe/Berlin 0 6 * * MON-FRI",
    ] {
        assert_eq!(check(interval, ""), "", "{interval}");
    }
    for (interval, part) in [
        (
            "61 * * * *",
            "t.yaml:1:49: input.generate.interval: \"61\" is no minute",
        ),
        ("@every", "unknown descriptor \"@every\""),
        ("@every 0s", "@every needs a duration of more than 0"),
        ("@every soon", "expected a duration"),
        ("soon", "expected a duration"),
        ("0 0 31 2 *", "there is no such day"),
    ] {
        let mistake = check(interval, "");
        assert!(mistake.contains(part), "{interval}: {mistake}");
        assert_eq!(mistake.lines().count(), 1, "{interval}: {mistake}");
    }
    assert_eq!(check("1s", ", auto_replay_nacks: true"), "");
    let warning = check("1s", ", auto_replay_nacks: false");
    assert!(
        warning.contains("warning: input.generate.auto_replay_nacks: has no effect"),
        "{warning}"
    );
}

#[test]
fn a_file_is_deleted_when_all_of_it_has_arrived() {
    let world = World::new();
    std::fs::write(world.path("kept.txt"), "a\n").unwrap();
    for (name, content) in [("1.txt", "a\nb\n"), ("2.txt", ""), ("3.txt", "too long a line\nc\n")] {
        std::fs::write(world.path(name), content).unwrap();
    }
    let report = world.run(
        "
input: {file: {paths: [DIR/1.txt, 'DIR/[23].txt'], delete_on_finish: true, max_buffer: 4}}
pipeline: {processors: [{mapping: 'root = if content().string() == \"b\" { deleted() }'}]}
output: {kept: {}}
",
    );
    assert!(report.counts.adds_up(), "{report:?}");
    assert_eq!(world.texts("out"), ["a", "c"]);
    let names = std::fs::read_dir(world.path("")).unwrap();
    let left: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".txt"))
        .collect();
    assert_eq!(left, ["kept.txt"]);
}

#[test]
fn a_file_whose_messages_were_given_up_stays() {
    let world = World::new();
    std::fs::write(world.path("in.txt"), "a\nb\n").unwrap();
    let running = world
        .start("input: {file: {paths: [DIR/in.txt], delete_on_finish: true}}\noutput: {kept: {open_fails: 1000000}}\n");
    crate::harness::until("all of it is read", || world.metric("input_received", "") == 2.0);
    let report = world.stop(running, std::time::Duration::from_millis(50));
    assert_eq!(report.unacknowledged, 2, "{report:?}");
    assert_eq!(std::fs::read_to_string(world.path("in.txt")).unwrap(), "a\nb\n");
    world.run("input: {file: {paths: [DIR/in.txt], delete_on_finish: true}}\noutput: {kept: {}}\n");
    assert!(!world.path("in.txt").exists());
}

#[test]
fn a_broker_feeds_one_flow_from_several_with_the_processors_of_each() {
    let world = World::new();
    let running = world.start(
        "
input:
  broker:
    copies: 2
    inputs:
      - given: {batches: [[a], [b]], forever: true}
        processors: [{mapping: root = content().uppercase()}]
      - label: second
        generate: {mapping: root = \"g\", count: 3, interval: ''}
  processors: [{mapping: root = content().string() + \"!\"}]
output: {kept: {}}
",
    );
    crate::harness::until("everything arrives", || world.texts("out").len() == 10);
    let mut texts = world.texts("out");
    texts.sort_unstable();
    assert_eq!(texts, ["A!", "A!", "B!", "B!", "g!", "g!", "g!", "g!", "g!", "g!"]);
    assert_eq!(world.metric("input_received", "path=\"root.input\""), 10.0);
    assert_eq!(
        world.metric("input_received", "path=\"root.input.broker.inputs.0\""),
        4.0
    );
    assert_eq!(world.metric("input_received", "label=\"second\""), 6.0);
    let nodes = running.handle.status().nodes;
    let paths: Vec<&str> = nodes.iter().map(|node| node.path.as_str()).collect();
    let expected = [
        "root.input",
        "root.input.broker.inputs.0",
        "root.input.broker.inputs.1",
        "root.input.processors.0",
        "root.output",
    ];
    assert_eq!(paths, expected);
    let report = world.stop(running, std::time::Duration::from_secs(30));
    assert_eq!((report.counts.out, report.counts.in_flight), (10, 0));
}

#[test]
fn an_input_resource_brings_its_processors() {
    for input in [
        "{resource: outer, processors: [{mapping: root = content().string() + \"3\"}]}",
        "{broker: {inputs: [{resource: outer, processors: [{mapping: root = content().string() + \"3\"}]}]}}",
    ] {
        let world = World::new();
        world.run(&format!(
            "
input: {input}
output: {{kept: {{}}}}
input_resources:
  - label: inner
    given: {{batches: [[a]]}}
    processors: [{{mapping: root = content().string() + \"1\"}}]
  - label: outer
    resource: inner
    processors: [{{mapping: root = content().string() + \"2\"}}]
"
        ));
        assert_eq!(world.texts("out"), ["a123"], "for {input}");
    }
}

#[test]
fn the_processors_of_an_input_release_what_they_hold_when_it_ends() {
    let world = World::new();
    let report = world.run(
        "
input:
  broker:
    inputs:
      - given: {batches: [[a], [b]]}
        processors: [{trip: holds}]
output: {kept: {}}
",
    );
    assert_eq!(world.texts("out"), ["a", "b"]);
    assert_eq!(report.unacknowledged, 0);
}

#[test]
fn a_buffer_in_memory_carries_everything() {
    let world = World::new();
    let report = world.run(
        "
input: {generate: {mapping: root = counter(), count: 5000, interval: '', batch_size: 100}}
buffer: {memory: {limit: 64KiB}}
output: {kept: {}}
",
    );
    assert_eq!(report.counts.out, 5000);
    let expected: Vec<String> = (1..=5000).map(|n| n.to_string()).collect();
    assert_eq!(world.texts("out"), expected);
}
