//! The command line of `thalweg lake`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Subcommand)]
pub enum LakeCommand {
    /// Add files of logs, metrics and traces to tables, each file once; a running process is not disturbed
    #[command(after_help = "\
Files: .binpb (OTLP requests), .json .jsonl .ndjson (OTLP/JSON, or a row on each line), .csv (with a header line), each also
.gz or .zst, and .parquet. `-` is the standard input.

Exit codes:
  0  all records are in their tables, now or since an earlier run
  1  the lake cannot be written
  2  wrong usage
  3  some records or lines were rejected; bad lines are in lake/_thalweg/quarantine of the data folder
  4  some files failed, and nothing of them was added")]
    Ingest(Box<IngestOptions>),
}

#[derive(Args)]
pub struct IngestOptions {
    /// The files; - is the standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// What OTLP files hold [default: by the file's name, else by its content]
    #[arg(long, value_name = "SIGNAL", value_enum)]
    pub signal: Option<SignalName>,
    /// The form of files, whatever their names [default: by the name, else by the first bytes]
    #[arg(long, value_name = "KIND", value_enum)]
    pub kind: Option<KindName>,
    /// The table for rows that are no OTLP [default: logs]
    #[arg(long, value_name = "TABLE")]
    pub table: Option<String>,
    /// Read a column as if it had another name: --map usr=user.name --map when=time
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_pair)]
    pub map: Vec<(String, String)>,
    /// How times are written that are no RFC 3339, as strftime has it: "%d/%b/%Y:%H:%M:%S %z"
    #[arg(long, value_name = "FORMAT")]
    pub time_format: Option<String>,
    /// Bad lines that a file may have; with more of them it fails
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub max_bad: u64,
    /// Add files that the tables have already once more
    #[arg(long)]
    pub again: bool,
    /// Read the files and say what would be added; nothing is written
    #[arg(long)]
    pub dry_run: bool,
    /// Print what became of the files as one JSON document
    #[arg(long)]
    pub json: bool,
    /// Where the lake is kept [default: ./thalweg-data, or what the configuration says]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Take limits and columns from this configuration: its sections ingest and lake
    #[arg(short = 'c', long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SignalName {
    Logs,
    Metrics,
    Traces,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KindName {
    Binpb,
    Json,
    Csv,
    Parquet,
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((old, new)) if !old.is_empty() && !new.is_empty() => Ok((old.to_owned(), new.to_owned())),
        _ => Err("expected two names with = between, such as usr=user.name".to_owned()),
    }
}
