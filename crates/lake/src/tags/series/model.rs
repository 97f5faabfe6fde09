//! Checks the columns against a simple model, whatever is cached and however a row gets its metadata.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use thalweg_record::{MetaMap, Metadata, QualityDetails, Text, Ticks, ValueQuality, key};

use super::cache::{TagSeriesCache, TagSeriesMatch};
use super::tag_id;
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::tables::{TAGS, tags as table};

const BAD: u32 = 0x8000_0000;
const BAD_TEXT: &str = "Bad (0x80000000)";
const KEYS: [&str; 12] = [
    "umh_topic",
    "opcua_tag_path",
    "opcua_tag_name",
    "opcua_tag_group",
    "mqtt_topic",
    "unit",
    "timestamp_ms",
    key::STATUS_CODE,
    key::SOURCE_TIMESTAMP,
    "a",
    "b",
    "z",
];

/// The metadata of a row.
#[derive(Debug, Default, PartialEq)]
struct Row {
    tag: Option<String>,
    tag_id: i64,
    unit: Option<String>,
    explicit_ms: Option<i64>,
    attributes: BTreeMap<String, String>,
}

fn read(source: &str, meta: &Metadata) -> Row {
    let mut all: BTreeMap<String, String> = meta.iter().map(|(k, v)| (k.to_owned(), v.into_owned())).collect();
    if let Some(stamps) = meta.stamps() {
        for name in [key::SOURCE_TIMESTAMP, key::SERVER_TIMESTAMP, key::STATUS_CODE] {
            let own = meta.changes().find(|(changed, _)| *changed == name);
            let is_text = |text: &Text| name != key::STATUS_CODE || stamps.status != BAD || text != BAD_TEXT;
            if !own.and_then(|(_, text)| text).is_some_and(is_text) {
                all.remove(name);
            }
        }
    }
    let explicit_ms = all.get("timestamp_ms").and_then(|text| text.parse().ok());
    if explicit_ms.is_some() {
        all.remove("timestamp_ms");
    }
    let [path, name] = ["opcua_tag_path", "opcua_tag_name"].map(|name| all.get(name).cloned());
    let tag = if !all.contains_key("umh_topic")
        && let (Some(path), Some(name)) = (path, name)
    {
        Some(format!("{path}.{name}"))
    } else {
        let keys = [
            "umh_topic",
            "opcua_tag_path",
            "opcua_tag_group",
            "opcua_tag_name",
            "mqtt_topic",
        ];
        keys.into_iter().find_map(|name| all.remove(name))
    };
    Row {
        tag_id: tag_id(source, tag.as_deref()),
        unit: all.remove("unit"),
        tag,
        explicit_ms,
        attributes: all,
    }
}

fn in_columns(chunk: &mut MemtableChunk, row: usize, explicit_ms: Option<i64>) -> Row {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let of_slots = chunk.slots().all().iter();
    let of_slots = of_slots.filter_map(|slot| Some((slot.name.to_string(), text(slot.column.text_of(row)?))));
    let extras = chunk.extras().iter().filter(|extra| extra.row as usize == row);
    let extras = extras.map(|extra| (extra.name.to_string(), extra.text.to_string()));
    Row {
        attributes: of_slots.chain(extras).collect(),
        tag: chunk.texts(table::TAG).text_of(row).map(text),
        unit: chunk.texts(table::UNIT).text_of(row).map(text),
        tag_id: chunk.longs(table::TAG_ID).get(row).unwrap(),
        explicit_ms,
    }
}

/// An event for the cache.
#[derive(Clone, Debug)]
enum Step {
    Message {
        /// One of the shared maps; `None` for an unshared one.
        map: Option<usize>,
        /// The status, and the beginning of a gap that the value marks.
        stamps: Option<(u32, Option<i64>)>,
        changes: Vec<(usize, String)>,
        is_other_source: bool,
    },
    Room(usize),
    /// Begins other rows, which may inherit the texts of the earlier ones.
    Rows {
        take_over: bool,
        is_spare: bool,
    },
}

fn text() -> impl Strategy<Value = String> {
    // Mostly few texts, and some that never recur.
    prop_oneof![4 => "[17x]?", 1 => "[0-9a-z]{30}", 1 => Just(BAD_TEXT.to_owned())]
}

