//! The `opcua` input as a component: its checked configuration, and its tasks.
//!
//! One task per connection communicates with the server and delivers; one task browses over the primary connection and
//! assigns nodes to the others. The input ends when the connections have ended, which happens at the stop.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use thalweg_flow::{
    BoxFuture, BuildContext, BuildError, ComponentRegistry, Input, InputContext, InputError, InputSpec,
};
use thalweg_telemetry::StatusDetail;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::assign::Assigner;
use crate::backoff::backoff_from;
use crate::browse::{BrowseContext, Browser};
use crate::config::{BadValues, InputConfig};
use crate::connect::Connector;
use crate::directory::{DirectoryEntry, InputDirectory};
use crate::failures::NodeFailures;
use crate::health::Health;
use crate::metrics::InputMetrics;
use crate::node_table::NodeTable;
use crate::server_connection::{ConnectionContext, ConnectionStatus, ServerConnection};

/// `directory` shows what inputs find; a failed node is retried after `first_retry`, which then doubles.
pub(crate) fn register(registry: &mut ComponentRegistry, directory: Arc<InputDirectory>, first_retry: Duration) {
    registry.input(
        "opcua",
        include_str!("../reference/input-opcua.txt"),
        move |node, context| {
            let config = InputConfig::parse(&node.body, context.diagnostics)?;
            Some(Arc::new(OpcUaInputSpec {
                config: Arc::new(config),
                directory: directory.clone(),
                first_retry,
            }))
        },
    );
}

struct OpcUaInputSpec {
    config: Arc<InputConfig>,
    directory: Arc<InputDirectory>,
    first_retry: Duration,
}

impl InputSpec for OpcUaInputSpec {
    fn build(&self, context: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(OpcUaInput {
            passes_bad_values: match self.config.bad_values {
                BadValues::Auto => context.stores_bad_values,
                BadValues::Drop => false,
                BadValues::Pass => true,
            },
            config: self.config.clone(),
            directory: self.directory.clone(),
            first_retry: self.first_retry,
            keys: context.data_dir.join("keys"),
        }))
    }
}

struct OpcUaInput {
    passes_bad_values: bool,
    config: Arc<InputConfig>,
    directory: Arc<InputDirectory>,
    first_retry: Duration,
    keys: PathBuf,
}

impl Input for OpcUaInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            self.serve(context).await;
            Ok(())
        })
    }
}

impl OpcUaInput {
    async fn serve(&self, context: InputContext) {
        let config = &self.config;
        let table = Arc::new(RwLock::new(NodeTable::default()));
        let failures = Arc::new(NodeFailures::retried_after(self.first_retry));
        let metrics = Arc::new(InputMetrics::new(&context.component));
        self.directory.add(Arc::new(DirectoryEntry {
            input: match &context.component.id.flow {
                Some(flow) => format!("{flow}/{}", context.component.title()),
                None => context.component.title().to_owned(),
            },
            endpoint: config.connection.endpoint.to_string(),
            table: table.clone(),
            failures: failures.clone(),
        }));
        let health = Health::new(
            context.connection.clone(),
            metrics.connections.connected.clone(),
            config.connections,
        );
        let changed = Arc::new(Notify::new());
        let links = ConnectionContext {
            config: config.clone(),
            passes_bad_values: self.passes_bad_values,
            component: context.component.clone(),
            connector: Arc::new(Connector::with_keys_in(&self.keys, config.connection.clone())),
            table: table.clone(),
            failures: failures.clone(),
            memory: self.directory.memory(),
            metrics: metrics.clone(),
            health,
            sink: context.sink.clone(),
            stop: context.stop.clone(),
            changed: changed.clone(),
        };
        let (sessions_sender, sessions) = watch::channel(None);
        let mut primary = Some(sessions_sender);
        let (mut tasks, mut senders, mut states) = (JoinSet::new(), Vec::new(), Vec::new());
        for number in 0..config.connections {
            let (sender, commands) = mpsc::unbounded_channel();
            let status = Arc::new(Mutex::new(ConnectionStatus::default()));
            senders.push(sender);
            states.push(status.clone());
            tasks.spawn(ServerConnection::new(links.clone(), number, commands, primary.take(), status).run());
        }
        show(&context, table.clone(), metrics.clone(), states);
        let browser = Browser {
            assigner: Assigner::new(table.clone(), senders, config.subscribe, context.component.clone()),
            context: BrowseContext {
                table,
                browse: config.browse.clone(),
                failures,
                metrics,
                memory: self.directory.memory(),
                is_served: true,
                sessions,
            },
            nodes: config.nodes.clone(),
            component: context.component.clone(),
            connection: context.connection.clone(),
            backoff: backoff_from(config.connection.reconnect_interval),
            changed,
        };
        // The browse never ends by itself; it is dropped with the connections.
        let ended = async { while tasks.join_next().await.is_some() {} };
        tokio::select! {
            () = ended => {}
            () = browser.run() => {}
        }
    }
}

/// Sets the details for console and terminal.
fn show(
    context: &InputContext,
    table: Arc<RwLock<NodeTable>>,
    metrics: Arc<InputMetrics>,
    states: Vec<Arc<Mutex<ConnectionStatus>>>,
) {
    context.connection.show(move || {
        let (nodes, counts, bytes) = {
            let table = table.read();
            (table.len(), table.counts(), table.heap_bytes())
        };
        let first = states.first().map(|status| status.lock().clone()).unwrap_or_default();
        let subscriptions: usize = states.iter().map(|status| status.lock().subscriptions).sum();
        let browse = match metrics.browse_done.get() {
            1 => format!("complete, {nodes} nodes"),
            _ => format!("{nodes} nodes found, {} to go", metrics.browse_frontier.get()),
        };
        vec![
            StatusDetail::new("server", first.server),
            StatusDetail::new("security", first.security),
            StatusDetail::new("connection", first.state),
            StatusDetail::new("browse", browse),
            StatusDetail::new("node_table_bytes", bytes),
            StatusDetail::new("tags_found", counts.wanted()),
            StatusDetail::new("tags_monitored", counts.monitored),
            StatusDetail::new("tags_polled", counts.polled),
            StatusDetail::new("tags_failed", counts.failed_total()),
            StatusDetail::new("tags_pending", counts.pending),
            StatusDetail::new("subscriptions", subscriptions),
        ]
    });
}
