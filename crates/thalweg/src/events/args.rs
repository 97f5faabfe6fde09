//! The command line of `thalweg events`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

const MESSAGE_BYTES: u64 = 16 << 20;
const MESSAGE_BYTES_MAX: u64 = 24 << 20;

#[derive(Args)]
#[command(disable_help_subcommand = true)]
pub struct EventsOptions {
    /// Without one, this help is printed
    #[command(subcommand)]
    pub command: Option<EventsCommand>,
}

#[derive(Subcommand)]
pub enum EventsCommand {
    /// Serve the store over HTTP; also without this word
    Serve(Box<ServeOptions>),
    /// Append a message to a stream, or messages of a file
    Append(EventsAppend),
    /// Print messages, those that are stored and those that come
    Tail(EventsTail),
    /// Print all streams of the namespace, one JSON document per line
    Streams(EventsStreams),
    /// Print all categories of the namespace, one JSON document per line
    Categories(EventsEndpoint),
    /// Write all messages of the namespace into a file that `import` reads
    Export(EventsExport),
    /// Store messages of a file in the places that they say
    Import(EventsImport),
    /// Write everything of the server, as of one instant, into a file
    #[command(after_help = "\
Exit codes:
  0   the file is whole, looked through and synced
  1   it could not be made
  2   wrong usage
  65  something is damaged")]
    Backup(EventsBackup),
    /// Make a folder for `serve` of a backup
    #[command(after_help = "\
Exit codes:
  0   everything is restored and synced
  1   it could not be done; the folder has no data
  2   wrong usage
  65  the backup is damaged, or not whole; the folder has no data")]
    Restore(EventsRestore),
    /// Read everything and name what is damaged
    #[command(after_help = "\
Exit codes:
  0   everything is whole
  1   it could not be found out
  2   wrong usage
  65  something is damaged")]
    Verify(EventsVerify),
    /// Free the space of messages that no reader sees any more
    Scavenge(EventsScavenge),
    /// Print the version
    Version,
    /// Print this help, or that of a command
    Help {
        /// The command
        command: Option<String>,
    },
}

/// Which server, and who asks.
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
    /// File that holds the token
    #[arg(
        long,
        value_name = "FILE",
        env = "THALWEG_EVENTS_TOKEN_FILE",
        conflicts_with = "token"
    )]
    pub token_file: Option<PathBuf>,
    /// Certificates to trust beside those of the machine, in PEM form, for an address beginning with https://
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
    /// Its data, a JSON object
    #[arg(long, value_name = "JSON", requires = "kind")]
    pub data: Option<String>,
    /// Its metadata, a JSON object
    #[arg(long, value_name = "JSON", requires = "kind")]
    pub metadata: Option<String>,
    /// Its id, a UUID; the same id again is not stored again
    #[arg(long, value_name = "UUID", requires = "kind")]
    pub id: Option<String>,
    /// The version that the stream must have: a number, -1 for none, or any, exists, noStream
    #[arg(long, value_name = "VERSION", allow_negative_numbers = true)]
    pub expected_version: Option<String>,
    /// File of messages, `{"type": .., "data": ..}` in each line, all of them one append; - is the standard input
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
    /// Where to begin: start, end, or a position: of a stream its own, else a global one
    #[arg(long, value_name = "start|end|N", default_value = "start", value_parser = from)]
    pub from: TailStart,
    /// Only these types
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub types: Vec<String>,
}

/// A place to begin at.
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
    /// Only those whose names begin so
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
}

#[derive(Args)]
pub struct EventsExport {
    #[command(flatten)]
    pub server: EventsEndpoint,
    /// Only these categories, one behind the other
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_parser = category)]
    pub categories: Vec<String>,
    /// Only messages of this time or later: 2026-01-15, or 2026-01-15T10:30:00.25Z
    #[arg(long, value_name = "TIME", value_parser = super::moment::parse)]
    pub since: Option<i64>,
    /// Only messages before this time
    #[arg(long, value_name = "TIME", value_parser = super::moment::parse)]
    pub until: Option<i64>,
    /// Compress
    #[arg(long)]
    pub gzip: bool,
    /// The file, which is there only when it is whole; without it, the standard output
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
    /// The file is compressed
    #[arg(long)]
    pub gzip: bool,
    /// Remove all messages of the namespace first
    #[arg(long)]
    pub force: bool,
    /// Do not ask whether that is meant
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args)]
pub struct EventsBackup {
    #[command(flatten)]
    pub server: EventsEndpoint,
    /// The file, which is there only when it is whole; - is the standard output
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
}

#[derive(Args)]
pub struct EventsRestore {
    /// The file that `backup` has made; - is the standard input
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// The folder, which is new or empty
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
}

