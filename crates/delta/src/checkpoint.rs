//! Checkpoints: the state of a table in one Parquet file, so that readers need not replay the whole history.
//!
//! A checkpoint has one row per action and one struct column per kind of action. Converting through JSON in both
//! directions keeps a single definition of the actions: a checkpoint can store whatever a commit can.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::json::{LineDelimitedWriter, ReaderBuilder};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use serde::{Deserialize, Serialize};

use super::actions::{Action, Add, Metadata, Protocol, Remove, Txn, decode};
use super::footer;

/// Actions converted at a time.
const CHUNK: usize = 4096;

/// The default retention of tombstones: removed files are remembered for a week, for readers of older versions.
pub(super) const TOMBSTONES_DEFAULT_MS: i64 = 7 * DAY_MS;
const DAY_MS: i64 = 24 * 3600 * 1000;

/// The file that names the newest checkpoint. It is a hint that may be missing or outdated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastCheckpoint {
    pub version: i64,
    /// The number of actions.
    pub size: i64,
    /// The number of files, if there is more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_in_bytes: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_of_add_files: Option<i64>,
}

impl LastCheckpoint {
    /// The names of its files in `_delta_log`.
    pub fn files(&self) -> Vec<String> {
        let version = self.version;
        match self.parts {
            None | Some(0) => vec![format!("{version:020}.checkpoint.parquet")],
            Some(parts) => (1..=parts)
                .map(|part| format!("{version:020}.checkpoint.{part:010}.{parts:010}.parquet"))
                .collect(),
        }
    }

    /// The checkpoint that a file in `_delta_log` belongs to.
    pub fn of_file(name: &str) -> Option<LastCheckpoint> {
        let mut words = name.strip_suffix(".parquet")?.split('.');
        let version = words.next().filter(|digits| digits.len() == 20)?.parse().ok()?;
        if words.next()? != "checkpoint" {
            return None;
        }
        let parts = match (words.next(), words.next(), words.next()) {
            (None, None, None) => None,
            (Some(part), Some(parts), None) if part.len() == 10 => Some(parts.parse().ok()?),
            // A newer kind, which only tables with a newer reader version have.
            _ => return None,
        };
        Some(LastCheckpoint {
            version,
            size: 0,
            parts,
            size_in_bytes: None,
            num_of_add_files: None,
        })
    }
}

/// The state of a table at one version.
#[derive(Debug, Default)]
pub struct CheckpointState {
    pub protocol: Option<Protocol>,
    pub metadata: Option<Metadata>,
    pub adds: BTreeMap<String, Add>,
    removes: BTreeMap<String, Remove>,
    pub txns: BTreeMap<String, Txn>,
}

