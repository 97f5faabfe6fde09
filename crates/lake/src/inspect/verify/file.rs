//! Verifies one file: its footer, and the agreement with the table's log.

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

use object_store::ObjectStoreExt as _;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, RowGroupMetaData};

use super::{FileCheck, VerifyTarget, index, pages};
use crate::inspect::summary::{date_of, nanos_text};
use thalweg_columns::file;
use thalweg_delta::schema::TableSchema;
use thalweg_delta::stats::{ColumnBound, ColumnStats, FileStats};
use thalweg_delta::store::{FaultKind, LocalFile};
use thalweg_delta::{DeltaError, FileEntry};
use thalweg_kit::threads;

/// The values begin after the magic number.
const MAGIC_BYTES: i64 = 4;
/// The most findings of one kind that are reported per file.
const SAME_MAX: usize = 5;

type FileFindings = Vec<(&'static str, String)>;

pub(super) fn look_at(subject: &VerifyTarget<'_>, entry: &FileEntry) -> FileCheck {
    let mut seen = FileCheck {
        bytes: 0,
        rows: 0,
        findings: Vec::new(),
    };
    // Parquet readers panic on some kinds of damage.
    let looked = catch_unwind(AssertUnwindSafe(|| open(subject, entry, &mut seen)));
    match looked {
        Ok(Ok(())) => {}
        Ok(Err(finding)) => seen.findings.push(finding),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            let problem = format!("the file cannot be read: {}", text.unwrap_or_default());
            seen.findings.push(("unreadable", problem));
        }
    }
    let mut told: HashMap<&str, usize> = HashMap::new();
    seen.findings.retain(|(kind, _)| {
        let of_kind = told.entry(kind).or_default();
        *of_kind += 1;
        *of_kind <= SAME_MAX
    });
    for (kind, count) in told {
        if count > SAME_MAX {
            let more = format!("and {} more of this kind", count - SAME_MAX);
            seen.findings.push((known(kind), more));
        }
    }
    seen
}

/// Maps a kind to its static name, because the counting map borrows the findings.
fn known(kind: &str) -> &'static str {
    let kinds = ["columns", "statistics", "index", "order", "date", "values"];
    kinds.into_iter().find(|known| *known == kind).unwrap_or("values")
}

/// The error is a finding after which the check cannot continue.
fn open(subject: &VerifyTarget<'_>, entry: &FileEntry, seen: &mut FileCheck) -> Result<(), (&'static str, String)> {
    // Pins the copy during the check.
    let here = here(subject, entry)?;
    let file = File::open(here.path()).map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing(),
        _ => ("unreadable", format!("the file cannot be opened: {error}")),
    })?;
    let unreadable = |error: &dyn std::fmt::Display| ("unreadable", format!("the file cannot be read: {error}"));
    seen.bytes = file.metadata().map_err(|error| unreadable(&error))?.len();
    if seen.bytes != entry.size {
        let problem = format!("the file has {} bytes, the table says {}", seen.bytes, entry.size);
        seen.findings.push(("size", problem));
    }
    let options = ArrowReaderOptions::new()
        .with_skip_arrow_metadata(true)
        .with_page_index_policy(PageIndexPolicy::Optional);
    let metadata = file::footer::load(&file, options).map_err(|error| unreadable(&error))?;
    let footer = metadata.metadata();
    seen.rows = footer.file_metadata().num_rows().unsigned_abs();
    let found = &mut seen.findings;
    rows(entry, footer, found);
    columns(&subject.snapshot.schema, &metadata, found);
    statistics(subject, entry, footer, found);
    order(subject, entry, footer, found);
    chunks(footer, seen.bytes, found);
    date(subject, entry, found);
    if subject.options.deep && found.iter().all(|(kind, _)| *kind != "columns") {
        pages::look_at(subject, entry, &file, &metadata, found);
        // Files of other writers may have less detailed indexes.
        if subject.spec.is_some()
            && !entry.is_foreign
            && !found.iter().any(|(kind, _)| ["index", "unreadable"].contains(kind))
        {
            index::look_at(&file, footer, found);
        }
    }
    Ok(())
}

