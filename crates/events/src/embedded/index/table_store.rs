//! The tables of all namespaces. The memtables are written as a table when they are large enough, and tables of similar
//! size are merged. The manifest names the tables and, for each namespace, the log offset up to which they are
//! complete, from where a start continues. Everything here can be rebuilt from the log.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use thalweg_log::disk::Disk;
use thalweg_log::{Micros, Offset};
use tokio::sync::Notify;

use super::super::memory_budget::MemoryBudget;
use super::keys::{self, KeySpace};
use super::memtable::Memtable;
use super::merge::{self, NamespaceRemovals, RemovalSet};
use super::table::{BlockCache, Io, Table, TableWriter, blocks};

/// This number of tables of one level are merged into one of the next level.
const TABLES_OF_LEVEL: usize = 4;
const MANIFEST: &str = "manifest";
const MANIFEST_NEW: &str = "manifest.new";
const VERSION: u32 = 1;
/// Appends wait while more log bytes than this are in no table.
const BEHIND_MAX: u64 = 256 << 20;

/// The state of a namespace beside its lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IndexState {
    /// Everything before this offset is indexed.
    pub next_offset: Offset,
    /// The largest global position assigned since the last clearing.
    pub last_global: u64,
    pub messages: u64,
    pub streams: u64,
    pub last_activity: Option<Micros>,
    /// Some messages were imported.
    pub has_imports: bool,
    /// Clearing generation, starting at 1.
    pub cleared: u32,
    /// Offset of the newest clearing: earlier messages are dead.
    pub cleared_at: Offset,
    /// Messages that scavenge marks before this offset name are in no list. Earlier versions wrote no marks.
    #[serde(default)]
    pub marks_followed: Offset,
}

impl IndexState {
    /// Identifies the set of messages since the last clearing. It is not the number of clearings, because scavenging
    /// forgets all but the last, so that a count would change when indexes are rebuilt.
    pub fn generation(&self) -> u64 {
        match self.cleared {
            0 | 1 => 0,
            _ => self.cleared_at + 1,
        }
    }

    pub fn leave_out(&mut self, gone: &NamespaceRemovals) {
        self.messages -= (gone.offsets.len() as u64).min(self.messages);
        let streams: i64 = gone.categories.values().map(|less| less.streams).sum();
        self.streams -= streams.unsigned_abs().min(self.streams);
        self.marks_followed = self.marks_followed.max(gone.marked_to);
    }
}

/// A memtable that is being written.
pub(crate) struct FrozenMemtable {
    pub mem: Memtable,
    /// Its messages can be removed from tables while it waits to be written.
    pub state: Mutex<IndexState>,
    /// The flush with which it is written; [`FrozenMemtable::WAITING`] until then.
    pub flush: AtomicU64,
    pub share: MemtableReservation,
}

impl FrozenMemtable {
    /// It is not in a table yet.
    pub const WAITING: u64 = u64::MAX;

    /// Whether it is in one of the tables.
    pub fn is_in(&self, tables: &SortedTableSet) -> bool {
        self.flush.load(Ordering::Acquire) <= tables.flushed
    }
}

/// The memory of an index and its log bytes that are in no table, counted in the store until released once.
pub(crate) struct MemtableReservation {
    table_store: Arc<TableStore>,
    mem_bytes: AtomicU64,
    log_bytes: AtomicU64,
}

impl MemtableReservation {
    pub fn new(table_store: &Arc<TableStore>) -> MemtableReservation {
        MemtableReservation {
            table_store: table_store.clone(),
            mem_bytes: AtomicU64::new(0),
            log_bytes: AtomicU64::new(0),
        }
    }

    pub fn grow(&mut self, mem_bytes: usize, log_bytes: u64) {
        *self.mem_bytes.get_mut() += mem_bytes as u64;
        *self.log_bytes.get_mut() += log_bytes;
        self.table_store.grown(mem_bytes as u64, log_bytes);
    }

    pub fn give_back(&self) {
        let taken = |bytes: &AtomicU64| bytes.swap(0, Ordering::Relaxed);
        self.table_store.shrunk(taken(&self.mem_bytes), taken(&self.log_bytes));
    }
}

