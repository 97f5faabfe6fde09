//! The command line of `thalweg lake`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use thalweg_assemble::CheckedConfig;

use crate::lake_location::LakeLocation;

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
  3  some records or lines were rejected; bad lines are in lake/_thalweg/quarantine of the data folder. Or most rows of
     a file have no time or no body that is recognised, and none of them were added: --map, or --accept-missing
  4  some files failed, and none of their rows were added")]
    Ingest(Box<IngestOptions>),
    /// Show the state of the tables, their backlog in the log, and the process that holds them
    Status(StatusOptions),
    /// List the tables: rows, files, sizes, days, levels
    Tables(TablesOptions),
    /// List the files of a table
    Files(FilesOptions),
    /// List the commits of a table, the newest last
    History(HistoryOptions),
    /// Merge small files now, also those of the current hours
    Compact(MaintainOptions),
    /// Remove rows now that are older than lake.retention allows
    Retain(MaintainOptions),
    /// Delete files now that left their tables or belong to none, once they are older than lake.vacuum.retain
    Vacuum(MaintainOptions),
    /// Check tables against their Delta logs; changes nothing
    #[command(after_help = "\
Exit codes:
  0  no problem was found
  1  problems were found, one per line; or the lake cannot be read
  2  wrong usage")]
    Verify(VerifyOptions),
}

/// The location of the lake.
#[derive(Args, Clone)]
pub struct LakeLocationOptions {
    /// The data folder of the lake [default: ./thalweg-data, or the one in the configuration]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The lake itself: a path, s3://, gs:// or az://, with credentials from the environment
    #[arg(long, value_name = "URL", conflicts_with = "data_dir")]
    pub lake: Option<String>,
}

impl LakeLocationOptions {
    pub fn data_dir(&self) -> PathBuf {
        self.data_dir.clone().unwrap_or_else(|| PathBuf::from("./thalweg-data"))
    }

    pub fn open(&self) -> anyhow::Result<LakeLocation> {
        LakeLocation::new(&self.data_dir(), self.lake.as_deref())
    }

    /// Opens the lake of the configuration unless the command line names one.
    pub fn open_with(&self, checked: Option<&CheckedConfig>) -> anyhow::Result<LakeLocation> {
        match checked {
            Some(checked) if self.lake.is_none() => LakeLocation::configured(checked, &self.data_dir()),
            _ => self.open(),
        }
    }

    /// Uses the data folder of the configuration unless the command line names one.
    pub fn or(&self, configured: Option<&PathBuf>) -> LakeLocationOptions {
        LakeLocationOptions {
            data_dir: self.data_dir.clone().or_else(|| configured.cloned()),
            lake: self.lake.clone(),
        }
    }
}

/// Access to the process that holds the folder.
#[derive(Args, Clone, Default)]
pub struct ProcessAccess {
    /// Address of the process [default: the one noted in the data folder]
    #[arg(long, value_name = "URL", conflicts_with_all = ["data_dir", "lake"])]
    pub url: Option<String>,
    /// Bearer token, if the process requires one; other users can see it in the list of processes
    #[arg(long, value_name = "TOKEN", env = "THALWEG_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// File with the token
    #[arg(long, value_name = "FILE", env = "THALWEG_TOKEN_FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// Certificates to trust in addition to the system's, in PEM form: that of the process, or of the authority that
    /// signed it
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
}

#[derive(Args)]
pub struct StatusOptions {
    #[command(flatten)]
    pub place: LakeLocationOptions,
    #[command(flatten)]
    pub who: ProcessAccess,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct TablesOptions {
    #[command(flatten)]
    pub place: LakeLocationOptions,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct FilesOptions {
    pub table: String,
    /// Only the files of this day: 2026-11-21
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    pub date: Option<String>,
    #[command(flatten)]
    pub place: LakeLocationOptions,
    /// Print one JSON document per file
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct HistoryOptions {
    pub table: String,
    /// The number of commits to list, newest first
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: u64,
    #[command(flatten)]
    pub place: LakeLocationOptions,
    /// Print one JSON document per commit
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct MaintainOptions {
    /// Only this table
    pub table: Option<String>,
    /// Only the files of this day: 2026-11-21
    #[arg(long, value_name = "DATE", value_parser = parse_date)]
    pub date: Option<String>,
    /// Only report what would be done
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub place: LakeLocationOptions,
    /// The configuration whose section lake applies if no process holds the folder
    #[arg(short = 'c', long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub who: ProcessAccess,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct VerifyOptions {
    /// Only this table
    pub table: Option<String>,
    /// Read all pages, and compare every value with the statistics
    #[arg(long)]
    pub deep: bool,
    #[command(flatten)]
    pub place: LakeLocationOptions,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct IngestOptions {
    /// The files, or their URLs (s3://, gs://, az://); - is the standard input
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// The signal of OTLP files [default: by file name, else by content]
    #[arg(long, value_name = "SIGNAL", value_enum)]
    pub signal: Option<SignalName>,
    /// The format of the files, whatever their names [default: by name, else by the first bytes]
    #[arg(long, value_name = "KIND", value_enum)]
    pub kind: Option<FileKindName>,
    /// The table for rows that are not OTLP [default: logs]
    #[arg(long, value_name = "TABLE")]
    pub table: Option<String>,
    /// Rename a column while reading: --map usr=user.name --map when=time
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_pair)]
    pub map: Vec<(String, String)>,
    /// The strftime format of times that are not RFC 3339: "%d/%b/%Y:%H:%M:%S %z"
    #[arg(long, value_name = "FORMAT")]
    pub time_format: Option<String>,
    /// Bad lines that a file may have; with more, the file fails
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub max_bad: u64,
    /// Add the rows of a file even if most have no time, which makes it that of now, or no body
    #[arg(long)]
    pub accept_missing: bool,
    /// Add files again that the tables already have
    #[arg(long)]
    pub again: bool,
    /// Read the files and report what would be added; nothing is written
    #[arg(long)]
    pub dry_run: bool,
    /// Print the results as one JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: LakeLocationOptions,
    /// Take limits and columns from the sections ingest and lake of this configuration
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
pub enum FileKindName {
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

fn parse_date(text: &str) -> Result<String, String> {
    let date: jiff::civil::Date = text
        .parse()
        .map_err(|_| "expected a day such as 2026-11-21".to_owned())?;
    Ok(date.to_string())
}
