use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::{CodecError, MessageDecoder, MessageEncoder, NestingTooDeep, VERSION};
use crate::{
    Failure, Guid, Message, MetaMap, Metadata, Object, Payload, QualityDetails, SourceName, Structured, Text, Ticks,
    Value, ValueQuality, key,
};

fn text() -> impl Strategy<Value = Text> {
    // Not from regular expressions, which are slow to generate.
    let known = prop::sample::select(
        &[
            "",
            "a",
            "ab",
            "plant/line7/temperature",
            "plant/line7/pressure",
            "äöü€😀",
            "äöü€😁",
        ][..],
    );
    let any = prop::collection::vec(any::<char>(), 0..12).prop_map(|chars| chars.into_iter().collect::<String>());
    prop_oneof![known.prop_map(Text::from), any.prop_map(Text::from)]
}

fn bytes() -> impl Strategy<Value = Arc<[u8]>> {
    prop::collection::vec(any::<u8>(), 0..40).prop_map(Arc::from)
}

fn structured() -> impl Strategy<Value = Structured> {
    prop_oneof![
        (text(), text(), any::<u32>()).prop_map(|(node_id, namespace_uri, server_index)| Structured::ExpandedNodeId {
            node_id,
            namespace_uri,
            server_index
        }),
        (any::<u16>(), text()).prop_map(|(namespace_index, name)| Structured::QualifiedName { namespace_index, name }),
        (prop::option::of(text()), prop::option::of(text()))
            .prop_map(|(locale, text)| Structured::LocalizedText { locale, text }),
        (text(), bytes()).prop_map(|(type_id, body)| Structured::Extension { type_id, body }),
    ]
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i8>().prop_map(Value::I8),
        any::<u8>().prop_map(Value::U8),
        any::<i16>().prop_map(Value::I16),
        any::<u16>().prop_map(Value::U16),
        any::<i32>().prop_map(Value::I32),
        any::<u32>().prop_map(Value::U32),
        any::<i64>().prop_map(Value::I64),
        any::<u64>().prop_map(Value::U64),
        any::<u32>().prop_map(|bits| Value::F32(f32::from_bits(bits))),
        any::<u64>().prop_map(|bits| Value::F64(f64::from_bits(bits))),
        any::<(i64, u64)>().prop_map(|(n, digits)| Value::Decimal(format!("{n}.{digits}0").into())),
        text().prop_map(Value::Text),
        bytes().prop_map(Value::Bytes),
        any::<i64>().prop_map(|ticks| Value::Time(Ticks(ticks))),
        any::<(u32, u16, u16, [u8; 8])>().prop_map(|(data1, data2, data3, data4)| Value::Guid(Guid {
            data1,
            data2,
            data3,
            data4
        })),
        any::<u32>().prop_map(Value::Status),
        text().prop_map(Value::Xml),
        text().prop_map(Value::NodeId),
        structured().prop_map(|structured| Value::Structured(Arc::new(structured))),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(|values| Value::Array(values.into())),
            prop::collection::vec((text(), inner), 0..20)
                .prop_map(|members| Value::Object(Arc::new(members.into_iter().collect::<Object>()))),
        ]
    })
}

fn payload() -> impl Strategy<Value = Payload> {
    prop_oneof![
        bytes().prop_map(|bytes| Payload::Raw(Bytes::copy_from_slice(&bytes))),
        value().prop_map(Payload::Value),
        (value(), any::<i64>()).prop_map(|(value, time_ms)| Payload::Sample { value, time_ms }),
    ]
}

const KEYS: [&str; 9] = [
    "a",
    "b",
    "c",
    "path",
    key::SOURCE_TIMESTAMP,
    key::SERVER_TIMESTAMP,
    key::STATUS_CODE,
    key::GAP_FROM,
    key::UMH_TOPIC,
];

fn pairs() -> impl Strategy<Value = Vec<(Text, Text)>> {
    prop::collection::vec((prop::sample::select(&KEYS[..]).prop_map(Text::from), text()), 0..8)
}

fn map() -> impl Strategy<Value = Arc<MetaMap>> {
    (pairs(), prop::option::of(any::<u64>())).prop_map(|(entries, series)| Arc::new(MetaMap::new(entries, series)))
}

fn stamps() -> impl Strategy<Value = Option<ValueQuality>> {
    let time = || {
        prop_oneof![
            Just(Ticks::MISSING),
            (0..3_000_000_i64).prop_map(Ticks),
            any::<i64>().prop_map(Ticks)
        ]
    };
    prop::option::of((time(), time(), prop_oneof![Just(0), any::<u32>()]).prop_map(
        |(source_time, server_time, status)| ValueQuality {
            source_time,
            server_time,
            status,
        },
    ))
}

