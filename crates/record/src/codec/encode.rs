//! Encodes messages into parcels.

use std::sync::Arc;

use hashbrown::HashMap;
use thalweg_kit::varint;

use super::definition_cache::{DefinitionCache, DefinitionKey, DefinitionLookup};
use super::lists::{CopyBudget, put_list};
use super::value::{WHOLE, is_shallow, put_value};
use super::wire::put_bytes;
use super::{NestingTooDeep, VERSION, flags, kind};
use crate::metadata::MetadataChanges;
use crate::{Message, MetaMap, Payload, ValueQuality};

/// Builds one parcel after the other and reuses its memory.
#[derive(Default)]
pub struct MessageEncoder {
    body: Vec<u8>,
    count: usize,
    /// Defined maps: from their unique numbers to their numbers in the parcel.
    maps: HashMap<u64, usize>,
    /// The last of them, whose texts the next ones refer to.
    last: Option<LastMap>,
    known: DefinitionCache,
    /// The last changes of a message.
    changes: Option<Arc<MetadataChanges>>,
    sources: Vec<&'static Arc<str>>,
    source_time: i64,
    sample_time: i64,
    copied: CopyBudget,
}

struct LastMap {
    map: Arc<MetaMap>,
    /// It may be used again.
    comes_again: bool,
}

impl MessageEncoder {
    #[cfg(test)]
    pub(super) fn within(copied_bytes_max: usize) -> MessageEncoder {
        MessageEncoder {
            copied: CopyBudget::within(copied_bytes_max),
            ..MessageEncoder::default()
        }
    }

    /// Number of messages in the parcel.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Approximate length of the parcel.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Adds a message. After an error the parcel is unchanged.
    pub fn push(&mut self, message: &Message) -> Result<(), NestingTooDeep> {
        if let Payload::Value(value) | Payload::Sample { value, .. } = &message.payload
            && !is_shallow(value, WHOLE)
        {
            return Err(NestingTooDeep);
        }
        // A map that only this message has is not used again.
        let comes_again = Arc::strong_count(message.meta.shared_map()) > 1;
        let settled = message.meta.settled();
        let meta = settled.parts();
        let has_stamps = meta.stamps != ValueQuality::NONE;
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        self.body.push(
            meta.shown
                | bit(meta.stamped, flags::STAMPED)
                | bit(meta.changes.is_some(), flags::CHANGED)
                | bit(message.failure.is_some(), flags::FAILED)
                | bit(has_stamps, flags::STAMPS)
                | bit(message.source.get().is_some(), flags::SOURCE),
        );
        self.put_map(meta.shared, comes_again);
        if has_stamps {
            self.put_stamps(meta.stamps);
        }
        if let Some(changes) = meta.changes {
            let earlier = self.changes.as_deref().map_or(&[][..], MetadataChanges::list);
            put_list(&mut self.body, changes.list(), earlier, &mut self.copied);
            self.changes = Some(changes.clone());
        }
        if let Some(failure) = &message.failure {
            put_bytes(&mut self.body, failure.stage.as_bytes());
            put_bytes(&mut self.body, failure.error.as_bytes());
        }
        if let Some(source) = message.source.get() {
            self.put_source(source);
        }
        self.put_payload(&message.payload);
        self.count += 1;
        Ok(())
    }

    #[inline]
    fn put_map(&mut self, map: &Arc<MetaMap>, comes_again: bool) {
        if map.is_empty() && map.series().is_none() {
            return varint::put(&mut self.body, 0);
        }
        if self.last.as_ref().is_some_and(|last| Arc::ptr_eq(&last.map, map)) {
            return varint::put(&mut self.body, self.maps.len() as u64);
        }
        let defined = self.maps.len();
        let number = *self.maps.entry(map.number()).or_insert(defined + 1);
        varint::put(&mut self.body, number as u64);
        if number <= defined {
            return;
        }
        let after_one_that_does = self.last.as_ref().is_none_or(|last| last.comes_again);
        match comes_again && after_one_that_does {
            true => self.recall_or_define(map),
            false => self.define(map),
        }
        self.last = Some(LastMap {
            map: map.clone(),
            comes_again,
        });
    }

    /// Writes the same bytes as [`MessageEncoder::define`], from the cache if possible.
    fn recall_or_define(&mut self, map: &MetaMap) {
        let place = DefinitionKey {
            before: self.last.as_ref().map_or(0, |last| last.map.number()),
            map: map.number(),
        };
        let is_seen = match self.known.find(place) {
            // If the budget covers the whole definition, it covers each part, so `define` would write the same bytes.
            DefinitionLookup::Known(bytes, copied) if self.copied.add(copied) => {
                return self.body.extend_from_slice(bytes);
            }
            DefinitionLookup::Known(..) => return self.define(map),
            DefinitionLookup::Seen => true,
            DefinitionLookup::New => {
                self.known.note(place);
                false
            }
        };
        let (start, before) = (self.body.len(), self.copied.bytes());
        self.define(map);
        // A definition that the budget has changed is useless for other parcels.
        if is_seen && self.copied.is_complete() {
            let bytes = self.body.get(start..).unwrap_or_default();
            self.known.keep(bytes, self.copied.bytes() - before);
        }
    }

