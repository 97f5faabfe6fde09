//! The tables of a lake: each folder with a Delta log is one.
//!
//! Between queries the registry keeps the newest known snapshot of each table and only advances it by newer commits,
//! whoever wrote them. One query sees each table at one version, however often it names it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, TableProvider};
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::object_store::ObjectStoreUrl;
use thalweg_delta::schema::TableSchema;
use thalweg_delta::store::LakeStorage;
use thalweg_delta::{DeltaError, DeltaLog, FileEntry, Snapshot, SnapshotDetail};
use thalweg_kit::clock;
use thalweg_lake::entry::EntryPosition;
use thalweg_lake::memtable_view::MemtableReader;
use tokio::sync::Mutex;

use crate::error::QueryError;
use crate::metrics::QueryMetrics;
use crate::table::LakeTable;
use crate::wait_for;

pub const CATALOG: &str = "thalweg";
pub const SCHEMA: &str = "lake";
/// The only store that queries can reach: the lake.
pub const STORE: &str = "lake://local";
/// The partition column of every table in the lake.
const DATE: &str = "date";

/// A snapshot that was unused for this long is loaded anew, because the commits after it may have been cleaned up.
const SNAPSHOT_AGE_MAX: Duration = Duration::from_secs(3600);

/// Listing an object store is slow and costs money.
const NAMES_AGE_MAX: Duration = Duration::from_secs(2);

/// The location of the lake and its known tables. All queries share one registry.
pub struct TableRegistry {
    site: LakeStorage,
    /// When the object store was last listed; a folder is listed each time.
    found: Mutex<Option<Instant>>,
    names: parking_lot::Mutex<Vec<String>>,
    known: parking_lot::Mutex<HashMap<String, Arc<Mutex<Option<CachedTable>>>>>,
    metrics: QueryMetrics,
    /// The reader of rows that are not committed yet.
    live: OnceLock<Arc<dyn MemtableReader>>,
}

struct CachedTable {
    log: DeltaLog,
    snapshot: Snapshot,
    files: VersionFiles,
    looked: Instant,
}

/// The files of one version of a table, shared by queries.
struct VersionFiles {
    version: i64,
    all: Arc<[Arc<FileEntry>]>,
}

impl VersionFiles {
    fn of(snapshot: &Snapshot) -> VersionFiles {
        VersionFiles {
            version: snapshot.version,
            all: snapshot.files.values().cloned().collect(),
        }
    }
}

impl CachedTable {
    /// Advances to the newest version. The call may fail or be dropped at any point: `files` match the snapshot because
    /// their versions are compared, not because a call completed.
    async fn refresh(&mut self) -> Result<(), DeltaError> {
        self.log.refresh(&mut self.snapshot).await?;
        if self.files.version != self.snapshot.version {
            self.files = VersionFiles::of(&self.snapshot);
        }
        self.looked = clock::now();
        Ok(())
    }
}

impl std::fmt::Debug for TableRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TableRegistry({})", self.site.path().display())
    }
}

impl TableRegistry {
    pub fn new(site: LakeStorage, metrics: QueryMetrics) -> TableRegistry {
        TableRegistry {
            site,
            found: Mutex::default(),
            names: Default::default(),
            known: Default::default(),
            metrics,
            live: OnceLock::new(),
        }
    }

    /// Makes uncommitted rows of `live` visible to queries.
    pub fn set_live(&self, live: Arc<dyn MemtableReader>) {
        let _ = self.live.set(live);
    }

    /// Returns when queries see the entries at all of these log positions.
    pub async fn wait_for(&self, positions: &[EntryPosition]) -> Result<(), QueryError> {
        match self.live.get() {
            Some(live) => wait_for::wait(live.as_ref(), positions).await,
            None => {
                for position in positions {
                    self.has(position).await?;
                }
                Ok(())
            }
        }
    }

