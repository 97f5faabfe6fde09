//! The command line, as `thalweg --help` shows it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::auth::AuthCommand;
use crate::events::args::EventsOptions;
use crate::lake::args::{LakeCommand, ProcessAccess};
use crate::parquet::ParquetCommand;
use crate::queue::args::QueueOptions;

/// Carries telemetry from machines to a lake.
#[derive(Parser)]
#[command(
    version,
    about = "Carries telemetry from machines to a lake: OPC UA in, JavaScript tag processing, Delta tables and SQL out.",
    after_help = "Start here:\n  thalweg demo                          a simulated plant, collected into a table, with two queries to paste\n  \
                  thalweg check flow.yaml               every mistake of a configuration, with line, column and cure\n  \
                  thalweg run flow.yaml                 run it\n  thalweg sql \"select count(*) from tags\"",
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run the flows of a configuration file until Ctrl-C or until their inputs end
    Run(RunOptions),
    /// Check a configuration file and print every mistake with its place and cure
    #[command(visible_alias = "lint")]
    Check(CheckOptions),
    /// Print the effective configuration: environment and -s replaced, secrets masked
    Echo(ConfigFileOptions),
    /// List the components that a configuration can name
    List(ListOptions),
    /// Collect a simulated plant of 10,000 tags into the table `tags`, and show it live
    Demo(DemoOptions),
    /// Run a simulator
    #[command(subcommand)]
    Simulate(SimulateCommand),
    /// Ask the lake a question in SQL
    Sql(SqlOptions),
    /// Bring files into the tables of the lake, look at these, check them, keep them in order by hand
    #[command(subcommand)]
    Lake(LakeCommand),
    /// Look into Parquet files
    #[command(subcommand)]
    Parquet(ParquetCommand),
    /// Look at, check or repair the durable log
    #[command(subcommand)]
    Log(LogCommand),
    /// Make, show, fill and empty queues of a running process
    Queue(Box<QueueOptions>),
    /// Make, show and take away tokens and users
    #[command(subcommand)]
    Auth(AuthCommand),
    /// Run the event store alone, or ask one: append, follow, export, import, verify
    Events(Box<EventsOptions>),
    /// Print the completions of a shell
    #[command(hide = true)]
    Completions(CompletionsOptions),
    /// Write the manual pages, one for each command, into a folder
    #[command(hide = true)]
    Man(ManOptions),
}

#[derive(Args)]
pub struct CompletionsOptions {
    pub shell: clap_complete::Shell,
}

#[derive(Args)]
pub struct ManOptions {
    /// An existing folder
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

/// Which configuration, and how it is read.
#[derive(Args)]
pub struct ConfigFileOptions {
    /// The configuration file
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The configuration file, as the reference system's command line has it
    #[arg(short = 'c', long = "config", value_name = "FILE", conflicts_with = "file")]
    pub config: Option<PathBuf>,
    /// Set one field, after reading the file: -s input.opcua.pollRate=500
    #[arg(short = 's', long = "set", value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Unknown fields are warnings, not errors
    #[arg(long)]
    pub chilled: bool,
}

impl ConfigFileOptions {
    /// A file as it is.
    pub fn of(file: PathBuf) -> ConfigFileOptions {
        ConfigFileOptions {
            file: Some(file),
            config: None,
            set: Vec::new(),
            chilled: false,
        }
    }

