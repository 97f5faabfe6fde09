//! Ends a query when queries use more memory than they reserved.
//!
//! Operators and functions reserve memory before they allocate it, but some use is not reserved: a batch assembled from
//! wide rows, a plan, a copy within a step. While queries run, a thread therefore checks how much memory is live in the
//! query arenas. Above the limit it ends the query that has run the longest: short queries end by themselves, and one
//! that grows beyond its reservations needs time to do so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_kit::threads::{self, Condvar};

use crate::arenas;
use crate::guard::QueryCancellation;

/// Time between checks, each of which takes 0.1 ms.
const INTERVAL: Duration = Duration::from_millis(20);
/// Checks to wait for a cancelled query to end before the next one is cancelled.
const LOOKS_TO_END: u32 = 10;
/// A step may copy this fraction of what it has reserved.
const COPIED_PART: usize = 2;
/// File reads and table metadata are not reserved.
const READING_BYTES: usize = 64 << 20;

/// The limit of all engines in this process, which share the arenas. Only tests have several engines.
static ALLOWED: AtomicUsize = AtomicUsize::new(0);

/// The running queries. Clones share them.
#[derive(Clone)]
pub struct MemoryWatchdog(Arc<WatchdogState>);

struct WatchdogState {
    /// The share of this engine.
    share: usize,
    live: fn() -> Option<usize>,
    queries: Mutex<Queries>,
    changed: Condvar,
}

#[derive(Default)]
struct Queries {
    /// In the order in which they began.
    running: BTreeMap<u64, Arc<QueryCancellation>>,
    next: u64,
    is_closed: bool,
}

impl MemoryWatchdog {
    pub fn new(memory_bytes: usize, cache_bytes: usize) -> std::io::Result<MemoryWatchdog> {
        let share = memory_bytes
            .saturating_add(memory_bytes / COPIED_PART)
            .saturating_add(cache_bytes + READING_BYTES);
        MemoryWatchdog::of(share, arenas::live)
    }

    fn of(share: usize, live: fn() -> Option<usize>) -> std::io::Result<MemoryWatchdog> {
        let overflow = MemoryWatchdog(Arc::new(WatchdogState {
            share,
            live,
            queries: Mutex::default(),
            changed: Condvar::new(),
        }));
        let watched = overflow.0.clone();
        threads::spawn("query-memory", move || watched.look())?;
        ALLOWED.fetch_add(share, Ordering::Relaxed);
        Ok(overflow)
    }

    /// Watches a query until the registration is dropped.
    pub fn enter(&self, watch: &Arc<QueryCancellation>) -> WatchdogRegistration {
        let mut queries = self.0.queries.lock();
        let number = queries.next;
        queries.next += 1;
        queries.running.insert(number, watch.clone());
        self.0.changed.notify_one();
        WatchdogRegistration {
            shared: self.0.clone(),
            number,
        }
    }

    /// Ends the thread.
    pub fn close(&self) {
        let was_closed = std::mem::replace(&mut self.0.queries.lock().is_closed, true);
        if !was_closed {
            ALLOWED.fetch_sub(self.0.share, Ordering::Relaxed);
        }
        self.0.changed.notify_one();
    }
}

impl WatchdogState {
    fn look(&self) {
        let mut told = 0;
        while self.wait() {
            threads::sleep(INTERVAL);
            let allowed = ALLOWED.load(Ordering::Relaxed);
            told = match (self.live)() {
                Some(live) if live > allowed && told == 0 => self.end_oldest(live, allowed),
                _ => u32::saturating_sub(told, 1),
            };
        }
    }

    /// Waits for a query to run; `false` if there will be none.
    fn wait(&self) -> bool {
        let mut queries = self.queries.lock();
        while queries.running.is_empty() && !queries.is_closed {
            self.changed.wait(&mut queries);
        }
        !queries.is_closed
    }

    fn end_oldest(&self, live: usize, allowed: usize) -> u32 {
        let queries = self.queries.lock();
        match queries.running.values().find(|watch| !watch.is_outgrown()) {
            Some(oldest) => {
                tracing::warn!(
                    "queries hold {live} bytes, and {allowed} are allowed; the one that has run the longest is ended"
                );
                oldest.outgrow(live, allowed);
                LOOKS_TO_END
            }
            None => 0,
        }
    }
}

pub struct WatchdogRegistration {
    shared: Arc<WatchdogState>,
    number: u64,
}

impl Drop for WatchdogRegistration {
    fn drop(&mut self) {
        self.shared.queries.lock().running.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> Arc<QueryCancellation> {
        Arc::new(QueryCancellation::new(Duration::from_secs(60)))
    }

    static LIVE: AtomicUsize = AtomicUsize::new(0);

    #[tokio::test]
    async fn the_query_that_has_run_the_longest_ends_when_queries_hold_too_much() {
        let overflow = MemoryWatchdog::of(1 << 20, || Some(LIVE.load(Ordering::Relaxed))).unwrap();
        let (first, second) = (watch(), watch());
        let (of_first, _second) = (overflow.enter(&first), overflow.enter(&second));
        assert!(first.check().is_ok());
        LIVE.store(usize::MAX, Ordering::Relaxed);
        let error = first.outgrown().await;
        assert_eq!((error.code(), error.status()), ("query.memory", 503));
        let cure = "bytes are allowed; this one has run the longest; ask for less or raise query.memory)";
        assert!(error.message.ends_with(cure), "{error}");
        assert!(first.check().is_err() && second.check().is_ok());
        // The cancelled query ends; the next one continues unless memory is still over the limit.
        drop(of_first);
        second.outgrown().await;
        overflow.close();
    }

    #[test]
    fn what_query_threads_hold_is_told_and_no_more_once_it_is_freed() {
        const HELD: usize = 64 << 20;
        let (send, held) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            arenas::enter();
            let _ = send.send(std::hint::black_box(vec![1_u8; HELD]));
        });
        let held = held.recv().unwrap();
        assert!(arenas::live().unwrap() >= HELD);
        drop(held);
        // Other tests also have query threads.
        assert!(arenas::live().unwrap() < 16 * HELD);
    }
}
