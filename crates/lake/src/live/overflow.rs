//! Attributes without a column, as a map for each row.

use std::sync::Arc;

use arrow::array::{ArrayRef, MapArray, StringBuilder, StructArray};
use arrow::buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Fields};
use arrow::error::ArrowError;

use crate::attributes::{Bindings, Place};
use crate::delta::schema::text_map_type;
use crate::rows::chunk::Chunk;
use crate::rows::slots::Slot;

/// A map for each row of a chunk, null where a row has nothing to put there; `None` if no row has. Their keys are the names as they were sent, behind `attr.`, `resource.` or `scope.`.
pub(crate) fn overflow(chunk: &Chunk, bindings: &Bindings) -> Result<Option<ArrayRef>, ArrowError> {
    let is_placed = |slot: &&Slot| matches!(bindings.place(slot.source, &slot.name), Some(Place::Column(_)));
    let slots: Vec<&Slot> = chunk.slots().all().iter().filter(|slot| !is_placed(slot)).collect();
    let slots: Vec<(String, &Slot)> = slots
        .into_iter()
        .filter(|slot| !slot.column.keys().is_empty())
        .map(|slot| (format!("{}.{}", slot.source.as_str(), &slot.name), slot))
        .collect();
    let mut extras = chunk.extras().iter().peekable();
    if slots.is_empty() && extras.peek().is_none() {
        return Ok(None);
    }
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
        while let Some(extra) = extras.next_if(|extra| extra.row as usize == row) {
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
