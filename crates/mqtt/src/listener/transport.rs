//! What a connection's bytes go through. Plain ones go to the socket as they are, from whatever thread has some; TLS and WebSocket
//! are encoded by the task of the connection, which takes the bytes from the outbox when it has written the ones before.

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tungstenite::protocol::frame::coding::CloseCode;

use super::websocket::{FrameDecoder, close_frame, data_head};

/// Bytes that are read at a time.
pub(super) const READ_BYTES: usize = 16 << 10;
/// A packet that is not complete is kept in a buffer of its size, if it is small.
const SMALL_BYTES: usize = 4 << 10;

/// The bytes of a connection.
pub(super) enum Transport {
    Plain(Arc<TcpStream>),
    Encoded(Box<EncodedStream>),
}

impl Transport {
    /// The socket to which others may write.
    pub fn shared_socket(&self) -> Option<Arc<TcpStream>> {
        match self {
            Transport::Plain(socket) => Some(socket.clone()),
            Transport::Encoded(_) => None,
        }
    }

    /// A WebSocket ends with a close frame of either side.
    pub fn must_close(&self) -> bool {
        match self {
            Transport::Plain(_) => false,
            Transport::Encoded(stream) => stream.must_close(),
        }
    }

    /// Waits for bytes. 0: the client has closed the connection.
    pub async fn read(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Transport::Plain(socket) => {
                socket.readable().await?;
                try_read(socket, buffer)
            }
            Transport::Encoded(stream) => loop {
                let event = std::future::poll_fn(|cx| stream.poll(cx, buffer, true)).await?;
                if let EncodedEvent::Read(len) = event {
                    return Ok(len);
                }
            },
        }
    }

    /// Writes the last bytes. The code is that of the close frame, if the client has not caused one.
    pub async fn write_last(&mut self, last: Vec<u8>, code: CloseCode) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => {
                let mut rest = last.as_slice();
                while !rest.is_empty() {
                    socket.writable().await?;
                    match socket.try_write(rest) {
                        Ok(len) => rest = rest.get(len..).unwrap_or_default(),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            }
            Transport::Encoded(stream) => stream.write_last(last, code).await,
        }
    }

    /// Tells the client that nothing more comes, and waits until it closes the connection. A connection that is closed while
    /// bytes of the client are unread is reset, and then the client may lose the last bytes that were sent to it.
    pub async fn shut_down(&mut self) -> io::Result<()> {
        match self {
            Transport::Plain(socket) => {
                let own = std::net::TcpStream::from(socket.as_fd().try_clone_to_owned()?);
                own.shutdown(Shutdown::Write)?;
                drop(own);
                let mut unread = [0; 1 << 10];
                loop {
                    socket.readable().await?;
                    match socket.try_read(&mut unread) {
                        Ok(0) => return Ok(()),
                        Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                        Ok(_) | Err(_) => {}
                    }
                }
            }
            Transport::Encoded(stream) => {
                stream.socket.shutdown().await?;
                let mut unread = [0; 1 << 10];
                while stream.socket.read(&mut unread).await? > 0 {}
                Ok(())
            }
        }
    }
}

/// Reads what has come. 0: the client has closed the connection. Nothing may have come after all, which counts as 1.
pub(super) fn try_read(socket: &TcpStream, buffer: &mut BytesMut) -> io::Result<usize> {
    buffer.reserve(READ_BYTES);
    match socket.try_read_buf(buffer) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            release(buffer);
            Ok(1)
        }
        read => read,
    }
}

/// While nothing comes, a connection holds no buffer but for the bytes of a packet that is not complete.
fn release(buffer: &mut BytesMut) {
    if buffer.is_empty() {
        *buffer = BytesMut::new();
    } else if buffer.len() < SMALL_BYTES {
        *buffer = BytesMut::from(buffer.as_ref());
    }
}

