//! Any text as a mapping, a mutation and an interpolation, run on any payload: there is a result or an error with its
//! place, never a panic, and a failed run leaves the message as it was.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_mapping::{CompileError, Interpolation, Mapping};
use thalweg_record::Message;

fuzz_target!(|data: &[u8]| {
    // The source ends at the first NUL, the rest is the payload.
    let end = data.iter().position(|byte| *byte == 0).unwrap_or(data.len());
    let (source, payload) = data.split_at(end);
    let Ok(source) = std::str::from_utf8(source) else { return };
    let payload = payload.get(1..).unwrap_or_default().to_vec();
    for compile in [Mapping::compile, Mapping::compile_mutation] {
        match compile(source) {
            Ok(mapping) => {
                let mut batch = [Message::raw(payload.clone())];
                if mapping.apply(&mut batch, 0).is_err() {
                    assert_eq!(&*batch[0].bytes(), payload.as_slice());
                }
            }
            Err(error) => check(source, &error),
        }
    }
    match Interpolation::compile(source) {
        Ok(text) => drop(text.render(&[Message::raw(payload)], 0)),
        Err(error) => check(source, &error),
    }
});

fn check(source: &str, error: &CompileError) {
    for mistake in error.all() {
        let line = source.split('\n').nth(mistake.line - 1).expect("a mistake lies on a line of the source");
        assert!(mistake.column <= line.chars().count() + 1, "{mistake} is beyond its line");
    }
}
