use arrow::array::AsArray;

use super::*;
use thalweg_columns::rows::attribute_columns::AttributeColumnHint;
use thalweg_columns::tables::LOGS;

/// A chunk of three rows in which all attribute columns are taken by other names; further attributes get no column.
fn full() -> MemtableChunk {
    let mut chunk = MemtableChunk::new(&LOGS);
    let row = chunk.begin_row();
    for n in 0..1024 {
        let column = chunk.slots.next(
            AttributeSource::Attr,
            &format!("n{n}"),
            &mut AttributeColumnHint::default(),
        );
        column.unwrap().push(row, b"x");
    }
    let mut none = AttributeColumnHint::default();
    assert!(chunk.slots.next(AttributeSource::Attr, "late", &mut none).is_none());
    for (name, text) in [("late", "0"), ("k", "old"), ("other", "o"), ("k", "new")] {
        chunk.push_extra(row, AttributeSource::Attr, name, text);
    }
    chunk.begin_row();
    let row = chunk.begin_row();
    chunk.push_extra(row, AttributeSource::Attr, "late", "2");
    chunk.push_extra(row, AttributeSource::Resource, "late", "of a resource");
    chunk
}

#[test]
fn a_name_that_has_a_column_in_the_table_is_there_whatever_else_the_rows_have() {
    let chunk = full();
    let mut table = (LOGS.columns)();
    let mut bindings = AttributeBindings::of(&table, AttributePromotion::default());
    table.columns.extend(bindings.admit([(AttributeSource::Attr, "late")]));
    let name = &table.columns.last().unwrap().name;
    let columns = arrow::datatypes::Schema::new(vec![Field::new(name, DataType::Utf8View, true)]);
    let rows = project(&chunk, &table, &Arc::new(columns)).unwrap();
    let late = rows.column(0).as_string_view();
    assert_eq!(late.iter().collect::<Vec<_>>(), [Some("0"), None, Some("2")]);

    let map = overflow(&chunk, &bindings).unwrap().unwrap();
    let map = map.as_map();
    let of_row = |row: usize| -> Vec<(String, String)> {
        let entries = map.value(row);
        let texts = |at: usize| entries.column(at).as_string::<i32>().clone();
        let pairs = texts(0);
        let values = texts(1);
        let pairs = pairs.iter().zip(values.iter());
        pairs
            .filter_map(|(key, value)| Some((key?.to_owned(), value?.to_owned())))
            .filter(|(key, _)| !key.starts_with("attr.n"))
            .collect()
    };
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(
        of_row(0),
        [pair("attr.other", "o"), pair("attr.k", "new")],
        "a key is there once"
    );
    assert_eq!(of_row(2), [pair("resource.late", "of a resource")]);
    // 1024 names with columns here but not in the table, and the extras without the one that has a column there.
    assert_eq!(overflowing([&chunk], &bindings).without_column, 1024 + 4);
}
