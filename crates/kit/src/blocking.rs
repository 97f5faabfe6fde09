//! Runs long computations inside an async task without blocking the other tasks of its thread: another thread takes
//! those over.
//!
//! The bytes that a computation reads estimate its duration. A short one runs in place, because handing the other tasks
//! over costs some ten microseconds. Rejected option: a separate thread for the work. It would need owned data, but
//! request handlers only lend their bodies.

use tokio::runtime::{Handle, RuntimeFlavor};

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
