use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders, OwnedMessage, Timestamp};

use super::*;

fn record(key: Option<&str>, offset: i64, headers: &[(&str, Option<&[u8]>)]) -> OwnedMessage {
    let list = headers.iter().fold(OwnedHeaders::new(), |list, (key, value)| {
        list.insert(Header { key, value: *value })
    });
    let headers = (!headers.is_empty()).then_some(list);
    let (key, time) = (
        key.map(|key| key.as_bytes().to_vec()),
        Timestamp::CreateTime(1_000 * offset),
    );
    OwnedMessage::new(Some(Vec::new()), key, "t".to_owned(), time, 3, offset, headers)
}

/// The expected metadata of a record by name; the last header of a name counts, and an empty value means none.
fn said(record: &OwnedMessage) -> BTreeMap<String, String> {
    let mut said = BTreeMap::new();
    let exact = |bytes: &[u8]| text_bytes::text_of(bytes).into_owned();
    for header in record.headers().into_iter().flat_map(|headers| headers.iter()) {
        said.insert(header.key.to_owned(), exact(header.value.unwrap_or_default()));
    }
    let mut add = |name: &str, text: String| drop(said.insert(name.to_owned(), text));
    if let Some(key) = record.key() {
        add("kafka_key", exact(key));
    }
    add("kafka_topic", record.topic().to_owned());
    add("kafka_partition", record.partition().to_string());
    add("kafka_offset", record.offset().to_string());
    if let Some(ms) = record.timestamp().to_millis() {
        add("kafka_timestamp_ms", ms.to_string());
        add("kafka_timestamp_unix", ms.div_euclid(1000).to_string());
    }
    add("kafka_tombstone_message", record.payload().is_none().to_string());
    if record.key() == Some(b"") {
        add("kafka_empty_key", "true".to_owned());
    }
    let seen = visible(record);
    let is_wrong = |bytes: &[u8]| std::str::from_utf8(bytes).is_err();
    let has_wrong = |(_, value): &(String, Option<Vec<u8>>)| value.as_deref().is_some_and(is_wrong);
    if record.key().is_some_and(is_wrong) || seen.iter().any(has_wrong) {
        add("kafka_escaped_bytes", "true".to_owned());
    }
    let names: BTreeSet<&String> = seen.iter().map(|(name, _)| name).collect();
    let is_empty = |(_, value): &(String, Option<Vec<u8>>)| value.as_deref().unwrap_or_default().is_empty();
    if names.len() < seen.len() || seen.iter().any(is_empty) {
        let list = seen.iter().map(|(name, value)| (name, value.as_deref().map(exact)));
        add(
            "kafka_headers",
            serde_json::to_string(&list.collect::<Vec<_>>()).unwrap(),
        );
    }
    said.retain(|_, text| !text.is_empty());
    said
}

/// The headers that were not written by an earlier reading.
fn visible(record: &OwnedMessage) -> Vec<(String, Option<Vec<u8>>)> {
    let (has_key, has_time) = (record.key().is_some(), record.timestamp().to_millis().is_some());
    let headers = record.headers().into_iter().flat_map(|headers| headers.iter());
    let headers = headers.filter(|header| match header.key {
        "kafka_key" => !has_key,
        "kafka_timestamp_ms" | "kafka_timestamp_unix" => !has_time,
        name => !name.starts_with("kafka_"),
    });
    headers
        .map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
        .collect()
}

fn texts(meta: &Metadata) -> BTreeMap<String, String> {
    let texts = meta.iter().map(|(name, text)| (name.to_owned(), text.into_owned()));
    texts.collect()
}

