//! Attributes without a column, as a map for each row.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, MapArray, StringBuilder, StructArray};
use arrow::buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Fields};
use arrow::error::ArrowError;

use thalweg_columns::attributes::{AttributeBindings, AttributeTarget};
use thalweg_columns::rows::attribute_columns::{AttributeColumn, AttributeSource};
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::extra_attributes::ExtraAttribute;
use thalweg_delta::schema::text_map_type;

/// A map for each row of a chunk, null for rows without such attributes; `None` if no row has any. The keys are the
/// original names after `attr.`, `resource.` or `scope.`.
pub(crate) fn overflow(chunk: &MemtableChunk, bindings: &AttributeBindings) -> Result<Option<ArrayRef>, ArrowError> {
    let has_none = |source, name: &str| !matches!(bindings.place(source, name), Some(AttributeTarget::Column(_)));
    let slots = chunk.slots().all().iter();
    let slots: Vec<(String, &AttributeColumn)> = slots
        .filter(|slot| has_none(slot.source, &slot.name) && !slot.column.keys().is_empty())
        .map(|slot| (format!("{}.{}", slot.source.as_str(), &slot.name), slot))
        .collect();
    let extras = chunk.extras().iter();
    let extras: Vec<&ExtraAttribute> = extras.filter(|extra| has_none(extra.source, &extra.name)).collect();
    if slots.is_empty() && extras.is_empty() {
        return Ok(None);
    }
    let mut extras = extras.chunk_by(|a, b| a.row == b.row).peekable();
    let (mut keys, mut values) = (StringBuilder::new(), StringBuilder::new());
    let (mut ends, mut count) = (Vec::with_capacity(chunk.rows() + 1), 0_i32);
    ends.push(0);
    for row in 0..chunk.rows() {
        for (key, slot) in &slots {
            let Some(text) = slot.column.text_of(row) else { continue };
            keys.append_value(key);
            values.append_value(String::from_utf8_lossy(text));
            count += 1;
        }
        let of_row = extras.next_if(|extras| extras.first().is_some_and(|extra| extra.row as usize == row));
        for extra in last_of_each(of_row.unwrap_or_default()) {
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
fn last_of_each<'a>(extras: &[&'a ExtraAttribute]) -> Vec<&'a ExtraAttribute> {
    let mut seen: HashSet<(AttributeSource, &str)> = HashSet::with_capacity(extras.len());
    let mut last: Vec<&ExtraAttribute> = extras.iter().rev().copied().collect();
    last.retain(|extra| seen.insert((extra.source, &extra.name)));
    last.reverse();
    last
}
