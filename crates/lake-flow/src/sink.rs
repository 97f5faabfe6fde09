//! Appends entries of receivers to the queues of logs, metrics and traces.

use thalweg_lake::Signal;
use thalweg_lake::entry::{AppendRefused, BoxFuture, EntryPosition, EntrySink};
use thalweg_lake::ingest::Handoff;
use thalweg_queue::{NewMessage, QueueError, QueueErrorKind};

use crate::tables::TableQueue;

/// The open queue of each signal.
pub struct QueueSink {
    pub(crate) logs: TableQueue,
    pub(crate) metrics: TableQueue,
    pub(crate) traces: TableQueue,
}

impl EntrySink for QueueSink {
    fn append(
        &self,
        signal: Signal,
        entry: Vec<u8>,
        handoff: Handoff,
    ) -> BoxFuture<'static, Result<EntryPosition, AppendRefused>> {
        let (queue, handoffs) = match signal {
            Signal::Logs => &self.logs,
            Signal::Metrics => &self.metrics,
            Signal::Traces => &self.traces,
        };
        let (queue, handoffs) = (queue.clone(), handoffs.clone());
        Box::pin(async move {
            let produced = queue.produce(NewMessage::of(entry)).await.map_err(refused)?;
            handoffs.report(produced.partition, produced.offset, handoff);
            Ok(EntryPosition {
                queue: queue.name().to_string(),
                partition: produced.partition,
                offset: produced.offset,
            })
        })
    }
}

fn refused(error: QueueError) -> AppendRefused {
    let text = error.to_string();
    match error.kind() {
        QueueErrorKind::QueueFull => AppendRefused::Pressure,
        QueueErrorKind::DiskFull => AppendRefused::DiskFull(text),
        QueueErrorKind::LogPoisoned => AppendRefused::Poisoned(text),
        _ => AppendRefused::Other(text),
    }
}
