//! Writes a buffered row to a chunk, with its derived values: time, fingerprint, and series id.

use super::cell::CellValue;
use super::known_names::{FieldRole, SEVERITY_TEXT};
use super::missing::FoundFields;
use super::row_buffer::RowBuffer;
use super::{BadRow, nested};
use thalweg_columns::ids::series::{Metric, SeriesIdHasher};
use thalweg_columns::ids::span;
use thalweg_columns::ids::template::TemplateBuilder;
use thalweg_columns::rows::attribute_columns::{AttributeColumnHint, AttributeSource};
use thalweg_columns::rows::attribute_set::AttributeSet;
use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::record_limits::RejectionReason;
use thalweg_columns::rows::times::{ArrivalWindow, TimeColumns, put_sent};
use thalweg_columns::tables::{TableSpec, logs, metrics, traces};
use thalweg_delta::schema::{TableColumn, TableSchema};

pub(super) struct RowFinisher {
    schema: TableSchema,
    table: NamedRowKind,
    time: TimeColumns,
    window: ArrivalWindow,
    /// Nanoseconds since 1970.
    pub arrival: i64,
    guess: AttributeColumnHint,
    templates: TemplateBuilder,
    series: SeriesIdHasher,
    resource: AttributeSet,
    scope: AttributeSet,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedRowKind {
    Logs,
    Metrics,
    Traces,
    /// A table without derived values.
    Other,
}

const KINDS: [&str; 6] = ["unspecified", "internal", "server", "client", "producer", "consumer"];
const CODES: [&str; 3] = ["unset", "ok", "error"];
const TYPES: [&str; 5] = ["gauge", "sum", "histogram", "exponential_histogram", "summary"];
/// The attribute of the resource that names the service.
pub(super) const SERVICE: &str = "service.name";
/// The highest severity number.
const SEVERITY_MAX: i32 = 24;

impl RowFinisher {
    pub fn new(spec: &'static TableSpec, window: ArrivalWindow, arrival: i64) -> RowFinisher {
        let schema = (spec.columns)();
        let place = |name: &str| {
            let found = schema.columns.iter().position(|column| column.name == name);
            found.unwrap_or(usize::MAX)
        };
        RowFinisher {
            time: TimeColumns {
                time: place("time_unix_nano"),
                arrival: place("arrival_unix_nano"),
                source: place("time_source"),
                original: place("time_original"),
            },
            table: match spec.name {
                "logs" => NamedRowKind::Logs,
                "metrics" => NamedRowKind::Metrics,
                "traces" => NamedRowKind::Traces,
                _ => NamedRowKind::Other,
            },
            schema,
            window,
            arrival,
            guess: AttributeColumnHint::default(),
            templates: TemplateBuilder::default(),
            series: SeriesIdHasher::default(),
            resource: AttributeSet::default(),
            scope: AttributeSet::default(),
            bytes: Vec::new(),
        }
    }

