//! The `dead_letter` output of the process: writes the failed messages of all flows.

use std::sync::Arc;
use std::time::Duration;

use thalweg_telemetry::{NodeKind, StatusSource};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::handle::{GraphNodes, NodeCounters, troubles};
use super::start::FlowEnvironment;
use crate::component::{BuildContext, BuildError};
use crate::connection::Connection;
use crate::context::{DeadLetterSender, FailurePolicy, FlowScope};
use crate::delivery::Delivery;
use crate::metrics::OUTPUT_CONNECTION;
use crate::named_spec::NamedSpec;
use crate::output_driver::{OutputDriver, OutputMetrics};
use crate::queue::{self, QueueLimits};
use crate::registry::OutputSpec;

/// Limits of the failed messages that wait for the output; beyond them the failing stages wait too.
const WAITING: QueueLimits = QueueLimits {
    messages: 100_000,
    bytes: 16 << 20,
};

pub struct DeadLetterOutput {
    letters: DeadLetterSender,
    give_up: CancellationToken,
    delivery: JoinHandle<()>,
}

impl DeadLetterOutput {
    /// `named` is name, path and label.
    pub fn start(
        named: (&str, &str, &str),
        spec: &Arc<dyn OutputSpec>,
        environment: &FlowEnvironment,
    ) -> Result<DeadLetterOutput, BuildError> {
        let (name, path, label) = named;
        let named = NamedSpec {
            name: name.to_owned(),
            path: path.to_owned(),
            label: label.to_owned(),
            spec: spec.clone(),
        };
        let component = named.component(None, &environment.metrics);
        let connection = Connection::new(&component, &OUTPUT_CONNECTION);
        let metrics = OutputMetrics::new(&component);
        let (give_up, nodes) = (CancellationToken::new(), GraphNodes::default());
        let mut node = NodeCounters::output(&component, &metrics, connection.clone());
        node.kind = NodeKind::DeadLetter;
        nodes.add(node);
        let context = BuildContext {
            component: component.clone(),
            source: "dead_letter".into(),
            data_dir: environment.data_dir.clone(),
            stores_bad_values: false,
            scope: FlowScope {
                balance: Arc::default(),
                failures: FailurePolicy::Drop,
                runtime: environment.runtime.clone(),
                give_up: give_up.clone(),
                nodes: nodes.clone(),
            },
        };
        let delivery = Delivery {
            driven: OutputDriver {
                output: spec.build(&context)?,
                component,
                connection,
                metrics,
            },
            dead_letters: None,
            policy: None,
            buffers: false,
            hurry: Arc::default(),
            stop: give_up.clone(),
        };
        let (queue, letters) = queue::bounded(WAITING);
        let delivery = environment.runtime.spawn(delivery.run_letters(letters));
        Ok(DeadLetterOutput {
            letters: DeadLetterSender {
                queue,
                nodes: nodes.take().into(),
            },
            give_up,
            delivery,
        })
    }

    /// The sender that flows use for their failed messages.
    pub fn letters(&self) -> DeadLetterSender {
        self.letters.clone()
    }

    /// Reports whether the output is connected, for the lifetime of the process.
    pub fn status(&self) -> Arc<dyn StatusSource> {
        Arc::new(DeadLetterStatus(self.letters.nodes.clone()))
    }

    /// Writes what waits. To be called after all flows have stopped and dropped their [`DeadLetterSender`]. What is not
    /// written within `timeout` is given up (counted as dropped with reason `shutdown`).
    pub async fn stop(self, timeout: Duration) {
        let nodes = self.letters.nodes.clone();
        drop(self.letters);
        let mut delivery = self.delivery;
        if tokio::time::timeout(timeout, &mut delivery).await.is_err() {
            self.give_up.cancel();
            let _ = delivery.await;
        }
        nodes.iter().for_each(|node| node.log_held_back(true));
    }
}

struct DeadLetterStatus(Arc<[NodeCounters]>);

impl StatusSource for DeadLetterStatus {
    fn not_ready(&self) -> Vec<String> {
        troubles(&self.0, "dead_letter")
    }
}
