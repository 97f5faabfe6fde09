//! Any bytes as the body of a gRPC call: it has one message of its length, or none.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_otlp::fuzz_frames(data));
