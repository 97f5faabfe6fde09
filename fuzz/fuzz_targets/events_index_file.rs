//! Any bytes as the file of a table of an index, and as its list of blocks with checksums that are right.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thalweg_events::fuzz::index_file(bytes));
