//! One worker thread: takes batches of its series, runs them through its own instances of the processors, passes the
//! results to the output. It ends when its queue is closed and empty, after flushing what processors held back.

use std::time::{Duration, Instant};

use thalweg_record::Batch;
use thalweg_telemetry::{IntCounter, Timing};
use tokio::runtime::Handle;

use crate::Processor;
use crate::component::Component;
use crate::queue;

/// The metrics of one processor, shared by its instances on all threads.
#[derive(Clone)]
pub(crate) struct StageMetrics {
    pub received: IntCounter,
    batch_received: IntCounter,
    pub sent: IntCounter,
    batch_sent: IntCounter,
    latency: Timing,
}

impl StageMetrics {
    pub fn new(component: &Component) -> StageMetrics {
        StageMetrics {
            received: component.counter("processor_received", "Messages received."),
            batch_received: component.counter("processor_batch_received", "Batches received."),
            sent: component.counter("processor_sent", "Messages passed on."),
            batch_sent: component.counter("processor_batch_sent", "Batches passed on."),
            latency: component.timing("processor_latency_ns", "Time to process a batch."),
        }
    }
}

/// A processor instance with its metrics.
pub(crate) struct Stage {
    pub processor: Box<dyn Processor>,
    pub metrics: StageMetrics,
}

pub(crate) struct Worker {
    pub stages: Vec<Stage>,
    pub input: queue::Receiver<Batch>,
    pub output: queue::Sender<Batch>,
    pub runtime: Handle,
}

impl Worker {
    pub fn run(mut self) {
        while let Some(event) = self.next() {
            match event {
                Event::Batch(batch) => self.process_from(0, vec![batch]),
                Event::Tick(now) => self.tick(now),
            }
        }
        for at in 0..self.stages.len() {
            let mut released = Vec::new();
            if let Some(stage) = self.stages.get_mut(at) {
                stage.processor.flush(&mut released);
                stage.metrics.count_sent(&released);
            }
            self.process_from(at + 1, released);
        }
    }

    fn next(&mut self) -> Option<Event> {
        let due = self.stages.iter().filter_map(|stage| stage.processor.next_tick()).min();
        if due.is_none_or(|due| due > Instant::now())
            && let Some(batch) = self.input.try_receive()
        {
            return Some(Event::Batch(batch));
        }
        let Some(due) = due else {
            return self.runtime.block_on(self.input.receive()).map(Event::Batch);
        };
        let wait = due.saturating_duration_since(Instant::now());
        if wait > Duration::ZERO {
            let received = self
                .runtime
                .block_on(async { tokio::time::timeout(wait, self.input.receive()).await });
            match received {
                Ok(batch) => return batch.map(Event::Batch),
                Err(_elapsed) => {}
            }
        }
        Some(Event::Tick(Instant::now()))
    }

    fn tick(&mut self, now: Instant) {
        for at in 0..self.stages.len() {
            let mut released = Vec::new();
            if let Some(stage) = self.stages.get_mut(at)
                && stage.processor.next_tick().is_some_and(|due| due <= now)
            {
                stage.processor.tick(now, &mut released);
                stage.metrics.count_sent(&released);
            }
            self.process_from(at + 1, released);
        }
    }

    /// Runs batches through the stages from `first` on and sends what is left.
    fn process_from(&mut self, first: usize, mut batches: Vec<Batch>) {
        for stage in self.stages.iter_mut().skip(first) {
            let mut results = Vec::with_capacity(batches.len());
            for batch in batches {
                if batch.is_empty() {
                    batch.ack.delivered();
                    continue;
                }
                stage.metrics.received.inc_by(batch.len() as u64);
                stage.metrics.batch_received.inc();
                let start = Instant::now();
                stage.processor.process(batch, &mut results);
                stage.metrics.latency.observe(start.elapsed());
            }
            stage.metrics.count_sent(&results);
            batches = results;
        }
        for batch in batches {
            debug_assert_eq!(
                batch.len(),
                batch.ack.count(),
                "a stage changed messages without telling the answer"
            );
            if batch.is_empty() {
                batch.ack.delivered();
            } else {
                // Without an output the batch is given up as it is dropped.
                let _closed = self.runtime.block_on(self.output.send(batch));
            }
        }
    }
}

impl StageMetrics {
    fn count_sent(&self, batches: &[Batch]) {
        if !batches.is_empty() {
            self.sent.inc_by(batches.iter().map(|batch| batch.len() as u64).sum());
            self.batch_sent.inc_by(batches.len() as u64);
        }
    }
}

enum Event {
    Batch(Batch),
    Tick(Instant),
}
