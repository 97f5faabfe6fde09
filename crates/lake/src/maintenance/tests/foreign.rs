//! Another program adds files to a table and rewrites some. They must be rewritten as sorted files, which are then
//! treated like any other.

use arrow::array::{ArrayRef, AsArray as _, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::compute::concat_batches;
use arrow::datatypes::Int64Type;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::properties::WriterProperties;

use super::*;
use thalweg_columns::file::footer::with_odd_ordinals;
use thalweg_delta::actions::{Action, Add, Remove};

/// Does what `optimize` of another Delta writer does: merges all files into one without sorting. Without statistics the
/// row times are unknown.
async fn optimize(lake: &Path, stats: Option<String>, leave_out: &str) -> String {
    let log = DeltaLog::new(&lake.join("logs"), SyncedStore::new()).unwrap();
    let table = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
    let mut batches: Vec<RecordBatch> = Vec::new();
    // The newest rows come first.
    let mut files: Vec<_> = table.files.values().collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.times));
    for file in &files {
        let opened = std::fs::File::open(log.table().join(&*file.path)).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(opened).unwrap();
        batches.extend(reader.build().unwrap().map(|rows| {
            let mut rows = rows.unwrap();
            if let Ok(at) = rows.schema().index_of(leave_out) {
                rows.remove_column(at);
            }
            rows
        }));
    }
    let rows = in_no_order(&concat_batches(&batches[0].schema(), &batches).unwrap());
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(7)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    // Some writers leave out the ordinal of the first row group.
    let bytes = with_odd_ordinals(&writer.into_inner().unwrap(), true).unwrap();
    let (folder, _) = files[0].path.rsplit_once('/').unwrap();
    let path = format!("{folder}/part-00001-c000.zstd.parquet");
    std::fs::write(log.table().join(&path), &bytes).unwrap();
    let mut actions: Vec<Action> = Vec::new();
    actions.extend(files.iter().map(|file| {
        Action::Remove(Remove {
            path: file.path.to_string(),
            data_change: false,
            deletion_timestamp: Some(thalweg_kit::clock::unix_ms()),
        })
    }));
    actions.push(Action::Add(Add {
        path: path.clone(),
        partition_values: [("date".to_owned(), files[0].partition[0].as_deref().map(str::to_owned))].into(),
        size: bytes.len() as u64,
        modification_time: thalweg_kit::clock::unix_ms(),
        data_change: false,
        stats,
        tags: None,
        deletion_vector: None,
    }));
    log.commit(table.version + 1, &actions).await.unwrap();
    path
}

/// The same rows at times one second apart, in descending order. All are of one service.
fn in_no_order(rows: &RecordBatch) -> RecordBatch {
    let seconds = || (0..rows.num_rows() as i64).rev().map(|at| FIRST_SECOND + at);
    let schema = rows.schema();
    let columns = schema.fields().iter().zip(rows.columns()).map(|(field, column)| {
        let column: ArrayRef = match field.name().as_str() {
            "time_unix_nano" => Arc::new(Int64Array::from_iter_values(seconds().map(|at| at * 1_000_000_000))),
            "time" => {
                let times = TimestampMicrosecondArray::from_iter_values(seconds().map(|at| at * 1_000_000));
                Arc::new(times.with_timezone("UTC"))
            }
            _ => column.clone(),
        };
        column
    });
    RecordBatch::try_new(schema.clone(), columns.collect()).unwrap()
}

