//! A machine with two disks and a settable clock, and the process that runs on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::time::Duration;

use thalweg_events::{
    DEFAULT, EmbeddedStore, EventsError, EventsOptions, Namespace, NewNamespace, Scopes, Store as _, Subscriptions,
    TokenDigest,
};
use thalweg_log::clock::{Clock as _, LogClock, TimeSource};
use thalweg_log::disk::Disk as _;
use thalweg_log::disk::sim::SimDisk;
use thalweg_log::{Durability, EmbeddedLog, Log, LogError, LogOptions, Micros};

pub const SECOND: Micros = 1_000_000;
pub const DAY: Micros = 86_400 * SECOND;
const TODAY: Micros = 1_795_000_000 * SECOND;
pub const DISK_BYTES: u64 = 256 << 20;
const FILE_BYTES: u64 = 256 << 10;

/// The clocks of a process.
#[derive(Default)]
pub struct Hands {
    wall: AtomicI64,
    elapsed: AtomicI64,
}

impl TimeSource for Hands {
    fn wall(&self) -> Micros {
        self.wall.load(SeqCst)
    }

    fn elapsed(&self) -> Micros {
        self.elapsed.load(SeqCst)
    }
}

pub struct Machine {
    pub log: SimDisk,
    pub indexes: SimDisk,
    /// The wall clock while no process runs.
    pub wall: Micros,
}

pub struct Process {
    pub store: EmbeddedStore,
    pub log: Arc<EmbeddedLog>,
    pub clock: Arc<LogClock>,
    pub subscriptions: Subscriptions,
    hands: Arc<Hands>,
}

/// Why a process did not start.
#[derive(Debug)]
pub struct Refused {
    /// Before anything was written.
    pub by_log: bool,
    pub error: EventsError,
}

pub fn new_namespace(name: &str) -> NewNamespace {
    NewNamespace {
        name: name.to_owned(),
        description: String::new(),
        metadata: None,
        digest: TokenDigest::from_bytes([7; 32]),
        scopes: Scopes::ALL,
    }
}

impl Machine {
    pub fn new(seed: u64) -> Machine {
        Machine {
            log: SimDisk::new(seed, DISK_BYTES),
            indexes: SimDisk::new(seed + 7_000_000, DISK_BYTES),
            wall: TODAY,
        }
    }

    pub async fn boot(&self) -> Process {
        self.try_boot(false).await.unwrap()
    }

    /// With `skip`, damage is given up.
    pub async fn try_boot(&self, skip: bool) -> Result<Process, Refused> {
        let hands = Arc::new(Hands::default());
        hands.wall.store(self.wall, SeqCst);
        let clock = Arc::new(LogClock::new(hands.clone()));
        let options = LogOptions {
            folder: "simulated".to_owned(),
            file_bytes: FILE_BYTES,
            first_file_bytes: FILE_BYTES,
            spare: 1,
            min_free_bytes: Some(0),
            linger: Duration::ZERO,
            scrub: Duration::ZERO,
            io_bytes_per_second: 0,
            recover_skip: skip,
            clock: clock.clone(),
            ..LogOptions::default()
        };
        let log = EmbeddedLog::open(Arc::new(self.log.clone()), 1, &options).map_err(|error| Refused {
            by_log: true,
            error: error.into(),
        })?;
        let log = Arc::new(log);
        if skip {
            log.pass_over_damage();
        }
        let resumed = clock.resume(log.as_ref()).await;
        resumed.map_err(|error| Refused {
            by_log: false,
            error: error.into(),
        })?;
        let options = EventsOptions {
            durability: Durability::Fsync,
            in_memory: false,
            indexes: Some(Arc::new(self.indexes.clone())),
            index_memory: 1 << 20,
            keep_deleted: false,
            accept_loss: skip,
        };
        let opened = EmbeddedStore::open(log.clone() as Arc<dyn Log>, options).await;
        let store = opened.map_err(|error| Refused { by_log: false, error })?;
        if store.namespace(DEFAULT).await.is_err() {
            store.create(new_namespace(DEFAULT)).await.unwrap();
        }
        let subscriptions = Subscriptions::default();
        Ok(Process {
            store,
            log,
            clock,
            subscriptions,
            hands,
        })
    }

    /// A start rebuilds derived data.
    pub fn lose_indexes(&self) {
        for name in self.indexes.names().unwrap() {
            self.indexes.remove(&name).unwrap();
        }
    }

    pub fn kill(&self) {
        self.log.kill();
        self.indexes.kill();
    }

    pub fn power_cut(&self) {
        self.log.power_cut();
        self.indexes.power_cut();
    }
}

impl Process {
    pub async fn namespace(&self, name: &str) -> Arc<dyn Namespace> {
        self.store.namespace(name).await.unwrap()
    }

    /// The current log time.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    pub fn wall(&self) -> Micros {
        self.hands.wall()
    }

    pub fn pass(&self, time: Micros) {
        self.hands.wall.fetch_add(time, SeqCst);
        self.hands.elapsed.fetch_add(time, SeqCst);
    }

    /// Sets the wall clock.
    pub fn set(&self, wall: Micros) {
        self.hands.wall.store(wall, SeqCst);
    }

    /// The clock check that runs every second.
    pub async fn look(&self) -> Result<(), LogError> {
        self.clock.look(self.log.as_ref()).await.map(drop)
    }

    /// Waits until all threads of the process have ended.
    pub async fn gone(self) {
        let log = self.log.clone();
        drop(self);
        let closing = log.clone();
        tokio::task::spawn_blocking(move || closing.close()).await.unwrap();
        // A dead process must not write anything, whatever its threads were doing.
        let is_gone = async {
            while Arc::strong_count(&log) > 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let is_gone = tokio::time::timeout(Duration::from_secs(60), is_gone).await;
        is_gone.expect("nobody keeps the log of a store that was dropped");
    }
}