    /// Adds the row, or nothing.
    pub fn row(
        &mut self,
        gathered: &mut RowBuffer,
        chunk: &mut MemtableChunk,
        cut_at: Option<usize>,
        changed: &mut RowChangeCounts,
    ) -> Result<FoundFields, BadRow> {
        let own = gathered.take_best(FieldRole::Time).and_then(|time| time.nanos);
        match self.table {
            NamedRowKind::Traces => check_span(gathered)?,
            NamedRowKind::Metrics => check_point(gathered)?,
            NamedRowKind::Logs | NamedRowKind::Other => {}
        }
        let row = chunk.begin_row();
        changed.values_cut += gathered.cut;
        for (column, value) in &gathered.longs {
            push(chunk, *column, |data| data.push_long(row, *value));
        }
        for (column, value) in &gathered.integers {
            push(chunk, *column, |data| data.push_integer(row, *value));
        }
        for (column, value) in &gathered.doubles {
            push(chunk, *column, |data| data.push_double(row, *value));
        }
        for (column, value) in &gathered.booleans {
            push(chunk, *column, |data| data.push_boolean(row, *value));
        }
        for (column, json) in gathered.nested() {
            if let Some(TableColumn { kind, .. }) = self.schema.columns.get(column) {
                push(chunk, column, |data| nested::put(json, kind, data, row));
            }
        }
        self.texts(gathered, chunk, row, changed);
        self.guess.begin();
        for (source, name, text) in gathered.iter() {
            match chunk.slots.next(source, name, &mut self.guess) {
                Some(column) => changed.keys_repeated += u64::from(column.push(row, text.as_bytes())),
                None => chunk.push_extra(row, source, name, text),
            }
        }
        let found = FoundFields {
            time: own.is_some_and(|own| own != 0) || self.observed(gathered).is_some(),
            body: gathered
                .best_of(FieldRole::Body)
                .is_some_and(|body| !body.text.is_empty()),
        };
        match self.table {
            NamedRowKind::Logs => self.log(gathered, chunk, row, cut_at, changed),
            NamedRowKind::Metrics => self.point(gathered, chunk, row),
            NamedRowKind::Traces => self.span(gathered, chunk, row, (own, changed)),
            NamedRowKind::Other => {}
        }
        let observed = self.observed(gathered);
        let sent = match own.filter(|own| *own != 0) {
            Some(own) => Some((own, None)),
            None => observed.map(|observed| (i128::from(observed), Some("observed"))),
        };
        let is_replaced = put_sent(chunk, row, &self.time, self.arrival, self.window, sent);
        changed.times_replaced += u64::from(is_replaced);
        Ok(found)
    }

    fn observed(&self, gathered: &RowBuffer) -> Option<i64> {
        match self.table {
            NamedRowKind::Logs => gathered.long_of(logs::OBSERVED).filter(|observed| *observed != 0),
            _ => None,
        }
    }

    fn texts(&self, gathered: &RowBuffer, chunk: &mut MemtableChunk, row: usize, changed: &mut RowChangeCounts) {
        for (column, text) in gathered.texts() {
            let name = self.schema.columns.get(column).map(|column| column.name.as_str());
            let bytes = match name {
                Some("trace_id") => 16,
                Some("span_id" | "parent_span_id") => 8,
                // Written in normalized form later.
                Some("kind" | "status_code") if self.table == NamedRowKind::Traces => continue,
                Some("metric_type") => continue,
                _ => {
                    push(chunk, column, |data| data.push_text(row, text));
                    continue;
                }
            };
            match nested::is_id(text, bytes) {
                true => push(chunk, column, |data| data.push_text(row, text)),
                false if text.is_empty() => {}
                false => changed.ids_wrong += 1,
            }
        }
    }

    fn log(
        &mut self,
        gathered: &mut RowBuffer,
        chunk: &mut MemtableChunk,
        row: usize,
        cut_at: Option<usize>,
        changed: &mut RowChangeCounts,
    ) {
        if let Some(body) = gathered.take_best(FieldRole::Body) {
            let text = match cut_at.filter(|limit| body.text.len() > *limit) {
                Some(limit) => {
                    changed.values_cut += 1;
                    body.text
                        .get(..body.text.floor_char_boundary(limit))
                        .unwrap_or_default()
                }
                None => &body.text,
            };
            chunk.texts(logs::BODY).push(row, text.as_bytes());
            if let Some(fingerprint) = self.templates.fingerprint(text) {
                chunk.longs(logs::FINGERPRINT).push(row, fingerprint);
            }
            if let Some(kind) = body.kind
                && !gathered.has_text(logs::BODY_KIND)
            {
                chunk.texts(logs::BODY_KIND).push(row, kind.as_bytes());
            }
        }
        let Some(severity) = gathered.take_best(FieldRole::Severity) else {
            return;
        };
        let has_number = gathered
            .integers
            .iter()
            .any(|(column, _)| *column == logs::SEVERITY_NUMBER);
        let number = severity
            .text
            .parse()
            .ok()
            .filter(|number| (1..=SEVERITY_MAX).contains(number));
        if let Some(number) = number.filter(|_| severity.role.position != SEVERITY_TEXT) {
            if !has_number {
                chunk.integers(logs::SEVERITY_NUMBER).push(row, number);
            }
            return;
        }
        chunk.texts(logs::SEVERITY_TEXT).push(row, severity.text.as_bytes());
        if let Some(number) = severity_of(&severity.text)
            && !has_number
        {
            chunk.integers(logs::SEVERITY_NUMBER).push(row, number);
        }
    }

