//! The table `tags`: messages of flows on their way into the log, and out of it as rows, one for each message.

mod limits;
mod pack;
mod rows;
mod sample;
mod series;

pub use limits::{Refusal, RowLimits};
pub use pack::{Entry, Packed, Packer, Refused};
pub(crate) use rows::{Changed, Samples};
pub use series::tag_id;

#[doc(hidden)]
pub use rows::fuzz;

#[cfg(test)]
mod rollup_tests;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;
