//! Reads written files back with the parquet library's own reader, including their statistics.

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray,
};
use arrow::buffer::BooleanBuffer;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int64Type};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder, RowSelection, RowSelector,
};
use parquet::file::metadata::PageIndexPolicy;
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::statistics::Statistics;
use proptest::prelude::*;

use super::*;
use crate::rows::text::NULL;

/// Columns of every kind, row by row.
#[derive(Clone, Debug, Default)]
struct Given {
    near: Vec<i64>,
    longs: Vec<Option<i64>>,
    integers: Vec<Option<i32>>,
    doubles: Vec<Option<f64>>,
    booleans: Vec<Option<bool>>,
    few: Vec<Option<String>>,
    many: Vec<Option<String>>,
    lists: Vec<Option<Vec<Option<i64>>>>,
}

fn schema() -> SchemaRef {
    let list = DataType::List(Arc::new(Field::new("element", DataType::Int64, true)));
    Arc::new(Schema::new(vec![
        Field::new("near", DataType::Int64, false),
        Field::new("longs", DataType::Int64, true),
        Field::new("integers", DataType::Int32, true),
        Field::new("doubles", DataType::Float64, true),
        Field::new("booleans", DataType::Boolean, true),
        Field::new("few", DataType::Utf8, true),
        Field::new("many", DataType::Utf8, true),
        Field::new("nothing", DataType::Utf8, true),
        Field::new("lists", list.clone(), true),
        Field::new("empty_lists", list, true),
    ]))
}

fn split<T: Copy + Default>(values: &[Option<T>]) -> (Vec<T>, ValidityBitmap) {
    let present = values.iter().any(Option::is_none);
    let present = present.then(|| BooleanBuffer::collect_bool(values.len(), |row| values[row].is_some()));
    (values.iter().map(|value| value.unwrap_or_default()).collect(), present)
}

fn bytes_of(texts: &[Option<String>]) -> Vec<Option<&[u8]>> {
    texts.iter().map(|text| text.as_ref().map(String::as_bytes)).collect()
}

impl Given {
    fn rows(&self) -> FileRows<'_> {
        let (longs, longs_present) = split(&self.longs);
        let (integers, integers_present) = split(&self.integers);
        let (doubles, doubles_present) = split(&self.doubles);
        let (booleans, booleans_present) = split(&self.booleans);
        let mut texts: Vec<&[u8]> = vec![b"a text that no row has"];
        let mut ids = Vec::new();
        for text in bytes_of(&self.few) {
            ids.push(match text {
                None => NULL,
                Some(text) => {
                    let known = texts.iter().skip(1).position(|known| *known == text).map(|at| at + 1);
                    let at = known.unwrap_or_else(|| {
                        texts.push(text);
                        texts.len() - 1
                    });
                    at as u32
                }
            });
        }
        FileRows {
            schema: schema(),
            columns: vec![
                FileColumn::Longs {
                    values: self.near.clone(),
                    present: None,
                    is_near: true,
                },
                FileColumn::Longs {
                    values: longs,
                    present: longs_present,
                    is_near: false,
                },
                FileColumn::Integers(integers, integers_present),
                FileColumn::Doubles(doubles, doubles_present),
                FileColumn::Booleans(booleans, booleans_present),
                FileColumn::Dictionary { texts, ids },
                FileColumn::Plain(bytes_of(&self.many)),
                FileColumn::Nothing,
                FileColumn::Nested(self.lists()),
                FileColumn::Nothing,
            ],
            sort: &["near"],
            bytes_per_row: 100,
        }
    }

    fn lists(&self) -> ArrayRef {
        let mut builder = arrow::array::ListBuilder::new(arrow::array::Int64Builder::new())
            .with_field(Arc::new(Field::new("element", DataType::Int64, true)));
        for list in &self.lists {
            match list {
                Some(list) => builder.append_value(list.iter().copied()),
                None => builder.append(false),
            }
        }
        Arc::new(builder.finish())
    }

    /// The rows as Arrow arrays, in the given order.
    fn batch(&self, order: &[u32]) -> RecordBatch {
        let rows = order.len();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(self.near.clone())),
            Arc::new(Int64Array::from(self.longs.clone())),
            Arc::new(Int32Array::from(self.integers.clone())),
            Arc::new(Float64Array::from(self.doubles.clone())),
            Arc::new(BooleanArray::from(self.booleans.clone())),
            Arc::new(StringArray::from(self.few.clone())),
            Arc::new(StringArray::from(self.many.clone())),
            Arc::new(StringArray::from(vec![None::<&str>; self.near.len()])),
            self.lists(),
            Arc::new(ListArray::new_null(
                Arc::new(Field::new("element", DataType::Int64, true)),
                self.near.len(),
            )),
        ];
        let order = UInt32Array::from(order.to_vec());
        let columns: Vec<ArrayRef> = columns
            .iter()
            .map(|column| take(column, &order, None).unwrap())
            .collect();
        assert_eq!(columns[0].len(), rows);
        RecordBatch::try_new(schema(), columns).unwrap()
    }
}

