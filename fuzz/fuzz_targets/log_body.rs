//! Any bytes as the body of a frame: records, or the end of them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_log::fuzz::body(data));
