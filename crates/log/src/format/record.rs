//! Records in the body of a frame, one after the other, so that bodies can be joined by joining their bytes.
//!
//! A record: length of the rest as varint · flags 1 · time 8 · offset delta varint · key, properties (varint length and
//! bytes each) · ttl varint · not-before 8 · deliver-at 8 · value up to the end. Fields without a flag are absent.
//! Properties are alternating names and values, each with a varint length.

use bytes::Bytes;
use thalweg_kit::varint;

use crate::format::frame::FrameFlags;
use crate::format::{FieldReader, FieldWriter};
use crate::ids::Micros;

/// Maximum length of a key in bytes.
pub const KEY_MAX: usize = 64 << 10;
/// Maximum encoded length of all properties together. APIs allow clients less, so that there is room for properties
/// that are added later.
pub const PROPERTIES_MAX: usize = 256 << 10;

/// Minimum length of a record: length, flags, time.
pub const LEN_LEAST: u64 = 10;

const HAS_KEY: u8 = 1;
const HAS_PROPERTIES: u8 = 2;
const HAS_TTL: u8 = 4;
const HAS_NOT_BEFORE: u8 = 8;
const HAS_DELTA: u8 = 16;
const HAS_DELIVER_AT: u8 = 32;
const KNOWN: u8 = HAS_KEY | HAS_PROPERTIES | HAS_TTL | HAS_NOT_BEFORE | HAS_DELTA | HAS_DELIVER_AT;

/// A record whose fields borrow from the body of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef<'a> {
    pub time: Micros,
    /// Offset minus that of the frame's first record, present where compaction has left gaps.
    pub delta: Option<u32>,
    pub key: Option<&'a [u8]>,
    pub properties: PropertiesRef<'a>,
    /// Milliseconds from the time of the record, or from `not_before` or `deliver_at`.
    pub ttl_ms: Option<u64>,
    /// Log time, like `time`.
    pub not_before: Option<Micros>,
    /// Wall-clock time, as a user gave it.
    pub deliver_at: Option<Micros>,
    pub value: &'a [u8],
}

