//! `/debug/pprof/heap`: a profile of live memory by allocating code, sampled by jemalloc if it was started with
//! profiling.

use std::io::Read;

use axum::http::StatusCode;
use axum::response::Response;
use flate2::read::GzDecoder;
use pprof::protos::{Message, Profile};
use thalweg_kit::blocking;

use super::{SymbolCacheGuard, download, gzipped, problem};

const OFF: &str = "heap profiling is off; start Thalweg with the environment variable \
    MALLOC_CONF=prof:true,prof_active:true,lg_prof_sample:19 to turn it on (it costs about one percent)";

/// The allocator's own functions end every stack. Readers leave out what this matches and everything it calls, so that
/// memory is shown at the function that requested it.
const ALLOCATOR: &str = "_rjem_.*|prof_.*|malloc|calloc|realloc|posix_memalign|aligned_alloc|.*GlobalAlloc.*|\
    (.*::)?(__rust_|__rdl_|__rg_)?(alloc|realloc|alloc_zeroed)|alloc_impl(_runtime)?|(try_)?allocate(_in|_zeroed)?|\
    (try_)?with_capacity_in|finish_grow|grow_(one|amortized|exact)|box_new_uninit|exchange_malloc";

pub async fn profile() -> Response {
    let Some(control) = jemalloc_pprof::PROF_CTL.as_ref() else {
        return problem(StatusCode::NOT_IMPLEMENTED, OFF);
    };
    let mut control = control.clone().lock_owned().await;
    if !control.activated() {
        return problem(StatusCode::NOT_IMPLEMENTED, OFF);
    }
    // Writes a file, reads it, and looks up symbols in the debug information.
    let dumped = blocking::spawn(move || {
        let _names = SymbolCacheGuard;
        let dumped = control.dump_pprof().map_err(|error| error.to_string())?;
        without_allocator(&dumped).map_err(|error| error.to_string())
    });
    match dumped.await {
        Ok(Ok(bytes)) => download("heap", bytes),
        Ok(Err(error)) => failed(&error),
        Err(error) => failed(&error.to_string()),
    }
}

fn without_allocator(dumped: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    GzDecoder::new(dumped).read_to_end(&mut bytes)?;
    let mut profile = Profile::decode(&bytes[..]).map_err(std::io::Error::other)?;
    profile.drop_frames = profile.string_table.len() as i64;
    profile.string_table.push(ALLOCATOR.to_owned());
    gzipped(&profile)
}

fn failed(error: &str) -> Response {
    problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        &format!("the heap profile could not be taken: {error}"),
    )
}
