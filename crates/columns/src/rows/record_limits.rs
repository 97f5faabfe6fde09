//! The limits of a record, and why one is rejected.

/// The upper limit of the configurable nesting depth.
const NESTING_MAX: usize = 256;

/// The limits of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLimits {
    /// The depth of nested values.
    pub nesting: usize,
    /// For a record with its resource and scope, and for each of its events, links and exemplars.
    pub attributes: usize,
    pub name_bytes: usize,
    /// For a text, for bytes, or for the whole content of a list or map.
    pub value_bytes: usize,
    /// Longer values are cut when they are decoded instead of rejecting the record.
    pub cut_values: bool,
}

impl Default for RecordLimits {
    fn default() -> RecordLimits {
        RecordLimits {
            nesting: 64,
            attributes: 1024,
            name_bytes: 512,
            value_bytes: 1 << 20,
            cut_values: false,
        }
    }
}

impl RecordLimits {
    /// Limits for records that were accepted before, whatever the limits were then.
    pub fn widest() -> RecordLimits {
        RecordLimits {
            nesting: NESTING_MAX,
            attributes: usize::MAX,
            name_bytes: usize::MAX,
            value_bytes: usize::MAX,
            cut_values: false,
        }
    }
}

/// Why a record is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionReason {
    NestingTooDeep,
    TooManyAttributes,
    NameTooLong,
    ValueTooLong,
    InvalidPoint,
    InvalidId,
}

impl RejectionReason {
    pub const ALL: [RejectionReason; 6] = [
        RejectionReason::NestingTooDeep,
        RejectionReason::TooManyAttributes,
        RejectionReason::NameTooLong,
        RejectionReason::ValueTooLong,
        RejectionReason::InvalidPoint,
        RejectionReason::InvalidId,
    ];

    pub fn name(self) -> &'static str {
        match self {
            RejectionReason::NestingTooDeep => "nesting_too_deep",
            RejectionReason::TooManyAttributes => "too_many_attributes",
            RejectionReason::NameTooLong => "name_too_long",
            RejectionReason::ValueTooLong => "value_too_long",
            RejectionReason::InvalidPoint => "invalid_point",
            RejectionReason::InvalidId => "invalid_id",
        }
    }

    /// What is wrong, in one sentence.
    pub fn meaning(self) -> &'static str {
        match self {
            RejectionReason::NestingTooDeep => "A value is nested more deeply than `ingest.max_nesting` allows.",
            RejectionReason::TooManyAttributes => "The record has more attributes than `ingest.max_attributes` allows.",
            RejectionReason::NameTooLong => "The name of an attribute is longer than `ingest.max_name_bytes` allows.",
            RejectionReason::ValueTooLong => "A value is longer than `ingest.max_value_bytes` allows.",
            RejectionReason::InvalidPoint => "A point of a metric has values that do not fit together.",
            RejectionReason::InvalidId => "The id of a trace or a span does not have the length of an id.",
        }
    }
}
