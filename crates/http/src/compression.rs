//! Compressed bodies, gzip and zstd, of requests and of responses.
//!
//! A request body is decompressed as a whole ([`decoded_len`], then [`decode`]), or piece by piece while it arrives
//! ([`decoded_pieces`]). Either way the limits apply to what comes out, whatever the body declares. A response is
//! compressed by an [`AnswerEncoder`], if the client accepts that.

mod coding;
mod decode;
mod encode;

pub use coding::{ContentCoding, UnknownCoding, accepted_coding, body_coding};
pub use decode::{DecodeError, decode, decoded_len, decoded_pieces};
pub use encode::AnswerEncoder;