    /// Whether a table has committed the entry at a position. Without a live reader, waiting would not help.
    async fn has(&self, position: &EntryPosition) -> Result<(), QueryError> {
        let EntryPosition {
            queue,
            partition,
            offset,
        } = position;
        let name = queue
            .strip_prefix("lake.")
            .filter(|name| self.names().iter().any(|known| known == name));
        let name = name.ok_or_else(|| {
            QueryError::request(format!(
                "wait_for names the position {position}, and no table here comes from such a queue"
            ))
        })?;
        let table = self.load(name).await;
        let table = table.map_err(|error| QueryError::unavailable(error.to_string()))?;
        let of_partition = format!("/{queue}/{partition}");
        let taken = table
            .into_iter()
            .flat_map(|table| table.snapshot.transactions)
            .filter_map(|(application, taken)| {
                let is_this = application.starts_with("thalweg/") && application.ends_with(&of_partition);
                u64::try_from(taken).ok().filter(|_| is_this)
            });
        match taken.max() {
            Some(taken) if taken > *offset => Ok(()),
            _ => Err(QueryError::wait_timeout(format!(
                "{position} is not in the files of the table {name}; ask the process that ingests it, or start one"
            ))),
        }
    }

    /// Lists the tables of an object store for [`TableRegistry::names`], which cannot wait. Each query calls this
    /// first.
    pub async fn look(&self) -> Result<(), DeltaError> {
        if !self.site.is_remote() {
            return Ok(());
        }
        // One caller lists; the others wait for its result.
        let mut found = self.found.lock().await;
        if found.is_none_or(|found| found.elapsed() >= NAMES_AGE_MAX) {
            let names = self.site.tables().await?;
            *self.names.lock() = names;
            *found = Some(clock::now());
        }
        Ok(())
    }

    /// The sorted names of all tables, including ingested tables that have no row yet.
    pub fn names(&self) -> Vec<String> {
        let mut names = match self.site.is_remote() {
            true => self.names.lock().clone(),
            false => self.site.folders(),
        };
        let live = self.live.get().map(|live| live.tables()).unwrap_or_default();
        names.extend(live.into_iter().map(|spec| spec.name.to_owned()));
        names.sort();
        names.dedup();
        names
    }

    /// Opens a table at its newest version.
    async fn open(&self, name: &str) -> Result<Option<Arc<LakeTable>>, DeltaError> {
        // Names come from SQL: only a plain folder name in the lake is a table.
        if !self.names().iter().any(|known| known == name) {
            return Ok(None);
        }
        // The memtable is read before the table: rows that the table has committed by then are left out below, and none
        // is missed.
        let live = self.live.get().and_then(|live| live.rows(name));
        let slot = self.known.lock().entry(name.to_owned()).or_default().clone();
        let mut slot = slot.lock().await;
        let fresh = slot
            .as_ref()
            .is_some_and(|known| known.looked.elapsed() < SNAPSHOT_AGE_MAX);
        if fresh && let Some(known) = slot.as_mut() {
            known.refresh().await?;
        } else {
            *slot = self.load(name).await?;
        }
        let store = ObjectStoreUrl::parse(STORE).unwrap_or_else(|_| ObjectStoreUrl::local_filesystem());
        let known = slot.as_ref();
        let (schema, partitions, files) = match (known, self.columns_of(name)) {
            (Some(known), _) => (
                known.snapshot.schema.clone(),
                known.snapshot.metadata.partition_columns.clone(),
                known.files.all.clone(),
            ),
            (None, Some(columns)) => (Arc::new(columns), vec![DATE.to_owned()], Arc::default()),
            (None, None) => return Ok(None),
        };
        let live = live.map(|live| live.beyond(known.map(|known| &known.snapshot)));
        let table = LakeTable::new(name, schema, partitions, files, store, self.metrics.clone());
        Ok(Some(Arc::new(table.with_live(live.unwrap_or_default()))))
    }

    /// The columns of an ingested table that has no row yet.
    fn columns_of(&self, name: &str) -> Option<TableSchema> {
        let tables = self.live.get()?.tables();
        let spec = tables.into_iter().find(|spec| spec.name == name)?;
        Some((spec.columns)())
    }

