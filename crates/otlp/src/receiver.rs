//! The steps that both protocols share: validate a request, store it, report rejected records.

use std::num::NonZero;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::inflate::{InflateError, inflate};
use crate::json::{JsonLimits, is_too_large, to_proto};
use crate::validate::{ValidationReport, walk};
use axum::body::Body;
use axum::http::HeaderMap;
use bytes::Bytes;
use thalweg_columns::rows::record_limits::RejectionReason;
use thalweg_http::body::{BodyFault, BodyRules, collect};
use thalweg_kit::byte_budget::{ByteBudget, ByteReservation};
use thalweg_kit::clock;
use thalweg_lake::LakeMetrics;
use thalweg_lake::Signal;
use thalweg_lake::entry::{
    AppendRefused, EntryForm, EntryHead, EntryPosition, EntrySink, InflateLimits, PayloadCompression, PayloadEncoding,
    RejectedRecords,
};
use thalweg_lake::ingest::Handoff;
use thalweg_telemetry::Metrics;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

use crate::drain_rate::DrainRate;
use crate::metrics::ReceiverMetrics;
use crate::refusal::Refusal;
use crate::reply::PartialSuccess;
use crate::{Admission, ReceiverOptions};

/// Upper bound of an entry header without the peer and the rejected records.
const HEAD_BYTES: usize = 64;
/// Bytes that take about a millisecond to validate: as plain protobuf, and compressed or as JSON.
const LONG_PLAIN_BYTES: usize = 1 << 20;
const LONG_PACKED_BYTES: usize = 64 << 10;
/// Rejection reasons that an answer names at most.
const REASONS_MAX: usize = 5;

/// Receives export requests. All listeners share one receiver.
pub struct OtlpReceiver {
    sink: Arc<dyn EntrySink>,
    admission: Arc<dyn Admission>,
    pub(crate) options: ReceiverOptions,
    /// The memory limit for all requests that are not stored yet.
    room: ByteBudget,
    requests: Arc<Semaphore>,
    /// Limits parallel validation of long requests, which may need much memory, to the number of processors.
    looking: Semaphore,
    drain: DrainRate,
    pub(crate) meters: ReceiverMetrics,
}

/// A request before its body is read.
pub(crate) struct ExportCall {
    pub signal: Signal,
    pub protocol: &'static str,
    pub peer: String,
}

/// A request whose bytes have arrived.
pub(crate) struct ReceivedRequest {
    pub encoding: PayloadEncoding,
    pub compression: PayloadCompression,
    pub bytes: Bytes,
    /// The memory reserved for it.
    pub held: ByteReservation,
}

/// The outcome of an accepted request.
#[derive(Clone, Debug)]
pub(crate) struct ExportOutcome {
    pub partial: PartialSuccess,
    /// `None` if the request has no records.
    pub position: Option<EntryPosition>,
}

impl OtlpReceiver {
    pub fn new(
        sink: Arc<dyn EntrySink>,
        admission: Arc<dyn Admission>,
        options: ReceiverOptions,
        metrics: &Metrics,
        lake: &LakeMetrics,
    ) -> Arc<OtlpReceiver> {
        let meters = ReceiverMetrics::register(metrics, lake);
        let inflight = meters.inflight_bytes.clone();
        Arc::new(OtlpReceiver {
            sink,
            admission,
            room: ByteBudget::reporting(options.inflight_bytes_max, move |change| inflight.add(change)),
            looking: Semaphore::new(std::thread::available_parallelism().map_or(1, NonZero::get)),
            requests: Arc::new(Semaphore::new(options.requests_max)),
            drain: DrainRate::new(clock::now()),
            options,
            meters,
        })
    }

    /// Bytes reserved by requests that are not stored yet.
    pub fn inflight_bytes(&self) -> usize {
        self.room.used()
    }

    /// Asks the sender to retry when the requests that are queued now are stored.
    fn pressure(&self, cause: &str) -> Refusal {
        self.meters.pressure.with_label_values(&[cause]).inc();
        Refusal::pressure(self.drain.time_for(self.room.used(), clock::now()))
    }

