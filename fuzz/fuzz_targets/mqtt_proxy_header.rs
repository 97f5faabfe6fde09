//! Any bytes as the PROXY header of a load balancer, whole and in growing pieces: both say the same.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_mqtt::fuzz_proxy_header(data));
