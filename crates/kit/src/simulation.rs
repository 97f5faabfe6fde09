//! A machine that exists in one thread of a test: what product code asks of threads and of randomness is answered by it
//! instead, so that one seed decides a whole run. Clocks need no answer here, because such a test replaces the system calls
//! that read them.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that are coroutines of one thread, and random numbers that repeat.
pub trait SimulatedMachine {
    /// Starts a coroutine. It runs when others wait.
    fn spawn(&self, name: &str, run: Box<dyn FnOnce()>);

    /// Runs a future to its end from within a coroutine; others run meanwhile.
    fn wait(&self, future: Pin<&mut dyn Future<Output = ()>>);

    fn fill(&self, bytes: &mut [u8]);
}

/// xorshift64*: the same numbers for the same seed on every platform.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        // Similar seeds must not give similar numbers, and zero would stay zero.
        let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Random((mixed ^ (mixed >> 31)) | 1)
    }

    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`, which must not be zero.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(n.max(1))) >> 64) as u64
    }

    /// True with probability 1/`n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

thread_local! {
    static MACHINE: RefCell<Option<Rc<dyn SimulatedMachine>>> = const { RefCell::new(None) };
}

/// The number of threads with a simulated machine. Without one nobody looks at their thread's.
static MACHINES: AtomicUsize = AtomicUsize::new(0);

/// Until the guard is dropped, this thread is on a simulated machine.
pub fn enter(machine: Rc<dyn SimulatedMachine>) -> SimulationGuard {
    let before = MACHINE.with(|own| own.replace(Some(machine)));
    MACHINES.fetch_add(1, Ordering::Relaxed);
    SimulationGuard { before }
}

/// Gives the thread its real machine back.
pub struct SimulationGuard {
    before: Option<Rc<dyn SimulatedMachine>>,
}

impl Drop for SimulationGuard {
    fn drop(&mut self) {
        MACHINES.fetch_sub(1, Ordering::Relaxed);
        MACHINE.with(|own| own.replace(self.before.take()));
    }
}

#[inline]
pub(crate) fn machine() -> Option<Rc<dyn SimulatedMachine>> {
    match MACHINES.load(Ordering::Relaxed) {
        0 => None,
        _ => own_machine(),
    }
}

#[cold]
fn own_machine() -> Option<Rc<dyn SimulatedMachine>> {
    MACHINE.with(|own| own.borrow().clone())
}

/// Runs a future to its end on the simulated machine.
pub(crate) fn wait<T>(machine: &dyn SimulatedMachine, future: impl Future<Output = T>) -> T {
    let mut output = None;
    machine.wait(std::pin::pin!(async { output = Some(future.await) }));
    output.expect("a coroutine continues when its future has ended")
}