fn step() -> impl Strategy<Value = Step> {
    let message = (
        prop::option::weighted(0.9, 0..4_usize),
        prop::option::of((prop_oneof![Just(0), Just(BAD)], prop::option::weighted(0.2, 0..3_i64))),
        prop_oneof![2 => Just(Vec::new()), 3 => prop::collection::vec((0..KEYS.len(), text()), 1..3)],
        any::<bool>(),
    );
    let message = message.prop_map(|(map, stamps, changes, is_other_source)| Step::Message {
        map,
        stamps,
        changes,
        is_other_source,
    });
    let rows = any::<(bool, bool)>().prop_map(|(take_over, is_spare)| Step::Rows { take_over, is_spare });
    prop_oneof![30 => message, 1 => (0..40_000_usize).prop_map(Step::Room), 2 => rows]
}

fn shared_map() -> impl Strategy<Value = Vec<(usize, String)>> {
    prop::collection::vec((0..KEYS.len(), "[17x]"), 0..6)
}

fn map_of(entries: &[(usize, String)]) -> Arc<MetaMap> {
    let entries = entries
        .iter()
        .map(|(at, text)| (Text::from(KEYS[*at]), Text::from(text.as_str())));
    Arc::new(MetaMap::new(entries, None))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn rows_have_what_their_messages_say_and_memory_has_an_end(
        maps in prop::collection::vec(shared_map(), 4),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let maps: Vec<_> = maps.iter().map(|entries| map_of(entries)).collect();
        let sources: [Arc<str>; 2] = ["plant".into(), "other".into()];
        let (mut series, mut chunk) = (TagSeriesCache::default(), MemtableChunk::new(&TAGS));
        let (mut room, mut expected) = (40_000, Vec::new());
        series.set_room(room);
        for step in steps {
            let (map, stamps, changes, is_other_source) = match step {
                Step::Room(bytes) => {
                    room = bytes;
                    series.set_room(room);
                    continue;
                }
                Step::Rows { take_over, is_spare } => {
                    check(&mut chunk, &expected)?;
                    expected.clear();
                    if take_over {
                        let ended = std::mem::replace(&mut chunk, MemtableChunk::new(&TAGS));
                        if is_spare {
                            // The spare chunk had rows with other names.
                            chunk.begin_row();
                            let place = chunk.slots.place(AttributeSource::Attr, "other");
                            let column = chunk.slots.column_mut(place.unwrap()).unwrap();
                            column.push(0, b"other");
                            chunk.texts(table::TAG).push(0, b"other");
                            chunk.clear();
                        }
                        if let Some(heir) = ended.heir() {
                            chunk.take_over(heir);
                        }
                    } else {
                        chunk.clear();
                    }
                    continue;
                }
                Step::Message { map, stamps, changes, is_other_source } => (map, stamps, changes, is_other_source),
            };
            let map = map.map_or_else(|| map_of(&[(0, "1".to_owned()), (9, "x".to_owned())]), |at| maps[at].clone());
            let mut meta = match stamps {
                None => Metadata::shared(map),
                Some((status, gap)) => {
                    let (source_time, server_time) = (Ticks(1), Ticks(2));
                    let stamps = ValueQuality { source_time, server_time, status };
                    let text = (status == BAD).then(|| Text::from(BAD_TEXT));
                    let marks = gap.map(|from| QualityDetails::new(text, Some((Ticks(from), source_time))));
                    marks.map_or_else(|| Metadata::stamped(map.clone(), stamps), |marks| Metadata::marked(map.clone(), stamps, marks))
                }
            };
            changes.iter().for_each(|(at, text)| meta.set(KEYS[*at], text.as_str()));
            let source = &sources[usize::from(is_other_source)];
            let settled = meta.settled();
            let (found, explicit_ms) = series.find(source, &settled);
            let row = chunk.begin_row();
            series.put(found, source, &settled, row, &mut chunk);
            expected.push((read(source, &meta), explicit_ms, found));
            prop_assert!(series.bytes() <= room + room / 4 + 4096, "{} bytes for {room}", series.bytes());
        }
        check(&mut chunk, &expected)?;
    }
}

fn check(chunk: &mut MemtableChunk, expected: &[(Row, Option<i64>, TagSeriesMatch)]) -> Result<(), TestCaseError> {
    for (row, (expected, explicit_ms, found)) in expected.iter().enumerate() {
        let has = in_columns(chunk, row, *explicit_ms);
        prop_assert_eq!(&has, expected, "row {}, {:?}", row, found);
    }
    Ok(())
}
