//! A gRPC client that exposes the raw response, and may send what no proper client sends: one message and one response.

use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use bytes::Bytes;
use hyper::body::{Body, Frame};
use hyper::client::conn::http2;
use hyper::{HeaderMap, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

pub struct Grpc {
    address: String,
}

/// A complete response.
#[derive(Debug)]
pub struct GrpcAnswer {
    pub http_status: u16,
    /// `None`: the response is not gRPC.
    pub status: Option<u8>,
    /// Decoded, without percent signs.
    pub message: String,
    /// Retry delay in seconds from the details.
    pub retry_after: Option<u64>,
    pub position: Option<String>,
    /// The message without its prefix.
    pub body: Vec<u8>,
}

/// One message in wire format.
pub fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[flag][..], &length.to_be_bytes(), message].concat()
}

impl Grpc {
    pub fn new(address: &str) -> Grpc {
        Grpc {
            address: address.to_owned(),
        }
    }

    /// `Export` of a service, such as `logs.v1.LogsService`, with a raw body.
    pub fn export(&self, service: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<GrpcAnswer> {
        self.send(service, headers, body, true)
    }

    /// The same without an end of the body.
    pub fn export_without_end(&self, service: &str, body: &[u8]) -> Result<GrpcAnswer> {
        self.send(service, &[], body, false)
    }

    fn send(&self, service: &str, headers: &[(&str, &str)], body: &[u8], is_whole: bool) -> Result<GrpcAnswer> {
        let path = format!("opentelemetry.proto.collector.{service}/Export");
        let mut request = Request::post(format!("http://{}/{path}", self.address)).header("te", "trailers");
        if !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(One {
            piece: Some(Bytes::copy_from_slice(body)),
            is_whole,
        })?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let stream = TokioIo::new(TcpStream::connect(&self.address).await?);
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(connection);
            let (parts, body) = sender.send_request(request).await?.into_parts();
            let (mut all, mut trailers) = (Vec::new(), HeaderMap::new());
            let mut body = std::pin::pin!(body);
            while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
                match frame?.into_data() {
                    Ok(data) => all.extend_from_slice(&data),
                    Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
                }
            }
            answer(parts.status.as_u16(), &parts.headers, &trailers, &all)
        })
    }
}

/// Without a message, the trailers are headers.
fn answer(http_status: u16, headers: &HeaderMap, trailers: &HeaderMap, body: &[u8]) -> Result<GrpcAnswer> {
    let text = |name: &str| {
        let value = trailers.get(name).or(headers.get(name));
        value.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    };
    let details = text("grpc-status-details-bin").unwrap_or_default();
    let details = BASE64_STANDARD_NO_PAD.decode(details.trim_end_matches('='))?;
    Ok(GrpcAnswer {
        http_status,
        status: text("grpc-status").map(|status| status.parse()).transpose()?,
        message: decoded(&text("grpc-message").unwrap_or_default())?,
        retry_after: retry_after(&details),
        position: text("thalweg-position"),
        body: body.get(5..).unwrap_or_default().to_vec(),
    })
}

/// From a `google.rpc.Status` with a `RetryInfo` of whole seconds among its details.
fn retry_after(status: &[u8]) -> Option<u64> {
    let name = b"google.rpc.RetryInfo";
    let at = status.windows(name.len()).position(|window| window == name)? + name.len();
    match status.get(at..)? {
        [0x12, _, 0x0a, _, 0x08, seconds, ..] => Some(u64::from(*seconds)),
        _ => None,
    }
}

fn decoded(text: &str) -> Result<String> {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'%' => {
                let digits = after.get(..2).context("a percent sign without its digits")?;
                out.push(u8::from_str_radix(std::str::from_utf8(digits)?, 16)?);
                rest = after.get(2..).unwrap_or_default();
            }
            plain => out.push(*plain),
        }
    }
    Ok(String::from_utf8(out)?)
}

/// A body in one piece, or the beginning of one.
struct One {
    piece: Option<Bytes>,
    is_whole: bool,
}

impl Body for One {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        match self.piece.take() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None if self.is_whole => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.is_whole && self.piece.is_none()
    }
}
