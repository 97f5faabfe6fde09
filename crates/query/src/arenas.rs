//! Gives query threads their own allocator arenas.
//!
//! The allocator caches freed memory for threads of the same arena and returns it to the system after some seconds. If
//! queries used the arenas of all threads, consecutive queries would often start in an empty arena while others still
//! cache what earlier queries freed, and the process would keep the sum of them. Query threads therefore share a few
//! arenas: the next query reuses what the last one freed, and unused memory is returned after [`DECAY_MS`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tikv_jemalloc_ctl::{epoch, raw};

/// Large allocations take a lock of their arena.
const CORES_PER_ARENA: usize = 4;
/// Freed memory stays available for the next query of a page that sends several. Each page that was returned to the
/// system faults again on first use: with 100 ms, repeated sorts take a sixth longer.
const DECAY_MS: isize = 250;

/// An arena cannot be destroyed, so all engines of a process share them.
static ARENAS: OnceLock<Vec<u32>> = OnceLock::new();
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Moves this thread to a query arena. Does nothing if the allocator has no arenas.
pub fn enter() {
    let arenas = ARENAS.get_or_init(create);
    let thread = THREADS.fetch_add(1, Ordering::Relaxed);
    if let Some(arena) = arenas.get(thread % arenas.len().max(1)) {
        // SAFETY: under this name the allocator reads a 32-bit number.
        let entered = unsafe { raw::write(b"thread.arena\0", *arena) };
        if let Err(error) = entered {
            tracing::debug!("a query thread stays in the arena of all threads: {error}");
        }
    }
}

fn create() -> Vec<u32> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (0..cores.div_ceil(CORES_PER_ARENA)).map_while(|_| arena()).collect()
}

fn arena() -> Option<u32> {
    // SAFETY: under this name the allocator writes a 32-bit number.
    let arena: u32 = unsafe { raw::read(b"arenas.create\0") }.ok()?;
    let decay = format!("arena.{arena}.dirty_decay_ms\0");
    // SAFETY: under this name the allocator reads a signed number of pointer size.
    unsafe { raw::write(decay.as_bytes(), DECAY_MS) }.ok()?;
    Some(arena)
}

/// Bytes allocated in query arenas, by any thread; `None` if the allocator has no arenas.
pub fn live() -> Option<usize> {
    let arenas = ARENAS.get().filter(|arenas| !arenas.is_empty())?;
    // Statistics date from the last epoch.
    epoch::advance().ok()?;
    let one = |arena: &u32| Some(number(*arena, "small")? + number(*arena, "large")?);
    arenas.iter().map(one).sum()
}

fn number(arena: u32, kind: &str) -> Option<usize> {
    let name = format!("stats.arenas.{arena}.{kind}.allocated\0");
    // SAFETY: under this name the allocator writes a number of pointer size.
    unsafe { raw::read(name.as_bytes()) }.ok()
}