fn marks() -> impl Strategy<Value = Option<QualityDetails>> {
    let time = || any::<i64>().prop_map(Ticks);
    let gap = prop::option::of((time(), time()));
    prop::option::weighted(
        0.3,
        (prop::option::of(text()), gap).prop_map(|(status, gap)| QualityDetails::new(status, gap)),
    )
}

/// Messages several of which share a map, like those of a tag.
fn messages() -> impl Strategy<Value = Vec<Message>> {
    let failure = prop::option::of((text(), text()));
    let source = prop::option::of(prop::sample::select(
        &["press", "oven", "root.input.broker.inputs.0"][..],
    ));
    let message = (
        any::<prop::sample::Index>(),
        (stamps(), marks()),
        pairs(),
        any::<bool>(),
        payload(),
        failure,
        source,
    );
    (
        prop::collection::vec(map(), 1..5),
        prop::collection::vec(message, 0..20),
    )
        .prop_map(|(maps, messages)| {
            let made = messages
                .into_iter()
                .map(|(at, stamps, changes, cleared, payload, failure, source)| {
                    let shared = maps[at.index(maps.len())].clone();
                    let mut meta = match stamps {
                        (Some(stamps), Some(marks)) => Metadata::marked(shared, stamps, marks),
                        (Some(stamps), None) => Metadata::stamped(shared, stamps),
                        (None, _) => Metadata::shared(shared),
                    };
                    if cleared && changes.len() > 5 {
                        meta.clear();
                    }
                    changes.into_iter().for_each(|(key, text)| meta.set(key, text));
                    let failure = failure.map(|(stage, error)| Arc::new(Failure { stage, error }));
                    Message {
                        payload,
                        meta,
                        failure,
                        source: source.map(SourceName::new).unwrap_or_default(),
                    }
                });
            made.collect()
        })
}

fn parcel(messages: &[Message]) -> Bytes {
    let mut encoder = MessageEncoder::default();
    messages.iter().for_each(|message| encoder.push(message).unwrap());
    assert_eq!(encoder.count(), messages.len());
    let parcel = encoder.finish();
    assert_eq!((encoder.count(), encoder.bytes()), (0, 0));
    parcel.into()
}

/// Everything about a message, as text. Two NaNs with different bits look alike, and quality details appear as changes.
fn shown(message: &Message) -> String {
    let settled = message.meta.settled();
    let meta = settled.parts();
    let changes: Vec<_> = settled.changes().collect();
    let shared = (meta.shared.entries(), meta.shared.series());
    let stamps = (meta.stamps, meta.shown, meta.stamped);
    format!(
        "{:?}",
        (
            &message.payload,
            shared,
            stamps,
            changes,
            &message.failure,
            message.source.get()
        )
    )
}

/// Equal to the last bit: bits of floats are compared by encoding them again.
fn assert_same(found: &[Message], expected: &[Message]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(shown(found), shown(expected));
        assert_eq!(found.series(), expected.series());
        // Encoded alone, because sharing with earlier messages depends on shared memory too.
        let alone = |message: &Message| parcel(std::slice::from_ref(message));
        assert!(alone(found) == alone(expected));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_message_comes_out_as_it_went_in(messages in messages()) {
        assert_same(&MessageDecoder::new(1 << 20).decode(&parcel(&messages)).unwrap(), &messages);
    }

    #[test]
    fn a_parcel_that_is_cut_off_is_refused_at_its_end(messages in messages(), cut: prop::sample::Index) {
        let parcel = parcel(&messages);
        let cut = cut.index(parcel.len());
        let error = MessageDecoder::new(1 << 20).decode(&parcel.slice(..cut)).unwrap_err();
        prop_assert!(matches!(error, CodecError::Damaged { at, .. } if at <= cut), "{}", error);
    }

    #[test]
    fn a_parcel_with_a_wrong_byte_is_refused_or_reads_as_other_messages(
        messages in messages(), place: prop::sample::Index, byte: u8,
    ) {
        let mut wrong = parcel(&messages).to_vec();
        let place = place.index(wrong.len());
        wrong[place] = byte;
        if let Ok(read) = MessageDecoder::new(1 << 20).decode(&wrong.into()) {
            let again = parcel(&read);
            assert_same(&MessageDecoder::new(1 << 20).decode(&again).unwrap(), &read);
        }
    }

    #[test]
    fn any_bytes_are_messages_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = VERSION;
        }
        if let Err(CodecError::Damaged { at, .. }) = MessageDecoder::new(1 << 20).decode(&bytes.clone().into()) {
            prop_assert!(at <= bytes.len());
        }
    }
}

