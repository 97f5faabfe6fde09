//! Any entries as tables of an index: it is opened, read in every way, merged and checked.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| thalweg_events::fuzz::index_folder(bytes));
