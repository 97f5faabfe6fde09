//! Decodes log records.

use super::times::further_time;
use super::value::AnyValueKind;
use super::{OtlpDecoder, RequestDecoder};
use crate::fields::log;
use thalweg_columns::rows::text::hex;
use thalweg_columns::rows::times::TimeColumns;
use thalweg_columns::tables::logs as table;
use thalweg_kit::wire::{END, WireCursor, WireResult};

const TIME: TimeColumns = TimeColumns {
    time: table::TIME_NANOS,
    arrival: table::ARRIVAL,
    source: table::TIME_SOURCE,
    original: table::TIME_ORIGINAL,
};

impl RequestDecoder<'_, '_> {
    pub(super) fn log(&mut self, mut at: WireCursor<'_>) -> WireResult<()> {
        if !self.is_taken() {
            return Ok(());
        }
        let row = self.chunk.begin_row();
        self.decoder.guess.begin();
        let (mut time, mut observed) = (0, 0);
        loop {
            match at.key()? {
                log::ATTRIBUTES => {
                    let pair = at.message()?;
                    self.put_attribute(row, pair)?;
                }
                log::TIME => time = at.fixed64()?,
                log::OBSERVED_TIME => observed = at.fixed64()?,
                log::SEVERITY_NUMBER => {
                    let number = at.number()? as i32;
                    self.chunk.integers(table::SEVERITY_NUMBER).push(row, number);
                }
                log::SEVERITY_TEXT => self.put_text(row, table::SEVERITY_TEXT, at.bytes()?),
                log::BODY => {
                    let value = at.message()?;
                    let OtlpDecoder {
                        read,
                        templates,
                        is_without_ids,
                        ..
                    } = &mut *self.decoder;
                    let (kind, text) = read.value(value)?;
                    if kind != AnyValueKind::Null {
                        self.chunk.texts(table::BODY).push(row, text.as_bytes());
                        if !*is_without_ids && let Some(fingerprint) = templates.fingerprint(&text) {
                            self.chunk.longs(table::FINGERPRINT).push(row, fingerprint);
                        }
                    }
                    if let Some(name) = kind.name() {
                        self.chunk.texts(table::BODY_KIND).push(row, name.as_bytes());
                    }
                }
                log::DROPPED => {
                    let dropped = at.number()? as u32;
                    self.chunk.longs(table::DROPPED).push(row, dropped.into());
                }
                log::FLAGS => {
                    let flags = at.fixed32()?;
                    self.chunk.longs(table::FLAGS).push(row, flags.into());
                }
                log::TRACE_ID => self.put_id::<16>(row, table::TRACE_ID, at.bytes()?),
                log::SPAN_ID => self.put_id::<8>(row, table::SPAN_ID, at.bytes()?),
                log::EVENT_NAME => self.put_text(row, table::EVENT_NAME, at.bytes()?),
                END => break,
                key => at.skip(key, 0)?,
            }
        }
        self.put_time(row, time, observed, &TIME);
        if let Some(observed) = further_time(observed, &mut self.decoder.read.changed) {
            self.chunk.longs(table::OBSERVED).push(row, observed);
        }
        Ok(())
    }

    /// An empty text counts as absent.
    #[inline]
    pub(super) fn put_text(&mut self, row: usize, column: usize, text: &[u8]) {
        if !text.is_empty() {
            let text = self.decoder.read.text(text);
            self.chunk.texts(column).push(row, text.as_bytes());
        }
    }

    /// Writes the id as hexadecimal digits. An id of any other length is counted as wrong and left out.
    #[inline]
    pub(super) fn put_id<const N: usize>(&mut self, row: usize, column: usize, id: &[u8]) {
        match <&[u8; N]>::try_from(id) {
            Ok(id) => {
                let mut digits = [0; 32];
                let digits = hex(id, &mut digits);
                self.chunk.texts(column).push(row, digits);
            }
            Err(_) if id.is_empty() => {}
            Err(_) => self.decoder.read.changed.ids_wrong += 1,
        }
    }
}