/// Few choices, so that values recur.
fn any_record() -> impl Strategy<Value = OwnedMessage> {
    let name = prop::sample::select(vec![
        "a",
        "b",
        "",
        "kafka_key",
        "kafka_topic",
        "kafka_partition",
        "kafka_offset",
        "kafka_timestamp_ms",
        "kafka_timestamp_unix",
        "kafka_tombstone_message",
    ]);
    let bytes = prop::sample::select(vec![&b""[..], b"x", b"true", b"\xff"]);
    let headers = prop::collection::vec((name, prop::option::of(bytes.clone())), 0..4);
    let time = prop::sample::select(vec![
        Timestamp::NotAvailable,
        Timestamp::CreateTime(-1),
        Timestamp::LogAppendTime(1_700_000_000_123),
    ]);
    let topic = prop::sample::select(vec!["t", "u"]);
    let (key, value) = (prop::option::of(bytes.clone()), prop::option::of(bytes));
    let record = (headers, key, value, topic, time, 0..2_i32, 0..3_i64);
    record.prop_map(|(headers, key, value, topic, time, partition, offset)| {
        let is_bare = headers.is_empty();
        let list = headers.into_iter().fold(OwnedHeaders::new(), |list, (key, value)| {
            list.insert(Header { key, value })
        });
        let [key, value] = [key, value].map(|bytes| bytes.map(<[u8]>::to_vec));
        OwnedMessage::new(
            value,
            key,
            topic.to_owned(),
            time,
            partition,
            offset,
            (!is_bare).then_some(list),
        )
    })
}

proptest! {
    #[test]
    fn metadata_is_what_the_record_says_whatever_came_before(records in prop::collection::vec(any_record(), 1..40)) {
        let mut shared = SharedMaps::default();
        let mut of_keys = BTreeMap::new();
        for record in &records {
            let meta = shared.metadata(record);
            prop_assert_eq!(texts(&meta), said(record));
            let series = meta.shared_map().series();
            prop_assert!(series.is_some());
            // Without a key, the order is kept per partition.
            let place = record.key().map_or(Err(record.partition()), |key| Ok(key.to_vec()));
            prop_assert_eq!(*of_keys.entry(place).or_insert(series), series);
        }
    }
}

#[test]
fn records_share_a_map_whatever_their_keys_offsets_and_times_are() {
    let mut shared = SharedMaps::default();
    let maps: Vec<Arc<MetaMap>> = (0..10_000)
        .map(|n| {
            let meta = shared.metadata(&record(Some(&n.to_string()), n, &[]));
            meta.shared_map().clone()
        })
        .collect();
    assert_eq!(shared.maps.len(), KEYED_SERIES as usize);
    let again = shared.metadata(&record(Some("5"), 20_000, &[]));
    assert!(Arc::ptr_eq(again.shared_map(), &maps[5]));
}

#[test]
fn headers_that_come_again_are_shared_and_those_that_do_not_make_no_map() {
    let mut shared = SharedMaps::default();
    for n in 0..100 {
        let trace = n.to_string();
        let meta = shared.metadata(&record(
            None,
            n,
            &[("unit", Some(b"bar")), ("trace", Some(trace.as_bytes()))],
        ));
        assert_eq!(meta.get("trace").unwrap(), trace);
    }
    assert_eq!(shared.maps.len(), 1);
    let of = |shared: &mut SharedMaps, n: i64| {
        // From an earlier reading, and hidden.
        let offset = n.to_string();
        let headers = [("unit", Some(&b"bar"[..])), ("kafka_offset", Some(offset.as_bytes()))];
        shared.metadata(&record(Some("k"), 100 + n, &headers))
    };
    let metas = [0, 1, 2].map(|n| of(&mut shared, n));
    assert!(metas[0].shared_map().get("unit").is_none());
    assert!(metas[1].shared_map().get("unit").is_some());
    assert!(Arc::ptr_eq(metas[1].shared_map(), metas[2].shared_map()));
    let own: Vec<&str> = metas[2].changes().map(|(name, _)| name.as_str()).collect();
    assert_eq!(own, [KEY, OFFSET, TIMESTAMP_MS, TIMESTAMP_UNIX]);
}

