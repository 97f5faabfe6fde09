//! Reconciles partitions and catalogue at a start. What a crash left half created or half removed is removed, as a mark
//! names it. All other messages are kept, whether the catalogue knows them or not, so that damage to the catalogue
//! loses no message and prevents no start.
//!
//! | found | action |
//! |---|---|
//! | mark `removing` | its partitions are removed |
//! | mark `making`, nothing stored under the number | its partitions are removed |
//! | mark `copying` | its partitions are removed, and the copy starts over |
//! | mark of version 1 | its partitions are removed: a queue being created had stored nothing yet |
//! | a queue without any of its partitions | it was removed: it leaves the catalogue |
//! | a queue with some of its partitions | its messages move to partitions of a new number |
//! | messages under a number without a queue | they become a queue of their own, `found-<number>` |
//! | messages in a partition beyond those of its queue | the queue gets that partition too |
//!
//! On a full disk, what cannot be done is left as it is and listed in [`UnreconciledQueues`]: such a queue is set
//! aside, and the process runs without it until there is room.

mod renumber;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use smol_str::{SmolStr, format_smolstr};
use thalweg_log::{Durability, Log, LogError, Micros, PartitionId};

use crate::catalog::{Catalog, CleanupMark, FIRST_ID, QueueEntry};
use crate::error::{QueueError, Result};
use crate::identity::{IDS, STATE, is_foreign, number_of};
use crate::settings::QueueSettings;

/// Durability of a recovered queue, because its original durability is lost too.
const LEAST: Durability = Durability::Os;
/// Number of its first group, because the state partitions may have others.
const NEXT_GROUP: u32 = 1 << 20;

/// What could not be done because of a full disk.
#[derive(Debug, Default)]
pub(crate) struct UnreconciledQueues {
    /// Queues of the catalogue that lack partitions, and why they still do.
    pub queues: BTreeMap<SmolStr, LogError>,
    /// Numbers with messages that no queue has yet.
    pub unadopted: BTreeSet<u32>,
}

/// Returns the error if the disk is full; other errors are passed on.
fn unless_full(done: Result<()>) -> Result<Option<LogError>> {
    match done {
        Ok(()) => Ok(None),
        Err(QueueError::Log(error @ LogError::DiskFull { .. })) => Ok(Some(error)),
        Err(error) => Err(error),
    }
}

/// Reconciles partitions and catalogue as far as the disk has room. Called again when it has more; what already agrees
/// is left as it is.
pub(crate) async fn settle(catalog: &Catalog, log: &dyn Log, now: Micros) -> Result<UnreconciledQueues> {
    let all = NumberedPartitions::all(log);
    for (id, mark) in catalog.marks().await {
        let has_messages = all.get(&id).is_some_and(|found| found.has_stored(log));
        match mark {
            CleanupMark::Making if has_messages => {}
            CleanupMark::Making | CleanupMark::Copying | CleanupMark::Unfinished | CleanupMark::Removing => {
                remove_if_room(catalog, log, id, now).await?;
            }
        }
    }
    let (none, mut left) = (NumberedPartitions::default(), UnreconciledQueues::default());
    for (name, entry) in catalog.all().await {
        if entry.durability == Durability::Memory {
            continue;
        }
        let found = all.get(&entry.id).unwrap_or(&none);
        let mended = mend(catalog, log, (&name, entry), found, now).await;
        if let Some(error) = unless_full(mended)? {
            tracing::error!(
                queue = %name, %error,
                "a queue lacks partitions, and there is no disk space to recreate it: it is set aside with all its \
                 messages until there is"
            );
            left.queues.insert(name, error);
        }
    }
    left.unadopted = adopt(catalog, log, now).await?;
    Ok(left)
}

/// Like `remove_one`, but postponed on a full disk: the mark stays, and the next start finds it.
async fn remove_if_room(catalog: &Catalog, log: &dyn Log, id: u32, now: Micros) -> Result<()> {
    match remove_one(catalog, log, id, now).await {
        Err(QueueError::Log(error @ LogError::DiskFull { .. })) => {
            tracing::warn!(id, %error, "partitions of a removed queue are left over; the next start removes them");
            Ok(())
        }
        removed => removed,
    }
}

/// Removes the partitions of a number that may be removed. Messages go first, so that where messages exist, everything
/// that belongs to them does too.
pub(crate) async fn remove_one(catalog: &Catalog, log: &dyn Log, id: u32, now: Micros) -> Result<()> {
    let mut own = log.partitions();
    own.retain(|partition| number_of(*partition) == id);
    own.sort_unstable();
    log.remove_all(&own).await?;
    catalog.finish(log, id, now).await
}

/// The log partitions of one number.
#[derive(Default)]
struct NumberedPartitions {
    id: u32,
    messages: BTreeSet<u32>,
    states: BTreeSet<u32>,
}

impl NumberedPartitions {
    fn all(log: &dyn Log) -> BTreeMap<u32, NumberedPartitions> {
        let mut all: BTreeMap<u32, NumberedPartitions> = BTreeMap::new();
        for id in log.partitions().into_iter().filter(|id| !is_foreign(*id)) {
            let number = number_of(id);
            let of = all.entry(number).or_default();
            of.id = number;
            match id.queue & (STATE | IDS) {
                0 => drop(of.messages.insert(id.partition)),
                STATE => drop(of.states.insert(id.partition)),
                // Dedup-ids.
                _ => {}
            }
        }
        all
    }

    fn stored_in(&self, log: &dyn Log, partition: u32) -> bool {
        let bounds = log.bounds(PartitionId::new(self.id, partition));
        bounds.is_ok_and(|bounds| bounds.next > 0)
    }

