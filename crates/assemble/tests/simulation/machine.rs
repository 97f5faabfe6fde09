//! A machine in one thread. Its threads are coroutines, its clocks stand still while anything runs and jump to the next
//! timer when everything waits, and its random numbers follow from a seed.
//!
//! The C functions that read clocks and wait for sockets are replaced in this program, for threads that are such a machine:
//! so the timers of the runtime and the clocks of every dependency are simulated without a change to any of them.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use thalweg_kit::simulation::{self, SimulatedMachine};
use thalweg_log::Micros;
use thalweg_log::clock::TimeSource;
use thalweg_log::disk::sim::Random;

/// Scripts and parsers have stacks of their own.
const STACK_BYTES: usize = 1 << 20;
/// The runtime looks for events this often, after some sixty steps each, until the run counts as a loop without an end.
const LOOKS_MAX: u32 = 100_000;
/// A run that takes longer than this goes in circles.
const DAYS_MAX: u64 = 4000;

/// What the clocks show, in nanoseconds.
#[derive(Clone, Copy)]
struct Clocks {
    /// Since the machine was built.
    elapsed: u64,
    /// The wall clock minus `elapsed`.
    wall: i64,
}

thread_local! {
    static CLOCKS: Cell<Option<Clocks>> = const { Cell::new(None) };
    /// The coroutine that runs now.
    static RUNNING: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
    static WAKER: RefCell<Option<Waker>> = const { RefCell::new(None) };
    /// Looks for events since time has passed.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// Lets time pass, as if the machine had been busy with something else.
pub fn pass(time: Duration) {
    change(|clocks| clocks.elapsed += u64::try_from(time.as_nanos()).unwrap());
}

/// Sets the wall clock forward or back.
pub fn set_wall(by: Micros) {
    change(|clocks| clocks.wall += by * 1000);
}

pub fn elapsed() -> Duration {
    Duration::from_nanos(CLOCKS.get().unwrap().elapsed)
}

/// The time for file timestamps.
pub fn file_time() -> SystemTime {
    let clocks = CLOCKS.get().unwrap();
    UNIX_EPOCH + Duration::from_nanos((clocks.elapsed as i64 + clocks.wall).unsigned_abs())
}

fn change(change: impl FnOnce(&mut Clocks)) {
    let mut clocks = CLOCKS.get().unwrap();
    change(&mut clocks);
    assert!(
        clocks.elapsed < DAYS_MAX * 86_400_000_000_000,
        "the run comes to no end"
    );
    CLOCKS.set(Some(clocks));
}

/// The clocks of the log.
pub struct MachineClocks;

impl TimeSource for MachineClocks {
    fn wall(&self) -> Micros {
        let clocks = CLOCKS.get().unwrap();
        (clocks.elapsed as i64 + clocks.wall) / 1000
    }

    fn elapsed(&self) -> Micros {
        (CLOCKS.get().unwrap().elapsed / 1000) as Micros
    }
}

struct Machine {
    random: RefCell<Random>,
    /// Stacks of coroutines that have ended.
    stacks: Rc<RefCell<Vec<DefaultStack>>>,
}

/// Runs a future on a new machine with the runtime of the product. The wall clock starts at `wall`.
pub fn run<T: 'static>(seed: u64, wall: Micros, main: impl Future<Output = T> + 'static) -> T {
    CLOCKS.set(Some(Clocks {
        elapsed: 1_000_000_000,
        wall: wall * 1000,
    }));
    let machine = Rc::new(Machine {
        random: RefCell::new(Random::new(seed)),
        stacks: Rc::default(),
    });
    let entered = simulation::enter(machine.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.unwrap();
    let result = Rc::new(RefCell::new(None));
    let own = result.clone();
    // It may block, like a thread.
    let stacks = machine.stacks.clone();
    let run = move || {
        let mut main = std::pin::pin!(main);
        machine.wait(std::pin::pin!(async { *own.borrow_mut() = Some(main.as_mut().await) }));
    };
    let main = Fiber::new(&stacks, Box::new(run));
    runtime.block_on(main);
    drop(runtime);
    drop(entered);
    CLOCKS.set(None);
    let result = result.borrow_mut().take();
    result.expect("the run has ended")
}

impl SimulatedMachine for Machine {
    fn spawn(&self, _name: &str, run: Box<dyn FnOnce()>) {
        tokio::spawn(Fiber::new(&self.stacks, run));
    }

    fn wait(&self, mut future: Pin<&mut dyn Future<Output = ()>>) {
        let coroutine = RUNNING.get();
        assert!(!coroutine.is_null(), "a task blocks the thread of the runtime");
        loop {
            let waker = WAKER.with_borrow(Clone::clone).expect("a coroutine is polled");
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(()) => return,
                // SAFETY: `RUNNING` is set while the coroutine that owns this yielder runs, and this is it.
                Poll::Pending => unsafe { &*coroutine }.suspend(()),
            }
        }
    }

    fn fill(&self, bytes: &mut [u8]) {
        let mut random = self.random.borrow_mut();
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&random.number().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// A coroutine as a task of the runtime: each poll runs it until it waits.
struct Fiber {
    coroutine: Option<Coroutine<(), (), ()>>,
    yielder: Rc<Cell<*const Yielder<(), ()>>>,
    stacks: Rc<RefCell<Vec<DefaultStack>>>,
}

// SAFETY: the runtime has one thread.
unsafe impl Send for Fiber {}

impl Fiber {
    fn new(stacks: &Rc<RefCell<Vec<DefaultStack>>>, run: Box<dyn FnOnce()>) -> Fiber {
        let stack = stacks.borrow_mut().pop();
        let stack = stack.unwrap_or_else(|| DefaultStack::new(STACK_BYTES).unwrap());
        let yielder = Rc::new(Cell::new(std::ptr::null()));
        let own = yielder.clone();
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            own.set(yielder);
            RUNNING.set(yielder);
            run();
        });
        Fiber {
            coroutine: Some(coroutine),
            yielder,
            stacks: stacks.clone(),
        }
    }
}

