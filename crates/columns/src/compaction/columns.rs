//! Converts runs of read rows to file columns.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanBufferBuilder, PrimitiveArray, new_null_array};
use arrow::compute::{cast, concat};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Field, Float64Type, Int32Type, Int64Type, Schema, TimestampMicrosecondType,
};
use hashbrown::HashMap;

use super::merge::MergeError;
use super::merge_iterator::RowRun;
use crate::file::{FileColumn, SourceSegment, ValidityBitmap};
use crate::rows::text::NULL;
use crate::tables::TableSpec;

/// The number of texts after which a dictionary of mostly distinct texts is given up.
const TRIED_TEXTS: usize = 4096;

/// Returns one column per field of the schema.
pub fn columns<'a>(spec: &TableSpec, schema: &Schema, runs: &'a [RowRun]) -> Result<Vec<FileColumn<'a>>, MergeError> {
    schema.fields().iter().map(|field| column(spec, field, runs)).collect()
}

/// The column of a run's batch; `None` if its file lacks it.
type RunColumn<'a> = (Option<&'a ArrayRef>, &'a RowRun);

fn column<'a>(spec: &TableSpec, field: &Field, runs: &'a [RowRun]) -> Result<FileColumn<'a>, MergeError> {
    let name = field.name().as_str();
    let is_near = spec.near.contains(&name);
    if runs.iter().any(|run| run.piece.sources.contains_key(name)) {
        let segments = segments(name, runs);
        return Ok(FileColumn::Read { segments, is_near });
    }
    let parts: Vec<RunColumn<'a>> = runs
        .iter()
        .map(|run| (run.piece.rows.column_by_name(name), run))
        .collect();
    let has_values = |(array, _): &RunColumn<'_>| array.is_some_and(|array| array.null_count() < array.len());
    if !parts.iter().any(has_values) {
        return Ok(FileColumn::Nothing);
    }
    Ok(match field.data_type() {
        DataType::Int64 => {
            let (values, present) = numbers::<Int64Type>(&parts)?;
            FileColumn::Longs {
                values,
                present,
                is_near,
            }
        }
        DataType::Timestamp(..) => {
            let (values, present) = numbers::<TimestampMicrosecondType>(&parts)?;
            FileColumn::Longs {
                values,
                present,
                is_near,
            }
        }
        DataType::Int32 => {
            let (values, present) = numbers::<Int32Type>(&parts)?;
            FileColumn::Integers(values, present)
        }
        DataType::Float64 => {
            let (values, present) = numbers::<Float64Type>(&parts)?;
            FileColumn::Doubles(values, present)
        }
        DataType::Boolean => booleans(&parts),
        DataType::Utf8 | DataType::Binary => match spec.plain.contains(&name) {
            true => FileColumn::Plain(each_text(&parts)),
            false => texts(&parts),
        },
        kind => nested(&parts, kind)?,
    })
}

/// Merges adjacent rows of one row group into one segment.
fn segments(name: &str, runs: &[RowRun]) -> Vec<SourceSegment> {
    let mut segments: Vec<SourceSegment> = Vec::new();
    for run in runs {
        let source = run.piece.sources.get(name).filter(|source| !source.is_empty());
        let first = run.piece.first_row + run.begin;
        match (source, segments.last_mut()) {
            (None, Some(SourceSegment::Nulls(rows))) => *rows += run.len,
            (None, _) => segments.push(SourceSegment::Nulls(run.len)),
            (Some(source), Some(SourceSegment::Rows { source: last, rows }))
                if Arc::ptr_eq(last, source) && rows.end == first =>
            {
                rows.end += run.len;
            }
            (Some(source), _) => segments.push(SourceSegment::Rows {
                source: source.clone(),
                rows: first..first + run.len,
            }),
        }
    }
    segments
}

fn rows(parts: &[RunColumn<'_>]) -> usize {
    parts.iter().map(|(_, run)| run.len).sum()
}

fn numbers<T: ArrowPrimitiveType>(parts: &[RunColumn<'_>]) -> Result<(Vec<T::Native>, ValidityBitmap), MergeError> {
    let mut all = Vec::with_capacity(rows(parts));
    for (array, run) in parts {
        match array {
            Some(array) => {
                let array: &PrimitiveArray<T> = array.as_primitive_opt().ok_or(MergeError::NoKey)?;
                all.extend_from_slice(array.values().get(run.begin..run.begin + run.len).unwrap_or_default());
            }
            None => all.resize(all.len() + run.len, T::Native::default()),
        }
    }
    Ok((all, present(parts)))
}

fn booleans<'a>(parts: &[RunColumn<'a>]) -> FileColumn<'a> {
    let mut all = Vec::with_capacity(rows(parts));
    for (array, run) in parts {
        match array.and_then(|array| array.as_boolean_opt()) {
            Some(array) => all.extend((run.begin..run.begin + run.len).map(|row| array.value(row))),
            None => all.resize(all.len() + run.len, false),
        }
    }
    FileColumn::Booleans(all, present(parts))
}

