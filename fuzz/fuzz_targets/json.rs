//! Any bytes as JSON: what is read is written so that it reads back as the same text, and what is refused is refused at
//! a byte of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_record::json;

fuzz_target!(|bytes: &[u8]| {
    match json::parse(bytes) {
        Ok(value) => {
            let text = json::to_string(&value);
            let again = json::parse(text.as_bytes()).expect("what is written is JSON");
            assert_eq!(json::to_string(&again), text);
        }
        Err(error) => assert!(error.offset <= bytes.len(), "{error}"),
    }
});
