//! Any text as what somebody subscribes to: it is refused in one sentence, or begins with the line that says it stands.
#![no_main]

mod support;

use libfuzzer_sys::fuzz_target;
use thalweg_events_api::fuzz;

fuzz_target!(|query: &str| {
    support::with(|server| async move {
        match fuzz::subscribe(&server, query).await {
            Some((200, first)) => assert_eq!(first, b": ready\n\n"),
            Some((400, first)) => assert!(!first.is_empty()),
            Some((status, first)) => support::check(status, &first),
            None => {}
        }
    });
});
