//! Decodes metric points.

use super::times::further_time;
use super::value::{AnyValueKind, name_and_value};
use super::{OtlpDecoder, RequestDecoder};
use crate::fields::{
    buckets, data, exemplar, exponential_point, histogram_point, metric, number_point, quantile, summary_point,
    unpacked,
};
use thalweg_columns::ids::series::Metric;
use thalweg_columns::rows::text::hex;
use thalweg_columns::rows::times::TimeColumns;
use thalweg_columns::tables::metrics as table;
use thalweg_kit::wire::{END, FieldKey, WireCursor, WireResult, zigzag};

const TIME: TimeColumns = TimeColumns {
    time: table::TIME_NANOS,
    arrival: table::ARRIVAL,
    source: table::TIME_SOURCE,
    original: table::TIME_ORIGINAL,
};
/// Flag of a point that reports that its series has no value any more.
const NO_RECORDED_VALUE: u64 = 1;
/// Columns of an exemplar, in the order of the table.
mod member {
    pub const TIME: usize = 0;
    pub const VALUE: usize = 1;
    pub const TRACE_ID: usize = 3;
    pub const SPAN_ID: usize = 4;
    pub const ATTRIBUTES: usize = 5;
}

/// Fields that all points of a metric share.
struct MetricHeader<'a> {
    key: FieldKey,
    metric: Metric<'a>,
    description: &'a [u8],
}

/// Fields that points of every kind have.
#[derive(Default)]
struct PointHeader {
    start: u64,
    time: u64,
    flags: u64,
}

