//! Ends a query when queries hold more memory than they asked for.
//!
//! Operators and functions reserve what they hold before they take it. Not everything is told before: a batch that is put together
//! of wide rows, a plan, a copy within a step. So a thread looks at what really lives in the arenas of queries while some run.
//! Above the limit the query that has run the longest ends: short ones end by themselves, and one that grows beside its
//! reservations needs time to do so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::arenas;
use crate::guard::Watch;

/// Between two looks, each of which takes a tenth of a millisecond.
const INTERVAL: Duration = Duration::from_millis(20);
/// Looks that a query which was told to end has time for, before the next one is told.
const LOOKS_TO_END: u32 = 10;
/// A step copies what it has reserved at most once.
const COPIES: usize = 2;

/// The running queries. Clones are the same ones.
#[derive(Clone)]
pub struct Overflow(Arc<Shared>);

struct Shared {
    allowed: usize,
    queries: Mutex<Queries>,
    changed: Condvar,
}

#[derive(Default)]
struct Queries {
    /// By the order in which they began.
    running: BTreeMap<u64, Arc<Watch>>,
    next: u64,
    is_closed: bool,
}

impl Overflow {
    pub fn new(memory_bytes: usize) -> std::io::Result<Overflow> {
        let overflow = Overflow(Arc::new(Shared {
            allowed: memory_bytes.saturating_mul(COPIES),
            queries: Mutex::default(),
            changed: Condvar::new(),
        }));
        let watched = overflow.0.clone();
        let thread = std::thread::Builder::new().name("query-memory".to_owned());
        thread.spawn(move || watched.look())?;
        Ok(overflow)
    }

    /// A query is watched for as long as what is returned lives.
    pub fn enter(&self, watch: &Arc<Watch>) -> Watched {
        let mut queries = self.0.queries.lock();
        let number = queries.next;
        queries.next += 1;
        queries.running.insert(number, watch.clone());
        self.0.changed.notify_one();
        Watched {
            shared: self.0.clone(),
            number,
        }
    }

    /// The thread ends.
    pub fn close(&self) {
        self.0.queries.lock().is_closed = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn look(&self) {
        let mut told = 0;
        while self.wait() {
            std::thread::sleep(INTERVAL);
            told = match arenas::live() {
                Some(live) if live > self.allowed && told == 0 => self.end_oldest(live),
                _ => u32::saturating_sub(told, 1),
            };
        }
    }

    /// For a query to run; `false`: there will be none.
    fn wait(&self) -> bool {
        let mut queries = self.queries.lock();
        while queries.running.is_empty() && !queries.is_closed {
            self.changed.wait(&mut queries);
        }
        !queries.is_closed
    }

    fn end_oldest(&self, live: usize) -> u32 {
        let queries = self.queries.lock();
        match queries.running.values().find(|watch| !watch.is_outgrown()) {
            Some(oldest) => {
                tracing::warn!(
                    "queries hold {live} bytes, and {} are allowed; the one that has run the longest is ended",
                    self.allowed
                );
                oldest.outgrow(live, self.allowed);
                LOOKS_TO_END
            }
            None => 0,
        }
    }
}

pub struct Watched {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.shared.queries.lock().running.remove(&self.number);
    }
}
