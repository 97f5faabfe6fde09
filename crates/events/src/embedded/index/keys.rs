//! Keys of tables: namespace, clearing generation, family, and a part of their own. Their byte order is the order of
//! what they represent.

use thalweg_kit::varint;
use thalweg_log::Micros;
use thalweg_log::Offset;

use super::rows::ListKind;

/// The messages of a namespace since a clearing. Earlier ones are dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeySpace {
    pub namespace: u32,
    /// Starts at 1; 0 is for what survives clearings.
    pub cleared: u32,
}

impl KeySpace {
    pub fn of_documents(self) -> KeySpace {
        KeySpace { cleared: 0, ..self }
    }
}

/// The type of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Family {
    Stream = 1,
    Category,
    StreamRows,
    CategoryRows,
    Segment,
    Id,
    Document,
}

impl Family {
    fn of(byte: u8) -> Option<Family> {
        use Family::{Category, CategoryRows, Document, Id, Segment, Stream, StreamRows};
        let all = [Stream, Category, StreamRows, CategoryRows, Segment, Id, Document];
        all.into_iter().find(|family| *family as u8 == byte)
    }
}

/// Length of namespace, clearing and family.
pub(super) const HEAD: usize = 9;
/// Length including the hash of a list or an id.
pub(super) const HASHED: usize = HEAD + 8;

fn head(space: KeySpace, family: Family) -> Vec<u8> {
    let mut key = Vec::with_capacity(HASHED + 8);
    key.extend_from_slice(&space.namespace.to_be_bytes());
    key.extend_from_slice(&space.cleared.to_be_bytes());
    key.push(family as u8);
    key
}

/// `None` if the bytes are not a key.
pub(super) fn parse(key: &[u8]) -> Option<(KeySpace, Family, &[u8])> {
    let (namespace, rest) = key.split_first_chunk()?;
    let (cleared, rest) = rest.split_first_chunk()?;
    let (family, rest) = rest.split_first()?;
    let space = KeySpace {
        namespace: u32::from_be_bytes(*namespace),
        cleared: u32::from_be_bytes(*cleared),
    };
    Some((space, Family::of(*family)?, rest))
}

pub(super) fn named(space: KeySpace, family: Family, name: &str) -> Vec<u8> {
    let mut key = head(space, family);
    key.extend_from_slice(name.as_bytes());
    key
}

pub(super) fn hashed(space: KeySpace, family: Family, hash: u64, rest: u64) -> Vec<u8> {
    let mut key = head(space, family);
    key.extend_from_slice(&hash.to_be_bytes());
    key.extend_from_slice(&rest.to_be_bytes());
    key
}

pub(super) fn numbered(space: KeySpace, family: Family, number: u64) -> Vec<u8> {
    let mut key = head(space, family);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// The number at the end of a key.
pub(super) fn number(key: &[u8]) -> u64 {
    key.last_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// The name at the end of a key.
pub(super) fn name(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(HEAD..)?).ok()
}

pub(super) fn rows_of(list: ListKind) -> Family {
    match list {
        ListKind::Stream => Family::StreamRows,
        ListKind::Category => Family::CategoryRows,
    }
}

/// The hash for the Bloom filter: of the whole key, or of the part that identifies a list or an id.
pub(super) fn filter_hash(key: &[u8]) -> Option<u64> {
    let (_, family, _) = parse(key)?;
    let part = match family {
        Family::Stream | Family::Category | Family::Document => key,
        Family::StreamRows | Family::CategoryRows | Family::Id => key.get(..HASHED)?,
        Family::Segment => return None,
    };
    Some(xxhash_rust::xxh3::xxh3_64(part))
}

/// The hash that identifies lists and ids. Collisions are possible, so readers verify the message.
pub(crate) fn hash(text: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(text)
}

/// The entry of a stream in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamValue {
    /// The change in the number of messages.
    pub messages: i64,
    pub version: u64,
    /// No older table has a larger version.
    pub is_newest: bool,
    pub last_activity: Micros,
}

impl StreamValue {
    pub fn encode(&self, out: &mut Vec<u8>) {
        varint::put_signed(out, self.messages);
        varint::put(out, self.version);
        varint::put_signed(out, self.last_activity);
        out.push(u8::from(self.is_newest));
    }

