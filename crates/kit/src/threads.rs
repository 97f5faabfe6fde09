//! Threads that can become coroutines of a simulated run, and what they wait with.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, Result, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{MutexGuard, WaitTimeoutResult};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::{clock, simulation};

/// Starts a thread. The system cuts its name after 15 bytes.
pub fn spawn<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    start(Builder::new(), name.into(), run)
}

/// Like [`spawn`], with a stack of this many bytes.
pub fn spawn_with_stack<T: Send + 'static>(
    name: impl Into<String>,
    stack_bytes: usize,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    start(Builder::new().stack_size(stack_bytes), name.into(), run)
}

#[allow(clippy::disallowed_methods, reason = "this is the replacement")]
fn start<T: Send + 'static>(
    builder: Builder,
    name: String,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let Some(machine) = simulation::machine() else {
        return builder
            .name(name)
            .spawn(run)
            .map(|thread| JoinHandle(Joined::Thread(thread)));
    };
    let (sender, receiver) = oneshot::channel();
    let run = move || {
        // Nobody may be interested.
        let _ = sender.send(catch_unwind(AssertUnwindSafe(run)));
    };
    machine.spawn(&name, Box::new(run));
    Ok(JoinHandle(Joined::Coroutine(receiver)))
}

/// Starts a thread that may borrow what outlives the scope. Fails on a simulated machine, where the caller does the
/// work itself or passes on the error: a coroutine cannot borrow, and the thread would run beside the machine.
#[allow(clippy::disallowed_methods, reason = "this is the replacement")]
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    match simulation::machine() {
        None => Builder::new().name(name.into()).spawn_scoped(scope, run),
        Some(_) => Err(io::Error::other("a simulated machine has no threads that borrow")),
    }
}

/// Runs a computation on a thread with a stack of this many bytes, and waits for its end. `None` if the thread could not
/// be started, or if it panicked.
///
/// It is a thread of the system in a simulated run, too. Nothing differs there, because the caller waits, as long as
/// the computation reads neither clocks nor random numbers.
#[allow(clippy::disallowed_methods, reason = "this is the replacement")]
pub fn run_with_stack<T: Send>(stack_bytes: usize, run: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = Builder::new().stack_size(stack_bytes).spawn_scoped(scope, run);
        thread.ok()?.join().ok()
    })
}

/// The right to wait for the end of a thread.
pub struct JoinHandle<T>(Joined<T>);

enum Joined<T> {
    Thread(std::thread::JoinHandle<T>),
    Coroutine(oneshot::Receiver<Result<T>>),
}

impl<T> JoinHandle<T> {
    /// Waits for the end of the thread. Its panic is the error.
    pub fn join(self) -> Result<T> {
        match self.0 {
            Joined::Thread(thread) => thread.join(),
            Joined::Coroutine(receiver) => {
                let machine = simulation::machine().expect("a coroutine is joined by another one");
                let ended = simulation::wait(machine.as_ref(), receiver);
                ended.unwrap_or_else(|_| Err(Box::new("the simulated machine has ended")))
            }
        }
    }

    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Joined::Thread(thread) => thread.is_finished(),
            Joined::Coroutine(receiver) => !receiver.is_empty() || receiver.is_terminated(),
        }
    }
}

/// Blocks this thread for some time.
#[allow(clippy::disallowed_methods, reason = "this is the replacement")]
pub fn sleep(time: Duration) {
    match simulation::machine() {
        None => std::thread::sleep(time),
        Some(machine) => simulation::wait(machine.as_ref(), tokio::time::sleep(time)),
    }
}

/// Runs a future to its end on a thread that does not belong to the runtime.
#[allow(clippy::disallowed_methods, reason = "this is the replacement")]
pub fn block_on<T>(runtime: &Handle, future: impl Future<Output = T>) -> T {
    match simulation::machine() {
        None => runtime.block_on(future),
        Some(machine) => simulation::wait(machine.as_ref(), future),
    }
}

/// A condition variable for the mutexes of `parking_lot`. Waits may end without a notification.
#[derive(Default)]
#[allow(clippy::disallowed_types, reason = "this is the replacement")]
pub struct Condvar {
    threads: parking_lot::Condvar,
    /// In a simulated run.
    coroutines: Notify,
}

#[allow(clippy::disallowed_types, reason = "this is the replacement")]
impl Condvar {
    pub const fn new() -> Condvar {
        Condvar {
            threads: parking_lot::Condvar::new(),
            coroutines: Notify::const_new(),
        }
    }

    #[inline]
    pub fn notify_one(&self) {
        match simulation::machine() {
            None => drop(self.threads.notify_one()),
            Some(_) => self.coroutines.notify_one(),
        }
    }

