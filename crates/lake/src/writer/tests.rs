use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, AsArray};
use arrow::datatypes::Int64Type;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use prometheus::Registry;
use thalweg_record::{DropReason, MetaMap, Metadata, Payload, SourceName, Text, Value};

use super::*;
use crate::commit::commit_info;
use crate::delta::actions::{Action, Metadata as TableMetadata};
use crate::delta::schema::Column;
use crate::delta::{DeltaLog, Detail};
use crate::store::simulated::{SimulatedDisk, StepKind};

fn fast() -> WriterOptions {
    WriterOptions {
        flush_interval: Duration::from_millis(20),
        hurry_pause: Duration::ZERO,
        ..WriterOptions::default()
    }
}

/// Commits only when the test hurries or closes.
fn slow() -> WriterOptions {
    WriterOptions {
        flush_interval: Duration::from_secs(3600),
        ..fast()
    }
}

fn metrics() -> LakeMetrics {
    LakeMetrics::register(&Registry::new()).unwrap()
}

async fn open_with(lake: &Path, store: SyncedStore, options: WriterOptions) -> Result<TagsWriter, OpenError> {
    TagsWriter::open(lake.to_owned(), store, metrics(), options).await
}

async fn open(lake: &Path, options: WriterOptions) -> TagsWriter {
    open_with(lake, SyncedStore::new(), options).await.unwrap()
}

fn message(tag: &str, value: i64, extra: &[(&str, &str)]) -> Message {
    let entries = [("umh_topic", tag)].into_iter().chain(extra.iter().copied());
    let map = MetaMap::new(entries.map(|(k, v)| (Text::from(k), Text::from(v))), None);
    Message::new(Payload::Value(Value::I64(value)), Metadata::shared(Arc::new(map)))
}

fn batch(values: impl IntoIterator<Item = i64>) -> Arc<Vec<Message>> {
    Arc::new(values.into_iter().map(|value| message("t", value, &[])).collect())
}

fn append(
    writer: &TagsWriter,
    messages: Arc<Vec<Message>>,
) -> impl Future<Output = Result<(), AppendError>> + Send + use<> {
    writer.append(&"plant".into(), messages, Ticks::now())
}

/// A row as text by column, for the columns that tests ask about.
type Row = BTreeMap<String, String>;

/// All rows of the table, file by file in the order of commits.
async fn rows(lake: &Path) -> Vec<Row> {
    let log = DeltaLog::new(&lake.join("tags"), SyncedStore::new()).unwrap();
    let snapshot = log.load(Detail::Stats).await.unwrap().unwrap();
    let mut files = Vec::new();
    for file in snapshot.files.values() {
        let mut rows = Vec::new();
        let bytes = bytes::Bytes::from(std::fs::read(lake.join("tags").join(&*file.path)).unwrap());
        for batch in ParquetRecordBatchReaderBuilder::try_new(bytes)
            .unwrap()
            .build()
            .unwrap()
        {
            let batch = batch.unwrap();
            for row in 0..batch.num_rows() {
                let mut cells = Row::new();
                for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
                    let text = column
                        .as_string_opt::<i32>()
                        .filter(|c| c.is_valid(row))
                        .map(|c| c.value(row).to_owned());
                    let long = column
                        .as_primitive_opt::<Int64Type>()
                        .filter(|c| c.is_valid(row))
                        .map(|c| c.value(row));
                    if let Some(value) = text.or(long.map(|long| long.to_string())) {
                        cells.insert(field.name().clone(), value);
                    }
                }
                rows.push(cells);
            }
        }
        assert_eq!(
            file.stats.rows,
            Some(rows.len() as u64),
            "the log knows the rows of each file"
        );
        // Commits follow each other within a millisecond, arrivals do not within a tick.
        let arrival: i64 = rows
            .first()
            .map_or(0, |row: &Row| row["arrival_unix_nano"].parse().unwrap());
        files.push((file.modified_unix_ms, arrival, rows));
    }
    files.sort_by_key(|(modified, arrival, _)| (*modified, *arrival));
    files.into_iter().flat_map(|(_, _, rows)| rows).collect()
}