impl<'a> RecordRef<'a> {
    /// A record with only a value.
    pub fn of(time: Micros, value: &'a [u8]) -> RecordRef<'a> {
        RecordRef {
            time,
            delta: None,
            key: None,
            properties: PropertiesRef::default(),
            ttl_ms: None,
            not_before: None,
            deliver_at: None,
            value,
        }
    }

    /// The flags that this record sets in its frame.
    pub fn flags(&self) -> FrameFlags {
        let mut flags = FrameFlags::NONE;
        for (present, flag) in [
            (self.key.is_some(), FrameFlags::KEYS),
            (!self.properties.0.is_empty(), FrameFlags::PROPERTIES),
            (self.ttl_ms.is_some(), FrameFlags::TTL),
            (self.not_before.or(self.deliver_at).is_some(), FrameFlags::NOT_BEFORE),
            (self.delta.is_some(), FrameFlags::OFFSET_DELTAS),
        ] {
            if present {
                flags |= flag;
            }
        }
        flags
    }

    /// Length in the body of a frame.
    pub fn encoded_len(&self) -> usize {
        let (len, _) = self.measure();
        varint::len(len as u64) + len
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let (len, flags) = self.measure();
        out.reserve(len + varint::LEN_MAX);
        varint::put(out, len as u64);
        FieldWriter(out).u8(flags).i64(self.time);
        if let Some(delta) = self.delta {
            varint::put(out, delta.into());
        }
        if let Some(key) = self.key {
            put_bytes(out, key);
        }
        if !self.properties.0.is_empty() {
            put_bytes(out, self.properties.0);
        }
        if let Some(ttl) = self.ttl_ms {
            varint::put(out, ttl);
        }
        for time in [self.not_before, self.deliver_at].into_iter().flatten() {
            FieldWriter(out).i64(time);
        }
        out.extend_from_slice(self.value);
    }

    /// The length after the length prefix, and the flags.
    fn measure(&self) -> (usize, u8) {
        let (mut len, mut flags) = (1 + size_of::<Micros>() + self.value.len(), 0);
        let mut add = |flag, more| {
            len += more;
            flags |= flag;
        };
        if let Some(delta) = self.delta {
            add(HAS_DELTA, varint::len(delta.into()));
        }
        if let Some(key) = self.key {
            add(HAS_KEY, varint::len(key.len() as u64) + key.len());
        }
        if !self.properties.0.is_empty() {
            let properties = self.properties.0.len();
            add(HAS_PROPERTIES, varint::len(properties as u64) + properties);
        }
        if let Some(ttl) = self.ttl_ms {
            add(HAS_TTL, varint::len(ttl));
        }
        if self.not_before.is_some() {
            add(HAS_NOT_BEFORE, size_of::<Micros>());
        }
        if self.deliver_at.is_some() {
            add(HAS_DELIVER_AT, size_of::<Micros>());
        }
        (len, flags)
    }

    /// The first record of `body` and the remaining bytes; `None` if the bytes are not a record.
    pub fn take(body: &'a [u8]) -> Option<(RecordRef<'a>, &'a [u8])> {
        let (len, rest) = varint::take(body)?;
        let (bytes, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        let mut take = FieldReader(bytes);
        let flags = take.u8()?;
        if flags & !KNOWN != 0 {
            return None;
        }
        let has = |flag: u8| flags & flag != 0;
        let mut record = RecordRef::of(take.i64()?, &[]);
        if has(HAS_DELTA) {
            record.delta = Some(u32::try_from(take_varint(&mut take)?).ok()?);
        }
        if has(HAS_KEY) {
            record.key = Some(take_bytes(&mut take)?);
        }
        if has(HAS_PROPERTIES) {
            record.properties = PropertiesRef::checked(take_bytes(&mut take)?)?;
        }
        if has(HAS_TTL) {
            record.ttl_ms = Some(take_varint(&mut take)?);
        }
        if has(HAS_NOT_BEFORE) {
            record.not_before = Some(take.i64()?);
        }
        if has(HAS_DELIVER_AT) {
            record.deliver_at = Some(take.i64()?);
        }
        record.value = take.0;
        Some((record, rest))
    }
}

/// The records of a body in order. The last item is an error if the body ends in other bytes.
pub fn records(body: &[u8]) -> impl Iterator<Item = Result<RecordRef<'_>, NotARecord>> {
    let mut rest = body;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let taken = RecordRef::take(rest);
        rest = taken.map_or(&[], |(_, rest)| rest);
        Some(taken.map(|(record, _)| record).ok_or(NotARecord))
    })
}

/// Bytes in a body with a correct checksum that are not a record. Another program wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotARecord;

/// Names and values in the order in which they were given. Names may repeat.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PropertiesRef<'a>(&'a [u8]);

impl<'a> PropertiesRef<'a> {
    /// `None` if the bytes are not complete pairs of UTF-8 texts, or are empty: an empty list is not written.
    pub fn checked(bytes: &'a [u8]) -> Option<PropertiesRef<'a>> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut take = FieldReader(rest);
            std::str::from_utf8(take_bytes(&mut take)?).ok()?;
            std::str::from_utf8(take_bytes(&mut take)?).ok()?;
            rest = take.0;
        }
        (!bytes.is_empty()).then_some(PropertiesRef(bytes))
    }

    pub fn iter(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let mut take = FieldReader(self.0);
        std::iter::from_fn(move || {
            let name = std::str::from_utf8(take_bytes(&mut take)?).ok()?;
            Some((name, std::str::from_utf8(take_bytes(&mut take)?).ok()?))
        })
    }

    pub fn get(self, name: &str) -> Option<&'a str> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Length of names and values without their length prefixes.
    pub fn text_bytes(self) -> usize {
        self.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

impl std::fmt::Debug for PropertiesRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Encoded properties in a shared buffer.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Properties(Bytes);

impl Properties {
    /// The properties of a record in `body`, without copying them.
    pub fn within(body: &Bytes, properties: PropertiesRef<'_>) -> Properties {
        Properties(body.slice_ref(properties.0))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn as_ref(&self) -> PropertiesRef<'_> {
        PropertiesRef(&self.0)
    }
}

impl<N: AsRef<str>, V: AsRef<str>> FromIterator<(N, V)> for Properties {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(pairs: T) -> Properties {
        let mut out = Vec::new();
        for (name, value) in pairs {
            put_bytes(&mut out, name.as_ref().as_bytes());
            put_bytes(&mut out, value.as_ref().as_bytes());
        }
        Properties(out.into())
    }
}

impl std::fmt::Debug for Properties {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_ref().fmt(f)
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn take_bytes<'a>(take: &mut FieldReader<'a>) -> Option<&'a [u8]> {
    let len = usize::try_from(take_varint(take)?).ok()?;
    let (bytes, rest) = take.0.split_at_checked(len)?;
    take.0 = rest;
    Some(bytes)
}

