use std::io::Write as _;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Float64Array, Int64Array, RecordBatch, StringArray, UInt64Array};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::file::properties::{EnabledStatistics, WriterProperties};

use super::*;
use crate::format::BytesAs;

/// A thousand rows in ten row groups.
fn made() -> ParquetFile {
    let column = |name: &'static str, values: ArrayRef| (name, values);
    let rows = RecordBatch::try_from_iter([
        column(
            "n",
            Arc::new(Int64Array::from_iter_values((0..1000).map(|n| i64::MAX - 1000 + n))),
        ),
        column(
            "Text",
            Arc::new(StringArray::from_iter(
                (0..1000).map(|n| (n % 2 == 0).then(|| format!("t{n:04}"))),
            )),
        ),
        column(
            "b",
            Arc::new(BinaryArray::from_iter_values((0..1000).map(|n: i32| n.to_le_bytes()))),
        ),
    ])
    .unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(100))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&writer.into_inner().unwrap()).unwrap();
    ParquetFile::of("x.parquet", file).unwrap()
}

fn lines(wanted: &Cat) -> Result<Vec<String>, ParquetFileError> {
    let mut out = Vec::new();
    let rows = cat(&made(), wanted, &mut out)?;
    let lines: Vec<String> = String::from_utf8(out).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), rows);
    Ok(lines)
}

#[test]
fn rows_are_shown_as_they_are_asked_for() {
    let three = Cat {
        limit: Some(3),
        ..Cat::default()
    };
    assert_eq!(
        lines(&three).unwrap()[2],
        r#"{"n":"9223372036854774809","Text":"t0002","b":"AgAAAA=="}"#
    );
    let short = Cat {
        bytes: BytesAs::Length,
        ..three.clone()
    };
    assert_eq!(
        lines(&short).unwrap()[1],
        r#"{"n":"9223372036854774808","Text":null,"b":"[4]byte"}"#
    );
    let some = Cat {
        columns: vec!["b".to_owned(), "n".to_owned()],
        filter: Some(r#""Text" >= 't0990' and "Text" < 't0994'"#.to_owned()),
        ..Cat::default()
    };
    assert_eq!(
        lines(&some).unwrap(),
        [
            r#"{"b":"3gMAAA==","n":"9223372036854775797"}"#,
            r#"{"b":"4AMAAA==","n":"9223372036854775799"}"#
        ]
    );
    let limited = Cat { limit: Some(1), ..some };
    assert_eq!(lines(&limited).unwrap().len(), 1);
    assert_eq!(lines(&Cat::default()).unwrap().len(), 1000);
}

#[test]
fn what_is_wrong_is_said_in_one_sentence() {
    let of = |columns: &[&str], filter: Option<&str>| {
        let wanted = Cat {
            columns: columns.iter().map(|name| (*name).to_owned()).collect(),
            filter: filter.map(str::to_owned),
            ..Cat::default()
        };
        lines(&wanted).unwrap_err().to_string()
    };
    assert_eq!(of(&["x"], None), "there is no column x; the columns are: n, Text, b");
    for filter in ["n", "x = 1", "n ="] {
        let error = of(&[], Some(filter));
        assert!(error.starts_with("--where: sql."), "{error}");
    }
    let no_file = ParquetFile::open("/nowhere.parquet").err().unwrap().to_string();
    assert!(no_file.starts_with("/nowhere.parquet cannot be opened"), "{no_file}");
    let url = ParquetFile::open("s3://bucket/x.parquet").err().unwrap().to_string();
    assert!(url.contains("only files can be read"), "{url}");
    let mut text = tempfile::tempfile().unwrap();
    text.write_all(b"no parquet at all").unwrap();
    let error = ParquetFile::of("x", text).err().unwrap().to_string();
    assert!(error.starts_with("x is not a Parquet file, or is damaged"), "{error}");
}

#[test]
fn a_file_says_what_it_has() {
    let opened = made();
    let info = schema(&opened, None);
    assert_eq!((info.rows, info.row_groups), (1000, 10));
    let column = &info.columns[1];
    assert_eq!((column.path.as_str(), column.physical.as_str()), ("Text", "BYTE_ARRAY"));
    assert_eq!(column.logical.as_deref(), Some("UTF8"));
    let info = stats(&opened);
    let (n, text) = (&info.columns[0], &info.columns[1]);
    assert_eq!(n.min.as_deref(), Some("9223372036854774807"));
    assert_eq!(n.max.as_deref(), Some("9223372036854775806"));
    assert_eq!(
        (text.nulls, text.min.as_deref(), text.max.as_deref()),
        (Some(500), Some("t0000"), Some("t0998"))
    );
    assert_eq!(info.row_groups[3].columns[1].min.as_deref(), Some("t0300"));
    assert_eq!(info.row_groups.iter().map(|group| group.rows).sum::<i64>(), 1000);
    assert!(info.compressed > 0 && info.uncompressed >= info.compressed / 2);
}

/// Row groups of four rows, as another program writes them: with NaN, zeros of both signs, texts longer than their
/// bounds, and a column without statistics.
fn foreign(rows: &RecordBatch) -> ParquetFile {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(4))
        .set_statistics_truncate_length(Some(2))
        .set_column_statistics_enabled("untold".into(), EnabledStatistics::None)
        .set_created_by("another program".to_owned())
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(properties)).unwrap();
    writer.write(rows).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&writer.into_inner().unwrap()).unwrap();
    ParquetFile::of("foreign.parquet", file).unwrap()
}

