use super::*;
use thalweg_record::{Stamps, Ticks, Value};

fn table() -> SeriesTable {
    let mut table = SeriesTable::default();
    table.set_room(1 << 20);
    table
}

fn source() -> Arc<str> {
    "plant".into()
}

/// Entries, the tag they name, and how many of them have no column of their own.
type Case = (&'static [(&'static str, &'static str)], Option<&'static str>, usize);

fn map(entries: &[(&str, &str)]) -> Arc<MetaMap> {
    Arc::new(MetaMap::new(
        entries.iter().map(|(k, v)| (Text::from(*k), Text::from(*v))),
        None,
    ))
}

fn message(meta: Metadata) -> Message {
    Message::new(thalweg_record::Payload::Value(Value::I64(1)), meta)
}

fn stamped(shared: &Arc<MetaMap>, status: u32) -> Metadata {
    Metadata::stamped(
        shared.clone(),
        Stamps {
            source_time: Ticks(1),
            server_time: Ticks(2),
            status,
        },
    )
}

fn found(table: &mut SeriesTable, meta: Metadata) -> (Arc<Series>, Option<i64>) {
    let (slot, time) = table.find(&source(), &message(meta));
    (table.slot(slot).unwrap().series.clone(), time)
}

fn attributes(series: &Series) -> Vec<(&str, &str)> {
    series
        .attributes
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect()
}

#[test]
fn the_tag_is_the_topic_else_the_opc_ua_path_else_the_mqtt_topic() {
    let cases: [Case; 7] = [
        (
            &[
                ("umh_topic", "umh.v1.a._c.t"),
                ("opcua_tag_path", "A.B"),
                ("opcua_tag_name", "T"),
            ],
            Some("umh.v1.a._c.t"),
            2,
        ),
        (
            &[
                ("opcua_tag_path", "A.B"),
                ("opcua_tag_group", "A.B"),
                ("opcua_tag_name", "T"),
            ],
            Some("A.B.T"),
            3,
        ),
        (&[("opcua_tag_group", "T"), ("opcua_tag_name", "T")], Some("T"), 1),
        (&[("opcua_attr_nodeid", "ns=2;i=1")], Some("ns=2;i=1"), 0),
        (&[("mqtt_topic", "a/b"), ("x", "1")], Some("a/b"), 1),
        (&[("x", "1"), ("unit", "m")], None, 1),
        (&[], None, 0),
    ];
    for (entries, tag, others) in cases {
        let mut table = table();
        let (series, _) = found(&mut table, Metadata::shared(map(entries)));
        assert_eq!(series.tag.as_deref(), tag);
        assert_eq!(series.attributes.len(), others, "{entries:?}");
        assert_eq!(series.tag_id, tag_id("plant", tag));
    }
    assert_ne!(
        tag_id("ab", Some("c")),
        tag_id("a", Some("bc")),
        "lengths are part of the hash"
    );
}

#[test]
fn stamps_are_no_attributes_unless_a_script_wrote_them() {
    let mut table = table();
    let shared = map(&[("a", "1")]);
    let plain = found(&mut table, stamped(&shared, 0)).0;
    assert_eq!(attributes(&plain), [("a", "1")]);

    let mut bad = stamped(&shared, 0x8000_0000);
    bad.set(key::STATUS_CODE, "Bad. StatusBad (0x80000000)");
    assert!(
        Arc::ptr_eq(&found(&mut table, bad).0, &plain),
        "the status has its own column"
    );
    let mut hidden = stamped(&shared, 0);
    hidden.remove(key::SOURCE_TIMESTAMP);
    assert!(Arc::ptr_eq(&found(&mut table, hidden).0, &plain));

    let mut replaced = stamped(&shared, 0);
    replaced.set(key::STATUS_CODE, "fine");
    replaced.set(key::SOURCE_TIMESTAMP, "noon");
    let replaced = found(&mut table, replaced).0;
    assert_eq!(
        attributes(&replaced),
        [("a", "1"), (key::STATUS_CODE, "fine"), (key::SOURCE_TIMESTAMP, "noon")]
    );
}