impl Drop for MemtableReservation {
    /// For a deleted namespace: its in-memory entries disappear.
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Newest first.
#[derive(Clone, Default)]
pub(crate) struct SortedTableSet {
    pub list: Vec<Arc<Table>>,
    levels: Vec<u32>,
    /// Memtables frozen up to this flush are in the tables.
    pub flushed: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Manifest {
    version: u32,
    /// The id of the log to which the offsets belong.
    log: u64,
    next_table: u64,
    /// Number and level, newest first.
    tables: Vec<(u64, u32)>,
    namespaces: Vec<(u32, IndexState)>,
}

pub(crate) struct TableStore {
    /// `None`: nothing is ever written.
    disk: Option<Arc<dyn Disk>>,
    log: u64,
    cache: Arc<BlockCache>,
    tables: RwLock<Arc<SortedTableSet>>,
    /// Locked while the set of tables changes.
    writing: Mutex<ManifestState>,
    /// Locked by the single merge. Tables can be written concurrently.
    merging: Mutex<()>,
    /// Sums over all namespaces: the memory of the memtables, and the log bytes that are in no table.
    mem_bytes: AtomicU64,
    behind: AtomicU64,
    mem_bytes_max: u64,
    cache_bytes_max: u64,
    /// Budgets that reduce the size of the cache.
    beside: Vec<Arc<MemoryBudget>>,
    /// An upper bound for the dead messages in tables, from deleted or cleared namespaces.
    useless: AtomicU64,
    /// Notified when there is enough to write.
    pub enough: Notify,
    /// Notified when less is unindexed, or when a write succeeded or failed.
    pub caught_up: Notify,
    /// Why the last table could not be written.
    failing: Mutex<Option<String>>,
}

struct ManifestState {
    next_table: u64,
    states: HashMap<u32, IndexState>,
}

impl TableStore {
    /// Opens the store with the states of namespaces. If something is missing or damaged, everything is rebuilt from
    /// the log.
    pub fn open(disk: Option<Arc<dyn Disk>>, log: u64, memory: usize) -> io::Result<TableStore> {
        let cache = blocks(memory / 2);
        let (mut tables, mut writing) = (
            SortedTableSet::default(),
            ManifestState {
                next_table: 1,
                states: HashMap::new(),
            },
        );
        if let Some(disk) = &disk {
            match read(disk.as_ref(), log, &cache) {
                Ok((found, manifest)) => {
                    tables = found;
                    writing.next_table = manifest.next_table;
                    writing.states = manifest.namespaces.into_iter().collect();
                }
                Err(reason) => {
                    if disk.names()?.iter().any(|name| name == MANIFEST) {
                        tracing::warn!(reason, "the indexes of events are being rebuilt from the log");
                    }
                }
            }
        }
        let table_store = TableStore {
            disk,
            log,
            cache,
            tables: RwLock::new(Arc::new(tables)),
            writing: Mutex::new(writing),
            merging: Mutex::new(()),
            mem_bytes: AtomicU64::new(0),
            behind: AtomicU64::new(0),
            // The same amount may be in the process of being written.
            mem_bytes_max: (memory as u64 / 4).max(1 << 20),
            cache_bytes_max: memory as u64 / 2,
            beside: Vec::new(),
            useless: AtomicU64::new(0),
            enough: Notify::new(),
            caught_up: Notify::new(),
            failing: Mutex::new(None),
        };
        table_store.fit_cache(&table_store.tables());
        Ok(table_store)
    }

    /// Removes files of interrupted attempts and of merges before a crash. Call it only once the start is certain to
    /// succeed, because a refused start must leave everything unchanged.
    pub fn tidy(&self) -> io::Result<()> {
        match &self.disk {
            Some(disk) => remove_others(disk.as_ref(), &self.tables()),
            None => Ok(()),
        }
    }

    /// Budgets whose use reduces the cache.
    pub fn share_with(&mut self, beside: Vec<Arc<MemoryBudget>>) {
        self.beside = beside;
    }

    /// Adjusts the cache after the use of these budgets changed.
    pub fn fit(&self) {
        self.fit_cache(&self.tables());
    }

