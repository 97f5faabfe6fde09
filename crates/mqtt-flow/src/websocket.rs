//! MQTT over WebSocket: a client's WebSocket as a stream of the bytes in its binary frames. Packets may share a frame, and a packet
//! may span several. Of a frame nothing is kept but what of its payload has come.
//!
//! Source: RFC 6455; [MQTT-6.0.0-1] to [MQTT-6.0.0-4]. The headers of frames and of HTTP are read by tungstenite.

mod frames;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, BytesMut};
use thalweg_kit::random;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tungstenite::handshake::client::Response;
use tungstenite::handshake::derive_accept_key;
use tungstenite::handshake::machine::TryParse as _;
use tungstenite::http::StatusCode;

use crate::link::Transport;
use frames::ServerFrames;

pub use frames::fuzz;

/// The name of MQTT as a subprotocol.
const SUBPROTOCOL: &str = "mqtt";
/// The largest head of an answer.
const HEAD_BYTES_MAX: usize = 16 << 10;
const READ_BYTES: usize = 16 << 10;
/// Payload of one frame that is sent.
const FRAME_BYTES: usize = 64 << 10;

/// A WebSocket after its handshake.
pub struct WebSocketTransport {
    inner: Box<dyn Transport>,
    frames: ServerFrames,
    /// Payload that was not read yet.
    data: BytesMut,
    /// Frames on their way, of which `written` bytes have left.
    out: Vec<u8>,
    written: usize,
    has_ended: bool,
    is_closed: bool,
}

/// Asks for a WebSocket. The error is one sentence.
pub async fn open(mut inner: Box<dyn Transport>, host: &str, path: &str) -> Result<WebSocketTransport, String> {
    let mut random = [0; 16];
    random::fill(&mut random).map_err(|error| error.to_string())?;
    let key = STANDARD.encode(random);
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
    );
    let broke = |error: io::Error| format!("the connection broke: {error}");
    inner.write_all(request.as_bytes()).await.map_err(broke)?;
    inner.flush().await.map_err(broke)?;
    let mut head = BytesMut::new();
    let answer = loop {
        // A reset counts like a close: both come from servers that do not know HTTP.
        if !matches!(inner.read_buf(&mut head).await, Ok(1..)) {
            return Err("the server closes the connection without an answer to the WebSocket request".to_owned());
        }
        match Response::try_parse(&head) {
            Ok(Some((len, answer))) => {
                head.advance(len);
                break answer;
            }
            Ok(None) if head.len() <= HEAD_BYTES_MAX => {}
            Ok(None) => return Err("the answer to the WebSocket request is too long".to_owned()),
            Err(error) => return Err(format!("the answer to the WebSocket request is no HTTP: {error}")),
        }
    };
    check(&answer, &key)?;
    let mut opened = WebSocketTransport {
        inner,
        frames: ServerFrames::default(),
        data: BytesMut::new(),
        out: Vec::new(),
        written: 0,
        has_ended: false,
        is_closed: false,
    };
    // Frames may have come with the answer.
    opened.decode(&head).map_err(|error| error.to_string())?;
    Ok(opened)
}

/// Checks that the server has agreed to a WebSocket for MQTT.
fn check(answer: &Response, key: &str) -> Result<(), String> {
    let header = |name| {
        answer
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let lists = |name, word: &str| {
        header(name)
            .split(',')
            .any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let status = answer.status();
        return Err(format!(
            "the server answers the WebSocket request with {status}; check the path of the URL"
        ));
    }
    let is_agreed = lists("upgrade", "websocket")
        && lists("connection", "upgrade")
        && header("sec-websocket-accept") == derive_accept_key(key.as_bytes())
        && header("sec-websocket-extensions").is_empty();
    if !is_agreed {
        return Err("the answer to the WebSocket request breaks its protocol".to_owned());
    }
    match header("sec-websocket-protocol") == SUBPROTOCOL {
        true => Ok(()),
        false => Err("there is a WebSocket, but not for MQTT; check the path of the URL".to_owned()),
    }
}

impl WebSocketTransport {
    /// Takes bytes of the server.
    fn decode(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.frames
            .decode(bytes, &mut self.data)
            .map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))
    }

    /// Writes the frames that are on their way, and the answer to the last ping.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.written == self.out.len() {
                self.out.clear();
                self.written = 0;
                let Some(payload) = self.frames.ping() else {
                    return Poll::Ready(Ok(()));
                };
                frames::pong(&payload, mask()?, &mut self.out);
            }
            let rest = self.out.get(self.written..).unwrap_or_default();
            match ready!(Pin::new(&mut self.inner).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
    }
}

fn mask() -> io::Result<[u8; 4]> {
    let mut mask = [0; 4];
    random::fill(&mut mask).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(mask)
}

impl AsyncRead for WebSocketTransport {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let own = &mut *self;
        loop {
            if !own.data.is_empty() {
                let len = own.data.len().min(out.remaining());
                out.put_slice(&own.data.split_to(len));
                return Poll::Ready(Ok(()));
            }
            if own.has_ended || own.frames.is_closed() {
                return Poll::Ready(Ok(()));
            }
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut own.inner).poll_read(context, &mut read))?;
            own.has_ended = read.filled().is_empty();
            let decoded = own.decode(read.filled());
            // A ping is answered as soon as the transport takes it, without anybody waiting for it.
            if let Poll::Ready(Err(error)) = own.poll_drain(context) {
                return Poll::Ready(Err(error));
            }
            decoded?;
        }
    }
}

impl AsyncWrite for WebSocketTransport {
    /// At most one frame is on its way, so that the caller waits for a transport that takes nothing.
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let own = &mut *self;
        ready!(own.poll_drain(context))?;
        let payload = bytes.get(..FRAME_BYTES).unwrap_or(bytes);
        frames::data(payload, mask()?, &mut own.out);
        // What does not leave now leaves with the next call.
        match own.poll_drain(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(payload.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drain(context))?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let own = &mut *self;
        if !own.is_closed {
            ready!(own.poll_drain(context))?;
            frames::close(mask()?, &mut own.out);
            own.is_closed = true;
        }
        ready!(own.poll_drain(context))?;
        ready!(Pin::new(&mut own.inner).poll_flush(context))?;
        Pin::new(&mut own.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
