//! How a connection begins: PROXY header, TLS, WebSocket, and the packet CONNECT, all within one time.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use thalweg_mqtt_wire::{Connect, ConnectRefusal, FixedHeader, PacketKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tungstenite::protocol::frame::coding::CloseCode;

use super::ListenerContext;
use super::identity::{PeerIdentity, user_of};
use super::proxy_header::{ProxyHeader, ProxyHeaderError};
use super::transport::{EncodedStream, SocketStream, Transport};
use super::websocket::{FrameDecoder, UpgradeAnswer, UpgradeRule};

/// A CONNECT is at most this large.
const CONNECT_MAX: usize = 256 << 10;
/// Bytes of the head of a WebSocket request.
const HEAD_MAX: usize = 16 << 10;
/// Bytes of a PROXY header that are looked at together.
const PROXY_STEP: usize = 256;

/// A connection whose client has sent its CONNECT.
pub(super) struct OpenConnection {
    pub transport: Transport,
    /// What has come behind the CONNECT.
    pub buffer: BytesMut,
    pub connect: Result<Connect, ConnectRefusal>,
    pub peer: PeerIdentity,
}

/// Why a connection ends before its CONNECT.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}; let the load balancer send one, or set proxy_protocol: false")]
    Proxy(#[from] ProxyHeaderError),
    #[error("the TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("the WebSocket request was refused: {0}")]
    WebSocket(String),
    #[error("the first packet is no CONNECT")]
    NoConnect,
    #[error("the client has closed the connection")]
    Closed,
}

impl OpenError {
    /// For counting lines of the log.
    pub fn kind(&self) -> &'static str {
        match self {
            OpenError::Io(_) => "io",
            OpenError::Proxy(_) => "proxy",
            OpenError::Tls(_) => "tls",
            OpenError::WebSocket(_) => "websocket",
            OpenError::NoConnect => "no-connect",
            OpenError::Closed => "closed",
        }
    }
}

/// Reads what comes before and with CONNECT.
pub(super) async fn open(
    context: Arc<ListenerContext>,
    mut socket: TcpStream,
    peer: SocketAddr,
) -> Result<OpenConnection, OpenError> {
    // Answers are written together, so nothing is gained by waiting for more.
    let _ = socket.set_nodelay(true);
    let mut peer = PeerIdentity {
        source: peer,
        user: None,
    };
    if context.settings.proxy_protocol
        && let Some(source) = proxy_source(&mut socket).await?
    {
        peer.source = source;
    }
    let mut buffer = BytesMut::new();
    let mut transport = match (&context.tls, &context.upgrade) {
        (None, None) => Transport::Plain(Arc::new(socket)),
        (tls, upgrade) => {
            let mut stream = match tls {
                None => SocketStream::Plain(socket),
                Some(tls) => {
                    let stream = tls.acceptor().accept(socket).await.map_err(OpenError::Tls)?;
                    let certificates = stream.get_ref().1.peer_certificates();
                    let shown = certificates.and_then(<[_]>::first);
                    peer.user = shown.and_then(|shown| user_of(shown, context.settings.identity));
                    SocketStream::Tls(Box::new(stream))
                }
            };
            let stream = match upgrade {
                None => EncodedStream::new(stream, None),
                Some(rule) => {
                    let rest = upgraded(&mut stream, rule).await?;
                    let mut stream = EncodedStream::new(stream, Some(FrameDecoder::default()));
                    stream.receive(&rest, &mut buffer);
                    stream
                }
            };
            Transport::Encoded(Box::new(stream))
        }
    };
    let settings = &context.broker.settings;
    let max = CONNECT_MAX.min(settings.max_packet_size);
    let first = first_packet(&mut transport, &mut buffer, max).await;
    if transport.must_close() {
        transport.write_last(Vec::new(), CloseCode::Normal).await?;
    }
    let (packet, header) = first?;
    Ok(OpenConnection {
        connect: Connect::decode(&packet, &header, settings.strict_utf8),
        transport,
        buffer,
        peer,
    })
}

/// Reads the PROXY header and not a byte more: what follows is read by others.
async fn proxy_source(socket: &mut TcpStream) -> Result<Option<SocketAddr>, OpenError> {
    let mut header = Vec::new();
    loop {
        let mut seen = [0; PROXY_STEP];
        let count = socket.peek(&mut seen).await?;
        if count == 0 {
            return Err(OpenError::Closed);
        }
        let before = header.len();
        header.extend_from_slice(seen.get(..count).unwrap_or_default());
        let parsed = ProxyHeader::parse(&header)?;
        let used = parsed.map_or(count, |parsed| parsed.len - before);
        socket.read_exact(seen.get_mut(..used).unwrap_or_default()).await?;
        if let Some(parsed) = parsed {
            return Ok(parsed.source);
        }
    }
}

/// Answers the WebSocket request. Returns what has come behind it.
async fn upgraded(stream: &mut SocketStream, rule: &UpgradeRule) -> Result<Vec<u8>, OpenError> {
    let (head, rest) = request_head(stream).await?;
    match rule.answer(&head) {
        UpgradeAnswer::Accepted(answer) => {
            write(stream, &answer).await?;
            Ok(rest)
        }
        UpgradeAnswer::Refused(answer) => {
            write(stream, &answer).await?;
            stream.shutdown().await?;
            let text = String::from_utf8_lossy(&answer);
            Err(OpenError::WebSocket(text.lines().last().unwrap_or_default().to_owned()))
        }
    }
}

/// The head of an HTTP request with its empty line, and what has come behind it.
async fn request_head(stream: &mut SocketStream) -> Result<(Vec<u8>, Vec<u8>), OpenError> {
    const END: &[u8] = b"\r\n\r\n";
    let mut head = Vec::new();
    loop {
        // The end may have begun in what came before.
        let from = head.len().saturating_sub(END.len() - 1);
        if stream.read_buf(&mut head).await? == 0 {
            return Err(OpenError::Closed);
        }
        let new = head.get(from..).unwrap_or_default();
        if let Some(at) = new.windows(END.len()).position(|bytes| bytes == END) {
            let rest = head.split_off(from + at + END.len());
            return Ok((head, rest));
        }
        if head.len() > HEAD_MAX {
            return Err(OpenError::WebSocket("the head of the request is too long".to_owned()));
        }
    }
}

async fn write(stream: &mut SocketStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// The first packet, if it is a CONNECT.
async fn first_packet(
    transport: &mut Transport,
    buffer: &mut BytesMut,
    max: usize,
) -> Result<(Bytes, FixedHeader), OpenError> {
    loop {
        if let Some(first) = buffer.first()
            && PacketKind::of(*first) != Some(PacketKind::Connect)
        {
            return Err(OpenError::NoConnect);
        }
        let header = FixedHeader::parse(buffer, max).map_err(|_| OpenError::NoConnect)?;
        if let Some(header) = header
            && buffer.len() >= header.packet_len()
        {
            return Ok((buffer.split_to(header.packet_len()).freeze(), header));
        }
        if transport.read(buffer).await? == 0 {
            return Err(OpenError::Closed);
        }
    }
}
