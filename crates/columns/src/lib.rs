//! Columnar rows, in memory and in Parquet files.
//!
//! Decoders fill a [`MemtableChunk`](rows::chunk::MemtableChunk) of a [table](tables); a
//! [`FileWriter`](file::FileWriter) encodes columns as one sorted Parquet file; [`compaction`] merges such files. This
//! crate does not know where rows come from, or which table a file belongs to.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod attribute_types;
pub mod attributes;
pub mod compaction;
pub mod file;
pub mod ids;
pub mod rows;
pub mod tables;