    pub fn path(&self) -> anyhow::Result<PathBuf> {
        let given = self.file.as_ref().or(self.config.as_ref());
        given
            .cloned()
            .ok_or_else(|| anyhow::anyhow!("no configuration file given; name one: thalweg run flow.yaml"))
    }
}

#[derive(Args)]
pub struct CheckOptions {
    #[command(flatten)]
    pub file: ConfigFileOptions,
    /// Say of each script how it runs (once for each tag, as native code, in QuickJS) and why
    #[arg(long)]
    pub explain: bool,
}

#[derive(Args)]
pub struct RunOptions {
    #[command(flatten)]
    pub file: ConfigFileOptions,
    /// Log level: OFF, ERROR, WARN, INFO, DEBUG, TRACE (overrides the file)
    #[arg(long = "log.level", value_name = "LEVEL")]
    pub log_level: Option<String>,
}

#[derive(Args)]
pub struct ListOptions {
    /// Only this kind
    pub kind: Option<ListKind>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListKind {
    Inputs,
    Processors,
    Outputs,
}

#[derive(Args)]
pub struct DemoOptions {
    /// End after this time, with the same summary: 30s, 5m
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Where the table is kept
    #[arg(long, value_name = "DIR", default_value = "./thalweg-data")]
    pub data_dir: PathBuf,
    /// Address of the status page
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:4195")]
    pub http: SocketAddr,
    /// Tags that change every 10 s
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub slow_nodes: u32,
    /// Tags that change every second
    #[arg(long, value_name = "N", default_value_t = 5000)]
    pub fast_nodes: u32,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    thalweg_config::parse_duration(text)
}

#[derive(Args)]
pub struct SqlOptions {
    /// The query; without it a prompt on a terminal, else it is read from the standard input
    pub query: Option<String>,
    /// The data folder of a process
    #[arg(long, value_name = "DIR", default_value = "./thalweg-data")]
    pub data_dir: PathBuf,
    /// The lake itself: a path, s3://, gs:// or az://, with credentials from the environment; of an object store the
    /// committed files are read
    #[arg(long, value_name = "URL", conflicts_with = "data_dir")]
    pub lake: Option<String>,
    /// How to print the result: table on a terminal, ndjson in a pipe
    #[arg(long, value_enum)]
    pub format: Option<SqlFormat>,
    #[command(flatten)]
    pub who: ProcessAccess,
    /// Read the files, also beside a process: what it has not committed yet is not in the answer
    #[arg(long, conflicts_with = "url")]
    pub committed: bool,
    /// Answer once this is visible: the Thalweg-Position of an answer to OpenTelemetry data, or several with commas between them
    #[arg(long, value_name = "POSITION")]
    pub wait_for: Option<String>,
}

#[derive(Subcommand)]
pub enum LogCommand {
    /// Read everything and report what is damaged; changes nothing
    #[command(after_help = "\
Exit codes:
  0   the log is whole
  1   a newer version wrote some of it, a process holds it, there is none, or it cannot be read
  2   wrong usage
  65  it is damaged")]
    Check(LogCheck),
    /// Print blocks and frames, one line each, damaged ones too
    #[command(after_help = "\
Exit codes:
  0  all was printed; what is damaged is marked as such
  1  a newer version wrote some of it, which is named and not printed; there is no log, or it cannot be read
  2  wrong usage")]
    Dump(LogDump),
    /// Make a damaged log open again; without --accept-loss only say what would be lost
    #[command(after_help = "\
Exit codes:
  0   the log is whole, without a repair or after it
  1   nothing was changed: --accept-loss is missing, a newer version wrote some of the log, a process holds it,
      or there is none; or a file cannot be read or written
  2   wrong usage
  65  the log is still damaged after the repair")]
    Repair(LogRepair),
}

/// Which log.
#[derive(Args)]
pub struct LogFolder {
    /// The folder of the log [default: log in the data folder]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The data folder, which a running process holds
    #[arg(long, value_name = "DIR", default_value = "./thalweg-data")]
    pub data_dir: PathBuf,
}

#[derive(Args)]
pub struct LogCheck {
    #[command(flatten)]
    pub folder: LogFolder,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct LogDump {
    #[command(flatten)]
    pub folder: LogFolder,
    /// Only this partition, queue/partition: 3/0
    #[arg(long, value_name = "Q/P", value_parser = parse_partition)]
    pub partition: Option<thalweg_log::PartitionId>,
    /// Only records from this offset on
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    pub from: u64,
    /// Print the records of each frame, too
    #[arg(long)]
    pub records: bool,
    /// Print one JSON document per line
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct LogRepair {
    #[command(flatten)]
    pub folder: LogFolder,
    /// Give up the records that are damaged, so that the log opens again
    #[arg(long)]
    pub accept_loss: bool,
}

fn parse_partition(text: &str) -> Result<thalweg_log::PartitionId, String> {
    let pair = text.split_once('/').and_then(|(queue, partition)| {
        let (queue, partition) = (queue.parse().ok()?, partition.parse().ok()?);
        Some(thalweg_log::PartitionId::new(queue, partition))
    });
    pair.ok_or_else(|| "expected the number of a queue and of a partition, such as 3/0".to_owned())
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SqlFormat {
    Table,
    Csv,
    Json,
    Ndjson,
    Arrow,
}

#[derive(Subcommand)]
pub enum SimulateCommand {
    /// An OPC UA server with slow and fast counters, for demos, tests and load
    Opcua(Box<SimulateOpcua>),
}

#[derive(Args)]
pub struct SimulateOpcua {
    /// Address to listen on
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// TCP port; 0 picks a free one
    #[arg(long, default_value_t = 50000)]
    pub port: u16,
    /// TCP port of GET /sim/stats; 0 takes the next one
    #[arg(long, default_value_t = 0)]
    pub http_port: u16,
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub slow_nodes: u32,
    /// Seconds between two changes of the slow nodes
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub slow_rate: f64,
    /// uint, double, bool or string
    #[arg(long, value_name = "TYPE", default_value = "uint")]
    pub slow_type: thalweg_simulator::ValueType,
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub fast_nodes: u32,
    /// Seconds between two changes of the fast nodes; fractions allowed
    #[arg(long, value_name = "S", default_value_t = 1.0)]
    pub fast_rate: f64,
    /// uint, double, bool or string
    #[arg(long, value_name = "TYPE", default_value = "uint")]
    pub fast_type: thalweg_simulator::ValueType,
    /// Hold all values until POST /sim/start, beside /sim/stats
    #[arg(long)]
    pub hold: bool,
    /// Offer an endpoint without security for anonymous clients
    #[arg(long, num_args = 0..=1, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub insecure: bool,
    /// Offer Sign and SignAndEncrypt with every policy
    #[arg(long, num_args = 0..=1, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub secure: bool,
    /// A login
    #[arg(long, value_name = "NAME:PASSWORD")]
    pub user: Option<String>,
    /// Certificate (DER) whose holder may log in
    #[arg(long, value_name = "FILE")]
    pub user_certificate: Option<PathBuf>,
    /// Trust any client certificate
    #[arg(long)]
    pub auto_accept: bool,
    /// Folder of the server's certificate and of those it trusts
    #[arg(long, value_name = "DIR", default_value = "thalweg-data/simulator/pki")]
    pub pki_dir: PathBuf,
    /// Report and enforce this operation limit (0: none)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_nodes_per_browse: u32,
    /// Report and enforce this operation limit (0: none)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_nodes_per_read: u32,
    /// Report and enforce this operation limit (0: none)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_items_per_call: u32,
    /// Refuse every monitored item with a filter
    #[arg(long)]
    pub refuse_filters: bool,
    /// Nodes that can be browsed but neither read nor monitored
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub bad_nodes: u32,
    /// Cut all connections each time this many seconds have passed
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub drop_every: f64,
    /// Delay every byte by this many milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub latency: u64,
    /// Folder levels
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub depth: u32,
    /// Static children of one node
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub wide: u32,
    /// Chooses the first values; the same seed gives the same values
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Add a folder with one node of every kind of value
    #[arg(long)]
    pub types: bool,
    /// Stop when the standard input ends: for a parent process that may be killed
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
}
