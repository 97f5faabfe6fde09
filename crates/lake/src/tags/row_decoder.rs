//! Decodes entries of messages to rows of the table `tags`.
//!
//! An entry has all that was decided on arrival, so it always becomes the same rows. What messages of one tag share is
//! computed once and then looked up by the address of the shared map.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_record::codec::MessageDecoder;
use thalweg_record::{Message, ValueQuality, key};

use super::sample::{RowTime, TagValueCells, TimeSource, stamp_nanos};
use super::series::TagSeriesCache;
use crate::entry::decode_messages;
use crate::ingest::{DecodeEntry, DecodedEntry, DecoderFactory, Handoff};
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::times::ArrivalWindow;
use thalweg_columns::tables::tags as table;

/// The tenths of the cache for constant maps of decoded messages. The rest is for series of these and of handed-over
/// messages. An OPC UA tag with a topic takes about 0.9 KiB of the first and 1.7 KiB of the second part, and its rows
/// cost several times as much without the cache.
const MAPS_OF_TEN: usize = 4;

/// Makes rows, and caches the series of recent messages.
pub(crate) struct TagRowDecoder {
    messages: MessageDecoder,
    series: TagSeriesCache,
    /// The source of the last entry.
    source: Arc<str>,
    window: ArrivalWindow,
    maps_bytes_max: usize,
    remembered_bytes_max: usize,
}

impl TagRowDecoder {
    /// `remembered_bytes` is the size of the cache.
    pub fn new(window: ArrivalWindow, remembered_bytes: usize) -> TagRowDecoder {
        let maps_bytes_max = remembered_bytes / 10 * MAPS_OF_TEN;
        TagRowDecoder {
            messages: MessageDecoder::new(maps_bytes_max),
            maps_bytes_max,
            remembered_bytes_max: remembered_bytes,
            series: TagSeriesCache::default(),
            source: Arc::default(),
            window,
        }
    }

    fn put_all<'a>(
        &mut self,
        messages: impl Iterator<Item = &'a Message>,
        arrival: i64,
        chunk: &mut MemtableChunk,
    ) -> RowChangeCounts {
        let of_maps = self.messages.cached_bytes();
        self.series.set_room(self.remembered_bytes_max.saturating_sub(of_maps));
        let mut changed = RowChangeCounts::default();
        for message in messages {
            self.push(message, arrival, chunk, &mut changed);
        }
        changed
    }

    fn push(&mut self, message: &Message, arrival: i64, chunk: &mut MemtableChunk, changed: &mut RowChangeCounts) {
        let source = message.source.get().unwrap_or(&self.source);
        // Gap marks have no columns.
        let meta = message.meta.settled();
        let (found, explicit_ms) = self.series.find(source, &meta);
        let cells = TagValueCells::of(&message.payload);
        let stamps = meta.stamps();
        let time = RowTime::of(self.window, explicit_ms, stamps, cells.time_ms, arrival);
        let row = chunk.begin_row();
        self.series.put(found, source, &meta, row, chunk);
        chunk.longs(table::ARRIVAL).push(row, arrival);
        put_time(row, &time, chunk, changed);
        put_value(row, &cells, chunk);
        if let Some(stamps) = stamps {
            put_stamps(row, stamps, chunk, changed);
        }
    }
}

impl DecodeEntry for TagRowDecoder {
    fn decode(&mut self, entry: &[u8], chunk: &mut MemtableChunk) -> Result<DecodedEntry, String> {
        let (head, parcel) = decode_messages(entry).map_err(|error| error.to_string())?;
        let messages = self.messages.decode(&Bytes::copy_from_slice(parcel));
        let messages = messages.map_err(|error| error.to_string())?;
        if *self.source != *head.source {
            self.source = head.source.into();
        }
        let changed = self.put_all(messages.iter(), head.arrival, chunk);
        Ok(DecodedEntry {
            arrival: head.arrival,
            changed,
        })
    }

