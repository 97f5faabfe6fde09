//! A log over which any bytes were written: it is checked, dumped, repaired, and then it opens.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| thalweg_log::fuzz::files(data));