impl CheckpointState {
    pub fn apply(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::CommitInfo(_) => {}
                Action::Protocol(protocol) => self.protocol = Some(protocol),
                Action::Metadata(metadata) => self.metadata = Some(metadata),
                Action::Add(add) => {
                    self.removes.remove(&add.path);
                    self.adds.insert(add.path.clone(), add);
                }
                Action::Remove(remove) => {
                    self.adds.remove(&remove.path);
                    self.removes.insert(remove.path.clone(), remove);
                }
                Action::Txn(txn) => {
                    self.txns.insert(txn.app_id.clone(), txn);
                }
            }
        }
    }

    fn setting(&self, name: &str) -> Option<&str> {
        Some(self.metadata.as_ref()?.configuration.get(name)?.as_str())
    }

    /// How long commits before a checkpoint are kept; `None` if for ever.
    pub fn log_retention_ms(&self) -> Option<i64> {
        if self.setting("delta.enableExpiredLogCleanup") == Some("false") {
            return None;
        }
        let setting = self.setting("delta.logRetentionDuration");
        Some(setting.and_then(interval_ms).unwrap_or(30 * DAY_MS))
    }

    /// The actions of a checkpoint written at `now`.
    fn into_actions(self, now_unix_ms: i64) -> Vec<Action> {
        let setting = self.setting("delta.deletedFileRetentionDuration");
        let tombstones_from = now_unix_ms - setting.and_then(interval_ms).unwrap_or(TOMBSTONES_DEFAULT_MS);
        let setting = self.setting("delta.setTransactionRetentionDuration");
        let transactions_from = setting.and_then(interval_ms).map(|age| now_unix_ms - age);
        let mut actions = Vec::with_capacity(self.adds.len() + 2);
        actions.extend(self.protocol.map(Action::Protocol));
        actions.extend(self.metadata.map(Action::Metadata));
        let txns = self.txns.into_values().filter(|txn| {
            // A transaction without a time never expires.
            let (Some(from), Some(at)) = (transactions_from, txn.last_updated) else {
                return true;
            };
            at >= from
        });
        actions.extend(txns.map(Action::Txn));
        // For readers of a checkpoint, no file is a change.
        actions.extend(self.adds.into_values().map(|add| {
            Action::Add(Add {
                data_change: false,
                ..add
            })
        }));
        let removes = self.removes.into_values();
        let removes = removes.filter(|remove| remove.deletion_timestamp.unwrap_or(0) >= tombstones_from);
        actions.extend(removes.map(|remove| {
            Action::Remove(Remove {
                data_change: false,
                ..remove
            })
        }));
        actions
    }

    /// Encodes the checkpoint, and returns the hint that names it.
    pub fn encode(self, version: i64, now_unix_ms: i64) -> Result<(Bytes, LastCheckpoint), String> {
        let adds = self.adds.len();
        let actions = self.into_actions(now_unix_ms);
        let schema = schema();
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let mut writer =
            ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties)).map_err(|e| e.to_string())?;
        let builder = ReaderBuilder::new(schema).with_batch_size(CHUNK);
        let mut decoder = builder.build_decoder().map_err(|e| e.to_string())?;
        for chunk in actions.chunks(CHUNK) {
            decoder.serialize(chunk).map_err(|e| e.to_string())?;
            if let Some(batch) = decoder.flush().map_err(|e| e.to_string())? {
                writer.write(&batch).map_err(|e| e.to_string())?;
            }
        }
        let bytes = Bytes::from(writer.into_inner().map_err(|e| e.to_string())?);
        let last = LastCheckpoint {
            version,
            size: length(actions.len()),
            parts: None,
            size_in_bytes: Some(length(bytes.len())),
            num_of_add_files: Some(length(adds)),
        };
        Ok((bytes, last))
    }
}

