//! Disks that outlive the store and fail on request.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use thalweg_log::disk::{Disk, DiskFile, DiskSpace, RamDisk};
use thalweg_log::format::block::{self, BlockHeader};
use thalweg_log::format::frame::{self, FrameHeader};
use thalweg_log::{Durability, EmbeddedLog, Log, LogOptions};

use super::super::*;
use crate::TokenDigest;
use crate::store::*;

/// A disk on which creating files fails while the flag is set.
struct MayFail(Arc<RamDisk>, Arc<AtomicBool>);

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

    fn space(&self) -> io::Result<DiskSpace> {
        self.0.space()
    }
}

/// The position of a frame of the log, and of its block.
#[derive(Clone, Debug)]
pub struct FrameOnDisk {
    pub file: String,
    pub block: usize,
    pub header: usize,
    pub body: Range<usize>,
}

const PIECE: usize = 64 << 10;
static ZEROS: [u8; PIECE] = [0; PIECE];

/// Empty if the file no longer exists.
fn bytes_of(disk: &RamDisk, name: &str) -> Vec<u8> {
    let Ok(file) = disk.open(name) else {
        return Vec::new();
    };
    let mut bytes = vec![0; file.len().unwrap() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

/// The disks of a store, which outlive it.
pub struct Disks {
    log: Arc<RamDisk>,
    pub(super) indexes: Arc<RamDisk>,
    fail: Arc<AtomicBool>,
    /// Starts give up damage.
    recover_skip: AtomicBool,
    /// Size of a commit file.
    file_bytes: u64,
    open: parking_lot::Mutex<Option<Arc<EmbeddedLog>>>,
}

impl Disks {
    pub fn new() -> Disks {
        Disks {
            log: Arc::new(RamDisk::new(512 << 20)),
            indexes: Arc::new(RamDisk::new(512 << 20)),
            fail: Arc::default(),
            recover_skip: AtomicBool::new(false),
            file_bytes: 16 << 20,
            open: parking_lot::Mutex::default(),
        }
    }

    /// Disks with commit files that fill up soon.
    pub fn with_small_files() -> Disks {
        Disks {
            file_bytes: 256 << 10,
            ..Disks::new()
        }
    }

    /// Closes the open log.
    pub fn close(&self) {
        if let Some(log) = self.open.lock().take() {
            log.close();
        }
    }

    /// Makes later starts give up damage.
    pub fn recover_skip(&self) {
        self.recover_skip.store(true, SeqCst);
    }

    /// Runs `thalweg log repair --accept-loss`.
    pub fn repair(&self) {
        self.close();
        let done = thalweg_log::repair(self.log.as_ref(), true, &mut |_, _| {})
            .unwrap()
            .done;
        assert!(done.is_some_and(|done| done.after.is_whole()));
    }

    /// Replaces the log by an older copy; the indexes stay.
    pub fn put_back_log_of(&mut self, older: &Disks) {
        self.close();
        self.log = older.copied().log;
    }

    /// A copy of the disks.
    pub fn copied(&self) -> Disks {
        self.close();
        let copy = Disks {
            file_bytes: self.file_bytes,
            ..Disks::new()
        };
        for (from, to) in [(&self.log, &copy.log), (&self.indexes, &copy.indexes)] {
            for name in from.names().unwrap() {
                let bytes = bytes_of(from, &name);
                let file = to.create(&name).unwrap();
                for (n, piece) in bytes.chunks(PIECE).enumerate() {
                    let is_last = (n + 1) * PIECE >= bytes.len();
                    // As a whole: tests are not optimised, and look at many megabytes here.
                    if is_last || piece != &ZEROS[..piece.len()] {
                        file.write_at(piece, (n * PIECE) as u64).unwrap();
                    }
                }
            }
        }
        copy
    }

    /// The positions of the frames of a partition in commit files.
    pub fn frames_of(&self, id: PartitionId) -> Vec<FrameOnDisk> {
        let mut found = Vec::new();
        for name in self.log.names().unwrap() {
            let bytes = bytes_of(&self.log, &name);
            let mut at = 0;
            while let Some(block) = bytes.get(at..).and_then(BlockHeader::decode) {
                let mut body = at + block.headers_len();
                for n in 0..usize::from(block.frames) {
                    let header = at + block::LEN + n * frame::LEN;
                    let frame = FrameHeader::decode(&bytes[header..]).unwrap();
                    let end = body + frame.body_len as usize;
                    if frame.partition == id {
                        found.push(FrameOnDisk {
                            file: name.clone(),
                            block: at,
                            header,
                            body: body..end,
                        });
                    }
                    body = end;
                }
                at += block.block_len as usize;
            }
        }
        found
    }

    /// Changes bytes of a log file.
    pub fn bend_log(&self, file: &str, range: Range<usize>, bend: impl Fn(&mut [u8])) {
        self.close();
        let file = self.log.open(file).unwrap();
        let mut bytes = vec![0; range.len()];
        assert_eq!(file.read_at(&mut bytes, range.start as u64).unwrap(), bytes.len());
        bend(&mut bytes);
        file.write_at(&bytes, range.start as u64).unwrap();
    }

    /// Whether a file of the log contains these bytes.
    pub fn log_holds(&self, bytes: &[u8]) -> bool {
        let mut names = self.log.names().unwrap().into_iter();
        names.any(|name| memchr::memmem::find(&bytes_of(&self.log, &name), bytes).is_some())
    }

    /// Removes all segments. Returns their number.
    pub fn lose_segments(&self) -> usize {
        self.close();
        let mut names = self.log.names().unwrap();
        names.retain(|name| name.starts_with("segment-"));
        names.iter().for_each(|name| self.log.remove(name).unwrap());
        names.len()
    }

    pub fn lose_indexes(&self) {
        for name in self.indexes.names().unwrap() {
            self.indexes.remove(&name).unwrap();
        }
    }

    /// Names and lengths of the tables.
    pub fn tables(&self) -> Vec<(String, u64)> {
        let names = self.indexes.names().unwrap().into_iter();
        let tables = names.map(|name| {
            let len = self.indexes.open(&name).unwrap().len().unwrap();
            (name, len)
        });
        tables.filter(|(name, _)| name.ends_with(".index")).collect()
    }

    /// Flips a bit of a table; a second call restores it.
    pub fn flip(&self, name: &str, at: u64) {
        let file = self.indexes.open(name).unwrap();
        let mut byte = [0];
        assert_eq!(file.read_at(&mut byte, at).unwrap(), 1);
        file.write_at(&[byte[0] ^ 0x10], at).unwrap();
    }

    /// Makes creating index files fail or succeed.
    pub fn fail_indexes(&self, fail: bool) {
        self.fail.store(fail, SeqCst);
    }

    pub async fn open(&self) -> EmbeddedStore {
        self.open_with(Durability::Fsync).await
    }

    pub async fn open_with(&self, durability: Durability) -> EmbeddedStore {
        self.open_as(durability, false).await
    }

    /// Opens the store, closing an earlier one first.
    pub async fn open_as(&self, durability: Durability, keep_deleted: bool) -> EmbeddedStore {
        self.try_open(durability, keep_deleted).await.unwrap()
    }

    /// Like `open_as`, but returns errors.
    pub async fn try_open(&self, durability: Durability, keep_deleted: bool) -> Result<EmbeddedStore> {
        self.close();
        let options = LogOptions {
            recover_skip: self.recover_skip.load(SeqCst),
            folder: "memory".to_owned(),
            file_bytes: self.file_bytes,
            first_file_bytes: self.file_bytes,
            spare: 1,
            min_free_bytes: Some(0),
            linger: std::time::Duration::ZERO,
            scrub: std::time::Duration::ZERO,
            ..LogOptions::default()
        };
        let log = Arc::new(EmbeddedLog::open(self.log.clone(), 1, &options).unwrap());
        if options.recover_skip {
            log.pass_over_damage();
        }
        *self.open.lock() = Some(log.clone());
        let options = EventsOptions {
            durability,
            in_memory: false,
            indexes: Some(Arc::new(MayFail(self.indexes.clone(), self.fail.clone()))),
            index_memory: 1 << 20,
            keep_deleted,
            accept_loss: self.recover_skip.load(SeqCst),
        };
        let store = EmbeddedStore::open(log as Arc<dyn Log>, options).await?;
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
        Ok(store)
    }
}
