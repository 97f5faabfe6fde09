//! An entry of the log, back to the rows that it stands for.

use super::handoff::Handoff;
use crate::entry::{self, EntryForm, PayloadCompression, PayloadEncoding, RejectedRecords};
use crate::inflate::{InflateLimits, inflate};
use crate::metrics::LakeMetrics;
use crate::named_rows::{ColumnMapping, NamedRowBuilder, RowRules, promoted};
use crate::otlp::Signal;
use crate::otlp::decode::{ArrivalWindow, DecodeContext, OtlpChangeCounts, OtlpDecoder};
use crate::otlp::json::{JsonLimits, to_proto};
use crate::otlp::validate::OtlpRecordLimits;
use crate::rows::chunk::MemtableChunk;
use crate::tables::{TAGS, TableSpec};
use crate::tags::{self, TagRowDecoder};

/// What entries may become.
#[derive(Clone, Copy, Debug)]
pub struct EntryLimits {
    pub window: ArrivalWindow,
    /// What each partition of messages remembers of their tags; more where the others do not.
    pub remembered_bytes: usize,
}

impl Default for EntryLimits {
    fn default() -> EntryLimits {
        EntryLimits {
            window: ArrivalWindow::default(),
            remembered_bytes: 160 << 20,
        }
    }
}

pub(crate) struct EntryDecoder {
    decoder: OtlpDecoder,
    /// Of the table of tags, whose entries are messages.
    samples: Option<TagRowDecoder>,
    /// Of entries that are rows already.
    rows: NamedRowBuilder,
    limits: EntryLimits,
    spec: &'static TableSpec,
    metrics: LakeMetrics,
    /// Of a request that came as JSON.
    proto: Vec<u8>,
}

impl EntryDecoder {
    pub fn new(spec: &'static TableSpec, limits: EntryLimits, metrics: LakeMetrics) -> EntryDecoder {
        EntryDecoder {
            decoder: OtlpDecoder::default(),
            samples: samples_of(spec.name, &limits),
            rows: rows_of(spec, &limits),
            limits,
            spec,
            metrics,
            proto: Vec::new(),
        }
    }

    /// It may know so many bytes of earlier entries from now on.
    pub fn may_remember(&mut self, bytes: usize) {
        if let Some(samples) = &mut self.samples {
            samples.may_remember(bytes);
        }
    }

    /// It knows nothing of earlier entries, as far as that is only to be fast.
    pub fn forget(&mut self) {
        if let Some(samples) = &mut self.samples {
            samples.forget();
        }
    }

    /// Bytes of what it knows of earlier entries.
    pub fn remembered_bytes(&self) -> usize {
        self.samples.as_ref().map_or(0, TagRowDecoder::remembered_bytes)
    }

    /// Adds the rows of an entry. Returns when it arrived. After an error there may be some of them.
    pub fn decode(&mut self, entry: &[u8], chunk: &mut MemtableChunk) -> Result<i64, String> {
        if let Some(samples) = &mut self.samples {
            let (arrival, changed) = samples.decode(entry, chunk)?;
            return Ok(self.sampled(arrival, changed));
        }
        let (head, request) = entry::decode(entry).map_err(|error| error.to_string())?;
        let inflated = match head.compression {
            PayloadCompression::None => None,
            // All of it was looked at when it was taken, by the limits of then; what was acknowledged counts whatever they are now.
            compression => {
                let limits = InflateLimits {
                    bytes: usize::MAX,
                    ratio: usize::MAX,
                    window: usize::MAX >> 1,
                };
                Some(inflate(compression, request, &limits).map_err(|error| error.to_string())?)
            }
        };
        let request = inflated.as_deref().unwrap_or(request);
        let arrival = self.arrival(head.signal, head.arrival, head.cut_values_at, head.rejected);
        let mut proto = std::mem::take(&mut self.proto);
        let request = match head.form {
            EntryForm::Rows => return self.named(request, &arrival, chunk),
            EntryForm::Request(PayloadEncoding::Proto) => request,
            EntryForm::Request(PayloadEncoding::Json) => {
                proto.clear();
                let limits = JsonLimits::new(usize::MAX, usize::MAX);
                to_proto(head.signal, request, &limits, &mut proto).map_err(|error| error.to_string())?;
                &proto
            }
        };
        let decoded = self.requested(request, &arrival, chunk);
        self.proto = proto;
        decoded
    }

