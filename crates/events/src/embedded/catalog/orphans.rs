//! Partitions that no namespace has, at a start. What a crash has left half made or half removed goes. What damage to the
//! catalogue has taken the name from becomes a namespace of its own, so that no message goes with a few bytes of the catalogue.
//!
//! | the catalogue says of a number | its partition | what becomes of it |
//! |---|---|---|
//! | created | there | it is a namespace |
//! | created | not there | it was deleted, and damage has taken what said so |
//! | removed | there | removed, or kept for whoever reads the log |
//! | anything else, or nothing | there, and nothing was ever stored in it | it has nothing to lose: removed, and its number is not given again |
//! | anything else, or nothing | there, with records | namespace `found-<number>` |

use std::collections::BTreeSet;

use thalweg_log::{LogError, Micros};

use super::{Catalog, CatalogChange, CatalogEntry, CatalogState, FIRST, partition};
use crate::error::Result;

const DESCRIPTION: &str = "Found by a start: the catalogue has lost what it was called";

impl CatalogState {
    fn has(&self, number: u32) -> bool {
        self.there.contains_key(&number) || self.deleted.contains_key(&number)
    }

    /// `found-<number>`, or `found-<number>-2` and so on if somebody has called a namespace so.
    fn free_name(&self, number: u32) -> String {
        let names: BTreeSet<&str> = self.there.values().map(|named| named.name.as_str()).collect();
        let numbered = (2u64..).map(|n| format!("found-{number}-{n}"));
        let mut all = std::iter::once(format!("found-{number}")).chain(numbered);
        all.find(|name| !names.contains(name.as_str())).unwrap_or_default()
    }
}

impl Catalog {
    /// Brings partitions and namespaces together, as the table above says. All of it can be done again after a crash.
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
            .filter_map(|id| id.queue.checked_sub(FIRST).filter(|number| *number > 0))
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
                // A crash has left it, also one of a version that did not mark it as unfinished; or damage has taken its name.
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
            // Damage at the end of the catalogue leaves no gap. A start that refuses would bring nothing back: the partition
            // is what had the events.
            tracing::error!(
                namespace = name,
                partition = %partition(number),
                "the log has no partition of this namespace, and the catalogue does not say that it was deleted: its events \
                 are not there, and it counts as deleted from now on"
            );
            self.store(&CatalogChange::Removed { number }, now).await?;
            known.there.remove(&number);
            known.removed.insert(number);
        }
        Ok(())
    }

    /// Whether nothing was ever stored in it: what was removed, trimmed or lost had offsets.
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
            "the catalogue has lost what a namespace is called; its events are in this one now, which has no token: make one \
             with token.create, then `thalweg events export` and `import` bring them to where they belong, and ns.delete \
             removes them here"
        );
        known.there.insert(number, named);
        Ok(())
    }
}