    fn span(
        &mut self,
        gathered: &RowBuffer,
        chunk: &mut MemtableChunk,
        row: usize,
        (start, changed): (Option<i128>, &mut RowChangeCounts),
    ) {
        if gathered.long_of(traces::DURATION).is_none()
            && let (Some(start), Some(end)) = (
                start.filter(|start| *start > 0),
                gathered.long_of(traces::END).filter(|end| *end > 0),
            )
            && let Ok(duration) = i64::try_from(i128::from(end) - start)
        {
            changed.durations_negative += u64::from(duration < 0);
            chunk.longs(traces::DURATION).push(row, duration);
        }
        let name = gathered.text_of(traces::NAME).unwrap_or_default();
        let kind = one_of(&KINDS, "span_kind_", gathered.text_of(traces::KIND)).unwrap_or("unspecified");
        chunk.texts(traces::KIND).push(row, kind.as_bytes());
        let code = one_of(&CODES, "status_code_", gathered.text_of(traces::STATUS)).unwrap_or("unset");
        chunk.texts(traces::STATUS).push(row, code.as_bytes());
        let of = |source, wanted: &str| {
            let found = gathered.iter().filter(|(of, name, _)| *of == source && *name == wanted);
            found.last().map(|(_, _, text)| text)
        };
        let service = of(AttributeSource::Resource, SERVICE).unwrap_or_default();
        let attribute = |name: &str| of(AttributeSource::Attr, name).map(str::as_bytes);
        let number = span::fingerprint(service, kind, name, attribute, &mut self.bytes);
        chunk.longs(traces::FINGERPRINT).push(row, number);
    }

