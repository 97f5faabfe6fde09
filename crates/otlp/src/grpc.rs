//! OTLP over gRPC: the three `Export` calls. Each has one message and one answer, so the protocol comes down to a
//! prefix of five bytes and a few trailers on HTTP/2.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::post;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD_NO_PAD;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use thalweg_lake::Signal;
use thalweg_lake::entry::{PayloadCompression, PayloadEncoding};

use crate::http::compression;
use crate::receiver::{ExportCall, ExportOutcome, OtlpReceiver, ReceivedRequest};
use crate::refusal::{OtlpErrorKind, Refusal};
use crate::reply;

/// One byte that says whether the message is compressed, then its length.
const PREFIX: usize = 5;
const ACCEPTED: HeaderValue = HeaderValue::from_static("gzip,zstd,identity");

const PATHS: [(&str, Signal); 3] = [
    (
        "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        Signal::Logs,
    ),
    (
        "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        Signal::Metrics,
    ),
    (
        "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        Signal::Traces,
    ),
];

/// The routes for a dedicated listener.
pub fn router(receiver: &Arc<OtlpReceiver>) -> Router {
    let router = PATHS.into_iter().fold(Router::new(), |router, (path, signal)| {
        let receiver = receiver.clone();
        let answer = move |request: Request| answer(receiver.clone(), signal, request);
        router.route(path, post(answer))
    });
    router.fallback(|request: Request| async move { refused(&Refusal::unknown_method(request.uri().path())) })
}

async fn answer(receiver: Arc<OtlpReceiver>, signal: Signal, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let asked = ExportCall {
        signal,
        protocol: "grpc",
        peer: String::new(),
    };
    if !is_grpc(&parts.headers) {
        receiver.count(&asked, OtlpErrorKind::MediaType.facts().code);
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    match take(&receiver, &asked, &parts.headers, body).await {
        Ok(taken) => {
            receiver.count(&asked, "ok");
            accepted(signal, &taken)
        }
        Err(refusal) => {
            receiver.count(&asked, refusal.code());
            refused(&refusal)
        }
    }
}

/// Accepts `application/grpc` with or without a `+proto` suffix, in any case.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes)
        .to_ascii_lowercase();
    kind.strip_prefix(b"application/grpc")
        .is_some_and(|rest| rest.is_empty() || rest == b"+proto" || rest.starts_with(b";"))
}

async fn take(
    receiver: &Arc<OtlpReceiver>,
    asked: &ExportCall,
    headers: &HeaderMap,
    body: Body,
) -> Result<ExportOutcome, Refusal> {
    let given = headers.get("grpc-encoding").map_or(&b""[..], HeaderValue::as_bytes);
    let named = compression(given).ok_or_else(|| {
        let given = given.escape_ascii();
        Refusal::encoding(format!("grpc-encoding is \"{given}\"; send gzip, zstd or identity"))
    })?;
    let options = &receiver.options;
    let within = headers.get("grpc-timeout").and_then(|value| timeout(value.as_bytes()));
    let within = within.unwrap_or(options.body_timeout);
    let read = receiver.read(asked, headers, body, options.body_bytes_max + PREFIX, within);
    let (bytes, held) = read.await?;
    let (is_compressed, message) = message(&bytes).map_err(Refusal::malformed)?;
    let came = ReceivedRequest {
        encoding: PayloadEncoding::Proto,
        compression: match (is_compressed, named) {
            (false, _) => PayloadCompression::None,
            (true, PayloadCompression::None) => {
                return Err(Refusal::malformed(
                    "the message is compressed, but the header grpc-encoding is missing",
                ));
            }
            (true, named) => named,
        },
        bytes: bytes.slice_ref(message),
        held,
    };
    receiver.take(asked, came).await
}

