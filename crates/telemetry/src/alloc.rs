//! A counting wrapper for any global allocator: the allocations and bytes requested so far, and the live bytes.
//!
//! Operators see what a message costs (`thalweg_process_allocated_bytes_total`) and whether memory is released
//! (`thalweg_process_heap_bytes`); benchmarks and soak tests of the real binary need no special build. An allocation
//! costs two relaxed additions and its release one, on a cache line that the thread shares with few others.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The configuration of the allocator, terminated by a zero byte.
///
/// `/debug/pprof/heap` shows where memory was allocated, with one sample per 2 MiB, which costs about one percent. A
/// background thread of the allocator returns freed memory to the system within seconds: query threads may not allocate
/// again for hours and would keep their freed memory until then.
pub const JEMALLOC_SETTINGS: &[u8] =
    b"prof:true,prof_active:true,lg_prof_sample:21,background_thread:true,dirty_decay_ms:2000,muzzy_decay_ms:0\0";

const SHARDS: usize = 64;

#[repr(align(128))]
struct Shard {
    allocations: AtomicU64,
    bytes: AtomicU64,
    freed: AtomicU64,
}

static COUNTS: [Shard; SHARDS] = [const {
    Shard {
        allocations: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        freed: AtomicU64::new(0),
    }
}; SHARDS];
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    // Without a destructor, so the allocator can use it at any time of a thread's life.
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

fn own() -> &'static Shard {
    let shard = SHARD
        .try_with(|own| {
            if own.get() == usize::MAX {
                own.set(NEXT.fetch_add(1, Relaxed) % SHARDS);
            }
            own.get()
        })
        .unwrap_or(0);
    &COUNTS[shard % SHARDS]
}

fn count(bytes: usize) {
    let shard = own();
    shard.allocations.fetch_add(1, Relaxed);
    shard.bytes.fetch_add(bytes as u64, Relaxed);
}

fn free(bytes: usize) {
    own().freed.fetch_add(bytes as u64, Relaxed);
}

/// The number of allocations so far and their bytes. A reallocation counts as one allocation of its new size.
pub fn allocated() -> (u64, u64) {
    COUNTS.iter().fold((0, 0), |(n, b), s| {
        (n + s.allocations.load(Relaxed), b + s.bytes.load(Relaxed))
    })
}

/// Bytes that were allocated and not freed, not counting allocations by C libraries.
pub fn live() -> u64 {
    // In this order, bytes freed in between still count as live, so the result is never too small.
    let freed: u64 = COUNTS.iter().map(|shard| shard.freed.load(Relaxed)).sum();
    allocated().1.saturating_sub(freed)
}

/// Wraps the allocator that does the work.
pub struct CountingAllocator<A>(pub A);

// SAFETY: every call is passed on unchanged to the inner allocator; counting neither allocates nor unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
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
        free(layout.size());
        // SAFETY: as above; `pointer` came from the inner allocator.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above; `pointer` came from the inner allocator.
        let moved = unsafe { self.0.realloc(pointer, layout, size) };
        // If the reallocation fails, the old block stays.
        free(if moved.is_null() { size } else { layout.size() });
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator<std::alloc::System> = CountingAllocator(std::alloc::System);

    #[test]
    fn counts_what_is_asked_for() {
        let before = allocated();
        let bytes = std::hint::black_box(vec![0u8; 1_000_000]);
        let after = allocated();
        assert!(after.0 > before.0);
        assert!(after.1 - before.1 >= bytes.len() as u64);
    }

    #[test]
    fn what_is_freed_lives_no_more_however_often_it_grew() {
        const EACH: usize = 64 << 20;
        // Other tests run in parallel and may allocate or free between the two counts.
        const OTHERS: u64 = EACH as u64 / 8;
        let before = live();
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < EACH {
            bytes.extend_from_slice(std::hint::black_box(&[0; 4096]));
        }
        let grown = live();
        assert!(grown + OTHERS >= before + EACH as u64, "{before} before, {grown} now");
        // Freed on another thread.
        let freed = std::thread::spawn(move || drop(std::hint::black_box(bytes)));
        assert!(freed.join().is_ok());
        let kept = live();
        assert!(kept < before + OTHERS, "{before} before, {kept} now");
    }
}
