//! Rewrites files of other writers, which have unsorted rows and other column types, into files that can be merged.

use arrow::array::{TimestampNanosecondArray, UInt32Array};
use arrow::compute::{cast, concat_batches, take_record_batch};
use arrow::datatypes::{DataType, TimeUnit};
use parquet::file::properties::WriterProperties;

use super::*;
use crate::compaction::RewriteJob;

/// How another writer wrote a file.
#[derive(Clone, Debug)]
struct Foreign {
    /// The seed of the row permutation.
    seed: u64,
    group_rows: usize,
    has_dictionaries: bool,
    /// Uses the types that other writers have for times and texts.
    has_other_types: bool,
    /// The footer claims that the rows are sorted.
    claims_order: bool,
}

fn any_foreign() -> impl Strategy<Value = Foreign> {
    (any::<u64>(), 1_usize..300, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(seed, group_rows, has_dictionaries, has_other_types, claims_order)| Foreign {
            seed: seed | 1,
            group_rows,
            has_dictionaries,
            has_other_types,
            claims_order,
        },
    )
}

/// Rewrites a file with the same rows.
fn write_again(path: &Path, how: &Foreign) {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let schema = builder.schema().clone();
    let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
    let mut rows = concat_batches(&schema, &batches).unwrap();
    let (mut order, mut random): (Vec<u32>, u64) = ((0..rows.num_rows() as u32).collect(), how.seed);
    for at in (1..order.len()).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        order.swap(at, (random % (at as u64 + 1)) as usize);
    }
    rows = take_record_batch(&rows, &UInt32Array::from(order)).unwrap();
    if how.has_other_types {
        rows = with_other_types(&rows);
    }
    let mut properties = WriterProperties::builder()
        .set_created_by("another program".to_owned())
        .set_dictionary_enabled(how.has_dictionaries)
        .set_max_row_group_row_count(Some(how.group_rows));
    if how.claims_order {
        let by = |column_idx| parquet::file::metadata::SortingColumn {
            column_idx,
            descending: false,
            nulls_first: true,
        };
        properties = properties.set_sorting_columns(Some(vec![by(0), by(1)]));
    }
    let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), Some(properties.build())).unwrap();
    writer.write(&rows).unwrap();
    std::fs::write(path, writer.into_inner().unwrap()).unwrap();
}

/// Times in nanoseconds without a zone, and large strings.
fn with_other_types(rows: &RecordBatch) -> RecordBatch {
    let schema = rows.schema();
    let columns = schema.fields().iter().zip(rows.columns()).map(|(field, column)| {
        let column: ArrayRef = match field.data_type() {
            DataType::Timestamp(TimeUnit::Microsecond, _) => {
                let micros = cast(column, &DataType::Int64).unwrap();
                let nanos = micros
                    .as_primitive::<Int64Type>()
                    .iter()
                    .map(|at| at.map(|at| at * 1000));
                Arc::new(TimestampNanosecondArray::from_iter(nanos))
            }
            DataType::Utf8 => cast(column, &DataType::LargeUtf8).unwrap(),
            _ => column.clone(),
        };
        (field.name().clone(), column, true)
    });
    RecordBatch::try_from_iter_with_nullable(columns.collect::<Vec<_>>()).unwrap()
}

impl World {
    fn rewrite(&self, number: usize, memory: u64) -> Result<MergeResult, MergeError> {
        let rewrite = RewriteJob {
            spec: &LOGS,
            table: &table(),
            input: &self.inputs[number],
            rules: FileRules::default(),
            memory,
            is_stopped: &|| false,
        };
        let mut made = 0;
        rewrite.run(&mut || {
            made += 1;
            let path = self.folder.path().join(format!("rewritten-{number}-{made}.parquet"));
            let file = File::create(&path).unwrap();
            Ok(Box::new(ToDisk {
                file,
                path,
                is_bad: false,
            }))
        })
    }
}

fn by_key(mut rows: Vec<Row>) -> Vec<Row> {
    let rest = |row: &Row| {
        let (body, attribute) = (row.body.clone(), row.attribute.clone());
        (row.arrival, body, attribute, row.flags, row.overflow.clone())
    };
    rows.sort_by_cached_key(|row| (row.service.clone(), row.time, rest(row)));
    rows
}

fn cases() -> u32 {
    let cases = std::env::var("THALWEG_SIM_SEEDS").ok();
    cases.and_then(|cases| cases.parse().ok()).unwrap_or(64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn a_file_of_another_writer_is_rewritten_before_it_is_merged(
        files in prop::collection::vec(prop::collection::vec(row(3, 3), 1..200), 1..4),
        how in any_foreign(),
        memory in prop_oneof![Just(1_u64 << 20), 1_u64..20_000],
    ) {
        let rules = FileRules::default();
        let mut world = World::new(&files, &rules);
        write_again(&world.inputs[0], &how);
        let refused = world.merge(&rules, 1 << 30, false).err();
        prop_assert!(matches!(refused, Some(MergeError::Unsorted { .. })), "{:?}", refused);

        let rewritten = world.rewrite(0, memory).unwrap();
        prop_assert_eq!(rewritten.tally.rows, files[0].len() as u64);
        let mut found = Vec::new();
        for output in &rewritten.outputs {
            let rows = read(output.sink.path());
            prop_assert_eq!(output.rows, rows.len() as u64);
            prop_assert_eq!(output.bytes, output.sink.path().metadata().unwrap().len());
            let keys: Vec<_> = rows.iter().map(|row| (&row.service, row.time)).collect();
            prop_assert!(keys.is_sorted());
            found.extend(rows);
        }
        prop_assert_eq!(by_key(found), by_key(files[0].clone()));

        world.inputs.remove(0);
        world.inputs.extend(rewritten.outputs.iter().map(|output| output.sink.path().to_owned()));
        let merged = world.merge(&rules, 1 << 30, false).unwrap();
        let found = merged.outputs.iter().flat_map(|output| read(output.sink.path()));
        prop_assert_eq!(by_key(found.collect()), by_key(files.concat()));
    }
}

#[test]
fn a_file_that_lacks_what_every_row_has_is_not_rewritten() {
    let row = Row {
        service: None,
        time: 1,
        arrival: 1,
        body: None,
        attribute: None,
        flags: None,
        overflow: None,
    };
    let world = World::new(&[vec![row]], &FileRules::default());
    let path = &world.inputs[0];
    let without = |name: &str| {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
        let rows: RecordBatch = reader.build().unwrap().next().unwrap().unwrap();
        let mut rows = rows;
        rows.remove_column(rows.schema().index_of(name).unwrap());
        let mut writer = ArrowWriter::try_new(Vec::new(), rows.schema(), None).unwrap();
        writer.write(&rows).unwrap();
        std::fs::write(path, writer.into_inner().unwrap()).unwrap();
    };
    // A sort column may be missing: then all of its values are null.
    without("resource_service_name");
    assert_eq!(world.rewrite(0, 1 << 20).unwrap().tally.rows, 1);
    without("arrival_unix_nano");
    let failed = world.rewrite(0, 1 << 20).err().unwrap();
    assert!(matches!(failed, MergeError::Foreign { .. }), "{failed}");
    assert!(
        failed.to_string().contains("a row has no arrival_unix_nano"),
        "{failed}"
    );
    std::fs::write(path, b"PAR1 torn").unwrap();
    let failed = world.rewrite(0, 1 << 20).err().unwrap();
    assert!(matches!(failed, MergeError::Input { .. }), "{failed}");
}
