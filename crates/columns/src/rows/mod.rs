//! Rows that grow column by column: decoders fill them, queries read them, and files are written from them.
//!
//! A column stores only the rows up to its last value; skipped rows are null. A row therefore costs only the values it
//! has, however many columns its table has.

pub mod attribute_columns;
pub mod attribute_set;
pub mod change_counts;
pub mod chunk;
pub mod column_data;
pub mod column_view;
pub mod double_text;
pub mod extra_attributes;
pub mod memory_usage;
pub mod nested;
pub mod numbers;
pub mod record_limits;
pub mod text;
pub mod times;
