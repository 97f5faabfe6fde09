//! Where the log ended before anything was appended behind it, for tables that could not be asked yet how far they have it.
//!
//! A lake on an object store that is away at a start is opened when it is back, and what comes until then waits in the log. If the
//! log has lost its end meanwhile, what comes gets offsets that the table knows as those of other entries. So the ends of such a
//! start lie in a file beside the data until the table was asked, however many starts that takes: what is behind them is new, whatever
//! the table says. A folder is always there, and has none.

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

/// By how a table names the partitions.
pub(super) type LogEnds = BTreeMap<String, Offset>;

/// The ends of the partitions of a queue, kept until its table is opened: those that are known of before anything was appended, else
/// those of now. Returns when they survive a power cut. Blocks.
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

/// The same of the namespaces of an event store; those without an end were made since.
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

/// What is kept of a table.
pub(super) fn kept(site: &LakeStorage, table: &TableSpec) -> io::Result<LogEnds> {
    path_of(site, table).map_or_else(|| Ok(LogEnds::new()), |path| read(&path))
}

/// The table was asked. Returns when that survives a power cut: what it takes from now on is not to be taken for what others had.
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
