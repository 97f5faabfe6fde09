//! A secure channel: each request gets its response or one error.
//!
//! The library's channel closes the connection when it cannot decode one response, reads its keys only from files, and
//! decodes every response on the task that reads the socket. So this module implements the socket, the framing and the
//! request tracking (reader and writer task, limits on everything the peer sends), while the library encodes requests
//! and does the cryptography. Responses are returned as bytes, and the caller decodes them in its own task.

mod body;
mod chain;
pub(crate) mod fuzz;
mod handshake;
mod limits;
mod pending;
mod reader;
mod service;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use opcua::core::RequestMessage;
use opcua::core::comms::secure_channel::SecureChannel;
use opcua::crypto::{PrivateKey, SecurityPolicy, X509};
use opcua::types::{DateTime, DiagnosticBits, MessageSecurityMode, NodeId, RequestHeader};
use parking_lot::RwLock;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) use body::AnswerBody;
pub(crate) use handshake::ChannelOpenError;
pub(crate) use limits::{ARRAY_ELEMENTS_MAX, MESSAGE_BYTES_MAX};
pub(crate) use pending::{AnswerQueue, QueuedAnswer};
pub(crate) use service::{CallError, CallFailureKind, ServiceRequest};

use pending::PendingRequests;

/// The security of a channel. `None` for mode and policy needs neither certificate.
#[derive(Clone)]
pub(crate) struct ChannelSecurity {
    pub mode: MessageSecurityMode,
    pub policy: SecurityPolicy,
    /// Ours; required unless the policy is None.
    pub own: Option<(X509, PrivateKey)>,
    /// The server's, already trusted by the caller; required unless the policy is None.
    pub server_certificate: Option<X509>,
}

impl ChannelSecurity {
    pub fn none() -> ChannelSecurity {
        ChannelSecurity {
            mode: MessageSecurityMode::None,
            policy: SecurityPolicy::None,
            own: None,
            server_certificate: None,
        }
    }

    pub fn is_none(&self) -> bool {
        self.policy == SecurityPolicy::None
    }
}

/// An open channel. Clones share it; it closes when the last one is dropped.
#[derive(Clone)]
pub(crate) struct Channel {
    inner: Arc<ChannelInner>,
}

struct ChannelInner {
    requests: mpsc::Sender<OutgoingRequest>,
    pending: Arc<PendingRequests>,
    handles: AtomicU32,
    #[cfg(test)]
    secure: SharedSecureChannel,
    /// Cancelled when either task ends or the channel is dropped.
    closed: CancellationToken,
    _close_on_drop: DropGuard,
}

/// One request for the writer.
pub(super) struct OutgoingRequest {
    request: RequestMessage,
    /// `None` for requests without a response.
    reply: Option<pending::AnswerSink>,
}

impl Channel {
    /// Connects, exchanges hello and opens the secure channel.
    pub async fn open(url: &str, security: &ChannelSecurity) -> Result<Channel, ChannelOpenError> {
        Channel::open_with_lifetime(url, security, limits::TOKEN_LIFETIME_MS).await
    }

    /// `lifetime_ms` is requested for the security token, which is renewed after three quarters of the granted
    /// lifetime.
    async fn open_with_lifetime(
        url: &str,
        security: &ChannelSecurity,
        lifetime_ms: u32,
    ) -> Result<Channel, ChannelOpenError> {
        let link = handshake::connect(url).await?;
        let secure = Arc::new(RwLock::new(handshake::secure_channel(security)));
        let pending = Arc::new(PendingRequests::default());
        let closed = CancellationToken::new();
        let (requests, outgoing) = mpsc::channel(limits::REQUESTS_QUEUED_MAX);
        let (read, write) = link.stream.into_split();
        let token_answered = Arc::new(Notify::new());
        let reader = reader::ChannelReader {
            read,
            chunk_bytes_max: link.chunk_bytes_max,
            secure: secure.clone(),
            security: security.clone(),
            pending: pending.clone(),
            token_answered: token_answered.clone(),
            buffer: BytesMut::new(),
            sequence: None,
        };
        let writer = writer::ChannelWriter::new(
            write,
            &link.peer,
            secure.clone(),
            pending.clone(),
            token_answered,
            outgoing,
        );
        spawn(closed.clone(), pending.clone(), reader.run());
        spawn(closed.clone(), pending.clone(), writer.run());
        let inner = ChannelInner {
            requests,
            pending,
            handles: AtomicU32::new(1),
            #[cfg(test)]
            secure: secure.clone(),
            _close_on_drop: closed.clone().drop_guard(),
            closed,
        };
        let channel = Channel { inner: Arc::new(inner) };
        let token = handshake::TokenRequest {
            mode: security.mode,
            lifetime_ms,
        };
        handshake::issue(&channel, &secure, token).await?;
        handshake::spawn_renewal(&channel, secure, token);
        Ok(channel)
    }