    fn point(&mut self, gathered: &RowBuffer, chunk: &mut MemtableChunk, row: usize) {
        let kind = one_of(&TYPES, "", gathered.text_of(metrics::KIND)).unwrap_or("gauge");
        chunk.texts(metrics::KIND).push(row, kind.as_bytes());
        if let Some(exact) = gathered.exact_value
            && gathered.long_of(metrics::VALUE_INT).is_none()
        {
            chunk.longs(metrics::VALUE_INT).push(row, exact);
        }
        let bytes = |column| gathered.text_of(column).unwrap_or_default().as_bytes();
        self.resource.clear();
        self.scope.clear();
        for (source, name, text) in gathered.iter() {
            match source {
                AttributeSource::Resource => self.resource.push(name, Some(text)),
                AttributeSource::Scope => self.scope.push(name, Some(text)),
                AttributeSource::Attr => {}
            }
        }
        let (name, version) = (bytes(metrics::SCOPE_NAME), bytes(metrics::SCOPE_VERSION));
        self.series.begin_scope(name, version, &self.resource, &self.scope);
        let monotonic = gathered
            .booleans
            .iter()
            .find(|(column, _)| *column == metrics::IS_MONOTONIC);
        self.series.begin_metric(&Metric {
            name: bytes(metrics::NAME),
            kind,
            temporality: gathered.text_of(metrics::TEMPORALITY).unwrap_or_default(),
            is_monotonic: monotonic.map(|(_, value)| *value),
            unit: bytes(metrics::UNIT),
        });
        self.series.begin_point();
        for (source, name, text) in gathered.iter() {
            if source == AttributeSource::Attr {
                self.series.attribute(name, Some(text));
            }
        }
        chunk.longs(metrics::SERIES).push(row, self.series.id());
    }
}

fn push(
    chunk: &mut MemtableChunk,
    column: usize,
    push: impl FnOnce(&mut thalweg_columns::rows::column_data::ColumnData),
) {
    if let Some(data) = chunk.data(column) {
        push(data);
    }
}

/// Normalizes a name by case and prefix.
fn one_of(known: &[&'static str], prefix: &str, text: Option<&str>) -> Option<&'static str> {
    let text = text?.to_ascii_lowercase();
    let text = text.strip_prefix(prefix).unwrap_or(&text);
    let by_number = || known.get(text.parse::<usize>().ok()?);
    let found = known.iter().find(|name| **name == text);
    found
        .or_else(|| (!prefix.is_empty()).then(by_number).flatten())
        .copied()
}

fn check_span(gathered: &RowBuffer) -> Result<(), BadRow> {
    let is_whole = |column, bytes| gathered.text_of(column).is_some_and(|id| nested::is_id(id, bytes));
    if !is_whole(traces::TRACE_ID, 16) || !is_whole(traces::SPAN_ID, 8) {
        let why = "a span needs a trace_id of 32 and a span_id of 16 hexadecimal digits";
        return Err(BadRow::limit(RejectionReason::InvalidId, why.to_owned()));
    }
    known("kind", &KINDS, "span_kind_", gathered.text_of(traces::KIND))?;
    known("status_code", &CODES, "status_code_", gathered.text_of(traces::STATUS))
}

fn check_point(gathered: &RowBuffer) -> Result<(), BadRow> {
    if gathered.text_of(metrics::NAME).is_none_or(str::is_empty) {
        return Err(BadRow::line("it has no metric_name"));
    }
    known("metric_type", &TYPES, "", gathered.text_of(metrics::KIND))?;
    known(
        "temporality",
        &["delta", "cumulative"],
        "",
        gathered.text_of(metrics::TEMPORALITY),
    )?;
    let lists = |column| {
        let json = gathered.nested().find(|(of, _)| *of == column).map(|(_, json)| json);
        json.map(|json| serde_json::from_str::<Vec<f64>>(json).unwrap_or_default())
    };
    let (bounds, buckets) = (
        lists(metrics::BOUNDS).unwrap_or_default(),
        lists(metrics::BUCKETS).unwrap_or_default(),
    );
    let is_whole = buckets.len() == bounds.len() + 1 || (buckets.is_empty() && bounds.is_empty());
    if !is_whole || !bounds.is_sorted_by(|a, b| a < b) || buckets.iter().any(|count| *count < 0.0) {
        let why = "bounds must ascend, and there must be one more bucket than bounds";
        return Err(BadRow::limit(RejectionReason::InvalidPoint, why.to_owned()));
    }
    Ok(())
}

fn known(name: &str, all: &[&'static str], prefix: &str, text: Option<&str>) -> Result<(), BadRow> {
    match (text, one_of(all, prefix, text)) {
        (Some(text), None) => {
            let shown = CellValue::Text(text).shown();
            Err(BadRow::line(format!(
                "{name}: {shown} is not one of {}",
                all.join(", ")
            )))
        }
        _ => Ok(()),
    }
}

/// The severity number of a usual severity name.
fn severity_of(text: &str) -> Option<i32> {
    let names: [(i32, &[&str]); 6] = [
        (1, &["trace"]),
        (5, &["debug"]),
        (9, &["info", "information", "informational", "notice"]),
        (13, &["warn", "warning"]),
        (17, &["error", "err"]),
        (
            21,
            &["fatal", "critical", "crit", "alert", "emergency", "emerg", "panic"],
        ),
    ];
    let is_of = |(_, names): &&(i32, &[&str])| names.iter().any(|name| text.eq_ignore_ascii_case(name));
    names.iter().find(is_of).map(|(number, _)| *number)
}