#[test]
fn the_explicit_time_is_no_attribute_but_a_text_is() {
    let mut table = table();
    let shared = map(&[("a", "1")]);
    for time in ["17", "-3"] {
        let mut meta = stamped(&shared, 0);
        meta.set(EXPLICIT_TIME, time);
        let (series, explicit) = found(&mut table, meta);
        assert_eq!((attributes(&series).len(), explicit), (1, time.parse().ok()));
    }
    let in_shared = Metadata::shared(map(&[(EXPLICIT_TIME, "5")]));
    assert_eq!(found(&mut table, in_shared).1, Some(5));
    let mut text = stamped(&shared, 0);
    text.set(EXPLICIT_TIME, "soon");
    let (series, explicit) = found(&mut table, text);
    assert_eq!(
        (attributes(&series), explicit),
        (vec![("a", "1"), (EXPLICIT_TIME, "soon")], None)
    );
}

#[test]
fn a_series_is_known_by_pointer_and_by_content() {
    let mut table = table();
    let shared = map(&[("umh_topic", "t"), ("a", "1")]);
    let first = found(&mut table, stamped(&shared, 0)).0;
    assert!(Arc::ptr_eq(&found(&mut table, stamped(&shared, 0)).0, &first));
    let equal = map(&[("umh_topic", "t"), ("a", "1")]);
    assert!(
        Arc::ptr_eq(&found(&mut table, stamped(&equal, 0)).0, &first),
        "another map with equal content"
    );
    let mut changed = stamped(&shared, 0);
    changed.set("a", "2");
    let changed = found(&mut table, changed).0;
    assert_eq!(attributes(&changed), [("a", "2")]);
    assert_eq!(changed.tag_id, first.tag_id);
    let mut removed = stamped(&shared, 0);
    removed.remove("a");
    assert_eq!(found(&mut table, removed).0.attributes.len(), 0);
    let other_source: Arc<str> = "other".into();
    let (slot, _) = table.find(&other_source, &message(stamped(&shared, 0)));
    assert_ne!(table.slot(slot).unwrap().series.tag_id, first.tag_id);
}

#[test]
fn maps_of_single_messages_are_not_kept() {
    let mut table = table();
    for i in 0..100 {
        found(
            &mut table,
            Metadata::shared(map(&[("a", "1"), ("n", &(i % 2).to_string())])),
        );
    }
    assert_eq!((table.slots.len(), table.aliases.len()), (2, 0));
    assert!(table.bytes() > 0);
}

#[test]
fn a_message_over_a_limit_is_refused_with_the_limit() {
    let limits = RowLimits {
        attributes_max: 2,
        attribute_name_bytes_max: 5,
        attribute_value_bytes_max: 5,
        value_bytes_max: 9,
    };
    for (entries, code) in [
        (&[("a", "1"), ("b", "1"), ("c", "1")][..], "too_many_attributes"),
        (&[("abcdef", "1")], "name_too_long"),
        (&[("a", "123456")], "value_too_long"),
    ] {
        let series = describe(&source(), &Metadata::shared(map(entries)));
        let error = series.check(&limits).unwrap_err();
        assert!(error.error.starts_with(code), "{}", error.error);
    }
    let none = [
        ("unit", "a long unit is none"),
        ("umh_topic", "nor is the tag"),
        ("a", "1"),
        ("b", "2"),
    ];
    assert!(
        describe(&source(), &Metadata::shared(map(&none)))
            .check(&limits)
            .is_ok()
    );
}

#[test]
fn where_there_is_no_room_those_that_are_known_stay_until_nobody_sends_them() {
    let maps: Vec<_> = (0..100)
        .map(|n| map(&[("umh_topic", &format!("t{n}")), ("a", "1")]))
        .collect();
    let mut table = table();
    found(&mut table, Metadata::shared(maps[0].clone()));
    let of_one = table.bytes();
    table.set_room(of_one * 10);
    let turn = |table: &mut SeriesTable, maps: &[Arc<MetaMap>]| {
        for (n, map) in (0..).zip(maps) {
            let series = found(table, Metadata::shared(map.clone())).0;
            assert_eq!(series.attributes.iter().count(), 1, "{n}");
        }
        let before = table.bytes();
        table.set_room(of_one * 10);
        (before, table.slots.len())
    };
    let (bytes, kept) = turn(&mut table, &maps);
    assert!(
        bytes < of_one * 12 && (5..20).contains(&kept),
        "{bytes} bytes, {kept} kept"
    );
    // The first ones are still known after all others came, and others take their place when they come no more.
    let first = table.aliases.len();
    found(&mut table, Metadata::shared(maps[0].clone()));
    assert_eq!((table.aliases.len(), table.passing.is_some()), (first, true));
    for _ in 0..10 {
        turn(&mut table, &maps[50..]);
    }
    let index = table.find(&source(), &message(Metadata::shared(maps[50].clone()))).0;
    assert_ne!(index, PASSING);
}