fn read(file: &Bytes, selection: Option<RowSelection>) -> RecordBatch {
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Required);
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file.clone(), options).unwrap();
    let builder = match selection {
        Some(selection) => builder.with_row_selection(selection),
        None => builder,
    };
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
    concat_batches(&batches.first().map_or_else(schema, RecordBatch::schema), &batches).unwrap()
}

#[track_caller]
fn assert_same(found: &RecordBatch, expected: &RecordBatch) {
    for (at, field) in expected.schema().fields().iter().enumerate() {
        // The file may name list elements and the like differently.
        let found = arrow::compute::cast(found.column(at), field.data_type()).unwrap();
        let differs = (0..expected.num_rows())
            .find(|row| found.slice(*row, 1).to_data() != expected.column(at).slice(*row, 1).to_data());
        assert_eq!(differs, None, "{}: the first row that differs", field.name());
        assert_eq!(found.len(), expected.num_rows());
    }
}

fn check(given: &Given, order: &[u32], rules: &FileRules) -> ParquetMetaData {
    let (bytes, footer) = given.rows().write(order, rules).unwrap();
    let file = Bytes::from(bytes);
    let expected = given.batch(order);
    assert_same(&read(&file, None), &expected);
    // The index finds pages.
    let (skipped, taken) = (order.len() / 3, order.len() / 5);
    let selection = RowSelection::from(vec![RowSelector::skip(skipped), RowSelector::select(taken)]);
    assert_same(&read(&file, Some(selection)), &expected.slice(skipped, taken));
    check_bounds(&file, &expected);
    footer
}

/// The bounds of the row groups and of each page contain their values.
fn check_bounds(file: &Bytes, expected: &RecordBatch) {
    let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Required);
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file.clone(), options).unwrap();
    let metadata = builder.metadata();
    let (mut begin, index, offsets) = (0, metadata.column_index().unwrap(), metadata.offset_index().unwrap());
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let rows = expected.slice(begin, group.num_rows() as usize);
        begin += group.num_rows() as usize;
        assert_eq!(group.sorting_columns().unwrap()[0].column_idx, 0);
        let near = rows.column(0).as_primitive::<Int64Type>();
        let Some(Statistics::Int64(of_near)) = group.column(0).statistics() else {
            panic!()
        };
        assert_eq!(of_near.min_opt().copied(), arrow::compute::min(near));
        assert_eq!(of_near.max_opt().copied(), arrow::compute::max(near));
        let Some(Statistics::Double(of_doubles)) = group.column(3).statistics().filter(|_| has_no_nan(&rows)) else {
            assert!(!has_no_nan(&rows));
            continue;
        };
        assert_eq!(of_doubles.null_count_opt(), Some(rows.column(3).null_count() as u64));
        for (at, leaf) in [(5, 5), (6, 6)] {
            let texts = rows.column(at).as_string::<i32>();
            let Some(Statistics::ByteArray(of_texts)) = group.column(leaf).statistics() else {
                panic!("{at}")
            };
            assert_eq!(of_texts.null_count_opt(), Some(texts.null_count() as u64));
            if let (Some(least), Some(greatest)) = (of_texts.min_bytes_opt(), of_texts.max_bytes_opt()) {
                assert!(
                    texts
                        .iter()
                        .flatten()
                        .all(|text| least <= text.as_bytes() && text.as_bytes() <= greatest)
                );
            }
            let ColumnIndexMetaData::BYTE_ARRAY(pages) = &index[number][leaf] else {
                continue;
            };
            let locations = &offsets[number][leaf].page_locations;
            for (page, location) in locations.iter().enumerate() {
                let first = location.first_row_index as usize;
                let end = locations
                    .get(page + 1)
                    .map_or(rows.num_rows(), |next| next.first_row_index as usize);
                let texts = texts.slice(first, end - first);
                assert_eq!(pages.null_count(page), Some(texts.null_count() as i64));
                for text in texts.iter().flatten() {
                    assert!(
                        pages.min_value(page).unwrap() <= text.as_bytes()
                            && text.as_bytes() <= pages.max_value(page).unwrap()
                    );
                }
            }
        }
    }
}

