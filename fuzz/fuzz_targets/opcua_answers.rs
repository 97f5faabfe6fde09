//! Any bytes as the answer to Publish, Republish or Read.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_opcua::fuzz::answers(data));
