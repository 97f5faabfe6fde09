//! An OPC UA session: a login on a secure channel, required for all services except discovery.
//!
//! A session outlives its channel: after a connection loss, [`Session::reactivate`] moves it to a new channel, where
//! its subscriptions continue. A session never reconnects by itself; its owner decides.

mod keep_alive;
mod login;
mod read;

use std::sync::Arc;
use std::time::Duration;

use opcua::types::{ByteString, CloseSecureChannelRequest, CloseSessionRequest, NodeId};
use parking_lot::Mutex;

use crate::channel::{AnswerBody, AnswerQueue, CallError, Channel, ServiceRequest};

pub(crate) use keep_alive::KeepAlive;
pub(crate) use login::{Credentials, LoginError};
pub(crate) use read::read_id;

/// Timeout of a call.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Cheap to clone; clones share the same session.
#[derive(Clone)]
pub(crate) struct Session {
    inner: Arc<SessionInner>,
}

struct SessionInner {
    channel: Channel,
    credentials: Arc<Credentials>,
    /// Secret that tells the server which session a request belongs to.
    token: NodeId,
    /// As revised by the server.
    timeout: Duration,
    /// The server's latest nonce, needed for the next activation.
    nonce: Mutex<ByteString>,
}

impl Session {
    pub fn channel(&self) -> &Channel {
        &self.inner.channel
    }

    pub fn credentials(&self) -> &Arc<Credentials> {
        &self.inner.credentials
    }

    pub fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    pub async fn call<S: ServiceRequest>(&self, request: S) -> Result<S::Response, CallError> {
        self.call_within(request, REQUEST_TIMEOUT).await
    }

    pub async fn call_within<S: ServiceRequest>(
        &self,
        request: S,
        timeout: Duration,
    ) -> Result<S::Response, CallError> {
        self.inner.channel.call(&self.inner.token, request, timeout).await
    }

    /// Returns the undecoded response, for responses that contain values.
    pub async fn call_raw<S: ServiceRequest>(&self, request: S, timeout: Duration) -> Result<AnswerBody, CallError> {
        self.inner.channel.call_raw(&self.inner.token, request, timeout).await
    }

    /// Sends a request whose response goes to a queue in order of arrival.
    pub async fn enqueue<S: ServiceRequest>(&self, request: S, timeout_hint: Duration, queue: &AnswerQueue, tag: u64) {
        self.inner
            .channel
            .enqueue(&self.inner.token, request, timeout_hint, queue, tag)
            .await;
    }

    /// Ends the session and its subscriptions if the server still responds.
    pub async fn close(&self) {
        let request = CloseSessionRequest {
            delete_subscriptions: true,
            request_header: Default::default(),
        };
        let _gone = self.call_within(request, Duration::from_secs(2)).await;
        let request = CloseSecureChannelRequest {
            request_header: Default::default(),
        };
        self.inner.channel.post(&self.inner.token, request).await;
    }
}
