//! Converts columns between Delta's schema JSON and Arrow fields.
//!
//! The column of an attribute has the attribute's original name in its field metadata (`thalweg.source`,
//! `thalweg.name`), so the table itself stores the binding of names to columns. Types that this program does not write
//! are kept unchanged.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, TimeUnit};
use serde_json::{Map, Value, json};

const SOURCE_KEY: &str = "thalweg.source";
const NAME_KEY: &str = "thalweg.name";
/// Parquet's name for the member of a list.
const ELEMENT: &str = "element";

/// A Delta type.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnType {
    Date,
    Timestamp,
    Long,
    Integer,
    Double,
    Boolean,
    String,
    Binary,
    /// `map<string,string>`
    TextMap,
    /// Its elements may be null.
    Array(Box<ColumnType>),
    Struct(Vec<TableColumn>),
    /// A type that only other programs write, as Delta JSON.
    Other(Value),
}

/// One column of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct TableColumn {
    pub name: String,
    pub kind: ColumnType,
    pub nullable: bool,
    pub metadata: Map<String, Value>,
}

impl TableColumn {
    pub fn new(name: &str, kind: ColumnType) -> TableColumn {
        TableColumn {
            name: name.to_owned(),
            kind,
            nullable: true,
            metadata: Map::new(),
        }
    }

    pub fn required(name: &str, kind: ColumnType) -> TableColumn {
        TableColumn {
            nullable: false,
            ..TableColumn::new(name, kind)
        }
    }

    /// A column for the attribute `original` of a `source` (`attr`, `resource`, `scope`).
    pub fn attribute(name: String, source: &str, original: &str) -> TableColumn {
        let metadata = [(SOURCE_KEY, source), (NAME_KEY, original)];
        TableColumn {
            name,
            kind: ColumnType::String,
            nullable: true,
            metadata: metadata.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect(),
        }
    }

    /// The source and the original name of the column's attribute.
    pub fn binding(&self) -> Option<(&str, &str)> {
        let text = |key| self.metadata.get(key).and_then(Value::as_str);
        Some((text(SOURCE_KEY)?, text(NAME_KEY)?))
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "type": self.kind.to_json(),
            "nullable": self.nullable,
            "metadata": self.metadata,
        })
    }

    fn from_json(value: &Value) -> Option<TableColumn> {
        Some(TableColumn {
            name: value.get("name")?.as_str()?.to_owned(),
            kind: ColumnType::from_json(value.get("type")?),
            nullable: value.get("nullable").and_then(Value::as_bool).unwrap_or(true),
            metadata: value
                .get("metadata")
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default(),
        })
    }
}

impl ColumnType {
    fn to_json(&self) -> Value {
        match self {
            ColumnType::Date => "date".into(),
            ColumnType::Timestamp => "timestamp".into(),
            ColumnType::Long => "long".into(),
            ColumnType::Integer => "integer".into(),
            ColumnType::Double => "double".into(),
            ColumnType::Boolean => "boolean".into(),
            ColumnType::String => "string".into(),
            ColumnType::Binary => "binary".into(),
            ColumnType::TextMap => {
                json!({"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": true})
            }
            ColumnType::Array(element) => {
                json!({"type": "array", "elementType": element.to_json(), "containsNull": true})
            }
            ColumnType::Struct(columns) => struct_json(columns),
            ColumnType::Other(value) => value.clone(),
        }
    }

    fn from_json(value: &Value) -> ColumnType {
        let simple = [
            ColumnType::Date,
            ColumnType::Timestamp,
            ColumnType::Long,
            ColumnType::Integer,
            ColumnType::Double,
            ColumnType::Boolean,
            ColumnType::String,
            ColumnType::Binary,
        ];
        if let Some(kind) = simple.into_iter().find(|kind| kind.to_json() == *value) {
            return kind;
        }
        let part = |key| value.get(key).and_then(Value::as_str);
        match (part("type"), part("keyType"), part("valueType")) {
            (Some("map"), Some("string"), Some("string")) => ColumnType::TextMap,
            (Some("array"), ..) => match value.get("elementType").map(ColumnType::from_json) {
                Some(element) if element.is_known() && value.get("containsNull") == Some(&Value::Bool(true)) => {
                    ColumnType::Array(Box::new(element))
                }
                _ => ColumnType::Other(value.clone()),
            },
            (Some("struct"), ..) => match columns_of(value) {
                Some(columns) if columns.iter().all(|column| column.kind.is_known()) => ColumnType::Struct(columns),
                _ => ColumnType::Other(value.clone()),
            },
            _ => ColumnType::Other(value.clone()),
        }
    }

