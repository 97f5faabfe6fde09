//! The `opcua` output as a component: writes values of messages to nodes of a server, over one session that a task
//! maintains.
//!
//! A write is confirmed when the server has accepted every value and, with the handshake, returns it. Delivery is at
//! least once: after a missing response the same values are written again. Writes of the flow run concurrently, so that
//! a node which accepts nothing delays only its own values; the dispatcher keeps the order per node.

mod data_type;
mod date_time;
mod dispatcher;
mod held_up_nodes;
mod integer;
mod node_queues;
mod prepare;
mod schedule;
mod session_supervisor;
mod slow;
mod value_path;
mod write_failure;
mod write_session;

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_flow::{
    BoxFuture, BuildContext, BuildError, ComponentRegistry, OpenError, Output, OutputContext, OutputSpec, WriteError,
};
use thalweg_record::Message;
use thalweg_telemetry::StatusDetail;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::OutputConfig;
use crate::connect::Connector;
use crate::metrics::ConnectionMetrics;

pub(crate) use data_type::DataType;
use dispatcher::{DispatchTiming, WriteDispatcher};
use held_up_nodes::HeldUpNodes;
use node_queues::WriteJob;
use session_supervisor::{SessionStatus, SessionSupervisor};
pub(crate) use value_path::ValuePath;
use write_session::WriteSession;

/// Batches that share one write: a call for many nodes takes hardly longer than one for a few.
const BATCHES_JOINED: usize = 256;

pub(crate) fn register(registry: &mut ComponentRegistry) {
    registry.output(
        "opcua",
        include_str!("../../reference/output-opcua.txt"),
        |node, context| {
            let config = OutputConfig::parse(&node.body, context)?;
            Some(Arc::new(OpcUaOutputSpec(Arc::new(config))))
        },
    );
}

struct OpcUaOutputSpec(Arc<OutputConfig>);

impl OutputSpec for OpcUaOutputSpec {
    fn build(&self, context: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(OpcUaOutput::new(
            self.0.clone(),
            context.data_dir.join("keys"),
        )))
    }
}

struct OpcUaOutput {
    config: Arc<OutputConfig>,
    keys: PathBuf,
    jobs: mpsc::UnboundedSender<WriteJob>,
    /// Present until the output is opened.
    receiver: Mutex<Option<mpsc::UnboundedReceiver<WriteJob>>>,
    server: watch::Sender<Option<Arc<WriteSession>>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    stop: CancellationToken,
    /// An output that is given up before it was open is dropped without being closed.
    _stop_on_drop: DropGuard,
}

impl OpcUaOutput {
    fn new(config: Arc<OutputConfig>, keys: PathBuf) -> OpcUaOutput {
        let stop = CancellationToken::new();
        let (jobs, receiver) = mpsc::unbounded_channel();
        OpcUaOutput {
            config,
            keys,
            jobs,
            receiver: Mutex::new(Some(receiver)),
            server: watch::Sender::new(None),
            tasks: Mutex::default(),
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
        }
    }

    /// Starts the session supervisor and the dispatcher.
    fn start(&self, jobs: mpsc::UnboundedReceiver<WriteJob>, context: &OutputContext) {
        let connection = &self.config.connection;
        let status = Arc::new(Mutex::new(SessionStatus::default()));
        let held_up = Arc::new(Mutex::new("no node".to_owned()));
        let shown = (status.clone(), held_up.clone());
        context.connection.show(move || {
            let status = shown.0.lock().clone();
            vec![
                StatusDetail::new("server", status.server),
                StatusDetail::new("security", status.security),
                StatusDetail::new("connection", status.state),
                StatusDetail::new("held up", shown.1.lock().clone()),
            ]
        });
        let keeper = SessionSupervisor {
            config: connection.clone(),
            connector: Connector::with_keys_in(&self.keys, connection.clone()),
            component: context.component.clone(),
            connection: context.connection.clone(),
            metrics: ConnectionMetrics::new(&context.component),
            status,
            server: self.server.clone(),
            stop: self.stop.clone(),
        };
        let stands = context.connection.clone();
        let report = HeldUpNodes::new(context.component.clone(), move |why| stands.lost(why), held_up);
        let dispatcher = WriteDispatcher::new(self.config.clone(), DispatchTiming::default(), report);
        let servers = self.server.subscribe();
        self.tasks.lock().extend([
            tokio::spawn(dispatcher.run(jobs, servers, self.stop.clone())),
            tokio::spawn(keeper.run()),
        ]);
    }
}

impl Output for OpcUaOutput {
    /// Returns when there is a session for the first time; the supervisor reports what prevents it.
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            let jobs = self.receiver.lock().take();
            if let Some(jobs) = jobs {
                self.start(jobs, context);
            }
            match self.server.subscribe().wait_for(Option::is_some).await {
                Ok(_) => Ok(()),
                Err(_) => Err(OpenError::Permanent("the output was closed".to_owned())),
            }
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let (done, ended) = oneshot::channel();
        // Sending now fixes its place in the order. If nothing receives it, `done` is dropped.
        let _closed = self.jobs.send(WriteJob { messages, done });
        Box::pin(async move {
            let closed = || Err(WriteError::Temporary("the output is closed".to_owned()));
            ended.await.unwrap_or_else(|_| closed())
        })
    }

    fn max_in_flight(&self) -> usize {
        self.config.in_flight_max
    }

    fn joins(&self) -> usize {
        BATCHES_JOINED
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            self.stop.cancel();
            let tasks = std::mem::take(&mut *self.tasks.lock());
            for task in tasks {
                task.await.map_err(|error| error.to_string())?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