    fn decode_handed(&mut self, handed: &Handoff, chunk: &mut MemtableChunk) -> Result<DecodedEntry, String> {
        let Handoff::Messages(messages) = handed else {
            return Err("the table tags does not accept requests".to_owned());
        };
        self.source = messages.source.clone();
        let changed = self.put_all(messages.iter(), messages.arrival, chunk);
        Ok(DecodedEntry {
            arrival: messages.arrival,
            changed,
        })
    }

    fn may_remember(&mut self, bytes: usize) {
        self.remembered_bytes_max = bytes;
    }

    fn forget(&mut self) {
        self.messages = MessageDecoder::new(self.maps_bytes_max);
        self.series = TagSeriesCache::default();
    }

    fn remembered_bytes(&self) -> usize {
        self.messages.cached_bytes() + self.series.bytes()
    }
}

/// Decodes the entries of messages of the queue `lake.tags`.
pub fn entry_decoder() -> DecoderFactory {
    Arc::new(|limits| Box::new(TagRowDecoder::new(limits.window, limits.remembered_bytes)))
}

#[inline]
fn put_time(row: usize, time: &RowTime, chunk: &mut MemtableChunk, changed: &mut RowChangeCounts) {
    chunk.longs(table::TIME_NANOS).push(row, time.nanos);
    let source = match time.source {
        TimeSource::Own => None,
        TimeSource::Observed => Some("observed"),
        TimeSource::Arrival => Some("arrival"),
    };
    if let Some(source) = source {
        chunk.texts(table::TIME_SOURCE).push(row, source.as_bytes());
    }
    if let Some(original) = &time.original {
        chunk.texts(table::TIME_ORIGINAL).push(row, original.as_bytes());
        changed.times_replaced += 1;
    }
}

#[inline]
fn put_value(row: usize, cells: &TagValueCells<'_>, chunk: &mut MemtableChunk) {
    if let Some(number) = cells.number {
        chunk.doubles(table::VALUE).push(row, number);
    }
    if let Some(integer) = cells.integer {
        chunk.longs(table::VALUE_INT).push(row, integer);
    }
    if let Some(text) = &cells.text {
        chunk.texts(table::VALUE_TEXT).push(row, text.as_bytes());
    }
    if let Some(bytes) = cells.bytes {
        chunk.texts(table::VALUE_BYTES).push(row, bytes);
    }
    chunk.texts(table::VALUE_TYPE).push(row, cells.kind.as_bytes());
}

/// A time that does not fit its column goes to the overflow map, under its metadata key.
#[inline]
fn put_stamps(row: usize, stamps: ValueQuality, chunk: &mut MemtableChunk, changed: &mut RowChangeCounts) {
    chunk.longs(table::QUALITY).push(row, stamps.status.into());
    for (column, key, at) in [
        (table::SOURCE_TIME, key::SOURCE_TIMESTAMP, stamps.source_time),
        (table::SERVER_TIME, key::SERVER_TIMESTAMP, stamps.server_time),
    ] {
        match stamp_nanos(at) {
            Ok(Some(nanos)) => chunk.longs(column).push(row, nanos),
            Ok(None) => {}
            Err(text) => {
                changed.stamps_out_of_range += 1;
                chunk.push_extra(row, AttributeSource::Attr, key, &text);
            }
        }
    }
}

/// Any bytes as an entry of messages must be rejected, or become one row per message.
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    let mut chunk = MemtableChunk::new(&thalweg_columns::tables::TAGS);
    let mut samples = TagRowDecoder::new(ArrivalWindow::default(), 1 << 20);
    let entries = [data.to_vec(), [&[1, 4, 3, 0][..], data].concat()];
    for entry in entries {
        let before = chunk.rows();
        if samples.decode(&entry, &mut chunk).is_ok() {
            let (_, parcel) = decode_messages(&entry).unwrap_or_else(|error| panic!("{error}"));
            let messages = MessageDecoder::new(0).decode(&Bytes::copy_from_slice(parcel));
            let messages = messages.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(chunk.rows(), before + messages.len());
        }
        assert_eq!(chunk.times().map_or(0, |times| times.values().len()), chunk.rows());
    }
}
