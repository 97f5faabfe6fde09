//! Another program that writes a table: it appends, rewrites files in its own order, and adds columns.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array as _, ArrayRef, Date32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt32Array,
};
use arrow::compute::{cast, concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Schema};
use bytes::Bytes;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::json;
use thalweg_delta::actions::{Action, Add, CommitInfo, Metadata, Remove};
use thalweg_delta::schema::{ColumnType, TableColumn};
use thalweg_delta::store::SyncedStore;
use thalweg_delta::{CommitOutcome, DeltaError, DeltaLog, FileEntry, Snapshot, SnapshotDetail};
use thalweg_log::Micros;
use thalweg_log::disk::sim::Random;

const MICROS_PER_DAY: i64 = 86_400_000_000;

/// The outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// Nothing has changed.
    Refused,
    Unknown,
}

pub struct Guest {
    log: DeltaLog,
    table: std::path::PathBuf,
    /// The wall clock.
    wall: Micros,
}

impl Guest {
    pub fn of(table: &Path, store: &SyncedStore, wall: Micros) -> Guest {
        Guest {
            log: DeltaLog::new(table, store.clone()).unwrap(),
            table: table.to_owned(),
            wall,
        }
    }

    /// Adds rows with these bodies.
    pub async fn append(&self, names: &[String], random: &mut Random) -> Outcome {
        let Some(snapshot) = self.newest().await else {
            return Outcome::Refused;
        };
        let rows = i64::try_from(names.len()).unwrap();
        let times = || Int64Array::from_iter_values((0..rows).map(|n| (self.wall + n) * 1000));
        let micros = TimestampMicrosecondArray::from_iter_values((0..rows).map(|n| self.wall + n)).with_timezone("UTC");
        let columns: [(&str, ArrayRef); 4] = [
            ("time_unix_nano", Arc::new(times())),
            ("time", Arc::new(micros)),
            ("arrival_unix_nano", Arc::new(times())),
            ("body", Arc::new(StringArray::from_iter_values(names))),
        ];
        let rows = RecordBatch::try_from_iter(columns).unwrap();
        let (first, last) = (
            self.wall * 1000,
            (self.wall + i64::try_from(names.len()).unwrap() - 1) * 1000,
        );
        let stats = json!({
            "numRecords": names.len(),
            "minValues": {"time_unix_nano": first, "arrival_unix_nano": first},
            "maxValues": {"time_unix_nano": last, "arrival_unix_nano": last},
        });
        let day = Date32Array::from(vec![i32::try_from(self.wall.div_euclid(MICROS_PER_DAY)).unwrap()]);
        let day = cast(&day, &DataType::Utf8).unwrap();
        let day = day.as_any().downcast_ref::<StringArray>().unwrap().value(0).to_owned();
        let Ok(add) = self
            .file(&rows, &day, (!random.one_in(3)).then(|| stats.to_string()))
            .await
        else {
            return Outcome::Refused;
        };
        self.commit(snapshot.version + 1, "WRITE", vec![Action::Add(add)]).await
    }

