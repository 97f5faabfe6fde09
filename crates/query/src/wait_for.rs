//! `wait_for`: lets a query see what its sender has just stored.
//!
//! Receivers answer with the log position of a request. A query that names it begins when its rows are visible, in the
//! table or in memory, and fails if that takes too long. It never answers without them.

use std::time::Duration;

use thalweg_kit::clock;
use thalweg_lake::entry::EntryPosition;
use thalweg_lake::memtable_view::{MemtableReader, VisibilityWaitError};

use crate::error::QueryError;

pub const WAIT_MAX: Duration = Duration::from_secs(5);
/// Positions in one query.
const POSITIONS_MAX: usize = 64;

/// Parses one position, or several separated by commas.
pub fn positions(text: &str) -> Result<Vec<EntryPosition>, QueryError> {
    let positions: Vec<&str> = text.split(',').map(str::trim).collect();
    if positions.len() > POSITIONS_MAX {
        let message = format!(
            "wait_for names {} positions; at most {POSITIONS_MAX} are possible",
            positions.len()
        );
        return Err(QueryError::request(message));
    }
    let read = |text: &&str| {
        let position = text.parse::<EntryPosition>();
        position.map_err(|why| QueryError::request(format!("wait_for names the position {text:?}; {why}")))
    };
    positions.iter().map(read).collect()
}

/// Returns when queries see the entries at all positions.
pub async fn wait(live: &dyn MemtableReader, positions: &[EntryPosition]) -> Result<(), QueryError> {
    let until = clock::now() + WAIT_MAX;
    for position in positions {
        let left = until.saturating_duration_since(clock::now());
        live.wait_for(position, left).await.map_err(|error| match error {
            VisibilityWaitError::Unknown(text) => QueryError::request(format!("wait_for names the position {text}")),
            late => QueryError::wait_timeout(late.to_string()),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read_one_by_one() {
        let found = positions("lake.logs:0:7, lake.traces:1:0").unwrap();
        assert_eq!(
            found.iter().map(EntryPosition::to_string).collect::<Vec<_>>(),
            ["lake.logs:0:7", "lake.traces:1:0"]
        );
        for text in ["", "lake.logs:0:7,", "lake.logs", "lake.logs:x:1"] {
            let error = positions(text).unwrap_err();
            assert_eq!((error.code(), error.status()), ("query.bad_request", 400), "{text}");
        }
        let many = vec!["a:0:1"; POSITIONS_MAX + 1].join(",");
        assert!(positions(&many).unwrap_err().message.contains("at most 64"));
    }
}