    /// The filters and block lists of open tables reduce the cache.
    fn fit_cache(&self, tables: &SortedTableSet) {
        let most = self.cache_bytes_max;
        let beside: u64 = self.beside.iter().map(|share| share.bytes() as u64).sum();
        self.cache
            .set_capacity(most.saturating_sub(tables.resident_bytes() + beside).max(most / 8));
    }

    pub fn tables(&self) -> Arc<SortedTableSet> {
        self.tables.read().clone()
    }

    /// Whether tables are written.
    pub fn is_on_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// The state of a namespace in the tables; `None` if they have nothing of it.
    pub fn state(&self, namespace: u32) -> Option<IndexState> {
        self.writing.lock().states.get(&namespace).copied()
    }

    /// The next log offset that the tables expect, by namespace.
    pub fn next_offsets(&self) -> Vec<(u32, Offset)> {
        let writing = self.writing.lock();
        let states = writing.states.iter();
        states.map(|(number, state)| (*number, state.next_offset)).collect()
    }

    /// Accounts for additional memory and unindexed log bytes.
    pub fn grown(&self, mem_bytes: u64, log_bytes: u64) {
        let mem = self.mem_bytes.fetch_add(mem_bytes, Ordering::Relaxed) + mem_bytes;
        let behind = self.behind.fetch_add(log_bytes, Ordering::Relaxed) + log_bytes;
        if self.disk.is_some() && (mem >= self.mem_bytes_max || behind >= BEHIND_MAX / 2) {
            self.enough.notify_one();
        }
    }

    pub fn shrunk(&self, mem_bytes: u64, log_bytes: u64) {
        self.mem_bytes.fetch_sub(mem_bytes, Ordering::Relaxed);
        self.behind.fetch_sub(log_bytes, Ordering::Relaxed);
        self.caught_up.notify_waiters();
    }

    pub fn has_enough(&self) -> bool {
        let (mem, behind) = (
            self.mem_bytes.load(Ordering::Relaxed),
            self.behind.load(Ordering::Relaxed),
        );
        self.disk.is_some() && (mem >= self.mem_bytes_max || behind >= BEHIND_MAX / 2)
    }

    /// Whether appends must wait.
    pub fn is_behind(&self) -> bool {
        self.disk.is_some() && self.behind.load(Ordering::Relaxed) > BEHIND_MAX
    }

    /// Why tables cannot be written, until an attempt succeeds.
    pub fn failing(&self) -> Option<String> {
        self.failing.lock().clone()
    }

    pub fn attempted(&self, failure: Option<String>) {
        *self.failing.lock() = failure;
        self.caught_up.notify_waiters();
    }

    /// Sizes of files and memory, and of the log that is in no table.
    pub fn sizes(&self) -> IndexSizes {
        let tables = self.tables();
        IndexSizes {
            tables: tables.list.len(),
            file_bytes: tables.list.iter().map(|table| table.bytes).sum(),
            memory_bytes: self.mem_bytes.load(Ordering::Relaxed) + self.cache.weight() + tables.resident_bytes(),
            behind_bytes: self.behind.load(Ordering::Relaxed),
        }
    }

    /// Writes the memtables from `freeze` as a table. Blocks until done.
    pub fn flush(
        &self,
        freeze: impl FnOnce() -> Vec<Arc<FrozenMemtable>>,
        lives: &dyn Fn(KeySpace) -> bool,
    ) -> io::Result<()> {
        let Some(disk) = &self.disk else { return Ok(()) };
        let mut writing = self.writing.lock();
        let mut frozen = freeze();
        if frozen.is_empty() {
            return Ok(());
        }
        frozen.sort_by_key(|frozen| frozen.mem.space);
        let table = self.written(disk.as_ref(), writing.number(), |writer| {
            frozen.iter().try_for_each(|frozen| frozen.mem.write(writer))
        })?;
        let mut states = writing.states.clone();
        states.extend(
            frozen
                .iter()
                .map(|frozen| (frozen.mem.space.namespace, *frozen.state.lock())),
        );
        states.retain(|namespace, _| is_there(*namespace, lives));
        let mut tables = SortedTableSet::clone(&self.tables());
        tables.list.insert(0, table.clone());
        tables.levels.insert(0, 0);
        tables.flushed += 1;
        // From one moment on, readers find the entries in the tables only.
        let is_with = |flush: u64| {
            let stamps = frozen.iter().map(|frozen| &frozen.flush);
            stamps.for_each(|stamp| stamp.store(flush, Ordering::Release));
        };
        is_with(tables.flushed);
        let next = ManifestEdit { tables, states, table };
        self.publish(disk.as_ref(), &mut writing, next, &[])
            .inspect_err(|_| is_with(FrozenMemtable::WAITING))?;
        frozen.iter().for_each(|frozen| frozen.share.give_back());
        Ok(())
    }

