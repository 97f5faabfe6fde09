use crate::support::{World, until};

const OF_CATEGORY: &str = "input: {events: {category: order, checkpoint: c}}\noutput: {kept: {}}\n";

#[test]
fn messages_come_with_their_places_and_new_ones_follow() {
    let world = World::new();
    world.append("order-1", &["Created", "Paid"]);
    world.append("other-1", &["Created"]);
    let flow = world.start(OF_CATEGORY);
    until("two messages", || world.kept.messages.lock().len() == 2);
    world.append("order-2", &["Created"]);
    until("the third", || world.kept.messages.lock().len() == 3);
    world.stop(flow);
    for (name, expected) in [
        ("event_stream", ["order-1", "order-1", "order-2"]),
        ("event_type", ["Created", "Paid", "Created"]),
        ("event_position", ["0", "1", "0"]),
        ("event_global_position", ["1", "2", "4"]),
    ] {
        assert_eq!(world.kept.meta(name), expected, "{name}");
    }
    let ids = world.kept.meta("event_id");
    assert!(ids.iter().all(|id| id.len() == 36), "{ids:?}");
    let times = world.kept.meta("event_time");
    assert!(times.iter().all(|time| time.ends_with('Z')), "{times:?}");
    assert_eq!(&*world.kept.messages.lock()[0].bytes(), br#"{"n":1}"#);
}

#[test]
fn a_restart_goes_on_where_the_acks_ended() {
    let world = World::new();
    world.append("order-1", &["A", "B"]);
    let flow = world.start(OF_CATEGORY);
    until("two messages", || world.kept.messages.lock().len() == 2);
    world.stop(flow);
    world.append("order-1", &["C"]);
    world.append("other-1", &["X"]);
    let flow = world.start(OF_CATEGORY);
    until("the third", || world.kept.messages.lock().len() >= 3);
    world.stop(flow);
    assert_eq!(world.kept.meta("event_type"), ["A", "B", "C"]);
}

#[test]
fn what_was_not_acked_comes_again() {
    let world = World::new();
    world.append("order-1", &["A", "B", "C"]);
    *world.kept.room.lock() = Some(1);
    let text = OF_CATEGORY.replace("order,", "order, batch_size: 1,");
    let flow = world.start(&text);
    until("the first", || world.kept.messages.lock().len() == 1);
    let handle = flow.handle();
    world.runtime.block_on(flow.stop(std::time::Duration::from_millis(50)));
    let report = handle.stop_report();
    assert!(report.unacknowledged > 0 || report.counts.out == 1, "{}", report.counts);
    assert_eq!(report.counts.dropped_total(), 0, "what comes again is not lost");
    *world.kept.room.lock() = None;
    let flow = world.start(&text);
    until("the others", || {
        world
            .kept
            .messages
            .lock()
            .iter()
            .any(|last| last.meta.get("event_type").as_deref() == Some("C"))
    });
    world.stop(flow);
    // An interrupted stop may repeat what was confirmed last; nothing is missing and the order is preserved.
    let mut kinds = world.kept.meta("event_type");
    kinds.dedup();
    assert_eq!(kinds, ["A", "B", "C"]);
}

#[test]
fn the_end_is_where_it_was_at_the_first_start() {
    let world = World::new();
    world.append("order-1", &["Old"]);
    let text = "input: {events: {all: true, from: end}}\noutput: {kept: {}}\n";
    let flow = world.start(text);
    // The checkpoint is stored at once; a stop before the first message changes nothing.
    world
        .runtime
        .block_on(async { tokio::time::sleep(std::time::Duration::from_millis(100)).await });
    world.stop(flow);
    world.append("order-1", &["Meanwhile"]);
    let flow = world.start(text);
    until("one message", || !world.kept.messages.lock().is_empty());
    world.stop(flow);
    assert_eq!(world.kept.meta("event_type"), ["Meanwhile"]);
}

#[test]
fn types_members_and_streams_choose_messages() {
    let world = World::new();
    for n in 0..6 {
        world.append(&format!("order-{n}"), &["Created", "Paid"]);
    }
    let read = |fields: &str, count: usize| {
        world.kept.messages.lock().clear();
        let flow = world.start(&format!("input: {{events: {{{fields}}}}}\noutput: {{kept: {{}}}}\n"));
        until(fields, || world.kept.messages.lock().len() >= count);
        world.stop(flow);
        world.kept.meta("event_stream")
    };
    assert_eq!(read("category: order, types: [Paid], checkpoint: types", 6).len(), 6);
    assert_eq!(
        read("stream: order-3, from: 1, checkpoint: stream", 1),
        ["order-3"],
        "from its second message"
    );
    let mut all = Vec::new();
    for (member, count) in [(0, 6), (1, 6)] {
        let of = |stream: &String| {
            let member_of = thalweg_events::names::GroupMember { number: member, of: 2 };
            member_of.owns(stream)
        };
        let wanted = (0..6).map(|n| format!("order-{n}")).filter(of).count() * 2;
        let fields = format!("category: order, consumer_group: {{member: {member}, size: 2}}, checkpoint: m{member}");
        let found = read(&fields, wanted);
        assert!(found.iter().all(of), "{found:?}");
        assert_eq!(found.len(), wanted, "of at most {count}");
        all.extend(found);
    }
    assert_eq!(all.len(), 12);
}

#[test]
fn a_checkpoint_of_something_else_is_not_used() {
    let world = World::new();
    world.append("order-1", &["A"]);
    let flow = world.start(OF_CATEGORY);
    until("one message", || world.kept.messages.lock().len() == 1);
    world.stop(flow);
    let flow = world.start("input: {events: {category: invoice, checkpoint: c}}\noutput: {kept: {}}\n");
    world.runtime.block_on(flow.ended());
    let report = world.stop(flow);
    let why = report.failure.unwrap_or_default();
    assert!(
        why.contains("the checkpoint c belongs to category order, but this input reads category invoice"),
        "{why}"
    );
}

#[test]
fn after_all_messages_were_removed_new_ones_are_read_from_the_start() {
    let world = World::new();
    world.append("order-1", &["A", "B"]);
    let flow = world.start(OF_CATEGORY);
    until("two messages", || world.kept.messages.lock().len() == 2);
    let namespace = world.namespace();
    world.runtime.block_on(namespace.clear()).unwrap();
    world.append("order-1", &["C"]);
    until("the new one", || world.kept.messages.lock().len() == 3);
    world.stop(flow);
    assert_eq!(world.kept.meta("event_type"), ["A", "B", "C"]);
}

#[test]
fn what_is_deleted_while_it_is_read_is_not_given_to_the_flow() {
    let world = World::new();
    world.append("order-1", &["A", "B"]);
    world.append("order-2", &["C"]);
    *world.deleted_after_read.lock() = Some("order-1".to_owned());
    let flow = world.start(OF_CATEGORY);
    until("the one of the other stream", || !world.kept.messages.lock().is_empty());
    world.append("order-1", &["D"]);
    until("the last one", || {
        world.kept.meta("event_type").contains(&"D".to_owned())
    });
    world.stop(flow);
    assert_eq!(world.kept.meta("event_type"), ["C", "D"]);
}
