//! `thalweg parquet`: rows, columns and statistics of Parquet files, of Thalweg or of other programs.

use std::io::{BufWriter, IsTerminal as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;
use thalweg_delta::schema::TableSchema;
use thalweg_delta::store::SyncedStore;
use thalweg_delta::{DeltaLog, SnapshotDetail};
use thalweg_query::BytesAs;
use thalweg_query::parquet::{Cat, ColumnStatistics, FileInfo, ParquetFile, SchemaInfo, cat, schema, stats};

use crate::lake_location::download;
use crate::{out, text_table};

const VALUE_CHARACTERS_MAX: usize = 32;

#[derive(Subcommand)]
pub enum ParquetCommand {
    /// Print rows as JSON lines
    Cat(CatOptions),
    /// Print the columns: types and metadata
    Schema(ParquetFileOptions),
    /// Print row groups and columns: sizes, encodings, nulls, minimum and maximum values, order
    Stats(ParquetFileOptions),
}

#[derive(Args)]
pub struct CatOptions {
    /// The file, or its URL (s3://, gs://, az://); - is the standard input
    pub file: String,
    /// The most rows to print
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Only these columns, in this order: time,body
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// Only rows that match this SQL condition: "severity_number >= 17 and body like '%timeout%'"
    #[arg(long = "where", value_name = "EXPR")]
    pub filter: Option<String>,
    /// Print bytes in base64 instead of [N]byte
    #[arg(long)]
    pub raw_bytes: bool,
}

#[derive(Args)]
pub struct ParquetFileOptions {
    /// The file, or its URL (s3://, gs://, az://); - is the standard input
    pub file: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

pub fn main(command: &ParquetCommand) -> Result<ExitCode> {
    match command {
        ParquetCommand::Cat(options) => rows(options)?,
        ParquetCommand::Schema(options) => {
            let opened = open(&options.file)?;
            let info = schema(&opened, table_of(&opened)?.as_ref());
            match options.json {
                true => out::line(json!(info))?,
                false => out::line(schema_text(&info))?,
            };
        }
        ParquetCommand::Stats(options) => {
            let info = stats(&open(&options.file)?);
            match options.json {
                true => out::line(json!(info))?,
                false => out::line(stats_text(&info))?,
            };
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A file in an object store is copied first, because its footer is at the end and tells what to read before it.
fn open(name: &str) -> Result<ParquetFile> {
    let is_elsewhere = name.contains("://") && !name.starts_with("file://");
    Ok(match is_elsewhere {
        true => ParquetFile::of(name, crate::runtime()?.block_on(download(name))?.into_file())?,
        false => ParquetFile::open(name)?,
    })
}

fn rows(options: &CatOptions) -> Result<()> {
    let opened = open(&options.file)?;
    let wanted = Cat {
        limit: options.limit,
        columns: options.columns.clone(),
        filter: options.filter.clone(),
        bytes: match options.raw_bytes {
            true => BytesAs::Base64,
            false => BytesAs::Length,
        },
    };
    let stdout = std::io::stdout().lock();
    // A terminal shows rows as they come.
    let capacity = if stdout.is_terminal() { 0 } else { 1 << 16 };
    cat(&opened, &wanted, &mut BufWriter::with_capacity(capacity, stdout))?;
    Ok(())
}

/// The schema of the table that contains the file, if there is one: it has the original attribute names. An unreadable
/// table is ignored.
fn table_of(opened: &ParquetFile) -> Result<Option<TableSchema>> {
    let Some(folder) = opened.table_folder() else {
        return Ok(None);
    };
    let runtime = crate::runtime()?;
    let Ok(log) = DeltaLog::new(&folder, SyncedStore::new()) else {
        return Ok(None);
    };
    let newest = runtime.block_on(log.load(SnapshotDetail::Counts));
    Ok(newest.ok().flatten().map(|snapshot| (*snapshot.schema).clone()))
}

fn schema_text(info: &SchemaInfo) -> String {
    let mut text = format!(
        "{} rows in {} row groups, format {}, created by {}\n",
        info.rows,
        info.row_groups,
        info.format_version,
        text_table::or_dash(info.created_by.as_deref())
    );
    for (key, value) in &info.metadata {
        text.push_str(&format!(
            "{key} = {}\n",
            text_table::short(value.as_deref().unwrap_or_default(), 200)
        ));
    }
    let rows: Vec<Vec<String>> = info
        .columns
        .iter()
        .map(|column| {
            let notes = column.metadata.iter().map(|(key, value)| format!("{key}={value}"));
            vec![
                column.path.clone(),
                column.physical.clone(),
                text_table::or_dash(column.logical.as_deref()),
                column.repetition.clone(),
                text_table::short(&column.read_as, 40),
                text_table::short(&notes.collect::<Vec<_>>().join(" "), 100),
            ]
        })
        .collect();
    let titles = ["column", "physical", "logical", "repetition", "read as", "metadata"];
    format!("{text}\n{}", text_table::table(&titles, &rows))
}

fn stats_text(info: &FileInfo) -> String {
    let size = |bytes: i64| text_table::bytes(u64::try_from(bytes).unwrap_or(0));
    let head = format!(
        "{} rows, {} in the file; values {}, stored {}, ratio {}; created by {}\n",
        info.rows,
        text_table::bytes(info.bytes),
        size(info.uncompressed),
        size(info.compressed),
        info.ratio,
        text_table::or_dash(info.created_by.as_deref())
    );
    let groups: Vec<Vec<String>> = info
        .row_groups
        .iter()
        .map(|group| {
            vec![
                group.number.to_string(),
                group.rows.to_string(),
                size(group.compressed),
                size(group.uncompressed),
                group.ratio.to_string(),
                match group.sorted_by.is_empty() {
                    true => "-".to_owned(),
                    false => group.sorted_by.join(", "),
                },
            ]
        })
        .collect();
    let groups = text_table::table(
        &["row group", "rows", "stored", "values", "ratio", "sorted by"],
        &groups,
    );
    let columns: Vec<Vec<String>> = info
        .columns
        .iter()
        .map(|column| stats_of(column, info.compressed))
        .collect();
    let titles = [
        "column",
        "codec",
        "encodings",
        "stored",
        "share",
        "values",
        "ratio",
        "pages",
        "nulls",
        "min",
        "max",
    ];
    format!("{head}\n{groups}\n\n{}", text_table::table(&titles, &columns))
}

fn stats_of(column: &ColumnStatistics, all: i64) -> Vec<String> {
    let size = |bytes: i64| text_table::bytes(u64::try_from(bytes).unwrap_or(0));
    let value = |value: &Option<String>| {
        text_table::or_dash(
            value
                .as_deref()
                .map(|text| text_table::short(text, VALUE_CHARACTERS_MAX)),
        )
    };
    let share = column.compressed as f64 * 100.0 / all.max(1) as f64;
    vec![
        column.path.clone(),
        column.codecs.join(" "),
        column.encodings.join(" "),
        size(column.compressed),
        format!("{share:.1} %"),
        size(column.uncompressed),
        column.ratio.to_string(),
        text_table::or_dash(column.pages),
        text_table::or_dash(column.nulls),
        value(&column.min),
        value(&column.max),
    ]
}
