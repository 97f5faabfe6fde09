//! Merges many small sorted files into few large ones.
//!
//! Files of one day are merged by buckets of event time, so that a query for a few hours opens few files. Merges run in
//! bounded memory. A file leaves its table only in the commit that adds the file with its rows.

mod columns;
mod input;
mod keys;
mod merge;
mod merge_iterator;
mod plan;
mod rewrite;
#[cfg(test)]
mod tests;

pub use columns::columns;
pub use input::{InputRequirements, KeyedBatch, MergeInput, MergeReadOptions, needs_of};
pub use keys::{KeyRows, SortKeys};
pub use merge::{BucketWidth, FileSink, MergeError, MergeJob, MergeOutput, MergeResult};
pub use merge_iterator::{MergeIterator, RevisionFilter, RowRun};
pub use plan::CompactionOptions;
pub use plan::{CompactionJob, CompactionKind, SealPolicy, pending, plan};
pub use rewrite::RewriteJob;