    fn define(&mut self, map: &MetaMap) {
        self.body.push(u8::from(map.series().is_some()));
        if let Some(series) = map.series() {
            self.body.extend_from_slice(&series.to_le_bytes());
        }
        let earlier = self.last.as_ref().map_or(&[][..], |last| last.map.entries());
        put_list(&mut self.body, map.entries(), earlier, &mut self.copied);
    }

    fn put_stamps(&mut self, stamps: ValueQuality) {
        let ValueQuality {
            source_time,
            server_time,
            status,
        } = stamps;
        varint::put_signed(&mut self.body, source_time.0.wrapping_sub(self.source_time));
        varint::put_signed(&mut self.body, server_time.0.wrapping_sub(source_time.0));
        varint::put(&mut self.body, u64::from(status));
        self.source_time = source_time.0;
    }

    fn put_source(&mut self, source: &'static Arc<str>) {
        let known = self.sources.iter().position(|known| Arc::ptr_eq(known, source));
        varint::put(&mut self.body, known.unwrap_or(self.sources.len()) as u64);
        if known.is_none() {
            put_bytes(&mut self.body, source.as_bytes());
            self.sources.push(source);
        }
    }

    fn put_payload(&mut self, payload: &Payload) {
        match payload {
            Payload::Raw(bytes) => {
                self.body.push(kind::RAW);
                put_bytes(&mut self.body, bytes);
            }
            Payload::Value(value) => put_value(&mut self.body, value, kind::VALUE),
            Payload::Sample { value, time_ms } => {
                put_value(&mut self.body, value, kind::SAMPLE);
                varint::put_signed(&mut self.body, time_ms.wrapping_sub(self.sample_time));
                self.sample_time = *time_ms;
            }
        }
    }

    /// The parcel, with everything that was added since the last one.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut parcel = Vec::with_capacity(self.body.len() + 11);
        self.finish_into(&mut parcel);
        parcel
    }

    /// Like `finish`, appending to `out`.
    pub fn finish_into(&mut self, out: &mut Vec<u8>) {
        out.push(VERSION);
        varint::put(out, self.count as u64);
        out.extend_from_slice(&self.body);
        self.clear();
    }

    /// Discards what was added since the last parcel, but keeps the cached definitions.
    pub fn clear(&mut self) {
        self.body.clear();
        self.count = 0;
        self.maps.clear();
        self.last = None;
        self.changes = None;
        self.sources.clear();
        (self.source_time, self.sample_time) = (0, 0);
        self.copied.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metadata;

    fn map(n: usize) -> Arc<MetaMap> {
        let entries = [
            ("name".into(), format!("tag {n} of a line").into()),
            ("unit".into(), "C".into()),
        ];
        Arc::new(MetaMap::new(entries, Some(n as u64)))
    }

    fn message(map: &Arc<MetaMap>) -> Message {
        Message::new(Payload::Raw("1".into()), Metadata::shared(map.clone()))
    }

    /// For each map after its predecessor, whether its bytes are cached.
    fn known(encoder: &mut MessageEncoder, maps: &[Arc<MetaMap>]) -> Vec<bool> {
        let places = maps.windows(2).map(|maps| DefinitionKey {
            before: maps[0].number(),
            map: maps[1].number(),
        });
        let is_known = |place| matches!(encoder.known.find(place), DefinitionLookup::Known(..));
        places.map(is_known).collect()
    }

    fn write(encoder: &mut MessageEncoder, maps: &[Arc<MetaMap>]) {
        maps.iter().for_each(|map| encoder.push(&message(map)).unwrap());
        encoder.finish();
    }

    #[test]
    fn maps_that_came_twice_are_known_and_not_held() {
        let maps: Vec<_> = (0..100).map(map).collect();
        let mut encoder = MessageEncoder::default();
        write(&mut encoder, &maps);
        assert_eq!(known(&mut encoder, &maps), [false; 99]);
        write(&mut encoder, &maps);
        assert_eq!(known(&mut encoder, &maps), [true; 99]);
        assert!(maps.iter().all(|map| Arc::strong_count(map) == 1));
    }

    #[test]
    fn maps_that_only_one_message_has_are_not_even_noted() {
        let mut encoder = MessageEncoder::default();
        let (alone, shared) = (|n| message(&map(n)), map(0));
        for n in 1..100 {
            encoder.push(&alone(n)).unwrap();
            encoder.push(&alone(n)).unwrap();
            encoder.push(&message(&shared)).unwrap();
            encoder.finish();
        }
        assert!(encoder.known.is_empty());
    }

    #[test]
    fn what_was_written_without_room_to_copy_is_not_kept() {
        let maps: Vec<_> = (0..100).map(map).collect();
        let mut encoder = MessageEncoder::within(200);
        (0..3).for_each(|_| write(&mut encoder, &maps));
        let known = known(&mut encoder, &maps);
        let some = known.iter().take_while(|known| **known).count();
        assert!((2..20).contains(&some), "{known:?}");
        assert!(known.iter().skip(some).all(|known| !known), "{known:?}");
    }
}
