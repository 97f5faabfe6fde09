//! The catalog of namespaces and tokens: changes in a partition of the log, each in a frame of its own, which a start
//! replays.
//!
//! A number is marked as unfinished before its partition is created, and the mark is never removed: the `Created`
//! change of the namespace supersedes it. Thus a damaged frame loses only one change and never makes a partition look
//! like a leftover. [`orphans`] decides what happens to partitions without a namespace.

mod log_loss;
#[cfg(test)]
mod log_loss_tests;
mod orphans;
#[cfg(test)]
mod orphans_tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::{RecordRef, records};
use thalweg_log::{Durability, Frame, Log, LogError, Micros, Offset, PartitionId, ReadOptions, Records, WriteBatch};

use crate::error::{EventsError, Result};
use crate::store::{NewToken, Scopes, TokenInfo};
use crate::token::{TokenDigest, is_token_expired};

const FIRST: u32 = PartitionId::EVENTS;
const CATALOG: PartitionId = PartitionId::new(FIRST, 0);
/// Size of a read.
const READ: usize = 1 << 20;

/// The partition of a namespace. Numbers are never reused.
pub(crate) fn partition(number: u32) -> PartitionId {
    PartitionId::new(FIRST + number, 0)
}

/// Like `partition`, for a number that may be out of range.
pub(crate) fn checked_partition(number: u32) -> Option<PartitionId> {
    let queue = FIRST.checked_add(number).filter(|_| number > 0)?;
    let id = PartitionId::new(queue, 0);
    number_of(id).map(|_| id)
}

