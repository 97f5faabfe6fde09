//! Long computations in the middle of a task. Whatever else its thread has to do would wait for their end, so they run while
//! another thread takes that over.
//!
//! How long a piece of work takes is told by the bytes that it looks at: a short one is done in place, since handing the other
//! tasks over costs some ten microseconds. The rejected option, a thread of its own for the work, would need all that it looks at to
//! be owned, where handlers of requests lend their bodies.

use tokio::runtime::{Handle, RuntimeFlavor};

/// To look through so much takes about a millisecond.
pub const LONG_BYTES: usize = 256 << 10;

/// Does work on so many bytes. Others go on meanwhile if it is long, and if the runtime has threads to go on with.
pub fn work<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    match bytes >= LONG_BYTES && has_threads() {
        true => tokio::task::block_in_place(work),
        false => work(),
    }
}

/// Does a future whose first step looks at so many bytes, such as the arguments of a call.
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
