//! Counts of values that differ from what was sent.

/// Values that were changed or left out while rows were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowChangeCounts {
    /// Texts that were not valid UTF-8.
    pub utf8_replaced: u64,
    /// Trace and span ids of the wrong length.
    pub ids_wrong: u64,
    /// Attributes whose name was repeated.
    pub keys_repeated: u64,
    /// Times outside of the arrival window.
    pub times_replaced: u64,
    pub values_cut: u64,
    /// Spans that end before they begin; they are kept so.
    pub durations_negative: u64,
    /// Source and server timestamps of tags that are out of range for a column.
    pub stamps_out_of_range: u64,
}

impl RowChangeCounts {
    /// The counts by their label in metrics and reports.
    pub fn reasons(&self) -> [(&'static str, u64); 7] {
        [
            ("utf8_replaced", self.utf8_replaced),
            ("id_wrong", self.ids_wrong),
            ("key_repeated", self.keys_repeated),
            ("time_replaced", self.times_replaced),
            ("value_cut", self.values_cut),
            ("duration_negative", self.durations_negative),
            ("stamp_out_of_range", self.stamps_out_of_range),
        ]
    }
}
