//! Decodes attributes of resources and scopes, which many rows share, and attributes of single records.

use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::rows::attribute_set::AttributeSet;
use thalweg_kit::wire::{WireCursor, WireResult};

use super::RequestDecoder;
use super::value::{AnyValueKind, AnyValueReader, name_and_value};

/// Adds an attribute of a resource or a scope to its set.
pub(super) fn read_into(set: &mut AttributeSet, pair: WireCursor<'_>, read: &mut AnyValueReader) -> WireResult<()> {
    let (name, value) = name_and_value(pair)?;
    let name = read.text(name);
    match value {
        None => set.push(&name, None),
        Some(value) => {
            let (kind, text) = read.value(value)?;
            set.push(&name, (kind != AnyValueKind::Null).then_some(&*text));
        }
    }
    Ok(())
}

impl RequestDecoder<'_, '_> {
    /// Decodes an attribute of a record.
    #[inline]
    pub(super) fn put_attribute(&mut self, row: usize, pair: WireCursor<'_>) -> WireResult<()> {
        let (name, value) = name_and_value(pair)?;
        let Some(value) = value else { return Ok(()) };
        let super::OtlpDecoder { read, guess, .. } = &mut *self.decoder;
        let name = read.text(name);
        let (kind, text) = read.value(value)?;
        if kind == AnyValueKind::Null {
            return Ok(());
        }
        let is_repeated = match self.chunk.slots.next(AttributeSource::Attr, &name, guess) {
            Some(column) => column.push(row, text.as_bytes()),
            None => {
                self.chunk.push_extra(row, AttributeSource::Attr, &name, &text);
                false
            }
        };
        read.changed.keys_repeated += u64::from(is_repeated);
        Ok(())
    }
}
