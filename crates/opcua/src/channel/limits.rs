//! Bounds on what a peer can make this end hold, and on what it queues itself.

use opcua::types::DecodingOptions;

/// Largest chunk this end accepts; larger ones brought nothing when measured.
pub(super) const CHUNK_BYTES_MAX: usize = 65_535;

/// Largest answer. A million-element array of numbers or a string of tens of megabytes passes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 128 << 20;

/// Enough for a full message in the smallest chunks that the protocol allows.
pub(super) const CHUNKS_MAX: usize = MESSAGE_BYTES_MAX / 8192;

/// The smallest chunk size that a peer may ask for.
pub(super) const CHUNK_BYTES_MIN: usize = 8192;

/// Answers of one channel that nobody has used yet, whole or in part: two of the largest.
pub(super) const ANSWERS_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// Elements of one array.
pub(crate) const ARRAY_ELEMENTS_MAX: usize = 1_000_000;

/// How long a security token is asked to live.
pub(super) const TOKEN_LIFETIME_MS: u32 = 3_600_000;

/// Requests waiting for the writer; the callers behind them wait in turn.
pub(super) const REQUESTS_QUEUED_MAX: usize = 256;

/// Requests whose answers are awaited, over all services of a channel.
pub(super) const REQUESTS_PENDING_MAX: usize = 4096;

/// Decoding options for an answer of a known size: no text can be longer, and no array of services' results can have
/// more elements, than the answer has room for. So a lie about a length costs nothing before it is found out.
pub(super) fn decoding_options(body_bytes: usize) -> DecodingOptions {
    DecodingOptions {
        max_message_size: MESSAGE_BYTES_MAX,
        max_chunk_count: CHUNKS_MAX,
        max_string_length: body_bytes,
        max_byte_string_length: body_bytes,
        max_array_length: (body_bytes / 4 + 16).min(ARRAY_ELEMENTS_MAX),
        ..DecodingOptions::default()
    }
}
