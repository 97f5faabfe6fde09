//! Requests of OTLP, from protobuf to rows: the same look, decoder and limits as for what receivers take.

use super::error::FileError;
use super::growing::Growing;
use super::report::Counts;
use crate::entry::Rejected;
use crate::otlp::Signal;
use crate::otlp::decode::{Arrival, Decoder, Window};
use crate::otlp::walk::{Reason, WalkLimits, walk};
use crate::otlp::wire::Malformed;
use crate::tables::{self, TableSpec};

/// Makes rows of requests of any signal.
pub(super) struct Requests {
    /// By signal; each remembers what its requests are like.
    decoders: [Decoder; 3],
    walk: WalkLimits,
    window: Window,
    /// When the file was begun, in nanoseconds.
    arrival: i64,
}

impl Requests {
    pub fn new(walk: WalkLimits, window: Window, arrival: i64) -> Requests {
        Requests {
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
        rows: &mut Growing<'_>,
        counts: &mut Counts,
    ) -> Result<(), Malformed> {
        let walked = walk(signal, request, &self.walk)?;
        let arrival = Arrival {
            signal,
            time: self.arrival,
            window: self.window,
            rejected: Rejected::Listed(&walked.rejected),
            cut_values_at: self.walk.cut_values.then_some(self.walk.value_bytes),
        };
        let decoder = &mut self.decoders[signal as usize];
        let changed = decoder.decode(request, &arrival, rows.chunk(table_of(signal)))?;
        counts.changed(&changed);
        for (reason, count) in Reason::ALL.into_iter().zip(walked.reasons) {
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
pub(super) fn probe(request: &[u8]) -> Result<Option<Signal>, FileError> {
    let limits = WalkLimits::default();
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
        ([], Some((offset, what))) => Err(FileError::SignalUnknown(format!(
            "its first records are of no signal (byte {offset}: {what})"
        ))),
        (names, _) => Err(FileError::SignalUnknown(format!(
            "its first records could be {}",
            names.join(" or ")
        ))),
    }
}
