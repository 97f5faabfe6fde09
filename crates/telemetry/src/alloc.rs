//! A counting layer over any global allocator: how many allocations and bytes the process has asked for so far.
//!
//! Operators see from it what a message costs (`thalweg_process_allocated_bytes_total`), and benchmarks of the real
//! binary need no special build. The cost is two relaxed additions to a cache line that the thread shares with few others.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// How the program sets its allocator, ended by a zero.
///
/// `/debug/pprof/heap` tells where memory was asked for: one sample per 2 MiB, which costs about one percent. What was freed goes
/// back to the system within seconds, by a thread of the allocator: threads of queries may not ask for memory again for hours,
/// and until then what they freed would be kept.
pub const JEMALLOC_SETTINGS: &[u8] =
    b"prof:true,prof_active:true,lg_prof_sample:21,background_thread:true,dirty_decay_ms:2000,muzzy_decay_ms:0\0";

const SHARDS: usize = 64;

#[repr(align(128))]
struct Shard {
    allocations: AtomicU64,
    bytes: AtomicU64,
}

static COUNTS: [Shard; SHARDS] = [const {
    Shard {
        allocations: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    }
}; SHARDS];
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    // Without a destructor, so that it may be used from within the allocator at any time of a thread's life.
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn count(bytes: usize) {
    let shard = SHARD
        .try_with(|own| {
            if own.get() == usize::MAX {
                own.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
            }
            own.get()
        })
        .unwrap_or(0);
    let shard = &COUNTS[shard % SHARDS];
    shard.allocations.fetch_add(1, Relaxed);
    shard.bytes.fetch_add(bytes as u64, Relaxed);
}

/// Allocations so far, and the bytes asked for by them. A reallocation counts as one allocation of its new size.
pub fn allocated() -> (u64, u64) {
    COUNTS.iter().fold((0, 0), |(n, b), s| {
        (n + s.allocations.load(Relaxed), b + s.bytes.load(Relaxed))
    })
}

/// Wraps the allocator that does the work.
pub struct Counting<A>(pub A);

// SAFETY: every call is passed on unchanged to the inner allocator; counting neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is passed on.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from the inner allocator.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above; `pointer` came from the inner allocator.
        unsafe { self.0.realloc(pointer, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: Counting<std::alloc::System> = Counting(std::alloc::System);

    #[test]
    fn counts_what_is_asked_for() {
        let before = allocated();
        let bytes = std::hint::black_box(vec![0u8; 1_000_000]);
        let after = allocated();
        assert!(after.0 > before.0);
        assert!(after.1 - before.1 >= bytes.len() as u64);
    }
}