fn tag(n: u64) -> Arc<MetaMap> {
    let entries = [
        (
            "opcua_node_id".into(),
            format!("ns=2;s=Plant.Line7.Pump{n}.Temperature").into(),
        ),
        (
            "opcua_attr_nodeid".into(),
            format!("ns=2;s=Plant.Line7.Pump{n}.Temperature").into(),
        ),
        ("opcua_tag_path".into(), format!("Plant.Line7.Pump{n}").into()),
        ("opcua_tag_group".into(), "Plant.Line7".into()),
        ("opcua_attr_datatype".into(), "float64".into()),
        ("opcua_attr_browsename".into(), "Temperature".into()),
        (
            "opcua_attr_description".into(),
            "temperature of the pump in degrees Celsius".into(),
        ),
    ];
    Arc::new(MetaMap::new(entries, Some(n)))
}

fn sample(map: &Arc<MetaMap>, n: i64) -> Message {
    let stamps = ValueQuality {
        source_time: Ticks(17_000_000_000_000_000 + n * 10_000),
        server_time: Ticks(17_000_000_000_000_000 + n * 10_000 + 700),
        status: 0,
    };
    Message::new(
        Payload::Value(Value::F64(n as f64 * 0.1)),
        Metadata::stamped(map.clone(), stamps),
    )
}

#[test]
fn messages_of_a_tag_share_one_map_over_all_parcels() {
    let maps: Vec<_> = (0..50).map(tag).collect();
    let mut decoder = MessageDecoder::new(1 << 20);
    let mut read = |from: i64| {
        let messages: Vec<_> = maps.iter().map(|map| sample(map, from)).collect();
        decoder.decode(&parcel(&messages)).unwrap()
    };
    let (first, second) = (read(1), read(2));
    for (first, second) in first.iter().zip(&second) {
        assert!(Arc::ptr_eq(first.meta.shared_map(), second.meta.shared_map()));
    }
    assert!(!Arc::ptr_eq(first[0].meta.shared_map(), first[1].meta.shared_map()));
}

#[test]
fn a_message_of_a_known_tag_takes_few_bytes_and_one_of_a_new_tag_not_many() {
    let map = tag(1);
    let same: Vec<_> = (0..1000).map(|n| sample(&map, n)).collect();
    let bytes = parcel(&same).len();
    assert!(bytes < 22 * 1000, "{bytes}");
    let each: Vec<_> = (0..1000).map(|n| sample(&tag(n as u64), n)).collect();
    let bytes = parcel(&each).len();
    assert!(bytes < 110 * 1000, "{bytes}");
}

#[test]
fn texts_that_refer_to_each_other_cost_no_more_than_is_allowed() {
    let long = "x".repeat(1 << 20);
    let messages: Vec<_> = (0..40)
        .map(|n| {
            let mut message = Message::raw("");
            message.meta.set("long", format!("{long}{n}"));
            message
        })
        .collect();
    let honest = parcel(&messages);
    assert!(
        honest.len() > 7 << 20,
        "beyond the limit texts are written out: {}",
        honest.len()
    );
    let read = MessageDecoder::new(0).decode(&honest).unwrap();
    let own = |message: &Message| message.meta.get("long").map(|text| text.into_owned());
    assert!(read.iter().map(own).eq(messages.iter().map(own)));
    // A map with one long text, then maps with the same one.
    let mut hostile = vec![VERSION, 120, 0, 1, 0, 1, 0, 1, b'k'];
    hostile.extend([0x80, 0x80, 0x40]);
    hostile.extend(long.as_bytes());
    hostile.extend([0, 0]);
    for n in 2..40 {
        hostile.extend([0, n, 0, 1, 3, 0, 0]);
    }
    let error = MessageDecoder::new(0).decode(&hostile.into()).unwrap_err();
    assert!(
        error.to_string().ends_with("texts refer to each other too often"),
        "{error}"
    );
}

#[test]
fn what_is_nested_too_deep_is_refused_and_leaves_the_parcel_as_it_was() {
    let mut encoder = MessageEncoder::default();
    encoder.push(&nested(super::DEPTH_MAX)).unwrap();
    assert_eq!(encoder.push(&nested(super::DEPTH_MAX + 1)), Err(NestingTooDeep));
    let read = MessageDecoder::new(0).decode(&encoder.finish().into()).unwrap();
    assert_same(&read, &[nested(super::DEPTH_MAX)]);
    let mut hostile = vec![VERSION, 1, 0, 0, 64 | 25, 1];
    hostile.extend([25, 1].repeat(100_000));
    let error = MessageDecoder::new(0).decode(&hostile.into()).unwrap_err();
    assert!(error.to_string().contains("nested too deep"), "{error}");
}

#[test]
fn another_version_is_told_apart_from_damage() {
    let error = MessageDecoder::new(0)
        .decode(&Bytes::from_static(&[VERSION + 1, 9, 9]))
        .unwrap_err();
    assert_eq!(error, CodecError::Version { found: VERSION + 1 });
    let error = MessageDecoder::new(0)
        .decode(&Bytes::from_static(&[VERSION, 1, 0, 0, 200]))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "byte 5 of the stored messages: the kind of a payload is unknown"
    );
}

