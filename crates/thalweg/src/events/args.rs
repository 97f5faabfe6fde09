//! The command line of `thalweg events`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

const MESSAGE_BYTES: u64 = 16 << 20;
const MESSAGE_BYTES_MAX: u64 = 24 << 20;

#[derive(Args)]
#[command(arg_required_else_help = true)]
pub struct EventsOptions {
    #[command(subcommand)]
    pub command: EventsCommand,
}

#[derive(Subcommand)]
pub enum EventsCommand {
    /// Serve the store over HTTP; also without this word
    Serve(Box<ServeOptions>),
    /// Print the version
    Version,
}

#[derive(Args)]
pub struct ServeOptions {
    /// Listening port
    #[arg(long, value_name = "N", default_value_t = 8080, env = "THALWEG_EVENTS_PORT")]
    pub port: u16,
    /// Where everything is kept
    #[arg(long, value_name = "DIR", env = "THALWEG_EVENTS_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Where everything is kept, as a URL: log:///dir
    #[arg(long, value_name = "URL", env = "THALWEG_EVENTS_DB_URL")]
    pub db_url: Option<String>,
    /// Token of the namespace `default`; a random one is printed when that is first made
    #[arg(long, value_name = "TOKEN", env = "THALWEG_EVENTS_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Keep everything in memory, and let everybody do everything
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
          value_parser = boolean, env = "THALWEG_EVENTS_TEST_MODE")]
    pub test_mode: bool,
    /// debug, info, warn or error
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "THALWEG_EVENTS_LOG_LEVEL")]
    pub log_level: Level,
    #[arg(
        long,
        value_name = "FORMAT",
        default_value = "console",
        env = "THALWEG_EVENTS_LOG_FORMAT"
    )]
    pub log_format: Format,
    /// What an acknowledged write has survived: fsync all, interval and os a kill -9
    #[arg(
        long,
        value_name = "MODE",
        default_value = "fsync",
        env = "THALWEG_EVENTS_DURABILITY"
    )]
    pub durability: Durability,
    /// With --durability interval, how old what is not synced may become
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = thalweg_config::parse_duration,
          env = "THALWEG_EVENTS_SYNC_INTERVAL")]
    pub sync_interval: Duration,
    /// What becomes of damage: strict refuses to start, skip gives the damaged messages up
    #[arg(long, value_name = "HOW", default_value = "strict", env = "THALWEG_EVENTS_RECOVER")]
    pub recover: Recover,
    /// After a failed write or sync: exit with code 74, or stay and only read
    #[arg(long, value_name = "HOW", default_value = "exit", env = "THALWEG_EVENTS_ON_POISON")]
    pub on_poison: OnPoison,
    /// With less space free on the disk, writes are refused
    #[arg(long, value_name = "SIZE", value_parser = size, env = "THALWEG_EVENTS_MIN_FREE")]
    pub min_free: Option<u64>,
    /// Memory that everything takes together; half of the machine's if it is not given
    #[arg(long, value_name = "SIZE", value_parser = size, env = "THALWEG_EVENTS_MEMORY_LIMIT")]
    pub memory_limit: Option<u64>,
    /// Type, data and metadata of one message
    #[arg(long, value_name = "N", default_value_t = MESSAGE_BYTES,
          value_parser = clap::value_parser!(u64).range(1..=MESSAGE_BYTES_MAX), env = "THALWEG_EVENTS_MAX_MESSAGE_BYTES")]
    pub max_message_bytes: u64,
    /// Any valid token administers all namespaces
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
          value_parser = boolean, env = "THALWEG_EVENTS_OPEN_ADMIN")]
    pub open_admin: bool,
    /// In test mode, also other machines may do everything
    #[arg(long, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
          value_parser = boolean, env = "THALWEG_EVENTS_INSECURE")]
    pub insecure: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Console,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    Fsync,
    Interval,
    Os,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Recover {
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

fn size(text: &str) -> Result<u64, String> {
    thalweg_config::parse_size(text)
}
