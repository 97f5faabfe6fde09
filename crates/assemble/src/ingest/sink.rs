//! Entries on their way into the queues of the lake, and who may send them.

use std::sync::Arc;

use axum::http::HeaderMap;
use thalweg_config::Role;
use thalweg_lake::entry::{AppendRefused, BoxFuture, EntryPosition, EntrySink};
use thalweg_lake::ingest::{Handoff, HandoffQueue};
use thalweg_lake::otlp::Signal;
use thalweg_otlp::{Admission, AdmissionError};
use thalweg_queue::{NewMessage, Queue, QueueError};

/// Of each of [`Signal::ALL`]: its queue, and where what is stored in it is handed over.
pub(super) struct QueueSink(pub [(Arc<Queue>, Arc<HandoffQueue>); 3]);

impl EntrySink for QueueSink {
    fn append(
        &self,
        signal: Signal,
        entry: Vec<u8>,
        handoff: Handoff,
    ) -> BoxFuture<'static, Result<EntryPosition, AppendRefused>> {
        let [logs, metrics, traces] = &self.0;
        let (queue, handoffs) = match signal {
            Signal::Logs => logs,
            Signal::Metrics => metrics,
            Signal::Traces => traces,
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
    match error.code() {
        "queue_full" => AppendRefused::Pressure,
        "disk_full" => AppendRefused::DiskFull(text),
        "log_poisoned" => AppendRefused::Poisoned(text),
        "stopping" => AppendRefused::Stopping,
        _ => AppendRefused::Other(text),
    }
}

/// The logins of the process: whoever sends needs the role `write`.
pub(super) struct WriteRoleAdmission(pub thalweg_console::Authorizer);

impl Admission for WriteRoleAdmission {
    fn admit<'a>(&'a self, headers: &'a HeaderMap) -> BoxFuture<'a, Result<(), AdmissionError>> {
        Box::pin(async move {
            self.0.admit(headers, Role::Write).await.map_err(|denied| match denied {
                thalweg_console::AuthorizationError::Busy => AdmissionError::Busy,
                thalweg_console::AuthorizationError::Stranger(why) => AdmissionError::NotAuthenticated(why),
                thalweg_console::AuthorizationError::Lacks(why) => AdmissionError::NotAuthorized(why),
            })
        })
    }
}
