//! Any bytes as an encoded sketch: they are refused and change nothing, or come back as they are written again.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_sketch::fuzz(data));
