//! Decodes parcels into messages.

use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::lists::{CopyBudget, DecodedList, TextRef};
use super::value::{WHOLE, take_value};
use super::wire::WireReader;
use super::{CodecError, VERSION, flags, kind};
use crate::metadata::{MetadataChanges, MetadataParts};
use crate::{
    CacheLimits, Failure, Message, MetaMap, Metadata, Payload, Remembered, SourceName, Text, Ticks, ValueQuality,
};

/// Maximum number of messages for which memory is reserved in advance.
const CAPACITY_MAX: usize = 10_000;

/// Reads parcels. Messages of one tag share one map across all parcels that it reads, because stages cache their
/// results by the address of the map.
pub struct MessageDecoder {
    /// By the hash of their content. Of two with the same hash the newer one is kept.
    cache: Remembered<u64, Arc<MetaMap>>,
    pieces: DecodedList,
}

/// State from earlier messages of a parcel.
#[derive(Default)]
struct DecodeContext {
    maps: Vec<Arc<MetaMap>>,
    /// Hashes of key and text of each entry of the last map.
    hashes: Vec<(u64, u64)>,
    changes: Option<Arc<MetadataChanges>>,
    sources: Vec<SourceName>,
    source_time: i64,
    sample_time: i64,
    copied: CopyBudget,
}

impl MessageDecoder {
    /// Caches constant maps up to about this many bytes.
    pub fn new(cache_bytes: usize) -> MessageDecoder {
        MessageDecoder {
            cache: Remembered::within(CacheLimits::bytes(cache_bytes)),
            pieces: DecodedList::default(),
        }
    }

    /// Approximate bytes of the cached maps.
    pub fn cached_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Reads a whole parcel, and returns all of its messages or none. Raw payloads are slices of it, not copies.
    pub fn decode(&mut self, parcel: &Bytes) -> Result<Vec<Message>, CodecError> {
        let mut take = WireReader::new(parcel);
        let version = take.byte()?;
        if version != VERSION {
            return Err(CodecError::Version { found: version });
        }
        let count = take.count()?;
        let mut known = DecodeContext::default();
        let mut messages = Vec::with_capacity(count.min(CAPACITY_MAX));
        for _ in 0..count {
            messages.push(self.message(parcel, &mut take, &mut known)?);
        }
        match take.left() {
            0 => Ok(messages),
            _ => Err(take.damaged("bytes follow the last message")),
        }
    }

    fn message(
        &mut self,
        parcel: &Bytes,
        take: &mut WireReader<'_>,
        known: &mut DecodeContext,
    ) -> Result<Message, CodecError> {
        let head = take.byte()?;
        let has = |bit: u8| head & bit != 0;
        let shared = self.map(take, known)?;
        let stamps = if has(flags::STAMPS) {
            stamps(take, known)?
        } else {
            ValueQuality::NONE
        };
        let changes = if has(flags::CHANGED) {
            self.changes(take, known)?
        } else {
            None
        };
        let failure = match has(flags::FAILED) {
            true => Some(Arc::new(Failure {
                stage: Text::new(take.text()?),
                error: Text::new(take.text()?),
            })),
            false => None,
        };
        let source = if has(flags::SOURCE) {
            source(take, known)?
        } else {
            SourceName::default()
        };
        let meta = Metadata::of_parts(MetadataParts {
            shared: &shared,
            stamps,
            shown: head & flags::SHOWN,
            stamped: has(flags::STAMPED),
            changes: changes.as_ref(),
        });
        let payload = payload(parcel, take, known)?;
        Ok(Message {
            payload,
            meta,
            failure,
            source,
        })
    }

    fn map(&mut self, take: &mut WireReader<'_>, known: &mut DecodeContext) -> Result<Arc<MetaMap>, CodecError> {
        let number = take.varint()?;
        let Some(at) = number.checked_sub(1) else {
            return Ok(MetaMap::empty().clone());
        };
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if let Some(map) = known.maps.get(at) {
            return Ok(map.clone());
        }
        if at != known.maps.len() {
            return Err(take.damaged("a map has the wrong number"));
        }
        let series = match take.byte()? {
            0 => None,
            1 => Some(u64::from_le_bytes(take.array()?)),
            _ => return Err(take.damaged("the flag of a series is neither 0 nor 1")),
        };
        let last = known.maps.last().cloned();
        let earlier = last.as_deref().map_or(&[][..], MetaMap::entries);
        self.pieces.take(take, earlier, &mut known.copied, false)?;
        let hash = self.hash(series, earlier, &mut known.hashes);
        let map = self.shared(hash, series, earlier);
        known.maps.push(map.clone());
        Ok(map)
    }