    /// Merges tables if one level has enough of them. Returns whether it did.
    pub fn merge(&self, lives: &dyn Fn(KeySpace) -> bool) -> io::Result<bool> {
        let Some(disk) = &self.disk else { return Ok(false) };
        let _alone = self.merging.lock();
        let Some((old, level)) = self.tables().full_level() else {
            return Ok(false);
        };
        let number = self.writing.lock().number();
        let table = self.written(disk.as_ref(), number, |writer| merge::merge(&old, lives, None, writer))?;
        // Newer tables may have been added before them.
        let mut writing = self.writing.lock();
        let mut tables = SortedTableSet::clone(&self.tables());
        let first = old
            .first()
            .and_then(|first| tables.list.iter().position(|table| Arc::ptr_eq(table, first)));
        let range = first.map_or(0..0, |first| first..first + old.len());
        tables.list.splice(range.clone(), [table.clone()]);
        tables.levels.splice(range, [level + 1]);
        let mut states = writing.states.clone();
        states.retain(|namespace, _| is_there(*namespace, lives));
        let next = ManifestEdit { tables, states, table };
        self.publish(disk.as_ref(), &mut writing, next, &old)?;
        Ok(true)
    }

    /// Records that a namespace was deleted, so that its entries in tables are dead.
    pub fn deleted(&self, namespace: u32) {
        // A namespace without a state has nothing in the tables.
        if let Some(state) = self.state(namespace) {
            self.cleared(state.messages.max(1));
        }
    }

    /// Records that this many messages were cleared.
    pub fn cleared(&self, messages: u64) {
        self.useless.fetch_add(messages, Ordering::Relaxed);
    }

    /// The number of dead messages, if there are at least as many as live ones. Their filters use memory, and a store
    /// without writes would never merge. Each dead message pays for copying one live message, so the work is bounded.
    pub fn useless_beyond(&self, of_use: impl FnOnce() -> u64) -> Option<u64> {
        let useless = self.useless.load(Ordering::Relaxed);
        (self.disk.is_some() && useless > 0 && useless >= of_use()).then_some(useless)
    }

    /// Removes dead entries, whose number was `useless` when counted.
    pub fn clear_out(&self, useless: u64, lives: &dyn Fn(KeySpace) -> bool) -> io::Result<()> {
        if !self.tables().list.is_empty() {
            self.leave_out(&RemovalSet::default(), lives, |publish| publish())?;
        }
        self.useless.fetch_sub(useless, Ordering::Relaxed);
        Ok(())
    }

