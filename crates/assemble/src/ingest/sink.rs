//! Entries on their way into the queues of the lake, and who may send them.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use thalweg_config::Role;
use thalweg_lake::entry::{AppendRefused, BoxFuture, EntrySink, Position};
use thalweg_lake::otlp::Signal;
use thalweg_otlp::{Admission, Denied};
use thalweg_queue::{NewMessage, Queue, QueueError};

/// The queues of [`Signal::ALL`].
pub(super) struct QueueSink(pub [Arc<Queue>; 3]);

impl EntrySink for QueueSink {
    fn append(&self, signal: Signal, entry: Vec<u8>) -> BoxFuture<'static, Result<Position, AppendRefused>> {
        let [logs, metrics, traces] = &self.0;
        let queue = match signal {
            Signal::Logs => logs,
            Signal::Metrics => metrics,
            Signal::Traces => traces,
        };
        let queue = queue.clone();
        Box::pin(async move {
            let produced = queue.produce(NewMessage::of(entry)).await.map_err(refused)?;
            Ok(Position {
                queue: queue.name().to_string(),
                partition: produced.partition,
                offset: produced.offset,
            })
        })
    }
}

const LATER: Duration = Duration::from_secs(1);

fn refused(error: QueueError) -> AppendRefused {
    let text = error.to_string();
    match error.code() {
        "queue_full" => AppendRefused::Pressure(LATER),
        "disk_full" => AppendRefused::DiskFull(text),
        "log_poisoned" => AppendRefused::Poisoned(text),
        "stopping" => AppendRefused::Stopping,
        _ => AppendRefused::Other(text),
    }
}

/// The logins of the process: whoever sends needs the role `write`.
pub(super) struct Logins(pub thalweg_console::Admission);

impl Admission for Logins {
    fn admit<'a>(&'a self, headers: &'a HeaderMap) -> BoxFuture<'a, Result<(), Denied>> {
        Box::pin(async move {
            self.0.admit(headers, Role::Write).await.map_err(|denied| match denied {
                thalweg_console::Denied::Stranger(why) => Denied::NotAuthenticated(why),
                thalweg_console::Denied::Lacks(why) => Denied::NotAuthorized(why),
            })
        })
    }
}
