use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use thalweg_record::{Payload, Ticks, Value, ValueQuality};

fn message(shared: &Arc<MetaMap>, own: &[(&str, &str)]) -> Message {
    let stamps = ValueQuality {
        source_time: Ticks(0),
        ..ValueQuality::NONE
    };
    let mut meta = Metadata::stamped(shared.clone(), stamps);
    for (key, value) in own {
        meta.set(*key, *value);
    }
    Message::new(Payload::Value(Value::Null), meta)
}

fn map(entries: &[(&str, &str)]) -> Arc<MetaMap> {
    Arc::new(MetaMap::new(
        entries.iter().map(|(k, v)| (Text::new(k), Text::new(v))),
        Some(9),
    ))
}

const PLACE: [(&str, &str); 3] = [("location_path", "a"), ("data_contract", "_c"), ("tag_name", "t")];

/// The expected result, without any sharing.
fn naive(meta: &Metadata) -> Result<BTreeMap<String, String>, DropReason> {
    let mut all: BTreeMap<String, String> = meta.iter().map(|(k, v)| (k.to_owned(), v.into_owned())).collect();
    all.retain(|key, _| !is_computed(key));
    let part = |key: &str| all.get(key).cloned().unwrap_or_default();
    if !missing_fields(meta).is_empty() {
        return Err(DropReason::MissingField);
    }
    let topic = topic::build(
        &part("location_path"),
        &part("data_contract"),
        &part("virtual_path"),
        &part("tag_name"),
    )
    .map_err(|_| DropReason::InvalidTopic)?;
    let path = topic::virtual_path(&part("virtual_path")).to_owned();
    all.remove("virtual_path");
    if !path.is_empty() {
        all.insert("virtual_path".into(), path);
    }
    all.insert("topic".into(), topic.clone());
    all.insert("umh_topic".into(), topic);
    Ok(all)
}

fn shown(meta: &Metadata) -> BTreeMap<String, String> {
    meta.iter().map(|(k, v)| (k.to_owned(), v.into_owned())).collect()
}

#[test]
fn messages_of_one_tag_share_their_result() {
    let mut results = MetadataCache::default();
    let input = map(&[("opcua_tag_name", "x"), ("_incomingKeys", "left over")]);
    let (first, _) = results.metadata(&message(&input, &PLACE)).unwrap();
    let (second, _) = results.metadata(&message(&input, &PLACE)).unwrap();
    assert!(Arc::ptr_eq(first.shared_map(), second.shared_map()));
    assert!(!second.is_changed());
    assert_eq!(second.shared_map().series(), Some(9));
    assert_eq!(second.get("umh_topic").unwrap(), "umh.v1.a._c.t");
    assert_eq!(second.get("topic").unwrap(), "umh.v1.a._c.t");
    assert!(!second.contains("_incomingKeys"));
    assert_eq!(
        second.get("opcua_source_timestamp").unwrap(),
        "1970-01-01T00:00:00.000000Z"
    );
}

#[test]
fn keys_that_keep_changing_stay_with_the_message() {
    let mut results = MetadataCache::default();
    let input = map(&[("a", "1")]);
    let mut maps = Vec::new();
    for i in 0..100 {
        let n = i.to_string();
        let message = message(
            &input,
            &[PLACE[0], PLACE[1], PLACE[2], ("counter", &n), ("timestamp_ms", &n)],
        );
        let (meta, hints) = results.metadata(&message).unwrap();
        assert_eq!(shown(&meta), naive(&message.meta).unwrap());
        assert!(hints.timed);
        maps.push(meta.shared_map().clone());
    }
    assert!(Arc::ptr_eq(&maps[20], &maps[99]));
    assert_eq!(results.changing.len(), 2);
}

#[test]
fn keys_made_up_without_end_are_passed_through() {
    let mut results = MetadataCache::default();
    let input = map(&[("a", "1"), ("_initialMetadata", "x")]);
    for i in 0..500 {
        let key = format!("key{i}");
        let message = message(&input, &[PLACE[0], PLACE[1], PLACE[2], (&key, "v")]);
        let (meta, _) = results.metadata(&message).unwrap();
        assert_eq!(shown(&meta), naive(&message.meta).unwrap());
    }
    assert!(results.changing.len() < CHANGING_MAX + 20);
}