    /// Opens an older version of a table, without uncommitted rows.
    pub async fn open_at(&self, name: &str, which: VersionSelector) -> Result<LakeTable, QueryError> {
        let looked = self.look().await;
        looked.map_err(|error| QueryError::unavailable(error.to_string()))?;
        let known = self.names();
        if !known.iter().any(|known| known == name) {
            return Err(QueryError::no_table(name, &known));
        }
        let failed = |error: DeltaError| match error {
            DeltaError::NoVersion { why, .. } => QueryError::plan(format!("the table {name} {why}")),
            error => QueryError::unavailable(error.to_string()),
        };
        let log = self.site.log(name).map_err(failed)?;
        let Some(versions) = log.versions().await.map_err(failed)? else {
            return Err(QueryError::plan(format!(
                "the table {name} has no version yet: nothing is committed"
            )));
        };
        let version = match which {
            VersionSelector::Version(version) => version,
            VersionSelector::UnixMillis(at) => log.version_at(&versions, at).await.map_err(failed)?,
        };
        let snapshot = log
            .load_at(&versions, version, SnapshotDetail::Stats)
            .await
            .map_err(failed)?;
        // Files that left the table may have been deleted.
        let missing = log.missing(snapshot.files.keys().cloned()).await.map_err(failed)?;
        if missing > 0 {
            return Err(QueryError::plan(format!(
                "version {version} of the table {name} cannot be read any more: {missing} of its files left the table and are \
                 deleted (lake.vacuum.retain)"
            )));
        }
        let store = ObjectStoreUrl::parse(STORE).unwrap_or_else(|_| ObjectStoreUrl::local_filesystem());
        Ok(LakeTable::new(
            name,
            snapshot.schema.clone(),
            snapshot.metadata.partition_columns.clone(),
            snapshot.files.values().cloned().collect(),
            store,
            self.metrics.clone(),
        ))
    }

    async fn load(&self, name: &str) -> Result<Option<CachedTable>, DeltaError> {
        let log = self.site.log(name)?;
        let Some(snapshot) = log.load(SnapshotDetail::Stats).await? else {
            return Ok(None);
        };
        Ok(Some(CachedTable {
            log,
            files: VersionFiles::of(&snapshot),
            snapshot,
            looked: clock::now(),
        }))
    }
}

/// A version of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionSelector {
    Version(i64),
    /// The version that was current at this time.
    UnixMillis(i64),
}

/// The tables as one query sees them.
#[derive(Debug)]
pub struct QueryTables {
    tables: Arc<TableRegistry>,
    opened: Mutex<HashMap<String, Arc<LakeTable>>>,
    /// The names of opened tables that are older versions.
    versions: parking_lot::Mutex<HashSet<String>>,
}

impl QueryTables {
    pub fn new(tables: Arc<TableRegistry>) -> QueryTables {
        QueryTables {
            tables,
            opened: Mutex::default(),
            versions: Default::default(),
        }
    }

    /// Binds a name to a version of a table.
    pub async fn add_version(&self, name: &str, table: &str, which: VersionSelector) -> Result<(), QueryError> {
        let version = self.tables.open_at(table, which).await?;
        self.opened.lock().await.insert(name.to_owned(), Arc::new(version));
        self.versions.lock().insert(name.to_owned());
        Ok(())
    }

    pub fn is_version(&self, name: &str) -> bool {
        self.versions.lock().contains(name)
    }

    pub async fn open(&self, name: &str) -> Result<Option<Arc<LakeTable>>> {
        let mut opened = self.opened.lock().await;
        if let Some(table) = opened.get(name) {
            return Ok(Some(table.clone()));
        }
        let unreadable =
            |error: DeltaError| DataFusionError::External(Box::new(QueryError::unavailable(error.to_string())));
        let Some(table) = self.tables.open(name).await.map_err(unreadable)? else {
            return Ok(None);
        };
        opened.insert(name.to_owned(), table.clone());
        Ok(Some(table))
    }
}

#[async_trait]
impl SchemaProvider for QueryTables {
    fn table_names(&self) -> Vec<String> {
        self.tables.names()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        Ok(self.open(name).await?.map(|table| table as Arc<dyn TableProvider>))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.is_version(name) || self.tables.names().iter().any(|known| known == name)
    }
}

/// One catalog with one schema that contains the tables of the lake.
#[derive(Debug, Clone)]
pub struct LakeCatalog(pub Arc<QueryTables>);

impl CatalogProvider for LakeCatalog {
    fn schema_names(&self) -> Vec<String> {
        vec![SCHEMA.to_owned()]
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        (name == SCHEMA).then(|| self.0.clone() as Arc<dyn SchemaProvider>)
    }
}

impl CatalogProviderList for LakeCatalog {
    fn register_catalog(&self, _name: String, _catalog: Arc<dyn CatalogProvider>) -> Option<Arc<dyn CatalogProvider>> {
        None
    }

    fn catalog_names(&self) -> Vec<String> {
        vec![CATALOG.to_owned()]
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        (name == CATALOG).then(|| Arc::new(self.clone()) as Arc<dyn CatalogProvider>)
    }
}
