//! Any bytes as the index at the end of a file of the log.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_log::fuzz::footer(data));
