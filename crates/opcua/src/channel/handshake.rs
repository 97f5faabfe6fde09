//! Opens a channel from an address: TCP, hello and acknowledge, the first security token and its renewals.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use opcua::core::comms::secure_channel::{Role, SecureChannel};
use opcua::core::comms::tcp_types::{AcknowledgeMessage, ErrorMessage, HelloMessage};
use opcua::crypto::CertificateStore;
use opcua::types::{
    ContextOwned, MessageSecurityMode, NodeId, OpenSecureChannelRequest, OpenSecureChannelResponse,
    SecurityTokenRequestType, SimpleBinaryDecodable as _, SimpleBinaryEncodable as _,
};
use parking_lot::RwLock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::body::AnswerBody;
use super::service::CallError;
use super::{Channel, ChannelSecurity, SharedSecureChannel, limits};
use crate::endpoint_url::EndpointUrl;
use crate::value::status;

/// Timeout of each connection step.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long an address may be silent before the next one is tried in parallel. Forty addresses fit into one step.
const ADDRESS_STAGGER: Duration = Duration::from_millis(250);

/// Why no channel could be opened; each says what to do about it.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ChannelOpenError {
    #[error("{0}")]
    BadUrl(String),
    #[error("the host \"{host}\" of {url} is not known ({why}); check its name or use its IP address")]
    UnknownHost { url: String, host: String, why: String },
    #[error("nothing can be reached at {url} ({why}); check host and port, and that the server is running")]
    Unreachable { url: String, why: String },
    #[error("{url} answers, but not as an OPC UA server ({why}); check the port")]
    NotOpcUa { url: String, why: String },
    /// The server refused the connection with its own status.
    #[error("the server at {url} refused the connection: {}{reason}", status::text(*.status))]
    Refused { url: String, status: u32, reason: String },
    #[error("{0}")]
    Call(#[from] CallError),
}

impl ChannelOpenError {
    pub fn status(&self) -> Option<u32> {
        match self {
            ChannelOpenError::Refused { status, .. } => Some(*status),
            ChannelOpenError::Call(error) => error.status(),
            _ => None,
        }
    }
}

/// A connection after hello and acknowledge.
pub(super) struct TransportConnection {
    pub stream: TcpStream,
    pub peer: PeerLimits,
    /// Largest chunk that the peer may send.
    pub chunk_bytes_max: usize,
}

/// The limits of the peer; 0 means no limit.
pub(super) struct PeerLimits {
    pub chunk_bytes: usize,
    pub message_bytes: usize,
    pub chunks: usize,
}

pub(super) async fn connect(url: &str) -> Result<TransportConnection, ChannelOpenError> {
    let address = EndpointUrl::parse(url).map_err(ChannelOpenError::BadUrl)?;
    let unreachable = |why: String| ChannelOpenError::Unreachable {
        url: url.to_owned(),
        why,
    };
    let mut stream = within(tcp(&address, url))
        .await
        .ok_or_else(|| unreachable("no answer within 10 s".to_owned()))??;
    let _unsupported = stream.set_nodelay(true);
    let not_opcua = |why: String| ChannelOpenError::NotOpcUa {
        url: url.to_owned(),
        why,
    };
    within(hello(&mut stream, url))
        .await
        .ok_or_else(|| not_opcua("no answer to hello within 10 s".to_owned()))?
        .map(|(peer, chunk_bytes_max)| TransportConnection {
            stream,
            peer,
            chunk_bytes_max,
        })
}

async fn within<T>(step: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(STEP_TIMEOUT, step).await.ok()
}

async fn tcp(address: &EndpointUrl, url: &str) -> Result<TcpStream, ChannelOpenError> {
    let unknown = |why: String| ChannelOpenError::UnknownHost {
        url: url.to_owned(),
        host: address.host.clone(),
        why,
    };
    let found = tokio::net::lookup_host(format!("{}:{}", address.host, address.port)).await;
    let addresses = found.map_err(|error| unknown(error.to_string()))?;
    let connected = first_to_answer(addresses, ADDRESS_STAGGER, TcpStream::connect).await;
    connected.map_err(|error| match error {
        Some(error) => ChannelOpenError::Unreachable {
            url: url.to_owned(),
            why: error.to_string(),
        },
        None => unknown("it has no address".to_owned()),
    })
}

/// Tries addresses in order, each further one when another has failed or is silent for `stagger`. The first to answer
/// is used, so that a silent address hides no other (RFC 8305). The error is the last one; `None` without addresses.
async fn first_to_answer<A, T, E, F>(
    mut addresses: impl Iterator<Item = A>,
    stagger: Duration,
    connect: impl Fn(A) -> F,
) -> Result<T, Option<E>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut attempts = FuturesUnordered::new();
    let mut last = None;
    loop {
        let another = addresses.next().map(&connect);
        let all_are_tried = another.is_none();
        attempts.extend(another);
        tokio::select! {
            ended = attempts.next() => match ended {
                Some(Ok(connected)) => return Ok(connected),
                Some(Err(error)) => last = Some(error),
                None => return Err(last),
            },
            () = tokio::time::sleep(stagger), if !all_are_tried => {}
        }
    }
}

