//! The bytes below HTTP: which protocol a connection speaks, and a limit on how long a client may take nothing.
//!
//! A protocol is told by its first bytes, which are then given to it as if they had not been read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// Reads just enough to tell HTTP/2 from HTTP/1.1, at most 24 bytes. `None` when the client left before.
pub async fn detect<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<Option<(Protocol, Bytes)>> {
    let mut first = BytesMut::with_capacity(HTTP2_PREFACE.len());
    while HTTP2_PREFACE.starts_with(&first) {
        if first.len() == HTTP2_PREFACE.len() {
            return Ok(Some((Protocol::Http2, first.freeze())));
        }
        let missing = HTTP2_PREFACE.len() - first.len();
        if (&mut *stream).take(missing as u64).read_buf(&mut first).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some((Protocol::Http1, first.freeze())))
}

/// A stream with bytes put back in front, whose writes fail after the client took nothing for `stall_max`.
pub struct Transport<S> {
    stream: S,
    first: Bytes,
    stall_max: Duration,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Transport<S> {
    pub fn new(stream: S, first: Bytes, stall_max: Duration) -> Transport<S> {
        Transport {
            stream,
            first,
            stall_max,
            stalled: None,
        }
    }

    /// Passes the outcome of a write on, unless it has been pending for too long.
    fn watch<T>(&mut self, outcome: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let stall_max = self.stall_max;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(stall_max)));
        ready!(stalled.as_mut().poll(context));
        stalled.as_mut().reset(Instant::now() + stall_max);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Transport<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.has_remaining() {
            let n = self.first.remaining().min(into.remaining());
            into.put_slice(&self.first.split_to(n));
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Transport<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(outcome, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.watch(outcome, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(outcome, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(outcome, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn the_protocol_is_told_by_the_first_bytes_and_they_are_not_lost() {
        let cases: [(&[u8], Option<Protocol>); 5] = [
            (b"GET / HTTP/1.1\r\n\r\n", Some(Protocol::Http1)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore", Some(Protocol::Http2)),
            (b"PROPFIND / HTTP/1.1\r\n\r\n", Some(Protocol::Http1)),
            (b"PRI", None),
            (b"", None),
        ];
        for (sent, expected) in cases {
            let mut stream = sent;
            let found = detect(&mut stream).await.unwrap();
            assert_eq!(found.as_ref().map(|(protocol, _)| *protocol), expected, "{sent:?}");
            let Some((_, first)) = found else { continue };
            let mut all = Vec::new();
            Transport::new(stream, first, Duration::MAX)
                .read_to_end(&mut all)
                .await
                .unwrap();
            assert_eq!(all, sent);
        }
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (server, _client) = tokio::io::duplex(16);
        let mut transport = Transport::new(server, Bytes::new(), Duration::from_millis(1));
        let error = transport.write_all(&[0; 1024]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
