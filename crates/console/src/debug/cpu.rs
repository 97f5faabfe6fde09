//! `/debug/pprof/profile?seconds=`: a CPU profile, sampled 99 times per second of CPU time.
//!
//! The sampler interrupts whatever runs. It must not walk the stack of code that may itself have the unwinder's or the
//! allocator's locks, so samples in the C library, the unwinder or the vDSO are skipped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::Query;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use pprof::{ProfilerGuardBuilder, Report};
use serde::Deserialize;
use thalweg_kit::blocking;

use super::profile::{ProfileFunction, ProfileHead, ProfileWriter, SampleLabel};
use super::{SymbolCacheGuard, download, gzipped, problem};

/// Not a divisor of common periods, so that periodic work is not sampled always or never.
const SAMPLES_PER_SECOND: i32 = 99;
const SECONDS_MAX: u64 = 300;
const SECONDS_DEFAULT: u64 = 30;
const NANOS_PER_SECOND: i64 = 1_000_000_000;

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
        gzipped(&encode(&report)).map_err(|error| error.to_string())
    });
    match built.await {
        Ok(Ok(bytes)) => download("profile", bytes),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error.to_string()),
    }
}

/// A sample for each stack: how often it was met, and the CPU time that this stands for.
fn encode(report: &Report) -> Vec<u8> {
    let timing = &report.timing;
    let frequency = i64::from(timing.frequency.max(1));
    let mut profile = ProfileWriter::new(&ProfileHead {
        values: &[("samples", "count"), ("cpu", "nanoseconds")],
        period_type: ("cpu", "nanoseconds"),
        period: NANOS_PER_SECOND / frequency,
        begin: timing.start_time,
        duration: timing.duration,
    });
    for (frames, count) in &report.data {
        let symbols = frames.frames.iter().flatten();
        let stack: Vec<u64> = symbols
            .map(|symbol| {
                let function = ProfileFunction {
                    name: &symbol.name(),
                    system_name: &symbol.sys_name(),
                    file: &symbol.filename(),
                };
                profile.function_location(&function, symbol.lineno())
            })
            .collect();
        let (count, thread) = (*count as i64, frames.thread_name_or_id());
        let values = [count, count * NANOS_PER_SECOND / frequency];
        profile.sample(&stack, &values, Some(SampleLabel::Text("thread", &thread)));
    }
    profile.finish()
}

fn failed(error: &str) -> Response {
    problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        &format!("the CPU profile could not be taken: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::UNIX_EPOCH;

    use pprof::{Frames, Symbol};

    use super::super::decoded::DecodedProfile;
    use super::*;

    fn symbol(name: Option<&str>, line: u32) -> Symbol {
        Symbol {
            name: name.map(|name| name.as_bytes().to_vec()),
            addr: None,
            lineno: Some(line),
            filename: name.map(|_| "src/a.rs".into()),
        }
    }

    fn frames(frames: Vec<Vec<Symbol>>, thread_name: &str) -> Frames {
        Frames {
            frames,
            thread_name: thread_name.to_owned(),
            thread_id: 42,
            sample_timestamp: UNIX_EPOCH,
        }
    }

    #[test]
    fn a_report_becomes_samples_with_named_functions_and_threads() {
        let inlined = vec![symbol(Some("_ZN3foo3barE"), 3), symbol(Some("main"), 8)];
        let data = HashMap::from([
            (frames(vec![inlined, vec![symbol(None, 0)]], "worker"), 3),
            (frames(vec![vec![symbol(Some("main"), 9)]], ""), 1),
        ]);
        let mut report = Report {
            data,
            timing: Default::default(),
        };
        report.timing.frequency = 100;
        report.timing.start_time = UNIX_EPOCH + Duration::from_secs(7);
        report.timing.duration = Duration::from_secs(2);
        let profile = DecodedProfile::of(&encode(&report));
        assert_eq!(profile.value_types, [["samples", "count"], ["cpu", "nanoseconds"]]);
        assert_eq!(profile.period_type, ["cpu", "nanoseconds"]);
        assert_eq!(
            (profile.period, profile.time_nanos, profile.duration_nanos),
            (10_000_000, 7_000_000_000, 2_000_000_000)
        );
        assert_eq!(
            (profile.functions.len(), profile.locations.len()),
            (3, 3),
            "main is there once"
        );
        let bar = profile.functions.iter().find(|function| function.name == "foo::bar");
        let bar = bar.unwrap();
        assert_eq!(
            (bar.system_name.as_str(), bar.file.as_str()),
            ("_ZN3foo3barE", "src/a.rs")
        );
        let unnamed = profile.functions.iter().find(|function| function.name == "Unknown");
        assert_eq!(unnamed.unwrap().file, "Unknown");
        let of = |thread: &str| {
            let mut samples = profile.samples.iter();
            samples.find(|sample| sample.labels[0].1 == thread).unwrap()
        };
        let worker = of("worker");
        assert_eq!(profile.names(worker), ["foo::bar", "main", "Unknown"]);
        assert_eq!(worker.values, [3, 30_000_000]);
        assert_eq!(worker.labels[0].0, "thread");
        assert_eq!(
            (profile.names(of("42")), &of("42").values[..]),
            (vec!["main"], &[1, 10_000_000][..])
        );
    }
}
