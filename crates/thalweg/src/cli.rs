//! The command line, as `thalweg --help` shows it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::auth::AuthCommand;
use crate::events::args::EventsOptions;
use crate::lake::args::{LakeCommand, ProcessAccess};
use crate::mqtt::MqttCommand;
use crate::parquet::ParquetCommand;
use crate::queue::args::QueueOptions;

/// Carries telemetry from machines to a lake.
#[derive(Parser)]
#[command(
    version,
    about = "Carries telemetry from machines to a lake: OPC UA in, JavaScript tag processing, Delta tables and SQL out.",
    after_help = "Start here:\n  thalweg demo                          a simulated plant, collected into a table, with two queries to paste\n  \
                  thalweg check flow.yaml               every mistake of a configuration, with line, column and remedy\n  \
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
    /// Check a configuration file and print every mistake with its position and remedy
    #[command(
        visible_alias = "lint",
        after_help = "\
Exit codes:
  0  the file has no errors; it may have warnings
  1  it has errors, or cannot be read
  2  wrong usage"
    )]
    Check(CheckOptions),
    /// Print the effective configuration: environment and -s applied, secrets masked
    Echo(ConfigFileOptions),
    /// List the components that a configuration can use
    List(ListOptions),
    /// Collect a simulated plant of 10,000 tags into the table `tags`, and show it live
    Demo(DemoOptions),
    /// Run a simulator
    #[command(subcommand)]
    Simulate(SimulateCommand),
    /// Query the lake with SQL
    Sql(SqlOptions),
    /// Ingest files into the tables of the lake; inspect, check and maintain tables
    #[command(subcommand)]
    Lake(LakeCommand),
    /// Inspect Parquet files
    #[command(subcommand)]
    Parquet(ParquetCommand),
    /// Inspect, check or repair the durable log
    #[command(subcommand)]
    Log(LogCommand),
    /// Create, show, fill and empty queues of a running process
    Queue(Box<QueueOptions>),
    /// Run an MQTT broker alone
    #[command(subcommand)]
    Mqtt(MqttCommand),
    /// Create, show and remove tokens and users
    #[command(subcommand)]
    Auth(AuthCommand),
    /// Run the event store alone, or use one: append, follow, export, import, verify
    Events(Box<EventsOptions>),
    /// Print a JSON Schema of the configuration file, for editors
    Schema,
    /// Write the reference of the configuration, the command line and the errors as Markdown into a folder
    #[command(hide = true)]
    Reference(ReferenceOptions),
    /// Print the completions of a shell
    #[command(hide = true)]
    Completions(CompletionsOptions),
    /// Write the manual pages, one for each command, into a folder
    #[command(hide = true)]
    Man(ManOptions),
}

