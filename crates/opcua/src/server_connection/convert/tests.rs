//! What becomes of values and of notifications without one.

use super::super::items::{AcquisitionMode, MonitoringStage};
use super::*;
use crate::node_table::{DiscoveredNode, NodeKind};
use opcua::types::NodeId;

const OVERFLOW: u32 = 0x480;

fn setup(tags: u32) -> (Converter, ItemTable, Gaps) {
    setup_with(tags, false)
}

/// Tags whose nodes have the data type Double.
fn setup_with(tags: u32, passes_bad_values: bool) -> (Converter, ItemTable, Gaps) {
    let mut table = NodeTable::default();
    let mut items = ItemTable::default();
    for i in 0..tags {
        let found = DiscoveredNode {
            id: &NodeId::new(1, i),
            name: "Tag",
            class: NodeKind::Variable,
            parent: NO_NODE,
        };
        let node = table.add(&found).unwrap();
        table.set_attributes(node, Some(&NodeId::new(0, 11u32)), Some(1), None, usize::MAX);
        items.add(node, AcquisitionMode::Monitor);
    }
    let table = Arc::new(RwLock::new(table));
    let converter = Converter::new(table, TagGroupMode::Clean, passes_bad_values);
    (converter, items, Gaps::default())
}

/// A notification with a status and no value.
fn status_alone(handle: u32, time: i64, status: u32) -> ClientHandleValue {
    let (handle, mut notified) = value(handle, time, status);
    notified.content = ValueContent::Nothing;
    (handle, notified)
}

/// Text of the payload, status code, tag type and status text of each message.
fn told(converted: &ConvertedBatch) -> Vec<(String, u32, String, String)> {
    let one = |message: &Message| {
        let mut payload = String::new();
        message.payload.write_text(&mut payload);
        let meta = |key| message.meta.get(key).unwrap_or_default().into_owned();
        let status = message.meta.stamps().unwrap().status;
        (payload, status, meta(metadata::TAG_TYPE), meta("opcua_attr_statuscode"))
    };
    converted.messages.iter().map(one).collect()
}

#[test]
fn a_tag_that_turns_bad_without_a_value_is_a_message_where_it_is_wanted() {
    const NO_COMMUNICATION: u32 = 0x8031_0000;
    const INITIAL: u32 = 0x4092_0000;
    let notified = || {
        vec![
            status_alone(1, 1, INITIAL),
            value(1, 2, 0),
            status_alone(1, 3, NO_COMMUNICATION),
            value(1, 4, 0x480),
            // Good and no value: nothing is wrong with the tag.
            status_alone(1, 5, 0),
            status_alone(1, 6, 0x480),
        ]
    };
    let (mut converter, mut items, mut gaps) = setup_with(1, true);
    let converted = converter.convert(&mut notified(), &mut items, &mut gaps, ShardedMessages::new(1, 8));
    let told = told(&converted);
    let brief: Vec<(&str, u32, &str)> = told
        .iter()
        .map(|(payload, status, tag_type, _)| (payload.as_str(), *status, tag_type.as_str()))
        .collect();
    let expected = [
        ("null", INITIAL, "number"),
        ("1", 0, "number"),
        ("null", NO_COMMUNICATION, "number"),
        ("1", 0x480, "number"),
    ];
    assert_eq!(brief, expected);
    assert!(
        told[2].3.ends_with(" StatusBadNoCommunication (0x80310000)"),
        "{}",
        told[2].3
    );
    assert_eq!(told[3].3, "The operation succeeded. StatusGood (0x480)");
    assert_eq!((converted.bad_values, converted.without_value), (2, 2));
    assert_eq!(converted.entered(), 6);

    let (mut converter, mut items, mut gaps) = setup_with(1, false);
    let converted = converter.convert(&mut notified(), &mut items, &mut gaps, ShardedMessages::new(1, 8));
    assert_eq!(
        (converted.messages.len(), converted.bad_values, converted.without_value),
        (2, 0, 4)
    );
}

#[test]
fn a_guessed_type_gives_way_to_that_of_the_first_value() {
    let (mut converter, mut items, mut gaps) = setup_with(1, true);
    let text = |time| {
        let (handle, mut notified) = value(1, time, 0);
        notified.content = ValueContent::Value(Value::text("on"));
        (handle, notified)
    };
    let mut values = vec![
        status_alone(1, 1, 0x8000_0000),
        status_alone(1, 2, 0x8000_0000),
        text(3),
        status_alone(1, 4, 0x8000_0000),
        text(5),
    ];
    let converted = converter.convert(&mut values, &mut items, &mut gaps, ShardedMessages::new(1, 8));
    let types: Vec<String> = told(&converted)
        .into_iter()
        .map(|(_, _, tag_type, _)| tag_type)
        .collect();
    assert_eq!(types, ["number", "number", "string", "string", "string"]);
    let maps: Vec<_> = converted
        .messages
        .iter()
        .map(|message| message.meta.shared_map())
        .collect();
    assert!(Arc::ptr_eq(maps[0], maps[1]) && Arc::ptr_eq(maps[2], maps[3]) && Arc::ptr_eq(maps[3], maps[4]));
}