/// The number of a namespace's partition, or 0 for the catalog; `None` for a partition of another component.
pub(crate) fn number_of(id: PartitionId) -> Option<u32> {
    let is_own = (FIRST..PartitionId::MQTT).contains(&id.queue);
    is_own.then(|| id.queue - FIRST)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum CatalogChange {
    /// The partitions use features that earlier formats do not have, so that earlier versions refuse them. Format 1
    /// does not write this.
    Format {
        version: u32,
    },
    /// A partition with this number is about to be created. Earlier versions do not write this.
    Unfinished {
        number: u32,
    },
    Created(CatalogEntry),
    Removed {
        number: u32,
    },
    Admitted {
        number: u32,
        token: TokenEntry,
    },
    Revoked {
        number: u32,
        token: String,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CatalogEntry {
    /// Starts at 1.
    pub number: u32,
    pub name: String,
    pub description: String,
    pub metadata: Option<String>,
    pub created_at: Micros,
    pub tokens: Vec<TokenEntry>,
}

/// A valid token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TokenEntry {
    pub id: String,
    digest: [u8; 32],
    pub scopes: Scopes,
    pub description: String,
    pub created_at: Micros,
    pub expires_at: Option<Micros>,
}

impl TokenEntry {
    pub fn new(token: NewToken, created_at: Micros) -> TokenEntry {
        let digest = *token.digest.as_bytes();
        TokenEntry {
            // The digest of a random token is random too, and these bytes do not suffice to find the token.
            id: digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect(),
            digest,
            scopes: token.scopes,
            description: token.description,
            created_at,
            expires_at: token.expires_at,
        }
    }

    pub fn matches(&self, digest: &TokenDigest) -> bool {
        TokenDigest::from_bytes(self.digest).matches(digest)
    }

    pub fn has_expired(&self, now: Micros) -> bool {
        is_token_expired(self.expires_at, now)
    }

    pub fn info(&self) -> TokenInfo {
        TokenInfo {
            id: self.id.clone(),
            scopes: self.scopes,
            description: self.description.clone(),
            created_at: self.created_at,
            expires_at: self.expires_at,
        }
    }
}

/// The number of expired tokens that are kept per namespace. If a clock was set ahead by mistake, they become valid
/// again when it is corrected.
pub(crate) const EXPIRED_KEPT: usize = 100;

/// Drops the other expired tokens, oldest first, because clients may keep creating tokens that live for minutes.
pub(crate) fn forget_expired<T>(tokens: &mut Vec<T>, now: Micros, admitted: impl Fn(&T) -> &TokenEntry) {
    let ended = |token: &T| admitted(token).expires_at.filter(|end| *end <= now);
    let mut ends: Vec<Micros> = tokens.iter().filter_map(ended).collect();
    let surplus = ends.len().saturating_sub(EXPIRED_KEPT);
    ends.sort_unstable();
    ends.truncate(surplus);
    let Some(last) = ends.last().copied() else { return };
    // Of those that expired at the same moment, drop those that were created first.
    let mut of_last = ends.iter().filter(|end| **end == last).count();
    tokens.retain(|token| match ended(token) {
        Some(end) if end == last && of_last > 0 => {
            of_last -= 1;
            false
        }
        Some(end) => end >= last,
        None => true,
    });
}

pub(crate) struct Catalog {
    log: Arc<dyn Log>,
    durability: Durability,
    /// The largest number ever assigned.
    last: u32,
    format: u32,
}

/// The format with scavenge marks, and with deleted streams that have no messages left.
pub(crate) const MARKS: u32 = 2;
/// The format with documents that name a clearing which a damaged log has lost.
pub(crate) const CLEARS: u32 = 3;

/// The namespaces in a log.
#[derive(Default)]
pub(crate) struct CatalogState {
    pub there: BTreeMap<u32, CatalogEntry>,
    /// Deleted namespaces whose partitions still exist for programs that read the log themselves.
    pub deleted: BTreeMap<u32, CatalogEntry>,
    /// All numbers with a `Removed` change, including those whose `Created` change is lost.
    removed: BTreeSet<u32>,
    /// Numbers that were marked before their partitions were created.
    unfinished: BTreeSet<u32>,
    /// Changes before this offset were lost and given up; 0 if none were.
    lost_before: Offset,
    format: u32,
}

impl CatalogState {
    /// Whether namespaces may have scavenge marks.
    pub fn may_have_marks(&self) -> bool {
        self.format >= MARKS || self.lost_before > 0
    }
}

/// A start rewrites the catalog when it has more than this number of obsolete changes.
const CHANGES_MAX: usize = if cfg!(test) { 20 } else { 10_000 };

/// Options for opening the catalog.
#[derive(Default)]
pub(crate) struct CatalogOptions {
    pub durability: Durability,
    pub keep_deleted: bool,
    /// For each namespace number, the next log offset that its index expects.
    pub indexed: Vec<(u32, Offset)>,
    /// Give up what the log has lost.
    pub accept_loss: bool,
    pub now: Micros,
}

impl Catalog {
    /// Opens the catalog and returns the existing namespaces, and the deleted ones if they are kept. Blocks.
    pub async fn open(log: Arc<dyn Log>, options: CatalogOptions) -> Result<(Catalog, CatalogState)> {
        let CatalogOptions {
            durability,
            keep_deleted,
            now,
            ..
        } = options;
        let mut read = match log.partitions().contains(&CATALOG) {
            true => CatalogLog::read(log.as_ref())?,
            false => CatalogLog::default(),
        };
        if read.known.format > CLEARS {
            return Err(EventsError::Damaged(format!(
                "namespaces have format {}, and this version knows formats up to {CLEARS}; use a newer one",
                read.known.format
            )));
        }
        // Before anything is changed.
        let skipped_to = read.settle_lost(log.as_ref(), &options).await?;
        let CatalogLog {
            mut known,
            last,
            changes,
            end,
        } = read;
        match log.partitions().contains(&CATALOG) {
            true => promise(log.as_ref(), CATALOG, durability).await?,
            false => log.create(CATALOG, durability).await?,
        }
        for named in known.there.values_mut() {
            forget_expired(&mut named.tokens, now, |token| token);
        }
        let format = known.format;
        let mut catalog = Catalog {
            log,
            durability,
            last,
            format,
        };
        if let Some(number) = skipped_to {
            catalog.store(&CatalogChange::Removed { number }, now).await?;
        }
        catalog.settle_orphans(&mut known, keep_deleted, now).await?;
        if changes > CHANGES_MAX + 2 * (known.there.len() + known.deleted.len()) {
            catalog.rewrite(&known, end).await?;
        }
        for number in known.there.keys() {
            promise(catalog.log.as_ref(), partition(*number), durability).await?;
        }
        Ok((catalog, known))
    }

    /// Rewrites the changes before `end` in a shorter form. After a crash in between, some changes are there twice,
    /// which is harmless.
    async fn rewrite(&mut self, known: &CatalogState, end: Offset) -> Result<()> {
        // The `Format` change may have been lost, and after the rewrite nothing would indicate that.
        let version = if known.lost_before > 0 { CLEARS } else { known.format };
        if version > 0 {
            self.store(&CatalogChange::Format { version }, 0).await?;
        }
        for named in known.there.values().chain(known.deleted.values()) {
            self.store(&CatalogChange::Created(named.clone()), named.created_at)
                .await?;
        }
        for number in known.deleted.keys().copied() {
            self.store(&CatalogChange::Removed { number }, 0).await?;
        }
        // Keep the highest assigned number, because indexes and files that refer to it may live longer.
        if !known.there.contains_key(&self.last) && !known.deleted.contains_key(&self.last) {
            self.store(&CatalogChange::Removed { number: self.last }, 0).await?;
        }
        Ok(self.log.trim(CATALOG, end)?)
    }

    /// Records that partitions are about to use features of this format.
    pub async fn needs(&mut self, version: u32, now: Micros) -> Result<()> {
        if self.format < version {
            self.store(&CatalogChange::Format { version }, now).await?;
            self.format = version;
        }
        Ok(())
    }

    /// Stores a change. Durable when it returns.
    pub async fn store(&mut self, change: &CatalogChange, now: Micros) -> Result<()> {
        let value = serde_json::to_vec(change).map_err(|error| EventsError::Damaged(error.to_string()))?;
        let mut records = Records::new();
        records.push(&RecordRef::of(now, &value))?;
        // Accepted on a full disk too, because removing a namespace frees space.
        let unit = WriteBatch::default().and_of(FrameKind::State, CATALOG, records);
        self.log.append(unit).await?;
        Ok(())
    }

    /// Creates a partition for a new namespace. The mark tells the next start that the partition belongs to nobody
    /// until the namespace is stored.
    pub async fn new_partition(&mut self, now: Micros) -> Result<u32> {
        loop {
            let number = self.last + 1;
            self.store(&CatalogChange::Unfinished { number }, now).await?;
            let created = self.log.create(partition(number), self.durability).await;
            match created {
                Ok(()) => {
                    self.last = number;
                    return Ok(number);
                }
                // Left behind by a crash during the creation of a namespace.
                Err(LogError::PartitionExists(_)) => self.last = number,
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub async fn remove_partition(&self, number: u32) -> Result<()> {
        Ok(self.log.remove(partition(number)).await?)
    }
}

/// The content of the catalog partition.
#[derive(Default)]
struct CatalogLog {
    known: CatalogState,
    last: u32,
    changes: usize,
    /// One past the last change.
    end: Offset,
}

impl CatalogLog {
    fn read(log: &dyn Log) -> Result<CatalogLog> {
        let mut read = CatalogLog {
            end: log.bounds(CATALOG)?.first,
            ..CatalogLog::default()
        };
        loop {
            let want = ReadOptions {
                bytes: READ,
                synced: false,
            };
            let frames = match log.read(CATALOG, read.end, want) {
                // Given up by a recovery that skipped damage.
                Err(LogError::Gap { to, .. }) => {
                    read.lose(to.max(read.end + 1));
                    continue;
                }
                frames => frames?,
            };
            if frames.is_empty() {
                return Ok(read);
            }
            for frame in &frames {
                // Changes are never removed from the middle, so missing offsets were lost too.
                if frame.header.base > read.end {
                    read.lose(frame.header.base);
                }
                match frame.header.kind {
                    FrameKind::Gap => read.lose(frame.header.next()),
                    _ => read.apply_frame(frame)?,
                }
                read.end = frame.header.next();
            }
        }
    }

    /// Records that the changes up to `to` were lost.
    fn lose(&mut self, to: Offset) {
        tracing::error!(
            from = self.end,
            to,
            "the log lost changes of namespaces and tokens, in damaged data that was given up; tokens that they \
             revoked are valid again, and tokens that they created are not: check them with token.list, and create \
             them again with token.create"
        );
        self.end = to;
        self.known.lost_before = to;
    }

    fn apply_frame(&mut self, frame: &Frame) -> Result<()> {
        let base = frame.header.base;
        for record in records(&frame.body) {
            let change = record.ok().and_then(|record| serde_json::from_slice(record.value).ok());
            let change = change.ok_or_else(|| {
                EventsError::Damaged(format!(
                    "a change of namespaces at offset {base} has a form that this version does not know"
                ))
            })?;
            self.last = self.last.max(apply(&mut self.known, change));
            self.changes += 1;
        }
        Ok(())
    }
}

/// Applies the durability of this start to an existing partition, before anything is appended.
async fn promise(log: &dyn Log, id: PartitionId, durability: Durability) -> Result<()> {
    if log.durability(id)? != durability {
        log.set_durability(id, durability).await?;
    }
    Ok(())
}

/// Applies a change and returns the namespace number in it.
fn apply(known: &mut CatalogState, change: CatalogChange) -> u32 {
    match change {
        CatalogChange::Format { version } => {
            known.format = known.format.max(version);
            0
        }
        CatalogChange::Unfinished { number } => {
            known.unfinished.insert(number);
            number
        }
        CatalogChange::Created(named) => {
            let number = named.number;
            // Numbers are unique, so this is a change that a rewrite repeated before a crash prevented it from
            // repeating the deletion.
            if known.removed.contains(&number) {
                known.deleted.insert(number, named);
            } else {
                known.there.insert(number, named);
            }
            number
        }
        CatalogChange::Removed { number } => {
            known.removed.insert(number);
            known.deleted.extend(known.there.remove_entry(&number));
            number
        }
        CatalogChange::Admitted { number, token } => {
            if let Some(named) = known.there.get_mut(&number) {
                named.tokens.retain(|other| other.id != token.id);
                named.tokens.push(token);
            }
            number
        }
        CatalogChange::Revoked { number, token } => {
            if let Some(named) = known.there.get_mut(&number) {
                named.tokens.retain(|other| other.id != token);
            }
            number
        }
    }
}
