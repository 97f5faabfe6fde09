//! The time of a record: its own, or else the time at which it was observed; and its further times.

use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::times::{TimeColumns, put_sent};

use super::RequestDecoder;

impl RequestDecoder<'_, '_> {
    /// A time of zero counts as absent.
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

/// A time that is not the record's own, as its column holds it. A time of zero counts as absent. One that is beyond the
/// year 2262 has no place in a column; it is left out and counted.
#[inline]
pub(super) fn further_time(time: u64, changed: &mut RowChangeCounts) -> Option<i64> {
    match i64::try_from(time) {
        Ok(time) => (time > 0).then_some(time),
        Err(_) => {
            changed.stamps_out_of_range += 1;
            None
        }
    }
}
