//! Any bytes as the text of an export request: it is refused, or becomes a request that can be looked over.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_otlp::json::otlp_json(data));
