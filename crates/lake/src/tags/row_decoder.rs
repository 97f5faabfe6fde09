//! Entries of messages as rows of the table `tags`.
//!
//! All that was decided when the messages were taken is in their entry, so it becomes the same rows each time. What messages of
//! one tag share is worked out once, and looked up by its address from then on.

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

/// Of what may be remembered, this part at most is for constant maps of messages that were read, and the rest for series made of
/// them, and of messages that were at hand. A tag of OPC UA that has a topic takes about 0.9 KiB of the first and 1.7 KiB of the
/// other, and costs several times as much where it is not remembered.
const MAPS_OF_TEN: usize = 4;

/// Makes rows. Remembers what the last messages were like.
pub(crate) struct TagRowDecoder {
    messages: MessageDecoder,
    series: TagSeriesCache,
    /// Of the last entry.
    source: Arc<str>,
    window: ArrivalWindow,
    maps_bytes_max: usize,
    remembered_bytes_max: usize,
}

impl TagRowDecoder {
    /// Remembers so many bytes of tags.
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
        // Marks of a gap have no columns of their own.
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
            return Err("a request is not for the table of tags".to_owned());
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

/// A time that does not fit into its column is in the overflow map, under its key of metadata.
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

/// Any bytes as an entry of messages: they are refused, or become as many rows as there are messages.
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
