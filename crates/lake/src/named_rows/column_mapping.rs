//! Maps the column names of files to a table.
//!
//! | name | goes to |
//! |---|---|
//! | a column of the table | that column; for promoted ones, the attribute that it is bound to |
//! | `timestamp`, `time`, `ts`, `@timestamp` | the time, unless there is a better one |
//! | `message`, `msg`, `log`, `line` | the body of a log |
//! | `severity`, `level` | the severity of a log |
//! | `chq_tsns`, `log_message`, `log_level`, `span_…` | the column to which the reference system's name corresponds |
//! | `resource.x`, `scope.x`, `attr.x`, the same with `_` | the attribute `x` of the resource, scope or record |
//! | any other | an attribute of the record |
//!
//! If several columns could be the time, the body or the severity, the first in these lists is used, and the others
//! become attributes.

use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::schema::{ColumnType, TableSchema};

/// The target of a column's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ColumnTarget {
    /// A candidate for a role; of a row's candidates the one with the lowest rank is used.
    Best(FieldRole, u8),
    /// A fixed column, by its index in the table.
    Column(usize),
    /// The same, for a column in nanoseconds where the file has milliseconds.
    Millis(usize),
    Attribute(AttributeSource, Box<str>),
    /// A map of attributes, whose names include their source.
    Overflow,
    /// Ignored, because it is derived from other columns.
    Made,
}

/// A role that one value of a row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldRole {
    Time,
    Body,
    Severity,
}

impl FieldRole {
    pub const COUNT: usize = 3;
}

/// Names of the time, the best first. The first two are in nanoseconds, the third in milliseconds, whatever their
/// magnitude.
const TIMES: [&str; 7] = [
    "time_unix_nano",
    "chq_tsns",
    "chq_timestamp",
    "timestamp",
    "time",
    "ts",
    "@timestamp",
];
pub(super) const OWN: usize = 0;
pub(super) const THEIRS: usize = 1;
pub(super) const THEIRS_MILLIS: usize = 2;
const BODIES: [&str; 6] = ["body", "log_message", "message", "msg", "log", "line"];
const SEVERITIES: [&str; 4] = ["severity_text", "log_level", "severity", "level"];
/// Names of the reference system for columns of `traces`.
const SPANS: [(&str, &str); 8] = [
    ("span_trace_id", "trace_id"),
    ("span_parent_id", "parent_span_id"),
    ("span_parent_span_id", "parent_span_id"),
    ("span_name", "name"),
    ("span_kind", "kind"),
    ("span_status_code", "status_code"),
    ("span_status_message", "status_message"),
    ("span_trace_state", "trace_state"),
];
/// These are in milliseconds there.
const SPANS_IN_MILLIS: [(&str, &str); 2] = [
    ("span_end_timestamp", "end_time_unix_nano"),
    ("span_duration", "duration_ns"),
];
/// Columns that are derived when a row is stored.
const MADE: [&str; 4] = ["date", "arrival_unix_nano", "fingerprint", "series_id"];
const OVERFLOW: &str = "overflow";

/// The column mapping of one table.
pub struct ColumnMapping {
    spec: &'static TableSpec,
    columns: Vec<(String, ColumnType, bool)>,
    /// The promoted columns with the source and name of their attributes.
    promoted: Vec<PromotedColumn>,
    /// Pairs of a name in the file and the name that it stands for.
    renamed: Vec<(String, String)>,
}

impl ColumnMapping {
    /// `promoted` are the current attribute columns of the table.
    pub fn new(
        spec: &'static TableSpec,
        promoted: Vec<PromotedColumn>,
        renamed: Vec<(String, String)>,
    ) -> ColumnMapping {
        let columns = (spec.columns)().columns;
        ColumnMapping {
            spec,
            columns: columns
                .into_iter()
                .map(|column| {
                    let is_attribute = column.binding().is_some();
                    (column.name, column.kind, is_attribute)
                })
                .collect(),
            promoted,
            renamed,
        }
    }

    pub(super) fn of(&self, name: &str) -> ColumnTarget {
        let renamed = self.renamed.iter().find(|(old, _)| old == name);
        self.of_renamed(renamed.map_or(name, |(_, new)| new))
    }

    fn of_renamed(&self, name: &str) -> ColumnTarget {
        let rank = |names: &[&str]| names.iter().position(|known| *known == name);
        let best = |best, names: &[&str]| Some(ColumnTarget::Best(best, u8::try_from(rank(names)?).ok()?));
        if let Some(place) = best(FieldRole::Time, &TIMES) {
            return place;
        }
        if self.has("body") {
            let place = best(FieldRole::Body, &BODIES).or_else(|| best(FieldRole::Severity, &SEVERITIES));
            if let Some(place) = place {
                return place;
            }
        }
        if MADE.contains(&name) && self.has(name) {
            return ColumnTarget::Made;
        }
        if name == OVERFLOW {
            return ColumnTarget::Overflow;
        }
        let of_spans = |names: &[(&str, &'static str)]| {
            let ours = names.iter().find(|(theirs, _)| *theirs == name);
            ours.filter(|_| self.has("duration_ns")).map(|(_, ours)| *ours)
        };
        if let Some(column) = of_spans(&SPANS_IN_MILLIS).and_then(|ours| self.column(ours)) {
            return ColumnTarget::Millis(column);
        }
        self.column(of_spans(&SPANS).unwrap_or(name))
            .map(ColumnTarget::Column)
            .or_else(|| self.bound(name))
            .or_else(|| of_source(name))
            .unwrap_or_else(|| ColumnTarget::Attribute(AttributeSource::Attr, name.into()))
    }

    fn has(&self, name: &str) -> bool {
        self.columns.iter().any(|(column, ..)| column == name)
    }

    /// The index of a fixed column that is no attribute.
    pub fn column(&self, name: &str) -> Option<usize> {
        let is_it = |(column, _, is_attribute): &(String, ColumnType, bool)| column == name && !is_attribute;
        self.columns.iter().position(is_it)
    }

    fn bound(&self, name: &str) -> Option<ColumnTarget> {
        let promoted = self.promoted.iter().find(|(column, ..)| column == name);
        promoted.map(|(_, source, original)| ColumnTarget::Attribute(*source, original.as_str().into()))
    }

    pub fn kind(&self, column: usize) -> Option<(&str, &ColumnType)> {
        let (name, kind, _) = self.columns.get(column)?;
        Some((name, kind))
    }

    pub fn spec(&self) -> &'static TableSpec {
        self.spec
    }
}

