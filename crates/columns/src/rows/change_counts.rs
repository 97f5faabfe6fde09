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
    /// Further times that no column can hold: source and server timestamps of tags; times of observation, of the start
    /// of a series, of ends of spans, of events and of exemplars.
    pub stamps_out_of_range: u64,
    /// Kinds and status codes of spans, and temporalities, that OTLP does not define; they are stored as unspecified.
    pub enums_unknown: u64,
    /// Resources and scopes whose number of dropped attributes has no column.
    pub dropped_counts_left_out: u64,
    /// Entries of the metadata of metrics, which have no column.
    pub metadata_left_out: u64,
}

impl RowChangeCounts {
    /// The counts by their label in metrics and reports.
    pub fn reasons(&self) -> [(&'static str, u64); 10] {
        [
            ("utf8_replaced", self.utf8_replaced),
            ("id_wrong", self.ids_wrong),
            ("key_repeated", self.keys_repeated),
            ("time_replaced", self.times_replaced),
            ("value_cut", self.values_cut),
            ("duration_negative", self.durations_negative),
            ("stamp_out_of_range", self.stamps_out_of_range),
            ("enum_unknown", self.enums_unknown),
            ("dropped_count_left_out", self.dropped_counts_left_out),
            ("metadata_left_out", self.metadata_left_out),
        ]
    }
}
