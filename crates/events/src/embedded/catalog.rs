//! Which namespaces and tokens there are: changes in a partition of the log, read at the start.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thalweg_log::format::frame::Kind;
use thalweg_log::format::record::{RecordRef, records};
use thalweg_log::{Durability, Log, LogError, Micros, PartitionId, ReadWant, Records, Unit};

use crate::error::{EventsError, Result};
use crate::store::Scopes;
use crate::token::TokenDigest;

const FIRST: u32 = PartitionId::EVENTS;
const CATALOG: PartitionId = PartitionId::new(FIRST, 0);
/// Bytes read at once.
const READ: usize = 1 << 20;

/// The partition of a namespace. A number is never used again.
pub(crate) fn partition(number: u32) -> PartitionId {
    PartitionId::new(FIRST + number, 0)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Change {
    Created(Named),
    Removed { number: u32 },
    Admitted { number: u32, token: Admitted },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Named {
    /// From 1.
    pub number: u32,
    pub name: String,
    pub description: String,
    pub metadata: Option<String>,
    pub created_at: Micros,
    pub tokens: Vec<Admitted>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Admitted {
    digest: [u8; 32],
    pub scopes: Scopes,
}

impl Admitted {
    pub fn new(digest: &TokenDigest, scopes: Scopes) -> Admitted {
        Admitted {
            digest: *digest.as_bytes(),
            scopes,
        }
    }

    pub fn matches(&self, digest: &TokenDigest) -> bool {
        TokenDigest::from_bytes(self.digest).matches(digest)
    }
}

pub(crate) struct Catalog {
    log: Arc<dyn Log>,
    /// The largest number that was ever given.
    pub last: u32,
}

impl Catalog {
    /// With the namespaces that there are. Blocks.
    pub async fn open(log: Arc<dyn Log>, durability: Durability) -> Result<(Catalog, Vec<Named>)> {
        let mut known: BTreeMap<u32, Named> = BTreeMap::new();
        let mut last = 0;
        if !log.partitions().contains(&CATALOG) {
            log.create(CATALOG, durability).await?;
        }
        let mut from = log.bounds(CATALOG)?.first;
        loop {
            let want = ReadWant {
                bytes: READ,
                synced: false,
            };
            let frames = log.read(CATALOG, from, want)?;
            let Some(newest) = frames.last() else { break };
            from = newest.header.next();
            for frame in &frames {
                for record in records(&frame.body) {
                    let change = record.ok().and_then(|record| serde_json::from_slice(record.value).ok());
                    let change = change.ok_or_else(|| {
                        EventsError::Damaged(format!(
                            "a change of namespaces at offset {} is in no form that this version knows",
                            frame.header.base
                        ))
                    })?;
                    last = last.max(apply(&mut known, change));
                }
            }
        }
        Ok((Catalog { log, last }, known.into_values().collect()))
    }

    /// Durable when it returns.
    pub async fn store(&mut self, change: &Change, now: Micros) -> Result<()> {
        let value = serde_json::to_vec(change).map_err(|error| EventsError::Damaged(error.to_string()))?;
        let mut records = Records::new();
        records.push(&RecordRef::of(now, &value))?;
        // Also while the disk is full: what removes a namespace frees space.
        let unit = Unit::default().and_of(Kind::State, CATALOG, records);
        self.log.append(unit, None).await?;
        if let Change::Created(named) = change {
            self.last = self.last.max(named.number);
        }
        Ok(())
    }

    /// Of the log, what a crash has left between two steps is put right.
    pub async fn settle(&self, known: &[Named], durability: Durability) -> Result<()> {
        for named in known {
            match self.log.create(partition(named.number), durability).await {
                Ok(()) | Err(LogError::PartitionExists(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for id in self.log.partitions() {
            let is_known = |named: &Named| partition(named.number) == id;
            if id.queue > FIRST && !known.iter().any(is_known) {
                self.log.remove(id).await?;
            }
        }
        Ok(())
    }
}

/// Returns the number that it is about.
fn apply(known: &mut BTreeMap<u32, Named>, change: Change) -> u32 {
    match change {
        Change::Created(named) => {
            let number = named.number;
            known.insert(number, named);
            number
        }
        Change::Removed { number } => {
            known.remove(&number);
            number
        }
        Change::Admitted { number, token } => {
            if let Some(named) = known.get_mut(&number) {
                named.tokens.push(token);
            }
            number
        }
    }
}
