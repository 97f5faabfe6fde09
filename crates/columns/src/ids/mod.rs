//! Ids by which related rows are found.

pub mod series;
pub mod span;
pub mod template;
