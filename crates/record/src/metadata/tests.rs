use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn stamped() -> Metadata {
    let map = MetaMap::new(
        [
            ("b".into(), "1".into()),
            ("a".into(), "2".into()),
            ("e".into(), "".into()),
        ],
        Some(7),
    );
    Metadata::stamped(
        Arc::new(map),
        ValueQuality {
            source_time: Ticks(0),
            ..ValueQuality::NONE
        },
    )
}

#[test]
fn stamps_show_as_text_until_replaced_and_stay_typed() {
    let mut meta = stamped();
    assert_eq!(meta.get(key::SOURCE_TIMESTAMP).unwrap(), "1970-01-01T00:00:00.000000Z");
    assert_eq!(meta.get(key::SERVER_TIMESTAMP).unwrap(), "0001-01-01T00:00:00.000000Z");
    assert_eq!(meta.get(key::STATUS_CODE).unwrap(), STATUS_GOOD);
    meta.set(key::SOURCE_TIMESTAMP, "mine");
    meta.remove(key::SERVER_TIMESTAMP);
    assert_eq!(meta.get(key::SOURCE_TIMESTAMP).unwrap(), "mine");
    assert_eq!(meta.get(key::SERVER_TIMESTAMP), None);
    assert_eq!(meta.stamps().unwrap().source_time, Ticks(0));
}

fn marked() -> Metadata {
    let meta = stamped();
    let marks = QualityDetails::new(Some("0x480".into()), Some((Ticks(0), Ticks(10))));
    Metadata::marked(meta.shared.clone(), meta.all_stamps(), marks)
}

fn texts(meta: &Metadata) -> Vec<String> {
    meta.iter().map(|(key, text)| format!("{key}={text}")).collect()
}

#[test]
fn marks_show_as_text_and_stay_over_another_map() {
    let meta = marked();
    let marks = [
        "opcua_attr_statuscode=0x480",
        "opcua_gap=true",
        "opcua_gap_from=1970-01-01T00:00:00.000000Z",
        "opcua_gap_to=1970-01-01T00:00:00.000001Z",
    ];
    let seen = texts(&meta);
    assert_eq!(seen[2..6], marks);
    assert!(meta.is_marked() && !meta.is_changed());
    let mut changed = meta.clone();
    changed.set("b", "mine");
    let over = Arc::new(MetaMap::new([("o".into(), "1".into())], None));
    for meta in [&meta, &changed] {
        let other = meta.with_shared(over.clone());
        assert_eq!(texts(&other)[1..5], marks);
        assert!(other.is_marked() && !other.is_changed() && !other.contains("b"));
    }
    changed.clear();
    assert!(!changed.is_marked() && changed.iter().next().is_none());
}

#[test]
fn an_empty_text_of_a_status_is_none() {
    let marks = QualityDetails::new(Some(Text::default()), None);
    let meta = Metadata::marked(stamped().shared, ValueQuality::NONE, marks);
    assert!(!meta.is_marked());
    assert_eq!(meta.get(key::STATUS_CODE).unwrap(), STATUS_GOOD);
}

#[test]
fn no_two_maps_have_one_number() {
    let numbers = || {
        let maps = (0..10_000).map(|_| MetaMap::default().number());
        maps.collect::<Vec<_>>()
    };
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(numbers)).collect();
    let mut all = numbers();
    all.extend(threads.into_iter().flat_map(|thread| thread.join().unwrap()));
    all.sort_unstable();
    all.dedup();
    assert_eq!((all.len(), all.contains(&0)), (50_000, false));
}

#[test]
fn what_is_asked_of_a_map_lies_in_one_line_of_the_cache() {
    assert!(2 * size_of::<usize>() + size_of::<MetaMap>() <= 64);
}

#[test]
fn a_map_knows_its_lengths() {
    let map = |key: usize, text: usize| {
        let entries = [
            ("k".into(), "text".into()),
            ("x".repeat(key).into(), "y".repeat(text).into()),
        ];
        MetaMap::new(entries, None)
    };
    assert_eq!(map(30, 7).text_bytes(), 42);
    assert!(map(30, 7).is_within(30, 7) && !map(30, 7).is_within(29, 7) && !map(30, 7).is_within(30, 6));
    assert!(map(65_534, 7).is_within(1 << 20, 7) && !map(65_535, 7).is_within(1 << 20, 7));
    assert!(MetaMap::default().is_within(0, 0) && MetaMap::default().text_bytes() == 0);
}

#[test]
fn many_values_share_their_marks() {
    let (first, second) = (marked(), marked());
    let marks = QualityDetails(first.own.0.clone().unwrap());
    let third = Metadata::marked(second.shared.clone(), second.all_stamps(), marks.clone());
    assert!(QualityDetails(third.own.0.clone().unwrap()).is_same(&marks));
    assert_eq!(second, third);
}

