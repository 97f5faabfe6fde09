//! Rows that wait for their flush, column by column.
//!
//! A row is a handful of numbers and the index of its series; texts, ids and metadata are not repeated per row. A
//! generation grows until it is handed to the committer and never changes after that.

use std::sync::Arc;

use thalweg_record::{Message, Text, key};

use super::sample::{Cells, TimeSource, TimeWindow, stamp_nanos};
use super::series::{Refusal, RowLimits, Series, SeriesTable};

/// "No time" in the columns of times: no multiple of 100 ns, so no OPC UA time.
pub(super) const NO_TIME: i64 = i64::MIN;
const NO_TEXT: u32 = u32::MAX;

pub(super) const HAS_NUMBER: u8 = 1;
pub(super) const HAS_INTEGER: u8 = 2;
pub(super) const HAS_QUALITY: u8 = 4;

/// Bytes of a row without its texts.
const ROW_BYTES: usize = 4 + 8 + 8 + 1 + 1 + 16 + 8 + 8 + 4 + 8 + 8;

/// One immutable piece of the buffer, once it is sealed.
#[derive(Debug, Default)]
pub struct Generation {
    pub id: u64,
    pub series: Vec<Arc<Series>>,
    series_bytes: usize,
    pub(super) row_series: Vec<u32>,
    pub(super) time: Vec<i64>,
    pub(super) arrival: Vec<i64>,
    pub(super) time_source: Vec<TimeSource>,
    pub(super) has: Vec<u8>,
    pub(super) kind: Vec<&'static str>,
    pub(super) number: Vec<f64>,
    pub(super) integer: Vec<i64>,
    pub(super) quality: Vec<u32>,
    pub(super) source_time: Vec<i64>,
    pub(super) server_time: Vec<i64>,
    pub(super) text: Sparse,
    pub(super) bytes: Sparse,
    /// Rows whose sent time was replaced, and that time.
    pub(super) time_original: Vec<(u32, String)>,
    /// Entries of the overflow map that only one row has.
    pub(super) row_overflow: Vec<(u32, Text, Text)>,
}

/// Values that most rows lack: the index is only kept once there is one.
#[derive(Debug, Default)]
pub(super) struct Sparse {
    at: Vec<u32>,
    ends: Vec<usize>,
    data: Vec<u8>,
}

impl Sparse {
    fn push(&mut self, row: usize, value: Option<&[u8]>) {
        if let Some(value) = value {
            self.at.resize(row, NO_TEXT);
            self.at.push(u32::try_from(self.ends.len()).unwrap_or(NO_TEXT));
            self.data.extend_from_slice(value);
            self.ends.push(self.data.len());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(super) fn get(&self, row: u32) -> Option<&[u8]> {
        let index = *self.at.get(row as usize)? as usize;
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.data.get(start..*self.ends.get(index)?)
    }

    fn memory(&self) -> usize {
        self.data.len() + 8 * self.ends.len() + 4 * self.at.len()
    }
}

/// What `push` counts for the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Times that were too far from their arrival.
    pub time_replaced: u64,
    /// Source or server times that no column can hold.
    pub stamp_out_of_range: u64,
}

impl Generation {
    pub fn new(id: u64) -> Generation {
        Generation {
            id,
            ..Generation::default()
        }
    }

    pub fn rows(&self) -> usize {
        self.time.len()
    }

    pub fn is_empty(&self) -> bool {
        self.time.is_empty()
    }

    /// Bytes that the rows take, their series included.
    pub fn memory(&self) -> usize {
        let overflow: usize = 64 * (self.row_overflow.len() + self.time_original.len());
        self.rows() * ROW_BYTES + self.series_bytes + self.text.memory() + self.bytes.memory() + overflow
    }

    /// The latest arrival of any row.
    pub fn arrival_max(&self) -> i64 {
        self.arrival.iter().copied().max().unwrap_or(0)
    }

    /// Adds a message as one row. Nothing is added when it is refused.
    pub fn push(
        &mut self,
        table: &mut SeriesTable,
        source: &Arc<str>,
        message: &Message,
        arrival: i64,
        rules: &RowRules,
        changed: &mut Changed,
    ) -> Result<(), Refusal> {
        let cells = Cells::of(&message.payload);
        if cells.heap_bytes() > rules.limits.value_bytes_max {
            return Err(Refusal::too_large(format!(
                "value_too_long: the value has {} bytes, {} are allowed",
                cells.heap_bytes(),
                rules.limits.value_bytes_max
            )));
        }
        let (slot, explicit_ms) = table.find(source, message)?;
        let series = self.local_series(table, slot);
        let row = self.rows();
        let stamps = message.meta.stamps();
        let time = rules.window.row_time(explicit_ms, stamps, cells.time_ms, arrival);

        self.row_series.push(series);
        self.time.push(time.nanos);
        self.arrival.push(arrival);
        self.time_source.push(time.source);
        self.kind.push(cells.kind);
        self.number.push(cells.number.unwrap_or(0.0));
        self.integer.push(cells.integer.unwrap_or(0));
        self.quality.push(stamps.map_or(0, |stamps| stamps.status));
        self.has.push(
            flag(HAS_NUMBER, cells.number.is_some())
                | flag(HAS_INTEGER, cells.integer.is_some())
                | flag(HAS_QUALITY, stamps.is_some()),
        );
        self.text.push(row, cells.text.as_deref().map(str::as_bytes));
        self.bytes.push(row, cells.bytes);
        let (source_time, server_time) = match stamps {
            Some(stamps) => (
                self.stamp(row, key::SOURCE_TIMESTAMP, stamp_nanos(stamps.source_time), changed),
                self.stamp(row, key::SERVER_TIMESTAMP, stamp_nanos(stamps.server_time), changed),
            ),
            None => (NO_TIME, NO_TIME),
        };
        self.source_time.push(source_time);
        self.server_time.push(server_time);
        if let Some(original) = time.original {
            changed.time_replaced += 1;
            self.time_original.push((row_number(row), original));
        }
        Ok(())
    }

    /// A stamp for its column; one that does not fit goes to the row's overflow map under its metadata key.
    fn stamp(&mut self, row: usize, name: &str, nanos: Result<Option<i64>, Text>, changed: &mut Changed) -> i64 {
        match nanos {
            Ok(nanos) => nanos.unwrap_or(NO_TIME),
            Err(text) => {
                changed.stamp_out_of_range += 1;
                self.row_overflow.push((row_number(row), name.into(), text));
                NO_TIME
            }
        }
    }

    fn local_series(&mut self, table: &mut SeriesTable, slot: u32) -> u32 {
        let next = u32::try_from(self.series.len()).unwrap_or(u32::MAX);
        let Some(slot) = table.slot(slot) else { return next };
        if slot.generation != self.id {
            slot.generation = self.id;
            slot.local = next;
            self.series_bytes += slot.series.bytes + size_of::<Arc<Series>>();
            self.series.push(slot.series.clone());
        }
        slot.local
    }
}

fn flag(flag: u8, set: bool) -> u8 {
    if set { flag } else { 0 }
}

fn row_number(row: usize) -> u32 {
    u32::try_from(row).unwrap_or(u32::MAX)
}

/// The rules by which messages become rows.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowRules {
    pub window: TimeWindow,
    pub limits: RowLimits,
}

/// Rows after which a generation is full whatever its bytes: row numbers have 32 bits.
pub const ROWS_MAX: usize = 16 << 20;
