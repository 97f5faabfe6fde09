//! Many small sorted files become few large ones.
//!
//! Files of one day are merged by buckets of event time, so that a query for some hours opens few of them. What is read goes
//! through memory in pieces, and a file leaves its table only with the commit that brings the one that has its rows.

mod columns;
mod input;
mod keys;
mod merge;
mod plan;
mod rewrite;
mod sorted;
#[cfg(test)]
mod tests;

pub(crate) use columns::columns;
pub(crate) use input::{Input, Needs, Piece, Reading, needs_of};
pub(crate) use keys::Keys;
pub use merge::{Bucket, Merge, MergeError, Merged, Output, Sink};
pub use plan::CompactionOptions;
pub(crate) use plan::{Job, Seals, Work, pending, plan};
pub(crate) use rewrite::Rewrite;
pub(crate) use sorted::{Newest, Run, Sorted};
