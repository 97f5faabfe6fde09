//! The metadata of records. Parts common to many records (topic, partition, headers) are in a map that their messages
//! share, which later stages recognise by its address. Parts of one record (key, offset, time) are the message's own,
//! on top.
//!
//! Headers go into a shared map from their second occurrence: trace headers occur once, and a map for each would only
//! waste memory in later stages. A map belongs to one series, so keys are hashed into a fixed number of series instead
//! of one map per key.

use std::borrow::Cow;
use std::io::Write as _;
use std::sync::Arc;

use thalweg_record::{CacheLimits, MetaMap, Metadata, Remembered, Text};
use xxhash_rust::xxh3::xxh3_64;

use super::TOMBSTONE;
use crate::header_list::{self, EMPTY_KEY};
use crate::headers::{self, RecordHeader, RecordWithHeaders};
use crate::text_bytes::{self, ESCAPED};

const KEY: &str = "kafka_key";
const TOPIC: &str = "kafka_topic";
const PARTITION: &str = "kafka_partition";
const OFFSET: &str = "kafka_offset";
const TIMESTAMP_MS: &str = "kafka_timestamp_ms";
const TIMESTAMP_UNIX: &str = "kafka_timestamp_unix";

/// Number of series for keys; order is kept per series. Most thread counts divide it, so that every thread gets the
/// same number of series.
const KEYED_SERIES: u64 = 240;
/// Limit of the maps with their keys.
const BYTES_MAX: usize = 64 << 20;
/// Overhead of an entry, besides its texts: in vectors and in the metadata.
const ENTRY_BYTES: usize = 400;
/// Longer keys never get a shared map, so that a few records do not evict all others.
const PLACE_BYTES_MAX: usize = 32 << 10;
/// Maximum header sets remembered as seen.
const SEEN_MAX: usize = 1 << 17;

/// After this many new header sets, only one record in `LOOKED_AT` is examined, until one recurs.
const STRANGERS_MAX: u64 = 1000;
const LOOKED_AT: u64 = 16;

pub struct SharedMaps {
    /// By their content.
    maps: Remembered<Box<[u8]>, Arc<MetaMap>>,
    /// Hashes of contents that occurred at least once.
    seen: Remembered<u64, ()>,
    /// Records with headers since the last one whose headers had occurred before.
    strangers: u64,
    /// Scratch buffer: the key, which is the content of a record's shared map.
    place: Vec<u8>,
    /// Whether the metadata of a header is the JSON list of the values of its name.
    as_lists: bool,
}

impl Default for SharedMaps {
    fn default() -> SharedMaps {
        SharedMaps {
            maps: Remembered::within(CacheLimits::bytes(BYTES_MAX)),
            seen: Remembered::within(CacheLimits::entries(SEEN_MAX)),
            strangers: 0,
            place: Vec::new(),
            as_lists: false,
        }
    }
}

impl SharedMaps {
    pub fn new(as_lists: bool) -> SharedMaps {
        SharedMaps {
            as_lists,
            ..SharedMaps::default()
        }
    }

    pub fn metadata(&mut self, record: &impl RecordWithHeaders) -> Metadata {
        let mut place = std::mem::take(&mut self.place);
        place.clear();
        let series = series(record);
        write_place(&mut place, record, series);
        let bare = place.len();
        let has_any = headers::count(record) > 0;
        let with_headers = match has_any && self.is_worth_a_look() && write_headers(&mut place, record) {
            true => self.with_headers(&place, record, series),
            false => None,
        };
        let has_headers = with_headers.is_some();
        let map = with_headers.unwrap_or_else(|| {
            place.truncate(bare);
            self.without_headers(&place, record, series)
        });
        self.place = place;
        let mut meta = Metadata::shared(map);
        let headers = match has_any && !has_headers {
            true => header_list::entries(headers(record), self.as_lists),
            false => Vec::new(),
        };
        add_own(&mut meta, record, headers);
        meta
    }

    /// Whether to examine the headers of this record; skips most records while all headers are new.
    fn is_worth_a_look(&mut self) -> bool {
        let is_worth = self.strangers < STRANGERS_MAX || self.strangers.is_multiple_of(LOOKED_AT);
        self.strangers += 1;
        is_worth
    }

    /// Returns `None` if the headers have not occurred before.
    fn with_headers(&mut self, place: &[u8], record: &impl RecordWithHeaders, series: u64) -> Option<Arc<MetaMap>> {
        let map = match self.maps.get(place).cloned() {
            None if self.came_before(xxh3_64(place)) => self.make(place, headers(record), record, series),
            known => known?,
        };
        self.strangers = 0;
        Some(map)
    }

    fn without_headers(&mut self, place: &[u8], record: &impl RecordWithHeaders, series: u64) -> Arc<MetaMap> {
        match self.maps.get(place) {
            None => self.make(place, std::iter::empty(), record, series),
            Some(known) => known.clone(),
        }
    }

