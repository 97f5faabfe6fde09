//! Any text as a token and as an id: what is taken has one meaning, however it is written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_events::{MessageId, Token, Uuid};

fuzz_target!(|text: &str| {
    if let Ok(token) = Token::parse(text) {
        assert!(!token.namespace().is_empty());
        let digits = text.len() - 64;
        let upper = text[..digits].to_owned() + &text[digits..].to_ascii_uppercase();
        let again = Token::parse(&upper).expect("either case of the digits is right");
        assert!(again.digest().matches(token.digest()) && again.namespace() == token.namespace());
    }
    if let Some(uuid) = Uuid::parse(text) {
        assert_eq!(Uuid::parse(&uuid.to_string()), Some(uuid));
        assert_eq!(MessageId::of(text), MessageId::Uuid(uuid));
        if let Some(offset) = uuid.made_for() {
            assert!(offset >> 48 == 0);
        }
    }
    let id = MessageId::of(text).to_string();
    assert_eq!(MessageId::of(&id).to_string(), id);
});
