//! Several disks as one log. Each disk has its own files and writer, and each partition lives on one disk.
//!
//! A new partition goes to the disk with the least data, or to the disk of the partitions that it is appended to
//! together with. Its location is not stored, because each disk knows its own partitions. Which disks belong together
//! must be stored, because an unmounted disk must not look like a new one: each disk stores in a partition of its own
//! ([`MEMBER`]) its number and the number of disks, and the log ids of the disks derive from each other.
//!
//! The part of a unit on one disk is stored atomically; a unit across several disks is not. Messages are stored first
//! on all disks, and state, which may settle messages, only afterwards. A crash in between repeats messages and loses
//! none.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use parking_lot::RwLock;

use crate::clock::{Clock, LogClock};
use crate::contract::{BoxFuture, Log, LogCaps, ReadOptions};
use crate::disk::Disk;
use crate::durability::Durability;
use crate::embedded::{AppendReceipt, EmbeddedLog};
use crate::error::{LogError, Result};
use crate::file;
use crate::file_pool::RollListener;
use crate::format::frame::{FrameHeader, FrameKind};
use crate::format::record::{RecordRef, records};
use crate::ids::{Micros, Offset, PartitionId};
use crate::maintenance::SCRUBBED;
use crate::open::{self, InspectedDisk};
use crate::options::LogOptions;
use crate::partition::{Frame, Partition, PartitionBounds, PartitionListener};
use crate::records::{Records, WriteBatch};
use crate::segment::{RecordFilter, RecordVisitor};
use crate::status::LogStatus;
use crate::superblock;
use crate::writer::core::Offsets;

/// The partition on each disk that stores its number and the number of disks.
const MEMBER: PartitionId = PartitionId::new(0, 1);

const DISKS_MAX: usize = 64;

/// Spreads the ids of a log's disks. The first disk has the id of the log.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Partitions with the same key live on one disk.
pub type ColocationKey = fn(PartitionId) -> PartitionId;

/// A log on one or more disks.
pub struct MultiDiskLog {
    id: u64,
    logs: Vec<Arc<EmbeddedLog>>,
    together: ColocationKey,
    clock: Arc<LogClock>,
    places: RwLock<PartitionPlacement>,
}

#[derive(Default)]
struct PartitionPlacement {
    disks: HashMap<PartitionId, usize>,
    /// For each [`ColocationKey`]: the disk and the number of partitions.
    homes: HashMap<PartitionId, (usize, usize)>,
    /// The number of partitions on each disk.
    counts: Vec<usize>,
}

/// The number of a disk and the total number of disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DiskMembership {
    this: usize,
    of: usize,
}

/// A disk that already has a log.
struct UsedDisk {
    at: usize,
    id: u64,
    looked: InspectedDisk,
    member: Option<DiskMembership>,
}

fn id_of(log: u64, disk: usize) -> u64 {
    log ^ (disk as u64).wrapping_mul(STRIDE)
}

impl MultiDiskLog {
    /// Opens a log on one or more disks, in any order. Empty disks are added to the log; every disk that belongs to it
    /// must be present. `log_id` names a new log. Blocks while it reads what is stored.
    pub async fn open(
        disks: Vec<(Arc<dyn Disk>, LogOptions)>,
        log_id: u64,
        together: ColocationKey,
    ) -> Result<MultiDiskLog> {
        let began = thalweg_kit::clock::now();
        // No disk is written before all of them are identified.
        let known = look_at_all(&disks, log_id)?;
        let folders: Vec<&str> = disks.iter().map(|(_, options)| options.folder.as_str()).collect();
        let id = set_of(&known).unwrap_or(log_id);
        let numbers = numbers(&known, id, &folders)?;
        is_each_in_one(&known, &folders)?;
        let mut logs: Vec<(usize, Arc<EmbeddedLog>, Option<DiskMembership>)> = Vec::with_capacity(disks.len());
        for (known, number) in known.into_iter().zip(numbers) {
            let Some((disk, options)) = disks.get(known.at) else {
                continue;
            };
            let opened = open::go_on(disk.clone(), known.looked, known.id, options)?;
            let log = EmbeddedLog::start(opened, began, options)?;
            logs.push((number, Arc::new(log), known.member));
        }
        let used: Vec<String> = logs.iter().map(|(_, log, _)| log.folder().to_owned()).collect();
        for (disk, options) in disks.iter().filter(|(_, options)| !used.contains(&options.folder)) {
            let number = logs.len();
            let log = EmbeddedLog::open(disk.clone(), id_of(id, number), options)?;
            logs.push((number, Arc::new(log), None));
        }
        logs.sort_by_key(|(number, _, _)| *number);
        let of = logs.len();
        if of > 1 {
            // One after the other, so that at any moment every disk that is recorded as a member exists.
            for (this, log, member) in logs.iter_mut().filter(|(_, _, member)| member.is_none()) {
                *member = Some(
                    write_member(
                        log,
                        DiskMembership {
                            this: *this,
                            of: *this + 1,
                        },
                    )
                    .await?,
                );
            }
            for (this, log, member) in &logs {
                let wanted = DiskMembership { this: *this, of };
                if *member != Some(wanted) {
                    write_member(log, wanted).await?;
                }
            }
        }
        Ok(MultiDiskLog::of(
            id,
            logs.into_iter().map(|(_, log, _)| log).collect(),
            together,
        ))
    }