    /// A hash collision only creates a map too early.
    fn came_before(&mut self, hash: u64) -> bool {
        let came_before = self.seen.get(&hash).is_some();
        if !came_before {
            self.seen.insert(hash, (), 0);
        }
        came_before
    }

    fn make<'r>(
        &mut self,
        place: &[u8],
        headers: impl Iterator<Item = RecordHeader<'r>>,
        record: &impl RecordWithHeaders,
        series: u64,
    ) -> Arc<MetaMap> {
        let headers = header_list::entries(headers, self.as_lists);
        let own = [
            (TOPIC, record.topic().into()),
            (PARTITION, number(record.partition().into())),
            (TOMBSTONE, Text::new_static(tombstone(record))),
        ];
        let own = own.map(|(name, text)| (Text::new_static(name), text));
        let map = Arc::new(MetaMap::new(headers.into_iter().chain(own), Some(series)));
        self.maps.insert(place.into(), map.clone(), weight(place, &map));
        map
    }
}

/// The texts are stored in a vector whose capacity may be twice its length. They may be longer than the bytes that they
/// were made of.
fn weight(place: &[u8], map: &MetaMap) -> usize {
    ENTRY_BYTES + place.len() + 2 * place.len().max(map.text_bytes())
}

/// The unit of ordering: a key together with some others, or the partition if there is no key.
fn series(record: &impl RecordWithHeaders) -> u64 {
    match record.key() {
        Some(key) => xxh3_64(key) % KEYED_SERIES,
        None => xxh3_64(&record.partition().to_le_bytes()),
    }
}

fn tombstone(record: &impl RecordWithHeaders) -> &'static str {
    match record.payload() {
        Some(_) => "false",
        None => "true",
    }
}

/// Writes the content of the map except the headers.
fn write_place(place: &mut Vec<u8>, record: &impl RecordWithHeaders, series: u64) {
    place.extend_from_slice(&series.to_le_bytes());
    place.extend_from_slice(&record.partition().to_le_bytes());
    place.push(u8::from(record.payload().is_none()));
    write(place, record.topic().as_bytes());
}

/// Returns `false` if they are too long.
fn write_headers(place: &mut Vec<u8>, record: &impl RecordWithHeaders) -> bool {
    for header in headers(record) {
        let value = header.value.unwrap_or_default();
        if place.len() + header.name.len() + value.len() > PLACE_BYTES_MAX {
            return false;
        }
        write(place, header.name.as_bytes());
        place.push(u8::from(header.value.is_some()));
        write(place, value);
    }
    true
}

/// Prefixes the length, so that the concatenation is unambiguous.
fn write(place: &mut Vec<u8>, part: &[u8]) {
    place.extend_from_slice(&part.len().to_le_bytes());
    place.extend_from_slice(part);
}

/// Returns the visible headers. A record that was read and written again has the metadata of its first reading among
/// its headers, which is hidden.
fn headers<R: RecordWithHeaders>(record: &R) -> impl Iterator<Item = RecordHeader<'_>> {
    let (has_key, has_time) = (record.key().is_some(), record.timestamp().to_millis().is_some());
    let is_hidden = move |name: &str| match name {
        TOPIC | PARTITION | OFFSET | TOMBSTONE => true,
        KEY => has_key,
        TIMESTAMP_MS | TIMESTAMP_UNIX => has_time,
        _ => header_list::is_reserved(name),
    };
    headers::of(record).filter(move |header| !is_hidden(&header.name))
}

/// Adds the metadata of this record alone, with the entries of its headers if no shared map has them.
fn add_own(meta: &mut Metadata, record: &impl RecordWithHeaders, headers: Vec<(Text, Text)>) {
    let time_ms = record.timestamp().to_millis();
    let key = record.key().map(text_bytes::text_of);
    meta.reserve(headers.len() + 1 + usize::from(key.is_some()) + 2 * usize::from(time_ms.is_some()));
    if !headers.is_empty() {
        meta.set_all(headers);
    }
    // In the order of their names, in which they are stored.
    if let Some(key) = key {
        if key.is_empty() {
            meta.set(Text::new_static(EMPTY_KEY), Text::new_static("true"));
        }
        if matches!(key, Cow::Owned(_)) {
            meta.set(Text::new_static(ESCAPED), Text::new_static("true"));
        }
        meta.set(Text::new_static(KEY), Text::from(&*key));
    }
    meta.set(Text::new_static(OFFSET), number(record.offset()));
    if let Some(ms) = time_ms {
        meta.set(Text::new_static(TIMESTAMP_MS), number(ms));
        meta.set(Text::new_static(TIMESTAMP_UNIX), number(ms.div_euclid(1000)));
    }
}

/// Avoids a `String`, because each record has several numbers.
fn number(number: i64) -> Text {
    let mut digits = std::io::Cursor::new([0; 20]);
    write!(digits, "{number}").expect("no number of 64 bits has more digits and a sign");
    let len = usize::try_from(digits.position()).unwrap_or_default();
    let written = digits.get_ref().get(..len).unwrap_or_default();
    std::str::from_utf8(written).unwrap_or_default().into()
}

#[cfg(test)]
mod tests;
