//! Decoding of protocol requests in files.

use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::record_limits::RecordLimits;
use thalweg_columns::rows::times::ArrivalWindow;

use super::error::BulkError;
use crate::signal::Signal;

/// The rules by which requests become rows, the same as for receivers.
#[derive(Clone, Copy, Debug)]
pub struct RequestRules {
    pub limits: RecordLimits,
    pub window: ArrivalWindow,
    /// When the import of the file began, in nanoseconds.
    pub arrival: i64,
    /// The limit of a binary request.
    pub bytes_max: usize,
}

/// A request whose rows were added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodedRequest {
    pub changed: RowChangeCounts,
    /// Rejected records, by reason.
    pub rejected: Vec<(&'static str, u64)>,
}

/// A request that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {what}")]
pub struct MalformedRequest {
    /// From the beginning of the request.
    pub offset: usize,
    pub what: String,
}

/// Makes rows of the requests of a protocol. The bulk import finds requests in files and splits them; it does not know
/// what they say.
pub trait RequestDecoder: Send {
    /// Begins another file.
    fn begin(&mut self, rules: &RequestRules);

    /// The signal of a JSON request, by the members of its object; `None` if it is no request.
    fn json_signal(&self, json: &[u8]) -> Option<Signal>;

    /// The signal of a binary request, by the structure of its messages; `None` if it has no records. An ambiguous
    /// signal is an error.
    fn probe(&self, request: &[u8]) -> Result<Option<Signal>, BulkError>;

    /// Adds the rows of a JSON request. After an error none of them is added.
    fn decode_json(
        &mut self,
        signal: Signal,
        json: &[u8],
        chunk: &mut MemtableChunk,
    ) -> Result<DecodedRequest, MalformedRequest>;

    /// Adds the rows of a binary request. After an error none of them is added.
    fn decode(
        &mut self,
        signal: Signal,
        request: &[u8],
        chunk: &mut MemtableChunk,
    ) -> Result<DecodedRequest, MalformedRequest>;
}
