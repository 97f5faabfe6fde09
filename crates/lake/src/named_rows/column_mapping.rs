//! Maps the column names of files to a table.
//!
//! | name | goes to |
//! |---|---|
//! | a column of the table | that column; for promoted ones, the attribute that it is bound to |
//! | a usual name of time, body, severity or service, in any spelling ([`super::known_names`]) | that role, unless there is a better name |
//! | `chq_tsns`, `log_message`, `log_level`, `span_…` | the column to which the reference system's name corresponds |
//! | `resource.x`, `scope.x`, `attr.x`, the same with `_` | the attribute `x` of the resource, scope or record |
//! | a column of the table in another spelling | that column, if the value fits |
//! | any other | an attribute of the record |
//!
//! If several columns could have one role, the first in the lists is used, and the others become attributes.

use super::known_names::{self, RoleName, role_of};
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::schema::{ColumnType, TableSchema};

/// The target of a column's values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ColumnTarget {
    /// A candidate for a role; of a row's candidates the best is used.
    Role(RoleName),
    /// A fixed column, by its index in the table.
    Column(usize),
    /// The same, by another spelling of its name: a value that does not fit becomes an attribute.
    Spelled(usize),
    /// A fixed column in nanoseconds where the file has milliseconds.
    Millis(usize),
    Attribute(AttributeSource, Box<str>),
    /// A map of attributes, whose names include their source.
    Overflow,
    /// Ignored, because it is derived from other columns.
    Made,
}

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
const MADE: [&str; 3] = ["arrival_unix_nano", "fingerprint", "series_id"];
/// Columns that accept few values, so that another spelling of their names may mean something else.
const EXACT: [&str; 4] = ["kind", "status_code", "metric_type", "temporality"];
/// Older names of the reference system for columns of `metrics`, without their prefix.
const THEIR_METRICS: [(&str, &str); 2] = [("name", "metric_name"), ("value", "value")];
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
        match self.renamed(name) {
            Some(target) => target,
            None => self.of_name(name),
        }
    }

    /// The target that the user gives to a name.
    pub(super) fn renamed(&self, name: &str) -> Option<ColumnTarget> {
        let (_, new) = self.renamed.iter().find(|(old, _)| old == name)?;
        Some(match self.of_name(new) {
            ColumnTarget::Role(role) => ColumnTarget::Role(RoleName {
                is_mapped: true,
                is_strict: true,
                ..role
            }),
            target => target,
        })
    }

    fn of_name(&self, name: &str) -> ColumnTarget {
        if let Some(role) = role_of(name, self.has("body")) {
            return ColumnTarget::Role(role);
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
            .or_else(|| self.spelled(name).map(ColumnTarget::Spelled))
            .unwrap_or_else(|| ColumnTarget::Attribute(AttributeSource::Attr, name.into()))
    }

    /// The fixed column whose name this is in another spelling.
    fn spelled(&self, name: &str) -> Option<usize> {
        let ours = known_names::without_prefix(name).filter(|_| self.has("metric_name"));
        let ours = ours.and_then(|name| THEIR_METRICS.iter().find(|(theirs, _)| *theirs == name));
        if let Some((_, ours)) = ours {
            return self.column(ours);
        }
        let plain = known_names::plain(name);
        let is_it = |(column, kind, is_attribute): &(String, ColumnType, bool)| {
            let is_flat = !matches!(
                kind,
                ColumnType::Array(_)
                    | ColumnType::Struct(_)
                    | ColumnType::TextMap
                    | ColumnType::Date
                    | ColumnType::Timestamp
            );
            is_flat
                && !is_attribute
                && !MADE.contains(&column.as_str())
                && !EXACT.contains(&column.as_str())
                && known_names::plain(column) == plain
        };
        self.columns.iter().position(is_it)
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

    /// The length of the ids of a column; `None` if it has none.
    pub(super) fn id_bytes(&self, column: usize) -> Option<usize> {
        match self.kind(column)? {
            ("trace_id", _) => Some(16),
            (name, ColumnType::String) if name.ends_with("_id") => Some(8),
            _ => None,
        }
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
    use crate::named_rows::known_names::{FieldRole, NumberUnit};
    use thalweg_columns::tables::{LOGS, METRICS, TRACES, logs};

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

    fn role(spec: &'static TableSpec, name: &str) -> RoleName {
        match places(spec).of(name) {
            ColumnTarget::Role(role) => role,
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn names_of_logs_go_to_their_places() {
        let of = |name: &str| places(&LOGS).of(name);
        let own = role(&LOGS, "time_unix_nano");
        assert_eq!(
            (own.role, own.position, own.unit),
            (FieldRole::Time, 0, NumberUnit::Nanos)
        );
        let (theirs, mapped) = (role(&LOGS, "@timestamp"), role(&LOGS, "when"));
        assert!(theirs.role == FieldRole::Time && !theirs.is_mapped && theirs.is_strict);
        assert!(mapped.role == FieldRole::Time && mapped.is_mapped && mapped.position < theirs.position);
        assert!(!role(&LOGS, "Timestamp").is_strict && !role(&LOGS, "created_at").is_strict);
        let (body, line) = (role(&LOGS, "body"), role(&LOGS, "line"));
        assert!(body.role == FieldRole::Body && line.role == FieldRole::Body && body.position < line.position);
        assert_eq!(role(&LOGS, "level").role, FieldRole::Severity);
        assert_eq!(of("trace_id"), ColumnTarget::Column(logs::TRACE_ID));
        assert_eq!(of("TraceId"), ColumnTarget::Spelled(logs::TRACE_ID));
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
        assert_eq!(of("scope_name"), ColumnTarget::Column(logs::SCOPE_NAME));
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
        use thalweg_columns::tables::{metrics, traces};
        assert_eq!(spans("span_trace_id"), ColumnTarget::Column(traces::TRACE_ID));
        assert_eq!(spans("SpanId"), ColumnTarget::Spelled(traces::SPAN_ID));
        assert_eq!(spans("Kind"), attribute(AttributeSource::Attr, "Kind"));
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
        assert_eq!(points("metric_name"), ColumnTarget::Column(metrics::NAME));
        assert_eq!(points("_cardinalhq.name"), ColumnTarget::Spelled(metrics::NAME));
        assert_eq!(points("level"), attribute(AttributeSource::Attr, "level"));
    }
}
