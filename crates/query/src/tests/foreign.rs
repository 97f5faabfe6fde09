//! Tables of which another program has rewritten files: rows in any order, with or without statistics, times truncated
//! to milliseconds, like after `optimize` by other Delta writers. Every answer must stay the same.

use std::collections::BTreeMap;
use std::fs::File;

use arrow::array::{Array as _, AsArray as _, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::Int64Type;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use datafusion::parquet::file::properties::WriterProperties;
use thalweg_columns::file::footer::{self, with_odd_ordinals};
use thalweg_delta::actions::{Action, Add, Remove};
use thalweg_delta::{DeltaLog, FileEntry, SnapshotDetail};

use super::*;

/// The next number of a pseudorandom sequence.
fn next(random: &mut u64, below: usize) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    (*random % below as u64) as usize
}

/// A value of a tag, some ten thousandths of a millisecond after a full second.
fn sample_within(tag: &str, seconds: i64, value: Value) -> Message {
    let at = Ticks((START + seconds) * 10_000_000 + 5_004);
    let stamps = ValueQuality {
        source_time: at,
        server_time: at,
        status: 0,
    };
    let entries = [("umh_topic", tag), ("site.name", "north")];
    let map = MetaMap::new(entries.map(|(k, v)| (Text::from(k), Text::from(v))), None);
    Message::new(Payload::Value(value), Metadata::stamped(Arc::new(map), stamps))
}

/// Three days with one file each; the last value of a day is NaN.
async fn table(data_dir: &Path) -> Writer {
    let writer = writer(data_dir).await;
    for day in 0..3 {
        let value = |i: i64| match i {
            599 => Value::F64(f64::NAN),
            i if i % 7 == 0 => Value::F64(i as f64 / 8.0),
            i => Value::I64(day * 1000 + i),
        };
        let messages = (0..600).map(|i| sample_within(&format!("t{}", i % 10), day * DAY + i, value(i)));
        append(&writer, messages.collect()).await;
    }
    writer
}

/// Statistics as another writer states them: bounds of numbers and times, the latter in whole milliseconds.
fn stats_of(rows: &RecordBatch) -> String {
    let ends = |name: &str| {
        let column = rows.column_by_name(name).unwrap().as_primitive::<Int64Type>();
        let (min, max) = (column.iter().flatten().min(), column.iter().flatten().max());
        (min.unwrap(), max.unwrap())
    };
    let time = |nanos: i64| {
        let at = Ticks(nanos / 1_000_000 * 10_000).to_string();
        json!(at)
    };
    let (min, max) = ends("time_unix_nano");
    let whole = ends("value_int");
    let floats = rows.column_by_name("value").unwrap();
    let floats = floats.as_primitive::<arrow::datatypes::Float64Type>();
    let numbers = || floats.iter().flatten().filter(|value| !value.is_nan());
    let (least, greatest) = (numbers().fold(f64::MAX, f64::min), numbers().fold(f64::MIN, f64::max));
    let nulls: BTreeMap<&str, usize> = rows
        .schema_ref()
        .fields()
        .iter()
        .zip(rows.columns())
        .filter(|(field, _)| !field.data_type().is_nested())
        .map(|(field, column)| (field.name().as_str(), column.null_count()))
        .collect();
    json!({
        "numRecords": rows.num_rows(),
        "minValues": {"time_unix_nano": min, "time": time(min), "value_int": whole.0, "value": least},
        "maxValues": {"time_unix_nano": max, "time": time(max), "value_int": whole.1, "value": greatest},
        "nullCount": nulls,
    })
    .to_string()
}

/// Replaces one file by another with its rows in any order.
fn rewritten(lake: &Path, file: &FileEntry, random: &mut u64) -> Add {
    let path = lake.join("tags").join(&*file.path);
    let opened = File::open(path).unwrap();
    let metadata = footer::load(&opened, ArrowReaderOptions::new()).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(opened, metadata);
    let schema = reader.schema().clone();
    let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
    let rows = concat_batches(&schema, &batches).unwrap();
    let mut order: Vec<u32> = (0..rows.num_rows() as u32).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, next(random, at + 1));
    }
    let rows = take_record_batch(&rows, &UInt32Array::from(order)).unwrap();
    let properties = WriterProperties::builder()
        .set_created_by("another program".to_owned())
        .set_max_row_group_row_count(Some(1 + next(random, 700)))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    let mut bytes = writer.into_inner().unwrap();
    // Some writers leave out the ordinal of the first row group, others write only zeros.
    if next(random, 2) == 0 {
        bytes = with_odd_ordinals(&bytes, next(random, 2) == 0).unwrap();
    }
    let (folder, _) = file.path.rsplit_once('/').unwrap();
    let path = format!("{folder}/part-{}.parquet", next(random, 1 << 30));
    std::fs::write(lake.join("tags").join(&path), &bytes).unwrap();
    Add {
        path,
        partition_values: [("date".to_owned(), file.partition[0].as_deref().map(str::to_owned))].into(),
        size: bytes.len() as u64,
        modification_time: 1,
        data_change: false,
        stats: (next(random, 3) > 0).then(|| stats_of(&rows)),
        tags: None,
        deletion_vector: None,
    }
}

