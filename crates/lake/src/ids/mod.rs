//! Numbers by which rows that belong together are found.

pub mod series;
pub mod span;
pub mod template;
