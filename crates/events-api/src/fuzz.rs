//! Entry points for the fuzz targets: any bytes as client input. They return or panic; a panic is a bug.

use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{Method, Response};
use futures::StreamExt as _;

use crate::import::check_lines;
use crate::{EventsApiServer, import, rpc, subscribe};

/// Returns the status and the body of a call.
pub async fn call(server: &Arc<EventsApiServer>, body: &[u8]) -> (u16, Vec<u8>) {
    whole(rpc::answer(server.clone(), request(Method::POST, "/rpc", body)).await).await
}

/// Imports these lines; returns the status and the body.
pub async fn import(server: &Arc<EventsApiServer>, body: &[u8]) -> (u16, Vec<u8>) {
    whole(import::answer(server.clone(), request(Method::POST, "/import", body)).await).await
}

/// The status of a subscription with this query, and its first event or its error. `None` if the query is not valid in
/// an address.
pub async fn subscribe(server: &Arc<EventsApiServer>, query: &str) -> Option<(u16, Vec<u8>)> {
    let path = format!("/subscribe?{query}");
    path.parse::<axum::http::Uri>().ok()?;
    let response = subscribe::answer(server.clone(), request(Method::GET, &path, b"")).await;
    let status = response.status().as_u16();
    let first = response.into_body().into_data_stream().next().await;
    Some((status, first.and_then(Result::ok).unwrap_or_default().to_vec()))
}

/// Reads the lines of an import, whole and cut in two at any place, each line as a record.
pub async fn lines(bytes: &[u8], cut: usize) {
    let (first, second) = bytes.split_at(cut.min(bytes.len()));
    let (whole, cut) = (check_lines(&[bytes]).await, check_lines(&[first, second]).await);
    assert_eq!(whole, cut, "pieces make no difference");
}

fn request(method: Method, path: &str, body: &[u8]) -> Request {
    let mut request = Request::new(Body::from(body.to_vec()));
    *request.method_mut() = method;
    if let Ok(uri) = path.parse() {
        *request.uri_mut() = uri;
    }
    request
}

async fn whole(response: Response<Body>) -> (u16, Vec<u8>) {
    let status = response.status().as_u16();
    let body = to_bytes(response.into_body(), usize::MAX).await;
    (status, body.unwrap_or_default().to_vec())
}
