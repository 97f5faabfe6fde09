use std::path::PathBuf;

use thalweg_config::{Diagnostics, Node};

use super::super::*;

fn read(text: &str) -> (LogSettings, String) {
    let diags = Diagnostics::new("f");
    let settings = LogSettings::read(Some(&Node::parse(text).unwrap()), &diags);
    (settings, diags.to_string())
}

#[test]
fn the_log_has_the_defaults_of_the_specification() {
    let text = "{engine: embedded, durability: fsync, interval: 50ms, commit: {max_bytes: 1MiB, linger: 50us, spare: 4, \
                max_files: 64}, dirs: [], on_poison: exit, scrub: 7d, recover: strict, io_bytes_per_second: 64MiB}";
    let (written, messages) = read(text);
    assert_eq!(messages, "");
    assert_eq!(written, LogSettings::default());
    assert_eq!(LogSettings::read(None, &Diagnostics::new("f")), written);
    assert_eq!(written.min_free, None);
    assert_eq!(
        (written.interval, written.commit.linger),
        (Duration::from_millis(50), Duration::from_micros(50))
    );
    assert_eq!((written.scrub, written.io_bytes_per_second), (168 * HOUR, 64 << 20));
}

#[test]
fn every_key_of_the_log_is_read() {
    let text = "{durability: interval, interval: 1s, commit: {max_bytes: 2MiB, linger: 0, spare: 1, max_files: 9}, \
                dirs: [/a, /b], min_free: 1GiB, on_poison: stay, scrub: 0, recover: skip, io_bytes_per_second: 1MiB, \
                memory: 64MiB}";
    let (settings, messages) = read(text);
    assert_eq!(messages, "");
    let expected = LogSettings {
        engine: LogEngine::Embedded,
        durability: Durability::Interval,
        interval: Duration::from_secs(1),
        commit: CommitSettings {
            max_bytes: 2 << 20,
            linger: Duration::ZERO,
            spare: 1,
            max_files: 9,
        },
        dirs: vec![PathBuf::from("/a"), PathBuf::from("/b")],
        min_free: Some(1 << 30),
        on_poison: OnPoison::Stay,
        scrub: Duration::ZERO,
        recover: RecoveryMode::Skip,
        io_bytes_per_second: 1 << 20,
        memory: settings.memory,
    };
    assert_eq!(settings, expected);
    assert_eq!(settings.memory.map(|(bytes, _)| bytes), Some(64 << 20));
}

#[test]
fn mistakes_in_the_section_log_are_named_with_their_key() {
    let folders: Vec<String> = (0..65).map(|n| format!("/disk{n}")).collect();
    let (fits, many) = (
        format!("dirs: [{}]", folders[1..].join(", ")),
        format!("dirs: [{}]", folders.join(", ")),
    );
    assert_eq!(read(&fits).1, "");
    for (text, expected) in [
        (
            "engine: jetstream",
            "engine: jetstream is not in this version, which has only embedded",
        ),
        (
            "engine: kafka",
            "engine: kafka is not in this version, which has only embedded",
        ),
        ("engine: nats", "engine: expected one of embedded, jetstream, kafka"),
        (
            "durability: none",
            "durability: expected one of fsync, interval, os, memory",
        ),
        ("interval: 0", "interval: expected a duration from 1ms to 1m"),
        (
            "commit: {max_bytes: 1KiB}",
            "commit.max_bytes: expected a size from 4KiB to 32MiB, got 1KiB",
        ),
        (
            "commit: {linger: 10ms}",
            "commit.linger: expected a duration from 0s to 50us",
        ),
        (
            "commit: {spare: 0}",
            "commit.spare: expected a whole number from 1 to 64",
        ),
        (
            "commit: {max_files: 1}",
            "commit.max_files: expected a whole number from 2 to 10000",
        ),
        ("commit: {max_byte: 1}", "did you mean \"max_bytes\"?"),
        ("dirs: [/a, /a]", "dirs: /a is given twice"),
        ("dirs: [a, ./a]", "dirs: ./a is given twice"),
        ("dirs: ['']", "dirs: a folder must have a name"),
        (many.as_str(), "dirs: a log has at most 64 folders, one for each disk"),
        ("on_poison: ignore", "on_poison: expected one of exit, stay"),
        ("recover: yes", "recover: expected one of strict, skip"),
        (
            "io_bytes_per_second: 0",
            "io_bytes_per_second: expected a size from 1MiB",
        ),
        ("sync: true", "unknown field \"sync\""),
    ] {
        let (_, messages) = read(text);
        assert_eq!(messages.lines().count(), 1, "for {text}: {messages}");
        assert!(messages.contains(expected), "for {text}: {messages}");
    }
}
