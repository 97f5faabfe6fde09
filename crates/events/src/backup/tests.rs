//! Backups that are whole, cut off, damaged and forged.

use proptest::prelude::*;
use thalweg_log::format::record::RecordRef;

use super::*;
use crate::event::{EventRef, IdRef};
use crate::id::Uuid;

fn named(number: u32) -> CatalogEntry {
    CatalogEntry {
        number,
        name: format!("n{number}"),
        description: "of a test".to_owned(),
        metadata: Some("{\"a\":1}".to_owned()),
        created_at: 1_700_000_000_000_000,
        tokens: Vec::new(),
    }
}

fn value(position: u64, data: &str) -> Vec<u8> {
    let event = EventRef {
        id: IdRef::Uuid(Uuid([7; 16])),
        own_id: false,
        stream: "order-1",
        position,
        global: position + 1,
        kind: "Created",
        data,
        metadata: None,
        time: 5,
        is_first: position == 0,
        is_imported: false,
    };
    let mut value = Vec::new();
    event.encode(&mut value);
    value
}

/// Messages with their offsets minus the first.
fn body(messages: &[(u32, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (delta, data) in messages {
        let value = value(u64::from(*delta), data);
        let delta = Some(*delta);
        RecordRef {
            delta,
            ..RecordRef::of(5, &value)
        }
        .encode(&mut body);
    }
    body
}

fn counts(messages: u64) -> BackupCounts {
    BackupCounts {
        namespaces: 0,
        records: messages,
        messages,
    }
}

/// A small backup, and the positions of its frames and of its end.
fn small() -> (Vec<u8>, Vec<usize>) {
    let (mut out, mut starts) = (Vec::new(), vec![16]);
    let begin = BackupHeader {
        made_by: "1.2.3".to_owned(),
        time: 9,
        namespaces: 2,
    };
    let mut writer = BackupWriter::new(&begin, &mut out).unwrap();
    for number in [1, 4] {
        starts.push(out.len());
        let head = NamespaceHeader {
            named: named(number),
            first: 3,
            next: 100,
        };
        writer.namespace(&head, &mut out).unwrap();
        for base in [3, 50] {
            starts.push(out.len());
            let body = body(&[(0, "{}"), (1, "{\"a\":1}"), (7, "{}")]);
            writer.records((FrameKind::Data, base), &body, counts(3), &mut out);
        }
        starts.push(out.len());
        writer.namespace_end(&mut out).unwrap();
    }
    starts.push(out.len());
    writer.end(&mut out).unwrap();
    starts.push(out.len());
    (out, starts)
}

fn read(bytes: &[u8]) -> BackupResult<Vec<BackupPart>> {
    let mut reader = BackupReader::new(bytes)?;
    let mut parts = Vec::new();
    while let Some(part) = reader.next_part()? {
        parts.push(part);
    }
    assert_eq!(reader.bytes(), bytes.len() as u64);
    Ok(parts)
}

#[test]
fn a_backup_is_read_as_it_was_written() {
    let parts = read(&small().0).unwrap();
    let all = BackupCounts {
        namespaces: 2,
        records: 12,
        messages: 12,
    };
    assert!(
        matches!(parts.last(), Some(BackupPart::End(found)) if *found == all),
        "{parts:?}"
    );
    let names: Vec<&str> = parts
        .iter()
        .filter_map(|part| match part {
            BackupPart::Namespace(head) => Some(head.name()),
            _ => None,
        })
        .collect();
    assert_eq!(names, ["n1", "n4"]);
    let pieces = parts.iter().filter_map(|part| match part {
        BackupPart::Records(piece) => Some((piece.base, piece.next)),
        _ => None,
    });
    assert_eq!(pieces.collect::<Vec<_>>(), [(3, 11), (50, 58), (3, 11), (50, 58)]);
}

#[test]
fn a_backup_that_is_cut_off_anywhere_is_noticed_and_says_where_it_ends() {
    let (whole, _) = small();
    for len in 0..whole.len() {
        match read(&whole[..len]) {
            Err(BackupError::NotABackup) => assert_eq!(len, 0),
            Err(BackupError::CutOff { at }) => assert_eq!(at, len as u64),
            other => panic!("{len} bytes: {other:?}"),
        }
    }
}

#[test]
fn a_backup_with_any_bit_turned_is_noticed_at_or_before_its_frame() {
    let (mut bytes, starts) = small();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            let error = read(&bytes).expect_err("a bent backup is none");
            bytes[at] ^= 1 << bit;
            let frame = starts.iter().rev().find(|start| **start <= at).copied().unwrap_or(0);
            match error {
                BackupError::Damaged { at: told, .. } => {
                    assert!(told >= frame.min(8) as u64 && told <= at as u64, "{told}, {at}")
                }
                BackupError::CutOff { .. } => {}
                BackupError::NotABackup => assert!(at < 8),
                other => panic!("byte {at}, bit {bit}: {other}"),
            }
            assert!(error.is_damage());
        }
    }
    assert!(read(&bytes).is_ok());
}

