//! Any bytes as parts of an index: blocks, lists, keys, and what stands under them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thalweg_events::fuzz::index_parts(bytes));
