//! Moves the messages of a queue that lacks some of its partitions to a complete set of partitions under a new number.
//!
//! The new number has the mark `copying` until every message is copied. One frame then assigns it to the queue, removes
//! that mark and marks the old partitions for removal. A start after a crash finds the mark and starts the copy over,
//! or finds it done. If damage destroys a mark, messages may be stored twice, but are never lost.

use std::collections::BTreeSet;

use smol_str::SmolStr;
use thalweg_log::format::record::records;
use thalweg_log::{Log, LogError, Micros, PartitionId, ReadOptions, Records, WriteBatch};

use super::{remove_if_room, remove_one};
use crate::catalog::{Catalog, CleanupMark, QueueEntry};
use crate::error::{QueueError, Result};
use crate::identity::STATE;

/// Approximate size of one read and one commit.
const COPY_BYTES: usize = 4 << 20;
const COPY_RECORDS: usize = 5000;

/// `there` are the partitions that still exist.
pub(super) async fn to_new_number(
    catalog: &Catalog,
    log: &dyn Log,
    (name, entry): (&SmolStr, QueueEntry),
    there: &BTreeSet<u32>,
    now: Micros,
) -> Result<()> {
    let old = entry.id;
    let id = catalog.begin(log, CleanupMark::Copying, now).await?;
    let moved = match copy_all(log, (id, &entry), there).await {
        Ok(()) => catalog.renumber(log, name, QueueEntry { id, ..entry }, old, now).await,
        Err(error) => Err(error),
    };
    if let Err(error) = moved {
        // A partial copy only takes space, because the next attempt starts over.
        if let Err(error) = remove_one(catalog, log, id, now).await {
            tracing::warn!(id, %error, "a partial copy of a queue is left over; the next start removes it");
        }
        return Err(error);
    }
    remove_if_room(catalog, log, old, now).await
}

async fn copy_all(log: &dyn Log, (id, entry): (u32, &QueueEntry), there: &BTreeSet<u32>) -> Result<()> {
    let all = (0..entry.settings.partitions).flat_map(|n| [PartitionId::new(id, n), PartitionId::new(id | STATE, n)]);
    log.create_all(&all.collect::<Vec<_>>(), entry.durability).await?;
    for partition in there {
        copy(
            log,
            PartitionId::new(entry.id, *partition),
            PartitionId::new(id, *partition),
        )
        .await?;
    }
    Ok(())
}

async fn copy(log: &dyn Log, from: PartitionId, to: PartitionId) -> Result<()> {
    let mut at = log.bounds(from)?.first;
    loop {
        let want = ReadOptions {
            bytes: COPY_BYTES,
            synced: false,
        };
        let frames = match log.read(from, at, want) {
            Err(LogError::Gap { to, .. }) => {
                at = to;
                continue;
            }
            frames => frames?,
        };
        let Some(next) = frames.last().map(|frame| frame.header.next()) else {
            return Ok(());
        };
        let mut some = Records::new();
        for record in frames.iter().flat_map(|frame| records(&frame.body)) {
            let mut record = record.map_err(|_| unreadable(from, at))?;
            record.delta = None;
            some.push(&record)?;
            if some.len() >= COPY_RECORDS || some.bytes() >= COPY_BYTES {
                append(log, to, std::mem::take(&mut some)).await?;
            }
        }
        append(log, to, some).await?;
        at = next;
    }
}

async fn append(log: &dyn Log, to: PartitionId, some: Records) -> Result<()> {
    if !some.is_empty() {
        log.append(WriteBatch::of(to, some)).await?;
    }
    Ok(())
}

fn unreadable(partition: PartitionId, position: u64) -> QueueError {
    QueueError::Log(LogError::Corrupt {
        file: format!("partition {partition}"),
        position,
        expected: None,
        found: "a record that cannot be read".to_owned(),
    })
}