    fn of(id: u64, logs: Vec<Arc<EmbeddedLog>>, together: ColocationKey) -> MultiDiskLog {
        let mut places = PartitionPlacement {
            counts: vec![0; logs.len()],
            ..PartitionPlacement::default()
        };
        for (at, log) in logs.iter().enumerate() {
            for partition in log.partitions().into_iter().filter(|id| *id != MEMBER) {
                places.add(partition, together(partition), at);
            }
        }
        let clock = logs.first().map(|log| log.clock()).unwrap_or_default();
        MultiDiskLog {
            id,
            logs,
            together,
            clock,
            places: RwLock::new(places),
        }
    }

    /// The logs of all disks.
    pub fn logs(&self) -> &[Arc<EmbeddedLog>] {
        &self.logs
    }

    /// The log for callers. With a single disk, that disk's log is used directly.
    pub fn into_log(self: Arc<MultiDiskLog>) -> Arc<dyn Log> {
        match self.logs.as_slice() {
            [one] => one.clone(),
            _ => self,
        }
    }

    /// The log that has a partition.
    fn log_of(&self, id: PartitionId) -> Result<&Arc<EmbeddedLog>> {
        let place = self.place_of(id)?;
        self.logs.get(place).ok_or(LogError::NoPartition(id))
    }

    fn place_of(&self, id: PartitionId) -> Result<usize> {
        let places = self.places.read();
        places.disks.get(&id).copied().ok_or(LogError::NoPartition(id))
    }