/// Rewrites some files of a table, at least one.
async fn rewrite(data_dir: &Path, random: &mut u64) {
    let lake = thalweg_lake::folder(data_dir);
    let log = DeltaLog::new(&lake.join("tags"), SyncedStore::new()).unwrap();
    let snapshot = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
    let certain = next(random, snapshot.files.len());
    let mut actions = Vec::new();
    for (number, file) in snapshot.files.values().enumerate() {
        if number != certain && next(random, 2) == 0 {
            continue;
        }
        actions.push(Action::Remove(Remove {
            path: file.path.to_string(),
            data_change: false,
            deletion_timestamp: Some(1),
        }));
        actions.push(Action::Add(rewritten(&lake, file, random)));
    }
    log.commit(snapshot.version + 1, &actions).await.unwrap();
}

const DATES: [&str; 3] = ["2031-05-06", "2031-05-07", "2031-05-08"];

/// Queries over the whole table and over each file alone, for which the order is known.
fn questions() -> Vec<String> {
    let last = "2031-05-06T07:18:08.000500Z";
    let mut all = vec![format!("SELECT count(*) FROM tags WHERE time = '{last}'")];
    for filter in ["true".to_owned()]
        .into_iter()
        .chain(DATES.map(|date| format!("date = '{date}'")))
    {
        for question in [
            "SELECT tag_id, time_unix_nano, value_int FROM tags WHERE {} ORDER BY tag_id, time_unix_nano",
            "SELECT count(*) FROM (SELECT tag_id, time_unix_nano FROM tags WHERE {} GROUP BY tag_id, time_unix_nano)",
            "SELECT tag_id, count(*), sum(value_int) FROM tags WHERE {} GROUP BY tag_id ORDER BY tag_id",
            "SELECT sum(d), max(d) FROM (SELECT time_unix_nano - lag(time_unix_nano) OVER (PARTITION BY tag_id ORDER BY \
             time_unix_nano) AS d FROM tags WHERE {})",
            "SELECT count(*), min(time_unix_nano), max(time_unix_nano), min(value_int), max(value_int), count(value_text) FROM tags \
             WHERE {}",
            "SELECT count(*) FROM tags WHERE value > 1e9 AND {}",
            "SELECT count(*) FROM tags WHERE isnan(value) AND {}",
            "SELECT tag, time, value FROM tags WHERE {} ORDER BY value DESC, time_unix_nano LIMIT 4",
            "SELECT count(*), max(time) FROM tags WHERE time >= '2031-05-07T07:18:08.000500Z' AND {}",
        ] {
            all.push(question.replace("{}", &filter));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_do_not_depend_on_who_has_written_the_files() {
    let seeds = std::env::var("THALWEG_SIM_SEEDS").ok();
    let seeds = seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(8_u64);
    let folder = tempfile::tempdir().unwrap();
    let _writer = table(folder.path()).await;
    let own = engine(folder.path(), QueryOptions::default());
    let mut expected = Vec::new();
    for question in questions() {
        expected.push(text(&own, &question).await);
    }
    assert!(expected[0].ends_with("\n1\n"), "{}", expected[0]);
    let ordered = plan(
        &own,
        &format!("SELECT tag_id FROM tags WHERE date = '{}' ORDER BY tag_id", DATES[0]),
    )
    .await;
    assert!(
        !ordered.contains("SortExec"),
        "files of this program keep their order: {ordered}"
    );
    let mut random = 0x9e37_79b9_7f4a_7c15;
    for seed in 1..=seeds {
        rewrite(folder.path(), &mut random).await;
        let engine = engine(folder.path(), QueryOptions::default());
        for (question, expected) in questions().iter().zip(&expected) {
            let found = text(&engine, question).await;
            assert_eq!(&found, expected, "rewritten {seed} times: {question}");
        }
    }
}
