//! Load on a broker, and what it does with it: the rows of the benchmark. Publishers and subscribers speak bytes as any client does,
//! so that the broker may be any broker.

mod client;
mod row;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_kit::clock;
use thalweg_mqtt_wire::QoS;
use tokio::sync::{Semaphore, watch};

use client::LoadClient;
pub use row::{LOAD_ROWS, LoadRow};

/// What to measure.
#[derive(Clone, Debug)]
pub struct LoadSpec {
    pub address: SocketAddr,
    /// Bytes of a payload, at least 8.
    pub size: usize,
    pub warm_up: Duration,
    pub time: Duration,
}

/// What a broker did.
#[derive(Clone, Debug, Default)]
pub struct LoadReport {
    pub seconds: f64,
    pub published: u64,
    pub delivered: u64,
    /// Nanoseconds from publish to delivery, sorted: a sample of them.
    pub latencies: Vec<u64>,
}

impl LoadReport {
    /// The latency below which this share of the deliveries was, in microseconds.
    pub fn latency(&self, share: f64) -> f64 {
        let last = self.latencies.len().saturating_sub(1);
        let at = (last as f64 * share).round() as usize;
        self.latencies.get(at).map_or(0.0, |nanos| *nanos as f64 / 1e3)
    }
}

/// Why a load cannot be put on a broker.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot speak to the broker at {address}: {error}")]
    Io { address: SocketAddr, error: std::io::Error },
    #[error("the broker at {0} did not answer as expected: {1}")]
    Refused(SocketAddr, String),
}

/// What all clients of a run share.
struct LoadState {
    start: std::time::Instant,
    is_over: AtomicBool,
    published: AtomicU64,
    delivered: AtomicU64,
    latencies: Mutex<Vec<u64>>,
    /// Messages of QoS 0 that may be under way.
    outstanding: Semaphore,
    /// Deliveries that each message of QoS 0 has.
    fan_out: u64,
    is_qos0: bool,
    stop: watch::Sender<bool>,
}

/// Latencies that are kept.
const SAMPLES: usize = 2_000_000;

impl LoadState {
    fn nanos(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Notes deliveries that came together, by the times at which they were published.
    fn delivered(&self, published_at: &[u64]) {
        let count = published_at.len() as u64;
        let before = self.delivered.fetch_add(count, Ordering::Relaxed);
        if self.is_qos0 {
            // A message is under way until its last receiver has it.
            let done = (before + count) / self.fan_out - before / self.fan_out;
            self.outstanding.add_permits(done as usize);
        }
        let now = self.nanos();
        let mut latencies = self.latencies.lock();
        if latencies.len() < SAMPLES {
            latencies.extend(published_at.iter().map(|at| now.saturating_sub(*at)));
        }
    }
}

/// Puts the load of a row on a broker, with a thread for publishers and one for subscribers. Blocks.
pub fn run(row: &LoadRow, spec: &LoadSpec) -> Result<LoadReport, LoadError> {
    let state = Arc::new(LoadState {
        start: clock::now(),
        is_over: AtomicBool::new(false),
        published: AtomicU64::new(0),
        delivered: AtomicU64::new(0),
        latencies: Mutex::default(),
        outstanding: Semaphore::new(row.outstanding),
        fan_out: row.subscribers as u64,
        is_qos0: row.qos == QoS::AtMostOnce,
        stop: watch::Sender::new(false),
    });
    let subscribers = LoadThread::start(
        "load-subscribers",
        state.clone(),
        *row,
        spec.clone(),
        LoadSide::Subscribers,
    )?;
    subscribers.wait_ready()?;
    let publishers = LoadThread::start(
        "load-publishers",
        state.clone(),
        *row,
        spec.clone(),
        LoadSide::Publishers,
    )?;
    publishers.wait_ready()?;
    thalweg_kit::threads::sleep(spec.warm_up);
    state.latencies.lock().clear();
    let counts = || {
        (
            state.published.load(Ordering::Relaxed),
            state.delivered.load(Ordering::Relaxed),
        )
    };
    let (before, begin) = (counts(), clock::now());
    thalweg_kit::threads::sleep(spec.time);
    let (after, seconds) = (counts(), begin.elapsed().as_secs_f64());
    let mut latencies = std::mem::take(&mut *state.latencies.lock());
    state.is_over.store(true, Ordering::Relaxed);
    state.stop.send_replace(true);
    publishers.join()?;
    subscribers.join()?;
    latencies.sort_unstable();
    Ok(LoadReport {
        seconds,
        published: after.0 - before.0,
        delivered: after.1 - before.1,
        latencies,
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LoadSide {
    Publishers,
    Subscribers,
}

struct LoadThread {
    ready: std::sync::mpsc::Receiver<()>,
    thread: thalweg_kit::threads::JoinHandle<Result<(), LoadError>>,
    address: SocketAddr,
}

impl LoadThread {
    fn start(
        name: &str,
        state: Arc<LoadState>,
        row: LoadRow,
        spec: LoadSpec,
        side: LoadSide,
    ) -> Result<LoadThread, LoadError> {
        let (tell, ready) = std::sync::mpsc::channel();
        let address = spec.address;
        let io = move |error| LoadError::Io { address, error };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(io)?;
        let thread = thalweg_kit::threads::spawn(name, move || {
            runtime.block_on(async move {
                let count = if side == LoadSide::Publishers {
                    row.publishers
                } else {
                    row.subscribers
                };
                let mut clients = Vec::with_capacity(count);
                for n in 0..count {
                    let mut client = LoadClient::connect(&row, &spec, n, side == LoadSide::Subscribers).await?;
                    if side == LoadSide::Subscribers {
                        client.subscribe(&row).await?;
                    }
                    clients.push(client);
                }
                // Nobody waits for it if the run has failed.
                let _ = tell.send(());
                let tasks: Vec<_> = clients
                    .into_iter()
                    .map(|client| {
                        let (state, size) = (state.clone(), spec.size);
                        tokio::spawn(async move {
                            match side {
                                LoadSide::Publishers => client.publish(state, row, size).await,
                                LoadSide::Subscribers => client.receive(state).await,
                            }
                        })
                    })
                    .collect();
                for task in tasks {
                    if let Ok(outcome) = task.await {
                        outcome?;
                    }
                }
                Ok(())
            })
        });
        let thread = thread.map_err(io)?;
        Ok(LoadThread { ready, thread, address })
    }

    fn wait_ready(&self) -> Result<(), LoadError> {
        self.ready
            .recv_timeout(Duration::from_secs(60))
            .map_err(|_| LoadError::Refused(self.address, "its clients did not get ready within a minute".to_owned()))
    }

    fn join(self) -> Result<(), LoadError> {
        let address = self.address;
        self.thread
            .join()
            .unwrap_or_else(|_| Err(LoadError::Refused(address, "a thread of the load panicked".to_owned())))
    }
}
