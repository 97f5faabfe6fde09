//! Lines that somebody ingests: JSON and CSV, whatever they say.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_lake::bulk::fuzz_lines(data));
