//! The command line of `thalweg events`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

const MESSAGE_BYTES: u64 = 16 << 20;
const MESSAGE_BYTES_MAX: u64 = 24 << 20;

#[derive(Args)]
#[command(disable_help_subcommand = true)]
pub struct EventsOptions {
    /// Without a command, this help is printed
    #[command(subcommand)]
    pub command: Option<EventsCommand>,
}

#[derive(Subcommand)]
pub enum EventsCommand {
    /// Serve the store over HTTP; the default if only flags are given
    Serve(Box<ServeOptions>),
    /// Append a message to a stream, or the messages of a file
    Append(EventsAppend),
    /// Print messages, stored ones first, then new ones as they arrive
    Tail(EventsTail),
    /// Print all streams of the namespace, one JSON document per line
    Streams(EventsStreams),
    /// Print all categories of the namespace, one JSON document per line
    Categories(EventsEndpoint),
    /// Write all messages of the namespace to a file that `import` reads
    Export(EventsExport),
    /// Store the messages of a file at their original positions
    Import(EventsImport),
    /// Write everything on the server, as of one instant, to a file
    #[command(after_help = "\
Exit codes:
  0   the file is complete, checked and synced
  1   the backup failed
  2   wrong usage
  65  something is damaged")]
    Backup(EventsBackup),
    /// Create a folder for `serve` from a backup
    #[command(after_help = "\
Exit codes:
  0   everything is restored and synced
  1   the restore failed; the folder has no data
  2   wrong usage
  65  the backup is damaged or incomplete; the folder has no data")]
    Restore(EventsRestore),
    /// Read everything and report damage
    #[command(after_help = "\
Exit codes:
  0   everything is intact
  1   the check failed
  2   wrong usage
  65  something is damaged")]
    Verify(EventsVerify),
    /// Free the space of messages that no reader can see any more
    Scavenge(EventsScavenge),
    /// Print the version
    Version,
    /// Print this help, or the help of a command
    Help {
        /// The command
        command: Option<String>,
    },
}

/// The server, and the login.
#[derive(Args)]
pub struct EventsEndpoint {
    /// Address of the server
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8080",
        env = "THALWEG_EVENTS_URL"
    )]
    pub url: String,
    /// Token of the namespace
    #[arg(long, value_name = "TOKEN", env = "THALWEG_EVENTS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// File with the token
    #[arg(
        long,
        value_name = "FILE",
        env = "THALWEG_EVENTS_TOKEN_FILE",
        conflicts_with = "token"
    )]
    pub token_file: Option<PathBuf>,
    /// Certificates to trust in addition to the system's, in PEM form, for an https:// address
    #[arg(long, value_name = "FILE", env = "THALWEG_EVENTS_CA_FILE")]
    pub ca_file: Option<PathBuf>,
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("what").args(["kind", "input"]).required(true))]
pub struct EventsAppend {
    #[command(flatten)]
    pub server: EventsEndpoint,
    /// The stream, such as order-42
    pub stream: String,
    /// Type of the message
    #[arg(long = "type", value_name = "TYPE", requires = "data")]
    pub kind: Option<String>,
    /// Data of the message, a JSON object
    #[arg(long, value_name = "JSON", requires = "kind")]
    pub data: Option<String>,
    /// Metadata of the message, a JSON object
    #[arg(long, value_name = "JSON", requires = "kind")]
    pub metadata: Option<String>,
    /// Id of the message, a UUID; a second message with the same id is not stored
    #[arg(long, value_name = "UUID", requires = "kind")]
    pub id: Option<String>,
    /// The version that the stream must have: a number, -1 if it is empty, or any, exists, noStream
    #[arg(long, value_name = "VERSION", allow_negative_numbers = true)]
    pub expected_version: Option<String>,
    /// File of messages for one append, `{"type": .., "data": ..}` on each line; - is the standard input
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
}

#[derive(Args)]
#[command(group = clap::ArgGroup::new("of").args(["stream", "category", "all"]).required(true))]
pub struct EventsTail {
    #[command(flatten)]
    pub server: EventsEndpoint,
    /// Messages of a stream
    #[arg(long, value_name = "STREAM")]
    pub stream: Option<String>,
    /// Messages of all streams of a category
    #[arg(long, value_name = "CATEGORY")]
    pub category: Option<String>,
    /// All messages of the namespace
    #[arg(long)]
    pub all: bool,
    /// Where to begin: start, end, or a position, which is global unless --stream is given
    #[arg(long, value_name = "start|end|N", default_value = "start", value_parser = from)]
    pub from: TailStart,
    /// Only these types
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub types: Vec<String>,
}