async fn hello(stream: &mut TcpStream, url: &str) -> Result<(PeerLimits, usize), ChannelOpenError> {
    let not_opcua = |why: String| ChannelOpenError::NotOpcUa {
        url: url.to_owned(),
        why,
    };
    let hello = HelloMessage::new(
        url,
        limits::CHUNK_BYTES_MAX,
        limits::CHUNK_BYTES_MAX,
        limits::MESSAGE_BYTES_MAX,
        limits::CHUNKS_MAX,
    );
    let io = |error: std::io::Error| not_opcua(error.to_string());
    stream.write_all(&hello.encode_to_vec()).await.map_err(io)?;
    let mut answer = BytesMut::zeroed(8);
    stream.read_exact(&mut answer).await.map_err(io)?;
    let (kind, size) = answer.split_at(4);
    let size = u32::from_le_bytes(size.try_into().unwrap_or_default()) as usize;
    let kind: [u8; 3] = kind.get(..3).and_then(|k| k.try_into().ok()).unwrap_or_default();
    if !matches!(&kind, b"ACK" | b"ERR") || !(8..=limits::CHUNK_BYTES_MIN).contains(&size) {
        return Err(not_opcua("its first bytes are no answer to an OPC UA hello".to_owned()));
    }
    answer.resize(size, 0);
    stream
        .read_exact(answer.get_mut(8..).unwrap_or_default())
        .await
        .map_err(io)?;
    let options = limits::decoding_options(size);
    let mut cursor = Cursor::new(&*answer);
    let undecodable = |error: opcua::types::Error| not_opcua(error.to_string());
    if &kind == b"ERR" {
        let error = ErrorMessage::decode(&mut cursor, &options).map_err(undecodable)?;
        let reason = reason(error.reason.as_ref());
        return Err(ChannelOpenError::Refused {
            url: url.to_owned(),
            status: error.error.bits(),
            reason,
        });
    }
    let ack = AcknowledgeMessage::decode(&mut cursor, &options).map_err(undecodable)?;
    let chunk = (ack.receive_buffer_size as usize).min(limits::CHUNK_BYTES_MAX);
    if chunk < limits::CHUNK_BYTES_MIN {
        return Err(not_opcua(format!(
            "it accepts chunks of only {chunk} bytes, the protocol demands 8192"
        )));
    }
    let peer = PeerLimits {
        chunk_bytes: chunk,
        message_bytes: ack.max_message_size as usize,
        chunks: ack.max_chunk_count as usize,
    };
    Ok((peer, limits::CHUNK_BYTES_MAX))
}

/// The server's explanation of its status in parentheses, or nothing.
pub(super) fn reason(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() {
        String::new()
    } else {
        format!(" ({})", text.chars().take(200).collect::<String>())
    }
}

/// The library's state of a channel. It looks for key files and logs their absence, which is irrelevant here because
/// keys are set directly.
pub(super) fn secure_channel(security: &ChannelSecurity) -> SecureChannel {
    let context = ContextOwned::new(
        opcua::types::NamespaceMap::new(),
        opcua::types::TypeLoaderCollection::new(),
        limits::decoding_options(limits::MESSAGE_BYTES_MAX),
    );
    let store = Arc::new(RwLock::new(CertificateStore::new(Path::new(""))));
    let quiet = tracing::subscriber::NoSubscriber::default();
    let mut channel = tracing::subscriber::with_default(quiet, || {
        SecureChannel::new(store, Role::Client, Arc::new(RwLock::new(context)))
    });
    channel.set_security_policy(security.policy);
    channel.set_security_mode(security.mode);
    let (certificate, key) = security.own.clone().unzip();
    channel.set_cert(certificate);
    channel.set_private_key(key);
    channel.set_remote_cert(security.server_certificate.clone());
    channel
}

/// The parameters of each token request.
#[derive(Clone, Copy)]
pub(super) struct TokenRequest {
    pub mode: MessageSecurityMode,
    pub lifetime_ms: u32,
}

/// Requests the first token. The reader applies the response before it processes anything else.
pub(super) async fn issue(
    channel: &Channel,
    secure: &SharedSecureChannel,
    wish: TokenRequest,
) -> Result<(), CallError> {
    token(channel, secure, wish, SecurityTokenRequestType::Issue).await
}