async fn values(lake: &Path) -> Vec<i64> {
    let mut values: Vec<i64> = rows(lake)
        .await
        .iter()
        .map(|row| row["value_int"].parse().unwrap())
        .collect();
    values.sort_unstable();
    values
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_that_ended_is_in_the_table() {
    let lake = tempfile::tempdir().unwrap();
    let writer = open(lake.path(), fast()).await;
    append(&writer, batch(0..10)).await.unwrap();
    assert_eq!(values(lake.path()).await, (0..10).collect::<Vec<_>>());
    append(&writer, batch(10..20)).await.unwrap();
    let status = writer.status();
    assert_eq!(
        (status.rows, status.files, status.version, status.buffered_rows),
        (20, 2, 2, 0)
    );
    assert!(status.trouble.is_none() && status.last_commit_unix_ms.is_some());
    writer.close().await;
    assert!(matches!(append(&writer, batch([1])).await, Err(AppendError::Stopped)));
    assert_eq!(values(lake.path()).await.len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hurry_commits_everything_appended_before_it_in_one_commit() {
    let lake = tempfile::tempdir().unwrap();
    let writer = open(lake.path(), slow()).await;
    let first = append(&writer, batch(0..5));
    let second = append(&writer, batch(5..9));
    writer.hurry();
    let (first, second) = tokio::join!(first, second);
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(writer.status().version, 1);
    assert_eq!(values(lake.path()).await.len(), 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_commits_what_was_appended_and_dropping_the_future_changes_nothing() {
    let lake = tempfile::tempdir().unwrap();
    let writer = open(lake.path(), slow()).await;
    drop(append(&writer, batch(0..3)));
    writer.close().await;
    assert_eq!(values(lake.path()).await, [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn abandoning_ends_the_appends_that_wait() {
    let lake = tempfile::tempdir().unwrap();
    let writer = open(lake.path(), slow()).await;
    let waiting = append(&writer, batch(0..3));
    drop(writer);
    assert!(matches!(waiting.await, Err(AppendError::Stopped)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_generation_is_committed_and_rows_keep_their_order() {
    let lake = tempfile::tempdir().unwrap();
    let writer = open(
        lake.path(),
        WriterOptions {
            flush_bytes: 4096,
            ..slow()
        },
    )
    .await;
    let appends: Vec<_> = (0..50)
        .map(|i| append(&writer, batch(i * 100..i * 100 + 100)))
        .collect();
    writer.close().await;
    for append in appends {
        append.await.unwrap();
    }
    let in_files: Vec<i64> = rows(lake.path())
        .await
        .iter()
        .map(|row| row["value_int"].parse().unwrap())
        .collect();
    assert_eq!(
        in_files,
        (0..5000).collect::<Vec<_>>(),
        "the order of appends, across files and within equal times"
    );
    assert!(writer.status().files > 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tag_of_two_sources_is_two_series() {
    let lake = tempfile::tempdir().unwrap();
    let writer = open(lake.path(), fast()).await;
    let from = |source: SourceName| Message {
        source,
        ..message("t", 1, &[])
    };
    let messages = vec![
        from(SourceName::new("north")),
        from(SourceName::new("south")),
        from(SourceName::default()),
    ];
    append(&writer, Arc::new(messages)).await.unwrap();
    let mut found: Vec<(String, String)> = rows(lake.path())
        .await
        .iter()
        .map(|row| (row["source"].clone(), row["tag_id"].clone()))
        .collect();
    found.sort();
    let expected =
        ["north", "plant", "south"].map(|source| (source.to_owned(), tags::tag_id(source, Some("t")).to_string()));
    assert_eq!(found, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_without_an_answer_are_counted_in_bytes_and_leave_no_room_at_their_limit() {
    let lake = tempfile::tempdir().unwrap();
    let registry = Registry::new();
    let options = WriterOptions {
        memory_bytes: 4 << 20,
        ..slow()
    };
    let metrics = LakeMetrics::register(&registry).unwrap();
    let writer = TagsWriter::open(lake.path().to_owned(), SyncedStore::new(), metrics.clone(), options)
        .await
        .unwrap();
    let watched = writer.clone();
    metrics.watch_share("lake.memory", 4 << 20, move || watched.buffer_bytes());
    let long = |n: usize| {
        let text = Value::text("x".repeat(n));
        Arc::new(vec![Message::new(Payload::Value(text), Metadata::default())])
    };
    let first = append(&writer, long(700 << 10));
    assert!(writer.has_room());
    let second = append(&writer, long(700 << 10));
    assert!(!writer.has_room(), "1400 KiB wait, the limit is a quarter of 4 MiB");
    assert!(writer.buffer_bytes() > 1400 << 10);
    writer.hurry();
    first.await.unwrap();
    second.await.unwrap();
    assert!(writer.has_room());
    assert_eq!(writer.buffer_bytes(), 0);

    let mut names = Vec::new();
    for family in registry.gather() {
        for metric in family.get_metric() {
            let labels: Vec<String> = metric
                .get_label()
                .iter()
                .map(|l| format!("{}={}", l.name(), l.value()))
                .collect();
            names.push(format!("{}{{{}}}", family.name(), labels.join(",")));
        }
    }
    for name in [
        "thalweg_lake_visibility_seconds{table=tags}",
        "thalweg_lake_memory_bytes{kind=limit,share=lake.memory}",
        "thalweg_lake_memory_bytes{kind=used,share=lake.memory}",
    ] {
        assert!(
            names.iter().any(|known| known == name),
            "{name} is missing in {names:?}"
        );
    }
    append(&writer, Arc::new(vec![message("t", 1, &[(&"k".repeat(600), "v")])]))
        .await
        .unwrap_err();
    let rejected = registry.gather();
    let rejected = rejected
        .iter()
        .find(|family| family.name() == "thalweg_lake_rejected_records_total")
        .unwrap();
    let labels: Vec<&str> = rejected.get_metric()[0]
        .get_label()
        .iter()
        .map(|label| label.name())
        .collect();
    assert_eq!(labels, ["reason", "signal"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_messages_are_named_and_the_others_are_stored() {
    let lake = tempfile::tempdir().unwrap();
    let mut options = fast();
    options.rules.limits.attribute_value_bytes_max = 10;
    let writer = open(lake.path(), options).await;
    let long = [("x", "12345678901")];
    let mixed = vec![message("t", 1, &[]), message("t", 2, &long), message("t", 3, &[])];
    let Err(AppendError::Refused(refused)) = append(&writer, Arc::new(mixed)).await else {
        panic!("not refused")
    };
    assert_eq!(refused.len(), 1);
    assert_eq!((refused[0].index, refused[0].refusal.reason), (1, DropReason::TooLarge));
    assert_eq!(values(lake.path()).await, [1, 3]);
    let all = append(&writer, Arc::new(vec![message("t", 4, &long)])).await;
    assert!(
        matches!(all, Err(AppendError::Refused(_))),
        "without any row there is no commit to wait for"
    );
    append(&writer, Arc::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ten_megabyte_text_is_stored_whole() {
    let lake = tempfile::tempdir().unwrap();
    let writer = open(lake.path(), fast()).await;
    let text = "0123456789".repeat(1 << 20);
    let mut large = message("t", 0, &[]);
    large.payload = Payload::Value(Value::text(text.as_str()));
    append(&writer, Arc::new(vec![large])).await.unwrap();
    assert_eq!(rows(lake.path()).await[0]["value_text"], text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_keep_their_names_over_a_restart() {
    let lake = tempfile::tempdir().unwrap();
    let writer = open(lake.path(), fast()).await;
    append(&writer, Arc::new(vec![message("t", 1, &[("a.b", "first")])]))
        .await
        .unwrap();
    writer.close().await;
    let writer = open(lake.path(), fast()).await;
    let both = vec![
        message("t", 2, &[("a_b", "second"), ("a.b", "first")]),
        message("t", 3, &[("c", "x")]),
    ];
    append(&writer, Arc::new(both)).await.unwrap();
    let mut rows = rows(lake.path()).await;
    rows.sort_by_key(|row| row["value_int"].clone());
    assert_eq!(rows[0]["attr_a_b"], "first");
    assert_eq!(rows[1]["attr_a_b"], "first");
    let (suffixed, value) = rows[1].iter().find(|(name, _)| name.starts_with("attr_a_b__")).unwrap();
    assert_eq!((suffixed.len(), value.as_str()), ("attr_a_b__".len() + 8, "second"));
    assert_eq!(rows[2]["attr_c"], "x");
    let log = DeltaLog::new(&lake.path().join("tags"), SyncedStore::new()).unwrap();
    let schema = log.load(Detail::Counts).await.unwrap().unwrap().schema;
    assert_eq!(schema.column("attr_a_b").unwrap().binding(), Some(("attr", "a.b")));
    assert_eq!(schema.column(suffixed).unwrap().binding(), Some(("attr", "a_b")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_holds_rows_back_and_loses_none() {
    let lake = tempfile::tempdir().unwrap();
    let disk = SimulatedDisk::default();
    let store = SyncedStore::with_disk(Arc::new(disk.clone()));
    let writer = open_with(lake.path(), store, fast()).await.unwrap();
    append(&writer, batch([0])).await.unwrap();
    disk.fail(StepKind::Write, io::ErrorKind::StorageFull);
    let waiting = tokio::spawn(append(&writer, batch(1..4)));
    let trouble = until(|| writer.status().trouble).await.0;
    assert!(
        trouble.contains("is full") && trouble.contains("free some space"),
        "{trouble}"
    );
    assert!(!waiting.is_finished());
    let more = append(&writer, batch(4..6));
    assert_eq!(writer.status().buffered_rows, 5);
    disk.heal();
    waiting.await.unwrap().unwrap();
    more.await.unwrap();
    assert_eq!(values(lake.path()).await, [0, 1, 2, 3, 4, 5]);
    assert!(writer.status().trouble.is_none());
}

async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        match look() {
            Some(found) => return found,
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_makes_the_table_read_only_until_it_is_opened_again() {
    for kind in [StepKind::SyncFile, StepKind::SyncDirectory] {
        let lake = tempfile::tempdir().unwrap();
        let disk = SimulatedDisk::default();
        let store = SyncedStore::with_disk(Arc::new(disk.clone()));
        let writer = open_with(lake.path(), store, fast()).await.unwrap();
        append(&writer, batch([0])).await.unwrap();
        disk.fail(kind, io::ErrorKind::Other);
        let Err(AppendError::ReadOnly(text)) = append(&writer, batch([1])).await else {
            panic!("stored")
        };
        assert!(text.contains("lake.sync_failed"), "{text}");
        disk.heal();
        assert!(matches!(
            append(&writer, batch([2])).await,
            Err(AppendError::ReadOnly(_))
        ));
        assert_eq!(writer.not_ready().len(), 1);
        writer.close().await;
        let writer = open(lake.path(), fast()).await;
        append(&writer, batch([3])).await.unwrap();
        let found = values(lake.path()).await;
        assert!(found.contains(&0) && found.contains(&3), "{found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_writer_in_between_is_respected() {
    let lake = tempfile::tempdir().unwrap();
    let writer = open(lake.path(), fast()).await;
    append(&writer, Arc::new(vec![message("t", 1, &[("a", "1")])]))
        .await
        .unwrap();

    // A commit without new columns: ours goes in after it.
    let log = DeltaLog::new(&lake.path().join("tags"), SyncedStore::new()).unwrap();
    let mut snapshot = log.load(Detail::Counts).await.unwrap().unwrap();
    let info = || Action::CommitInfo(commit_info("WRITE", 1));
    log.commit(snapshot.version + 1, &[info()]).await.unwrap();
    append(&writer, Arc::new(vec![message("t", 2, &[("b", "2")])]))
        .await
        .unwrap();

    // A commit that gives the name c.d the column that our c_d would take.
    log.refresh(&mut snapshot).await.unwrap();
    let mut schema = (*snapshot.schema).clone();
    schema.columns.push(Column::attribute("attr_c_d".into(), "attr", "c.d"));
    let metadata = TableMetadata {
        schema_string: schema.to_delta(),
        ..snapshot.metadata.clone()
    };
    log.commit(snapshot.version + 1, &[info(), Action::Metadata(metadata)])
        .await
        .unwrap();
    append(
        &writer,
        Arc::new(vec![message("t", 3, &[("c_d", "ours"), ("c.d", "theirs")])]),
    )
    .await
    .unwrap();

    let mut rows = rows(lake.path()).await;
    rows.sort_by_key(|row| row["value_int"].clone());
    assert_eq!(
        (rows[1]["attr_b"].as_str(), rows[2]["attr_c_d"].as_str()),
        ("2", "theirs")
    );
    assert!(
        rows[2]
            .iter()
            .any(|(name, value)| name.starts_with("attr_c_d__") && value == "ours")
    );
    let files = std::fs::read_dir(lake.path().join("tags")).unwrap().flatten();
    let data: usize = files
        .filter(|entry| entry.file_name() != "_delta_log")
        .map(|entry| std::fs::read_dir(entry.path()).unwrap().count())
        .sum();
    assert_eq!(data, 3, "the files that were encoded for the old columns are gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_writers_of_one_table_lose_nothing() {
    let lake = tempfile::tempdir().unwrap();
    let writers = [open(lake.path(), fast()).await, open(lake.path(), fast()).await];
    let mut appends = Vec::new();
    for i in 0..40i64 {
        let column = format!("k{}", i / 4);
        let messages = vec![message("t", i, &[(&column, "v")])];
        appends.push(append(&writers[i as usize % 2], Arc::new(messages)));
        writers[i as usize % 2].hurry();
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    for append in appends {
        append.await.unwrap();
    }
    let rows = rows(lake.path()).await;
    assert_eq!(rows.len(), 40);
    for row in rows {
        let value: i64 = row["value_int"].parse().unwrap();
        assert_eq!(row[&format!("attr_k{}", value / 4)], "v");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_comes_after_every_so_many_commits() {
    let lake = tempfile::tempdir().unwrap();
    let options = WriterOptions {
        checkpoint_interval: 5,
        flush_interval: Duration::from_millis(1),
        ..fast()
    };
    let writer = open(lake.path(), options).await;
    for i in 0..12 {
        append(&writer, batch([i])).await.unwrap();
    }
    let log = lake.path().join("tags/_delta_log");
    until(|| log.join("_last_checkpoint").exists().then_some(())).await;
    writer.close().await;
    assert_eq!(values(lake.path()).await, (0..12).collect::<Vec<_>>());
    assert!(log.join(format!("{:020}.checkpoint.parquet", 5)).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_cannot_be_used_is_one_clear_sentence() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("lake"), "a file").unwrap();
    let error = open_with(&folder.path().join("lake"), SyncedStore::new(), fast())
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.starts_with("the lake folder ") && error.contains("set another data_dir"),
        "{error}"
    );
}

/// The process dies, or the machine loses power, before any one step of the store: after a restart the table is whole,
/// an append is in it with all its rows or none, and one that had ended is in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn death_between_any_two_steps_loses_nothing_acknowledged() {
    const ROWS: i64 = 3;
    let mut finished = false;
    let mut step = 1;
    while !finished {
        for power_loss in [None, Some(1), Some(2)] {
            let lake = tempfile::tempdir().unwrap();
            let disk = SimulatedDisk::dies_at(step);
            let store = SyncedStore::with_disk(Arc::new(disk.clone()));
            let options = WriterOptions {
                checkpoint_interval: 2,
                ..fast()
            };
            let mut acknowledged = Vec::new();
            if let Ok(writer) = open_with(lake.path(), store, options).await {
                for i in 0..4 {
                    let rows = batch(i * ROWS..(i + 1) * ROWS);
                    let ended = append(&writer, rows);
                    writer.hurry();
                    tokio::select! {
                        outcome = ended => match outcome {
                            Ok(()) => acknowledged.push(i),
                            Err(error) => {
                                assert!(disk.is_dead(), "step {step}: append {i}: {error}");
                                break;
                            }
                        },
                        () = until(|| disk.is_dead().then_some(())) => break,
                    }
                }
                writer.abandon();
                writer.close().await;
            }
            finished = acknowledged.len() == 4 && disk.steps() < step;
            if let Some(seed) = power_loss {
                let mut random = step.wrapping_mul(31).wrapping_add(seed);
                disk.lose_power(lake.path(), || {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    random >> 33
                });
            }
            let writer = open(lake.path(), fast()).await;
            let found = values(lake.path()).await;
            for i in &acknowledged {
                assert!(
                    found.contains(&(i * ROWS)),
                    "step {step}: append {i} was acknowledged and is lost, {power_loss:?}"
                );
            }
            for i in 0..4 {
                let of_append = found.iter().filter(|value| **value / ROWS == i).count() as i64;
                assert!(
                    [0, ROWS].contains(&of_append),
                    "step {step}: append {i} has {of_append} rows"
                );
            }
            append(&writer, batch([100])).await.unwrap();
            assert!(values(lake.path()).await.contains(&100));
        }
        step += 1;
    }
    assert!(step > 30, "the steps of {step} operations were tried");
}
