//! The table `tags`: packs messages of flows into log entries, and decodes the entries to one row per message.

mod batch_writer;
mod limits;
mod row_decoder;
mod sample;
mod series;

pub use batch_writer::{RefusedMessage, TagBatch, TagBatchWriter, TagEntry};
pub use limits::{MessageRefusal, TagRowLimits};
pub use row_decoder::entry_decoder;
pub use series::tag_id;

#[doc(hidden)]
pub use row_decoder::fuzz;

#[cfg(test)]
mod rollup_tests;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod typed_tests;