/// Whether the file is sorted and its footer claims it.
fn is_sorted(lake: &Path, path: &str) -> bool {
    let file = std::fs::File::open(lake.join("logs").join(path)).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let is_said = thalweg_columns::file::is_sorted(reader.metadata(), thalweg_columns::tables::LOGS.sort);
    let mut times = Vec::new();
    for rows in reader.build().unwrap() {
        let rows = rows.unwrap();
        let column = rows.column_by_name("time_unix_nano").unwrap();
        times.extend_from_slice(column.as_primitive::<Int64Type>().values());
    }
    is_said && times.is_sorted()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_another_writer_become_sorted_ones_and_are_merged_and_sealed() {
    for has_stats in [true, false] {
        let world = World::new().await;
        let writer = Arc::new(world.open(&fast()).await);
        let mut bodies = many_files(&world, &writer).await;
        let lake = world.folder.path();
        let stats = has_stats.then(|| {
            let of = snapshot_ends();
            format!("{{\"numRecords\":20,\"minValues\":{of},\"maxValues\":{of}}}")
        });
        optimize(lake, stats, "").await;
        let before = snapshot(lake).await;
        assert!(before.files.values().all(|file| file.is_foreign));
        let mut options = eager();
        options.compaction.seal_after = Duration::ZERO;
        // The table has nothing to commit, so its writer has not read the other one's commit yet.
        let maintenance = start(&writer, options);
        eventually(async || snapshot(lake).await.files.values().all(|file| file.is_sealed)).await;
        stop(maintenance).await;
        let after = snapshot(lake).await;
        assert_eq!(after.files.len(), 1);
        let file = after.files.values().next().unwrap();
        assert!(!file.is_foreign && is_sorted(lake, &file.path));
        assert!(file.times.is_some() && file.arrival_max.is_some() && after.rows == 20);
        // Rows can still be appended.
        world.append(0, &["one more"]).await;
        bodies.push("one more".to_owned());
        eventually(async || writer.tables()[0].rows == 21).await;
        assert_eq!(world.stored().await.0, bodies);
        writer.close(SOON).await;
    }
}

/// 2023-11-14, the time of the rows that tests append.
const FIRST_SECOND: i64 = 1_700_000_000;

/// Approximate bounds of the rows.
fn snapshot_ends() -> String {
    let nanos = FIRST_SECOND * 1_000_000_000;
    format!("{{\"time_unix_nano\":{nanos},\"arrival_unix_nano\":{nanos}}}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_rewritten_stays_and_does_not_keep_others_from_being_merged() {
    let world = World::new().await;
    let writer = Arc::new(world.open(&fast()).await);
    many_files(&world, &writer).await;
    let lake = world.folder.path();
    let bad = optimize(lake, None, "arrival_unix_nano").await;
    let mut options = eager();
    options.compaction.seal_after = Duration::ZERO;
    let maintenance = start(&writer, options);
    world.append(0, &["one more"]).await;
    eventually(async || {
        let table = snapshot(lake).await;
        let others = table.files.values().filter(|file| *file.path != *bad);
        let (sealed, others): (Vec<_>, Vec<_>) = others.partition(|file| file.is_sealed);
        sealed.len() == 1 && others.is_empty()
    })
    .await;
    assert!(
        snapshot(lake).await.files.contains_key(bad.as_str()),
        "it stays as it is"
    );
    stop(maintenance).await;
    writer.close(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_tag_says_of_a_file_that_another_program_has_written_does_not_count() {
    let world = World::new().await;
    let writer = Arc::new(world.open(&fast()).await);
    let bodies = many_files(&world, &writer).await;
    let lake = world.folder.path();
    let path = optimize(lake, None, "").await;
    // As if the file was one of ours.
    let log = DeltaLog::new(&lake.join("logs"), SyncedStore::new()).unwrap();
    let table = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
    let file = &table.files[path.as_str()];
    let tags = [("thalweg.level", "0"), ("thalweg.arrival_max", "1700000000000000000")];
    let add = Add {
        path: path.clone(),
        partition_values: [("date".to_owned(), file.partition[0].as_deref().map(str::to_owned))].into(),
        size: file.size,
        modification_time: file.modified_unix_ms,
        data_change: false,
        stats: Some(format!(
            "{{\"numRecords\":20,\"minValues\":{0},\"maxValues\":{0}}}",
            snapshot_ends()
        )),
        tags: Some(tags.map(|(key, value)| (key.to_owned(), Some(value.to_owned()))).into()),
        deletion_vector: None,
    };
    log.commit(table.version + 1, &[Action::Add(add)]).await.unwrap();
    assert!(!snapshot(lake).await.files[path.as_str()].is_foreign);
    let mut options = eager();
    options.compaction.seal_after = Duration::ZERO;
    let maintenance = start(&writer, options);
    eventually(async || snapshot(lake).await.files.values().all(|file| file.is_sealed)).await;
    stop(maintenance).await;
    let after = snapshot(lake).await;
    assert!(
        after.files.keys().all(|path| is_sorted(lake, path)),
        "{:?}",
        after.files.keys()
    );
    assert_eq!(world.stored().await.0, bodies);
    writer.close(SOON).await;
}