#[derive(Args)]
pub struct EventsVerify {
    #[command(flatten)]
    pub server: EventsEndpoint,
    /// Of a folder that no process holds, in place of a server
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

#[derive(Args)]
pub struct EventsScavenge {
    #[command(flatten)]
    pub server: EventsEndpoint,
    /// Write all that is stored anew, and return when the bytes of what is deleted are in no file of the store
    #[arg(long)]
    pub erase: bool,
}

#[derive(Args)]
pub struct ServeOptions {
    /// Listening port
    #[arg(long, value_name = "N", default_value_t = 8080, env = "THALWEG_EVENTS_PORT")]
    pub port: u16,
    /// Address to listen on, as 0.0.0.0 or ::; this machine's own addresses if it is not given. What other hosts reach needs TLS, or
    /// --insecure
    #[arg(long, value_name = "HOST", env = "THALWEG_EVENTS_ADDRESS")]
    pub address: Option<String>,
    /// Open connections; 65536, or as many as the limit of open files allows, if it is not given
    #[arg(long, value_name = "N", value_parser = max_connections, env = "THALWEG_EVENTS_MAX_CONNECTIONS")]
    pub max_connections: Option<usize>,
    /// Where everything is kept
    #[arg(long, value_name = "DIR", env = "THALWEG_EVENTS_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Where everything is kept, as a URL: postgres://..., log:///dir, pebble:///dir (the same), or sqlite://name, which needs
    /// --data-dir
    #[arg(long, value_name = "URL", env = "THALWEG_EVENTS_DB_URL")]
    pub db_url: Option<String>,
    /// Kind of the database; the address says it already
    #[arg(long, value_name = "TYPE", env = "THALWEG_EVENTS_DB_TYPE")]
    pub db_type: Option<DbType>,
    /// Token of the namespace `default`; a random one is made with it at the first start, and shown at a terminal or kept in a file
    #[arg(long, value_name = "TOKEN", env = "THALWEG_EVENTS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// File that holds that token
    #[arg(
        long,
        value_name = "FILE",
        env = "THALWEG_EVENTS_TOKEN_FILE",
        conflicts_with = "token"
    )]
    pub token_file: Option<PathBuf>,
    /// File for a token that is made when nobody sits at a terminal; keys/default.token of the data folder if it is not given
    #[arg(long, value_name = "FILE", env = "THALWEG_EVENTS_TOKEN_OUT")]
    pub token_out: Option<PathBuf>,
    /// Keep everything in memory, and let everybody do everything
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
    /// What an acknowledged write has survived: fsync all, interval and os a kill -9, memory nothing
    #[arg(
        long,
        value_name = "MODE",
        default_value = "fsync",
        env = "THALWEG_EVENTS_DURABILITY"
    )]
    pub durability: DurabilityMode,
    /// With --durability interval, how old what is not synced may become
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = thalweg_config::parse_duration,
          env = "THALWEG_EVENTS_SYNC_INTERVAL")]
    pub sync_interval: Duration,
    /// What becomes of damage: strict refuses to start, skip gives the damaged messages up
    #[arg(long, value_name = "HOW", default_value = "strict", env = "THALWEG_EVENTS_RECOVER")]
    pub recover: RecoverMode,
    /// After a failed write or sync: exit with code 74, or stay and only read
    #[arg(long, value_name = "HOW", default_value = "exit", env = "THALWEG_EVENTS_ON_POISON")]
    pub on_poison: OnPoison,
    /// With less space free on the disk, writes are refused
    #[arg(long, value_name = "SIZE", value_parser = size, env = "THALWEG_EVENTS_MIN_FREE")]
    pub min_free: Option<u64>,
    /// Memory that everything takes together; half of the machine's if it is not given
    #[arg(long, value_name = "SIZE", value_parser = memory, env = "THALWEG_EVENTS_MEMORY_LIMIT")]
    pub memory_limit: Option<u64>,
    /// Type, data and metadata of one message
    #[arg(long, value_name = "N", default_value_t = MESSAGE_BYTES,
          value_parser = clap::value_parser!(u64).range(1..=MESSAGE_BYTES_MAX), env = "THALWEG_EVENTS_MAX_MESSAGE_BYTES")]
    pub max_message_bytes: u64,
    /// Any valid token administers all namespaces
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
          value_parser = boolean, env = "THALWEG_EVENTS_OPEN_ADMIN")]
    pub open_admin: bool,
    /// Metrics have the namespace as a label
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
          value_parser = boolean, env = "THALWEG_EVENTS_METRICS_PER_NAMESPACE")]
    pub metrics_per_namespace: bool,
    /// Certificate of the server and behind it those that signed it, in PEM form; read again at SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key", env = "THALWEG_EVENTS_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, in PEM form
    #[arg(long, value_name = "FILE", requires = "tls_cert", env = "THALWEG_EVENTS_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// Certificates in PEM form, of which each client must have one, or be signed by one
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        env = "THALWEG_EVENTS_TLS_CLIENT_CA"
    )]
    pub tls_client_ca: Option<PathBuf>,
    /// In test mode, an origin whose pages may ask, as http://localhost:3000; * is all
    #[arg(
        long,
        value_name = "ORIGIN",
        value_delimiter = ',',
        env = "THALWEG_EVENTS_ALLOW_ORIGIN"
    )]
    pub allow_origin: Vec<String>,
    /// Other hosts may reach it without TLS, and in test mode do everything
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
        _ => Err("it is true, false, 1 or 0".to_owned()),
    }
}

fn max_connections(text: &str) -> Result<usize, String> {
    let wrong = || "it is a number from 16 to 1000000".to_owned();
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
            Err(_) => Err("it is start, end or a position from 0 on".to_owned()),
        },
    }
}

fn category(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("a category has a name".to_owned());
    }
    match text.contains('-') {
        true => Err("a category has no '-', which ends it in the name of a stream".to_owned()),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests;
