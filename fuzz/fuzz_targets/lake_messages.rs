//! Any bytes as an entry of messages for the table of tags: it is refused, or becomes as many rows as it has messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_lake::tags::fuzz(data));