#[test]
fn settled_metadata_has_the_same_texts_and_no_marks() {
    assert!(matches!(stamped().settled(), Cow::Borrowed(_)));
    let mut meta = marked();
    meta.set("a", "mine");
    meta.set(key::STATUS_CODE, "fine");
    meta.remove(key::GAP_FROM);
    let settled = meta.settled();
    assert_eq!(texts(&settled), texts(&meta));
    assert!(!settled.is_marked() && settled.stamps() == meta.stamps());
    let changes: Vec<_> = settled
        .changes()
        .map(|(key, text)| (key.as_str(), text.is_some()))
        .collect();
    let expected = [
        ("a", true),
        (key::STATUS_CODE, true),
        (key::GAP, true),
        (key::GAP_FROM, false),
        (key::GAP_TO, true),
    ];
    assert_eq!(changes, expected);
}

#[test]
fn setting_to_the_empty_text_removes() {
    let mut meta = stamped();
    meta.set("a", "");
    meta.set("new", "x");
    meta.set("new", "");
    assert!(!meta.contains("a") && !meta.contains("new") && meta.contains("b"));
    assert!(meta.get("e").is_none(), "an empty shared value is absent");
}

#[test]
fn a_map_counts_in_full_for_its_only_holder_and_is_shared_by_many() {
    let long = "x".repeat(100_000);
    let map = Arc::new(MetaMap::new([("k".into(), long.as_str().into())], None));
    let bytes = map.memory_bytes();
    assert!((100_000..100_200).contains(&bytes), "{bytes}");
    let only = Metadata::shared(map);
    assert_eq!(only.shared_bytes(), bytes);
    let many: Vec<Metadata> = (0..1000).map(|_| only.clone()).collect();
    let sum: usize = many.iter().map(Metadata::shared_bytes).sum();
    assert!((bytes - 1000..=2 * bytes).contains(&sum), "{sum} of {bytes}");
    drop(many);
    assert_eq!(only.shared_bytes(), bytes);
    assert_eq!(Metadata::default().shared_bytes(), 0);
}

proptest! {
    #[test]
    fn behaves_as_a_sorted_map(is_marked: bool, ops in prop::collection::vec((0usize..9, "[xy]?"), 0..40)) {
        let keys = [
            "a", "b", "c", key::SOURCE_TIMESTAMP, key::SERVER_TIMESTAMP, key::STATUS_CODE, "z", key::GAP, key::GAP_TO,
        ];
        let mut meta = if is_marked { marked() } else { stamped() };
        let mut model: BTreeMap<String, String> = meta.iter().map(|(k, v)| (k.to_owned(), v.into_owned())).collect();
        prop_assert_eq!(model.len(), if is_marked { 8 } else { 5 });
        for (k, v) in ops {
            meta.set(keys[k], v.as_str());
            if v.is_empty() { model.remove(keys[k]); } else { model.insert(keys[k].into(), v); }
            let expected: Vec<_> = model.clone().into_iter().collect();
            let settled = meta.settled();
            for meta in [&meta, settled.as_ref()] {
                let seen: Vec<_> = meta.iter().map(|(k, v)| (k.to_owned(), v.into_owned())).collect();
                prop_assert_eq!(&seen, &expected);
                for key in keys {
                    prop_assert_eq!(meta.get(key).map(Cow::into_owned), model.get(key).cloned());
                    prop_assert_eq!(meta.text(key), model.get(key).map(Text::from));
                    prop_assert_eq!(meta.contains(key), model.contains_key(key));
                }
            }
            prop_assert!(!settled.is_marked());
        }
    }

    #[test]
    fn setting_all_at_once_is_setting_each(
        is_marked: bool,
        before in prop::collection::vec((0u8..120, "[xy]?"), 0..20),
        entries in prop::collection::vec((0u8..120, "[xy]?"), 0..150),
    ) {
        let key = |n: u8| STAMPS.get(usize::from(n)).map_or_else(|| format!("{n:02x}"), |(key, _)| (*key).to_owned());
        let mut expected = if is_marked { marked() } else { stamped() };
        for (n, value) in before {
            expected.set(key(n), value);
        }
        let mut meta = expected.clone();
        let entries: Vec<(Text, Text)> = entries.into_iter().map(|(n, value)| (key(n).into(), value.into())).collect();
        for (key, value) in entries.clone() {
            expected.set(key, value);
        }
        meta.set_all(entries);
        prop_assert!(meta.iter().eq(expected.iter()));
        prop_assert!(meta.changes().eq(expected.changes()));
    }
}