    /// Reserves more bytes for a request.
    fn hold(&self, held: &mut ByteReservation, bytes: usize) -> Result<(), Refusal> {
        match held.try_grow(bytes) {
            true => Ok(()),
            false => Err(self.no_room(held.bytes() + bytes)),
        }
    }

    /// The refusal of a request that needs this many bytes and did not get them.
    fn no_room(&self, bytes: usize) -> Refusal {
        match bytes > self.room.max() {
            true => Refusal::too_large_for_all(self.room.max()),
            false => self.pressure("bytes"),
        }
    }

    /// Checks that the sender is admitted, and reads the body.
    pub(crate) async fn read(
        &self,
        asked: &ExportCall,
        headers: &HeaderMap,
        body: Body,
        bytes_max: usize,
        within: Duration,
    ) -> Result<(Bytes, ByteReservation), Refusal> {
        self.admission.admit(headers).await?;
        let rules = BodyRules {
            limit: bytes_max,
            within: Some(within.min(self.options.body_timeout)),
            // Senders keep their batches and send them again after the delay that the answer states. A wait here would
            // use up the time within which they expect an answer.
            room_patience: Duration::ZERO,
        };
        let read = collect(body, rules, self.room.reservation()).await;
        let (bytes, held) = read.map_err(|fault| match fault {
            BodyFault::TooLarge { limit } => Refusal::too_large(limit),
            BodyFault::NoRoom { bytes } => self.no_room(bytes),
            BodyFault::EndedEarly(error) => Refusal::malformed(format!("the request ended early: {error}")),
            BodyFault::TooSlow { within } => Refusal::too_slow(within),
        })?;
        self.meters.count_bytes(asked.signal, "received", bytes.len());
        Ok((bytes, held))
    }

    /// Stores a request. Once begun, it completes even if the sender goes away.
    pub(crate) async fn take(
        self: &Arc<OtlpReceiver>,
        asked: &ExportCall,
        came: ReceivedRequest,
    ) -> Result<ExportOutcome, Refusal> {
        let began = clock::now();
        let permit = self.requests.clone().try_acquire_owned();
        let permit = permit.map_err(|_| self.pressure("requests"))?;
        let (receiver, signal, peer) = (self.clone(), asked.signal, asked.peer.clone());
        let taking = tokio::spawn(async move {
            let _permit = permit;
            receiver.store(signal, &peer, came).await
        });
        let taken = taking.await.unwrap_or_else(|_| Err(stopping()));
        if taken.is_ok() {
            self.meters.ack_seconds.observe(began.elapsed().as_secs_f64());
        }
        taken
    }

    async fn store(&self, signal: Signal, peer: &str, mut came: ReceivedRequest) -> Result<ExportOutcome, Refusal> {
        let (request, walked) = if takes_long(&came) && is_shared_runtime() {
            let _turn = self.looking.acquire().await.map_err(|_| stopping())?;
            // The other connections of this thread move to another one.
            tokio::task::block_in_place(|| self.look(signal, &mut came))?
        } else {
            self.look(signal, &mut came)?
        };
        self.meters.count_bytes(signal, "decoded", request.len());
        let partial = partial(&walked);
        if walked.records == 0 {
            return Ok(ExportOutcome {
                partial,
                position: None,
            });
        }
        if walked.rejected.len() == walked.records as usize {
            self.meters.count_records(signal, &walked);
            return Err(Refusal::all_rejected(partial.why));
        }
        let limits = &self.options.walk;
        let head = EntryHead {
            signal,
            form: EntryForm::Request(came.encoding),
            compression: came.compression,
            arrival: now(),
            records: walked.records,
            cut_values_at: limits
                .cut_values
                .then(|| u32::try_from(limits.value_bytes).unwrap_or(u32::MAX)),
            rejected: RejectedRecords::Listed(&walked.rejected),
            peer,
        };
        let mut entry = Vec::with_capacity(came.bytes.len() + peer.len() + 5 * walked.rejected.len() + HEAD_BYTES);
        head.encode(&mut entry);
        entry.extend_from_slice(&came.bytes);
        let (bytes, handoff) = (entry.len(), Handoff::of(&head, request));
        let appended = self.sink.append(signal, entry, handoff).await;
        let position = appended.map_err(|refused| match refused {
            AppendRefused::Pressure => self.pressure("queue"),
            other => other.into(),
        })?;
        // Counted only now that the log has them: a refused request is sent again.
        self.meters.count_records(signal, &walked);
        self.meters.count_bytes(signal, "logged", bytes);
        self.drain.stored(came.held.bytes(), clock::now());
        Ok(ExportOutcome {
            partial,
            position: Some(position),
        })
    }

