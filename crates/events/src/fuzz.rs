//! Entry points for the fuzz targets: any bytes as what is read from a disk. They return or panic; a panic is a defect.

pub use crate::embedded::index_fuzz::{file as index_file, folder as index_folder, parts as index_parts};
pub use crate::embedded::record_fuzz as record;
