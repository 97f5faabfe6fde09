//! OTLP requests in files. They pass the same validation, decoder and limits as requests to the receivers.

use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::record_limits::{RecordLimits, RejectionReason};
use thalweg_columns::rows::times::ArrivalWindow;
use thalweg_kit::wire::WireError;
use thalweg_lake::Signal;
use thalweg_lake::bulk::{BulkError, DecodedRequest, MalformedRequest, RequestDecoder, RequestRules};
use thalweg_lake::entry::RejectedRecords;

use crate::decode::{DecodeContext, OtlpDecoder};
use crate::json::{JsonLimits, first_signal, to_proto};
use crate::validate::walk;

/// Decodes requests of any signal into rows.
pub struct OtlpBulkRequests {
    /// One per signal; each remembers the attribute layout of its requests.
    decoders: [OtlpDecoder; 3],
    rules: RequestRules,
    /// Reused buffer for the protobuf form of a JSON request.
    proto: Vec<u8>,
}

impl Default for OtlpBulkRequests {
    fn default() -> OtlpBulkRequests {
        OtlpBulkRequests {
            decoders: Default::default(),
            rules: RequestRules {
                limits: RecordLimits::default(),
                window: ArrivalWindow::default(),
                arrival: 0,
                bytes_max: 0,
            },
            proto: Vec::new(),
        }
    }
}

impl RequestDecoder for OtlpBulkRequests {
    fn begin(&mut self, rules: &RequestRules) {
        self.decoders = Default::default();
        self.rules = *rules;
    }

    fn json_signal(&self, json: &[u8]) -> Option<Signal> {
        first_signal(json)
    }

    fn probe(&self, request: &[u8]) -> Result<Option<Signal>, BulkError> {
        probe(request)
    }

    fn decode_json(
        &mut self,
        signal: Signal,
        json: &[u8],
        chunk: &mut MemtableChunk,
    ) -> Result<DecodedRequest, MalformedRequest> {
        let mut proto = std::mem::take(&mut self.proto);
        proto.clear();
        let limits = JsonLimits::new(self.rules.limits.nesting, self.rules.bytes_max);
        let decoded = match to_proto(signal, json, &limits, &mut proto) {
            Ok(()) => self.decode(signal, &proto, chunk),
            Err(error) => Err(MalformedRequest {
                offset: error.offset,
                what: error.what.to_owned(),
            }),
        };
        self.proto = proto;
        decoded
    }

    fn decode(
        &mut self,
        signal: Signal,
        request: &[u8],
        chunk: &mut MemtableChunk,
    ) -> Result<DecodedRequest, MalformedRequest> {
        let limits = &self.rules.limits;
        let walked = walk(signal, request, limits).map_err(malformed)?;
        let context = DecodeContext {
            signal,
            time: self.rules.arrival,
            window: self.rules.window,
            rejected: RejectedRecords::Listed(&walked.rejected),
            cut_values_at: limits.cut_values.then_some(limits.value_bytes),
        };
        let decoder = &mut self.decoders[signal as usize];
        let changed = decoder.decode(request, &context, chunk).map_err(malformed)?;
        let reasons = RejectionReason::ALL.into_iter().zip(walked.reasons);
        Ok(DecodedRequest {
            changed,
            rejected: reasons.map(|(reason, count)| (reason.name(), count.into())).collect(),
        })
    }
}

fn malformed(error: WireError) -> MalformedRequest {
    MalformedRequest {
        offset: error.offset,
        what: error.what.to_owned(),
    }
}

/// Finds the signal of a request from the fields of its messages. Returns `None` without records, and an error if
/// several signals fit.
fn probe(request: &[u8]) -> Result<Option<Signal>, BulkError> {
    let limits = RecordLimits::default();
    let (mut fits, mut malformed) = (Vec::new(), None);
    for signal in Signal::ALL {
        match walk(signal, request, &limits) {
            // A record read as one of another signal mostly lacks required fields.
            Ok(walked) if walked.records as usize > walked.rejected.len() => fits.push(signal.name()),
            Ok(walked) if walked.records == 0 => {}
            Ok(_) => malformed = malformed.max(Some((0, "its records are invalid"))),
            Err(error) => malformed = malformed.max(Some((error.offset, error.what))),
        }
    }
    let of_name = |name: &str| Signal::ALL.into_iter().find(|signal| signal.name() == name);
    match (fits.as_slice(), malformed) {
        ([name], _) => Ok(of_name(name)),
        ([], None) => Ok(None),
        ([], Some((offset, what))) => Err(BulkError::SignalUnknown(format!(
            "its first records belong to no signal (byte {offset}: {what})"
        ))),
        (names, _) => Err(BulkError::SignalUnknown(format!(
            "its first records could be {}",
            names.join(" or ")
        ))),
    }
}