    /// Sends a request and decodes its response.
    pub async fn call<S: ServiceRequest>(
        &self,
        token: &NodeId,
        request: S,
        timeout: Duration,
    ) -> Result<S::Response, CallError> {
        self.call_raw(token, request, timeout).await?.decode::<S>()
    }

    /// Sends a request and returns its response undecoded; a service fault is already an error.
    pub async fn call_raw<S: ServiceRequest>(
        &self,
        token: &NodeId,
        mut request: S,
        timeout: Duration,
    ) -> Result<AnswerBody, CallError> {
        *request.header() = self.header(token, timeout);
        let body = self.exchange(request.into(), timeout).await?;
        body.check_fault()?;
        Ok(body)
    }

    /// Sends a request without a response. Errors are ignored, because the channel is closing.
    pub async fn post<S: ServiceRequest>(&self, token: &NodeId, mut request: S) {
        *request.header() = self.header(token, Duration::from_secs(1));
        let _closed = self
            .inner
            .requests
            .send(OutgoingRequest {
                request: request.into(),
                reply: None,
            })
            .await;
    }

    /// Sends a request whose response goes to a queue, in the order in which the server's responses arrive.
    pub async fn enqueue<S: ServiceRequest>(
        &self,
        token: &NodeId,
        mut request: S,
        timeout_hint: Duration,
        queue: &AnswerQueue,
        tag: u64,
    ) {
        *request.header() = self.header(token, timeout_hint);
        let reply = pending::AnswerSink::Queue(pending::QueueReply::new(queue.clone(), tag));
        // If it cannot be sent, dropping the reply delivers an error.
        let _closed = self
            .inner
            .requests
            .send(OutgoingRequest {
                request: request.into(),
                reply: Some(reply),
            })
            .await;
    }

    async fn exchange(&self, request: RequestMessage, timeout: Duration) -> Result<AnswerBody, CallError> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        let exchange = async {
            let outgoing = OutgoingRequest {
                request,
                reply: Some(pending::AnswerSink::One(reply)),
            };
            if self.inner.requests.send(outgoing).await.is_err() {
                return Err(self.inner.pending.closed_error());
            }
            answer.await.unwrap_or_else(|_| Err(self.inner.pending.closed_error()))
        };
        tokio::time::timeout(timeout, exchange)
            .await
            .unwrap_or(Err(CallError::Timeout(timeout)))
    }

    fn header(&self, token: &NodeId, timeout: Duration) -> RequestHeader {
        RequestHeader {
            authentication_token: token.clone(),
            timestamp: DateTime::now(),
            request_handle: self.inner.handles.fetch_add(1, Ordering::Relaxed),
            return_diagnostics: DiagnosticBits::empty(),
            timeout_hint: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            ..RequestHeader::default()
        }
    }

    /// Resolves when the channel is no longer usable.
    pub async fn closed(&self) {
        self.inner.closed.cancelled().await;
    }

    pub fn is_closed(&self) -> bool {
        self.inner.closed.is_cancelled()
    }

    /// Returns why the channel closed.
    pub fn closed_error(&self) -> CallError {
        self.inner.pending.closed_error()
    }

    /// Closes the channel with a reason that every pending and later call returns.
    pub fn close(&self, why: &str) {
        self.inner.pending.close(why);
        self.inner.closed.cancel();
    }
}

#[cfg(test)]
impl Channel {
    fn token_id(&self) -> u32 {
        self.inner.secure.read().token_id()
    }
}

/// Runs one half of the connection until it ends, the channel closes or it panics (a hostile peer may cause that inside
/// the library); then all pending requests fail.
fn spawn(
    closed: CancellationToken,
    pending: Arc<PendingRequests>,
    half: impl Future<Output = String> + Send + 'static,
) {
    use futures::FutureExt as _;
    tokio::spawn(async move {
        let guarded = std::panic::AssertUnwindSafe(half).catch_unwind();
        let why = tokio::select! {
            biased;
            () = closed.cancelled() => "the connection was closed".to_owned(),
            why = guarded => why.unwrap_or_else(|_| "the server sent something that could not be decrypted".to_owned()),
        };
        pending.close(&why);
        closed.cancel();
    });
}

/// The library's channel state, which both halves share.
pub(super) type SharedSecureChannel = Arc<RwLock<SecureChannel>>;

#[cfg(test)]
mod tests;
