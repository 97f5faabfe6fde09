//! Attributes without a column, and values that do not fit the type of their column, as a map for each row.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, MapArray, StringBuilder, StructArray};
use arrow::buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Fields};
use arrow::error::ArrowError;

use thalweg_columns::attribute_types::AttributeType;
use thalweg_columns::attributes::{AttributeBindings, OverflowValues};
use thalweg_columns::rows::attribute_columns::{AttributeColumn, AttributeSource};
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::extra_attributes::ExtraAttribute;
use thalweg_columns::rows::text::{NULL, TextColumn};
use thalweg_delta::schema::text_map_type;

/// How many values are in overflow maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverflowCounts {
    /// Those of attributes without a column.
    pub without_column: u64,
    /// Those that do not fit the type of their column, by its name.
    pub misfits: BTreeMap<String, u64>,
}

/// The texts of an attribute that belong into the map.
struct OverflowTexts<'a> {
    key: String,
    column: &'a TextColumn,
    /// By the key of a text, whether it does not fit the type of the column; `None`: all texts are in the map.
    misfits: Option<Vec<bool>>,
}

impl<'a> OverflowTexts<'a> {
    /// `None` if no text belongs into the map.
    fn of(slot: &'a AttributeColumn, bindings: &AttributeBindings) -> Option<OverflowTexts<'a>> {
        let misfits = match bindings.overflow(slot.source, &slot.name) {
            OverflowValues::None => return None,
            OverflowValues::All => None,
            OverflowValues::Misfits(_, kind) => Some(misfits(&slot.column, kind)?),
        };
        (!slot.column.keys().is_empty()).then(|| OverflowTexts {
            key: format!("{}.{}", slot.source.as_str(), &slot.name),
            column: &slot.column,
            misfits,
        })
    }

    fn text_of(&self, row: usize) -> Option<&'a [u8]> {
        if let Some(misfits) = &self.misfits {
            let key = self.column.keys().get(row)?;
            misfits.get(*key as usize).filter(|is_misfit| **is_misfit)?;
        }
        self.column.text_of(row)
    }
}

/// By the key of a text, whether it is no value of a type; `None` if all are.
fn misfits(column: &TextColumn, kind: AttributeType) -> Option<Vec<bool>> {
    let texts = column.texts();
    let misfits: Vec<bool> = (0..texts.len()).map(|key| !kind.fits(texts.get(key))).collect();
    misfits.contains(&true).then_some(misfits)
}

/// A map for each row of a chunk, null for rows without such values; `None` if no row has any. The keys are the original
/// names after `attr.`, `resource.` or `scope.`.
pub(crate) fn overflow(chunk: &MemtableChunk, bindings: &AttributeBindings) -> Result<Option<ArrayRef>, ArrowError> {
    let slots = chunk.slots().all().iter();
    let slots: Vec<OverflowTexts<'_>> = slots.filter_map(|slot| OverflowTexts::of(slot, bindings)).collect();
    let extras = chunk.extras().iter();
    let extras: Vec<(&ExtraAttribute, OverflowValues)> = extras
        .map(|extra| (extra, bindings.overflow(extra.source, &extra.name)))
        .filter(|(_, values)| *values != OverflowValues::None)
        .collect();
    if slots.is_empty() && extras.is_empty() {
        return Ok(None);
    }
    let mut extras = extras.chunk_by(|(a, _), (b, _)| a.row == b.row).peekable();
    let (mut keys, mut values) = (StringBuilder::new(), StringBuilder::new());
    let (mut ends, mut count) = (Vec::with_capacity(chunk.rows() + 1), 0_i32);
    ends.push(0);
    for row in 0..chunk.rows() {
        for slot in &slots {
            let Some(text) = slot.text_of(row) else { continue };
            keys.append_value(&slot.key);
            values.append_value(String::from_utf8_lossy(text));
            count += 1;
        }
        let of_row = extras.next_if(|extras| extras.first().is_some_and(|(extra, _)| extra.row as usize == row));
        for (extra, of_name) in last_of_each(of_row.unwrap_or_default()) {
            if matches!(of_name, OverflowValues::Misfits(_, kind) if kind.fits(extra.text.as_bytes())) {
                continue;
            }
            keys.append_value(format!("{}.{}", extra.source.as_str(), extra.name));
            values.append_value(&extra.text);
            count += 1;
        }
        ends.push(count);
    }
    let valid = BooleanBuffer::collect_bool(chunk.rows(), |row| ends.get(row) != ends.get(row + 1));
    let DataType::Map(entry, is_sorted) = text_map_type() else {
        return Ok(None);
    };
    let fields = match entry.data_type() {
        DataType::Struct(fields) => fields.clone(),
        _ => Fields::empty(),
    };
    let entries = StructArray::try_new(fields, vec![Arc::new(keys.finish()), Arc::new(values.finish())], None)?;
    let map = MapArray::try_new(
        entry,
        OffsetBuffer::new(ends.into()),
        entries,
        Some(NullBuffer::new(valid)),
        is_sorted,
    )?;
    Ok(Some(Arc::new(map)))
}

/// The last value of a repeated name counts, as everywhere; map keys are unique.
fn last_of_each<'a>(extras: &[(&'a ExtraAttribute, OverflowValues)]) -> Vec<(&'a ExtraAttribute, OverflowValues)> {
    let mut seen: HashSet<(AttributeSource, &str)> = HashSet::with_capacity(extras.len());
    let mut last: Vec<(&ExtraAttribute, OverflowValues)> = extras.iter().rev().copied().collect();
    last.retain(|(extra, _)| seen.insert((extra.source, &extra.name)));
    last.reverse();
    last
}

/// The values of chunks that go to overflow maps.
pub(crate) fn overflowing<'a>(
    chunks: impl IntoIterator<Item = &'a MemtableChunk>,
    bindings: &AttributeBindings,
) -> OverflowCounts {
    let mut counts = OverflowCounts::default();
    for chunk in chunks {
        for slot in chunk.slots().all() {
            let keys = slot.column.keys().iter();
            match bindings.overflow(slot.source, &slot.name) {
                OverflowValues::None => {}
                OverflowValues::All => counts.without_column += keys.filter(|key| **key != NULL).count() as u64,
                OverflowValues::Misfits(at, kind) => {
                    let Some(misfits) = misfits(&slot.column, kind) else {
                        continue;
                    };
                    let is_misfit = |key: &&u32| misfits.get(**key as usize) == Some(&true);
                    counts.misfit(bindings, at, keys.filter(is_misfit).count() as u64);
                }
            }
        }
        for extra in chunk.extras() {
            match bindings.overflow(extra.source, &extra.name) {
                OverflowValues::None => {}
                OverflowValues::All => counts.without_column += 1,
                OverflowValues::Misfits(at, kind) => {
                    counts.misfit(bindings, at, u64::from(!kind.fits(extra.text.as_bytes())));
                }
            }
        }
    }
    counts
}

impl OverflowCounts {
    fn misfit(&mut self, bindings: &AttributeBindings, column: u16, values: u64) {
        let Some(column) = bindings.columns().get(usize::from(column)).filter(|_| values > 0) else {
            return;
        };
        match self.misfits.get_mut(column) {
            Some(known) => *known += values,
            None => drop(self.misfits.insert(column.clone(), values)),
        }
    }
}
