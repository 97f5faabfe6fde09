//! Any bytes as a backup of events, and as frames of one whose checksums are right.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_events::backup::{BackupReader, BackupPart, sealed};

fn read(bytes: &[u8]) {
    let Ok(mut reader) = BackupReader::new(bytes) else {
        return;
    };
    let mut ended = false;
    while let Ok(Some(part)) = reader.next_part() {
        ended = matches!(part, BackupPart::End(_));
    }
    assert!(reader.bytes() <= bytes.len() as u64);
    assert!(!ended || reader.bytes() == bytes.len() as u64);
}

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    // A kind and a length before each body.
    let (mut frames, mut rest) = (Vec::new(), bytes);
    while let [kind, len, after @ ..] = rest {
        let (body, after) = after.split_at(usize::from(*len).min(after.len()));
        frames.push((*kind, body));
        rest = after;
    }
    read(&sealed(&frames));
});