    #[inline]
    pub fn notify_all(&self) {
        match simulation::machine() {
            None => drop(self.threads.notify_all()),
            Some(_) => self.coroutines.notify_waiters(),
        }
    }

    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        match simulation::machine() {
            None => self.threads.wait(guard),
            Some(machine) => drop(self.wait_simulated(machine.as_ref(), guard, None)),
        }
    }

    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> TimedWait {
        match simulation::machine() {
            None => TimedWait::of(self.threads.wait_for(guard, time)),
            Some(machine) => self.wait_simulated(machine.as_ref(), guard, Some(time)),
        }
    }

    pub fn wait_until<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> TimedWait {
        match simulation::machine() {
            None => TimedWait::of(self.threads.wait_until(guard, until)),
            Some(machine) => {
                let time = until.saturating_duration_since(clock::now());
                self.wait_simulated(machine.as_ref(), guard, Some(time))
            }
        }
    }

    #[cold]
    fn wait_simulated<T: ?Sized>(
        &self,
        machine: &dyn simulation::SimulatedMachine,
        guard: &mut MutexGuard<'_, T>,
        time: Option<Duration>,
    ) -> TimedWait {
        let notified = self.coroutines.notified();
        MutexGuard::unlocked(guard, || {
            let timed_out = match time {
                None => {
                    simulation::wait(machine, notified);
                    false
                }
                Some(time) => simulation::wait(machine, tokio::time::timeout(time, notified)).is_err(),
            };
            TimedWait { timed_out }
        })
    }
}

/// How a wait of limited length ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedWait {
    timed_out: bool,
}

impl TimedWait {
    fn of(result: WaitTimeoutResult) -> TimedWait {
        TimedWait {
            timed_out: result.timed_out(),
        }
    }

    pub fn timed_out(self) -> bool {
        self.timed_out
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::rc::Rc;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    struct MachineWithoutThreads;

    impl simulation::SimulatedMachine for MachineWithoutThreads {
        fn spawn(&self, name: &str, _: Box<dyn FnOnce()>) {
            panic!("{name} is started");
        }

        fn wait(&self, _: Pin<&mut dyn Future<Output = ()>>) {
            panic!("nothing waits");
        }

        fn fill(&self, bytes: &mut [u8]) {
            bytes.fill(0);
        }
    }

    #[test]
    fn a_thread_is_named_and_joined_with_its_result_or_its_panic() {
        let name = spawn("the-name", || std::thread::current().name().map(str::to_owned)).unwrap();
        assert_eq!(name.join().unwrap().as_deref(), Some("the-name"));
        let panicked = spawn_with_stack("panics", 1 << 16, || std::panic::resume_unwind(Box::new(7))).unwrap();
        assert_eq!(panicked.join().map(|()| 0).unwrap_err().downcast_ref(), Some(&7));
    }

    #[test]
    fn a_scoped_thread_borrows_and_a_simulated_machine_refuses_it() {
        let lent = [1, 2, 3];
        let sum = std::thread::scope(|scope| {
            let thread = spawn_scoped(scope, "sums", || {
                assert_eq!(std::thread::current().name(), Some("sums"));
                lent.iter().sum::<i32>()
            });
            thread.unwrap().join().unwrap()
        });
        assert_eq!(sum, 6);
        let entered = simulation::enter(Rc::new(MachineWithoutThreads));
        let is_refused = std::thread::scope(|scope| spawn_scoped(scope, "sums", || lent.len()).is_err());
        drop(entered);
        assert!(is_refused);
    }

    #[test]
    fn a_computation_has_a_stack_of_its_own_and_its_panic_is_nothing() {
        let large = || {
            let array = std::hint::black_box([1_u8; 4 << 20]);
            array.iter().map(|n| u64::from(*n)).sum::<u64>()
        };
        assert_eq!(run_with_stack(64 << 20, large), Some(4 << 20));
        let panicked = run_with_stack::<()>(1 << 16, || std::panic::resume_unwind(Box::new(7)));
        assert!(panicked.is_none());
    }

    #[test]
    fn a_condition_variable_wakes_who_waits_and_ends_a_wait_in_time() {
        let shared = Arc::new((Mutex::new(false), Condvar::new()));
        let own = shared.clone();
        let waits = spawn("waits", move || {
            let mut is_set = own.0.lock();
            while !*is_set {
                own.1.wait(&mut is_set);
            }
        });
        *shared.0.lock() = true;
        shared.1.notify_all();
        waits.unwrap().join().unwrap();
        let mut is_set = shared.0.lock();
        assert!(shared.1.wait_for(&mut is_set, Duration::from_millis(1)).timed_out());
        assert!(shared.1.wait_until(&mut is_set, clock::now()).timed_out());
    }
}
