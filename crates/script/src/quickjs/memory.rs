//! The memory of one QuickJS runtime: every block is allocated here, counted against a limit, and listed.
//!
//! Because every block is listed, a runtime that ran out of time or memory is discarded as a whole, without running its
//! own clean-up on half-finished state (which aborts the process if a single reference is left over). And because the
//! limit is enforced here, a script that catches the out-of-memory error is still known to have reached it.
//!
//! A call that is overdue gets no more blocks: QuickJS checks the time between steps of a script, and a built-in
//! function that creates texts, lists or big integers is a single step.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::ptr;

use rquickjs::qjs;

use crate::CallWatch;

/// Precedes every block and links the blocks into a ring. 32 bytes keep the block aligned.
#[repr(C)]
struct Header {
    prev: *mut Header,
    next: *mut Header,
    size: usize,
    _pad: usize,
}

const HEADER: usize = size_of::<Header>();
const ALIGN: usize = 16;
const _: () = assert!(HEADER.is_multiple_of(ALIGN));

/// The blocks of one runtime. Boxed, because the runtime and the blocks point to it.
pub(super) struct Memory {
    ring: UnsafeCell<Header>,
    used: Cell<usize>,
    limit: usize,
    exhausted: Cell<bool>,
    watch: CallWatch,
}

impl Memory {
    pub fn new(limit: usize, watch: CallWatch) -> Box<Memory> {
        let ring = Header {
            prev: ptr::null_mut(),
            next: ptr::null_mut(),
            size: 0,
            _pad: 0,
        };
        let memory = Box::new(Memory {
            ring: UnsafeCell::new(ring),
            used: Cell::new(0),
            limit,
            exhausted: Cell::new(false),
            watch,
        });
        let head = memory.ring.get();
        // SAFETY: nothing else refers to the ring yet.
        unsafe {
            (*head).prev = head;
            (*head).next = head;
        }
        memory
    }

    pub fn functions() -> qjs::JSMallocFunctions {
        qjs::JSMallocFunctions {
            js_calloc: Some(calloc),
            js_malloc: Some(malloc),
            js_free: Some(free),
            js_realloc: Some(resize),
            js_malloc_usable_size: Some(usable_size),
        }
    }

    pub fn as_opaque(&self) -> *mut c_void {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Whether an allocation was ever refused because of the limit.
    pub fn exhausted(&self) -> bool {
        self.exhausted.get()
    }

    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// Whether `more` bytes fit, and there is time to use them. A refusal because of the limit is remembered.
    fn admits(&self, more: usize) -> bool {
        if self.watch.is_overdue() {
            return false;
        }
        let fits = self.used.get().saturating_add(more) <= self.limit;
        if !fits {
            self.exhausted.set(true);
        }
        fits
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let head = self.ring.get();
        // SAFETY: every entry of the ring is a live block that `adopt` put there; the runtime that used it is gone.
        unsafe {
            let mut at = (*head).next;
            while at != head {
                let next = (*at).next;
                dealloc(at.cast(), layout((*at).size));
                at = next;
            }
        }
    }
}

fn layout(size: usize) -> Layout {
    // `checked_layout` accepted the size when the block was allocated.
    Layout::from_size_align(size + HEADER, ALIGN).unwrap_or(Layout::new::<Header>())
}

fn checked_layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEADER)?, ALIGN).ok()
}

/// Puts a fresh block into the ring and returns its usable part.
///
/// # Safety
/// `raw` is null or a new allocation of `layout(size)`.
unsafe fn adopt(memory: &Memory, raw: *mut u8, size: usize) -> *mut c_void {
    if raw.is_null() {
        return ptr::null_mut();
    }
    let header: *mut Header = raw.cast();
    let head = memory.ring.get();
    // SAFETY: the ring is a closed list of live headers; `header` is new. Only the owning thread touches it.
    unsafe {
        let first = (*head).next;
        header.write(Header {
            prev: head,
            next: first,
            size,
            _pad: 0,
        });
        (*first).prev = header;
        (*head).next = header;
        memory.used.set(memory.used.get() + size + HEADER);
        raw.add(HEADER).cast()
    }
}

/// # Safety
/// `opaque` is what [`Memory::as_opaque`] returned, and the memory is alive.
unsafe fn memory<'a>(opaque: *mut c_void) -> &'a Memory {
    // SAFETY: by contract.
    unsafe { &*opaque.cast::<Memory>() }
}

unsafe extern "C" fn malloc(opaque: *mut c_void, size: qjs::size_t) -> *mut c_void {
    let size = size as usize;
    // SAFETY: QuickJS passes the opaque pointer it was created with; the layout is not empty.
    unsafe {
        let memory = memory(opaque);
        match checked_layout(size) {
            Some(layout) if memory.admits(layout.size()) => adopt(memory, alloc(layout), size),
            _ => ptr::null_mut(),
        }
    }
}

unsafe extern "C" fn calloc(opaque: *mut c_void, count: qjs::size_t, size: qjs::size_t) -> *mut c_void {
    let Some(size) = (count as usize).checked_mul(size as usize) else {
        return ptr::null_mut();
    };
    // SAFETY: as in `malloc`.
    unsafe {
        let memory = memory(opaque);
        match checked_layout(size) {
            Some(layout) if memory.admits(layout.size()) => adopt(memory, alloc_zeroed(layout), size),
            _ => ptr::null_mut(),
        }
    }
}

unsafe extern "C" fn free(opaque: *mut c_void, block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: QuickJS frees only blocks it got from here, once.
    unsafe {
        let memory = memory(opaque);
        let header: *mut Header = block.cast::<u8>().sub(HEADER).cast();
        let size = (*header).size;
        (*(*header).prev).next = (*header).next;
        (*(*header).next).prev = (*header).prev;
        memory.used.set(memory.used.get() - size - HEADER);
        dealloc(header.cast(), layout(size));
    }
}

unsafe extern "C" fn resize(opaque: *mut c_void, block: *mut c_void, size: qjs::size_t) -> *mut c_void {
    let size = size as usize;
    if block.is_null() {
        // SAFETY: same contract.
        return unsafe { malloc(opaque, size as qjs::size_t) };
    }
    // SAFETY: `block` came from here; its header contains the size of its layout.
    unsafe {
        let memory = memory(opaque);
        let old: *mut Header = block.cast::<u8>().sub(HEADER).cast();
        let old_size = (*old).size;
        let Some(new_layout) = checked_layout(size) else {
            return ptr::null_mut();
        };
        if size > old_size && !memory.admits(size - old_size) {
            return ptr::null_mut();
        }
        let new: *mut Header = realloc(old.cast(), layout(old_size), new_layout.size()).cast();
        if new.is_null() {
            return ptr::null_mut();
        }
        (*new).size = size;
        (*(*new).prev).next = new;
        (*(*new).next).prev = new;
        memory.used.set(memory.used.get() - old_size + size);
        new.cast::<u8>().add(HEADER).cast()
    }
}

unsafe extern "C" fn usable_size(block: *const c_void) -> qjs::size_t {
    if block.is_null() {
        return 0;
    }
    // SAFETY: `block` came from here, so a header precedes it.
    unsafe { (*block.cast::<u8>().sub(HEADER).cast::<Header>()).size as qjs::size_t }
}
