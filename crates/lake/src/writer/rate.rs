//! How fast messages become a committed table. Run by hand:
//! `cargo test --release -p thalweg-lake -- --ignored --nocapture rate_of`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus::Registry;
use thalweg_record::{Message, MetaMap, Metadata, Payload, Stamps, Text, Ticks, Value};

use super::{TagsWriter, WriterOptions};
use crate::attributes::{Bindings, Promotion};
use crate::metrics::LakeMetrics;
use crate::store::SyncedStore;
use crate::tags::{self, Changed, Encoder, FileOptions, Generation, RowLimits, RowRules, SeriesTable};

const TAGS: usize = 10_000;
const ROUNDS: usize = 60;
/// Messages of a batch, as one answer of a server brings them.
const BATCH: usize = 1_000;

/// The metadata of a tag as OPC UA and `tag_processor` make it: 18 entries.
fn metadata(tag: usize) -> Arc<MetaMap> {
    let entries = [
        (
            "umh_topic",
            format!(
                "umh.v1.enterprise.site.area{}.line{}._raw.Fast{tag}",
                tag / 1000,
                tag / 100
            ),
        ),
        (
            "topic",
            format!(
                "umh.v1.enterprise.site.area{}.line{}._raw.Fast{tag}",
                tag / 1000,
                tag / 100
            ),
        ),
        (
            "location_path",
            format!("enterprise.site.area{}.line{}", tag / 1000, tag / 100),
        ),
        ("data_contract", "_raw".to_owned()),
        ("tag_name", format!("Fast{tag}")),
        ("virtual_path", format!("axis{}", tag % 8)),
        ("opcua_attr_nodeid", format!("ns=3;s=FastUInt{tag}")),
        ("opcua_attr_nodeclass", "NodeClassVariable".to_owned()),
        ("opcua_attr_browsename", format!("FastUInt{tag}")),
        ("opcua_attr_description", "Constantly increasing value".to_owned()),
        ("opcua_attr_accesslevel", "AccessLevelTypeCurrentRead".to_owned()),
        ("opcua_attr_datatype", "uint32".to_owned()),
        ("opcua_tag_name", format!("FastUInt{tag}")),
        ("opcua_tag_group", "OpcPlc.Telemetry.Fast".to_owned()),
        ("opcua_tag_path", "OpcPlc.Telemetry.Fast".to_owned()),
        ("opcua_tag_type", "number".to_owned()),
        ("datatype", "number".to_owned()),
        ("asset", format!("pump{}", tag % 50)),
    ];
    Arc::new(MetaMap::new(
        entries.map(|(k, v)| (Text::from(k), Text::from(v))),
        Some(tag as u64),
    ))
}

/// Every tag changes once a second, in one order: integers, floats, booleans and texts.
fn messages() -> Vec<Arc<Vec<Message>>> {
    let maps: Vec<_> = (0..TAGS).map(metadata).collect();
    let start = Ticks::now();
    let mut all = Vec::with_capacity(TAGS * ROUNDS);
    for round in 0..ROUNDS {
        for (tag, map) in maps.iter().enumerate() {
            let at = Ticks(start.0 + round as i64 * 10_000_000 + tag as i64 * 13);
            let stamps = Stamps {
                source_time: at,
                server_time: Ticks(at.0 + 5_000),
                status: 0,
            };
            let value = match tag % 20 {
                0..10 => Value::U32((round * 31 + tag) as u32),
                10..18 => Value::F64((round as f64 * 0.1).sin() * tag as f64),
                18 => Value::Bool(round % 7 == 0),
                _ => Value::text(format!("state {}", round % 5)),
            };
            all.push(Message::new(
                Payload::Value(value),
                Metadata::stamped(map.clone(), stamps),
            ));
        }
    }
    let mut all = all.into_iter();
    let batches = std::iter::from_fn(|| {
        let batch: Vec<Message> = all.by_ref().take(BATCH).collect();
        (!batch.is_empty()).then(|| Arc::new(batch))
    });
    batches.collect()
}

#[allow(clippy::print_stderr)]
fn report(what: &str, rows: usize, took: Duration) {
    eprintln!(
        "{what}: {rows} rows in {took:.2?}, {:.0} rows/s, {:.0} ns/row",
        rows as f64 / took.as_secs_f64(),
        took.as_nanos() as f64 / rows as f64
    );
}

#[test]
#[ignore = "measures"]
fn rate_of_rows_and_files() {
    let batches = messages();
    let rows: usize = batches.iter().map(|batch| batch.len()).sum();
    let source: Arc<str> = "plant".into();
    let arrival = Ticks::now().unix_nanos().unwrap();
    for _ in 0..3 {
        let mut table = SeriesTable::new(RowLimits::default());
        let mut generation = Generation::new(1);
        let start = Instant::now();
        for message in batches.iter().flat_map(|batch| batch.iter()) {
            let rules = RowRules::default();
            generation
                .push(&mut table, &source, message, arrival, &rules, &mut Changed::default())
                .unwrap();
        }
        report("messages to rows", rows, start.elapsed());
        let mut schema = tags::schema::schema();
        let mut bindings = Bindings::of(&schema, tags::schema::ATTRIBUTE_SOURCE, Promotion::default());
        let names = generation
            .series
            .iter()
            .flat_map(|series| series.attributes.iter().map(|(name, _)| name.as_str()));
        schema.columns.extend(bindings.admit(names));
        let start = Instant::now();
        let files = Encoder::new(&generation, &schema, &bindings, FileOptions::default())
            .encode(0)
            .unwrap();
        report("rows to sorted Parquet", rows, start.elapsed());
        let bytes: usize = files.iter().map(|file| file.bytes.len()).sum();
        report(
            &format!("{} bytes of memory and {bytes} of files,", generation.memory()),
            rows,
            start.elapsed(),
        );
    }
}

#[test]
#[ignore = "measures"]
fn rate_of_messages_to_committed_table() {
    let batches = messages();
    let rows: usize = batches.iter().map(|batch| batch.len()).sum();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    for round in 0..3 {
        let lake = tempfile::tempdir().unwrap();
        let metrics = LakeMetrics::register(&Registry::new()).unwrap();
        let (cpu, start) = (thalweg_telemetry::cpu_time(), Instant::now());
        runtime.block_on(async {
            let options = WriterOptions::default();
            let writer = TagsWriter::open(lake.path().to_owned(), SyncedStore::new(), metrics, options)
                .await
                .unwrap();
            let source: Arc<str> = "plant".into();
            let appends: Vec<_> = batches
                .iter()
                .map(|batch| writer.append(&source, batch.clone(), Ticks::now()))
                .collect();
            writer.hurry();
            for append in appends {
                append.await.unwrap();
            }
            writer.close().await;
        });
        report(&format!("round {round}: committed"), rows, start.elapsed());
        report("  CPU of all threads", rows, thalweg_telemetry::cpu_time() - cpu);
    }
}