    pub fn decode(bytes: &[u8]) -> Option<StreamValue> {
        let (messages, rest) = varint::take(bytes)?;
        let (version, rest) = varint::take(rest)?;
        let (last_activity, rest) = varint::take(rest)?;
        let &[is_newest] = rest else { return None };
        Some(StreamValue {
            messages: varint::unzigzag(messages),
            version,
            is_newest: is_newest != 0,
            last_activity: varint::unzigzag(last_activity),
        })
    }

    /// Combines it with the entry of an older table.
    pub fn over(&mut self, older: StreamValue) {
        self.messages = self.messages.saturating_add(older.messages);
        self.version = self.version.max(older.version);
        self.is_newest |= older.is_newest;
        self.last_activity = self.last_activity.max(older.last_activity);
    }
}

/// The entry of a category in a table: changes in its counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CategoryValue {
    pub messages: i64,
    pub streams: i64,
}

impl CategoryValue {
    pub fn encode(&self, out: &mut Vec<u8>) {
        varint::put_signed(out, self.messages);
        varint::put_signed(out, self.streams);
    }

    pub fn decode(bytes: &[u8]) -> Option<CategoryValue> {
        let (messages, rest) = varint::take(bytes)?;
        let (streams, rest) = varint::take(rest)?;
        rest.is_empty().then_some(CategoryValue {
            messages: varint::unzigzag(messages),
            streams: varint::unzigzag(streams),
        })
    }

    pub fn add(&mut self, other: CategoryValue) {
        self.messages = self.messages.saturating_add(other.messages);
        self.streams = self.streams.saturating_add(other.streams);
    }
}

/// The location of a document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DocumentAt {
    pub offset: Offset,
    pub revision: u64,
    pub removed: bool,
}

impl DocumentAt {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.offset);
        varint::put(out, self.revision);
        out.push(u8::from(self.removed));
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<DocumentAt> {
        let (offset, rest) = varint::take(bytes)?;
        let (revision, rest) = varint::take(rest)?;
        let &[removed] = rest else { return None };
        Some(DocumentAt {
            offset,
            revision,
            removed: removed != 0,
        })
    }
}

/// Messages that are contiguous in the log and in the namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PositionRun {
    pub global: u64,
    pub offset: Offset,
    pub len: u64,
}

impl PositionRun {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.offset);
        varint::put(out, self.len);
    }

    pub(super) fn decode(key: &[u8], value: &[u8]) -> Option<PositionRun> {
        let (offset, rest) = varint::take(value)?;
        let (len, rest) = varint::take(rest)?;
        let global = number(key);
        // The end of the run must be representable.
        let has_end = global.checked_add(len).is_some() && offset.checked_add(len).is_some();
        (rest.is_empty() && len > 0 && has_end).then_some(PositionRun { global, offset, len })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn values_are_read_as_they_were_written(
            (messages, version, last_activity, flag) in any::<(i64, u64, i64, bool)>(),
            (offset, len) in (0..1_u64 << 62, 1..1_u64 << 62),
        ) {
            let stream = StreamValue { messages, version, is_newest: flag, last_activity };
            let category = CategoryValue { messages, streams: last_activity };
            let document = DocumentAt { offset, revision: version, removed: flag };
            // The end must not overflow.
            let global = version >> 2;
            let segment = PositionRun { global, offset, len };
            let mut out = [const { Vec::new() }; 4];
            stream.encode(&mut out[0]);
            category.encode(&mut out[1]);
            document.encode(&mut out[2]);
            segment.encode(&mut out[3]);
            let key = numbered(KeySpace::default(), Family::Segment, global);
            prop_assert_eq!(StreamValue::decode(&out[0]), Some(stream));
            prop_assert_eq!(CategoryValue::decode(&out[1]), Some(category));
            prop_assert_eq!(DocumentAt::decode(&out[2]), Some(document));
            prop_assert_eq!(PositionRun::decode(&key, &out[3]), Some(segment));
        }

        #[test]
        fn no_bytes_break_them(bytes in any::<Vec<u8>>()) {
            let _ = (parse(&bytes), filter_hash(&bytes), PositionRun::decode(&bytes, &bytes));
            let _ = (StreamValue::decode(&bytes), CategoryValue::decode(&bytes), DocumentAt::decode(&bytes));
        }
    }
}
