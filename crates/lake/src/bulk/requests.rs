//! Requests of a protocol within files.

use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::record_limits::RecordLimits;
use thalweg_columns::rows::times::ArrivalWindow;

use super::error::BulkError;
use crate::signal::Signal;

/// How the requests of a file become rows, as those do that a receiver takes.
#[derive(Clone, Copy, Debug)]
pub struct RequestRules {
    pub limits: RecordLimits,
    pub window: ArrivalWindow,
    /// When the file was begun, in nanoseconds.
    pub arrival: i64,
    /// Of a request in binary form.
    pub bytes_max: usize,
}

/// A request whose rows were added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecodedRequest {
    pub changed: RowChangeCounts,
    /// Records that are no rows, by reason.
    pub rejected: Vec<(&'static str, u64)>,
}

/// A request that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {what}")]
pub struct MalformedRequest {
    /// From the beginning of the request.
    pub offset: usize,
    pub what: String,
}

/// Makes rows of the requests of a protocol. The store itself knows none.
pub trait RequestDecoder: Send {
    /// Another file begins.
    fn begin(&mut self, rules: &RequestRules);

    /// The signal of a request in JSON by the members of the object that the text begins with; `None` if it is no request.
    fn json_signal(&self, json: &[u8]) -> Option<Signal>;

    /// The signal of a request in binary form by what its messages are made of; `None` if it has no record. What could be of
    /// several signals is not guessed.
    fn probe(&self, request: &[u8]) -> Result<Option<Signal>, BulkError>;

    /// Adds the rows of a request in JSON. After an error none of it is there.
    fn decode_json(
        &mut self,
        signal: Signal,
        json: &[u8],
        chunk: &mut MemtableChunk,
    ) -> Result<DecodedRequest, MalformedRequest>;

    /// Adds the rows of a request in binary form. After an error none of it is there.
    fn decode(
        &mut self,
        signal: Signal,
        request: &[u8],
        chunk: &mut MemtableChunk,
    ) -> Result<DecodedRequest, MalformedRequest>;
}
