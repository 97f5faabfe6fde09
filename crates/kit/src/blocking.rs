//! Runs long computations inside an async task without blocking the other tasks of its thread: another thread takes
//! those over.
//!
//! The bytes that a computation reads estimate its duration. A short one runs in place, because handing the other tasks
//! over costs some ten microseconds. Rejected option: a separate thread for the work. It would need owned data, but
//! request handlers only lend their bodies.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::simulation;

/// Processing this many bytes takes about a millisecond.
pub const LONG_BYTES: usize = 256 << 10;

/// Runs `work`, which processes `bytes` bytes. If that is long and the runtime has several threads, other tasks
/// continue meanwhile.
pub fn work<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    match bytes >= LONG_BYTES && has_threads() {
        true => tokio::task::block_in_place(work),
        false => work(),
    }
}

/// Runs a future whose first poll processes `bytes` bytes, such as the arguments of a call.
pub async fn begin<T>(bytes: usize, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut first = Some(bytes);
    std::future::poll_fn(|context| match first.take() {
        Some(bytes) => work(bytes, || future.as_mut().poll(context)),
        None => future.as_mut().poll(context),
    })
    .await
}

/// Runs a computation that blocks, such as one that reads files, on a thread where blocking is allowed. Its panic is the
/// error.
#[allow(clippy::disallowed_methods, reason = "this is the replacement")]
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match simulation::machine() {
        None => tokio::task::spawn_blocking(work),
        Some(_) => tokio::spawn(in_coroutine(work)),
    }
}

/// Like [`spawn`], from a thread that does not belong to the runtime.
#[allow(clippy::disallowed_methods, reason = "this is the replacement")]
pub fn spawn_on<T: Send + 'static>(runtime: &Handle, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match simulation::machine() {
        None => runtime.spawn_blocking(work),
        Some(_) => runtime.spawn(in_coroutine(work)),
    }
}

/// Starts the coroutine at once, not when the future is polled first.
fn in_coroutine<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> impl Future<Output = T> + Send {
    let (sender, receiver) = oneshot::channel();
    let run = move || {
        // Nobody may be interested.
        let _ = sender.send(catch_unwind(AssertUnwindSafe(work)));
    };
    if let Some(machine) = simulation::machine() {
        machine.spawn("blocking", Box::new(run));
    }
    async move {
        match receiver.await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => resume_unwind(panic),
            // The simulated machine has ended.
            Err(_) => std::future::pending().await,
        }
    }
}

fn has_threads() -> bool {
    Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn others_have_their_turn_while_something_long_is_worked_on_and_short_work_is_done_in_place() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build();
        let runtime = runtime.unwrap();
        for (bytes, patience, others_go_on) in [
            (LONG_BYTES, Duration::from_secs(60), true),
            (LONG_BYTES - 1, Duration::from_millis(50), false),
        ] {
            let (said, heard) = channel();
            let working = runtime.spawn(async move {
                tokio::spawn(async move { said.send(()) });
                work(bytes, || heard.recv_timeout(patience).is_ok())
            });
            assert_eq!(runtime.block_on(working).unwrap(), others_go_on, "{bytes}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn others_have_their_turn_in_the_first_step_of_a_future_that_begins_long() {
        let (said, heard) = channel();
        let working = tokio::spawn(async move {
            tokio::spawn(async move { said.send(()) });
            let step = async move {
                let heard = heard.recv_timeout(Duration::from_secs(60)).is_ok();
                tokio::task::yield_now().await;
                heard
            };
            begin(LONG_BYTES, step).await
        });
        assert!(working.await.unwrap());
    }

    #[tokio::test]
    async fn a_runtime_of_one_thread_and_no_runtime_do_the_work_as_well() {
        assert_eq!(work(usize::MAX, || 7), 7);
        let without = std::thread::spawn(|| work(usize::MAX, || 7));
        assert_eq!(without.join().unwrap(), 7);
    }
}
