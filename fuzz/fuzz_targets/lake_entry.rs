//! Any bytes as an entry of the log for the lake: it is refused, or is written again as it was read.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_lake::entry::fuzz(data));