/// Where to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailStart {
    Start,
    End,
    At(u64),
}

#[derive(Args)]
pub struct EventsStreams {
    #[command(flatten)]
    pub server: EventsEndpoint,
    /// Only streams whose names begin with this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
}

#[derive(Args)]
pub struct EventsExport {
    #[command(flatten)]
    pub server: EventsEndpoint,
    /// Only these categories, one after another
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = category)]
    pub categories: Vec<String>,
    /// Only messages from this time on: 2026-01-15, or 2026-01-15T10:30:00.25Z
    #[arg(long, value_name = "TIME", value_parser = super::moment::parse)]
    pub since: Option<i64>,
    /// Only messages before this time
    #[arg(long, value_name = "TIME", value_parser = super::moment::parse)]
    pub until: Option<i64>,
    /// Compress with gzip
    #[arg(long)]
    pub gzip: bool,
    /// The file, which appears only when it is complete; without it, the standard output
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Args)]
pub struct EventsImport {
    #[command(flatten)]
    pub server: EventsEndpoint,
    /// The file; without it, or with -, the standard input
    #[arg(long, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// The file is compressed with gzip
    #[arg(long)]
    pub gzip: bool,
    /// Remove all messages of the namespace first
    #[arg(long)]
    pub force: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args)]
pub struct EventsBackup {
    #[command(flatten)]
    pub server: EventsEndpoint,
    /// The file, which appears only when it is complete; - is the standard output
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
}

#[derive(Args)]
pub struct EventsRestore {
    /// A file written by `backup`; - is the standard input
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// The folder, which must be new or empty
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
}

