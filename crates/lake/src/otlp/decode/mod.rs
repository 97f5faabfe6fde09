//! From the bytes of a request to rows.
//!
//! What a resource and a scope have is read once and put into all of their rows; attributes of records are put into columns
//! where they are read. Nothing is made in between. The request has passed the look of [`validate`](super::validate), so what cannot be
//! read here was changed since; then some of its rows may be in the chunk, and whoever asked gives that up.

mod attributes;
mod logs;
mod metrics;
#[cfg(test)]
mod tests;
mod times;
mod traces;
mod value;

use super::Signal;
use super::fields::{group, request, resource, scope, scoped};
use super::validate::first_of;
use super::wire::{END, WireCursor, WireResult};
use crate::entry::RejectedRecords;
use crate::rows::attribute_columns::{AttributeColumnHint, AttributeSource};
use crate::rows::chunk::MemtableChunk;
use crate::tables;
pub(crate) use attributes::AttributeSet;
pub use times::ArrivalWindow;
pub(crate) use times::{TimeColumns, put_sent};
use value::AnyValueReader;
pub(crate) use value::write_double;

/// What is known of a request beside its bytes.
#[derive(Clone, Copy, Debug)]
pub struct DecodeContext<'a> {
    pub signal: Signal,
    /// Nanoseconds since 1970.
    pub time: i64,
    pub window: ArrivalWindow,
    /// Records that are left out, ascending.
    pub rejected: RejectedRecords<'a>,
    /// Longer values are cut.
    pub cut_values_at: Option<usize>,
}

/// What is not in the rows as it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtlpChangeCounts {
    /// Texts that were not valid UTF-8.
    pub utf8_replaced: u64,
    /// Of a trace or a span, of another length than they have.
    pub ids_wrong: u64,
    /// Attributes of a name that came again.
    pub keys_repeated: u64,
    pub times_replaced: u64,
    pub values_cut: u64,
    /// Spans that end before they begin; they are kept so.
    pub durations_negative: u64,
}

impl OtlpChangeCounts {
    /// As they are counted.
    pub fn reasons(&self) -> [(&'static str, u64); 6] {
        [
            ("utf8_replaced", self.utf8_replaced),
            ("id_wrong", self.ids_wrong),
            ("key_repeated", self.keys_repeated),
            ("time_replaced", self.times_replaced),
            ("value_cut", self.values_cut),
            ("duration_negative", self.durations_negative),
        ]
    }
}

/// Makes rows of requests of one signal. Remembers what the last ones were like.
#[derive(Default)]
pub struct OtlpDecoder {
    read: AnyValueReader,
    resource: AttributeSet,
    scope: AttributeSet,
    resource_guess: AttributeColumnHint,
    scope_guess: AttributeColumnHint,
    guess: AttributeColumnHint,
    series: crate::ids::series::SeriesIdHasher,
    templates: crate::ids::template::TemplateBuilder,
    is_without_ids: bool,
    bytes: Vec<u8>,
}

/// One request on its way.
struct RequestDecoder<'a, 'd> {
    decoder: &'d mut OtlpDecoder,
    chunk: &'d mut MemtableChunk,
    arrival: &'d DecodeContext<'a>,
    /// Records so far, and the next one that is left out.
    ordinal: u32,
    rejected: Box<dyn Iterator<Item = u32> + 'a>,
    next_rejected: Option<u32>,
}

impl OtlpDecoder {
    /// Leaves out fingerprints and numbers of series, which can be made of the rest.
    pub fn without_ids() -> OtlpDecoder {
        OtlpDecoder {
            is_without_ids: true,
            ..OtlpDecoder::default()
        }
    }