#[test]
fn a_frame_that_is_left_out_doubled_or_moved_is_noticed() {
    let (whole, starts) = small();
    let frames: Vec<&[u8]> = starts.windows(2).map(|pair| &whole[pair[0]..pair[1]]).collect();
    let of = |frames: &[&[u8]]| [&whole[..16], &frames.concat()].concat();
    assert!(read(&of(&frames)).is_ok());
    for n in 0..frames.len() {
        let mut without = frames.clone();
        without.remove(n);
        assert!(read(&of(&without)).is_err(), "without frame {n}");
        let mut doubled = frames.clone();
        doubled.insert(n, frames[n]);
        assert!(read(&of(&doubled)).is_err(), "frame {n} twice");
        for other in 0..n {
            let mut moved = frames.clone();
            moved.swap(n, other);
            assert!(read(&of(&moved)).is_err(), "frames {n} and {other}");
        }
    }
}

#[test]
fn something_after_the_end_is_noticed() {
    let (mut bytes, _) = small();
    let at = bytes.len() as u64;
    bytes.push(0);
    match read(&bytes) {
        Err(BackupError::Damaged { at: told, what }) => {
            assert_eq!((told, what.as_str()), (at, "something follows the end"))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_backup_of_a_newer_format_is_refused_and_not_called_damaged() {
    let (mut bytes, _) = small();
    bytes[8..12].copy_from_slice(&3u32.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[8..12]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    let error = read(&bytes).unwrap_err();
    assert!(!error.is_damage() && error.to_string().contains("format 3"), "{error}");
}

#[test]
fn whoever_made_it_says_why_it_could_not_go_on() {
    let (mut out, error) = (Vec::new(), EventsError::Damaged("the disk".to_owned()));
    let begin = BackupHeader {
        made_by: String::new(),
        time: 0,
        namespaces: 1,
    };
    let mut writer = BackupWriter::new(&begin, &mut out).unwrap();
    writer.failed(&error, &mut out).unwrap();
    let error = read(&out).unwrap_err();
    assert!(error.is_damage());
    assert_eq!(error.to_string(), "the backup was not completed: the disk");
}

#[test]
fn records_where_none_can_be_are_refused_though_their_checksums_are_right() {
    let begin = serde_json::to_vec(&BackupHeader {
        made_by: String::new(),
        time: 0,
        namespaces: 1,
    });
    let begin = begin.unwrap();
    let head = serde_json::to_vec(&NamespaceHeader {
        named: named(1),
        first: 5,
        next: 20,
    });
    let head = head.unwrap();
    let piece = |kind: u8, base: u64, body: &[u8]| {
        let mut piece = vec![kind];
        piece.extend_from_slice(&base.to_le_bytes());
        piece.extend_from_slice(body);
        piece
    };
    let fine = body(&[(0, "{}"), (9, "{}")]);
    let mut plain = Vec::new();
    RecordRef::of(5, &value(0, "{}")).encode(&mut plain);
    let mut strange = Vec::new();
    let delta = Some(0);
    RecordRef {
        delta,
        ..RecordRef::of(5, b"\x20strange")
    }
    .encode(&mut strange);
    for (records, is_fine) in [
        (piece(1, 5, &fine), true),
        (piece(2, 10, &fine), true),
        (piece(1, 4, &fine), false),
        (piece(1, 11, &fine), false),
        (piece(1, u64::MAX, &fine), false),
        (piece(3, 5, &fine), false),
        (piece(1, 5, b""), false),
        (piece(1, 5, &fine[..fine.len() - 1]), false),
        (piece(1, 5, &[&fine[..], &fine].concat()), false),
        (piece(1, 5, &plain), false),
        (piece(1, 5, &strange), false),
        (vec![1], false),
    ] {
        let bytes = sealed(&[(BEGIN, &begin), (NAMESPACE, &head), (RECORDS, &records)]);
        match read(&bytes) {
            Err(BackupError::CutOff { .. }) => assert!(is_fine, "{records:?}"),
            Err(BackupError::Damaged { .. }) => assert!(!is_fine, "{records:?}"),
            other => panic!("{other:?}"),
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_break_the_reader(bytes in any::<Vec<u8>>(), frames in prop::collection::vec((0..8u8, any::<Vec<u8>>()), 0..6)) {
        let _ = BackupReader::new(&bytes[..]).and_then(|mut reader| reader.next_part());
        let frames: Vec<(u8, &[u8])> = frames.iter().map(|(kind, body)| (*kind, &body[..])).collect();
        prop_assert!(read(&sealed(&frames)).is_err());
    }

    #[test]
    fn a_cut_and_a_bent_byte_anywhere_in_any_backup_are_noticed(
        data in prop::collection::vec("[a-z]{0,300}", 1..40),
        (cut, at, bent) in (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 1..=255u8),
    ) {
        let data: Vec<String> = data.iter().map(|text| format!("{{\"x\":\"{text}\"}}")).collect();
        let messages: Vec<(u32, &str)> = (0..).step_by(3).zip(data.iter().map(String::as_str)).collect();
        let mut out = Vec::new();
        let begin = BackupHeader { made_by: String::new(), time: 0, namespaces: 1 };
        let mut writer = BackupWriter::new(&begin, &mut out).unwrap();
        let head = NamespaceHeader { named: named(1), first: 0, next: 1000 };
        writer.namespace(&head, &mut out).unwrap();
        writer.records((FrameKind::Data, 9), &body(&messages), counts(messages.len() as u64), &mut out);
        writer.namespace_end(&mut out).unwrap();
        writer.end(&mut out).unwrap();
        prop_assert!(read(&out).is_ok());
        prop_assert!(read(&out[..cut.index(out.len())]).is_err());
        let at = at.index(out.len());
        out[at] ^= bent;
        prop_assert!(read(&out).is_err());
    }
}
