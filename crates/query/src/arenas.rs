//! The memory of query threads: arenas of the allocator that only they use.
//!
//! The allocator keeps what a thread freed for whoever asks in the same arena, and gives it back to the system after some seconds.
//! With the arenas of all threads, queries that follow each other find theirs empty while others still hold what earlier queries
//! freed, and the process has the sum of them. Query threads share few arenas instead: what one query freed the next one uses,
//! and what nobody asks for is given back after [`DECAY_MS`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tikv_jemalloc_ctl::{epoch, raw};

/// Large values are taken under a lock of their arena.
const CORES_PER_ARENA: usize = 4;
/// What a query freed is there for the next one of a page that asks for several. Pages that were given back are made anew with each
/// touch: with 100 ms, a sort in a loop takes a sixth more.
const DECAY_MS: isize = 250;

/// An arena cannot be taken back, so all engines of a process have the same ones.
static ARENAS: OnceLock<Vec<u32>> = OnceLock::new();
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// From now on this thread asks for memory in an arena of queries. With an allocator that has none, nothing changes.
pub fn enter() {
    let arenas = ARENAS.get_or_init(create);
    let thread = THREADS.fetch_add(1, Ordering::Relaxed);
    if let Some(arena) = arenas.get(thread % arenas.len().max(1)) {
        // SAFETY: the allocator reads a number of 32 bits under this name.
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
    // SAFETY: the allocator writes a number of 32 bits under this name.
    let arena: u32 = unsafe { raw::read(b"arenas.create\0") }.ok()?;
    let decay = format!("arena.{arena}.dirty_decay_ms\0");
    // SAFETY: the allocator reads a signed number of the size of a pointer under this name.
    unsafe { raw::write(decay.as_bytes(), DECAY_MS) }.ok()?;
    Some(arena)
}

/// Bytes that live in the arenas of queries, whoever asked for them; `None` with an allocator that has none.
pub fn live() -> Option<usize> {
    let arenas = ARENAS.get().filter(|arenas| !arenas.is_empty())?;
    // Figures are of the last time that this was asked for.
    epoch::advance().ok()?;
    let one = |arena: &u32| Some(number(*arena, "small")? + number(*arena, "large")?);
    arenas.iter().map(one).sum()
}

fn number(arena: u32, kind: &str) -> Option<usize> {
    let name = format!("stats.arenas.{arena}.{kind}.allocated\0");
    // SAFETY: the allocator writes a number of the size of a pointer under this name.
    unsafe { raw::read(name.as_bytes()) }.ok()
}
