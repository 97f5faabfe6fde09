//! Entry points for the fuzz targets, which treat arbitrary bytes as data read from a disk. They return or panic; a
//! panic is a bug.

pub use crate::embedded::index_fuzz::{file as index_file, folder as index_folder, parts as index_parts};
pub use crate::embedded::record_fuzz as record;
