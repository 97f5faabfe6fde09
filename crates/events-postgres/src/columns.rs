//! How names, ids and messages map to columns.
//!
//! PostgreSQL's text type cannot store U+0000. In JSON it appears only escaped, and names and types that contain it are
//! refused earlier. Descriptions, ids and names of documents may contain it, so they are stored as bytes.

use bytes::Bytes;
use thalweg_events::event::{EventRef, IdRef};
use thalweg_events::{EventsError, MessageId, Result, StoredEvent, Uuid, names};
use thalweg_kit::time::Micros;
use tokio_postgres::Row;

use crate::failure::damaged;

pub(crate) fn id_bytes(id: &MessageId) -> Vec<u8> {
    let (tag, rest) = match id {
        MessageId::Uuid(uuid) => (b'u', uuid.0.as_slice()),
        MessageId::Text(text) => (b't', text.as_bytes()),
    };
    let mut out = Vec::with_capacity(1 + rest.len());
    out.push(tag);
    out.extend_from_slice(rest);
    out
}

pub(crate) fn id_of(bytes: &[u8]) -> Result<MessageId> {
    let read = match bytes.split_first() {
        Some((b'u', rest)) => rest.try_into().ok().map(|bytes| MessageId::Uuid(Uuid(bytes))),
        Some((b't', rest)) => std::str::from_utf8(rest).ok().map(|text| MessageId::Text(text.into())),
        _ => None,
    };
    read.ok_or_else(|| EventsError::Damaged("a message in the database has an invalid id".to_owned()))
}

/// Reads the columns `name, position, global, id, kind, data, metadata, time`, in this order.
pub(crate) fn stored(row: &Row) -> Result<StoredEvent> {
    let (position, global): (i64, i64) = (get(row, 1)?, get(row, 2)?);
    let id = id_of(get(row, 3)?)?;
    let time: Micros = get(row, 7)?;
    let event = EventRef {
        id: IdRef::from(&id),
        own_id: false,
        stream: get(row, 0)?,
        position: unsigned(position),
        global: unsigned(global),
        kind: get(row, 4)?,
        data: get(row, 5)?,
        metadata: get(row, 6)?,
        time,
        is_first: false,
        is_imported: false,
    };
    let mut value = Vec::new();
    event.encode(&mut value);
    StoredEvent::new(Bytes::from(value), time)
        .ok_or_else(|| EventsError::Damaged(format!("the row at global position {global} is not a message")))
}

pub(crate) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, column: usize) -> Result<T> {
    row.try_get(column).map_err(|error| damaged(&error))
}

/// For a number that is never negative in the database.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// The database has no larger number, so a search for it finds nothing.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The hash as a signed number with the same bits. The one hash whose absolute value does not fit becomes negative,
/// which `abs` undoes.
pub(crate) fn group(stream: &str) -> Option<i64> {
    names::group_hash(stream).map(u64::cast_signed)
}

/// A hash of the category of the stream that the metadata name as the correlation. The text may be too long for an
/// index.
pub(crate) fn correlation(metadata: Option<&str>) -> Option<i64> {
    names::correlation(metadata).map(|category| correlation_of(&category))
}

/// Whether the correlation is this category: hashes may collide.
pub(crate) fn correlates(metadata: Option<&str>, category: &str) -> bool {
    names::correlation(metadata).is_some_and(|found| found == category)
}

pub(crate) fn correlation_of(category: &str) -> i64 {
    xxhash_rust::xxh3::xxh3_64(category.as_bytes()).cast_signed()
}

/// Whether the database can store the text.
pub(crate) fn is_plain(text: &str) -> bool {
    !text.as_bytes().contains(&0)
}

/// Refuses data and metadata that the database would reject, before they spoil what is committed with them. JSON has
/// U+0000 only escaped.
pub(crate) fn storable(json: [Option<&str>; 2]) -> Result<()> {
    match json.into_iter().flatten().all(is_plain) {
        true => Ok(()),
        false => Err(EventsError::Damaged(
            "PostgreSQL cannot store text with U+0000, which its data or metadata has; remove it".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_apart_whatever_their_bytes_are() {
        let sixteen = "0123456789abcdef";
        for id in [
            MessageId::Uuid(Uuid(*sixteen.as_bytes().first_chunk().unwrap())),
            MessageId::Text(sixteen.into()),
            MessageId::Text("".into()),
            MessageId::Text("with \0".into()),
        ] {
            assert_eq!(id_of(&id_bytes(&id)).unwrap(), id);
        }
        assert!(id_of(b"").is_err() && id_of(b"u123").is_err());
    }

    #[test]
    fn a_correlation_is_found_in_metadata_however_it_is_written() {
        let wanted = Some(correlation_of("order"));
        for metadata in [
            r#"{"correlationStreamName":"order-1"}"#,
            r#"{"correlationStreamName":"order"}"#,
            r#"{"\u0063orrelationStreamName":"order-1"}"#,
        ] {
            assert_eq!(correlation(Some(metadata)), wanted, "{metadata}");
            assert!(
                correlates(Some(metadata), "order") && !correlates(Some(metadata), "orde"),
                "{metadata}"
            );
        }
        for metadata in [r#"{"correlationStreamName":1}"#, r#"{"other":"order-1"}"#] {
            assert_eq!(correlation(Some(metadata)), None, "{metadata}");
            assert!(!correlates(Some(metadata), "order"), "{metadata}");
        }
    }
}