#[test]
fn tables_stay_within_their_bounds() {
    let ten = CacheLimits {
        entries_max: 10,
        ..CacheLimits::default()
    };
    let mut results = MetadataCache::within(ten, CacheLimits::entries(5));
    for i in 0..1000 {
        let (tag, input) = (format!("t{i}"), map(&[("opcua_tag_name", "x")]));
        let message = message(&input, &[PLACE[0], PLACE[1], ("tag_name", &tag)]);
        let (meta, _) = results.metadata(&message).unwrap();
        assert_eq!(shown(&meta), naive(&message.meta).unwrap());
        assert!(results.by_input.len() <= 10 && results.topics.len() <= 5);
    }
}

#[test]
fn results_of_large_maps_are_bounded_in_bytes() {
    let bounds = CacheLimits {
        bytes_max: 1 << 20,
        ..CacheLimits::default()
    };
    let mut results = MetadataCache::within(bounds, CacheLimits::entries(5));
    let header = "x".repeat(50_000);
    let inputs: Vec<_> = (0..100).map(|_| map(&[("header", &header)])).collect();
    for input in &inputs {
        results.metadata(&message(input, &PLACE)).unwrap();
    }
    let held = inputs.iter().filter(|input| Arc::weak_count(input) > 0).count();
    assert!((1..=20).contains(&held), "{held}");
}

#[test]
fn refusals_say_why() {
    let mut results = MetadataCache::default();
    let input = map(&[]);
    let refused = results.metadata(&message(&input, &PLACE[..2])).unwrap_err();
    assert_eq!(refused.0, DropReason::MissingField);
    for _ in 0..2 {
        let bad = message(
            &input,
            &[("location_path", "a"), ("data_contract", "c"), ("tag_name", "t")],
        );
        let refused = results.metadata(&bad).unwrap_err();
        assert_eq!(
            refused,
            (
                DropReason::InvalidTopic,
                "failed to construct UMH topic: failed to build UMH topic: topic must contain a data contract (segment \
                 starting with '_') and it cannot be the final segment"
                    .to_owned()
            )
        );
    }
    assert!(results.by_input.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any messages in any order, sharing is invisible.
    #[test]
    fn sharing_never_shows(steps in prop::collection::vec((0usize..3, prop::collection::vec((0usize..11, 0usize..12), 0..7)), 1..200)) {
        let keys = ["location_path", "data_contract", "tag_name", "virtual_path", "datatype", "timestamp_ms", "a", "b",
            "opcua_source_timestamp", "_incomingKeys", "topic"];
        let values = ["", "_x", "x", "y", "z.w", "1", "2", "3", "4", "5", "6", "7"];
        let maps = [
            map(&[]),
            map(&[("a", "1"), ("location_path", "l"), ("data_contract", "_d"), ("_initialMetadata", "i")]),
            map(&[("b", "2"), ("location_path", "l"), ("data_contract", "_d"), ("tag_name", "n"), ("datatype", "string")]),
        ];
        let mut results = MetadataCache::default();
        for (at, changes) in steps {
            let own: Vec<(&str, &str)> = changes.iter().map(|(k, v)| (keys[*k], values[*v])).collect();
            let message = message(&maps[at], &own);
            match (results.metadata(&message), naive(&message.meta)) {
                (Ok((meta, hints)), Ok(expected)) => {
                    prop_assert_eq!(shown(&meta), expected.clone());
                    prop_assert_eq!(hints.datatype, Datatype::of(expected.get("datatype").map(String::as_str)));
                    prop_assert_eq!(hints.timed, expected.contains_key("timestamp_ms"));
                }
                (Err((reason, _)), Err(expected)) => prop_assert_eq!(reason, expected),
                (got, expected) => prop_assert!(false, "{:?} {:?}", got.map(|g| shown(&g.0)), expected),
            }
        }
    }
}