    /// Creates partitions, on each disk all or none. If a disk refuses, its partitions do not exist, but those on other
    /// disks stay.
    async fn create_all_somewhere(&self, ids: &[PartitionId], durability: Durability) -> Result<()> {
        let mut by_disk: Vec<Vec<PartitionId>> = vec![Vec::new(); self.logs.len()];
        {
            let mut places = self.places.write();
            if let Some(known) = ids.iter().find(|id| **id == MEMBER || places.disks.contains_key(id)) {
                return Err(LogError::PartitionExists(*known));
            }
            for id in ids {
                let home = (self.together)(*id);
                let at = match places.homes.get(&home) {
                    Some((at, _)) => *at,
                    None => self.emptiest(&places),
                };
                places.add(*id, home, at);
                if let Some(own) = by_disk.get_mut(at) {
                    own.push(*id);
                }
            }
        }
        let wanted = || self.logs.iter().zip(&by_disk).filter(|(_, ids)| !ids.is_empty());
        let creations = wanted().map(|(log, ids)| Box::pin(log.create_all(ids, durability)) as BoxFuture<'_, _>);
        let created: Vec<Result<()>> = all(creations.collect()).await;
        for ((_, ids), _) in wanted().zip(&created).filter(|(_, created)| created.is_err()) {
            ids.iter().for_each(|id| self.forget(*id));
        }
        created.into_iter().collect()
    }

    /// Removes partitions, on each disk in this order.
    async fn remove_all_anywhere(&self, ids: &[PartitionId]) -> Result<()> {
        let by_disk = self.by_disk(ids)?;
        let removals = self.logs.iter().zip(&by_disk);
        let removals = removals.map(|(log, ids)| Box::pin(log.remove_all(ids)) as BoxFuture<'_, _>);
        let removed: Vec<Result<()>> = all(removals.collect()).await;
        // A failed disk may have removed some of them.
        for (log, ids) in self.logs.iter().zip(&by_disk) {
            let gone = ids.iter().filter(|id| log.bounds(**id).is_err());
            gone.for_each(|id| self.forget(*id));
        }
        removed.into_iter().collect()
    }

    fn by_disk(&self, ids: &[PartitionId]) -> Result<Vec<Vec<PartitionId>>> {
        let mut by_disk: Vec<Vec<PartitionId>> = vec![Vec::new(); self.logs.len()];
        for id in ids {
            if let Some(own) = by_disk.get_mut(self.place_of(*id)?) {
                own.push(*id);
            }
        }
        Ok(by_disk)
    }

    fn emptiest(&self, places: &PartitionPlacement) -> usize {
        let load = |at: &usize| {
            let bytes = self.logs.get(*at).map_or(u64::MAX, |log| log.stored_bytes());
            (bytes, places.counts.get(*at).copied(), *at)
        };
        (0..self.logs.len()).min_by_key(load).unwrap_or_default()
    }

    fn forget(&self, id: PartitionId) {
        self.places.write().remove(id, (self.together)(id));
    }

    async fn append_anywhere(&self, unit: WriteBatch) -> Result<AppendReceipt> {
        let mut at = Vec::with_capacity(unit.parts.len());
        for (id, _, _) in &unit.parts {
            at.push(self.place_of(*id)?);
        }
        let first = at.first().copied().unwrap_or_default();
        if at.iter().all(|place| *place == first)
            && let Some(log) = self.logs.get(first)
        {
            return log.append(unit).await;
        }
        // If the unit will be refused for a foreseeable reason, it is refused as a whole.
        unit.check()?;
        self.may_append(&unit, &at)?;
        let mut offsets: Offsets = at.iter().map(|_| 0).collect();
        let mut durability = Durability::Fsync;
        let mut stored = false;
        for pieces in split(unit, &at) {
            let appends = pieces
                .iter()
                .filter_map(|piece| Some((self.logs.get(piece.disk)?, piece)))
                .map(|(log, piece)| Box::pin(log.append(piece.unit.clone())) as BoxFuture<'_, _>);
            let answers = all(appends.collect()).await;
            stored |= answers.iter().any(Result::is_ok);
            for (answer, piece) in answers.into_iter().zip(&pieces) {
                let appended: AppendReceipt = answer.map_err(|cause| match stored {
                    true => LogError::Partly { cause: Arc::new(cause) },
                    false => cause,
                })?;
                durability = durability.weaker(appended.durability);
                for (part, offset) in piece.parts.iter().zip(appended.offsets) {
                    if let Some(place) = offsets.get_mut(*part) {
                        *place = offset;
                    }
                }
            }
        }
        Ok(AppendReceipt { offsets, durability })
    }

    /// Whether all disks of a unit would accept it now.
    fn may_append(&self, unit: &WriteBatch, at: &[usize]) -> Result<()> {
        for ((_, kind, _), place) in unit.parts.iter().zip(at) {
            let Some(log) = self.logs.get(*place) else { continue };
            log.takes(*kind)?;
        }
        Ok(())
    }

    /// Flushes the partitions on each disk.
    async fn flush_all(&self, ids: &[PartitionId]) -> Result<()> {
        let by_disk = self.by_disk(ids)?;
        let flushes = self.logs.iter().zip(&by_disk).filter(|(_, ids)| !ids.is_empty());
        let flushes = flushes.map(|(log, ids)| Box::pin(log.flush(ids)) as BoxFuture<'_, _>);
        all(flushes.collect()).await.into_iter().collect()
    }
}

impl PartitionPlacement {
    fn add(&mut self, id: PartitionId, home: PartitionId, at: usize) {
        self.disks.insert(id, at);
        self.homes.entry(home).or_insert((at, 0)).1 += 1;
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
    }

    fn remove(&mut self, id: PartitionId, home: PartitionId) {
        let Some(at) = self.disks.remove(&id) else { return };
        if let Some(count) = self.counts.get_mut(at) {
            *count = count.saturating_sub(1);
        }
        if let Some((_, partitions)) = self.homes.get_mut(&home) {
            *partitions = partitions.saturating_sub(1);
            if *partitions == 0 {
                self.homes.remove(&home);
            }
        }
    }
}

/// The part of a unit that goes to one disk, and the indexes of its parts.
struct DiskBatch {
    disk: usize,
    unit: WriteBatch,
    parts: Vec<usize>,
}

/// Splits a unit into steps that must be stored one after the other; the pieces of one step are stored concurrently.
/// State joins the messages if all of them are on the same disk.
fn split(unit: WriteBatch, at: &[usize]) -> Vec<Vec<DiskBatch>> {
    let data_on: Vec<usize> = unit
        .parts
        .iter()
        .zip(at)
        .filter_map(|((_, kind, _), disk)| (*kind == FrameKind::Data).then_some(*disk))
        .collect();
    let together = data_on
        .first()
        .copied()
        .filter(|first| data_on.iter().all(|disk| disk == first));
    let mut steps: Vec<Vec<DiskBatch>> = vec![Vec::new(), Vec::new()];
    let frees = unit.frees;
    for (n, ((id, kind, records), disk)) in unit.parts.into_iter().zip(at).enumerate() {
        let step = usize::from(kind != FrameKind::Data && Some(*disk) != together);
        let Some(pieces) = steps.get_mut(step) else { continue };
        let at = match pieces.iter().position(|piece: &DiskBatch| piece.disk == *disk) {
            Some(at) => at,
            None => {
                pieces.push(DiskBatch {
                    disk: *disk,
                    unit: WriteBatch {
                        frees,
                        ..WriteBatch::default()
                    },
                    parts: Vec::new(),
                });
                pieces.len() - 1
            }
        };
        if let Some(piece) = pieces.get_mut(at) {
            piece.unit.parts.push((id, kind, records));
            piece.parts.push(n);
        }
    }
    steps
}

/// Waits for all futures concurrently.
pub(crate) async fn all<T>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut done: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut pending = false;
        for (future, done) in futures.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
            match future.as_mut().poll(context) {
                Poll::Ready(value) => *done = Some(value),
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Inspects the disks that have a log. A repair, if enabled, runs only when no other error prevents the start.
fn look_at_all(disks: &[(Arc<dyn Disk>, LogOptions)], log_id: u64) -> Result<Vec<UsedDisk>> {
    let mut used = Vec::with_capacity(disks.len());
    for (at, (disk, options)) in disks.iter().enumerate() {
        if !is_used(disk.as_ref(), options)? {
            continue;
        }
        used.push(match open::look(disk.as_ref(), options) {
            Err(error) if open::is_passed(&error, options) => (at, None),
            looked => (at, Some(looked?)),
        });
    }
    let mut known = Vec::with_capacity(used.len());
    for (at, looked) in used {
        let Some((disk, options)) = disks.get(at) else { continue };
        let looked = match looked {
            Some(looked) => looked,
            None => open::look_or_repair(disk.as_ref(), options)?,
        };
        if looked.has_blocks() {
            let member = read_member(&looked.partitions)?;
            let id = looked.log_id().unwrap_or(log_id);
            known.push(UsedDisk { at, id, looked, member });
        }
    }
    Ok(known)
}

fn is_used(disk: &dyn Disk, options: &LogOptions) -> Result<bool> {
    let names = disk.names().map_err(LogError::io("cannot list", &options.folder))?;
    let is_own = |name: &String| file::parse_name(name).is_some() || name == superblock::NAME;
    Ok(names.iter().any(is_own))
}

/// Checks that no partition is on two disks.
fn is_each_in_one(known: &[UsedDisk], folders: &[&str]) -> Result<()> {
    let mut places: HashMap<PartitionId, &str> = HashMap::new();
    for disk in known {
        let folder = folders.get(disk.at).copied().unwrap_or_default();
        let each = disk.looked.partitions.iter().map(|partition| partition.id);
        // Every disk has these partitions.
        for id in each.filter(|id| *id != MEMBER && *id != SCRUBBED) {
            if let Some(other) = places.insert(id, folder) {
                return Err(LogError::NotOurs {
                    folder: folder.to_owned(),
                    why: format!("partition {id} is in {other} too"),
                });
            }
        }
    }
    Ok(())
}

/// The id of the log to which the disks belong.
fn set_of(known: &[UsedDisk]) -> Option<u64> {
    let told = known.iter().find_map(|disk| Some((disk, disk.member?)));
    if let Some((disk, member)) = told {
        return Some(id_of(disk.id, member.this));
    }
    // A disk that was the only one, or the disks of a first start that was interrupted.
    let ids: Vec<u64> = known.iter().map(|disk| disk.id).collect();
    let is_first = |first: &&u64| ids.iter().all(|id| number_in(**first, *id).is_some());
    ids.iter().find(is_first).or(ids.first()).copied()
}

/// The number of the disk with this id.
fn number_in(log: u64, id: u64) -> Option<usize> {
    (0..DISKS_MAX).find(|disk| id_of(log, *disk) == id)
}

/// The numbers of the disks. Fails unless all disks of the log are present, and no others.
fn numbers(known: &[UsedDisk], id: u64, folders: &[&str]) -> Result<Vec<usize>> {
    let folder = |disk: &UsedDisk| folders.get(disk.at).copied().unwrap_or_default().to_owned();
    let mut numbers = Vec::with_capacity(known.len());
    for disk in known {
        let number = number_in(id, disk.id).ok_or_else(|| LogError::NotOurs {
            folder: folder(disk),
            why: "it belongs to another log than the folders before it".to_owned(),
        })?;
        if let Some(other) = numbers.iter().position(|other| *other == number) {
            let other = known.get(other).map(folder).unwrap_or_default();
            return Err(LogError::NotOurs {
                folder: folder(disk),
                why: format!("it is a copy of {other}"),
            });
        }
        numbers.push(number);
    }
    let told = known.iter().filter_map(|disk| Some(disk.member?.of)).max();
    let of = told.into_iter().chain(numbers.iter().map(|number| number + 1)).max();
    let of = of.unwrap_or_default();
    match (0..of).find(|number| !numbers.contains(number)) {
        Some(missing) => Err(LogError::DiskMissing {
            disk: missing + 1,
            of,
            folders: folders.join(", "),
        }),
        None => Ok(numbers),
    }
}

/// Reads the membership of a disk; `None` if it was the only disk.
fn read_member(partitions: &[Arc<Partition>]) -> Result<Option<DiskMembership>> {
    let Some(own) = partitions.iter().find(|partition| partition.id == MEMBER) else {
        return Ok(None);
    };
    let (mut member, mut from) = (None, own.bounds().first);
    loop {
        let frames = match own.read(from, 1 << 16) {
            // If the record is lost, the log id still identifies the disk.
            Err(LogError::Gap { to, .. }) => {
                from = to;
                continue;
            }
            frames => frames?,
        };
        let Some(last) = frames.last() else {
            return Ok(member);
        };
        from = last.header.next();
        for record in frames.iter().flat_map(|frame| records(&frame.body)) {
            member = record
                .ok()
                .and_then(|record| DiskMembership::parse(record.value))
                .or(member);
        }
    }
}

async fn write_member(log: &EmbeddedLog, member: DiskMembership) -> Result<DiskMembership> {
    if !log.partitions().contains(&MEMBER) {
        log.create(MEMBER, Durability::Fsync).await?;
    }
    let mut told = Records::new();
    told.push(&RecordRef::of(log.now(), member.text().as_bytes()))?;
    let appended = log
        .append(WriteBatch::default().and_of(FrameKind::State, MEMBER, told))
        .await?;
    log.trim(MEMBER, appended.offsets.first().copied().unwrap_or_default())?;
    Ok(member)
}

impl DiskMembership {
    fn text(self) -> String {
        format!("disk {} of {}", self.this, self.of)
    }

    fn parse(value: &[u8]) -> Option<DiskMembership> {
        let (this, of) = std::str::from_utf8(value)
            .ok()?
            .strip_prefix("disk ")?
            .split_once(" of ")?;
        let member = DiskMembership {
            this: this.parse().ok()?,
            of: of.parse().ok()?,
        };
        (member.this < member.of && member.of <= DISKS_MAX).then_some(member)
    }
}

/// Orders statuses by severity.
fn severity(status: &LogStatus) -> u8 {
    match status {
        LogStatus::Healthy => 0,
        LogStatus::Degraded(_) => 1,
        LogStatus::DiskFull(_) => 2,
        LogStatus::Poisoned(_) => 3,
    }
}

impl Log for MultiDiskLog {
    fn caps(&self) -> LogCaps {
        let one = self.logs.first().map(|log| Log::caps(log.as_ref()));
        LogCaps {
            durabilities: one.map_or(&[], |caps| caps.durabilities),
            atomic_units: self.logs.len() < 2,
            contiguous: true,
            rewrite: true,
            unit_bytes_max: one.map_or(0, |caps| caps.unit_bytes_max),
        }
    }

    /// The worst status of all disks.
    fn status(&self) -> LogStatus {
        let statuses = self.logs.iter().map(|log| EmbeddedLog::status(log));
        statuses.max_by_key(severity).unwrap_or(LogStatus::Healthy)
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn partitions(&self) -> Vec<PartitionId> {
        self.places.read().disks.keys().copied().collect()
    }

    fn bounds(&self, id: PartitionId) -> Result<PartitionBounds> {
        self.log_of(id)?.bounds(id)
    }

    fn bytes(&self, id: PartitionId, from: Offset, to: Offset) -> Result<u64> {
        self.log_of(id)?.bytes(id, from, to)
    }

    fn create(&self, id: PartitionId, durability: Durability) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.create_all_somewhere(&[id], durability).await })
    }

    fn set_durability(&self, id: PartitionId, durability: Durability) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.log_of(id)?.set_durability(id, durability).await })
    }

