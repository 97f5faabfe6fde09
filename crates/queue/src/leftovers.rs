//! Partitions that no queue has. What a crash has left half made or half removed goes; what damage to the catalogue has
//! taken the queue from is found again, as a queue of its own, so that no message goes with a few bytes of the catalogue.

use std::collections::{BTreeMap, BTreeSet};

use smol_str::{SmolStr, format_smolstr};
use thalweg_log::{Durability, Log, Micros, PartitionId};

use crate::catalog::{Catalog, Entry, FIRST_ID};
use crate::error::Result;
use crate::queue::{STATE, is_foreign, number_of};
use crate::settings::QueueSettings;

/// What is promised of a queue that is found again: with what it was made is lost, too.
const LEAST: Durability = Durability::Os;
/// Its first group: the state partitions may tell of others, by number.
const NEXT_GROUP: u32 = 1 << 20;

/// Ends what a crash has begun.
pub(crate) async fn remove(catalog: &Catalog, log: &dyn Log, now: Micros) -> Result<()> {
    for id in catalog.unfinished().await {
        remove_one(catalog, log, id, now).await?;
    }
    Ok(())
}

pub(crate) async fn remove_one(catalog: &Catalog, log: &dyn Log, id: u32, now: Micros) -> Result<()> {
    let of_queue = |partition: &PartitionId| number_of(*partition) == id;
    for partition in log.partitions().into_iter().filter(of_queue) {
        log.remove(partition).await?;
    }
    catalog.finish(log, id, now).await
}

/// Makes a queue `found.<number>`, or `found.<number>.2` if somebody has called a queue so, of messages that are under a
/// number which the catalogue does not know, without any limit that would let go of them; its groups and settings are lost.
pub(crate) async fn adopt(catalog: &Catalog, log: &dyn Log, now: Micros) -> Result<()> {
    let entries = catalog.all().await;
    let known: BTreeSet<u32> = entries.iter().map(|(_, entry)| entry.id).collect();
    let names: BTreeSet<SmolStr> = entries.into_iter().map(|(name, _)| name).collect();
    let mut found: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for id in log.partitions().into_iter().filter(|id| !is_foreign(*id)) {
        let number = number_of(id);
        if number < FIRST_ID || known.contains(&number) {
            continue;
        }
        let partitions = found.entry(number).or_default();
        if id.queue == number {
            partitions.push(id.partition);
        }
    }
    for (id, partitions) in found {
        catalog.skip(id).await;
        let mut has_messages = false;
        for partition in &partitions {
            let bounds = log.bounds(PartitionId::new(id, *partition))?;
            has_messages |= bounds.next > bounds.first;
        }
        if !has_messages {
            remove_one(catalog, log, id, now).await?;
            continue;
        }
        let count = partitions.iter().max().map_or(1, |last| last + 1);
        adopt_one(catalog, log, (id, free_name(id, &names)), count, now).await?;
    }
    Ok(())
}

/// A name that no queue has.
fn free_name(id: u32, names: &BTreeSet<SmolStr>) -> SmolStr {
    let numbered = (2u64..).map(|n| format_smolstr!("found.{id}.{n}"));
    let mut all = std::iter::once(format_smolstr!("found.{id}")).chain(numbered);
    all.find(|name| !names.contains(name)).unwrap_or_default()
}

async fn adopt_one(
    catalog: &Catalog,
    log: &dyn Log,
    (id, name): (u32, SmolStr),
    partitions: u32,
    now: Micros,
) -> Result<()> {
    let there: BTreeSet<PartitionId> = log.partitions().into_iter().collect();
    for partition in 0..partitions {
        for id in [PartitionId::new(id, partition), PartitionId::new(id | STATE, partition)] {
            if !there.contains(&id) {
                log.create(id, LEAST).await?;
            }
        }
    }
    let settings = QueueSettings {
        partitions,
        ttl: std::time::Duration::ZERO,
        max_depth: 0,
        max_bytes: 0,
        ..QueueSettings::default()
    };
    let entry = Entry {
        id,
        settings,
        durability: LEAST,
        groups: Vec::new(),
        next_group: NEXT_GROUP,
        produce_paused: true,
        consume_paused: false,
    };
    catalog.put(log, &name, entry, now).await?;
    tracing::error!(
        queue = %name,
        "the log has messages of a queue that its catalogue has lost to damage; they are in this queue now, without the groups"
    );
    Ok(())
}