#[derive(Args)]
pub struct EventsVerify {
    #[command(flatten)]
    pub server: EventsEndpoint,
    /// Verify a folder that no process holds, instead of a server
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

#[derive(Args)]
pub struct EventsScavenge {
    #[command(flatten)]
    pub server: EventsEndpoint,
    /// Rewrite all stored data, and return when no file of the store contains the bytes of deleted messages
    #[arg(long)]
    pub erase: bool,
}

#[derive(Args)]
pub struct ServeOptions {
    /// Listening port
    #[arg(long, value_name = "N", default_value_t = 8080, env = "THALWEG_EVENTS_PORT")]
    pub port: u16,
    /// Address to listen on, such as 0.0.0.0 or ::; the loopback addresses by default. An address that other hosts can
    /// reach needs TLS, or --insecure
    #[arg(long, value_name = "HOST", env = "THALWEG_EVENTS_ADDRESS")]
    pub address: Option<String>,
    /// Open connections; by default 65536, or as many as the limit of open files allows
    #[arg(long, value_name = "N", value_parser = max_connections, env = "THALWEG_EVENTS_MAX_CONNECTIONS")]
    pub max_connections: Option<usize>,
    /// Folder for all data
    #[arg(long, value_name = "DIR", env = "THALWEG_EVENTS_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Storage for all data, as a URL: postgres://..., log:///dir, pebble:///dir (the same), or sqlite://name, which
    /// needs --data-dir
    #[arg(long, value_name = "URL", env = "THALWEG_EVENTS_DB_URL")]
    pub db_url: Option<String>,
    /// Kind of the database; the URL already determines it
    #[arg(long, value_name = "TYPE", env = "THALWEG_EVENTS_DB_TYPE")]
    pub db_type: Option<DbType>,
    /// Token of the namespace `default`; by default a random one is generated at the first start, and shown on a
    /// terminal or written to a file
    #[arg(long, value_name = "TOKEN", env = "THALWEG_EVENTS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// File with that token
    #[arg(
        long,
        value_name = "FILE",
        env = "THALWEG_EVENTS_TOKEN_FILE",
        conflicts_with = "token"
    )]
    pub token_file: Option<PathBuf>,
    /// File for a generated token if there is no terminal; by default keys/default.token in the data folder
    #[arg(long, value_name = "FILE", env = "THALWEG_EVENTS_TOKEN_OUT")]
    pub token_out: Option<PathBuf>,
    /// Keep everything in memory, and allow all requests without tokens
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
          value_parser = boolean, env = "THALWEG_EVENTS_TEST_MODE")]
    pub test_mode: bool,
    /// debug, info, warn or error
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "THALWEG_EVENTS_LOG_LEVEL")]
    pub log_level: LogLevel,
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "console",
        env = "THALWEG_EVENTS_LOG_FORMAT"
    )]
    pub log_format: LogFormat,
    /// What an acknowledged write survives: fsync everything, interval and os a kill -9, memory nothing
    #[arg(
        long,
        value_name = "MODE",
        default_value = "fsync",
        env = "THALWEG_EVENTS_DURABILITY"
    )]
    pub durability: DurabilityMode,
    /// With --durability interval, the longest time before a write is synced
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = thalweg_config::parse_duration,
          env = "THALWEG_EVENTS_SYNC_INTERVAL")]
    pub sync_interval: Duration,
    /// How to handle damage: strict refuses to start, skip drops the damaged messages
    #[arg(long, value_name = "HOW", default_value = "strict", env = "THALWEG_EVENTS_RECOVER")]
    pub recover: RecoverMode,
    /// After a failed write or sync: exit with code 74, or stay and serve reads only
    #[arg(long, value_name = "HOW", default_value = "exit", env = "THALWEG_EVENTS_ON_POISON")]
    pub on_poison: OnPoison,
    /// Refuse writes if less disk space is free
    #[arg(long, value_name = "SIZE", value_parser = size, env = "THALWEG_EVENTS_MIN_FREE")]
    pub min_free: Option<u64>,
    /// Memory for everything together; by default half of the machine's
    #[arg(long, value_name = "SIZE", value_parser = memory, env = "THALWEG_EVENTS_MEMORY_LIMIT")]
    pub memory_limit: Option<u64>,
    /// Most bytes in type, data and metadata of one message
    #[arg(long, value_name = "N", default_value_t = MESSAGE_BYTES,
          value_parser = clap::value_parser!(u64).range(1..=MESSAGE_BYTES_MAX), env = "THALWEG_EVENTS_MAX_MESSAGE_BYTES")]
    pub max_message_bytes: u64,
    /// Any valid token may administer all namespaces
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
          value_parser = boolean, env = "THALWEG_EVENTS_OPEN_ADMIN")]
    pub open_admin: bool,
    /// Add the namespace as a label to metrics
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
          value_parser = boolean, env = "THALWEG_EVENTS_METRICS_PER_NAMESPACE")]
    pub metrics_per_namespace: bool,
    /// Certificate of the server followed by its chain, in PEM form; read again at SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "THALWEG_EVENTS_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the server, in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "THALWEG_EVENTS_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// Certificates in PEM form; each client must present one of them, or one that they signed
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        env = "THALWEG_EVENTS_TLS_CLIENT_CA"
    )]
    pub tls_client_ca: Option<PathBuf>,
    /// In test mode, an origin whose pages may send requests, such as http://localhost:3000; * allows all
    #[arg(
        long,
        value_name = "ORIGIN",
        value_delimiter = ',',
        env = "THALWEG_EVENTS_ALLOW_ORIGIN"
    )]
    pub allow_origin: Vec<String>,
    /// Allow other hosts without TLS, and in test mode without tokens
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
          value_parser = boolean, env = "THALWEG_EVENTS_INSECURE")]
    pub insecure: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Console,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DurabilityMode {
    Fsync,
    Interval,
    Os,
    Memory,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DbType {
    Postgres,
    Timescale,
    Sqlite,
    Pebble,
    Log,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecoverMode {
    Strict,
    Skip,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnPoison {
    Exit,
    Stay,
}

fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("expected true, false, 1 or 0".to_owned()),
    }
}

fn max_connections(text: &str) -> Result<usize, String> {
    let wrong = || "expected a number from 16 to 1000000".to_owned();
    let number = text.parse().map_err(|_| wrong())?;
    match (16..=1_000_000).contains(&number) {
        true => Ok(number),
        false => Err(wrong()),
    }
}

fn size(text: &str) -> Result<u64, String> {
    thalweg_config::parse_size(text)
}

fn memory(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    match bytes < thalweg_config::MEMORY_MIN {
        true => Err(thalweg_config::MEMORY_NEEDED.to_owned()),
        false => Ok(bytes),
    }
}

fn from(text: &str) -> Result<TailStart, String> {
    match text {
        "start" => Ok(TailStart::Start),
        "end" => Ok(TailStart::End),
        number => match number.parse() {
            Ok(at) => Ok(TailStart::At(at)),
            Err(_) => Err("expected start, end, or a position from 0 on".to_owned()),
        },
    }
}

fn category(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("a category must have a name".to_owned());
    }
    match text.contains('-') {
        true => Err("a category contains no '-', which ends it in stream names".to_owned()),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests;
