//! Files whose rows are older than a table keeps them leave it.

use crate::commit::Replacement;
use crate::delta::Snapshot;

const NANOS_PER_DAY: i64 = 86_400_000_000_000;

/// The files of which all rows happened, and arrived, more than some days ago. `now` is in nanoseconds; 0 days keep everything.
pub(super) fn expired(table: &Snapshot, days: u32, now: i64) -> Option<Replacement> {
    if days == 0 {
        return None;
    }
    let oldest = now.saturating_sub(NANOS_PER_DAY.saturating_mul(days.into()));
    let is_old = |nanos: Option<i64>| nanos.is_some_and(|nanos| nanos < oldest);
    let files = table.files.values();
    let expired = files.filter(|file| is_old(file.times.map(|(_, last)| last)) && is_old(file.arrival_max));
    let removed: Vec<_> = expired.map(|file| file.path.clone()).collect();
    (!removed.is_empty()).then(|| Replacement {
        operation: "DELETE",
        kind: "retain",
        removed,
        added: Vec::new(),
        changes_data: true,
    })
}
