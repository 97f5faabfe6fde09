//! The trait of processors.

use std::time::Instant;

use thalweg_record::Batch;

/// A stage between input and output. Each worker thread has its own instance; all messages of one series pass through
/// the same instance, in order.
pub trait Processor: Send {
    /// Processes a batch and adds the results to `out`: usually the same batch, changed. Every message that does not
    /// continue must have been reported to the batch's `Ack` (filtered, dropped) or be kept with a part of it.
    ///
    /// This runs on a worker thread: it may use CPU time and may block, but not await.
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>);

    /// Maximum messages per call. A processor that expands messages a lot sets it low: the results move on, and wait
    /// where the flow is full, before the next call.
    fn messages_max(&self) -> usize {
        usize::MAX
    }

    /// When [`Processor::tick`] is due, if messages are held back. Queried after each batch and tick.
    fn next_tick(&self) -> Option<Instant> {
        None
    }

    /// Releases what is due.
    fn tick(&mut self, _now: Instant, _out: &mut Vec<Batch>) {}

    /// The flow ends, or someone waits until all messages are settled: release everything that is held back. More may
    /// come.
    fn flush(&mut self, _out: &mut Vec<Batch>) {}
}
