//! The trait of outputs, and how a write fails.

use std::sync::Arc;
use std::time::Duration;

use thalweg_kit::backoff::Backoff;
use thalweg_record::{DropReason, Message};
use tokio_util::sync::CancellationToken;

use crate::BoxFuture;
use crate::batching::Batching;
use crate::component::Component;
use crate::connection::Connection;
use crate::context::StageContext;
use crate::metrics::OUTPUT_CONNECTION;

/// The pauses of outputs that ask for no others.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5)).with_jitter(0.5);

/// A destination of messages. All writes in flight share it.
pub trait Output: Send + Sync {
    /// Connects, for outputs that have a connection. Called before the first write, and again with pauses (see
    /// [`Output::backoff`]) while it fails temporarily; messages wait meanwhile. `context.connection` must be up before
    /// this returns `Ok`; the caller reports failures there.
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        context.connection.up();
        Box::pin(async { Ok(()) })
    }

    /// Writes messages and returns when they are as durable as this output promises.
    ///
    /// The place of the messages in the order of the stream is fixed when `write` is *called*, not when its future is
    /// polled. A caller never has more than [`Output::max_in_flight`] futures at a time; an output that allows more
    /// than one keeps the order itself, including its own retries.
    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>>;

    fn max_in_flight(&self) -> usize {
        1
    }

    /// How many waiting batches may be joined into one write: for outputs whose writes have a fixed cost, such as those
    /// that end with a sync.
    fn joins(&self) -> usize {
        1
    }

    /// How messages are collected before they are written; `None` means not at all.
    fn batching(&self) -> Option<Batching> {
        None
    }

    /// The pauses between attempts after an opening or a write failed temporarily.
    fn backoff(&self) -> Backoff {
        PAUSES
    }

    /// Someone is blocked until a write ends: write collected messages now.
    fn hurry(&self) {}

    /// Flushes and closes after all writes have ended. Called once, and only if the output was opened.
    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// What an output works with.
pub struct OutputContext {
    pub component: Component,
    pub connection: Connection,
    /// Cancelled when the shutdown time is over and waiting is pointless.
    pub stop: CancellationToken,
}

/// For tests of outputs in other crates: there is no connection, and nothing stops it.
impl OutputContext {
    pub fn for_tests(name: &str) -> OutputContext {
        let component = StageContext::for_tests(name).component;
        OutputContext {
            connection: Connection::new(&component, &OUTPUT_CONNECTION),
            component,
            stop: CancellationToken::new(),
        }
    }
}

/// Why an output could not be opened: one sentence with the place and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// A retry may succeed.
    Temporary(String),
    /// Only another configuration or a restart helps: the flow ends with this text.
    Permanent(String),
}

/// Why a write failed completely or in part.
#[derive(Clone, Debug)]
pub enum WriteError {
    /// No message was written, and a retry may succeed. One sentence with the place and the remedy.
    Temporary(String),
    /// These messages were not written; all others were.
    Some(Vec<Rejection>),
    /// No message was written and no later write will succeed: the flow ends with this sentence.
    Permanent(String),
}

/// One message that was not written.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// The index in the messages of the write.
    pub index: usize,
    /// `None`: a retry may succeed. Otherwise the reason under which the message is counted if no dead letter accepts
    /// it.
    pub permanent: Option<DropReason>,
    pub error: String,
}

impl Rejection {
    pub fn permanent(index: usize, reason: DropReason, error: impl Into<String>) -> Rejection {
        Rejection {
            index,
            permanent: Some(reason),
            error: error.into(),
        }
    }

    pub fn temporary(index: usize, error: impl Into<String>) -> Rejection {
        Rejection {
            index,
            permanent: None,
            error: error.into(),
        }
    }
}

/// The result of a write with these rejections.
pub fn all_but(rejections: Vec<Rejection>) -> Result<(), WriteError> {
    if rejections.is_empty() {
        Ok(())
    } else {
        Err(WriteError::Some(rejections))
    }
}
