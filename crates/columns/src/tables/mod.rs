//! The tables of the lake: their columns, and the sort order and encodings of their files.

pub mod events;
pub mod logs;
pub mod metrics;
mod metrics_rollup;
pub mod spec;
pub mod tags;
mod tags_rollup;
pub mod traces;

use thalweg_delta::schema::{ColumnType, TableColumn, TableSchema};

pub use events::EVENTS;
pub use logs::LOGS;
pub use metrics::METRICS;
pub use metrics_rollup::METRICS_ROLLUP;
pub use spec::{SeriesSpec, TableSpec};
pub use tags::TAGS;
pub use tags_rollup::TAGS_ROLLUP;
pub use traces::TRACES;

/// Declares the fixed columns of a table, with an index constant for each column that decoders write.
macro_rules! fixed {
    ($($(#[$doc:meta])* $constant:ident $name:literal: $kind:expr,)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "they are the constants below")]
        enum FixedColumn {
            $($constant,)*
        }
        $($(#[$doc])* pub const $constant: usize = FixedColumn::$constant as usize;)*

        fn columns() -> thalweg_delta::schema::TableSchema {
            use thalweg_delta::schema::ColumnType::*;
            $crate::tables::schema([$(($name, $kind),)*])
        }
    };
}
pub(crate) use fixed;

/// The spec of a table, if this program writes it.
pub fn spec_of(name: &str) -> Option<&'static TableSpec> {
    let specs = [&LOGS, &METRICS, &TRACES, &METRICS_ROLLUP, &TAGS, &TAGS_ROLLUP, &EVENTS];
    specs.into_iter().find(|spec| spec.name == name)
}

/// Columns that have a value in every row.
const REQUIRED: [&str; 4] = ["date", "time", "time_unix_nano", "arrival_unix_nano"];
/// The only attribute among the fixed columns, because files are sorted by it.
const SERVICE: (&str, &str, &str) = ("resource_service_name", "resource", "service.name");

fn schema<const N: usize>(columns: [(&str, ColumnType); N]) -> TableSchema {
    let column = |(name, kind): (&str, ColumnType)| match name {
        name if name == SERVICE.0 => TableColumn::attribute(name.to_owned(), SERVICE.1, SERVICE.2),
        name if REQUIRED.contains(&name) => TableColumn::required(name, kind),
        name => TableColumn::new(name, kind),
    };
    TableSchema {
        columns: columns.into_iter().map(column).collect(),
    }
}

/// A list of structs with these members.
fn structs<const N: usize>(members: [(&str, ColumnType); N]) -> ColumnType {
    let members = members.into_iter().map(|(name, kind)| TableColumn::new(name, kind));
    ColumnType::Array(Box::new(ColumnType::Struct(members.collect())))
}

fn list(element: ColumnType) -> ColumnType {
    ColumnType::Array(Box::new(element))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_say_what_is_true_of_their_columns() {
        for spec in [&LOGS, &METRICS, &TRACES, &TAGS, &EVENTS] {
            let schema = (spec.columns)();
            let of = |name: &str| schema.column(name).unwrap_or_else(|| panic!("{}: {name}", spec.name));
            assert_eq!(
                (schema.columns[0].name.as_str(), &schema.columns[0].kind),
                ("date", &ColumnType::Date)
            );
            for name in spec.sort {
                of(name);
            }
            for name in spec.plain {
                assert!(
                    matches!(of(name).kind, ColumnType::String | ColumnType::Binary),
                    "{name}"
                );
            }
            for name in spec.near {
                assert!(
                    matches!(of(name).kind, ColumnType::Long | ColumnType::Timestamp),
                    "{name}"
                );
            }
            for name in REQUIRED {
                assert!(!of(name).nullable);
            }
            let nested = |column: &TableColumn| matches!(column.kind, ColumnType::Array(_) | ColumnType::TextMap);
            let first = schema.columns.iter().position(nested).unwrap();
            assert!(schema.columns[first..].iter().all(nested), "what is nested comes last");
        }
        let schema = (TAGS.columns)();
        for (place, name) in [(tags::TAG, "tag"), (tags::UNIT, "unit")] {
            assert_eq!(schema.columns[place].name, name);
        }
        let schema = (LOGS.columns)();
        for (place, name) in [(logs::BODY, "body"), (logs::SERVICE, "resource_service_name")] {
            assert_eq!(schema.columns[place].name, name);
        }
    }
}