fn has_no_nan(rows: &RecordBatch) -> bool {
    let doubles = rows.column(3).as_primitive::<arrow::datatypes::Float64Type>();
    doubles.iter().flatten().all(|value| !value.is_nan())
}

fn given() -> impl Strategy<Value = (Given, Vec<u32>, FileRules)> {
    fn maybe<T: Clone + std::fmt::Debug + 'static>(
        some: impl Strategy<Value = T> + 'static,
        rows: usize,
    ) -> impl Strategy<Value = Vec<Option<T>>> {
        let some = some.boxed();
        prop_oneof![
            prop::collection::vec(some.clone().prop_map(Some), rows),
            prop::collection::vec(prop::option::of(some), rows),
            Just(vec![None; rows]),
        ]
    }
    (1_usize..300).prop_flat_map(|rows| {
        let columns = (
            prop::collection::vec(prop_oneof![any::<i64>(), 0_i64..100], rows),
            maybe(prop_oneof![any::<i64>(), 0_i64..4], rows),
            maybe(0_i32..9, rows),
            maybe(prop_oneof![any::<f64>(), Just(f64::NAN), Just(-0.0)], rows),
            maybe(any::<bool>(), rows),
            maybe("[a-c]{0,2}", rows),
            maybe("\\PC{0,90}", rows),
            maybe(prop::collection::vec(any::<Option<i64>>(), 0..4), rows),
        );
        let order = Just((0..rows as u32).collect::<Vec<u32>>()).prop_shuffle();
        let group = prop_oneof![Just(1_usize << 20), 1000_usize..20_000];
        (columns, order, 1..=rows, group).prop_map(|(columns, mut order, taken, row_group_bytes)| {
            let (near, longs, integers, doubles, booleans, few, many, lists) = columns;
            order.truncate(taken);
            let given = Given {
                near,
                longs,
                integers,
                doubles,
                booleans,
                few,
                many,
                lists,
            };
            (
                given,
                order,
                FileRules {
                    row_group_bytes,
                    zstd_level: 1,
                },
            )
        })
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read((given, order, rules) in given()) {
        check(&given, &order, &rules);
    }
}

#[test]
fn many_rows_have_many_pages_and_groups() {
    let rows = 50_000_u32;
    let number = |row: u32| row.wrapping_mul(2_654_435_761);
    let each = |of: &dyn Fn(u32) -> bool| (0..rows).map(of).collect::<Vec<bool>>();
    let is_there = each(&|row| row % 7 != 0 && !(21_000..42_000).contains(&row));
    let given = Given {
        near: (0..i64::from(rows))
            .map(|row| 1_700_000_000_000_000_000 + row * 1_000_003)
            .collect(),
        longs: (0..rows)
            .zip(&is_there)
            .map(|(row, is)| is.then_some(i64::from(number(row) >> 8)))
            .collect(),
        integers: (0..rows).map(|row| Some((number(row) >> 29) as i32)).collect(),
        doubles: (0..rows).map(|row| Some(f64::from(row) / 3.0)).collect(),
        booleans: (0..rows)
            .zip(&is_there)
            .map(|(row, is)| is.then_some(row % 3 == 0))
            .collect(),
        few: (0..rows)
            .zip(&is_there)
            .map(|(row, is)| is.then(|| format!("service {}", number(row) >> 27)))
            .collect(),
        many: (0..rows)
            .map(|row| Some(format!("{row} {}", "x".repeat((number(row) >> 24) as usize))))
            .collect(),
        lists: vec![None; rows as usize],
    };
    let order: Vec<u32> = (0..rows).collect();
    let one = check(&given, &order, &FileRules::default());
    assert_eq!(one.num_row_groups(), 1);
    let pages = |leaf: usize| one.offset_index().map(|index| index[0][leaf].page_locations.len());
    assert_eq!((pages(0), pages(5)), (Some(3), Some(3)), "20,000 rows each");
    assert!(pages(6) > Some(6), "texts of 1 MiB each");
    let reversed: Vec<u32> = (0..rows).rev().collect();
    let rules = FileRules {
        row_group_bytes: 1_000_000,
        ..FileRules::default()
    };
    let several = check(&given, &reversed, &rules);
    assert_eq!(several.num_row_groups(), 5);
    assert!(several.row_groups().iter().all(|group| group.num_rows() == 10_000));
}

#[test]
fn texts_that_are_mostly_new_have_no_dictionary() {
    let rows = 5_000;
    let given = Given {
        near: vec![0; rows],
        longs: vec![Some(1); rows],
        integers: vec![None; rows],
        doubles: vec![None; rows],
        booleans: vec![None; rows],
        few: (0..rows).map(|row| Some(format!("{row}"))).collect(),
        many: vec![None; rows],
        lists: vec![None; rows],
    };
    let order: Vec<u32> = (0..rows as u32).collect();
    let footer = check(&given, &order, &FileRules::default());
    let has_dictionary = |leaf: usize| footer.row_group(0).column(leaf).dictionary_page_offset().is_some();
    assert!(!has_dictionary(5) && has_dictionary(1) && !has_dictionary(0));
}

/// A file on disk, its rows as Arrow arrays, and its flat columns by row group.
struct Stored {
    rows: RecordBatch,
    groups: Vec<Vec<Arc<SourceColumn>>>,
}

/// List columns come last.
const FLAT: usize = 8;

impl Stored {
    fn new((given, order, rules): &(Given, Vec<u32>, FileRules)) -> Stored {
        let (bytes, _) = given.rows().write(order, rules).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Required);
        let metadata = ArrowReaderMetadata::load(&file, options).unwrap();
        let (file, metadata) = (Arc::new(file), metadata.metadata());
        let of_group = |group: usize| {
            let column = |leaf: usize| Arc::new(SourceColumn::of(&file, metadata, group, leaf).unwrap());
            (0..FLAT).map(column).collect()
        };
        Stored {
            rows: given.batch(order),
            groups: (0..metadata.num_row_groups()).map(of_group).collect(),
        }
    }
}

