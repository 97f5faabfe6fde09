//! Remembers where the log ended at start, for tables whose committed offsets could not be read yet.
//!
//! If a lake's object store is unreachable at start, the lake is opened later, and new entries wait in the log. If the
//! log has lost its end, the new entries get offsets that the table has already committed for others. The log ends at
//! start are therefore kept in a file until the table was read, over any number of starts: entries beyond them are new,
//! whatever the table has committed. A folder is always reachable and needs no such file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use thalweg_kit::files;
use thalweg_log::{Log, Offset, PartitionId};

use super::QueueSource;
use super::events::{EventStore, application};
use thalweg_columns::tables::TableSpec;
use thalweg_delta::store::LakeStorage;

/// By application name of the partition.
pub(super) type LogEnds = BTreeMap<String, Offset>;

/// Stores the ends of a queue's partitions until its table is opened: those known from before the first append, else
/// the current ones. Returns when they survive a power cut. Blocks.
pub fn keep_ends(
    site: &LakeStorage,
    table: &TableSpec,
    feed: &QueueSource,
    ends: &BTreeMap<PartitionId, Offset>,
) -> io::Result<()> {
    let ends = feed.partitions.iter().enumerate().map(|(partition, id)| {
        let next = feed.log.bounds(*id).map(|bounds| bounds.next);
        next.map(|next| (feed.application(partition), ends.get(id).copied().unwrap_or(next)))
    });
    keep(site, table, ends.collect::<Result<_, _>>().map_err(io::Error::other)?)
}

/// The same for the namespaces of an event store; those without an end were created later.
pub fn keep_event_ends(
    site: &LakeStorage,
    table: &TableSpec,
    log: &dyn Log,
    events: &dyn EventStore,
    ends: &BTreeMap<PartitionId, Offset>,
) -> io::Result<()> {
    let known = events.partitions().into_iter().filter_map(|partition| {
        let end = ends.get(&partition.id)?;
        Some((application(log, partition.number), *end))
    });
    keep(site, table, known.collect())
}

fn keep(site: &LakeStorage, table: &TableSpec, mut ends: LogEnds) -> io::Result<()> {
    let Some(path) = path_of(site, table) else {
        return Ok(());
    };
    // Of several starts the first one counts.
    ends.extend(read(&path)?);
    let folder = path.parent().unwrap_or(Path::new("."));
    files::create_folders(folder)?;
    files::write_whole(&path, &serde_json::to_vec(&ends)?)
}

/// The stored ends for a table.
pub(super) fn kept(site: &LakeStorage, table: &TableSpec) -> io::Result<LogEnds> {
    path_of(site, table).map_or_else(|| Ok(LogEnds::new()), |path| read(&path))
}

/// Removes the ends after the table was read. Returns when that survives a power cut, because the ends must not apply
/// to what the table consumes from now on.
pub(super) fn drop_ends(site: &LakeStorage, table: &TableSpec) -> io::Result<()> {
    let Some(path) = path_of(site, table) else {
        return Ok(());
    };
    match std::fs::remove_file(&path) {
        Ok(()) => File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn path_of(site: &LakeStorage, table: &TableSpec) -> Option<PathBuf> {
    Some(site.scratch()?.join("ends").join(format!("{}.json", table.name)))
}

fn read(path: &Path) -> io::Result<LogEnds> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            let text = format!(
                "{} cannot be read ({error}); it says where the log ended before a table was opened",
                path.display()
            );
            io::Error::other(text)
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(LogEnds::new()),
        Err(error) => Err(error),
    }
}
