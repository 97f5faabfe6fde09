//! Any bytes as the WebSocket frames of a server, at once and in pieces: the same payload, or an error.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_mqtt_flow::fuzz(data));