    /// Removes messages from all tables, which become one. `then` must call its argument to publish the result; it can
    /// change other state in the same moment.
    pub fn leave_out(
        &self,
        gone: &RemovalSet,
        lives: &dyn Fn(KeySpace) -> bool,
        then: impl FnOnce(&dyn Fn() -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(disk) = &self.disk else {
            return then(&|| Ok(()));
        };
        let _alone = self.merging.lock();
        let old = self.tables();
        let number = self.writing.lock().number();
        let table = self.written(disk.as_ref(), number, |writer| {
            merge::merge(&old.list, lives, Some(gone), writer)
        })?;
        // Evaluated here because `then` may hold locks that `lives` needs. A namespace that is gone stays gone.
        let states = self.writing.lock().states.clone();
        let gone_namespaces: BTreeSet<u32> = states.into_keys().filter(|number| !is_there(*number, lives)).collect();
        let writing = Mutex::new(self.writing.lock());
        then(&|| {
            let mut writing = writing.lock();
            let mut states = writing.states.clone();
            for (namespace, gone) in &gone.0 {
                if let Some(state) = states.get_mut(namespace)
                    && state.cleared.max(1) == gone.space.cleared
                {
                    state.leave_out(gone);
                }
            }
            states.retain(|namespace, _| !gone_namespaces.contains(namespace));
            // Newer tables may have been added before them.
            let mut tables = SortedTableSet::clone(&self.tables());
            let newer = tables.list.len() - old.list.len();
            let level = old.levels.iter().copied().max().unwrap_or(0);
            tables.list.truncate(newer);
            tables.levels.truncate(newer);
            tables.list.push(table.clone());
            tables.levels.push(level);
            let table = table.clone();
            let next = ManifestEdit { tables, states, table };
            self.publish(disk.as_ref(), &mut writing, next, &old.list)
        })
    }

    /// Removes table entries of namespaces without a known state. Such a namespace was deleted, and damage or a power
    /// cut has undone the deletion; what is rebuilt for it must not be beside the old entries.
    pub fn forget_unknown(&self, there: impl Iterator<Item = u32>) -> io::Result<()> {
        let states = self.writing.lock().states.clone();
        let there: BTreeSet<u32> = there.collect();
        let gone = states.keys().filter(|number| !there.contains(number));
        gone.for_each(|number| self.deleted(*number));
        let unknown: BTreeSet<u32> = there
            .into_iter()
            .filter(|number| !states.contains_key(number))
            .collect();
        let tables = self.tables();
        if !tables.list.iter().any(|table| has_some_of(table, &unknown)) {
            return Ok(());
        }
        let is_known = |space: KeySpace| !unknown.contains(&space.namespace);
        self.leave_out(&RemovalSet::default(), &is_known, |publish| publish())
    }

    /// Reads every part of every table.
    pub fn verify(&self) -> io::Result<()> {
        let Some(disk) = &self.disk else { return Ok(()) };
        for table in &self.tables().list {
            // Reopened, because the list of blocks has been in memory since the table was opened.
            match Table::open(disk.as_ref(), table.number, &self.cache) {
                Ok(table) => merge::verify(&Arc::new(table))?,
                // It has been merged meanwhile.
                Err(_) if self.tables().list.iter().all(|other| other.number != table.number) => {}
                Err(what) => return Err(io::Error::new(io::ErrorKind::InvalidData, what)),
            }
        }
        Ok(())
    }

    /// Writes a new table. After an error the partial file is removed, because errors on a full disk repeat.
    fn written(
        &self,
        disk: &dyn Disk,
        number: u64,
        fill: impl FnOnce(&mut TableWriter) -> io::Result<()>,
    ) -> io::Result<Arc<Table>> {
        let written = TableWriter::new(disk, number).and_then(|mut writer| {
            fill(&mut writer)?;
            writer.finish(&self.cache)
        });
        if written.is_err() {
            remove(disk, number);
        }
        written.map(Arc::new)
    }

    /// Publishes a new set of tables and states durably. After an error nothing has changed; a crash may leave the old
    /// or the new state, both of which are whole.
    fn publish(
        &self,
        disk: &dyn Disk,
        writing: &mut ManifestState,
        next: ManifestEdit,
        old: &[Arc<Table>],
    ) -> io::Result<()> {
        let ManifestEdit { tables, states, table } = next;
        let manifest = Manifest {
            version: VERSION,
            log: self.log,
            next_table: writing.next_table,
            tables: tables
                .list
                .iter()
                .map(|table| table.number)
                .zip(tables.levels.iter().copied())
                .collect(),
            namespaces: states.iter().map(|(namespace, state)| (*namespace, *state)).collect(),
        };
        if let Err(error) = prepare(disk, &manifest) {
            remove(disk, table.number);
            return Err(error);
        }
        disk.rename(MANIFEST_NEW, MANIFEST)?;
        disk.sync_names()?;
        writing.states = states;
        self.fit_cache(&tables);
        *self.tables.write() = Arc::new(tables);
        // Readers still have the removed files open.
        old.iter().for_each(|table| remove(disk, table.number));
        Ok(())
    }
}

/// The new state, with the table that was added.
struct ManifestEdit {
    tables: SortedTableSet,
    states: HashMap<u32, IndexState>,
    table: Arc<Table>,
}

/// Removes a table file. If that fails, the next start does it.
fn remove(disk: &dyn Disk, number: u64) {
    let name = super::table::file_name(number);
    if let Err(error) = disk.remove(&name)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, name, "cannot remove an index that is no longer needed");
    }
}

impl ManifestState {
    /// The number of the next table.
    fn number(&mut self) -> u64 {
        self.next_table += 1;
        self.next_table - 1
    }
}

/// The size of the indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexSizes {
    pub tables: usize,
    pub file_bytes: u64,
    pub memory_bytes: u64,
    pub behind_bytes: u64,
}

