//! Any bytes as stored messages: what is read is written and reads as the same messages, and what is refused is refused at
//! a byte of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_record::codec::{CodecError, MessageDecoder, MessageEncoder};

fuzz_target!(|bytes: &[u8]| {
    let write = |messages: &[thalweg_record::Message]| {
        let mut encoder = MessageEncoder::default();
        for message in messages {
            encoder.push(message).expect("what was read is not nested too deep");
        }
        encoder.finish()
    };
    match MessageDecoder::new(1 << 20).decode(&bytes.to_vec().into()) {
        Ok(messages) => {
            let written = write(&messages);
            let again = MessageDecoder::new(1 << 20).decode(&written.clone().into());
            assert_eq!(write(&again.expect("what is written is read")), written);
        }
        Err(CodecError::Damaged { at, .. }) => assert!(at <= bytes.len()),
        Err(CodecError::Version { .. }) => {}
    }
});