    fn durability(&self, id: PartitionId) -> Result<Durability> {
        Log::durability(self.log_of(id)?.as_ref(), id)
    }

    fn remove(&self, id: PartitionId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.remove_all_anywhere(&[id]).await })
    }

    fn create_all<'a>(&'a self, ids: &'a [PartitionId], durability: Durability) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.create_all_somewhere(ids, durability))
    }

    fn remove_all<'a>(&'a self, ids: &'a [PartitionId]) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.remove_all_anywhere(ids))
    }

    fn append(&self, unit: WriteBatch) -> BoxFuture<'_, Result<AppendReceipt>> {
        Box::pin(self.append_anywhere(unit))
    }

    fn journal(
        &self,
        id: PartitionId,
        kind: FrameKind,
        push: &mut dyn FnMut(&mut Records) -> Result<()>,
    ) -> Result<()> {
        self.log_of(id)?.journal_with(id, kind, push)
    }

    fn flush<'a>(&'a self, ids: &'a [PartitionId]) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.flush_all(ids))
    }

    fn read(&self, id: PartitionId, from: Offset, want: ReadOptions) -> Result<Vec<Frame>> {
        Log::read(self.log_of(id)?.as_ref(), id, from, want)
    }

    fn newest(&self, id: PartitionId, from: Offset, bytes: usize) -> Result<Option<Vec<Frame>>> {
        self.log_of(id)?.newest(id, from, bytes)
    }

    fn wait_for(&self, id: PartitionId, from: Offset) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.log_of(id)?.wait_for(id, from).await })
    }

    fn listen(&self, id: PartitionId, listener: Arc<dyn PartitionListener>) -> Result<()> {
        self.log_of(id)?.listen(id, listener)
    }

    fn on_roll(&self, told: Arc<RollListener>) {
        self.logs.iter().for_each(|log| log.on_roll(told.clone()));
    }

    fn offset_at(&self, id: PartitionId, time: Micros) -> Result<Offset> {
        self.log_of(id)?.offset_at(id, time)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    fn last_commit_time(&self) -> Micros {
        let times = self.logs.iter().map(|log| log.report().last_commit_time);
        times.max().unwrap_or_default()
    }

    fn frame_at(&self, id: PartitionId, offset: Offset) -> Result<Option<FrameHeader>> {
        self.log_of(id)?.frame_at(id, offset)
    }

    fn last_checkpoint(&self, id: PartitionId) -> Result<Option<Offset>> {
        self.log_of(id)?.last_checkpoint(id)
    }

    fn trim(&self, id: PartitionId, below: Offset) -> Result<()> {
        self.log_of(id)?.trim(id, below)
    }

    fn rewrite(&self, id: PartitionId, keep: &RecordFilter<'_>) -> Result<Offset> {
        self.log_of(id)?.rewrite(id, keep)
    }

    fn oldest_leftover(&self, id: PartitionId) -> Result<Option<Offset>> {
        self.log_of(id)?.oldest_leftover(id)
    }

    fn release_leftovers(&self, id: PartitionId, below: Offset) -> Result<()> {
        self.log_of(id)?.release_leftovers(id, below)
    }

    fn roll(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            for log in &self.logs {
                log.roll().await?;
            }
            Ok(())
        })
    }

    fn erase(&self) -> Result<()> {
        self.logs.iter().try_for_each(|log| log.erase())
    }

    fn scan(&self, id: PartitionId, from: Offset, to: Offset, show: &mut RecordVisitor<'_>) -> Result<()> {
        self.log_of(id)?.scan(id, from, to, show)
    }
}

#[cfg(test)]
mod tests;