#[derive(Args)]
pub struct ReferenceOptions {
    /// An existing folder
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
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

/// The configuration file, and how to read it.
#[derive(Args)]
pub struct ConfigFileOptions {
    /// The configuration file
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The configuration file, with the flag of the reference system's command line
    #[arg(short = 'c', long = "config", value_name = "FILE", conflicts_with = "file")]
    pub config: Option<PathBuf>,
    /// Set a field after reading the file: -s input.opcua.pollRate=500
    #[arg(short = 's', long = "set", value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Report unknown fields as warnings instead of errors
    #[arg(long)]
    pub chilled: bool,
}

impl ConfigFileOptions {
    /// Reads a file without other options.
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
    /// Explain for each script how it runs (once for each tag, as native code, in QuickJS) and why
    #[arg(long)]
    pub explain: bool,
    /// Check also on a machine that lacks the environment variables, secrets, logins and TLS files that the file names:
    /// each is a warning, and what depends on it is not checked
    #[arg(long, visible_alias = "skip-env-var-check")]
    pub without_secrets: bool,
    /// Print one JSON document to the standard output: whether the file is valid, and every mistake and warning
    #[arg(long)]
    pub json: bool,
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
    /// A kind (inputs, processors, outputs, buffers, sections), or a component or section whose fields to print
    #[arg(value_name = "KIND|NAME")]
    pub what: Option<String>,
}

#[derive(Args)]
pub struct DemoOptions {
    /// End after this time, with the same summary: 30s, 5m
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// The folder of the table
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
    /// The query; without it, a prompt on a terminal, or else the query is read from the standard input
    pub query: Option<String>,
    /// The data folder of a process
    #[arg(long, value_name = "DIR", default_value = "./thalweg-data")]
    pub data_dir: PathBuf,
    /// The lake itself: a path, s3://, gs:// or az://, with credentials from the environment; on an object store only
    /// committed files are read
    #[arg(long, value_name = "URL", conflicts_with = "data_dir")]
    pub lake: Option<String>,
    /// Output format [default: table on a terminal, ndjson in a pipe]
    #[arg(long, value_enum)]
    pub format: Option<SqlFormat>,
    #[command(flatten)]
    pub who: ProcessAccess,
    /// Read the committed files even if a process runs; its uncommitted rows are not in the answer
    #[arg(long, conflicts_with = "url")]
    pub committed: bool,
    /// Wait until this is visible: the Thalweg-Position of an answer to OpenTelemetry data, or several separated by
    /// commas
    #[arg(long, value_name = "POSITION")]
    pub wait_for: Option<String>,
}

#[derive(Subcommand)]
pub enum LogCommand {
    /// Read the whole log and report damage; changes nothing
    #[command(after_help = "\
Exit codes:
  0   the log is whole
  1   a newer version wrote parts of it, a process holds it, it does not exist, or it cannot be read
  2   wrong usage
  65  it is damaged")]
    Check(LogCheck),
    /// Print blocks and frames, one per line, including damaged ones
    #[command(after_help = "\
Exit codes:
  0  everything was printed; damage is marked
  1  a newer version wrote parts of it, which are named but not printed; or the log does not exist or cannot be read
  2  wrong usage")]
    Dump(LogDump),
    /// Repair a damaged log so that it opens again; without --accept-loss, only report what would be lost
    #[command(after_help = "\
Exit codes:
  0   the log is intact, with or without a repair
  1   nothing was changed: --accept-loss is missing, a newer version wrote parts of the log, a process holds it,
      it does not exist, or a file cannot be read or written
  2   wrong usage
  65  the log is still damaged after the repair")]
    Repair(LogRepair),
}

/// The log to work on.
#[derive(Args)]
pub struct LogFolder {
    /// The folder of the log [default: log in the data folder]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The data folder of a running process
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
    /// Only this partition, as queue/partition: 3/0, or by its name: mqtt.messages
    #[arg(long, value_name = "Q/P", value_parser = parse_partition)]
    pub partition: Option<thalweg_log::PartitionId>,
    /// Only records from this offset on
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    pub from: u64,
    /// Also print the records of each frame
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
    /// Drop the damaged records, so that the log opens again
    #[arg(long)]
    pub accept_loss: bool,
}

fn parse_partition(text: &str) -> Result<thalweg_log::PartitionId, String> {
    let named = thalweg_mqtt::partitions::NAMES
        .into_iter()
        .find(|(_, name)| *name == text);
    if let Some((id, _)) = named {
        return Ok(id);
    }
    let pair = text.split_once('/').and_then(|(queue, partition)| {
        let (queue, partition) = (queue.parse().ok()?, partition.parse().ok()?);
        Some(thalweg_log::PartitionId::new(queue, partition))
    });
    pair.ok_or_else(|| "expected the number of a queue and of a partition, such as 3/0, or mqtt.messages".to_owned())
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
    /// TCP port of GET /sim/stats; 0 uses the port after --port
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
    /// Hold all values until POST /sim/start on the port of /sim/stats
    #[arg(long)]
    pub hold: bool,
    /// Offer an endpoint without security for anonymous clients
    #[arg(long, num_args = 0..=1, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub insecure: bool,
    /// Offer Sign and SignAndEncrypt with every policy
    #[arg(long, num_args = 0..=1, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set, value_name = "BOOL")]
    pub secure: bool,
    /// A user name and password
    #[arg(long, value_name = "NAME:PASSWORD")]
    pub user: Option<String>,
    /// Certificate (DER) whose owner may log in
    #[arg(long, value_name = "FILE")]
    pub user_certificate: Option<PathBuf>,
    /// Trust any client certificate
    #[arg(long)]
    pub auto_accept: bool,
    /// Folder for the server's certificate and the certificates it trusts
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
    /// Drop all connections at this interval in seconds
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
    /// Seed of the first values; the same seed gives the same values
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Add a folder with one node of every value type
    #[arg(long)]
    pub types: bool,
    /// Stop when the standard input ends: for a parent process that may be killed
    #[arg(long, hide = true)]
    pub until_stdin_ends: bool,
}