fn missing() -> (&'static str, String) {
    ("missing", "the file is missing".to_owned())
}

/// Makes the file available locally, with its actual size in the store.
fn here(subject: &VerifyTarget<'_>, entry: &FileEntry) -> Result<LocalFile, (&'static str, String)> {
    let log = subject.log;
    let copied = threads::block_on(&subject.runtime, async {
        let bytes = match log.remote() {
            None => entry.size,
            Some(_) => log.store().head(&log.path(&entry.path)?).await?.size,
        };
        log.local_file(&entry.path, bytes).await
    });
    copied.map_err(|error: DeltaError| match error.kind() {
        FaultKind::Missing => missing(),
        _ => ("unreadable", format!("the file cannot be copied: {error}")),
    })
}

fn rows(entry: &FileEntry, footer: &ParquetMetaData, found: &mut FileFindings) {
    let in_file = footer.file_metadata().num_rows();
    match entry.stats.rows {
        Some(said) if i64::try_from(said) != Ok(in_file) => {
            found.push(("rows", format!("the file has {in_file} rows, the table says {said}")));
        }
        Some(_) => {}
        None => found.push(("rows", "the table does not say how many rows the file has".to_owned())),
    }
    let of_groups: i64 = footer.row_groups().iter().map(|group| group.num_rows()).sum();
    if of_groups != in_file {
        let problem = format!("the row groups have {of_groups} rows, the footer says {in_file}");
        found.push(("rows", problem));
    }
}

/// The file's columns must be columns of the table with the same type.
fn columns(table: &TableSchema, metadata: &ArrowReaderMetadata, found: &mut FileFindings) {
    for field in metadata.schema().fields() {
        let Some(column) = table.column(field.name()) else {
            found.push(("columns", format!("the table has no column {}", field.name())));
            continue;
        };
        let Some(expected) = column.kind.arrow() else { continue };
        if !expected.equals_datatype(field.data_type()) {
            let (name, kind) = (field.name(), field.data_type());
            let problem = format!("the column {name} is {kind}, in the table it is {expected}");
            found.push(("columns", problem));
        }
    }
}

/// The bounds in the log must not be narrower than those in the footer.
fn statistics(subject: &VerifyTarget<'_>, entry: &FileEntry, footer: &ParquetMetaData, found: &mut FileFindings) {
    let snapshot = subject.snapshot;
    let partitions: Vec<&str> = snapshot.metadata.partition_columns.iter().map(String::as_str).collect();
    let of_footer = FileStats::of_footer(&snapshot.schema, &partitions, footer);
    for said in &entry.stats.columns {
        if let Some(has) = of_footer.column(&said.column) {
            compare(said, has, found);
        }
    }
}

fn compare(said: &ColumnStats, has: &ColumnStats, found: &mut FileFindings) {
    let name = &said.column;
    if let (Some(said), Some(has)) = (said.nulls, has.nulls)
        && said != has
    {
        let problem = format!("{name} has {has} rows without a value, the table says {said}");
        found.push(("statistics", problem));
    }
    let narrower = |said: &Option<ColumnBound>, has: &Option<ColumnBound>, is_least: bool| match (said, has) {
        (Some(said), Some(has)) => {
            let order = cmp(said, has)?;
            let is_outside = if is_least { order.is_gt() } else { order.is_lt() };
            is_outside.then(|| (text(said), text(has)))
        }
        _ => None,
    };
    for (what, of_said, of_has, is_least) in [
        ("least", &said.min, &has.min, true),
        ("greatest", &said.max, &has.max, false),
    ] {
        if let Some((said, has)) = narrower(of_said, of_has, is_least) {
            let problem = format!("the {what} {name} is {has}, the table says {said}");
            found.push(("statistics", problem));
        }
    }
}

