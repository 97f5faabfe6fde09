//! The columns of a file: their Parquet types, the types they are read as, and their metadata.

use std::collections::BTreeMap;

use datafusion::parquet::schema::types::ColumnDescPtr;
use serde::Serialize;
use thalweg_delta::schema::TableSchema;

use super::ParquetFile;

/// The metadata of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SchemaInfo {
    pub created_by: Option<String>,
    pub format_version: i32,
    pub rows: i64,
    pub row_groups: usize,
    /// Key-value metadata of the file.
    pub metadata: BTreeMap<String, Option<String>>,
    pub columns: Vec<ColumnInfo>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColumnInfo {
    /// With the names of the enclosing columns.
    pub path: String,
    pub physical: String,
    pub logical: Option<String>,
    /// `required`, `optional`, `repeated`: of the column and of all enclosing columns.
    pub repetition: String,
    /// The type of the top-level column.
    pub read_as: String,
    pub metadata: BTreeMap<String, String>,
}

/// The serialized Arrow schema is not readable for people.
const ARROW_SCHEMA: &str = "ARROW:schema";

/// `table` is the schema of the file's table, if known; it provides the metadata of the columns.
pub fn schema(opened: &ParquetFile, table: Option<&TableSchema>) -> SchemaInfo {
    let footer = opened.metadata.metadata().file_metadata();
    let pairs = footer.key_value_metadata().into_iter().flatten();
    SchemaInfo {
        created_by: footer.created_by().map(str::to_owned),
        format_version: footer.version(),
        rows: footer.num_rows(),
        row_groups: opened.metadata.metadata().num_row_groups(),
        metadata: pairs
            .filter(|pair| pair.key != ARROW_SCHEMA)
            .map(|pair| (pair.key.clone(), pair.value.clone()))
            .collect(),
        columns: footer
            .schema_descr()
            .columns()
            .iter()
            .map(|column| info(opened, column, table))
            .collect(),
    }
}

fn info(opened: &ParquetFile, column: &ColumnDescPtr, table: Option<&TableSchema>) -> ColumnInfo {
    let root = column.path().parts().first().map_or("", String::as_str);
    let field = opened.metadata.schema().field_with_name(root).ok();
    let mut metadata: BTreeMap<String, String> = BTreeMap::new();
    if let Some(field) = field {
        metadata.extend(field.metadata().iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    if let Some(column) = table.and_then(|table| table.column(root)) {
        let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        metadata.extend(column.metadata.iter().map(|(key, value)| (key.clone(), text(value))));
    }
    let (levels, repeats) = (column.max_def_level(), column.max_rep_level());
    ColumnInfo {
        path: column.path().string(),
        physical: column.physical_type().to_string(),
        logical: logical(column),
        repetition: match (levels, repeats) {
            (0, 0) => "required",
            (_, 0) => "optional",
            _ => "repeated",
        }
        .to_owned(),
        read_as: field.map_or_else(String::new, |field| field.data_type().to_string()),
        metadata,
    }
}

fn logical(column: &ColumnDescPtr) -> Option<String> {
    use datafusion::parquet::basic::ConvertedType;
    match (column.converted_type(), column.logical_type_ref()) {
        // If both annotations say the same, the older one reads better.
        (ConvertedType::NONE, logical) => logical.map(|logical| format!("{logical:?}")),
        (converted, _) => Some(converted.to_string()),
    }
}
