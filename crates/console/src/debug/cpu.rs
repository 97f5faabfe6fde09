//! `/debug/pprof/profile?seconds=`: a CPU profile, sampled 99 times per second of CPU time.
//!
//! The sampler interrupts whatever runs. It must not walk the stack of code that may itself have the unwinder's or the
//! allocator's locks, so samples in the C library, the unwinder or the vDSO are skipped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::Query;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use pprof::ProfilerGuardBuilder;
use serde::Deserialize;
use thalweg_kit::blocking;

use super::{SymbolCacheGuard, download, gzipped, problem};

/// Not a divisor of common periods, so that periodic work is not sampled always or never.
const SAMPLES_PER_SECOND: i32 = 99;
const SECONDS_MAX: u64 = 300;
const SECONDS_DEFAULT: u64 = 30;

/// There is one timer and one signal per process.
static TAKEN: AtomicBool = AtomicBool::new(false);

struct ProfilerPermit;

impl ProfilerPermit {
    fn take() -> Option<ProfilerPermit> {
        (!TAKEN.swap(true, Ordering::AcqRel)).then_some(ProfilerPermit)
    }
}

impl Drop for ProfilerPermit {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}

#[derive(Deserialize)]
pub struct CpuProfileQuery {
    seconds: Option<String>,
}

pub async fn profile(Query(wanted): Query<CpuProfileQuery>) -> Response {
    let seconds = match wanted.seconds.as_deref().map(str::parse).unwrap_or(Ok(SECONDS_DEFAULT)) {
        Ok(seconds @ 1..=SECONDS_MAX) => seconds,
        _ => {
            let text = format!("seconds must be a whole number from 1 to {SECONDS_MAX}");
            return problem(StatusCode::BAD_REQUEST, &text);
        }
    };
    let Some(turn) = ProfilerPermit::take() else {
        let text = "another CPU profile is being taken, and only one can be; try again when it is done\n";
        return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "10")], text).into_response();
    };
    let started = ProfilerGuardBuilder::default()
        .frequency(SAMPLES_PER_SECOND)
        .blocklist(&["libc.", "libc-", "libgcc", "libpthread", "ld-linux", "vdso"])
        .build();
    let sampler = match started {
        Ok(sampler) => sampler,
        Err(error) => return failed(&error.to_string()),
    };
    // A client that disconnects early drops this future, and with it the sampler.
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    // Symbol look-up in the debug information takes seconds for a large binary.
    let built = blocking::spawn(move || {
        let _names = SymbolCacheGuard;
        let report = sampler.report().build().map_err(|error| error.to_string())?;
        drop(sampler);
        drop(turn);
        let profile = report.pprof().map_err(|error| error.to_string())?;
        gzipped(&profile).map_err(|error| error.to_string())
    });
    match built.await {
        Ok(Ok(bytes)) => download("profile", bytes),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(error: &str) -> Response {
    problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        &format!("the CPU profile could not be taken: {error}"),
    )
}
