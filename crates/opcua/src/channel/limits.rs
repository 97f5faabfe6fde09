//! Limits on the memory that a peer can occupy, and on the queues of this end.

use opcua::types::DecodingOptions;

/// Largest chunk that this end accepts; larger ones showed no benefit in measurements.
pub(super) const CHUNK_BYTES_MAX: usize = 65_535;

/// Largest response. A million-element array of numbers or a string of tens of megabytes fits.
pub(crate) const MESSAGE_BYTES_MAX: usize = 128 << 20;

/// Enough for a full message in the smallest chunks that the protocol allows.
pub(super) const CHUNKS_MAX: usize = MESSAGE_BYTES_MAX / 8192;

/// The smallest chunk size that a peer may ask for.
pub(super) const CHUNK_BYTES_MIN: usize = 8192;

/// Maximum unused responses of one channel, whole or in part: two of the largest.
pub(super) const ANSWERS_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// Maximum elements of one array.
pub(crate) const ARRAY_ELEMENTS_MAX: usize = 1_000_000;

/// Requested lifetime of a security token.
pub(super) const TOKEN_LIFETIME_MS: u32 = 3_600_000;

/// Maximum requests queued for the writer; further callers wait.
pub(super) const REQUESTS_QUEUED_MAX: usize = 256;

/// Maximum requests waiting for responses, over all services of a channel.
pub(super) const REQUESTS_PENDING_MAX: usize = 4096;

/// Decoding options for a response of a known size: no text can be longer, and no array of results can have more
/// elements, than the response has room for. So a false length is detected before it costs memory.
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
