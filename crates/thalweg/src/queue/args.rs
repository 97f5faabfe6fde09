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

/// Which process, and who asks.
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
    /// Bearer token, when the process asks for one
    #[arg(
        long,
        global = true,
        value_name = "TOKEN",
        env = "THALWEG_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    /// File that holds the token
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "THALWEG_TOKEN_FILE",
        conflicts_with = "token"
    )]
    pub token_file: Option<PathBuf>,
    /// Certificates to trust beside those of the machine, in PEM form, for an address beginning with https://
    #[arg(long, global = true, value_name = "FILE", env = "THALWEG_CA_FILE")]
    pub ca_file: Option<PathBuf>,
    /// Print what the process answers, as JSON
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum QueueCommand {
    /// Make a queue
    Create(QueueCreate),
    /// List all queues
    List,
    /// Show a queue, its settings and its groups
    Show(QueueName),
    /// Produce messages: arguments, a file, or lines of the standard input
    Produce(QueueProduce),
    /// Take messages and print them
    Consume(QueueConsume),
    /// Dead letters: list, show, resend, purge
    #[command(subcommand)]
    Dlq(DlqCommand),
    /// Drop all messages of a queue
    Purge(QueueName),
    /// Refuse producers, consumers or both, until --resume
    Pause(QueuePause),
}

#[derive(Args)]
pub struct QueueName {
    /// The queue
    pub name: String,
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
    /// Each line is a payload as it is; without it, each is a JSON object such as {"text": "12", "key": "pump-1"}
    #[arg(long, conflicts_with = "payloads")]
    pub lines: bool,
    /// Messages of one key keep their order
    #[arg(long)]
    pub key: Option<String>,
    /// Not handed out before this time has passed: 30s
    #[arg(long, value_name = "TIME")]
    pub delay: Option<String>,
    /// Not handed out before: 2026-03-01T06:00:00Z
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    pub deliver_at: Option<String>,
    /// Lives no longer than that: 10m
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
    /// The group; one that is not there is made
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub group: String,
    /// The name under which the messages are leased
    #[arg(long, value_name = "ID", default_value = "thalweg-cli")]
    pub consumer: String,
    /// End after so many messages
    #[arg(long, value_name = "N")]
    pub max: Option<u64>,
    /// Wait for more when there are none
    #[arg(long, short)]
    pub follow: bool,
    /// Messages are done once they are printed (the default)
    #[arg(long, conflicts_with = "no_ack")]
    pub ack: bool,
    /// Messages stay leased and come again when their leases end
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
    /// Throw dead letters away
    Purge(DlqSelect),
}

#[derive(Args)]
pub struct DlqList {
    /// The queue in which they died
    pub name: String,
    #[command(flatten)]
    pub filter: DlqFilter,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: u64,
}

#[derive(Args)]
pub struct DlqShow {
    /// Its id, as the list has it: dlq.pumps:0:17
    pub id: String,
}

#[derive(Args)]
pub struct DlqResend {
    #[command(flatten)]
    pub select: DlqSelect,
    /// To this queue; without it, to the group in which they died
    #[arg(long, value_name = "QUEUE")]
    pub to: Option<String>,
    /// Not handed out before this time has passed
    #[arg(long, value_name = "TIME")]
    pub delay: Option<String>,
}

#[derive(Args)]
pub struct DlqSelect {
    /// The queue in which they died
    pub name: String,
    /// Ids of dead letters, as the list has them
    pub ids: Vec<String>,
    /// All dead letters of the queue
    #[arg(long, conflicts_with = "ids")]
    pub all: bool,
    #[command(flatten)]
    pub filter: DlqFilter,
}

/// Which dead letters; what is not given matches all.
#[derive(Args)]
pub struct DlqFilter {
    /// That died in this group
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// max_retries, timeout, rejected, expired or overflow
    #[arg(long)]
    pub reason: Option<String>,
    #[arg(long)]
    pub key: Option<String>,
    /// That died then or later: 2026-03-01T06:00:00Z
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// That died before
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// With this property: name=value
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
    /// Consumers of this group only
    #[arg(long, value_name = "NAME")]
    pub group: Option<String>,
    /// Undo it
    #[arg(long)]
    pub resume: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let pair = pair.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| format!("expected name=value, got {text:?}"))
}
