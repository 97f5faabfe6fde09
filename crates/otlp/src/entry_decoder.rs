//! Decodes log entries of the three signals into rows.

use std::sync::Arc;

use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_lake::Signal;
use thalweg_lake::entry::{
    self, EntryForm, EntryHead, InflateLimits, PayloadCompression, PayloadEncoding, RejectedRecords,
};
use thalweg_lake::ingest::{DecodeEntry, DecodedEntry, DecoderFactory, EntryLimits, Handoff};
use thalweg_lake::named_rows::RowEntryDecoder;

use crate::decode::{DecodeContext, OtlpDecoder};
use crate::inflate::inflate;
use crate::json::{JsonLimits, to_proto};

/// Returns the decoder for the entries of a signal's queue, whether they contain requests or rows.
pub fn entry_decoder(signal: Signal) -> DecoderFactory {
    Arc::new(move |limits| Box::new(SignalEntryDecoder::new(signal, limits)))
}

struct SignalEntryDecoder {
    requests: OtlpDecoder,
    rows: RowEntryDecoder,
    limits: EntryLimits,
    /// Reused buffer for the protobuf form of a JSON request.
    proto: Vec<u8>,
}

impl SignalEntryDecoder {
    fn new(signal: Signal, limits: &EntryLimits) -> SignalEntryDecoder {
        SignalEntryDecoder {
            requests: OtlpDecoder::default(),
            rows: RowEntryDecoder::new(signal.table(), limits),
            limits: *limits,
            proto: Vec::new(),
        }
    }

    /// `request` is protobuf.
    fn request(
        &mut self,
        request: &[u8],
        context: &DecodeContext<'_>,
        chunk: &mut MemtableChunk,
    ) -> Result<DecodedEntry, String> {
        let changed = self.requests.decode(request, context, chunk);
        Ok(DecodedEntry {
            arrival: context.time,
            changed: changed.map_err(|malformed| malformed.to_string())?,
        })
    }

    fn context<'a>(
        &self,
        signal: Signal,
        time: i64,
        cut_values_at: Option<u32>,
        rejected: RejectedRecords<'a>,
    ) -> DecodeContext<'a> {
        DecodeContext {
            signal,
            time,
            window: self.limits.window,
            rejected,
            cut_values_at: cut_values_at.map(|at| at as usize),
        }
    }

    /// `payload` is already decompressed.
    fn payload(
        &mut self,
        head: &EntryHead<'_>,
        payload: &[u8],
        chunk: &mut MemtableChunk,
    ) -> Result<DecodedEntry, String> {
        let context = self.context(head.signal, head.arrival, head.cut_values_at, head.rejected);
        let mut proto = std::mem::take(&mut self.proto);
        let request = match head.form {
            EntryForm::Rows => return self.rows.decode_rows(payload, head.arrival, head.cut_values_at, chunk),
            EntryForm::Request(PayloadEncoding::Proto) => payload,
            EntryForm::Request(PayloadEncoding::Json) => {
                proto.clear();
                let limits = JsonLimits::stored();
                to_proto(head.signal, payload, &limits, &mut proto).map_err(|error| error.to_string())?;
                &proto
            }
        };
        let decoded = self.request(request, &context, chunk);
        self.proto = proto;
        decoded
    }
}

impl DecodeEntry for SignalEntryDecoder {
    fn decode(&mut self, entry: &[u8], chunk: &mut MemtableChunk) -> Result<DecodedEntry, String> {
        let (head, payload) = entry::decode(entry).map_err(|error| error.to_string())?;
        let inflated = match head.compression {
            PayloadCompression::None => None,
            // The receiver checked the limits that applied when the request arrived. An acknowledged request becomes
            // rows whatever the limits are now.
            compression => {
                let limits = InflateLimits {
                    bytes: usize::MAX,
                    ratio: usize::MAX,
                    window: usize::MAX >> 1,
                };
                Some(inflate(compression, payload, &limits).map_err(|error| error.to_string())?)
            }
        };
        self.payload(&head, inflated.as_deref().unwrap_or(payload), chunk)
    }

    fn decode_handed(&mut self, handed: &Handoff, chunk: &mut MemtableChunk) -> Result<DecodedEntry, String> {
        let Handoff::Request(request) = handed else {
            return Err("messages of a flow are not for this table".to_owned());
        };
        if request.is_rows {
            let (arrival, cut_values_at) = (request.arrival, request.cut_values_at);
            return self.rows.decode_rows(&request.request, arrival, cut_values_at, chunk);
        }
        let rejected = RejectedRecords::Listed(&request.rejected);
        let context = self.context(request.signal, request.arrival, request.cut_values_at, rejected);
        self.request(&request.request, &context, chunk)
    }
}