fn length(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The actions of one checkpoint file, written by any program.
pub fn read(bytes: Bytes) -> Result<Vec<Action>, String> {
    let metadata = footer::load(&bytes, ArrowReaderOptions::new()).map_err(|e| e.to_string())?;
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(bytes, metadata);
    let columns = builder.parquet_schema();
    let known = schema();
    let leaves = (0..columns.num_columns()).filter(|&leaf| {
        let column = columns.column(leaf);
        let path = column.path().parts();
        let (Some(kind), Some(member)) = (path.first(), path.get(1)) else {
            return false;
        };
        let Ok(kind) = known.field_with_name(kind) else {
            return false;
        };
        // Deletion vectors are not supported, so they must be detected.
        let DataType::Struct(members) = kind.data_type() else {
            return false;
        };
        members.find(member).is_some() || member == "deletionVector" || kind.name() == "protocol"
    });
    let mask = ProjectionMask::leaves(columns, leaves);
    let reader = builder.with_projection(mask).with_batch_size(CHUNK).build();
    let mut actions = Vec::new();
    for batch in reader.map_err(|e| e.to_string())? {
        let batch = batch.map_err(|e| e.to_string())?;
        actions.extend(decode(&json_lines(&batch)?)?);
    }
    Ok(actions)
}

fn json_lines(batch: &RecordBatch) -> Result<Vec<u8>, String> {
    let mut lines = Vec::new();
    let mut writer = LineDelimitedWriter::new(&mut lines);
    writer.write(batch).map_err(|e| e.to_string())?;
    writer.finish().map_err(|e| e.to_string())?;
    Ok(lines)
}

/// The columns of a checkpoint that the protocol of this program's tables requires.
fn schema() -> SchemaRef {
    let text = |name: &str| Field::new(name, DataType::Utf8, true);
    let long = |name: &str| Field::new(name, DataType::Int64, true);
    let integer = |name: &str| Field::new(name, DataType::Int32, true);
    let flag = |name: &str| Field::new(name, DataType::Boolean, true);
    let object = |name: &str, members: Vec<Field>| Field::new(name, DataType::Struct(Fields::from(members)), true);
    let map = |name: &str| {
        let entry = vec![Field::new("key", DataType::Utf8, false), text("value")];
        let entries = Field::new("key_value", DataType::Struct(Fields::from(entry)), false);
        Field::new(name, DataType::Map(Arc::new(entries), false), true)
    };
    let list = |name: &str| Field::new(name, DataType::List(Arc::new(text("element"))), true);
    Arc::new(Schema::new(vec![
        object("txn", vec![text("appId"), long("version"), long("lastUpdated")]),
        object(
            "add",
            vec![
                text("path"),
                map("partitionValues"),
                long("size"),
                long("modificationTime"),
                flag("dataChange"),
                text("stats"),
                map("tags"),
            ],
        ),
        object(
            "remove",
            vec![text("path"), long("deletionTimestamp"), flag("dataChange")],
        ),
        object(
            "metaData",
            vec![
                text("id"),
                text("name"),
                text("description"),
                object("format", vec![text("provider"), map("options")]),
                text("schemaString"),
                list("partitionColumns"),
                map("configuration"),
                long("createdTime"),
            ],
        ),
        object(
            "protocol",
            vec![integer("minReaderVersion"), integer("minWriterVersion")],
        ),
    ]))
}

/// Parses `interval 7 days`, the form of table properties.
fn interval_ms(text: &str) -> Option<i64> {
    let mut words = text.split_whitespace().peekable();
    words.next_if(|word| word.eq_ignore_ascii_case("interval"));
    let mut sum: i64 = 0;
    while let Some(number) = words.next() {
        let number: i64 = number.parse().ok()?;
        let unit = match words.next()?.to_ascii_lowercase().trim_end_matches('s') {
            "week" => 7 * DAY_MS,
            "day" => DAY_MS,
            "hour" => 3_600_000,
            "minute" => 60_000,
            "second" => 1000,
            "millisecond" => 1,
            _ => return None,
        };
        sum = sum.checked_add(number.checked_mul(unit)?)?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actions::Format;

    fn add(path: &str) -> Add {
        Add {
            path: path.to_owned(),
            partition_values: [("date".to_owned(), Some("2031-05-06".to_owned()))].into(),
            size: 3,
            modification_time: 4,
            data_change: true,
            stats: Some("{\"numRecords\":1}".to_owned()),
            tags: Some([("thalweg.level".to_owned(), Some("2".to_owned()))].into()),
            deletion_vector: None,
        }
    }

    fn metadata(configuration: &[(&str, &str)]) -> Metadata {
        Metadata {
            id: "i".to_owned(),
            name: None,
            description: None,
            format: Format::default(),
            schema_string: "{}".to_owned(),
            partition_columns: vec!["date".to_owned()],
            configuration: configuration
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
            created_time: Some(5),
        }
    }

    #[test]
    fn a_state_reads_back_and_what_has_expired_is_left_out() {
        let mut state = CheckpointState::default();
        let remove = |path: &str, at| {
            Action::Remove(Remove {
                path: path.to_owned(),
                data_change: true,
                deletion_timestamp: Some(at),
            })
        };
        let txn = |app_id: &str, at| {
            Action::Txn(Txn {
                app_id: app_id.to_owned(),
                version: 9,
                last_updated: Some(at),
            })
        };
        let now = 100 * DAY_MS;
        let settings = [("delta.setTransactionRetentionDuration", "interval 7 days")];
        state.apply(vec![
            Action::Protocol(Protocol::plain()),
            Action::Metadata(metadata(&settings)),
            Action::Add(add("a%20b")),
            Action::Add(add("gone")),
            Action::Add(add("back")),
        ]);
        state.apply(vec![
            remove("gone", now - DAY_MS),
            remove("long gone", now - 8 * DAY_MS),
            remove("back", now),
            Action::Add(add("back")),
            txn("young", now - DAY_MS),
            txn("old", now - 8 * DAY_MS),
        ]);
        let (bytes, last) = state.encode(7, now).unwrap();
        assert_eq!((last.version, last.size, last.num_of_add_files), (7, 6, Some(2)));
        let quiet = |path: &str| {
            Action::Add(Add {
                data_change: false,
                ..add(path)
            })
        };
        let Action::Remove(gone) = remove("gone", now - DAY_MS) else {
            unreachable!()
        };
        let expected = vec![
            Action::Protocol(Protocol::plain()),
            Action::Metadata(metadata(&settings)),
            txn("young", now - DAY_MS),
            quiet("a%20b"),
            quiet("back"),
            Action::Remove(Remove {
                data_change: false,
                ..gone
            }),
        ];
        assert_eq!(read(bytes).unwrap(), expected);
    }

    #[test]
    fn a_checkpoint_whose_row_groups_have_odd_ordinals_is_read() {
        let actions: Vec<Action> = (0..50).map(|n| Action::Add(add(&format!("{n:02}")))).collect();
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(10))
            .build();
        let mut writer = ArrowWriter::try_new(Vec::new(), schema(), Some(properties)).unwrap();
        let mut decoder = ReaderBuilder::new(schema()).build_decoder().unwrap();
        decoder.serialize(&actions).unwrap();
        writer.write(&decoder.flush().unwrap().unwrap()).unwrap();
        let usual = writer.into_inner().unwrap();
        for is_first_absent in [true, false] {
            let odd = footer::with_odd_ordinals(&usual, is_first_absent).unwrap();
            assert_ne!(odd, usual);
            assert_eq!(read(odd.into()).unwrap(), actions, "{is_first_absent}");
        }
    }

    #[test]
    fn more_actions_than_a_chunk_are_all_there_and_in_order() {
        let mut state = CheckpointState::default();
        state.apply(
            (0..CHUNK * 2 + 5)
                .map(|n| Action::Add(add(&format!("{n:06}"))))
                .collect(),
        );
        let (bytes, _) = state.encode(1, 0).unwrap();
        let paths: Vec<String> = read(bytes)
            .unwrap()
            .into_iter()
            .map(|action| match action {
                Action::Add(add) => add.path,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(paths, (0..CHUNK * 2 + 5).map(|n| format!("{n:06}")).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_no_checkpoint_is_an_error_and_not_a_panic() {
        let mut state = CheckpointState::default();
        state.apply(vec![Action::Protocol(Protocol::plain())]);
        let (bytes, _) = state.encode(1, 0).unwrap();
        for end in 0..bytes.len() {
            assert!(read(bytes.slice(..end)).is_err(), "{end}");
        }
    }

    #[test]
    fn names_of_files_lead_to_checkpoints_and_back() {
        for (name, files) in [
            ("00000000000000000012.checkpoint.parquet", 1),
            ("00000000000000000012.checkpoint.0000000002.0000000003.parquet", 3),
        ] {
            let found = LastCheckpoint::of_file(name).unwrap();
            assert_eq!((found.version, found.files().len()), (12, files));
            assert!(found.files().iter().any(|file| file == name));
        }
        for other in [
            "00000000000000000012.json",
            "12.checkpoint.parquet",
            "00000000000000000012.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet",
        ] {
            assert_eq!(LastCheckpoint::of_file(other), None, "{other}");
        }
    }

    #[test]
    fn intervals_are_read_as_tables_write_them() {
        assert_eq!(interval_ms("interval 7 days"), Some(7 * DAY_MS));
        assert_eq!(interval_ms("interval 1 week 2 hours"), Some(7 * DAY_MS + 7_200_000));
        assert_eq!(interval_ms("12 minutes"), Some(720_000));
        for wrong in [
            "interval x days",
            "interval 3",
            "interval 3 moons",
            "interval 9223372036854775807 days",
        ] {
            assert_eq!(interval_ms(wrong), None, "{wrong}");
        }
    }
}
