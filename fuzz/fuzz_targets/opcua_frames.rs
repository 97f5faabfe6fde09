//! Any frames that a server sends over a connection, unsecured, signed or encrypted, whole or spoilt: the connection ends
//! with a reason.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_opcua::fuzz::frames(data));
