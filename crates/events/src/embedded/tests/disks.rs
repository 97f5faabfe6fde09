//! Disks that outlive the store, and fail when that is wanted.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use thalweg_log::disk::{Disk, DiskFile, Ram, Space};
use thalweg_log::{Durability, EmbeddedLog, Log, LogOptions};

use super::super::*;
use crate::TokenDigest;
use crate::store::*;

/// A disk on which no file can be made while that is said.
struct MayFail(Arc<Ram>, Arc<AtomicBool>);

impl Disk for MayFail {
    fn names(&self) -> io::Result<Vec<String>> {
        self.0.names()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.0.open(name)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        match self.1.load(SeqCst) {
            true => Err(io::Error::other("no file can be made")),
            false => self.0.create(name),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.0.sync_names()
    }

    fn space(&self) -> io::Result<Space> {
        self.0.space()
    }
}

/// Disks that outlive the store.
pub struct Disks {
    log: Arc<Ram>,
    pub(super) indexes: Arc<Ram>,
    fail: Arc<AtomicBool>,
    open: parking_lot::Mutex<Option<Arc<EmbeddedLog>>>,
}

impl Disks {
    pub fn new() -> Disks {
        Disks {
            log: Arc::new(Ram::new(512 << 20)),
            indexes: Arc::new(Ram::new(512 << 20)),
            fail: Arc::default(),
            open: parking_lot::Mutex::default(),
        }
    }

    pub fn lose_indexes(&self) {
        for name in self.indexes.names().unwrap() {
            self.indexes.remove(&name).unwrap();
        }
    }

    /// Names of what is in the folder of indexes, with their lengths.
    pub fn tables(&self) -> Vec<(String, u64)> {
        let names = self.indexes.names().unwrap().into_iter();
        let tables = names.map(|name| {
            let len = self.indexes.open(&name).unwrap().len().unwrap();
            (name, len)
        });
        tables.filter(|(name, _)| name.ends_with(".index")).collect()
    }

    /// Bends a byte of one of them, or puts it right again.
    pub fn flip(&self, name: &str, at: u64) {
        let file = self.indexes.open(name).unwrap();
        let mut byte = [0];
        assert_eq!(file.read_at(&mut byte, at).unwrap(), 1);
        file.write_at(&[byte[0] ^ 0x10], at).unwrap();
    }

    /// From now on no file is made for indexes, or again.
    pub fn fail_indexes(&self, fail: bool) {
        self.fail.store(fail, SeqCst);
    }

    pub async fn open(&self) -> EmbeddedStore {
        self.open_with(Durability::Fsync).await
    }

    pub async fn open_with(&self, durability: Durability) -> EmbeddedStore {
        self.open_as(durability, false).await
    }

    /// What was opened before is closed.
    pub async fn open_as(&self, durability: Durability, keep_deleted: bool) -> EmbeddedStore {
        if let Some(log) = self.open.lock().take() {
            log.close();
        }
        let options = LogOptions {
            folder: "memory".to_owned(),
            file_bytes: 16 << 20,
            first_file_bytes: 16 << 20,
            spare: 1,
            min_free_bytes: Some(0),
            linger: std::time::Duration::ZERO,
            scrub: std::time::Duration::ZERO,
            ..LogOptions::default()
        };
        let log = Arc::new(EmbeddedLog::open(self.log.clone(), 1, &options).unwrap());
        *self.open.lock() = Some(log.clone());
        let options = EventsOptions {
            durability,
            in_memory: false,
            indexes: Some(Arc::new(MayFail(self.indexes.clone(), self.fail.clone()))),
            index_memory: 1 << 20,
            keep_deleted,
        };
        let store = EmbeddedStore::open(log as Arc<dyn Log>, options).await.unwrap();
        if store.namespace(DEFAULT).await.is_err() {
            let new = NewNamespace {
                name: DEFAULT.to_owned(),
                description: String::new(),
                metadata: None,
                digest: TokenDigest::from_bytes([7; 32]),
                scopes: Scopes::ALL,
            };
            store.create(new).await.unwrap();
        }
        store
    }
}
