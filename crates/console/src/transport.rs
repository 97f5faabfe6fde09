//! The byte stream below HTTP: protocol detection, stall timeouts, and the text of refusals before there is a request.
//!
//! The protocol is detected by its first bytes, which are then passed to it as if they had not been read.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use bytes::{Buf, Bytes, BytesMut};
use thalweg_http::body::{DRAIN_BYTES_MAX, DRAIN_TIME_MAX};
use thalweg_kit::clock;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::http1_exchange::Http1Exchange;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    Http2,
}

/// Reads just enough to distinguish HTTP/2 from HTTP/1.1, at most 24 bytes. `None` if the client disconnected before.
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

/// How long a client may do nothing.
#[derive(Clone, Copy, Debug)]
pub struct StallTimeouts {
    /// Read nothing of an answer.
    pub write_stall_max: Duration,
    /// The same for an event stream.
    pub push_stall_max: Duration,
    /// Send nothing more of a started request.
    pub request_stall_max: Option<Duration>,
}

/// A complete answer with this status, for a request whose head cannot be accepted.
pub type RefusalEncoder = Arc<dyn Fn(StatusCode) -> Bytes + Send + Sync>;

/// A stream with bytes put back in front. Writes fail when the client has read nothing for too long, reads when it has
/// left a request unfinished for too long.
pub struct Transport<S> {
    stream: S,
    first: Bytes,
    patience: StallTimeouts,
    exchange: Arc<Http1Exchange>,
    stalled: Option<Pin<Box<Sleep>>>,
    /// The timer that runs while no part of a started request arrives.
    silent: Option<Pin<Box<Sleep>>>,
    refuse: Option<RefusalEncoder>,
    /// The unwritten rest of a refusal that replaces the library's own.
    refusal: Option<Bytes>,
    drained_by: Option<Pin<Box<Sleep>>>,
    drained_bytes: usize,
}

impl<S> Transport<S> {
    pub fn new(stream: S, first: Bytes, patience: StallTimeouts, exchange: Arc<Http1Exchange>) -> Transport<S> {
        if !first.is_empty() {
            exchange.came();
        }
        Transport {
            stream,
            first,
            patience,
            exchange,
            stalled: None,
            silent: None,
            refuse: None,
            refusal: None,
            drained_by: None,
            drained_bytes: 0,
        }
    }

    /// Replaces refusals by the library.
    pub fn refusing(mut self, refuse: Option<RefusalEncoder>) -> Transport<S> {
        self.refuse = refuse;
        self
    }

    /// Passes the outcome of a write on, unless it has been pending for too long.
    fn watch<T>(&mut self, outcome: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let stall_max = match self.exchange.is_pushing() {
            true => self.patience.push_stall_max,
            false => self.patience.write_stall_max,
        };
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(stall_max)));
        ready!(stalled.as_mut().poll(context));
        stalled.as_mut().reset(clock::tokio_now() + stall_max);
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read the response",
        )))
    }

    /// Nothing can be read: returns an error if that has lasted too long within a request.
    fn watch_silence(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(stall_max) = self.patience.request_stall_max else {
            return Poll::Pending;
        };
        if !self.exchange.is_receiving() {
            self.silent = None;
            return Poll::Pending;
        }
        let silent = self.silent.get_or_insert_with(|| Box::pin(sleep(stall_max)));
        ready!(silent.as_mut().poll(context));
        self.silent = None;
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client stopped sending a request that it had started",
        )))
    }

    /// Whether the data to be written is a refusal by the library that is replaced.
    fn stands_in(&mut self, bytes: &[u8]) -> bool {
        if self.refusal.is_some() {
            return true;
        }
        if !self.exchange.is_unanswered() {
            return false;
        }
        let (Some(refuse), Some(status)) = (&self.refuse, bytes.strip_prefix(b"HTTP/1.1 ")) else {
            return false;
        };
        let status = status.get(..3).and_then(|digits| StatusCode::from_bytes(digits).ok());
        let Some(status) = status.filter(StatusCode::is_client_error) else {
            return false;
        };
        self.refusal = Some(refuse(status));
        true
    }
}

impl<S: AsyncWrite + Unpin> Transport<S> {
    /// Writes all of the refusal; then reports `whole` bytes as written, which it replaces.
    fn write_refusal(&mut self, whole: usize, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        while let Some(rest) = self.refusal.as_mut().filter(|rest| rest.has_remaining()) {
            let outcome = Pin::new(&mut self.stream).poll_write(context, rest);
            if let Poll::Ready(Ok(written)) = &outcome {
                rest.advance((*written).min(rest.len()));
                if *written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
            }
            ready!(self.watch(outcome, context))?;
        }
        Poll::Ready(Ok(whole))
    }
}