/// An attribute column, and the source and name of its attribute.
pub type PromotedColumn = (String, AttributeSource, String);

/// The attribute columns of a table.
pub fn promoted(schema: &TableSchema) -> Vec<PromotedColumn> {
    let bound = schema.columns.iter().filter_map(|column| {
        let (source, original) = column.binding()?;
        Some((
            column.name.clone(),
            AttributeSource::of_name(source)?,
            original.to_owned(),
        ))
    });
    bound.collect()
}

/// An attribute name with a source prefix.
pub(super) fn of_source(name: &str) -> Option<ColumnTarget> {
    let of = |source: AttributeSource| {
        let rest = name.strip_prefix(source.as_str())?;
        let rest = rest.strip_prefix(['.', '_'])?;
        (!rest.is_empty()).then(|| ColumnTarget::Attribute(source, rest.into()))
    };
    AttributeSource::ALL.into_iter().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_columns::tables::{LOGS, METRICS, TRACES};

    fn places(spec: &'static TableSpec) -> ColumnMapping {
        let bound = |column: &str, source, name: &str| (column.to_owned(), source, name.to_owned());
        let promoted = vec![
            bound("resource_service_name", AttributeSource::Resource, "service.name"),
            bound("attr_http_route", AttributeSource::Attr, "http.route"),
        ];
        ColumnMapping::new(
            spec,
            promoted,
            vec![
                ("usr".to_owned(), "user.name".to_owned()),
                ("when".to_owned(), "ts".to_owned()),
            ],
        )
    }

    fn attribute(source: AttributeSource, name: &str) -> ColumnTarget {
        ColumnTarget::Attribute(source, name.into())
    }

    #[test]
    fn names_of_logs_go_to_their_places() {
        let of = |name: &str| places(&LOGS).of(name);
        assert_eq!(of("time_unix_nano"), ColumnTarget::Best(FieldRole::Time, 0));
        assert_eq!(
            (of("@timestamp"), of("when")),
            (
                ColumnTarget::Best(FieldRole::Time, 6),
                ColumnTarget::Best(FieldRole::Time, 5)
            )
        );
        assert_eq!(
            (of("body"), of("line")),
            (
                ColumnTarget::Best(FieldRole::Body, 0),
                ColumnTarget::Best(FieldRole::Body, 5)
            )
        );
        assert_eq!(of("level"), ColumnTarget::Best(FieldRole::Severity, 3));
        assert_eq!(
            of("trace_id"),
            ColumnTarget::Column(thalweg_columns::tables::logs::TRACE_ID)
        );
        assert_eq!(
            (of("fingerprint"), of("overflow")),
            (ColumnTarget::Made, ColumnTarget::Overflow)
        );
        assert_eq!(
            of("resource_service_name"),
            attribute(AttributeSource::Resource, "service.name")
        );
        assert_eq!(of("attr_http_route"), attribute(AttributeSource::Attr, "http.route"));
        assert_eq!(of("attr_http_method"), attribute(AttributeSource::Attr, "http_method"));
        assert_eq!(
            of("resource.host.name"),
            attribute(AttributeSource::Resource, "host.name")
        );
        assert_eq!(
            of("scope_name"),
            ColumnTarget::Column(thalweg_columns::tables::logs::SCOPE_NAME)
        );
        assert_eq!(of("usr"), attribute(AttributeSource::Attr, "user.name"));
        assert_eq!(
            (of("resource"), of("")),
            (
                attribute(AttributeSource::Attr, "resource"),
                attribute(AttributeSource::Attr, "")
            )
        );
        assert_eq!(
            of("span_kind"),
            attribute(AttributeSource::Attr, "span_kind"),
            "logs have no such thing"
        );
    }

    #[test]
    fn names_of_other_tables_go_to_theirs() {
        let spans = |name: &str| places(&TRACES).of(name);
        use thalweg_columns::tables::traces;
        assert_eq!(spans("span_trace_id"), ColumnTarget::Column(traces::TRACE_ID));
        assert_eq!(
            (spans("span_duration"), spans("duration_ns")),
            (
                ColumnTarget::Millis(traces::DURATION),
                ColumnTarget::Column(traces::DURATION)
            )
        );
        assert_eq!(spans("span_end_timestamp"), ColumnTarget::Millis(traces::END));
        assert_eq!(spans("message"), attribute(AttributeSource::Attr, "message"));
        let points = |name: &str| places(&METRICS).of(name);
        assert_eq!(points("series_id"), ColumnTarget::Made);
        assert_eq!(
            points("metric_name"),
            ColumnTarget::Column(thalweg_columns::tables::metrics::NAME)
        );
        assert_eq!(points("level"), attribute(AttributeSource::Attr, "level"));
    }
}