/// As parquet-go 0.25 writes it, which leaves out zeros, and as writers do that give all row groups the same ordinal.
#[test]
fn a_file_whose_row_groups_have_odd_ordinals_is_read() {
    let numbers = Arc::new(Int64Array::from_iter_values(0..10)) as ArrayRef;
    let rows = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(4)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(properties)).unwrap();
    writer.write(&rows).unwrap();
    let usual = writer.into_inner().unwrap();
    for is_first_absent in [true, false] {
        let odd = thalweg_columns::file::footer::with_odd_ordinals(&usual, is_first_absent).unwrap();
        assert_ne!(odd, usual);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&odd).unwrap();
        let opened = ParquetFile::of("odd.parquet", file).unwrap();
        let info = stats(&opened);
        assert_eq!((info.rows, info.row_groups.len()), (10, 3));
        let wanted = Cat {
            filter: Some("n > 3".to_owned()),
            ..Cat::default()
        };
        let mut out = Vec::new();
        assert_eq!(cat(&opened, &wanted, &mut out).unwrap(), 6);
        assert!(out.starts_with(b"{\"n\":4}\n"));
    }
}

/// A row group that is skipped by the statistics of another program has no matching row.
#[test]
fn a_filter_finds_in_files_of_others_what_reading_all_of_them_finds() {
    let doubles = [
        1.0,
        f64::NAN,
        -0.0,
        0.0,
        -f64::NAN,
        f64::INFINITY,
        -1.0,
        f64::NEG_INFINITY,
    ];
    let count = 200_usize;
    // A permutation, so that there are groups of all kinds.
    let mixed = |n: usize, below: usize| (n * 7919 + n / 3) % below;
    let rows = RecordBatch::try_from_iter([
        (
            "n",
            Arc::new(Int64Array::from_iter_values((0..count).map(|n| n as i64))) as ArrayRef,
        ),
        (
            "d",
            Arc::new(Float64Array::from_iter(
                (0..count).map(|n| (n % 5 != 0).then(|| doubles[mixed(n, 8)])),
            )),
        ),
        (
            "text",
            Arc::new(StringArray::from_iter(
                (0..count).map(|n| (n % 7 != 0).then(|| format!("zz{}", mixed(n, 9)))),
            )),
        ),
        (
            "u",
            Arc::new(UInt64Array::from_iter_values(
                (0..count).map(|n| u64::MAX - mixed(n, 90) as u64),
            )),
        ),
        (
            "untold",
            Arc::new(Int64Array::from_iter(
                (0..count).map(|n| (n % 3 != 0).then_some(n as i64)),
            )),
        ),
    ])
    .unwrap();
    let mut filters = vec![
        "d is null".to_owned(),
        "untold is null".to_owned(),
        "text is null".to_owned(),
        "isnan(d)".to_owned(),
    ];
    for operator in ["=", ">", ">=", "<", "<=", "<>"] {
        let literals = [
            "1.0",
            "0.0",
            "-0.0",
            "cast('NaN' as double)",
            "cast('inf' as double)",
            "-1.0",
        ];
        filters.extend(literals.map(|literal| format!("d {operator} {literal}")));
        filters.extend(["zz3", "zz", "zz9", "z"].map(|text| format!("text {operator} '{text}'")));
        filters.extend([0, 100, 7].map(|n| format!("n {operator} {n}")));
        filters.push(format!("untold {operator} 50"));
        filters.push(format!("u {operator} 18446744073709551600"));
    }
    let opened = foreign(&rows);
    for filter in filters {
        let wanted = Cat {
            filter: Some(filter.clone()),
            ..Cat::default()
        };
        let mut found = Vec::new();
        let pruned = cat(&opened, &wanted, &mut found).unwrap();
        // The same filter with a term that prevents pruning.
        let whole = Cat {
            filter: Some(format!("({filter}) or random() > 2.0")),
            ..Cat::default()
        };
        let mut all = Vec::new();
        let read = cat(&opened, &whole, &mut all).unwrap();
        assert_eq!((pruned, found), (read, all), "{filter}");
    }
}
