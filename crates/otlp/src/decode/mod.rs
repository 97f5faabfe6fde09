//! Decodes the bytes of a request into rows.
//!
//! Attributes of a resource or a scope are read once and written to all of their rows. Attributes of records go
//! straight into their columns, without intermediate values. The request has passed [`validate`](super::validate), so
//! bytes that cannot be read here have changed since. The chunk may then contain some of the request's rows, and the
//! caller has to discard it.

mod attributes;
mod logs;
mod metrics;
#[cfg(test)]
mod tests;
mod times;
mod traces;
mod value;

use super::fields::{group, request, resource, scope, scoped};
use super::validate::first_of;
use thalweg_columns::rows::attribute_columns::{AttributeColumnHint, AttributeSource};
use thalweg_columns::rows::attribute_set::AttributeSet;
use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::times::ArrivalWindow;
use thalweg_columns::tables;
use thalweg_kit::wire::{END, WireCursor, WireResult};
use thalweg_lake::Signal;
use thalweg_lake::entry::RejectedRecords;
use value::AnyValueReader;

/// What the decoder needs to know about a request besides its bytes.
#[derive(Clone, Copy, Debug)]
pub struct DecodeContext<'a> {
    pub signal: Signal,
    /// Arrival, in nanoseconds since 1970.
    pub time: i64,
    pub window: ArrivalWindow,
    /// Indexes of the records to leave out, ascending.
    pub rejected: RejectedRecords<'a>,
    /// Longer values are cut to this many bytes.
    pub cut_values_at: Option<usize>,
}

/// Decodes requests of one signal into rows. It remembers the attribute layout of previous requests.
#[derive(Default)]
pub struct OtlpDecoder {
    read: AnyValueReader,
    resource: AttributeSet,
    scope: AttributeSet,
    resource_guess: AttributeColumnHint,
    scope_guess: AttributeColumnHint,
    guess: AttributeColumnHint,
    series: thalweg_columns::ids::series::SeriesIdHasher,
    templates: thalweg_columns::ids::template::TemplateBuilder,
    is_without_ids: bool,
    bytes: Vec<u8>,
}

/// One request while it is decoded.
struct RequestDecoder<'a, 'd> {
    decoder: &'d mut OtlpDecoder,
    chunk: &'d mut MemtableChunk,
    arrival: &'d DecodeContext<'a>,
    /// Records read so far.
    ordinal: u32,
    rejected: Box<dyn Iterator<Item = u32> + 'a>,
    next_rejected: Option<u32>,
}

impl OtlpDecoder {
    /// Leaves out fingerprints and series ids, which can be computed from the other columns.
    pub fn without_ids() -> OtlpDecoder {
        OtlpDecoder {
            is_without_ids: true,
            ..OtlpDecoder::default()
        }
    }

    /// Adds the records of a request, except rejected ones, to a chunk of the signal's table.
    pub fn decode(
        &mut self,
        request: &[u8],
        arrival: &DecodeContext<'_>,
        chunk: &mut MemtableChunk,
    ) -> WireResult<RowChangeCounts> {
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
                        attributes::read_into(resource, pair, read)?;
                    }
                    resource::DROPPED => self.count_dropped(at.number()?),
                    END => break,
                    key => at.skip(key, 0)?,
                }
            }
        }
        self.decoder.read.changed.keys_repeated += self.decoder.resource.settle();
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
                        attributes::read_into(scope, pair, read)?;
                    }
                    scope::DROPPED => self.count_dropped(at.number()?),
                    END => break,
                    key => at.skip(key, 0)?,
                }
            }
        }
        self.decoder.read.changed.keys_repeated += self.decoder.scope.settle();
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

    /// The sender has dropped attributes of a resource or a scope. Rows have no column for their number.
    fn count_dropped(&mut self, attributes: u64) {
        self.decoder.read.changed.dropped_counts_left_out += u64::from(attributes as u32 > 0);
    }

    /// Whether the next record gets a row.
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

/// Writes one text to several rows. An empty text counts as absent.
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
    use thalweg_columns::rows::record_limits::RecordLimits;

    use super::validate::walk;
    let Some((pick, request)) = data.split_first() else {
        return;
    };
    let (signal, table) = match pick % 3 {
        0 => (Signal::Logs, &tables::LOGS),
        1 => (Signal::Metrics, &tables::METRICS),
        _ => (Signal::Traces, &tables::TRACES),
    };
    let Ok(walked) = walk(signal, request, &RecordLimits::default()) else {
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
    assert!(decoded.is_ok(), "a validated request can be decoded: {decoded:?}");
    assert_eq!(chunk.rows(), walked.records as usize - walked.rejected.len());
}
