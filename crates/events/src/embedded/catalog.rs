//! Which namespaces and tokens there are: changes in a partition of the log, each in a frame of its own, read at the start.
//!
//! A number is marked as unfinished before its partition is made, and nothing takes that mark back: the namespace's own change
//! does, by being there. So a damaged frame loses one change and no other, and never makes a partition look like a leftover.
//! What becomes of partitions that no namespace has is decided in [`orphans`].

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
use crate::token::TokenDigest;

const FIRST: u32 = PartitionId::EVENTS;
const CATALOG: PartitionId = PartitionId::new(FIRST, 0);
/// Bytes read at once.
const READ: usize = 1 << 20;

/// The partition of a namespace. A number is never used again.
pub(crate) fn partition(number: u32) -> PartitionId {
    PartitionId::new(FIRST + number, 0)
}

/// The same, if the number is one that a namespace may have.
pub(crate) fn checked_partition(number: u32) -> Option<PartitionId> {
    let queue = FIRST.checked_add(number).filter(|_| number > 0)?;
    Some(PartitionId::new(queue, 0))
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum CatalogChange {
    /// Partitions hold what earlier formats did not have, so that an earlier version refuses them. Format 1 does not say so.
    Format {
        version: u32,
    },
    /// A partition is about to be made under this number. Earlier versions do not write it.
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
    /// From 1.
    pub number: u32,
    pub name: String,
    pub description: String,
    pub metadata: Option<String>,
    pub created_at: Micros,
    pub tokens: Vec<TokenEntry>,
}

/// A token that is valid.
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
            // Chance, as the digest is of it, and not enough of that to find the token.
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
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
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

/// Of the tokens of a namespace that have ended, so many are known: should a clock have been set ahead by mistake, they are valid
/// again when it is right.
pub(crate) const EXPIRED_KEPT: usize = 100;

/// Forgets the others of those that have ended, the first ones first: tokens that live for minutes are made without an end.
pub(crate) fn forget_expired<T>(tokens: &mut Vec<T>, now: Micros, admitted: impl Fn(&T) -> &TokenEntry) {
    let ended = |token: &T| admitted(token).expires_at.filter(|end| *end <= now);
    let mut ends: Vec<Micros> = tokens.iter().filter_map(ended).collect();
    let surplus = ends.len().saturating_sub(EXPIRED_KEPT);
    ends.sort_unstable();
    ends.truncate(surplus);
    let Some(last) = ends.last().copied() else { return };
    // Of those that ended at the same moment, those that were made first.
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
    /// The largest number that was ever given.
    last: u32,
    format: u32,
}

/// With marks of what was scavenged, and deleted streams of which no message is left.
pub(crate) const MARKS: u32 = 2;
/// With documents that say which clear a damaged log has lost.
pub(crate) const CLEARS: u32 = 3;

/// The namespaces that a log has.
#[derive(Default)]
pub(crate) struct CatalogState {
    pub there: BTreeMap<u32, CatalogEntry>,
    /// Deleted, and their partitions are still there for whoever reads the log itself.
    pub deleted: BTreeMap<u32, CatalogEntry>,
    /// All numbers that are said to be removed, also those of which damage has taken what they were.
    removed: BTreeSet<u32>,
    /// Numbers that were marked before their partitions were made.
    unfinished: BTreeSet<u32>,
    /// Changes before this offset were lost with damage that was given up; 0: none was.
    lost_before: Offset,
    format: u32,
}

impl CatalogState {
    /// Whether namespaces may have marks of what was scavenged.
    pub fn may_have_marks(&self) -> bool {
        self.format >= MARKS || self.lost_before > 0
    }
}

/// So many changes that stand for nothing any more are left out at a start.
const CHANGES_MAX: usize = if cfg!(test) { 20 } else { 10_000 };

/// How a catalogue is opened.
#[derive(Default)]
pub(crate) struct CatalogOptions {
    pub durability: Durability,
    pub keep_deleted: bool,
    /// By number of a namespace, the offset that its indexes expect next in the log.
    pub indexed: Vec<(u32, Offset)>,
    /// What the log has lost is given up.
    pub accept_loss: bool,
    pub now: Micros,
}

impl Catalog {
    /// With the namespaces that there are, and those that are deleted if they are kept. Blocks.
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

    /// What stands before `end` is said again, shorter. A crash in between leaves the same, or a part of it, said twice.
    async fn rewrite(&mut self, known: &CatalogState, end: Offset) -> Result<()> {
        // What said so may be among what was lost, of which nothing tells when this is done.
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
        // That a number was given stays known: of whom it was is said in indexes and files that live longer.
        if !known.there.contains_key(&self.last) && !known.deleted.contains_key(&self.last) {
            self.store(&CatalogChange::Removed { number: self.last }, 0).await?;
        }
        Ok(self.log.trim(CATALOG, end)?)
    }

    /// Partitions are about to hold what only this format has.
    pub async fn needs(&mut self, version: u32, now: Micros) -> Result<()> {
        if self.format < version {
            self.store(&CatalogChange::Format { version }, now).await?;
            self.format = version;
        }
        Ok(())
    }

    /// Durable when it returns.
    pub async fn store(&mut self, change: &CatalogChange, now: Micros) -> Result<()> {
        let value = serde_json::to_vec(change).map_err(|error| EventsError::Damaged(error.to_string()))?;
        let mut records = Records::new();
        records.push(&RecordRef::of(now, &value))?;
        // Also while the disk is full: what removes a namespace frees space.
        let unit = WriteBatch::default().and_of(FrameKind::State, CATALOG, records);
        self.log.append(unit, None).await?;
        Ok(())
    }

    /// A partition for a namespace that is to be made. Until that is stored it is nobody's, which the mark says to the next start.
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
                // Of a namespace that a crash has ended before it was made.
                Err(LogError::PartitionExists(_)) => self.last = number,
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub async fn remove_partition(&self, number: u32) -> Result<()> {
        Ok(self.log.remove(partition(number)).await?)
    }
}

/// What the catalogue's partition says.
#[derive(Default)]
struct CatalogLog {
    known: CatalogState,
    last: u32,
    changes: usize,
    /// Behind the last change.
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
                // Given up by a recovery that was told to skip what is damaged.
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
                // Nothing is ever left out in between, so what is not there was lost, too.
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

    /// The changes before an offset, from where it was read to, were lost.
    fn lose(&mut self, to: Offset) {
        tracing::error!(
            from = self.end,
            to,
            "changes of namespaces and tokens were lost with damage that was given up: a token that was revoked then is valid \
             again, one that was made then is not (token.list, token.create)"
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
                    "a change of namespaces at offset {base} is in no form that this version knows"
                ))
            })?;
            self.last = self.last.max(apply(&mut self.known, change));
            self.changes += 1;
        }
        Ok(())
    }
}

/// What a start asks for holds for all that is there. Nobody appends yet.
async fn promise(log: &dyn Log, id: PartitionId, durability: Durability) -> Result<()> {
    if log.durability(id)? != durability {
        log.set_durability(id, durability).await?;
    }
    Ok(())
}

/// Returns the number that it is about.
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
            // Numbers are given once: it is what a rewrite says again that a crash cut off before it said that it is deleted.
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