impl SortedTableSet {
    pub fn resident_bytes(&self) -> u64 {
        self.list.iter().map(|table| table.resident_bytes() as u64).sum()
    }

    /// The tables to merge, and their level.
    fn full_level(&self) -> Option<(Vec<Arc<Table>>, u32)> {
        let mut from = 0;
        while let Some(level) = self.levels.get(from) {
            let same = self
                .levels
                .iter()
                .skip(from)
                .take_while(|other| *other == level)
                .count();
            if same >= TABLES_OF_LEVEL {
                // The oldest of the level.
                let range = from + same - TABLES_OF_LEVEL..from + same;
                return Some((self.list.get(range)?.to_vec(), *level));
            }
            from += same;
        }
        None
    }
}

fn is_there(namespace: u32, lives: &dyn Fn(KeySpace) -> bool) -> bool {
    lives(KeySpace { namespace, cleared: 0 })
}

/// Jumps from one namespace to the next one in the table.
fn has_some_of(table: &Arc<Table>, numbers: &BTreeSet<u32>) -> bool {
    let mut next = numbers.first().copied();
    while let Some(number) = next {
        // Damage is reported when the part is needed.
        let Ok(cursor) = table.seek(&number.to_be_bytes(), Io::MayBlock) else {
            return false;
        };
        let Some((space, ..)) = cursor.entry().and_then(|(key, _)| keys::parse(key)) else {
            return false;
        };
        if space.namespace == number {
            return true;
        }
        next = numbers.range(space.namespace..).next().copied();
    }
    false
}

fn read(disk: &dyn Disk, log: u64, cache: &Arc<BlockCache>) -> Result<(SortedTableSet, Manifest), String> {
    let failed = |error: io::Error| format!("{MANIFEST}: {error}");
    let file = disk.open(MANIFEST).map_err(failed)?;
    let mut bytes = vec![0; usize::try_from(file.len().map_err(failed)?).unwrap_or(usize::MAX)];
    let read = file.read_at(&mut bytes, 0).map_err(failed)?;
    let body = bytes
        .get(..read)
        .and_then(super::block::checked)
        .ok_or("manifest: its checksum is wrong")?;
    let manifest: Manifest = serde_json::from_slice(body).map_err(|error| format!("{MANIFEST}: {error}"))?;
    if manifest.version != VERSION {
        return Err(format!("{MANIFEST}: format {} is not this version's", manifest.version));
    }
    if manifest.log != log {
        return Err(format!("{MANIFEST}: it belongs to another log"));
    }
    let mut tables = SortedTableSet::default();
    for (number, level) in &manifest.tables {
        tables.list.push(Arc::new(Table::open(disk, *number, cache)?));
        tables.levels.push(*level);
    }
    Ok((tables, manifest))
}

/// Writes the manifest under its temporary name.
fn prepare(disk: &dyn Disk, manifest: &Manifest) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(manifest)?;
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    if disk.names()?.iter().any(|name| name == MANIFEST_NEW) {
        disk.remove(MANIFEST_NEW)?;
    }
    let file = disk.create(MANIFEST_NEW)?;
    file.write_at(&bytes, 0)?;
    file.sync()?;
    disk.sync_names()
}

fn remove_others(disk: &dyn Disk, tables: &SortedTableSet) -> io::Result<()> {
    let own: Vec<String> = tables
        .list
        .iter()
        .map(|table| super::table::file_name(table.number))
        .collect();
    for name in disk.names()? {
        if name.ends_with(".index") && !own.contains(&name) {
            disk.remove(&name)?;
        }
    }
    Ok(())
}
