//! Any bytes as what a log says of its partitions.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_log::fuzz::table(data));
