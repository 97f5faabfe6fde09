//! Removes files from a table whose rows have exceeded its retention.

use std::sync::Arc;

use arrow::compute::kernels::cast_utils::Parser as _;
use arrow::datatypes::Date32Type;

use crate::commit::FileReplacement;
use crate::inspect::date_of;
use thalweg_delta::{FileEntry, Snapshot};

const NANOS_PER_DAY: i64 = 86_400_000_000_000;

/// The files in which all rows happened and arrived longer ago than the retention. `days` is the retention of a file, 0
/// for unlimited; `oldest` is the limit for a number of days, in nanoseconds since 1970.
pub(super) fn expired(
    table: &Snapshot,
    days: &dyn Fn(&FileEntry) -> u32,
    oldest: &dyn Fn(u32) -> i64,
) -> Option<FileReplacement> {
    let is_old = |file: &&Arc<FileEntry>| {
        let days = days(file);
        let oldest = oldest(days);
        days > 0 && last_time(table, file).is_some_and(|last| last < oldest) && file.last_arrival() < oldest
    };
    let expired = table.files.values().filter(is_old);
    let removed: Vec<_> = expired.map(|file| file.path.clone()).collect();
    (!removed.is_empty()).then(|| FileReplacement {
        operation: "DELETE",
        kind: "retain",
        removed,
        added: Vec::new(),
        changes_data: true,
    })
}

/// An upper bound for the time of a file's rows, in nanoseconds. Without statistics, the end of its day.
fn last_time(table: &Snapshot, file: &FileEntry) -> Option<i64> {
    let end_of_day = || {
        let day: i64 = Date32Type::parse(date_of(table, file)?)?.into();
        Some(day.saturating_add(1).saturating_mul(NANOS_PER_DAY) - 1)
    };
    file.times.map(|(_, last)| last).or_else(end_of_day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_columns::tables::LOGS;
    use thalweg_delta::SnapshotDetail;
    use thalweg_delta::actions::{Action, Add};
    use thalweg_delta::schema::TableSchema;
    use thalweg_delta::store::SyncedStore;

    /// 2031-05-06
    const DAY: i64 = 22_405;

    fn add(name: &str, stats: Option<String>, modified_days: i64) -> Action {
        Action::Add(Add {
            path: format!("date=2031-05-06/{name}"),
            partition_values: [("date".to_owned(), Some("2031-05-06".to_owned()))].into(),
            size: 1,
            modification_time: modified_days * 86_400_000,
            data_change: false,
            stats,
            tags: None,
            deletion_vector: None,
        })
    }

    /// Files of other writers do not have our tags.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn files_of_other_writers_leave_by_their_statistics_else_by_their_day_and_age() {
        let folder = tempfile::tempdir().unwrap();
        let log = thalweg_delta::DeltaLog::new(&folder.path().join("logs"), SyncedStore::new()).unwrap();
        let columns: TableSchema = (LOGS.columns)();
        let metadata = thalweg_delta::new_metadata(&columns, &["date"], &[], 0);
        log.commit(0, &thalweg_delta::creation(metadata)).await.unwrap();
        let stats = |arrival_day: i64| {
            let (time, arrival) = (DAY * NANOS_PER_DAY + 5, arrival_day * NANOS_PER_DAY);
            Some(format!(
                "{{\"numRecords\":1,\"minValues\":{{\"time_unix_nano\":{time}}},\
                 \"maxValues\":{{\"time_unix_nano\":{time},\"arrival_unix_nano\":{arrival}}}}}"
            ))
        };
        let files = [
            add("told", stats(DAY), DAY + 900),
            add("told-late", stats(DAY + 10), DAY + 900),
            add("untold", None, DAY),
            add("untold-late", None, DAY + 10),
        ];
        log.commit(1, &files).await.unwrap();
        let table = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
        let leaves = |day: i64| -> Vec<String> {
            let expired = expired(&table, &|_| 3, &|days| (DAY + day - i64::from(days)) * NANOS_PER_DAY);
            let removed = expired.into_iter().flat_map(|files| files.removed);
            removed
                .filter_map(|path| Some(path.rsplit_once('/')?.1.to_owned()))
                .collect()
        };
        assert_eq!(leaves(3), [""; 0]);
        assert_eq!(leaves(4), ["told", "untold"]);
        assert_eq!(leaves(14), ["told", "told-late", "untold", "untold-late"]);
    }
}