    /// Adds the records of a request to a chunk of the signal's table, but for those that are rejected.
    pub fn decode(
        &mut self,
        request: &[u8],
        arrival: &DecodeContext<'_>,
        chunk: &mut MemtableChunk,
    ) -> WireResult<OtlpChangeCounts> {
        self.read.begin(arrival.cut_values_at);
        let mut rejected: Box<dyn Iterator<Item = u32> + '_> = Box::new(arrival.rejected.iter());
        let next_rejected = rejected.next();
        let mut decoding = RequestDecoder {
            decoder: self,
            chunk,
            arrival,
            ordinal: 0,
            rejected,
            next_rejected,
        };
        let mut at = WireCursor::new(request);
        loop {
            match at.key()? {
                request::GROUPS => decoding.group(at.message()?)?,
                END => break,
                key => at.skip(key, request::KNOWN)?,
            }
        }
        chunk.sort_extras();
        Ok(self.read.changed)
    }
}

impl<'a> RequestDecoder<'a, '_> {
    fn group(&mut self, group: WireCursor<'_>) -> WireResult<()> {
        let begin = self.chunk.rows();
        self.decoder.resource.clear();
        if let Some(mut at) = first_of(group)? {
            loop {
                match at.key()? {
                    resource::ATTRIBUTES => {
                        let pair = at.message()?;
                        let OtlpDecoder { resource, read, .. } = &mut *self.decoder;
                        resource.read(pair, read)?;
                    }
                    END => break,
                    key => at.skip(key, 0)?,
                }
            }
        }
        self.decoder.resource.settle(&mut self.decoder.read);
        let mut schema_url = None;
        let mut at = group;
        loop {
            match at.key()? {
                group::SCOPES => self.scope(at.message()?)?,
                group::SCHEMA_URL => schema_url = Some(at.bytes()?),
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        let rows = begin..self.chunk.rows();
        let OtlpDecoder {
            resource,
            resource_guess,
            read,
            ..
        } = &mut *self.decoder;
        resource.put(self.chunk, rows.clone(), AttributeSource::Resource, resource_guess);
        let column = common(self.arrival.signal).resource_schema;
        put_text(self.chunk, column, rows, schema_url, read);
        Ok(())
    }

    fn scope(&mut self, group: WireCursor<'_>) -> WireResult<()> {
        let begin = self.chunk.rows();
        let (mut name, mut version, mut schema_url) = (None, None, None);
        self.decoder.scope.clear();
        if let Some(mut at) = first_of(group)? {
            loop {
                match at.key()? {
                    scope::NAME => name = Some(at.bytes()?),
                    scope::VERSION => version = Some(at.bytes()?),
                    scope::ATTRIBUTES => {
                        let pair = at.message()?;
                        let OtlpDecoder { scope, read, .. } = &mut *self.decoder;
                        scope.read(pair, read)?;
                    }
                    END => break,
                    key => at.skip(key, 0)?,
                }
            }
        }
        self.decoder.scope.settle(&mut self.decoder.read);
        if self.arrival.signal == Signal::Metrics {
            let OtlpDecoder {
                series,
                resource,
                scope,
                ..
            } = &mut *self.decoder;
            series.begin_scope(name.unwrap_or_default(), version.unwrap_or_default(), resource, scope);
        }
        let mut at = group;
        loop {
            match at.key()? {
                scoped::RECORDS => {
                    let record = at.message()?;
                    match self.arrival.signal {
                        Signal::Logs => self.log(record)?,
                        Signal::Metrics => self.metric(record)?,
                        Signal::Traces => self.span(record)?,
                    }
                }
                scoped::SCHEMA_URL => schema_url = Some(at.bytes()?),
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        let rows = begin..self.chunk.rows();
        let OtlpDecoder {
            scope,
            scope_guess,
            read,
            ..
        } = &mut *self.decoder;
        scope.put(self.chunk, rows.clone(), AttributeSource::Scope, scope_guess);
        let columns = common(self.arrival.signal);
        for (column, text) in [
            (columns.scope_name, name),
            (columns.scope_version, version),
            (columns.scope_schema, schema_url),
        ] {
            put_text(self.chunk, column, rows.clone(), text, read);
        }
        Ok(())
    }

    /// Whether the next record has a row.
    fn is_taken(&mut self) -> bool {
        let ordinal = self.ordinal;
        self.ordinal += 1;
        if self.next_rejected == Some(ordinal) {
            self.next_rejected = self.rejected.next();
            return false;
        }
        true
    }
}

/// Columns that the tables of all signals have.
struct CommonColumns {
    scope_name: usize,
    scope_version: usize,
    resource_schema: usize,
    scope_schema: usize,
}

fn common(signal: Signal) -> CommonColumns {
    macro_rules! of {
        ($table:ident) => {
            CommonColumns {
                scope_name: tables::$table::SCOPE_NAME,
                scope_version: tables::$table::SCOPE_VERSION,
                resource_schema: tables::$table::RESOURCE_SCHEMA,
                scope_schema: tables::$table::SCOPE_SCHEMA,
            }
        };
    }
    match signal {
        Signal::Logs => of!(logs),
        Signal::Metrics => of!(metrics),
        Signal::Traces => of!(traces),
    }
}

/// The same text for some rows; what is empty was not sent.
fn put_text(
    chunk: &mut MemtableChunk,
    column: usize,
    rows: std::ops::Range<usize>,
    text: Option<&[u8]>,
    read: &mut AnyValueReader,
) {
    if let Some(text) = text.filter(|text| !text.is_empty()) {
        let text = read.text(text);
        chunk.texts(column).push_run(rows, text.as_bytes());
    }
}

#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    use super::validate::{OtlpRecordLimits, walk};
    let Some((pick, request)) = data.split_first() else {
        return;
    };
    let (signal, table) = match pick % 3 {
        0 => (Signal::Logs, &tables::LOGS),
        1 => (Signal::Metrics, &tables::METRICS),
        _ => (Signal::Traces, &tables::TRACES),
    };
    let Ok(walked) = walk(signal, request, &OtlpRecordLimits::default()) else {
        return;
    };
    let arrival = DecodeContext {
        signal,
        time: 1_700_000_000_000_000_000,
        window: ArrivalWindow::default(),
        rejected: RejectedRecords::Listed(&walked.rejected),
        cut_values_at: None,
    };
    let mut chunk = MemtableChunk::new(table);
    let decoded = OtlpDecoder::default().decode(request, &arrival, &mut chunk);
    assert!(decoded.is_ok(), "what the look takes can be decoded: {decoded:?}");
    assert_eq!(chunk.rows(), walked.records as usize - walked.rejected.len());
}
