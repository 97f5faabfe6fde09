//! One worker thread: takes batches of its series, runs them through its own instances of the processors, passes the
//! results on. It ends when its queue is closed and empty, after flushing what processors held back; or, when the flow
//! gives up, after the batch at hand, with everything else counted as dropped. While somebody waits for all batches to be
//! settled, nothing is held back once the queue is empty.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_record::Batch;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::chain::Chain;
use crate::component::BuildError;
use crate::input::OpenBatches;
use crate::queue;
use crate::shard::Shards;

/// Where the results of a worker go.
#[derive(Clone)]
pub(crate) enum ResultDestination {
    /// To the output.
    Queue(queue::QueueSender<Batch>),
    /// To the workers of the flow: this one runs the processors of one of several inputs.
    Shards(Arc<Shards>),
}

pub(crate) struct Worker {
    pub chain: Chain,
    pub input: queue::QueueReceiver<Batch>,
    /// Those that the batches of `input` are a part of.
    pub open_batches: Arc<OpenBatches>,
    pub exit: ResultSender,
}

/// Where results leave the thread.
#[derive(Clone)]
pub(crate) struct ResultSender {
    pub outlet: ResultDestination,
    pub runtime: Handle,
    pub give_up: CancellationToken,
}

/// How a worker ended, as soon as it has: `Err` with the text of the panic in a processor.
pub(crate) type WorkerJoinHandle = oneshot::Receiver<Result<(), String>>;

/// Stack of a worker: scripts recurse, and fail by their own limit before this one.
const STACK_BYTES: usize = 8 << 20;

impl Worker {
    pub fn spawn(self, name: String) -> Result<WorkerJoinHandle, BuildError> {
        let (sender, ended) = oneshot::channel();
        let work = move || {
            let _ = sender.send(unless_it_panics(|| self.run()));
        };
        let builder = std::thread::Builder::new().name(name.clone()).stack_size(STACK_BYTES);
        builder
            .spawn(work)
            .map_err(|e| BuildError::new(format!("cannot start the thread {name}: {e}")))?;
        Ok(ended)
    }

    fn run(mut self) {
        // Whether processors may hold back what they were given since the last flush.
        let mut holds_back = false;
        while let Some(event) = self.next(holds_back) {
            holds_back = true;
            match event {
                WorkerEvent::Batch(batch) => {
                    let exit = &self.exit;
                    self.chain.run(batch, &mut |result| exit.pass_on(result));
                }
                WorkerEvent::Tick(now) => self.release(|chain, released| chain.tick(now, released)),
                WorkerEvent::Awaited => {
                    self.release(Chain::flush);
                    holds_back = false;
                }
            }
        }
        if !self.exit.give_up.is_cancelled() {
            self.release(Chain::flush);
        }
    }

    fn release(&mut self, what: impl FnOnce(&mut Chain, &mut Vec<Batch>)) {
        let mut released = Vec::new();
        what(&mut self.chain, &mut released);
        released.into_iter().for_each(|result| self.exit.pass_on(result));
    }

    fn next(&mut self, holds_back: bool) -> Option<WorkerEvent> {
        if self.exit.give_up.is_cancelled() {
            return None;
        }
        let due = self.chain.next_tick();
        if due.is_none_or(|due| due > Instant::now())
            && let Some(batch) = self.input.try_receive()
        {
            return Some(WorkerEvent::Batch(batch));
        }
        let (input, open_batches, exit) = (&mut self.input, &self.open_batches, &self.exit);
        let receive = async {
            tokio::select! {
                biased;
                () = exit.give_up.cancelled() => None,
                batch = input.receive() => batch.map(WorkerEvent::Batch),
                // Last, since what is queued is waited for too.
                () = open_batches.awaited(), if holds_back => Some(WorkerEvent::Awaited),
            }
        };
        let Some(due) = due else {
            return exit.runtime.block_on(receive);
        };
        let wait = due.saturating_duration_since(Instant::now());
        if wait > Duration::ZERO
            && let Ok(event) = exit
                .runtime
                .block_on(async { tokio::time::timeout(wait, receive).await })
        {
            return event;
        }
        Some(WorkerEvent::Tick(Instant::now()))
    }
}

impl ResultSender {
    fn pass_on(&self, batch: Batch) {
        debug_assert_eq!(
            batch.len(),
            batch.ack.count(),
            "a stage changed messages without telling the answer"
        );
        if batch.is_empty() {
            return batch.ack.delivered();
        }
        let send = async {
            match &self.outlet {
                ResultDestination::Queue(queue) => queue.send(batch).await.is_ok(),
                ResultDestination::Shards(shards) => shards.send(batch).await.is_ok(),
            }
        };
        // A batch that nobody takes any more is given up as it is dropped.
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                _taken = send => {}
                () = self.give_up.cancelled() => {}
            }
        });
    }
}

/// Runs something that must not take the thread down in silence; `Err` is the text of its panic.
pub(crate) fn unless_it_panics<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "an unknown fault".to_owned())
    })
}

enum WorkerEvent {
    Batch(Batch),
    Tick(Instant),
    /// The queue is empty, and somebody waits for all batches to be settled.
    Awaited,
}