async fn token(
    channel: &Channel,
    secure: &SharedSecureChannel,
    wish: TokenRequest,
    request_type: SecurityTokenRequestType,
) -> Result<(), CallError> {
    let client_nonce = {
        let mut secure = secure.write();
        let nonce = secure.security_policy().random_nonce();
        secure.set_local_nonce(nonce.as_ref());
        nonce
    };
    let request = OpenSecureChannelRequest {
        request_header: Default::default(),
        client_protocol_version: 0,
        request_type,
        security_mode: wish.mode,
        client_nonce,
        requested_lifetime: wish.lifetime_ms,
    };
    // The writer waits for the response too: without one, the channel is useless.
    let answer = channel.call(&NodeId::null(), request, STEP_TIMEOUT).await;
    let response = answer.inspect_err(|error| {
        channel.close(&format!("the server issued no security token: {error}"));
    })?;
    bad_result(response.response_header.service_result.bits())
}

fn bad_result(status: u32) -> Result<(), CallError> {
    if status::is_bad(status) {
        Err(CallError::Refused(status))
    } else {
        Ok(())
    }
}

/// Applies the token of an OpenSecureChannel response. Called by the reader, so that no message secured with the new
/// token is read before its keys exist.
pub(super) fn apply_token(secure: &SharedSecureChannel, body: &AnswerBody) -> Result<(), CallError> {
    let response: OpenSecureChannelResponse = body.decode::<OpenSecureChannelRequest>()?;
    bad_result(response.response_header.service_result.bits())?;
    let mut secure = secure.write();
    let known = secure.secure_channel_id();
    if known != 0 && known != response.security_token.channel_id {
        return Err(CallError::Unreadable(
            "the server renewed another channel than this one".to_owned(),
        ));
    }
    let mut token = response.security_token;
    // Lifetimes are counted with the local clock, because the server's may be off by years.
    token.created_at = opcua::types::DateTime::now();
    secure.set_security_token(token);
    if secure.security_policy() != opcua::crypto::SecurityPolicy::None {
        let unreadable = |error: opcua::types::Error| CallError::Unreadable(error.to_string());
        secure
            .validate_secure_channel_nonce_length(&response.server_nonce)
            .map_err(unreadable)?;
        secure
            .set_remote_nonce_from_byte_string(&response.server_nonce)
            .map_err(unreadable)?;
        secure.derive_keys();
    }
    Ok(())
}

/// Renews the token after three quarters of each lifetime while the channel lives. Holds no clone of the channel while
/// it sleeps, so that it does not keep it open.
pub(super) fn spawn_renewal(channel: &Channel, secure: SharedSecureChannel, wish: TokenRequest) {
    let weak = Arc::downgrade(&channel.inner);
    let closed = channel.inner.closed.clone();
    tokio::spawn(async move {
        loop {
            // Extreme lifetimes that a server grants are clamped.
            let lifetime = secure.read().token_lifetime().clamp(1000, limits::TOKEN_LIFETIME_MS);
            let wait = Duration::from_millis(u64::from(lifetime) * 3 / 4);
            tokio::select! {
                () = closed.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
            let Some(inner) = weak.upgrade() else { return };
            let channel = Channel { inner };
            if let Err(error) = token(&channel, &secure, wish, SecurityTokenRequestType::Renew).await {
                channel.close(&format!("the security token could not be renewed: {error}"));
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of an attempt to connect.
    #[derive(Clone, Copy)]
    enum Address {
        Silent,
        Refused,
        Answers,
    }

    async fn connect(number: usize, address: Address) -> Result<usize, usize> {
        match address {
            Address::Silent => std::future::pending().await,
            Address::Refused => Err(number),
            Address::Answers => Ok(number),
        }
    }

    async fn first(addresses: &[Address], stagger: Duration) -> Option<Result<usize, Option<usize>>> {
        let numbered = addresses.iter().copied().enumerate();
        within(first_to_answer(numbered, stagger, |(number, address)| {
            connect(number, address)
        }))
        .await
    }

    #[tokio::test]
    async fn an_address_that_answers_is_found_after_silent_and_refused_ones() {
        use Address::{Answers, Refused, Silent};
        let moment = Duration::from_millis(1);
        assert_eq!(first(&[Silent, Refused, Silent, Answers], moment).await, Some(Ok(3)));
        let many = [[Silent; 30].as_slice(), &[Answers]].concat();
        assert_eq!(first(&many, moment).await, Some(Ok(30)));
        assert_eq!(first(&[Refused, Refused], moment).await, Some(Err(Some(1))));
        assert_eq!(first(&[], moment).await, Some(Err(None)));
        // A responding address is not preempted, and a refusal causes no wait.
        let for_ever = STEP_TIMEOUT * 2;
        assert_eq!(first(&[Answers, Refused], for_ever).await, Some(Ok(0)));
        assert_eq!(first(&[Refused, Refused, Answers], for_ever).await, Some(Ok(2)));
    }
}