impl RequestDecoder<'_, '_> {
    pub(super) fn metric(&mut self, mut at: WireCursor<'_>) -> WireResult<()> {
        let (mut name, mut unit, mut description): (&[u8], &[u8], &[u8]) = (&[], &[], &[]);
        let (mut given, mut entries_left_out) = (None, 0);
        loop {
            match at.key()? {
                metric::NAME => name = at.bytes()?,
                metric::UNIT => unit = at.bytes()?,
                metric::DESCRIPTION => description = at.bytes()?,
                key @ (metric::GAUGE
                | metric::SUM
                | metric::HISTOGRAM
                | metric::EXPONENTIAL_HISTOGRAM
                | metric::SUMMARY) => given = Some((key, at.message()?)),
                metric::METADATA => {
                    at.message()?;
                    entries_left_out += 1;
                }
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        self.decoder.read.changed.metadata_left_out += entries_left_out;
        let Some((key, points)) = given else { return Ok(()) };
        let (temporality, is_monotonic) = about(points)?;
        // An enum of protobuf has 32 bits.
        let temporality = match (temporality as u32, key) {
            (_, metric::GAUGE | metric::SUMMARY) | (0, _) => "",
            (1, _) => "delta",
            (2, _) => "cumulative",
            _ => {
                self.decoder.read.changed.enums_unknown += 1;
                ""
            }
        };
        let kind = match key {
            metric::GAUGE => "gauge",
            metric::SUM => "sum",
            metric::HISTOGRAM => "histogram",
            metric::EXPONENTIAL_HISTOGRAM => "exponential_histogram",
            _ => "summary",
        };
        let head = MetricHeader {
            key,
            metric: Metric {
                name,
                kind,
                temporality,
                is_monotonic: (key == metric::SUM).then_some(is_monotonic),
                unit,
            },
            description,
        };
        self.decoder.series.begin_metric(&head.metric);
        let begin = self.chunk.rows();
        let mut at = points;
        loop {
            match at.key()? {
                data::POINTS => {
                    let point = at.message()?;
                    if self.is_taken() {
                        self.point(point, head.key)?;
                    }
                }
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        self.put_head(begin, &head);
        Ok(())
    }

    /// Writes the columns that are equal in all rows of a metric.
    fn put_head(&mut self, begin: usize, head: &MetricHeader<'_>) {
        let rows = begin..self.chunk.rows();
        if rows.is_empty() {
            return;
        }
        let metric = &head.metric;
        for (column, text) in [
            (table::NAME, metric.name),
            (table::KIND, metric.kind.as_bytes()),
            (table::TEMPORALITY, metric.temporality.as_bytes()),
            (table::UNIT, metric.unit),
            (table::DESCRIPTION, head.description),
        ] {
            super::put_text(self.chunk, column, rows.clone(), Some(text), &mut self.decoder.read);
        }
        if let Some(is_monotonic) = metric.is_monotonic {
            self.chunk.booleans(table::IS_MONOTONIC).push_run(rows, is_monotonic);
        }
    }

    fn point(&mut self, at: WireCursor<'_>, key: FieldKey) -> WireResult<()> {
        let row = self.chunk.begin_row();
        self.decoder.guess.begin();
        self.decoder.series.begin_point();
        let point = match key {
            metric::HISTOGRAM => self.histogram_point(row, at)?,
            metric::EXPONENTIAL_HISTOGRAM => self.exponential_point(row, at)?,
            metric::SUMMARY => self.summary_point(row, at)?,
            _ => self.number_point(row, at)?,
        };
        self.put_time(row, point.time, 0, &TIME);
        if let Some(start) = further_time(point.start, &mut self.decoder.read.changed) {
            self.chunk.longs(table::START).push(row, start);
        }
        if point.flags != 0 {
            self.chunk.longs(table::FLAGS).push(row, point.flags as u32 as i64);
        }
        if !self.decoder.is_without_ids {
            let id = self.decoder.series.id();
            self.chunk.longs(table::SERIES).push(row, id);
        }
        Ok(())
    }

    fn number_point(&mut self, row: usize, mut at: WireCursor<'_>) -> WireResult<PointHeader> {
        use number_point as of;
        let (mut point, mut value) = (PointHeader::default(), None);
        loop {
            match at.key()? {
                of::ATTRIBUTES => self.point_attribute(row, at.message()?)?,
                of::START => point.start = at.fixed64()?,
                of::TIME => point.time = at.fixed64()?,
                of::DOUBLE => value = Some((f64::from_bits(at.fixed64()?), None)),
                of::INT => {
                    let number = at.fixed64()? as i64;
                    value = Some((number as f64, Some(number)));
                }
                of::EXEMPLARS => self.exemplar(at.message()?)?,
                of::FLAGS => point.flags = at.number()?,
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        self.close_exemplars(row);
        if let Some((number, whole)) = value.filter(|_| point.flags & NO_RECORDED_VALUE == 0) {
            self.chunk.doubles(table::VALUE).push(row, number);
            if let Some(whole) = whole {
                self.chunk.longs(table::VALUE_INT).push(row, whole);
            }
        }
        Ok(point)
    }

    fn histogram_point(&mut self, row: usize, mut at: WireCursor<'_>) -> WireResult<PointHeader> {
        use histogram_point as of;
        let (mut point, mut count) = (PointHeader::default(), 0);
        loop {
            match at.key()? {
                of::ATTRIBUTES => self.point_attribute(row, at.message()?)?,
                of::START => point.start = at.fixed64()?,
                of::TIME => point.time = at.fixed64()?,
                of::COUNT => count = at.fixed64()?,
                of::SUM => self.put_double(row, table::SUM, at.fixed64()?),
                of::MIN => self.put_double(row, table::MIN, at.fixed64()?),
                of::MAX => self.put_double(row, table::MAX, at.fixed64()?),
                of::BUCKETS => at.packed_fixed64(|count| self.put_count(table::BUCKETS, count))?,
                unpacked::BUCKETS => self.put_count(table::BUCKETS, at.fixed64()?),
                of::BOUNDS => at.packed_fixed64(|bits| self.put_bound(bits))?,
                unpacked::BOUNDS => self.put_bound(at.fixed64()?),
                of::EXEMPLARS => self.exemplar(at.message()?)?,
                of::FLAGS => point.flags = at.number()?,
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        if point.flags & NO_RECORDED_VALUE == 0 {
            self.chunk.longs(table::COUNT).push(row, count as i64);
        }
        self.chunk.lists(table::BUCKETS).close(row);
        self.chunk.lists(table::BOUNDS).close(row);
        self.close_exemplars(row);
        Ok(point)
    }

    fn exponential_point(&mut self, row: usize, mut at: WireCursor<'_>) -> WireResult<PointHeader> {
        use exponential_point as of;
        let (mut point, mut count, mut zeros, mut scale) = (PointHeader::default(), 0, 0, 0);
        loop {
            match at.key()? {
                of::ATTRIBUTES => self.point_attribute(row, at.message()?)?,
                of::START => point.start = at.fixed64()?,
                of::TIME => point.time = at.fixed64()?,
                of::COUNT => count = at.fixed64()?,
                of::SUM => self.put_double(row, table::SUM, at.fixed64()?),
                of::MIN => self.put_double(row, table::MIN, at.fixed64()?),
                of::MAX => self.put_double(row, table::MAX, at.fixed64()?),
                of::SCALE => scale = zigzag(at.number()?),
                of::ZERO_COUNT => zeros = at.fixed64()?,
                of::ZERO_THRESHOLD => self.put_double(row, table::ZERO_THRESHOLD, at.fixed64()?),
                of::POSITIVE => self.buckets(row, at.message()?, (table::POSITIVE_OFFSET, table::POSITIVE))?,
                of::NEGATIVE => self.buckets(row, at.message()?, (table::NEGATIVE_OFFSET, table::NEGATIVE))?,
                of::EXEMPLARS => self.exemplar(at.message()?)?,
                of::FLAGS => point.flags = at.number()?,
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        if point.flags & NO_RECORDED_VALUE == 0 {
            self.chunk.longs(table::COUNT).push(row, count as i64);
            self.chunk.longs(table::ZERO_COUNT).push(row, zeros as i64);
            self.chunk.integers(table::SCALE).push(row, scale as i32);
        }
        self.close_exemplars(row);
        Ok(point)
    }

    fn buckets(&mut self, row: usize, mut at: WireCursor<'_>, (offset, counts): (usize, usize)) -> WireResult<()> {
        let mut first = 0;
        loop {
            match at.key()? {
                buckets::OFFSET => first = zigzag(at.number()?),
                buckets::COUNTS => at.packed_numbers(|count| self.put_count(counts, count))?,
                unpacked::COUNTS => {
                    let count = at.number()?;
                    self.put_count(counts, count);
                }
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        self.chunk.integers(offset).push(row, first as i32);
        self.chunk.lists(counts).close(row);
        Ok(())
    }

    fn summary_point(&mut self, row: usize, mut at: WireCursor<'_>) -> WireResult<PointHeader> {
        use summary_point as of;
        let (mut point, mut count, mut sum) = (PointHeader::default(), 0, 0.0);
        loop {
            match at.key()? {
                of::ATTRIBUTES => self.point_attribute(row, at.message()?)?,
                of::START => point.start = at.fixed64()?,
                of::TIME => point.time = at.fixed64()?,
                of::COUNT => count = at.fixed64()?,
                of::SUM => sum = f64::from_bits(at.fixed64()?),
                of::QUANTILES => self.quantile(at.message()?)?,
                of::FLAGS => point.flags = at.number()?,
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        if point.flags & NO_RECORDED_VALUE == 0 {
            self.chunk.longs(table::COUNT).push(row, count as i64);
            self.chunk.doubles(table::SUM).push(row, sum);
        }
        self.chunk.lists(table::QUANTILES).close(row);
        Ok(point)
    }

    fn quantile(&mut self, mut at: WireCursor<'_>) -> WireResult<()> {
        let (mut which, mut value) = (0.0, 0.0);
        loop {
            match at.key()? {
                quantile::QUANTILE => which = f64::from_bits(at.fixed64()?),
                quantile::VALUE => value = f64::from_bits(at.fixed64()?),
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        let (item, at) = self.chunk.lists(table::QUANTILES).next_item();
        if let Some([first, second]) = item.members().map(|item| item.members.as_mut_slice()) {
            first.push_double(at, which);
            second.push_double(at, value);
        }
        Ok(())
    }

    fn exemplar(&mut self, mut at: WireCursor<'_>) -> WireResult<()> {
        let OtlpDecoder { read, .. } = &mut *self.decoder;
        let (item, row) = self.chunk.lists(table::EXEMPLARS).next_item();
        let Some(members) = item.members().map(|item| item.members.as_mut_slice()) else {
            return Ok(());
        };
        let mut digits = [0; 32];
        let mut has_attributes = false;
        loop {
            match at.key()? {
                exemplar::TIME => {
                    let time = further_time(at.fixed64()?, &mut read.changed);
                    if let (Some(column), Some(time)) = (members.get_mut(member::TIME), time) {
                        column.push_long(row, time);
                    }
                }
                exemplar::DOUBLE => {
                    let value = f64::from_bits(at.fixed64()?);
                    if let Some(column) = members.get_mut(member::VALUE) {
                        column.push_double(row, value);
                    }
                }
                exemplar::INT => {
                    let value = at.fixed64()? as i64;
                    if let [_, double, whole, ..] = &mut *members {
                        double.push_double(row, value as f64);
                        whole.push_long(row, value);
                    }
                }
                key @ (exemplar::TRACE_ID | exemplar::SPAN_ID) => {
                    let id = at.bytes()?;
                    let (place, len) = match key {
                        exemplar::TRACE_ID => (member::TRACE_ID, 16),
                        _ => (member::SPAN_ID, 8),
                    };
                    if id.len() == len
                        && let Some(column) = members.get_mut(place)
                    {
                        column.push_text(row, std::str::from_utf8(hex(id, &mut digits)).unwrap_or_default());
                    } else if !id.is_empty() {
                        read.changed.ids_wrong += 1;
                    }
                }
                exemplar::ATTRIBUTES => {
                    let (name, value) = name_and_value(at.message()?)?;
                    let name = read.text(name);
                    let Some(map) = members.get_mut(member::ATTRIBUTES).and_then(|column| column.map()) else {
                        continue;
                    };
                    if let Some(value) = value {
                        let (kind, text) = read.value(value)?;
                        if kind != AnyValueKind::Null {
                            has_attributes = true;
                            map.push(&name, &text);
                        }
                    }
                }
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        if has_attributes && let Some(map) = members.get_mut(member::ATTRIBUTES).and_then(|column| column.map()) {
            map.close(row);
        }
        Ok(())
    }

    /// Most points have no exemplars.
    fn close_exemplars(&mut self, row: usize) {
        self.chunk.lists(table::EXEMPLARS).close_if_any(row);
    }

    /// Decodes an attribute of a point. It is part of the series identity, too.
    fn point_attribute(&mut self, row: usize, pair: WireCursor<'_>) -> WireResult<()> {
        let (name, value) = name_and_value(pair)?;
        let OtlpDecoder { read, series, .. } = &mut *self.decoder;
        let name = read.text(name);
        match value {
            None => series.attribute(&name, None),
            Some(value) => {
                let (kind, text) = read.value(value)?;
                series.attribute(&name, (kind != AnyValueKind::Null).then_some(&*text));
            }
        }
        drop(name);
        self.put_attribute(row, pair)
    }

    fn put_double(&mut self, row: usize, column: usize, bits: u64) {
        self.chunk.doubles(column).push(row, f64::from_bits(bits));
    }

    fn put_count(&mut self, column: usize, count: u64) {
        let (items, at) = self.chunk.lists(column).next_item();
        items.push_long(at, count as i64);
    }

    fn put_bound(&mut self, bits: u64) {
        let (items, at) = self.chunk.lists(table::BOUNDS).next_item();
        items.push_double(at, f64::from_bits(bits));
    }
}

/// Reads temporality and monotonicity, which may follow the points.
fn about(points: WireCursor<'_>) -> WireResult<(u64, bool)> {
    let (mut at, mut temporality, mut is_monotonic) = (points, 0, false);
    loop {
        match at.key()? {
            data::TEMPORALITY => temporality = at.number()?,
            data::IS_MONOTONIC => is_monotonic = at.number()? != 0,
            END => return Ok((temporality, is_monotonic)),
            key => at.skip(key, 0)?,
        }
    }
}