    /// Decompresses a request and converts JSON to protobuf to validate it. The log stores the original bytes; the
    /// handoff gets the converted ones.
    fn look(&self, signal: Signal, came: &mut ReceivedRequest) -> Result<(Bytes, ValidationReport), Refusal> {
        let options = &self.options;
        let request = match came.compression {
            PayloadCompression::None => came.bytes.clone(),
            compression => {
                let limits = InflateLimits {
                    bytes: options.decoded_bytes_max,
                    ratio: options.ratio_max,
                    window: options.zstd_window_max,
                };
                let inflated = inflate(compression, &came.bytes, &limits)?;
                self.hold(&mut came.held, inflated.len())?;
                Bytes::from(inflated)
            }
        };
        let request = match came.encoding {
            PayloadEncoding::Proto => request,
            PayloadEncoding::Json => {
                let mut proto = Vec::new();
                let limits = JsonLimits::new(options.walk.nesting, options.decoded_bytes_max);
                to_proto(signal, &request, &limits, &mut proto).map_err(|error| match is_too_large(&error) {
                    true => InflateError::TooLarge(options.decoded_bytes_max).into(),
                    false => Refusal::malformed(error.to_string()),
                })?;
                self.hold(&mut came.held, proto.len())?;
                Bytes::from(proto)
            }
        };
        let walked = walk(signal, &request, &options.walk);
        let walked = walked.map_err(|malformed| Refusal::malformed(malformed.to_string()))?;
        Ok((request, walked))
    }

    /// Counts a request by its outcome.
    pub(crate) fn count(&self, asked: &ExportCall, code: &str) {
        let requests = &self.meters.requests;
        requests
            .with_label_values(&[asked.signal.name(), asked.protocol, code])
            .inc();
    }
}

/// Whether validating a request takes more than about a millisecond.
fn takes_long(came: &ReceivedRequest) -> bool {
    let is_plain = came.compression == PayloadCompression::None && came.encoding == PayloadEncoding::Proto;
    came.bytes.len() >= if is_plain { LONG_PLAIN_BYTES } else { LONG_PACKED_BYTES }
}

fn is_shared_runtime() -> bool {
    Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread
}

fn partial(walked: &ValidationReport) -> PartialSuccess {
    let mut reasons: Vec<(u32, &str)> = RejectionReason::ALL
        .into_iter()
        .zip(walked.reasons)
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| (count, reason.name()))
        .collect();
    reasons.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let reasons: Vec<String> = reasons
        .into_iter()
        .take(REASONS_MAX)
        .map(|(count, name)| format!("{name}: {count}"))
        .collect();
    let rejected = u32::try_from(walked.rejected.len()).unwrap_or(u32::MAX);
    let why = match rejected {
        0 => String::new(),
        _ => format!(
            "{rejected} of {} records rejected ({})",
            walked.records,
            reasons.join(", ")
        ),
    };
    PartialSuccess { rejected, why }
}

fn stopping() -> Refusal {
    AppendRefused::Stopping.into()
}

/// Nanoseconds since 1970.
fn now() -> i64 {
    let since = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
