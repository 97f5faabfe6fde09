//! The time of a record: its own, or else the time at which it was observed.

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
