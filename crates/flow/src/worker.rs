//! One worker thread: receives batches of its series, runs them through its own instances of the processors, and passes
//! the results on. It ends when its queue is closed and empty, after flushing the processors; or, when the flow gives
//! up, after the current batch, with everything else counted as dropped. While someone waits for all batches to be
//! settled, nothing is held back once the queue is empty.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_kit::{clock, threads};
use thalweg_record::Batch;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::chain::Chain;
use crate::component::BuildError;
use crate::input::OpenBatches;
use crate::queue;
use crate::shard::Shards;

/// The destination of a worker's results.
#[derive(Clone)]
pub(crate) enum ResultDestination {
    /// To the output.
    Queue(queue::QueueSender<Batch>),
    /// To the workers of the flow: this worker runs the processors of one of several inputs.
    Shards(Arc<Shards>),
}

pub(crate) struct Worker {
    pub chain: Chain,
    pub input: queue::QueueReceiver<Batch>,
    /// The counter of the input's or buffer's batches, of which `input` carries parts.
    pub open_batches: Arc<OpenBatches>,
    pub exit: ResultSender,
}

/// Sends the results from the thread.
#[derive(Clone)]
pub(crate) struct ResultSender {
    pub outlet: ResultDestination,
    pub runtime: Handle,
    pub give_up: CancellationToken,
}

/// Resolves when the worker has ended: `Err` contains the text of a processor's panic.
pub(crate) type WorkerJoinHandle = oneshot::Receiver<Result<(), String>>;

/// Stack of a worker: scripts recurse, and reach their own limit before this one.
const STACK_BYTES: usize = 8 << 20;

impl Worker {
    pub fn spawn(self, name: String) -> Result<WorkerJoinHandle, BuildError> {
        let (sender, ended) = oneshot::channel();
        let work = move || {
            let _ = sender.send(unless_it_panics(|| self.run()));
        };
        threads::spawn_with_stack(name.clone(), STACK_BYTES, work)
            .map_err(|e| BuildError::new(format!("cannot start the thread {name}: {e}")))?;
        Ok(ended)
    }

    fn run(mut self) {
        // Whether processors may hold back messages received since the last flush.
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
        if due.is_none_or(|due| due > clock::now())
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
                // Last, because queued batches must be settled too.
                () = open_batches.awaited(), if holds_back => Some(WorkerEvent::Awaited),
            }
        };
        let Some(due) = due else {
            return threads::block_on(&exit.runtime, receive);
        };
        let wait = due.saturating_duration_since(clock::now());
        if wait > Duration::ZERO
            && let Ok(event) = threads::block_on(&exit.runtime, async { tokio::time::timeout(wait, receive).await })
        {
            return event;
        }
        Some(WorkerEvent::Tick(clock::now()))
    }
}

impl ResultSender {
    fn pass_on(&self, batch: Batch) {
        debug_assert_eq!(
            batch.len(),
            batch.ack.count(),
            "a stage changed the number of messages without updating the ack"
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
        // Without a receiver, the batch is dropped and thereby given up.
        threads::block_on(&self.runtime, async {
            tokio::select! {
                biased;
                _taken = send => {}
                () = self.give_up.cancelled() => {}
            }
        });
    }
}

/// Runs a function so that a panic does not end the thread silently; `Err` is the text of the panic.
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
    /// The queue is empty, and someone waits for all batches to be settled.
    Awaited,
}
