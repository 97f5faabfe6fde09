//! Any bytes as a block: its header, the headers of its frames, and what is whole of it if it is damaged.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_log::fuzz::block(data));
