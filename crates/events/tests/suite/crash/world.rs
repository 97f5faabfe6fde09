//! The disks, and a process that uses them until it ends.

use std::sync::Arc;
use std::time::Duration;

use thalweg_events::{DEFAULT, EmbeddedStore, EventsOptions, Namespace, NewNamespace, Scopes, Store as _, TokenDigest};
use thalweg_log::disk::Disk as _;
use thalweg_log::disk::sim::{Faults, Random, SimDisk};
use thalweg_log::{Durability, EmbeddedLog, Log, LogOptions};

const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process is gone; everything that it had written is still there.
    Kill,
    /// Unsynced data is there or not.
    Power,
}

/// The disks of one machine, which lose power at the same time.
pub struct World {
    log: SimDisk,
    indexes: SimDisk,
    durability: Durability,
}

pub struct Running {
    pub store: EmbeddedStore,
    pub namespace: Arc<dyn Namespace>,
    log: Arc<EmbeddedLog>,
}

impl World {
    pub fn new(seed: u64, durability: Durability) -> World {
        World {
            log: SimDisk::new(seed, 256 * MIB),
            indexes: SimDisk::new(seed + 7_000_000, 256 * MIB),
            durability,
        }
    }

    pub async fn open(&self) -> Running {
        // Indexes are derived data: whatever their disk does, the store works and starts again.
        self.indexes.set_faults(Faults::default());
        let options = LogOptions {
            folder: "simulated".to_owned(),
            file_bytes: MIB / 2,
            first_file_bytes: MIB / 4,
            min_free_bytes: Some(0),
            linger: Duration::ZERO,
            scrub: Duration::ZERO,
            ..LogOptions::default()
        };
        let log = Arc::new(EmbeddedLog::open(Arc::new(self.log.clone()), 1, &options).unwrap());
        let options = EventsOptions {
            durability: self.durability,
            in_memory: false,
            indexes: Some(Arc::new(self.indexes.clone())),
            index_memory: 1 << 20,
            keep_deleted: false,
            accept_loss: false,
        };
        let store = EmbeddedStore::open(log.clone() as Arc<dyn Log>, options).await.unwrap();
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
        self.indexes.set_faults(Faults {
            failing_syncs: 9,
            failing_writes: 40,
            failing_names: 9,
            failing_reads: 0,
        });
        Running {
            namespace: store.namespace(DEFAULT).await.unwrap(),
            store,
            log,
        }
    }
}

impl World {
    /// They are derived: a start rebuilds them from the log.
    pub fn lose_indexes(&self) {
        self.indexes.set_faults(Faults::default());
        for name in self.indexes.names().unwrap() {
            self.indexes.remove(&name).unwrap();
        }
    }

    /// Ends the process at any point of its work.
    pub async fn crash(&self, random: &mut Random) -> End {
        if random.one_in(3) {
            self.log.kill();
            self.indexes.kill();
            return End::Kill;
        }
        let life = self.log.life();
        self.log.cut_power_in(random.below(40));
        for _ in 0..200 {
            if self.log.life() != life {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if self.log.life() == life {
            self.log.power_cut();
        }
        self.indexes.power_cut();
        End::Power
    }
}

impl Running {
    /// Waits until all threads of the process have ended.
    pub async fn closed(self) {
        let log = self.log.clone();
        drop(self);
        let closing = log.clone();
        tokio::task::spawn_blocking(move || closing.close()).await.unwrap();
        // A dead process must not write or remove anything, whatever its threads were doing.
        let is_gone = async {
            while Arc::strong_count(&log) > 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let is_gone = tokio::time::timeout(Duration::from_secs(60), is_gone).await;
        is_gone.expect("nobody keeps the log of a store that was dropped");
    }
}
