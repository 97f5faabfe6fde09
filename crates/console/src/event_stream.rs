//! Writes event streams without the HTTP library. A long-lived answer needs nothing of the library, whose buffers are
//! larger than everything else that a listening client costs: with them, ten thousand clients take 260 MB.
//!
//! The service hands the answer over instead of returning it. The connection task then takes the socket from the
//! library and writes head and pieces itself. Only the first request of a connection is taken over, because before it
//! there is no answer that could still be in the library's buffers.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use axum::body::{Body, HttpBody};
use axum::http::{Response, Version, header};
use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use thalweg_kit::clock;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::Notify;

/// Maximum bytes per write; later pieces wait until the client has read these.
const BYTES_AT_ONCE: usize = 64 << 10;

/// Passes an answer from the service to the connection task.
#[derive(Clone, Debug, Default)]
pub struct Handover(Arc<HandoverSlot>);

#[derive(Debug, Default)]
struct HandoverSlot {
    answer: Mutex<Option<(Response<Body>, Version)>>,
    is_there: Notify,
}

impl Handover {
    /// Hands over an answer to a request of this version. Never returns, because the library must not answer as well.
    pub async fn give<T>(&self, answer: Response<Body>, version: Version) -> T {
        *self.0.answer.lock() = Some((answer, version));
        self.0.is_there.notify_one();
        std::future::pending().await
    }

    pub async fn taken(&self) -> (Response<Body>, Version) {
        loop {
            self.0.is_there.notified().await;
            if let Some(answer) = self.0.answer.lock().take() {
                return answer;
            }
        }
    }
}

/// Writes an answer to its end, or until the client disconnects. Anything that the client still sends is ignored.
pub async fn push<S>(mut io: S, answer: Response<Body>, version: Version) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Earlier versions mark the end of a body only by the end of the connection.
    let is_chunked = version == Version::HTTP_11;
    let mut pieces = WriteBuffer::default();
    pieces.put(head(&answer, is_chunked));
    let mut body = answer.into_body();
    let mut is_at_end = false;
    while !is_at_end {
        is_at_end = tokio::select! {
            is_at_end = gather(&mut body, &mut pieces, is_chunked) => is_at_end?,
            () = leaves(&mut io) => return Ok(()),
        };
        pieces.write(&mut io).await?;
    }
    io.shutdown().await
}

