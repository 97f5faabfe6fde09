//! Sort keys of rows, compared in place in the columns that were read. Nothing is allocated per row.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, Int64Array, RecordBatch, StringArray, StringViewArray};
use arrow::datatypes::{DataType, Int32Type};
use xxhash_rust::xxh3::xxh3_64;

use super::merge::MergeError;
use crate::tables::TableSpec;
use thalweg_delta::schema::ColumnType;

/// The columns that a table is sorted by.
pub struct SortKeys {
    pub names: &'static [&'static str],
}

impl SortKeys {
    pub fn new(spec: &'static TableSpec) -> SortKeys {
        SortKeys { names: spec.sort }
    }

    pub fn of(&self, rows: &RecordBatch) -> Result<KeyRows, MergeError> {
        let column = |name: &&str| KeyColumn::of(rows.column_by_name(name)?);
        let columns: Option<Vec<KeyColumn>> = self.names.iter().map(column).collect();
        Ok(KeyRows(columns.ok_or(MergeError::NoKey)?))
    }
}

/// The type as which a sort column is read.
pub(super) fn key_type(spec: &TableSpec, name: &str, kind: &ColumnType) -> DataType {
    match kind {
        ColumnType::String if spec.plain.contains(&name) => DataType::Utf8View,
        ColumnType::String => dictionary(),
        other => other.arrow().unwrap_or(DataType::Null),
    }
}

pub(super) fn dictionary() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// The keys of some rows, one column per key part. Nulls sort first.
#[derive(Default)]
pub struct KeyRows(Vec<KeyColumn>);

enum KeyColumn {
    Longs(Int64Array),
    Dictionary(DictionaryArray<Int32Type>, StringArray),
    Texts(StringViewArray),
}

impl KeyColumn {
    fn of(column: &ArrayRef) -> Option<KeyColumn> {
        Some(match column.data_type() {
            DataType::Int64 => KeyColumn::Longs(column.as_primitive_opt()?.clone()),
            DataType::Utf8View => KeyColumn::Texts(column.as_string_view_opt()?.clone()),
            DataType::Dictionary(..) => {
                let texts = column.as_dictionary_opt::<Int32Type>()?;
                KeyColumn::Dictionary(texts.clone(), texts.values().as_string_opt::<i32>()?.clone())
            }
            _ => return None,
        })
    }

    fn text(&self, row: usize) -> Option<&str> {
        match self {
            KeyColumn::Longs(_) => None,
            KeyColumn::Dictionary(keys, texts) => {
                let key = keys.key(row)?;
                (key < texts.len()).then(|| texts.value(key))
            }
            KeyColumn::Texts(texts) => texts.is_valid(row).then(|| texts.value(row)),
        }
    }

    fn long(&self, row: usize) -> Option<i64> {
        match self {
            KeyColumn::Longs(longs) => longs.is_valid(row).then(|| longs.value(row)),
            _ => None,
        }
    }

    #[inline]
    fn compare(&self, row: usize, other: &KeyColumn, other_row: usize) -> Ordering {
        match (self, other) {
            (KeyColumn::Longs(_), KeyColumn::Longs(_)) => self.long(row).cmp(&other.long(other_row)),
            (KeyColumn::Dictionary(a, texts), KeyColumn::Dictionary(b, others))
                if std::ptr::eq(texts.value_data(), others.value_data()) =>
            {
                // Within one dictionary equal keys mean equal texts.
                match a.key(row) == b.key(other_row) {
                    true => Ordering::Equal,
                    false => self.text(row).cmp(&other.text(other_row)),
                }
            }
            _ => self.text(row).cmp(&other.text(other_row)),
        }
    }

    /// Mixes the value of each row into its checksum.
    fn mix_into(&self, numbers: &mut [u64]) {
        match self {
            KeyColumn::Longs(longs) if longs.null_count() == 0 => {
                for (number, long) in numbers.iter_mut().zip(longs.values()) {
                    *number = mix(*number, *long as u64);
                }
            }
            KeyColumn::Longs(longs) => {
                for (number, long) in numbers.iter_mut().zip(longs) {
                    *number = mix(*number, hash_of_long(long));
                }
            }
            KeyColumn::Dictionary(keys, _) => {
                // Adjacent rows mostly have the same key.
                let mut last = (None, hash_of_text(None));
                for (row, number) in numbers.iter_mut().enumerate() {
                    let key = keys.key(row);
                    if key != last.0 {
                        last = (key, hash_of_text(self.text(row)));
                    }
                    *number = mix(*number, last.1);
                }
            }
            KeyColumn::Texts(_) => {
                for (row, number) in numbers.iter_mut().enumerate() {
                    *number = mix(*number, hash_of_text(self.text(row)));
                }
            }
        }
    }
}

fn hash_of_text(text: Option<&str>) -> u64 {
    text.map_or(NOTHING, |text| xxh3_64(text.as_bytes()))
}

fn hash_of_long(long: Option<i64>) -> u64 {
    long.map_or(NOTHING, |long| long as u64)
}

/// The hash of null.
const NOTHING: u64 = 0x6c62_272e_07bb_0142;

/// An order-dependent mix of both numbers (after splitmix64).
fn mix(number: u64, with: u64) -> u64 {
    let mixed = (number.rotate_left(23) ^ with).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 32).wrapping_mul(0x94d0_49bb_1331_11eb)
}

impl KeyRows {
    #[inline]
    pub fn compare(&self, row: usize, other: &KeyRows, other_row: usize) -> Ordering {
        let mut columns = self.0.iter().zip(&other.0);
        let differs = columns.find_map(|(a, b)| match a.compare(row, b, other_row) {
            Ordering::Equal => None,
            order => Some(order),
        });
        differs.unwrap_or(Ordering::Equal)
    }

    /// Whether two rows differ at most in the last part of their keys.
    pub fn are_revisions(&self, row: usize, other: &KeyRows, other_row: usize) -> bool {
        let parts = self.0.len().saturating_sub(1);
        let mut columns = self.0.iter().zip(&other.0).take(parts);
        columns.all(|(a, b)| a.compare(row, b, other_row) == Ordering::Equal)
    }

    /// A checksum of each row's key and the additional value. Equal rows have equal checksums.
    pub fn checksums(&self, rows: usize, also: Option<&[i64]>) -> Vec<u64> {
        let mut numbers = vec![0; rows];
        self.0.iter().for_each(|column| column.mix_into(&mut numbers));
        for (number, also) in numbers.iter_mut().zip(also.unwrap_or_default()) {
            *number = mix(*number, *also as u64);
        }
        numbers
    }

    /// The same for one row.
    pub fn checksum(&self, row: usize, also: Option<i64>) -> u64 {
        let of = |column: &KeyColumn| match column {
            KeyColumn::Longs(_) => hash_of_long(column.long(row)),
            _ => hash_of_text(column.text(row)),
        };
        let number = self.0.iter().fold(0, |number, column| mix(number, of(column)));
        also.map_or(number, |also| mix(number, also as u64))
    }
}