impl Future for Fiber {
    type Output = ();

    fn poll(self: Pin<&mut Fiber>, context: &mut Context<'_>) -> Poll<()> {
        let fiber = self.get_mut();
        let coroutine = fiber.coroutine.as_mut().expect("an ended coroutine is not polled");
        WAKER.set(Some(context.waker().clone()));
        RUNNING.set(fiber.yielder.get());
        let result = coroutine.resume(());
        RUNNING.set(std::ptr::null());
        match result {
            CoroutineResult::Yield(()) => Poll::Pending,
            CoroutineResult::Return(()) => {
                let ended = fiber.coroutine.take().map(Coroutine::into_stack);
                fiber.stacks.borrow_mut().extend(ended);
                Poll::Ready(())
            }
        }
    }
}

/// Replaces the C function.
///
/// # Safety
///
/// As for the C function: `time` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    let Some(clocks) = CLOCKS.get() else {
        // SAFETY: the caller's promise.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as libc::c_int };
    };
    let nanos = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => clocks.elapsed as i64 + clocks.wall,
        _ => clocks.elapsed as i64,
    };
    let shown = libc::timespec {
        tv_sec: nanos.div_euclid(1_000_000_000),
        tv_nsec: nanos.rem_euclid(1_000_000_000),
    };
    // SAFETY: the caller's promise.
    unsafe { time.write(shown) };
    0
}

/// A panic cannot leave a C function.
fn give_up(why: &str) -> ! {
    let thread = std::thread::current();
    eprintln!("{}: {why}", thread.name().unwrap_or_default());
    std::process::abort()
}

/// Replaces the C function: when nothing is ready, time passes at once.
///
/// # Safety
///
/// As for the C function: `events` has room for `most` events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(
    poll: libc::c_int,
    events: *mut libc::epoll_event,
    most: libc::c_int,
    timeout: libc::c_int,
) -> libc::c_int {
    let no_signals = std::ptr::null::<libc::sigset_t>();
    let wait = |timeout: libc::c_int| {
        // SAFETY: the caller's promise.
        unsafe { libc::syscall(libc::SYS_epoll_pwait, poll, events, most, timeout, no_signals, 8) as libc::c_int }
    };
    if CLOCKS.get().is_none() {
        return wait(timeout);
    }
    LOOKS.set(LOOKS.get() + 1);
    if LOOKS.get() > LOOKS_MAX {
        give_up("something is done again and again, and time does not pass: a livelock");
    }
    match wait(0) {
        0 if timeout > 0 => {
            LOOKS.set(0);
            change(|clocks| clocks.elapsed += u64::from(timeout.unsigned_abs()) * 1_000_000);
            0
        }
        0 if timeout < 0 => give_up("every task and every thread waits, and no timer is set: a deadlock"),
        ready => ready,
    }
}
