//! The `opcua` output as a component: values of messages to nodes of a server, over one session that a task keeps.
//!
//! A write is confirmed when the server has taken every value and, with the handshake, gives it back. It is at least once: after
//! an answer that never came the same values are written again.

mod data_type;
mod date_time;
mod deliver;
mod field;
mod integer;
mod keeper;
mod prepare;
mod progress;
mod server;

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_flow::{
    BoxFuture, BuildContext, BuildError, OpenError, Output, OutputContext, OutputSpec, Registry, WriteError,
};
use thalweg_record::Message;
use thalweg_telemetry::Detail;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::config::OutputConfig;
use crate::connect::Connector;
use crate::metrics::Connections;

pub(crate) use data_type::DataType;
pub(crate) use field::Field;
use keeper::{Keeper, Status};
use server::Server;

/// Batches that share one write: a call for many nodes takes hardly longer than one for a few.
const BATCHES_JOINED: usize = 256;

pub(crate) fn register(registry: &mut Registry) {
    registry.output("opcua", |node, context| {
        let config = OutputConfig::parse(&node.body, context)?;
        Some(Arc::new(Spec(Arc::new(config))))
    });
}

struct Spec(Arc<OutputConfig>);

impl OutputSpec for Spec {
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
    sender: watch::Sender<Option<Arc<Server>>>,
    keeper: Mutex<Option<JoinHandle<()>>>,
    stop: CancellationToken,
    /// An output that is given up before it was open is not closed, only dropped.
    _stop_on_drop: DropGuard,
}

impl OpcUaOutput {
    fn new(config: Arc<OutputConfig>, keys: PathBuf) -> OpcUaOutput {
        let stop = CancellationToken::new();
        OpcUaOutput {
            config,
            keys,
            sender: watch::Sender::new(None),
            keeper: Mutex::new(None),
            _stop_on_drop: stop.clone().drop_guard(),
            stop,
        }
    }

    fn start_keeper(&self, context: &OutputContext) -> JoinHandle<()> {
        let connection = &self.config.connection;
        let status = Arc::new(Mutex::new(Status::default()));
        let shown = status.clone();
        context.connection.show(move || {
            let status = shown.lock().clone();
            vec![
                Detail::new("server", status.server),
                Detail::new("security", status.security),
                Detail::new("connection", status.state),
            ]
        });
        let keeper = Keeper {
            config: connection.clone(),
            connector: Connector::with_keys_in(&self.keys, connection.clone()),
            component: context.component.clone(),
            connection: context.connection.clone(),
            metrics: Connections::new(&context.component),
            status,
            server: self.sender.clone(),
            stop: self.stop.clone(),
        };
        tokio::spawn(keeper.run())
    }
}

impl Output for OpcUaOutput {
    /// Returns when there is a session for the first time; what keeps it from that is told by whoever keeps it.
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            self.keeper.lock().get_or_insert_with(|| self.start_keeper(context));
            match self.sender.subscribe().wait_for(Option::is_some).await {
                Ok(_) => Ok(()),
                Err(_) => Err(OpenError::Permanent("the output was closed".to_owned())),
            }
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let (config, mut servers) = (self.config.clone(), self.sender.subscribe());
        Box::pin(async move {
            // Before anything is refused: while there is no session, nothing is said of any message.
            let server = match servers.wait_for(Option::is_some).await {
                Ok(server) => server.clone(),
                Err(_) => None,
            };
            let server = server.ok_or_else(|| WriteError::Temporary("the output is closed".to_owned()))?;
            let prepared = prepare::prepare(&messages, &config.mappings, &server.namespaces);
            let progress = prepared.map_err(|unknown| {
                // They are asked for at each connect.
                server.session.channel().close(&unknown.to_string());
                WriteError::Temporary(unknown.to_string())
            })?;
            deliver::deliver(&server, config.handshake, progress).await
        })
    }

    fn joins(&self) -> usize {
        BATCHES_JOINED
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            self.stop.cancel();
            let keeper = self.keeper.lock().take();
            match keeper {
                Some(keeper) => keeper.await.map_err(|error| error.to_string()),
                None => Ok(()),
            }
        })
    }
}

#[cfg(test)]
mod tests;
