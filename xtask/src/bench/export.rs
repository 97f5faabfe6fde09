//! An OTLP client over one connection: HTTP/1.1, or gRPC, which is a prefix of five bytes and some trailers on HTTP/2. Every
//! connection exports one signal.

use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Grpc,
    Http,
}

impl Protocol {
    pub fn choose<T>(self, grpc: T, http: T) -> T {
        match self {
            Protocol::Grpc => grpc,
            Protocol::Http => http,
        }
    }

    /// A request as it goes over the wire.
    pub fn framed(self, request: &[u8]) -> Bytes {
        match self {
            Protocol::Http => Bytes::copy_from_slice(request),
            Protocol::Grpc => [&[0][..], &(request.len() as u32).to_be_bytes(), request]
                .concat()
                .into(),
        }
    }
}

/// The exported signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Logs,
    Metrics,
    Traces,
}

impl Signal {
    /// Also the name of its table.
    pub fn name(self) -> &'static str {
        match self {
            Signal::Logs => "logs",
            Signal::Metrics => "metrics",
            Signal::Traces => "traces",
        }
    }

    fn service(self) -> &'static str {
        match self {
            Signal::Logs => "logs.v1.LogsService",
            Signal::Metrics => "metrics.v1.MetricsService",
            Signal::Traces => "trace.v1.TraceService",
        }
    }
}

pub struct Export {
    sender: Sender,
    address: String,
    signal: Signal,
}

enum Sender {
    Http(http1::SendRequest<One>),
    Grpc(http2::SendRequest<One>),
}

impl Export {
    /// Of logs.
    pub async fn open(protocol: Protocol, port: u16) -> Result<Export> {
        Export::open_for(Signal::Logs, protocol, port).await
    }

    pub async fn open_for(signal: Signal, protocol: Protocol, port: u16) -> Result<Export> {
        let address = format!("127.0.0.1:{port}");
        let stream = TcpStream::connect(&address).await?;
        stream.set_nodelay(true)?;
        let stream = TokioIo::new(stream);
        let sender = match protocol {
            Protocol::Http => {
                let (sender, connection) = http1::handshake(stream).await?;
                tokio::spawn(connection);
                Sender::Http(sender)
            }
            Protocol::Grpc => {
                let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
                tokio::spawn(connection);
                Sender::Grpc(sender)
            }
        };
        Ok(Export {
            sender,
            address,
            signal,
        })
    }

    /// Returns the position in the log.
    pub async fn send(&mut self, request: Bytes) -> Result<String> {
        let (headers, body) = match &mut self.sender {
            Sender::Http(sender) => {
                let request = Request::post(format!("/v1/{}", self.signal.name()))
                    .header("host", &self.address)
                    .header("content-type", "application/x-protobuf")
                    .body(One(Some(request)))?;
                sender.ready().await?;
                let (headers, body, _) = read(sender.send_request(request).await?).await?;
                (headers, body)
            }
            Sender::Grpc(sender) => {
                let path = format!("opentelemetry.proto.collector.{}/Export", self.signal.service());
                let request = Request::post(format!("http://{}/{path}", self.address))
                    .header("content-type", "application/grpc")
                    .header("te", "trailers")
                    .body(One(Some(request)))?;
                sender.ready().await?;
                let (headers, body, trailers) = read(sender.send_request(request).await?).await?;
                let status = trailers.get("grpc-status").or(headers.get("grpc-status"));
                ensure!(
                    status.is_some_and(|status| status == "0"),
                    "refused: {headers:?} {trailers:?}"
                );
                ensure!(body.len() == 5, "not all records were taken: {body:?}");
                (trailers, Vec::new())
            }
        };
        ensure!(body.is_empty(), "not all records were taken: {body:?}");
        let position = headers
            .get("thalweg-position")
            .context("a response without its position")?;
        Ok(position.to_str()?.to_owned())
    }

    /// Any path over HTTP/1.1.
    pub async fn get(&mut self, path: &str) -> Result<Vec<u8>> {
        let Sender::Http(sender) = &mut self.sender else {
            bail!("gRPC has no GET");
        };
        let request = Request::get(path).header("host", &self.address).body(One(None))?;
        sender.ready().await?;
        let (_, body, _) = read(sender.send_request(request).await?).await?;
        Ok(body)
    }
}

/// Headers, body and trailers of a successful response.
async fn read(response: Response<Incoming>) -> Result<(HeaderMap, Vec<u8>, HeaderMap)> {
    let (parts, body) = response.into_parts();
    let (mut all, mut trailers) = (Vec::new(), HeaderMap::new());
    let mut body = std::pin::pin!(body);
    while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {
        match frame?.into_data() {
            Ok(data) => all.extend_from_slice(&data),
            Err(frame) => trailers = frame.into_trailers().unwrap_or_default(),
        }
    }
    ensure!(
        parts.status.is_success(),
        "refused: {} {}",
        parts.status,
        String::from_utf8_lossy(&all)
    );
    Ok((parts.headers, all, trailers))
}

/// A body in one piece, or none.
struct One(Option<Bytes>);

impl Body for One {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, Bytes::len) as u64)
    }
}
