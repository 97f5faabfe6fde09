//! Rows that grow column by column: what decoders fill, queries read, and files are made of.
//!
//! A column knows only the rows that have a value; rows that were passed over are null. So a row costs what it has, however
//! many columns its table has.

pub mod attribute_columns;
pub mod chunk;
pub mod column_data;
pub mod column_view;
pub mod extra_attributes;
pub mod memory_usage;
pub mod nested;
pub mod numbers;
pub mod text;
