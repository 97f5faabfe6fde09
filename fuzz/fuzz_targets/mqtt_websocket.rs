//! Any bytes as WebSocket frames of an MQTT client, at once and in pieces: both come to the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_mqtt::fuzz_websocket(data));