/// Waits for the next piece, unless data is pending, and takes further pieces that are ready. Returns whether the body
/// has ended.
async fn gather(body: &mut Body, pieces: &mut WriteBuffer, is_chunked: bool) -> io::Result<bool> {
    std::future::poll_fn(|context| {
        loop {
            if pieces.bytes >= BYTES_AT_ONCE {
                return Poll::Ready(Ok(false));
            }
            match Pin::new(&mut *body).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if !data.is_empty() => pieces.put_data(data, is_chunked),
                    // Trailers are not supported, and an empty piece would mean the end.
                    _ => {}
                },
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(io::Error::other(error))),
                Poll::Ready(None) => {
                    if is_chunked {
                        pieces.put(Bytes::from_static(b"0\r\n\r\n"));
                    }
                    return Poll::Ready(Ok(true));
                }
                Poll::Pending if pieces.bytes > 0 => return Poll::Ready(Ok(false)),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}

/// Returns when the client has closed its side.
async fn leaves<S: AsyncRead + Unpin>(io: &mut S) {
    let mut ignored = [0; 64];
    while io.read(&mut ignored).await.is_ok_and(|read| read > 0) {}
}

fn head(answer: &Response<Body>, is_chunked: bool) -> Bytes {
    let mut head = Vec::with_capacity(256);
    let status = answer.status();
    // Writing to memory does not fail.
    let _ = write!(
        head,
        "HTTP/1.1 {} {}\r\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default()
    );
    let own = [header::TRANSFER_ENCODING, header::CONTENT_LENGTH, header::DATE];
    for (name, value) in answer.headers() {
        if !own.contains(name) {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
    }
    if is_chunked {
        head.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    // A path may set its own `Connection` header for clients that inspect it; the connection ends with the stream
    // anyway.
    if !answer.headers().contains_key(header::CONNECTION) {
        head.extend_from_slice(b"connection: close\r\n");
    }
    let _ = write!(head, "date: {}\r\n\r\n", httpdate::fmt_http_date(clock::wall()));
    Bytes::from(head)
}

/// Data to be written.
#[derive(Default)]
struct WriteBuffer {
    all: VecDeque<Bytes>,
    bytes: usize,
}

impl WriteBuffer {
    fn put(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.all.push_back(piece);
    }

    fn put_data(&mut self, data: Bytes, is_chunked: bool) {
        if is_chunked {
            self.put(Bytes::from(format!("{:x}\r\n", data.len())));
        }
        self.put(data);
        if is_chunked {
            self.put(Bytes::from_static(b"\r\n"));
        }
    }

    async fn write<S: AsyncWrite + Unpin>(&mut self, io: &mut S) -> io::Result<()> {
        while self.has_remaining() {
            if io.write_buf(self).await? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        // Frees the buffer, because listening clients are idle most of the time.
        *self = WriteBuffer::default();
        io.flush().await
    }
}

impl Buf for WriteBuffer {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.all.front().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let slices = self.all.iter().zip(into);
        slices.map(|(piece, slice)| *slice = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, mut count: usize) {
        self.bytes -= count;
        while count > 0 {
            let Some(first) = self.all.front_mut() else { return };
            let taken = count.min(first.len());
            first.advance(taken);
            count -= taken;
            if first.is_empty() {
                self.all.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};

    use super::*;

    fn answer(body: Body) -> Response<Body> {
        let answer = Response::builder().header("content-type", "text/event-stream");
        answer.header("connection", "keep-alive").body(body).unwrap()
    }

    async fn written(body: Body, version: Version) -> (String, io::Result<()>) {
        let (mut client, server) = tokio::io::duplex(7);
        let pushing = tokio::spawn(push(server, answer(body), version));
        let mut all = String::new();
        client.read_to_string(&mut all).await.unwrap();
        (all, pushing.await.unwrap())
    }

    fn of(pieces: &'static [&'static str]) -> Body {
        Body::from_stream(stream::iter(pieces).map(|piece| Ok::<_, io::Error>(Bytes::from_static(piece.as_bytes()))))
    }

    #[tokio::test]
    async fn pieces_are_chunks_and_the_end_is_told() {
        let (all, outcome) = written(of(&["data: 1\n\n", "", "data: 2\n\n"]), Version::HTTP_11).await;
        outcome.unwrap();
        let (head, body) = all.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"),
            "{head}"
        );
        assert!(
            head.contains("\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\ndate: "),
            "{head}"
        );
        assert_eq!(head.matches("connection").count(), 1);
        assert_eq!(body, "9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n");
        let (all, _) = written(of(&["data: 1\n\n"]), Version::HTTP_10).await;
        assert!(
            all.ends_with("\r\n\r\ndata: 1\n\n") && !all.contains("chunked"),
            "{all}"
        );
    }

    #[tokio::test]
    async fn a_body_that_breaks_never_looks_whole() {
        let broken = stream::iter([Ok(Bytes::from_static(b"x")), Err(io::Error::other("broken"))]);
        let (all, outcome) = written(Body::from_stream(broken), Version::HTTP_11).await;
        assert!(outcome.is_err());
        assert!(!all.contains("0\r\n\r\n"), "{all}");
    }

    #[tokio::test]
    async fn a_client_that_leaves_ends_it_and_one_that_talks_does_not() {
        let (mut client, server) = tokio::io::duplex(1024);
        let (sender, pieces) = tokio::sync::mpsc::unbounded_channel::<io::Result<Bytes>>();
        let body = stream::unfold(pieces, async |mut pieces| Some((pieces.recv().await?, pieces)));
        let pushing = tokio::spawn(push(server, answer(Body::from_stream(body)), Version::HTTP_11));
        client.write_all(&[b'x'; 500]).await.unwrap();
        sender.send(Ok(Bytes::from_static(b"later"))).unwrap();
        let mut all = Vec::new();
        while !String::from_utf8_lossy(&all).contains("5\r\nlater\r\n") {
            client.read_buf(&mut all).await.unwrap();
        }
        drop(client);
        pushing.await.unwrap().unwrap();
        assert!(sender.is_closed(), "nobody makes pieces for it any more");
    }

    #[tokio::test]
    async fn however_much_there_is_all_of_it_comes_in_order() {
        let pieces = (0..3000_usize).map(|n| Ok::<_, io::Error>(Bytes::from(vec![b'a' + (n % 26) as u8; 1 + n % 300])));
        let expected: Vec<u8> = (0..3000_usize)
            .flat_map(|n| vec![b'a' + (n % 26) as u8; 1 + n % 300])
            .collect();
        let (mut client, server) = tokio::io::duplex(5000);
        let body = Body::from_stream(stream::iter(pieces));
        tokio::spawn(push(server, answer(body), Version::HTTP_10));
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        assert!(all.ends_with(&expected));
        assert_eq!(
            all.len() - expected.len(),
            String::from_utf8_lossy(&all).find("\r\n\r\n").unwrap() + 4
        );
    }
}
