//! Handles partitions without a namespace at the start. Partial creations and removals from a crash are removed. If
//! damage to the catalog has taken the name of a partition, the partition becomes a namespace of its own, so that a few
//! damaged bytes of the catalog lose no messages.
//!
//! | the catalog says about a number | its partition | result |
//! |---|---|---|
//! | created | exists | a namespace |
//! | created | does not exist | it was deleted, and damage has taken the `Removed` change |
//! | removed | exists | removed, or kept for programs that read the log |
//! | anything else, or nothing | exists and was never used | nothing to lose: removed, and its number is not reused |
//! | anything else, or nothing | exists with records | namespace `found-<number>` |

use std::collections::BTreeSet;

use thalweg_log::{LogError, Micros};

use super::{Catalog, CatalogChange, CatalogEntry, CatalogState, number_of, partition};
use crate::error::Result;

const DESCRIPTION: &str = "Found at a start: the catalogue has lost its name";

impl CatalogState {
    fn has(&self, number: u32) -> bool {
        self.there.contains_key(&number) || self.deleted.contains_key(&number)
    }

    /// `found-<number>`, or `found-<number>-2` and so on if a namespace already has that name.
    fn free_name(&self, number: u32) -> String {
        let names: BTreeSet<&str> = self.there.values().map(|named| named.name.as_str()).collect();
        let numbered = (2u64..).map(|n| format!("found-{number}-{n}"));
        let mut all = std::iter::once(format!("found-{number}")).chain(numbered);
        all.find(|name| !names.contains(name.as_str())).unwrap_or_default()
    }
}

impl Catalog {
    /// Matches partitions and namespaces by the table above. It can be repeated after a crash.
    pub(super) async fn settle_orphans(
        &mut self,
        known: &mut CatalogState,
        keep_deleted: bool,
        now: Micros,
    ) -> Result<()> {
        let numbers: BTreeSet<u32> = self
            .log
            .partitions()
            .iter()
            .filter_map(|id| number_of(*id).filter(|number| *number > 0))
            .collect();
        self.delete_what_has_no_partition(known, &numbers, now).await?;
        known
            .deleted
            .retain(|number, _| keep_deleted && numbers.contains(number));
        for number in numbers {
            self.last = self.last.max(number);
            if known.has(number) {
                continue;
            }
            if known.removed.contains(&number) {
                self.remove_partition(number).await?;
            } else if self.is_empty(number)? {
                // Left by a crash, perhaps of a version that did not mark it as unfinished; or damage has taken its
                // name.
                if !known.unfinished.contains(&number) {
                    self.store(&CatalogChange::Removed { number }, now).await?;
                }
                self.remove_partition(number).await?;
            } else {
                self.adopt(known, number, now).await?;
            }
        }
        Ok(())
    }

    async fn delete_what_has_no_partition(
        &mut self,
        known: &mut CatalogState,
        numbers: &BTreeSet<u32>,
        now: Micros,
    ) -> Result<()> {
        let missing: Vec<(u32, String)> = known
            .there
            .iter()
            .filter(|(number, _)| !numbers.contains(number))
            .map(|(number, named)| (*number, named.name.clone()))
            .collect();
        for (number, name) in missing {
            // Damage at the end of the catalog leaves no gap. Refusing to start would not help, because the missing
            // partition had the events.
            tracing::error!(
                namespace = name,
                partition = %partition(number),
                "the log has no partition of this namespace, and the catalogue has no record of its deletion: its \
                 events are lost, and it counts as deleted from now on"
            );
            self.store(&CatalogChange::Removed { number }, now).await?;
            known.there.remove(&number);
            known.removed.insert(number);
        }
        Ok(())
    }

    /// Whether nothing was ever stored in it. Removed, trimmed or lost records would have used offsets.
    fn is_empty(&self, number: u32) -> Result<bool> {
        match self.log.bounds(partition(number)) {
            Ok(bounds) => Ok(bounds.next == 0),
            Err(LogError::NoPartition(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn adopt(&mut self, known: &mut CatalogState, number: u32, now: Micros) -> Result<()> {
        let named = CatalogEntry {
            number,
            name: known.free_name(number),
            description: DESCRIPTION.to_owned(),
            metadata: None,
            created_at: now,
            tokens: Vec::new(),
        };
        self.store(&CatalogChange::Created(named.clone()), now).await?;
        tracing::error!(
            namespace = named.name,
            partition = %partition(number),
            "the catalogue has lost the name of a namespace; its events are in this one now, which has no token: \
             create one with token.create, move the events to where they belong with `thalweg events export` and \
             `import`, and remove them here with ns.delete"
        );
        known.there.insert(number, named);
        Ok(())
    }
}
