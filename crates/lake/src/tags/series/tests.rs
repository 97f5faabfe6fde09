use thalweg_record::{Ticks, ValueQuality};

use super::cache::TagSeriesMatch;
use super::*;
use crate::tags::TagRowLimits;
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::tables::TAGS;

fn table() -> TagSeriesCache {
    let mut table = TagSeriesCache::default();
    table.set_room(1 << 20);
    table
}

fn source() -> Arc<str> {
    "plant".into()
}

/// Entries, their tag, and the number of entries without a fixed column.
type Case = (&'static [(&'static str, &'static str)], Option<&'static str>, usize);

fn map(entries: &[(&str, &str)]) -> Arc<MetaMap> {
    Arc::new(MetaMap::new(
        entries.iter().map(|(k, v)| (Text::from(*k), Text::from(*v))),
        None,
    ))
}

fn stamped(shared: &Arc<MetaMap>, status: u32) -> Metadata {
    Metadata::stamped(
        shared.clone(),
        ValueQuality {
            source_time: Ticks(1),
            server_time: Ticks(2),
            status,
        },
    )
}

fn find(table: &mut TagSeriesCache, meta: &Metadata) -> TagSeriesMatch {
    table.find(&source(), meta).0
}

/// The series of recurring messages whose map is kept by the input.
fn found(table: &mut TagSeriesCache, meta: Metadata) -> (Arc<TagSeries>, Option<i64>) {
    let _of_input = meta.shared_map().clone();
    for _ in 0..5 {
        let (found, time) = table.find(&source(), &meta);
        if matches!(found, TagSeriesMatch::Known(_)) {
            return (table.series(found).unwrap().clone(), time);
        }
    }
    panic!("{meta:?} is never known");
}

fn attributes(series: &TagSeries) -> Vec<(&str, &str)> {
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
    let of_other = [(); 2].map(|()| table.find(&other_source, &stamped(&shared, 0)).0);
    assert_eq!(of_other[0], TagSeriesMatch::Passing);
    assert_ne!(table.series(of_other[1]).unwrap().tag_id, first.tag_id);
}

#[test]
fn the_same_map_with_stamps_and_without_is_two_series() {
    let mut table = table();
    let shared = map(&[("a", "1"), (key::STATUS_CODE, "fine")]);
    let bare = found(&mut table, Metadata::shared(shared.clone())).0;
    assert_eq!(attributes(&bare).len(), 2);
    let with_stamps = found(&mut table, stamped(&shared, 0)).0;
    assert_eq!(attributes(&with_stamps), [("a", "1")], "the stamp lies over it");
}

/// Messages with unique metadata: in an unshared map, in a map that is kept elsewhere for a while, or as a change.
#[test]
fn what_comes_once_is_not_remembered_and_takes_no_room_from_what_comes_again() {
    let mut table = table();
    let tag = map(&[("umh_topic", "t"), ("a", "1")]);
    found(&mut table, Metadata::shared(tag.clone()));
    let known = table.counts();
    assert_eq!(known, (1, 1, 1));
    let mut held = Vec::new();
    for n in 0..20_000 {
        // The names differ, too, so that no two have the same layout.
        let (name, text) = (
            format!("name {n}"),
            format!("a text that is not short, and has a number: {n}"),
        );
        let own = [("umh_topic", "t"), (name.as_str(), text.as_str())];
        let alone = Metadata::shared(map(&own));
        assert_eq!(find(&mut table, &alone), TagSeriesMatch::Passing);
        let shared = map(&own);
        assert_eq!(
            find(&mut table, &Metadata::shared(shared.clone())),
            TagSeriesMatch::Passing
        );
        held.push(shared);
        let mut changed = Metadata::shared(tag.clone());
        changed.set(name.as_str(), text.as_str());
        assert!(matches!(find(&mut table, &changed), TagSeriesMatch::Changed(_)));
        changed.set("umh_topic", text.as_str());
        assert_eq!(find(&mut table, &changed), TagSeriesMatch::Passing, "it is another tag");
        table.set_room(1 << 20);
    }
    assert_eq!(table.counts(), known);
    assert!(matches!(
        find(&mut table, &Metadata::shared(tag.clone())),
        TagSeriesMatch::Known(_)
    ));
}

