//! The durable log under everything that Thalweg acknowledges.
//!
//! Partitions are sequences of records with offsets. All partitions of a disk share one stream of *blocks*: what arrives
//! while one block is being synced becomes the next, with one write and one sync for everybody who waits. A block is
//! stored whole or not at all, and what is damaged is reported with file and position, never served.

#![cfg_attr(test, allow(clippy::unwrap_used))]

// The tests beside the code use what those in `tests` have, which know this crate by its name.
#[cfg(test)]
extern crate self as thalweg_log;

mod absent;
mod cache;
mod check;
pub mod clock;
mod contract;
#[cfg(any(test, feature = "contract-suite"))]
pub mod contract_suite;
mod disks;
mod dump;
mod durability;
mod embedded;
mod erase;
mod error;
mod file;
mod ids;
mod index;
pub mod line;
mod measure;
mod open;
mod options;
mod partition;
mod raise;
mod records;
mod recovery;
mod repair;
mod segment;
mod shelf;
mod status;
mod superblock;
mod table;
#[cfg(test)]
#[path = "../tests/suite/support/mod.rs"]
mod test_support;
mod upkeep;
mod writer;

pub mod disk;
pub mod format;
#[doc(hidden)]
pub mod fuzz;

pub use check::{CheckReport, CheckedPartition, Finding, FindingKind, Lost, Progress, check};
pub use contract::{BoxFuture, Log, LogCaps, ReadWant};
pub use disks::{Disks, Together};
pub use dump::{DumpOptions, Dumped, dump};
pub use durability::Durability;
pub use embedded::{Appended, EmbeddedLog, Fence};
pub use error::{LogError, Result};
pub use file::is_file_of_log;
pub use format::newer::{Newer, Versioned};
pub use ids::{Micros, Offset, PartitionId, Sequence};
pub use measure::{Histogram, Measures, Observed};
pub use options::LogOptions;
pub use partition::{Bounds, Frame, Listener};
pub use raise::raise_next;
pub use records::{Records, SUBMISSION_BYTES_MAX, SUBMISSION_RECORDS_MAX, Unit};
pub use recovery::Report;
pub use repair::{Done, Repaired, needs_repair, repair};
pub use segment::{Keep, Show};
pub use shelf::OnRoll;
pub use status::{LogCounters, LogStatus};