/// Every later version reads what version 1 has written.
#[test]
fn the_first_version_is_read_for_ever() {
    let mut message = sample(&tag(7), 42);
    message.meta.set("own", "text");
    message.meta.remove("opcua_tag_group");
    let messages = [message, sample(&tag(8), 43)];
    let written = include_bytes!("fixture_1.bin");
    assert_same(
        &MessageDecoder::new(0).decode(&Bytes::from_static(written)).unwrap(),
        &messages,
    );
}

/// An operation on an encoder.
#[derive(Clone, Debug)]
enum Step {
    /// A message with this map, with changes or without.
    Push(usize, Vec<(Text, Text)>, Option<QualityDetails>),
    /// A message whose map no other message has.
    PushAlone(Vec<(Text, Text)>),
    TooDeep(usize),
    /// A map is dropped and replaced by another one.
    Renew(usize, Vec<(Text, Text)>),
    /// The same messages in the same order once more.
    Repeat,
    Finish,
    Clear,
}

const MAPS: usize = 5;

fn step() -> impl Strategy<Value = Step> {
    let changes = || prop_oneof![3 => Just(Vec::new()), 1 => pairs()];
    prop_oneof![
        20 => (0..MAPS, changes(), marks()).prop_map(|(map, changes, marks)| Step::Push(map, changes, marks)),
        2 => pairs().prop_map(Step::PushAlone),
        1 => (0..MAPS).prop_map(Step::TooDeep),
        1 => (0..MAPS, pairs()).prop_map(|(map, entries)| Step::Renew(map, entries)),
        3 => Just(Step::Repeat),
        6 => Just(Step::Finish),
        1 => Just(Step::Clear),
    ]
}

fn nested(depth: usize) -> Message {
    let value = (0..depth).fold(Value::Null, |inner, _| Value::from(vec![inner]));
    Message::new(Payload::Value(value), Metadata::default())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// With a sufficient copy budget, and with one that runs out in the middle of a map.
    #[test]
    fn an_encoder_that_knows_maps_writes_what_a_new_one_writes(
        maps in prop::collection::vec(map(), MAPS..=MAPS),
        steps in prop::collection::vec(step(), 0..150),
        copied_bytes_max in prop_oneof![0..300_usize, Just(1 << 20)],
    ) {
        let mut maps = maps;
        let (mut old, mut new) = (MessageEncoder::within(copied_bytes_max), MessageEncoder::within(copied_bytes_max));
        let mut pushed: Vec<Message> = Vec::new();
        for step in steps {
            match step {
                Step::Push(map, changes, marks) => {
                    let meta = match marks {
                        Some(marks) => Metadata::marked(maps[map].clone(), ValueQuality::NONE, marks),
                        None => Metadata::shared(maps[map].clone()),
                    };
                    let mut message = Message::new(Payload::Value(Value::Null), meta);
                    changes.into_iter().for_each(|(key, text)| message.meta.set(key, text));
                    prop_assert_eq!(old.push(&message), new.push(&message));
                    pushed.push(message);
                }
                Step::PushAlone(entries) => {
                    let meta = Metadata::shared(Arc::new(MetaMap::new(entries, None)));
                    let message = Message::new(Payload::Value(Value::Null), meta);
                    prop_assert_eq!(old.push(&message), new.push(&message));
                }
                Step::TooDeep(map) => {
                    let mut message = nested(super::DEPTH_MAX + 1);
                    message.meta = Metadata::shared(maps[map].clone());
                    prop_assert_eq!(old.push(&message), Err(NestingTooDeep));
                }
                Step::Renew(map, entries) => {
                    pushed.clear();
                    maps[map] = Arc::new(MetaMap::default());
                    maps[map] = Arc::new(MetaMap::new(entries, None));
                }
                Step::Repeat => {
                    prop_assert!(old.finish() == new.finish());
                    new = MessageEncoder::within(copied_bytes_max);
                    for message in &pushed {
                        prop_assert_eq!(old.push(message), new.push(message));
                    }
                }
                Step::Finish => {
                    prop_assert_eq!((old.count(), old.bytes()), (new.count(), new.bytes()));
                    let parcel = old.finish();
                    prop_assert!(parcel == new.finish());
                    MessageDecoder::new(1 << 20).decode(&parcel.into()).unwrap();
                    new = MessageEncoder::within(copied_bytes_max);
                }
                Step::Clear => {
                    old.clear();
                    new = MessageEncoder::within(copied_bytes_max);
                }
            }
        }
        prop_assert!(old.finish() == new.finish());
    }
}
