//! OTLP over HTTP: `POST /v1/logs`, `/v1/metrics`, `/v1/traces`.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use axum::routing::post;
use thalweg_http::answer::{JSON, refusal_after};
use thalweg_lake::Signal;
use thalweg_lake::entry::{PayloadCompression, PayloadEncoding};

use crate::receiver::{ExportCall, ExportOutcome, OtlpReceiver, ReceivedRequest};
use crate::refusal::{OtlpErrorKind, Refusal};
use crate::reply;

/// The log position of the entry, for clients that want to wait until queries see it.
const POSITION: &str = "thalweg-position";
const PROTO: &str = "application/x-protobuf";
const JSON_WORD: &[u8] = b"json";

const PATHS: [(&str, Signal); 3] = [
    ("/v1/logs", Signal::Logs),
    ("/v1/metrics", Signal::Metrics),
    ("/v1/traces", Signal::Traces),
];

/// The routes for a dedicated listener.
pub fn router(receiver: &Arc<OtlpReceiver>) -> Router {
    PATHS.into_iter().fold(Router::new(), |router, (path, signal)| {
        let receiver = receiver.clone();
        let answer = move |request: Request| answer(receiver.clone(), signal, request);
        router.route(path, post(answer))
    })
}

async fn answer(receiver: Arc<OtlpReceiver>, signal: Signal, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let asked = ExportCall {
        signal,
        protocol: "http",
        peer: String::new(),
    };
    let encoding = encoding_of_answer(&parts.headers);
    match take(&receiver, &asked, &parts.headers, body).await {
        Ok(taken) => {
            receiver.count(&asked, "ok");
            accepted(signal, &taken, encoding)
        }
        Err(refusal) => {
            receiver.count(&asked, refusal.code());
            refused(&refusal, encoding)
        }
    }
}

async fn take(
    receiver: &Arc<OtlpReceiver>,
    asked: &ExportCall,
    headers: &HeaderMap,
    body: Body,
) -> Result<ExportOutcome, Refusal> {
    let encoding = encoding_of(headers)?;
    let compression = compression_of(headers)?;
    let options = &receiver.options;
    let read = receiver.read(asked, headers, body, options.body_bytes_max, options.body_timeout);
    let (bytes, held) = read.await?;
    let came = ReceivedRequest {
        encoding,
        compression,
        bytes,
        held,
    };
    receiver.take(asked, came).await
}

/// The encoding of the request. One of another type is refused in JSON if its type says so (`text/json`), and else in
/// protobuf, which most senders read.
fn encoding_of_answer(headers: &HeaderMap) -> PayloadEncoding {
    encoding_of(headers).unwrap_or_else(|_| {
        let kind = headers.get(header::CONTENT_TYPE);
        let mut parts = kind
            .into_iter()
            .flat_map(|kind| kind.as_bytes().windows(JSON_WORD.len()));
        match parts.any(|part| part.eq_ignore_ascii_case(JSON_WORD)) {
            true => PayloadEncoding::Json,
            false => PayloadEncoding::Proto,
        }
    })
}

fn encoding_of(headers: &HeaderMap) -> Result<PayloadEncoding, Refusal> {
    let given = headers
        .get(header::CONTENT_TYPE)
        .map_or(&b""[..], HeaderValue::as_bytes);
    let kind = given
        .split(|byte| *byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    match kind {
        kind if kind.eq_ignore_ascii_case(PROTO.as_bytes()) => Ok(PayloadEncoding::Proto),
        kind if kind.eq_ignore_ascii_case(JSON.as_bytes()) => Ok(PayloadEncoding::Json),
        kind => Err(Refusal::media_type(format!(
            "content-type is \"{}\"; send {PROTO} or {JSON}",
            kind.escape_ascii()
        ))),
    }
}

fn compression_of(headers: &HeaderMap) -> Result<PayloadCompression, Refusal> {
    let given = headers
        .get(header::CONTENT_ENCODING)
        .map_or(&b""[..], HeaderValue::as_bytes);
    compression(given).ok_or_else(|| {
        let given = given.escape_ascii();
        Refusal::encoding(format!("content-encoding is \"{given}\"; send gzip, zstd or none"))
    })
}

/// Parses a compression by its name, which is the same in both protocols.
pub fn compression(name: &[u8]) -> Option<PayloadCompression> {
    match name.trim_ascii().to_ascii_lowercase().as_slice() {
        b"" | b"identity" | b"none" => Some(PayloadCompression::None),
        b"gzip" | b"x-gzip" => Some(PayloadCompression::Gzip),
        b"zstd" => Some(PayloadCompression::Zstd),
        _ => None,
    }
}

fn accepted(signal: Signal, taken: &ExportOutcome, encoding: PayloadEncoding) -> Response {
    let mut response = Response::new(Body::from(reply::success(signal, &taken.partial, encoding)));
    let kind = HeaderValue::from_static(media_type(encoding));
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    let position = taken.position.as_ref().map(ToString::to_string);
    if let Some(Ok(position)) = position.map(HeaderValue::try_from) {
        response.headers_mut().insert(POSITION, position);
    }
    response
}

fn refused(refusal: &Refusal, encoding: PayloadEncoding) -> Response {
    let (facts, body) = (refusal.kind.facts(), reply::status(refusal, encoding));
    let mut response = refusal_after(facts, refusal.retry_after, media_type(encoding), body);
    if refusal.kind == OtlpErrorKind::NotAuthenticated {
        let scheme = HeaderValue::from_static("Bearer");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
    }
    response
}

fn media_type(encoding: PayloadEncoding) -> &'static str {
    match encoding {
        PayloadEncoding::Proto => PROTO,
        PayloadEncoding::Json => JSON,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_encoding_of_its_request_whatever_the_case() {
        for (kind, expected) in [
            (JSON, PayloadEncoding::Json),
            ("Application/JSON", PayloadEncoding::Json),
            ("APPLICATION/JSON; Charset=utf-8", PayloadEncoding::Json),
            ("Text/Json", PayloadEncoding::Json),
            (PROTO, PayloadEncoding::Proto),
            ("Application/X-Protobuf", PayloadEncoding::Proto),
            ("text/plain", PayloadEncoding::Proto),
        ] {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]);
            assert_eq!(encoding_of_answer(&headers), expected, "{kind}");
        }
        assert_eq!(encoding_of_answer(&HeaderMap::new()), PayloadEncoding::Proto);
    }
}
