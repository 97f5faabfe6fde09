//! Many small sorted files become few large ones.
//!
//! Files of one day are merged by buckets of event time, so that a query for some hours opens few of them. What is read goes
//! through memory in pieces, and a file leaves its table only with the commit that brings the one that has its rows.

mod columns;
mod input;
mod keys;
mod merge;
mod merge_iterator;
mod plan;
mod rewrite;
#[cfg(test)]
mod tests;

pub(crate) use columns::columns;
pub(crate) use input::{InputRequirements, KeyedBatch, MergeInput, MergeReadOptions, needs_of};
pub(crate) use keys::SortKeys;
pub use merge::{BucketWidth, FileSink, MergeError, MergeJob, MergeOutput, MergeResult};
pub(crate) use merge_iterator::{MergeIterator, RevisionFilter, RowRun};
pub use plan::CompactionOptions;
pub(crate) use plan::{CompactionJob, CompactionKind, SealPolicy, pending, plan};
pub(crate) use rewrite::RewriteJob;