fn take_varint(take: &mut FieldReader<'_>) -> Option<u64> {
    let (value, rest) = varint::take(take.0)?;
    take.0 = rest;
    Some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    struct Any {
        time: Micros,
        delta: Option<u32>,
        key: Option<Vec<u8>>,
        properties: Vec<(String, String)>,
        ttl_ms: Option<u64>,
        not_before: Option<Micros>,
        deliver_at: Option<Micros>,
        value: Vec<u8>,
    }

    prop_compose! {
        fn any_record()(
            time: Micros, delta: Option<u32>, key: Option<Vec<u8>>, ttl_ms: Option<u64>, not_before: Option<Micros>,
            deliver_at: Option<Micros>,
            properties in prop::collection::vec(("[a-zä]{0,9}", ".{0,200}"), 0..4),
            value in prop::collection::vec(any::<u8>(), 0..400),
        ) -> Any {
            Any { time, delta, key, properties, ttl_ms, not_before, deliver_at, value }
        }
    }

    fn borrowed<'a>(any: &'a Any, properties: &'a Properties) -> RecordRef<'a> {
        RecordRef {
            time: any.time,
            delta: any.delta,
            key: any.key.as_deref(),
            properties: properties.as_ref(),
            ttl_ms: any.ttl_ms,
            not_before: any.not_before,
            deliver_at: any.deliver_at,
            value: &any.value,
        }
    }

    proptest! {
        #[test]
        fn bodies_may_be_joined_and_every_record_comes_back(all in prop::collection::vec(any_record(), 0..6)) {
            let properties: Vec<Properties> = all.iter().map(|r| r.properties.iter().cloned().collect()).collect();
            let expected: Vec<RecordRef> = all.iter().zip(&properties).map(|(r, p)| borrowed(r, p)).collect();
            let mut body = Vec::new();
            for record in &expected {
                let mut one = Vec::new();
                record.encode(&mut one);
                body.extend(one);
            }
            let found: Result<Vec<RecordRef>, NotARecord> = records(&body).collect();
            prop_assert_eq!(found.as_deref(), Ok(&expected[..]));
            for (record, any) in expected.iter().zip(&all) {
                let pairs: Vec<_> = record.properties.iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
                prop_assert_eq!(&pairs, &any.properties);
            }
        }

        #[test]
        fn any_bytes_are_records_or_refused(body in prop::collection::vec(any::<u8>(), 0..300)) {
            for record in records(&body).flatten() {
                let _ = record.properties.iter().count();
            }
        }

        #[test]
        fn a_record_that_is_cut_off_is_none(any in any_record(), cut: prop::sample::Index) {
            let properties: Properties = any.properties.iter().cloned().collect();
            let mut body = Vec::new();
            borrowed(&any, &properties).encode(&mut body);
            body.truncate(cut.index(body.len()));
            prop_assert!(records(&body).all(|record| record.is_err()));
        }
    }
}