    /// Whether a message was ever stored.
    fn has_stored(&self, log: &dyn Log) -> bool {
        self.messages.iter().any(|partition| self.stored_in(log, *partition))
    }

    /// Number of partitions up to the last one in which a message was stored.
    fn used(&self, log: &dyn Log) -> u32 {
        let used = self.messages.iter().rev().find(|n| self.stored_in(log, **n));
        used.map_or(0, |last| last + 1)
    }

    /// Whether the first `count` partitions are complete.
    fn is_whole(&self, count: u32) -> bool {
        (0..count).all(|partition| self.messages.contains(&partition) && self.states.contains(&partition))
    }
}

/// Makes a queue of the catalogue agree with its partitions. A removed partition is never recreated under the same
/// number, because its old content would be read from old files.
async fn mend(
    catalog: &Catalog,
    log: &dyn Log,
    (name, mut entry): (&SmolStr, QueueEntry),
    found: &NumberedPartitions,
    now: Micros,
) -> Result<()> {
    if found.messages.is_empty() {
        tracing::warn!(
            queue = %name,
            "the catalogue has a queue without any partition in the log: the record of its removal was lost to damage; \
             it is removed"
        );
        catalog.remove(log, name, now).await?;
        return remove_one(catalog, log, entry.id, now).await;
    }
    let count = entry.settings.partitions.max(found.used(log));
    if !found.is_whole(count) {
        tracing::error!(
            queue = %name, id = entry.id,
            "some partitions of a queue are missing, perhaps because it was being removed and that record was lost to \
             damage; the messages of the others are kept under a new number, and its groups start afresh"
        );
        entry.settings.partitions = count;
        return renumber::to_new_number(catalog, log, (name, entry), &found.messages, now).await;
    }
    if count > entry.settings.partitions {
        tracing::warn!(
            queue = %name, partitions = count,
            "the record of additional partitions of a queue was lost to damage; the queue keeps them"
        );
        entry.settings.partitions = count;
        catalog.put_freeing(log, name, entry, now).await?;
    }
    Ok(())
}

/// Creates a queue `found-<number>` (or `found-<number>-2` if that name is taken) from messages under a number that the
/// catalogue does not know. It has no limit that would remove messages; its groups and settings are lost. Returns the
/// numbers for which there is no room.
async fn adopt(catalog: &Catalog, log: &dyn Log, now: Micros) -> Result<BTreeSet<u32>> {
    let entries = catalog.all().await;
    let mut known: BTreeSet<u32> = entries.iter().map(|(_, entry)| entry.id).collect();
    // Numbers marked for removal are removed when there is room.
    let marks = catalog.marks().await.into_iter();
    known.extend(marks.filter(|(_, mark)| *mark != CleanupMark::Making).map(|(id, _)| id));
    let names: BTreeSet<SmolStr> = entries.into_iter().map(|(name, _)| name).collect();
    let all = NumberedPartitions::all(log);
    let found = all
        .into_values()
        .filter(|found| found.id >= FIRST_ID && !known.contains(&found.id));
    let mut unadopted = BTreeSet::new();
    for found in found {
        catalog.skip(found.id).await;
        let adopted = match found.has_stored(log) {
            true => adopt_one(catalog, log, &found, &free_name(found.id, &names), now).await,
            // It contains nothing, and never did.
            false => remove_marked(catalog, log, found.id, now).await,
        };
        if let Some(error) = unless_full(adopted)? {
            tracing::error!(
                id = found.id, %error,
                "the log has messages of a queue whose catalogue entry was lost to damage, and there is no disk space \
                 to recreate the queue; they stay as they are until there is"
            );
            unadopted.insert(found.id);
        }
    }
    Ok(unadopted)
}

async fn remove_marked(catalog: &Catalog, log: &dyn Log, id: u32, now: Micros) -> Result<()> {
    catalog.mark_removing(log, id, now).await?;
    remove_if_room(catalog, log, id, now).await
}

async fn adopt_one(
    catalog: &Catalog,
    log: &dyn Log,
    found: &NumberedPartitions,
    name: &SmolStr,
    now: Micros,
) -> Result<()> {
    let count = found.messages.last().map_or(1, |last| last + 1);
    let entry = adopted(found.id, count);
    match found.is_whole(count) {
        true => catalog.put_freeing(log, name, entry, now).await?,
        false => renumber::to_new_number(catalog, log, (name, entry), &found.messages, now).await?,
    }
    tracing::error!(
        queue = %name,
        "the log has messages of a queue whose catalogue entry was lost to damage; they are in this queue now, without \
         the groups"
    );
    Ok(())
}

/// A name that no queue has.
fn free_name(id: u32, names: &BTreeSet<SmolStr>) -> SmolStr {
    let numbered = (2u64..).map(|n| format_smolstr!("found-{id}-{n}"));
    let mut all = std::iter::once(format_smolstr!("found-{id}")).chain(numbered);
    all.find(|name| !names.contains(name)).unwrap_or_default()
}

fn adopted(id: u32, partitions: u32) -> QueueEntry {
    let settings = QueueSettings {
        partitions,
        ttl: Duration::ZERO,
        max_depth: 0,
        max_bytes: 0,
        ..QueueSettings::default()
    };
    QueueEntry {
        id,
        settings,
        durability: LEAST,
        groups: Vec::new(),
        next_group: NEXT_GROUP,
        produce_paused: true,
        consume_paused: false,
        expires_early: true,
    }
}