fn cmp(a: &ColumnBound, b: &ColumnBound) -> Option<std::cmp::Ordering> {
    match (a, b) {
        (ColumnBound::Int(a), ColumnBound::Int(b)) => Some(a.cmp(b)),
        (ColumnBound::Float(a), ColumnBound::Float(b)) => a.partial_cmp(b),
        (ColumnBound::Text(a), ColumnBound::Text(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

fn text(bound: &ColumnBound) -> String {
    match bound {
        ColumnBound::Int(value) => value.to_string(),
        ColumnBound::Float(value) => value.to_string(),
        ColumnBound::Text(text) => format!("{text:?}"),
    }
}

/// Every row group must claim the sort order of the table. Files of other writers need not.
fn order(subject: &VerifyTarget<'_>, entry: &FileEntry, footer: &ParquetMetaData, found: &mut FileFindings) {
    let Some(spec) = subject.spec.filter(|_| !entry.is_foreign) else {
        return;
    };
    if !file::is_own(footer) {
        let problem = "its footer names another program as its writer, the table names this one";
        found.push(("order", problem.to_owned()));
        return;
    }
    for (number, group) in footer.row_groups().iter().enumerate() {
        if !file::sorting_of(footer, group).eq(file::expected(footer, spec.sort)) {
            let by: Vec<&str> = file::sorting_of(footer, group).collect();
            let (by, expected) = (by.join(", "), spec.sort.join(", "));
            let problem = format!("row group {number} says that it is sorted by {by:?}, expected {expected:?}");
            found.push(("order", problem));
        }
    }
}

/// Chunks must be within the file, and pages contiguous within their chunk.
fn chunks(footer: &ParquetMetaData, bytes: u64, found: &mut FileFindings) {
    // The reader silently ignores an index that it cannot parse.
    let has_index = |group: &RowGroupMetaData| {
        group
            .columns()
            .iter()
            .any(|chunk| chunk.offset_index_offset().is_some())
    };
    if footer.offset_index().is_none() && footer.row_groups().iter().any(has_index) {
        found.push(("index", "the index of its pages cannot be read".to_owned()));
    }
    for (number, group) in footer.row_groups().iter().enumerate() {
        for (at, chunk) in group.columns().iter().enumerate() {
            let name = chunk.column_path().string();
            let (begin, len) = (begin_of(chunk), chunk.compressed_size());
            let end = begin.saturating_add(len);
            if begin < MAGIC_BYTES || len < 0 || u64::try_from(end).is_ok_and(|end| end > bytes) {
                let problem = format!("{name} of row group {number} lies outside of the file ({begin} to {end})");
                found.push(("index", problem));
                continue;
            }
            let pages = footer
                .offset_index()
                .and_then(|index| index.get(number)?.get(at))
                .map(|index| index.page_locations().as_slice());
            if let Some(pages) = pages
                && let Some(problem) = misplaced(pages, chunk, group.num_rows())
            {
                found.push(("index", format!("{name} of row group {number}: {problem}")));
            }
        }
    }
}

fn begin_of(chunk: &ColumnChunkMetaData) -> i64 {
    let dictionary = chunk.dictionary_page_offset().filter(|offset| *offset > 0);
    dictionary.unwrap_or(i64::MAX).min(chunk.data_page_offset())
}

fn misplaced(
    pages: &[parquet::file::page_index::offset_index::PageLocation],
    chunk: &ColumnChunkMetaData,
    rows: i64,
) -> Option<String> {
    let end = begin_of(chunk).saturating_add(chunk.compressed_size());
    let (mut offset, mut row) = (chunk.data_page_offset(), 0);
    for (number, page) in pages.iter().enumerate() {
        let is_next = match number {
            0 => page.first_row_index == 0,
            _ => page.first_row_index > row,
        };
        if page.offset != offset || !is_next || page.first_row_index >= rows.max(1) {
            return Some(format!("page {number} is not where the index says"));
        }
        row = page.first_row_index;
        offset = offset.saturating_add(page.compressed_page_size.into());
    }
    (!pages.is_empty() && offset != end).then(|| format!("its pages end at {offset}, and it ends at {end}"))
}

/// The rows must be of the file's day.
fn date(subject: &VerifyTarget<'_>, entry: &FileEntry, found: &mut FileFindings) {
    let (Some(date), Some((first, last))) = (date_of(subject.snapshot, entry), entry.times) else {
        return;
    };
    for time in [first, last] {
        let time = nanos_text(time);
        if !time.starts_with(date) {
            found.push(("date", format!("a row of {time} is in a file of {date}")));
        }
    }
}
