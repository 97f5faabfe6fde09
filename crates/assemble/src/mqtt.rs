//! The MQTT broker of the process, on its log: opened before flows start, and closed after they have stopped.

mod listeners;
mod section;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use thalweg_http::auth::Logins;
use thalweg_kit::clock;
use thalweg_log::{Durability, Log};
use thalweg_mqtt::{Broker, BrokerEnvironment, MqttListenerSettings, MqttServer, MqttSettings, OpenBrokerError};
use thalweg_telemetry::{MetricDoc, MetricGroup, Metrics, metric_group};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::open_files;

pub(crate) use section::{MEMORY_MIN, MqttSection, section};

metric_group! {
    MQTT_METRICS("MQTT: the start", &[]) {
        RECOVERY_SECONDS = MetricDoc::gauge(
            "mqtt_recovery_seconds",
            "Time that the start took to read sessions, retained messages and what waits for sessions.",
        );
    }
}

pub(crate) const METRICS: &[MetricGroup] = &[MQTT_METRICS];

/// The broker of the process, if the configuration has the section `mqtt`.
#[derive(Default)]
pub(crate) struct MqttService {
    opened: Mutex<Option<OpenBroker>>,
}

struct OpenBroker {
    broker: Arc<Broker>,
    /// Bound, and served later.
    bound: Option<(MqttServer, Vec<MqttListenerSettings>)>,
    serving: Option<RunningServer>,
}

struct RunningServer {
    /// Dropped to stop.
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl MqttService {
    /// Opens the broker and binds its listeners. Nobody is served yet.
    pub async fn open(
        &self,
        section: Option<&MqttSection>,
        log: Option<(Arc<dyn Log>, Durability)>,
        logins: &Logins,
        metrics: &Metrics,
    ) -> Result<()> {
        let Some(section) = section else { return Ok(()) };
        let (log, durability) = log.context("the MQTT broker needs the log, which was not opened")?;
        let settings = MqttSettings {
            durability: section.durability.unwrap_or(durability),
            ..section.broker.clone()
        };
        let environment = BrokerEnvironment {
            logins: logins.authorizer(),
            ..BrokerEnvironment::default()
        };
        let begin = clock::now();
        let broker = Broker::open_with(log, settings, environment).await.map_err(with_cure)?;
        broker.register(metrics);
        let took = clock::now().duration_since(begin);
        metrics.tell(&RECOVERY_SECONDS, move |to| {
            to.gauge(&RECOVERY_SECONDS, &[], took.as_secs_f64())
        });
        let listeners: Vec<MqttListenerSettings> = section
            .listeners
            .iter()
            .map(|listener| listener.settings.clone())
            .collect();
        let mut server = MqttServer::bind(broker.clone(), &listeners).await?;
        let share = open_files::for_connections(section.broker.connections, section.connections_key());
        server.set_descriptors_max(share.descriptors_max);
        for (index, address) in server.addresses().into_iter().enumerate() {
            // The address that a host name stands for is known only now.
            section.check_exposure(index, address).map_err(anyhow::Error::msg)?;
        }
        *self.opened.lock() = Some(OpenBroker {
            broker,
            bound: Some((server, listeners)),
            serving: None,
        });
        Ok(())
    }

    /// Serves clients from now on, until [`MqttService::stop_listeners`]. Their connections then end within `timeout`.
    pub fn serve(&self, timeout: Duration) {
        let mut opened = self.opened.lock();
        let Some(opened) = opened.as_mut() else { return };
        let Some((server, listeners)) = opened.bound.take() else {
            return;
        };
        for (settings, address) in listeners.iter().zip(server.addresses()) {
            tracing::info!("mqtt listens on {} {address}", settings.kind.name());
        }
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.serve(
            async move {
                let _ = stopped.await;
            },
            timeout,
        ));
        opened.serving = Some(RunningServer { stop, task });
    }

    /// Stops accepting, and ends the connections. The broker goes on for flows.
    pub async fn stop_listeners(&self, within: Duration) {
        let serving = self.opened.lock().as_mut().and_then(|opened| opened.serving.take());
        let Some(serving) = serving else { return };
        drop(serving.stop);
        if tokio::time::timeout(within, serving.task).await.is_err() {
            tracing::warn!("connections of MQTT clients did not end in time and are cut off; their sessions are kept");
        }
    }

    /// Commits what the broker has received, and ends it.
    pub async fn stop(&self, within: Duration) {
        let opened = self.opened.lock().take();
        let Some(opened) = opened else { return };
        if tokio::time::timeout(within, opened.broker.shut_down()).await.is_err() {
            tracing::warn!(
                "the MQTT broker did not end in time; what it did not acknowledge is sent again by its clients"
            );
        }
    }
}

/// An error of the log keeps its type, by which the exit code is chosen.
fn with_cure(error: OpenBrokerError) -> anyhow::Error {
    match error {
        OpenBrokerError::Log(error) => anyhow::Error::new(error).context("the MQTT broker cannot use the log"),
        other => other.into(),
    }
}
