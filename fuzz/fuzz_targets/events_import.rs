//! Any bytes as lines of an import: pieces make no difference, each event is JSON, and the last says how it has ended.
#![no_main]

mod support;

use libfuzzer_sys::fuzz_target;
use thalweg_events::json::compact;
use thalweg_events_api::fuzz;

// The first byte says where the body is cut in two.
fuzz_target!(|bytes: &[u8]| {
    let Some((cut, lines)) = bytes.split_first() else {
        return;
    };
    support::with(|server| async move {
        fuzz::lines(lines, usize::from(*cut)).await;
        let (status, body) = fuzz::import(&server, lines).await;
        let told = String::from_utf8(body).expect("it is text");
        assert_eq!(status, 200, "{told}");
        let mut last = String::new();
        for event in told.split_terminator("\n\n") {
            let data = event.strip_prefix("data: ").expect("only data is told");
            last.clear();
            compact(data.as_bytes(), &mut last).expect("it is JSON");
        }
        assert!(
            last.starts_with("{\"done\":true,") || last.starts_with("{\"error\":"),
            "{told}"
        );
        assert!(!last.contains("IMPORT_FAILED"), "{told}");
    });
});
