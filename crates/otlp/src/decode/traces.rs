//! Decodes spans.

use super::times::further_time;
use super::value::{AnyValueKind, AnyValueReader, name_and_value};
use super::{OtlpDecoder, RequestDecoder};
use crate::fields::{event, link, span, status};
use thalweg_columns::ids::span::fingerprint;
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::column_data::ColumnData;
use thalweg_columns::rows::text::hex;
use thalweg_columns::rows::times::TimeColumns;
use thalweg_columns::tables::traces as table;
use thalweg_kit::wire::{END, WireCursor, WireResult};

const TIME: TimeColumns = TimeColumns {
    time: table::TIME_NANOS,
    arrival: table::ARRIVAL,
    source: table::TIME_SOURCE,
    original: table::TIME_ORIGINAL,
};
const SERVICE: &str = "service.name";

impl RequestDecoder<'_, '_> {
    pub(super) fn span(&mut self, mut at: WireCursor<'_>) -> WireResult<()> {
        if !self.is_taken() {
            return Ok(());
        }
        let row = self.chunk.begin_row();
        self.decoder.guess.begin();
        let (mut start, mut end, mut kind, mut code, mut name): (u64, u64, u64, u64, &[u8]) = (0, 0, 0, 0, &[]);
        loop {
            match at.key()? {
                span::ATTRIBUTES => {
                    let pair = at.message()?;
                    self.put_attribute(row, pair)?;
                }
                span::TRACE_ID => self.put_id::<16>(row, table::TRACE_ID, at.bytes()?),
                span::SPAN_ID => self.put_id::<8>(row, table::SPAN_ID, at.bytes()?),
                span::PARENT_SPAN_ID => self.put_id::<8>(row, table::PARENT, at.bytes()?),
                span::TRACE_STATE => self.put_text(row, table::TRACE_STATE, at.bytes()?),
                span::NAME => name = at.bytes()?,
                span::KIND => kind = at.number()?,
                span::START => start = at.fixed64()?,
                span::END => end = at.fixed64()?,
                span::DROPPED_ATTRIBUTES => self.put_count_of(row, table::DROPPED_ATTRIBUTES, at.number()?),
                span::DROPPED_EVENTS => self.put_count_of(row, table::DROPPED_EVENTS, at.number()?),
                span::DROPPED_LINKS => self.put_count_of(row, table::DROPPED_LINKS, at.number()?),
                span::EVENTS => self.event(at.message()?)?,
                span::LINKS => self.link(at.message()?)?,
                span::STATUS => code = self.status(row, at.message()?)?,
                span::FLAGS => {
                    let flags = at.fixed32()?;
                    self.chunk.longs(table::FLAGS).push(row, flags.into());
                }
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        self.chunk.lists(table::EVENTS).close_if_any(row);
        self.chunk.lists(table::LINKS).close_if_any(row);
        self.put_time(row, start, 0, &TIME);
        self.put_end(row, start, end);
        let changed = &mut self.decoder.read.changed;
        let (kind, status) = (known(&KINDS, kind, changed), known(&STATUS_CODES, code, changed));
        self.chunk.texts(table::KIND).push(row, kind.as_bytes());
        self.chunk.texts(table::STATUS).push(row, status.as_bytes());
        self.put_text(row, table::NAME, name);
        if !self.decoder.is_without_ids {
            self.put_fingerprint(row, kind, name);
        }
        Ok(())
    }

    /// Writes the end and the duration of a span, both by the sender's clock.
    fn put_end(&mut self, row: usize, start: u64, end: u64) {
        let Some(end_time) = further_time(end, &mut self.decoder.read.changed) else {
            return;
        };
        self.chunk.longs(table::END).push(row, end_time);
        let Some(start) = i64::try_from(start).ok().filter(|start| *start > 0) else {
            return;
        };
        let duration = end_time - start;
        self.decoder.read.changed.durations_negative += u64::from(duration < 0);
        self.chunk.longs(table::DURATION).push(row, duration);
    }

    fn put_fingerprint(&mut self, row: usize, kind: &str, name: &[u8]) {
        let OtlpDecoder {
            resource, read, bytes, ..
        } = &mut *self.decoder;
        let service = resource
            .iter()
            .find(|(name, _)| *name == SERVICE)
            .and_then(|(_, text)| text);
        let attribute = |name: &str| self.chunk.slots.get(AttributeSource::Attr, name)?.column.text_of(row);
        let number = fingerprint(service.unwrap_or_default(), kind, &read.text(name), attribute, bytes);
        self.chunk.longs(table::FINGERPRINT).push(row, number);
    }

    fn status(&mut self, row: usize, mut at: WireCursor<'_>) -> WireResult<u64> {
        let mut code = 0;
        loop {
            match at.key()? {
                status::MESSAGE => self.put_text(row, table::STATUS_MESSAGE, at.bytes()?),
                status::CODE => code = at.number()?,
                END => return Ok(code),
                key => at.skip(key, 0)?,
            }
        }
    }

    fn event(&mut self, mut at: WireCursor<'_>) -> WireResult<()> {
        let read = &mut self.decoder.read;
        let (item, row) = self.chunk.lists(table::EVENTS).next_item();
        let Some([time, name, dropped, attributes]) = item.members().map(|item| item.members.as_mut_slice()) else {
            return Ok(());
        };
        loop {
            match at.key()? {
                event::TIME => {
                    if let Some(when) = further_time(at.fixed64()?, &mut read.changed) {
                        time.push_long(row, when);
                    }
                }
                event::NAME => name.push_text(row, &read.text(at.bytes()?)),
                event::DROPPED => dropped.push_long(row, (at.number()? as u32).into()),
                event::ATTRIBUTES => put_pair(attributes, at.message()?, read)?,
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        close(attributes, row);
        Ok(())
    }

    fn link(&mut self, mut at: WireCursor<'_>) -> WireResult<()> {
        let read = &mut self.decoder.read;
        let (item, row) = self.chunk.lists(table::LINKS).next_item();
        let Some([trace, span, state, flags, dropped, attributes]) =
            item.members().map(|item| item.members.as_mut_slice())
        else {
            return Ok(());
        };
        loop {
            match at.key()? {
                link::TRACE_ID => put_id(trace, row, at.bytes()?, 16, read),
                link::SPAN_ID => put_id(span, row, at.bytes()?, 8, read),
                link::TRACE_STATE => {
                    let text = at.bytes()?;
                    if !text.is_empty() {
                        state.push_text(row, &read.text(text));
                    }
                }
                link::FLAGS => flags.push_long(row, at.fixed32()?.into()),
                link::DROPPED => dropped.push_long(row, (at.number()? as u32).into()),
                link::ATTRIBUTES => put_pair(attributes, at.message()?, read)?,
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        close(attributes, row);
        Ok(())
    }

    fn put_count_of(&mut self, row: usize, column: usize, count: u64) {
        self.chunk.longs(column).push(row, (count as u32).into());
    }
}

fn put_id(column: &mut ColumnData, row: usize, id: &[u8], len: usize, read: &mut AnyValueReader) {
    let mut digits = [0; 32];
    match id.len() {
        0 => {}
        found if found == len => column.push_text(row, std::str::from_utf8(hex(id, &mut digits)).unwrap_or_default()),
        _ => read.changed.ids_wrong += 1,
    }
}

fn put_pair(column: &mut ColumnData, pair: WireCursor<'_>, read: &mut AnyValueReader) -> WireResult<()> {
    let (name, value) = name_and_value(pair)?;
    let (Some(map), Some(value)) = (column.map(), value) else {
        return Ok(());
    };
    let name = read.text(name);
    let (kind, text) = read.value(value)?;
    if kind != AnyValueKind::Null {
        map.push(&name, &text);
    }
    Ok(())
}

fn close(column: &mut ColumnData, row: usize) {
    if let Some(map) = column.map() {
        map.close_if_any(row);
    }
}

/// The names of an enum's numbers, from 0.
const KINDS: [&str; 6] = ["unspecified", "internal", "server", "client", "producer", "consumer"];
const STATUS_CODES: [&str; 3] = ["unset", "ok", "error"];

/// The name of a number, which has 32 bits as in protobuf. One that OTLP does not define is counted, and named like none.
fn known<const N: usize>(names: &[&'static str; N], number: u64, changed: &mut RowChangeCounts) -> &'static str {
    let name = names.get(number as u32 as usize).copied();
    changed.enums_unknown += u64::from(name.is_none());
    name.unwrap_or(names[0])
}
