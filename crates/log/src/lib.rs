//! The durable log that stores everything Thalweg acknowledges.
//!
//! Partitions are sequences of records with offsets. All partitions of a disk share one stream of *blocks*: whatever
//! arrives while one block is being synced goes into the next block, with one write and one sync for all waiters (group
//! commit). A block is stored whole or not at all. Damage is reported with file and position and never served.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

// Unit tests use the support code in `tests`, which refers to this crate by name.
#[cfg(test)]
extern crate self as thalweg_log;

mod cache;
mod check;
pub mod clock;
mod contract;
#[cfg(any(test, feature = "contract-suite"))]
pub mod contract_suite;
mod dump;
mod durability;
mod embedded;
mod erase;
mod error;
mod file;
mod file_pool;
mod ids;
mod index;
mod maintenance;
mod measure;
mod missing_files;
mod multi_disk;
mod open;
mod options;
mod partition;
mod partition_table;
mod raise;
mod records;
mod recovery;
mod repair;
mod segment;
mod status;
mod superblock;
#[cfg(test)]
#[path = "../tests/suite/support/mod.rs"]
mod test_support;
pub mod wait_queue;
mod writer;

pub mod disk;
pub mod format;
#[doc(hidden)]
pub mod fuzz;

pub use check::{CheckProgress, CheckReport, CheckedPartition, Finding, FindingKind, LostRange, check};
pub use contract::{BoxFuture, Log, LogCaps, ReadOptions};
pub use dump::{DumpLine, DumpOptions, dump};
pub use durability::Durability;
pub use embedded::{AppendReceipt, EmbeddedLog};
pub use error::{LogError, Result};
pub use file::is_file_of_log;
pub use file_pool::RollListener;
pub use format::newer::{NewerVersion, VersionedPart};
pub use ids::{Micros, Offset, PartitionId, Sequence};
pub use measure::LogMetrics;
pub use multi_disk::{ColocationKey, MultiDiskLog};
pub use options::LogOptions;
pub use partition::{Frame, PartitionBounds, PartitionListener};
pub use raise::raise_next;
pub use records::{Records, SUBMISSION_BYTES_MAX, SUBMISSION_RECORDS_MAX, WriteBatch};
pub use recovery::RecoveryReport;
pub use repair::{RepairActions, RepairReport, needs_repair, repair};
pub use segment::{RecordFilter, RecordVisitor};
pub use status::{LogCounters, LogStatus};
