//! `/debug/…`: data for troubleshooting, for role `admin` and only if `http.debug_endpoints` is true. Profiles are
//! gzipped protobuf in the format of Go's pprof, which `go tool pprof` and Grafana read.

mod cpu;
#[cfg(test)]
mod decoded;
mod heap;
mod profile;
mod threads;

use std::io::Write;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use thalweg_telemetry::aside;

use crate::ConfigText;

pub fn router(config: ConfigText) -> Router {
    let ConfigText { json, yaml } = config;
    Router::new()
        .route(
            "/debug/config/json",
            get(async move || ([(header::CONTENT_TYPE, "application/json")], json)),
        )
        .route(
            "/debug/config/yaml",
            get(async move || ([(header::CONTENT_TYPE, "application/yaml")], yaml)),
        )
        .route(
            "/debug/stack",
            get(async || aside(|| threads::text(&threads::read())).await),
        )
        .route("/debug/pprof/profile", get(cpu::profile))
        .route("/debug/pprof/heap", get(heap::profile))
        .route("/debug/pprof/goroutine", get(threads::profile))
}

/// Explains to authorized clients why the paths are not served.
pub fn switched_off() -> Router {
    let off = async || {
        problem(
            StatusCode::NOT_FOUND,
            "profiles and configuration are not served; set http.debug_endpoints: true",
        )
    };
    Router::new().route("/debug/{*path}", get(off))
}

fn problem(status: StatusCode, text: &str) -> Response {
    (status, format!("{text}\n")).into_response()
}

fn download(name: &str, gzipped: Vec<u8>) -> Response {
    let disposition = format!("attachment; filename=\"{name}.pb.gz\"");
    (
        [
            (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
            (header::CONTENT_DISPOSITION, disposition),
        ],
        gzipped,
    )
        .into_response()
}

/// Frees the debug information that was loaded for symbol names: hundreds of megabytes for a large binary, which would
/// otherwise stay for good.
struct SymbolCacheGuard;

impl Drop for SymbolCacheGuard {
    fn drop(&mut self) {
        backtrace::clear_symbol_cache();
    }
}

fn gzipped(profile: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(profile)?;
    encoder.finish()
}
