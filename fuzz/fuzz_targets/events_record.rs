//! Any bytes as a message of events in the log, and any text as a token or an id.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_events::event::EventRef;
use thalweg_events::{MessageId, Token};

fuzz_target!(|bytes: &[u8]| {
    if let Some(event) = EventRef::decode(bytes, 7) {
        let mut out = Vec::new();
        event.encode(&mut out);
        assert_eq!(EventRef::decode(&out, 7), Some(event));
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Token::parse(text);
        let id = MessageId::of(text).to_string();
        assert_eq!(MessageId::of(&id).to_string(), id);
    }
});