impl<S: AsyncRead + Unpin> Transport<S> {
    /// Reads until the client has closed, or as much as of any refused body, because closing with unread bytes would
    /// discard the answer.
    fn drain(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let until = self.drained_by.get_or_insert_with(|| Box::pin(sleep(DRAIN_TIME_MAX)));
        if until.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let mut ignored = [0; 4096];
        while self.drained_bytes < DRAIN_BYTES_MAX {
            let mut into = ReadBuf::new(&mut ignored);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut into)) {
                Ok(()) if !into.filled().is_empty() => self.drained_bytes += into.filled().len(),
                _ => break,
            }
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Transport<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.has_remaining() {
            let n = self.first.remaining().min(into.remaining());
            into.put_slice(&self.first.split_to(n));
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, into);
        if polled.is_pending() {
            return self.watch_silence(context);
        }
        self.silent = None;
        if into.filled().len() > before {
            self.exchange.came();
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Transport<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.stands_in(bytes) {
            return self.write_refusal(bytes.len(), context);
        }
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(outcome, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = bytes.iter().find(|slice| !slice.is_empty());
        if first.is_some_and(|first| self.stands_in(first)) {
            let whole = bytes.iter().map(|slice| slice.len()).sum();
            return self.write_refusal(whole, context);
        }
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
        let outcome = ready!(self.watch(outcome, context));
        if self.refusal.is_some() && outcome.is_ok() {
            ready!(self.drain(context));
        }
        Poll::Ready(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    fn patience(stall_max: Duration) -> StallTimeouts {
        StallTimeouts {
            write_stall_max: stall_max,
            push_stall_max: stall_max,
            request_stall_max: Some(stall_max),
        }
    }

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
            Transport::new(stream, first, patience(Duration::MAX), Arc::default())
                .read_to_end(&mut all)
                .await
                .unwrap();
            assert_eq!(all, sent);
        }
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (server, _client) = tokio::io::duplex(16);
        let patience = patience(Duration::from_millis(1));
        let mut transport = Transport::new(server, Bytes::new(), patience, Arc::default());
        let error = transport.write_all(&[0; 1024]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_stream_of_events_may_be_left_alone_for_longer() {
        for (kind, given_up) in [("text/event-stream", false), ("application/json", true)] {
            let exchange = Arc::new(Http1Exchange::default());
            let response = axum::http::Response::builder().header("content-type", kind);
            let _response = exchange
                .clone()
                .answer(response.body(axum::body::Body::empty()).unwrap(), None);
            let (server, _client) = tokio::io::duplex(16);
            let patience = StallTimeouts {
                push_stall_max: Duration::MAX,
                ..patience(Duration::from_millis(1))
            };
            let mut transport = Transport::new(server, Bytes::new(), patience, exchange);
            let written = tokio::time::timeout(Duration::from_millis(100), transport.write_all(&[0; 1024])).await;
            assert_eq!(written.is_ok(), given_up, "{kind}");
        }
    }

    #[tokio::test]
    async fn a_client_that_leaves_a_request_unfinished_is_given_up_and_an_idle_one_is_not() {
        let (server, mut client) = tokio::io::duplex(1024);
        let patience = patience(Duration::from_millis(20));
        let mut transport = Transport::new(server, Bytes::new(), patience, Arc::default());
        let mut read = [0; 64];
        let idle = tokio::time::timeout(Duration::from_millis(100), transport.read(&mut read)).await;
        assert!(idle.is_err(), "nothing has begun");
        client.write_all(b"POST /rpc HT").await.unwrap();
        assert_eq!(transport.read(&mut read).await.unwrap(), 12);
        let error = transport.read(&mut read).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn what_the_protocol_refuses_is_told_in_other_words_and_what_the_service_says_is_not() {
        let refuse: RefusalEncoder = Arc::new(|status| Bytes::from(format!("instead of {status}")));
        let own: &[u8] = b"HTTP/1.1 431 Request Header Fields Too Large\r\n\r\n";
        for answering in [false, true] {
            let exchange = Arc::new(Http1Exchange::default());
            exchange.came();
            if answering {
                drop(
                    exchange
                        .clone()
                        .answer(axum::http::Response::new(axum::body::Body::empty()), None),
                );
            }
            let (server, mut client) = tokio::io::duplex(8);
            let transport = Transport::new(server, Bytes::new(), patience(Duration::MAX), exchange);
            let mut transport = transport.refusing(Some(refuse.clone()));
            let written = tokio::spawn(async move {
                transport.write_all(own).await.unwrap();
                transport.shutdown().await.unwrap();
            });
            let mut told = Vec::new();
            client.read_to_end(&mut told).await.unwrap();
            drop(client);
            written.await.unwrap();
            let expected: &[u8] = match answering {
                true => own,
                false => b"instead of 431 Request Header Fields Too Large",
            };
            assert_eq!(String::from_utf8_lossy(&told), String::from_utf8_lossy(expected));
        }
    }
}
