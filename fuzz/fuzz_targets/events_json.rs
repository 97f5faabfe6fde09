//! Any bytes as a call or a record of events: what is JSON keeps its meaning without white space, and its parts can be taken.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_events::json::{Json, compact};

fn walk(json: Json<'_>, depth: usize) {
    let _ = (json.string(), json.integer(), json.bool());
    if depth > 50 {
        return;
    }
    json.array().into_iter().flatten().for_each(|part| walk(part, depth + 1));
    json.object().into_iter().flatten().for_each(|(_, part)| walk(part, depth + 1));
}

fuzz_target!(|bytes: &[u8]| {
    let mut text = String::new();
    if compact(bytes, &mut text).is_ok() {
        let mut again = String::new();
        compact(text.as_bytes(), &mut again).expect("what was checked is JSON");
        assert_eq!(again, text);
        walk(Json::new(&text), 0);
    }
});