fn present(parts: &[RunColumn<'_>]) -> ValidityBitmap {
    let is_whole = |(array, _): &RunColumn<'_>| array.is_some_and(|array| array.null_count() == 0);
    if parts.iter().all(is_whole) {
        return None;
    }
    let mut bits = BooleanBufferBuilder::new(rows(parts));
    for (array, run) in parts {
        match array.map(|array| array.nulls()) {
            Some(Some(nulls)) => bits.append_buffer(&nulls.inner().slice(run.begin, run.len)),
            Some(None) => bits.append_n(run.len, true),
            None => bits.append_n(run.len, false),
        }
    }
    Some(bits.finish())
}

/// The text of each row.
fn each_text<'a>(parts: &[RunColumn<'a>]) -> Vec<Option<&'a [u8]>> {
    let mut all = Vec::with_capacity(rows(parts));
    for (array, run) in parts {
        let rows = run.begin..run.begin + run.len;
        let Some(array) = array else {
            all.resize(all.len() + run.len, None);
            continue;
        };
        if let Some(views) = array.as_string_view_opt() {
            all.extend(rows.map(|row| views.is_valid(row).then(|| views.value(row).as_bytes())));
        } else if let Some(views) = array.as_binary_view_opt() {
            all.extend(rows.map(|row| views.is_valid(row).then(|| views.value(row))));
        } else if let Some(texts) = array.as_dictionary_opt::<Int32Type>()
            && let Some(values) = texts.values().as_string_opt::<i32>()
        {
            all.extend(rows.map(|row| texts.key(row).map(|key| values.value(key).as_bytes())));
        } else {
            all.resize(all.len() + run.len, None);
        }
    }
    all
}

/// Builds one dictionary, or plain texts if most of them are distinct.
fn texts<'a>(parts: &[RunColumn<'a>]) -> FileColumn<'a> {
    let is_dictionary = |array: &ArrayRef| matches!(array.data_type(), DataType::Dictionary(..));
    if parts.iter().all(|(array, _)| array.is_none_or(is_dictionary)) {
        return dictionaries(parts);
    }
    let rows = each_text(parts);
    let (mut texts, mut ids) = (Vec::new(), Vec::with_capacity(rows.len()));
    let mut known: HashMap<&[u8], u32> = HashMap::new();
    for text in &rows {
        let Some(text) = *text else {
            ids.push(NULL);
            continue;
        };
        ids.push(*known.entry(text).or_insert_with(|| {
            texts.push(text);
            texts.len() as u32 - 1
        }));
        if texts.len() > TRIED_TEXTS && texts.len() > ids.len() / 2 {
            return FileColumn::Plain(rows);
        }
    }
    FileColumn::Dictionary { texts, ids }
}

/// Merges the dictionaries into one.
fn dictionaries<'a>(parts: &[RunColumn<'a>]) -> FileColumn<'a> {
    let (mut texts, mut ids) = (Vec::new(), Vec::with_capacity(rows(parts)));
    let mut known: HashMap<&'a [u8], u32> = HashMap::new();
    // Batches of one row group share a dictionary.
    let mut of_array: HashMap<*const (), Vec<u32>> = HashMap::new();
    for (array, run) in parts {
        let array = array.and_then(|array| array.as_dictionary_opt::<Int32Type>());
        let values = array.and_then(|array| array.values().as_string_opt::<i32>());
        let (Some(array), Some(values)) = (array, values) else {
            ids.resize(ids.len() + run.len, NULL);
            continue;
        };
        let of_key = of_array.entry(Arc::as_ptr(array.values()).cast()).or_insert_with(|| {
            let id_of = |key: usize| {
                let text = values.value(key).as_bytes();
                *known.entry(text).or_insert_with(|| {
                    texts.push(text);
                    texts.len() as u32 - 1
                })
            };
            (0..values.len()).map(id_of).collect()
        });
        let keys = array.keys();
        match keys.nulls() {
            None => {
                let keys = keys.values().get(run.begin..run.begin + run.len).unwrap_or_default();
                ids.extend(
                    keys.iter()
                        .map(|key| of_key.get(*key as usize).copied().unwrap_or(NULL)),
                );
            }
            Some(_) => ids.extend((run.begin..run.begin + run.len).map(|row| {
                let key = array.key(row);
                key.and_then(|key| of_key.get(key).copied()).unwrap_or(NULL)
            })),
        }
    }
    FileColumn::Dictionary { texts, ids }
}

fn nested<'a>(parts: &[RunColumn<'a>], kind: &DataType) -> Result<FileColumn<'a>, MergeError> {
    let array = |(array, run): &RunColumn<'a>| match array {
        // Files may name the fields within lists and maps differently.
        Some(array) => cast(&array.slice(run.begin, run.len), kind),
        None => Ok(new_null_array(kind, run.len)),
    };
    let arrays: Vec<ArrayRef> = parts.iter().map(array).collect::<Result<_, _>>()?;
    let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    Ok(FileColumn::Nested(concat(&arrays)?))
}
