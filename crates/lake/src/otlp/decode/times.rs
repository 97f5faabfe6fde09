//! The time of a row: the first that is there of its own, the one at which it was observed, and its arrival.

use super::RequestDecoder;
use crate::rows::chunk::MemtableChunk;

/// How far before and after its arrival the time of a record may be, in nanoseconds: what is beyond is a mistake of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrivalWindow {
    pub past: i64,
    pub future: i64,
}

impl Default for ArrivalWindow {
    /// Ten years, and a day.
    fn default() -> ArrivalWindow {
        const HOUR: i64 = 3_600_000_000_000;
        ArrivalWindow {
            past: 10 * 8_766 * HOUR,
            future: 24 * HOUR,
        }
    }
}

/// The columns of the time of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeColumns {
    pub time: usize,
    pub arrival: usize,
    pub source: usize,
    pub original: usize,
}

impl RequestDecoder<'_, '_> {
    /// Zero is none.
    #[inline]
    pub(super) fn put_time(&mut self, row: usize, own: u64, observed: u64, columns: &TimeColumns) {
        let sent = match (own, observed) {
            (0, 0) => None,
            (0, observed) => Some((observed, Some("observed"))),
            (own, _) => Some((own, None)),
        };
        let (arrival, window) = (self.arrival.time, self.arrival.window);
        let is_replaced = put_sent(self.chunk, row, columns, arrival, window, sent);
        self.decoder.read.changed.times_replaced += u64::from(is_replaced);
    }
}

/// The time of a row as it was sent, with its source unless it is the row's own; else its arrival. A time beyond the window is
/// replaced by the arrival, and kept as it was sent; returns whether that is so.
#[inline]
pub(crate) fn put_sent<T: Copy + ToString + TryInto<i64>>(
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
