//! Messages into parcels.

use std::collections::HashMap;
use std::sync::Arc;

use super::lists::{Copied, put_list};
use super::value::{WHOLE, is_shallow, put_value};
use super::wire::{put_bytes, put_signed, put_varint};
use super::{TooDeep, VERSION, flags, kind};
use crate::metadata::Changes;
use crate::{Message, MetaMap, Payload, Stamps};

/// Makes one parcel after the other. Its memory is used again.
#[derive(Default)]
pub struct Encoder {
    body: Vec<u8>,
    count: usize,
    /// Those that were defined. They are kept, so that no other map gets the address of one of them meanwhile.
    maps: Vec<Arc<MetaMap>>,
    by_address: HashMap<usize, usize>,
    /// The last changes of a message.
    changes: Option<Arc<Changes>>,
    sources: Vec<&'static Arc<str>>,
    source_time: i64,
    sample_time: i64,
    copied: Copied,
}

impl Encoder {
    /// How many messages the parcel has.
    pub fn count(&self) -> usize {
        self.count
    }

    /// About the length of the parcel.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Adds a message. After an error the parcel is as it was.
    pub fn push(&mut self, message: &Message) -> Result<(), TooDeep> {
        if let Payload::Value(value) | Payload::Sample { value, .. } = &message.payload
            && !is_shallow(value, WHOLE)
        {
            return Err(TooDeep);
        }
        let settled = message.meta.settled();
        let meta = settled.parts();
        let has_stamps = meta.stamps != Stamps::NONE;
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        self.body.push(
            meta.shown
                | bit(meta.stamped, flags::STAMPED)
                | bit(meta.changes.is_some(), flags::CHANGED)
                | bit(message.failure.is_some(), flags::FAILED)
                | bit(has_stamps, flags::STAMPS)
                | bit(message.source.get().is_some(), flags::SOURCE),
        );
        self.put_map(meta.shared);
        if has_stamps {
            self.put_stamps(meta.stamps);
        }
        if let Some(changes) = meta.changes {
            let earlier = self.changes.as_deref().map_or(&[][..], Changes::list);
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

    fn put_map(&mut self, map: &Arc<MetaMap>) {
        if map.is_empty() && map.series().is_none() {
            return put_varint(&mut self.body, 0);
        }
        let last = self.maps.last().is_some_and(|last| Arc::ptr_eq(last, map));
        if last {
            return put_varint(&mut self.body, self.maps.len() as u64);
        }
        let number = self.maps.len() + 1;
        let number = *self.by_address.entry(Arc::as_ptr(map).addr()).or_insert(number);
        put_varint(&mut self.body, number as u64);
        if number <= self.maps.len() {
            return;
        }
        self.body.push(u8::from(map.series().is_some()));
        if let Some(series) = map.series() {
            self.body.extend_from_slice(&series.to_le_bytes());
        }
        let earlier = self.maps.last().map_or(&[][..], |map| map.entries());
        put_list(&mut self.body, map.entries(), earlier, &mut self.copied);
        self.maps.push(map.clone());
    }

    fn put_stamps(&mut self, stamps: Stamps) {
        let Stamps {
            source_time,
            server_time,
            status,
        } = stamps;
        put_signed(&mut self.body, source_time.0.wrapping_sub(self.source_time));
        put_signed(&mut self.body, server_time.0.wrapping_sub(source_time.0));
        put_varint(&mut self.body, u64::from(status));
        self.source_time = source_time.0;
    }

    fn put_source(&mut self, source: &'static Arc<str>) {
        let known = self.sources.iter().position(|known| Arc::ptr_eq(known, source));
        put_varint(&mut self.body, known.unwrap_or(self.sources.len()) as u64);
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
                put_signed(&mut self.body, time_ms.wrapping_sub(self.sample_time));
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

    /// The same, behind what is there.
    pub fn finish_into(&mut self, out: &mut Vec<u8>) {
        out.push(VERSION);
        put_varint(out, self.count as u64);
        out.extend_from_slice(&self.body);
        self.clear();
    }

    /// Forgets what was added since the last parcel.
    pub fn clear(&mut self) {
        self.body.clear();
        self.count = 0;
        self.maps.clear();
        self.by_address.clear();
        self.changes = None;
        self.sources.clear();
        (self.source_time, self.sample_time) = (0, 0);
        self.copied = Copied::default();
    }
}