/// The value is the same as before, but nobody downstream knows it any more.
#[test]
fn the_first_value_after_a_lost_one_passes_every_deadband() {
    for passes_bad_values in [false, true] {
        let (mut converter, mut items, mut gaps) = setup_with(1, passes_bad_values);
        items.filter_here(0, crate::deadband::Deadband::DEFAULT, None);
        let mut values = vec![
            value(1, 1, 0),
            value(1, 2, 0),
            status_alone(1, 3, 0x8031_0000),
            value(1, 4, 0),
            value(1, 5, 0),
        ];
        let converted = converter.convert(&mut values, &mut items, &mut gaps, ShardedMessages::new(1, 8));
        let payloads: Vec<String> = told(&converted).into_iter().map(|(payload, ..)| payload).collect();
        let expected: &[&str] = match passes_bad_values {
            true => &["1", "null", "1"],
            false => &["1", "1"],
        };
        assert_eq!(
            (payloads, converted.suppressed),
            (expected.iter().map(ToString::to_string).collect(), 2)
        );
    }
}

fn value(handle: u32, time: i64, status: u32) -> ClientHandleValue {
    let stamps = ValueQuality {
        source_time: Ticks(time),
        status,
        ..ValueQuality::NONE
    };
    let value = DataValue {
        content: ValueContent::Value(Value::I32(1)),
        stamps,
        wrapped: false,
    };
    (handle, value)
}

#[test]
fn values_that_belong_to_no_tag_are_counted() {
    let (mut converter, mut items, mut gaps) = setup(3);
    items.set_way(1, AcquisitionMode::Nowhere);
    items.set_way(2, AcquisitionMode::Nowhere);
    if let Some(item) = items.get_mut(2) {
        // Failed temporarily, and retried later: its last response is a message.
        item.stage = MonitoringStage::Failed;
    }
    let mut values = [0, 1, 2, 3, 4, u32::MAX].map(|handle| value(handle, 1, 0)).to_vec();
    let converted = converter.convert(&mut values, &mut items, &mut gaps, ShardedMessages::new(1, 4));
    assert_eq!((converted.messages.len(), converted.unknown), (2, 4));
}

/// Three changes of each of two tags in one batch, a value without a time, and a notification without a value.
#[test]
fn values_of_a_batch_are_counted_by_their_own_times() {
    let (mut converter, mut items, mut gaps) = setup(2);
    let now = Ticks::now().0;
    let seconds = |n: i64| now - n * 10_000_000;
    let mut values: Vec<ClientHandleValue> = [1, 2]
        .into_iter()
        .flat_map(|handle| [30, 20, 10].map(|age| value(handle, seconds(age), 0)))
        .collect();
    values.push(value(1, Ticks::MISSING.0, 0));
    let mut none = value(2, seconds(5), 0x8000_0000);
    none.1.content = ValueContent::Nothing;
    values.push(none);
    let converted = converter.convert(&mut values, &mut items, &mut gaps, ShardedMessages::new(1, 8));
    assert_eq!((converted.messages.len(), converted.without_value), (7, 1));
    let ages: Vec<(Ticks, u64)> = converted.ages.iter().map(|aged| (aged.oldest, aged.values)).collect();
    assert_eq!(ages, [30, 20, 10].map(|age| (Ticks(seconds(age)), 2)));
    assert_eq!(converted.newest, Some(Ticks(seconds(10))));
}

#[test]
fn an_overflow_in_an_open_gap_is_marked_with_it() {
    let (mut converter, mut items, mut gaps) = setup(1);
    items.set_gap(
        &mut gaps,
        Gap {
            from: Ticks(100),
            to: Ticks(200),
        },
        |_| true,
    );
    let mut values = vec![value(1, 300, OVERFLOW), value(1, 400, 0)];
    let converted = converter.convert(&mut values, &mut items, &mut gaps, ShardedMessages::new(1, 4));
    let mark = |i: usize, key: &str| {
        converted
            .messages
            .iter()
            .nth(i)
            .unwrap()
            .meta
            .get(key)
            .map(|value| value.into_owned())
    };
    let text = |time: i64| Some(crate::value::ticks::micros_text(Ticks(time)));
    assert_eq!(
        (mark(0, "opcua_gap_from"), mark(0, "opcua_gap_to")),
        (text(100), text(300))
    );
    assert_eq!(mark(1, "opcua_gap"), None);
}
