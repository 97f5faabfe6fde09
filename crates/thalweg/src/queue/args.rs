//! The command line of `thalweg queue`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Args)]
pub struct QueueOptions {
    #[command(flatten)]
    pub server: QueueEndpoint,
    #[command(subcommand)]
    pub command: QueueCommand,
}

/// The process, and the login.
#[derive(Args)]
pub struct QueueEndpoint {
    /// Address of the running process
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "THALWEG_URL",
        default_value = "http://127.0.0.1:4195"
    )]
    pub url: String,
    /// Bearer token, if the process requires one
    #[arg(
        long,
        global = true,
        value_name = "TOKEN",
        env = "THALWEG_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    /// File with the token
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "THALWEG_TOKEN_FILE",
        conflicts_with = "token"
    )]
    pub token_file: Option<PathBuf>,
    /// Certificates to trust in addition to the system's, in PEM form, for an https:// address
    #[arg(long, global = true, value_name = "FILE", env = "THALWEG_CA_FILE")]
    pub ca_file: Option<PathBuf>,
    /// Print the answer of the process as JSON
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum QueueCommand {
    /// Create a queue
    Create(QueueCreate),
    /// List all queues
    List,
    /// Show a queue, its settings and its groups
    Show(QueueName),
    /// Produce messages from arguments, a file, or lines of the standard input
    Produce(QueueProduce),
    /// Consume messages and print them
    Consume(QueueConsume),
    /// List, show, resend or purge dead letters
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Drop all messages of a queue
    Purge(QueuePurge),
    /// Refuse producers, consumers or both, until --resume
    Pause(QueuePause),
}

#[derive(Args)]
pub struct QueueName {
    /// The queue
    pub name: String,
}

#[derive(Args)]
pub struct QueuePurge {
    /// The queue
    pub name: String,
    /// Do not ask for confirmation on a terminal
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args)]
pub struct DlqPurge {
    #[command(flatten)]
    pub select: DlqSelect,
    /// Do not ask for confirmation on a terminal
    #[arg(long)]
    pub yes: bool,
}

#[derive(Args)]
pub struct QueueCreate {
    /// The queue
    pub name: String,
    #[arg(long, value_name = "N")]
    pub partitions: Option<u32>,
    /// A setting: --set retry.max_retries=3 --set ttl=72h
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub set: Vec<(String, String)>,
}

#[derive(Args)]
pub struct QueueProduce {
    /// The queue
    pub name: String,
    /// Payloads, one message each; without any, messages are read from --file or the standard input
    pub payloads: Vec<String>,
    /// File of messages
    #[arg(long, value_name = "FILE", conflicts_with = "payloads")]
    pub file: Option<PathBuf>,
    /// Each line is a raw payload; without this flag, each line is a JSON object such as {"text": "12", "key":
    /// "pump-1"}
    #[arg(long, conflicts_with = "payloads")]
    pub lines: bool,
    /// Messages with the same key stay in order
    #[arg(long)]
    pub key: Option<String>,
    /// Deliver only after this time: 30s
    #[arg(long, value_name = "TIME")]
    pub delay: Option<String>,
    /// Deliver only from this time on: 2026-03-01T06:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    pub deliver_at: Option<String>,
    /// Expire after this time: 10m
    #[arg(long, value_name = "TIME")]
    pub ttl: Option<String>,
    /// A property of each message
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    pub property: Vec<(String, String)>,
}

#[derive(Args)]
pub struct QueueConsume {
    /// The queue
    pub name: String,
    /// The group, which is created if it does not exist
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub group: String,
    /// The consumer name for the leases
    #[arg(long, value_name = "ID", default_value = "thalweg-cli")]
    pub consumer: String,
    /// End after this many messages
    #[arg(long, value_name = "N")]
    pub max: Option<u64>,
    /// Wait for more messages when there are none
    #[arg(long, short)]
    pub follow: bool,
    /// Acknowledge messages once they are printed (the default)
    #[arg(long, conflicts_with = "no_ack")]
    pub ack: bool,
    /// Do not acknowledge; messages are redelivered when their leases expire
    #[arg(long)]
    pub no_ack: bool,
}

#[derive(Subcommand)]
pub enum DlqCommand {
    /// List dead letters, oldest first
    List(DlqList),
    /// Show one dead letter
    Show(DlqShow),
    /// Send dead letters again
    Resend(DlqResend),
    /// Delete dead letters
    Purge(DlqPurge),
}

#[derive(Args)]
pub struct DlqList {
    /// The queue of the original messages
    pub name: String,
    #[command(flatten)]
    pub filter: DlqFilter,
    /// The most letters to list
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: u64,
}

#[derive(Args)]
pub struct DlqShow {
    /// The id, as the list shows it: dlq.pumps:0:17
    pub id: String,
}

#[derive(Args)]
pub struct DlqResend {
    #[command(flatten)]
    pub select: DlqSelect,
    /// The target queue; by default the group in which the message died
    #[arg(long, value_name = "QUEUE")]
    pub to: Option<String>,
    /// Deliver only after this time
    #[arg(long, value_name = "TIME")]
    pub delay: Option<String>,
}

#[derive(Args)]
pub struct DlqSelect {
    /// The queue of the original messages
    pub name: String,
    /// Ids of dead letters, as the list shows them
    pub ids: Vec<String>,
    /// All dead letters of the queue
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
    #[command(flatten)]
    pub filter: DlqFilter,
}

/// Selects dead letters; a filter that is not given matches all.
#[derive(Args)]
pub struct DlqFilter {
    /// Only those that died in this group
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Only this reason: max_retries, timeout, rejected, expired or overflow
    #[arg(long)]
    pub reason: Option<String>,
    #[arg(long)]
    pub key: Option<String>,
    /// Only those that died at this time or later: 2026-03-01T06:00:00Z
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only those that died before this time
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Only those with this property: name=value
    #[arg(long, value_name = "NAME=VALUE")]
    pub property: Option<String>,
}

impl DlqFilter {
    pub fn fields(&self) -> Vec<(&'static str, &str)> {
        let fields = [
            ("group", &self.group),
            ("reason", &self.reason),
            ("key", &self.key),
            ("since", &self.since),
            ("until", &self.until),
            ("property", &self.property),
        ];
        fields
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_deref()?)))
            .collect()
    }
}

#[derive(Args)]
pub struct QueuePause {
    /// The queue
    pub name: String,
    /// Producers only
    #[arg(long, conflicts_with = "group")]
    pub produce: bool,
    /// Consumers only
    #[arg(long, conflicts_with = "group")]
    pub consume: bool,
    /// Only the consumers of this group
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Resume instead of pausing
    #[arg(long)]
    pub resume: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let pair = pair.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| format!("expected name=value, got {text:?}"))
}
