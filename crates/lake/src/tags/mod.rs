//! The table `tags`: samples of tags, one row per message.

mod encode;
mod rows;
mod sample;
pub mod schema;
mod series;

pub use encode::{EncodeError, Encoder, FileOptions};
pub use rows::{Changed, Generation, ROWS_MAX, RowRules};
pub use sample::TimeWindow;
pub use series::{Refusal, RowLimits, SeriesTable, tag_id};

#[cfg(test)]
mod tests;