    /// The hash of the list just read; `hashes` are those of the earlier list, then of this one.
    fn hash(&self, series: Option<u64>, earlier: &[(Text, Text)], hashes: &mut Vec<(u64, u64)>) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut now = Vec::with_capacity(self.pieces.entries.len());
        let mut hash = series.unwrap_or(1);
        for (key, text) in &self.pieces.entries {
            let key = match key {
                TextRef::Earlier(at) => hashes.get(*at).map_or(0, |known| known.0),
                new => xxh3_64(self.pieces.key(*new, earlier).as_bytes()),
            };
            let text = match text {
                TextRef::Earlier(at) => hashes.get(*at).map_or(0, |known| known.1),
                new => xxh3_64(self.pieces.text(*new, earlier).as_bytes()),
            };
            now.push((key, text));
            hash = (hash.rotate_left(17) ^ key).wrapping_mul(STEP);
            hash = (hash.rotate_left(17) ^ text).wrapping_mul(STEP);
        }
        *hashes = now;
        hash
    }

    /// The map that all messages of the tag share.
    fn shared(&mut self, hash: u64, series: Option<u64>, earlier: &[(Text, Text)]) -> Arc<MetaMap> {
        let pieces = &self.pieces;
        let is_it = |map: &MetaMap| {
            let same = |((key, text), piece): ((&Text, &Text), &(TextRef, TextRef))| {
                key == pieces.key(piece.0, earlier) && text == pieces.text(piece.1, earlier)
            };
            map.series() == series && map.len() == pieces.entries.len() && map.iter().zip(&pieces.entries).all(same)
        };
        if let Some(map) = self.cache.get(&hash).filter(|map| is_it(map)) {
            return map.clone();
        }
        let entries = pieces.entries.iter().map(|(key, text)| {
            let key = match key {
                TextRef::Earlier(at) => earlier.get(*at).map(|entry| entry.0.clone()),
                new => Some(Text::new(pieces.key(*new, earlier))),
            };
            let text = match text {
                TextRef::Earlier(at) => earlier.get(*at).map(|entry| entry.1.clone()),
                new => Some(Text::new(pieces.text(*new, earlier))),
            };
            (key.unwrap_or_default(), text.unwrap_or_default())
        });
        let map = Arc::new(MetaMap::of_sorted(entries.collect(), series));
        let bytes = size_of::<MetaMap>() + map.memory_bytes();
        self.cache.insert(hash, map.clone(), bytes);
        map
    }

    fn changes(
        &mut self,
        take: &mut WireReader<'_>,
        known: &mut DecodeContext,
    ) -> Result<Option<Arc<MetadataChanges>>, CodecError> {
        let last = known.changes.take();
        let earlier = last.as_deref().map_or(&[][..], MetadataChanges::list);
        self.pieces.take(take, earlier, &mut known.copied, true)?;
        let pieces = &self.pieces;
        let same = pieces.entries.len() == earlier.len()
            && pieces.entries.iter().enumerate().all(|(n, entry)| {
                let unchanged = |piece: TextRef| matches!(piece, TextRef::Earlier(at) if at == n);
                unchanged(entry.0) && unchanged(entry.1)
            });
        if !same {
            let change = |(key, text): &(TextRef, TextRef)| {
                let key = match key {
                    TextRef::Earlier(at) => earlier.get(*at).map(|entry| entry.0.clone()),
                    new => Some(Text::new(pieces.key(*new, earlier))),
                };
                let text = match text {
                    TextRef::None => None,
                    TextRef::Earlier(at) => earlier.get(*at).and_then(|entry| entry.1.clone()),
                    new => Some(Text::new(pieces.text(*new, earlier))),
                };
                (key.unwrap_or_default(), text)
            };
            let list = pieces.entries.iter().map(change).collect();
            known.changes = Some(Arc::new(MetadataChanges::of_list(list)));
        } else {
            known.changes = last;
        }
        Ok(known.changes.clone())
    }
}

fn stamps(take: &mut WireReader<'_>, known: &mut DecodeContext) -> Result<ValueQuality, CodecError> {
    let source = known.source_time.wrapping_add(take.signed()?);
    let server = source.wrapping_add(take.signed()?);
    known.source_time = source;
    Ok(ValueQuality {
        source_time: Ticks(source),
        server_time: Ticks(server),
        status: take.u32()?,
    })
}

fn source(take: &mut WireReader<'_>, known: &mut DecodeContext) -> Result<SourceName, CodecError> {
    let number = usize::try_from(take.varint()?).unwrap_or(usize::MAX);
    if let Some(source) = known.sources.get(number) {
        return Ok(*source);
    }
    if number != known.sources.len() {
        return Err(take.damaged("a source has the wrong number"));
    }
    let source = SourceName::new(take.text()?);
    known.sources.push(source);
    Ok(source)
}

fn payload(parcel: &Bytes, take: &mut WireReader<'_>, known: &mut DecodeContext) -> Result<Payload, CodecError> {
    let first = take.byte()?;
    let (kind, of_value) = (first & kind::MASK, first & !kind::MASK);
    match kind {
        kind::RAW if of_value == 0 => {
            let count = take.count()?;
            let range = take.range(count)?;
            Ok(Payload::Raw(parcel.slice(range)))
        }
        kind::VALUE => Ok(Payload::Value(take_value(take, of_value, WHOLE)?)),
        kind::SAMPLE => {
            let value = take_value(take, of_value, WHOLE)?;
            let time_ms = known.sample_time.wrapping_add(take.signed()?);
            known.sample_time = time_ms;
            Ok(Payload::Sample { value, time_ms })
        }
        _ => Err(take.damaged("the kind of a payload is unknown")),
    }
}
