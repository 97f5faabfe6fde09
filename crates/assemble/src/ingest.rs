//! The section `ingest`: receivers of OpenTelemetry data, and who may send to them.

mod admission;
mod section;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::future::join_all;
use parking_lot::Mutex;
use thalweg_config::ListenerConfig;
use thalweg_console::{BoundListener, Console, HttpLimits, INGEST_LISTENERS, RunningListener};
use thalweg_http::auth::Logins;
use thalweg_lake::LakeMetrics;
use thalweg_lake_flow::{LakeTables, QueueSink};
use thalweg_otlp::OtlpReceiver;
use thalweg_telemetry::Metrics;

use crate::open_files;
use admission::WriteRoleAdmission;
pub(crate) use section::{INFLIGHT_MIN, IngestSection, section};

/// The running receivers.
#[derive(Default)]
pub(crate) struct Ingest {
    listeners: Mutex<Vec<RunningListener>>,
}

impl Ingest {
    /// Opens the tables and starts the receivers. Must be called on a tokio runtime.
    pub async fn start(
        &self,
        section: &IngestSection,
        lake: &Arc<LakeTables>,
        logins: &Logins,
        metrics: &Metrics,
        lake_metrics: &LakeMetrics,
    ) -> Result<()> {
        let doors = open_doors(section, logins).await?;
        let sink = lake.sink().await?;
        *self.listeners.lock() = receive(section, doors, sink, metrics, lake_metrics);
        Ok(())
    }

    /// Stops the receivers.
    pub async fn stop(&self, within: Duration) {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        let stopped = join_all(listeners.into_iter().map(RunningListener::stop));
        let _cut_off = tokio::time::timeout(within, stopped).await;
    }
}

/// Binds the addresses before anything is opened, so that a port in use is found first.
async fn open_doors(section: &IngestSection, logins: &Logins) -> Result<[Option<BoundListener>; 2]> {
    let open = |config: &ListenerConfig| {
        let config = config.clone();
        async move {
            match config.enabled {
                true => BoundListener::open(&config, logins).await.map(Some),
                false => Ok(None),
            }
        }
    };
    Ok([open(&section.grpc).await?, open(&section.http).await?])
}

fn receive(
    section: &IngestSection,
    doors: [Option<BoundListener>; 2],
    sink: QueueSink,
    metrics: &Metrics,
    lake: &LakeMetrics,
) -> Vec<RunningListener> {
    let Some(admission) = doors.iter().flatten().map(|door| door.admission.clone()).next() else {
        return Vec::new();
    };
    let (sink, logins) = (Arc::new(sink), Arc::new(WriteRoleAdmission(admission)));
    let options = section.receiver.clone();
    let inflight = options.inflight_bytes_max as u64;
    let receiver = OtlpReceiver::new(sink, logins, options, metrics, lake);
    let watched = Arc::downgrade(&receiver);
    let used = move || watched.upgrade().map_or(0, |receiver| receiver.inflight_bytes() as u64);
    lake.watch_share("ingest.inflight_bytes", inflight, used);
    let routers = [
        thalweg_otlp::grpc_router(&receiver),
        thalweg_otlp::http_router(&receiver),
    ];
    let mut served = Vec::new();
    for ((door, router), protocol) in doors.into_iter().zip(routers).zip(["grpc", "http"]) {
        let Some(door) = door else { continue };
        tracing::info!(protocol, address = %door.address, tls = door.tls.is_some(), "receiving OpenTelemetry data");
        served.push((door, router));
    }
    Console::serve_doors(&INGEST_LISTENERS, served, limits(section), metrics)
}

const STALL_MARGIN: Duration = Duration::from_secs(5);

/// Body limits are those of the receiver.
fn limits(section: &IngestSection) -> HttpLimits {
    let most = section.grpc.max_connections.max(section.http.max_connections);
    let share = open_files::for_connections(most, None);
    HttpLimits {
        connections_max: share.connections_max,
        descriptors_max: Some(share.descriptors_max),
        // Longer than the receiver's own timeout, which tells the sender of a late body that it may retry.
        request_stall_max: Some(section.receiver.body_timeout + STALL_MARGIN),
        ..HttpLimits::default()
    }
}
