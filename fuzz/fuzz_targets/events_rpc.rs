//! Any lines as calls of `/rpc`, one after the other: each is answered in JSON, and none is a failure of the server.
#![no_main]

mod support;

use libfuzzer_sys::fuzz_target;
use thalweg_events_api::fuzz;

fuzz_target!(|bytes: &[u8]| {
    support::with(|server| async move {
        for call in bytes.split(|byte| *byte == b'\n').take(16) {
            let (status, body) = fuzz::call(&server, call).await;
            support::check(status, &body);
        }
    });
});