    /// Replaces some files of one day by one file with shuffled rows.
    pub async fn rewrite(&self, random: &mut Random) -> Outcome {
        let Some(snapshot) = self.newest().await else {
            return Outcome::Refused;
        };
        let files: Vec<&Arc<FileEntry>> = snapshot.files.values().collect();
        if files.is_empty() {
            return Outcome::Refused;
        }
        let partition = &files[random.below(files.len() as u64) as usize].partition;
        let of_day = files.iter().filter(|file| file.partition == *partition);
        let chosen: Vec<&Arc<FileEntry>> = of_day.take(1 + random.below(3) as usize).copied().collect();
        // It may be deleted or damaged by now.
        let Some(rows) = self.read(&chosen) else {
            return Outcome::Refused;
        };
        let mut order: Vec<u32> = (0..u32::try_from(rows.num_rows()).unwrap()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        let rows = take_record_batch(&rows, &UInt32Array::from(order)).unwrap();
        let Some(day) = partition.first().and_then(|day| day.as_deref()) else {
            return Outcome::Refused;
        };
        let stats = json!({"numRecords": rows.num_rows()}).to_string();
        let Ok(mut add) = self.file(&rows, day, random.one_in(2).then_some(stats)).await else {
            return Outcome::Refused;
        };
        add.data_change = false;
        let mut actions: Vec<Action> = chosen.iter().map(|file| self.remove(file)).collect();
        actions.push(Action::Add(add));
        self.commit(snapshot.version + 1, "OPTIMIZE", actions).await
    }

    pub async fn add_column(&self, name: &str) -> Outcome {
        let Some(snapshot) = self.newest().await else {
            return Outcome::Refused;
        };
        let mut schema = (*snapshot.schema).clone();
        schema.columns.push(TableColumn::new(name, ColumnType::String));
        let metadata = Metadata {
            schema_string: schema.to_delta(),
            ..snapshot.metadata.clone()
        };
        self.commit(snapshot.version + 1, "ADD COLUMNS", vec![Action::Metadata(metadata)])
            .await
    }

    async fn newest(&self) -> Option<Snapshot> {
        self.log.load(SnapshotDetail::Counts).await.ok()?
    }

    fn read(&self, files: &[&Arc<FileEntry>]) -> Option<RecordBatch> {
        let mut batches = Vec::new();
        for file in files {
            let bytes = Bytes::from(std::fs::read(self.table.join(&*file.path)).ok()?);
            let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).ok()?.build().ok()?;
            for batch in reader {
                batches.push(batch.ok()?);
            }
        }
        let schemas = batches.iter().map(|batch| without_metadata(&batch.schema()));
        let schema = Arc::new(Schema::try_merge(schemas).ok()?);
        let filled = batches.iter().map(|batch| {
            let columns = schema
                .fields()
                .iter()
                .map(|field| match batch.column_by_name(field.name()) {
                    Some(column) => column.clone(),
                    None => arrow::array::new_null_array(field.data_type(), batch.num_rows()),
                });
            RecordBatch::try_new(schema.clone(), columns.collect())
        });
        concat_batches(&schema, &filled.collect::<Result<Vec<_>, _>>().ok()?).ok()
    }

    async fn file(&self, rows: &RecordBatch, day: &str, stats: Option<String>) -> Result<Add, DeltaError> {
        let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), None).unwrap();
        writer.write(rows).unwrap();
        let bytes = writer.into_inner().unwrap();
        let add = Add {
            path: format!("date={day}/guest-{}.parquet", uuid(&bytes)),
            partition_values: [("date".to_owned(), Some(day.to_owned()))].into(),
            size: bytes.len() as u64,
            modification_time: self.wall / 1000,
            data_change: true,
            stats,
            tags: None,
            deletion_vector: None,
        };
        self.log.put_file(&add.path, bytes.into()).await?;
        Ok(add)
    }

    fn remove(&self, file: &FileEntry) -> Action {
        Action::Remove(Remove {
            path: file.path.to_string(),
            data_change: false,
            deletion_timestamp: Some(self.wall / 1000),
        })
    }

    async fn commit(&self, version: i64, operation: &str, mut actions: Vec<Action>) -> Outcome {
        let info = CommitInfo {
            timestamp: self.wall / 1000,
            operation: operation.to_owned(),
            operation_parameters: Default::default(),
            engine_info: Some("another program".to_owned()),
            is_blind_append: None,
        };
        actions.insert(0, Action::CommitInfo(info));
        match self.log.commit(version, &actions).await {
            Ok(CommitOutcome::Committed) => Outcome::Done,
            Ok(CommitOutcome::Taken) => Outcome::Refused,
            Err(_) => Outcome::Unknown,
        }
    }
}

/// Files of different ages have different column metadata; other programs ignore it.
fn without_metadata(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| {
        let field = arrow::datatypes::Field::clone(field);
        field.with_metadata(Default::default()).with_nullable(true)
    });
    Schema::new(fields.collect::<Vec<_>>())
}

/// A name for a new object.
fn uuid(bytes: &[u8]) -> String {
    use std::hash::{BuildHasher as _, RandomState};
    format!("{:016x}", RandomState::new().hash_one(bytes))
}
