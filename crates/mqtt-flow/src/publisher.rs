//! Publishes what the writes of an output contain, in their order, over one connection after the other. A task owns the
//! connection; writes are requests to it, and end when each of their messages was acknowledged or refused for good.

mod accounts;
mod task;

use std::time::Duration;

use thalweg_flow::{BoxFuture, Component, Connection, Rejection, WriteError};
use thalweg_mqtt_wire::QoS;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::dial::{Dialer, Dialled, SessionRequest};
use crate::outgoing::OutgoingPublish;
use task::PublisherTask;

/// How long the last packets of a connection may take to leave.
const LAST_PACKETS: Duration = Duration::from_secs(1);
/// Seconds that a session with QoS 2 outlives its connection. It ends with the output.
const SESSION_EXPIRY: u32 = 3600;

#[derive(Clone, Copy, Debug)]
pub struct PublisherOptions {
    /// Messages that may wait for an acknowledgement.
    pub window: u16,
    pub qos: QoS,
    /// How long the broker may acknowledge nothing, or take no bytes.
    pub write_timeout: Duration,
    /// Messages have what only 5.0 has.
    pub needs_5: bool,
}

impl PublisherOptions {
    /// With QoS 2 the broker keeps the session, so that no message is passed on twice because a connection was lost. In 3.1.1
    /// the session would never end.
    fn session(&self, is_first: bool) -> SessionRequest {
        let keeps = self.qos == QoS::ExactlyOnce;
        SessionRequest {
            clean_start: is_first || !keeps,
            clean_elsewhere: true,
            expiry: if keeps { SESSION_EXPIRY } else { 0 },
            clean_session: true,
            receive_maximum: 0,
        }
    }

    /// Why this broker cannot be used.
    fn check(&self, dialled: &Dialled) -> Result<(), String> {
        let (url, max, qos) = (&dialled.url, dialled.maximum_qos.number(), self.qos.number());
        match max < qos {
            true => Err(format!(
                "{url}: the broker takes QoS {max} at most, and qos is {qos}; set qos: {max}"
            )),
            false => Ok(()),
        }
    }
}

enum PublisherRequest {
    Write(WriteRequest),
    /// Answered when the connection has ended.
    Close(oneshot::Sender<()>),
}

struct WriteRequest {
    publishes: Vec<Result<OutgoingPublish, Rejection>>,
    reply: oneshot::Sender<Result<(), WriteError>>,
}

/// Dropping it ends its task, and gives up what is in flight.
pub struct Publisher {
    requests: mpsc::UnboundedSender<PublisherRequest>,
}

impl Publisher {
    /// Connects, and starts the task. The error is one sentence.
    pub async fn open(
        mut dialer: Dialer,
        options: PublisherOptions,
        component: Component,
        connection: Connection,
    ) -> Result<Publisher, String> {
        let dialled = dialer.dial(options.session(true)).await?;
        if let Err(error) = options.check(&dialled) {
            let _ = timeout(LAST_PACKETS, dialled.link.disconnect(true)).await;
            dialer.avoid_this_one();
            return Err(error);
        }
        connection.up();
        // The output limits the writes, and so the requests.
        let (requests, received) = mpsc::unbounded_channel();
        let task = PublisherTask::new(dialer, options, component, connection, received);
        tokio::spawn(task.run(dialled));
        Ok(Publisher { requests })
    }

    /// The place of the messages in the order is fixed now.
    pub fn write(
        &self,
        publishes: Vec<Result<OutgoingPublish, Rejection>>,
    ) -> BoxFuture<'static, Result<(), WriteError>> {
        let (reply, replied) = oneshot::channel();
        let _ = self
            .requests
            .send(PublisherRequest::Write(WriteRequest { publishes, reply }));
        Box::pin(async move {
            let ended = |_| {
                Err(WriteError::Temporary(
                    "the connection to the broker has ended".to_owned(),
                ))
            };
            replied.await.unwrap_or_else(ended)
        })
    }

    /// Ends the connection in order, after all writes.
    pub async fn close(&self) -> Result<(), String> {
        let (reply, replied) = oneshot::channel();
        if self.requests.send(PublisherRequest::Close(reply)).is_ok() {
            // The task may have ended meanwhile.
            let _ = replied.await;
        }
        Ok(())
    }
}