#[test]
fn what_is_held_is_bounded_by_its_bytes() {
    let mut shared = SharedMaps::default();
    let long = "x".repeat(PLACE_BYTES_MAX - 200);
    for n in 0..2_000_i64 {
        let number = n.to_string();
        let headers = [("long", Some(long.as_bytes())), ("n", Some(number.as_bytes()))];
        for _ in 0..2 {
            shared.metadata(&record(None, n, &headers));
        }
        assert!(shared.maps.bytes() <= BYTES_MAX);
    }
    let maps = shared.maps.len();
    assert!(maps > 500, "{maps}");
    let too_long = "x".repeat(PLACE_BYTES_MAX);
    for n in 0..3 {
        let meta = shared.metadata(&record(None, n, &[("long", Some(too_long.as_bytes()))]));
        assert_eq!(meta.get("long").unwrap(), too_long);
    }
    // Perhaps one without headers.
    assert!(shared.maps.len() <= maps + 1);
}

#[test]
fn where_no_headers_come_again_few_are_looked_at_until_some_do() {
    let mut shared = SharedMaps::default();
    for n in 0..3000 {
        let trace = n.to_string();
        let meta = shared.metadata(&record(None, n, &[("trace", Some(trace.as_bytes()))]));
        assert_eq!(meta.get("trace").unwrap(), trace);
        shared.metadata(&record(None, n, &[]));
    }
    let looked_at = STRANGERS_MAX + (3000 - STRANGERS_MAX) / LOOKED_AT;
    assert_eq!((shared.seen.len() as u64, shared.maps.len()), (looked_at, 1));
    let again = |n| record(None, n, &[("unit", Some(b"bar"))]);
    let mut is_shared = |n| shared.metadata(&again(n)).shared_map().get("unit").is_some();
    assert!((0..100).any(&mut is_shared));
    assert!((0..100).all(is_shared));
}

/// The producer decides how many headers there are, and in which order.
#[test]
fn many_headers_are_a_step_for_each() {
    for last_first in [false, true] {
        let make = |n: usize| {
            let names: Vec<String> = (0..n)
                .map(|i| format!("h{:06}", if last_first { n - i } else { i * 7919 % n }))
                .collect();
            let headers: Vec<(&str, Option<&[u8]>)> =
                names.iter().map(|name| (name.as_str(), Some(&b"1"[..]))).collect();
            record(None, 1, &headers)
        };
        let exponent = thalweg_record::growth::exponent(500, make, |record| {
            let mut meta = Metadata::default();
            add_own(&mut meta, &record, header_list::entries(headers(&record), false));
            meta
        });
        assert!(exponent < thalweg_record::growth::LINEAR, "{exponent}");
    }
}

#[test]
fn with_lists_each_header_is_the_list_of_its_values() {
    let mut shared = SharedMaps::new(true);
    let headers = [("b", Some(&b"1"[..])), ("b", None), ("a", Some(b"x"))];
    // The second time from a shared map.
    for offset in 0..3 {
        let meta = shared.metadata(&record(None, offset, &headers));
        assert_eq!(meta.get("b").unwrap(), r#"["1",null]"#);
        assert_eq!(meta.get("a").unwrap(), r#"["x"]"#);
        assert_eq!(
            meta.get("kafka_headers").unwrap(),
            r#"[["b","1"],["b",null],["a","x"]]"#
        );
    }
}

#[test]
fn a_header_that_is_null_is_not_one_that_is_empty() {
    let mut shared = SharedMaps::default();
    for offset in 0..6 {
        let value = (offset % 2 == 0).then_some(&b""[..]);
        let meta = shared.metadata(&record(None, offset, &[("a", value)]));
        let expected = if offset % 2 == 0 {
            r#"[["a",""]]"#
        } else {
            r#"[["a",null]]"#
        };
        assert_eq!(meta.get("kafka_headers").unwrap(), expected);
    }
}
