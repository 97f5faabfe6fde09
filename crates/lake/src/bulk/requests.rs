//! Requests of OTLP, from protobuf to rows: the same look, decoder and limits as for what receivers take.

use super::error::BulkError;
use super::memtable::BulkMemtables;
use super::report::BulkCounts;
use crate::entry::RejectedRecords;
use crate::otlp::Signal;
use crate::otlp::decode::{ArrivalWindow, DecodeContext, OtlpDecoder};
use crate::otlp::validate::{OtlpRecordLimits, RejectionReason, walk};
use crate::otlp::wire::WireError;
use crate::tables::{self, TableSpec};

/// Makes rows of requests of any signal.
pub(super) struct BulkRequestDecoder {
    /// By signal; each remembers what its requests are like.
    decoders: [OtlpDecoder; 3],
    walk: OtlpRecordLimits,
    window: ArrivalWindow,
    /// When the file was begun, in nanoseconds.
    arrival: i64,
}

impl BulkRequestDecoder {
    pub fn new(walk: OtlpRecordLimits, window: ArrivalWindow, arrival: i64) -> BulkRequestDecoder {
        BulkRequestDecoder {
            decoders: Default::default(),
            walk,
            window,
            arrival,
        }
    }

    /// The rows of a request. After an error there are none of it.
    pub fn take(
        &mut self,
        signal: Signal,
        request: &[u8],
        rows: &mut BulkMemtables<'_>,
        counts: &mut BulkCounts,
    ) -> Result<(), WireError> {
        let walked = walk(signal, request, &self.walk)?;
        let arrival = DecodeContext {
            signal,
            time: self.arrival,
            window: self.window,
            rejected: RejectedRecords::Listed(&walked.rejected),
            cut_values_at: self.walk.cut_values.then_some(self.walk.value_bytes),
        };
        let decoder = &mut self.decoders[signal as usize];
        let changed = decoder.decode(request, &arrival, rows.chunk(table_of(signal)))?;
        counts.changed(&changed);
        for (reason, count) in RejectionReason::ALL.into_iter().zip(walked.reasons) {
            counts.rejected(reason.name(), count.into());
        }
        Ok(())
    }
}

pub(super) fn table_of(signal: Signal) -> &'static TableSpec {
    match signal {
        Signal::Logs => &tables::LOGS,
        Signal::Metrics => &tables::METRICS,
        Signal::Traces => &tables::TRACES,
    }
}

/// The signal of a request by what its messages are made of; none if it has no record. What could be of several is not guessed.
pub(super) fn probe(request: &[u8]) -> Result<Option<Signal>, BulkError> {
    let limits = OtlpRecordLimits::default();
    let (mut fits, mut malformed) = (Vec::new(), None);
    for signal in Signal::ALL {
        match walk(signal, request, &limits) {
            // A record that is read as one of another signal mostly lacks what it must have.
            Ok(walked) if walked.records as usize > walked.rejected.len() => fits.push(signal.name()),
            Ok(walked) if walked.records == 0 => {}
            Ok(_) => malformed = malformed.max(Some((0, "its records are not what they must be"))),
            Err(error) => malformed = malformed.max(Some((error.offset, error.what))),
        }
    }
    let of_name = |name: &str| Signal::ALL.into_iter().find(|signal| signal.name() == name);
    match (fits.as_slice(), malformed) {
        ([name], _) => Ok(of_name(name)),
        ([], None) => Ok(None),
        ([], Some((offset, what))) => Err(BulkError::SignalUnknown(format!(
            "its first records are of no signal (byte {offset}: {what})"
        ))),
        (names, _) => Err(BulkError::SignalUnknown(format!(
            "its first records could be {}",
            names.join(" or ")
        ))),
    }
}
