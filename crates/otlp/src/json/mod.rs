//! Converts an OTLP/JSON export request to its protobuf form.
//!
//! One pass over the bytes writes what it reads at once, without building a tree. A value therefore costs no
//! allocation, and the order of members is kept. The lake has a single decoder, for protobuf; this module is all that
//! it knows about JSON. The output always passes the framing rules of [`walk`](super::validate::walk), and its rules
//! for records apply as for any request.
//!
//! Beyond the mapping, senders may write names in snake case, enums by name, and base64 in either alphabet. A member of
//! another signal, a name from before version 1 and an unknown enum value are refused rather than skipped, so that no data
//! is lost silently. Members that OTLP does not define are skipped, as in protobuf, unless they stand where the records
//! should be.

mod message_schema;
mod scalar;
mod transcode;
mod write;

#[cfg(test)]
pub(crate) mod tests;

use thalweg_kit::json_tokens::{JsonError, JsonResult};
use thalweg_lake::Signal;
use transcode::JsonTranscoder;

const TOO_LARGE: &str = "the request is too long as protobuf";

/// Whether the text is valid, but the request exceeds its size limit.
pub fn is_too_large(error: &JsonError) -> bool {
    error.what == TOO_LARGE
}

/// Limits for one text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonLimits {
    /// Nesting of objects and lists.
    depth: usize,
    /// Size of the request as protobuf.
    output_bytes: usize,
    /// Whether the request was accepted earlier, perhaps by a version that refused less.
    is_stored: bool,
}

/// Upper bound of the nesting whatever the configuration says: each level takes stack space.
const DEPTH_MAX: usize = 4096;

impl JsonLimits {
    /// `nesting` is the limit for values (`ingest.max_nesting`), `output_bytes` that of a request as protobuf
    /// (`ingest.max_decoded_bytes`). A value in a map is four objects and lists below the map. The walk therefore sees,
    /// and rejects, a record that is nested a little too deep; a record that is nested deeper is not read.
    pub fn new(nesting: usize, output_bytes: usize) -> JsonLimits {
        JsonLimits {
            depth: nesting.saturating_mul(4).saturating_add(16).min(DEPTH_MAX),
            output_bytes,
            is_stored: false,
        }
    }

    /// Without limits, for a request that was accepted: it becomes rows whatever would be refused today.
    pub fn stored() -> JsonLimits {
        JsonLimits {
            is_stored: true,
            ..JsonLimits::new(usize::MAX, usize::MAX)
        }
    }
}

impl Default for JsonLimits {
    fn default() -> JsonLimits {
        JsonLimits::new(64, 64 << 20)
    }
}

/// Appends the protobuf form of a request to `out`. If the text cannot be read, `out` stays as it was.
///
/// Bytes that are not UTF-8 are copied unchanged: the decoder replaces and counts them, as it does for protobuf.
pub fn to_proto(signal: Signal, json: &[u8], limits: &JsonLimits, out: &mut Vec<u8>) -> JsonResult<()> {
    convert(signal, json, limits, out, |mapper| mapper.end()).map(drop)
}

/// Like [`to_proto`], for text that may go on after the request. Returns where the request ends.
pub fn first_to_proto(signal: Signal, json: &[u8], limits: &JsonLimits, out: &mut Vec<u8>) -> JsonResult<usize> {
    convert(signal, json, limits, out, |_| Ok(()))
}

/// Finds the signal of a request from the member names of the first object, without reading their values. Returns
/// `None` if no member belongs to a request, or if the text cannot be read up to one that does.
pub fn first_signal(json: &[u8]) -> Option<Signal> {
    let limits = JsonLimits::default();
    JsonTranscoder::new(json, &limits, &mut Vec::new())
        .signal()
        .ok()
        .flatten()
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

/// Fuzz target for any bytes: output passes validation, and an error points into the input.
#[doc(hidden)]
pub fn otlp_json(data: &[u8]) {
    let limits = JsonLimits::new(64, 1 << 20);
    for signal in Signal::ALL {
        let mut out = Vec::new();
        match first_to_proto(signal, data, &limits, &mut out) {
            Ok(end) => {
                let walked = super::validate::walk(
                    signal,
                    &out,
                    &thalweg_columns::rows::record_limits::RecordLimits::default(),
                );
                assert!(walked.is_ok() && end <= data.len(), "{walked:?}");
                let mut again = Vec::new();
                let whole = to_proto(signal, data.get(..end).unwrap_or_default(), &limits, &mut again);
                assert!(whole.is_ok() && again == out, "{whole:?}");
            }
            Err(error) => assert!(error.offset <= data.len() && out.is_empty(), "{error}"),
        }
    }
}