#[test]
fn few_kinds_of_changes_are_series_and_many_are_not() {
    let mut table = table();
    let tag = map(&[("umh_topic", "t"), ("a", "1")]);
    found(&mut table, Metadata::shared(tag.clone()));
    for _ in 0..10 {
        for n in 0..100 {
            let mut changed = Metadata::shared(tag.clone());
            changed.set("n", n.to_string());
            assert_ne!(find(&mut table, &changed), TagSeriesMatch::Passing);
        }
    }
    assert_eq!(table.counts().0, 3);
}

/// There are more names than columns, so most attributes go to the list of extras.
#[test]
fn tens_of_thousands_of_names_cost_what_they_are() {
    const NAMES: usize = 30_000;
    let names: Vec<String> = (0..NAMES).map(|n| format!("name {n:05}")).collect();
    let shared = map(&names.iter().map(|name| (name.as_str(), "x")).collect::<Vec<_>>());
    let mut table = TagSeriesCache::default();
    table.set_room(64 << 20);
    let mut chunk = MemtableChunk::new(&TAGS);
    let mut changed = Metadata::shared(shared.clone());
    changed.set("name 02000", "changed");
    let mut ways = Vec::new();
    for meta in [&Metadata::shared(shared.clone()), &changed] {
        for _ in 0..5 {
            let found = find(&mut table, meta);
            let row = chunk.begin_row();
            table.put(found, &source(), meta, row, &mut chunk);
            ways.push(found);
        }
    }
    for way in [
        TagSeriesMatch::Passing,
        TagSeriesMatch::Known(0),
        TagSeriesMatch::Changed(0),
        TagSeriesMatch::Known(1),
    ] {
        assert!(ways.contains(&way), "{way:?} is not among {ways:?}");
    }
    let columns = chunk.slots().all().len();
    assert_eq!(chunk.extras().len(), ways.len() * (NAMES - columns));
    for (row, _) in ways.iter().enumerate() {
        for (name, text) in [
            ("name 00001", "x"),
            ("name 29999", "x"),
            ("name 02000", if row < 5 { "x" } else { "changed" }),
        ] {
            let column = chunk.attribute(AttributeSource::Attr, name).unwrap();
            assert_eq!(column.text_of(row), Some(text.as_bytes()), "{name} of row {row}");
        }
    }
}

#[test]
fn a_message_over_a_limit_is_refused_with_the_limit() {
    let limits = TagRowLimits {
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
        let error = limits.check(&Metadata::shared(map(entries))).unwrap_err();
        assert!(error.error.starts_with(code), "{}", error.error);
    }
    let none = [
        ("unit", "a long unit is none"),
        ("umh_topic", "nor is the tag"),
        ("a", "1"),
        ("b", "2"),
    ];
    assert!(limits.check(&Metadata::shared(map(&none))).is_ok());
    // Stamps have columns, but a text that replaces one does not.
    let mut full = stamped(&map(&[("a", "1"), ("b", "2"), (key::STATUS_CODE, "x")]), 0);
    assert!(limits.check(&full).is_ok());
    full.set(key::STATUS_CODE, "fine");
    assert!(limits.check(&full).is_err());
}

#[test]
fn where_there_is_no_room_those_that_are_known_stay_until_nobody_sends_them() {
    const ROOM: usize = 16 << 10;
    let of_tag = |n: usize| map(&[("umh_topic", &format!("t{n}")), ("a", "1")]);
    let maps: Vec<_> = (0..100).map(of_tag).collect();
    let mut table = TagSeriesCache::default();
    table.set_room(ROOM);
    let known = |table: &mut TagSeriesCache, maps: &[Arc<MetaMap>]| {
        let ways = maps.iter().map(|map| find(table, &Metadata::shared(map.clone())));
        let known = ways.filter(|way| matches!(way, TagSeriesMatch::Known(_))).count();
        assert!(table.bytes() <= ROOM + ROOM / 4, "{} bytes", table.bytes());
        table.set_room(ROOM);
        known
    };
    for _ in 0..5 {
        known(&mut table, &maps);
    }
    let kept = known(&mut table, &maps);
    assert!((5..60).contains(&kept), "{kept} of 100 are known");
    // Cached series stay after all others came, and are replaced when they do not recur.
    assert_eq!(known(&mut table, &maps), kept);
    let others: Vec<_> = (100..120).map(of_tag).collect();
    for _ in 0..200 {
        known(&mut table, &others);
    }
    assert!(known(&mut table, &others) > others.len() / 2);
}
