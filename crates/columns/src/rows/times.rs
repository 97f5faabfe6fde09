//! The time of a row: the first available of its own time, its observation time and its arrival.

use super::chunk::MemtableChunk;

/// How far before and after its arrival the time of a record may be, in nanoseconds. A time beyond it is a clock error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivalWindow {
    pub past: i64,
    pub future: i64,
}

impl Default for ArrivalWindow {
    /// Ten years before, one day after.
    fn default() -> ArrivalWindow {
        const HOUR: i64 = 3_600_000_000_000;
        ArrivalWindow {
            past: 10 * 8_766 * HOUR,
            future: 24 * HOUR,
        }
    }
}

/// The columns for the time of a row.
#[derive(Clone, Copy, Debug)]
pub struct TimeColumns {
    pub time: usize,
    pub arrival: usize,
    pub source: usize,
    pub original: usize,
}

/// Writes the time of a row as sent, with its source unless it is the row's own; without one, writes the arrival. A
/// time beyond the window is replaced by the arrival and kept beside it as sent. Returns whether it was replaced.
#[inline]
pub fn put_sent<T: Copy + ToString + TryInto<i64>>(
    chunk: &mut MemtableChunk,
    row: usize,
    columns: &TimeColumns,
    arrival: i64,
    window: ArrivalWindow,
    sent: Option<(T, Option<&str>)>,
) -> bool {
    let within = |sent: T| {
        let time = sent.try_into().ok()?;
        let is_within = time >= arrival.saturating_sub(window.past) && time <= arrival.saturating_add(window.future);
        is_within.then_some(time)
    };
    chunk.longs(columns.arrival).push(row, arrival);
    let (sent, source) = sent.unzip();
    match sent.map(|sent| within(sent).ok_or(sent)) {
        Some(Ok(time)) => {
            chunk.longs(columns.time).push(row, time);
            if let Some(source) = source.flatten() {
                chunk.texts(columns.source).push(row, source.as_bytes());
            }
            false
        }
        replaced => {
            chunk.longs(columns.time).push(row, arrival);
            chunk.texts(columns.source).push(row, b"arrival");
            if let Some(Err(sent)) = replaced {
                chunk.texts(columns.original).push(row, sent.to_string().as_bytes());
                return true;
            }
            false
        }
    }
}
