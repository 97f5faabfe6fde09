//! Any bytes as a slot of the superblock of a log.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_log::fuzz::superblock(data));
