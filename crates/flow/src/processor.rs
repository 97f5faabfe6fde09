//! What a processor is.

use std::time::Instant;

use thalweg_record::Batch;

/// A stage between input and output. Each worker thread has an instance of its own; all messages of one series pass
/// through the same instance, in order.
pub trait Processor: Send {
    /// Takes a batch and adds what becomes of it to `out`: usually the same batch, changed. Every message that does not
    /// go on must have been told to the batch's `Ack` (filtered, dropped) or kept with a part of it.
    ///
    /// Runs on a worker thread: it may take CPU time and may block, but not await.
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>);

    /// Messages that it is given at once. One that makes very many of one takes few: what comes of them goes on, and waits where the
    /// flow has no room, before it is given more.
    fn messages_max(&self) -> usize {
        usize::MAX
    }

    /// When [`Processor::tick`] is wanted, if messages are held back. Asked after each batch and tick.
    fn next_tick(&self) -> Option<Instant> {
        None
    }

    /// Time has come: release what is due.
    fn tick(&mut self, _now: Instant, _out: &mut Vec<Batch>) {}

    /// The flow ends, or somebody waits until all it has is settled: release everything that is held back. More may come.
    fn flush(&mut self, _out: &mut Vec<Batch>) {}
}