/// A socket with or without TLS.
pub(super) enum SocketStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection whose bytes are encrypted, in frames, or both.
pub(super) struct EncodedStream {
    socket: SocketStream,
    /// Of WebSocket.
    frames: Option<FrameDecoder>,
    /// Bytes for the socket, and the first that it has not taken.
    out: Vec<u8>,
    start: usize,
    /// The close frame that the connection ends with.
    close_code: Option<CloseCode>,
}

/// What has happened on an encoded connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EncodedEvent {
    /// The bytes of the last [`EncodedStream::send`] are written.
    Written,
    /// So many bytes have come, of which not all have to be payload. 0: the connection ends.
    Read(usize),
}

impl EncodedStream {
    pub fn new(socket: SocketStream, frames: Option<FrameDecoder>) -> EncodedStream {
        EncodedStream {
            socket,
            frames,
            out: Vec::new(),
            start: 0,
            close_code: None,
        }
    }

    /// Takes bytes that were read from the socket before it had frames.
    pub fn receive(&mut self, bytes: &[u8], buffer: &mut BytesMut) {
        match &mut self.frames {
            None => buffer.extend_from_slice(bytes),
            Some(frames) => self.close_code = frames.decode(bytes, buffer).err(),
        }
    }

    /// Everything that was sent is written.
    pub fn is_ready(&self) -> bool {
        self.out.is_empty()
    }

    /// Begins to send bytes. The ones before must be written.
    pub fn send(&mut self, bytes: Vec<u8>) {
        match self.frames {
            None => self.out = bytes,
            Some(_) => {
                self.out = data_head(bytes.len());
                self.out.extend(bytes);
            }
        }
        self.start = 0;
    }

    /// Writes what is to be sent, and reads if it `may_read`.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut BytesMut,
        may_read: bool,
    ) -> Poll<io::Result<EncodedEvent>> {
        if self.is_ready()
            && let Some(pong) = self.frames.as_mut().and_then(FrameDecoder::pong)
        {
            self.out = pong;
            self.start = 0;
        }
        if !self.is_ready() && self.poll_write(cx)?.is_ready() {
            return Poll::Ready(Ok(EncodedEvent::Written));
        }
        match may_read {
            true => self.poll_read(cx, buffer).map_ok(EncodedEvent::Read),
            false => Poll::Pending,
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.out.get(self.start..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.socket).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                len => self.start += len,
            }
        }
        ready!(Pin::new(&mut self.socket).poll_flush(cx))?;
        // An idle connection holds no buffer.
        (self.out, self.start) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut BytesMut) -> Poll<io::Result<usize>> {
        if self.close_code.is_some() {
            return Poll::Ready(Ok(0));
        }
        // On the stack, so that a connection holds no buffer while nothing comes.
        let mut space = [MaybeUninit::uninit(); READ_BYTES];
        let mut space = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut space))?;
        let read = space.filled();
        self.receive(read, buffer);
        match self.close_code {
            Some(_) => Poll::Ready(Ok(0)),
            None => Poll::Ready(Ok(read.len())),
        }
    }

    async fn write_last(&mut self, last: Vec<u8>, code: CloseCode) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_write(cx)).await?;
        if !last.is_empty() {
            self.send(last);
            std::future::poll_fn(|cx| self.poll_write(cx)).await?;
        }
        if self.frames.is_some() {
            self.out = close_frame(self.close_code.take().unwrap_or(code));
            std::future::poll_fn(|cx| self.poll_write(cx)).await?;
        }
        Ok(())
    }

    /// The client has sent a close frame, or one that is not allowed, and waits for the answer.
    pub fn must_close(&self) -> bool {
        self.close_code.is_some()
    }
}

impl SocketStream {
    fn pinned(self: Pin<&mut Self>) -> Pin<&mut dyn AsyncStream> {
        match self.get_mut() {
            SocketStream::Plain(socket) => Pin::new(socket),
            SocketStream::Tls(stream) => Pin::new(stream.as_mut()),
        }
    }
}

trait AsyncStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncStream for S {}

impl AsyncRead for SocketStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.pinned().poll_read(cx, buffer)
    }
}

impl AsyncWrite for SocketStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.pinned().poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned().poll_shutdown(cx)
    }
}
