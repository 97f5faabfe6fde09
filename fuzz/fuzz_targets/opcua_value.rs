//! Any bytes as a few structures and data values that use them, as a server would send them: each value is read or
//! refused, becomes JSON, and holds no more memory than the limits of an answer allow.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_opcua::fuzz::values(data));
