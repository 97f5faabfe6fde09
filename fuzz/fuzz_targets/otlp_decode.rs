//! Any bytes as an export request: what the look over it takes can be decoded, and has as many rows as it said.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_otlp::decode::fuzz(data));