/// A deterministic shuffle.
fn shuffle<T>(values: &mut Vec<T>, seed: u64) {
    let mut state = seed | 1;
    let mut shuffled: Vec<(u64, T)> = values
        .drain(..)
        .map(|value| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 20, value)
        })
        .collect();
    shuffled.sort_by_key(|(number, _)| *number);
    values.extend(shuffled.into_iter().map(|(_, value)| value));
}

/// Cuts the rows of files into pieces, shuffles these, and writes a file from them.
fn check_copied(files: &[Stored], lens: &[usize], seed: u64, is_mixed: bool, rules: &FileRules) {
    let mut lens = lens.iter().copied().cycle();
    let mut pieces = Vec::new();
    for (number, file) in files.iter().enumerate() {
        let mut before = 0;
        for (group, columns) in file.groups.iter().enumerate() {
            let rows = columns[0].pages.last().unwrap().end();
            let mut at = 0;
            while at < rows {
                let end = rows.min(at + lens.next().unwrap());
                pieces.push((number, group, at..end, before));
                at = end;
            }
            before += rows;
        }
    }
    shuffle(&mut pieces, seed);
    let slices: Vec<RecordBatch> = pieces
        .iter()
        .map(|(file, _, rows, before)| files[*file].rows.slice(before + rows.start, rows.len()))
        .collect();
    let all = concat_batches(&schema(), &slices).unwrap();
    let mut order: Vec<u32> = (0..all.num_rows() as u32).collect();
    if is_mixed {
        shuffle(&mut order, seed);
    }
    let segment = |(file, group, rows, _): &(usize, usize, std::ops::Range<usize>, usize), leaf: usize| {
        let source = files[*file].groups[*group][leaf].clone();
        match source.is_empty() {
            true => SourceSegment::Nulls(rows.len()),
            false => SourceSegment::Rows {
                source,
                rows: rows.clone(),
            },
        }
    };
    let mut columns: Vec<FileColumn<'_>> = (0..FLAT)
        .map(|leaf| FileColumn::Read {
            segments: pieces.iter().map(|piece| segment(piece, leaf)).collect(),
            is_near: leaf == 0,
        })
        .collect();
    columns.extend([FileColumn::Nested(all.column(FLAT).clone()), FileColumn::Nothing]);
    let mut writer = FileWriter::new(schema(), &["near"], rules).unwrap();
    writer.write_group(&columns, &order).unwrap();
    let (bytes, _) = writer.finish().unwrap();
    let order = UInt32Array::from(order);
    let expected = all.columns().iter().map(|column| take(column, &order, None).unwrap());
    let expected = RecordBatch::try_new(schema(), expected.collect()).unwrap();
    let file = Bytes::from(bytes);
    assert_same(&read(&file, None), &expected);
    check_bounds(&file, &expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn columns_of_other_files_come_back(
        files in prop::collection::vec(given(), 1..4),
        lens in prop::collection::vec(1_usize..90, 1..8),
        seed in any::<u64>(),
        is_mixed in any::<bool>(),
        zstd_level in 1..3,
    ) {
        let files: Vec<Stored> = files.iter().map(Stored::new).collect();
        let rules = FileRules { zstd_level, ..FileRules::default() };
        check_copied(&files, &lens, seed, is_mixed, &rules);
    }
}
