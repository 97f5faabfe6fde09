use crate::support::World;

const OUTPUT: &str = r#"  events:
    stream: 'order-${! json("id") }'
    type: '${! json("type") }'
    metadata: {line: '7'}
    id: '${! json("uuid") | "" }'"#;

#[test]
fn lines_become_messages_of_their_streams_in_their_order() {
    let world = World::new();
    let lines = [
        r#"{"id": 1, "type": "Created"}"#,
        r#"{"id": 2, "type": "Created", "sum": 12345678901234567890.10}"#,
        r#"{"id": 1, "type": "Paid"}"#,
    ];
    let report = world.run(&lines, OUTPUT);
    assert_eq!(report.counts.out, 3, "{}", report.counts);
    let mut found = world.all();
    found.sort();
    let of = |stream: &str, kind: &str| (stream.to_owned(), kind.to_owned());
    assert_eq!(
        found,
        [
            of("order-1", "Created"),
            of("order-1", "Paid"),
            of("order-2", "Created")
        ]
    );
    let read = world.read();
    let second = read.iter().find(|stored| stored.event().stream == "order-2").unwrap();
    assert_eq!(
        second.event().data,
        r#"{"id":2,"type":"Created","sum":12345678901234567890.10}"#
    );
    assert_eq!(second.event().metadata, Some(r#"{"line":"7"}"#));
    let places: Vec<u64> = read
        .iter()
        .filter(|stored| stored.event().stream == "order-1")
        .map(|stored| stored.event().position)
        .collect();
    assert_eq!(places, [0, 1]);
}

#[test]
fn what_is_no_object_is_refused_and_holds_up_nobody() {
    let world = World::new();
    let lines = ["7", r#"{"id": 1, "type": "Created"}"#, r#"{"id": 1, "type": ""}"#];
    let report = world.run(&lines, OUTPUT);
    assert_eq!((report.counts.out, world.all().len()), (1, 1), "{}", report.counts);
}

#[test]
fn the_same_ids_again_are_stored_once() {
    let world = World::new();
    let line = |n: u32| format!(r#"{{"id": 1, "type": "T{n}", "uuid": "0190b5c2-7a00-7c1f-a2b3-c4d5e6f7081{n}"}}"#);
    let (one, two, three) = (line(1), line(2), line(3));
    world.run(&[&one, &two], OUTPUT);
    // In another batch than before, with one new message.
    let report = world.run(&[&two, &three, &one], OUTPUT);
    assert_eq!(report.counts.out, 3, "{}", report.counts);
    let kinds: Vec<String> = world.all().into_iter().map(|(_, kind)| kind).collect();
    assert_eq!(kinds, ["T1", "T2", "T3"]);
    let other = one.replace("T1", "T9");
    let report = world.run(&[&other], OUTPUT);
    assert_eq!(
        (report.counts.out, world.all().len()),
        (0, 3),
        "another message with a known id: {}",
        report.counts
    );
}

#[test]
fn a_wrong_expected_version_costs_only_the_messages_of_its_stream() {
    let world = World::new();
    world.append("a-1", &["First"]);
    let output = r#"  events:
    stream: '${! json("stream") }'
    type: T
    expected_version: '${! json("expected") | "" }'
    batching: {count: 4, period: 1s}"#;
    let lines = [
        r#"{"stream": "a-1", "expected": 5}"#,
        r#"{"stream": "b-1", "expected": -1}"#,
        r#"{"stream": "b-1", "expected": 0}"#,
        r#"{"stream": "c-1"}"#,
    ];
    let report = world.run(&lines, output);
    assert_eq!(report.counts.out, 3, "{}", report.counts);
    let mut streams: Vec<String> = world.all().into_iter().map(|(stream, _)| stream).collect();
    streams.sort();
    assert_eq!(streams, ["a-1", "b-1", "b-1", "c-1"]);
}