    /// The same of an entry that is at hand as it was before it was written.
    pub fn decode_handed(&mut self, handed: &Handoff, chunk: &mut MemtableChunk) -> Result<i64, String> {
        let request = match handed {
            Handoff::Request(request) => request,
            Handoff::Messages(messages) => {
                let samples = self
                    .samples
                    .as_mut()
                    .ok_or("messages of a flow are not for this table")?;
                let changed = samples.put(messages, chunk);
                return Ok(self.sampled(messages.arrival, changed));
            }
        };
        let rejected = RejectedRecords::Listed(&request.rejected);
        let arrival = self.arrival(request.signal, request.arrival, request.cut_values_at, rejected);
        match request.is_rows {
            true => self.named(&request.request, &arrival, chunk),
            false => self.requested(&request.request, &arrival, chunk),
        }
    }

    fn sampled(&self, arrival: i64, changed: tags::TagChangeCounts) -> i64 {
        self.count([
            ("time_replaced", changed.times_replaced),
            ("stamp_out_of_range", changed.stamps_out_of_range),
        ]);
        arrival
    }

    fn arrival<'a>(
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

    /// `request` is protobuf.
    fn requested(
        &mut self,
        request: &[u8],
        arrival: &DecodeContext<'_>,
        chunk: &mut MemtableChunk,
    ) -> Result<i64, String> {
        let decoded = self.decoder.decode(request, arrival, chunk);
        self.tell(&decoded.map_err(|malformed| malformed.to_string())?);
        Ok(arrival.time)
    }

    /// `request` is rows, which were looked at when they were taken: limits that have changed since do not count.
    fn named(&mut self, request: &[u8], arrival: &DecodeContext<'_>, chunk: &mut MemtableChunk) -> Result<i64, String> {
        let limits = OtlpRecordLimits {
            value_bytes: arrival.cut_values_at.unwrap_or(usize::MAX),
            cut_values: arrival.cut_values_at.is_some(),
            ..OtlpRecordLimits::widest()
        };
        self.rows.arrived(arrival.time, limits);
        let mut changed = OtlpChangeCounts::default();
        for (index, row) in entry::rows(request).enumerate() {
            let row = row.map_err(|error| error.to_string())?;
            let made = self.rows.object(row, limits.nesting + 1, chunk, &mut changed);
            made.map_err(|bad| format!("row {index}: {}", bad.why))?;
        }
        self.tell(&changed);
        Ok(arrival.time)
    }

    fn tell(&self, changed: &OtlpChangeCounts) {
        self.count([
            ("utf8_replaced", changed.utf8_replaced),
            ("id_wrong", changed.ids_wrong),
            ("key_repeated", changed.keys_repeated),
            ("time_replaced", changed.times_replaced),
            ("value_cut", changed.values_cut),
            ("duration_negative", changed.durations_negative),
        ]);
    }

    fn count<const N: usize>(&self, changed: [(&str, u64); N]) {
        for (reason, count) in changed {
            if count > 0 {
                let changed = &self.metrics.changed_values;
                changed.with_label_values(&[self.spec.name, reason]).inc_by(count);
            }
        }
    }

    /// Whatever it knows may be wrong.
    pub fn reset(&mut self) {
        self.decoder = OtlpDecoder::default();
        self.samples = samples_of(self.spec.name, &self.limits);
        self.rows = rows_of(self.spec, &self.limits);
    }
}

fn samples_of(table: &str, limits: &EntryLimits) -> Option<TagRowDecoder> {
    (table == TAGS.name).then(|| TagRowDecoder::new(limits.window, limits.remembered_bytes))
}

/// Whatever columns the table has by then, rows are made by those that every one has: an entry alone says what becomes of it.
fn rows_of(spec: &'static TableSpec, limits: &EntryLimits) -> NamedRowBuilder {
    let rules = RowRules {
        limits: OtlpRecordLimits::widest(),
        window: limits.window,
        arrival: 0,
        time_format: None,
    };
    NamedRowBuilder::new(ColumnMapping::new(spec, promoted(&(spec.columns)()), Vec::new()), rules)
}
