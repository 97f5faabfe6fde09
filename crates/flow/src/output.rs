//! What an output is, and how it says that a write failed.

use std::sync::Arc;

use thalweg_record::{DropReason, Message};
use tokio_util::sync::CancellationToken;

use crate::BoxFuture;
use crate::backoff::Backoff;
use crate::batching::Batching;
use crate::component::Component;
use crate::connection::Connection;
use crate::context::StageContext;

/// A destination of messages. Shared by all writes in flight.
pub trait Output: Send + Sync {
    /// Connects, for outputs that have something to connect to. Called before the first write, and again with pauses
    /// (see [`Output::backoff`]) while it fails for now; messages wait meanwhile. `context.connection` must be up before
    /// it returns `Ok`; its caller reports the failures there.
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        context.connection.up();
        Box::pin(async { Ok(()) })
    }

    /// Writes messages and returns when they are as durable as this output promises.
    ///
    /// The place of the messages in the order of the stream is fixed when `write` is *called*, not when its future is
    /// polled. A caller never has more than [`Output::max_in_flight`] futures at a time; an output that allows more than
    /// one keeps the order itself, through its own retries too.
    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>>;

    fn max_in_flight(&self) -> usize {
        1
    }

    /// How many batches that wait may be joined into one write: for outputs whose writes cost the same however much is
    /// in them, such as those that end with a sync.
    fn joins(&self) -> usize {
        1
    }

    /// How messages are collected before they are written; `None`: they are not.
    fn batching(&self) -> Option<Batching> {
        None
    }

    /// The pauses between attempts at an opening or a write that failed for now.
    fn backoff(&self) -> Backoff {
        Backoff::default()
    }

    /// Somebody is blocked until a write ends: write what was collected now.
    fn hurry(&self) {}

    /// All writes have ended. Flushes and closes; called once, and only if the output was opened.
    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// What an output gets to work with.
pub struct OutputContext {
    pub component: Component,
    pub connection: Connection,
    /// Cancelled when waiting any longer is pointless: the shutdown time is over.
    pub stop: CancellationToken,
}

/// For tests of outputs in other crates: nothing is connected, and nobody stops it.
impl OutputContext {
    pub fn for_tests(name: &str) -> OutputContext {
        let component = StageContext::for_tests(name).component;
        OutputContext {
            connection: Connection::new(&component, "output"),
            component,
            stop: CancellationToken::new(),
        }
    }
}

/// Why an output could not be opened: one sentence with the place and the cure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Trying again may help.
    Temporary(String),
    /// Only another configuration or a restart helps: the flow ends with this sentence.
    Permanent(String),
}

/// Why a write did not take all messages.
#[derive(Clone, Debug)]
pub enum WriteError {
    /// None was written and trying again may help. One sentence with the place and the cure.
    Temporary(String),
    /// These were not written; all others were.
    Some(Vec<Rejection>),
    /// None was written and no write will succeed any more: the flow ends with this sentence.
    Permanent(String),
}

/// One message that was not written.
#[derive(Clone, Debug)]
pub struct Rejection {
    /// Its index in the messages of the write.
    pub index: usize,
    /// `None`: trying again may help. Else the reason under which it is counted when no dead letter takes it.
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

/// The result of a write that may have been refused in part.
pub fn all_but(rejections: Vec<Rejection>) -> Result<(), WriteError> {
    if rejections.is_empty() {
        Ok(())
    } else {
        Err(WriteError::Some(rejections))
    }
}
