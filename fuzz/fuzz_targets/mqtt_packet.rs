//! Any bytes as what a client or a server sends, in each version: packets, or an error with a reason code.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_mqtt_wire::fuzz(data));
