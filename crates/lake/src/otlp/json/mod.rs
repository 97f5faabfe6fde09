//! OTLP/JSON: the text of an export request in, the protobuf form of the same request out.
//!
//! One pass over the bytes, without a tree: what is read is written at once, so a value costs no allocation and the order of
//! members is kept. There is one decoder, that of protobuf, and this is all that the lake knows of JSON requests. What comes
//! out always passes the framing rules of [`walk`](super::validate::walk); its rules about records apply to it as to any request.
//!
//! Beyond what the mapping asks for, senders may write names in snake case, enums by their names, and base64 in either
//! alphabet. What has no meaning, a member of another signal or an enum that does not exist, is refused and not passed over,
//! so that nothing is lost in silence; members that OTLP does not have are passed over, as in protobuf.

mod message_schema;
mod scalar;
pub(crate) mod tokens;
mod transcode;
mod write;

#[cfg(test)]
pub(crate) mod tests;

use std::fmt;

use super::Signal;
use tokens::JsonTokenizer;
use transcode::JsonTranscoder;

/// What cannot be read, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// From the beginning of the text.
    pub offset: usize,
    pub what: &'static str,
}

impl JsonError {
    /// Whether the text is right, but the request has more bytes than it may have.
    pub fn is_too_large(&self) -> bool {
        self.what == TOO_LARGE
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.offset, self.what)
    }
}

impl std::error::Error for JsonError {}

pub type JsonResult<T> = std::result::Result<T, JsonError>;

const TOO_LARGE: &str = "the request is too long as protobuf";

/// What a text may come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonLimits {
    /// Objects and lists within each other.
    depth: usize,
    /// Of the request as protobuf.
    output_bytes: usize,
}

/// Objects and lists within each other, whatever is configured: each takes some of the stack of a thread.
const DEPTH_MAX: usize = 4096;

impl JsonLimits {
    /// For values that are nested so deep (`ingest.max_nesting`), and requests of so many bytes as protobuf
    /// (`ingest.max_decoded_bytes`). A value in a map is four objects and lists below the map, so the walk sees, and rejects,
    /// a record that is nested a little too deep; one that is nested deeper than that is not read.
    pub fn new(nesting: usize, output_bytes: usize) -> JsonLimits {
        JsonLimits {
            depth: nesting.saturating_mul(4).saturating_add(16).min(DEPTH_MAX),
            output_bytes,
        }
    }
}

impl Default for JsonLimits {
    fn default() -> JsonLimits {
        JsonLimits::new(64, 64 << 20)
    }
}

/// Appends the protobuf form of a request to `out`, which is left as it was when the text cannot be read.
///
/// Bytes of a text that are no UTF-8 are copied as they are: the decoder, which has the same to do for protobuf, replaces and
/// counts them.
pub fn to_proto(signal: Signal, json: &[u8], limits: &JsonLimits, out: &mut Vec<u8>) -> JsonResult<()> {
    convert(signal, json, limits, out, |mapper| mapper.end()).map(drop)
}

/// The same for text that begins with a request and may go on behind it. Returns where the request ends.
pub fn first_to_proto(signal: Signal, json: &[u8], limits: &JsonLimits, out: &mut Vec<u8>) -> JsonResult<usize> {
    convert(signal, json, limits, out, |_| Ok(()))
}

/// The signal of a request by the members of the object that the text begins with, without reading what is in them. None if
/// they are not those of a request, or if they cannot be read up to one that is.
pub fn first_signal(json: &[u8]) -> Option<Signal> {
    let limits = JsonLimits::default();
    JsonTranscoder::new(json, &limits, &mut Vec::new())
        .signal()
        .ok()
        .flatten()
}

/// Whether the text is one value, whatever is in it, and nothing else.
pub fn is_whole(json: &[u8]) -> bool {
    let mut tokens = JsonTokenizer::new(json, JsonLimits::default().depth);
    tokens.skip().and_then(|()| tokens.end()).is_ok()
}

/// Whether the text is right up to its end, where a value is not whole: more of it may follow.
pub(crate) fn is_begun(json: &[u8]) -> bool {
    let mut tokens = JsonTokenizer::new(json, JsonLimits::default().depth);
    tokens.skip().is_err_and(|error| error.offset >= json.len())
}

fn convert(
    signal: Signal,
    json: &[u8],
    limits: &JsonLimits,
    out: &mut Vec<u8>,
    then: impl FnOnce(&mut JsonTranscoder<'_, '_>) -> JsonResult<()>,
) -> JsonResult<usize> {
    let begin = out.len();
    let mut mapper = JsonTranscoder::new(json, limits, out);
    let done = mapper.request(signal).and_then(|()| {
        let end = mapper.offset();
        then(&mut mapper).map(|()| end)
    });
    if done.is_err() {
        out.truncate(begin);
    }
    done
}

/// Any bytes as JSON: what is read passes the look at requests, and what is refused is refused at one of its bytes.
#[doc(hidden)]
pub fn otlp_json(data: &[u8]) {
    let limits = JsonLimits::new(64, 1 << 20);
    for signal in Signal::ALL {
        let mut out = Vec::new();
        match first_to_proto(signal, data, &limits, &mut out) {
            Ok(end) => {
                let walked = super::validate::walk(signal, &out, &super::validate::OtlpRecordLimits::default());
                assert!(walked.is_ok() && end <= data.len(), "{walked:?}");
                let mut again = Vec::new();
                let whole = to_proto(signal, data.get(..end).unwrap_or_default(), &limits, &mut again);
                assert!(whole.is_ok() && again == out, "{whole:?}");
            }
            Err(error) => assert!(error.offset <= data.len() && out.is_empty(), "{error}"),
        }
    }
}