/// Returns the compression flag and the single message of a call.
fn message(body: &[u8]) -> Result<(bool, &[u8]), &'static str> {
    let (prefix, rest) = body.split_first_chunk::<PREFIX>().ok_or("the call has no message")?;
    let [flag, length @ ..] = *prefix;
    let message = usize::try_from(u32::from_be_bytes(length))
        .ok()
        .and_then(|length| rest.split_at_checked(length));
    match (flag, message) {
        (_, None) => Err("the message is shorter than its length"),
        (_, Some((_, more))) if !more.is_empty() => Err("the call has more than one message"),
        (0, Some((message, _))) => Ok((false, message)),
        (1, Some((message, _))) => Ok((true, message)),
        _ => Err("the message has an unknown flag"),
    }
}

/// Parses `grpc-timeout`: up to eight digits and a unit.
fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

fn accepted(signal: Signal, taken: &ExportOutcome) -> Response {
    let message = reply::success(signal, &taken.partial, PayloadEncoding::Proto);
    let mut frame = Vec::with_capacity(PREFIX + message.len());
    frame.push(0);
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
    frame.extend_from_slice(&message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    if let Some(position) = taken
        .position
        .as_ref()
        .and_then(|at| HeaderValue::try_from(at.to_string()).ok())
    {
        trailers.insert("thalweg-position", position);
    }
    let mut response = Response::new(Body::new(GrpcResponseBody {
        message: Some(Bytes::from(frame)),
        trailers: Some(trailers),
    }));
    headers(&mut response);
    response
}

/// A response without a message sends its trailers as headers.
fn refused(refusal: &Refusal) -> Response {
    let mut response = Response::new(Body::empty());
    headers(&mut response);
    let all = response.headers_mut();
    all.insert("grpc-status", HeaderValue::from(refusal.kind.grpc() as u16));
    let message = percent_encoded(&reply::message(refusal));
    if let Ok(message) = HeaderValue::try_from(message) {
        all.insert("grpc-message", message);
    }
    let details = BASE64_STANDARD_NO_PAD.encode(reply::status(refusal, PayloadEncoding::Proto));
    if let Ok(details) = HeaderValue::try_from(details) {
        all.insert("grpc-status-details-bin", details);
    }
    response
}

fn headers(response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc+proto"));
    headers.insert("grpc-accept-encoding", ACCEPTED);
}

/// Encodes `%` and everything except printable ASCII as `%XX`.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' | 0..=0x1f | 0x7f.. => out.push_str(&format!("%{byte:02X}")),
            plain => out.push(char::from(plain)),
        }
    }
    out
}

/// One message, then the trailers.
struct GrpcResponseBody {
    message: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

impl HttpBody for GrpcResponseBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        let data = self.message.take().map(Frame::data);
        let frame = data.or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.message.as_ref().map_or(0, Bytes::len) as u64)
    }
}

#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    if let Ok((_, found)) = message(data) {
        assert_eq!(found.len() + PREFIX, data.len());
    }
    let _ = timeout(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_one_message_of_its_length() {
        assert_eq!(message(&[0, 0, 0, 0, 2, 7, 8]), Ok((false, &[7, 8][..])));
        assert_eq!(message(&[1, 0, 0, 0, 0]), Ok((true, &[][..])));
        for broken in [
            &[][..],
            &[0, 0, 0, 0],
            &[0, 0, 0, 0, 2, 7],
            &[0, 0, 0, 0, 1, 7, 8],
            &[2, 0, 0, 0, 0],
        ] {
            assert!(message(broken).is_err(), "{broken:?}");
        }
    }

    #[test]
    fn timeouts_are_read_as_they_are_written() {
        let of = |text: &str| timeout(text.as_bytes());
        assert_eq!(of("1S"), Some(Duration::from_secs(1)));
        assert_eq!(of("100m"), Some(Duration::from_millis(100)));
        assert_eq!(of("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for broken in ["", "S", "1", "1s", "-1S", "123456789S"] {
            assert_eq!(of(broken), None, "{broken}");
        }
    }

    #[test]
    fn messages_of_errors_are_printable() {
        assert_eq!(percent_encoded("50 % of ü\n"), "50 %25 of %C3%BC%0A");
    }
}