    /// Its name in Delta, or its JSON if it has members.
    pub fn name(&self) -> String {
        match self.to_json() {
            Value::String(name) => name,
            other => other.to_string(),
        }
    }

    /// Nested or unknown types have no bounds.
    pub fn is_nested(&self) -> bool {
        matches!(
            self,
            ColumnType::TextMap | ColumnType::Array(_) | ColumnType::Struct(_) | ColumnType::Other(_)
        )
    }

    /// Types that contain an unknown type are unknown, too.
    fn is_known(&self) -> bool {
        !matches!(self, ColumnType::Other(_))
    }

    /// The Arrow type as which a column is read; `None` for types that this program does not read.
    pub fn arrow(&self) -> Option<DataType> {
        Some(match self {
            ColumnType::Date => DataType::Date32,
            ColumnType::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            ColumnType::Long => DataType::Int64,
            ColumnType::Integer => DataType::Int32,
            ColumnType::Double => DataType::Float64,
            ColumnType::Boolean => DataType::Boolean,
            ColumnType::String => DataType::Utf8,
            ColumnType::Binary => DataType::Binary,
            ColumnType::TextMap => text_map_type(),
            ColumnType::Array(element) => DataType::List(Arc::new(Field::new(ELEMENT, element.arrow()?, true))),
            ColumnType::Struct(columns) => {
                let field =
                    |column: &TableColumn| Some(Field::new(&column.name, column.kind.arrow()?, column.nullable));
                DataType::Struct(columns.iter().map(field).collect::<Option<Fields>>()?)
            }
            ColumnType::Other(_) => return None,
        })
    }
}

/// `map<string,string>` with the member names that Parquet prescribes.
pub fn text_map_type() -> DataType {
    let entry = Fields::from(vec![
        Field::new("key", DataType::Utf8, false),
        Field::new("value", DataType::Utf8, true),
    ]);
    DataType::Map(Arc::new(Field::new("key_value", DataType::Struct(entry), false)), false)
}

fn struct_json(columns: &[TableColumn]) -> Value {
    let fields: Vec<Value> = columns.iter().map(TableColumn::to_json).collect();
    json!({"type": "struct", "fields": fields})
}

fn columns_of(value: &Value) -> Option<Vec<TableColumn>> {
    value
        .get("fields")?
        .as_array()?
        .iter()
        .map(TableColumn::from_json)
        .collect()
}

/// All columns of a table in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableSchema {
    pub columns: Vec<TableColumn>,
}

impl TableSchema {
    pub fn to_delta(&self) -> String {
        struct_json(&self.columns).to_string()
    }

    pub fn from_delta(text: &str) -> Option<TableSchema> {
        let columns = columns_of(&serde_json::from_str(text).ok()?)?;
        Some(TableSchema { columns })
    }

    pub fn column(&self, name: &str) -> Option<&TableColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// The Arrow schema without the columns that this program does not read.
    pub fn arrow(&self) -> Schema {
        let fields = self.columns.iter().filter_map(|column| {
            let field = Field::new(&column.name, column.kind.arrow()?, column.nullable);
            let texts = column
                .metadata
                .iter()
                .filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned())));
            Some(field.with_metadata(texts.collect()))
        });
        Schema::new(fields.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_survives_its_delta_text() {
        let schema = TableSchema {
            columns: vec![
                TableColumn::required("date", ColumnType::Date),
                TableColumn::new("n", ColumnType::Long),
                TableColumn::new("overflow", ColumnType::TextMap),
                TableColumn::attribute("attr_a_b".into(), "attr", "a.b"),
                TableColumn::new(
                    "foreign",
                    ColumnType::Other(json!({"type": "array", "elementType": "decimal(10,2)", "containsNull": true})),
                ),
                TableColumn::new(
                    "events",
                    ColumnType::Array(Box::new(ColumnType::Struct(vec![
                        TableColumn::new("name", ColumnType::String),
                        TableColumn::new("attributes", ColumnType::TextMap),
                        TableColumn::new("counts", ColumnType::Array(Box::new(ColumnType::Long))),
                    ]))),
                ),
            ],
        };
        assert_eq!(TableSchema::from_delta(&schema.to_delta()).unwrap(), schema);
        assert_eq!(schema.columns[3].binding(), Some(("attr", "a.b")));
        assert_eq!(schema.arrow().fields().len(), 5, "the foreign column is not read");
    }
}
