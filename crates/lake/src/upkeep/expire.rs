//! Files whose rows are older than a table keeps them leave it.

use std::sync::Arc;

use crate::commit::Replacement;
use crate::delta::{FileEntry, Snapshot};

const NANOS_PER_DAY: i64 = 86_400_000_000_000;

/// The files of which all rows happened, and arrived, more than some days ago. `now` is in nanoseconds; 0 days keep everything.
pub(super) fn expired(table: &Snapshot, days: &dyn Fn(&FileEntry) -> u32, now: i64) -> Option<Replacement> {
    let is_old = |file: &&Arc<FileEntry>| {
        let days = days(file);
        let oldest = now.saturating_sub(NANOS_PER_DAY.saturating_mul(days.into()));
        let is_before = |nanos: Option<i64>| nanos.is_some_and(|nanos| nanos < oldest);
        days > 0 && is_before(file.times.map(|(_, last)| last)) && is_before(file.arrival_max)
    };
    let expired = table.files.values().filter(is_old);
    let removed: Vec<_> = expired.map(|file| file.path.clone()).collect();
    (!removed.is_empty()).then(|| Replacement {
        operation: "DELETE",
        kind: "retain",
        removed,
        added: Vec::new(),
        changes_data: true,
    })
}
